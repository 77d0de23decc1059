// expect: of nothing would never end
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/timer.hpp>

rollcall::task<> caller() {
  static_cast<void>(co_await rollcall::when_any(rollcall::sleep_for(rollcall::duration(1))));
  static_cast<void>(co_await rollcall::when_any());  // mistake
}
