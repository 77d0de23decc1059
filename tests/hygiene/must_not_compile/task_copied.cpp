// expect: use of deleted function|call to implicitly-deleted copy constructor|call to deleted constructor
#include <utility>
#include <rollcall/rt/task.hpp>

void caller(rollcall::task<int> t) {
  rollcall::task<int> second = t;  // mistake
  rollcall::task<int> moved = std::move(t);
}
