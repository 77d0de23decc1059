#include <chrono>
#include <functional>
#include <memory>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/stop.hpp>
#include <rollcall/rt/timer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::next_turn;
using co_test::settled;

namespace {

rc::task<> under(rc::stop_token t, rc::event& e, std::vector<std::string>& log, std::string name) {
  co_await rc::detail::stop_with(t);
  try {
    co_await e.wait();
    log.push_back(name + " done");
  } catch (rc::error const& x) {
    log.push_back(name + (x.code() == rc::errc::cancelled ? " cancelled" : " failed"));
  }
}

}  // namespace

TEST_CASE("callbacks run once, in order of registration, inside request_stop") {
  rc::stop_source source;
  std::vector<int> log;
  auto note = [&log](int n) { return [&log, n] { log.push_back(n); }; };
  const rc::stop_callback a(source.token(), note(1));
  const rc::stop_callback b(source.token(), note(2));
  const rc::stop_callback c(source.token(), note(3));
  CHECK(!source.stop_requested());
  source.request_stop();
  CHECK(source.stop_requested());
  CHECK(log == std::vector<int>{1, 2, 3});
  source.request_stop();
  CHECK(log.size() == 3);
  const rc::stop_callback late(source.token(), note(4));
  CHECK(log == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("a callback that was destroyed is not called, nor one that another callback destroys") {
  rc::stop_source source;
  std::vector<int> log;
  auto three = [&log] { log.push_back(3); };
  std::unique_ptr<rc::stop_callback<decltype(three)>> third;
  auto one = [&] {
    log.push_back(1);
    third.reset();
  };
  auto two = [&log] { log.push_back(2); };
  const rc::stop_callback first(source.token(), one);
  {
    const rc::stop_callback second(source.token(), two);
  }
  third = std::make_unique<rc::stop_callback<decltype(three)>>(source.token(), three);
  source.request_stop();
  CHECK(log == std::vector<int>{1});
}

TEST_CASE("a callback may register others, which are called at once, and destroy itself") {
  using any_callback = rc::stop_callback<std::function<void()>>;
  rc::stop_source source;
  int called = 0;
  int last = 0;
  std::unique_ptr<any_callback> self;
  std::unique_ptr<any_callback> other;
  self = std::make_unique<any_callback>(source.token(), [&] {
    ++called;
    other = std::make_unique<any_callback>(source.token(), [&called] { called += 10; });
    self.reset();
  });
  auto count = [&last] { ++last; };
  const rc::stop_callback after(source.token(), count);
  source.request_stop();
  CHECK(called == 11);
  CHECK(last == 1);
  CHECK(!self);
}

TEST_CASE("the default token never stops; tokens see their source") {
  const rc::stop_token none;
  CHECK(!none.stop_possible());
  CHECK(!none.stop_requested());
  int called = 0;
  auto f = [&called] { ++called; };
  const rc::stop_callback c(none, f);
  rc::stop_source source;
  const rc::stop_token t = source.token();
  CHECK(t.stop_possible());
  CHECK(!t.stop_requested());
  source.request_stop();
  CHECK(t.stop_requested());
  CHECK(called == 0);
}

TEST_CASE("a source that dies before its listeners forgets them") {
  int called = 0;
  auto f = [&called] { ++called; };
  auto source = std::make_unique<rc::stop_source>();
  const rc::stop_callback a(source->token(), f);
  const rc::stop_callback b(source->token(), f);
  source.reset();
  CHECK(called == 0);
}

CO_TEST_CASE("a stop before the await ends it without suspending") {
  rc::stop_source source;
  source.request_stop();
  rc::event e(loop);
  std::vector<std::string> log;
  auto t = under(source.token(), e, log, "a");
  co_await std::move(t);
  CHECK(log == std::vector<std::string>{"a cancelled"});
  CHECK(!loop.core().has_ready());
  e.set();
  auto u = under(source.token(), e, log, "b");
  co_await std::move(u);
  CHECK(log.back() == "b done");  // what needs no waiting is not stopped
}

CO_TEST_CASE("a stop during the await resumes nobody inside request_stop and everybody in that loop turn") {
  rc::stop_source source;
  rc::event e(loop);
  std::vector<std::string> log;
  rc::scope s(loop);
  s.spawn(under(source.token(), e, log, "a"));
  s.spawn(under(source.token(), e, log, "b"));
  co_await settled(loop);
  source.request_stop();
  CHECK(log.empty());
  co_await next_turn(loop);
  CHECK(log == std::vector<std::string>{"a cancelled", "b cancelled"});
  co_await s.join();
  e.set();  // finds nobody
}

CO_TEST_CASE("what comes first counts when stop and completion fall into one turn") {
  for (const bool stop_first : {true, false}) {
    rc::stop_source source;
    rc::event e(loop);
    std::vector<std::string> log;
    rc::scope s(loop);
    s.spawn(under(source.token(), e, log, "a"));
    co_await settled(loop);
    if (stop_first) source.request_stop();
    e.set();
    if (!stop_first) source.request_stop();
    co_await s.join();
    CHECK(log == std::vector<std::string>{stop_first ? "a cancelled" : "a done"});
  }
}

CO_TEST_CASE("a stop of the outer scope reaches what inner scopes run, and each join waits for its children") {
  std::vector<std::string> log;
  rc::event e(loop);
  auto leaf = [&](std::string name) -> rc::task<> {
    try {
      co_await e.wait();
    } catch (rc::error const&) {
      log.push_back(name);
      throw;
    }
  };
  auto branch = [&](std::string name) -> rc::task<> {
    rc::scope inner(loop);
    inner.spawn(leaf, name + "1");
    inner.spawn(leaf, name + "2");
    try {
      co_await inner.join();
    } catch (rc::error const& x) {
      log.push_back(name + (x.code() == rc::errc::cancelled ? " cancelled" : " failed"));
      throw;
    }
  };
  rc::scope outer(loop);
  outer.spawn(branch, std::string("a"));
  outer.spawn(branch, std::string("b"));
  co_await settled(loop);
  outer.request_stop();
  CHECK(log.empty());
  co_await outer.join();
  CHECK(log == std::vector<std::string>{"a1", "a2", "b1", "b2", "a cancelled", "b cancelled"});
}

CO_TEST_CASE("a sleep that is stopped leaves no timer") {
  rc::scope s(loop);
  s.spawn(rc::sleep_for(1h));
  s.spawn(rc::sleep_until(rc::time_point::max()));
  co_await settled(loop);
  CHECK(loop.core().next_timer() != rc::time_point::max());
  s.request_stop();
  CHECK(loop.core().next_timer() == rc::time_point::max());
  co_await s.join();
}

CO_TEST_CASE("a source that is destroyed while somebody waits under its token leaves the waiter waiting") {
  rc::event e(loop);
  std::vector<std::string> log;
  rc::scope s(loop);
  {
    rc::stop_source source;
    s.spawn(under(source.token(), e, log, "a"));
    co_await settled(loop);
  }
  e.set();
  co_await s.join();
  CHECK(log == std::vector<std::string>{"a done"});
}
