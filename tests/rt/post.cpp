#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

/// All that may be done to a loop from other threads; also what the thread sanitizer judges.

namespace rc = rollcall;
using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#ifndef SLOW_BUILD
#define SLOW_BUILD 0
#endif

namespace {

/// Joins its thread, also when a test fails.
class joined_thread {
 public:
  template <class F>
  explicit joined_thread(F f) : thread_(std::move(f)) {}
  joined_thread(joined_thread const&) = delete;
  joined_thread& operator=(joined_thread const&) = delete;
  ~joined_thread() { thread_.join(); }

 private:
  std::thread thread_;
};

rc::task<> nothing() { co_return; }
/// One turn of a loop on which nothing else is alive.
void turn(rc::loop& l) { rc::sync_wait(l, nothing()); }

}  // namespace

CO_TEST_CASE("posts of four threads all arrive, those of each thread in its order") {
  constexpr int threads = 4;
  constexpr int each = 100'000;
  std::array<int, threads> next{};
  bool in_order = true;
  bool on_loop_thread = true;
  const auto here = std::this_thread::get_id();
  int left = threads * each;
  rc::event all(loop);
  std::atomic<bool> taken{true};
  {
    std::vector<std::unique_ptr<joined_thread>> posting;
    for (int t = 0; t < threads; ++t) {
      posting.push_back(std::make_unique<joined_thread>([&, t, door = loop.post_handle()] {
        for (int i = 0; i < each; ++i) {
          const bool ok = door.post([&, t, i] {
            int& expected = next[static_cast<std::size_t>(t)];
            in_order = in_order && expected == i;
            on_loop_thread = on_loop_thread && std::this_thread::get_id() == here;
            ++expected;
            if (--left == 0) all.set();
          });
          if (!ok) taken = false;
        }
      }));
    }
    co_await all.wait();
  }
  CHECK(left == 0);
  CHECK(in_order);
  CHECK(on_loop_thread);
  CHECK(taken);
}

CO_TEST_CASE("a post from the loop's own thread runs later, after those posted before") {
  std::vector<int> log;
  rc::event done(loop);
  CHECK(loop.post([&] {
    log.push_back(1);
    loop.post([&] {
      log.push_back(3);
      done.set();
    });
    log.push_back(2);
  }));
  CHECK(log.empty());
  co_await done.wait();
  CHECK(log == std::vector<int>{1, 2, 3});
}

CO_TEST_CASE("a post wakes a loop that sleeps in its poll") {
  rc::event rung(loop);
  const auto door = loop.post_handle();
  const joined_thread t([&] { door.post([&] { rung.set(); }); });
  co_await rung.wait();
}

TEST_CASE("what a post holds is destroyed: run, dropped with the loop, or refused after it") {
  auto witness = std::make_shared<int>(1);
  std::optional<rc::poster> door;
  bool ran = false;
  {
    rc::loop l;
    door.emplace(l.post_handle());
    CHECK(door->post([witness, &ran] { ran = true; }));
    uv_run(l.native(), UV_RUN_NOWAIT);
    CHECK(!ran);  // a post by itself does not keep a loop alive
    turn(l);
    CHECK(ran);
    CHECK(witness.use_count() == 1);
    ran = false;
    CHECK(door->post([witness, &ran] { ran = true; }));
    CHECK(witness.use_count() == 2);
  }
  CHECK(!ran);
  CHECK(witness.use_count() == 1);
  CHECK(!door->post([witness, &ran] { ran = true; }));
  CHECK(!ran);
  CHECK(witness.use_count() == 1);
}

TEST_CASE("a dropped post whose destructor posts again does not block") {
  class reposts {
   public:
    explicit reposts(rc::poster p) : door_(std::make_shared<rc::poster>(std::move(p))) {}
    reposts(reposts&&) noexcept = default;
    ~reposts() {
      if (door_) door_->post([] {});
    }
    void operator()() const noexcept {}

   private:
    std::shared_ptr<rc::poster> door_;
  };
  rc::loop l;
  l.post(reposts(l.post_handle()));
}

TEST_CASE("posting races with the end of the loop: a post is either run, dropped or refused, and nothing else happens") {
  constexpr int cycles = SLOW_BUILD ? 1000 : 10'000;
  std::atomic<int> generation{0};
  std::atomic<int> answered{0};
  std::optional<rc::poster> door;
  int ran = 0;
  int accepted = 0;
  const joined_thread other([&] {
    for (int i = 1; i <= cycles; ++i) {
      while (generation.load() != i) std::this_thread::yield();
      const rc::poster mine = *door;
      for (int n = 0; n < 3; ++n) accepted += mine.post([&ran] { ++ran; });
      answered = i;
    }
  });
  for (int i = 1; i <= cycles; ++i) {
    {
      rc::loop l;
      door.emplace(l.post_handle());
      generation = i;
      if (i % 2) turn(l);
      if (i % 3 == 0) std::this_thread::yield();
    }
    while (answered.load() != i) std::this_thread::yield();
  }
  CHECK(ran <= accepted);
  CHECK(accepted <= 3 * cycles);
}
