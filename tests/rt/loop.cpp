#include <uv.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/start.hpp>
#include <rollcall/rt/timer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace {

rc::task<int> after(rc::duration d, int n) {
  co_await rc::sleep_for(d);
  co_return n;
}

/// Checks that `l` can be closed after the turns that closing takes.
void close_host(uv_loop_t* l) {
  uv_run(l, UV_RUN_DEFAULT);
  CHECK(uv_loop_close(l) == 0);
}

/// Calls `f` as soon as the loop looks at its timers.
class once final : public rc::detail::timer_node {
 public:
  once(rc::loop& l, std::function<void()> f)
      : timer_node([](timer_node& t) noexcept { static_cast<once&>(t).f_(); }), core_(l.core()), f_(std::move(f)) {
    core_.add_timer(*this, l.now());
  }
  ~once() { core_.remove_timer(*this); }

 private:
  rc::detail::loop_core& core_;
  std::function<void()> f_;
};

int handles_on(uv_loop_t* l) {
  int n = 0;
  uv_walk(
      l, [](uv_handle_t*, void* count) { ++*static_cast<int*>(count); }, &n);
  return n;
}

}  // namespace

TEST_CASE("a loop of its own comes and goes") {
  for (int i = 0; i < 20; ++i) {
    rc::loop l;
    CHECK(l.live_handles() == 0);
    CHECK(l.live_frames() == 0);
    if (i % 2) l.run();
  }
}

TEST_CASE("attached to the host's loop: idle, it keeps nothing alive; afterwards the loop closes; `data` is the host's") {
  for (const bool default_loop : {true, false}) {
    uv_loop_t own;
    int mine = 0;
    uv_loop_t* host = default_loop ? uv_default_loop() : &own;
    if (!default_loop) REQUIRE(uv_loop_init(host) == 0);
    host->data = &mine;
    {
      rc::loop l(host);
      CHECK(l.native() == host);
      CHECK(uv_loop_alive(host) == 0);
      CHECK(uv_run(host, UV_RUN_DEFAULT) == 0);  // returns at once
      CHECK(rc::sync_wait(l, after(2ms, 7)) == 7);
      CHECK(uv_loop_alive(host) == 0);
      CHECK(host->data == &mine);
    }
    CHECK(host->data == &mine);
    close_host(host);
  }
}

TEST_CASE("the host's loop runs what was started on it, and uv_run returns when that has ended") {
  uv_loop_t host;
  REQUIRE(uv_loop_init(&host) == 0);
  int got = 0;
  {
    rc::loop l(&host);
    rc::start(l, after(5ms, 3), [&got](rc::result<int> r) { got = *r; });
    CHECK(uv_loop_alive(&host) != 0);
    uv_run(&host, UV_RUN_DEFAULT);
    CHECK(got == 3);
  }
  close_host(&host);
}

TEST_CASE("several runtimes on one host loop, attached and gone in any order") {
  uv_loop_t host;
  REQUIRE(uv_loop_init(&host) == 0);
  auto a = std::make_unique<rc::loop>(&host);
  auto b = std::make_unique<rc::loop>(&host);
  CHECK(rc::sync_wait(*b, after(1ms, 1)) == 1);
  a.reset();
  CHECK(rc::sync_wait(*b, after(1ms, 2)) == 2);
  auto c = std::make_unique<rc::loop>(&host);
  b.reset();
  CHECK(rc::sync_wait(*c, after(1ms, 3)) == 3);
  c.reset();
  close_host(&host);
}

TEST_CASE("attaching and leaving again and again leaves no handles on the host's loop") {
  uv_loop_t host;
  REQUIRE(uv_loop_init(&host) == 0);
  for (int i = 0; i < 100; ++i) {
    const rc::loop l(&host);
  }
  uv_run(&host, UV_RUN_DEFAULT);
  CHECK(handles_on(&host) == 0);
  close_host(&host);
}

TEST_CASE("two loops in one thread: each runs its own, and they can wake each other") {
  rc::loop a;
  rc::loop b;
  rc::event on_a(a);
  rc::event on_b(b);
  std::vector<std::string> log;
  auto ping = [&]() -> rc::task<> {
    on_b.set();
    co_await on_a.wait();
    log.push_back("a");
  };
  auto pong = [&]() -> rc::task<> {
    co_await on_b.wait();
    log.push_back("b");
    on_a.set();
  };
  {
    rc::scope sa(a);
    rc::scope sb(b);
    sa.spawn(ping);
    sb.spawn(pong);
    for (int i = 0; i < 3; ++i) {
      uv_run(a.native(), UV_RUN_NOWAIT);
      uv_run(b.native(), UV_RUN_NOWAIT);
    }
    CHECK(sa.size() == 0);
    CHECK(sb.size() == 0);
  }
  CHECK(log == std::vector<std::string>{"b", "a"});
  CHECK(a.live_frames() == 0);
  CHECK(b.live_frames() == 0);
}

TEST_CASE("sync_wait gives values and errors, and says so when nothing can complete it") {
  rc::loop l;
  rc::event never(l);
  auto fails = []() -> rc::task<std::unique_ptr<int>> {
    co_await rc::sleep_for(1ms);
    throw rc::error(rc::errc::refused, "a test");
  };
  CHECK_THROWS_AS(rc::sync_wait(l, fails()), rc::error);
  try {
    rc::sync_wait(l, never.wait());
    FAIL("it came back");
  } catch (rc::error const& e) {
    CHECK(e.code() == rc::errc::failed);
  }
  rc::stop_source source;
  source.request_stop();
  try {
    rc::sync_wait(l, never.wait(), source.token());
    FAIL("it came back");
  } catch (rc::error const& e) {
    CHECK(e.code() == rc::errc::cancelled);
  }
  CHECK(l.live_frames() == 0);
}

TEST_CASE("run() turns a program's end into its exit status") {
  CHECK(rc::run([](rc::loop&) -> rc::task<> { co_await rc::sleep_for(1ms); }) == 0);
  CHECK(rc::run([](rc::loop&) { return after(1ms, 3); }) == 3);
}

CO_TEST_CASE("a hundred thousand ready coroutines starve neither a timer nor I/O") {
  constexpr int many = 100'000;
  int ran = 0;
  int at_timer = -1;
  int at_io = -1;
  auto one = [&ran]() -> rc::task<> {
    ++ran;
    co_return;
  };
  auto on_timer = [&] { at_timer = ran; };
  once timer(loop, on_timer);
  rc::scope s(loop);
  for (int i = 0; i < many; ++i) s.spawn(one);
  loop.post([&] { at_io = ran; });  // an eventfd: I/O, as far as the loop can tell
  co_await s.join();
  CHECK(ran == many);
  CHECK(at_io >= 0);
  CHECK(at_io < many / 2);
  CHECK(at_timer >= 0);
  CHECK(at_timer < many / 2);
}

CO_TEST_CASE("coroutines that make each other ready for ever starve neither a timer nor I/O") {
  bool over = false;
  std::int64_t turns = 0;
  auto busy = [&]() -> rc::task<> {
    while (!over) {
      ++turns;
      co_await co_test::next_turn(loop);
    }
  };
  rc::scope s(loop);
  s.spawn(busy);
  s.spawn(busy);
  rc::event heard(loop);
  loop.post([&] { heard.set(); });
  co_await heard.wait();
  co_await rc::sleep_for(2ms);
  over = true;
  co_await s.join();
  CHECK(turns > rc::detail::loop_core::drain_budget);
}

CO_TEST_CASE("ready work runs in the order in which it became ready, across the budget") {
  constexpr int many = 3 * rc::detail::loop_core::drain_budget;
  std::vector<int> log;
  auto note = [&log](int n) -> rc::task<> {
    log.push_back(n);
    co_return;
  };
  rc::scope s(loop);
  for (int i = 0; i < many; ++i) s.spawn(note, i);
  co_await s.join();
  std::vector<int> expected(many);
  for (int i = 0; i < many; ++i) expected[static_cast<std::size_t>(i)] = i;
  CHECK(log == expected);
}

TEST_CASE("logs go to the sink of the loop") {
  rc::loop l;
  CHECK(!l.core().logs());
  std::vector<std::string> lines;
  l.log_to([&lines](rc::log_level, std::string_view line) { lines.emplace_back(line); });
  l.core().log(rc::log_level::warning, "hello");
  CHECK(lines == std::vector<std::string>{"hello"});
}
