// expect: could not convert|no viable conversion|cannot convert|no matching function
#include <rollcall/core/bytes.hpp>

void wait(rollcall::keys which);

void caller() {
  wait("1");
  wait({"1", 2});  // mistake
}
