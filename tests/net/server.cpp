#include <malloc.h>
#include <netdb.h>
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <new>
#include <random>

#include "../support/net.hpp"

// What a server must withstand. All allocations of this program are counted here, and nobody may look up the name of a peer.

namespace {
std::atomic<std::uint64_t> allocations{0};
std::atomic<std::int64_t> live_bytes{0};

void* counted_allocation(std::size_t n) {
  void* p = std::malloc(n > 0 ? n : 1);
  if (!p) throw std::bad_alloc();
  allocations.fetch_add(1, std::memory_order_relaxed);
  live_bytes.fetch_add(static_cast<std::int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  return p;
}
void counted_release(void* p) noexcept {
  if (!p) return;
  live_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  std::free(p);
}
}  // namespace

std::uint64_t net_test::counted_allocations() noexcept { return allocations; }

void* operator new(std::size_t n) { return counted_allocation(n); }
void* operator new[](std::size_t n) { return counted_allocation(n); }
// The address sanitizer has forms of its own of those that do not throw, which would not fit the release below.
void* operator new(std::size_t n, std::nothrow_t const&) noexcept {
  try {
    return counted_allocation(n);
  } catch (...) {
    return nullptr;
  }
}
void* operator new[](std::size_t n, std::nothrow_t const& t) noexcept { return operator new(n, t); }
void operator delete(void* p) noexcept { counted_release(p); }
void operator delete[](void* p) noexcept { counted_release(p); }
void operator delete(void* p, std::size_t) noexcept { counted_release(p); }
void operator delete[](void* p, std::size_t) noexcept { counted_release(p); }

extern "C" int getnameinfo(sockaddr const*, socklen_t, char*, socklen_t, char*, socklen_t, int) { std::abort(); }
extern "C" hostent* gethostbyaddr(void const*, socklen_t, int) { std::abort(); }

using namespace net_test;

namespace {

/// A server whose loop has a thread of its own, for tests with plain sockets in this one.
class threaded_server {
 public:
  explicit threaded_server(rc::serve_options o = {}, rc::listen_options at = {}) {
    rc::listener listening = rc::listen(at);
    port_ = listening.port();
    loop_.log_to([this](rc::log_level level, string_view line) {
      if (level >= rc::log_level::warning) lines_.emplace_back(line);
    });
    thread_ = std::thread([this, o, l = std::move(listening)]() mutable { rc::sync_wait(loop_, rc::serve(loop_, std::move(l), o.stats(&stats_)), stop_.token()); });
  }
  threaded_server(threaded_server const&) = delete;
  threaded_server& operator=(threaded_server const&) = delete;
  ~threaded_server() { stop(); }
  [[nodiscard]] int port() const { return port_; }
  /// A copy, taken on the server's thread.
  [[nodiscard]] rc::server_stats stats() {
    std::promise<rc::server_stats> copied;
    door_.post([&] { copied.set_value(stats_); });
    return copied.get_future().get();
  }
  void stop() {
    if (!thread_.joinable()) return;
    door_.post([this] { stop_.request_stop(); });
    thread_.join();
  }
  /// After stop(): everything is gone.
  void expect_nothing_left() { net_test::expect_nothing_left(loop_); }
  [[nodiscard]] std::vector<string> const& lines() const { return lines_; }

 private:
  rc::loop loop_;
  rc::poster door_ = loop_.post_handle();
  rc::stop_source stop_;
  rc::server_stats stats_;
  std::vector<string> lines_;
  int port_ = 0;
  std::thread thread_;
};

/// A thousand replies for somebody who does nothing wrong.
rc::task<> witness(rc::loop& l, int port) {
  raw_peer p = co_await raw_peer::open(l, port);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const string answer = co_await p.ask(req::ping(i), 4);
    REQUIRE(answer == u32(i));
  }
}
/// The connection that sends this is ended by the server, with nothing but `replies` before.
rc::task<> ends(rc::loop& l, int port, string bytes, string replies = {}) {
  raw_peer p = co_await raw_peer::connect(l, port);
  static_cast<void>(co_await rc::as_result(p.send(std::move(bytes))));
  const string got = co_await p.read_to_end();
  CHECK((got == replies));
}

string letters(std::size_t n, unsigned seed) {
  string s(n, '\0');
  for (std::size_t i = 0; i < n; ++i) s[i] = static_cast<char>('a' + (i * 7 + i / 251 + seed) % 26);
  return s;
}

}  // namespace

TEST_CASE("whatever a peer sends ends its own connection at the most", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const int port = server.port();
    const string v = req::validate();
    std::vector<string> bad;
    bad.push_back(op(0) + u32(0x3C85F7CF));
    bad.push_back(op(0) + u32(0xCEF7853C));
    bad.push_back("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    bad.push_back(req::ping(1));
    bad.push_back(req::set("/k", "v"));
    bad.push_back("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    bad.push_back(string(100, '\xff'));
    for (int code = 19; code < 256; ++code) bad.push_back(v + op(code));
    bad.push_back(v + v);
    bad.push_back(v + op(1) + u64(8193) + string(100, 'k'));
    bad.push_back(v + op(1) + str("/k") + u64((8U << 20) + 1));
    bad.push_back(v + op(2) + str("/k") + str("") + u64(~std::uint64_t{0}));
    for (const int code : {5, 6, 10, 11}) bad.push_back(v + op(code) + u64(131073));
    for (const int code : {5, 6, 10, 11}) bad.push_back(v + op(code) + u64(~std::uint64_t{0}));
    for (const int code : {1, 2, 3, 4, 8, 9, 14, 15, 16, 18}) bad.push_back(v + op(code) + u64(std::uint64_t{1} << 63));
    bad.push_back(v + req::set("/text", "abc") + req::add("/text", 1));
    bad.push_back(v + req::set("/max", "9223372036854775807") + req::add("/max", 1));
    rc::scope witnesses(l);
    witnesses.spawn(witness(l, port));
    for (string const& bytes : bad) co_await ends(l, port, bytes);
    co_await ends(l, port, v + req::ping(5) + op(99) + req::ping(6), u32(5));  // what came before is answered
    CHECK(server.stats().violations == bad.size() + 1);

    // Noise, mostly behind a good start. A peer that is not ended by its noise leaves by itself.
    std::minstd_rand random(7);
    const std::int64_t before = live_bytes;
    for (int i = 0; i < 300; ++i) {
      string noise(random() % 3000, '\0');
      for (char& c : noise) c = static_cast<char>(random() % (i % 2 == 0 ? 256 : 19));
      if (i % 4 != 0) noise.insert(0, v);
      raw_peer p = co_await raw_peer::connect(l, port);
      static_cast<void>(co_await rc::as_result(p.send(noise)));
      p.socket.shutdown();
      static_cast<void>(co_await p.read_to_end());
    }
    co_await witnesses.join();
    co_await eventually([&] { return server.stats().connections == 0; });
    CHECK(live_bytes - before < (1 << 20));
    co_await witness(l, port);
    co_await server.stop();
  });
}

TEST_CASE("nothing is reserved on a declared size", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    std::vector<raw_peer> peers;
    peers.reserve(64);
    for (int i = 0; i < 64; ++i) peers.push_back(co_await raw_peer::open(l, server.port()));
    const std::int64_t before = live_bytes;
    for (raw_peer& p : peers) co_await p.send(op(1) + str("/k") + u64(8U << 20) + "only this");
    co_await witness(l, server.port());
    CHECK((live_bytes - before) / 64 < 4096);
    peers.clear();
    co_await server.stop();
  });
}

TEST_CASE("VALIDATE may be split anywhere", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const string whole = req::validate() + req::ping(3);
    for (std::size_t at = 1; at < whole.size(); ++at) {
      raw_peer p = co_await raw_peer::connect(l, server.port());
      const std::uint64_t reads = server.stats().reads;
      co_await p.send(whole.substr(0, at));
      co_await eventually([&] { return server.stats().reads > reads; });
      const string answer = co_await p.ask(whole.substr(at), 4);
      CHECK(answer == u32(3));
    }
    raw_peer p = co_await raw_peer::connect(l, server.port());
    for (const char c : whole) {
      const std::uint64_t reads = server.stats().reads;
      co_await p.send(string(1, c));
      co_await eventually([&] { return server.stats().reads > reads; });
    }
    const string answer = co_await p.read(4);
    CHECK(answer == u32(3));
    p.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("half a message that stays half delays nobody", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    raw_peer fresh = co_await raw_peer::connect(l, server.port());
    co_await fresh.send(req::validate().substr(0, 3));
    raw_peer half = co_await raw_peer::open(l, server.port());
    const string request = req::set("/half", letters(5000, 1));
    co_await half.send(request.substr(0, 2500));
    co_await witness(l, server.port());
    const string rest = co_await half.ask(request.substr(2500) + req::get("/half"), 8 + 5000);
    CHECK((rest == str(letters(5000, 1))));
    const string hello = co_await fresh.ask(req::validate().substr(3) + req::ping(1), 4);
    CHECK(hello == u32(1));
    fresh.socket.close();
    half.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("a peer that does not read its replies is not read any more, and closed in the end", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l, rc::serve_options{}.close_unread_after(600ms));
    const string small = letters(10'000, 2);
    {
      raw_peer setter = co_await raw_peer::open(l, server.port());
      static_cast<void>(co_await setter.ask(req::set("/v", small) + req::ping(1), 4));
    }
    raw_peer greedy = co_await raw_peer::open(l, server.port());
    string many;
    for (int i = 0; i < 20'000; ++i) many += req::get("/v");
    const std::int64_t before = live_bytes;
    rc::scope sender(l);
    sender.spawn(rc::as_result(greedy.send(std::move(many))));
    co_await eventually([&] { return server.stats().paused == 1; });
    co_await witness(l, server.port());
    CHECK(server.stats().requests < 20'000);
    CHECK(live_bytes - before < (8 << 20));  // 200 MB were asked for
    co_await eventually([&] { return server.stats().timed_out == 1; });
    CHECK(server.stats().paused == 0);
    co_await eventually([&] { return server.stats().connections == 0; });
    co_await witness(l, server.port());
    sender.request_stop();
    co_await sender.join();
    greedy.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("a peer that reads late gets every reply, in order", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l, rc::serve_options{}.max_unsent(256 * 1024));
    constexpr int rounds = 600;
    raw_peer p = co_await raw_peer::open(l, server.port());
    string preparation;
    for (unsigned k = 0; k < 5; ++k) preparation += req::set("/" + std::to_string(k), letters(k == 4 ? 90'000 : 40'000, k));
    static_cast<void>(co_await p.ask(preparation + req::ping(1), 4));
    string many;
    for (int i = 0; i < rounds; ++i) many += req::get("/" + std::to_string(i % 5)) + req::add("/n", 1) + req::wait({"/n"});
    rc::scope sender(l);
    sender.spawn(p.send(many));
    co_await eventually([&] { return server.stats().paused == 1; });
    co_await witness(l, server.port());
    for (int i = 0; i < rounds; ++i) {
      const auto k = static_cast<unsigned>(i % 5);
      const string value = co_await p.read(8 + (k == 4 ? 90'000 : 40'000));
      REQUIRE((value == str(letters(k == 4 ? 90'000 : 40'000, k))));
      const string count = co_await p.read(9);
      REQUIRE((count == i64(i + 1) + string(1, '\0')));
      if (i % 97 == 0) co_await rc::sleep_for(1ms);
    }
    co_await sender.join();
    CHECK(server.stats().paused == 0);
    const string after = co_await p.ask(req::ping(9), 4);
    CHECK(after == u32(9));
    p.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("a large value is queued for slow readers by reference, and delays nobody", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const string big = letters(std::size_t{8} << 20, 3);
    std::vector<raw_peer> readers;
    for (int i = 0; i < 8; ++i) readers.push_back(co_await raw_peer::open(l, server.port()));
    static_cast<void>(co_await readers[0].ask(req::set("/big", big) + req::ping(1), 4));
    const std::int64_t before = live_bytes;
    for (raw_peer& r : readers) co_await r.send(req::get("/big"));
    co_await eventually([&] { return server.stats().paused == 8; });
    CHECK(live_bytes - before < (4 << 20));
    co_await witness(l, server.port());
    // The value changes meanwhile; what was answered stays what it was.
    raw_peer setter = co_await raw_peer::open(l, server.port());
    static_cast<void>(co_await setter.ask(req::set("/big", "small") + req::ping(1), 4));
    for (raw_peer& r : readers) {
      const string got = co_await r.read(8 + big.size());
      CHECK((got == str(big)));
      const string now = co_await r.ask(req::get("/big"), 8 + 5);
      CHECK(now == str("small"));
    }
    readers.clear();
    setter.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("peers that stand still are closed after their limits, and no others", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l, rc::serve_options{}.validate_within(300ms).close_half_request_after(400ms));
    const rc::time_point begun = l.now();
    raw_peer silent = co_await raw_peer::connect(l, server.port());
    raw_peer started = co_await raw_peer::connect(l, server.port());
    co_await started.send(req::validate().substr(0, 4));
    raw_peer half = co_await raw_peer::open(l, server.port());
    co_await half.send(req::set("/k", "value").substr(0, 12));
    raw_peer idle = co_await raw_peer::open(l, server.port());
    raw_peer waiting = co_await raw_peer::open(l, server.port());
    co_await waiting.send(req::wait({"/never"}));
    const bool first = co_await silent.ended();
    CHECK(first);
    CHECK(l.now() - begun >= 300ms);
    const bool second = co_await started.ended();
    CHECK(second);
    const bool third = co_await half.ended();
    CHECK(third);
    CHECK(l.now() - begun >= 400ms);
    CHECK(server.stats().timed_out == 3);
    const string still = co_await idle.ask(req::ping(1), 4);
    CHECK(still == u32(1));
    const string too = co_await waiting.ask(req::cancel_wait(), 1);
    CHECK(too == "\x01");
    idle.socket.close();
    waiting.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("connections past the limit are closed at once, and taken again when there is room", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l, rc::serve_options{}.max_connections(3));
    std::vector<raw_peer> inside;
    for (int i = 0; i < 3; ++i) inside.push_back(co_await raw_peer::open(l, server.port()));
    for (int i = 0; i < 5; ++i) co_await ends(l, server.port(), req::validate() + req::ping(1));
    CHECK(server.stats().refused == 5);
    const string still = co_await inside[0].ask(req::ping(2), 4);
    CHECK(still == u32(2));
    inside.pop_back();
    co_await eventually([&] { return server.stats().connections == 2; });
    raw_peer next = co_await raw_peer::open(l, server.port());
    inside.clear();
    next.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("a peer that ends its side still gets what it asked for", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const string big = letters(std::size_t{4} << 20, 4);
    {
      raw_peer p = co_await raw_peer::open(l, server.port());
      co_await p.send(req::set("/k", "v") + req::get("/k") + req::add("/n", 2));
      p.socket.shutdown();
      const string all = co_await p.read_to_end();
      CHECK((all == str("v") + i64(2)));
    }
    {
      raw_peer p = co_await raw_peer::open(l, server.port());
      co_await p.send(req::set("/big", big));
      static_cast<void>(co_await p.ask(req::ping(1), 4));
      string many;
      for (int i = 0; i < 4; ++i) many += req::get("/big");
      co_await p.send(many + req::ping(2));
      p.socket.shutdown();
      co_await rc::sleep_for(20ms);
      string expected;
      for (int i = 0; i < 4; ++i) expected += str(big);
      const string all = co_await p.read_to_end();
      CHECK((all == expected + u32(2)));
    }
    {
      raw_peer p = co_await raw_peer::open(l, server.port());
      co_await p.send(req::wait({"/never"}) + req::ping(3));
      p.socket.shutdown();
      const string all = co_await p.read_to_end();
      CHECK(all == u32(3));
    }
    co_await eventually([&] { return server.stats().connections == 0; });
    CHECK(server.stats().violations == 0);
    co_await server.stop();
  });
}

TEST_CASE("a woken consumer that ends its side while it is stuck passes the item on", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const string big = letters(std::size_t{8} << 20, 5);
    raw_peer pusher = co_await raw_peer::open(l, server.port());
    static_cast<void>(co_await pusher.ask(req::set("/big", big) + req::ping(1), 4));
    raw_peer first = co_await raw_peer::open(l, server.port());
    co_await first.send(req::get("/big") + req::wait({"/q"}));
    co_await eventually([&] { return server.stats().paused == 1; });
    raw_peer second = co_await raw_peer::open(l, server.port());
    static_cast<void>(co_await second.ask(req::ping(1), 4));
    co_await second.send(req::wait({"/q"}) + req::ping(2));
    const string pong = co_await second.read(4);
    CHECK(pong == u32(2));
    static_cast<void>(co_await pusher.ask(op(14) + str("/q") + str("item") + req::ping(3), 4));
    first.socket.close();  // was woken and never pops
    const string woken = co_await second.read(1);
    CHECK(woken == string(1, '\0'));
    const string item = co_await second.ask(op(15) + str("/q"), 8 + 8 + 4);
    CHECK((item == i64(1) + str("item")));
    pusher.socket.close();
    second.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("a server that is stopped frees its port at once and sends what it has answered", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const string big = letters(std::size_t{8} << 20, 6);
    raw_peer reader = co_await raw_peer::open(l, server.port());
    static_cast<void>(co_await reader.ask(req::set("/big", big) + req::ping(1), 4));
    raw_peer waiting = co_await raw_peer::open(l, server.port());
    co_await waiting.send(req::wait({"/never"}));
    raw_peer quiet = co_await raw_peer::open(l, server.port());
    co_await reader.send(req::get("/big") + req::ping(2));
    co_await eventually([&] { return server.stats().paused == 1; });
    rc::scope stopping(l);
    stopping.spawn(server.stop());
    const bool quiet_ended = co_await quiet.ended();
    CHECK(quiet_ended);
    const bool waiting_ended = co_await waiting.ended();
    CHECK(waiting_ended);
    { const rc::listener again = rc::listen(rc::listen_options{}.port(server.port())); }
    CHECK(server.running());
    const string all = co_await reader.read_to_end();
    CHECK((all == str(big) || all == str(big) + u32(2)));
    co_await stopping.join();
    CHECK(server.stats().connections == 0);
  });
}

TEST_CASE("the replies before a violation arrive, also at a peer that does not read at first", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const string big = letters(std::size_t{8} << 20, 5);
    // Past max_unsent the violation is not even looked at before the peer reads.
    const std::size_t limits[] = {std::size_t{1} << 20, std::size_t{64} << 20};
    for (const std::size_t max_unsent : limits) {
      local_server server(l, rc::serve_options{}.max_unsent(max_unsent));
      raw_peer slow = co_await raw_peer::open(l, server.port());
      static_cast<void>(co_await slow.ask(req::set("/big", big) + req::ping(1), 4));
      co_await slow.send(req::get("/big") + req::ping(2) + "\xff");
      co_await eventually([&] { return server.stats().violations + server.stats().paused == 1; });
      CHECK(server.stats().connections == 1);
      const string all = co_await slow.read_to_end();
      CHECK((all == str(big) + u32(2)));
      co_await eventually([&] { return server.stats().connections == 0; });
      CHECK(server.stats().violations == 1);
      co_await server.stop();
    }
  });
}

TEST_CASE("a stopping server waits for those who do not read only so long", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    // Once in five on a busy machine must do: the limit's own time, not the next look at the clocks, which is a second away.
    rc::duration best = 1h;
    for (int attempt = 0; attempt < 5 && best >= 900ms; ++attempt) {
      local_server server(l, rc::serve_options{}.drain_within(100ms));
      raw_peer p = co_await raw_peer::open(l, server.port());
      static_cast<void>(co_await p.ask(req::set("/big", letters(std::size_t{8} << 20, 7)) + req::ping(1), 4));
      co_await p.send(req::get("/big"));
      co_await eventually([&] { return server.stats().paused == 1; });
      const rc::time_point begun = l.now();
      co_await server.stop();
      CHECK(l.now() - begun >= 100ms);
      best = std::min<rc::duration>(best, l.now() - begun);
      CHECK(server.stats().timed_out == 1);
      p.socket.close();
    }
    CHECK(best < 900ms);
  });
}

TEST_CASE("a server stopped under a hundred clients fails what they have pending", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    std::vector<rc::tcp_store> clients;
    int disconnected = 0;
    rc::scope pending(l);
    auto one = [&disconnected](rc::tcp_store s) -> rc::task<> {
      const rc::failure f = failure_of(co_await rc::as_result(s.wait("never")));
      if (f.code() == rc::errc::disconnected) ++disconnected;
    };
    for (int i = 0; i < 100; ++i) {
      clients.push_back(co_await client_of(l, server.port()));
      pending.spawn(one(clients.back()));
    }
    co_await clients.back().num_keys();
    co_await server.stop();
    co_await pending.join();
    CHECK(disconnected == 100);
  });
}

TEST_CASE("a server may be dropped with its frame, connections and all", "[server]") {
  const watchdog dog(current_case());
  rc::loop l;
  {
    std::vector<rc::unique_fd> peers;
    rc::scope server(l);
    rc::server_stats stats;
    rc::listener at = rc::listen(rc::listen_options{});
    const int port = at.port();
    server.spawn(rc::serve(l, std::move(at), rc::serve_options{}.stats(&stats)));
    for (int i = 0; i < 10; ++i) {
      peers.push_back(plain_connect(port));
      REQUIRE(send_all(peers.back().get(), req::validate() + req::set("/big", string(100'000, 'x')) + req::wait({"/never"}) +
                                               (i % 2 == 0 ? req::set("/k", "v").substr(0, 10) : req::get("/big"))));
    }
    while (stats.requests < 10 * 3) uv_run(l.native(), UV_RUN_NOWAIT);
    server.request_stop();  // the scope goes before the server had a turn to drain
  }
  expect_nothing_left(l);
}

TEST_CASE("two hundred servers on one port, one after the other", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    for (int i = 0; i < 200; ++i) {
      local_server server(l, {}, rc::listen_options{}.port(port));
      if (i % 10 == 0) {
        std::vector<rc::tcp_store> clients;
        for (int c = 0; c < 10; ++c) clients.push_back(co_await client_of(l, port));
        const std::int64_t one = co_await clients.back().add("n", 1);
        CHECK(one == 1);  // no older server's
      } else if (i % 2 == 0) {
        const rc::unique_fd peer = plain_connect(port);
        CHECK(peer);
      }
      co_await server.stop();
    }
  });
}

TEST_CASE("failed starts leave no descriptor", "[server]") {
  const auto descriptors = [] {
    int n = 0;
    for (int fd = 0; fd < 1024; ++fd) n += fcntl(fd, F_GETFD) != -1 ? 1 : 0;
    return n;
  };
  const rc::listener holder = rc::listen(rc::listen_options{});
  const int before = descriptors();
  for (int i = 0; i < 1000; ++i) {
    const rc::result<rc::listener> r = rc::try_listen(rc::listen_options{}.port(holder.port()));
    if (r) FAIL("two listeners on one port");
    if (i > 0) continue;
    CHECK(r.error().code() == rc::errc::address_in_use);
    CHECK(contains(r.error().message(), std::to_string(holder.port())));
    CHECK(contains(r.error().message(), "EADDRINUSE"));
  }
  CHECK(descriptors() == before);
}

TEST_CASE("a server that is not to keep the loop alive does not, not even with a peer that does not read", "[server]") {
  const watchdog dog(current_case());
  rc::loop l;
  {
    rc::scope server(l);
    rc::server_stats stats;
    rc::listener at = rc::listen(rc::listen_options{});
    const int port = at.port();
    server.spawn(rc::serve(l, std::move(at), rc::serve_options{}.keep_alive(false).stats(&stats)));
    rc::unique_fd peer = plain_connect(port, 4096);
    rc::unique_fd other = plain_connect(port);
    REQUIRE(send_all(other.get(), req::validate() + req::ping(1) + req::wait({"/never"})));
    REQUIRE(send_all(peer.get(), req::validate() + req::set("/big", string(std::size_t{1} << 20, 'x'))));
    std::thread more([&] {
      for (int i = 0; i < 16; ++i) send_all(peer.get(), req::get("/big"));
    });
    rc::sync_wait(l, eventually([&] { return stats.paused == 1; }));
    more.join();
    uv_run(l.native(), UV_RUN_DEFAULT);  // returns
    CHECK(stats.connections == 2);
    CHECK(receive(other.get(), 4) == u32(1));
    server.request_stop();
    peer.reset();
    rc::sync_wait(l, server.join());
  }
  expect_nothing_left(l);
}

TEST_CASE("peers that reset while they are written to kill nobody; signals stay the host's", "[server]") {
  struct sigaction before {}, after {};
  sigset_t mask_before, mask_after;
  std::signal(SIGPIPE, SIG_DFL);
  sigaction(SIGPIPE, nullptr, &before);
  pthread_sigmask(SIG_BLOCK, nullptr, &mask_before);
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    const string big = letters(std::size_t{2} << 20, 8);
    raw_peer setter = co_await raw_peer::open(l, server.port());
    static_cast<void>(co_await setter.ask(req::set("/big", big) + req::ping(1), 4));
    for (int i = 0; i < 40; ++i) {
      rc::unique_fd peer = plain_connect(server.port());
      string many = req::validate();
      for (int n = 0; n < 1 + i % 5; ++n) many += req::get("/big");
      CHECK(send_all(peer.get(), many + (i % 3 == 0 ? req::wait({"/wake"}) : string())));
      if (i % 2 == 0) co_await eventually([&] { return server.stats().connections > 1; });
      for (int turns = i % 4; turns > 0; --turns) co_await rc::sleep_for(0ms);
      reset_connection(std::move(peer));
      static_cast<void>(co_await setter.ask(req::set("/wake", "") + op(8) + str("/wake"), 8));
    }
    co_await eventually([&] { return server.stats().connections == 1; });
    co_await witness(l, server.port());
    setter.socket.close();
    co_await server.stop();
  });
  sigaction(SIGPIPE, nullptr, &after);
  pthread_sigmask(SIG_BLOCK, nullptr, &mask_after);
  CHECK(before.sa_handler == after.sa_handler);
  CHECK(after.sa_handler == SIG_DFL);
  CHECK(sigismember(&mask_before, SIGPIPE) == sigismember(&mask_after, SIGPIPE));
}

TEST_CASE("a client whose server resets while it is written to does not die either", "[server][process]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  std::signal(SIGPIPE, SIG_DFL);
  for (int round = 0; round < 3; ++round) {
    const server_process server(program);
    on_loop([&](rc::loop& l) -> rc::task<> {
      rc::tcp_store s = co_await client_of(l, server.port());
      const string big(std::size_t{8} << 20, 'x');
      server.kill(SIGSTOP);
      rc::scope sets(l);
      int lost = 0;
      auto one = [&]() -> rc::task<> {
        const rc::failure f = failure_of(co_await rc::as_result(s.set("big", big)));
        if (f.code() == rc::errc::disconnected && f.effect() == rc::effect::unknown) ++lost;
      };
      for (int i = 0; i < 4; ++i) sets.spawn(one);
      co_await rc::sleep_for(5ms);
      server.kill(SIGKILL);
      co_await sets.join();
      CHECK(lost == 4);
      for (int i = 0; i < 3; ++i) {
        const rc::result<void> r = co_await rc::as_result(s.set("k", "v"));
        CHECK_FALSE(r);
      }
    });
  }
}

TEST_CASE("out of descriptors, those inside are served; nothing spins, and it recovers", "[server][process]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  const watchdog dog(current_case());
  char const* const use_libuv = GENERATE("1", "0");
  INFO("--use-libuv " << use_libuv);
  server_process server(program, {"--max-files", "64", "--use-libuv", use_libuv});
  std::vector<rc::unique_fd> inside, all;
  for (int i = 0; i < 30; ++i) {
    inside.push_back(plain_connect(server.port()));
    REQUIRE(send_all(inside.back().get(), req::validate() + req::ping(1)));
    REQUIRE(receive(inside.back().get(), 4) == u32(1));
  }
  for (int i = 0; i < 300; ++i) all.push_back(plain_connect(server.port()));
  int refused = 0, served = 0;
  for (rc::unique_fd& fd : all) {
    if (!fd || !send_all(fd.get(), req::validate() + req::ping(2)) || receive(fd.get(), 4) != u32(2)) {
      ++refused;
      fd.reset();
    } else {
      ++served;
    }
  }
  CHECK(refused >= 230);
  CHECK(served > 0);
  const auto ticks = [&server] {
    std::ifstream stat("/proc/" + std::to_string(server.pid()) + "/stat");
    string text;
    std::getline(stat, text);
    long user = 0, system = 0;
    if (const std::size_t end = text.rfind(')'); end != text.npos)
      std::sscanf(text.c_str() + end + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system);
    return user + system;
  };
  const long before = ticks();
  std::this_thread::sleep_for(1s);  // the one thing that takes time to see: that nothing happens
  CHECK(ticks() - before < sysconf(_SC_CLK_TCK) / 4);
  for (rc::unique_fd const& fd : inside) {
    REQUIRE(send_all(fd.get(), req::ping(3)));
    REQUIRE(receive(fd.get(), 4) == u32(3));
  }
  all.clear();
  CHECK(soon([&] {
    const rc::unique_fd again = plain_connect(server.port());
    return again && send_all(again.get(), req::validate() + req::ping(4)) && receive(again.get(), 4) == u32(4);
  }));
  server.kill(SIGTERM);
  CHECK(server.finish() == 0);
  const auto lines = std::count(server.errors().begin(), server.errors().end(), '\n');
  INFO(server.errors());
  CHECK(lines >= 1);
  CHECK(lines <= 40);
  CHECK(contains(server.errors(), "EMFILE"));
}

TEST_CASE("replies of one batch are one write", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    raw_peer p = co_await raw_peer::open(l, server.port());
    const rc::server_stats before = server.stats();
    string batch;
    for (int i = 0; i < 100; ++i) batch += req::set("/k", "v") + req::get("/k") + req::add("/n", 1) + req::check({"/k"});
    const string answer = co_await p.ask(batch, 100 * (9 + 8 + 1));
    CHECK(answer.size() == 100 * (9 + 8 + 1));
    CHECK(server.stats().requests - before.requests == 400);
    CHECK(server.stats().writes - before.writes == 1);
    CHECK(server.stats().reads - before.reads == 1);
    p.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("wake-ups of one turn are one write a connection", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    raw_peer waiting = co_await raw_peer::open(l, server.port());
    raw_peer setter = co_await raw_peer::open(l, server.port());
    string waits, sets;
    for (int i = 0; i < 50; ++i) {
      waits += req::wait({"/w" + std::to_string(i)});
      sets += req::set("/w" + std::to_string(i), "");
    }
    static_cast<void>(co_await waiting.ask(waits + req::ping(1), 4));
    const rc::server_stats before = server.stats();
    static_cast<void>(co_await setter.ask(sets + req::ping(2), 4));
    const string woken = co_await waiting.read(50);
    CHECK(woken == string(50, '\0'));
    CHECK(server.stats().writes - before.writes == 2);
    waiting.socket.close();
    setter.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("one SET wakes five thousand waiters; those that left before are missed by nobody", "[server]") {
  const watchdog dog(current_case());
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const std::size_t n = std::min<std::size_t>(5000, (static_cast<std::size_t>(files.rlim_cur) - 200) / 2);
  threaded_server server;
  std::vector<rc::unique_fd> peers;
  for (std::size_t i = 0; i < n; ++i) {
    peers.push_back(plain_connect(server.port()));
    REQUIRE(send_all(peers.back().get(), req::validate() + req::wait({"/go", "/set"}) + req::ping(1)));
  }
  bool fine = true;
  for (rc::unique_fd const& fd : peers) fine = fine && receive(fd.get(), 4) == u32(1);
  CHECK(fine);
  std::vector<rc::unique_fd> staying;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 5 == 1) {
      reset_connection(std::move(peers[i]));
    } else if (i % 5 == 2) {
      peers[i].reset();
    } else if (i % 5 == 3) {
      fine = fine && send_all(peers[i].get(), req::cancel_wait()) && receive(peers[i].get(), 1) == "\x01";
    } else {
      staying.push_back(std::move(peers[i]));
    }
  }
  const rc::unique_fd setter = plain_connect(server.port());
  REQUIRE(send_all(setter.get(), req::validate() + req::set("/set", "") + req::set("/go", "") + req::ping(2)));
  CHECK(receive(setter.get(), 4) == u32(2));
  for (rc::unique_fd const& fd : staying) fine = fine && receive(fd.get(), 1) == string(1, '\0');
  for (rc::unique_fd const& fd : staying) fine = fine && send_all(fd.get(), req::ping(3)) && receive(fd.get(), 4) == u32(3);
  CHECK(fine);
  staying.clear();
  peers.clear();
  CHECK(soon([&] { return server.stats().connections == 1; }));
  server.stop();
  server.expect_nothing_left();
}

TEST_CASE("operations of a steady state allocate nothing on the server", "[server]") {
  const watchdog dog(current_case());
  threaded_server server;
  const rc::unique_fd peer = plain_connect(server.port());
  const string value(300, 'v');
  REQUIRE(send_all(peer.get(), req::validate() + req::set("/k", value) + req::set("/l", value) + req::add("/n", 1000) + req::wait({"/other"})));
  REQUIRE(receive(peer.get(), 8) == i64(1000));
  string batch;
  std::size_t expected = 0;
  const auto ask = [&](string const& request, std::size_t reply) {
    batch += request;
    expected += reply;
  };
  ask(req::set("/k", value), 0);
  ask(req::get("/k"), 8 + value.size());
  ask(req::add("/n", 1), 8);
  ask(req::check({"/k", "/n", "/absent"}), 1);
  ask(req::wait({"/k", "/l"}), 1);
  ask(req::counted(10, {"/k", "/l"}), 2 * (8 + value.size()));
  ask(op(2) + str("/l") + str(value) + str(value), 8 + value.size());
  ask(op(11) + u64(2) + str("/k") + str(value) + str("/l") + str(value), 0);
  ask(op(7), 8);
  ask(req::ping(5), 4);
  ask(op(8) + str("/absent"), 8);
  string reply(expected, '\0');
  const auto round = [&] {
    if (!send_all(peer.get(), batch)) return false;
    for (std::size_t got = 0; got < expected;) {
      const ssize_t n = ::recv(peer.get(), reply.data() + got, expected - got, 0);
      if (n <= 0) return false;
      got += static_cast<std::size_t>(n);
    }
    return true;
  };
  bool fine = true;
  for (int i = 0; i < 200; ++i) fine = fine && round();
  const std::uint64_t before = allocations;
  for (int i = 0; i < 1000; ++i) fine = fine && round();
  const std::uint64_t after = allocations;
  CHECK(fine);
  CHECK(after - before == 0);
}

TEST_CASE("an idle connection has no coroutine frame and no buffer, and costs little", "[server]") {
  if (tests_legacy()) return;  // its connections are no handles of the loop
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    co_await witness(l, server.port());
    constexpr int n = 400;
    std::vector<rc::unique_fd> peers;
    peers.reserve(n);
    co_await eventually([&] { return server.stats().connections == 0; });
    const std::size_t frames = l.live_frames(), handles = l.live_handles();
    const std::int64_t start = live_bytes;
    for (int i = 0; i < n; ++i) {
      peers.push_back(plain_connect(server.port()));
      // Each has sent a large value in two pieces and got one back: no trace of either may stay.
      CHECK(send_all(peers.back().get(), req::validate() + req::set("/k", string(20'000, 'x')).substr(0, 9'000)));
      const std::uint64_t reads = server.stats().reads;
      co_await eventually([&] { return server.stats().reads > reads; });
      CHECK(send_all(peers.back().get(), req::set("/k", string(20'000, 'x')).substr(9'000) + req::get("/k") + req::ping(1)));
      const std::uint64_t requests = static_cast<std::uint64_t>(i + 1) * 4;
      co_await eventually([&] { return server.stats().requests >= 1001 + 1 + requests; });
      const string got = receive(peers.back().get(), 8 + 20'000 + 4);
      CHECK(got.ends_with(u32(1)));
    }
    CHECK(l.live_frames() == frames);
    CHECK(l.live_handles() == handles + n);
    const std::int64_t each = (live_bytes - start - 21'000) / n;
    INFO(each << " bytes a connection");
    CHECK(each <= 512);
    peers.clear();
    co_await eventually([&] { return server.stats().connections == 0 && l.live_handles() == handles; });
    CHECK(live_bytes - start < 200'000);
    co_await server.stop();
  });
}

TEST_CASE("log lines name peer, operation and key, and are bounded", "[server]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    std::vector<string> lines;
    l.log_to([&](rc::log_level level, string_view line) {
      if (level >= rc::log_level::warning) lines.emplace_back(line);
    });
    local_server server(l);
    raw_peer p = co_await raw_peer::open(l, server.port());
    static_cast<void>(co_await p.ask(req::set("/te\nxt", "abc") + req::ping(1), 4));
    rc::net::socket culprit = co_await rc::net::connect(l, rc::socket_address::ip("127.0.0.1", server.port()).value());
    co_await culprit.write(req::validate() + req::add("/te\nxt", 1));
    const string_view end = co_await culprit.read_some();
    CHECK(end.empty());
    co_await eventually([&] { return !lines.empty(); });  // a legacy server's come by post
    REQUIRE(lines.size() == 1);
    INFO(lines[0]);
    CHECK(contains(lines[0], "127.0.0.1:"));
    CHECK(contains(lines[0], "ADD"));
    CHECK(contains(lines[0], "'/te\\x0axt'"));
    CHECK_FALSE(contains(lines[0], "\n"));
    for (int i = 0; i < 1000; ++i) co_await ends(l, server.port(), "\xff");
    CHECK(server.stats().violations == 1001);
    CHECK(lines.size() < 60);
    for (string const& line : lines) CHECK(line.size() < 400);
    l.log_to({});
    p.socket.close();
    co_await server.stop();
  });
}

TEST_CASE("a hundred peers connect and PING without a look-up", "[server]") {
  // getnameinfo and gethostbyaddr abort this program.
  on_loop([](rc::loop& l) -> rc::task<> {
    int lines = 0;
    l.log_to([&](rc::log_level, string_view) { ++lines; });
    local_server server(l);
    const rc::time_point begun = l.now();
    std::vector<raw_peer> peers;
    for (int i = 0; i < 100; ++i) peers.push_back(co_await raw_peer::open(l, server.port()));
    CHECK(l.now() - begun < 10s);
    for (raw_peer& p : peers) co_await p.send(op(200));
    for (raw_peer& p : peers) {
      const bool over = co_await p.ended();
      CHECK(over);
    }
    peers.clear();
    l.log_to({});
    co_await server.stop();
  });
}
