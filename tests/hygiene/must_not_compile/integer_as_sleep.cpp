// expect: could not convert|no viable conversion|cannot convert|no matching function
#include <chrono>
#include <rollcall/rt/task.hpp>
#include <rollcall/rt/timer.hpp>

rollcall::task<> caller() {
  co_await rollcall::sleep_for(1000);  // mistake
  co_await rollcall::sleep_for(std::chrono::seconds(1));
}
