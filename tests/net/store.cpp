#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <random>
#include <span>

#include "../support/net.hpp"

using namespace net_test;

namespace {

/// Runs `f(loop, store)` beside a server of its own.
template <class F>
void with_store(F f, rc::client_options options = {}) {
  auto body = [&f, options](rc::loop& l) -> rc::task<> {
    local_server server(l);
    {
      rc::tcp_store store = co_await client_of(l, server.port(), options);
      co_await f(l, store, server);
    }
    co_await server.stop();
  };
  on_loop(body);
}

/// Every operation by number, for tests that go through all of them; its value is dropped.
constexpr int operation_count = 21;
constexpr string_view operation_names[operation_count] = {"set",        "get",           "find",      "add",        "check",         "wait",      "wait",
                                                          "delete_key", "num_keys",      "compare_set", "append",   "multi_get",     "multi_set", "queue_push",
                                                          "queue_pop",  "queue_pop_now", "queue_len", "list_keys",  "server_barrier", "ping",     "get_into"};
constexpr bool changes[operation_count] = {true, false, false, true,  false, false, false, true,  false, true, true,
                                           false, true, true,  false, false, false, false, true, false, false};
constexpr bool has_key(int which) { return which != 8 && which != 17 && which != 19; }

template <class Op>
rc::task<> dropped(Op op) {
  co_await std::move(op);
}
rc::task<> any_operation(rc::tcp_store const& s, int which, string key) {
  switch (which) {
    case 0: return dropped(s.set(key, "1"));
    case 1: return dropped(s.get(key));
    case 2: return dropped(s.find(key));
    case 3: return dropped(s.add(key, 1));
    case 4: return dropped(s.check(key));
    case 5: return dropped(s.wait(key));
    case 6: return dropped(s.wait({string_view(key), string_view("no such key")}));
    case 7: return dropped(s.delete_key(key));
    case 8: return dropped(s.num_keys());
    case 9: return dropped(s.compare_set(key, "", "1"));
    case 10: return dropped(s.append(key, "1"));
    case 11: return dropped(s.multi_get({string_view(key), string_view("no such key")}));
    case 12: return dropped(s.multi_set({rc::kv(key, "1"), rc::kv("other", "2")}));
    case 13: return dropped(s.queue_push(key + "/queue", "1"));
    case 14: return dropped(s.queue_pop(key + "/queue"));
    case 15: return dropped(s.queue_pop_now(key + "/queue"));
    case 16: return dropped(s.queue_len(key + "/queue"));
    case 17: return dropped(s.list_keys());
    case 18: return dropped(s.server_barrier(key + "/barrier", 2));
    case 19: return dropped(s.ping());
    default: {
      static char room[64];
      return dropped(s.get_into(key, room));
    }
  }
}

}  // namespace

TEST_CASE("every operation does what it says", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    CHECK(s.server_is_rollcall());
    co_await s.set("a", "1");
    CHECK_AWAIT(co_await s.get("a"), "1");
    CHECK_AWAIT(co_await s.find("a"), std::optional<string>("1"));
    CHECK_AWAIT(co_await s.find("b"), std::nullopt);
    CHECK_AWAIT(co_await s.add("n", 5), 5);
    CHECK_AWAIT(co_await s.add("n", -7), -2);
    CHECK_AWAIT(co_await s.get("n"), "-2");
    CHECK_AWAIT(co_await s.check("a"), true);
    CHECK_AWAIT(co_await s.check({"a", "b"}), false);
    CHECK_AWAIT(co_await s.check({}), true);
    co_await s.wait({"a", "n"}, 5s);
    co_await s.wait({});
    CHECK_AWAIT(co_await s.num_keys(), 2);
    CHECK_AWAIT(co_await s.delete_key("a"), true);
    CHECK_AWAIT(co_await s.delete_key("a"), false);
    co_await s.append("t", "x");
    co_await s.append("t", "yz");
    CHECK_AWAIT(co_await s.get("t"), "xyz");
    co_await s.multi_set({rc::kv("p", "1"), rc::kv("q", "")});
    const std::vector<string> both = co_await s.multi_get({"p", "q", "p"});
    CHECK(both == std::vector<string>{"1", "", "1"});
    const std::vector<string> none = co_await s.multi_get({});
    CHECK(none.empty());
    CHECK(s.connections() == 1);
  });
}

TEST_CASE("compare_set has the four outcomes of the protocol", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    CHECK_AWAIT(co_await s.compare_set("k", "x", "y"), "x");  // missing, something expected: nothing happens
    CHECK_AWAIT(co_await s.find("k"), std::nullopt);
    CHECK_AWAIT(co_await s.compare_set("k", "", "v"), "v");
    CHECK_AWAIT(co_await s.compare_set("k", "w", "z"), "v");
    CHECK_AWAIT(co_await s.compare_set("k", "v", "w"), "w");
    CHECK_AWAIT(co_await s.compare_set("k", "w", "w"), "w");
    const string nul("a\0b", 3);
    CHECK_AWAIT(co_await s.compare_set("k", "w", nul), nul);
    CHECK_AWAIT(co_await s.compare_set("k", "", "x"), nul);
  });
}

TEST_CASE("keys are accepted as anything natural", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    co_await s.multi_set({rc::kv("a", "1"), rc::kv("b", "2")});
    const std::vector<string> strings{"a", "b"};
    const std::vector<string_view> views{"a", "b"};
    string one = "a";
    char const* pointer = "b";
    CHECK_AWAIT(co_await s.check({"a", "b"}), true);
    CHECK_AWAIT(co_await s.check(strings), true);
    CHECK_AWAIT(co_await s.check(views), true);
    CHECK_AWAIT(co_await s.check(std::span<string const>(strings)), true);
    CHECK_AWAIT(co_await s.check(std::span(views)), true);
    CHECK_AWAIT(co_await s.check(one), true);
    CHECK_AWAIT(co_await s.check(pointer), true);
    CHECK_AWAIT(co_await s.check({one, "b"}), true);
    co_await s.wait({one, "b"}, 5s);
    co_await s.wait(strings, 5s);
    co_await s.wait(one, 5s);
  });
}

TEST_CASE("keys and values are opaque bytes, of any length up to the limits", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    string all;
    for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
    co_await s.set(all, all);
    CHECK_AWAIT(co_await s.get(all), all);
    co_await s.set("", "empty key");
    CHECK_AWAIT(co_await s.get(""), "empty key");
    co_await s.set("empty value", "");
    const string nothing = co_await s.get("empty value");
    CHECK(nothing.empty());
    const string longest_key(8191, 'k');
    co_await s.set(longest_key, "v");
    CHECK_AWAIT(co_await s.find(longest_key), std::optional<string>("v"));

    string big(std::size_t{8} << 20, 'x');
    for (std::size_t i = 0; i < big.size(); i += 997) big[i] = static_cast<char>(i);
    co_await s.set("big", big);
    const string back = co_await s.get("big");
    CHECK((back == big));
    const std::vector<string> twice = co_await s.multi_get({"big", "empty value", "big"});
    REQUIRE(twice.size() == 3);
    CHECK((twice[0] == big && twice[1].empty() && twice[2] == big));
  });
}

TEST_CASE("what is past a limit is refused before it is sent, and the connection goes on", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    const string key(8192, 'k');
    const string value((std::size_t{8} << 20) + 1, 'v');
    const std::vector<string> many(131073, "k");
    std::vector<rc::failure> failures;
    failures.push_back(failure_of(co_await rc::as_result(s.set(key, ""))));
    failures.push_back(failure_of(co_await rc::as_result(s.set("k", value))));
    failures.push_back(failure_of(co_await rc::as_result(s.append("k", value))));
    failures.push_back(failure_of(co_await rc::as_result(s.compare_set("k", value, ""))));
    failures.push_back(failure_of(co_await rc::as_result(s.compare_set("k", "", value))));
    failures.push_back(failure_of(co_await rc::as_result(s.multi_set({rc::kv("a", "1"), rc::kv("b", value)}))));
    failures.push_back(failure_of(co_await rc::as_result(s.wait({string_view("a"), string_view(key)}, 5s))));
    failures.push_back(failure_of(co_await rc::as_result(s.wait(many, 5s))));
    failures.push_back(failure_of(co_await rc::as_result(s.check(many))));
    failures.push_back(failure_of(co_await rc::as_result(s.multi_get(many))));
    for (rc::failure const& f : failures) {
      CHECK(f.code() == rc::errc::limit);
      CHECK(f.effect() == rc::effect::none);
      CHECK(contains(f.message(), "127.0.0.1:"));
      CHECK(f.message().size() < 4096);
    }
    CHECK_AWAIT(co_await s.num_keys(), 0);
  });
}

TEST_CASE("a refused operation tells why also when it is stopped before it begins", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server&) -> rc::task<> {
    rc::stop_source stop;
    stop.request_stop();
    std::optional<rc::result<void>> refused, stopped;
    rc::start(s.set(string(9000, 'k'), "v"), [&](rc::result<void> r) { refused = std::move(r); }, stop.token());
    rc::start(s.set("k", "v"), [&](rc::result<void> r) { stopped = std::move(r); }, stop.token());
    co_await eventually([&] { return refused && stopped; });
    CHECK(failure_of(*refused).code() == rc::errc::limit);
    const rc::failure f = failure_of(*stopped);
    CHECK(f.code() == rc::errc::cancelled);
    CHECK(f.effect() == rc::effect::none);
    CHECK(f.elapsed() < 5s);
    CHECK_AWAIT(co_await s.num_keys(), 0);
    static_cast<void>(l);
  });
}

TEST_CASE("131072 keys in one request", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    constexpr int n = 131072;
    std::vector<string> names;
    for (int i = 0; i < n; ++i) names.push_back("k" + std::to_string(i));
    std::vector<rc::kv> all;
    for (string const& k : names) all.emplace_back(k, string_view(k).substr(1));
    rc::scope waiting(l);
    waiting.spawn(s.wait(names, 20s));
    co_await eventually([&] { return s.connections() == 1; });
    rc::tcp_store other = co_await client_of(l, server.port());
    co_await other.multi_set(all);
    co_await waiting.join();
    CHECK_AWAIT(co_await s.check(names), true);
    CHECK_AWAIT(co_await s.num_keys(), n);
    const std::vector<string> values = co_await s.multi_get(names, 20s);
    REQUIRE(values.size() == n);
    bool same = true;
    for (int i = 0; i < n; ++i) same = same && values[static_cast<std::size_t>(i)] == std::to_string(i);
    CHECK(same);
  });
}

TEST_CASE("operations of one turn are one write and one read", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    co_await s.set("k", "v");
    const rc::server_stats before = server.stats();
    rc::scope all(l);
    for (int i = 0; i < 4; ++i) {
      all.spawn(s.set("s" + std::to_string(i), "1"));
      all.spawn(s.add("n", 1));
      all.spawn(s.get("k"));
      all.spawn(s.check("k"));
    }
    co_await all.join();
    CHECK(server.stats().reads - before.reads == 1);
    CHECK(server.stats().writes - before.writes == 1);
    CHECK(server.stats().requests - before.requests == 4 + 4 + 8 + 4);  // get is CHECK and GET; the replies behind a set are its fence
    CHECK_AWAIT(co_await s.add("n", 0), 4);
  });
}

TEST_CASE("a wait never delays another operation", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server&) -> rc::task<> {
    rc::scope waits(l);
    SECTION("a wait for one key shares the connection with everything else") {
      waits.spawn(s.wait("late", 20s));
      for (int i = 0; i < 100; ++i) {
        co_await s.set("k", std::to_string(i));
        CHECK_AWAIT(co_await s.get("k"), std::to_string(i));
        CHECK_AWAIT(co_await s.add("n", 1), i + 1);
      }
      CHECK(s.connections() == 1);
      CHECK(waits.size() == 1);
      co_await s.set("late", "");
      co_await waits.join();
      CHECK(s.connections() == 1);
    }
    SECTION("a wait for several has one of its own, which is kept for the next one") {
      for (int round = 0; round < 3; ++round) {
        const string a = "a" + std::to_string(round), b = "b" + std::to_string(round);
        waits.spawn(s.wait({a, b}, 20s));
        CHECK_AWAIT(co_await s.add("n", 1), round * 2 + 1);
        co_await s.set(a, "");
        CHECK_AWAIT(co_await s.add("n", 1), round * 2 + 2);
        CHECK(waits.size() == 1);
        co_await s.set(b, "");
        co_await waits.join();
        CHECK(s.connections() == 2);
      }
    }
    SECTION("several waits, commands and gets of missing keys at once") {
      const auto all = co_await rc::when_all(s.wait("x", 20s), s.wait({"x", "y"}, 20s), s.get("y"), s.add("n", 1), s.set("x", "1"), s.set("y", "2"),
                                             s.find("z"), s.wait("y", 20s), s.multi_get({"x", "y"}));
      CHECK(std::get<2>(all) == "2");
      CHECK(std::get<3>(all) == 1);
      CHECK(std::get<6>(all) == std::nullopt);
      CHECK(std::get<8>(all) == std::vector<string>{"1", "2"});
    }
    co_await waits.join();
  });
}

TEST_CASE("a wait is for keys that exist at some moment; duplicates and present ones do not confuse it", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    co_await s.set("a", "");
    rc::scope waits(l);
    waits.spawn(s.wait({"a", "b"}, 20s));
    co_await other.set("b", "");
    co_await waits.join();
    waits.spawn(s.wait({"b", "b", "c"}, 20s));
    co_await other.set("c", "");
    co_await waits.join();
    co_await s.wait({}, 20s);
  });
}

TEST_CASE("a set completes when the server has applied it", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    for (int i = 0; i < 200; ++i) {
      const string k = "k" + std::to_string(i);
      co_await s.set(k, k);
      CHECK_AWAIT(co_await other.find(k), std::optional<string>(k));
      co_await other.append(k, "+");
      CHECK_AWAIT(co_await s.find(k), std::optional<string>(k + "+"));
    }
  });
}

TEST_CASE("the time-out of a wait names the keys that are missing", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server& server) -> rc::task<> {
    co_await s.set("a", "");
    const rc::failure f = failure_of(co_await rc::as_result(s.wait({"a", "b"}, 200ms)));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.operation() == "wait");
    CHECK(f.keys() == std::vector<string>{"b"});
    CHECK(f.effect() == rc::effect::none);
    CHECK(f.elapsed() >= 200ms);
    CHECK(contains(f.message(), "'b'"));
    CHECK_FALSE(contains(f.message(), "'a'"));
    CHECK(contains(f.message(), "200 ms"));
    CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(server.port())));

    std::vector<string> many;
    for (int i = 0; i < 1000; ++i) many.push_back("some/key/that/nobody/sets/" + std::to_string(i));
    const rc::failure m = failure_of(co_await rc::as_result(s.wait(many, 20ms)));
    CHECK(m.code() == rc::errc::timed_out);
    CHECK(m.key_count() == 1000);
    CHECK(m.message().size() < 4096);
    CHECK(contains(m.message(), "1000 keys"));

    const rc::failure g = failure_of(co_await rc::as_result(s.multi_get({"a", "c", "d"}, 50ms)));
    CHECK(g.code() == rc::errc::timed_out);
    CHECK(g.operation() == "multi_get");
    CHECK(g.keys() == std::vector<string>{"c", "d"});

    const rc::failure now = failure_of(co_await rc::as_result(s.wait("b", 0ms)));
    CHECK(now.code() == rc::errc::timed_out);
    const rc::failure past = failure_of(co_await rc::as_result(s.get("b", -1s)));
    CHECK(past.code() == rc::errc::timed_out);
    CHECK(past.operation() == "get");
    CHECK_AWAIT(co_await s.add("n", 1), 1);
    CHECK(s.is_open());
  });
}

TEST_CASE("a limit of one call is of that call alone", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    const rc::failure f = failure_of(co_await rc::as_result(s.wait("k", 20ms)));
    CHECK(f.code() == rc::errc::timed_out);
    rc::scope later(l);
    auto set_later = [](rc::tcp_store o) -> rc::task<> {
      co_await rc::sleep_for(300ms);
      co_await o.set("k", "v");
    };
    later.spawn(set_later(other));
    CHECK_AWAIT(co_await s.get("k"), "v");
    co_await later.join();
  });
}

TEST_CASE("after a time-out later replies always match", "[store]") {
  // Field log F90: the late end of a wait that had timed out was taken for the reply of the next request.
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    for (int i = 0; i < 50; ++i) {
      const string k = "k" + std::to_string(i);
      CHECK_AWAIT(failure_of(co_await rc::as_result(s.wait(k, 1ms))).code(), rc::errc::timed_out);
      co_await other.set(k, k);
      CHECK_AWAIT(co_await s.add("n", 1), i + 1);
      CHECK_AWAIT(co_await s.get(k), k);
    }
  });
}

TEST_CASE("the handle is a cheap copy; an operation keeps the connection alive", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store&, local_server& server) -> rc::task<> {
    rc::scope running(l);
    std::optional<rc::result<string>> called;
    {
      rc::tcp_store first = co_await client_of(l, server.port());
      rc::tcp_store second = first;
      co_await second.set("k", "v");
      running.spawn(first.get("k"));
      running.spawn(second.wait({"k", "later"}, 20s));
      rc::start(second.get("k"), [&](rc::result<string> r) { called = std::move(r); });
    }
    {
      rc::tcp_store setter = co_await client_of(l, server.port());
      co_await setter.set("later", "");
    }
    co_await running.join();
    co_await eventually([&] { return called.has_value(); });
    CHECK(called->value() == "v");
    co_await eventually([&] { return server.stats().connections == 1; });
  });
}

TEST_CASE("operations that were made and never awaited leave nothing behind", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    for (int which = 0; which < operation_count; ++which) {
      const rc::task<> never = any_operation(s, which, "k");
      static_cast<void>(never);
    }
    {
      auto op = s.set("k", "v");
      auto moved = std::move(op);
      static_cast<void>(moved);
    }
    CHECK_AWAIT(co_await s.num_keys(), 0);
  });
}

TEST_CASE("close ends what is pending, and what comes later", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store&, local_server& server) -> rc::task<> {
    rc::tcp_store s = co_await client_of(l, server.port());
    std::vector<rc::failure> failures;
    rc::scope pending(l);
    auto record = [&](rc::tcp_store const& store, int which) -> rc::task<> {
      failures.push_back(failure_of(co_await rc::as_result(any_operation(store, which, "k"))));
    };
    pending.spawn(record(s, 1));
    pending.spawn(record(s, 5));
    pending.spawn(record(s, 6));
    pending.spawn(record(s, 11));
    co_await rc::sleep_for(5ms);
    CHECK(s.is_open());
    s.close();
    s.close();
    CHECK_FALSE(s.is_open());
    co_await pending.join();
    for (int which = 0; which < operation_count; ++which) co_await record(s, which);
    CHECK(failures.size() == 4 + operation_count);
    for (rc::failure const& f : failures) {
      CHECK(f.code() == rc::errc::closed);
      CHECK(f.effect() == rc::effect::none);
      CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(server.port())));
    }
  });
}

TEST_CASE("effect tells whether a request may have reached the server", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server&) -> rc::task<> {
    // Stopped in the turn it was staged in, before anything was written: the request goes out all the same.
    std::optional<rc::result<std::int64_t>> outcome;
    rc::stop_source stop;
    rc::scope order(l);
    rc::start(s.add("x", 1), [&](rc::result<std::int64_t> r) { outcome = std::move(r); }, stop.token());
    auto stopper = [&]() -> rc::task<> {
      stop.request_stop();
      co_return;
    };
    order.spawn(stopper);
    co_await order.join();
    co_await eventually([&] { return outcome.has_value(); });
    const rc::failure f = failure_of(*outcome);
    CHECK(f.code() == rc::errc::cancelled);
    const std::int64_t now = co_await s.add("x", 0);
    CHECK(f.effect() == (now == 0 ? rc::effect::none : rc::effect::unknown));

    std::optional<rc::result<std::int64_t>> number;
    rc::stop_source other;
    rc::start(s.num_keys(), [&](rc::result<std::int64_t> r) { number = std::move(r); }, other.token());
    co_await rc::sleep_for(0ms);
    other.request_stop();
    co_await eventually([&] { return number.has_value(); });
    if (!*number) CHECK(number->error().effect() == rc::effect::none);
  });
}

TEST_CASE("with all connections in waits, the next operation is told so, once", "[store]") {
  with_store(
      [](rc::loop& l, rc::tcp_store& s, local_server&) -> rc::task<> {
        rc::scope waits(l);
        waits.spawn(s.wait({"a", "b"}, 20s));
        co_await rc::sleep_for(1ms);
        auto op = s.num_keys();  // outlives its await: a second resumption would show below
        rc::errc code{};
        try {
          co_await std::move(op);
        } catch (rc::error const& e) {
          code = e.code();
        }
        CHECK(code == rc::errc::limit);
        const rc::time_point begun = l.now();
        co_await rc::sleep_for(30ms);
        CHECK(l.now() - begun >= 30ms);
        waits.request_stop();
        co_await waits.join();
        CHECK_AWAIT(co_await s.num_keys(), 0);
        CHECK(s.connections() == 1);
      },
      rc::client_options{}.max_lanes(1));
}

TEST_CASE("a further connection that cannot be made fails its operation alone", "[store]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rc::unique_fd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(next.get());
    rc::scope waits(&s.home().core());
    waits.spawn(s.wait({"a", "b"}, 20s));  // takes the only connection
    co_await rc::sleep_for(1ms);
    setrlimit(RLIMIT_NOFILE, &none);
    std::vector<rc::result<bool>> outcomes;
    for (int i = 0; i < 100; ++i) outcomes.push_back(co_await rc::as_result(s.check("k")));  // more than max_lanes
    setrlimit(RLIMIT_NOFILE, &before);
    for (rc::result<bool> const& r : outcomes) {
      const rc::failure f = failure_of(r);
      CHECK(f.code() == rc::errc::refused);
      CHECK(contains(f.message(), "EMFILE"));
    }
    CHECK_AWAIT(co_await s.check("k"), false);
    waits.request_stop();
    co_await waits.join();
  });
}

TEST_CASE("an idle client does not hold the loop, a pending operation does", "[store]") {
  const watchdog dog(current_case());
  rc::loop l;
  int ended = 0;
  {
    rc::scope running(l);
    rc::listener at = rc::listen(rc::listen_options{});
    const int port = at.port();
    running.spawn(rc::serve(l, std::move(at), rc::serve_options{}.keep_alive(false)));
    rc::tcp_store s = rc::sync_wait(l, client_of(l, port));
    rc::sync_wait(l, s.set("k", "v"));
    uv_run(l.native(), UV_RUN_DEFAULT);  // returns: nobody waits
    rc::start(s.wait("k2", 20s), [&](rc::result<void> r) { ended += r ? 1 : 100; });
    rc::start(s.get("k2"), [&](rc::result<string> r) { ended += r ? 1 : 100; });
    auto set_it = [](rc::tcp_store store) -> rc::task<> {
      co_await rc::sleep_for(20ms);
      co_await store.set("k2", "");
    };
    rc::start(l, set_it(s), [&](rc::result<void>) { ++ended; });
    uv_run(l.native(), UV_RUN_DEFAULT);
    CHECK(ended == 3);
    running.request_stop();
    rc::sync_wait(l, running.join());
  }
  expect_nothing_left(l);
}

TEST_CASE("operations stopped at any moment leave the replies in step", "[store][stress]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    std::minstd_rand random(20240607);
    const auto pick = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::int64_t count = 0;
    int completed = 0;
    for (int round = 0; round < 2500; ++round) {
      rc::scope some(l);
      const string key = "key " + std::to_string(pick(6));
      for (int n = 1 + pick(5); n > 0; --n) some.spawn(rc::as_result(any_operation(s, pick(operation_count), key)));
      if (pick(3) == 0) some.spawn(rc::as_result(any_operation(other, pick(2) * 7, key)));  // set or delete it meanwhile
      if (pick(8) == 0) some.spawn(rc::as_result(other.set("no such key", "")));
      for (int turns = pick(6); turns > 0; --turns) co_await rc::sleep_for(0ms);
      some.request_stop();
      co_await some.join();
      if (pick(4) == 0) {
        static_cast<void>(co_await rc::as_result(other.delete_key("no such key")));
        static_cast<void>(co_await rc::as_result(other.delete_key(key)));
      }
      if (pick(2) == 0) {
        const std::int64_t now = co_await s.add("count", 1);
        REQUIRE(now == ++count);
        const string text = co_await s.get("count");
        REQUIRE(text == std::to_string(count));
        ++completed;
      }
    }
    CHECK(completed > 1000);
    CHECK(s.is_open());
    CHECK(s.connections() <= 12);
  });
}

TEST_CASE("against a frozen server every operation keeps its own limit, and afterwards all goes on", "[store][process]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  const server_process server(program);
  const string at = "127.0.0.1:" + std::to_string(server.port());
  on_loop([&](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await client_of(l, server.port(), rc::client_options{}.timeout(100ms));
    co_await s.set("k", "v");
    const auto judge = [&](rc::result<void> const& r, int which) {
      const rc::failure f = failure_of(r);
      INFO(f.message());
      CHECK(f.code() == rc::errc::timed_out);
      CHECK(f.operation() == operation_names[which]);
      CHECK(f.elapsed() >= 100ms);
      CHECK(f.elapsed() < 2s);
      CHECK(contains(f.message(), at));
      CHECK(contains(f.message(), "100 ms"));
      if (has_key(which)) CHECK(contains(f.message(), which >= 13 && which <= 18 ? "'key/" : "'key'"));
      CHECK(f.effect() == (changes[which] ? rc::effect::unknown : rc::effect::none));
    };
    server.kill(SIGSTOP);
    SECTION("one after the other") {
      for (int which = 0; which < operation_count; ++which) judge(co_await rc::as_result(any_operation(s, which, "key")), which);
    }
    SECTION("all at once") {
      rc::scope all(l);
      auto one = [&](int which) -> rc::task<> { judge(co_await rc::as_result(any_operation(s, which, "key")), which); };
      for (int which = 0; which < operation_count; ++which) all.spawn(one(which));
      co_await all.join();
    }
    SECTION("a wait for no keys is no exception") {
      CHECK_AWAIT(failure_of(co_await rc::as_result(s.wait({}))).code(), rc::errc::timed_out);
      CHECK_AWAIT(failure_of(co_await rc::as_result(s.multi_get({}))).code(), rc::errc::timed_out);
    }
    SECTION("waits that ask what is missing while the server thaws") {
      for (int i = 0; i < 5; ++i) {
        const rc::failure f = failure_of(co_await rc::as_result(s.wait({"x", "y"}, 20ms)));
        CHECK(f.keys() == std::vector<string>{"x", "y"});
        CHECK(contains(f.message(), "2 of them"));
      }
    }
    SECTION("a stop does not wait for the peer") {
      const rc::time_point begun = l.now();
      rc::scope all(l);
      for (int which = 0; which < operation_count; ++which) all.spawn(any_operation(s, which, "key"));
      co_await rc::sleep_for(5ms);
      all.request_stop();
      co_await all.join();
      CHECK(l.now() - begun < 90ms * 10);
    }
    server.kill(SIGCONT);
    rc::tcp_store other = co_await client_of(l, server.port());
    co_await other.multi_set({rc::kv("x", ""), rc::kv("y", "")});
    for (int i = 1; i <= 100; ++i) {
      const rc::result<std::int64_t> n = co_await rc::as_result(s.add("count", 1));
      REQUIRE(n.value() == i);
      CHECK_AWAIT(co_await s.get("k"), "v");
    }
    co_await s.wait({"x", "y"});
  });
}

TEST_CASE("a killed server fails every pending operation of every client at once", "[store][process]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  const server_process server(program);
  on_loop([&](rc::loop& l) -> rc::task<> {
    std::vector<rc::tcp_store> clients;
    std::vector<std::pair<int, rc::failure>> failures;
    rc::scope all(l);
    auto one = [&failures](rc::tcp_store s, int i) -> rc::task<> {
      const string key = "never/" + std::to_string(i);
      if (i % 2 == 0) {
        failures.emplace_back(i, failure_of(co_await rc::as_result(s.wait(key))));
      } else {
        failures.emplace_back(i, failure_of(co_await rc::as_result(s.multi_get({string_view(key), string_view("k")}))));
      }
    };
    for (int i = 0; i < 100; ++i) clients.push_back(co_await client_of(l, server.port()));
    for (int i = 0; i < 100; ++i) all.spawn(one(clients[static_cast<std::size_t>(i)], i));
    co_await clients.front().set("k", "");
    server.kill(SIGKILL);
    const rc::time_point begun = l.now();
    co_await all.join();
    CHECK(l.now() - begun < 10s);
    REQUIRE(failures.size() == 100);
    for (auto const& [i, f] : failures) {
      INFO(f.message());
      CHECK(f.code() == rc::errc::disconnected);
      CHECK(f.operation() == (i % 2 == 0 ? "wait" : "multi_get"));
      CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(server.port())));
      CHECK(contains(f.message(), "'never/" + std::to_string(i) + "'"));
    }
    for (rc::tcp_store const& s : clients) CHECK_FALSE(s.is_open());
    const rc::failure later = failure_of(co_await rc::as_result(clients.front().set("k", "")));
    CHECK((later.code() == rc::errc::disconnected || later.code() == rc::errc::closed));
    CHECK(later.effect() == rc::effect::none);
  });
}

TEST_CASE("ADD on text ends the connection of who asked, and the error says what was lost", "[store]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    co_await s.set("text", "abc");
    const rc::failure f = failure_of(co_await rc::as_result(s.add("text", 1)));
    CHECK(f.code() == rc::errc::disconnected);
    CHECK(f.operation() == "add");
    CHECK(f.keys() == std::vector<string>{"text"});
    CHECK(f.effect() == rc::effect::unknown);
    CHECK_FALSE(s.is_open());
    CHECK_AWAIT(co_await other.get("text"), "abc");
  });
}

TEST_CASE("two loops in one process do not know of each other", "[store]") {
  const watchdog dog(current_case());
  rc::loop a, b;
  {
    rc::scope server(a);
    rc::listener at = rc::listen(rc::listen_options{});
    const int port = at.port();
    server.spawn(rc::serve(a, std::move(at)));
    std::atomic<bool> done = false;
    string value;
    std::thread other([&] {
      value = rc::sync_wait(b, [](rc::loop& l, int p) -> rc::task<string> {
        rc::tcp_store s = co_await client_of(l, p);
        co_await s.set("k", "from another thread");
        co_return co_await s.get("k");
      }(b, port));
      done = true;
    });
    while (!done) uv_run(a.native(), UV_RUN_NOWAIT);
    other.join();
    CHECK(value == "from another thread");
    server.request_stop();
    rc::sync_wait(a, server.join());
  }
  expect_nothing_left(a);
  expect_nothing_left(b);
}
