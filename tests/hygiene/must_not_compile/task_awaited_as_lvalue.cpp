// expect: no member named 'await_ready'|passing .* discards qualifiers|as 'this' argument|'this' argument to member function|no viable
#include <utility>
#include <rollcall/rt/task.hpp>

rollcall::task<int> one();

rollcall::task<int> caller() {
  rollcall::task<int> t = one();
  int sum = co_await t;  // mistake
  co_return co_await std::move(t);
}
