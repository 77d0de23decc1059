#include "../support/net.hpp"

using namespace net_test;

namespace {

template <class F>
void case_of(F f) {
  on_loop(std::move(f));
}

rc::task<rc::result<rc::tcp_store>> try_connect(rc::loop& l, string host, int port, rc::deadline limit, rc::resolve_fn resolver = rc::resolve_by_system) {
  co_return co_await rc::as_result(rc::tcp_store::connect(l, host, port, limit, {}, std::move(resolver)));
}

/// A resolver that gives these addresses, in this order.
template <class... A>
rc::resolve_fn resolves_to(A const&... some) {
  std::vector<rc::socket_address> addresses{some...};
  return [addresses](string, std::uint16_t) -> rc::task<std::vector<rc::socket_address>> { co_return addresses; };
}
rc::socket_address local(int port) { return rc::socket_address::ip("127.0.0.1", port).value(); }

/// Keeps a connection open and reads what comes until the peer goes; answers nothing.
rc::task<> mute(rc::net::socket s) {
  for (;;) {
    const string_view more = co_await s.read_some();
    if (more.empty()) co_return;
  }
}

/// A store as PyTorch's before 2.5 was: no PING, no capability key. One connection.
rc::task<> old_store(rc::engine::store& store, rc::net::socket s) {
  rc::engine::client self(store);
  rc::wire::request_decoder decoder;
  rc::wire::request r;
  rc::wire::write_batch replies;
  for (;;) {
    string_view bytes = co_await s.read_some();
    if (bytes.empty()) co_return;
    while (decoder.next(bytes, r, store.limits()) == rc::wire::decode_status::complete) {
      if (r.op == rc::wire::opcode::ping) co_return;
      if (r.op == rc::wire::opcode::check && r.key == rc::wire::capability_key) {
        replies.append("\x01", 1);
      } else if (store.apply(self, r, replies) != rc::engine::apply_status::ok) {
        co_return;
      }
    }
    while (!store.woken().empty()) static_cast<void>(store.take_due(store.woken().front()));
    string out;
    iovec piece{};
    while (replies.fill(&piece, 1) == 1) {
      out.append(static_cast<char const*>(piece.iov_base), piece.iov_len);
      replies.consume(piece.iov_len);
    }
    co_await s.write(out);
  }
}

}  // namespace

TEST_CASE("a refused connect fails at its limit, not before and not much later", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", port, 700ms);
    const rc::failure f = failure_of(r);
    INFO(f.message());
    CHECK(f.code() == rc::errc::refused);
    CHECK(f.operation() == "connect");
    CHECK(f.elapsed() >= 700ms);
    CHECK(f.elapsed() < 700ms + 3s);
    CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(port)));
    CHECK(contains(f.message(), "ECONNREFUSED"));
    CHECK(contains(f.message(), "700 ms"));
    CHECK(contains(f.message(), "attempts"));
  });
}

TEST_CASE("a limit of nothing is one attempt", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    const rc::time_point begun = l.now();
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", unused_port(), 0ms);
    CHECK(failure_of(r).code() == rc::errc::refused);
    const rc::result<rc::tcp_store> past = co_await try_connect(l, "127.0.0.1", unused_port(), -5s);
    CHECK(failure_of(past).code() == rc::errc::refused);
    CHECK(l.now() - begun < 3s);
  });
}

TEST_CASE("what can never work is told at once", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    const rc::time_point begun = l.now();
    for (const int port : {0, -1, 65536, 123456}) {
      const rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", port, 20s);
      CHECK(failure_of(r).code() == rc::errc::invalid);
      CHECK(contains(failure_of(r).message(), std::to_string(port)));
    }
    for (char const* host : {"", "::1%no-such-interface", "[::1"}) {
      const rc::result<rc::tcp_store> r = co_await try_connect(l, host, 29500, 20s);
      CHECK(failure_of(r).code() == rc::errc::invalid);
    }
    CHECK(l.now() - begun < 2s);
  });
}

TEST_CASE("an unknown host is tried until the limit", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "nonexistent.invalid", 29500, 300ms);
    const rc::failure f = failure_of(r);
    INFO(f.message());
    CHECK(f.code() == rc::errc::resolve);
    CHECK(f.elapsed() >= 300ms);
    CHECK(contains(f.message(), "nonexistent.invalid:29500"));
  });
}

TEST_CASE("a name that becomes known later is found; it is resolved anew each time", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    int asked = 0;
    rc::resolve_fn resolver = [&asked, port = server.port()](string host, std::uint16_t wanted) -> rc::task<std::vector<rc::socket_address>> {
      CHECK(host == "rank0.job");
      CHECK(wanted == 29500);
      if (++asked < 4) throw rc::error(rc::errc::resolve, "resolve", "not yet");
      if (asked == 4) {
        std::vector<rc::socket_address> stale(1, local(unused_port()));
        co_return stale;
      }
      std::vector<rc::socket_address> right(1, local(port));
      co_return right;
    };
    {
      rc::result<rc::tcp_store> r = co_await try_connect(l, "rank0.job", 29500, 20s, resolver);
      rc::tcp_store s = r.value();
      CHECK(asked == 5);
      CHECK(s.host() == "rank0.job");
      const rc::failure f = failure_of(co_await rc::as_result(s.wait("k", 5ms)));
      CHECK(contains(f.message(), "rank0.job:29500"));
    }
    co_await server.stop();
  });
}

TEST_CASE("a literal is used as it is and never resolved", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    rc::resolve_fn never = [](string, std::uint16_t) -> rc::task<std::vector<rc::socket_address>> {
      FAIL("a literal was looked up");
      std::vector<rc::socket_address> none;
      co_return none;
    };
    {
      rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", server.port(), 5s, never);
      CHECK(r.has_value());
    }
    const rc::result<rc::tcp_store> six = co_await try_connect(l, "[::1]", unused_port(), 50ms, never);
    CHECK(failure_of(six).code() == rc::errc::refused);
    CHECK(contains(failure_of(six).message(), "[::1]:"));
    co_await server.stop();
  });
}

TEST_CASE("a first address that swallows everything costs a quarter of a second, not the limit", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    const black_hole hole;
    local_server server(l);
    {
      const rc::time_point begun = l.now();
      rc::result<rc::tcp_store> r = co_await try_connect(l, "two.addresses", server.port(), 20s, resolves_to(hole.address(), local(server.port())));
      CHECK(r.has_value());
      CHECK(l.now() - begun >= 200ms);
      CHECK(l.now() - begun < 2500ms);
    }
    {
      // One that is refused costs nothing at all.
      const rc::time_point begun = l.now();
      rc::result<rc::tcp_store> r =
          co_await try_connect(l, "two.addresses", server.port(), 20s, resolves_to(local(unused_port()), local(server.port())));
      CHECK(r.has_value());
      CHECK(l.now() - begun < 200ms * 10);
    }
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "black.hole", hole.port(), 400ms, resolves_to(hole.address()));
    const rc::failure f = failure_of(r);
    INFO(f.message());
    CHECK(f.code() == rc::errc::refused);
    CHECK(f.elapsed() >= 400ms);
    CHECK(contains(f.message(), "black.hole:"));
    CHECK(contains(f.message(), hole.address().to_string()));
    co_await server.stop();
  });
}

TEST_CASE("the error of several addresses names each", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    const int a = unused_port(), b = unused_port();
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "both.refuse", 29500, 100ms, resolves_to(local(a), local(b)));
    const string text = failure_of(r).message();
    INFO(text);
    CHECK(contains(text, "127.0.0.1:" + std::to_string(a)));
    CHECK(contains(text, "127.0.0.1:" + std::to_string(b)));
    CHECK(contains(text, "both.refuse:29500"));
  });
}

TEST_CASE("a server that appears late is found, also shortly before the limit", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    for (const auto late : {300ms, 1900ms}) {
      const int port = unused_port();
      rc::scope connecting(l);
      rc::errc outcome{};
      auto connect = [&outcome](rc::loop& loop, int p) -> rc::task<> {
        rc::result<rc::tcp_store> r = co_await try_connect(loop, "127.0.0.1", p, 2500ms);
        if (!r) outcome = r.error().code();
      };
      connecting.spawn(connect(l, port));
      co_await rc::sleep_for(late);
      local_server server(l, {}, rc::listen_options{}.port(port));
      co_await connecting.join();
      CHECK(outcome == rc::errc{});
      CHECK(server.stats().accepted == 1);
      co_await server.stop();
    }
  });
}

TEST_CASE("what is no store is told from one at once", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    scripted_server::script script;
    SECTION("an HTTP server") {
      script = [](rc::net::socket s) -> rc::task<> {
        co_await s.read_some();
        co_await s.write("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        co_await mute(std::move(s));
      };
    }
    SECTION("an echo service") {
      script = [](rc::net::socket s) -> rc::task<> {
        for (;;) {
          const string bytes(co_await s.read_some());
          if (bytes.empty()) co_return;
          co_await s.write(bytes);
        }
      };
    }
    SECTION("a peer that answers PING with another nonce") {
      script = [](rc::net::socket s) -> rc::task<> {
        co_await s.read_some();
        co_await s.write(u32(1) + string("\x01"));
        co_await mute(std::move(s));
      };
    }
    SECTION("a peer that talks first") {
      script = [](rc::net::socket s) -> rc::task<> {
        co_await s.write("220 mail.example ESMTP\r\n");
        co_await mute(std::move(s));
      };
    }
    if (!script) co_return;
    scripted_server peer(l, script);
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", peer.port(), 20s);
    const rc::failure f = failure_of(r);
    INFO(f.message());
    CHECK(f.code() == rc::errc::protocol);
    CHECK(f.elapsed() < 5s);
    CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(peer.port())));
    CHECK(peer.accepted() == 1);
    co_await peer.stop();
  });
}

TEST_CASE("a peer that accepts and never answers fails at the limit and says so", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    scripted_server peer(l, [](rc::net::socket s) { return mute(std::move(s)); });
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", peer.port(), 300ms);
    const rc::failure f = failure_of(r);
    INFO(f.message());
    CHECK(f.code() == rc::errc::refused);
    CHECK(f.elapsed() >= 300ms);
    CHECK(f.elapsed() < 300ms + 3s);
    CHECK(contains(f.message(), "does not answer"));
    co_await peer.stop();
  });
}

TEST_CASE("a peer that resets right after it accepted is tried again", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    local_server real(l);
    {
      int times = 0;
      scripted_server peer(l, [&](rc::net::socket s) -> rc::task<> {
        if (++times <= 3) co_return;  // closes with VALIDATE unread: a reset
        rc::net::socket through = co_await rc::net::connect(l, local(real.port()));
        auto copy = [](rc::net::socket& from, rc::net::socket& to) -> rc::task<> {
          for (;;) {
            const string bytes(co_await from.read_some());
            if (bytes.empty()) break;
            co_await to.write(bytes);
          }
          to.shutdown();
        };
        co_await rc::when_all(copy(s, through), copy(through, s));
      });
      rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", peer.port(), 20s);
      REQUIRE(r.has_value());
      const std::int64_t one = co_await r->add("n", 1);
      CHECK(one == 1);
      CHECK(times == 4);
      r->close();
      co_await peer.stop();
    }
    co_await real.stop();
  });
}

TEST_CASE("a server before 2.5, which closes at PING, works, also with several connections", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    rc::engine::store engine{rc::engine::store_options{}};
    scripted_server peer(l, [&](rc::net::socket s) { return old_store(engine, std::move(s)); });
    {
      rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", peer.port(), 20s);
      rc::tcp_store s = r.value();
      CHECK_FALSE(s.server_is_rollcall());
      co_await s.set("k", "v");
      CHECK_AWAIT(co_await s.get("k"), "v");
      CHECK_AWAIT(co_await s.find("missing"), std::nullopt);
      const rc::failure f = failure_of(co_await rc::as_result(s.get("missing", 20ms)));
      CHECK(f.code() == rc::errc::timed_out);
      rc::scope waits(l);
      waits.spawn(rc::as_result(s.wait({"k", "missing"}, 10s)));
      co_await rc::sleep_for(0ms);  // it is staged, and its connection is taken
      CHECK_AWAIT(co_await s.add("n", 1), 1);
      CHECK(s.connections() == 2);
      waits.request_stop();
      co_await waits.join();
      const std::vector<string> values = co_await s.multi_get({"k", "k"});
      CHECK(values == std::vector<string>{"v", "v"});
    }
    co_await peer.stop();
  });
}

TEST_CASE("a connection to itself is not taken for success", "[connect]") {
  // A client that connects to a port of the ephemeral range from that very port is accepted by itself (simultaneous open).
  case_of([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    rc::unique_fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const sockaddr_in here = loopback(port);
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr const*>(&here), sizeof here) == 0);
    static_cast<void>(::connect(fd.get(), reinterpret_cast<sockaddr const*>(&here), sizeof here));
    CHECK(rc::detail::connected_to_itself(fd.get()));  // the kernel does it
    // The library meets it by chance only; many attempts at a port that is free must all be refused.
    for (int i = 0; i < 200; ++i) {
      const rc::result<rc::net::socket> r = co_await rc::as_result(rc::net::connect(l, local(unused_port())));
      CHECK_FALSE(r.has_value());
    }
  });
}

TEST_CASE("no pause before the first attempt, whatever the world", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    for (int i = 0; i < 20; ++i) {
      const rc::time_point begun = l.now();
      { const rc::tcp_store s = co_await client_of(l, server.port()); }
      CHECK(l.now() - begun < 500ms);
    }
    co_await server.stop();
  });
}

TEST_CASE("a hundred connect at once and meet", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    local_server server(l, {}, rc::listen_options{}.backlog(4));  // overflows; clients come again
    {
      rc::scope ranks(l);
      auto rank = [](rc::loop& loop, int port, int world) -> rc::task<> {
        rc::tcp_store s = co_await client_of(loop, port);
        const std::int64_t joined = co_await s.add("joined", 1);
        if (joined == world) co_await s.set("all", "");
        co_await s.wait("all", 20s);
      };
      for (int i = 0; i < 100; ++i) ranks.spawn(rank(l, server.port(), 100));
      co_await ranks.join();
    }
    CHECK(server.stats().requests > 0);
    co_await server.stop();
  });
}

TEST_CASE("a stop in any phase of connecting leaves nothing", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    const black_hole hole;
    local_server server(l);
    scripted_server silent(l, [](rc::net::socket s) { return mute(std::move(s)); });
    rc::resolve_fn endless = [](string, std::uint16_t) -> rc::task<std::vector<rc::socket_address>> {
      co_await rc::sleep_for(1h);
      std::vector<rc::socket_address> none;
      co_return none;
    };
    struct way {
      string host;
      int port;
      rc::resolve_fn resolver;
    };
    const std::vector<way> ways{{"still.resolving", 1, endless},
                                {"localhost", server.port(), rc::resolve_by_system},
                                {"nobody.answers", hole.port(), resolves_to(hole.address(), hole.address())},
                                {"127.0.0.1", silent.port(), rc::resolve_by_system},
                                {"127.0.0.1", unused_port(), rc::resolve_by_system},
                                {"127.0.0.1", server.port(), rc::resolve_by_system}};
    for (way const& w : ways) {
      for (int turns = 0; turns < 12; ++turns) {
        rc::scope connecting(l);
        bool cancelled = false, connected = false;
        auto one = [&]() -> rc::task<> {
          rc::result<rc::tcp_store> r = co_await try_connect(l, w.host, w.port, 20s, w.resolver);
          connected = r.has_value();
          cancelled = !r && r.error().code() == rc::errc::cancelled;
        };
        connecting.spawn(one());
        for (int i = 0; i < turns; ++i) co_await rc::sleep_for(0ms);
        if (turns > 8) co_await rc::sleep_for(10ms);
        const rc::time_point begun = l.now();
        connecting.request_stop();
        co_await connecting.join();
        CHECK((cancelled || connected));
        CHECK(l.now() - begun < 1s);
      }
    }
    co_await silent.stop();
    co_await server.stop();
  });
}

TEST_CASE("a scope that is dropped while it connects, and a store that is dropped while it dials, leave nothing", "[connect]") {
  const watchdog dog(current_case());
  rc::loop l;
  {
    const black_hole hole;
    rc::scope server(l);
    rc::listener at = rc::listen(rc::listen_options{});
    const int port = at.port();
    server.spawn(rc::serve(l, std::move(at)));
    {
      rc::tcp_store s = rc::sync_wait(l, client_of(l, port));
      rc::scope waits(l);
      waits.spawn(s.wait({"a", "b"}, 20s));
      waits.spawn(s.wait({"a", "c"}, 20s));  // its connection is being made
      waits.spawn(s.add("n", 1));
      uv_run(l.native(), UV_RUN_NOWAIT);
      waits.request_stop();
    }
    rc::scope connecting(l);
    connecting.spawn(try_connect(l, "nobody.answers", hole.port(), 20s, resolves_to(hole.address())));
    uv_run(l.native(), UV_RUN_NOWAIT);
    connecting.request_stop();
    server.request_stop();
    rc::sync_wait(l, server.join());
  }
  expect_nothing_left(l);
}

TEST_CASE("a connect that takes long says so after five seconds", "[connect][slow]") {
  case_of([](rc::loop& l) -> rc::task<> {
    std::vector<string> lines;
    l.log_to([&](rc::log_level level, string_view line) {
      if (level >= rc::log_level::warning) lines.emplace_back(line);
    });
    scripted_server silent(l, [](rc::net::socket s) { return mute(std::move(s)); });
    const rc::result<rc::tcp_store> r = co_await try_connect(l, "127.0.0.1", silent.port(), 5300ms);
    CHECK_FALSE(r.has_value());
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines[0], "127.0.0.1:" + std::to_string(silent.port())));
    CHECK(contains(lines[0], "does not answer the handshake"));
    CHECK(contains(lines[0], " left"));
    l.log_to({});
    co_await silent.stop();
  });
}

TEST_CASE("a connect that finds no descriptor in its own process says so, long before its limit", "[connect]") {
  case_of([](rc::loop& l) -> rc::task<> {
    scripted_server silent(l, [](rc::net::socket s) { return mute(std::move(s)); });
    const auto begun = std::chrono::steady_clock::now();
    std::optional<rc::result<rc::tcp_store>> r;
    {
      const few_descriptors none(0);
      r.emplace(co_await try_connect(l, "127.0.0.1", silent.port(), 50s));
    }
    CHECK(std::chrono::steady_clock::now() - begun < 20s);
    const rc::failure f = failure_of(*r);
    CHECK(f.code() == rc::errc::io);
    CHECK(contains(f.message(), "EMFILE"));
    CHECK(contains(f.message(), "ulimit -n"));
    // A shortage that passes is waited for.
    local_server server(l);
    rc::scope others(l);
    auto none = std::make_unique<few_descriptors>(0);
    const auto give_back = [&none]() -> rc::task<> {
      co_await rc::sleep_for(100ms);
      none.reset();
    };
    others.spawn(give_back);
    const rc::result<rc::tcp_store> late = co_await try_connect(l, "127.0.0.1", server.port(), 50s);
    CHECK(late.has_value());
    co_await others.join();
    co_await server.stop();
    co_await silent.stop();
  });
}
