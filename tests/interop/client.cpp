// Our client against a server that is given: its port in ROLLCALL_INTEROP_PORT, its process in ROLLCALL_INTEROP_PID, and whose it is in
// ROLLCALL_INTEROP_SERVER: libuv or legacy (PyTorch's two), or rollcall. The cases share it, each under keys of its own.
#include <random>

#include <rollcall/barrier.hpp>
#include <rollcall/collectives.hpp>

#include "../support/net.hpp"

using namespace net_test;

namespace {

string setting(char const* name) {
  char const* value = std::getenv(name);
  if (!value || !*value) FAIL(name << " is not set: rollcall_client.py starts this program");
  return value;
}
int server_port() { return std::atoi(setting("ROLLCALL_INTEROP_PORT").c_str()); }
int server_pid() { return std::atoi(setting("ROLLCALL_INTEROP_PID").c_str()); }
bool server_is(string_view which) { return setting("ROLLCALL_INTEROP_SERVER") == which; }

rc::task<rc::tcp_store> connect(rc::loop& l, rc::deadline limit = 20s) {
  co_return co_await rc::tcp_store::connect(l, "127.0.0.1", server_port(), 20s, rc::client_options{}.timeout(limit));
}
bool has_queues() { return !server_is("legacy"); }

double seconds(rc::duration d) { return std::chrono::duration<double>(d).count(); }

/// That an operation fails with `code` once its limit has passed, and not much later.
template <class T>
rc::task<rc::failure> expires(rc::loop& l, rc::operation<T> op, double limit) {
  const rc::time_point begun = l.now();
  const rc::result<T> r = co_await rc::as_result(std::move(op));
  const double took = seconds(l.now() - begun);
  CHECK(took >= limit - 0.002);
  CHECK(took < limit + 2);
  const rc::failure f = failure_of(r);
  CHECK(f.code() == rc::errc::timed_out);
  co_return f;
}

/// Stops its process and lets it go on at the end.
class frozen {
 public:
  explicit frozen(int pid) : pid_(pid) { net_test::freeze(pid_); }
  frozen(frozen const&) = delete;
  frozen& operator=(frozen const&) = delete;
  ~frozen() { thaw(); }
  void thaw() {
    if (pid_ != 0) ::kill(std::exchange(pid_, 0), SIGCONT);
  }

 private:
  int pid_;
};

}  // namespace

TEST_CASE("whose server it is") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    CHECK(s.server_is_rollcall() == server_is("rollcall"));
    CHECK(s.connections() == 1);
    CHECK(s.port() == server_port());
  });
}

TEST_CASE("keys and values of every kind") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    const std::vector<string> values{"v", "", string("\0\xff/\n", 4), "\xc3\xbc", string(std::size_t{8} << 20, 'x')};
    const std::vector<string> names{"kv/k", "kv/", string("kv/\0\xff", 5), "kv/" + string(8000, 'l')};
    for (string const& k : names) {
      for (string const& v : values) {
        co_await s.set(k, v);
        const string got = co_await s.get(k);
        CHECK((got == v));  // in brackets: never printed
      }
      CHECK_AWAIT(co_await s.delete_key(k), true);
      CHECK_AWAIT(co_await s.delete_key(k), false);
      const std::optional<string> none = co_await s.find(k);
      CHECK_FALSE(none.has_value());
    }
    CHECK(s.connections() == 1);
  });
}

TEST_CASE("find tells what is missing from what is empty") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    co_await s.set("find/empty", "");
    co_await s.set("find/full", "x");
    CHECK_AWAIT(co_await s.find("find/empty"), std::optional<string>(""));
    CHECK_AWAIT(co_await s.find("find/full"), std::optional<string>("x"));
    CHECK_AWAIT(co_await s.find("find/missing"), std::optional<string>());
    CHECK_AWAIT(co_await s.check({"find/empty", "find/full"}), true);
    CHECK_AWAIT(co_await s.check({"find/empty", "find/missing"}), false);
    CHECK_AWAIT(co_await s.check(rc::keys()), true);
  });
}

TEST_CASE("numbers") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    CHECK_AWAIT(co_await s.add("n", 5), 5);
    CHECK_AWAIT(co_await s.add("n", -7), -2);
    CHECK_AWAIT(co_await s.get("n"), "-2");
    CHECK_AWAIT(co_await s.add("zero", 0), 0);
    CHECK_AWAIT(co_await s.add("high", INT64_MAX), INT64_MAX);
    CHECK_AWAIT(co_await s.add("low", INT64_MIN), INT64_MIN);
    co_await s.set("text", " 12xyz");
    CHECK_AWAIT(co_await s.add("text", 1), 13);
  });
}

TEST_CASE("compare_set has the reference's table") {  // protocol 4.1
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    CHECK_AWAIT(co_await s.compare_set("cas", "x", "new"), "x");
    CHECK_AWAIT(co_await s.check("cas"), false);
    CHECK_AWAIT(co_await s.compare_set("cas", "", "one"), "one");
    CHECK_AWAIT(co_await s.compare_set("cas", "", "two"), "one");
    CHECK_AWAIT(co_await s.compare_set("cas", "zero", "two"), "one");
    CHECK_AWAIT(co_await s.compare_set("cas", "one", "two"), "two");
    CHECK_AWAIT(co_await s.compare_set("cas", "two", ""), "");
    CHECK_AWAIT(co_await s.compare_set("cas", "", "three"), "three");
  });
}

TEST_CASE("append, multi_set and multi_get") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    co_await s.append("log", "a");
    co_await s.append("log", "bc");
    co_await s.append("log", "");
    CHECK_AWAIT(co_await s.get("log"), "abc");
    co_await s.multi_set({rc::kv("m1", "1"), rc::kv("m2", "22"), rc::kv("m1", "last")});
    const std::vector<string> expected{"22", "last", "22"}, none;
    CHECK_AWAIT(co_await s.multi_get({"m2", "m1", "m2"}), expected);
    CHECK_AWAIT(co_await s.multi_get(none), none);
    co_await s.multi_set(rc::pairs());
    std::vector<string> names, values;
    std::vector<rc::kv> many;
    for (int i = 0; i < 2000; ++i) names.push_back("many/" + std::to_string(i)), values.push_back(std::to_string(i));
    for (std::size_t i = 0; i < names.size(); ++i) many.emplace_back(names[i], values[i]);
    co_await s.multi_set(many);
    const std::vector<string> got = co_await s.multi_get(names);
    CHECK((got == values));
    CHECK_AWAIT(co_await s.check(names), true);
    co_await s.wait(names);
    CHECK(s.connections() == 1);
  });
}

TEST_CASE("num_keys counts") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    const std::int64_t before = co_await s.num_keys();
    co_await s.set("counted", "");
    CHECK_AWAIT(co_await s.num_keys(), before + 1);
    co_await s.delete_key("counted");
    CHECK_AWAIT(co_await s.num_keys(), before);
  });
}

TEST_CASE("expired waits name what is missing, and the next reply is the right one") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    co_await s.set("there", "1");
    rc::failure f = co_await expires(l, s.wait({"there", "missing/1", "missing/2"}, 200ms), 0.2);
    CHECK(f.keys() == std::vector<string>{"missing/1", "missing/2"});
    CHECK(f.effect() == rc::effect::none);
    CHECK_AWAIT(co_await s.add("expired", 1), 1);
    f = co_await expires(l, s.get("missing/1", 200ms), 0.2);
    CHECK(f.keys() == std::vector<string>{"missing/1"});
    CHECK_AWAIT(co_await s.get("there"), "1");
    f = co_await expires(l, s.multi_get({"there", "missing/2"}, 200ms), 0.2);
    CHECK(f.keys() == std::vector<string>{"missing/2"});
    CHECK_AWAIT(co_await s.add("expired", 1), 2);
    f = co_await expires(l, s.wait("missing/1", 0ms), 0);
    CHECK_AWAIT(co_await s.add("expired", 1), 3);
    CHECK(s.is_open());
  });
}

TEST_CASE("waits and commands overlap on one store") {  // issue 5: item 2
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l), other = co_await connect(l);
    // Not before a command has overtaken the waits: they are older than it.
    const auto setter = [&](string key, string command) -> rc::task<> {
      for (bool there = false; !there;) there = co_await other.check(command);
      co_await other.set(key, "set");
    };
    for (int round = 0; round < 20; ++round) {
      const string r = "overlap/" + std::to_string(round) + "/";
      const auto [a, b, c, d, e, f] = co_await rc::when_all(s.wait(r + "a"), s.wait(r + "b"), s.add(r + "c", 1), s.get(r + "d"),
                                                            rc::when_all(setter(r + "b", r + "c"), setter(r + "a", r + "c")), setter(r + "d", r + "c"));
      CHECK(c == 1);
      CHECK(d == "set");
      CHECK_AWAIT(co_await s.add(r + "c", 1), 2);
    }
  });
}

TEST_CASE("a pending wait delays nothing") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    rc::scope waiting(l);
    int ended = 0;
    const auto wait = [&](rc::operation<void> op) -> rc::task<> {
      co_await std::move(op);
      ++ended;
    };
    waiting.spawn(wait(s.wait("delay/one")));
    waiting.spawn(wait(s.wait({"delay/two", "delay/three"})));
    for (int i = 1; i <= 200; ++i) {
      const std::int64_t n = co_await s.add("delay/n", 1);
      const string text = co_await s.get("delay/n");
      REQUIRE(n == i);
      REQUIRE(text == std::to_string(i));
    }
    CHECK(ended == 0);
    co_await s.multi_set({rc::kv("delay/one", ""), rc::kv("delay/two", ""), rc::kv("delay/three", "")});
    co_await waiting.join();
    CHECK(ended == 2);
  });
}

TEST_CASE("many waits at once on one store") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l), other = co_await connect(l);
    constexpr int n = 40;
    std::vector<int> woken;
    rc::scope waiting(l);
    const auto wait = [&](int i) -> rc::task<> {
      const string value = co_await s.get("crowd/" + std::to_string(i));
      CHECK(value == std::to_string(i));
      woken.push_back(i);
    };
    for (int i = 0; i < n; ++i) waiting.spawn(wait, i);
    for (int i = n - 1; i >= 0; --i) {
      co_await other.set("crowd/" + std::to_string(i), std::to_string(i));
      CHECK_AWAIT(co_await s.add("crowd", 1), n - i);
    }
    co_await waiting.join();
    CHECK(woken.size() == n);
  });
}

TEST_CASE("stopped waits leave the stream in step") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const unsigned seed = std::random_device()();
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto some = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    rc::tcp_store s = co_await connect(l), other = co_await connect(l);
    rc::scope setters(l);
    const auto set_later = [&](string key, int after) -> rc::task<> {
      if (after > 0) co_await rc::sleep_for(std::chrono::microseconds(after));
      co_await other.set(key, "x");
    };
    int woken = 0, stopped = 0;
    for (int i = 0; i < 600; ++i) {
      // Stopped before, while and after the completion comes: `01`, `00 01` and `00` with a late `01` (protocol 7.5).
      const string key = "race/" + std::to_string(i), second = key + "/second";
      const int at = some(2000);
      setters.spawn(set_later, key, at + some(1000) - 500);
      rc::result<void> r;
      if (some(3) == 0) {
        setters.spawn(set_later, second, at);
        r = co_await rc::as_result(rc::with_deadline(s.wait({key, second}), std::chrono::microseconds(at)));
      } else {
        r = co_await rc::as_result(rc::with_deadline(s.wait(key), std::chrono::microseconds(at)));
      }
      ++(r ? woken : stopped);
      if (!r) CHECK(r.code() == rc::errc::timed_out);
      const std::int64_t n = co_await s.add("race", 1);
      REQUIRE(n == i + 1);
      if (some(1) == 0) {
        const string text = co_await s.get("race");
        REQUIRE(text == std::to_string(i + 1));
      }
    }
    co_await setters.join();
    CHECK(woken > 0);
    CHECK(stopped > 0);
    CHECK(s.is_open());
  });
}

TEST_CASE("every kind of operation can be stopped in flight") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    const auto stop = [&](auto op) -> rc::task<> {
      const auto r = co_await rc::as_result(rc::with_deadline(std::move(op), 0ms));
      if (!r) CHECK(r.code() == rc::errc::timed_out);
    };
    for (int i = 0; i < 30; ++i) {
      const string k = "stopped/" + std::to_string(i);
      co_await stop(s.set(k, "v"));
      co_await stop(s.get(k));
      co_await stop(s.find(k));
      co_await stop(s.add(k + "/n", 1));
      co_await stop(s.check({k, "stopped/never"}));
      co_await stop(s.wait({k, "stopped/never"}));
      co_await stop(s.compare_set(k, "a", "b"));
      co_await stop(s.append(k, "x"));
      co_await stop(s.multi_get({k, "stopped/never"}));
      co_await stop(s.multi_set({rc::kv(k, "1"), rc::kv(k + "/2", "2")}));
      co_await stop(s.num_keys());
      co_await stop(s.delete_key(k));
      co_await stop(s.list_keys());
      co_await stop(s.ping());
      co_await stop(s.flush());
      co_await stop(s.server_barrier(k + "/barrier", 2));
      if (has_queues()) {
        co_await stop(s.queue_push(k + "/queue", "item"));
        co_await stop(s.queue_len(k + "/queue"));
        co_await stop(s.queue_pop(k + "/queue"));
        co_await stop(s.queue_pop_now(k + "/queue"));
      }
      CHECK_AWAIT(co_await s.add("stopped", 1), i + 1);
    }
  });
}

TEST_CASE("queues") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    if (!has_queues()) {
      // PyTorch's legacy server closes at these: only a connection of its own is spent on learning that.
      const rc::result<void> push = co_await rc::as_result(s.queue_push("queue", "x"));
      CHECK(failure_of(push).code() == rc::errc::unsupported);
      CHECK(failure_of(push).effect() == rc::effect::none);
      const rc::result<string> pop = co_await rc::as_result(s.queue_pop("queue"));
      CHECK(failure_of(pop).code() == rc::errc::unsupported);
      const rc::result<std::int64_t> length = co_await rc::as_result(s.queue_len("queue"));
      CHECK(failure_of(length).code() == rc::errc::unsupported);
      CHECK(s.is_open());
      CHECK_AWAIT(co_await s.add("queue/n", 1), 1);
      co_return;
    }
    CHECK_AWAIT(co_await s.queue_len("queue"), 0);
    CHECK_AWAIT(co_await s.queue_pop_now("queue"), std::optional<string>());
    const string binary("\0\xff", 2), large(std::size_t{8} << 20, 'q');
    co_await s.queue_push("queue", "first");
    co_await s.queue_push("queue", binary);
    co_await s.queue_push("queue", "");
    co_await s.queue_push("queue", large);
    CHECK_AWAIT(co_await s.queue_len("queue"), 4);
    CHECK_AWAIT(co_await s.check("queue"), true);
    CHECK_AWAIT(co_await s.queue_pop("queue"), "first");
    CHECK_AWAIT(co_await s.queue_pop_now("queue"), std::optional<string>(binary));
    CHECK_AWAIT(co_await s.queue_pop("queue"), "");
    const string got = co_await s.queue_pop("queue");
    CHECK((got == large));
    rc::failure f = co_await expires(l, s.queue_pop("queue", 200ms), 0.2);
    CHECK(f.keys() == std::vector<string>{"queue"});
    CHECK_AWAIT(co_await s.queue_len("queue"), 0);
  });
}

TEST_CASE("each item goes to one of several pops, whether they are stopped or not") {
  if (!has_queues()) return;
  on_loop([](rc::loop& l) -> rc::task<> {
    const unsigned seed = std::random_device()();
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto some = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    constexpr int items = 400, consumers = 4;
    int popped = 0, stopped = 0;
    std::vector<int> seen(items, 0);
    const auto consume = [&]() -> rc::task<> {
      rc::tcp_store s = co_await connect(l);
      while (popped < items) {
        const rc::result<string> r =
            co_await rc::as_result(rc::with_deadline(s.queue_pop("shared"), std::chrono::microseconds(500 + some(4000))));
        if (!r) {
          CHECK(r.code() == rc::errc::timed_out);
          ++stopped;
          continue;
        }
        ++seen[static_cast<std::size_t>(std::atoi(r.value().c_str()))];
        ++popped;
      }
    };
    const auto produce = [&]() -> rc::task<> {
      rc::tcp_store s = co_await connect(l);
      for (int i = 0; i < items; ++i) {
        co_await s.queue_push("shared", std::to_string(i));
        if (some(9) == 0) co_await rc::sleep_for(std::chrono::microseconds(some(5000)));
      }
    };
    rc::scope all(l);
    for (int i = 0; i < consumers; ++i) all.spawn(consume());
    all.spawn(produce());
    co_await all.join();
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    CHECK(stopped > 0);
  });
}

TEST_CASE("an item of a stopped pop goes to the next pop, and back at the close") {
  if (!has_queues()) return;
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l), other = co_await connect(l);
    for (int i = 0; i < 30; ++i) {
      co_await other.queue_push("back", std::to_string(i));
      // Stopped in the turn in which it is sent: the item is on its way.
      const rc::result<string> r = co_await rc::as_result(rc::with_deadline(s.queue_pop("back"), 0ms));
      string item;
      if (r) {
        item = *r;
      } else {
        item = co_await s.queue_pop("back");
      }
      CHECK(item == std::to_string(i));
    }
    co_await other.queue_push("back", "kept");
    const rc::result<string> stopped = co_await rc::as_result(rc::with_deadline(s.queue_pop("back"), 0ms));
    CHECK_FALSE(stopped);
    CHECK_AWAIT(co_await s.add("back/n", 1), 1);  // whatever was popped is here now
    s.close();
    CHECK_AWAIT(co_await other.queue_pop("back"), "kept");
  });
}

TEST_CASE("list_keys, the server's barrier and ping") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    co_await s.set("listed/\xff", "");
    const std::vector<string> names = co_await s.list_keys();
    CHECK(std::count(names.begin(), names.end(), "listed/\xff") == 1);
    CHECK(std::count(names.begin(), names.end(), "init/") == 0);
    const rc::duration took = co_await s.ping();
    CHECK(took > 0ns);
    rc::tcp_store other = co_await s.clone(20s);
    for (int round = 0; round < 10; ++round) {
      const string name = "theirs/" + std::to_string(round);
      co_await rc::when_all(s.server_barrier(name, 2), other.server_barrier(name, 2));
    }
    rc::failure f = co_await expires(l, s.server_barrier("theirs/late", 2, 100ms), 0.1);
    CHECK(f.keys() == std::vector<string>{"theirs/late"});
    CHECK_AWAIT(co_await s.get("theirs/late"), "1");  // it stays counted
    co_await rc::when_all(s.server_barrier("theirs/late", 2), other.server_barrier("theirs/late", 2));
    CHECK_AWAIT(co_await s.get("theirs/late"), "2");  // and does not count again
    CHECK_AWAIT(co_await s.add("theirs/n", 1), 1);
  });
}

TEST_CASE("sends, a fence, and reads into a buffer") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l), other = co_await connect(l);
    for (int i = 0; i < 500; ++i) {
      s.send_set("sent/" + std::to_string(i), std::to_string(i));
      s.send_append("sent/log", "x");
    }
    s.send_multi_set({rc::kv("sent/a", "1"), rc::kv("sent/b", "2")});
    co_await s.flush();
    CHECK_AWAIT(co_await other.find("sent/499"), std::optional<string>("499"));
    CHECK_AWAIT(co_await other.find("sent/b"), std::optional<string>("2"));
    char buffer[1000];
    CHECK_AWAIT(co_await other.get_into("sent/log", buffer), 500);
    CHECK(string(buffer, 500) == string(500, 'x'));
    char small[10];
    const rc::result<std::size_t> r = co_await rc::as_result(other.get_into("sent/log", small));
    CHECK(failure_of(r).code() == rc::errc::limit);
    CHECK_AWAIT(co_await other.add("sent/n", 1), 1);
    if (has_queues()) {
      CHECK_AWAIT(co_await s.queue_len("sent/q"), 0);
      s.send_queue_push("sent/q", "item");
      co_await s.flush();
      CHECK_AWAIT(co_await other.queue_pop_now("sent/q"), std::optional<string>("item"));
    }
  });
}

TEST_CASE("a lost connection is made again when it is asked for") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    co_await s.set("again/words", "no number");
    const rc::result<std::int64_t> r = co_await rc::as_result(s.add("again/words", 1));
    CHECK(failure_of(r).code() == rc::errc::disconnected);
    CHECK_FALSE(s.is_open());
    co_await s.reconnect(20s);
    CHECK(s.is_open());
    CHECK_AWAIT(co_await s.get("again/words"), "no number");
    s.close();
    co_await s.reconnect(20s);
    CHECK_AWAIT(co_await s.add("again/n", 1), 1);
  });
}

TEST_CASE("a number that is none costs that connection and no other") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l), witness = co_await connect(l);
    co_await witness.set("words", "no number");
    const rc::result<std::int64_t> r = co_await rc::as_result(s.add("words", 1));
    const rc::failure f = failure_of(r);
    CHECK(f.code() == rc::errc::disconnected);
    CHECK(f.effect() == rc::effect::unknown);
    CHECK(f.keys() == std::vector<string>{"words"});
    CHECK_FALSE(s.is_open());
    CHECK_AWAIT(co_await witness.get("words"), "no number");
  });
}

TEST_CASE("barriers of ours: all arrive, the missing are named, an abort is heard") {
  on_loop([](rc::loop& l) -> rc::task<> {
    std::vector<rc::tcp_store> s;
    for (int r = 0; r < 4; ++r) s.push_back(co_await connect(l));
    const auto objects = [&s] {
      std::vector<rc::barrier<>> all;
      for (int r = 0; r < 4; ++r) all.emplace_back(s[static_cast<std::size_t>(r)], "ours", r, 4);
      return all;
    };
    std::vector<rc::barrier<>> all = objects();
    std::vector<string> ends;
    const auto arrive = [&](std::size_t r, rc::deadline limit) -> rc::task<> {
      const rc::result<void> met = co_await rc::as_result(all[r].arrive_and_wait(limit));
      if (!met) CHECK(met.code() == rc::errc::failed);
      ends.push_back(met ? "ok" : met.error().message());
    };
    const auto meet = [&](std::vector<std::size_t> ranks, rc::deadline limit) -> rc::task<> {
      ends.clear();
      rc::scope group(l);
      for (const std::size_t r : ranks) group.spawn(arrive(r, limit));
      co_await group.join();
    };
    const std::vector<std::size_t> everyone{0, 1, 2, 3}, without_three{0, 1, 2};
    const std::vector<string> passed(4, "ok");
    std::int64_t keys = 0;
    for (int round = 0; round < 6; ++round) {  // with the objects of before, then with fresh ones
      if (round >= 3) all = objects();
      co_await meet(everyone, 30s);
      CHECK(ends == passed);
      keys = co_await s[0].num_keys();
    }
    co_await meet(without_three, 200ms);
    CHECK(ends.size() == 3);
    for (string const& e : ends) CHECK(contains(e, "1 of 4 missing: 3"));
    ends.clear();
    rc::scope group(l);
    for (std::size_t r = 0; r < 2; ++r) group.spawn(arrive(r, 30s));
    while (co_await s[2].add("ours/7/count", 0) < 2) co_await rc::sleep_for(1ms);
    const bool decided = co_await all[2].abort("no space left");
    CHECK(decided);
    co_await group.join();
    CHECK(ends.size() == 2);
    for (string const& e : ends) CHECK(contains(e, "rank 2: no space left"));
    all = objects();
    for (int round = 0; round < 3; ++round) {
      co_await meet(everyone, 30s);
      CHECK(ends == passed);
    }
    const std::int64_t afterwards = co_await s[0].num_keys();
    CHECK(afterwards <= keys + 12);  // old generations are deleted, in the end
  });
}

TEST_CASE("collectives") {
  on_loop([](rc::loop& l) -> rc::task<> {
    constexpr int world = 5;
    std::vector<std::int64_t> ranks;
    const auto member = [&](int r) -> rc::task<> {
      rc::tcp_store s = co_await connect(l);
      const std::vector<string> all = co_await rc::all_gather(s, "gather", r, world, std::to_string(r * r), 20s);
      const std::vector<string> expected{"0", "1", "4", "9", "16"};
      CHECK(all == expected);
      const string word = co_await rc::broadcast(s, "cast", r, 3, r == 3 ? "from three" : "", 20s);
      CHECK(word == "from three");
      ranks.push_back(co_await rc::assign_ranks(s, "ranks", "host" + std::to_string(r), world, 20s));
      co_await rc::store_based_barrier(s, "after", r, world, 20s);
    };
    rc::scope all(l);
    for (int r = 0; r < world; ++r) all.spawn(member, r);
    co_await all.join();
    std::sort(ranks.begin(), ranks.end());
    CHECK(ranks == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  });
}

TEST_CASE("a frozen server makes every operation fail at its own limit, and the store goes on after it") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l, 300ms);
    rc::tcp_store calm = co_await connect(l);
    co_await calm.set("frozen/k", "v");
    {
      frozen server(server_pid());
      rc::failure f = co_await expires(l, s.get("frozen/k"), 0.3);
      f = co_await expires(l, s.add("frozen/n", 1), 0.3);
      CHECK(f.effect() == rc::effect::unknown);
      f = co_await expires(l, s.set("frozen/s", "v"), 0.3);
      CHECK(f.effect() == rc::effect::unknown);
      f = co_await expires(l, s.find("frozen/k"), 0.3);
      f = co_await expires(l, s.check({"frozen/k"}), 0.3);
      f = co_await expires(l, s.wait("frozen/k"), 0.3);
      f = co_await expires(l, s.wait({"frozen/k", "frozen/never"}), 0.3);
      f = co_await expires(l, s.compare_set("frozen/c", "", "1"), 0.3);
      f = co_await expires(l, s.append("frozen/a", "1"), 0.3);
      f = co_await expires(l, s.multi_get({"frozen/k", "frozen/n"}), 0.3);
      f = co_await expires(l, s.multi_set({rc::kv("frozen/m", "1")}), 0.3);
      f = co_await expires(l, s.delete_key("frozen/d"), 0.3);
      f = co_await expires(l, s.num_keys(), 0.3);
      f = co_await expires(l, s.list_keys(), 0.3);
      f = co_await expires(l, s.ping(), 0.3);
      f = co_await expires(l, s.server_barrier("frozen/b", 2), 0.3);
      if (has_queues()) {
        f = co_await expires(l, s.queue_push("frozen/q", "item"), 0.3);
        f = co_await expires(l, s.queue_len("frozen/q"), 0.3);
        f = co_await expires(l, s.queue_pop("frozen/q"), 0.3);
      }
    }
    CHECK_AWAIT(co_await calm.get("frozen/k", 20s), "v");
    CHECK(s.is_open());
    CHECK_AWAIT(co_await s.get("frozen/k", 20s), "v");
    const string n = co_await s.get("frozen/n", 20s);
    CHECK(n == "1");  // it was sent, and is not repeated
    CHECK_AWAIT(co_await calm.add("frozen/n", 1), 2);
    CHECK(s.is_open());
  });
}

TEST_CASE("a server that dies fails everything at once", "[.end]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::tcp_store s = co_await connect(l);
    rc::scope pending(l);
    int failed = 0;
    const auto fails = [&](auto op) -> rc::task<> {
      const auto r = co_await rc::as_result(std::move(op));
      if (!r && r.code() == rc::errc::disconnected) ++failed;
    };
    pending.spawn(fails(s.wait("never/1")));
    pending.spawn(fails(s.wait({"never/2", "never/3"})));
    pending.spawn(fails(s.get("never/4")));
    co_await s.set("k", "v");
    const rc::time_point begun = l.now();
    ::kill(server_pid(), SIGKILL);
    co_await pending.join();
    CHECK(seconds(l.now() - begun) < 5);
    CHECK(failed == 3);
    CHECK_FALSE(s.is_open());
    const rc::result<void> late = co_await rc::as_result(s.set("k", "v"));
    CHECK(failure_of(late).code() == rc::errc::disconnected);
    CHECK(failure_of(late).effect() == rc::effect::none);
  });
}
