#include <chrono>
#include <memory>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <rollcall/server/server_core.hpp>
#include <rollcall/stores/tcp.hpp>
#include <rollcall/test/memory_stream.hpp>
#include <stdexcept>
#include <string>
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
rc::task<int> stubborn(rc::event& never, int n) {
  try {
    co_await never.wait();
  } catch (rc::error const&) {
    // Ends well although it was stopped.
  }
  co_return n;
}
/// Ends some turns after its stop, when `release` is set.
rc::task<> slow_to_stop(rc::event& never, rc::event& release, std::vector<std::string>& log) {
  try {
    co_await never.wait();
  } catch (rc::error const& e) {
    log.push_back("loser " + std::string(rc::to_string(e.code())));
  }
  const rc::stop_token none;
  co_await rc::detail::stop_with(none);
  co_await release.wait();
  log.push_back("loser ended");
  throw rc::error(rc::errc::io, "the loser's clean-up");
}
/// Runs a task as a child and keeps its outcome.
template <class T>
rc::task<> keep(rc::task<T> t, rc::result<T>& out) {
  out = co_await rc::as_result(std::move(t));
}
rc::failure const not_yet(rc::errc::io, "not yet");

}  // namespace

CO_TEST_CASE("when_any tells who was first and gives its value; the others have none") {
  rc::event a(loop);
  rc::event b(loop);
  rc::scope s(loop);
  auto later = [&]() -> rc::task<> {
    co_await rc::sleep_for(1ms);
    b.set();
  };
  s.spawn(later);
  auto first = co_await rc::when_any(text_after(a, std::string(60, 'a')), text_after(b, std::string(60, 'b')), rc::sleep_for(1h));
  CHECK(first.index() == 1);
  CHECK(first.get<1>() == std::string(60, 'b'));
  CHECK(first.get_if<0>() == nullptr);
  CHECK(first.get_if<2>() == nullptr);
  CHECK(loop.core().next_timer() == rc::time_point::max());
  CHECK_THROWS_WITH_AS(static_cast<void>(first.get<0>()), "first_of::get: invalid argument: branch 0 has no value; branch 1 ended first", rc::error);
  co_await s.join();
}

CO_TEST_CASE("void is monostate, values may only be movable, one branch is enough, and it nests") {
  auto none = co_await rc::when_any(nothing());
  static_assert(std::is_same_v<decltype(none), rc::first_of<std::monostate>>);
  CHECK(none.index() == 0);
  CHECK(none.get_if<0>() != nullptr);
  auto moved = co_await rc::when_any(rc::sleep_for(1h), box(3));
  const std::unique_ptr<int> three = std::move(moved).get<1>();
  CHECK(*three == 3);
  auto nested = co_await rc::when_any(rc::sleep_for(1h), rc::when_any(rc::sleep_for(1h), text(std::string(60, 'x'))));
  CHECK(nested.get<1>().get<1>() == std::string(60, 'x'));
  auto in_time = co_await rc::with_deadline(rc::when_any(rc::sleep_for(1h), text("in time")), 1h);
  CHECK(in_time.index() == 1);
  const auto late = co_await rc::as_result(rc::with_deadline(rc::when_any(rc::sleep_for(1h), rc::sleep_for(2h)), 1ms));
  CHECK(late.code() == rc::errc::timed_out);
}

CO_TEST_CASE("the losers are stopped, and have ended before it returns; what they throw is dropped") {
  rc::event never(loop);
  rc::event release(loop);
  std::vector<std::string> log;
  bool returned = false;
  auto races = [&]() -> rc::task<> {
    auto first = co_await rc::when_any(slow_to_stop(never, release, log), text("x"));
    CHECK(first.index() == 1);
    returned = true;
  };
  rc::scope s(loop);
  s.spawn(races);
  co_await settled(loop);
  CHECK(log == std::vector<std::string>{"loser cancelled"});
  CHECK(!returned);
  release.set();
  co_await s.join();
  CHECK(log == std::vector<std::string>{"loser cancelled", "loser ended"});
  CHECK(returned);
}

CO_TEST_CASE("an error decides like a value, once the others have ended; as_result makes it a value") {
  rc::event never(loop);
  rc::event now(loop);
  now.set();
  CHECK_THROWS_WITH_AS(static_cast<void>(co_await rc::when_any(rc::sleep_for(1h), fail("now"), never.wait())), "now", std::runtime_error);
  const auto failed = co_await rc::as_result(rc::when_any(never.wait(), fail_after(now, rc::errc::refused)));
  CHECK(failed.code() == rc::errc::refused);
  auto first = co_await rc::when_any(never.wait(), rc::as_result(fail_after(now, rc::errc::refused)));
  CHECK(first.index() == 1);
  CHECK(first.get<1>().code() == rc::errc::refused);
  // A branch that ends as cancelled by itself decides too.
  const auto by_itself = co_await rc::as_result(rc::when_any(never.wait(), fail_after(now, rc::errc::cancelled)));
  CHECK(by_itself.code() == rc::errc::cancelled);
}

CO_TEST_CASE("of several that end in one turn the first decides, and no value is lost") {
  rc::event e(loop);
  rc::result<rc::first_of<std::string, std::string, int>> out = not_yet;
  rc::event never(loop);
  rc::scope s(loop);
  s.spawn(keep(rc::when_any(text_after(e, "a"), text_after(e, "b"), stubborn(never, 7)), out));
  co_await settled(loop);
  e.set();
  co_await s.join();
  REQUIRE(out.has_value());
  CHECK(out->index() == 0);
  CHECK(out->get<0>() == "a");
  REQUIRE(out->get_if<1>() != nullptr);
  CHECK(*out->get_if<1>() == "b");
  CHECK(out->get<2>() == 7);  // ended well although it was stopped
}

CO_TEST_CASE("what is complete at once keeps those after it from starting to wait") {
  rc::event never(loop);
  int waited = 0;
  auto counts = [&]() -> rc::task<> {
    const rc::environment env = co_await rc::this_environment();
    if (env.stop.stop_requested()) co_return;
    ++waited;
    co_await never.wait();
  };
  auto first = co_await rc::when_any(text("at once"), counts());
  CHECK(first.index() == 0);
  CHECK(waited == 0);
}

CO_TEST_CASE("a stop of the caller stops all; who ends well all the same decides") {
  rc::event never(loop);
  rc::event release(loop);
  std::vector<std::string> log;
  rc::result<rc::first_of<std::monostate, std::monostate>> stopped = not_yet;
  rc::result<rc::first_of<std::monostate, int>> ended = not_yet;
  rc::result<rc::first_of<std::monostate, std::monostate>> spoilt = not_yet;
  rc::scope s(loop);
  s.spawn(keep(rc::when_any(never.wait(), rc::sleep_for(1h)), stopped));
  s.spawn(keep(rc::when_any(never.wait(), stubborn(never, 9)), ended));
  s.spawn(keep(rc::when_any(never.wait(), slow_to_stop(never, release, log)), spoilt));
  co_await settled(loop);
  s.request_stop();
  co_await settled(loop);
  CHECK(s.size() == 1);
  release.set();
  co_await s.join();
  CHECK(stopped.code() == rc::errc::cancelled);
  REQUIRE(ended.has_value());
  CHECK(ended->index() == 1);
  CHECK(ended->get<1>() == 9);
  CHECK(spoilt.code() == rc::errc::io);
}

CO_TEST_CASE("a stop that came before it: nothing is begun") {
  rc::stop_source source;
  source.request_stop();
  rc::event never(loop);
  auto races = [&]() -> rc::task<> {
    const rc::stop_token token = source.token();
    co_await rc::detail::stop_with(token);
    static_cast<void>(co_await rc::when_any(never.wait(), rc::sleep_for(1h)));
  };
  const rc::result<void> r = co_await rc::as_result(races());
  CHECK(r.code() == rc::errc::cancelled);
}

CO_TEST_CASE("destroyed while it waits: its branches are destroyed with it") {
  rc::event never(loop);
  rc::event release(loop);
  std::vector<std::string> log;
  auto races = [&]() -> rc::task<> { static_cast<void>(co_await rc::when_any(never.wait(), rc::sleep_for(1h), slow_to_stop(never, release, log))); };
  {
    rc::scope s(loop);
    s.spawn(races);
    co_await settled(loop);
    s.request_stop();
  }
  CHECK(log.empty());
  CHECK(loop.core().next_timer() == rc::time_point::max());
}

TEST_CASE("when_any in a coroutine type that knows nothing of rollcall") {
  rc::loop l;
  rc::event a(l);
  rc::event b(l);
  std::size_t who = 99;
  auto races = [&]() -> co_test::foreign {
    auto first = co_await rc::when_any(text_after(a, "a"), text_after(b, "b"), rc::when_any(a.wait(), b.wait()));
    who = first.index();
  };
  const co_test::foreign f = races();
  b.set();
  for (int turns = 0; !f.done() && turns < 1000; ++turns) uv_run(l.native(), UV_RUN_NOWAIT);
  CHECK(f.done());
  CHECK(who == 1);
  CHECK(l.live_frames() == 0);
}

namespace {

/// A store on a server in this loop, over a link that can be frozen.
class served {
 public:
  explicit served(rc::loop& l) : loop_(l), server_(l.core(), rc::serve_options()), link_(l) { server_.attach(std::move(link_.second)); }
  rc::task<rc::tcp_store> connect() { return rc::tcp_store::over(loop_, std::move(link_.first), 10s); }
  [[nodiscard]] rc::test::memory_link& link() const noexcept { return *link_.link; }

 private:
  rc::loop& loop_;
  rc::detail::server_core server_;
  rc::test::memory_pair link_;
};

}  // namespace

CO_TEST_CASE("when_any of store operations: the winner's value, the losers as if never called, the connection in step") {
  served here(loop);
  rc::tcp_store store = co_await here.connect();
  co_await store.set("a", "1");
  auto got = co_await rc::when_any(store.wait("never"), store.get("a"), rc::sleep_for(1h));
  CHECK(got.index() == 1);
  CHECK(got.get<1>() == "1");
  auto slept = co_await rc::when_any(store.get("never"), rc::sleep_for(1ms));
  CHECK(slept.index() == 1);
  // The second is not even sent: the first is complete at once.
  auto ready = co_await rc::when_any(text("x"), store.add("n", 1));
  CHECK(ready.index() == 0);
  const std::int64_t n = co_await store.add("n", 0);
  CHECK(n == 0);
  auto woken = co_await rc::when_any(store.get("late"), rc::when_all(store.set("late", "2"), rc::sleep_for(1h)));
  CHECK(woken.get<0>() == "2");
  auto limited = co_await rc::when_any(rc::as_result(store.get("never", 1ms)), rc::sleep_for(1h));
  CHECK(limited.get<0>().code() == rc::errc::timed_out);
}

CO_TEST_CASE("a server that does not answer holds nobody up: the losers end in the loop turn of their stop") {
  served here(loop);
  rc::tcp_store store = co_await here.connect();
  co_await store.set("a", "1");
  here.link().freeze();
  rc::event now(loop);
  std::size_t who = 99;
  auto races = [&]() -> rc::task<> {
    auto first = co_await rc::when_any(store.wait("never"), store.get("a"), store.add("n", 1), store.set("b", "2"),
                                       rc::as_result(store.check("a")), now.wait());
    who = first.index();
  };
  rc::scope s(loop);
  s.spawn(races);
  co_await settled(loop);
  CHECK(who == 99);
  const std::uint64_t told = here.link().delivered_to(0);
  now.set();
  co_await settled(loop);  // nothing but what is ready runs meanwhile
  CHECK(who == 5);
  CHECK(here.link().delivered_to(0) == told);
  co_await s.join();
  here.link().thaw();
  const std::string a = co_await store.get("a");
  CHECK(a == "1");
  const std::int64_t n = co_await store.add("n", 0);
  CHECK(n == 1);  // it had been written: unknown to the caller, done at the server
  CHECK(store.is_open());
}

CO_TEST_CASE("the loss of the connection decides") {
  served here(loop);
  rc::tcp_store store = co_await here.connect();
  auto loses = [&]() -> rc::task<> {
    co_await rc::sleep_for(1ms);
    here.link().lose(0, 0);
  };
  rc::scope s(loop);
  s.spawn(loses);
  const auto lost = co_await rc::as_result(rc::when_any(rc::sleep_for(1h), store.wait("never")));
  CHECK(lost.code() == rc::errc::disconnected);
  co_await s.join();
}
