#include <malloc.h>
#include <pthread.h>
#include <uv.h>

#include <cstdint>
#include <cstdio>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/task.hpp>
#include <utility>

/// A million awaits that complete at once, in one coroutine, need neither stack nor memory: on every compiler, at every level of
/// optimisation, under every sanitizer. A program of its own, because it runs on a thread with a small stack.

namespace rc = rollcall;

/// The address sanitizer keeps freed memory for a while, to find uses of it; here it would look like growth.
extern "C" char const* __asan_default_options() { return "quarantine_size_mb=0:thread_local_quarantine_size_kb=0"; }

namespace {

constexpr std::int64_t many = 1'000'000;
constexpr std::size_t stack_bytes = 256 * 1024;

rc::task<std::int64_t> number(std::int64_t n) { co_return n; }
rc::task<std::int64_t> through(std::int64_t n) { co_return co_await number(n); }
rc::task<> nothing() { co_return; }
rc::task<std::int64_t> fails(std::int64_t n) {
  throw n;
  co_return 0;
}

rc::task<bool> values() {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < many; ++i) sum += co_await number(i);
  co_return sum == many * (many - 1) / 2;
}
rc::task<bool> two_deep() {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < many; ++i) sum += co_await through(i);
  co_return sum == many * (many - 1) / 2;
}
rc::task<bool> voids() {
  for (std::int64_t i = 0; i < many; ++i) co_await nothing();
  co_return true;
}
rc::task<bool> events(rc::event& set) {
  for (std::int64_t i = 0; i < many; ++i) co_await set.wait();
  co_return true;
}
rc::task<bool> exceptions() {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < many / 100; ++i) {
    try {
      sum += co_await fails(i);
    } catch (std::int64_t n) {
      sum += n;
    }
  }
  co_return sum == (many / 100) * (many / 100 - 1) / 2;
}
/// Each round is completed by somebody else: the waiter is resumed through the ready queue, a turn at a time.
rc::task<bool> ping_pong(rc::loop& l) {
  rc::scope s(l);
  rc::event ping(l);
  rc::event pong(l);
  constexpr int rounds = 100'000;
  auto other = [&]() -> rc::task<> {
    for (int i = 0; i < rounds; ++i) {
      co_await ping.wait();
      ping.reset();
      pong.set();
    }
  };
  s.spawn(other);
  for (int i = 0; i < rounds; ++i) {
    ping.set();
    co_await pong.wait();
    pong.reset();
  }
  co_await s.join();
  co_return true;
}

/// What the program keeps in memory, in bytes.
std::int64_t resident() {
  std::size_t bytes = 0;
  return uv_resident_set_memory(&bytes) == 0 ? static_cast<std::int64_t>(bytes) : 0;
}

int failures = 0;

void judge(rc::loop& l, char const* what, rc::task<bool> t) {
  static_cast<void>(malloc_trim(0));
  const std::int64_t before = resident();
  const bool right = rc::sync_wait(l, std::move(t));
  const std::int64_t grown = resident() - before;
  const bool fine = right && grown < 1024 * 1024 && l.live_frames() == 0;
  std::printf("%-12s %s, grown by %lld KiB\n", what, fine ? "ok" : "FAILED", static_cast<long long>(grown / 1024));
  if (!fine) ++failures;
}

void* all(void*) {
  rc::loop l;
  rc::event set(l);
  set.set();
  // Once for warmth: what is needed only once is not what grows.
  rc::sync_wait(l, exceptions());
  rc::sync_wait(l, values());
  judge(l, "values", values());
  judge(l, "two deep", two_deep());
  judge(l, "void", voids());
  judge(l, "set events", events(set));
  judge(l, "exceptions", exceptions());
  judge(l, "ping-pong", ping_pong(l));
  return nullptr;
}

}  // namespace

int main() {
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_t t;
  if (pthread_attr_setstacksize(&a, stack_bytes) != 0 || pthread_create(&t, &a, &all, nullptr) != 0) {
    std::puts("cannot make a thread with a small stack");
    return 1;
  }
  pthread_join(t, nullptr);
  pthread_attr_destroy(&a);
  return failures == 0 ? 0 : 1;
}
