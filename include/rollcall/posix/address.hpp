#pragma once
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include "../core/result.hpp"
#include "errno.hpp"

namespace rollcall {
inline namespace v0 {

/// An IPv4, IPv6 or unix socket address, or none. Never asks DNS, in neither direction.
class socket_address {
 public:
  socket_address() noexcept = default;
  /// Copies `size` bytes, at most sizeof(sockaddr_storage); the form for what the kernel filled in.
  socket_address(sockaddr const* address, socklen_t size) noexcept : size_(size < capacity() ? size : capacity()) {
    std::memcpy(&storage_, address, size_);
  }

  /// From `127.0.0.1`, `::1`, `[::1]` or `fe80::1%eth0` (a zone is an interface's name or number).
  /// errors    invalid: not a literal, no such interface, port not in 0..65535. Nothing wraps.
  [[nodiscard]] static result<socket_address> ip(std::string_view literal, std::int64_t port);
  /// Whether `host` is spelt like an IP literal, right or wrong (`::1`, `[::1`, `300.0.0.1`), so that it must not be asked of DNS.
  [[nodiscard]] static bool looks_like_ip(std::string_view host) noexcept {
    return host.find_first_of(":[]%") != host.npos || (!host.empty() && host.find_first_not_of("0123456789.") == host.npos);
  }
  /// From the path of a unix socket, 1..107 bytes.
  /// errors    invalid: empty, too long (both lengths in the text), or with a zero byte.
  [[nodiscard]] static result<socket_address> unix_path(std::string_view path);
  /// Which address `fd` is bound to; none (`!has_value()`) if it is no socket.
  [[nodiscard]] static socket_address local(int fd) noexcept { return ask(fd, ::getsockname); }
  /// Which address `fd` is connected to; none if it is not connected.
  [[nodiscard]] static socket_address peer(int fd) noexcept { return ask(fd, ::getpeername); }

  [[nodiscard]] bool has_value() const noexcept { return size_ >= sizeof(sa_family_t); }
  /// AF_INET, AF_INET6, AF_UNIX, or AF_UNSPEC for none.
  [[nodiscard]] int family() const noexcept { return has_value() ? storage_.ss_family : AF_UNSPEC; }
  [[nodiscard]] bool is_inet() const noexcept { return family() == AF_INET || family() == AF_INET6; }
  /// 0 for a unix socket, for none, and for an unbound one.
  [[nodiscard]] std::uint16_t port() const noexcept {
    if (family() == AF_INET) return ntohs(as<sockaddr_in>().sin_port);
    return family() == AF_INET6 ? ntohs(as<sockaddr_in6>().sin6_port) : std::uint16_t{0};
  }
  /// Numeric, without brackets: "127.0.0.1", "fe80::1%eth0"; a unix socket's path, "@name" for an abstract one, "" for an unnamed one.
  [[nodiscard]] std::string host() const;
  /// "127.0.0.1:29500", "[::1]:29500", a unix socket's host(); "(none)" for none.
  [[nodiscard]] std::string to_string() const;
  /// Reachable from this host only: 127.0.0.0/8, also mapped into IPv6, ::1, and unix sockets.
  [[nodiscard]] bool is_loopback() const noexcept;
  /// 0.0.0.0 or ::, "all interfaces".
  [[nodiscard]] bool is_wildcard() const noexcept;

  [[nodiscard]] sockaddr const* data() const noexcept { return reinterpret_cast<sockaddr const*>(&storage_); }
  [[nodiscard]] socklen_t size() const noexcept { return size_; }
  [[nodiscard]] static constexpr socklen_t capacity() noexcept { return sizeof(sockaddr_storage); }
  friend bool operator==(socket_address const& a, socket_address const& b) noexcept {
    if (a.family() != b.family()) return false;
    if (!a.is_inet()) return a.size_ == b.size_ && std::memcmp(&a.storage_, &b.storage_, a.size_) == 0;
    if (a.port() != b.port()) return false;
    if (a.family() == AF_INET) return a.as<sockaddr_in>().sin_addr.s_addr == b.as<sockaddr_in>().sin_addr.s_addr;
    const auto x = a.as<sockaddr_in6>(), y = b.as<sockaddr_in6>();
    return std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0 && x.sin6_scope_id == y.sin6_scope_id;
  }

 private:
  static socket_address ask(int fd, int (*call)(int, sockaddr*, socklen_t*)) noexcept {
    socket_address a;
    a.size_ = capacity();
    if (call(fd, reinterpret_cast<sockaddr*>(&a.storage_), &a.size_) != 0) a.size_ = 0;
    return a;
  }
  template <class Sockaddr>
  [[nodiscard]] Sockaddr as() const noexcept {
    Sockaddr s;
    std::memcpy(&s, &storage_, sizeof s);
    return s;
  }
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};
static_assert(await_safe<socket_address>);

namespace detail {

/// The path in a host of the form "unix:PATH", or nothing: a unix socket, where a port has no meaning.
[[nodiscard]] inline std::string_view unix_path_in(std::string_view host) noexcept {
  constexpr std::string_view prefix = "unix:";
  return host.starts_with(prefix) ? host.substr(prefix.size()) : std::string_view();
}
/// "host:port" as the user gave them, an IPv6 literal in brackets; "unix:PATH".
[[nodiscard]] inline std::string endpoint_text(std::string const& host, int port) {
  if (!unix_path_in(host).empty()) return host;
  return (host.find(':') != host.npos && host.front() != '[' ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace detail

inline result<socket_address> socket_address::ip(std::string_view literal, std::int64_t port) {
  std::string shown = "'";
  detail::append_printable(shown, literal, 80);
  shown += "'";
  if (port < 0 || port > 65535) return failure(errc::invalid, "address", "port " + std::to_string(port) + " is not in 0..65535");
  std::string text(literal);
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  const bool whole = text.find('\0') == text.npos;
  if (sockaddr_in v4{}; whole && text == literal && ::inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<std::uint16_t>(port));
    return socket_address(reinterpret_cast<sockaddr const*>(&v4), sizeof v4);
  }
  sockaddr_in6 v6{};
  std::string zone;
  const std::size_t percent = text.find('%');
  if (percent != text.npos) {
    zone = text.substr(percent + 1);
    text.resize(percent);
  }
  if (!whole || ::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) != 1 || (percent != text.npos && zone.empty()))
    return failure(errc::invalid, "address", shown + " is not an IPv4 or IPv6 address");
  if (!zone.empty()) {
    v6.sin6_scope_id = ::if_nametoindex(zone.c_str());
    if (v6.sin6_scope_id == 0) {
      const auto [end, problem] = std::from_chars(zone.data(), zone.data() + zone.size(), v6.sin6_scope_id);
      if (problem != std::errc() || end != zone.data() + zone.size() || v6.sin6_scope_id == 0)
        return failure(errc::invalid, "address", shown + " names a network interface that this host does not have");
    }
  }
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<std::uint16_t>(port));
  return socket_address(reinterpret_cast<sockaddr const*>(&v6), sizeof v6);
}

inline result<socket_address> socket_address::unix_path(std::string_view path) {
  sockaddr_un a{};
  constexpr std::size_t longest = sizeof a.sun_path - 1;
  if (path.empty()) return failure(errc::invalid, "address", "the path of a unix socket is empty");
  if (path.find('\0') != path.npos) return failure(errc::invalid, "address", "the path of a unix socket has a zero byte in it");
  if (path.size() > longest) {
    std::string text = "the path of a unix socket has " + std::to_string(path.size()) + " bytes, the system takes at most " +
                       std::to_string(longest) + ": ";
    detail::append_printable(text, path, 512);
    return failure(errc::invalid, "address", std::move(text));
  }
  a.sun_family = AF_UNIX;
  std::memcpy(a.sun_path, path.data(), path.size());
  return socket_address(reinterpret_cast<sockaddr const*>(&a), static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1));
}

inline std::string socket_address::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    const auto a = as<sockaddr_in>();
    return ::inet_ntop(AF_INET, &a.sin_addr, text, sizeof text);
  }
  if (family() == AF_INET6) {
    const auto a = as<sockaddr_in6>();
    std::string s = ::inet_ntop(AF_INET6, &a.sin6_addr, text, sizeof text);
    if (a.sin6_scope_id == 0) return s;
    char name[IF_NAMESIZE] = "";
    return s + "%" + (::if_indextoname(a.sin6_scope_id, name) ? std::string(name) : std::to_string(a.sin6_scope_id));
  }
  if (family() != AF_UNIX || size_ <= offsetof(sockaddr_un, sun_path)) return {};
  const auto a = as<sockaddr_un>();
  const std::size_t n = size_ - offsetof(sockaddr_un, sun_path);  // a path that fills sun_path has no zero byte, so the length counts
  if (a.sun_path[0] != '\0') return std::string(a.sun_path, ::strnlen(a.sun_path, n < sizeof a.sun_path ? n : sizeof a.sun_path));
  std::string s = "@";
  detail::append_printable(s, std::string_view(a.sun_path, n < sizeof a.sun_path ? n : sizeof a.sun_path).substr(1), 512);
  return s;
}

inline std::string socket_address::to_string() const {
  if (family() == AF_INET) return host() + ":" + std::to_string(port());
  if (family() == AF_INET6) return "[" + host() + "]:" + std::to_string(port());
  if (family() == AF_UNIX) return size_ > offsetof(sockaddr_un, sun_path) ? host() : std::string("(unnamed unix socket)");
  return has_value() ? "(address family " + std::to_string(family()) + ")" : std::string("(none)");
}

inline bool socket_address::is_loopback() const noexcept {
  if (family() == AF_INET) return (ntohl(as<sockaddr_in>().sin_addr.s_addr) >> 24) == 127;
  if (family() != AF_INET6) return family() == AF_UNIX;
  const in6_addr a = as<sockaddr_in6>().sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127);
}

inline bool socket_address::is_wildcard() const noexcept {
  if (family() == AF_INET) return as<sockaddr_in>().sin_addr.s_addr == htonl(INADDR_ANY);
  const in6_addr a = as<sockaddr_in6>().sin6_addr;
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a);
}

namespace detail {

/// Whether a connected socket is its own peer: a retry at a port that nobody serves may be given that very port by the kernel.
[[nodiscard]] inline bool connected_to_itself(int fd) noexcept {
  const socket_address here = socket_address::local(fd);
  return here.is_inet() && here == socket_address::peer(fd);
}

}  // namespace detail

}  // namespace v0
}  // namespace rollcall
