#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <rollcall/net/signal.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <string>
#include <utility>
#include <vector>

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace {

/// Runs `f(loop)` on a fresh loop within a limit, then all that is left on it; nothing may remain.
template <class F>
void on_fresh_loop(F f) {
  rc::loop l;
  rc::sync_wait(l, rc::with_deadline(f(l), 20s));
  l.run();
  CHECK(l.live_handles() == 0);
  CHECK(l.live_frames() == 0);
}

/// A coroutine type that knows nothing of us, started at once, destroyed by its owner.
class foreign {
 public:
  struct promise_type {
    foreign get_return_object() { return foreign(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  explicit foreign(std::coroutine_handle<promise_type> h) : frame_(h) {}
  foreign(foreign&& o) noexcept : frame_(std::exchange(o.frame_, {})) {}
  ~foreign() {
    if (frame_) frame_.destroy();
  }

 private:
  std::coroutine_handle<promise_type> frame_;
};

foreign note_next(rc::signal_watcher& w, std::vector<int>& seen) { seen.push_back(co_await w.next()); }
rc::task<> note_in_task(rc::signal_watcher& w, std::vector<int>& seen) { seen.push_back(co_await w.next()); }

rc::task<> in_order(rc::loop& l) {
  rc::signal_watcher w{l, SIGUSR1, SIGUSR2};
  for (const int s : {SIGUSR1, SIGUSR2, SIGUSR1}) std::raise(s);
  std::vector<int> seen;
  for (int i = 0; i < 3; ++i) seen.push_back(co_await w.next());
  CHECK(seen == std::vector<int>{SIGUSR1, SIGUSR2, SIGUSR1});
  const rc::result<int> more = co_await rc::as_result(rc::with_deadline(w.next(), 20ms));
  CHECK(more.code() == rc::errc::timed_out);
}

rc::task<> waiting_first(rc::loop& l) {
  rc::signal_watcher w(l, SIGUSR1);
  std::vector<int> seen;
  rc::scope s(l);
  s.spawn(note_in_task(w, seen));
  s.spawn(note_in_task(w, seen));
  l.post([] { std::raise(SIGUSR1); });
  l.post([] { std::raise(SIGUSR1); });
  co_await s.join();
  CHECK(seen == std::vector<int>{SIGUSR1, SIGUSR1});
}

rc::task<> two_watchers(rc::loop& l) {
  rc::signal_watcher a(l, SIGUSR1);
  rc::signal_watcher b(l, SIGUSR1);
  std::raise(SIGUSR1);
  const int first = co_await a.next();
  const int second = co_await b.next();
  CHECK(first == SIGUSR1);
  CHECK(second == SIGUSR1);
}

rc::task<> stopped(rc::loop& l) {
  rc::signal_watcher w(l, SIGUSR1);
  rc::scope s(l);
  std::vector<int> seen;
  s.spawn(note_in_task(w, seen));
  const auto later_turn = std::make_shared<bool>(false);
  s.spawn([&]() -> rc::task<> {
    l.post([later_turn] { *later_turn = true; });
    s.request_stop();
    co_return;
  });
  co_await s.join();
  CHECK_FALSE(*later_turn);
  CHECK(seen.empty());
  std::raise(SIGUSR1);
  const int n = co_await w.next();
  CHECK(n == SIGUSR1);
}

rc::task<> stopped_before(rc::signal_watcher& w) {
  rc::stop_source stop;
  stop.request_stop();
  co_await rc::detail::stop_with(stop.token());
  co_await w.next();
}

}  // namespace

TEST_CASE("signals are handed out once each, in order") { on_fresh_loop(in_order); }
TEST_CASE("a signal goes to who waits first, the next one to the next") { on_fresh_loop(waiting_first); }
TEST_CASE("every watcher of a signal gets it") { on_fresh_loop(two_watchers); }
TEST_CASE("a stop ends the wait for a signal in its turn, and the next signal goes to the next caller") { on_fresh_loop(stopped); }

TEST_CASE("a wait for a signal under a token that has stopped is cancelled at once") {
  rc::loop l;
  {
    rc::signal_watcher w(l, SIGUSR1);
    const auto r = rc::sync_wait(l, rc::as_result(stopped_before(w)));
    CHECK(r.code() == rc::errc::cancelled);
  }
  l.run();
  CHECK(l.live_handles() == 0);
}

TEST_CASE("a signal watcher keeps the loop alive only while somebody waits") {
  rc::loop l;
  {
    rc::signal_watcher w(l, SIGUSR1);
    CHECK(uv_loop_alive(l.native()) == 0);
    std::vector<int> seen;
    {
      const foreign waits = note_next(w, seen);
      CHECK(uv_loop_alive(l.native()) != 0);
    }
    CHECK(uv_loop_alive(l.native()) == 0);  // its frame was destroyed while it waited
    l.run();
    CHECK(seen.empty());
  }
  l.run();
  CHECK(l.live_handles() == 0);
}

TEST_CASE("a signal is delivered to a coroutine type without an environment") {
  rc::loop l;
  std::vector<int> seen;
  {
    rc::signal_watcher w(l, SIGUSR1);
    const foreign waits = note_next(w, seen);
    std::raise(SIGUSR1);
    l.run();
    CHECK(seen == std::vector<int>{SIGUSR1});
  }
  l.run();
  CHECK(l.live_handles() == 0);
}

TEST_CASE("a signal whose receiver dies before it is resumed goes to the next caller") {
  rc::loop l;
  std::vector<int> lost, seen;
  {
    rc::signal_watcher w(l, SIGUSR1);
    {
      const rc::detail::loop_core::turn nobody_is_resumed_yet(l.core());
      const foreign dies = note_next(w, lost);
      std::raise(SIGUSR1);
      while (uv_loop_alive(l.native())) uv_run(l.native(), UV_RUN_ONCE);  // until it has been handed out
    }
    const foreign gets_it = note_next(w, seen);
    CHECK(lost.empty());
    CHECK(seen == std::vector<int>{SIGUSR1});
  }
  l.run();
  CHECK(l.live_handles() == 0);
}

TEST_CASE("a signal that cannot be caught is an error that names it") {
  rc::loop l;
  CHECK_THROWS_WITH_AS(rc::signal_watcher(l, SIGUSR1, SIGKILL), doctest::Contains("SIGKILL"), rc::error);
  l.run();
  CHECK(l.live_handles() == 0);
}

TEST_CASE("signals have names") {
  CHECK(rc::signal_name(SIGTERM) == "SIGTERM");
  CHECK(rc::signal_name(63) == "signal 63");
}
