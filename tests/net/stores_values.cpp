// What every store has in common (docs/design/stores.md): what is stored, counted and listed, and what is refused.
#include "../support/halls.hpp"

using namespace net_test;

TEST_CASE("values: set, get, find, append, delete, check", "[stores]") {
  of_every_store([](rc::loop&, hall& data, rc::any_store& s) -> rc::task<> {
    auto other = co_await data.open();
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

TEST_CASE("numbers: add counts in decimal and leaves alone what is none", "[stores]") {
  of_every_store([](rc::loop&, hall& data, rc::any_store& s) -> rc::task<> {
    CHECK_AWAIT(co_await s.add("n", 5), 5);
    CHECK_AWAIT(co_await s.add("n", -7), -2);
    CHECK_AWAIT(co_await s.get("n"), "-2");
    CHECK_AWAIT(co_await s.add("n", 0), -2);
    co_await s.set("text", "no number");
    co_await s.set("most", "9223372036854775807");
    const std::vector<std::pair<string, string>> bad{{"text", "no number"}, {"most", "9223372036854775807"}};
    for (auto const& [key, value] : bad) {
      auto victim = co_await data.open();
      const rc::failure f = failure_of(co_await rc::as_result(victim.add(key, 1)));
      INFO(f.message());
      CHECK((f.code() == rc::errc::disconnected || f.code() == (key == "text" ? rc::errc::invalid : rc::errc::limit)));
      CHECK(f.operation() == "add");
      CHECK(f.keys() == strings{key});
      CHECK_AWAIT(co_await s.get(key), value);
    }
  });
}

TEST_CASE("compare_set stores over what was expected, or where nothing was", "[stores]") {
  of_every_store([](rc::loop&, hall&, rc::any_store& s) -> rc::task<> {
    CHECK_AWAIT(co_await s.compare_set("k", "x", "y"), "x");  // missing: what was expected
    CHECK_AWAIT(co_await s.check("k"), false);
    CHECK_AWAIT(co_await s.compare_set("k", "", "first"), "first");
    CHECK_AWAIT(co_await s.compare_set("k", "other", "second"), "first");
    CHECK_AWAIT(co_await s.compare_set("k", "first", "second"), "second");
    CHECK_AWAIT(co_await s.compare_set("k", "", "third"), "second");
    CHECK_AWAIT(co_await s.get("k"), "second");
  });
}

TEST_CASE("several keys at once, and what there is", "[stores]") {
  of_every_store([](rc::loop&, hall&, rc::any_store& s) -> rc::task<> {
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

TEST_CASE("what is too long is refused and changes nothing", "[stores]") {
  of_every_store([](rc::loop&, hall&, rc::any_store& s) -> rc::task<> {
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
