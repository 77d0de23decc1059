// witness: what one well-behaved client feels while others of the same server misbehave. Prints one JSON object: for each trouble the
// round-trip times of a witness that gets a small key again and again. First with the libuv back end, then with the blocking one.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <uv.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace rc = rollcall;
namespace wire = rollcall::wire;
using namespace std::chrono_literals;
using nlohmann::ordered_json;

namespace {

constexpr std::size_t big_bytes = std::size_t{8} << 20;  // what one request may hold

/// A server on a thread of its own, of one back end or the other.
class server {
 public:
  explicit server(bool use_libuv) {
    rc::listener at = rc::listen(rc::listen_options{});
    port_ = at.port();
    if (use_libuv) {
      poster_.emplace(start(std::move(at)));
    } else {
      blocking_.emplace(std::move(at));
      blocking_->start();
    }
  }
  server(server const&) = delete;
  server& operator=(server const&) = delete;
  ~server() {
    if (!poster_) return;
    poster_->post([this] { stop_.request_stop(); });
    thread_.join();
  }
  [[nodiscard]] int port() const { return port_; }

 private:
  rc::poster start(rc::listener at) {
    std::promise<rc::poster> started;
    std::future<rc::poster> running = started.get_future();
    thread_ = std::thread([this, l = std::move(at), s = std::move(started)]() mutable {
      rc::loop loop;
      s.set_value(loop.post_handle());
      rc::sync_wait(loop, rc::serve(loop, std::move(l), rc::serve_options{}.stats(&stats_)), stop_.token());
    });
    return running.get();
  }

  int port_ = 0;
  rc::stop_source stop_;
  rc::server_stats stats_;
  std::thread thread_;
  std::optional<rc::poster> poster_;
  std::optional<rc::legacy_server> blocking_;
};

/// A client that is no good: plain bytes on a socket that never waits.
class rogue {
 public:
  explicit rogue(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_.get(), reinterpret_cast<sockaddr const*>(&to), sizeof to) != 0) throw std::runtime_error("a rogue cannot connect");
    std::string hello;
    wire::encode_validate(hello);
    send(hello);
  }
  /// As much as the socket takes.
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }

 private:
  rc::unique_fd fd_;
};

/// The rogues of one trouble, and what they do before each of the witness's requests.
class trouble {
 public:
  char const* name;
  std::size_t count;
  std::function<void(rogue&)> first;
  std::function<void(rogue&)> again;
};

std::vector<trouble> troubles() {
  std::vector<trouble> all;
  const auto nothing = [](rogue&) {};
  all.push_back({"nobody else", 0, nothing, nothing});
  std::string half;
  wire::encode_set(half, "/", "half", std::string(1000, 'x'));
  half.resize(500);
  all.push_back({"100 hold half a request", 100, [half](rogue& r) { r.send(half); }, nothing});
  std::string gets;
  for (int i = 0; i < 64; ++i) wire::encode_get(gets, "/", "big");
  all.push_back({"10 ask for 8 MiB each, 64 times, and never read", 10, [gets](rogue& r) { r.send(gets); }, nothing});
  std::string pushes;
  for (int i = 0; i < 100; ++i) wire::encode_queue_push(pushes, "/", "flood", std::string(100, 'x'));
  all.push_back({"1 pushes 100 items of 100 bytes whenever the witness asks", 1, nothing, [pushes](rogue& r) { r.send(pushes); }});
  std::string wrong;
  wire::encode_ping(wrong, 1);
  wrong += '\xff';
  all.push_back({"100 break the protocol", 100, [wrong](rogue& r) { r.send(wrong); }, nothing});
  return all;
}

rc::task<> ask(rc::tcp_store store, std::size_t times, std::function<void()> before, std::vector<std::uint64_t>& took) {
  char value[16];
  for (std::size_t i = 0; i < times; ++i) {
    before();
    const std::uint64_t begun = uv_hrtime();
    const std::size_t n = co_await store.get_into("small", value);
    took.push_back(uv_hrtime() - begun);
    if (n != 5) throw std::runtime_error("the witness got another value");
  }
}

ordered_json summary(std::vector<std::uint64_t> took) {
  std::sort(took.begin(), took.end());
  const auto microseconds = [&](double part) {
    return static_cast<double>(took[static_cast<std::size_t>(part * static_cast<double>(took.size() - 1))]) / 1000;
  };
  ordered_json of;
  of["replies"] = took.size();
  of["p50_us"] = microseconds(0.5);
  of["p99_us"] = microseconds(0.99);
  of["p99.9_us"] = microseconds(0.999);
  of["max_us"] = microseconds(1);
  return of;
}

rc::task<> measure(rc::loop& loop, bool use_libuv, trouble const& t, std::size_t times, ordered_json& into) {
  server s(use_libuv);
  rc::tcp_store store = co_await rc::tcp_store::connect(loop, "127.0.0.1", s.port(), 10s);
  co_await store.set("small", "value");
  co_await store.set("big", std::string(big_bytes, 'b'));
  std::vector<rogue> rogues;
  for (std::size_t i = 0; i < t.count; ++i) rogues.emplace_back(s.port());
  for (rogue& r : rogues) t.first(r);
  std::vector<std::uint64_t> took;
  took.reserve(times);
  const auto before = [&] {
    for (rogue& r : rogues) t.again(r);
  };
  co_await ask(store, times, before, took);
  into[t.name] = summary(std::move(took));
}

}  // namespace

int main() {
  try {
    ordered_json all;
    for (const bool use_libuv : {true, false}) {
      ordered_json& here = all[use_libuv ? "libuv" : "legacy"];
      for (trouble const& t : troubles()) {
        rc::loop loop;
        rc::sync_wait(loop, measure(loop, use_libuv, t, 20'000, here));
      }
    }
    fmt::print("{}\n", all.dump(2));
  } catch (std::exception const& e) {
    fmt::print(stderr, "witness: {}\n", e.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
