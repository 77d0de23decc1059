#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <rollcall/posix/listener.hpp>

namespace {
namespace rc = rollcall;
using rc::errc;
using rc::listen_options;
using rc::listener;
using rc::socket_address;
using rc::unique_fd;

bool has(std::string const& text, std::string const& part) {
  const bool found = text.find(part) != text.npos;
  if (!found) MESSAGE("'" << part << "' is not in: " << text);
  return found;
}

template <class T>
std::string failure_of(rc::result<T> const& r) {
  if (r) return "no failure";
  return r.error().message();
}

int open_descriptors() {
  int n = 0;
  DIR* d = ::opendir("/proc/self/fd");
  while (::readdir(d)) ++n;
  ::closedir(d);
  return n;
}
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

int option(int fd, int level, int name) {
  int v = -1;
  socklen_t n = sizeof v;
  return ::getsockopt(fd, level, name, &v, &n) == 0 ? v : -1;
}

unique_fd bound_socket(char const* host = "127.0.0.1", int type = SOCK_STREAM) {
  const socket_address a = socket_address::ip(host, 0).value();
  unique_fd fd(::socket(a.family(), type, 0));
  if (::bind(fd.get(), a.data(), a.size()) != 0) fd.reset();
  return fd;
}
unique_fd connected_to(socket_address const& a) {
  unique_fd fd(::socket(a.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), a.data(), a.size()) != 0) fd.reset();
  return fd;
}
unique_fd accepted_from(listener const& l) {
  pollfd p{l.fd(), POLLIN, 0};
  if (::poll(&p, 1, 5000) != 1) return {};
  return unique_fd(::accept4(l.fd(), nullptr, nullptr, SOCK_CLOEXEC));
}
bool has_ipv6() { return rc::try_listen(listen_options().host("::1")).has_value(); }

/// What `body` returns when it runs in a child process; "" if that died.
std::string in_child(std::function<std::string()> const& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    const ssize_t n = ::write(ends[1], text.data(), text.size());
    ::_exit(n == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  const unique_fd in(ends[0]);
  unique_fd(ends[1]).reset();
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t n; (n = ::read(in.get(), part.data(), part.size())) > 0;) text.append(part.data(), static_cast<std::size_t>(n));
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "died: " + text;
}

struct scratch_directory {
  std::string path = "/tmp/rollcall-listener-XXXXXX";
  scratch_directory() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  scratch_directory(scratch_directory const&) = delete;
  scratch_directory& operator=(scratch_directory const&) = delete;
  ~scratch_directory() {
    for (std::string const& name : names()) ::unlink((path + "/" + name).c_str());
    ::rmdir(path.c_str());
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> v;
    DIR* d = ::opendir(path.c_str());
    while (dirent const* e = ::readdir(d))
      if (e->d_name[0] != '.') v.emplace_back(e->d_name);
    ::closedir(d);
    return v;
  }
};
}  // namespace

TEST_SUITE("listener") {
  TEST_CASE("errno values have their names") {
    CHECK(rc::errno_name(EADDRINUSE) == "EADDRINUSE");
    CHECK(rc::errno_name(EACCES) == "EACCES");
    CHECK(rc::errno_name(0) == "errno 0");
    CHECK(rc::errno_name(123456) == "errno 123456");
  }

  TEST_CASE("an address literal prints as it is meant, numeric, with brackets and zone") {
    CHECK(socket_address::ip("127.0.0.1", 29500)->to_string() == "127.0.0.1:29500");
    CHECK(socket_address::ip("::1", 29500)->to_string() == "[::1]:29500");
    CHECK(socket_address::ip("[::1]", 0)->to_string() == "[::1]:0");
    CHECK(socket_address::ip("fe80::1%lo", 1)->to_string() == "[fe80::1%lo]:1");
    CHECK(socket_address::ip("[fe80::1%1]", 65535)->to_string() == "[fe80::1%lo]:65535");
    CHECK(socket_address::ip("fe80::1%4000000000", 1)->host() == "fe80::1%4000000000");
    CHECK(socket_address::ip("::ffff:10.0.0.7", 1)->host() == "::ffff:10.0.0.7");
    CHECK(socket_address::unix_path("/run/a b")->to_string() == "/run/a b");
    CHECK(socket_address().to_string() == "(none)");
    CHECK(socket_address::ip("127.0.0.1", 29500)->port() == 29500);
    CHECK(socket_address::ip("::1", 29500)->family() == AF_INET6);
  }

  TEST_CASE("what is no literal is refused and named") {
    const std::vector<std::string> wrong{
        "",     "localhost", "300.0.0.1", "127.0.0.1:29500",        "[127.0.0.1]", "[::1",    "::1]",
        "::1%", "1.2.3",     "[]",        std::string("::1\0x", 5), "%lo",         "[::1]:1", "127.0.0.1%lo"};
    for (std::string const& text : wrong) {
      CAPTURE(text);
      const auto a = socket_address::ip(text, 1);
      CHECK(a.code() == errc::invalid);
    }
    CHECK(has(failure_of(socket_address::ip("300.0.0.1", 1)), "'300.0.0.1'"));
    CHECK(has(failure_of(socket_address::ip("fe80::1%nosuch0", 1)), "interface"));
    CHECK(has(failure_of(socket_address::ip("127.0.0.1", 65536)), "65536"));
    CHECK(socket_address::looks_like_ip("300.0.0.1"));
    CHECK(socket_address::looks_like_ip("[::1"));
    CHECK_FALSE(socket_address::looks_like_ip("node-7.cluster"));
    CHECK_FALSE(socket_address::looks_like_ip(""));
  }

  TEST_CASE("loopback is 127.0.0.0/8, mapped too, ::1 and unix; nothing else") {
    for (char const* yes : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.3.2.1"}) CHECK(socket_address::ip(yes, 1)->is_loopback());
    for (char const* no : {"10.0.0.1", "0.0.0.0", "::", "fe80::1%lo", "::ffff:10.0.0.1"})
      CHECK_FALSE(socket_address::ip(no, 1)->is_loopback());
    CHECK(socket_address::unix_path("/x")->is_loopback());
    CHECK_FALSE(socket_address().is_loopback());
    CHECK(socket_address::ip("::", 1)->is_wildcard());
    CHECK(socket_address::ip("0.0.0.0", 1)->is_wildcard());
    CHECK_FALSE(socket_address::ip("::1", 1)->is_wildcard());
  }

  TEST_CASE("addresses are equal when host, port and zone are") {
    CHECK(*socket_address::ip("[::1]", 1) == *socket_address::ip("0:0::1", 1));
    CHECK_FALSE(*socket_address::ip("::1", 1) == *socket_address::ip("::1", 2));
    CHECK_FALSE(*socket_address::ip("fe80::1%1", 1) == *socket_address::ip("fe80::1%2", 1));
    CHECK(*socket_address::unix_path("/a") == *socket_address::unix_path("/a"));
    CHECK_FALSE(*socket_address::unix_path("/a") == *socket_address::unix_path("/b"));
  }

  TEST_CASE("port 0 gives the real port, and a client reaches it") {
    const listener l = rc::listen(listen_options().port(0));
    CHECK(l.port() > 0);
    CHECK(l.url() == "tcp://127.0.0.1:" + std::to_string(l.port()));
    CHECK(l.host() == "127.0.0.1");
    CHECK(l.address() == socket_address::local(l.fd()));
    CHECK(connected_to(l.address()));
    CHECK(accepted_from(l));
  }

  TEST_CASE("without a host only the loopback is bound") {
    const listener l = rc::listen(listen_options());
    CHECK(socket_address::local(l.fd()).to_string() == "127.0.0.1:" + std::to_string(l.port()));
    CHECK(l.address().is_loopback());
    CHECK_FALSE(connected_to(*socket_address::ip("127.0.0.2", l.port())));
  }

  TEST_CASE("all interfaces only on request, both families on one socket") {
    for (std::string const host : {"", "*", "::"}) {
      CAPTURE(host);
      if (!has_ipv6()) {
        MESSAGE("skipped: no IPv6 here");
        break;
      }
      const listener l = rc::listen(listen_options().host(host));
      CHECK(l.address().is_wildcard());
      CHECK(l.url() == "tcp://[::]:" + std::to_string(l.port()));
      CHECK(connected_to(*socket_address::ip("127.0.0.1", l.port())));
      CHECK(connected_to(*socket_address::ip("::1", l.port())));
    }
    const listener v4 = rc::listen(listen_options().host("0.0.0.0"));
    CHECK(v4.host() == "0.0.0.0");
    CHECK(connected_to(*socket_address::ip("127.0.0.2", v4.port())));
  }

  TEST_CASE("a kernel without IPv6 is no problem for loopback, localhost and all interfaces") {
    const std::string text = in_child([]() -> std::string {
      std::array<sock_filter, 6> program{{
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      }};
      sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
      if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) return "no seccomp";
      std::string out;
      for (char const* host : {"127.0.0.1", "localhost", "*", ""}) out += rc::listen(listen_options().host(host)).host() + " ";
      return out + failure_of(rc::try_listen(listen_options().host("::1")));
    });
    if (text == "no seccomp") {
      MESSAGE("skipped: no seccomp filters here");
      return;
    }
    CHECK(has(text, "127.0.0.1 127.0.0.1 0.0.0.0 0.0.0.0 "));
    CHECK(has(text, "[::1]:0"));
    CHECK(has(text, "EAFNOSUPPORT"));
  }

  TEST_CASE("localhost is 127.0.0.1, without DNS") {
    CHECK(rc::listen(listen_options().host("localhost")).host() == "127.0.0.1");
    CHECK(rc::listen(listen_options().host("LocalHost")).host() == "127.0.0.1");
    const auto r = rc::try_listen(listen_options().host(std::string("localhost\0x", 11)));
    CHECK(r.code() == errc::resolve);
  }

  TEST_CASE("the url of an IPv6 address has brackets") {
    for (char const* host : {"::1", "[::1]"}) {
      const auto l = rc::try_listen(listen_options().host(host));
      if (!l) {
        MESSAGE("skipped: " << failure_of(l));
        return;
      }
      CHECK(l->url() == "tcp://[::1]:" + std::to_string(l->port()));
      CHECK(l->host() == "::1");
    }
  }

  TEST_CASE("a host that is meant as a literal is never asked of DNS") {
    for (std::string const host : {"300.0.0.1", "127.0.0.1:29500", "[::1", "fe80::1%nosuch0", "tcp://x"}) {
      CAPTURE(host);
      const auto r = rc::try_listen(listen_options().host(host));
      CHECK(r.code() == errc::invalid);
      CHECK(has(failure_of(r), "'" + host + "'"));
    }
  }

  TEST_CASE("a name is resolved at listen, and shown in errors beside the address") {
    // The resolver reads these two spellings as addresses, so no test depends on a DNS server.
    CHECK(rc::listen(listen_options().host("0x7f.1")).host() == "127.0.0.1");
    const auto other = rc::try_listen(listen_options().host("0xc6336407").port(29500));
    CHECK(has(failure_of(other), "198.51.100.7:29500"));
    CHECK(has(failure_of(other), "asked for as '0xc6336407'"));
    const auto none = rc::try_listen(listen_options().host(std::string(300, 'a')));
    CHECK(none.code() == errc::resolve);
    CHECK(has(failure_of(none), "aaaa"));
  }

  TEST_CASE("an address of another host is refused with the reason") {
    const auto r = rc::try_listen(listen_options().host("198.51.100.7").port(29500));
    CHECK(r.code() == errc::io);
    CHECK(has(failure_of(r), "198.51.100.7:29500"));
    CHECK(has(failure_of(r), "EADDRNOTAVAIL"));
    CHECK(has(failure_of(r), "not an address of this host"));
  }

  TEST_CASE("a second listen on one port fails and names address, port, errno and the ways out; the first keeps listening") {
    const listener first = rc::listen(listen_options());
    const std::string port = std::to_string(first.port());
    try {
      (void)rc::listen(listen_options().port(first.port()));
      FAIL("the port was shared");
    } catch (rc::error const& e) {
      CHECK(e.code() == errc::address_in_use);
      const std::string text = e.what();
      CHECK(has(text, "127.0.0.1:" + port));
      CHECK(has(text, "EADDRINUSE"));
      CHECK(has(text, "port 0"));
      CHECK(has(text, "`ss -ltnp sport = :" + port + "`"));
    }
    for (char const* host : {"*", "0.0.0.0"})
      CHECK(rc::try_listen(listen_options().host(host).port(first.port())).code() == errc::address_in_use);
    CHECK(connected_to(first.address()));
  }

  TEST_CASE("a port is not shared with a listener that would share it, nor taken from under all interfaces") {
    const unique_fd other = bound_socket();
    const int on = 1;
    const unique_fd sharing(::socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(::setsockopt(sharing.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    REQUIRE(::setsockopt(sharing.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    const socket_address any = *socket_address::ip("0.0.0.0", 0);
    REQUIRE(::bind(sharing.get(), any.data(), any.size()) == 0);
    REQUIRE(::listen(sharing.get(), 1) == 0);
    for (unique_fd const* taken : {&other, &sharing})
      CHECK(rc::try_listen(listen_options().port(socket_address::local(taken->get()).port())).code() == errc::address_in_use);
  }

  TEST_CASE("1,000 failed starts leave the number of open descriptors unchanged") {
    const listener taken = rc::listen(listen_options());
    const scratch_directory dir;
    const listener taken_file = rc::listen(listen_options().unix_path(dir.path + "/s"));
    const int before = open_descriptors();
    int failed = 0;
    for (int i = 0; i < 1000; ++i) {
      for (char const* host : {"127.0.0.1", "*"}) failed += !rc::try_listen(listen_options().host(host).port(taken.port()));
      failed += !rc::try_listen(listen_options().unix_path(dir.path + "/s"));
    }
    CHECK(failed == 3000);
    CHECK(open_descriptors() == before);
    CHECK(dir.names() == std::vector<std::string>{"s"});
  }

  TEST_CASE("values out of range are invalid and named, nothing wraps") {
    for (const std::int64_t port : {std::int64_t{-1}, std::int64_t{65536}, std::int64_t{123456}, std::int64_t{4294967296 + 29500}}) {
      const auto r = rc::try_listen(listen_options().port(port));
      CHECK(r.code() == errc::invalid);
      CHECK(has(failure_of(r), "port " + std::to_string(port)));
    }
    CHECK(has(failure_of(rc::try_listen(listen_options().backlog(0))), "backlog 0"));
    CHECK(has(failure_of(rc::try_listen(listen_options().keep_alive({std::chrono::seconds(40000), std::chrono::seconds(1), 1}))), "40000"));
    CHECK(has(failure_of(rc::try_listen(listen_options().keep_alive({std::chrono::seconds(1), std::chrono::seconds(0), 1}))),
              "interval seconds 0"));
    CHECK(has(failure_of(rc::try_listen(listen_options().keep_alive({std::chrono::seconds(1), std::chrono::seconds(1), 128}))), "128"));
  }

  TEST_CASE("a privileged port without privileges is refused with EACCES and a hint") {
    const long first = rc::detail::system_number("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if (first <= 1) {
      MESSAGE("skipped: no port is privileged here");
      return;
    }
    const std::string text = in_child([]() -> std::string {
      if (::getuid() == 0 && ::setuid(65534) != 0) return "cannot drop privileges";
      const auto r = rc::try_listen(listen_options().port(1));
      return r ? "listens" : (r.code() == errc::io ? "" : "wrong code: ") + failure_of(r);
    });
    CHECK(has(text, "listen at 127.0.0.1:1: system error"));
    CHECK(has(text, "EACCES"));
    CHECK(has(text, "privileged"));
    CHECK(has(text, "from " + std::to_string(first) + " on"));
  }

  TEST_CASE("out of descriptors is named") {
    const std::string text = in_child([]() -> std::string {
      const rlimit few{64, 64};
      if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return "setrlimit";
      std::vector<unique_fd> all;
      for (int fd; (fd = ::open("/dev/null", O_RDONLY)) >= 0;) all.emplace_back(fd);
      const auto r = rc::try_listen(listen_options());
      return r ? "listens" : failure_of(r);
    });
    CHECK(has(text, "EMFILE"));
  }

  TEST_CASE("an accepted socket inherits TCP_NODELAY and keep-alive") {
    const listener own = rc::listen(listen_options());
    unique_fd raw = bound_socket();
    const listener adopted = listener::adopt(raw.get());
    (void)raw.release();
    for (listener const* l : {&own, &adopted}) {
      const unique_fd client = connected_to(l->address());
      const unique_fd peer = accepted_from(*l);
      REQUIRE(peer);
      CHECK(option(peer.get(), IPPROTO_TCP, TCP_NODELAY) == 1);
      CHECK(option(peer.get(), SOL_SOCKET, SO_KEEPALIVE) == 1);
      CHECK(option(peer.get(), IPPROTO_TCP, TCP_KEEPIDLE) == 60);
      CHECK(option(peer.get(), IPPROTO_TCP, TCP_KEEPINTVL) == 10);
      CHECK(option(peer.get(), IPPROTO_TCP, TCP_KEEPCNT) == 3);
    }
    const listener off = rc::listen(listen_options().no_delay(false).keep_alive({std::chrono::seconds(0), {}, 0}));
    CHECK(option(off.fd(), IPPROTO_TCP, TCP_NODELAY) == 0);
    CHECK(option(off.fd(), SOL_SOCKET, SO_KEEPALIVE) == 0);
  }

  TEST_CASE("the backlog is the system's maximum, also where an adopted socket had a smaller one") {
    const auto backlog_of = [](int fd) {
      tcp_info info{};
      socklen_t n = sizeof info;
      REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0);
      return static_cast<long>(info.tcpi_sacked);  // of a listening socket: its backlog
    };
    const long most = rc::detail::system_number("/proc/sys/net/core/somaxconn");
    CHECK(backlog_of(rc::listen(listen_options()).fd()) == most);
    CHECK(backlog_of(rc::listen(listen_options().backlog(7)).fd()) == 7);
    unique_fd raw = bound_socket();
    REQUIRE(::listen(raw.get(), 5) == 0);
    const listener l = listener::adopt(raw.release());
    CHECK(backlog_of(l.fd()) == most);
  }

  TEST_CASE("a system backlog smaller than the clients is warned of, a sufficient one is not") {
    CHECK(rc::backlog_warning(1).empty());
    CHECK(has(rc::backlog_warning(1000000000), "net.core.somaxconn"));
    CHECK(rc::detail::backlog_warning_text(4096, 4096).empty());
    CHECK(rc::detail::backlog_warning_text(-1, 4096).empty());
    CHECK(has(rc::detail::backlog_warning_text(4096, 4097), "is 4096, fewer than the 4097"));
  }

  TEST_CASE("a listener is non-blocking and close-on-exec, made or adopted") {
    unique_fd raw = bound_socket();
    const listener own = rc::listen(listen_options()), adopted = listener::adopt(raw.release());
    for (listener const* l : {&own, &adopted}) {
      CHECK((::fcntl(l->fd(), F_GETFL) & O_NONBLOCK) != 0);
      CHECK((::fcntl(l->fd(), F_GETFD) & FD_CLOEXEC) != 0);
    }
  }

  TEST_CASE("a port can be bound again at once although a connection of it is in TIME_WAIT, 200 times") {
    int port = 0;
    for (int i = 0; i < 200; ++i) {
      listener l = rc::listen(listen_options().port(port));
      port = l.port();
      const unique_fd client = connected_to(l.address());
      unique_fd peer = accepted_from(l);
      REQUIRE(peer);
      peer.reset();  // the server closes first, so its side is the one that lingers
      char c = 0;
      CHECK(::read(client.get(), &c, 1) == 0);
      l.close();
    }
  }

  TEST_CASE("the descriptor is closed once, moves with the listener, and is given away by release") {
    listener a = rc::listen(listen_options());
    const int fd = a.fd();
    listener b = std::move(a);
    CHECK(a.fd() == -1);
    CHECK(b.fd() == fd);
    a.close();
    CHECK(is_open(fd));
    listener c = rc::listen(listen_options());
    const int replaced = c.fd();
    c = std::move(b);
    CHECK_FALSE(is_open(replaced));
    c.close();
    CHECK_FALSE(c);
    CHECK_FALSE(is_open(fd));
    const unique_fd other(::open("/dev/null", O_RDONLY));
    REQUIRE(other.get() == std::min(fd, replaced));  // the number lives again: another close would hit a stranger
    c.close();
    CHECK(is_open(other.get()));
    CHECK(c.port() > 0);

    listener d = rc::listen(listen_options());
    const unique_fd mine(d.release());
    d.close();
    CHECK(is_open(mine.get()));
  }

  TEST_CASE("a bound socket is adopted and listens, of either family") {
    for (std::string const host : {"127.0.0.1", "::1"}) {
      unique_fd raw = bound_socket(host.c_str());
      if (!raw) {
        MESSAGE("skipped: no " << host << " here");
        continue;
      }
      const int port = socket_address::local(raw.get()).port();
      const listener l = listener::adopt(raw.get(), port);
      CHECK(l.fd() == raw.release());
      CHECK(l.port() == port);
      CHECK(connected_to(l.address()));
    }
  }

  TEST_CASE("a listening socket is adopted with its waiting connections; ports 0 and -1 accept any") {
    for (const int expected : {0, -1}) {
      unique_fd raw = bound_socket();
      REQUIRE(::listen(raw.get(), 5) == 0);
      const unique_fd early = connected_to(socket_address::local(raw.get()));
      const listener l = listener::adopt(raw.release(), expected);
      CHECK(accepted_from(l));
    }
  }

  TEST_CASE("an adopted unix socket is served, and its file stays") {
    const scratch_directory dir;
    const socket_address at = socket_address::unix_path(dir.path + "/s").value();
    {
      unique_fd raw(::socket(AF_UNIX, SOCK_STREAM, 0));
      REQUIRE(::bind(raw.get(), at.data(), at.size()) == 0);
      const auto refused = listener::try_adopt(raw.get(), 29500);
      CHECK(has(failure_of(refused), dir.path + "/s"));
      CHECK(has(failure_of(refused), "29500"));
      const listener l = listener::adopt(raw.release());
      CHECK(l.url() == "unix:" + dir.path + "/s");
      CHECK(l.port() == 0);
      CHECK(connected_to(l.address()));
    }
    CHECK(dir.names().size() == 1);
  }

  TEST_CASE("an adopted socket bound to another port is refused with both numbers") {
    const unique_fd raw = bound_socket();
    const int port = socket_address::local(raw.get()).port(), other = port == 65535 ? 1 : port + 1;
    const auto r = listener::try_adopt(raw.get(), other);
    CHECK(r.code() == errc::invalid);
    CHECK(has(failure_of(r), std::to_string(port)));
    CHECK(has(failure_of(r), std::to_string(other)));
    CHECK(has(failure_of(listener::try_adopt(raw.get(), 65536)), "65536"));
    CHECK(has(failure_of(listener::try_adopt(raw.get(), -2)), "-2"));
  }

  TEST_CASE("adopting the wrong kind of descriptor says what it is, and leaves it open and as it was") {
    const scratch_directory dir;
    const listener l = rc::listen(listen_options());
    std::array<int, 2> pipe_ends{}, pair_ends{};
    REQUIRE(::pipe(pipe_ends.data()) == 0);
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair_ends.data()) == 0);
    const unique_fd pipe_end(pipe_ends[0]), pipe_other(pipe_ends[1]), pair_end(pair_ends[0]), pair_other(pair_ends[1]);
    const unique_fd file(::open((dir.path + "/f").c_str(), O_RDWR | O_CREAT, 0600)), directory(::open("/", O_RDONLY)),
        null(::open("/dev/null", O_RDWR)), terminal(::posix_openpt(O_RDWR | O_NOCTTY)), epoll(::epoll_create1(0)),
        udp = bound_socket("127.0.0.1", SOCK_DGRAM), local_dgram(::socket(AF_UNIX, SOCK_DGRAM, 0)),
        packets(::socket(AF_UNIX, SOCK_SEQPACKET, 0)), netlink(::socket(AF_NETLINK, SOCK_RAW, 0)), connected = connected_to(l.address()),
        accepted = accepted_from(l), unbound(::socket(AF_INET, SOCK_STREAM, 0)), unbound_local(::socket(AF_UNIX, SOCK_STREAM, 0));
    const std::vector<std::pair<int, std::string>> kinds{
        {file.get(), "a regular file"},
        {directory.get(), "a directory"},
        {pipe_end.get(), "a pipe"},
        {null.get(), "a character device"},
        {terminal.get(), "a terminal"},
        {epoll.get(), "no file and no socket"},
        {udp.get(), "a datagram socket (UDP)"},
        {local_dgram.get(), "a unix datagram socket"},
        {packets.get(), "a socket of type 5"},
        {netlink.get(), "a socket of address family 16"},
        {connected.get(), "a socket connected to " + l.address().to_string()},
        {accepted.get(), "a socket connected to 127.0.0.1:"},
        {pair_end.get(), "a socket connected to (unnamed unix socket)"},
        {unbound.get(), "a TCP socket that is not bound"},
        {unbound_local.get(), "a unix socket that is not bound"},
    };
    for (auto const& [fd, kind] : kinds) {
      CAPTURE(kind);
      REQUIRE(fd >= 0);
      const int flags = ::fcntl(fd, F_GETFL);
      const auto r = listener::try_adopt(fd);
      CHECK(r.code() == errc::invalid);
      CHECK(has(failure_of(r), "adopt descriptor " + std::to_string(fd) + ": invalid argument: it is " + kind));
      CHECK(is_open(fd));
      CHECK(::fcntl(fd, F_GETFL) == flags);
    }
    for (const int fd : {-1, 999999}) {
      CHECK(has(failure_of(listener::try_adopt(fd)), "descriptor " + std::to_string(fd) + ": invalid argument: it is not open"));
      CHECK_THROWS_AS((void)listener::adopt(fd), rc::error);
    }
  }

  TEST_CASE("adopting a socket that is still connecting says so") {
    const listener full = rc::listen(listen_options().backlog(1));
    std::vector<unique_fd> clients;
    for (int i = 0; i < 6; ++i) {  // past the backlog the system ignores who connects, for a second at least
      clients.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      (void)::connect(clients.back().get(), full.address().data(), full.address().size());
    }
    CHECK(has(failure_of(listener::try_adopt(clients.back().get())), "it is a socket that is connecting"));
    CHECK(is_open(clients.back().get()));
  }

  TEST_CASE("adopting a socket whose port another one came to listen on is address_in_use, and does not close it") {
    const int on = 1;
    std::array<unique_fd, 2> both;
    socket_address at = *socket_address::ip("127.0.0.1", 0);
    for (unique_fd& fd : both) {
      fd = unique_fd(::socket(AF_INET, SOCK_STREAM, 0));
      REQUIRE(::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
      REQUIRE(::bind(fd.get(), at.data(), at.size()) == 0);
      at = socket_address::local(fd.get());
    }
    const listener first = listener::adopt(both[0].release());
    const auto second = listener::try_adopt(both[1].get());
    CHECK(second.code() == errc::address_in_use);
    CHECK(has(failure_of(second), at.to_string()));
    CHECK(is_open(both[1].get()));
  }

  TEST_CASE("a unix socket is made with mode 0600 and its file goes with the listener") {
    const scratch_directory dir;
    const std::string path = dir.path + "/s";
    {
      const listener l = rc::listen(listen_options().unix_path(path));
      struct stat s{};
      REQUIRE(::stat(path.c_str(), &s) == 0);
      CHECK((s.st_mode & 07777) == 0600);
      CHECK(l.url() == "unix:" + path);
      CHECK(connected_to(l.address()));
      CHECK(accepted_from(l));
    }
    CHECK(dir.names().empty());
  }

  TEST_CASE("the file of a unix socket is removed only by its owner, and only if it is still the same") {
    const scratch_directory dir;
    const std::string path = dir.path + "/s";
    listener l = rc::listen(listen_options().unix_path(path));
    CHECK(in_child([&l] { return l.close(), std::string("closed"); }) == "closed");
    CHECK(dir.names().size() == 1);
    const int given = l.release();
    ::close(given);
    l.close();
    CHECK(dir.names().size() == 1);

    l = rc::listen(listen_options().unix_path(path));
    REQUIRE(::unlink(path.c_str()) == 0);
    unique_fd(::open(path.c_str(), O_RDWR | O_CREAT, 0600)).reset();
    l.close();
    CHECK(dir.names().size() == 1);
  }

  TEST_CASE("a stale unix socket file is replaced; one that is served, or is no socket, is not") {
    const scratch_directory dir;
    const std::string path = dir.path + "/s", file = dir.path + "/f";
    listener gone = rc::listen(listen_options().unix_path(path));
    unique_fd(gone.release()).reset();
    REQUIRE(dir.names().size() == 1);

    const listener l = rc::listen(listen_options().unix_path(path));
    const auto taken = rc::try_listen(listen_options().unix_path(path));
    CHECK(taken.code() == errc::address_in_use);
    CHECK(has(failure_of(taken), path));
    CHECK(has(failure_of(taken), "EADDRINUSE"));
    CHECK(has(failure_of(taken), "somebody listens there"));
    CHECK(connected_to(l.address()));

    unique_fd(::open(file.c_str(), O_RDWR | O_CREAT, 0600)).reset();
    CHECK(has(failure_of(rc::try_listen(listen_options().unix_path(file))), "not a socket"));
    CHECK(rc::try_listen(listen_options().unix_path(dir.path + "/none/s")).code() == errc::io);
    CHECK(dir.names().size() == 2);
  }

  TEST_CASE("of many that find one stale unix socket file, exactly one listens there") {
    for (int round = 0; round < 5; ++round) {
      const scratch_directory dir;
      const std::string path = dir.path + "/s";
      unique_fd(rc::listen(listen_options().unix_path(path)).release()).reset();
      std::array<int, 2> go{}, done{};
      REQUIRE(::pipe(go.data()) == 0);
      REQUIRE(::pipe(done.data()) == 0);
      constexpr int processes = 6;
      std::array<pid_t, processes> children{};
      for (pid_t& child : children) {
        child = ::fork();
        if (child != 0) continue;
        ::close(go[1]);
        char c = 0;
        (void)!::read(go[0], &c, 1);  // ends when the parent closes its end
        const auto l = rc::try_listen(listen_options().unix_path(path));
        c = l ? 'y' : 'n';
        (void)!::write(done[1], &c, 1);
        ::pause();
        ::_exit(0);
      }
      ::close(go[1]);
      std::string answers;
      while (answers.size() < processes) {
        char c = 0;
        if (::read(done[0], &c, 1) != 1) break;
        answers += c;
      }
      CHECK(std::count(answers.begin(), answers.end(), 'y') == 1);
      CHECK(connected_to(socket_address::unix_path(path).value()));
      for (const pid_t child : children) {
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
      }
      for (const int fd : {go[0], done[0], done[1]}) ::close(fd);
    }
  }

  TEST_CASE("a unix path that is too long is refused with both lengths and makes no file") {
    const scratch_directory dir;
    std::string path = dir.path + "/";
    path.resize(107, 'x');
    CHECK(rc::listen(listen_options().unix_path(path)).host() == path);
    path.resize(108, 'x');
    const auto r = rc::try_listen(listen_options().unix_path(path));
    CHECK(r.code() == errc::invalid);
    CHECK(has(failure_of(r), "108 bytes"));
    CHECK(has(failure_of(r), "at most 107"));
    CHECK(rc::try_listen(listen_options().unix_path(std::string("/tmp/a\0b", 8))).code() == errc::invalid);
    CHECK(dir.names().empty());
  }
}
