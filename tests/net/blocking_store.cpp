#include <sys/time.h>

#include <atomic>
#include <future>
#include <memory>

#include "../support/net.hpp"

// The store for programs without a loop, against both of our servers and against one that is like PyTorch's blocking one.

using namespace net_test;

namespace {

using clock = std::chrono::steady_clock;

/// serve() on a loop of its own thread.
class looping_server {
 public:
  looping_server() {
    rc::listener at = rc::listen(rc::listen_options{});
    port_ = at.port();
    thread_ = std::thread([this, l = std::move(at)]() mutable { rc::sync_wait(loop_, rc::serve(loop_, std::move(l)), stop_.token()); });
  }
  looping_server(looping_server const&) = delete;
  looping_server& operator=(looping_server const&) = delete;
  ~looping_server() {
    door_.post([this] { stop_.request_stop(); });
    thread_.join();
  }
  [[nodiscard]] int port() const { return port_; }

 private:
  rc::loop loop_;
  rc::poster door_ = loop_.post_handle();
  rc::stop_source stop_;
  int port_ = 0;
  std::thread thread_;
};

/// As PyTorch's blocking server: no capabilities, no queues, closes at a GET of a missing key and at opcodes past PING. `without_ping`: as
/// before 2.5.
class older_server {
 public:
  explicit older_server(bool without_ping = false) : at_(rc::listen(rc::listen_options{})), without_ping_(without_ping) {
    thread_ = std::thread([this] { run(); });
  }
  older_server(older_server const&) = delete;
  older_server& operator=(older_server const&) = delete;
  ~older_server() {
    stop_ = true;
    thread_.join();
  }
  [[nodiscard]] int port() const { return at_.port(); }
  [[nodiscard]] int accepted() const { return accepted_; }

 private:
  struct peer : rc::engine::client {
    peer(rc::engine::store& s, rc::unique_fd f) : client(s), fd(std::move(f)) {}
    rc::unique_fd fd;
    rc::wire::request_decoder decoder;
  };
  void run() {
    rc::engine::store store{rc::engine::store_options()};
    std::vector<std::unique_ptr<peer>> peers;
    while (!stop_) {
      std::vector<pollfd> p{{at_.fd(), POLLIN, 0}};
      for (auto const& one : peers) p.push_back({one->fd.get(), POLLIN, 0});
      ::poll(p.data(), p.size(), 10);
      for (std::size_t i = peers.size(); i-- > 0;)
        if (p[i + 1].revents != 0 && !step(store, *peers[i])) peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
      while (!store.woken().empty()) {
        auto& w = static_cast<peer&>(store.woken().front());
        send_all(w.fd.get(), string(store.take_due(w), '\0'));
      }
      if (rc::unique_fd fd(::accept4(at_.fd(), nullptr, nullptr, SOCK_CLOEXEC)); fd) {
        ++accepted_;
        peers.push_back(std::make_unique<peer>(store, std::move(fd)));
      }
    }
  }
  bool step(rc::engine::store& store, peer& c) {
    char bytes[65536];
    const ssize_t n = ::recv(c.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    string_view rest(bytes, static_cast<std::size_t>(n));
    rc::wire::request r;
    rc::wire::write_batch out;
    bool fine = true;
    while (fine && !rest.empty()) {
      const auto status = c.decoder.next(rest, r, store.limits());
      if (status == rc::wire::decode_status::need_more) break;
      fine = status == rc::wire::decode_status::complete &&
             r.op <= (without_ping_ ? rc::wire::opcode::cancel_wait : rc::wire::opcode::ping) &&
             !(r.op == rc::wire::opcode::get && !store.peek(r.key));
      if (!fine) break;
      if (r.op == rc::wire::opcode::check && r.count == 1 && r.key == rc::wire::capability_key) {
        out.append("\1", 1);
      } else {
        fine = store.apply(c, r, out) == rc::engine::apply_status::ok;
      }
    }
    while (!out.empty()) {
      iovec piece{};
      static_cast<void>(out.fill(&piece, 1));
      if (!send_all(c.fd.get(), string_view(static_cast<char const*>(piece.iov_base), piece.iov_len))) return false;
      out.consume(piece.iov_len);
    }
    return fine;
  }
  rc::listener at_;
  bool without_ping_;
  std::atomic<bool> stop_{false};
  std::atomic<int> accepted_{0};
  std::thread thread_;
};

rc::blocking_store store_at(int port, rc::blocking_options o = {}) {
  return rc::blocking_store::connect("127.0.0.1", port, 20s, std::move(o));
}

template <class F>
rc::failure failing(F f) {
  try {
    f();
  } catch (rc::error const& e) {
    return e.info();
  }
  FAIL("succeeded, though it must not");
  throw 0;
}
class legacy_running {
 public:
  legacy_running() : server_(rc::listen_options{}) { server_.start(); }
  [[nodiscard]] int port() const { return server_.port(); }
  rc::legacy_server& server() { return server_; }

 private:
  rc::legacy_server server_;
};

/// What every server answers alike.
void everyday(rc::blocking_store const& s) {
  s.set("k", "v");
  CHECK(s.get("k") == "v");
  CHECK(s.find("k") == "v");
  CHECK_FALSE(s.find("missing").has_value());
  s.set("empty", "");
  CHECK(s.get("empty").empty());
  CHECK(s.find("empty") == "");
  CHECK(s.add("n", 5) == 5);
  CHECK(s.add("n", -7) == -2);
  CHECK(s.check({"k", "n"}));
  CHECK_FALSE(s.check({"k", "missing"}));
  CHECK(s.check({}));
  s.wait({"k", "n"}, 10s);
  s.wait({}, 10s);
  s.append("k", "w");
  CHECK(s.compare_set("k", "vw", "x") == "x");
  CHECK(s.compare_set("k", "zzz", "y") == "x");
  s.multi_set({rc::kv("a", "1"), rc::kv("b", "22")});
  CHECK((s.multi_get({"b", "a"}) == std::vector<string>{"22", "1"}));
  CHECK(s.multi_get({}).empty());
  CHECK(s.num_keys() == 5);
  CHECK(s.delete_key("a"));
  CHECK_FALSE(s.delete_key("a"));
  char buffer[4] = {};
  CHECK(s.get_into("b", buffer) == 2);
  CHECK(string(buffer) == "22");
  CHECK(s.ping() > rc::duration::zero());
  const string big(3 << 20, 'z');
  s.set("big", big);
  CHECK(s.get("big") == big);
  const string binary("\0\xff/\n", 4);
  s.set(binary, binary);
  CHECK(s.get(binary) == binary);
  s.send_set("sent", "1");
  s.send_append("sent", "2");
  s.send_multi_set({rc::kv("sent2", "3")});
  CHECK(s.get("sent") == "12");
  s.flush();
  CHECK(s.get("sent2") == "3");
  CHECK(s.connections() == 1);
}
void newer(rc::blocking_store const& s) {
  s.queue_push("q", "1");
  s.queue_push("q", "2");
  s.send_queue_push("q", "3");
  CHECK(s.queue_len("q") == 3);
  CHECK(s.queue_pop("q") == "1");
  CHECK(s.queue_pop_now("q") == "2");
  CHECK(s.queue_pop("q") == "3");
  CHECK_FALSE(s.queue_pop_now("q").has_value());
  CHECK(s.queue_len("nothing") == 0);
  auto names = s.list_keys();
  CHECK(std::find(names.begin(), names.end(), "k") != names.end());
  s.server_barrier("alone", 1);
  CHECK(s.get("alone") == "1");
}

}  // namespace

TEST_CASE("a blocking store has every operation, on both of our servers", "[blocking]") {
  const watchdog dog(current_case());
  SECTION("legacy_server") {
    legacy_running server;
    const rc::blocking_store s = store_at(server.port());
    everyday(s);
    newer(s);
    CHECK(s.server_is_rollcall());
    const rc::blocking_store twin = s.clone(10s);
    CHECK(twin.get("k") == "x");
  }
  SECTION("serve()") {
    looping_server server;
    const rc::blocking_store s = store_at(server.port());
    everyday(s);
    newer(s);
  }
}

TEST_CASE("on a server like PyTorch's blocking one it never sends what ends the connection", "[blocking]") {
  const watchdog dog(current_case());
  for (const bool without_ping : {false, true}) {
    older_server server(without_ping);
    const rc::blocking_store s = store_at(server.port());
    CHECK_FALSE(s.server_is_rollcall());
    everyday(s);
    const int before = server.accepted();
    const rc::failure f = failing([&] { s.queue_push("q", "1"); });
    CHECK(f.code() == rc::errc::unsupported);
    CHECK(f.effect() == rc::effect::none);
    CHECK(contains(f.message(), "queues"));
    CHECK(failing([&] { static_cast<void>(s.list_keys()); }).code() == rc::errc::unsupported);
    const rc::failure b = failing([&] { s.server_barrier("nobody", 2); });
    CHECK(b.code() == rc::errc::unsupported);
    CHECK(b.effect() == rc::effect::none);
    CHECK(failing([&] { s.send_queue_push("q", "1"); }).code() == rc::errc::unsupported);
    CHECK(server.accepted() == before + 3);  // a connection each, and the store goes on
    CHECK(s.get("k") == "x");
    CHECK(s.connections() == 1);
  }
}

TEST_CASE("a thread that waits delays no other, for one key or several", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  std::atomic<int> woken{0};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back([&s, &woken, i] {
      i < 2 ? s.wait({"one"}, 60s) : s.wait({"one", "two"}, 60s);
      ++woken;
    });
  }
  for (int i = 1; i <= 500; ++i) {
    CHECK(s.add("n", 1) == i);
    s.set("k", std::to_string(i));
    CHECK(s.get("k") == std::to_string(i));
  }
  CHECK(woken == 0);
  s.set("one", "1");
  CHECK(soon([&] { return woken == 2; }));
  s.set("two", "2");
  for (auto& t : waiting) t.join();
  CHECK(woken == 4);
  CHECK(s.add("n", 1) == 501);
}

TEST_CASE("many threads on one store each get their own answers", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  constexpr int threads = 8, rounds = 200;
  std::atomic<int> wrong{0};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&s, &wrong, i] {
      const string own = "own/" + std::to_string(i), next = "step/" + std::to_string((i + 1) % threads) + "/",
                   mine = "step/" + std::to_string(i) + "/";
      for (int r = 0; r < rounds; ++r) {
        const string value(static_cast<std::size_t>(1 + (r * 37 + i) % 3000), static_cast<char>('a' + i));
        s.set(own, value);
        if (s.get(own) != value) ++wrong;
        s.add("all", 1);
        // A ring: everybody waits for his left neighbour each round.
        s.set(next + std::to_string(r), "");
        s.wait({mine + std::to_string(r)}, 60s);
      }
    });
  }
  for (auto& t : all) t.join();
  CHECK(wrong == 0);
  CHECK(s.add("all", 0) == threads * rounds);
}

TEST_CASE("limits hold to the point under a storm of signals, and the connection stays in step", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  static std::atomic<int> signals;
  signals = 0;
  struct sigaction mine{}, old{};
  mine.sa_handler = [](int) { ++signals; };  // without SA_RESTART
  sigaction(SIGALRM, &mine, &old);
  const itimerval storm{{0, 1000}, {0, 1000}}, calm{};
  setitimer(ITIMER_REAL, &storm, nullptr);
  const auto begun = clock::now();
  const rc::failure f = failing([&] { static_cast<void>(s.get("never", 300ms)); });
  const auto took = clock::now() - begun;
  const rc::failure many = failing([&] { s.wait({"never", "ever"}, 300ms); });
  CHECK(s.add("n", 1) == 1);
  setitimer(ITIMER_REAL, &calm, nullptr);
  sigaction(SIGALRM, &old, nullptr);
  CHECK(signals > 50);
  CHECK(f.code() == rc::errc::timed_out);
  CHECK(f.limit() == 300ms);
  CHECK(took >= 300ms);
  CHECK(took < 20s);
  CHECK(many.code() == rc::errc::timed_out);
  CHECK((many.keys() == std::vector<string>{"never", "ever"}));
  CHECK(contains(f.message(), "'never'"));
}

TEST_CASE("an expired wait names those of its keys that are missing", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  s.set("a", "1");
  const rc::failure f = failing([&] { s.wait({"a", "b", "c"}, 30ms); });
  CHECK((f.keys() == std::vector<string>{"b", "c"}));
  CHECK(s.add("n", 1) == 1);
  s.set("b", "1");
  s.set("c", "1");
  CHECK(s.add("n", 1) == 2);  // the wait has left nothing behind
}

TEST_CASE("interrupt() ends what is under way in every thread, and nothing else", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  std::atomic<int> cancelled{0};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back([&, i] {
      const rc::failure f = failing([&] {
        if (i == 0) s.wait({"a"}, 60s);
        if (i == 1) s.wait({"a", "b"}, 60s);
        if (i == 2) static_cast<void>(s.queue_pop("q", 60s));
        if (i == 3) static_cast<void>(s.get("a", 60s));
      });
      if (f.code() == rc::errc::cancelled && f.effect() == rc::effect::none) ++cancelled;
    });
  }
  CHECK(soon([&] {
    s.interrupt();
    return cancelled == 4;
  }));
  for (auto& t : waiting) t.join();
  s.set("a", "1");
  CHECK(s.get("a") == "1");
}

TEST_CASE("get of a key that is a queue and has no value waits without spinning, in plain code too", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  s.queue_push("q", "an item");  // ends every WAIT for the key at once (protocol 7.4)
  const std::uint64_t before = server.server().stats().requests;
  CHECK(failing([&] { static_cast<void>(s.get("q", 300ms)); }).code() == rc::errc::timed_out);
  CHECK(server.server().stats().requests - before < 300);  // about 30; without a pause some ten thousand
  std::promise<std::string> got;
  const std::uint64_t mark = server.server().stats().requests;
  std::thread waiting([&] { got.set_value(s.get("q", 20s)); });
  CHECK(soon([&] { return server.server().stats().requests > mark + 10; }));
  s.set("q", "a value");
  waiting.join();
  CHECK(got.get_future().get() == "a value");
  CHECK(s.queue_len("q") == 1);
}

TEST_CASE("close() from another thread ends the calls with closed", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  std::promise<rc::errc> code;
  std::thread waiting([&] { code.set_value(failing([&] { s.wait({"a"}, 60s); }).code()); });
  CHECK(soon([&] { return server.server().stats().requests >= 4; }));
  s.close();
  waiting.join();
  CHECK(code.get_future().get() == rc::errc::closed);
  CHECK_FALSE(s.is_open());
  CHECK(failing([&] { s.set("k", "v"); }).code() == rc::errc::closed);
  s.close();
}

TEST_CASE("when the server ends, every call ends at once, and changes say that their effect is unknown", "[blocking]") {
  const watchdog dog(current_case());
  auto server = std::make_unique<legacy_running>();
  const rc::blocking_store s = store_at(server->port());
  std::atomic<int> lost{0};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; ++i)
    waiting.emplace_back([&, i] {
      const rc::failure f = failing([&] {
        i == 0 ? s.wait({"a", "b"}, 60s) : i == 1 ? s.wait({"a"}, 60s) : s.server_barrier("bar", 2, 60s);
      });
      if (f.code() == rc::errc::disconnected && f.effect() == (i == 2 ? rc::effect::unknown : rc::effect::none)) ++lost;
    });
  CHECK(soon([&] { return s.check({"bar"}); }));
  server.reset();
  for (auto& t : waiting) t.join();
  CHECK(lost == 3);
  CHECK_FALSE(s.is_open());
}

namespace {

/// A peer that is a rollcall server in the handshake, and then does what `act(socket)` does.
template <class F>
std::thread scripted(rc::listener const& at, F act) {
  return std::thread([&at, act] {
    pollfd p{at.fd(), POLLIN, 0};
    ::poll(&p, 1, 20000);
    const rc::unique_fd fd(::accept4(at.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    const timeval limit{20, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const string hello = receive(fd.get(), 5 + 5 + 1 + 8 + 8 + 4);
    send_all(fd.get(), hello.substr(6, 4) + string(1, '\0'));
    if (receive(fd.get(), 1 + 8 + 4) != req::get(string_view("\0cap", 4))) return;  // in one write with the first request
    send_all(fd.get(), str(string(4 + 8 + 16, 'i')));
    act(fd.get());
  });
}
const string pop_q = op(15) + str("/q");
const string push_first = op(14) + str("/q") + str("first");
const string yes(1, '\0');

/// A server that stands still, also in the middle of a handshake, until it is told to go on.
class halting_server {
 public:
  halting_server()
      : server_(rc::listen_options{}, {}, [this](rc::log_level, string_view) {
          if (!goes_on_.load()) halted_ = true;
          goes_on_.wait(false);
        }) {
    server_.start();
  }
  ~halting_server() { go_on(); }
  [[nodiscard]] int port() const { return server_.port(); }
  [[nodiscard]] rc::legacy_server& server() { return server_; }
  void halt() {
    const rc::unique_fd noise = plain_connect(port());
    REQUIRE(send_all(noise.get(), "noise"));  // which is logged
    REQUIRE(soon([&] { return halted_.load(); }));
  }
  void go_on() {
    goes_on_ = true;
    goes_on_.notify_all();
  }

 private:
  std::atomic<bool> halted_{false}, goes_on_{false};
  rc::legacy_server server_;
};

}  // namespace

TEST_CASE("an item that comes for a pop which has ended goes to the next pop", "[blocking]") {
  const watchdog dog(current_case());
  rc::listener at = rc::listen(rc::listen_options{});
  std::promise<void> late, popped;
  string first, second, fence;
  std::thread peer = scripted(at, [&](int fd) {
    first = receive(fd, pop_q.size());
    late.get_future().wait();
    send_all(fd, i64(2) + str("first"));
    second = receive(fd, pop_q.size());
    popped.get_future().wait();
    send_all(fd, i64(0));
    fence = receive(fd, 9);
    send_all(fd, yes);
  });
  const rc::blocking_store s = rc::blocking_store::connect("127.0.0.1", at.port(), 20s);
  const rc::failure f = failing([&] { static_cast<void>(s.queue_pop("q", 50ms)); });
  CHECK(f.code() == rc::errc::timed_out);
  CHECK(f.effect() == rc::effect::none);
  late.set_value();
  CHECK(s.queue_pop("q", 20s) == "first");
  popped.set_value();
  s.close();  // hears the answer to the second one, which was empty
  peer.join();
  CHECK(first == pop_q);
  CHECK(second == pop_q);
  CHECK(fence == req::check({}));
}

TEST_CASE("close() gives what was popped for nobody back to the tail of its queue", "[blocking]") {
  const watchdog dog(current_case());
  rc::listener at = rc::listen(rc::listen_options{});
  std::promise<void> late;
  string back;
  std::thread peer = scripted(at, [&](int fd) {
    static_cast<void>(receive(fd, pop_q.size()));
    late.get_future().wait();
    send_all(fd, i64(1) + str("first"));
    static_cast<void>(receive(fd, 9));
    send_all(fd, yes);
    back = receive(fd, push_first.size() + 9);
    send_all(fd, yes);
  });
  {
    const rc::blocking_store s = rc::blocking_store::connect("127.0.0.1", at.port(), 20s);
    CHECK(failing([&] { static_cast<void>(s.queue_pop("q", 50ms)); }).code() == rc::errc::timed_out);
    late.set_value();
  }  // the last handle closes as well
  peer.join();
  CHECK(back == push_first + req::check({}));
}

TEST_CASE("a BARRIER that was left is not counted twice", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  const rc::blocking_store other = store_at(server.port());
  const rc::failure f = failing([&] { s.server_barrier("b", 2, 30ms); });
  CHECK(f.code() == rc::errc::timed_out);
  CHECK(f.effect() == rc::effect::unknown);
  std::thread second([&] { s.server_barrier("b", 2, 60s); });
  other.server_barrier("b", 2, 60s);
  second.join();
  CHECK(s.get("b") == "2");
}

TEST_CASE("what is too long is refused before anything is sent", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port());
  CHECK(failing([&] { s.set(string(8192, 'k'), "v"); }).code() == rc::errc::limit);
  CHECK(failing([&] { s.set("k", string((8 << 20) + 1, 'v')); }).code() == rc::errc::limit);
  CHECK(failing([&] { s.wait(std::vector<string>(131073)); }).code() == rc::errc::limit);
  s.set("k", "12345");
  char small[2];
  CHECK(failing([&] { static_cast<void>(s.get_into("k", small)); }).code() == rc::errc::limit);
  CHECK(s.get("k") == "12345");
}

TEST_CASE("connect() waits for a server that comes late, and says what it tried", "[blocking]") {
  const watchdog dog(current_case());
  const int port = unused_port();
  const rc::failure f = failing([&] { static_cast<void>(rc::blocking_store::connect("127.0.0.1", port, 100ms)); });
  CHECK(f.code() == rc::errc::refused);
  CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(port)));
  CHECK(contains(f.message(), "ECONNREFUSED"));
  CHECK(failing([&] { static_cast<void>(rc::blocking_store::connect("127.0.0.1", 70000, 1s)); }).code() == rc::errc::invalid);
  CHECK(failing([&] { static_cast<void>(rc::blocking_store::connect("300.0.0.1", 1, 1s)); }).code() == rc::errc::invalid);
  std::unique_ptr<rc::legacy_server> server;
  std::thread late([&] {
    std::this_thread::sleep_for(50ms);
    server = std::make_unique<rc::legacy_server>(rc::listen_options{}.port(port));
    server->start();
  });
  const rc::blocking_store s = rc::blocking_store::connect("localhost", port, 20s);
  late.join();
  s.set("k", "v");
  const black_hole hole;
  const auto begun = clock::now();
  CHECK(failing([&] { static_cast<void>(rc::blocking_store::connect("127.0.0.1", hole.port(), 200ms)); }).code() == rc::errc::refused);
  CHECK(clock::now() - begun >= 200ms);
}

TEST_CASE("whatever is no store is told at once", "[blocking]") {
  const watchdog dog(current_case());
  rc::listener at = rc::listen(rc::listen_options{});
  std::thread peer([&] {
    pollfd p{at.fd(), POLLIN, 0};
    ::poll(&p, 1, 20000);
    const rc::unique_fd fd(::accept4(at.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    send_all(fd.get(), "HTTP/1.1 400 Bad Request\r\n\r\n");
    static_cast<void>(receive(fd.get(), 1000));
  });
  const rc::failure f = failing([&] { static_cast<void>(rc::blocking_store::connect("127.0.0.1", at.port(), 60s)); });
  CHECK(f.code() == rc::errc::protocol);
  peer.join();
}

TEST_CASE("threads whose commands find no connection share the one that is being made, and never make more than max_lanes", "[blocking]") {
  const watchdog dog(current_case());
  halting_server halting;
  const rc::blocking_store s = store_at(halting.port(), rc::blocking_options{}.max_lanes(4));
  std::thread waiting([&] { s.wait({"a", "b"}, 60s); });  // takes the only connection
  CHECK(soon([&] { return halting.server().stats().requests >= 5; }));
  halting.halt();
  constexpr int threads = 16;
  std::atomic<int> begun{0}, done{0};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&] {
      ++begun;
      s.add("n", 1);
      ++done;
    });
  }
  CHECK(soon([&] { return begun == threads; }));
  std::vector<std::thread> waits;  // each of these wants a connection of its own, and may be refused
  std::atomic<int> refused{0};
  for (int i = 0; i < 8; ++i) {
    waits.emplace_back([&] {
      try {
        s.wait({"a", "c"}, 60s);
      } catch (rc::error const& e) {
        if (e.code() == rc::errc::limit) ++refused;
      }
    });
  }
  halting.go_on();
  for (auto& t : all) t.join();
  CHECK(done == threads);
  CHECK(soon([&] { return refused >= 6; }));  // one of four serves commands, one waits already
  CHECK(s.connections() <= 4);
  CHECK(halting.server().stats().accepted <= 5);  // with the noise
  s.multi_set({rc::kv("a", ""), rc::kv("b", ""), rc::kv("c", "")});
  waiting.join();
  for (auto& t : waits) t.join();
  CHECK(refused == 6);
  CHECK(s.add("n", 0) == threads);
}

TEST_CASE("waits that keep their connections leave one for commands", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  const rc::blocking_store s = store_at(server.port(), rc::blocking_options{}.max_lanes(2));
  std::thread waiting([&] { s.wait({"a", "b"}, 60s); });
  CHECK(soon([&] {
    static_cast<void>(s.check("a"));
    return s.connections() == 2;
  }));
  const rc::failure f = failing([&] { s.wait({"c", "d"}, 20s); });
  CHECK(f.code() == rc::errc::limit);
  CHECK(contains(f.message(), "kept for commands"));
  CHECK(failing([&] { s.server_barrier("all", 2, 20s); }).code() == rc::errc::limit);
  CHECK(failing([&] { static_cast<void>(s.multi_get({"c", "d"}, 20s)); }).code() == rc::errc::limit);
  CHECK(failing([&] { s.wait("c", 20ms); }).code() == rc::errc::timed_out);  // gives way to commands
  s.multi_set({rc::kv("a", ""), rc::kv("b", "")});
  waiting.join();
  CHECK(failing([&] { s.wait({"c", "d"}, 20ms); }).code() == rc::errc::timed_out);
  const rc::blocking_store alone = store_at(server.port(), rc::blocking_options{}.max_lanes(1));
  CHECK(failing([&] { alone.wait({"c", "d"}, 20ms); }).code() == rc::errc::timed_out);
  CHECK(alone.connections() == 1);
}

TEST_CASE("further connections go where the first one went", "[blocking]") {
  const watchdog dog(current_case());
  rc::result<rc::listener> six = rc::try_listen(rc::listen_options{}.host("::1"));
  if (!six) {
    WARN("skipped: no ::1 here");
    return;
  }
  const int port = six->port();
  rc::legacy_server first(std::move(*six));
  first.start();
  const rc::blocking_store s = rc::blocking_store::connect("localhost", port, 20s);  // 127.0.0.1 refuses
  rc::result<rc::listener> four = rc::try_listen(rc::listen_options{}.port(port));
  if (!four) {
    WARN("skipped: somebody else has the port on 127.0.0.1");
    return;
  }
  rc::legacy_server other(std::move(*four));  // "localhost" means this one from now on
  other.start();
  std::thread waiting([&] { s.wait({"a", "b"}, 60s); });
  CHECK(soon([&] {
    static_cast<void>(s.check("a"));
    return s.connections() == 2;
  }));
  CHECK(other.stats().accepted == 0);
  s.multi_set({rc::kv("a", ""), rc::kv("b", "")});
  waiting.join();
}

TEST_CASE("an item that comes late does not end another thread's attempt to connect", "[blocking]") {
  const watchdog dog(current_case());
  rc::listener at = rc::listen(rc::listen_options{});
  std::promise<void> late;
  std::atomic<bool> waits{false}, dialled{false};
  std::thread peer = scripted(at, [&](int fd) {
    static_cast<void>(receive(fd, pop_q.size()));
    static_cast<void>(receive(fd, req::wait({"/a", "/b"}).size()));
    waits = true;
    pollfd p{at.fd(), POLLIN, 0};
    dialled = ::poll(&p, 1, 20000) == 1;
    send_all(fd, i64(1) + str("item"));
    late.get_future().wait();
  });
  const rc::blocking_store s = rc::blocking_store::connect("127.0.0.1", at.port(), 20s);
  CHECK(failing([&] { static_cast<void>(s.queue_pop("q", 20ms)); }).code() == rc::errc::timed_out);
  std::promise<rc::errc> ended;
  std::thread waiting([&] { ended.set_value(failing([&] { s.wait({"a", "b"}, 60s); }).code()); });
  CHECK(soon([&] { return waits.load(); }));
  const rc::failure f = failing([&] { s.set("k", "v", 300ms); });  // its connection is never greeted
  CHECK(dialled);
  CHECK(f.code() == rc::errc::timed_out);
  CHECK(s.queue_pop("q", 20s) == "item");
  s.close();
  late.set_value();
  waiting.join();
  peer.join();
  CHECK(ended.get_future().get() == rc::errc::closed);
}

TEST_CASE("reconnect() goes on after a loss or a close(), for all copies, and tells another server from the same", "[blocking]") {
  const watchdog dog(current_case());
  auto server = std::make_unique<rc::legacy_server>(rc::listen_options{});
  server->start();
  const int port = server->port();
  const rc::blocking_store s = store_at(port);
  const rc::blocking_store copy = s;
  CHECK(copy.identity() == s.identity());
  CHECK(store_at(port).identity() != s.identity());
  s.reconnect(20s);  // is open
  CHECK(server->stats().accepted == 2);
  s.set("k", "v");
  s.set("text", "no number");
  CHECK(failing([&] { s.add("text", 1); }).code() == rc::errc::disconnected);
  CHECK_FALSE(copy.is_open());
  CHECK(failing([&] { static_cast<void>(copy.get("k")); }).code() == rc::errc::disconnected);
  std::vector<std::thread> several;
  for (int i = 0; i < 4; ++i) several.emplace_back([&] { s.reconnect(20s); });
  for (auto& t : several) t.join();
  CHECK(copy.is_open());
  CHECK(copy.get("k") == "v");
  CHECK(copy.connections() == 1);
  s.close();
  CHECK(failing([&] { static_cast<void>(s.get("k")); }).code() == rc::errc::closed);
  copy.reconnect(20s);
  CHECK(s.get("k") == "v");
  CHECK(s.server_is_rollcall());

  server.reset();
  CHECK(failing([&] { static_cast<void>(s.get("missing", 20s)); }).code() == rc::errc::disconnected);
  const rc::failure nobody = failing([&] { s.reconnect(50ms); });
  CHECK(nobody.code() == rc::errc::refused);
  CHECK(nobody.operation() == "reconnect");
  CHECK_FALSE(s.is_open());
  server = std::make_unique<rc::legacy_server>(rc::listen_options{}.port(port));
  server->start();
  CHECK(failing([&] { s.reconnect(20s); }).code() == rc::errc::server_replaced);
  CHECK(failing([&] { s.set("k", "v"); }).code() == rc::errc::disconnected);
}

TEST_CASE("a reconnect() ends by interrupt(), by close(), and at its limit", "[blocking]") {
  const watchdog dog(current_case());
  halting_server halting;
  const rc::blocking_store s = store_at(halting.port());
  s.close();
  halting.halt();
  CHECK(failing([&] { s.reconnect(50ms); }).code() == rc::errc::refused);
  std::promise<rc::errc> interrupted, closed;
  std::atomic<bool> over{false};
  std::thread one([&] {
    interrupted.set_value(failing([&] { s.reconnect(60s); }).code());
    over = true;
  });
  CHECK(soon([&] {
    s.interrupt();
    return over.load();
  }));
  one.join();
  CHECK(interrupted.get_future().get() == rc::errc::cancelled);
  over = false;
  std::thread two([&] {
    closed.set_value(failing([&] { s.reconnect(60s); }).code());
    over = true;
  });
  CHECK(soon([&] {
    s.close();
    return over.load();
  }));
  two.join();
  CHECK(closed.get_future().get() == rc::errc::closed);
  halting.go_on();
  s.reconnect(20s);
  s.set("k", "v");
  CHECK(s.get("k") == "v");
}

TEST_CASE("a process without descriptors is told so, long before the limit, and not that nobody answers", "[blocking]") {
  const watchdog dog(current_case());
  legacy_running server;
  for (const int left : {0, 1}) {
    const auto begun = clock::now();
    std::optional<rc::failure> f;
    {
      const few_descriptors limit(left);
      f = failing([&] { static_cast<void>(rc::blocking_store::connect("127.0.0.1", server.port(), 60s)); });
    }
    INFO(left << ": " << f->message());
    CHECK(clock::now() - begun < 20s);
    CHECK(f->code() == rc::errc::io);
    CHECK(contains(f->message(), "EMFILE"));
    CHECK(contains(f->message(), "ulimit -n"));
  }
  CHECK(store_at(server.port()).add("n", 1) == 1);
}
