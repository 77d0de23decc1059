#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support.hpp"

using namespace unit;

namespace {

struct world {
  engine::store store;
  peer a{store}, b{store}, c{store};
  explicit world(engine::store_options const& o = {}) : store(o) {}
};

std::string numbers(std::initializer_list<std::int64_t> list) {
  std::string s;
  for (const std::int64_t n : list) s += i64(n);
  return s;
}

std::set<std::string> listed(std::string_view reply) {
  const auto n = wire::load<std::uint64_t>(reply.data());
  std::set<std::string> out;
  for (wire::field_cursor f(reply.substr(8)); !f.done();) out.emplace(f.next());
  CHECK(out.size() == n);
  return out;
}

}  // namespace

TEST_CASE("SET stores and overwrites, GET of a missing key answers an empty value") {
  world w;
  CHECK(w.a.get("k") == bytes(""));
  CHECK(w.a.set("k", "v") == nothing);
  CHECK(w.b.get("k") == bytes("v"));
  w.b.set("k", "a longer value than before");
  CHECK(w.a.get("k") == bytes("a longer value than before"));
  w.b.set("k", "");
  CHECK(w.a.get("k") == bytes(""));
  CHECK(w.a.num_keys() == i64(1));
}

TEST_CASE("MULTI_GET answers in order, a missing key with an empty value") {
  world w;
  w.a.set("x", "1");
  w.a.set("y", std::string(20000, 'y'));
  CHECK(w.a.multi_get({"x", "none", "y", "x"}) == bytes("1") + bytes("") + bytes(std::string(20000, 'y')) + bytes("1"));
  CHECK(w.a.multi_get(keys()) == nothing);
}

TEST_CASE("COMPARE_SET follows the table of four rows") {
  world w;
  CHECK(w.a.compare_set("k", "", "new") == bytes("new"));
  CHECK(w.a.compare_set("absent", "x", "new") == bytes("x"));
  CHECK(w.a.check({"absent"}) == not_ready);
  CHECK(w.a.compare_set("k", "new", "newer") == bytes("newer"));
  CHECK(w.a.compare_set("k", "wrong", "no") == bytes("newer"));
  CHECK(w.a.compare_set("k", "", "no") == bytes("newer"));
  CHECK(w.a.compare_set("k", "newer", "") == bytes(""));
  CHECK(w.a.compare_set("k", "", "again") == bytes("again"));
}

TEST_CASE("COMPARE_SET wakes only when it has stored") {
  world w;
  CHECK(w.a.wait({"k"}) == nothing);
  w.b.compare_set("k", "x", "y");
  CHECK(w.a.take() == nothing);
  w.b.compare_set("k", "", "y");
  CHECK(w.a.take() == stop);
  w.b.barrier("count", 9);
  w.a.barrier("count", 9);
  w.c.compare_set("count", "wrong", "x");
  CHECK(w.a.take() == nothing);
  w.c.compare_set("count", "2", "2");
  CHECK(w.a.take() == stop);
}

TEST_CASE("ADD counts, keeps plain decimal text, and creates the key") {
  world w;
  CHECK(w.a.add("n", 0) == i64(0));
  CHECK(w.a.get("n") == bytes("0"));
  CHECK(w.a.add("n", 5) == i64(5));
  CHECK(w.a.add("n", -7) == i64(-2));
  CHECK(w.b.get("n") == bytes("-2"));
  CHECK(w.a.add("low", INT64_MIN) == i64(INT64_MIN));
  CHECK(w.a.get("low") == bytes("-9223372036854775808"));
  CHECK(w.a.add("low", 1) == i64(INT64_MIN + 1));
  CHECK(w.a.add("high", INT64_MAX) == i64(INT64_MAX));
}

TEST_CASE("ADD reads a number as strtoll does") {
  world w;
  const auto plus_one = [&](std::string_view stored) {
    w.a.set("n", stored);
    return w.a.add("n", 1);
  };
  CHECK(plus_one("12abc") == i64(13));
  CHECK(plus_one("   +41") == i64(42));
  CHECK(plus_one(" \t\n\v\f\r-5 6") == i64(-4));
  CHECK(plus_one("0012") == i64(13));
  CHECK(plus_one("0x10") == i64(1));
  CHECK(plus_one(std::string_view("7\0x", 3)) == i64(8));
  CHECK(plus_one("-9223372036854775808") == i64(INT64_MIN + 1));
  CHECK(plus_one("000000000000000000000000000000000001") == i64(2));
  CHECK(w.a.get("n") == bytes("2"));
}

TEST_CASE("ADD on what is no number closes that connection, leaves the value and touches nobody else") {
  for (std::string_view bad : {"", "abc", " ", "+", "-", "+-1", "- 1", "--1"}) {
    world w;
    w.b.set("n", bad);
    CHECK(w.a.add("n", 1) == nothing);
    CHECK(w.a.closed);
    CHECK(w.a.why == apply_status::not_a_number);
    CHECK(w.b.get("n") == bytes(bad));
    CHECK(w.store.stats().clients == 2);
  }
}

TEST_CASE("ADD past 64 bits closes that connection and leaves the value") {
  for (const auto& [stored, delta] : std::vector<std::pair<std::string, std::int64_t>>{{"9223372036854775807", 1},
                                                                                      {"-9223372036854775808", -1},
                                                                                      {"9223372036854775808", 0},
                                                                                      {"-9223372036854775809", 0},
                                                                                      {"18446744073709551616", 0},
                                                                                      {"99999999999999999999999999", 0}}) {
    world w;
    w.b.set("n", stored);
    CHECK(w.a.add("n", delta) == nothing);
    CHECK(w.a.why == apply_status::number_overflow);
    CHECK(w.b.get("n") == bytes(stored));
  }
}

TEST_CASE("APPEND concatenates or creates, up to its limit") {
  world w(engine::store_options().appended_bytes(10));
  w.a.append("k", "one");
  w.a.append("k", "two");
  CHECK(w.a.get("k") == bytes("onetwo"));
  w.a.append("k", "four");
  CHECK(w.a.get("k") == bytes("onetwofour"));
  w.a.append("k", "!");
  CHECK(w.a.why == apply_status::value_too_long);
  CHECK(w.b.get("k") == bytes("onetwofour"));
}

TEST_CASE("CHECK is READY when every key exists; no keys and the reserved one always do") {
  world w;
  w.a.set("a", "");
  CHECK(w.a.check({"a"}) == ready);
  CHECK(w.a.check({"a", "b"}) == not_ready);
  CHECK(w.a.check(keys()) == ready);
  w.a.push("q", "item");
  CHECK(w.a.check({"q", "a"}) == ready);
  w.a.pop("q");
  CHECK(w.a.check({"q", "a"}) == not_ready);
}

TEST_CASE("DELETE_KEY tells whether it existed, and leaves queues") {
  world w;
  w.a.set("k", "v");
  w.a.push("k", "item");
  CHECK(w.a.delete_key("k") == i64(1));
  CHECK(w.a.delete_key("k") == i64(0));
  CHECK(w.a.num_keys() == i64(0));
  CHECK(w.a.check({"k"}) == ready);
  CHECK(w.a.len("k") == i64(1));
  CHECK(w.a.pop("k") == i64(1) + bytes("item"));
  CHECK(w.store.entries() == 0);
}

TEST_CASE("GETNUMKEYS and LIST_KEYS see keys with a value, in wire form, and nothing else") {
  world w;
  CHECK(listed(w.a.list_keys()).empty());
  w.a.set("a", "1");
  w.a.add("n", 1);
  w.a.barrier("b", 1);
  w.a.push("q", "1");
  w.b.wait({"missing"});
  std::string init;
  wire::encode_add(init, "", "init/", 1);
  w.a.feed(init);
  CHECK(w.a.take() == stop.substr(1) + i64(1));
  CHECK(w.a.num_keys() == i64(4));
  CHECK(listed(w.a.list_keys()) == std::set<std::string>{"/a", "/n", "/b", "init/"});
}

TEST_CASE("a thousand keys are all found, listed and deleted again") {
  world w;
  for (int i = 0; i < 1000; ++i) w.a.set("key/" + std::to_string(i), std::to_string(i));
  CHECK(w.a.num_keys() == i64(1000));
  CHECK(listed(w.a.list_keys()).size() == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(w.a.get("key/" + std::to_string(i)) == bytes(std::to_string(i)));
  for (int i = 0; i < 1000; i += 2) CHECK(w.a.delete_key("key/" + std::to_string(i)) == i64(1));
  for (int i = 0; i < 1000; ++i) CHECK(w.a.check({"key/" + std::to_string(i)}) == (i % 2 == 0 ? not_ready : ready));
  for (int i = 1; i < 1000; i += 2) w.a.delete_key("key/" + std::to_string(i));
  CHECK(w.store.entries() == 0);
  CHECK(w.store.stats().stored_bytes == 0);
}

TEST_CASE("keys of every length are told apart") {
  world w;
  std::string k;
  for (int i = 0; i < 70; ++i, k += 'x') w.a.set(k, std::to_string(k.size()));
  k.clear();
  for (int i = 0; i < 70; ++i, k += 'x') CHECK(w.b.get(k) == bytes(std::to_string(k.size())));
  CHECK(w.a.num_keys() == i64(70));
}

TEST_CASE("the table grows and shrinks by single buckets and keeps chains short") {
  engine::table t(42);
  std::vector<engine::entry*> all;
  for (int i = 0; i < 5000; ++i) {
    const std::string k = "k" + std::to_string(i);
    all.push_back(&t.insert(k, t.hash(k)));
    CHECK(t.buckets() <= std::max<std::size_t>(t.size() + 1, 8));
    CHECK(t.buckets() * 2 >= t.size());
  }
  std::size_t seen = 0;
  t.for_each([&seen](engine::entry const&) { ++seen; });
  CHECK(seen == all.size());
  for (int i = 0; i < 5000; ++i) {
    const std::string k = "k" + std::to_string(i);
    CHECK(t.find(k, t.hash(k)) == all[static_cast<std::size_t>(i)]);
    t.erase(*all[static_cast<std::size_t>(i)]);
    CHECK(t.find(k, t.hash(k)) == nullptr);
  }
  CHECK(t.size() == 0);
  CHECK(t.buckets() <= 16);
}

TEST_CASE("the seed decides where keys go") {
  const engine::key_hash one(1);
  const engine::key_hash two(2);
  std::set<std::uint64_t> hashes;
  for (int i = 0; i < 1000; ++i) {
    const std::string k = "rank/" + std::to_string(i);
    CHECK(one(k) != two(k));
    hashes.insert(one(k) & 0xffff);
  }
  CHECK(hashes.size() > 980);
}

TEST_CASE("WAIT for keys that exist is answered at once, WAIT for none as well") {
  world w;
  w.a.set("k", "v");
  CHECK(w.b.wait({"k", "k"}) == stop);
  CHECK(w.b.wait(keys()) == stop);
  w.a.push("q", "item");
  CHECK(w.b.wait({"k", "q"}) == stop);
}

TEST_CASE("SET, ADD, APPEND, MULTI_SET and COMPARE_SET wake those who wait") {
  world w;
  const auto waits = [&](std::string_view k) { CHECK(w.a.wait({k}) == nothing); };
  waits("1");
  w.b.set("1", "");
  CHECK(w.a.take() == stop);
  waits("2");
  w.b.add("2", 1);
  CHECK(w.a.take() == stop);
  waits("3");
  w.b.append("3", "");
  CHECK(w.a.take() == stop);
  waits("4");
  w.b.multi_set({{"x", "1"}, {"4", "2"}});
  CHECK(w.a.take() == stop);
  waits("5");
  w.b.compare_set("5", "", "");
  CHECK(w.a.take() == stop);
}

TEST_CASE("a WAIT for several keys ends with the last one, and a key counts although it is deleted again") {
  world w;
  CHECK(w.a.wait({"e1", "e2"}) == nothing);
  w.b.set("e1", "");
  w.b.delete_key("e1");
  CHECK(w.a.take() == nothing);
  w.b.set("e2", "");
  CHECK(w.a.take() == stop);
}

TEST_CASE("deleting a key that is waited for wakes nobody") {
  world w;
  CHECK(w.a.wait({"k"}) == nothing);
  CHECK(w.b.delete_key("k") == i64(0));
  CHECK(w.a.take() == nothing);
}

TEST_CASE("a key that is listed twice in a WAIT ends it with one SET, and in a queue takes one push") {
  world w;
  CHECK(w.a.wait({"k", "k"}) == nothing);
  w.b.set("k", "");
  CHECK(w.a.take() == stop);
  CHECK(w.a.wait({"q", "q"}) == nothing);
  w.b.push("q", "item");
  CHECK(w.a.take() == stop);
}

TEST_CASE("every WAIT of a connection is answered, in the order they become true") {
  world w;
  w.a.wait({"one"});
  w.a.wait({"two"});
  w.a.wait({"one", "two"});
  CHECK(w.store.stats().waits == 3);
  w.b.set("two", "");
  CHECK(w.a.take() == stop);
  w.b.set("one", "");
  CHECK(w.a.take() == stop + stop);
  CHECK(w.store.stats().waits == 0);
}

TEST_CASE("wake-ups of the connection itself come before the reply of the request that caused them") {
  world w;
  w.a.wait({"n"});
  CHECK(w.a.add("n", 3) == stop + i64(3));
  w.a.wait({"m"});
  CHECK(w.a.compare_set("m", "", "x") == stop + bytes("x"));
  w.a.wait({"own"});
  CHECK(w.a.set("own", "") == stop);
}

TEST_CASE("a wake-up that is due goes out before the reply of the next request") {
  world w;
  w.a.wait({"k"});
  w.b.set("k", "v");
  CHECK(w.a.client.due() == 1);
  CHECK(&w.store.woken().front() == &w.a.client);
  CHECK(w.a.get("k") == stop + bytes("v"));
  CHECK(w.store.woken().empty());
  CHECK(w.a.take() == nothing);
}

TEST_CASE("woken connections are listed in order, each once, with the bytes they are owed") {
  world w;
  w.a.wait({"k"});
  w.b.wait({"k"});
  w.a.wait({"k"});
  w.c.set("k", "");
  CHECK(&w.store.woken().front() == &w.a.client);
  CHECK(w.store.take_due(w.a.client) == 2);
  CHECK(&w.store.woken().front() == &w.b.client);
  CHECK(w.store.take_due(w.b.client) == 1);
  CHECK(w.store.woken().empty());
  CHECK(w.store.take_due(w.b.client) == 0);
}

TEST_CASE("CANCEL_WAIT ends all waits of its connection with one byte, and answers without one too") {
  world w;
  CHECK(w.a.cancel() == canceled);
  w.a.wait({"x", "y"});
  w.a.wait({"z"});
  w.a.barrier("b", 2);
  w.b.wait({"x"});
  CHECK(w.a.cancel() == canceled);
  CHECK(w.store.stats().waits == 1);
  w.c.multi_set({{"x", ""}, {"y", ""}, {"z", ""}});
  CHECK(w.a.take() == nothing);
  CHECK(w.b.take() == stop);
}

TEST_CASE("CANCEL_WAIT after the wake-up gives 00 01") {
  world w;
  w.a.wait({"k"});
  w.b.set("k", "");
  CHECK(w.a.cancel() == stop + canceled);
}

TEST_CASE("a connection that leaves takes its waits with it, and what was due to it") {
  world w;
  w.a.wait({"x", "y"});
  w.a.wait({"k"});
  w.b.set("k", "");
  w.a.close();
  CHECK(w.store.woken().empty());
  CHECK(w.store.stats().waits == 0);
  CHECK(w.store.entries() == 1);
  w.store.disconnect(w.a.client);
  CHECK(w.store.stats().clients == 2);
}

TEST_CASE("an entry that is only waited for is not a key, and goes when nobody waits any more") {
  world w;
  w.a.wait({"k"});
  CHECK(w.b.num_keys() == i64(0));
  CHECK(w.b.check({"k"}) == not_ready);
  CHECK(w.b.get("k") == bytes(""));
  CHECK(w.store.entries() == 1);
  w.a.cancel();
  CHECK(w.store.entries() == 0);
  CHECK(w.store.stats().stored_bytes == 0);
}

TEST_CASE("MULTI_SET happens wholly or not at all") {
  const std::size_t room = 3 * (engine::store::key_cost + 2 + 10);
  world w(engine::store_options().stored_bytes(room));
  w.a.wait({"2"});
  w.b.multi_set({{"1", "0123456789"}, {"2", "0123456789"}, {"3", "0123456789x"}});
  CHECK(w.b.why == apply_status::store_full);
  CHECK(w.a.num_keys() == i64(0));
  CHECK(w.a.take() == nothing);
  w.c.multi_set({{"1", "0123456789"}, {"2", "0123456789"}, {"3", "0123456789"}});
  CHECK_FALSE(w.c.closed);
  CHECK(w.a.take() == stop);
  CHECK(w.store.stats().stored_bytes == room);
}

TEST_CASE("MULTI_SET sets in order, so that the last of two values of one key stays") {
  world w;
  w.a.multi_set({{"k", "first"}, {"k", "second"}});
  CHECK(w.a.get("k") == bytes("second"));
  CHECK(w.a.num_keys() == i64(1));
}

TEST_CASE("MULTI_SET acts only once it has arrived") {
  world w;
  std::string b;
  wire::encode_multi_set(b, "/", std::vector<std::pair<std::string, std::string>>{{"a", "1"}, {"b", "2"}});
  w.a.feed(std::string_view(b).substr(0, b.size() - 1));
  CHECK(w.b.num_keys() == i64(0));
  w.a.feed(std::string_view(b).substr(b.size() - 1));
  CHECK(w.b.num_keys() == i64(2));
}

TEST_CASE("BARRIER wakes all when the last one comes, and counts in plain text") {
  world w;
  CHECK(w.a.barrier("b", 3) == nothing);
  CHECK(w.b.barrier("b", 3) == nothing);
  CHECK(w.a.get("b") == bytes("2"));
  CHECK(w.c.barrier("b", 3) == stop);
  CHECK(w.a.take() == stop);
  CHECK(w.b.take() == stop);
  CHECK(w.a.barrier("b", 3) == stop);
  CHECK(w.a.get("b") == bytes("4"));
}

TEST_CASE("BARRIER for one or less is complete at once") {
  world w;
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
    CHECK(w.a.barrier("b" + std::to_string(n), n) == stop);
    CHECK(w.a.get("b" + std::to_string(n)) == bytes("1"));
  }
}

TEST_CASE("an arrival at a BARRIER stays counted after CANCEL_WAIT") {
  world w;
  w.a.barrier("b", 2);
  CHECK(w.a.cancel() == canceled);
  CHECK(w.a.barrier("b", 2) == stop);
}

TEST_CASE("BARRIER on what is no number closes, past 64 bits too") {
  world w;
  w.c.set("b", "abc");
  w.a.barrier("b", 2);
  CHECK(w.a.why == apply_status::not_a_number);
  w.c.set("b", "9223372036854775807");
  w.b.barrier("b", 2);
  CHECK(w.b.why == apply_status::number_overflow);
}

TEST_CASE("a WAIT for a barrier's key from before the first arrival ends when it is complete, a later one at once") {
  world w;
  CHECK(w.a.wait({"b"}) == nothing);
  w.b.barrier("b", 2);
  CHECK(w.a.take() == nothing);
  CHECK(w.c.wait({"b"}) == stop);
  w.c.barrier("b", 2);
  CHECK(w.a.take() == stop);
  CHECK(w.b.take() == stop);
}

TEST_CASE("queues are first in, first out; POP tells the length before, LEN the length now") {
  world w;
  w.a.push("q", "1");
  w.a.push("q", "");
  w.a.push("q", std::string(20000, '3'));
  CHECK(w.b.len("q") == i64(3));
  CHECK(w.b.pop("q") == i64(3) + bytes("1"));
  CHECK(w.b.pop("q") == i64(2) + bytes(""));
  CHECK(w.b.pop("q") == i64(1) + bytes(std::string(20000, '3')));
  CHECK(w.b.pop("q") == i64(0));
  CHECK(w.b.len("q") == i64(0));
  CHECK(w.b.num_keys() == i64(0));
}

TEST_CASE("QUEUE_POP of an unknown key creates nothing") {
  world w;
  CHECK(w.a.pop("q") == i64(0));
  CHECK(w.a.len("q") == i64(0));
  CHECK(w.store.entries() == 0);
}

TEST_CASE("a key and a queue of one name are independent, but both make WAIT and CHECK true") {
  world w;
  w.a.set("x", "value");
  w.a.push("x", "item");
  CHECK(w.a.get("x") == bytes("value"));
  CHECK(w.a.pop("x") == i64(1) + bytes("item"));
  CHECK(w.a.check({"x"}) == ready);
  w.b.wait({"y"});
  w.c.wait({"y"});
  w.a.set("y", "");
  CHECK(w.b.take() == stop);
  CHECK(w.c.take() == stop);
}

TEST_CASE("a push wakes one connection, the first in line") {
  world w;
  w.a.wait({"q"});
  w.b.wait({"q"});
  w.c.push("q", "1");
  CHECK(w.a.take() == stop);
  CHECK(w.b.take() == nothing);
  w.c.push("q", "2");
  CHECK(w.b.take() == stop);
  CHECK(w.b.pop("q") == i64(2) + bytes("1"));
  CHECK(w.a.pop("q") == i64(1) + bytes("2"));
}

TEST_CASE("a push goes on to the next in line past a WAIT that it does not end") {
  world w;
  w.a.wait({"q", "other"});
  w.b.wait({"q"});
  w.c.push("q", "1");
  CHECK(w.a.take() == nothing);
  CHECK(w.b.take() == stop);
  w.c.set("other", "");
  CHECK(w.a.take() == stop);
}

TEST_CASE("WAIT counts only what is missing: a queue that has an item needs no further push") {
  world w;
  w.a.push("q", "1");
  CHECK(w.b.wait({"q", "key"}) == nothing);
  w.a.set("key", "");
  CHECK(w.b.take() == stop);
}

TEST_CASE("no entry is stale: a push does not end a WAIT for something else") {
  world w;
  w.a.wait({"q"});
  w.b.push("q", "1");
  CHECK(w.a.take() == stop);
  CHECK(w.a.pop("q") == i64(1) + bytes("1"));
  CHECK(w.a.wait({"key"}) == nothing);
  w.b.push("q", "2");
  CHECK(w.a.take() == nothing);
}

TEST_CASE("a woken connection that leaves passes the wake-up on") {
  world w;
  w.a.wait({"q"});
  w.b.wait({"q"});
  w.c.push("q", "1");
  CHECK(w.a.take() == stop);
  w.a.close();
  CHECK(w.b.take() == stop);
  CHECK(w.b.pop("q") == i64(1) + bytes("1"));
}

TEST_CASE("a woken connection that asks for anything else passes the wake-up on") {
  for (const int what : {0, 1, 2, 3, 4}) {
    CAPTURE(what);
    world w;
    w.a.wait({"q"});
    w.b.wait({"q"});
    w.c.push("q", "1");
    CHECK(w.a.take() == stop);
    if (what == 0) CHECK(w.a.cancel() == canceled);
    if (what == 1) CHECK(w.a.pop("another") == i64(0));
    if (what == 2) CHECK(w.a.wait({"q"}) == stop);
    if (what == 3) CHECK(w.a.ping(5) == std::string("\5\0\0\0", 4));
    if (what == 4) w.a.push("q", "2");
    CHECK(w.b.take() == stop);
    CHECK(w.b.pop("q") == i64(what == 4 ? 2 : 1) + bytes("1"));
  }
}

TEST_CASE("a woken connection that takes the item wakes nobody") {
  world w;
  w.a.wait({"q"});
  w.b.wait({"q"});
  w.c.push("q", "1");
  CHECK(w.a.take() == stop);
  CHECK(w.a.pop("q") == i64(1) + bytes("1"));
  CHECK(w.b.take() == nothing);
  w.a.ping(1);
  CHECK(w.b.take() == nothing);
}

TEST_CASE("an item that somebody else took is not offered again") {
  world w;
  w.a.wait({"q"});
  w.b.wait({"q"});
  w.c.push("q", "1");
  CHECK(w.c.pop("q") == i64(1) + bytes("1"));
  CHECK(w.a.pop("q") == stop + i64(0));
  CHECK(w.b.take() == nothing);
  w.c.push("q", "2");
  CHECK(w.b.take() == stop);
}

TEST_CASE("a passed on wake-up is not given twice: as many are awake as there are items") {
  world w;
  peer d(w.store);
  w.a.wait({"q"});
  w.b.wait({"q"});
  d.wait({"q"});
  w.c.push("q", "1");
  w.c.push("q", "2");
  CHECK(w.c.pop("q") == i64(2) + bytes("1"));
  w.a.ping(1);
  CHECK(d.take() == nothing);
  w.b.close();
  CHECK(d.take() == stop);
}

TEST_CASE("a connection that waits twice for a queue and lets go of the first item is offered it again") {
  world w;
  w.a.wait({"q"});
  w.a.wait({"q"});
  w.c.push("q", "1");
  CHECK(w.a.take() == stop);
  CHECK(w.a.ping(1) == stop + std::string("\1\0\0\0", 4));
  CHECK(w.a.pop("q") == i64(1) + bytes("1"));
}

TEST_CASE("CANCEL_WAIT of a woken connection offers the item to others, not to its own other waits") {
  world w;
  w.a.wait({"q"});
  w.a.wait({"q"});
  w.b.wait({"q"});
  w.c.push("q", "1");
  CHECK(w.a.cancel() == stop + canceled);
  CHECK(w.b.take() == stop);
}

TEST_CASE("SET of a queue's key ends all WAITs for it") {
  world w;
  w.a.wait({"q"});
  w.b.wait({"q"});
  w.c.set("q", "");
  CHECK(w.a.take() == stop);
  CHECK(w.b.take() == stop);
}

TEST_CASE("the reserved key is virtual: ready, readable, not listed, not counted") {
  std::array<char, 16> id{};
  for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<char>('A' + i);
  world w(engine::store_options().instance(id).capability_bits(0x0102030405060708));
  const auto raw = [&](auto encode) {
    std::string b;
    encode(b);
    w.a.feed(b);
    return w.a.take();
  };
  const keys cap(wire::capability_key);
  std::string value;
  wire::put_u32(value, 1);
  wire::put_u64(value, 0x0102030405060708);
  value += "ABCDEFGHIJKLMNOP";
  REQUIRE(value.size() == 28);
  CHECK(raw([&](std::string& b) { wire::encode_check(b, "", cap); }) == ready);
  CHECK(raw([&](std::string& b) { wire::encode_check(b, "", {wire::capability_key, "no"}); }) == not_ready);
  CHECK(raw([&](std::string& b) { wire::encode_wait(b, "", cap); }) == stop);
  CHECK(raw([&](std::string& b) { wire::encode_get(b, "", wire::capability_key); }) == bytes(value));
  CHECK(raw([&](std::string& b) { wire::encode_multi_get(b, "", {"x", wire::capability_key}); }) == bytes("") + bytes(value));
  CHECK(w.a.num_keys() == i64(0));
  CHECK(listed(w.a.list_keys()).empty());
  CHECK(w.store.entries() == 0);
}

TEST_CASE("the reserved key cannot be changed") {
  std::vector<std::string> requests(9);
  const std::string_view k = wire::capability_key;
  wire::encode_set(requests[0], "", k, "x");
  wire::encode_compare_set(requests[1], "", k, "", "x");
  wire::encode_add(requests[2], "", k, 1);
  wire::encode_delete_key(requests[3], "", k);
  wire::encode_append(requests[4], "", k, "x");
  wire::encode_queue_push(requests[5], "", k, "x");
  wire::encode_queue_pop(requests[6], "", k);
  wire::encode_barrier(requests[7], "", k, 1);
  wire::encode_multi_set(requests[8], "", std::vector<std::pair<std::string, std::string>>{{"ok", "1"}, {std::string(k), "2"}});
  for (std::string const& r : requests) {
    world w;
    w.a.feed(r);
    CHECK(w.a.why == apply_status::reserved_key);
    CHECK(w.store.entries() == 0);
  }
}

TEST_CASE("a full store closes whoever wants more, and goes on serving") {
  const std::uint64_t room = 2 * (engine::store::key_cost + 2) + engine::store::item_cost + 10;
  world w(engine::store_options().stored_bytes(room));
  w.c.set("k", "12345");
  w.c.push("q", "12345");
  CHECK(w.store.stats().stored_bytes == room);
  const auto refused = [&](auto act) {
    peer p(w.store);
    act(p);
    CHECK(p.closed);
    CHECK(p.why == apply_status::store_full);
    CHECK(w.store.stats().stored_bytes == room);
  };
  refused([](peer& p) { p.set("k", "123456"); });
  refused([](peer& p) { p.set("new", ""); });
  refused([](peer& p) { p.append("k", "6"); });
  refused([](peer& p) { p.push("q", ""); });
  refused([](peer& p) { p.add("n", 1); });
  refused([](peer& p) { p.barrier("b", 2); });
  refused([](peer& p) { p.wait({"k", "missing"}); });
  refused([](peer& p) { p.compare_set("k", "12345", "123456"); });
  CHECK(w.a.set("k", "54321") == nothing);
  CHECK(w.a.get("k") == bytes("54321"));
  w.a.pop("q");
  w.a.delete_key("k");
  CHECK(w.store.stats().stored_bytes == 0);
  CHECK(w.store.entries() == 0);
}

TEST_CASE("one connection cannot wait for more keys than its limit") {
  world w(engine::store_options().awaited_keys(3));
  CHECK(w.a.wait({"1", "2"}) == nothing);
  CHECK(w.a.barrier("b", 2) == nothing);
  w.a.wait({"3"});
  CHECK(w.a.why == apply_status::too_many_waits);
  CHECK(w.store.stats().waits == 0);
  w.b.wait({"1", "2", "3", "4"});
  CHECK(w.b.why == apply_status::too_many_waits);
  CHECK(w.store.entries() == 1);
}

TEST_CASE("a reply past its limit closes, and what came before it stays in order") {
  world w(engine::store_options().reply_bytes(64));
  w.c.set("k", std::string(30, 'x'));
  std::string b;
  wire::encode_ping(b, 1);
  wire::encode_multi_get(b, "/", {"k", "k"});
  w.a.feed(b);
  CHECK(w.a.why == apply_status::reply_too_long);
  CHECK(w.a.take() == std::string("\1\0\0\0", 4));
  for (int i = 0; i < 9; ++i) w.c.set(std::to_string(i), "");
  w.b.list_keys();
  CHECK(w.b.why == apply_status::reply_too_long);
}

TEST_CASE("many requests in one piece are answered in order") {
  world w;
  std::string b;
  wire::encode_set(b, "/", "p", "abc");
  wire::encode_check(b, "/", {"p"});
  wire::encode_get(b, "/", "p");
  wire::encode_add(b, "/", "pn", 3);
  wire::encode_num_keys(b);
  w.a.feed(b);
  CHECK(w.a.take() == ready + bytes("abc") + numbers({3, 2}));
}

TEST_CASE("the store counts requests by opcode") {
  world w;
  w.a.set("k", "");
  w.a.get("k");
  w.a.get("k");
  const engine::store_stats s = w.store.stats();
  CHECK(s.requests[static_cast<std::size_t>(wire::opcode::validate)] == 3);
  CHECK(s.requests[static_cast<std::size_t>(wire::opcode::set)] == 1);
  CHECK(s.requests[static_cast<std::size_t>(wire::opcode::get)] == 2);
  CHECK(s.keys == 1);
  CHECK(s.clients == 3);
  CHECK(s.stored_bytes == engine::store::key_cost + 2);
}

TEST_CASE("every status has a text") {
  for (int i = 0; i <= static_cast<int>(apply_status::reply_too_long); ++i)
    CHECK(to_string(static_cast<apply_status>(i)) != "unknown");
}
