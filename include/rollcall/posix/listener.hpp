#pragma once
#include <sys/socket.h>

#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "../core/result.hpp"
#include "address.hpp"
#include "descriptors.hpp"
#include "detail/socket_file.hpp"
#include "fd.hpp"

namespace rollcall {
inline namespace v0 {

/// When a silent peer is asked whether it is still there, how often again, and after how many silent answers it is given up.
struct keep_alive_times {
  std::chrono::seconds idle{60};      ///< 1..32767 s; 0 switches keep-alive off
  std::chrono::seconds interval{10};  ///< 1..32767 s
  int count = 3;                      ///< 1..127
};
static_assert(await_safe<keep_alive_times>);

/// What listen() needs to know. Nothing is checked before listen().
class listen_options {
 public:
  listen_options() = default;

  /// Where to listen; 127.0.0.1 unless given. One socket, always:
  ///   an IPv4 or IPv6 literal (brackets and a zone are fine)   exactly that address
  ///   "localhost"   127.0.0.1 and not ::1, without DNS: a client that tries ::1 first is refused there at once and goes on
  ///   "" or "*"     all interfaces, IPv6 and IPv4 on one socket; IPv4 alone where the kernel has no IPv6
  ///   another name  its first address that is one of this host; listen() blocks while it is resolved
  listen_options& host(std::string h) { return host_ = std::move(h), *this; }
  /// 0..65535; 0, the default, lets the system choose one, which listener::port() tells.
  listen_options& port(std::int64_t p) noexcept { return port_ = p, *this; }
  /// Listen on a unix socket at this path (1..107 bytes, mode 0600) instead; host and port do not count then. "" means no.
  listen_options& unix_path(std::string p) { return unix_path_ = std::move(p), *this; }
  /// How many connections may wait to be accepted, ≥ 1; the system's maximum (net.core.somaxconn) unless given.
  listen_options& backlog(int n) noexcept { return backlog_ = n, *this; }
  /// Rebind at once although old connections linger in TIME_WAIT. Never shares the port with another listener.
  listen_options& reuse_address(bool on) noexcept { return reuse_address_ = on, *this; }
  /// Set on the listener; accepted sockets inherit it without a system call.
  listen_options& no_delay(bool on) noexcept { return no_delay_ = on, *this; }
  /// Set on the listener; accepted sockets inherit it without a system call.
  listen_options& keep_alive(keep_alive_times t) noexcept { return keep_alive_ = t, *this; }

  [[nodiscard]] std::string const& host() const noexcept { return host_; }
  [[nodiscard]] std::int64_t port() const noexcept { return port_; }
  [[nodiscard]] std::string const& unix_path() const noexcept { return unix_path_; }
  [[nodiscard]] int backlog() const noexcept { return backlog_; }
  [[nodiscard]] bool reuse_address() const noexcept { return reuse_address_; }
  [[nodiscard]] bool no_delay() const noexcept { return no_delay_; }
  [[nodiscard]] keep_alive_times keep_alive() const noexcept { return keep_alive_; }

 private:
  std::string host_ = "127.0.0.1";
  std::string unix_path_;
  std::int64_t port_ = 0;
  int backlog_ = INT_MAX;
  keep_alive_times keep_alive_;
  bool reuse_address_ = true;
  bool no_delay_ = true;
};
static_assert(await_safe<listen_options>);

/// A listening stream socket (TCP or unix), non-blocking and close-on-exec, with the address it is really bound to. Closed once, by
/// close(), the destructor, or whoever calls release(). Knows no loop: serve() and the blocking server both take one.
class listener {
 public:
  listener() noexcept = default;
  listener(listener&& o) noexcept = default;
  listener& operator=(listener&& o) noexcept {
    if (this == &o) return *this;
    close();
    fd_ = std::move(o.fd_);
    address_ = o.address_;
    file_ = std::move(o.file_);
    return *this;
  }
  ~listener() { close(); }

  /// Take a stream socket that somebody else bound: IPv4, IPv6 or unix, listening already or not.
  ///
  /// fd             becomes non-blocking and close-on-exec, listens, gets TCP_NODELAY and keep-alive (60 s, 10 s, 3); a backlog that was
  ///                set lower is raised to the system's maximum.
  /// expected_port  the port somebody was told; 0 or -1 accept any.
  /// errors         invalid: `fd` is something else (the text says what), is bound to another port (both are named); io.
  /// lifetime       owned by the listener on success only; on failure `fd` stays open and with the caller. The file of an adopted unix
  ///                socket belongs to who made it and is not removed.
  [[nodiscard]] static listener adopt(int fd, std::int64_t expected_port = -1) { return try_adopt(fd, expected_port).value(); }
  [[nodiscard]] static result<listener> try_adopt(int fd, std::int64_t expected_port = -1);

  /// -1 once closed, released or moved from.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  /// The caller closes the descriptor from now on, and removes the file of a unix socket.
  [[nodiscard]] int release() noexcept {
    file_.forget();
    return fd_.release();
  }
  /// Frees the port at once; removes the file of a unix socket that listen() made, in the process that made it, unless it was replaced.
  void close() noexcept {
    file_.remove();  // first: a file that exists but refuses would look stale to the next one who starts
    fd_.reset();
  }

  /// The bound address; it stays readable after close().
  [[nodiscard]] socket_address const& address() const noexcept { return address_; }
  /// The real port, also where 0 was asked for; 0 for a unix socket.
  [[nodiscard]] int port() const noexcept { return address_.port(); }
  /// Numeric and without brackets; the path of a unix socket.
  [[nodiscard]] std::string host() const { return address_.host(); }
  /// "tcp://127.0.0.1:29500", "tcp://[::1]:29500", "unix:/run/job/store".
  [[nodiscard]] std::string url() const { return (address_.is_inet() ? "tcp://" : "unix:") + address_.to_string(); }

 private:
  friend result<listener> try_listen(listen_options const&);
  listener(unique_fd fd, socket_address const& address, detail::socket_file file = {}) noexcept
      : fd_(std::move(fd)), address_(address), file_(std::move(file)) {}
  unique_fd fd_;
  socket_address address_;
  detail::socket_file file_;
};
static_assert(await_safe<listener>);

/// Bind and listen now, so that every error of starting a server shows before anything is served.
///
/// completes before it returns; blocks only to resolve a host name, and up to 1 s where a stale unix socket file is contended.
/// errors    address_in_use, invalid (a value out of range, a path too long), resolve, io (no permission, not an address of this
///           host, out of descriptors). The text names the address, the port, the errno and what to do. No descriptor and no
///           file is left behind.
/// lifetime  any thread; the listener owns its descriptor.
[[nodiscard]] result<listener> try_listen(listen_options const& options);
[[nodiscard]] inline listener listen(listen_options const& options) { return try_listen(options).value(); }

/// What to warn of where the system's listen backlog is smaller than `clients` that may connect at once; "" where it suffices.
[[nodiscard]] std::string backlog_warning(std::size_t clients);

}  // namespace v0
}  // namespace rollcall

#include "detail/listener.ipp"
