#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <rollcall/rt/call_on.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/remote.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/start.hpp>
#include <rollcall/rt/timer.hpp>
#include <rollcall/server/server_core.hpp>
#include <rollcall/stores/tcp.hpp>
#include <rollcall/test/memory_stream.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

/// Calls between two loops in two threads, and from threads without a loop; also what the thread sanitizer judges.

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::settled;

namespace {

/// A loop in a thread of its own that runs until it is told to end; ended by hand or with this object.
class other_loop {
 public:
  other_loop() : thread_([this] { run(); }) { ready_.get_future().wait(); }
  other_loop(other_loop const&) = delete;
  other_loop& operator=(other_loop const&) = delete;
  ~other_loop() { end(); }

  [[nodiscard]] rc::poster const& door() const { return *door_; }
  /// Where the loop is, for what runs on its thread.
  [[nodiscard]] rc::loop& loop() { return *loop_; }
  [[nodiscard]] std::thread::id id() const { return thread_.get_id(); }
  /// Ends the loop with whatever runs on it.
  void end() {
    if (!thread_.joinable()) return;
    door_->post([this] { over_->set(); });
    thread_.join();
  }
  /// Frames and handles that were left when it ended.
  [[nodiscard]] std::size_t left() const { return left_; }

 private:
  void run() {
    auto l = std::make_unique<rc::loop>();
    loop_ = l.get();
    rc::event over(*l);
    over_ = &over;
    door_.emplace(l->post_handle());
    ready_.set_value();
    static_cast<void>(rc::sync_wait(*l, rc::when_any(over.wait(), rc::sleep_for(1h))));  // an event keeps no loop alive
    rc::detail::loop_core& core = l->core();
    core.keep();
    l.reset();
    left_ = core.frames();
    core.release();
  }
  rc::loop* loop_ = nullptr;
  rc::event* over_ = nullptr;
  std::optional<rc::poster> door_;
  std::promise<void> ready_;
  std::size_t left_ = 99;
  std::thread thread_;
};

rc::task<std::string> text(std::string s, rc::duration after = {}) {
  if (after > rc::duration::zero()) co_await rc::sleep_for(after);
  co_return s;
}
rc::task<> fail(std::string why) {
  co_await rc::sleep_for(1ms);
  throw std::runtime_error(why);
}
/// Tells how it ended, through things that any thread may look at.
class witness {
 public:
  std::atomic<int> begun{0};
  std::atomic<int> stopped{0};
  std::promise<void> gone;
};
rc::task<int> waits_for_ever(witness& w) {
  ++w.begun;
  try {
    co_await rc::sleep_for(1h);
  } catch (rc::error const& e) {
    if (e.code() == rc::errc::cancelled) ++w.stopped;
    w.gone.set_value();
    throw;
  }
  co_return 1;
}
std::string const long_text(60, 'x');

}  // namespace

CO_TEST_CASE("call_on runs there and completes here: tasks, operations, plain values and nothing") {
  other_loop there;
  const auto here = std::this_thread::get_id();
  const auto tells = [] { return std::this_thread::get_id(); };
  const std::thread::id at = co_await rc::call_on(there.door(), tells);
  CHECK(at == there.id());
  CHECK(std::this_thread::get_id() == here);
  const auto makes = [] { return text(long_text, 1ms); };
  const std::string s = co_await rc::call_on(there.door(), makes);
  CHECK(s == long_text);
  const auto sleeps = [] { return rc::sleep_for(1ms); };
  co_await rc::call_on(there.door(), sleeps);
  int ran = 0;
  const auto nothing = [&ran] { ++ran; };
  co_await rc::call_on(there.door(), nothing);
  CHECK(ran == 1);
  const auto moves = [p = std::make_unique<int>(4)]() mutable { return std::move(p); };
  auto named = rc::call_on(there.door(), [p = std::make_unique<int>(4)]() mutable { return std::move(p); });
  const std::unique_ptr<int> four = co_await std::move(named);
  CHECK(*four == 4);
  static_cast<void>(moves);
}

CO_TEST_CASE("errors cross: rollcall's with what they say, others as they are, those of the factory too") {
  other_loop there;
  const auto fails = []() -> rc::task<> {
    co_await rc::sleep_for(1ms);
    throw rc::error(rc::failure(rc::errc::refused, "the other side").with_effect(rc::effect::unknown).with_key(long_text));
  };
  const rc::result<void> r = co_await rc::as_result(rc::call_on(there.door(), fails));
  CHECK(r.code() == rc::errc::refused);
  CHECK(r.error().effect() == rc::effect::unknown);
  CHECK(r.error().keys() == std::vector<std::string>{long_text});
  const auto other = [] { return fail(long_text); };
  CHECK_THROWS_WITH_AS(co_await rc::call_on(there.door(), other), long_text.c_str(), std::runtime_error);
  const auto at_once = []() -> int { throw std::runtime_error("at once"); };
  CHECK_THROWS_WITH_AS(static_cast<void>(co_await rc::call_on(there.door(), at_once)), "at once", std::runtime_error);
}

CO_TEST_CASE("a stop completes in this loop turn and stops what runs over there") {
  other_loop there;
  witness w;
  rc::result<int> out = rc::failure(rc::errc::io, "not yet");
  {
    rc::scope s(loop);
    auto calls = [&]() -> rc::task<> {
      const auto f = [&w] { return waits_for_ever(w); };
      out = co_await rc::as_result(rc::call_on(there.door(), f));
    };
    s.spawn(calls);
    while (w.begun == 0) co_await rc::sleep_for(1ms);
    s.request_stop();
    co_await settled(loop);  // nothing but what is ready runs meanwhile
    CHECK(s.size() == 0);
    co_await s.join();
  }
  CHECK(out.code() == rc::errc::cancelled);
  CHECK(out.error().effect() == rc::effect::unknown);
  w.gone.get_future().wait();
  CHECK(w.stopped == 1);
}

CO_TEST_CASE("a limit is a stop, and a loop that does not turn holds nobody up: then f is never called") {
  other_loop there;
  std::promise<void> blocked;
  std::promise<void> release;
  there.door().post([&] {
    blocked.set_value();
    release.get_future().wait();
  });
  blocked.get_future().wait();
  int called = 0;
  const auto counts = [&called] { ++called; };
  const rc::result<void> r = co_await rc::as_result(rc::with_deadline(rc::call_on(there.door(), counts), 5ms));
  CHECK(r.code() == rc::errc::timed_out);
  CHECK(r.error().effect() == rc::effect::none);
  CHECK(loop.core().next_timer() == rc::time_point::max());
  auto limited = rc::blocking_call(there.door(), [] { return text("x"); }, 1ms);
  const auto asked = loop.now();
  while (loop.now() - asked < 2ms) co_await rc::sleep_for(1ms);
  release.set_value();
  try {
    static_cast<void>(limited.get());
    FAIL("it came back");
  } catch (rc::error const& e) {
    CHECK(e.code() == rc::errc::timed_out);
    CHECK(e.effect() == rc::effect::none);
  }
  const auto after = [] {};
  co_await rc::call_on(there.door(), after);  // it went through the queue
  CHECK(called == 0);
}

CO_TEST_CASE("the end of the other loop completes calls: refused, still in its queue, and under way") {
  auto there = std::make_unique<other_loop>();
  const rc::poster door = there->door();
  witness w;
  std::vector<std::pair<rc::errc, rc::effect>> ends;
  rc::scope s(loop);
  auto calls = [&](bool counts) -> rc::task<> {
    try {
      const auto f = [&w] { return waits_for_ever(w); };
      const auto g = [] { return 1; };
      const int n = counts ? co_await rc::call_on(door, f) : co_await rc::call_on(door, g);
      static_cast<void>(n);
    } catch (rc::error const& e) {
      ends.emplace_back(e.code(), e.effect());
    }
  };
  s.spawn(calls, true);
  while (w.begun == 0) co_await rc::sleep_for(1ms);
  std::promise<void> blocked;
  std::promise<void> release;
  door.post([&] {
    blocked.set_value();
    release.get_future().wait();
  });
  blocked.get_future().wait();
  // The other loop ends in the turn in which it comes back: what is posted until then lies in its queue, and is dropped.
  std::thread ends_it([&] { there->end(); });
  while (ends_it.joinable() && !ends.empty()) co_await rc::sleep_for(1ms);
  release.set_value();
  ends_it.join();
  CHECK(there->left() == 0);
  s.spawn(calls, false);
  co_await s.join();
  REQUIRE(ends.size() == 2);
  CHECK(ends[0] == std::pair(rc::errc::closed, rc::effect::unknown));
  CHECK(ends[1] == std::pair(rc::errc::closed, rc::effect::none));
  CHECK(w.stopped == 0);  // its frame was destroyed
}

TEST_CASE("a call that lies in the queue of a loop that ends is closed, and keeps its own loop alive until it knows") {
  rc::loop here;
  auto there = std::make_unique<rc::loop>();
  rc::result<int> out = rc::failure(rc::errc::io, "not yet");
  const auto f = [] { return 1; };
  rc::start(here, rc::call_on(there->post_handle(), f), [&out](rc::result<int> r) { out = std::move(r); });
  uv_run(here.native(), UV_RUN_NOWAIT);
  CHECK(uv_loop_alive(here.native()) != 0);
  there.reset();
  here.run();
  CHECK(out.code() == rc::errc::closed);
  CHECK(out.error().effect() == rc::effect::none);
  CHECK(uv_loop_alive(here.native()) == 0);
  CHECK(here.live_frames() == 0);
}

CO_TEST_CASE("a call on the very loop that awaits it") {
  const auto f = [] { return text(long_text, 1ms); };
  const std::string s = co_await rc::call_on(loop.post_handle(), f);
  CHECK(s == long_text);
}

TEST_CASE("a coroutine type that knows nothing of rollcall names its loop; a destroyed one stops what it called") {
  rc::loop l;
  other_loop there;
  std::string got;
  rc::errc code{};
  auto calls = [&]() -> co_test::foreign {
    const auto f = [] { return text(long_text, 1ms); };
    got = co_await rc::call_on(l, there.door(), f);
    try {
      static_cast<void>(co_await rc::call_on(there.door(), f));
    } catch (rc::error const& e) {
      code = e.code();
    }
  };
  {
    const co_test::foreign f = calls();
    l.run();  // the call keeps it alive
    CHECK(f.done());
  }
  CHECK(got == long_text);
  CHECK(code == rc::errc::invalid);
  witness w;
  auto hangs = [&]() -> co_test::foreign {
    const auto f = [&w] { return waits_for_ever(w); };
    static_cast<void>(co_await rc::call_on(l, there.door(), f));
  };
  {
    co_test::foreign f = hangs();
    while (w.begun == 0) std::this_thread::yield();
    f.destroy();
  }
  w.gone.get_future().wait();
  CHECK(w.stopped == 1);
  CHECK(uv_loop_alive(l.native()) == 0);
}

TEST_CASE("blocking calls: values, errors, a limit, and a loop that has ended") {
  auto there = std::make_unique<other_loop>();
  const rc::poster door = there->door();
  CHECK(rc::blocking_call(door, [] { return text(long_text, 1ms); }).get() == long_text);
  rc::blocking_call(door, [] { return rc::sleep_for(1ms); }).get();
  CHECK(*rc::blocking_call(door, [p = std::make_unique<int>(3)]() mutable { return std::move(p); }).get() == 3);
  for (int i = 0; i < 100; ++i)
    CHECK_THROWS_WITH_AS(rc::blocking_call(door, [] { return fail(long_text); }).get(), long_text.c_str(), std::runtime_error);
  witness w;
  auto limited = rc::blocking_call(door, [&w] { return waits_for_ever(w); }, 5ms);
  try {
    limited.get();
    FAIL("it came back");
  } catch (rc::error const& e) {
    CHECK(e.code() == rc::errc::timed_out);
  }
  CHECK(w.stopped == 1);
  witness v;
  auto cut = rc::blocking_call(door, [&v] { return waits_for_ever(v); });
  while (v.begun == 0) std::this_thread::yield();
  there.reset();
  try {
    cut.get();
    FAIL("it came back");
  } catch (rc::error const& e) {
    CHECK(e.code() == rc::errc::closed);
    CHECK(e.effect() == rc::effect::unknown);
  }
  try {
    rc::blocking_call(door, [] { return 1; }).get();
    FAIL("it came back");
  } catch (rc::error const& e) {
    CHECK(e.code() == rc::errc::closed);
    CHECK(e.effect() == rc::effect::none);
  }
}

TEST_CASE("a future that is stopped or dropped stops what runs over there; a result that is in counts") {
  other_loop there;
  {
    witness w;
    auto f = rc::blocking_call(there.door(), [&w] { return waits_for_ever(w); });
    CHECK(!f.wait_for(1ms));
    while (w.begun == 0) std::this_thread::yield();
    f.stop();
    CHECK(f.wait_for(0ms));
    try {
      f.get();
      FAIL("it came back");
    } catch (rc::error const& e) {
      CHECK(e.code() == rc::errc::cancelled);
      CHECK(e.effect() == rc::effect::unknown);
    }
    w.gone.get_future().wait();
    CHECK(w.stopped == 1);
  }
  {
    witness w;
    {
      auto f = rc::blocking_call(there.door(), [&w] { return waits_for_ever(w); });
      auto other = rc::blocking_call(there.door(), [] { return 1; });
      while (w.begun == 0) std::this_thread::yield();
      f = rc::blocking_call(there.door(), [] { return 2; });
      CHECK(f.get() == 2);
    }
    w.gone.get_future().wait();
    CHECK(w.stopped == 1);
  }
  auto f = rc::blocking_call(there.door(), [] { return text(long_text); });
  while (!f.wait_for(1s)) {
  }
  f.stop();
  CHECK(f.get() == long_text);
}

CO_TEST_CASE("stops race with completion: each call ends once, with its value or as cancelled") {
  constexpr int rounds = 300;
  other_loop there;
  std::atomic<int> ran{0};
  int values = 0;
  int stops = 0;
  auto calls = [&](int n) -> rc::task<> {
    const auto f = [&ran, n] {
      ++ran;
      return text(std::to_string(n) + long_text, n % 3 == 0 ? rc::duration(200us) : rc::duration());
    };
    const rc::result<std::string> r = co_await rc::as_result(rc::call_on(there.door(), f));
    if (r) {
      values += *r == std::to_string(n) + long_text;
    } else {
      stops += r.code() == rc::errc::cancelled;
    }
  };
  for (int i = 0; i < rounds; ++i) {
    rc::scope s(loop);
    for (int n = 0; n < 8; ++n) s.spawn(calls, n);
    for (int n = 0; n < i % 8; ++n) co_await co_test::next_turn(loop);
    if (i % 2 == 0) co_await rc::sleep_for(100us);
    s.request_stop();
    co_await s.join();
  }
  CHECK(values + stops == rounds * 8);
  CHECK(ran >= values);
}

namespace {

/// Belongs to one thread, and checks it.
class bound {
 public:
  explicit bound(std::shared_ptr<std::atomic<int>> wrong) : wrong_(std::move(wrong)) {}
  bound(bound&& o) noexcept : wrong_(std::move(o.wrong_)), thread_(o.thread_) {}
  ~bound() {
    if (wrong_) check();
  }
  int next() {
    check();
    return ++count_;
  }

 private:
  void check() const {
    if (std::this_thread::get_id() != thread_) ++*wrong_;
  }
  std::shared_ptr<std::atomic<int>> wrong_;
  std::thread::id thread_ = std::this_thread::get_id();
  int count_ = 0;
};

}  // namespace

TEST_CASE("a remote object lives on its loop's thread, keeps that loop alive, and ends there with its last handle") {
  auto wrong = std::make_shared<std::atomic<int>>(0);
  std::optional<rc::remote<bound>> handle;
  std::promise<void> ready;
  std::thread thread([&] {
    rc::loop l;
    handle.emplace(l, bound(wrong));
    ready.set_value();
    l.run();  // returns when the last handle has gone
    CHECK(uv_loop_alive(l.native()) == 0);
    CHECK(wrong.use_count() == 1);
  });
  ready.get_future().wait();
  {
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i)
      all.emplace_back([mine = *handle] {
        for (int n = 0; n < 50; ++n) mine.blocking_call([](bound& b) { return b.next(); }).get();
      });
    for (auto& t : all) t.join();
  }
  CHECK(handle->blocking_call([](bound& b) { return b.next(); }).get() == 201);
  handle.reset();
  thread.join();
  CHECK(*wrong == 0);
}

TEST_CASE("a remote object ends with its loop where handles outlive it; keep_alive(false) lets the loop go") {
  auto wrong = std::make_shared<std::atomic<int>>(0);
  std::optional<rc::remote<bound>> handle;
  {
    rc::loop l;
    handle.emplace(l, bound(wrong));
    const rc::remote<bound> copy = *handle;
    CHECK(uv_loop_alive(l.native()) != 0);
    copy.keep_alive(false);
    CHECK(uv_loop_alive(l.native()) == 0);
    copy.keep_alive(true);
    CHECK(wrong.use_count() == 2);
  }
  CHECK(wrong.use_count() == 1);
  auto late = handle->blocking_call([](bound& b) { return b.next(); });
  CHECK_THROWS_AS(late.get(), rc::error);
  std::thread other([gone = std::move(*handle)] {});
  handle.reset();
  other.join();
  CHECK(*wrong == 0);
}

namespace {

/// A server and a store on it in one loop, which lives in a thread of its own.
class store_elsewhere {
 public:
  store_elsewhere() {
    std::promise<rc::remote<rc::tcp_store>> made;
    thread_ = std::thread([&made, this] {
      rc::loop l;
      rc::detail::server_core server(l.core(), rc::serve_options());
      rc::test::memory_pair link(l);
      link_ = link.link;
      server.attach(std::move(link.second));
      {
        rc::tcp_store store = rc::sync_wait(l, rc::tcp_store::over(l, std::move(link.first), 10s));
        made.set_value(rc::remote<rc::tcp_store>(l, store));
      }
      l.run();
      link_.reset();
    });
    shared.emplace(made.get_future().get());
  }
  ~store_elsewhere() {
    shared.reset();
    thread_.join();
  }
  std::optional<rc::remote<rc::tcp_store>> shared;
  std::shared_ptr<rc::test::memory_link> link_;  // for that thread

 private:
  std::thread thread_;
};

}  // namespace

CO_TEST_CASE("a store on another loop: its operations are awaited here, with their arguments, errors and limits") {
  store_elsewhere there;
  rc::remote<rc::tcp_store> const& store = *there.shared;
  const std::string key = "key" + long_text;
  co_await store.call([](rc::tcp_store& s, std::string const& k, std::string const& v) { return s.set(k, v); }, key, long_text);
  const std::string value = co_await store.call([](rc::tcp_store& s, std::string const& k) { return s.get(k); }, key);
  CHECK(value == long_text);
  // While the caller waits, f may use what is here.
  const std::optional<std::string> found = co_await store.call([&key](rc::tcp_store& s) { return s.find(key); });
  CHECK(*found == long_text);
  const rc::result<void> missing = co_await rc::as_result(store.call([](rc::tcp_store& s) { return s.wait({"a", "b"}, 1ms); }));
  CHECK(missing.code() == rc::errc::timed_out);
  CHECK(missing.error().keys() == std::vector<std::string>{"a", "b"});
  const rc::result<void> limited = co_await rc::as_result(rc::with_deadline(store.call([](rc::tcp_store& s) { return s.wait("a"); }), 1ms));
  CHECK(limited.code() == rc::errc::timed_out);
  auto first = co_await rc::when_any(store.call([](rc::tcp_store& s) { return s.get("a"); }), store.call([&key](rc::tcp_store& s) { return s.get(key); }));
  CHECK(first.get<1>() == long_text);
  // Several steps at once over there, as a task.
  const auto steps = [](rc::tcp_store& s, std::string k) -> rc::task<std::int64_t> {
    const std::int64_t n = co_await s.add(k, 2);
    co_return co_await s.add(k, n);
  };
  const std::int64_t four = co_await store.call(steps, "n");
  CHECK(four == 4);
}

CO_TEST_CASE("a server that does not answer over there holds nobody up here, and the store is in step afterwards") {
  store_elsewhere there;
  rc::remote<rc::tcp_store> const& store = *there.shared;
  co_await store.call([&there](rc::tcp_store&) { there.link_->freeze(); });
  const rc::result<std::int64_t> added = co_await rc::as_result(rc::with_deadline(store.call([](rc::tcp_store& s) { return s.add("n", 1); }), 5ms));
  CHECK(added.code() == rc::errc::timed_out);
  CHECK(added.error().effect() == rc::effect::unknown);
  co_await store.call([&there](rc::tcp_store&) { there.link_->thaw(); });
  const std::int64_t n = co_await store.call([](rc::tcp_store& s) { return s.add("n", 0); });
  CHECK(n == 1);
}

TEST_CASE("eight blocking threads on one store") {
  constexpr int threads = 8;
  constexpr int each = 200;
  store_elsewhere there;
  std::array<std::int64_t, threads> last{};
  std::atomic<int> wrong{0};
  {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([&, t, store = *there.shared] {
        const std::string own = "own/" + std::to_string(t);
        for (int i = 0; i < each; ++i) {
          last[static_cast<std::size_t>(t)] = store.blocking_call([](rc::tcp_store& s) { return s.add("all", 1); }).get();
          const std::string value = std::to_string(i) + long_text;
          store.blocking_call([own, value](rc::tcp_store& s) { return s.set(own, value); }).get();
          if (store.blocking_call([own](rc::tcp_store& s) { return s.get(own); }).get() != value) ++wrong;
        }
        // One of them waits for what the last one sets.
        if (t == 0) store.blocking_call([](rc::tcp_store& s) { return s.wait("go", 20s); }).get();
        if (t == 7) store.blocking_call([](rc::tcp_store& s) { return s.set("go", ""); }).get();
      });
    for (auto& t : all) t.join();
  }
  CHECK(wrong == 0);
  CHECK(*std::max_element(last.begin(), last.end()) == threads * each);
  CHECK(there.shared->blocking_call([](rc::tcp_store& s) { return s.add("all", 0); }).get() == threads * each);
}

TEST_CASE("handles, calls and the end of the loop race: every call ends, and nothing is left") {
  for (int round = 0; round < 50; ++round) {
    std::optional<rc::remote<int>> handle;
    std::promise<void> ready;
    std::atomic<bool> enough{false};
    std::thread thread([&] {
      rc::loop l;
      handle.emplace(l, 0);
      ready.set_value();
      while (!enough) uv_run(l.native(), UV_RUN_NOWAIT);
    });
    ready.get_future().wait();
    std::atomic<int> answered{0};
    std::vector<std::thread> all;
    for (int t = 0; t < 3; ++t)
      all.emplace_back([&, mine = *handle] {
        for (int n = 0; n < 20; ++n) {
          try {
            mine.blocking_call([](int& i) -> rc::task<int> {
                  ++i;
                  if (i % 3 == 0) co_await rc::sleep_for(1h);
                  co_return i;
                })
                .get();
            ++answered;
          } catch (rc::error const& e) {
            if (e.code() == rc::errc::closed) ++answered;
          }
          enough = true;
        }
      });
    handle.reset();
    for (auto& t : all) t.join();
    thread.join();
    CHECK(answered == 60);
  }
}
