// expect: could not convert|no viable conversion|cannot convert|no matching function
#include <rollcall/core/clock.hpp>

void wait_until(rollcall::deadline limit);

void caller() {
  wait_until(rollcall::deadline::never());
  wait_until(0.5);  // mistake
}
