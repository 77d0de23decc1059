// expect: unused-result
// flags: -Werror=unused-result
#include <rollcall/rt/task.hpp>

rollcall::task<int> one();

rollcall::task<int> caller() {
  one();  // mistake
  co_return co_await one();
}
