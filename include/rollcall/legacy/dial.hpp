#pragma once
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/back_off.hpp"
#include "../core/error.hpp"
#include "../posix/address.hpp"
#include "../posix/descriptors.hpp"
#include "../posix/fd.hpp"
#include "../posix/listener.hpp"
#include "../wire/encode.hpp"
#include "../wire/opcodes.hpp"
#include "wait.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

/// Where a store is reached: a host and a port that are resolved anew for every attempt, or an address.
struct destination {
  destination(std::string h, int p) : host(std::move(h)), port(p) {}
  explicit destination(socket_address const& a) : address(a) {}
  [[nodiscard]] std::string text() const {
    if (address.has_value()) return (address.is_inet() ? "" : "unix:") + address.to_string();
    return rollcall::detail::endpoint_text(host, port);
  }
  std::string host;
  int port = 0;
  socket_address address;
};

/// A connection that has answered the handshake.
struct dialled {
  unique_fd fd;
  socket_address peer;
  bool rollcall_server = false;
  bool with_ping = true;
};

/// Connects and shakes hands, in the calling thread, until a point in time or until `stop` is poked.
///
/// Same rules as the coroutine's connect: all addresses raced with a head start of 250 ms, refused and unresolved ones tried again with
/// back-off, VALIDATE, PING and the capability probe in one write, a server that closes at PING asked without it the next time.
class dialling {
 public:
  dialling(destination const& to, keep_alive_times const& k, time_point until, wake_up const& stop, bool with_ping = true)
      : to_(to), keep_alive_(k), until_(until), stop_(stop), with_ping_(with_ping) {}

  /// One connection, or why not: refused, resolve, protocol, invalid; io where this process has had no descriptor for it for 1 s; cancelled
  /// when it was stopped.
  /// `report(text)` is told every now and then what it is waiting for.
  template <class Report>
  [[nodiscard]] result<dialled> run(Report report);

 private:
  static constexpr std::chrono::milliseconds head_start{250};
  static constexpr std::chrono::milliseconds last_round_time{250};
  static constexpr std::chrono::seconds longest_attempt{30};  // then the name is resolved anew: the host may have got another address
  struct attempt {
    socket_address to;
    unique_fd fd;
    int error = 0;
  };
  enum class step : unsigned char { done, again, final_answer, stopped };

  [[nodiscard]] step once(dialled& out);
  [[nodiscard]] bool resolve(std::vector<attempt>& to, bool& never);
  [[nodiscard]] attempt* race(std::vector<attempt>& all);
  [[nodiscard]] step shake_hands(attempt& a, dialled& out);
  void begin(attempt& a) noexcept;
  /// Sleeps, or waits for the pollfds from the second on (the first is the stop); false when stopped.
  [[nodiscard]] bool pause(time_point until, std::vector<pollfd>& fds);
  [[nodiscard]] bool sleep(time_point until) {
    std::vector<pollfd> none(1);
    while (steady_now() < until)
      if (!pause(until, none)) return false;
    return true;
  }

  destination const& to_;
  keep_alive_times keep_alive_;
  time_point until_;
  wake_up const& stop_;
  bool with_ping_;
  rollcall::detail::back_off pauses_;
  rollcall::detail::descriptor_watch descriptors_;
  errc code_ = errc::refused;
  std::string why_;
};

template <class Report>
result<dialled> dialling::run(Report report) {
  if (!to_.address.has_value() && rollcall::detail::unix_path_in(to_.host).empty()) {
    if (to_.port < 1 || to_.port > 65535)
      return failure(errc::invalid, "connect", "port " + std::to_string(to_.port) + " is not in 1..65535");
    if (to_.host.empty()) return failure(errc::invalid, "connect", "the host is empty");
  }
  time_point next_report = steady_now() + std::chrono::seconds(5);
  bool last_round = false;
  for (std::size_t tries = 1;; ++tries) {
    dialled out;
    switch (once(out)) {
      case step::done: return out;
      case step::stopped: return failure(errc::cancelled, "connect");
      case step::final_answer: return failure(code_, "connect", why_);
      case step::again: break;
    }
    const time_point now = steady_now();
    if (const int e = descriptors_.failed(now); e != 0) return failure(errc::io, "connect", errno_text(e));
    if (now >= next_report) {
      next_report = now + std::chrono::seconds(30);
      report(why_);
    }
    duration pause_for = pauses_.next();
    if (last_round || now >= until_) {
      if (now < until_ && !sleep(until_)) return failure(errc::cancelled, "connect");
      return failure(code_, "connect", std::to_string(tries) + (tries == 1 ? " attempt; " : " attempts; the last one: ") + why_);
    }
    if (pause_for >= until_ - now) {
      // The last round begins shortly before the limit, so that a server that comes late is still found.
      last_round = true;
      pause_for = until_ - now - std::min<duration>((until_ - now) / 2, last_round_time);
    }
    if (!sleep(now + pause_for)) return failure(errc::cancelled, "connect");
  }
}

inline bool dialling::pause(time_point until, std::vector<pollfd>& fds) {
  fds.front() = pollfd{stop_.fd(), POLLIN, 0};
  const time_point now = steady_now();
  const duration left = until == time_point::max() ? duration::max() : std::max(until - now, duration::zero());
  const int n = poll_for(fds.data(), fds.size(), left);
  if (n <= 0)
    for (pollfd& p : fds) p.revents = 0;
  return fds.front().revents == 0;
}

inline bool dialling::resolve(std::vector<attempt>& to, bool& never) {
  const auto add = [&](socket_address const& a) { to.push_back(attempt{a, unique_fd(), 0}); };
  if (to_.address.has_value()) {
    add(to_.address);
  } else if (const std::string_view path = rollcall::detail::unix_path_in(to_.host); !path.empty()) {
    const auto at = socket_address::unix_path(path);
    if (at) return add(*at), true;
    code_ = errc::invalid;
    why_ = at.error().detail();
    never = true;
    return false;
  } else if (socket_address::looks_like_ip(to_.host)) {
    const auto literal = socket_address::ip(to_.host, to_.port);
    if (literal) return add(*literal), true;
    code_ = errc::invalid;
    why_ = literal.error().detail();
    never = true;
    return false;
  } else if (rollcall::detail::is_localhost(to_.host)) {
    for (char const* each : {"127.0.0.1", "::1"}) add(*socket_address::ip(each, to_.port));
  } else {
    const auto found = rollcall::detail::resolve_to_listen(to_.host, to_.port);
    if (!found || found->empty()) {
      code_ = errc::resolve;
      why_ = found ? "'" + to_.host + "' has no IPv4 or IPv6 address" : found.error().detail();
      return false;
    }
    for (socket_address const& a : *found) add(a);
  }
  return true;
}

inline void dialling::begin(attempt& a) noexcept {
  a.fd.reset(::socket(a.to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!a.fd) {
    a.error = errno;
    return;
  }
  if (a.to.is_inet()) static_cast<void>(rollcall::detail::set_inherited(a.fd.get(), true, keep_alive_));
  if (::connect(a.fd.get(), a.to.data(), a.to.size()) == 0) return;
  if (errno == EINPROGRESS || errno == EINTR) {
    a.error = EINPROGRESS;
  } else {
    a.error = errno;
    a.fd.reset();
  }
}

/// The first that is connected, or nullptr: all have failed, the time is over, or it was stopped.
inline dialling::attempt* dialling::race(std::vector<attempt>& all) {
  std::size_t begun = 0;
  time_point next_start = steady_now();
  const time_point until = std::min(until_, next_start + longest_attempt);
  for (;;) {
    std::vector<pollfd> fds(1);
    std::vector<attempt*> whose(1);
    for (std::size_t i = 0; i < begun; ++i) {
      if (!all[i].fd) continue;
      fds.push_back(pollfd{all[i].fd.get(), POLLOUT, 0});
      whose.push_back(&all[i]);
    }
    const time_point now = steady_now();
    if (begun < all.size() && (now >= next_start || whose.size() == 1)) {
      attempt& a = all[begun++];
      begin(a);
      if (a.fd && a.error == 0) return &a;
      next_start = now + head_start;
      continue;
    }
    if (whose.size() == 1 || now >= until) return nullptr;
    if (!pause(begun < all.size() ? std::min(next_start, until) : until, fds)) return nullptr;
    for (std::size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      int e = 0;
      socklen_t size = sizeof e;
      if (::getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &e, &size) != 0) e = errno;
      // A port that nobody serves may be the very one the kernel picked for us.
      if (e == 0 && rollcall::detail::connected_to_itself(fds[i].fd)) e = ECONNREFUSED;
      whose[i]->error = e;
      if (e == 0) return whose[i];
      whose[i]->fd.reset();
      next_start = steady_now();  // the next one has no reason to wait
    }
  }
}

inline dialling::step dialling::once(dialled& out) {
  std::vector<attempt> all;
  bool never = false;
  if (!resolve(all, never)) return never ? step::final_answer : step::again;
  code_ = errc::refused;
  attempt* const winner = race(all);
  if (!winner) {
    std::vector<pollfd> none(1);
    if (!pause(steady_now(), none)) return step::stopped;
    why_.clear();
    for (attempt const& a : all) {
      if (a.error == 0 && !a.fd) continue;  // not tried
      if (why_.size() > 1024) break;
      if (!why_.empty()) why_ += ", ";
      why_ += a.to.to_string() + ": " + (a.fd ? std::string("no answer") : errno_text(a.error));
    }
    return step::again;
  }
  return shake_hands(*winner, out);
}

inline dialling::step dialling::shake_hands(attempt& a, dialled& out) {
  const std::string where = a.to.to_string();
  const std::uint32_t nonce = pauses_.nonce();
  std::string hello;
  wire::encode_validate(hello);
  if (with_ping_) wire::encode_ping(hello, nonce);
  wire::encode_check(hello, {}, keys(wire::capability_key));
  const std::size_t want = with_ping_ ? 5 : 1;
  why_ = where + " accepted the connection but does not answer the handshake";
  // Where the server's listen queue overflowed, the kernel has "connected" us to nobody: only another attempt gets in (field log F22).
  const time_point give_up = std::min(until_, steady_now() + pauses_.patience());
  const auto closed = [&](std::string const& how) {
    why_ = where + ": closed the connection in the handshake: " + how;
    with_ping_ = !with_ping_;  // a server before 2.5 closes at PING: leave it out every other time
    return step::again;
  };
  std::string got;
  std::size_t sent = 0;
  while (got.size() < want) {
    if (sent < hello.size()) {
      const ssize_t n = ::send(a.fd.get(), hello.data() + sent, hello.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return closed(errno_text(errno));
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
    char bytes[8];
    const ssize_t n = ::recv(a.fd.get(), bytes, want - got.size(), MSG_DONTWAIT);
    if (n == 0) return closed("the server closed the connection");
    if (n < 0 && errno != EAGAIN && errno != EINTR) return closed(errno_text(errno));
    if (n > 0) {
      got.append(bytes, static_cast<std::size_t>(n));
      continue;
    }
    if (steady_now() >= give_up) return step::again;
    std::vector<pollfd> fds(2);
    fds[1] = pollfd{a.fd.get(), static_cast<short>(sent < hello.size() ? POLLIN | POLLOUT : POLLIN), 0};
    if (!pause(give_up, fds)) return step::stopped;
  }
  const bool echoed = !with_ping_ || wire::load<std::uint32_t>(got.data()) == nonce;
  const auto ready = static_cast<std::uint8_t>(got.back());
  if (!echoed || ready > wire::check_not_ready) {
    code_ = errc::protocol;
    why_ = where + ": whatever listens there is not a store: it does not answer the handshake as one";
    return step::final_answer;
  }
  out.fd = std::move(a.fd);
  out.peer = a.to;
  out.rollcall_server = ready == wire::check_ready;
  out.with_ping = with_ping_;
  return step::done;
}

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall
