#pragma once
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/back_off.hpp"
#include "../net/resolve.hpp"
#include "../posix/descriptors.hpp"
#include "../rt/combine.hpp"
#include "../rt/event.hpp"
#include "../rt/timer.hpp"
#include "state.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Connects to the first of several addresses that answers: the next one is tried when one fails, and 250 ms after the last was tried,
/// so that a black-holed address costs a quarter of a second (RFC 8305).
class [[nodiscard]] address_race final : private waiter, private timer_node {
 public:
  static constexpr std::chrono::milliseconds head_start{250};

  address_race(loop_core& core, std::vector<socket_address> const& to)
      : timer_node([](timer_node& t) noexcept { static_cast<address_race&>(t).start_next(); }), core_(core) {
    for (socket_address const& a : to) attempts_.push_back(std::make_unique<attempt>(*this, a));
  }
  ~address_race() { leave(); }

  [[nodiscard]] bool await_ready() const noexcept { return attempts_.empty(); }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    if (!begin(h, &core_)) return false;
    start_next();
    return true;
  }
  /// Whether one is connected; then take() and winner(). Else errors() tells of all.
  bool await_resume() {
    core_.remove_timer(*this);
    if (was_stopped()) throw_cancelled("connect");
    return winner_ != nullptr;
  }
  [[nodiscard]] socket_address const& winner() const noexcept { return winner_->to; }
  [[nodiscard]] net::stream_ptr take(net::socket_options const& o) noexcept { return winner_->connection.take(o); }
  /// The errno of the first address that was tried.
  [[nodiscard]] int first_error() const noexcept {
    for (auto const& a : attempts_)
      if (a->status < 0) return -a->status;
    return 0;
  }
  /// "10.0.0.7:29500: ECONNREFUSED (Connection refused), …": each address that was tried, bounded.
  [[nodiscard]] std::string errors() const {
    std::string text;
    for (auto const& a : attempts_) {
      if (a->status == not_tried) continue;
      if (text.size() > 1024) return text + ", ...";
      if (!text.empty()) text += ", ";
      text += a->to.to_string() + ": " + (a->status == under_way ? std::string("no answer") : errno_text(-a->status));
    }
    return text;
  }

 private:
  static constexpr int not_tried = 1;
  static constexpr int under_way = 2;
  struct attempt {
    attempt(address_race& r, socket_address const& a) : race(r), to(a) {}
    address_race& race;
    socket_address to;
    int status = not_tried;
    net::detail::connecting connection;
  };
  void start_next() noexcept {
    core_.remove_timer(*this);
    while (next_ < attempts_.size()) {
      attempt& a = *attempts_[next_++];
      int status = UV_ENOMEM;
      try {
        status = a.connection.start(core_, a.to, &a, [](void* self, int st) noexcept {
          auto& done = *static_cast<attempt*>(self);
          done.race.finished(done, st);
        });
      } catch (std::exception const&) {
      }
      if (status == 0) {
        a.status = under_way;
        if (next_ < attempts_.size()) core_.add_timer(*this, core_.now() + head_start);
        return;
      }
      a.status = status;
    }
    if (std::none_of(attempts_.begin(), attempts_.end(), [](auto const& a) { return a->status == under_way; })) complete();
  }
  void finished(attempt& a, int status) noexcept {
    a.status = status;
    if (winner_) return;
    if (status != 0) return start_next();
    winner_ = &a;
    for (auto const& other : attempts_)
      if (other.get() != winner_) other->connection.reset();
    complete();
  }
  void leave() noexcept override {
    core_.remove_timer(*this);
    for (auto const& a : attempts_)
      if (a.get() != winner_) a->connection.reset();
  }

  loop_core& core_;
  std::vector<std::unique_ptr<attempt>> attempts_;
  std::size_t next_ = 0;
  attempt* winner_ = nullptr;
};

/// Waits for the answer to the handshake on a client's first lane.
class [[nodiscard]] handshake_awaiter final : private waiter {
 public:
  explicit handshake_awaiter(client_state& c) noexcept : client_(c) {}
  ~handshake_awaiter() { leave(); }
  [[nodiscard]] bool await_ready() const noexcept { return client_.ready() || client_.closed(); }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    if (!begin(h, &client_.core())) return false;
    client_.on_greeted([](void* self) noexcept { static_cast<handshake_awaiter*>(self)->complete(); }, this);
    return true;
  }
  void await_resume() const {
    if (was_stopped()) throw_cancelled("connect");
  }

 private:
  void leave() noexcept override { client_.on_greeted(nullptr, nullptr); }
  client_state& client_;
};

inline task<> greeted(client_ptr c) { co_await handshake_awaiter(*c); }

/// One attempt's outcome: a client, or why not and whether trying again can help.
class connect_failure {
 public:
  connect_failure() noexcept = default;
  errc code = errc::refused;
  int system_error = 0;  // ETIMEDOUT: nobody has answered
  std::string text;
  bool final_answer = false;
  bool closed_in_handshake = false;
};

inline task<client_ptr> connect_once(loop_core* core, std::string host, int port, client_options options, resolve_fn const* resolver,
                                     back_off* pauses, bool with_ping, connect_failure* why) {
  std::vector<socket_address> addresses;
  if (const std::string_view path = unix_path_in(host); !path.empty()) {
    addresses.push_back(socket_address::unix_path(path).value());
  } else if (socket_address::looks_like_ip(host)) {
    addresses.push_back(socket_address::ip(host, port).value());
  } else {
    why->code = errc::resolve;
    why->text = "'" + host + "' is still being resolved";
    try {
      addresses = co_await (*resolver)(host, static_cast<std::uint16_t>(port));
    } catch (error const& e) {
      if (e.code() == errc::cancelled) throw;
      why->text = e.what();
      why->final_answer = e.code() == errc::invalid;
    }
    if (addresses.empty()) co_return client_ptr();
  }
  why->code = errc::refused;
  why->system_error = ETIMEDOUT;
  address_race race(*core, addresses);
  why->text = "no answer yet from " + addresses.front().to_string();
  if (addresses.size() > 1) why->text += " and " + std::to_string(addresses.size() - 1) + " more";
  const bool connected = co_await race;
  if (!connected) {
    why->system_error = race.first_error();
    why->text = race.errors();
    co_return client_ptr();
  }
  const socket_address to = race.winner();
  client_ptr client(new client_state(*core, host, port, options));
  why->text = to.to_string() + " accepted the connection but does not answer the handshake";
  client->begin(race.take(options.socket()), to, pauses->nonce(), with_ping);
  // Where the server's listen queue overflowed, the kernel has "connected" us to nobody: only another attempt gets in (field log F22).
  co_await with_deadline(greeted(client), pauses->patience());
  if (client->ready()) co_return client;
  failure const& f = *client->why_closed();
  why->code = f.code() == errc::disconnected ? errc::refused : f.code();
  why->system_error = 0;
  why->closed_in_handshake = f.code() == errc::disconnected;
  why->text = to.to_string() + ": " + (why->closed_in_handshake ? "closed the connection in the handshake: " : "") + f.detail();
  why->final_answer = f.code() == errc::protocol;
  co_return client_ptr();
}

/// Says every now and then what a connect that takes long is waiting for.
class connect_reporter final : private timer_node {
 public:
  connect_reporter(loop_core& core, std::string endpoint, time_point until, connect_failure const& why) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<connect_reporter&>(t).report(); }),
        core_(core),
        endpoint_(std::move(endpoint)),
        until_(until),
        why_(why) {
    core_.add_timer(*this, core_.now() + std::chrono::seconds(5));
  }
  connect_reporter(connect_reporter const&) = delete;
  connect_reporter& operator=(connect_reporter const&) = delete;
  ~connect_reporter() { core_.remove_timer(*this); }

 private:
  void report() noexcept {
    const time_point now = core_.now();
    core_.add_timer(*this, now + std::chrono::seconds(30));
    if (!core_.logs()) return;
    try {
      const std::string left = until_ == time_point::max() ? std::string("no limit") : duration_text(until_ - now) + " left";
      core_.log(log_level::warning, "still connecting to " + endpoint_ + ", " + left + ": " + why_.text);
    } catch (std::exception const&) {}  // without memory it is not told
  }
  loop_core& core_;
  std::string endpoint_;
  time_point until_;
  connect_failure const& why_;
};

constexpr std::chrono::seconds longest_attempt{30};
constexpr std::chrono::milliseconds last_round_time{250};

/// Tries until it has a store or the limit has passed (design: resolve anew each time, one absolute limit over all steps).
inline task<client_ptr> connect_client(loop_core* core, std::string host, int port, deadline limit, client_options options, resolve_fn resolver) {
  const time_point begun = core->now();
  const time_point until = limit.from(begun);
  const std::string endpoint = endpoint_text(host, port);
  connect_failure why;
  const auto give_up = [&](errc code, std::string text) {
    failure f(code, "connect", std::move(text));
    f.with_system_error(why.system_error).with_peer(endpoint);
    return error(f.with_times(core->now() - begun, limit.length(begun)));
  };
  if (const std::string_view path = unix_path_in(host); !path.empty()) {
    const result<socket_address> at = socket_address::unix_path(path);
    if (!at) throw give_up(errc::invalid, at.error().detail());
  } else if (port < 1 || port > 65535) {
    throw give_up(errc::invalid, "port " + std::to_string(port) + " is not in 1..65535");
  } else if (host.empty()) {
    throw give_up(errc::invalid, "the host is empty");
  } else if (socket_address::looks_like_ip(host)) {
    const result<socket_address> literal = socket_address::ip(host, port);
    if (!literal) throw give_up(errc::invalid, literal.error().detail());
  }
  back_off pauses;
  descriptor_watch descriptors;
  bool with_ping = true;
  bool last_round = false;
  const connect_reporter reporter(*core, endpoint, until, why);
  for (std::size_t tries = 1;; ++tries) {
    why = connect_failure();
    task<client_ptr> once = connect_once(core, host, port, options, &resolver, &pauses, with_ping, &why);
    try {
      // An attempt that stands still is given up some time: the host may have got another address.
      const time_point attempt_until = std::min(until, core->now() + longest_attempt);
      client_ptr client = co_await with_deadline(std::move(once), attempt_until);
      if (client) {
        client->resolve_by(resolver);
        co_return client;
      }
    } catch (error const& e) {
      if (e.code() != errc::timed_out) throw;
    }
    if (why.final_answer) throw give_up(why.code, why.text);
    if (const int e = descriptors.failed(core->now()); e != 0) {
      why.system_error = e;
      throw give_up(errc::io, errno_text(e));
    }
    // A server before 2.5 closes at PING: leave it out every other time.
    with_ping = !(with_ping && why.closed_in_handshake);
    duration pause = pauses.next();
    const time_point now = core->now();
    if (last_round || now >= until) {
      if (now < until) co_await sleep_until(until);
      throw give_up(why.code, std::to_string(tries) + (tries == 1 ? " attempt; " : " attempts; the last one: ") + why.text);
    }
    if (pause >= until - now) {
      // The last round begins shortly before the limit, so that a server that comes late is still found.
      last_round = true;
      pause = until - now - std::min<duration>((until - now) / 2, last_round_time);
    }
    co_await sleep_for(pause);
  }
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
