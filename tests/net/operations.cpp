#include <algorithm>
#include <array>
#include <set>

#include "../support/net.hpp"

// The operations of the client that only some servers know, those that return at once, and a store's way back after a loss.

using namespace net_test;

namespace {

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

std::vector<string> sorted(std::vector<string> v) {
  std::sort(v.begin(), v.end());
  return v;
}

/// Stops what was started before this call, after it has staged its request and before anything can have come back.
rc::task<> stop_when_staged(rc::loop& l, rc::stop_source& stop) {
  rc::scope order(l);
  auto stopper = [&]() -> rc::task<> {
    stop.request_stop();
    co_return;
  };
  order.spawn(stopper);
  co_await order.join();
}

template <class T>
struct outcome {
  std::optional<rc::result<T>> r;
  rc::stop_source stop;
  void start(rc::operation<T> op) {
    rc::start(std::move(op), [this](rc::result<T> x) { r = std::move(x); }, stop.token());
  }
};

}  // namespace

TEST_CASE("queues give their items in order, each to one", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::nullopt);
    CHECK_AWAIT(co_await s.queue_len("q"), 0);
    co_await s.queue_push("q", "1");
    co_await s.queue_push("q", "");
    co_await s.queue_push("q", "3");
    CHECK_AWAIT(co_await s.queue_len("q"), 3);
    CHECK_AWAIT(co_await s.check("q"), true);
    CHECK_AWAIT(co_await s.num_keys(), 0);
    CHECK_AWAIT(co_await s.queue_pop("q"), "1");
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::optional<string>(""));
    CHECK_AWAIT(co_await s.queue_pop("q", 1s), "3");
    const rc::failure f = failure_of(co_await rc::as_result(s.queue_pop("q", 30ms)));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.operation() == "queue_pop");
    CHECK(f.keys() == std::vector<string>{"q"});
    CHECK(f.effect() == rc::effect::none);
    CHECK(s.connections() == 1);

    // Twenty that wait, on two stores; each gets one of its own.
    rc::tcp_store other = co_await client_of(l, server.port());
    std::vector<string> got;
    rc::scope pops(l);
    auto one = [&got](rc::tcp_store store) -> rc::task<> {
      string item = co_await store.queue_pop("work", 20s);
      got.push_back(std::move(item));
    };
    for (int i = 0; i < 20; ++i) pops.spawn(one(i % 2 != 0 ? s : other));
    std::vector<string> all;
    for (int i = 0; i < 20; ++i) {
      all.push_back("item " + std::to_string(i));
      co_await other.queue_push("work", all.back());
    }
    co_await pops.join();
    CHECK(sorted(got) == sorted(all));
    CHECK_AWAIT(co_await s.queue_len("work"), 0);
  });
}

TEST_CASE("a blocking pop is not misled by a value under the same key", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    co_await s.set("q", "a value");  // every WAIT for it ends at once
    outcome<string> pop;
    pop.start(s.queue_pop("q", 20s));
    const std::uint64_t before = server.stats().requests;
    co_await rc::sleep_for(150ms);
    CHECK(server.stats().requests - before < 100);  // it does not spin
    CHECK_FALSE(pop.r);
    co_await s.queue_push("q", "an item");
    co_await eventually([&] { return pop.r.has_value(); });
    CHECK(pop.r->value() == "an item");
    CHECK_AWAIT(co_await s.get("q"), "a value");
    static_cast<void>(l);
  });
}

TEST_CASE("a stopped pop loses no item: the next pop of the key gets it", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server&) -> rc::task<> {
    co_await s.queue_push("q", "1");
    co_await s.queue_push("q", "2");
    co_await s.queue_push("other", "x");
    outcome<string> first;
    first.start(s.queue_pop("q"));  // asks for the item at once
    co_await stop_when_staged(l, first.stop);
    co_await eventually([&] { return first.r.has_value(); });
    const rc::failure f = failure_of(*first.r);
    CHECK(f.code() == rc::errc::cancelled);
    CHECK(f.effect() == rc::effect::none);
    SECTION("by queue_pop, after it has come") {
      CHECK_AWAIT(co_await s.queue_len("q"), 1);
      CHECK_AWAIT(co_await s.queue_pop("q"), "1");
    }
    SECTION("by queue_pop, before it has come") { CHECK_AWAIT(co_await s.queue_pop("q"), "1"); }
    SECTION("by queue_pop_now") {
      CHECK_AWAIT(co_await s.queue_len("q"), 1);
      CHECK_AWAIT(co_await s.queue_pop_now("q"), std::optional<string>("1"));
    }
    CHECK_AWAIT(co_await s.queue_pop("other"), "x");
    CHECK_AWAIT(co_await s.queue_pop("q"), "2");
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::nullopt);
  });
}

TEST_CASE("close() and the end of the last handle push items back at the tail", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    for (const bool arrived : {false, true}) {
      for (const bool closes : {false, true}) {
        INFO(arrived << closes);
        co_await s.queue_push("q", "1");
        co_await s.queue_push("q", "2");
        {
          rc::tcp_store leaving = co_await client_of(l, server.port());
          outcome<string> pop;
          pop.start(leaving.queue_pop("q"));
          co_await stop_when_staged(l, pop.stop);
          co_await eventually([&] { return pop.r.has_value(); });
          if (arrived) static_cast<void>(co_await leaving.ping());
          if (closes) {
            leaving.close();
            const rc::failure f = failure_of(co_await rc::as_result(leaving.queue_pop("q")));
            CHECK(f.code() == rc::errc::closed);
          }
        }
        co_await eventually([&] { return server.stats().connections == 1; });
        CHECK_AWAIT(co_await s.queue_pop("q"), "2");
        CHECK_AWAIT(co_await s.queue_pop("q"), "1");
      }
    }
  });
}

TEST_CASE("get of a key that is a queue and has no value waits without spinning", "[operations]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server& server) -> rc::task<> {
    co_await s.queue_push("q", "an item");  // ends every WAIT for the key at once (protocol 7.4)
    const std::uint64_t before = server.stats().requests;
    const rc::failure one = failure_of(co_await rc::as_result(s.get("q", 300ms)));
    CHECK(one.code() == rc::errc::timed_out);
    const rc::failure many = failure_of(co_await rc::as_result(s.multi_get("q", 300ms)));
    CHECK(many.code() == rc::errc::timed_out);
    CHECK(server.stats().requests - before < 400);  // about 80; without a pause some ten thousand
    const std::uint64_t mark = server.stats().requests;
    outcome<string> get;
    get.start(s.get("q", 20s));
    co_await eventually([&] { return server.stats().requests > mark + 10; });
    co_await s.set("q", "a value");
    co_await eventually([&] { return get.r.has_value(); });
    CHECK(get.r->value() == "a value");
    CHECK_AWAIT(co_await s.queue_len("q"), 1);
  });
}

TEST_CASE("list_keys tells users' keys as they wrote them", "[operations]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    const std::vector<string> none = co_await s.list_keys();
    CHECK(none.empty());
    co_await s.multi_set({rc::kv("a", "1"), rc::kv("/b", "2"), rc::kv("", "3")});
    co_await s.queue_push("q", "not a key");
    std::vector<string> some = co_await s.list_keys();
    CHECK(sorted(some) == std::vector<string>{"", "/b", "a"});
  });
}

TEST_CASE("get_into writes to the buffer it is given", "[operations]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    std::array<char, 16> room{};
    co_await s.set("k", "0123456789");
    CHECK_AWAIT(co_await s.get_into("k", room), 10U);
    CHECK(string_view(room.data(), 10) == "0123456789");
    co_await s.set("empty", "");
    CHECK_AWAIT(co_await s.get_into("empty", room), 0U);
    const rc::failure f = failure_of(co_await rc::as_result(s.get_into("k", std::span<char>(room).first(9))));
    CHECK(f.code() == rc::errc::limit);
    CHECK(f.operation() == "get_into");
    CHECK(contains(f.message(), "10 bytes"));
    string big(3'000'000, 'x');
    for (std::size_t i = 0; i < big.size(); i += 1009) big[i] = static_cast<char>(i);
    co_await s.set("big", big);
    std::vector<char> large(big.size());
    CHECK_AWAIT(co_await s.get_into("big", large), big.size());
    CHECK((string_view(large.data(), large.size()) == big));
    const rc::failure none = failure_of(co_await rc::as_result(s.get_into("missing", room, 20ms)));
    CHECK(none.code() == rc::errc::timed_out);
    CHECK_AWAIT(co_await s.get("k"), "0123456789");
  });
}

TEST_CASE("in steady state operations allocate nothing", "[operations]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    std::array<char, 64> room{};
    const string value(40, 'v');
    std::uint64_t before = 0;
    for (int i = 0; i < 300; ++i) {
      if (i == 100) before = counted_allocations();
      co_await s.set("k", value);
      const std::size_t n = co_await s.get_into("k", room);
      if (n != 40) FAIL("another length");
      static_cast<void>(co_await s.add("n", 1));
      static_cast<void>(co_await s.check({"k", "n"}));
      co_await s.wait("k");
      static_cast<void>(co_await s.ping());
      for (int j = 0; j < 5; ++j) s.send_set("k", value);
      co_await s.flush();
    }
    CHECK(counted_allocations() - before == 0);
  });
}

TEST_CASE("the server's own barrier lets all through together, once", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    co_await s.server_barrier("alone", 1);
    outcome<void> first;
    first.start(s.server_barrier("b", 2, 20s));
    co_await s.set("k", "v");  // is not delayed
    CHECK_FALSE(first.r);
    co_await other.server_barrier("b", 2, 20s);
    co_await eventually([&] { return first.r.has_value(); });
    CHECK(first.r->has_value());
    CHECK_AWAIT(co_await s.get("b"), "2");
    co_await s.server_barrier("b", 2, 20s);  // it stays open
  });
}

TEST_CASE("a barrier that is stopped or out of time stays counted once; calling again resumes it", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    const rc::failure f = failure_of(co_await rc::as_result(s.server_barrier("b", 2, 20ms)));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.operation() == "server_barrier");
    CHECK(f.keys() == std::vector<string>{"b"});
    CHECK(f.effect() == rc::effect::unknown);
    for (int i = 0; i < 3; ++i) {
      outcome<void> again;
      again.start(s.server_barrier("b", 2, 20s));
      co_await rc::sleep_for(5ms);
      again.stop.request_stop();
      co_await eventually([&] { return again.r.has_value(); });
      CHECK_FALSE(again.r->has_value());
    }
    CHECK_AWAIT(co_await other.get("b"), "1");
    outcome<void> last;
    last.start(s.server_barrier("b", 2, 20s));
    co_await other.server_barrier("b", 2, 20s);
    co_await eventually([&] { return last.r.has_value(); });
    CHECK(last.r->has_value());
    CHECK_AWAIT(co_await other.get("b"), "2");
  });
}

TEST_CASE("a barrier that is resumed and then lost has an unknown effect, also when its look at the count never left", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server&) -> rc::task<> {
    const rc::failure first = failure_of(co_await rc::as_result(s.server_barrier("b", 2, 20ms)));
    CHECK(first.code() == rc::errc::timed_out);
    outcome<void> busy;
    busy.start(s.wait({"never", "ever"}, 20s));  // so that the look goes by a connection that does not stand yet
    outcome<void> again;
    again.start(s.server_barrier("b", 2, 20s));
    rc::scope order(l);
    auto closer = [&]() -> rc::task<> {
      s.close();
      co_return;
    };
    order.spawn(closer);  // when both are staged, and before anything can have come back
    co_await order.join();
    co_await eventually([&] { return busy.r && again.r; });
    const rc::failure f = failure_of(*again.r);
    CHECK(f.code() == rc::errc::closed);
    CHECK(f.effect() == rc::effect::unknown);
  });
}

TEST_CASE("sends return at once, in order and in one write; flush fences them", "[operations]") {
  with_store([](rc::loop& l, rc::tcp_store& s, local_server& server) -> rc::task<> {
    rc::tcp_store other = co_await client_of(l, server.port());
    static_cast<void>(co_await s.ping());
    const rc::server_stats before = server.stats();
    for (int i = 0; i < 100; ++i) s.send_set("k", std::to_string(i));
    s.send_append("k", "+");
    s.send_multi_set({rc::kv("a", "1"), rc::kv("b", "2")});
    s.send_queue_push("q", "item");
    co_await s.flush();
    CHECK(server.stats().reads - before.reads == 1);
    CHECK(server.stats().requests - before.requests == 104);  // one fence
    CHECK_AWAIT(co_await other.find("k"), std::optional<string>("99+"));
    CHECK_AWAIT(co_await other.check({"a", "b", "q"}), true);
    co_await s.flush();  // nothing to fence, nothing asked
    CHECK(server.stats().requests - before.requests == 107);

    // What is asked afterwards finds it done, whatever waits stand on the connections.
    rc::scope waits(l);
    for (int i = 0; i < 4; ++i) {
      waits.spawn(s.wait({"never", "ever"}, 20s));
      const string text = std::to_string(i);
      s.send_set("k", text);
      waits.spawn(s.wait({"nor", "this"}, 20s));
      CHECK_AWAIT(co_await s.get("k"), text);
    }
    waits.request_stop();
    co_await waits.join();
    try {
      s.send_set(string(9000, 'k'), "v");
      CHECK(false);
    } catch (rc::error const& e) {
      CHECK(e.code() == rc::errc::limit);
    }
    s.send_set("last", "words");
    s.close();
    try {
      s.send_set("k", "v");
      CHECK(false);
    } catch (rc::error const& e) {
      CHECK(e.code() == rc::errc::closed);
    }
    CHECK_AWAIT(co_await other.get("last", 10s), "words");
  });
}

TEST_CASE("sends that are not confirmed stay on their connection, or are refused", "[operations]") {
  with_store(
      [](rc::loop& l, rc::tcp_store& s, local_server&) -> rc::task<> {
        outcome<void> first;
        outcome<void> second;
        first.start(s.wait({"never", "ever"}, 20s));
        static_cast<void>(co_await s.ping());
        s.send_set("k", "1");                         // beside the first wait
        second.start(s.wait({"nor", "this"}, 20s));  // takes the last connection, behind the send
        std::optional<rc::errc> refused;
        rc::scope order(l);
        auto sender = [&]() -> rc::task<> {
          first.stop.request_stop();
          try {
            s.send_set("k", "2");  // the connection that is free now is not that of the first send, which it could overtake
          } catch (rc::error const& e) {
            refused = e.code();
          }
          co_return;
        };
        order.spawn(sender);
        co_await order.join();
        CHECK(refused == rc::errc::limit);
        second.stop.request_stop();
        co_await eventually([&] { return first.r && second.r; });
        co_await s.flush();
        CHECK_AWAIT(co_await s.find("k"), std::optional<string>("1"));
      },
      rc::client_options{}.max_lanes(2));
}

TEST_CASE("ping and clone", "[operations]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server& server) -> rc::task<> {
    const rc::duration took = co_await s.ping();
    CHECK(took > 0ns);
    CHECK(took < 10s);
    rc::tcp_store twin = co_await s.clone();
    CHECK(twin.host() == s.host());
    CHECK(twin.port() == s.port());
    CHECK(twin.identity() != s.identity());
    CHECK(server.stats().connections == 2);
    s.close();
    co_await twin.set("k", "v");
    CHECK_AWAIT(co_await twin.get("k"), "v");
  });
}

TEST_CASE("reconnect finds the same server again, for every copy; nothing lost is repeated", "[operations]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server&) -> rc::task<> {
    rc::tcp_store copy = s;
    co_await s.reconnect(5s);  // open: nothing to do
    co_await s.set("text", "abc");
    s.send_set("k", "v");
    const rc::failure f = failure_of(co_await rc::as_result(s.add("text", 1)));  // ends the connection
    CHECK(f.code() == rc::errc::disconnected);
    CHECK(f.effect() == rc::effect::unknown);
    CHECK_FALSE(copy.is_open());
    CHECK_THROWS_AS(s.send_set("k2", "v2"), rc::error);
    co_await copy.reconnect(5s);
    CHECK(s.is_open());
    // What was sent before the loss is not confirmed, and the first flush says so.
    const rc::failure lost = failure_of(co_await rc::as_result(s.flush()));
    CHECK(lost.code() == rc::errc::disconnected);
    CHECK(lost.operation() == "flush");
    CHECK(lost.effect() == rc::effect::unknown);
    co_await s.flush();
    CHECK_AWAIT(co_await s.get("text"), "abc");
    CHECK_AWAIT(co_await copy.add("n", 1), 1);
    s.close();
    CHECK_FALSE(copy.is_open());
    co_await s.reconnect(5s);
    CHECK_AWAIT(co_await copy.add("n", 1), 2);
  });
}

TEST_CASE("a flush that tells of a loss leaves what was sent since to the next one", "[operations]") {
  with_store([](rc::loop&, rc::tcp_store& s, local_server& server) -> rc::task<> {
    co_await s.set("text", "abc");
    s.send_set("k", "v");
    static_cast<void>(failure_of(co_await rc::as_result(s.add("text", 1))));  // ends the connection
    co_await s.reconnect(5s);
    const rc::server_stats before = server.stats();
    s.send_set("k", "v2");
    const rc::failure lost = failure_of(co_await rc::as_result(s.flush()));
    CHECK(lost.code() == rc::errc::disconnected);
    co_await s.flush();
    CHECK(server.stats().requests - before.requests == 2);  // SET and the fence
  });
}

TEST_CASE("a store that is closed while it reconnects stays closed", "[operations]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    rc::tcp_store s = co_await client_of(l, server.port());
    s.close();
    rc::result<void> ended;
    const auto reconnect = [&]() -> rc::task<> { ended = co_await rc::as_result(s.reconnect(20s)); };
    rc::scope under_way(l);
    under_way.spawn(reconnect());
    while (server.stats().accepted < 2) co_await rc::sleep_for(0ms);  // a look in every turn: nobody has been greeted yet
    s.close();
    co_await under_way.join();
    CHECK(failure_of(ended).code() == rc::errc::closed);
    CHECK_FALSE(s.is_open());
    const rc::result<std::int64_t> after = co_await rc::as_result(s.add("n", 1));
    CHECK(failure_of(after).code() == rc::errc::closed);
    co_await s.reconnect(20s);
    CHECK_AWAIT(co_await s.add("n", 1), 1);
    co_await server.stop();
  });
}

TEST_CASE("reconnect tells another server from the one before", "[operations]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    std::optional<local_server> server(std::in_place, l);
    const int port = server->port();
    rc::tcp_store s = co_await client_of(l, port);
    co_await s.set("k", "v");
    co_await server->stop();
    server.reset();
    co_await eventually([&] { return !s.is_open(); });
    const rc::failure nobody = failure_of(co_await rc::as_result(s.reconnect(100ms)));
    CHECK(nobody.code() == rc::errc::refused);
    server.emplace(l, rc::serve_options{}, rc::listen_options{}.port(port));
    const rc::failure f = failure_of(co_await rc::as_result(s.reconnect(5s)));
    CHECK(f.code() == rc::errc::server_replaced);
    CHECK(f.operation() == "reconnect");
    CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(port)));
    CHECK_FALSE(s.is_open());
    co_await server->stop();
  });
}

namespace {

/// Speaks to one connection as a server that is not rollcall's: VALIDATE, PING and the probe, then whatever `more(opcode)` says.
rc::task<> foreign(rc::net::socket s, int* connections, bool queues, bool lists, bool barriers) {
  ++*connections;
  rc::engine::store_options plain;
  static rc::engine::store shared{plain};
  rc::engine::client me(shared);
  rc::wire::request_decoder decoder;
  rc::wire::limits limits;
  for (;;) {
    const string_view bytes = co_await s.read_some();
    if (bytes.empty()) co_return;
    string_view rest = bytes;
    rc::wire::request r;
    rc::wire::write_batch out;
    while (decoder.next(rest, r, limits) == rc::wire::decode_status::complete) {
      const int op = static_cast<int>(r.op);
      if ((op >= 14 && op <= 16 && !queues) || (op == 17 && !lists) || (op == 18 && !barriers)) co_return;
      if (r.op == rc::wire::opcode::check && r.key == rc::wire::capability_key) {
        *out.extend(1) = 1;
        continue;
      }
      if (shared.apply(me, r, out) != rc::engine::apply_status::ok) co_return;
    }
    string reply;
    while (!out.empty()) {
      iovec piece[4];
      const int n = out.fill(piece, 4);
      std::size_t taken = 0;
      for (int i = 0; i < n; ++i) {
        reply.append(static_cast<char const*>(piece[i].iov_base), piece[i].iov_len);
        taken += piece[i].iov_len;
      }
      out.consume(taken);
    }
    reply.append(shared.take_due(me), '\0');
    if (!reply.empty()) co_await s.write(reply);
  }
}

}  // namespace

TEST_CASE("what a server does not know is unsupported, and nothing else is hurt", "[operations]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    int connections = 0;
    auto script = [&connections](rc::net::socket s) { return foreign(std::move(s), &connections, false, false, false); };
    scripted_server server(l, script);
    {
      rc::tcp_store s = co_await client_of(l, server.port());
      CHECK_FALSE(s.server_is_rollcall());
      std::vector<rc::failure> failures;
      rc::scope wait(l);
      wait.spawn(s.wait({"never", "ever"}, 20s));
      co_await s.set("number", "1");
      failures.push_back(failure_of(co_await rc::as_result(s.queue_push("q", "x"))));
      failures.push_back(failure_of(co_await rc::as_result(s.queue_pop("q"))));
      failures.push_back(failure_of(co_await rc::as_result(s.queue_pop_now("q"))));
      failures.push_back(failure_of(co_await rc::as_result(s.queue_len("q"))));
      failures.push_back(failure_of(co_await rc::as_result(s.list_keys())));
      failures.push_back(failure_of(co_await rc::as_result(s.server_barrier("b", 2))));
      for (rc::failure const& f : failures) {
        INFO(f.message());
        CHECK(f.code() == rc::errc::unsupported);
        CHECK(f.effect() == rc::effect::none);
        CHECK(contains(f.message(), "127.0.0.1:"));
      }
      CHECK(wait.size() == 1);
      CHECK(s.is_open());
      CHECK_AWAIT(co_await s.add("n", 1), 1);
      CHECK_THROWS_AS(s.send_queue_push("q", "x"), rc::error);
      wait.request_stop();
      co_await wait.join();
      CHECK(connections <= 10);
    }
    co_await server.stop();
  });
}

TEST_CASE("an operation that knocks where another one's trial ends the connection gets the same verdict", "[operations]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    int connections = 0;
    std::optional<rc::tcp_store> s;
    outcome<std::int64_t> second;
    auto script = [&](rc::net::socket peer) -> rc::task<> {
      const bool main = ++connections == 1;
      const string_view handshake = co_await peer.read_some();
      string answer = string(handshake.substr(6, 4)) + '\1';
      if (!main) answer += '\0';  // the knock, in the same write
      co_await peer.write(answer);
      while (main) {
        const string_view asked = co_await peer.read_some();
        if (asked.empty()) co_return;
        const string absent(asked.size() / 19, '\1');  // CHECK of /q
        co_await peer.write(absent);
      }
      static_cast<void>(co_await peer.read_some());  // QUEUE_LEN
      second.start(s->queue_len("q"));
      static_cast<void>(co_await peer.read_some());  // its knock
    };
    scripted_server server(l, script);
    s = co_await client_of(l, server.port());
    const rc::failure first = failure_of(co_await rc::as_result(s->queue_push("q", "x")));
    co_await eventually([&] { return second.r.has_value(); });
    const rc::failure f = failure_of(*second.r);
    CHECK(first.code() == rc::errc::unsupported);
    CHECK(f.code() == rc::errc::unsupported);
    CHECK(f.effect() == rc::effect::none);
    CHECK(s->is_open());
    CHECK(connections == 2);
    s.reset();
    co_await server.stop();
  });
}

TEST_CASE("what another server does know is learnt once", "[operations]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    int connections = 0;
    auto script = [&connections](rc::net::socket s) { return foreign(std::move(s), &connections, true, true, true); };
    scripted_server server(l, script);
    {
      rc::tcp_store s = co_await client_of(l, server.port());
      CHECK_FALSE(s.server_is_rollcall());
      co_await s.queue_push("q2", "x");
      co_await s.queue_push("q2", "y");
      CHECK(connections == 2);
      CHECK_AWAIT(co_await s.queue_len("q2"), 2);
      CHECK_AWAIT(co_await s.queue_pop("q2"), "x");
      CHECK_AWAIT(co_await s.queue_pop_now("q2"), std::optional<string>("y"));
      s.send_queue_push("q2", "z");
      co_await s.flush();
      CHECK_AWAIT(co_await s.queue_pop("q2"), "z");
      const std::vector<string> names = co_await s.list_keys();
      CHECK_FALSE(names.empty());
      co_await s.server_barrier("b2", 1);
      co_await s.server_barrier("b2", 1);
      CHECK(connections == 2);
    }
    co_await server.stop();
  });
}

TEST_CASE("a server that dies at the first use of an opcode is lost, not without support", "[operations]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    int connections = 0;
    auto script = [&connections](rc::net::socket s) -> rc::task<> {
      const bool main = ++connections == 1;
      const string_view handshake = co_await s.read_some();
      string answer = string(handshake.substr(6, 4)) + '\1';
      if (!main) answer += '\0';  // the knock, in the same write
      co_await s.write(answer);
      static_cast<void>(co_await s.read_some());  // QUEUE_LEN here; the question whether it is alive there
    };
    scripted_server server(l, script);
    {
      rc::tcp_store s = co_await client_of(l, server.port());
      const rc::failure f = failure_of(co_await rc::as_result(s.queue_push("q", "x")));
      INFO(f.message());
      CHECK(f.code() == rc::errc::disconnected);
      CHECK(f.effect() == rc::effect::none);
      CHECK(connections == 2);
    }
    co_await server.stop();
  });
}

TEST_CASE("a connection that is still being made for nobody does not hold the loop", "[operations]") {
  const watchdog dog(current_case());
  rc::loop l;
  {
    rc::net::acceptor at(l, rc::listen(rc::listen_options{}.backlog(1)));
    const int port = at.at().port();
    int connections = 0;
    auto accept_one = [&]() -> rc::task<> {
      rc::net::socket s = co_await at.accept();
      const rc::result<void> over = co_await rc::as_result(foreign(std::move(s), &connections, false, false, false));
      static_cast<void>(over);
    };
    rc::scope server(l);
    server.spawn(accept_one());
    rc::tcp_store s = rc::sync_wait(l, client_of(l, port));
    const std::vector<rc::unique_fd> fillers = fill_backlog(port);  // a second connection gets no answer
    int ended = 0;
    rc::start(s.wait({"a", "b"}, 50ms), [&](rc::result<void> r) { ended += r ? 100 : 1; });
    rc::start(s.check("c", 50ms), [&](rc::result<bool> r) { ended += r ? 100 : 1; });
    const rc::time_point begun = l.now();
    auto both = [&]() -> rc::task<> { co_await eventually([&] { return ended == 2; }); };
    rc::sync_wait(l, both());
    server.request_stop();
    rc::sync_wait(l, server.join());
    uv_run(l.native(), UV_RUN_DEFAULT);  // returns long before the kernel gives up, after minutes
    CHECK(l.now() - begun < 20s);
    CHECK(connections == 1);
  }
  expect_nothing_left(l);
}
