#include <fcntl.h>

#include <atomic>

#include "../support/net.hpp"

// Which back end serves, who says so, and on which socket: the same for both.

using namespace net_test;

namespace {

/// A socket that somebody else has bound, not close-on-exec and not listening, and its port.
rc::unique_fd bound(int& port) {
  rc::unique_fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at = loopback(0);
  socklen_t size = sizeof at;
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr const*>(&at), size) == 0);
  REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  port = ntohs(at.sin_port);
  return fd;
}
string path_of(char const* name) { return "/tmp/rollcall-" + string(name) + "-" + std::to_string(::getpid()); }

void ping_once(int port) {
  const rc::unique_fd peer = plain_connect(port);
  REQUIRE(peer);
  REQUIRE(send_all(peer.get(), req::validate() + req::ping(7)));
  CHECK(receive(peer.get(), 4) == u32(7));
}

}  // namespace

TEST_CASE("a socket that was bound elsewhere and detached is served on by either back end", "[back_ends]") {
  const bool use_libuv = GENERATE(false, true);
  on_loop([use_libuv](rc::loop& l) -> rc::task<> {
    int port = 0;
    rc::unique_fd elsewhere = bound(port);
    rc::create_options how;
    how.world_size(1).is_master(true).timeout(20s).listen_fd(elsewhere.release()).use_libuv(use_libuv);
    const rc::tcp_store server = co_await rc::tcp_store::create(l, "localhost", port, how);
    CHECK(server.port() == port);
    CHECK(server.back_end() == (use_libuv ? "libuv" : "legacy"));
    const rc::tcp_store client = co_await rc::tcp_store::connect(l, "localhost", port, 20s);
    CHECK(client.back_end().empty());
    co_await client.set("key", "value");
    CHECK_AWAIT(co_await server.get("key"), "value");
  });
}

TEST_CASE("a master's argument beats USE_LIBUV, and what neither yes nor no means is an error that names both", "[back_ends]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const auto back_end = [&l](std::optional<bool> argument) -> rc::task<string> {
      const rc::create_options how = rc::create_options{}.is_master(true).use_libuv(argument).timeout(20s);
      const rc::tcp_store s = co_await rc::tcp_store::create(l, "127.0.0.1", 0, how);
      co_return string(s.back_end());
    };
    unsetenv("USE_LIBUV");
    CHECK_AWAIT(co_await back_end(std::nullopt), "libuv");
    setenv("USE_LIBUV", "Off", 1);
    CHECK_AWAIT(co_await back_end(std::nullopt), "legacy");
    CHECK_AWAIT(co_await back_end(true), "libuv");
    setenv("USE_LIBUV", "maybe", 1);
    CHECK_AWAIT(co_await back_end(false), "legacy");
    const rc::result<string> wrong = co_await rc::as_result(back_end(std::nullopt));
    const rc::failure f = failure_of(wrong);
    CHECK(f.code() == rc::errc::invalid);
    CHECK(contains(f.message(), "USE_LIBUV"));
    CHECK(contains(f.message(), "'maybe'"));
    // Who serves nothing does not look at it.
    rc::listener at = rc::listen(rc::listen_options{});
    const int port = at.port();
    rc::legacy_server server(std::move(at));
    server.start();
    const rc::tcp_store client = co_await rc::tcp_store::create(l, "127.0.0.1", port, rc::create_options{}.timeout(20s));
    co_await client.set("k", "v");
    unsetenv("USE_LIBUV");
    CHECK(server.stats().back_end == "legacy");
  });
}

TEST_CASE("unix sockets, on both back ends and for both clients", "[back_ends]") {
  const bool use_libuv = GENERATE(false, true);
  const bool adopted = GENERATE(false, true);
  on_loop([use_libuv, adopted](rc::loop& l) -> rc::task<> {
    const string path = path_of("store"), host = "unix:" + path;
    rc::create_options how;
    how.world_size(2).rank(0).is_master(true).timeout(20s).use_libuv(use_libuv);
    if (adopted) how.listen_fd(rc::listen(rc::listen_options{}.unix_path(path)).release());
    const auto other = [&]() -> rc::task<> {
      const rc::create_options member = rc::create_options{}.world_size(2).rank(1).timeout(20s);
      const rc::tcp_store s = co_await rc::tcp_store::create(l, host, 0, member);
      co_await s.set("from", "1");
    };
    rc::scope members(l);
    members.spawn(other);
    {
      const rc::tcp_store server = co_await rc::tcp_store::create(l, host, 0, how);
      co_await members.join();
      CHECK_AWAIT(co_await server.get("from"), "1");
      CHECK(server.host() == host);
      const rc::tcp_store twin = co_await server.clone(20s);
      twin.close();
      co_await twin.reconnect(20s);
      const string big(3 << 20, 'x');
      co_await twin.set("big", big);
      CHECK_AWAIT(co_await server.get("big"), big);
      // A wait for two keys takes a connection of its own.
      const auto waited = co_await rc::as_result(rc::when_all(twin.wait({"a", "b"}, 20s), twin.set("a", ""), twin.set("b", "")));
      CHECK(waited.has_value());
      string read;
      std::atomic<bool> has_read = false;
      std::thread blocking([&] {
        const rc::blocking_store s = rc::blocking_store::connect(host, 0, 20s);
        s.set("from", "a thread");
        read = s.get("big");
        has_read = true;
      });
      co_await server.wait("from");
      while (!has_read) co_await rc::sleep_for(1ms);
      blocking.join();
      CHECK(read == big);
      CHECK_AWAIT(co_await server.get("from"), "a thread");
    }
    if (adopted) CHECK(::unlink(path.c_str()) == 0);
    CHECK(::access(path.c_str(), F_OK) != 0);
    const rc::result<rc::tcp_store> nobody = co_await rc::as_result(rc::tcp_store::connect(l, host, 0, 50ms));
    const rc::failure f = failure_of(nobody);
    CHECK(f.code() == rc::errc::refused);
    CHECK(contains(f.message(), path));
    const rc::result<rc::tcp_store> endless = co_await rc::as_result(rc::tcp_store::connect(l, "unix:" + string(300, 'x'), 0, 20s));
    CHECK(failure_of(endless).code() == rc::errc::invalid);
  });
}

TEST_CASE("rollcall-server serves with the back end that it was told, and says which", "[back_ends]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  struct row {
    std::vector<string> arguments;
    std::vector<string> environment;
    char const* back_end;
  };
  for (row const& r : {row{{}, {"USE_LIBUV=1"}, "libuv"},
                       row{{}, {"USE_LIBUV=no"}, "legacy"},
                       row{{"--use-libuv", "0"}, {"USE_LIBUV=1"}, "legacy"},
                       row{{"--use-libuv", "ON"}, {"USE_LIBUV=0"}, "libuv"},
                       row{{"--use-libuv", "1"}, {"USE_LIBUV=maybe"}, "libuv"}}) {
    std::vector<string> command{program, "--port", "0"};
    command.insert(command.end(), r.arguments.begin(), r.arguments.end());
    child server(command, false, r.environment);
    const string ready = server.line();
    CHECK(ready.starts_with("ready 127.0.0.1:"));
    CHECK(ready.ends_with(string(" ") + r.back_end));
    ping_once(std::atoi(ready.c_str() + ready.rfind(':') + 1));
    server.kill(SIGTERM);
    CHECK(server.finish() == 0);
  }
  child by_environment({program, "--port", "0"}, false, {"USE_LIBUV=maybe"});
  CHECK(by_environment.finish() != 0);
  CHECK(contains(by_environment.errors(), "USE_LIBUV in the environment is 'maybe'"));
  child by_argument({program, "--port", "0", "--use-libuv", "maybe"});
  CHECK(by_argument.finish() != 0);
  CHECK(contains(by_argument.errors(), "--use-libuv is 'maybe'"));
}

TEST_CASE("rollcall-server takes a descriptor, from whoever starts it or from systemd", "[back_ends]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  char const* const use_libuv = GENERATE("0", "1");
  int port = 0;
  const rc::unique_fd fd = bound(port);
  const string number = std::to_string(fd.get());
  const auto served = [&](child& server) {
    CHECK(server.line().starts_with("ready 127.0.0.1:" + std::to_string(port) + " "));
    ping_once(port);
    server.kill(SIGTERM);
    CHECK(server.finish() == 0);
  };
  SECTION("--listen-fd") {
    child server({program, "--listen-fd", number, "--use-libuv", use_libuv});
    served(server);
  }
  SECTION("--listen-fd, with the port that is expected") {
    child server({program, "--listen-fd", number, "--port", std::to_string(port), "--use-libuv", use_libuv});
    served(server);
  }
  SECTION("another port is expected") {
    const int other = port == 65535 ? 1 : port + 1;
    child server({program, "--listen-fd", number, "--port", std::to_string(other), "--use-libuv", use_libuv});
    CHECK(server.finish() == 1);
    CHECK(contains(server.errors(), std::to_string(port)));
    CHECK(contains(server.errors(), std::to_string(other)));
  }
  SECTION("not a socket, or closed") {
    child pipe({program, "--listen-fd", "1", "--use-libuv", use_libuv});
    CHECK(pipe.finish() == 1);
    CHECK(contains(pipe.errors(), "it is a pipe"));
    child closed({program, "--listen-fd", "900", "--use-libuv", use_libuv});
    CHECK(closed.finish() == 1);
    CHECK(contains(closed.errors(), "it is not open"));
  }
  const string activated = "exec 3<&" + number + "; export LISTEN_PID=$$ LISTEN_FDS=";
  const string run = "; exec \"$0\" --use-libuv \"$1\" --port 0";
  SECTION("systemd activation") {
    child server({"/bin/bash", "-c", activated + "1" + run, program, use_libuv});
    served(server);
  }
  SECTION("activation with two sockets") {
    child server({"/bin/bash", "-c", activated + "2" + run, program, use_libuv});
    CHECK(server.finish() == 1);
    CHECK(contains(server.errors(), "LISTEN_FDS says 2 sockets"));
  }
  SECTION("activation of another process") {
    child server({"/bin/bash", "-c", activated + "1; LISTEN_PID=1" + run, program, use_libuv});
    const string ready = server.line();
    CHECK(ready.starts_with("ready 127.0.0.1:"));
    CHECK(!ready.starts_with("ready 127.0.0.1:" + std::to_string(port) + " "));
  }
}

TEST_CASE("rollcall-server on a unix socket says its path, and removes it", "[back_ends]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  char const* const use_libuv = GENERATE("0", "1");
  const string path = path_of("program");
  child server({program, "--unix", path, "--use-libuv", use_libuv});
  CHECK(server.line().starts_with("ready unix:" + path + " "));
  const rc::blocking_store s = rc::blocking_store::connect("unix:" + path, 0, 20s);
  s.set("k", "v");
  CHECK(s.get("k") == "v");
  server.kill(SIGTERM);
  CHECK(server.finish() == 0);
  CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("told to end under load, a server drains, exits with 0, and its port is free at once", "[back_ends]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  const watchdog dog(current_case());
  char const* const use_libuv = GENERATE("0", "1");
  server_process server(program, {"--use-libuv", use_libuv});
  const int port = server.port();
  std::atomic<int> rounds{0}, halves{0};
  std::vector<std::thread> load;
  for (int i = 0; i < 4; ++i) {
    load.emplace_back([&rounds, &halves, port] {
      const rc::unique_fd peer = plain_connect(port);
      const string value(100'000, 'x');
      if (!peer || !send_all(peer.get(), req::validate())) return;
      while (send_all(peer.get(), req::set("/k", value) + req::get("/k"))) {
        const string reply = receive(peer.get(), 8 + value.size());
        if (reply.size() == 8 + value.size()) {
          ++rounds;
          continue;
        }
        if (!reply.empty()) ++halves;
        break;
      }
    });
  }
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (rounds < 200 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  server.kill(SIGTERM);
  CHECK(server.finish() == 0);
  CHECK(rc::try_listen(rc::listen_options{}.port(port)).has_value());
  for (std::thread& t : load) t.join();
  CHECK(rounds >= 200);
  CHECK(halves == 0);
}

TEST_CASE("ranks meet at a store of the blocking back end, which the one that serves says", "[back_ends][programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  SECTION("by the environment") {
    child job({launcher, "-n", "8", barrier}, false, {"USE_LIBUV=0"});
    CHECK(job.finish(60s) == 0);
    CHECK(lines_with(job.output(), "legacy") == 1);
    CHECK(lines_with(job.output(), "mean of 10 barriers") == 8);
  }
  SECTION("by the argument") {
    child job({launcher, "-n", "4", barrier, "--use-libuv", "0", "--kind", "store-based"}, false, {"USE_LIBUV=1"});
    CHECK(job.finish(60s) == 0);
    CHECK(lines_with(job.output(), "legacy") == 1);
  }
  SECTION("as the launcher's own store") {
    child job({launcher, "-n", "4", "--host-store", barrier}, false, {"USE_LIBUV=0"});
    CHECK(job.finish(60s) == 0);
    CHECK(lines_with(job.output(), "mean of 10 barriers") == 4);
    CHECK(contains(job.errors(), "legacy"));
  }
  SECTION("neither yes nor no") {
    child job({launcher, "-n", "2", "--grace", "0.1", barrier}, false, {"USE_LIBUV=maybe"});
    CHECK(job.finish(60s) == 1);
    CHECK(contains(job.errors(), "USE_LIBUV in the environment is 'maybe'"));
    child hosted({launcher, "-n", "2", "--host-store", barrier}, false, {"USE_LIBUV=maybe"});
    CHECK(hosted.finish(60s) == 1);
    CHECK(contains(hosted.errors(), "USE_LIBUV in the environment is 'maybe'"));
  }
  SECTION("the missing are named as ever") {
    child job({launcher, "-n", "4", "--grace", "0.1", barrier, "--kind", "store-based", "--absent", "2", "--timeout", "1"}, false, {"USE_LIBUV=0"});
    CHECK(job.finish(60s) == 1);
    CHECK(contains(job.errors(), "3 of 4 joined after 1000 ms: missing 2"));
  }
}
