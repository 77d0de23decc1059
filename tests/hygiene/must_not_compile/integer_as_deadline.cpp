// expect: could not convert|no viable conversion|cannot convert|no matching function
#include <chrono>
#include <rollcall/core/clock.hpp>

void wait_until(rollcall::deadline limit);

void caller() {
  wait_until(std::chrono::seconds(30));
  wait_until(30);  // mistake
}
