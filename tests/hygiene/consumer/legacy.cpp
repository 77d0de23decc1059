// A program without a loop: neither libuv nor coroutines.
#include <chrono>
#include <cstdio>
#include <rollcall/legacy.hpp>

namespace rc = rollcall;

int main() {
  rc::legacy_server server(rc::listen_options{});
  server.start();
  const rc::blocking_store store = rc::blocking_store::connect("127.0.0.1", server.port(), std::chrono::seconds(30));
  store.set("k", "hello");
  std::puts(store.get("k").c_str());
}
