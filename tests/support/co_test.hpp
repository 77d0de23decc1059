#pragma once
#include <doctest/doctest.h>
#include <uv.h>

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <rollcall/rt/stop.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/task.hpp>
#include <utility>

/// CO_TEST_CASE("name") { ... } is a test whose body is a coroutine, a `task<>` that gets `rollcall::loop& loop`. It runs on a fresh
/// loop; a body that does not end is stopped and fails; handles, frames, timers and ready work must be gone afterwards.
#define CO_TEST_CASE(name) CO_TEST_CASE_NAMED(DOCTEST_ANONYMOUS(co_test_body_), name)
#define CO_TEST_CASE_NAMED(body, name)                    \
  static ::rollcall::task<> body(::rollcall::loop& loop); \
  TEST_CASE(name) { ::co_test::run(name, &body); }        \
  static ::rollcall::task<> body([[maybe_unused]] ::rollcall::loop& loop)

namespace co_test {

inline constexpr std::uint64_t limit_ms = 20'000;  // then the body is asked to stop
inline constexpr std::uint64_t grace_ms = 3'000;   // then the program is given up

/// A timer of libuv's own, on no clock of rollcall's, so that it also watches tests that move the clock by hand.
class watchdog {
 public:
  watchdog(uv_loop_t* l, char const* name) : name_(name) {
    uv_timer_init(l, &timer_);
    timer_.data = this;
    uv_timer_start(&timer_, [](uv_timer_t* t) noexcept { static_cast<watchdog*>(t->data)->bark(); }, limit_ms, grace_ms);
  }
  watchdog(watchdog const&) = delete;
  watchdog& operator=(watchdog const&) = delete;
  ~watchdog() {
    uv_close(reinterpret_cast<uv_handle_t*>(&timer_), [](uv_handle_t* h) { static_cast<watchdog*>(h->data)->closed_ = true; });
    while (!closed_) uv_run(timer_.loop, UV_RUN_NOWAIT);
  }
  [[nodiscard]] bool barked() const noexcept { return barked_; }
  [[nodiscard]] rollcall::stop_token token() noexcept { return stop_.token(); }
  /// From now on only lets the loop turn, so that UV_RUN_ONCE comes back.
  void tick() {
    uv_timer_start(&timer_, [](uv_timer_t*) {}, 1, 5);
  }

 private:
  void bark() noexcept {
    if (barked_) {
      std::fprintf(stderr, "test \"%s\" does not end, not even after a stop: giving up\n", name_);
      std::abort();
    }
    barked_ = true;
    stop_.request_stop();
  }
  uv_timer_t timer_;
  char const* name_;
  rollcall::stop_source stop_;
  bool barked_ = false;
  bool closed_ = false;
};

/// Lets the loop turn until nothing of ours is left on it, for 5 s at the most; then checks that nothing is.
inline void expect_nothing_left(rollcall::loop& l, watchdog& dog) {
  dog.tick();
  const std::uint64_t until = uv_hrtime() + 5'000'000'000U;
  while ((l.live_handles() > 0 || l.live_frames() > 0 || l.core().has_ready()) && uv_hrtime() < until) uv_run(l.native(), UV_RUN_ONCE);
  CHECK_MESSAGE(l.live_handles() == 0, "handles are left open");
  CHECK_MESSAGE(l.live_frames() == 0, "coroutine frames are left");
  CHECK_MESSAGE(!l.core().has_ready(), "somebody is still ready to run");
  CHECK_MESSAGE(l.core().next_timer() == rollcall::time_point::max(), "somebody still waits for a point in time");
}

inline void run(char const* name, rollcall::task<> (*body)(rollcall::loop&)) {
  rollcall::loop l;
  watchdog dog(l.native(), name);
  std::exception_ptr thrown;
  try {
    rollcall::sync_wait(l, body(l), dog.token());
  } catch (...) {
    thrown = std::current_exception();
  }
  if (dog.barked()) FAIL_CHECK("did not end within " << limit_ms / 1000 << " s and was stopped");
  expect_nothing_left(l, dog);
  if (thrown && !dog.barked()) std::rethrow_exception(thrown);
}

/// `co_await next_turn(loop)`: goes on after everything that is ready now.
class [[nodiscard]] next_turn final : private rollcall::detail::ready_node {
 public:
  explicit next_turn(rollcall::loop& l) noexcept
      : ready_node([](ready_node& n) noexcept { static_cast<next_turn&>(n).waiting_.resume(); }), core_(l.core()) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> h) noexcept {
    waiting_ = h;
    core_.schedule(*this);
  }
  void await_resume() const noexcept {}

 private:
  rollcall::detail::loop_core& core_;
  std::coroutine_handle<> waiting_;
};

/// Goes on when nobody else is ready any more.
inline rollcall::task<> settled(rollcall::loop& l) {
  do co_await next_turn(l);
  while (l.core().has_ready());
}

/// A coroutine that knows nothing of rollcall: starts at once, is destroyed by its owner, offers no environment.
class foreign {
 public:
  struct promise_type {
    foreign get_return_object() noexcept { return foreign(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
  explicit foreign(std::coroutine_handle<promise_type> h) noexcept : frame_(h) {}
  foreign(foreign&& o) noexcept : frame_(std::exchange(o.frame_, {})) {}
  ~foreign() { destroy(); }
  [[nodiscard]] bool done() const noexcept { return frame_.done(); }
  void destroy() noexcept {
    if (frame_) std::exchange(frame_, {}).destroy();
  }

 private:
  std::coroutine_handle<promise_type> frame_;
};

}  // namespace co_test
