// A store and its client in a program without a loop: neither libuv nor coroutines.
#include <cstdio>
#include <rollcall/legacy.hpp>

namespace rc = rollcall;
using namespace std::chrono_literals;

int main() {
  rc::legacy_server server(rc::listen_options{}.port(0));  // or a descriptor: rc::listener::adopt(listen_fd)
  server.start();
  const rc::blocking_store store = rc::blocking_store::connect("127.0.0.1", server.port(), 30s);
  store.set("greeting", "hello");
  std::puts(store.get("greeting", 10s).c_str());
}
