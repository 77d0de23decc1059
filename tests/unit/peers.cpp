#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <rollcall/engine/peers.hpp>

#include "support.hpp"

using namespace unit;
using namespace std::chrono_literals;

namespace {
namespace rc = rollcall;

/// The other end of a stream, as the test sees it.
struct far_end {
  std::string got;
  std::size_t room = static_cast<std::size_t>(-1);  // bytes it takes before it is full
  bool open = true;
  bool read = false;
  wire::stream_sink* sink = nullptr;
};
class fake_stream final : public wire::stream {
 public:
  explicit fake_stream(far_end& f) : far_(f) {}
  void start_read(wire::stream_sink& s) noexcept override {
    far_.sink = &s;
    far_.read = true;
  }
  void stop_read() noexcept override { far_.read = false; }
  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override {
    std::size_t taken = 0;
    for (int i = 0; i < count; ++i) {
      const std::size_t n = std::min(pieces[i].iov_len, far_.room);
      far_.got.append(static_cast<char const*>(pieces[i].iov_base), n);
      far_.room -= n;
      taken += n;
    }
    return static_cast<std::ptrdiff_t>(taken);
  }
  void shutdown() noexcept override {}
  void keep_alive(bool) noexcept override {}
  [[nodiscard]] std::string peer_name() const override { return "somebody"; }
  void close() noexcept override {
    far_.open = false;
    far_.sink = nullptr;
    delete this;
  }

 private:
  far_end& far_;
};

class driver final : public engine::peers {
 public:
  explicit driver(rc::serve_options const& o = {}) : peers(o) {}
  ~driver() { remove_all(); }
  /// A peer that has said who it is.
  far_end& join() {
    far_end& f = come();
    say(f, hello());
    return f;
  }
  far_end& come() {
    far_end& f = ends.emplace_back();
    attach(wire::stream_ptr(new fake_stream(f)));
    return f;
  }
  void say(far_end& f, std::string const& bytes) {
    REQUIRE(f.sink != nullptr);
    f.sink->on_read(bytes);
    for (due = false; deliver_some();) ++rounds;
  }
  static std::string hello() {
    std::string s;
    wire::encode_validate(s);
    return s;
  }
  void at(rc::time_point t) {
    time = t;
    if (time < next) return;
    next = rc::time_point::max();
    sweep();
  }
  std::deque<far_end> ends;
  rc::time_point time{std::chrono::hours(1)};
  rc::time_point next = rc::time_point::max();
  bool due = false;
  int rounds = 0;
  bool is_empty = false;
  std::vector<std::string> lines;

 private:
  rc::time_point now() noexcept override { return time; }
  bool logs() const noexcept override { return true; }
  void log(rc::log_level, std::string_view line) noexcept override { lines.emplace_back(line); }
  void wakes_are_due() noexcept override { due = true; }
  bool sweep_is_set() noexcept override { return next != rc::time_point::max(); }
  void sweep_at(rc::time_point t) noexcept override { next = t; }
  void emptied() noexcept override { is_empty = true; }
};

template <class F>
std::string made(F f) {
  std::string s;
  f(s);
  return s;
}
std::string ping(std::uint32_t n) {
  return made([&](auto& s) { wire::encode_ping(s, n); });
}
std::string get(std::string_view k) {
  return made([&](auto& s) { wire::encode_get(s, {}, k); });
}
std::string set(std::string_view k, std::string_view v) {
  return made([&](auto& s) { wire::encode_set(s, {}, k, v); });
}
std::string wait(std::string_view k) {
  return made([&](auto& s) { wire::encode_wait(s, {}, keys(k)); });
}

}  // namespace

TEST_CASE("a peer that has come, asked and left leaves nothing behind") {
  driver d;
  far_end& f = d.join();
  d.say(f, ping(7));
  CHECK(f.got.size() == 4);
  CHECK(d.connections() == 1);
  CHECK(d.stats().requests == 2);
  f.sink->on_end(0);
  CHECK_FALSE(f.open);
  CHECK(d.connections() == 0);
  CHECK(d.store().stats().clients == 0);
}

TEST_CASE("each clock ends the peer that stands still, and only that one") {
  driver d(rc::serve_options{}.validate_within(10s).close_half_request_after(20s).close_unread_after(30s));
  const rc::time_point start = d.time;
  far_end& quiet = d.join();
  far_end& silent = d.come();
  far_end& half = d.join();
  d.say(half, set("k", "value").substr(0, 12));
  far_end& deaf = d.join();
  deaf.room = 1;
  d.say(deaf, ping(1));
  for (int s = 1; s < 10; ++s) d.at(start + std::chrono::seconds(s));
  CHECK(silent.open);
  for (int s = 10; s < 20; ++s) d.at(start + std::chrono::seconds(s));
  CHECK_FALSE(silent.open);
  CHECK(half.open);
  for (int s = 20; s < 30; ++s) d.at(start + std::chrono::seconds(s));
  CHECK_FALSE(half.open);
  CHECK(deaf.open);
  for (int s = 30; s < 40; ++s) d.at(start + std::chrono::seconds(s));
  CHECK_FALSE(deaf.open);
  CHECK(quiet.open);
  CHECK(d.stats().timed_out == 3);
  CHECK(d.lines.size() == 3);
  CHECK_FALSE(d.next != rc::time_point::max());  // nobody has a clock: nothing is to be looked at
}

TEST_CASE("a peer that does not read is not read either, and goes on where it stopped") {
  driver d(rc::serve_options{}.max_unsent(1000));
  far_end& f = d.join();
  f.room = 0;
  std::string asks = set("k", std::string(400, 'x'));
  for (int i = 0; i < 10; ++i) asks += get("k");
  d.say(f, asks);
  CHECK_FALSE(f.read);
  CHECK(d.stats().paused == 1);
  CHECK(d.stats().requests < 12);
  f.room = static_cast<std::size_t>(-1);
  f.sink->on_writable();
  while (!f.read) f.sink->on_writable();
  CHECK(d.stats().paused == 0);
  CHECK(d.stats().requests == 12);
  CHECK(f.got.size() == 10 * 408);
}

TEST_CASE("a wake-up reaches everybody, a budget a turn") {
  driver d;
  for (int i = 0; i < 2500; ++i) d.say(d.join(), wait("go"));
  far_end& setter = d.join();
  d.rounds = 0;
  d.say(setter, set("go", ""));
  CHECK(d.rounds == 9);  // of 256 each, and a tenth one, which was the last
  for (far_end& f : d.ends)
    if (&f != &setter) REQUIRE(f.got == stop);
}

TEST_CASE("draining closes who is quiet, and waits for who still takes replies") {
  driver d;
  far_end& quiet = d.join();
  far_end& waiting = d.join();
  d.say(waiting, wait("never"));
  far_end& slow = d.join();
  slow.room = 2;
  d.say(slow, ping(9));
  d.drain();
  CHECK_FALSE(quiet.open);
  CHECK_FALSE(waiting.open);
  CHECK(waiting.got.empty());
  CHECK(slow.open);
  CHECK_FALSE(d.is_empty);
  slow.room = 2;
  slow.sink->on_writable();
  CHECK(slow.got.size() == 4);
  CHECK_FALSE(slow.open);
  CHECK(d.is_empty);
}

TEST_CASE("past max_connections nobody is admitted, and few lines tell it") {
  driver d(rc::serve_options{}.max_connections(1));
  CHECK(d.admits());
  d.join();
  for (int i = 0; i < 500; ++i) CHECK_FALSE(d.admits());
  CHECK(d.stats().refused == 500);
  CHECK(d.lines.size() == 20);
}

TEST_CASE("a log line for which there is no memory is counted like one too many, and ends nobody") {
  struct {
    [[nodiscard]] bool logs() const noexcept { return true; }
    [[nodiscard]] rc::time_point now() const noexcept { return {}; }
    void log(rc::log_level, std::string_view line) noexcept { lines.emplace_back(line); }
    std::vector<std::string> lines;
  } host;
  engine::log_limiter limiter;
  const auto no_memory = []() -> std::string { throw std::bad_alloc(); };
  const auto fine = [] { return std::string("next"); };
  static_assert(noexcept(limiter.log(host, rc::log_level::warning, fine)));
  limiter.log(host, rc::log_level::warning, no_memory);
  limiter.log(host, rc::log_level::warning, no_memory);
  limiter.log(host, rc::log_level::warning, fine);
  limiter.log(host, rc::log_level::warning, fine);
  CHECK(host.lines == std::vector<std::string>{"next (2 more lines like this were not logged)", "next"});
}
