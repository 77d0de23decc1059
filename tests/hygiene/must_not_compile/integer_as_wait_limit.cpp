// expect: could not convert|no viable conversion|cannot convert|no matching (member )?function|no known conversion
#include <chrono>
#include <rollcall/rt/task.hpp>
#include <rollcall/stores/tcp.hpp>

rollcall::task<> caller(rollcall::tcp_store store) {
  co_await store.wait({"a", "b"}, 30000);  // mistake
  co_await store.wait({"a", "b"}, std::chrono::seconds(30));
}
