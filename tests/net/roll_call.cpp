// barrier over TCP: verdicts, restarts, stops, losses, counts of requests and keys.
#include "../support/net.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <rollcall/rollcall.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace rc = rollcall;
using namespace std::chrono_literals;
using net_test::contains;
using rc::barrier_verdict;

namespace {

/// A server on port 0 of the test's own loop.
class hall {
 public:
  explicit hall(rc::loop& l) : loop(l), serving_(l) {
    rc::listener at = rc::listen(rc::listen_options{}.host("127.0.0.1").port(0));
    port_ = at.port();
    serving_.spawn(rc::serve(l, std::move(at), rc::serve_options{}.stats(&stats)));
  }
  rc::loop& loop;
  rc::server_stats stats;

  rc::task<rc::tcp_store> store() { return rc::tcp_store::connect(loop, "127.0.0.1", port_, 20s); }
  rc::task<std::vector<rc::tcp_store>> stores(int n) {
    std::vector<rc::tcp_store> all;
    for (int i = 0; i < n; ++i) all.push_back(co_await store());
    co_return all;
  }
  [[nodiscard]] int port() const { return port_; }
  void stop() { serving_.request_stop(); }
  rc::task<> close() {
    stop();
    return serving_.join();
  }

 private:
  rc::scope serving_;
  int port_ = 0;
};

/// How one call ended.
class ending {
 public:
  ending() = default;
  bool over = false;
  bool ok = false;
  rc::errc code{};
  std::string text;
  std::optional<barrier_verdict> kind;
  std::vector<int> missing;
  rc::duration took{};
};

rc::task<> arrive(rc::barrier<> b, rc::loop* l, rc::deadline limit, ending* e) {
  *e = ending();
  const rc::time_point begun = l->now();
  try {
    co_await b.arrive_and_wait(limit);
    e->ok = true;
  } catch (rc::barrier_error const& x) {
    e->code = x.code();
    e->text = x.what();
    e->kind = x.kind();
    e->missing = x.missing();
  } catch (rc::error const& x) {
    e->code = x.code();
    e->text = x.what();
  }
  e->over = true;
  e->took = l->now() - begun;
}

/// All of them at once; until every one has ended.
rc::task<> together(rc::loop& l, std::vector<rc::barrier<>> all, rc::deadline limit, std::vector<ending>& ends) {
  ends.assign(all.size(), ending());
  rc::scope s(l);
  for (std::size_t i = 0; i < all.size(); ++i) s.spawn(arrive(all[i], &l, limit, &ends[i]));
  co_await s.join();
}
int passed(std::vector<ending> const& ends) {
  return static_cast<int>(std::count_if(ends.begin(), ends.end(), [](ending const& e) { return e.ok; }));
}

void on_loop(rc::task<> (*body)(hall&)) {
  rc::loop l;
  rc::sync_wait(l, rc::with_deadline(
                       [](rc::loop* loop, rc::task<> (*b)(hall&)) -> rc::task<> {
                         hall h(*loop);
                         rc::result<void> r = co_await rc::as_result(b(h));
                         co_await h.close();
                         r.value();
                       }(&l, body),
                       120s));
}

}  // namespace

TEST_CASE("eight ranks pass, again and again, with one object each; a generation costs 5 requests a member", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto stores = co_await h.stores(8);
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < 8; ++r) all.emplace_back(stores[static_cast<std::size_t>(r)], "init", r, 8);
    CHECK_FALSE(all[0].generation().has_value());
    std::vector<ending> ends;
    for (int round = 0; round < 5; ++round) {
      const auto before = h.stats.requests;
      co_await together(h.loop, all, 20s, ends);
      CHECK(passed(ends) == 8);
      CHECK(all[3].generation() == round + 1);
      CHECK(h.stats.requests - before <= 8U * (round == 0 ? 6 : 5) + 16);
    }
    CHECK_AWAIT(co_await stores[0].num_keys(), 4);
  });
}

TEST_CASE("1,000 rounds of one name with fresh objects: never more than one apart, the keys stay as many", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    class shared {
     public:
      shared() = default;
      int round[4] = {};
      int apart = 0;
      bool wrong_generation = false;
    } s;
    struct {
      static rc::task<> rounds(rc::tcp_store store, int rank, int from, int to, shared* s) {
        for (int i = from; i < to; ++i) {
          rc::barrier fresh{store, "name", rank, 4};
          co_await fresh.arrive_and_wait(20s);
          s->wrong_generation = s->wrong_generation || fresh.generation() != i + 1;
          s->round[rank] = i + 1;
          const auto [low, high] = std::minmax_element(std::begin(s->round), std::end(s->round));
          s->apart = std::max(s->apart, *high - *low);
        }
      }
    } member;
    auto stores = co_await h.stores(4);
    std::int64_t keys[2] = {};
    const int steps[3] = {0, 10, 1000};
    for (std::size_t part = 0; part < 2; ++part) {
      const auto before = h.stats.requests;
      rc::scope group(h.loop);
      for (int r = 0; r < 4; ++r) group.spawn(member.rounds(stores[static_cast<std::size_t>(r)], r, steps[part], steps[part + 1], &s));
      co_await group.join();
      const auto each = static_cast<double>(h.stats.requests - before) / (steps[part + 1] - steps[part]);
      CHECK(each <= 4 * 6 + 16);
      keys[part] = co_await stores[0].num_keys();
    }
    CHECK(s.apart <= 1);
    CHECK_FALSE(s.wrong_generation);
    CHECK(keys[0] == 4);
    CHECK(keys[1] == keys[0]);
  });
}

TEST_CASE("300 stores, 3 absent: 297 errors that name exactly the three, in 6n + c requests", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto stores = co_await h.stores(300);
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < 300; ++r)
      if (r != 17 && r != 96 && r != 97) all.emplace_back(stores[static_cast<std::size_t>(r)], "init", r, 300);
    const auto before = h.stats.requests;
    std::vector<ending> ends;
    co_await together(h.loop, all, 1s, ends);
    const auto requests = h.stats.requests - before;
    for (ending const& e : ends) {
      REQUIRE(e.kind == barrier_verdict::missing);
      REQUIRE(contains(e.text, ": 3 of 300 missing: 17, 96-97"));
      REQUIRE(e.code == rc::errc::failed);
      REQUIRE(e.missing == std::vector<int>{17, 96, 97});
      REQUIRE(e.took >= 1s);
      REQUIRE(e.took < 1500ms + 2s);  // 0.5 s, and what a busy machine takes
    }
    INFO("requests: " << requests << " for 297 arrivals, c = " << static_cast<std::int64_t>(requests) - 6 * 297);
    CHECK(requests <= 6 * 297 + 64);
  });
}

TEST_CASE("a rank that arrives twice, and two world sizes, fail for everyone", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(3);
    std::vector<ending> ends;
    {
      std::vector<rc::barrier<>> all;
      all.emplace_back(s[0], "twice", 0, 3);
      all.emplace_back(s[1], "twice", 1, 3);
      all.emplace_back(s[2], "twice", 1, 3);
      co_await together(h.loop, all, 60s, ends);
      for (ending const& e : ends) {
        CHECK(e.kind == barrier_verdict::twice);
        CHECK(contains(e.text, "rank 1 arrived twice: as process "));
        CHECK(e.took < 20s);
      }
    }
    // Found when somebody draws a full count, else at the first limit.
    for (const bool at_once : {true, false}) {
      const std::string name = at_once ? "worlds" : "worlds, too";
      std::vector<rc::barrier<>> all;
      if (at_once) all.emplace_back(s[2], name, 2, 4);
      all.emplace_back(s[0], name, 0, 3);
      all.emplace_back(s[1], name, 1, 3);
      if (!at_once) all.emplace_back(s[2], name, 2, 4);
      rc::deadline limit = 60s;
      if (!at_once) limit = 50ms;
      co_await together(h.loop, all, limit, ends);
      for (ending const& e : ends) {
        CHECK(e.kind == barrier_verdict::worlds);
        CHECK(contains(e.text, "two world sizes: "));
        CHECK(e.took < 20s);
      }
    }
  });
}

TEST_CASE("a restart with a higher attempt meets among itself; who is left of the lower one is told", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto old = co_await h.stores(2);
    auto fresh = co_await h.stores(3);
    ending first[2];
    rc::scope waiting(h.loop);
    rc::barrier left{old[0], "job", 0, 3};
    waiting.spawn(arrive(left, &h.loop, 60s, &first[0]));
    waiting.spawn(arrive(rc::barrier<>(old[1], "job", 1, 3), &h.loop, 60s, &first[1]));
    const std::string count = "job/0/count";
    co_await fresh[0].wait(count, 20s);
    while (co_await fresh[0].add(count, 0) < 2) co_await rc::sleep_for(1ms);
    old[1].close();
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < 3; ++r) all.emplace_back(fresh[static_cast<std::size_t>(r)], "job", r, 3, rc::barrier_options{}.attempt(1));
    std::vector<ending> ends;
    co_await together(h.loop, all, 60s, ends);
    CHECK(passed(ends) == 3);
    co_await waiting.join();
    CHECK(first[0].kind == barrier_verdict::superseded);
    CHECK(contains(first[0].text, "superseded by attempt 1"));
    CHECK(first[1].code == rc::errc::closed);
    // For good, and at no cost.
    const auto before = h.stats.requests;
    ending again;
    co_await arrive(left, &h.loop, 60s, &again);
    CHECK(again.kind == barrier_verdict::superseded);
    CHECK(h.stats.requests == before);
  });
}

TEST_CASE("a straggler of a lower attempt that decides alone harms nobody", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(3);
    ending e;
    co_await arrive(rc::barrier<>(s[2], "job", 1, 2), &h.loop, 10ms, &e);
    CHECK(e.kind == barrier_verdict::missing);
    // The same generation number in the hands of restarted members.
    CHECK_AWAIT(co_await s[0].compare_set("job/generation", "1", "0"), "0");
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < 2; ++r) all.emplace_back(s[static_cast<std::size_t>(r)], "job", r, 2, rc::barrier_options{}.attempt(1));
    std::vector<ending> ends;
    co_await together(h.loop, all, 20s, ends);
    CHECK(passed(ends) == 2);
    CHECK(all[0].generation() == 2);
  });
}

TEST_CASE("abort tells everyone why, whether it comes from a member that waits, one that does not, or a fresh object", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(3);
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < 3; ++r) all.emplace_back(s[static_cast<std::size_t>(r)], "job", r, 3);
    for (int how = 0; how < 3; ++how) {
      std::vector<ending> ends(2);
      rc::scope group(h.loop);
      for (std::size_t r = 0; r < 2; ++r) group.spawn(arrive(all[r], &h.loop, 60s, &ends[r]));
      const std::string count = "job/" + std::to_string(how) + "/count";
      co_await s[2].wait(count, 20s);
      while (co_await s[2].add(count, 0) < 2) co_await rc::sleep_for(1ms);
      bool is_it = false;
      std::string by;
      if (how == 0) {
        rc::barrier fresh{s[2], "job", 2, 3};
        is_it = co_await fresh.abort("no space left");
        by = "rank 2: no space left";
      } else if (how == 1) {
        is_it = co_await all[1].abort("no space left");
        by = "rank 1: no space left";
      } else {
        is_it = co_await all[2].abort("no space left");
        by = "rank 2: no space left";
      }
      CHECK(is_it);
      co_await group.join();
      for (ending const& e : ends) {
        CHECK(e.kind == barrier_verdict::aborted);
        CHECK(contains(e.text, by));
        CHECK(e.took < 20s);
      }
      if (how < 2) continue;
      // It has left that generation, too: the next one is complete with it.
      co_await together(h.loop, all, 20s, ends);
      CHECK(passed(ends) == 3);
    }
  });
}

TEST_CASE("a late arrival of an object that counts by itself reads the verdict at once", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(3);
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < 3; ++r) all.emplace_back(s[static_cast<std::size_t>(r)], "job", r, 3);
    std::vector<ending> ends;
    co_await together(h.loop, all, 20s, ends);
    REQUIRE(passed(ends) == 3);
    const std::vector<rc::barrier<>> two(all.begin(), all.begin() + 2);
    co_await together(h.loop, two, 50ms, ends);
    CHECK(ends[0].missing == std::vector<int>{2});
    ending late;
    co_await arrive(all[2], &h.loop, 60s, &late);
    CHECK(late.missing == std::vector<int>{2});
    CHECK(contains(late.text, "1 of 3 missing: 2"));
    CHECK(late.took < 20s);
    // Everybody is in the same generation again, and what had failed is cleared away with the next success.
    co_await together(h.loop, all, 20s, ends);
    CHECK(passed(ends) == 3);
    CHECK_AWAIT(co_await s[0].num_keys(), 4);
  });
}

TEST_CASE("objects of one name that take turns in a process stay in step", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(2);
    std::vector<rc::barrier<>> kept;
    for (int r = 0; r < 2; ++r) kept.emplace_back(s[static_cast<std::size_t>(r)], "job", r, 2);
    std::vector<ending> ends;
    for (int round = 0; round < 3; ++round) {
      co_await together(h.loop, kept, 20s, ends);
      CHECK(passed(ends) == 2);
      CHECK(kept[0].generation() == 2 * round + 1);
      std::vector<rc::barrier<>> fresh;
      for (int r = 0; r < 2; ++r) fresh.emplace_back(s[static_cast<std::size_t>(r)], "job", r, 2);
      co_await together(h.loop, fresh, 20s, ends);
      CHECK(passed(ends) == 2);
    }
  });
}

TEST_CASE("a member that is stopped stays counted, and goes on in the same generation", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(2);
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < 2; ++r) all.emplace_back(s[static_cast<std::size_t>(r)], "job", r, 2);
    for (int round = 0; round < 2; ++round) {
      const std::string g = "job/" + std::to_string(round);
      for (int stops = 0; stops < 3; ++stops) {
        rc::scope group(h.loop);
        group.spawn(all[0].arrive_and_wait(60s));
        co_await s[1].wait(g + "/count", 20s);
        const rc::time_point asked = h.loop.now();
        group.request_stop();
        co_await group.join();
        CHECK(h.loop.now() - asked < 2s);
      }
      CHECK_AWAIT(co_await s[1].add(g + "/count", 0), 1);
      rc::barrier other{s[1], "job", 1, 2};
      const std::vector<int> missing = co_await other.missing();
      CHECK(missing == std::vector<int>{1});
      std::vector<ending> ends;
      co_await together(h.loop, all, 20s, ends);
      CHECK(passed(ends) == 2);
    }
    // Stopped at once, before anything was answered.
    {
      rc::scope group(h.loop);
      group.spawn(all[0].arrive_and_wait(60s));
      group.request_stop();
      co_await group.join();
    }
    std::vector<ending> ends;
    co_await together(h.loop, all, 20s, ends);
    CHECK(passed(ends) == 2);
  });
}

TEST_CASE("a second call on an object that waits is refused, the first goes on", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(1);
    rc::barrier b{s[0], "job", 0, 2};
    ending first;
    ending second;
    rc::scope group(h.loop);
    group.spawn(arrive(b, &h.loop, 100ms, &first));
    group.spawn(arrive(b, &h.loop, 100ms, &second));
    co_await group.join();
    CHECK(first.missing == std::vector<int>{1});
    CHECK(second.code == rc::errc::invalid);
  });
}

TEST_CASE("the server stops inside a barrier: everyone is told at once", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(7);
    std::vector<ending> ends(7);
    rc::scope group(h.loop);
    for (int r = 0; r < 7; ++r)
      group.spawn(arrive(rc::barrier<>(s[static_cast<std::size_t>(r)], "job", r, 8), &h.loop, 60s, &ends[static_cast<std::size_t>(r)]));
    co_await s[0].wait("job/0/count", 20s);
    while (co_await s[0].add("job/0/count", 0) < 7) co_await rc::sleep_for(1ms);
    const rc::time_point stopped = h.loop.now();
    h.stop();
    co_await group.join();
    CHECK(h.loop.now() - stopped < 5s);
    for (ending const& e : ends) CHECK(e.code == rc::errc::disconnected);
  });
}

TEST_CASE("progress is told at each interval, by the count; not when the limit is shorter", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(2);
    std::vector<std::int64_t> seen;
    const auto look = [&](std::int64_t n, int world) {
      CHECK(world == 3);
      seen.push_back(n);
    };
    ending e;
    rc::barrier_options quick;
    quick.logging_interval(20ms).progress(look);
    rc::barrier shown{s[0], "shown", 0, 3, quick};
    rc::scope group(h.loop);
    group.spawn(arrive(shown, &h.loop, 60s, &e));
    co_await net_test::eventually([&] { return seen.size() >= 2; });
    ending other;
    group.spawn(arrive(rc::barrier<>(s[1], "shown", 1, 3), &h.loop, 60s, &other));
    co_await net_test::eventually([&] { return seen.back() == 2; });
    CHECK(seen.front() == 1);
    const std::vector<int> missing = co_await shown.missing();
    CHECK(missing == std::vector<int>{2});
    const bool decided = co_await shown.abort("enough");
    CHECK(decided);
    co_await group.join();
    CHECK(e.kind == barrier_verdict::aborted);

    seen.clear();
    rc::barrier_options slow;
    slow.progress(look);
    const auto before = h.stats.requests;
    co_await arrive(rc::barrier<>(s[0], "short", 0, 3, slow), &h.loop, 5ms, &e);
    CHECK(e.missing == std::vector<int>{1, 2});
    CHECK(seen.empty());
    CHECK(h.stats.requests - before <= 20);

    // What the callback throws ends that call.
    rc::barrier_options thrower;
    thrower.logging_interval(1ms).progress([](std::int64_t, int) { throw std::runtime_error("mine"); });
    rc::barrier thrown{s[0], "thrown", 0, 3, thrower};
    bool caught = false;
    try {
      co_await thrown.arrive_and_wait(20s);
    } catch (std::runtime_error const& x) {
      caught = std::string(x.what()) == "mine";
    }
    CHECK(caught);
  });
}

TEST_CASE("a loop that stood still past the limit still learns the verdict", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    auto s = co_await h.stores(3);
    std::vector<ending> ends(2);
    rc::scope group(h.loop);
    for (int r = 0; r < 2; ++r)
      group.spawn(arrive(rc::barrier<>(s[static_cast<std::size_t>(r)], "job", r, 3), &h.loop, 50ms, &ends[static_cast<std::size_t>(r)]));
    co_await s[2].wait("job/0/count", 20s);
    while (co_await s[2].add("job/0/count", 0) < 2) co_await rc::sleep_for(1ms);
    const rc::time_point now = h.loop.now();
    while (h.loop.now() - now < 700ms) {}
    co_await group.join();
    for (ending const& e : ends) CHECK(e.missing == std::vector<int>{2});
  });
}

namespace {

/// A store whose reads of a value are never answered. It also shows what a barrier needs of a store.
class mute_store {
 public:
  explicit mute_store(rc::tcp_store s) : s_(std::move(s)) {}
  [[nodiscard]] auto add(std::string_view k, std::int64_t n, rc::deadline d) const { return s_.add(k, n, d); }
  [[nodiscard]] auto check(rc::keys k, rc::deadline d) const { return s_.check(k, d); }
  [[nodiscard]] auto append(std::string_view k, std::string_view v, rc::deadline d) const { return s_.append(k, v, d); }
  [[nodiscard]] auto set(std::string_view k, std::string_view v, rc::deadline d) const { return s_.set(k, v, d); }
  [[nodiscard]] auto wait(rc::keys k, rc::deadline d) const { return s_.wait(k, d); }
  [[nodiscard]] auto find(std::string_view k) const { return s_.find(k); }
  [[nodiscard]] auto compare_set(std::string_view k, std::string_view e, std::string_view v, rc::deadline d) const { return s_.compare_set(k, e, v, d); }
  [[nodiscard]] auto delete_key(std::string_view k, rc::deadline d) const { return s_.delete_key(k, d); }
  [[nodiscard]] rc::task<std::string> fetch_existing(std::string_view, rc::deadline) const { return never(&s_.home().core()); }
  [[nodiscard]] std::uint64_t identity() const noexcept { return s_.identity(); }
  [[nodiscard]] rc::loop_ref home() const noexcept { return s_.home(); }

 private:
  static rc::task<std::string> never(rc::detail::loop_core* core) {
    rc::event e(core);
    co_await e.wait();
    co_return "";
  }
  rc::tcp_store s_;
};

}  // namespace

TEST_CASE("no answer within half a second past the limit: the verdict is unknown, the arrival counted", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    rc::tcp_store s = co_await h.store();
    rc::barrier b{mute_store(s), "job", 0, 2};
    for (int i = 0; i < 2; ++i) {
      const rc::time_point begun = h.loop.now();
      std::optional<rc::error> thrown;
      try {
        co_await b.arrive_and_wait(20ms);
      } catch (rc::error const& e) {
        thrown = e;
      }
      REQUIRE(thrown.has_value());
      CHECK(thrown->code() == rc::errc::timed_out);
      CHECK(contains(thrown->what(), "verdict is unknown"));
      CHECK(contains(thrown->what(), "rank 0 of 2 has arrived in generation 0 and stays counted"));
      CHECK(h.loop.now() - begun >= 520ms);
      CHECK(h.loop.now() - begun < 5s);
    }
    CHECK_AWAIT(co_await s.add("job/0/count", 0), 1);
  });
}

TEST_CASE("abort keeps its limit also while another call on the object waits for a silent server", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    rc::tcp_store s = co_await h.store();
    rc::barrier b{mute_store(s), "job", 0, 1};
    rc::scope group(h.loop);
    group.spawn(b.arrive_and_wait(60s));  // its count is full: it judges, and is not told who arrived
    co_await s.wait("job/0/count", 20s);
    const rc::time_point begun = h.loop.now();
    const rc::result<bool> r = co_await rc::as_result(b.abort("enough", 50ms));
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().code() == rc::errc::timed_out);
    CHECK(r.error().effect() == rc::effect::unknown);
    CHECK(contains(r.error().message(), "whether the abort took effect is unknown"));
    CHECK(h.loop.now() - begun < 20s);
    group.request_stop();
    co_await group.join();
  });
}

TEST_CASE("a generation that is no barrier's number is a clear error", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    rc::tcp_store s = co_await h.store();
    char const* const numbers[] = {"-1", "9223372036854775807"};
    for (char const* number : numbers) {
      co_await s.set("job/generation", number);
      rc::barrier b{s, "job", 0, 1};
      ending e;
      co_await arrive(b, &h.loop, 20s, &e);
      CHECK(e.kind == barrier_verdict::aborted);
      CHECK(contains(e.text, std::string("the generation is none of a barrier's: ") + number));
      const bool decided = co_await b.abort("enough");
      CHECK_FALSE(decided);
      co_await s.set("job/generation", "7");
      co_await arrive(b, &h.loop, 20s, &e);
      CHECK(e.ok);
    }
  });
}

TEST_CASE("ranks and worlds that can never work are refused before any request", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    rc::tcp_store s = co_await h.store();
    const auto before = h.stats.requests;
    const std::pair<int, int> bad[] = {{0, 0}, {-1, 2}, {2, 2}, {1, 1}, {0, -3}, {0, 2'000'000'000}};
    for (auto const& [rank, world] : bad) {
      std::string text;
      rc::errc code{};
      try {
        rc::barrier b{s, "job", rank, world};
      } catch (rc::error const& e) {
        text = e.what();
        code = e.code();
      }
      CHECK(code == rc::errc::invalid);
      CHECK(contains(text, "rank " + std::to_string(rank) + " of world size " + std::to_string(world)));
    }
    CHECK_THROWS_AS((rc::barrier<>(s, "job", 0, 1, rc::barrier_options{}.attempt(-1))), rc::error);
    CHECK(h.stats.requests == before);
    rc::barrier alone{s, "alone", 0, 1};
    for (int i = 0; i < 3; ++i) co_await alone.arrive_and_wait(20s);
  });
}

namespace {

/// Four ranks that are unlucky at random. What each generation's verdict was, as everybody saw it, must be one.
class storm {
 public:
  storm(hall& h, std::uint64_t seed) : hall_(h), random_(seed) {}
  static constexpr int world = 4;
  std::map<std::int64_t, std::string> verdicts;
  std::vector<std::string> wrong;
  int calls = 0, passes = 0, losses = 0;

  rc::task<> run(int rounds) {
    rc::scope group(hall_.loop);
    for (int r = 0; r < world; ++r) group.spawn(live(r, rounds));
    co_await group.join();
    // And after all that: everybody anew.
    ++attempt_;
    std::vector<rc::barrier<>> all;
    for (int r = 0; r < world; ++r) all.emplace_back(co_await hall_.store(), "storm", r, world, rc::barrier_options{}.attempt(attempt_));
    std::vector<ending> ends;
    for (int i = 0; i < 3; ++i) {
      co_await together(hall_.loop, all, 20s, ends);
      if (passed(ends) != world) wrong.push_back("the last rounds did not pass: " + ends[0].text);
    }
  }

 private:
  int some(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool one_in(int n) { return some(1, n) == 1; }

  static rc::task<> close_soon(rc::tcp_store s, rc::duration d) {
    co_await rc::sleep_for(d);
    s.close();
  }
  rc::task<> live(int rank, int rounds) {
    std::optional<rc::tcp_store> store;
    std::optional<rc::barrier<>> kept;
    int attempt = 0;
    for (int i = 0; i < rounds; ++i) {
      if (!store || !store->is_open()) {
        store.emplace(co_await hall_.store());
        kept.reset();
        if (one_in(6)) ++attempt_;
        if (one_in(2)) attempt = attempt_;
      }
      if (!kept || one_in(3)) kept.emplace(*store, "storm", rank, world, rc::barrier_options{}.attempt(attempt));
      if (one_in(4)) co_await rc::sleep_for(std::chrono::milliseconds(some(0, 30)));
      const rc::duration limit = std::chrono::milliseconds(one_in(4) ? some(0, 20) : some(20, 200));
      const int fate = some(1, 20);
      ending e;
      rc::scope group(hall_.loop);
      if (fate == 1) group.spawn(close_soon(*store, std::chrono::milliseconds(some(0, 20))));
      if (fate == 2) {
        static_cast<void>(co_await kept->abort("storm"));
      } else if (fate == 3) {
        group.spawn(arrive(*kept, &hall_.loop, limit, &e));
        co_await rc::sleep_for(std::chrono::milliseconds(some(0, 3)));
        group.request_stop();
      } else {
        co_await arrive(*kept, &hall_.loop, limit, &e);
        note(rank, *kept, e, limit);
      }
      co_await group.join();
      if (e.kind == barrier_verdict::superseded) {
        attempt = attempt_;
        kept.reset();
      }
    }
  }
  void note(int rank, rc::barrier<> const& b, ending const& e, rc::duration limit) {
    ++calls;
    if (e.took > limit + 500ms + 3s) wrong.push_back("rank " + std::to_string(rank) + " hung for " + std::to_string(e.took / 1ms) + " ms");
    if (e.ok) ++passes;
    if (!e.ok && !e.kind) ++losses;
    if (!e.ok && !e.kind && e.code != rc::errc::closed && e.code != rc::errc::timed_out) wrong.push_back(e.text);
    if (e.kind == barrier_verdict::superseded || e.kind == barrier_verdict::passed_by || (!e.ok && !e.kind)) return;
    const std::size_t from = e.text.find("): ");
    const std::string text = e.ok ? "ok" : e.text.substr(from + 3);
    const std::int64_t g = *b.generation() - 1;
    const auto [at, first] = verdicts.emplace(g, text);
    if (!first && at->second != text) wrong.push_back("generation " + std::to_string(g) + ": '" + at->second + "' and '" + text + "'");
  }

  hall& hall_;
  std::mt19937_64 random_;
  int attempt_ = 0;
};

}  // namespace

TEST_CASE("storm: crashes, restarts, stops, aborts and short limits at random; one verdict a generation", "[barrier]") {
  on_loop([](hall& h) -> rc::task<> {
    char const* given = std::getenv("ROLLCALL_SEED");
    const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
    const int rounds = std::getenv("ROLLCALL_LONG") ? 2000 : 60;
    storm s(h, seed);
    co_await s.run(rounds);
    INFO("ROLLCALL_SEED=" << seed << ": " << s.calls << " calls, " << s.passes << " passed, " << s.losses << " lost, " << s.verdicts.size()
                          << " verdicts");
    for (std::string const& w : s.wrong) FAIL_CHECK(w);
    CHECK(s.passes > 0);
  });
}
