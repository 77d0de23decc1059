#include <chrono>
#include <functional>
#include <memory>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::next_turn;
using co_test::settled;

namespace {

rc::task<> wait_and_log(rc::event& e, std::vector<std::string>& log, std::string name) {
  try {
    co_await e.wait();
    log.push_back(name + " done");
  } catch (rc::error const& x) {
    log.push_back(name + " " + std::string(rc::to_string(x.code())));
    throw;
  }
}
rc::task<> fail_after(rc::event& e, std::string why) {
  co_await e.wait();
  throw std::runtime_error(why);
}
rc::task<> fail_at_once(std::string why) {
  throw std::runtime_error(why);
  co_return;
}
rc::task<> count_down_from(rc::scope& s, int n, int& ran) {
  ++ran;
  if (n > 0) {
    s.spawn(count_down_from(s, n - 1, ran));
    s.spawn(count_down_from(s, n - 1, ran));
  }
  co_return;
}

}  // namespace

CO_TEST_CASE("children start in the loop's turn, not inside spawn, and join waits for all") {
  std::vector<std::string> log;
  rc::event e(loop);
  rc::scope s(loop);
  auto child = [&](std::string name) -> rc::task<> {
    log.push_back(name);
    co_await e.wait();
    log.push_back(name + "!");
  };
  s.spawn(child, std::string("a"));
  s.spawn(child, std::string("b"));
  CHECK(log.empty());
  CHECK(s.size() == 2);
  co_await next_turn(loop);
  CHECK(log == std::vector<std::string>{"a", "b"});
  e.set();
  co_await s.join();
  CHECK(s.size() == 0);
  CHECK(log == std::vector<std::string>{"a", "b", "a!", "b!"});
}

CO_TEST_CASE("join of a scope without children does not wait, and a joined scope may be used again") {
  rc::scope s(loop);
  co_await s.join();
  int ran = 0;
  auto child = [&ran]() -> rc::task<> {
    ++ran;
    co_return;
  };
  s.spawn(child);
  co_await s.join();
  s.spawn(child);
  s.spawn(child);
  co_await s.join();
  CHECK(ran == 3);
}

CO_TEST_CASE("the first error wins: the others are stopped, and join rethrows it") {
  std::vector<std::string> log;
  rc::event never(loop);
  rc::event now(loop);
  rc::scope s(loop);
  s.spawn(wait_and_log(never, log, "a"));
  s.spawn(fail_after(now, "first"));
  s.spawn(fail_after(now, "second"));
  s.spawn(wait_and_log(never, log, "b"));
  co_await settled(loop);
  now.set();
  CHECK_THROWS_WITH_AS(co_await s.join(), "first", std::runtime_error);
  CHECK(log == std::vector<std::string>{"a cancelled", "b cancelled"});
}

CO_TEST_CASE("a child that fails at its start stops children that have not started yet") {
  std::vector<std::string> log;
  rc::event never(loop);
  rc::scope s(loop);
  s.spawn(fail_at_once("at once"));
  s.spawn(wait_and_log(never, log, "a"));
  CHECK_THROWS_WITH_AS(co_await s.join(), "at once", std::runtime_error);
  CHECK(log == std::vector<std::string>{"a cancelled"});
}

CO_TEST_CASE("cancelled children are no error, when the scope was stopped") {
  rc::scope s(loop);
  for (int i = 0; i < 100; ++i) s.spawn(rc::sleep_for(1h));
  co_await settled(loop);
  s.request_stop();
  co_await s.join();
}

CO_TEST_CASE("a child that ends as cancelled without a stop of the scope is an error") {
  rc::scope s(loop);
  auto gives_up = []() -> rc::task<> {
    rc::stop_source own;
    own.request_stop();
    co_await rc::detail::stop_with(own.token());
    co_await rc::sleep_for(1h);
  };
  s.spawn(gives_up);
  const rc::result<void> r = co_await rc::as_result(s.join());
  CHECK(r.code() == rc::errc::cancelled);
}

CO_TEST_CASE("an error of a child that was stopped is not lost") {
  rc::event never(loop);
  auto spoils = [&]() -> rc::task<> {
    bool stopped = false;
    try {
      co_await never.wait();
    } catch (rc::error const&) {
      stopped = true;
    }
    if (stopped) throw std::runtime_error("in the clean-up");
  };
  rc::scope s(loop);
  s.spawn(spoils);
  co_await settled(loop);
  s.request_stop();
  CHECK_THROWS_WITH_AS(co_await s.join(), "in the clean-up", std::runtime_error);
}

CO_TEST_CASE("a capturing lambda and its arguments live as long as the child") {
  auto witness = std::make_shared<int>(1);
  rc::event e(loop);
  rc::scope s(loop);
  {
    std::string far(100, 'x');
    auto child = [witness, far, &e](std::string argument) -> rc::task<> {
      co_await e.wait();
      CHECK(*witness == 1);
      CHECK(far + argument == std::string(200, 'x'));
    };
    s.spawn(child, std::string(100, 'x'));
  }
  s.spawn([witness, &e]() -> rc::task<> {
    co_await e.wait();
    CHECK(*witness == 1);
  });
  co_await settled(loop);
  CHECK(witness.use_count() == 3);
  e.set();
  co_await s.join();
  CHECK(witness.use_count() == 1);
}

CO_TEST_CASE("values of children are dropped") {
  rc::scope s(loop);
  auto gives = [](std::string v) -> rc::task<std::string> { co_return v; };
  s.spawn(gives(std::string(100, 'x')));
  s.spawn(gives, std::string(100, 'y'));
  co_await s.join();
}

CO_TEST_CASE("children spawn children, join waits for them too") {
  int ran = 0;
  rc::scope s(loop);
  s.spawn(count_down_from(s, 8, ran));
  co_await s.join();
  CHECK(ran == 511);
}

CO_TEST_CASE("a child spawned by somebody else in the turn in which the last child ended is joined too") {
  rc::event e(loop);
  bool late_done = false;
  auto late = [&]() -> rc::task<> {
    co_await rc::sleep_for(2ms);
    late_done = true;
  };
  auto joins = [&](rc::scope& s) -> rc::task<> {
    co_await s.join();
    CHECK(late_done);
  };
  rc::scope inner(loop);
  inner.spawn(e.wait());
  rc::scope outer(loop);
  outer.spawn(joins, std::ref(inner));
  co_await settled(loop);
  e.set();
  // The child, then its end, then this: the join is ready by then, but has not gone on.
  while (inner.size() > 0) co_await next_turn(loop);
  inner.spawn(late);
  co_await outer.join();
}

CO_TEST_CASE("a stop of the caller stops the children, waits for them, and ends join as cancelled") {
  std::vector<std::string> log;
  rc::event never(loop);
  rc::event release(loop);
  auto slow = [&]() -> rc::task<> {
    try {
      co_await never.wait();
    } catch (rc::error const&) {
      log.push_back("stopped");
    }
    const rc::stop_token none;
    co_await rc::detail::stop_with(none);
    co_await release.wait();
    log.push_back("released");
  };
  auto joins = [&]() -> rc::task<> {
    rc::scope s(loop);
    s.spawn(slow);
    const rc::result<void> r = co_await rc::as_result(s.join());
    log.push_back("joined");
    CHECK(r.code() == rc::errc::cancelled);
  };
  rc::scope outer(loop);
  outer.spawn(joins);
  co_await settled(loop);
  outer.request_stop();
  co_await settled(loop);
  CHECK(log == std::vector<std::string>{"stopped"});
  release.set();
  co_await outer.join();
  CHECK(log == std::vector<std::string>{"stopped", "released", "joined"});
}

CO_TEST_CASE("a scope that is destroyed after a stop, without join, destroys its children wherever they are") {
  auto witness = std::make_shared<int>(1);
  rc::event never(loop);
  auto nested = [&, witness]() -> rc::task<> {
    rc::scope inner(loop);
    inner.spawn([witness]() -> rc::task<> { co_await rc::sleep_for(1h); });
    co_await rc::sleep_for(1h);  // the inner scope is not being joined
    co_await inner.join();
  };
  {
    rc::scope s(loop);
    s.spawn(rc::sleep_for(1h));
    s.spawn(never.wait());
    s.spawn(nested);
    co_await settled(loop);
    s.spawn(nested);  // will not have started
    s.request_stop();
  }
  co_await settled(loop);
  CHECK(loop.core().next_timer() == rc::time_point::max());
}

CO_TEST_CASE("a scope that an exception destroys destroys its children") {
  rc::event never(loop);
  auto body = [&]() -> rc::task<> {
    rc::scope s(loop);
    s.spawn(never.wait());
    s.spawn(rc::sleep_for(1h));
    co_await next_turn(loop);
    throw std::runtime_error("past the scope");
  };
  CHECK_THROWS_WITH_AS(co_await body(), "past the scope", std::runtime_error);
  CHECK(loop.core().next_timer() == rc::time_point::max());
}

CO_TEST_CASE("a child may end the scope's owner: the frame with the scope goes away right after the last child") {
  rc::event e(loop);
  int ended = 0;
  auto owner = [&]() -> rc::task<> {
    {
      auto s = std::make_unique<rc::scope>(loop);
      s->spawn(e.wait());
      s->spawn(e.wait());
      co_await s->join();
    }
    ++ended;
  };
  rc::scope outer(loop);
  for (int i = 0; i < 10; ++i) outer.spawn(owner);
  co_await settled(loop);
  e.set();
  co_await outer.join();
  CHECK(ended == 10);
}
