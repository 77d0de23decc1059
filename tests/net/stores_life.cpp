// What every store has in common (docs/design/stores.md): clients, their clones and their end, and what is built on stores.
#include "../support/halls.hpp"

using namespace net_test;

TEST_CASE("close() ends what is pending and what comes later, for all copies", "[stores]") {
  of_every_store([](rc::loop& l, hall& data, rc::any_store& s) -> rc::task<> {
    auto leaving = co_await data.open();
    auto copy = leaving;
    CHECK(copy.identity() == leaving.identity());
    CHECK(s.identity() != leaving.identity());
    const rc::time_point earlier = leaving.home().now();
    CHECK(earlier <= l.now());
    co_await leaving.set("k", "v");
    outcome<string> gets;
    gets.start(copy.get("missing", 20s));
    co_await rc::sleep_for(5ms);
    CHECK(leaving.is_open());
    leaving.close();
    leaving.close();
    CHECK_FALSE(copy.is_open());
    co_await eventually([&] { return gets.r.has_value(); });
    const rc::failure pending = failure_of(*gets.r);
    CHECK(pending.code() == rc::errc::closed);
    CHECK(pending.operation() == "get");
    CHECK(pending.keys() == strings{"missing"});
    const rc::failure later = failure_of(co_await rc::as_result(copy.set("k", "w")));
    CHECK(later.code() == rc::errc::closed);
    CHECK(later.effect() == rc::effect::none);
    CHECK(s.is_open());
    CHECK_AWAIT(co_await s.get("k"), "v");
  });
}

TEST_CASE("a clone is another client of the same data", "[stores]") {
  of_every_store([](rc::loop&, hall&, rc::any_store& s) -> rc::task<> {
    co_await s.set("k", "v");
    auto other = co_await rc::detail::clone_of(s, 20s);
    CHECK(other.identity() != s.identity());
    CHECK_AWAIT(co_await other.get("k"), "v");
    outcome<string> gets;
    gets.start(s.get("later", 20s));
    co_await rc::sleep_for(1ms);
    co_await other.set("later", "w");
    co_await eventually([&] { return gets.r.has_value(); });
    CHECK(gets.r->value() == "w");
    other.close();
    CHECK_AWAIT(co_await s.get("k"), "v");
  });
}

TEST_CASE("who asks in a loop leaves timers and others their turn", "[stores]") {
  of_every_store([](rc::loop& l, hall&, rc::any_store& s) -> rc::task<> {
    rc::scope others(l);
    const auto later = [&s]() -> rc::task<> {
      co_await rc::sleep_for(20ms);
      co_await s.set("flag", "");
    };
    others.spawn(later);
    while (!co_await s.check("flag")) {}
    co_await others.join();
  });
}

TEST_CASE("barriers and collectives take any store", "[stores][barrier]") {
  of_every_store([](rc::loop& l, hall& data, rc::any_store& s) -> rc::task<> {
    if (!data.stops_one_call()) co_return;  // a barrier stops some of several
    constexpr int world = 4;
    std::vector<rc::any_store> stores;
    for (int r = 0; r < world; ++r) stores.push_back(co_await data.open());
    int passed = 0, gathered = 0;
    const auto member = [&](int rank) -> rc::task<> {
      auto const& store = stores[static_cast<std::size_t>(rank)];
      rc::barrier everyone{store, "all", rank, world};
      for (int round = 0; round < 3; ++round) {
        co_await everyone.arrive_and_wait(20s);
        ++passed;
      }
      co_await rc::store_based_barrier(store, "group", rank, world, 20s);
      const strings values = co_await rc::all_gather(store, "values", rank, world, std::to_string(rank), 20s);
      const string sent = co_await rc::broadcast(store, "root", rank, 2, rank == 2 ? "from two" : "", 20s);
      const std::int64_t given = co_await rc::assign_ranks(store, "ranks", "host" + std::to_string(9 - rank), world, 20s);
      gathered += values == strings{"0", "1", "2", "3"} && sent == "from two" && given == world - 1 - rank;
    };
    rc::scope members(l);
    for (int r = 0; r < world; ++r) members.spawn(member, r);
    co_await members.join();
    CHECK(passed == 3 * world);
    CHECK(gathered == world);

    std::vector<int> missing;
    const auto alone = [&](int rank) -> rc::task<> {
      rc::barrier some{stores[static_cast<std::size_t>(rank)], "some", rank, 4};
      try {
        co_await some.arrive_and_wait(50ms);
      } catch (rc::barrier_error const& e) {
        missing = e.missing();
      }
    };
    rc::scope few(l);
    few.spawn(alone, 0);
    few.spawn(alone, 2);
    co_await few.join();
    CHECK(missing == std::vector<int>{1, 3});
    const rc::result<strings> gather = co_await rc::as_result(rc::all_gather(s, "few", 1, 3, "v", 50ms));
    CHECK(failure_of(gather).detail() == "2 of 3 missing: 0, 2");
  });
}
