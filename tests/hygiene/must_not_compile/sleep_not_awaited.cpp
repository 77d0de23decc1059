// expect: unused-result
// flags: -Werror=unused-result
#include <chrono>
#include <rollcall/rt/task.hpp>
#include <rollcall/rt/timer.hpp>

rollcall::task<> caller() {
  rollcall::sleep_for(std::chrono::seconds(1));  // mistake
  co_await rollcall::sleep_for(std::chrono::seconds(1));
}
