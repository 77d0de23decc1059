// What every store has in common (docs/design/stores.md), asked of each of them. A new store joins by a hall of its own in STORES.
#include "../support/net.hpp"

#include <algorithm>
#include <memory>

using namespace net_test;

namespace {

/// Where stores of one kind come from: open() gives one more client of the same data.
class tcp_hall {
 public:
  using store_type = rc::tcp_store;
  explicit tcp_hall(rc::loop& l) : loop_(l), server_(l) {}
  rc::task<rc::tcp_store> open(rc::deadline limit = 300s) { return client_of(loop_, server_.port(), rc::client_options{}.timeout(limit)); }
  rc::task<> close() { return server_.stop(); }

 private:
  rc::loop& loop_;
  local_server server_;
};

class hash_hall {
 public:
  using store_type = rc::hash_store;
  explicit hash_hall(rc::loop& l) : loop_(l) {}
  rc::task<rc::hash_store> open(rc::deadline limit = 300s) {
    if (!first_) first_.emplace(loop_, rc::hash_options{}.timeout(limit));
    co_return first_->clone();
  }
  rc::task<> close() {
    first_.reset();
    co_return;
  }

 private:
  rc::loop& loop_;
  std::optional<rc::hash_store> first_;
};

/// Every client is a member of a file of its own hall's, with the kernel's change notice or without.
template <bool Watch>
class file_hall {
 public:
  using store_type = rc::file_store;
  explicit file_hall(rc::loop& l) : loop_(l) {}
  rc::task<rc::file_store> open(rc::deadline limit = 300s) {
    return rc::file_store::open(loop_, here_.path + "/store", 20s, rc::file_options{}.timeout(limit).watch(Watch));
  }
  rc::task<> close() { co_return; }

 private:
  rc::loop& loop_;
  scratch here_;
};
using watched = file_hall<true>;
using polled = file_hall<false>;

template <class Hall>
class prefixed {
 public:
  using store_type = rc::prefix_store<typename Hall::store_type>;
  explicit prefixed(rc::loop& l) : below_(l) {}
  rc::task<store_type> open(rc::deadline limit = 300s) {
    typename Hall::store_type below = co_await below_.open();
    co_return store_type(std::move(below), "some/prefix", limit);
  }
  rc::task<> close() { return below_.close(); }

 private:
  Hall below_;
};

template <class Hall>
class erased {
 public:
  using store_type = rc::any_store;
  explicit erased(rc::loop& l) : below_(l) {}
  rc::task<rc::any_store> open(rc::deadline limit = 300s) {
    typename Hall::store_type below = co_await below_.open(limit);
    co_return rc::any_store(std::move(below));
  }
  rc::task<> close() { return below_.close(); }

 private:
  Hall below_;
};

#define STORES                                                                                                                   \
  tcp_hall, hash_hall, prefixed<tcp_hall>, prefixed<hash_hall>, erased<tcp_hall>, erased<hash_hall>, erased<prefixed<tcp_hall>>, \
      prefixed<erased<hash_hall>>, prefixed<prefixed<hash_hall>>, watched, polled, prefixed<watched>, erased<watched>

/// Runs `f(loop, hall, store)`.
template <class Hall, class F>
void with_hall(F f) {
  const auto body = [&f](rc::loop& l) -> rc::task<> {
    Hall hall(l);
    {
      typename Hall::store_type s = co_await hall.open();
      co_await f(l, hall, s);
    }
    co_await hall.close();
  };
  on_loop(body);
}

/// An operation that runs beside the test.
template <class T>
class outcome {
 public:
  template <class Op>
  void start(Op op) {
    rc::start(std::move(op), [this](rc::result<T> got) { r.emplace(std::move(got)); }, stop.token());
  }
  std::optional<rc::result<T>> r;
  rc::stop_source stop;
};

std::vector<string> sorted(std::vector<string> v) {
  std::sort(v.begin(), v.end());
  return v;
}
using strings = std::vector<string>;

static_assert(rc::store<rc::tcp_store> && rc::store<rc::hash_store> && rc::store<rc::file_store> && rc::store<rc::any_store>);
static_assert(rc::store<rc::prefix_store<rc::tcp_store>> && rc::store<rc::prefix_store<rc::prefix_store<rc::any_store>>>);

}  // namespace

TEMPLATE_TEST_CASE("values: set, get, find, append, delete, check", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop&, TestType& hall, auto& s) -> rc::task<> {
    auto other = co_await hall.open();
    co_await s.set("k", "v");
    CHECK_AWAIT(co_await other.get("k"), "v");
    co_await other.set("k", "w");
    CHECK_AWAIT(co_await s.find("k"), std::optional<string>("w"));
    CHECK_AWAIT(co_await s.find("missing"), std::nullopt);
    co_await s.set("empty", "");
    CHECK_AWAIT(co_await s.find("empty"), std::optional<string>(""));
    CHECK_AWAIT(co_await s.get("empty"), "");
    co_await s.append("a", "1");
    co_await s.append("a", "2");
    CHECK_AWAIT(co_await s.get("a"), "12");
    CHECK_AWAIT(co_await s.check({"k", "a", "empty"}), true);
    CHECK_AWAIT(co_await s.check({"k", "missing"}), false);
    CHECK_AWAIT(co_await s.check({}), true);
    CHECK_AWAIT(co_await s.delete_key("k"), true);
    CHECK_AWAIT(co_await s.delete_key("k"), false);
    CHECK_AWAIT(co_await s.check("k"), false);
    // Keys and values are opaque; long values come as they went.
    const string odd("\0/\xff\n", 4);
    string large(100'000, 'x');
    for (std::size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>(i);
    co_await s.set(odd, large);
    CHECK_AWAIT(co_await s.get(odd) == large, true);
    co_await s.set("", "no name");
    CHECK_AWAIT(co_await s.get(""), "no name");
    CHECK_AWAIT(co_await s.compare_set(odd, large, "small") == "small", true);
    CHECK_AWAIT(co_await s.compare_set(odd, "small", large) == large, true);
  });
}

TEMPLATE_TEST_CASE("numbers: add counts in decimal and leaves alone what is none", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop&, TestType& hall, auto& s) -> rc::task<> {
    CHECK_AWAIT(co_await s.add("n", 5), 5);
    CHECK_AWAIT(co_await s.add("n", -7), -2);
    CHECK_AWAIT(co_await s.get("n"), "-2");
    CHECK_AWAIT(co_await s.add("n", 0), -2);
    co_await s.set("text", "no number");
    co_await s.set("most", "9223372036854775807");
    const std::vector<std::pair<string, string>> bad{{"text", "no number"}, {"most", "9223372036854775807"}};
    for (auto const& [key, value] : bad) {
      auto victim = co_await hall.open();
      const rc::failure f = failure_of(co_await rc::as_result(victim.add(key, 1)));
      INFO(f.message());
      CHECK((f.code() == rc::errc::disconnected || f.code() == (key == "text" ? rc::errc::invalid : rc::errc::limit)));
      CHECK(f.operation() == "add");
      CHECK(f.keys() == strings{key});
      CHECK_AWAIT(co_await s.get(key), value);
    }
  });
}

TEMPLATE_TEST_CASE("compare_set stores over what was expected, or where nothing was", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop&, TestType&, auto& s) -> rc::task<> {
    CHECK_AWAIT(co_await s.compare_set("k", "x", "y"), "x");  // missing: what was expected
    CHECK_AWAIT(co_await s.check("k"), false);
    CHECK_AWAIT(co_await s.compare_set("k", "", "first"), "first");
    CHECK_AWAIT(co_await s.compare_set("k", "other", "second"), "first");
    CHECK_AWAIT(co_await s.compare_set("k", "first", "second"), "second");
    CHECK_AWAIT(co_await s.compare_set("k", "", "third"), "second");
    CHECK_AWAIT(co_await s.get("k"), "second");
  });
}

TEMPLATE_TEST_CASE("several keys at once, and what there is", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop&, TestType&, auto& s) -> rc::task<> {
    CHECK_AWAIT(co_await s.num_keys(), 0);
    const strings none = co_await s.list_keys();
    CHECK(none.empty());
    co_await s.multi_set({rc::kv("a", "1"), rc::kv("b/c", ""), rc::kv("", "3")});
    co_await s.multi_set({});
    const strings values = co_await s.multi_get({"", "a", "b/c", "a"});
    CHECK(values == strings{"3", "1", "", "1"});
    const strings nothing = co_await s.multi_get({});
    CHECK(nothing.empty());
    co_await s.queue_push("q", "no key");
    CHECK_AWAIT(co_await s.num_keys(), 3);
    CHECK_AWAIT(sorted(co_await s.list_keys()), strings{"", "a", "b/c"});
    CHECK_AWAIT(co_await s.delete_key("a"), true);
    CHECK_AWAIT(co_await s.num_keys(), 2);
    strings many;
    for (int i = 0; i < 1000; ++i) many.push_back("many/" + std::to_string(i));
    std::vector<rc::kv> pairs;
    for (string const& k : many) pairs.emplace_back(k, k);
    co_await s.multi_set(pairs);
    const strings all = co_await s.multi_get(many);
    CHECK((all == many));
    CHECK_AWAIT(co_await s.num_keys(), 1002);
  });
}

TEMPLATE_TEST_CASE("everything that makes a key exist wakes those that wait for it", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop&, TestType& hall, auto& s) -> rc::task<> {
    auto other = co_await hall.open();
    for (int how = 0; how < 6; ++how) {
      INFO(how);
      const string k = "k" + std::to_string(how);
      outcome<void> waits, waits_for_two;
      outcome<string> gets;
      outcome<strings> gets_two;
      waits.start(s.wait(k, 20s));
      waits_for_two.start(s.wait({"first", k}, 20s));
      co_await other.set("first", "1");
      co_await rc::sleep_for(5ms);
      CHECK_FALSE((waits.r || waits_for_two.r));
      if (how < 5) {
        gets.start(s.get(k, 20s));
        gets_two.start(s.multi_get({k, "first"}, 20s));
      }
      switch (how) {
        case 0: co_await other.set(k, "v"); break;
        case 1: static_cast<void>(co_await other.add(k, 1)); break;
        case 2: co_await other.append(k, "v"); break;
        case 3: co_await other.multi_set({rc::kv("else", ""), rc::kv(k, "v")}); break;
        case 4: static_cast<void>(co_await other.compare_set(k, "", "v")); break;
        case 5:
          // An item wakes one.
          co_await other.queue_push(k, "v");
          co_await other.queue_push(k, "v");
          break;
      }
      co_await eventually([&] { return waits.r && waits_for_two.r; });
      CHECK(waits.r->has_value());
      CHECK(waits_for_two.r->has_value());
      if (how < 5) {
        const string value = how == 1 ? "1" : "v";
        co_await eventually([&] { return gets.r && gets_two.r; });
        CHECK(gets.r->value() == value);
        CHECK(gets_two.r->value() == strings{value, "1"});
      }
      co_await other.wait({k, "first"}, 20s);  // there already
      CHECK_AWAIT(co_await other.delete_key("first"), true);
    }
    // "Existed at some moment", not "all exist now".
    outcome<void> seen;
    seen.start(s.wait({"x", "y"}, 20s));
    co_await rc::sleep_for(5ms);
    co_await other.set("x", "");
    CHECK_AWAIT(co_await other.delete_key("x"), true);
    co_await other.set("y", "");
    co_await eventually([&] { return seen.r.has_value(); });
    CHECK(seen.r->has_value());
    co_await s.wait({}, 20s);
  });
}

TEMPLATE_TEST_CASE("a limit names operation, keys and itself, and leaves the store usable", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop& l, TestType&, auto& s) -> rc::task<> {
    co_await s.set("there", "");
    const rc::time_point begun = l.now();
    const rc::failure waits = failure_of(co_await rc::as_result(s.wait({"a", "there", "b"}, 30ms)));
    CHECK(l.now() - begun >= 30ms);
    CHECK(l.now() - begun < 3s);
    CHECK(waits.code() == rc::errc::timed_out);
    CHECK(waits.operation() == "wait");
    CHECK(waits.keys() == strings{"a", "b"});
    CHECK(waits.limit() == 30ms);
    CHECK(waits.elapsed() >= 30ms);
    CHECK(waits.effect() == rc::effect::none);
    CHECK(contains(waits.message(), "wait of keys 'a', 'b'"));
    CHECK(contains(waits.message(), "(limit 30 ms)"));
    const rc::failure gets = failure_of(co_await rc::as_result(s.get("a", 20ms)));
    CHECK(gets.code() == rc::errc::timed_out);
    CHECK(gets.operation() == "get");
    CHECK(gets.keys() == strings{"a"});
    const rc::failure pops = failure_of(co_await rc::as_result(s.queue_pop("q", 20ms)));
    CHECK(pops.code() == rc::errc::timed_out);
    CHECK(pops.operation() == "queue_pop");
    CHECK(pops.effect() == rc::effect::none);
    const rc::failure several = failure_of(co_await rc::as_result(s.multi_get({"there", "a"}, 20ms)));
    CHECK(several.code() == rc::errc::timed_out);
    CHECK(several.operation() == "multi_get");
    bool thrown = false;
    try {
      co_await s.wait("a", rc::deadline(l.now() + 20ms));
    } catch (rc::error const& e) {
      thrown = e.code() == rc::errc::timed_out && e.info().keys() == strings{"a"};
    }
    CHECK(thrown);
    CHECK_AWAIT(co_await s.get("there"), "");
    CHECK_AWAIT(co_await s.num_keys(), 1);
  });
}

TEMPLATE_TEST_CASE("the store's own limit holds where none is given", "[stores]", STORES) {
  on_loop([](rc::loop& l) -> rc::task<> {
    TestType hall(l);
    {
      auto s = co_await hall.open(40ms);
      const rc::failure f = failure_of(co_await rc::as_result(s.get("missing")));
      CHECK(f.code() == rc::errc::timed_out);
      CHECK(f.limit() == 40ms);
    }
    co_await hall.close();
  });
}

TEMPLATE_TEST_CASE("a stop ends what waits at once, and nothing remains", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop& l, TestType& hall, auto& s) -> rc::task<> {
    auto other = co_await hall.open();
    outcome<void> waits;
    outcome<string> gets, pops;
    waits.start(s.wait({"a", "b"}, 20s));
    gets.start(s.get("a", 20s));
    pops.start(s.queue_pop("q", 20s));
    co_await rc::sleep_for(10ms);
    const rc::time_point begun = l.now();
    waits.stop.request_stop();
    gets.stop.request_stop();
    pops.stop.request_stop();
    co_await eventually([&] { return waits.r && gets.r && pops.r; });
    CHECK(l.now() - begun < 3s);
    CHECK(failure_of(*waits.r).code() == rc::errc::cancelled);
    CHECK(failure_of(*gets.r).code() == rc::errc::cancelled);
    const rc::failure f = failure_of(*pops.r);
    CHECK(f.code() == rc::errc::cancelled);
    CHECK(f.keys() == strings{"q"});
    CHECK(f.effect() == rc::effect::none);
    // An item that comes now is for who asks now.
    co_await other.queue_push("q", "item");
    CHECK_AWAIT(co_await s.queue_pop("q", 20s), "item");
    const rc::result<string> bounded = co_await rc::as_result(rc::with_deadline(s.get("never", rc::deadline::never()), 20ms));
    CHECK(failure_of(bounded).code() == rc::errc::timed_out);
    co_await s.set("a", "v");
    CHECK_AWAIT(co_await other.get("a"), "v");
  });
}

TEMPLATE_TEST_CASE("queues: each item goes to one, in order", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop& l, TestType& hall, auto& s) -> rc::task<> {
    auto other = co_await hall.open();
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::nullopt);
    CHECK_AWAIT(co_await s.queue_len("q"), 0);
    co_await s.queue_push("q", "1");
    co_await s.queue_push("q", "");
    co_await s.queue_push("q", string(50'000, 'z'));
    CHECK_AWAIT(co_await other.queue_len("q"), 3);
    CHECK_AWAIT(co_await s.check("q"), true);
    CHECK_AWAIT(co_await s.find("q"), std::nullopt);
    CHECK_AWAIT(co_await s.delete_key("q"), false);
    CHECK_AWAIT(co_await other.queue_pop("q"), "1");
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::optional<string>(""));
    const string large = co_await s.queue_pop("q");
    CHECK(large.size() == 50'000U);
    CHECK_AWAIT(co_await s.check("q"), false);

    strings got, all;
    rc::scope pops(l);
    const auto one = [&got](auto from) -> rc::task<> {
      string item = co_await from.queue_pop("work", 20s);
      got.push_back(std::move(item));
    };
    for (int i = 0; i < 20; ++i) pops.spawn(one, i % 2 != 0 ? s : other);
    for (int i = 0; i < 20; ++i) {
      all.push_back("item " + std::to_string(i));
      co_await other.queue_push("work", all.back());
    }
    co_await pops.join();
    CHECK(sorted(got) == sorted(all));
    CHECK_AWAIT(co_await s.queue_len("work"), 0);

    // A value under the same name is none of the queue's business.
    co_await s.set("both", "value");
    outcome<string> pop;
    pop.start(s.queue_pop("both", 20s));
    co_await rc::sleep_for(20ms);
    CHECK_FALSE(pop.r);
    co_await other.queue_push("both", "item");
    co_await eventually([&] { return pop.r.has_value(); });
    CHECK(pop.r->value() == "item");
    CHECK_AWAIT(co_await s.get("both"), "value");
  });
}

TEMPLATE_TEST_CASE("what is too long is refused and changes nothing", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop&, TestType&, auto& s) -> rc::task<> {
    const string long_key(8192, 'k'), long_value((std::size_t{8} << 20) + 1, 'v');
    const rc::failure key = failure_of(co_await rc::as_result(s.set(long_key, "v")));
    CHECK(key.code() == rc::errc::limit);
    CHECK(key.operation() == "set");
    CHECK(key.effect() == rc::effect::none);
    CHECK(contains(key.message(), "the key has"));
    CHECK(contains(key.message(), "the limit is 8191"));
    const rc::failure value = failure_of(co_await rc::as_result(s.append("k", long_value)));
    CHECK(value.code() == rc::errc::limit);
    CHECK(value.keys() == strings{"k"});
    CHECK(contains(value.message(), "the value has 8388609 bytes, the limit is 8388608"));
    const strings many(131073, "k");
    const rc::failure count = failure_of(co_await rc::as_result(s.check(many)));
    CHECK(count.code() == rc::errc::limit);
    CHECK(contains(count.message(), "131073 keys, the limit is 131072"));
    CHECK_AWAIT(co_await s.num_keys(), 0);
  });
}

TEMPLATE_TEST_CASE("close() ends what is pending and what comes later, for all copies", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop& l, TestType& hall, auto& s) -> rc::task<> {
    auto leaving = co_await hall.open();
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

TEMPLATE_TEST_CASE("a clone is another client of the same data", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop& l, TestType&, auto& s) -> rc::task<> {
    co_await s.set("k", "v");
    auto other = co_await rc::detail::clone_of(s, 20s);
    static_assert(std::same_as<decltype(other), typename TestType::store_type>);
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
    static_cast<void>(l);
  });
}

TEMPLATE_TEST_CASE("who asks in a loop leaves timers and others their turn", "[stores]", STORES) {
  with_hall<TestType>([](rc::loop& l, TestType&, auto& s) -> rc::task<> {
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

TEMPLATE_TEST_CASE("barriers and collectives take any store", "[stores][barrier]", STORES) {
  with_hall<TestType>([](rc::loop& l, TestType& hall, auto& s) -> rc::task<> {
    constexpr int world = 4;
    std::vector<typename TestType::store_type> stores;
    for (int r = 0; r < world; ++r) stores.push_back(co_await hall.open());
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
      rc::barrier some{s, "some", rank, 4};
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

// ---- what only one of them has ----

TEST_CASE("a prefix is a name space: nothing escaped, innermost leftmost, listed up to its '/'", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::hash_store base(l);
    rc::prefix_store a(base, "a");
    rc::prefix_store ab(base, "ab");
    rc::prefix_store nested(rc::prefix_store(base, "p2"), "p1");
    rc::prefix_store none(base, "");
    rc::prefix_store slash(base, "a/");
    co_await nested.set("k", "nested");
    CHECK_AWAIT(co_await base.get("p2/p1/k"), "nested");
    co_await none.set("k", "none");
    CHECK_AWAIT(co_await base.get("/k"), "none");
    co_await slash.set("k", "slash");
    CHECK_AWAIT(co_await base.get("a//k"), "slash");
    CHECK_AWAIT(co_await a.get("/k"), "slash");
    co_await a.set("k", "1");
    co_await a.set("b/c", "2");
    co_await ab.set("x", "3");
    co_await base.set("a", "no slash");
    CHECK_AWAIT(sorted(co_await a.list_keys()), strings{"/k", "b/c", "k"});
    CHECK_AWAIT(co_await a.num_keys(), 3);
    CHECK_AWAIT(sorted(co_await ab.list_keys()), strings{"x"});
    CHECK_AWAIT(sorted(co_await nested.list_keys()), strings{"k"});
    CHECK_AWAIT(co_await base.num_keys(), 7);
    CHECK(nested.prefix() == "p1");
    CHECK(nested.below().prefix() == "p2");
    const string name(300, 'n');  // longer than what is composed without the heap
    co_await a.set(name, "long");
    CHECK_AWAIT(co_await base.get("a/" + name), "long");
    CHECK_AWAIT(co_await a.check({name, "k"}), true);
  });
}

TEST_CASE("a prefix has a limit of its own, and its errors say where", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    {
      rc::tcp_store below = co_await client_of(l, server.port());
      rc::prefix_store quick(below, "a", 30ms);
      rc::prefix_store nested(rc::any_store(quick), "b", 60ms);
      const rc::failure f = failure_of(co_await rc::as_result(quick.wait({"x", "y"})));
      CHECK(f.limit() == 30ms);
      CHECK(f.keys() == strings{"x", "y"});
      CHECK(f.peer() == "prefix 'a' of 127.0.0.1:" + std::to_string(server.port()));
      const rc::failure deep = failure_of(co_await rc::as_result(nested.get("k")));
      CHECK(deep.limit() == 60ms);
      CHECK(deep.keys() == strings{"k"});
      CHECK(deep.peer() == "prefix 'b' of prefix 'a' of 127.0.0.1:" + std::to_string(server.port()));
      const rc::failure given = failure_of(co_await rc::as_result(quick.get("k", 10ms)));
      CHECK(given.limit() == 10ms);
      outcome<string> patient;  // the store below keeps its own
      patient.start(below.get("slow"));
      co_await rc::sleep_for(80ms);
      CHECK_FALSE(patient.r);
      co_await below.set("slow", "");
      co_await eventually([&] { return patient.r.has_value(); });
      CHECK(patient.r->has_value());
    }
    co_await server.stop();
  });
}

namespace {

/// The least that is a store: tasks instead of operations, no hints.
class users_store {
 public:
  explicit users_store(rc::hash_store s) : s_(std::move(s)) {}
  using limit = std::optional<rc::deadline>;
  rc::task<> set(string_view k, string_view v, limit d = {}) const { return run<void>(s_.set(k, v, d)); }
  rc::task<string> get(string_view k, limit d = {}) const { return run<string>(s_.get(k, d)); }
  rc::task<std::optional<string>> find(string_view k, limit d = {}) const { return run<std::optional<string>>(s_.find(k, d)); }
  rc::task<std::int64_t> add(string_view k, std::int64_t n, limit d = {}) const { return run<std::int64_t>(s_.add(k, n, d)); }
  rc::task<bool> check(rc::keys k, limit d = {}) const { return run<bool>(s_.check(k, d)); }
  rc::task<> wait(rc::keys k, limit d = {}) const { return run<void>(s_.wait(k, d)); }
  rc::task<bool> delete_key(string_view k, limit d = {}) const { return run<bool>(s_.delete_key(k, d)); }
  rc::task<std::int64_t> num_keys(limit d = {}) const { return run<std::int64_t>(s_.num_keys(d)); }
  rc::task<strings> list_keys(limit d = {}) const { return run<strings>(s_.list_keys(d)); }
  rc::task<string> compare_set(string_view k, string_view e, string_view v, limit d = {}) const {
    return run<string>(s_.compare_set(k, e, v, d));
  }
  rc::task<> append(string_view k, string_view v, limit d = {}) const { return run<void>(s_.append(k, v, d)); }
  rc::task<strings> multi_get(rc::keys k, limit d = {}) const { return run<strings>(s_.multi_get(k, d)); }
  rc::task<> multi_set(rc::pairs p, limit d = {}) const { return run<void>(s_.multi_set(p, d)); }
  rc::task<> queue_push(string_view k, string_view v, limit d = {}) const { return run<void>(s_.queue_push(k, v, d)); }
  rc::task<string> queue_pop(string_view k, limit d = {}) const { return run<string>(s_.queue_pop(k, d)); }
  rc::task<std::optional<string>> queue_pop_now(string_view k, limit d = {}) const {
    return run<std::optional<string>>(s_.queue_pop_now(k, d));
  }
  rc::task<std::int64_t> queue_len(string_view k, limit d = {}) const { return run<std::int64_t>(s_.queue_len(k, d)); }
  [[nodiscard]] rc::loop_ref home() const { return s_.home(); }
  [[nodiscard]] std::uint64_t identity() const { return s_.identity(); }
  [[nodiscard]] bool is_open() const { return s_.is_open(); }
  void close() const { s_.close(); }

 private:
  template <class T, class Op>
  static rc::task<T> run(Op op) {
    co_return co_await std::move(op);
  }
  rc::hash_store s_;
};
static_assert(rc::store<users_store>);

}  // namespace

TEST_CASE("any_store holds users' stores too, and tells what it holds", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::hash_store base(l);
    const rc::any_store s{users_store(base)};
    const rc::any_store plain = base;
    CHECK(s.get_if<users_store>() != nullptr);
    CHECK(s.get_if<rc::hash_store>() == nullptr);
    CHECK(plain.get_if<rc::hash_store>() != nullptr);
    CHECK_FALSE(s.server_is_rollcall());
    const rc::failure no_clone = failure_of(co_await rc::as_result(s.clone(1s)));
    CHECK(no_clone.code() == rc::errc::unsupported);
    CHECK(plain.server_is_rollcall());
    const rc::prefix_store under(s, "p");
    co_await under.set("k", "v");
    CHECK_AWAIT(co_await base.get("p/k"), "v");
    CHECK_AWAIT(co_await s.fetch_existing(string_view("p/k"), 1s), "v");
    CHECK_AWAIT(co_await s.fetch_existing(string_view("missing"), 1s), "");
    const rc::failure f = failure_of(co_await rc::as_result(under.get("missing", 20ms)));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.keys() == strings{"missing"});
    outcome<string> stopped;
    stopped.start(under.get("missing", 20s));
    co_await rc::sleep_for(5ms);
    stopped.stop.request_stop();
    co_await eventually([&] { return stopped.r.has_value(); });
    CHECK(failure_of(*stopped.r).code() == rc::errc::cancelled);
    rc::barrier alone{users_store(base), "alone", 0, 1};
    co_await alone.arrive_and_wait(20s);
  });
}

namespace {

template <class Store>
rc::task<std::uint64_t> allocations_of(Store s) {
  const string value(40, 'v');
  std::uint64_t before = 0;
  for (int i = 0; i < 300; ++i) {
    if (i == 100) before = counted_allocations();
    co_await s.set("k", value);
    static_cast<void>(co_await s.add("n", 1));
    static_cast<void>(co_await s.check({"k", "n"}));
    co_await s.wait("k");
  }
  co_return counted_allocations() - before;
}

}  // namespace

TEST_CASE("any_store adds no allocation to the operations of our stores", "[stores]") {
  using prefixed_tcp = rc::prefix_store<rc::tcp_store>;
  using text = rc::operation<string>;
  static_assert(rc::any_operation<string>::fits<text> && rc::any_operation<string>::fits<rc::hash_operation<string>>);
  static_assert(rc::any_operation<string>::fits<decltype(std::declval<prefixed_tcp>().get(""))>);
  static_assert(rc::any_operation<string>::fits<decltype(std::declval<rc::prefix_store<prefixed_tcp>>().get(""))>);
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    {
      rc::tcp_store tcp = co_await client_of(l, server.port());
      const rc::hash_store hash(l);
      CHECK_AWAIT(co_await allocations_of(rc::any_store(tcp)), 0U);
      CHECK_AWAIT(co_await allocations_of(hash), 0U);
      CHECK_AWAIT(co_await allocations_of(rc::any_store(hash)), 0U);
      CHECK_AWAIT(co_await allocations_of(tcp), 0U);
    }
    co_await server.stop();
  });
}

TEST_CASE("a hash_store holds the limits of the server's engine", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::engine::store_options most;
    most.stored_bytes(2000).appended_bytes(600).awaited_keys(3);
    most.request_limits(rc::wire::limits().key_bytes(9).value_bytes(500).key_count(4));
    rc::hash_store s(l, rc::hash_options{}.store(most));
    const rc::failure key = failure_of(co_await rc::as_result(s.set("123456789", "")));
    CHECK(contains(key.message(), "the key has 9 bytes, the limit is 8"));
    const rc::failure value = failure_of(co_await rc::as_result(s.set("k", string(501, 'v'))));
    CHECK(value.code() == rc::errc::limit);
    const rc::failure many = failure_of(co_await rc::as_result(s.check({"1", "2", "3", "4", "5"})));
    CHECK(contains(many.message(), "5 keys, the limit is 4"));
    co_await s.set("k", string(400, 'v'));
    const rc::failure appended = failure_of(co_await rc::as_result(s.append("k", string(300, 'w'))));
    CHECK(appended.code() == rc::errc::limit);
    CHECK_AWAIT((co_await s.get("k")).size(), 400U);
    co_await s.set("l", string(500, 'v'));
    co_await s.set("m", string(500, 'v'));
    const rc::failure full = failure_of(co_await rc::as_result(s.queue_push("q", string(500, 'v'))));
    CHECK(full.code() == rc::errc::limit);
    CHECK(contains(full.message(), "queue_push of key 'q'"));
    CHECK(contains(full.message(), "the store is full"));
    CHECK_AWAIT(co_await s.queue_len("q"), 0);
    const rc::failure waits = failure_of(co_await rc::as_result(s.wait({"1", "2", "3", "4"}, 20s)));
    CHECK(waits.code() == rc::errc::limit);
    CHECK(s.stats().waits == 0);
    CHECK(s.stats().keys == 3);
  });
}

TEST_CASE("an item that comes for a coroutine which is destroyed is not lost", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::hash_store s(l);
    const auto pop = [](rc::hash_operation<string> op) -> rc::detail::driver { static_cast<void>(co_await std::move(op)); };
    rc::detail::operation_group pops;
    pops.start(pop(s.queue_pop("q", 20s)));
    CHECK(s.stats().waits == 1);
    // The item comes, and the frame that would take it is destroyed before its turn.
    rc::hash_operation<void> push = s.queue_push("q", "item");
    CHECK(push.suspend(std::noop_coroutine(), rc::environment(&l.core(), rc::stop_token())));
    CHECK_AWAIT(co_await s.queue_len("q"), 0);
    pops.start(pop(s.queue_pop("q", 20s)));
    CHECK(s.stats().waits == 1);
    rc::hash_operation<void> more = s.queue_push("q", "more");
    CHECK(more.suspend(std::noop_coroutine(), rc::environment(&l.core(), rc::stop_token())));
    pops.clear();
    CHECK(s.stats().waits == 0);
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::optional<string>("more"));
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::nullopt);
  });
}

TEST_CASE("a wait in process keeps the loop for what other threads post", "[stores]") {
  const watchdog dog("a wait in process keeps the loop");
  rc::loop l;
  {
    rc::hash_store s(l);
    std::thread helper([door = l.post_handle(), &s] {
      std::this_thread::sleep_for(30ms);
      door.post([&s] { rc::start(s.set("k", "posted"), [](rc::result<void>) {}); });
    });
    CHECK(rc::sync_wait(l, s.get("k", rc::deadline::never())) == "posted");
    helper.join();
  }
  expect_nothing_left(l);
}
