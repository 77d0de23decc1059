// What every store has in common (docs/design/stores.md): waits, limits, stops and queues.
#include "../support/halls.hpp"

using namespace net_test;

TEST_CASE("everything that makes a key exist wakes those that wait for it", "[stores]") {
  of_every_store([](rc::loop&, hall& data, rc::any_store& s) -> rc::task<> {
    auto other = co_await data.open();
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

TEST_CASE("a limit names operation, keys and itself, and leaves the store usable", "[stores]") {
  of_every_store([](rc::loop& l, hall&, rc::any_store& s) -> rc::task<> {
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

TEST_CASE("the store's own limit holds where none is given", "[stores]") {
  of_every_kind([](rc::loop&, hall& data) -> rc::task<> {
    const rc::any_store s = co_await data.open(40ms);
    const rc::failure f = failure_of(co_await rc::as_result(s.get("missing")));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.limit() == 40ms);
  });
}

TEST_CASE("a stop ends what waits at once, and nothing remains", "[stores]") {
  of_every_store([](rc::loop& l, hall& data, rc::any_store& s) -> rc::task<> {
    auto other = co_await data.open();
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

TEST_CASE("queues: each item goes to one, in order", "[stores]") {
  of_every_store([](rc::loop& l, hall& data, rc::any_store& s) -> rc::task<> {
    auto other = co_await data.open();
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
