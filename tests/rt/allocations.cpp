#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <optional>
#include <rollcall/rt/channel.hpp>
#include <rollcall/rt/scope.hpp>
#include <utility>

#include "support/co_test.hpp"

/// What allocates nothing in steady state. Counts the calls of operator new in the whole program, those of the thread pool too.

namespace rc = rollcall;

namespace {

std::atomic<long> allocations{0};

void* allocate(std::size_t n) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n != 0 ? n : 1)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t n) { return allocate(n); }
void* operator new[](std::size_t n) { return allocate(n); }
// The address sanitizer has forms of its own of those that do not throw, which would not fit the release below.
void* operator new(std::size_t n, std::nothrow_t const&) noexcept {
  try {
    return allocate(n);
  } catch (...) {
    return nullptr;
  }
}
void* operator new[](std::size_t n, std::nothrow_t const& t) noexcept { return operator new(n, t); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

CO_TEST_CASE("a channel allocates nothing once it is made, whoever waits") {
  constexpr int warm = 10, items = 10'000;
  for (const std::size_t capacity : {1U, 4U}) {
    rc::channel<int> ch(loop, capacity);
    long before = 0;
    long after = 0;
    auto sends = [&]() -> rc::task<> {
      for (int n = 0; n < warm + items; ++n) co_await ch.send(n);
      after = allocations.load();
      ch.close();
    };
    auto receives = [&]() -> rc::task<> {
      while (const std::optional<int> n = co_await ch.receive())
        if (*n == warm) before = allocations.load();
    };
    rc::scope s(loop);
    s.spawn(receives);
    s.spawn(sends);
    co_await s.join();
    CHECK(before > 0);
    CHECK(after == before);
  }
}
