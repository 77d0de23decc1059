#include "../support/net.hpp"

using namespace net_test;

namespace {

/// `ranks` of them meet in `group` on stores of their own; each one's outcome.
rc::task<std::vector<rc::result<void>>> meet(rc::loop& l, int port, string group, int world, std::vector<int> ranks, rc::deadline limit) {
  std::vector<rc::result<void>> outcomes(ranks.size());
  rc::scope all(l);
  auto one = [&](std::size_t i) -> rc::task<> {
    rc::tcp_store store = co_await client_of(l, port);
    outcomes[i] = co_await rc::as_result(rc::store_based_barrier(store, group, ranks[i], world, limit));
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) all.spawn(one, i);
  co_await all.join();
  co_return outcomes;
}

}  // namespace

TEST_CASE("a store-based barrier lets all go once all are there, with the reference's keys", "[barrier]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const std::vector<int> all{0, 1, 2, 3, 4};
    const std::vector<rc::result<void>> outcomes = co_await meet(l, server.port(), "0", 5, all, 10s);
    for (auto const& o : outcomes) CHECK(o);
    {
      rc::tcp_store store = co_await client_of(l, server.port());
      const string count = co_await store.get("store_based_barrier_key:0", 1s);
      const string last = co_await store.get("store_based_barrier_key:0:last_worker", 1s);
      CHECK(count == "5");
      CHECK(last == "1");
    }
    co_await server.stop();
  });
}

TEST_CASE("a store-based barrier holds its short limit and counts who is there", "[barrier]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const rc::time_point begun = l.now();
    const std::vector<int> without_one{0, 2, 3};
    const std::vector<rc::result<void>> outcomes = co_await meet(l, server.port(), "g", 4, without_one, 200ms);
    CHECK(l.now() - begun >= 200ms);
    CHECK(l.now() - begun < 5s);
    for (auto const& o : outcomes) {
      const rc::failure f = failure_of(o);
      CHECK(f.code() == rc::errc::timed_out);
      CHECK(contains(f.message(), "world_size=4, num_workers_joined=3"));
      CHECK(contains(f.message(), "store_based_barrier_key:g"));
    }
    co_await server.stop();
  });
}

TEST_CASE("a name that is used twice fails at once instead of waiting for ever", "[barrier]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const std::vector<int> both{0, 1}, one{0};
    co_await meet(l, server.port(), "twice", 2, both, 10s);
    const std::vector<rc::result<void>> again = co_await meet(l, server.port(), "twice", 2, one, 60s);
    const rc::failure f = failure_of(again[0]);
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.message(), "counts 3 arrivals in a world of 2"));
    co_await server.stop();
  });
}

TEST_CASE("a rank outside of its world is an error before anything is sent", "[barrier]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const std::vector<std::pair<int, int>> nonsense{{2, 2}, {-1, 2}, {0, 0}, {0, -1}};
    for (std::pair<int, int> const& bad : nonsense) {
      const std::vector<int> rank{bad.first};
      const std::vector<rc::result<void>> outcomes = co_await meet(l, server.port(), "bad", bad.second, rank, 10s);
      CHECK(failure_of(outcomes[0]).code() == rc::errc::invalid);
    }
    {
      rc::tcp_store store = co_await client_of(l, server.port());
      const std::int64_t keys = co_await store.num_keys();
      CHECK(keys == 0);
    }
    co_await server.stop();
  });
}
