#include <chrono>
#include <memory>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <rollcall/test/manual_clock.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::next_turn;
using co_test::settled;

namespace {

rc::task<std::string> text_after(rc::event& e, std::string s) {
  co_await e.wait();
  co_return s;
}
rc::task<std::string> text(std::string s) { co_return s; }
rc::task<std::unique_ptr<int>> box(int n) { co_return std::make_unique<int>(n); }
rc::task<> nothing() { co_return; }
rc::task<> fail(std::string why) {
  throw std::runtime_error(why);
  co_return;
}
rc::task<> fail_after(rc::event& e, rc::errc code) {
  co_await e.wait();
  throw rc::error(code, "the inner");
}
rc::task<int> stubborn(rc::event& never) {
  try {
    co_await never.wait();
  } catch (rc::error const&) {
    // Ends well although it was stopped.
  }
  co_return 9;
}
rc::task<> slow_to_stop(rc::event& never, std::vector<std::string>& log) {
  bool stopped = false;
  try {
    co_await never.wait();
  } catch (rc::error const&) {
    stopped = true;
  }
  CHECK(stopped);
  const rc::stop_token none;
  co_await rc::detail::stop_with(none);
  co_await rc::sleep_for(3ms);
  log.push_back("loser ended");
  rc::detail::throw_cancelled("slow");
}

/// Runs a task as a child and keeps its outcome.
template <class T>
rc::task<> keep(rc::task<T> t, rc::result<T>& out) {
  out = co_await rc::as_result(std::move(t));
}
rc::failure const not_yet(rc::errc::io, "not yet");

}  // namespace

CO_TEST_CASE("when_all gives all values, void as monostate, whatever order they come in") {
  rc::event a(loop);
  rc::event b(loop);
  rc::scope s(loop);
  auto later = [&]() -> rc::task<> {
    b.set();
    co_await rc::sleep_for(1ms);
    a.set();
  };
  s.spawn(later);
  auto [x, none, y, p] = co_await rc::when_all(text_after(a, "a"), nothing(), text_after(b, "b"), box(3));
  static_assert(std::is_same_v<decltype(none), std::monostate>);
  CHECK(x == "a");
  CHECK(y == "b");
  CHECK(*p == 3);
  co_await s.join();
}

CO_TEST_CASE("when_all of nothing, and of what is complete at once") {
  const std::tuple<> empty = co_await rc::when_all();
  static_cast<void>(empty);
  auto [a, b] = co_await rc::when_all(text(std::string(50, 'a')), rc::when_all(text("b"), text(std::string(50, 'c'))));
  CHECK(a == std::string(50, 'a'));
  CHECK(std::get<1>(b) == std::string(50, 'c'));
}

CO_TEST_CASE("when_all takes operations, not only tasks") {
  rc::event e(loop);
  e.set();
  co_await rc::when_all(e.wait(), rc::sleep_for(1ms), rc::sleep_for(0s));
}

CO_TEST_CASE("the first error of when_all stops the others and is thrown once they have ended") {
  rc::event never(loop);
  std::vector<std::string> log;
  CHECK_THROWS_WITH_AS(co_await rc::when_all(slow_to_stop(never, log), fail("now"), never.wait()), "now", std::runtime_error);
  CHECK(log == std::vector<std::string>{"loser ended"});
}

CO_TEST_CASE("a stop of the caller stops all of when_all") {
  rc::event never(loop);
  std::vector<std::string> log;
  rc::result<std::tuple<std::monostate, std::monostate>> out = not_yet;
  rc::scope s(loop);
  auto both = rc::when_all(slow_to_stop(never, log), never.wait());
  s.spawn(keep(std::move(both), out));
  co_await settled(loop);
  s.request_stop();
  co_await s.join();
  CHECK(out.code() == rc::errc::cancelled);
  CHECK(log.size() == 1);
}

CO_TEST_CASE("with_deadline passes results and inner errors, and leaves no timer") {
  rc::event set(loop);
  set.set();
  const std::string value = co_await rc::with_deadline(text_after(set, "in time"), 1h);
  CHECK(value == "in time");
  co_await rc::with_deadline(set.wait(), 1h);
  const std::unique_ptr<int> moved = co_await rc::with_deadline(box(4), 1h);
  CHECK(*moved == 4);
  CHECK_THROWS_WITH_AS(co_await rc::with_deadline(fail("inside"), 1h), "inside", std::runtime_error);
  const rc::result<void> r = co_await rc::as_result(rc::with_deadline(fail_after(set, rc::errc::refused), 1h));
  CHECK(r.code() == rc::errc::refused);
  CHECK(r.error().limit() < rc::duration::zero());  // the error is the inner one's own
  CHECK(loop.core().next_timer() == rc::time_point::max());
}

CO_TEST_CASE("with_deadline expires as timed_out with elapsed time and limit") {
  rc::test::manual_clock clock(loop);
  rc::event never(loop);
  rc::result<std::string> out = not_yet;
  rc::scope s(loop);
  s.spawn(keep(rc::with_deadline(text_after(never, "x"), 250ms), out));
  co_await settled(loop);
  clock.advance(249ms);
  co_await settled(loop);
  CHECK(s.size() == 1);
  clock.advance(1ms);
  co_await s.join();
  CHECK(out.code() == rc::errc::timed_out);
  CHECK(out.error().elapsed() == 250ms);
  CHECK(out.error().limit() == 250ms);
  CHECK(out.error().operation() == "wait for an event");
}

CO_TEST_CASE("with_deadline waits for what it stopped") {
  rc::event never(loop);
  std::vector<std::string> log;
  const rc::result<void> r = co_await rc::as_result(rc::with_deadline(slow_to_stop(never, log), 1ms));
  CHECK(r.code() == rc::errc::timed_out);
  CHECK(log.size() == 1);
  // What ends well although its time is over has a result.
  const int value = co_await rc::with_deadline(stubborn(never), 1ms);
  CHECK(value == 9);
}

CO_TEST_CASE("an inner failure after the expiry that is not a cancellation passes through") {
  rc::event never(loop);
  auto spoils = [&]() -> rc::task<> {
    bool stopped = false;
    try {
      co_await never.wait();
    } catch (rc::error const&) {
      stopped = true;
    }
    if (stopped) throw rc::error(rc::errc::disconnected, "the inner");
  };
  const rc::result<void> r = co_await rc::as_result(rc::with_deadline(spoils(), 1ms));
  CHECK(r.code() == rc::errc::disconnected);
}

CO_TEST_CASE("what is complete at once needs no time; what is not expires at once under a limit of zero or less") {
  for (const rc::deadline d : {rc::deadline(0s), rc::deadline(-1s), rc::deadline(rc::duration::min()), rc::deadline(-1e300 * 1s)}) {
    CHECK(co_await rc::with_deadline(text("now"), d) == "now");
    const rc::result<void> r = co_await rc::as_result(rc::with_deadline(rc::sleep_for(1h), d));
    CHECK(r.code() == rc::errc::timed_out);
  }
  const rc::result<void> past = co_await rc::as_result(rc::with_deadline(rc::sleep_for(1h), loop.now() - 1s));
  CHECK(past.code() == rc::errc::timed_out);
}

CO_TEST_CASE("deadline::never() and limits past the end of time set no timer") {
  rc::test::manual_clock clock(loop);
  rc::event e(loop);
  rc::result<std::string> a = not_yet;
  rc::result<std::string> b = not_yet;
  rc::scope s(loop);
  s.spawn(keep(rc::with_deadline(text_after(e, "a"), rc::deadline::never()), a));
  s.spawn(keep(rc::with_deadline(text_after(e, "b"), rc::duration::max() - 1s), b));
  co_await settled(loop);
  CHECK(loop.core().next_timer() == rc::time_point::max());
  e.set();
  co_await s.join();
  CHECK(*a == "a");
  CHECK(*b == "b");
}

CO_TEST_CASE("the nearer of two nested limits decides, and each names its own") {
  rc::test::manual_clock clock(loop);
  rc::event never(loop);
  rc::result<void> inner_first = not_yet;
  rc::result<void> outer_first = not_yet;
  rc::scope s(loop);
  auto guard = [&](rc::duration inner, rc::duration outer) -> rc::task<> {
    co_await rc::with_deadline(rc::with_deadline(never.wait(), inner), outer);
  };
  s.spawn(keep(guard(10ms, 20ms), inner_first));
  s.spawn(keep(guard(40ms, 30ms), outer_first));
  co_await settled(loop);
  clock.advance(10ms);
  co_await settled(loop);
  CHECK(inner_first.code() == rc::errc::timed_out);
  CHECK(inner_first.error().limit() == 10ms);
  clock.advance(100ms);
  co_await s.join();
  CHECK(outer_first.code() == rc::errc::timed_out);
  CHECK(outer_first.error().limit() == 30ms);
  CHECK(outer_first.error().elapsed() >= 30ms);
}

CO_TEST_CASE("completion and expiry in the same turn: whichever came first counts") {
  rc::test::manual_clock clock(loop);
  for (const bool completion_first : {true, false}) {
    rc::event e(loop);
    rc::result<std::string> out = not_yet;
    rc::scope s(loop);
    s.spawn(keep(rc::with_deadline(text_after(e, "value"), 10ms), out));
    co_await settled(loop);
    if (completion_first) e.set();
    clock.advance(10ms);
    if (!completion_first) e.set();
    co_await s.join();
    CHECK(out.has_value() == completion_first);
    if (!completion_first) CHECK(out.code() == rc::errc::timed_out);
  }
}

CO_TEST_CASE("stop and expiry in the same turn: a stop that came first is cancelled, not timed_out") {
  rc::test::manual_clock clock(loop);
  for (const bool stop_first : {true, false}) {
    rc::event never(loop);
    rc::result<std::string> out = not_yet;
    rc::scope s(loop);
    s.spawn(keep(rc::with_deadline(text_after(never, "value"), 10ms), out));
    co_await settled(loop);
    if (stop_first) s.request_stop();
    clock.advance(10ms);
    if (!stop_first) s.request_stop();
    co_await s.join();
    CHECK(out.code() == (stop_first ? rc::errc::cancelled : rc::errc::timed_out));
  }
}

CO_TEST_CASE("a sleep that would end at the very instant of its limit has timed out: the limit was set first") {
  rc::test::manual_clock clock(loop);
  rc::result<void> out = not_yet;
  rc::scope s(loop);
  const rc::time_point at = clock.now() + 10ms;
  auto sleeps = [&]() -> rc::task<> {
    co_await rc::with_deadline(rc::sleep_until(at), at);
  };
  s.spawn(keep(sleeps(), out));
  co_await settled(loop);
  clock.advance(10ms);
  co_await s.join();
  CHECK(out.code() == rc::errc::timed_out);
}

CO_TEST_CASE("as_result keeps failures of rollcall and lets other exceptions pass") {
  rc::event e(loop);
  e.set();
  const rc::result<std::string> fine = co_await rc::as_result(text_after(e, std::string(60, 'x')));
  CHECK(*fine == std::string(60, 'x'));
  const rc::result<void> bad = co_await rc::as_result(fail_after(e, rc::errc::refused));
  CHECK(bad.code() == rc::errc::refused);
  CHECK(bad.error().operation() == "the inner");
  CHECK_THROWS_AS(bad.value(), rc::error);
  CHECK_THROWS_AS(static_cast<void>(co_await rc::as_result(fail("other"))), std::runtime_error);
  rc::result<std::unique_ptr<int>> moved = co_await rc::as_result(box(5));
  CHECK(**moved == 5);
}
