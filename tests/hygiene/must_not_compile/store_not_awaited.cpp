// expect: unused-result
// flags: -Werror=unused-result
#include <rollcall/rt/task.hpp>
#include <rollcall/stores/tcp.hpp>

rollcall::task<> caller(rollcall::tcp_store store) {
  store.set("key", "value");  // mistake
  co_await store.set("key", "value");
}
