#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../catch.hpp"

// Catch2 2 names its expression three times over, and g++ 12 awaits it each time, even where it is not evaluated. So never a co_await in
// CHECK or REQUIRE; `want` may hold commas.
#define CHECK_AWAIT(got, ...)           \
  do {                                  \
    const auto awaited_ = got;          \
    CHECK(awaited_ == __VA_ARGS__);     \
  } while (false)
#define REQUIRE_AWAIT(got, ...)         \
  do {                                  \
    const auto awaited_ = got;          \
    REQUIRE(awaited_ == __VA_ARGS__);   \
  } while (false)

/// What the tests over real sockets share: a case on a fresh loop, a server beside it or in a child process, peers that speak bytes.
namespace net_test {

namespace rc = rollcall;
using namespace std::chrono_literals;
using std::string;
using std::string_view;

/// What this program has asked of operator new so far (net/server.cpp counts).
[[nodiscard]] std::uint64_t counted_allocations() noexcept;

/// Ends the program, with the name of the case, when a case hangs where no coroutine can be stopped any more.
class watchdog {
 public:
  explicit watchdog(string name, std::chrono::seconds limit = 120s) : name_(std::move(name)), thread_([this, limit] { watch(limit); }) {}
  watchdog(watchdog const&) = delete;
  watchdog& operator=(watchdog const&) = delete;
  ~watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_all();
    thread_.join();
  }

 private:
  void watch(std::chrono::seconds limit) {
    std::unique_lock lock(mutex_);
    if (over_.wait_for(lock, limit, [this] { return done_; })) return;
    std::fprintf(stderr, "\"%s\" hangs: giving up\n", name_.c_str());
    std::abort();
  }
  string name_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

[[nodiscard]] inline string current_case() {
#ifdef CATCH_VERSION_MAJOR
  return Catch::getResultCapture().getCurrentTestName();
#else
  return "a test case";
#endif
}

/// Lets the loop turn until nothing of ours is left on it; then checks that nothing is.
inline void expect_nothing_left(rc::loop& l) {
  const std::uint64_t until = uv_hrtime() + 5'000'000'000U;
  while ((l.live_handles() > 0 || l.live_frames() > 0) && uv_hrtime() < until) {
    if (uv_run(l.native(), UV_RUN_NOWAIT) == 0) break;
    std::this_thread::yield();
  }
  CHECK(l.live_handles() == 0);
  CHECK(l.live_frames() == 0);
}

/// Runs `f(loop)`, a task, on a fresh loop to its end, for `limit` at the most; nothing may be left of it then.
template <class F>
void on_loop(F f, std::chrono::seconds limit = 60s) {
  const watchdog dog(current_case(), limit + 60s);
  rc::loop l;
  std::exception_ptr thrown;
  try {
    rc::sync_wait(l, rc::with_deadline(f(l), limit));
  } catch (...) {
    thrown = std::current_exception();
  }
  expect_nothing_left(l);
  if (thrown) std::rethrow_exception(thrown);
}

/// Whether local_server is serve() on the loop of the test, or a legacy_server: the same cases run with both.
[[nodiscard]] inline bool tests_legacy() {
  char const* const use_libuv = std::getenv("ROLLCALL_TEST_USE_LIBUV");
  return use_libuv && string_view(use_libuv) == "0";
}

/// A server on port 0 beside the test. stop() before the end of the case; a case that fails drops it as it is.
class local_server {
 public:
  explicit local_server(rc::loop& l, rc::serve_options o = {}, rc::listen_options at = {}) : scope_(l) {
    rc::listener listening = rc::listen(at);
    port_ = listening.port();
    if (tests_legacy()) {
      legacy_.emplace(std::move(listening), o, [&l, door = l.post_handle()](rc::log_level level, string_view line) {
        door.post([&l, level, text = string(line)] { l.core().log(level, text); });
      });
      legacy_->start();
    } else {
      scope_.spawn(rc::serve(l, std::move(listening), o.stats(&stats_)));
    }
  }
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] bool running() const { return scope_.size() > 0 || (legacy_ && legacy_->running()); }
  rc::task<> stop() {
    if (legacy_ && legacy_->running()) {  // stop() blocks, and its peers may be on this loop
      std::atomic<bool> over{false};
      std::thread stopper([this, &over] {
        legacy_->stop();
        over = true;
      });
      while (!over) co_await rc::sleep_for(1ms);
      stopper.join();
    }
    scope_.request_stop();
    co_await scope_.join();
  }
  [[nodiscard]] rc::server_stats stats() const { return legacy_ ? legacy_->stats() : stats_; }

 private:
  int port_ = 0;
  rc::server_stats stats_;
  std::optional<rc::legacy_server> legacy_;
  rc::scope scope_;
};

inline rc::task<rc::tcp_store> client_of(rc::loop& l, int port, rc::client_options o = {}) {
  co_return co_await rc::tcp_store::connect(l, "127.0.0.1", port, 10s, o);
}

/// Waits until `holds()`, looking every millisecond; the case's own limit bounds it.
template <class P>
rc::task<> eventually(P holds) {
  while (!holds()) co_await rc::sleep_for(1ms);
}

/// The same in plain code: whether `holds()` came to hold within 20 s.
template <class P>
[[nodiscard]] bool soon(P holds) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

/// The outcome of an operation or a task that must fail: its failure. Fails the case where it does not.
template <class T>
rc::failure failure_of(rc::result<T> const& r) {
  if (r) FAIL("succeeded, though it must not");
  return r.error();
}

[[nodiscard]] inline bool contains(string_view text, string_view part) { return text.find(part) != text.npos; }

// ---- bytes, spelled by hand: the tests do not trust the library's encoder ----

template <class N>
[[nodiscard]] string little(N n) {
  string s(sizeof n, '\0');
  std::memcpy(s.data(), &n, sizeof n);
  return s;
}
[[nodiscard]] inline string u32(std::uint32_t n) { return little(n); }
[[nodiscard]] inline string u64(std::uint64_t n) { return little(n); }
[[nodiscard]] inline string i64(std::int64_t n) { return little(n); }
[[nodiscard]] inline string str(string_view s) { return u64(s.size()) + string(s); }
[[nodiscard]] inline string op(int code) { return string(1, static_cast<char>(code)); }

/// Requests.
namespace req {
[[nodiscard]] inline string validate() { return op(0) + u32(0x3C85F7CE); }
[[nodiscard]] inline string set(string_view k, string_view v) { return op(1) + str(k) + str(v); }
[[nodiscard]] inline string get(string_view k) { return op(3) + str(k); }
[[nodiscard]] inline string add(string_view k, std::int64_t n) { return op(4) + str(k) + i64(n); }
[[nodiscard]] inline string counted(int code, rc::keys keys) {
  string s = op(code) + u64(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) s += str(keys[i]);
  return s;
}
[[nodiscard]] inline string check(rc::keys keys) { return counted(5, keys); }
[[nodiscard]] inline string wait(rc::keys keys) { return counted(6, keys); }
[[nodiscard]] inline string cancel_wait() { return op(12); }
[[nodiscard]] inline string ping(std::uint32_t nonce) { return op(13) + u32(nonce); }
}  // namespace req

// ---- a peer in the loop of the test ----

class raw_peer {
 public:
  explicit raw_peer(rc::net::socket s) : socket(std::move(s)) {}
  static rc::task<raw_peer> connect(rc::loop& l, int port) {
    rc::net::socket s = co_await rc::net::connect(l, rc::socket_address::ip("127.0.0.1", port).value());
    co_return raw_peer(std::move(s));
  }
  /// Connected and past VALIDATE and PING.
  static rc::task<raw_peer> open(rc::loop& l, int port) {
    raw_peer p = co_await connect(l, port);
    co_await p.send(req::validate() + req::ping(7));
    const string answer = co_await p.read(4);
    REQUIRE(answer == u32(7));
    co_return p;
  }
  rc::task<> send(string bytes) { co_await socket.write(bytes); }
  /// Exactly `n` bytes; fewer where the peer ends or resets before.
  rc::task<string> read(std::size_t n) {
    while (here_.size() < n) {
      rc::result<string_view> more = co_await rc::as_result(socket.read_some());
      if (!more || more->empty()) break;
      here_ += *more;
    }
    const string taken = here_.substr(0, n);
    here_.erase(0, taken.size());
    co_return taken;
  }
  rc::task<string> read_to_end() { co_return co_await read(here_.max_size()); }
  /// Sends a request and gives the `n` bytes of its reply.
  rc::task<string> ask(string bytes, std::size_t n) {
    co_await send(std::move(bytes));
    co_return co_await read(n);
  }
  /// Whether the other side ends the connection, however, without another byte.
  rc::task<bool> ended() {
    const string rest = co_await read(1);
    co_return rest.empty();
  }
  rc::net::socket socket;

 private:
  string here_;
};

/// A peer that answers as its script says: `f(socket)` for every connection it accepts.
class scripted_server {
 public:
  using script = std::function<rc::task<>(rc::net::socket)>;
  scripted_server(rc::loop& l, script f) : acceptor_(l, rc::listen(rc::listen_options{})), script_(std::move(f)), scope_(l) {
    scope_.spawn(accept_all());
  }
  [[nodiscard]] int port() const { return acceptor_.at().port(); }
  [[nodiscard]] int accepted() const { return accepted_; }
  rc::task<> stop() {
    scope_.request_stop();
    co_await scope_.join();
  }

 private:
  rc::task<> accept_all() {
    for (;;) {
      rc::net::socket s = co_await acceptor_.accept();
      ++accepted_;
      scope_.spawn(one(std::move(s)));
    }
  }
  rc::task<> one(rc::net::socket s) {
    const rc::result<void> over = co_await rc::as_result(script_(std::move(s)));
    static_cast<void>(over);  // the peer may go at any time
  }
  rc::net::acceptor acceptor_;
  script script_;
  int accepted_ = 0;
  rc::scope scope_;
};

// ---- plain sockets, for threads and for what the loop must not see ----

[[nodiscard]] inline sockaddr_in loopback(int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}
/// A connected blocking socket; reads and writes give up after 20 s. receive_buffer 0: the system's choice.
[[nodiscard]] inline rc::unique_fd plain_connect(int port, int receive_buffer = 0) {
  rc::unique_fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{20, 0};
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (receive_buffer > 0) setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  const sockaddr_in to = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<sockaddr const*>(&to), sizeof to) != 0) fd.reset();
  return fd;
}
inline bool send_all(int fd, string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}
/// Exactly n bytes; fewer at the end, a reset or a time-out.
[[nodiscard]] inline string receive(int fd, std::size_t n) {
  string s(n, '\0');
  std::size_t got = 0;
  while (got < n) {
    const ssize_t r = ::recv(fd, s.data() + got, n - got, 0);
    if (r <= 0) break;
    got += static_cast<std::size_t>(r);
  }
  s.resize(got);
  return s;
}
/// Closes with a reset instead of an orderly end.
inline void reset_connection(rc::unique_fd fd) {
  const linger hard{1, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
}

/// A port that nobody serves, now.
[[nodiscard]] inline int unused_port() { return rc::listen(rc::listen_options{}).port(); }

/// Connects to a listener with a small backlog that nobody accepts from, until the kernel answers no more.
[[nodiscard]] inline std::vector<rc::unique_fd> fill_backlog(int port) {
  const sockaddr_in at = loopback(port);
  std::vector<rc::unique_fd> fillers;
  for (int i = 0; i < 8; ++i) {
    rc::unique_fd filler(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    static_cast<void>(::connect(filler.get(), reinterpret_cast<sockaddr const*>(&at), sizeof at));
    pollfd connected{filler.get(), POLLOUT, 0};
    const bool full = ::poll(&connected, 1, 100) == 0;
    fillers.push_back(std::move(filler));
    if (full) break;
  }
  return fillers;
}

/// A listener whose backlog is full, so that further connects to it get no answer at all: a black hole at hand.
class black_hole {
 public:
  black_hole() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = loopback(0);
    socklen_t size = sizeof at;
    if (::bind(fd_.get(), reinterpret_cast<sockaddr const*>(&at), size) != 0 || ::listen(fd_.get(), 0) != 0) std::abort();
    getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    fillers_ = fill_backlog(port_);
  }
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] rc::socket_address address() const { return rc::socket_address::ip("127.0.0.1", port_).value(); }

 private:
  rc::unique_fd fd_;
  int port_ = 0;
  std::vector<rc::unique_fd> fillers_;
};

/// A folder of the case's own, gone with it.
class scratch {
 public:
  scratch() {
    char name[] = "/tmp/rollcall-test-XXXXXX";
    if (!mkdtemp(name)) FAIL("no temporary folder");
    path = name;
  }
  scratch(scratch const&) = delete;
  scratch& operator=(scratch const&) = delete;
  ~scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  string path;
};

/// While it lives this process can open `left` more descriptors.
class few_descriptors {
 public:
  explicit few_descriptors(int left) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit tight = before_;
    tight.rlim_cur = 0;
    for (int free = left;; ++tight.rlim_cur)
      if (::fcntl(static_cast<int>(tight.rlim_cur), F_GETFD) < 0 && free-- == 0) break;
    if (setrlimit(RLIMIT_NOFILE, &tight) != 0) std::abort();
  }
  few_descriptors(few_descriptors const&) = delete;
  few_descriptors& operator=(few_descriptors const&) = delete;
  ~few_descriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// ---- child processes ----

/// Where an example program is, or nothing: then the case warns and is over.
[[nodiscard]] inline std::optional<string> example(string_view name) {
  char const* build = std::getenv("ROLLCALL_BUILD");
  if (!build || !*build) return std::nullopt;
  string path = string(build) + "/examples/" + string(name);
  if (::access(path.c_str(), X_OK) != 0) return std::nullopt;
  return path;
}
#define NEEDS_EXAMPLE(variable, name)                                                            \
  const std::optional<std::string> variable##_found = ::net_test::example(name);                 \
  if (!variable##_found) {                                                                       \
    WARN("skipped: no " name " under $ROLLCALL_BUILD/examples");                                 \
    return;                                                                                      \
  }                                                                                              \
  std::string const& variable = *variable##_found

/// Stops a process; it has stopped when this returns, with all of its threads. kill() alone is over before that.
inline void freeze(int pid) {
  ::kill(pid, SIGSTOP);
  const auto runs = [](std::filesystem::path const& task) {
    std::ifstream stat(task / "stat");
    string text;
    std::getline(stat, text);
    const std::size_t end = text.rfind(')');
    return end != text.npos && end + 2 < text.size() && text[end + 2] != 'T' && text[end + 2] != 'Z';
  };
  const auto until = std::chrono::steady_clock::now() + 20s;
  for (bool any = true; any && std::chrono::steady_clock::now() < until;) {
    any = false;
    std::error_code gone;
    for (auto const& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) any = any || runs(task.path());
  }
}

/// A child whose output is read by plain blocking calls, all with a limit. Killed and reaped at the end.
class child {
 public:
  explicit child(std::vector<string> command, bool with_input = false, std::vector<string> extra_environment = {}) {
    int out[2], err[2], in[2] = {-1, -1};
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 || (with_input && pipe2(in, O_CLOEXEC) != 0)) std::abort();
    out_ = rc::unique_fd(out[0]);
    err_ = rc::unique_fd(err[0]);
    const rc::unique_fd out_end(out[1]), err_end(err[1]), in_end(in[0]);
    if (with_input) in_ = rc::unique_fd(in[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (with_input) {
      posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    } else {
      posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    }
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    std::vector<char*> argv, envp;
    for (string& a : command) argv.push_back(a.data());
    argv.push_back(nullptr);
    for (string& e : extra_environment) envp.push_back(e.data());
    for (char** e = environ; *e; ++e) envp.push_back(*e);
    envp.push_back(nullptr);
    const int status = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data());
    posix_spawn_file_actions_destroy(&actions);
    if (status != 0) {
      pid_ = 0;
      FAIL("cannot start " << command[0] << ": " << std::strerror(status));
    }
  }
  child(child const&) = delete;
  child& operator=(child const&) = delete;
  ~child() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] int pid() const { return pid_; }
  void kill(int signal) const { signal == SIGSTOP ? freeze(pid_) : static_cast<void>(::kill(pid_, signal)); }
  void close_input() { in_.reset(); }

  /// The next line of its standard output, without the newline; what there is where it ends or `limit` passes.
  string line(std::chrono::milliseconds limit = 20s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    for (;;) {
      if (const std::size_t end = said_.find('\n'); end != said_.npos) {
        string l = said_.substr(0, end);
        said_.erase(0, end + 1);
        return l;
      }
      if (!more(out_, said_, until)) return std::exchange(said_, {});
    }
  }
  /// Everything it still says, and its end; kills it after `limit`. Gives the shell's code: the exit status, or 128 + signal.
  int finish(std::chrono::milliseconds limit = 20s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (more_of_both(until)) {
    }
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= until) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, &status, 0);
        break;
      }
      std::this_thread::sleep_for(1ms);
    }
    pid_ = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  /// Whether it says `part`, on either output, before it ends or `limit` passes. What it has said stays there.
  [[nodiscard]] bool says(string_view part, std::chrono::milliseconds limit = 60s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    const auto has = [&](string const& text) { return text.find(part) != text.npos; };
    while (!has(said_) && !has(complaints_))
      if (!more_of_both(until)) return false;
    return true;
  }
  [[nodiscard]] string const& output() const { return said_; }
  [[nodiscard]] string const& errors() const { return complaints_; }

 private:
  using point = std::chrono::steady_clock::time_point;
  static int left(point until) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    return ms > 0 ? static_cast<int>(ms) : 0;
  }
  static bool take(rc::unique_fd& fd, string& into) {
    char bytes[16384];
    const ssize_t n = ::read(fd.get(), bytes, sizeof bytes);
    if (n <= 0) {
      fd.reset();
      return false;
    }
    into.append(bytes, static_cast<std::size_t>(n));
    return true;
  }
  static bool more(rc::unique_fd& fd, string& into, point until) {
    pollfd p{fd.get(), POLLIN, 0};
    return fd && ::poll(&p, 1, left(until)) == 1 && take(fd, into);
  }
  bool more_of_both(point until) {
    pollfd p[2] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};  // poll leaves out those that are closed (-1)
    if ((!out_ && !err_) || ::poll(p, 2, left(until)) <= 0) return false;
    if (p[0].revents != 0) take(out_, said_);
    if (p[1].revents != 0) take(err_, complaints_);
    return true;
  }
  int pid_ = 0;
  rc::unique_fd out_, err_, in_;
  string said_, complaints_;
};

/// The program rollcall-server (or one that says "ready HOST:PORT" like it) in a process of its own.
class server_process : public child {
 public:
  explicit server_process(string const& program, std::vector<string> options = {}) : child(command(program, std::move(options))) {
    const string ready = line();
    if (const std::size_t colon = ready.rfind(':'); ready.starts_with("ready ") && colon != ready.npos) port_ = std::atoi(ready.c_str() + colon + 1);
    if (port_ == 0) FAIL("no ready line: '" << ready << "'");
  }
  [[nodiscard]] int port() const { return port_; }

 private:
  static std::vector<string> command(string const& program, std::vector<string> options) {
    std::vector<string> all{program, "--port", "0"};
    for (string& o : options) all.push_back(std::move(o));
    return all;
  }
  int port_ = 0;
};

[[nodiscard]] inline bool process_exists(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  string text;
  std::getline(stat, text);
  const std::size_t end = text.rfind(')');
  return end != text.npos && end + 2 < text.size() && text[end + 2] != 'Z';
}
/// Fails the case where one of these processes is still there after 20 s.
inline void gone_at_last(std::vector<int> const& pids) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  for (const int pid : pids) {
    INFO("process " << pid);
    while (process_exists(pid) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    CHECK_FALSE(process_exists(pid));
  }
}

[[nodiscard]] inline std::vector<string> lines_of(string const& text) {
  std::vector<string> lines;
  std::istringstream in(text);
  for (string l; std::getline(in, l);) lines.push_back(l);
  return lines;
}
/// How many lines of `text` hold `part`.
[[nodiscard]] inline std::size_t lines_with(string const& text, string_view part) {
  const std::vector<string> lines = lines_of(text);
  return static_cast<std::size_t>(std::count_if(lines.begin(), lines.end(), [&](string const& l) { return contains(l, part); }));
}
/// Whether nobody but rollcall-run has said it: no rank, and no library in one.
[[nodiscard]] inline bool launcher_only(string const& text) {
  for (string const& line : lines_of(text))
    if (!line.starts_with("rollcall-run: ")) return false;
  return true;
}

}  // namespace net_test
