#include <chrono>
#include <coroutine>
#include <exception>
#include <memory>
#include <rollcall/net/work.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::next_turn;
using co_test::settled;

namespace {

rc::task<int> number(int n) { co_return n; }
rc::task<> note(std::vector<std::string>& log, std::string what) {
  log.push_back(std::move(what));
  co_return;
}
rc::task<std::string> text(std::string s) { co_return s + s; }
rc::task<std::unique_ptr<int>> box(int n) { co_return std::make_unique<int>(n); }
rc::task<int> fails(std::string why) {
  throw std::runtime_error(why);
  co_return 0;
}
rc::task<int> depth(int n) {
  if (n == 0) co_return 0;
  co_return 1 + co_await depth(n - 1);
}
rc::task<int> deep_failure(rc::event& e, int n) {
  if (n == 0) {
    co_await e.wait();
    throw std::runtime_error("from below");
  }
  co_return co_await deep_failure(e, n - 1);
}
rc::task<> hold(std::shared_ptr<int> witness, rc::event& e) {
  co_await e.wait();
  static_cast<void>(witness);
}

/// Owns a frame with an environment that runs one awaitable, and can destroy it wherever it is suspended.
class runner {
 public:
  class promise_type : public rc::detail::promise_base {
   public:
    runner get_return_object() noexcept { return runner(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
  explicit runner(std::coroutine_handle<promise_type> h) noexcept : frame_(h) {}
  runner(runner&& o) noexcept : frame_(std::exchange(o.frame_, {})) {}
  ~runner() {
    if (frame_) frame_.destroy();
  }
  void start(rc::loop& l) {
    frame_.promise().start_in(rc::environment(&l.core(), {}));
    frame_.resume();
  }
  [[nodiscard]] bool done() const noexcept { return frame_.done(); }

 private:
  std::coroutine_handle<promise_type> frame_;
};

rc::task<> waits_nested(rc::event& e, int n) {
  if (n > 0) {
    co_await waits_nested(e, n - 1);
  } else {
    co_await e.wait();
  }
}

rc::task<> spawns_and_sleeps(rc::loop& l, rc::event& e, std::shared_ptr<int> witness) {
  rc::scope s(l);
  s.spawn(hold(std::move(witness), e));
  co_await rc::sleep_for(10s);
  co_await s.join();
}

enum class where { event_wait, latch_wait, sleep, sleep_for_ever, nested, join, before_join, all, limited, as_value, thread_pool };
constexpr where everywhere[] = {where::event_wait, where::latch_wait, where::sleep,   where::sleep_for_ever, where::nested,
                                where::join,       where::before_join,        where::all,        where::limited, where::as_value,       where::thread_pool};

runner suspended_in(rc::loop& l, where at, rc::event& e, rc::latch& closed, std::shared_ptr<int> witness) {
  switch (at) {
    case where::event_wait: co_await e.wait(); break;
    case where::latch_wait: co_await closed.wait(); break;
    case where::sleep: co_await rc::sleep_for(10s); break;
    case where::sleep_for_ever: co_await rc::sleep_until(rc::time_point::max()); break;
    case where::nested: co_await waits_nested(e, 5); break;
    case where::join: {
      rc::scope s(l);
      s.spawn(hold(witness, e));
      s.spawn(rc::sleep_for(10s));
      co_await s.join();
      break;
    }
    case where::before_join: {
      auto t = spawns_and_sleeps(l, e, witness);
      co_await std::move(t);
      break;
    }
    case where::all: {
      auto both = rc::when_all(hold(witness, e), rc::sleep_for(10s), e.wait());
      co_await std::move(both);
      break;
    }
    case where::limited: {
      auto t = rc::with_deadline(rc::with_deadline(hold(witness, e), 10s), 20s);
      co_await std::move(t);
      break;
    }
    case where::as_value: {
      auto t = rc::as_result(hold(witness, e));
      static_cast<void>(co_await std::move(t));
      break;
    }
    case where::thread_pool: {
      auto f = [witness] { return *witness; };
      static_cast<void>(co_await rc::run_blocking(f));
      break;
    }
  }
}

}  // namespace

CO_TEST_CASE("a task does nothing until it is awaited") {
  std::vector<std::string> log;
  auto t = note(log, "ran");
  CHECK(log.empty());
  CHECK(loop.live_frames() == 2);  // this body and its driver; not yet t
  co_await std::move(t);
  CHECK(log == std::vector<std::string>{"ran"});
}

CO_TEST_CASE("a task that is never awaited goes away with its parameters") {
  rc::event e(loop);
  auto witness = std::make_shared<int>(1);
  {
    auto t = hold(witness, e);
    CHECK(witness.use_count() == 2);
    auto moved = std::move(t);
    CHECK(witness.use_count() == 2);
    moved = hold(std::make_shared<int>(2), e);
    CHECK(witness.use_count() == 1);
  }
  co_return;
}

CO_TEST_CASE("results of all kinds come back, in the middle of expressions too") {
  CHECK(co_await number(7) == 7);
  CHECK(co_await text(std::string(40, 'x')) == std::string(80, 'x'));
  CHECK(co_await number(1) + co_await number(2) * co_await number(3) == 7);
  const std::unique_ptr<int> p = co_await box(5);
  CHECK(*p == 5);
  int sum = 0;
  for (int i = 0; i < co_await number(4); ++i) sum += *co_await box(i);
  CHECK(sum == 6);
  if (co_await number(1) == 1 && co_await number(0) == 1) FAIL("both are true");
}

CO_TEST_CASE("an exception comes out of the await") {
  CHECK_THROWS_WITH_AS(co_await fails("that way"), "that way", std::runtime_error);
  rc::event e(loop);
  rc::scope s(loop);
  auto set_it = [&e]() -> rc::task<> {
    e.set();
    co_return;
  };
  s.spawn(set_it);
  CHECK_THROWS_WITH_AS(co_await deep_failure(e, 50), "from below", std::runtime_error);
  co_await s.join();
}

CO_TEST_CASE("tasks nest a thousand deep") {
  CHECK(co_await depth(1000) == 1000);
  rc::event e(loop);
  rc::scope s(loop);
  s.spawn(waits_nested(e, 1000));
  co_await next_turn(loop);
  CHECK(loop.live_frames() > 1000);
  e.set();
  co_await s.join();
}

CO_TEST_CASE("a hundred thousand immediate completions in one coroutine") {
  std::int64_t sum = 0;
  for (int i = 0; i < 100'000; ++i) sum += co_await number(i);
  CHECK(sum == 4'999'950'000);
}

TEST_CASE("a frame destroyed while it is suspended leaves whatever it waits in") {
  for (const where at : everywhere) {
    CAPTURE(static_cast<int>(at));
    auto witness = std::make_shared<int>(1);
    rc::loop l;
    {
      rc::event e(l);
      rc::latch closed(l, 1);
      {
        runner r = suspended_in(l, at, e, closed, witness);
        r.start(l);
        for (int i = 0; i < 3; ++i) uv_run(l.native(), UV_RUN_NOWAIT);
        if (at != where::thread_pool) CHECK(!r.done());
      }
      CHECK(l.live_frames() == 0);
      CHECK(l.core().next_timer() == rc::time_point::max());
      CHECK(!l.core().has_ready());
      e.set();  // finds nobody
      closed.count_down();
    }
    uv_run(l.native(), UV_RUN_DEFAULT);
    CHECK(l.live_handles() == 0);
    CHECK(witness.use_count() == 1);
  }
}

TEST_CASE("a frame destroyed when it is ready but not yet resumed leaves the ready queue") {
  for (const where at : {where::event_wait, where::nested, where::join, where::all, where::limited, where::as_value}) {
    CAPTURE(static_cast<int>(at));
    auto witness = std::make_shared<int>(1);
    rc::loop l;
    {
      rc::event e(l);
      rc::latch closed(l, 1);
      runner r = suspended_in(l, at, e, closed, witness);
      r.start(l);
      uv_run(l.native(), UV_RUN_NOWAIT);
      e.set();
      CHECK(l.core().has_ready());
    }
    CHECK(!l.core().has_ready());
    CHECK(l.live_frames() == 0);
    CHECK(witness.use_count() == 1);
    uv_run(l.native(), UV_RUN_NOWAIT);
  }
}

CO_TEST_CASE("set() resumes nobody before the setter suspends, then in order of waiting") {
  std::vector<std::string> log;
  rc::event e(loop);
  auto waiter = [&](std::string name) -> rc::task<> {
    co_await e.wait();
    log.push_back(name);
  };
  rc::scope s(loop);
  for (char const* name : {"a", "b", "c"}) s.spawn(waiter, std::string(name));
  co_await next_turn(loop);
  e.set();
  log.push_back("setter");
  CHECK(log.size() == 1);
  co_await next_turn(loop);
  CHECK(log == std::vector<std::string>{"setter", "a", "b", "c"});
  co_await e.wait();  // stays set
  e.reset();
  CHECK(!e.is_set());
  co_await s.join();
}

CO_TEST_CASE("the parent of a task that has ended runs before everybody else who is ready") {
  std::vector<std::string> log;
  rc::event e(loop);
  auto inner = [&](std::string name) -> rc::task<> {
    co_await e.wait();
    log.push_back("inner " + name);
  };
  auto outer = [&](std::string name) -> rc::task<> {
    co_await inner(name);
    log.push_back("outer " + name);
  };
  rc::scope s(loop);
  s.spawn(outer, std::string("1"));
  s.spawn(outer, std::string("2"));
  co_await next_turn(loop);
  e.set();
  co_await settled(loop);
  CHECK(log == std::vector<std::string>{"inner 1", "outer 1", "inner 2", "outer 2"});
  co_await s.join();
}

CO_TEST_CASE("a waiter that waits again after a reset waits for the next set") {
  rc::event e(loop);
  int rounds = 0;
  auto again = [&]() -> rc::task<> {
    for (int i = 0; i < 3; ++i) {
      co_await e.wait();
      e.reset();
      ++rounds;
    }
  };
  rc::scope s(loop);
  s.spawn(again);
  for (int i = 1; i <= 3; ++i) {
    co_await settled(loop);
    e.set();
    co_await settled(loop);
    CHECK(rounds == i);
  }
  co_await s.join();
}

CO_TEST_CASE("a latch opens at zero, for those who wait and those who come later") {
  rc::latch gate(loop, 3);
  rc::scope s(loop);
  int through = 0;
  auto pass = [&]() -> rc::task<> {
    co_await gate.wait();
    ++through;
  };
  s.spawn(pass);
  co_await settled(loop);
  gate.count_down(2);
  co_await settled(loop);
  CHECK(through == 0);
  CHECK(gate.left() == 1);
  gate.count_down();
  s.spawn(pass);
  co_await s.join();
  CHECK(through == 2);
  rc::latch open(loop, 0);
  co_await open.wait();
}
