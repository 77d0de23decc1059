// expect: use of deleted function|call to implicitly-deleted copy constructor|call to deleted constructor
#include <utility>
#include <rollcall/stores/tcp.hpp>

void caller(rollcall::operation<void> op) {
  rollcall::operation<void> second = op;  // mistake
  rollcall::operation<void> moved = std::move(op);
}
