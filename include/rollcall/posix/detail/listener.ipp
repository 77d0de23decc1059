#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace rollcall {
inline namespace v0 {
namespace detail {

/// A number from a file of /proc/sys; -1 where it cannot be read.
[[nodiscard]] inline long system_number(char const* file) noexcept {
  const unique_fd fd(::open(file, O_RDONLY | O_CLOEXEC));
  char text[32] = "";
  if (!fd || ::read(fd.get(), text, sizeof text - 1) <= 0) return -1;
  return std::strtol(text, nullptr, 10);
}

[[nodiscard]] inline std::string backlog_warning_text(long system_maximum, std::size_t clients) {
  if (system_maximum < 0 || static_cast<std::size_t>(system_maximum) >= clients) return {};
  const std::string wanted = std::to_string(clients);
  return "net.core.somaxconn is " + std::to_string(system_maximum) + ", fewer than the " + wanted +
         " clients that may connect at once: some will have to try again; `sysctl -w net.core.somaxconn=" + wanted + "` raises it";
}

/// A system call of listen() that failed, with the ways out.
[[nodiscard]] inline failure listen_failure(char const* call, int e, socket_address const& at, std::string const& asked = {}) {
  std::string text = std::string(call) + ": " + errno_text(e);
  const std::string port = std::to_string(at.port());
  if (e == EADDRINUSE && at.is_inet()) {
    text += "; choose another port, or port 0 to let the system choose one; `ss -ltnp sport = :" + port +
            "` shows who holds it (`ss -atnp ...` if it is an outgoing connection)";
  } else if (e == EACCES && at.is_inet()) {
    const long first = system_number("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if (at.port() < (first < 0 ? 1024 : first)) {
      text += "; port " + port + " is privileged: choose a port from " + std::to_string(first < 0 ? 1024 : first) +
              " on, or give the program CAP_NET_BIND_SERVICE";
    } else {
      text += "; a security policy of this host forbids it";
    }
  } else if (e == EADDRNOTAVAIL) {
    text += "; " + at.host() + " is not an address of this host (`ip address` lists them); \"*\" listens on all of them";
  }
  if (!asked.empty() && asked != at.host()) {
    text += "; asked for as '";
    append_printable(text, asked, 255);
    text += '\'';
  }
  failure f(e == EADDRINUSE ? errc::address_in_use : errc::io, "listen", std::move(text));
  return f.with_system_error(e).with_peer(at.to_string()), f;
}

/// Names the first option that could not be set, with errno, or nullptr. Accepted sockets inherit all of them.
[[nodiscard]] inline char const* set_inherited(int fd, bool no_delay, keep_alive_times const& k) noexcept {
  const auto set = [fd](int level, int name, std::int64_t value) {
    const int v = static_cast<int>(value);
    return ::setsockopt(fd, level, name, &v, sizeof v) == 0;
  };
  if (!set(IPPROTO_TCP, TCP_NODELAY, no_delay)) return "TCP_NODELAY";
  if (!set(SOL_SOCKET, SO_KEEPALIVE, k.idle.count() > 0)) return "SO_KEEPALIVE";
  if (k.idle.count() == 0) return nullptr;
  if (!set(IPPROTO_TCP, TCP_KEEPIDLE, k.idle.count())) return "TCP_KEEPIDLE";
  if (!set(IPPROTO_TCP, TCP_KEEPINTVL, k.interval.count())) return "TCP_KEEPINTVL";
  return set(IPPROTO_TCP, TCP_KEEPCNT, k.count) ? nullptr : "TCP_KEEPCNT";
}

/// What can never work in these options; "" if they are fine.
[[nodiscard]] inline std::string listen_complaint(listen_options const& o) {
  const keep_alive_times k = o.keep_alive();
  const auto outside = [](char const* what, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value >= low && value <= high) return std::string();
    return std::string(what) + " " + std::to_string(value) + " is not in " + std::to_string(low) + ".." + std::to_string(high);
  };
  std::string s = outside("port", o.port(), 0, 65535);
  if (s.empty()) s = outside("backlog", o.backlog(), 1, INT_MAX);
  if (s.empty()) s = outside("keep-alive idle seconds", k.idle.count(), 0, 32767);
  if (s.empty() && k.idle.count() > 0) s = outside("keep-alive interval seconds", k.interval.count(), 1, 32767);
  if (s.empty() && k.idle.count() > 0) s = outside("keep-alive count", k.count, 1, 127);
  return s;
}

/// One TCP socket, bound to `at` and listening. The errno is left in `e`.
[[nodiscard]] inline result<unique_fd> listen_inet(listen_options const& o, socket_address const& at, int& e) {
  const auto failed = [&](char const* call) { return e = errno, listen_failure(call, e, at, o.host()); };
  const int on = 1, off = 0;
  unique_fd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("socket");
  // On Linux this passes over connections in TIME_WAIT, never over a listener. SO_REUSEPORT, which would share, stays off.
  if (o.reuse_address() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return failed("SO_REUSEADDR");
  if (at.family() == AF_INET6 && ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) return failed("IPV6_V6ONLY");
  if (char const* option = set_inherited(fd.get(), o.no_delay(), o.keep_alive())) return failed(option);
  if (::bind(fd.get(), at.data(), at.size()) != 0) return failed("bind");
  if (::listen(fd.get(), o.backlog()) != 0)
    return failed("listen");  // EADDRINUSE too: somebody may have bound first, without listening yet
  return fd;
}

[[nodiscard]] inline bool is_localhost(std::string_view host) noexcept {
  constexpr std::string_view name = "localhost";
  return host.size() == name.size() && ::strncasecmp(host.data(), name.data(), name.size()) == 0;
}

/// All addresses of a name, in the resolver's order. Blocks.
[[nodiscard]] inline result<std::vector<socket_address>> resolve_to_listen(std::string const& host, std::int64_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  int status = EAI_NONAME;
  if (host.find('\0') == host.npos) status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  const int e = errno;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  if (status != 0) {
    std::string text = "'";
    append_printable(text, host, 255);
    text += std::string("': ") + ::gai_strerror(status);
    if (status == EAI_SYSTEM) text += ": " + errno_text(e);
    return failure(errc::resolve, "listen", std::move(text));
  }
  std::vector<socket_address> found;
  for (addrinfo const* a = list; a; a = a->ai_next)
    if (a->ai_family == AF_INET || a->ai_family == AF_INET6) found.emplace_back(a->ai_addr, a->ai_addrlen);
  return found;
}

/// What keeps a socket from being bound at the path `at`, or "" after a file that nobody listens on was removed.
[[nodiscard]] inline std::string clear_stale(std::string const& path, socket_address const& at, bool locked) {
  struct stat s;
  if (::lstat(path.c_str(), &s) != 0) return errno == ENOENT ? std::string() : "cannot look at the file: " + errno_text(errno);
  if (!S_ISSOCK(s.st_mode)) return "a file of that name exists and is not a socket; choose another path";
  const unique_fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return "socket: " + errno_text(errno);
  if (::connect(probe.get(), at.data(), at.size()) == 0 || errno == EAGAIN) return "somebody listens there; choose another path";
  if (errno != ECONNREFUSED) return "the socket there cannot be reached: connect: " + errno_text(errno);
  if (!locked) return "nobody listens there, but its directory cannot be locked to replace the file; remove it";
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return "nobody listens there, but the file cannot be removed: " + errno_text(errno);
  return {};
}

[[nodiscard]] inline result<std::pair<unique_fd, socket_file>> listen_local(listen_options const& o, socket_address const& at) {
  const unique_fd lock = lock_directory_of(o.unix_path());
  unique_fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return listen_failure("socket", errno, at);
  // Before bind, which makes the file with the socket's own mode: there is no moment at which others may connect.
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) return listen_failure("fchmod", errno, at);
  int status = ::bind(fd.get(), at.data(), at.size());
  if (status != 0 && errno == EADDRINUSE) {
    const std::string problem = clear_stale(o.unix_path(), at, static_cast<bool>(lock));
    if (!problem.empty()) {
      failure f(errc::address_in_use, "listen", "bind: " + errno_text(EADDRINUSE) + "; " + problem);
      return f.with_peer(at.to_string()), f;
    }
    status = ::bind(fd.get(), at.data(), at.size());
  }
  if (status != 0) return listen_failure("bind", errno, at);
  socket_file file(o.unix_path());
  if (::listen(fd.get(), o.backlog()) != 0) return listen_failure("listen", errno, at);
  return std::pair(std::move(fd), std::move(file));
}

/// What an open descriptor is that is no socket.
[[nodiscard]] inline std::string kind_of_file(int fd, struct stat const& s) {
  if (S_ISREG(s.st_mode)) return "a regular file";
  if (S_ISFIFO(s.st_mode)) return "a pipe";
  if (S_ISDIR(s.st_mode)) return "a directory";
  if (S_ISCHR(s.st_mode)) return ::isatty(fd) ? "a terminal" : "a character device";
  return S_ISBLK(s.st_mode) ? "a block device" : "no file and no socket (an epoll, event, timer or signal descriptor)";
}

/// Why `fd` cannot be listened on ("it is a pipe"), or "". `listening` and `at` are set if it can.
[[nodiscard]] inline std::string unfit_to_listen(int fd, bool& listening, socket_address& at) {
  const auto option = [fd](int level, int name) {
    int v = -1;
    socklen_t n = sizeof v;
    return ::getsockopt(fd, level, name, &v, &n) == 0 ? v : -1;
  };
  struct stat s;
  if (fd < 0 || ::fstat(fd, &s) != 0) return "it is not open";
  if (!S_ISSOCK(s.st_mode)) return "it is " + kind_of_file(fd, s);
  const int family = option(SOL_SOCKET, SO_DOMAIN), type = option(SOL_SOCKET, SO_TYPE), protocol = option(SOL_SOCKET, SO_PROTOCOL);
  if (family != AF_INET && family != AF_INET6 && family != AF_UNIX) return "it is a socket of address family " + std::to_string(family);
  if (type == SOCK_DGRAM) return family == AF_UNIX ? "it is a unix datagram socket" : "it is a datagram socket (UDP)";
  constexpr int mptcp = 262;
  if (type != SOCK_STREAM || (family != AF_UNIX && protocol != IPPROTO_TCP && protocol != mptcp))
    return "it is a socket of type " + std::to_string(type) + " and protocol " + std::to_string(protocol) + ", not a TCP or unix stream";
  at = socket_address::local(fd);
  listening = option(SOL_SOCKET, SO_ACCEPTCONN) == 1;
  if (listening) return {};
  if (const socket_address peer = socket_address::peer(fd); peer.has_value()) return "it is a socket connected to " + peer.to_string();
  if (family == AF_UNIX) return at.host().empty() ? "it is a unix socket that is not bound" : "";
  if (at.port() == 0) return "it is a TCP socket that is not bound";
  tcp_info info{};
  socklen_t n = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_state != TCP_CLOSE) return "it is a socket that is connecting";
  return {};
}

}  // namespace detail

inline std::string backlog_warning(std::size_t clients) {
  return detail::backlog_warning_text(detail::system_number("/proc/sys/net/core/somaxconn"), clients);
}

inline result<listener> try_listen(listen_options const& o) {
  if (std::string problem = detail::listen_complaint(o); !problem.empty()) return failure(errc::invalid, "listen", std::move(problem));
  const auto as_listen = [](failure const& f) { return failure(f.code(), "listen", f.detail()); };
  if (!o.unix_path().empty()) {
    const auto at = socket_address::unix_path(o.unix_path());
    if (!at) return as_listen(at.error());
    auto made = detail::listen_local(o, *at);
    if (!made) return made.shared();
    return listener(std::move(made->first), *at, std::move(made->second));
  }
  std::vector<socket_address> places;
  if (o.host().empty() || o.host() == "*") {
    places = {*socket_address::ip("::", o.port()), *socket_address::ip("0.0.0.0", o.port())};
  } else if (detail::is_localhost(o.host())) {
    places = {*socket_address::ip("127.0.0.1", o.port())};
  } else if (socket_address::looks_like_ip(o.host())) {
    const auto at = socket_address::ip(o.host(), o.port());
    if (!at) return as_listen(at.error());
    places = {*at};
  } else {
    auto found = detail::resolve_to_listen(o.host(), o.port());
    if (!found) return found.shared();
    places = std::move(*found);
  }
  failure_ptr first;
  for (socket_address const& at : places) {
    int e = 0;
    auto fd = detail::listen_inet(o, at, e);
    if (fd) {
      const socket_address bound = socket_address::local(fd->get());
      return listener(std::move(*fd), bound);
    }
    if (!first) first = fd.shared();
    // A port that is taken on the name's first address is an error: clients would reach the other server there.
    if (e != EAFNOSUPPORT && e != EADDRNOTAVAIL) return fd.shared();
  }
  if (!first) return failure(errc::resolve, "listen", "'" + o.host() + "' has no IPv4 or IPv6 address");
  return first;
}

inline result<listener> listener::try_adopt(int fd, std::int64_t expected_port) {
  const std::string operation = "adopt descriptor " + std::to_string(fd);
  const auto invalid = [&](std::string text) { return failure(errc::invalid, operation, std::move(text)); };
  const auto failed = [&](char const* call) { return failure(errc::io, operation, std::string(call) + ": " + errno_text(errno)); };
  bool listening = false;
  socket_address at;
  if (expected_port < -1 || expected_port > 65535)
    return invalid("the expected port " + std::to_string(expected_port) + " is not in 0..65535");
  if (const std::string unfit = detail::unfit_to_listen(fd, listening, at); !unfit.empty())
    return invalid(unfit + "; a bound or listening TCP or unix stream socket is needed");
  if (expected_port > 0 && !at.is_inet())
    return invalid("it is the unix socket " + at.to_string() + ", which has no port, but port " + std::to_string(expected_port) +
                   " was asked for");
  if (expected_port > 0 && expected_port != at.port())
    return invalid("it is bound to " + at.to_string() + ", so to port " + std::to_string(at.port()) + ", but port " +
                   std::to_string(expected_port) + " was asked for");
  if (at.is_inet()) {
    if (char const* option = detail::set_inherited(fd, true, {})) return failed(option);
  }
  if (::listen(fd, INT_MAX) != 0) {
    failure f = detail::listen_failure("listen", errno, at);
    return failure(f.code(), operation, at.to_string() + ": " + f.detail());
  }
  const int status = ::fcntl(fd, F_GETFL), flags = ::fcntl(fd, F_GETFD);
  if (status < 0 || ::fcntl(fd, F_SETFL, status | O_NONBLOCK) != 0) return failed("O_NONBLOCK");
  if (flags < 0 || ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC) != 0) return failed("FD_CLOEXEC");
  return listener(unique_fd(fd), at);
}

}  // namespace v0
}  // namespace rollcall
