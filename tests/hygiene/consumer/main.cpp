#include <rollcall/rollcall.hpp>

#include <chrono>
#include <cstdio>

namespace rc = rollcall;

static rc::task<int> nap(rc::loop& loop) {
  co_await rc::sleep_for(std::chrono::milliseconds(1));
  co_return loop.native() ? 0 : 1;
}

int main() {
  std::printf("%d.%d.%d\n", ROLLCALL_VERSION_MAJOR, ROLLCALL_VERSION_MINOR, ROLLCALL_VERSION_PATCH);
  return rc::run([](rc::loop& loop) { return nap(loop); });
}
