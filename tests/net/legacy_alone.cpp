// A program that includes and links the blocking side only.
#include <cstdio>
#include <rollcall/legacy.hpp>

#ifdef UV_H
#error "<rollcall/legacy.hpp> includes <uv.h>"
#endif
#if defined(_GLIBCXX_COROUTINE) || defined(_LIBCPP_COROUTINE)
#error "<rollcall/legacy.hpp> includes <coroutine>"
#endif

namespace rc = rollcall;

int main() {
  using namespace std::chrono_literals;
  try {
    rc::legacy_server server(rc::listen_options{});
    server.start();
    const rc::blocking_store store = rc::blocking_store::connect("127.0.0.1", server.port(), 10s);
    store.set("greeting", "hello");
    const bool fine = store.get("greeting") == "hello" && store.add("n", 2) == 2;
    std::puts(fine ? "fine" : "wrong answers");
    return fine ? 0 : 1;
  } catch (rc::error const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
