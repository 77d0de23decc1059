#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <atomic>
#include <set>

#include "../support/net.hpp"

// The blocking back end, by plain sockets from this thread; the server has its own. What it answers is in wire_conformance.cpp.

using namespace net_test;

namespace {

/// Log lines, from the server's thread.
class lines {
 public:
  [[nodiscard]] rc::log_sink sink() {
    return [this](rc::log_level level, string_view line) {
      const std::lock_guard lock(mutex_);
      if (level >= rc::log_level::warning) all_.emplace_back(line);
    };
  }
  [[nodiscard]] std::vector<string> all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  [[nodiscard]] bool any(string_view part) {
    for (string const& l : all())
      if (contains(l, part)) return true;
    return false;
  }

 private:
  std::mutex mutex_;
  std::vector<string> all_;
};

rc::unique_fd greeted(int port, int receive_buffer = 0) {
  rc::unique_fd peer = plain_connect(port, receive_buffer);
  REQUIRE(peer);
  REQUIRE(send_all(peer.get(), req::validate() + req::ping(7)));
  REQUIRE(receive(peer.get(), 4) == u32(7));
  return peer;
}
void witness(int port, int replies = 1000) {
  const rc::unique_fd peer = greeted(port);
  for (int i = 0; i < replies; ++i) {
    REQUIRE(send_all(peer.get(), req::ping(static_cast<std::uint32_t>(i))));
    REQUIRE(receive(peer.get(), 4) == u32(static_cast<std::uint32_t>(i)));
  }
}
bool ended(rc::unique_fd const& peer) {
  char c = 0;
  return ::recv(peer.get(), &c, 1, 0) <= 0;
}

std::set<int> open_descriptors() {
  std::set<int> all;
  DIR* d = opendir("/proc/self/fd");
  const int own = dirfd(d);
  while (dirent* e = readdir(d))
    if (const int fd = std::atoi(e->d_name); e->d_name[0] != '.' && fd != own) all.insert(fd);
  closedir(d);
  return all;
}

}  // namespace

TEST_CASE("a legacy server serves from whatever listener it is given", "[legacy]") {
  const watchdog dog(current_case());
  const auto serves = [](rc::listener at) {
    const int port = at.port();
    rc::legacy_server server(std::move(at));
    CHECK(server.port() == port);
    server.start();
    witness(port, 10);
    CHECK(server.running());
  };
  SECTION("a port") { serves(rc::listen(rc::listen_options{})); }
  SECTION("a descriptor that is bound only") {
    rc::unique_fd fd(::socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in any = loopback(0);
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr const*>(&any), sizeof any) == 0);
    serves(rc::listener::adopt(fd.release()));
  }
  SECTION("a descriptor that listens, and somebody waits there already") {
    rc::unique_fd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in at = loopback(0);
    socklen_t size = sizeof at;
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr const*>(&at), size) == 0);
    REQUIRE(::listen(fd.get(), 8) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    const int port = ntohs(at.sin_port);
    const rc::unique_fd early = plain_connect(port);
    REQUIRE(send_all(early.get(), req::validate() + req::ping(1)));
    rc::legacy_server server(rc::listener::adopt(fd.release(), port));
    server.start();
    CHECK(receive(early.get(), 4) == u32(1));
    CHECK(server.url() == "tcp://127.0.0.1:" + std::to_string(port));
  }
  SECTION("a unix path") {
    const string path = "/tmp/rollcall-legacy-" + std::to_string(::getpid());
    rc::legacy_server server(rc::listen_options{}.unix_path(path));
    server.start();
    const rc::blocking_store store = rc::blocking_store::connect(rc::socket_address::unix_path(path).value(), 10s);
    store.set("k", "v");
    CHECK(store.get("k") == "v");
    server.stop();
    CHECK(::access(path.c_str(), F_OK) != 0);
  }
}

TEST_CASE("half a message, a peer that does not read and idle ones delay nobody", "[legacy]") {
  const watchdog dog(current_case());
  rc::legacy_server server(rc::listen_options{}, rc::serve_options{}.max_unsent(64 * 1024));
  server.start();
  const int port = server.port();
  std::vector<rc::unique_fd> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(greeted(port));
  const rc::unique_fd half = greeted(port);
  REQUIRE(send_all(half.get(), req::set("/k", string(5000, 'x')).substr(0, 2000)));
  const rc::unique_fd deaf = greeted(port, 4096);
  REQUIRE(send_all(deaf.get(), req::set("/big", string(1 << 20, 'y'))));
  string asks;
  for (int i = 0; i < 50; ++i) asks += req::get("/big");
  REQUIRE(send_all(deaf.get(), asks));
  REQUIRE(soon([&] { return server.stats().paused == 1; }));
  witness(port);
  CHECK(soon([&] { return server.stats().connections == 302; }));  // the witness has left
  // Whoever was slow gets everything in the end.
  CHECK(receive(deaf.get(), std::size_t{50} * (8 + (1 << 20))).size() == std::size_t{50} * (8 + (1 << 20)));
  REQUIRE(send_all(half.get(), req::set("/k", string(5000, 'x')).substr(2000) + req::get("/k")));
  CHECK(receive(half.get(), 5008) == str(string(5000, 'x')));
}

TEST_CASE("a legacy server ends peers that stand still, each for its own reason", "[legacy]") {
  const watchdog dog(current_case());
  lines log;
  rc::legacy_server server(
      rc::listen_options{},
      rc::serve_options{}.validate_within(300ms).close_half_request_after(300ms).close_unread_after(300ms).max_unsent(64 * 1024),
      log.sink());
  server.start();
  const rc::unique_fd quiet = greeted(server.port());
  const rc::unique_fd silent = plain_connect(server.port());
  const rc::unique_fd half = greeted(server.port());
  REQUIRE(send_all(half.get(), op(1) + u64(3)));
  const rc::unique_fd deaf = greeted(server.port(), 4096);
  REQUIRE(send_all(deaf.get(), req::set("/big", string(8 << 20, 'y')) + req::get("/big") + req::get("/big")));
  CHECK(ended(silent));
  CHECK(ended(half));
  CHECK(soon([&] { return server.stats().timed_out == 3; }));
  CHECK(server.stats().connections == 1);
  CHECK(log.any("it has not sent VALIDATE"));
  CHECK(log.any("it has sent half a request"));
  CHECK(log.any("it does not take its replies"));
  REQUIRE(send_all(quiet.get(), req::ping(3)));  // one that is between requests is never ended
  CHECK(receive(quiet.get(), 4) == u32(3));
}

TEST_CASE("waiters are woken across connections, all of them", "[legacy]") {
  const watchdog dog(current_case());
  rc::legacy_server server(rc::listen_options{});
  server.start();
  constexpr int waiters = 1500;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit raised = before;
  raised.rlim_cur = std::min<rlim_t>(before.rlim_max, 2 * waiters + 500);
  setrlimit(RLIMIT_NOFILE, &raised);
  std::vector<rc::unique_fd> waiting;
  for (int i = 0; i < waiters; ++i) {  // more than one turn's budget
    waiting.push_back(greeted(server.port()));
    REQUIRE(send_all(waiting.back().get(), req::wait({"/go"})));
  }
  const rc::unique_fd setter = greeted(server.port());
  REQUIRE(send_all(setter.get(), req::set("/go", "1")));
  for (auto const& w : waiting) REQUIRE(receive(w.get(), 1) == string(1, '\0'));
  waiting.clear();
  server.stop();
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("a legacy server that stops sends what it has answered, and its port is free at once", "[legacy]") {
  const watchdog dog(current_case());
  rc::legacy_server server(rc::listen_options{}, rc::serve_options{}.max_unsent(64 * 1024).drain_within(20s));
  server.start();
  const int port = server.port();
  const rc::unique_fd waiting = greeted(port);
  REQUIRE(send_all(waiting.get(), req::wait({"/never"})));
  const rc::unique_fd slow = greeted(port, 4096);
  REQUIRE(send_all(slow.get(), req::set("/big", string(8 << 20, 'y')) + req::get("/big")));
  char first = 0;
  REQUIRE(::recv(slow.get(), &first, 1, MSG_PEEK) == 1);
  std::thread stopper([&] { server.stop(); });
  CHECK(ended(waiting));
  CHECK(soon([&] { return rc::try_listen(rc::listen_options{}.port(port)).has_value(); }));  // while the slow one is still served
  CHECK(receive(slow.get(), 8 + (8 << 20)).size() == 8 + (8 << 20));
  CHECK(ended(slow));
  stopper.join();
  CHECK_FALSE(server.running());
  CHECK(server.port() == port);
  CHECK(server.stats().connections == 0);
  CHECK(server.stats().accepted == 2);
  server.stop();
  CHECK_THROWS_AS(server.start(), rc::error);
}

TEST_CASE("one that never takes its replies delays the end for drain_within only", "[legacy]") {
  const watchdog dog(current_case(), 60s);
  rc::legacy_server server(rc::listen_options{}, rc::serve_options{}.drain_within(50ms));
  server.start();
  const rc::unique_fd deaf = greeted(server.port(), 4096);
  REQUIRE(send_all(deaf.get(), req::set("/big", string(8 << 20, 'y')) + req::get("/big") + req::get("/big")));
  char first = 0;
  REQUIRE(::recv(deaf.get(), &first, 1, MSG_PEEK) == 1);
  server.stop();
  CHECK(server.stats().timed_out == 1);
}

TEST_CASE("out of descriptors, a legacy server refuses, tells it in a few lines, serves those inside, and recovers", "[legacy]") {
  const watchdog dog(current_case());
  lines log;
  rc::legacy_server server(rc::listen_options{}, {}, log.sink());
  server.start();
  const rc::unique_fd inside = greeted(server.port());
  std::vector<rc::unique_fd> outside;
  for (int i = 0; i < 120; ++i) {
    outside.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit{20, 0};
    setsockopt(outside.back().get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  bool refused = false, served = true;
  {
    const few_descriptors limit(3);
    const sockaddr_in to = loopback(server.port());
    for (auto const& o : outside) REQUIRE(::connect(o.get(), reinterpret_cast<sockaddr const*>(&to), sizeof to) == 0);
    refused = soon([&] { return server.stats().refused >= 90; });
    for (int i = 0; i < 100; ++i) served = served && send_all(inside.get(), req::ping(5)) && receive(inside.get(), 4) == u32(5);
  }
  INFO(server.stats().refused << " refused, " << server.stats().connections << " connected");
  CHECK(refused);
  CHECK(served);
  CHECK(log.any("EMFILE"));
  CHECK(log.any("ulimit -n"));
  CHECK(log.all().size() < 40);
  outside.clear();
  witness(server.port(), 10);
}

TEST_CASE("past max_connections a legacy server closes what comes", "[legacy]") {
  const watchdog dog(current_case());
  rc::legacy_server server(rc::listen_options{}, rc::serve_options{}.max_connections(2));
  server.start();
  const rc::unique_fd a = greeted(server.port()), b = greeted(server.port());
  const rc::unique_fd c = plain_connect(server.port());
  CHECK(ended(c));
  CHECK(server.stats().refused == 1);
  CHECK(server.stats().connections == 2);
}

TEST_CASE("nothing of a legacy server or a blocking store is inherited by exec, and a child that _exits hurts nothing", "[legacy]") {
  const watchdog dog(current_case());
  const std::set<int> before = open_descriptors();
  {
    rc::unique_fd fd(::socket(AF_INET, SOCK_STREAM, 0));  // not close-on-exec: adopting sees to that
    const sockaddr_in any = loopback(0);
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr const*>(&any), sizeof any) == 0);
    rc::legacy_server server(rc::listener::adopt(fd.release()));
    server.start();
    const rc::blocking_store store = rc::blocking_store::connect("127.0.0.1", server.port(), 10s);
    store.set("k", "v");
    int checked = 0;
    for (const int each : open_descriptors()) {
      if (before.count(each) != 0) continue;
      const int flags = ::fcntl(each, F_GETFD);
      INFO(each);
      CHECK((flags & FD_CLOEXEC) != 0);
      ++checked;
    }
    CHECK(checked >= 6);  // listener, reserve, two eventfds, both ends of a connection
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(store.get("k") == "v");
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("signals stay with the threads that had them", "[legacy]") {
  const watchdog dog(current_case());
  static std::atomic<int> handled;
  handled = 0;
  struct sigaction mine{}, old{};
  mine.sa_handler = [](int) { ++handled; };
  sigaction(SIGUSR2, &mine, &old);
  rc::legacy_server server(rc::listen_options{});
  server.start();
  sigset_t own;
  pthread_sigmask(SIG_BLOCK, nullptr, &own);
  CHECK(sigismember(&own, SIGUSR2) == 0);  // start() has put the mask back
  for (int i = 1; i <= 50; ++i) {
    ::kill(::getpid(), SIGUSR2);
    REQUIRE(soon([&] { return handled == i; }));
  }
  witness(server.port(), 10);
  sigaction(SIGUSR2, &old, nullptr);
}
