#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <rollcall/test/manual_clock.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::settled;

namespace {

rc::task<> note_after(rc::duration d, std::vector<int>& log, int n) {
  co_await rc::sleep_for(d);
  log.push_back(n);
}

/// A timer of the loop without a coroutine.
class probe final : public rc::detail::timer_node {
 public:
  probe(rc::loop& l, std::vector<int>& log, int id)
      : timer_node([](timer_node& t) noexcept { static_cast<probe&>(t).fire(); }), core_(l.core()), log_(log), id_(id) {}
  ~probe() { remove(); }
  void set(rc::time_point at) { core_.add_timer(*this, at); }
  void remove() { core_.remove_timer(*this); }
  std::function<void()> also;

 private:
  void fire() noexcept {
    log_.push_back(id_);
    if (also) also();
  }
  rc::detail::loop_core& core_;
  std::vector<int>& log_;
  int id_;
};

int open_timers(uv_loop_t* l) {
  int n = 0;
  uv_walk(
      l, [](uv_handle_t* h, void* count) { *static_cast<int*>(count) += h->type == UV_TIMER && !uv_is_closing(h); }, &n);
  return n;
}

}  // namespace

CO_TEST_CASE("sleeps end in the order of their times, whatever order they were begun in") {
  rc::test::manual_clock clock(loop);
  std::vector<int> log;
  rc::scope s(loop);
  for (const int ms : {5, 1, 4, 2, 3}) s.spawn(note_after(ms * 1ms, log, ms));
  co_await settled(loop);
  CHECK(log.empty());
  clock.advance(3ms);
  co_await settled(loop);
  CHECK(log == std::vector<int>{1, 2, 3});
  clock.advance(1h);
  co_await s.join();
  CHECK(log == std::vector<int>{1, 2, 3, 4, 5});
}

CO_TEST_CASE("sleeps of the same instant end in the order in which they were begun") {
  rc::test::manual_clock clock(loop);
  std::vector<int> log;
  std::vector<int> expected;
  rc::scope s(loop);
  for (int i = 0; i < 50; ++i) {
    s.spawn(note_after(10ms, log, i));
    expected.push_back(i);
  }
  co_await settled(loop);
  clock.advance(10ms);
  co_await s.join();
  CHECK(log == expected);
}

CO_TEST_CASE("a sleep never ends early, not by a nanosecond") {
  rc::test::manual_clock clock(loop);
  std::vector<int> log;
  rc::scope s(loop);
  s.spawn(note_after(10ms, log, 1));
  co_await settled(loop);
  clock.advance(10ms - 1ns);
  co_await settled(loop);
  CHECK(log.empty());
  clock.advance(1ns);
  co_await s.join();
  CHECK(log.size() == 1);
}

CO_TEST_CASE("sleeps of zero, less than zero and in the past end in a later turn, not at once") {
  std::vector<int> log;
  rc::scope s(loop);
  s.spawn(note_after(0s, log, 1));
  s.spawn(note_after(-5s, log, 2));
  s.spawn(note_after(rc::duration::min(), log, 3));
  auto past = [&]() -> rc::task<> {
    co_await rc::sleep_until(loop.now() - 1h);
    log.push_back(4);
  };
  s.spawn(past);
  co_await settled(loop);
  CHECK(log.empty());
  co_await s.join();
  CHECK(log.size() == 4);
}

CO_TEST_CASE("a timer may remove others, and itself be set again, while it fires") {
  rc::test::manual_clock clock(loop);
  std::vector<int> log;
  probe a(loop, log, 1);
  probe b(loop, log, 2);
  auto c = std::make_unique<probe>(loop, log, 3);
  probe d(loop, log, 4);
  const rc::time_point t = clock.now() + 10ms;
  a.set(t);
  b.set(t);
  c->set(t + 1ms);
  d.set(t + 2ms);
  a.also = [&] {
    b.remove();
    c.reset();
    if (log.size() == 1) a.set(t + 5ms);
  };
  clock.advance(20ms);
  CHECK(log == std::vector<int>{1, 4, 1});
  CHECK(!a.in_heap());
  co_return;
}

CO_TEST_CASE("a timer that is set while others fire, for an instant that has passed, fires in the same sweep") {
  rc::test::manual_clock clock(loop);
  std::vector<int> log;
  probe a(loop, log, 1);
  probe b(loop, log, 2);
  a.set(clock.now() + 10ms);
  a.also = [&] { b.set(clock.now() - 1h); };
  clock.advance(10ms);
  CHECK(log == std::vector<int>{1, 2});
  co_return;
}

CO_TEST_CASE("the clock stops at every instant on the way") {
  rc::test::manual_clock clock(loop);
  const rc::time_point begun = clock.now();
  std::vector<int> log;
  std::vector<rc::duration> seen;
  probe a(loop, log, 1);
  a.also = [&] {
    seen.push_back(clock.now() - begun);
    if (seen.size() < 3) a.set(clock.now() + 10ms);
  };
  a.set(begun + 10ms);
  clock.advance(100ms);
  CHECK(seen == std::vector<rc::duration>{10ms, 20ms, 30ms});
  CHECK(clock.now() == begun + 100ms);
  CHECK(loop.now() == clock.now());
  a.also = nullptr;
  a.set(begun + 1s);
  CHECK(clock.advance_to_next());
  CHECK(clock.now() == begun + 1s);
  CHECK(!clock.advance_to_next());
  clock.advance(-1h);
  CHECK(clock.now() == begun + 1s);
  co_return;
}

TEST_CASE("a manual clock that is moved from outside runs what its timers made ready within advance") {
  rc::loop l;
  std::vector<int> log;
  {
    rc::test::manual_clock clock(l);
    rc::scope s(l);
    auto thrice = [&]() -> rc::task<> {
      for (int i = 0; i < 3; ++i) {
        co_await rc::sleep_for(1s);
        log.push_back(i);
      }
    };
    s.spawn(thrice);
    uv_run(l.native(), UV_RUN_NOWAIT);
    clock.advance(10s);
    CHECK(log == std::vector<int>{0, 1, 2});
    CHECK(s.size() == 0);
  }
  CHECK(l.live_frames() == 0);
}

CO_TEST_CASE("a thousand timers, set and removed at random, fire as a multimap says") {
  constexpr std::uint64_t seed = 20'240'607;
  CAPTURE(seed);
  std::uint64_t state = seed;
  auto random = [&state](std::uint64_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<int>((state >> 11) % n);
  };
  rc::test::manual_clock clock(loop);
  std::vector<int> fired;
  std::vector<std::unique_ptr<probe>> timers;
  for (int i = 0; i < 1000; ++i) timers.push_back(std::make_unique<probe>(loop, fired, i));
  std::multimap<rc::time_point, int> model;
  std::vector<std::multimap<rc::time_point, int>::iterator> where(timers.size(), model.end());
  for (int step = 0; step < 50'000; ++step) {
    const int i = random(timers.size());
    const auto at = static_cast<std::size_t>(i);
    if (timers[at]->in_heap()) {
      timers[at]->remove();
      model.erase(where[at]);
    } else {
      const rc::time_point t = clock.now() + random(500) * 1ms;
      timers[at]->set(t);
      where[at] = model.emplace(t, i);
    }
    if (random(20) == 0) {
      std::vector<int> expected;
      const rc::duration d = random(30) * 1ms;
      for (; !model.empty() && model.begin()->first <= clock.now() + d; model.erase(model.begin())) expected.push_back(model.begin()->second);
      fired.clear();
      clock.advance(d);
      REQUIRE(fired == expected);
    }
    const rc::time_point next = model.empty() ? rc::time_point::max() : model.begin()->first;
    if (loop.core().next_timer() != next) REQUIRE(loop.core().next_timer() == next);
  }
  co_return;
}

CO_TEST_CASE("on the real clock: one uv_timer_t for all sleeps, none early, in order") {
  rc::scope s(loop);
  std::vector<int> log;
  bool early = false;
  auto sleeper = [&](int n) -> rc::task<> {
    const rc::time_point begun = loop.now();
    const rc::duration d = n * 100us;
    co_await rc::sleep_for(d);
    early = early || loop.now() - begun < d;
    log.push_back(n);
  };
  const int before = open_timers(loop.native());
  for (int i = 200; i > 0; --i) s.spawn(sleeper, i);
  co_await settled(loop);
  CHECK(open_timers(loop.native()) == before);
  co_await s.join();
  CHECK(!early);
  CHECK(log.size() == 200);
}

CO_TEST_CASE("a sooner timer that is set later wakes the loop in time, and a removed one does not matter") {
  rc::scope s(loop);
  rc::scope stopped(loop);
  s.spawn(rc::sleep_for(1h));
  stopped.spawn(rc::sleep_for(1ms));
  co_await settled(loop);
  stopped.request_stop();
  co_await stopped.join();
  co_await rc::sleep_for(2ms);
  s.request_stop();
  co_await s.join();
}

TEST_CASE("sleeps of zero in a row leave everything else its turn") {
  for (const rc::duration d : {rc::duration(0), rc::duration(1), rc::duration(-1s)}) {
    rc::loop l;
    bool posted = false;
    l.post_handle().post([&] { posted = true; });
    rc::sync_wait(l, [](rc::duration each, bool* p) -> rc::task<> {
      for (int i = 0; i < 1'000'000 && !*p; ++i) co_await rc::sleep_for(each);
    }(d, &posted));
    CHECK(posted);
  }
}

TEST_CASE("a sleep keeps a loop running, a loop without sleeps ends") {
  rc::loop l;
  std::vector<int> log;
  {
    rc::scope s(l);
    s.spawn(note_after(2ms, log, 1));
    l.run();
    CHECK(log.size() == 1);
    s.spawn(note_after(1h, log, 2));
    uv_run(l.native(), UV_RUN_NOWAIT);
    CHECK(uv_loop_alive(l.native()) != 0);
    s.request_stop();
    l.run();
    CHECK(s.size() == 0);
  }
  CHECK(uv_loop_alive(l.native()) == 0);
}

TEST_CASE("durations of every kind become deadlines, and none wraps around") {
  const rc::time_point now(1h);
  const rc::deadline half = 0.5s;
  CHECK(half.from(now) == now + 500ms);
  CHECK(rc::deadline(std::chrono::duration<double, std::milli>(0.25)).from(now) == now + 250us);
  CHECK(rc::deadline(std::chrono::duration<float>(2.0F)).from(now) == now + 2s);
  CHECK(rc::deadline(rc::time_point(1s)).is_point());
  CHECK(!rc::deadline(1s).is_point());
  CHECK(!rc::deadline(rc::time_point::max()).is_point());
  CHECK(rc::deadline(1e300 * 1s).is_never());
  CHECK(rc::deadline(std::chrono::years(1000)).is_never());
  CHECK(rc::deadline(std::chrono::duration<double>(std::numeric_limits<double>::infinity())).is_never());
  CHECK(rc::deadline(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())).is_never());
  CHECK(rc::deadline(-1e300 * 1s).from(now) <= now);
  CHECK(rc::deadline(std::chrono::years(-1000)).from(now) <= now);
  CHECK(rc::deadline(rc::duration::max() - 1ns).from(now) == rc::time_point::max());
  CHECK(rc::deadline(rc::time_point::max()).is_never());
  CHECK(rc::deadline::never().from(now) == rc::time_point::max());
  CHECK(rc::deadline(now + 1s).from(now + 5s) == now + 1s);
  CHECK(rc::deadline(now + 1s).length(now) == 1s);
  CHECK(rc::deadline::never().length(now) == rc::duration::max());
}
