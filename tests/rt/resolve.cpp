#include <doctest/doctest.h>
#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <rollcall/net/resolve.hpp>
#include <rollcall/net/work.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/timer.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace {

/// Runs `f(loop)` on a fresh loop within a limit, then all that is left on it; nothing may remain.
template <class F>
void on_fresh_loop(F f) {
  rc::loop l;
  rc::sync_wait(l, rc::with_deadline(f(l), 60s));
  l.run();
  CHECK(l.live_handles() == 0);
  CHECK(l.live_frames() == 0);
}

/// Occupies all of libuv's threads until it is opened; calls that come meanwhile do not begin.
class busy_pool {
 public:
  explicit busy_pool(rc::loop& l) : group_(l) {
    char const* size = ::getenv("UV_THREADPOOL_SIZE");
    const int threads = size ? std::atoi(size) : 4;
    for (int i = 0; i < threads; ++i) group_.spawn(rc::run_blocking([this] { wait(); }));
  }
  /// When all threads are taken.
  rc::task<> taken() {
    while (inside() < group_.size()) co_await rc::sleep_for(1ms);
  }
  rc::task<> free_again() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
    co_await group_.join();
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.wait(lock, [this] { return open_; });
  }
  std::size_t inside() {
    const std::lock_guard lock(mutex_);
    return inside_;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t inside_ = 0;
  bool open_ = false;
  rc::scope group_;
};

rc::task<> literals(rc::loop& l) {
  busy_pool pool(l);
  co_await pool.taken();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"127.0.0.1", "127.0.0.1:80"},     {"[127.0.0.1]", ""}, {"::1", "[::1]:80"}, {"[::1]", "[::1]:80"},
      {"fe80::1%lo", "[fe80::1%lo]:80"}, {"300.0.0.1", ""},   {"1:2", ""}};
  for (auto const& [host, expected] : cases) {
    CAPTURE(host);
    const rc::result<std::vector<rc::socket_address>> r = co_await rc::as_result(rc::resolve(host, 80));
    if (expected.empty()) {
      CHECK(r.code() == rc::errc::invalid);
      continue;
    }
    REQUIRE(r.has_value());
    CHECK((*r).size() == 1);
    CHECK((*r).front().to_string() == expected);
    const auto same = co_await rc::resolve(host, "80");
    CHECK(same == *r);
  }
  co_await pool.free_again();
}

rc::task<> bad_arguments(rc::loop&) {
  for (auto const& [host, port] : std::vector<std::pair<std::string, std::int64_t>>{
           {"localhost", -1}, {"localhost", 65536}, {"", 80}, {std::string("a\0b", 3), 80}, {"127.0.0.1", 65536}}) {
    const rc::result<std::vector<rc::socket_address>> r = co_await rc::as_result(rc::resolve(host, port));
    CHECK(r.code() == rc::errc::invalid);
  }
  const rc::result<std::vector<rc::socket_address>> no_service = co_await rc::as_result(rc::resolve("localhost", ""));
  CHECK(no_service.code() == rc::errc::invalid);
}

rc::task<> localhost(rc::loop& l) {
  const auto addresses = co_await rc::resolve("localhost", 4711);
  CHECK_FALSE(addresses.empty());
  for (auto const& a : addresses) {
    CHECK(a.is_loopback());
    CHECK(a.port() == 4711);
  }
  const auto again = co_await rc::resolve(l, "localhost", "4711");
  CHECK(again == addresses);
  const rc::resolve_fn resolver = rc::resolve_by_system;
  const auto injected = co_await resolver("localhost", 4711);
  CHECK(injected == addresses);
}

rc::task<> unknown(rc::loop&) {
  const rc::result<std::vector<rc::socket_address>> r = co_await rc::as_result(rc::resolve("nonexistent.invalid", 80));
  REQUIRE_FALSE(r.has_value());
  CHECK(r.code() == rc::errc::resolve);
  CHECK(r.error().message().find("'nonexistent.invalid'") != std::string::npos);
  CHECK(r.error().message().find("EAI_") != std::string::npos);
  const std::string too_long(5000, 'a');
  const rc::result<std::vector<rc::socket_address>> bad = co_await rc::as_result(rc::resolve(too_long, 80));
  CHECK(bad.code() == rc::errc::resolve);
}

rc::task<> request_stop(rc::scope& s, std::shared_ptr<bool> later_turn, rc::loop& l) {
  l.post([later_turn] { *later_turn = true; });
  s.request_stop();
  co_return;
}

rc::task<> stop_queued(rc::loop& l) {
  busy_pool pool(l);
  co_await pool.taken();
  rc::scope s(l);
  const auto later_turn = std::make_shared<bool>(false);
  s.spawn(rc::resolve("localhost", 1));
  s.spawn(rc::run_blocking([] { FAIL("began"); }));
  s.spawn(request_stop(s, later_turn, l));
  co_await s.join();
  CHECK_FALSE(*later_turn);
  co_await pool.free_again();
}

rc::task<> stop_at_once(rc::loop& l) {
  for (int round = 0; round < 50; ++round) {  // the thread has begun with some of them
    rc::scope s(l);
    const auto later_turn = std::make_shared<bool>(false);
    s.spawn(rc::resolve("localhost", 1));
    s.spawn(request_stop(s, later_turn, l));
    co_await s.join();
    CHECK_FALSE(*later_turn);
  }
}

rc::task<> resolve_and_fail(rc::loop& l) {
  rc::scope s(l);
  s.spawn(rc::resolve("localhost", 1));
  s.spawn(rc::run_blocking([] { return 1; }));
  co_await rc::sleep_for(0ms);
  throw rc::error(rc::errc::failed, "the test");
}

rc::task<> frames_destroyed(rc::loop& l) {
  const rc::result<void> r = co_await rc::as_result(resolve_and_fail(l));
  CHECK(r.code() == rc::errc::failed);
}

rc::task<> work_values(rc::loop& l) {
  const std::thread::id here = std::this_thread::get_id();
  std::thread::id there;
  const std::string text(64, 'x');
  auto f = [text, &there] {
    there = std::this_thread::get_id();
    return std::make_unique<std::string>(text);
  };
  const std::unique_ptr<std::string> value = co_await rc::run_blocking(f);
  CHECK(*value == text);
  CHECK(there != here);
  int ran = 0;
  auto g = [&ran] { ++ran; };
  co_await rc::run_blocking(l, g);
  CHECK(ran == 1);
  auto h = []() -> int { throw std::runtime_error("from the pool"); };
  bool caught = false;
  try {
    co_await rc::run_blocking(h);
  } catch (std::runtime_error const& e) {
    caught = e.what() == std::string("from the pool");
  }
  CHECK(caught);
}

rc::task<> work_stopped(rc::loop& l) {
  std::mutex hold;
  std::unique_lock held(hold);
  bool began = false;
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  auto f = [&hold, &began, l_post = l.post_handle(), owned = std::move(owned)] {
    l_post.post([&began] { began = true; });
    const std::lock_guard wait(hold);
    return *owned;
  };
  auto call = rc::run_blocking(std::move(f));
  rc::scope s(l);
  rc::effect effect = rc::effect::none;
  s.spawn([&]() -> rc::task<> {
    const rc::result<int> r = co_await rc::as_result(std::move(call));
    CHECK(r.code() == rc::errc::cancelled);
    effect = r.error().effect();
  });
  while (!began) co_await rc::sleep_for(1ms);
  const auto later_turn = std::make_shared<bool>(false);
  s.spawn(request_stop(s, later_turn, l));
  co_await s.join();
  CHECK_FALSE(*later_turn);
  CHECK(effect == rc::effect::unknown);
  CHECK_FALSE(watch.expired());  // it goes on
  held.unlock();
  while (!watch.expired()) co_await rc::sleep_for(1ms);
}

}  // namespace

TEST_CASE("a literal is resolved, or refused, without a thread") { on_fresh_loop(literals); }
TEST_CASE("impossible hosts, ports and services are invalid") { on_fresh_loop(bad_arguments); }
TEST_CASE("localhost is resolved") { on_fresh_loop(localhost); }
TEST_CASE("an unknown host is errc::resolve with the resolver's text") { on_fresh_loop(unknown); }
TEST_CASE("a stop ends look-ups and calls that have not begun in its turn") { on_fresh_loop(stop_queued); }
TEST_CASE("a stop ends a look-up in its turn whether it has begun or not") { on_fresh_loop(stop_at_once); }
TEST_CASE("frames that wait for a look-up or a call may be destroyed") { on_fresh_loop(frames_destroyed); }
TEST_CASE("a blocking call gives its value or its exception from another thread") { on_fresh_loop(work_values); }
TEST_CASE("a stopped blocking call goes on with all it owns, and its result is dropped") { on_fresh_loop(work_stopped); }

TEST_CASE("a look-up needs a loop") {
  rc::loop l;
  CHECK(rc::resolve("127.0.0.1", 1).await_ready());
  CHECK_FALSE(rc::resolve("localhost", 1).await_ready());
}

TEST_CASE("a loop that is destroyed while an abandoned call goes on waits for its end") {
  bool ended = false;
  {
    rc::loop l;
    auto f = [&ended] {
      std::this_thread::sleep_for(50ms);
      ended = true;
    };
    const rc::result<void> r = rc::sync_wait(l, rc::as_result(rc::with_deadline(rc::run_blocking(f), 1ms)));
    CHECK(r.code() == rc::errc::timed_out);
  }
  CHECK(ended);
}
