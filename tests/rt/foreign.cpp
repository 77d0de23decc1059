#include <chrono>
#include <memory>
#include <rollcall/net/socket.hpp>
#include <rollcall/net/work.hpp>
#include <rollcall/posix/listener.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "support/co_test.hpp"

/// Everything may be awaited in a coroutine type that knows nothing of rollcall.

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::foreign;

namespace {

rc::task<int> add(int a, int b) { co_return a + b; }
rc::task<int> after(rc::event& e, int n) {
  co_await e.wait();
  co_return n;
}
rc::task<> fails_after(rc::event& e) {
  co_await e.wait();
  throw std::runtime_error("after the event");
}

/// Lets `f` run to its end on `l`.
void finish(rc::loop& l, foreign const& f) {
  for (int turns = 0; !f.done() && turns < 100'000; ++turns) uv_run(l.native(), UV_RUN_ONCE);
  CHECK(f.done());
}
void nothing_left(rc::loop& l) {
  uv_run(l.native(), UV_RUN_DEFAULT);
  CHECK(l.live_handles() == 0);
  CHECK(l.live_frames() == 0);
}

foreign await_tasks(int& out) {
  out = co_await add(1, co_await add(2, 3));
  try {
    static_cast<void>(co_await rc::sleep_for(1ms));
  } catch (rc::error const& e) {
    if (e.code() == rc::errc::invalid) out += 100;  // there is no loop to sleep on
  }
  try {
    auto t = rc::with_deadline(add(1, 1), 1s);
    static_cast<void>(co_await std::move(t));
  } catch (rc::error const& e) {
    if (e.code() == rc::errc::invalid) out += 1000;
  }
  const rc::environment env = co_await rc::this_environment();
  if (!env.loop && !env.stop.stop_possible()) out += 10'000;
}
foreign await_event(rc::event& e, int& out) {
  out = co_await after(e, 4);
  co_await e.wait();
  out += 10;
}
foreign await_sleep(rc::loop& l, rc::duration& slept) {
  const rc::time_point begun = l.now();
  co_await rc::sleep_for(l, 5ms);
  co_await rc::sleep_until(l, l.now() + 5ms);
  slept = l.now() - begun;
}
foreign await_all(rc::event& a, rc::event& b, int& out) {
  auto both = rc::when_all(after(a, 1), after(b, 2));
  auto [x, y] = co_await std::move(both);
  out = x + 10 * y;
}
foreign await_all_failing(rc::event& a, rc::event& b, std::string& out) {
  try {
    auto nested = rc::when_all(rc::when_all(after(b, 1), after(b, 2)), fails_after(a), b.wait());
    co_await std::move(nested);
  } catch (std::runtime_error const& e) {
    out = e.what();
  }
}
foreign await_scope(rc::loop& l, rc::event& e, int& out) {
  rc::scope s(l);
  auto child = [&e, &out](int n) -> rc::task<> {
    co_await e.wait();
    co_await rc::sleep_for(1ms);
    out += n;
  };
  s.spawn(child, 1);
  s.spawn(child, 2);
  co_await s.join();
  out *= 10;
}
foreign await_result(rc::event& e, int& out) {
  const rc::result<int> r = co_await rc::as_result(after(e, 3));
  out = r.has_value() ? *r : -1;
}
foreign await_thread(rc::loop& l, int& out) {
  auto f = [] { return 42; };
  out = co_await rc::run_blocking(l, f);
}
foreign serve_once(rc::loop& l, rc::net::acceptor& a, std::string& heard) {
  rc::net::socket s = co_await a.accept();
  heard = co_await s.read_some();
  co_await s.write("pong");
  s.shutdown();
  heard += co_await s.read_some();
  static_cast<void>(l);
}
foreign call_once(rc::loop& l, rc::socket_address to, std::string& heard) {
  rc::net::socket s = co_await rc::net::connect(l, to);
  co_await s.write("ping");
  heard = co_await s.read_some();
}

}  // namespace

TEST_CASE("a foreign coroutine awaits tasks, and learns where it lacks a loop") {
  int out = 0;
  const foreign f = await_tasks(out);
  CHECK(f.done());
  CHECK(out == 11'106);
}

TEST_CASE("a foreign coroutine waits for an event, in the event's loop turn") {
  rc::loop l;
  rc::event e(l);
  int out = 0;
  const foreign f = await_event(e, out);
  CHECK(!f.done());
  e.set();
  CHECK(out == 0);
  finish(l, f);
  CHECK(out == 14);
  nothing_left(l);
}

TEST_CASE("a foreign coroutine sleeps on the loop it names") {
  rc::loop l;
  rc::duration slept{};
  const foreign f = await_sleep(l, slept);
  finish(l, f);
  CHECK(slept >= 10ms);
  nothing_left(l);
}

TEST_CASE("a foreign coroutine awaits when_all, whose end destroys the group inside its last child's call") {
  rc::loop l;
  rc::event a(l);
  rc::event b(l);
  int out = 0;
  const foreign f = await_all(a, b, out);
  b.set();
  uv_run(l.native(), UV_RUN_NOWAIT);
  CHECK(!f.done());
  a.set();
  finish(l, f);
  CHECK(out == 21);
  nothing_left(l);
}

TEST_CASE("a foreign coroutine awaits nested groups, one branch of which fails") {
  rc::loop l;
  rc::event a(l);
  rc::event b(l);
  std::string out;
  const foreign f = await_all_failing(a, b, out);
  a.set();
  finish(l, f);
  CHECK(out == "after the event");
  nothing_left(l);
}

TEST_CASE("a foreign coroutine that is destroyed leaves everything") {
  rc::loop l;
  rc::event a(l);
  rc::event b(l);
  int out = 0;
  std::string text;
  {
    foreign f = await_all(a, b, out);
    const foreign g = await_all_failing(a, b, text);
    const foreign h = await_result(a, out);
    a.set();
    f.destroy();
  }
  {
    const foreign i = await_scope(l, b, out);
    uv_run(l.native(), UV_RUN_NOWAIT);
  }
  b.set();
  uv_run(l.native(), UV_RUN_NOWAIT);
  CHECK(out == 0);
  CHECK(text.empty());
  nothing_left(l);
}

TEST_CASE("a foreign coroutine joins a scope, whose children have the scope's loop") {
  rc::loop l;
  rc::event e(l);
  int out = 0;
  const foreign f = await_scope(l, e, out);
  e.set();
  finish(l, f);
  CHECK(out == 30);
  nothing_left(l);
}

TEST_CASE("a foreign coroutine takes results and thread pool work") {
  rc::loop l;
  rc::event e(l);
  e.set();
  int out = 0;
  const foreign f = await_result(e, out);
  CHECK(f.done());
  CHECK(out == 3);
  int computed = 0;
  const foreign g = await_thread(l, computed);
  finish(l, g);
  CHECK(computed == 42);
  nothing_left(l);
}

TEST_CASE("foreign coroutines accept, connect, read and write") {
  rc::loop l;
  std::string at_server;
  std::string at_client;
  {
    rc::net::acceptor a(l, rc::listen(rc::listen_options().host("127.0.0.1").port(0)));
    const foreign server = serve_once(l, a, at_server);
    const foreign client = call_once(l, rc::socket_address::local(a.at().fd()), at_client);
    finish(l, client);
    finish(l, server);
  }
  CHECK(at_server == "ping");
  CHECK(at_client == "pong");
  nothing_left(l);
}
