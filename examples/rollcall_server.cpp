// rollcall-server: serves a store until SIGINT, SIGTERM, or (with --until-eof) the end of its standard input.
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <string>
#include <string_view>

#include "options.hpp"
#include "rollcall_server/activation.hpp"

namespace rc = rollcall;

namespace {

/// Programs log to standard error; the library is silent.
void log_to_stderr(rc::log_level, std::string_view line) { fmt::print(stderr, "rollcall-server: {}\n", line); }

/// The soft limit of descriptors becomes the hard one, or `wanted`.
void set_file_limit(rlim_t wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = wanted > 0 ? std::min(wanted, limit.rlim_max) : limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

sigset_t ends() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}
/// Keeps them until they are asked for.
void hold_signals() {
  const sigset_t set = ends();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}
void release_signals() {
  const sigset_t set = ends();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

/// Whether standard input has its end behind it: it is a file, a device such as /dev/null or /dev/zero, or something that has no end.
bool input_is_over() {
  struct stat input;
  if (fstat(STDIN_FILENO, &input) != 0) return true;
  return !S_ISFIFO(input.st_mode) && !S_ISSOCK(input.st_mode) && isatty(STDIN_FILENO) == 0;
}

/// "ready 127.0.0.1:29500 libuv": who waits for it may connect, or send a signal, from now on.
class ready_line {
 public:
  ready_line(rc::listener const& at, std::string_view back_end)
      : text_(fmt::format("ready {}{} {}\n", at.address().is_inet() ? "" : "unix:", at.address().to_string(), back_end)) {}
  /// A server that cannot take one client is not ready: throws.
  void print() const {
    if (const int why = rc::lacks_descriptors(1); why != 0)
      throw rc::error(rc::errc::io, "serve", rc::errno_text(why) + "; none is left for a client (--max-files)");
    fmt::print("{}", text_);
    std::fflush(stdout);
  }

 private:
  std::string text_;
};

rc::task<> stop_at_signal(rc::signal_watcher& signals, rc::scope& everything) {
  co_await signals.next();
  everything.request_stop();
}

rc::task<> stop_at_eof(rc::loop& loop, rc::scope& everything) {
  if (!input_is_over()) {
    rc::line_reader input(loop, rc::unique_fd(STDIN_FILENO));
    while (co_await input.next_line()) {
    }
  }
  everything.request_stop();
}

/// Says that it serves when it does; stopped before that, where it cannot.
rc::task<> announce(rc::loop& loop, rc::scope& everything, ready_line line, bool until_eof) {
  co_await rc::sleep_for(std::chrono::seconds(0));
  line.print();
  if (until_eof) everything.spawn(stop_at_eof(loop, everything));
}

rc::task<> serve_on_loop(rc::loop& loop, rc::listener at, bool until_eof) {
  rc::signal_watcher signals(loop, SIGINT, SIGTERM);
  release_signals();
  ready_line line(at, "libuv");
  rc::scope everything(loop);
  everything.spawn(stop_at_signal(signals, everything));
  everything.spawn(rc::serve(loop, std::move(at)));
  everything.spawn(announce(loop, everything, std::move(line), until_eof));
  co_await everything.join();
}

/// Whether standard input, which has something to tell, goes on.
bool input_goes_on() {
  char ignored[4096];
  const ssize_t n = read(STDIN_FILENO, ignored, sizeof ignored);
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

/// The same without a loop: the server has its thread, and this one waits for a reason to end.
void serve_blocking(rc::listener at, bool until_eof) {
  hold_signals();
  const sigset_t set = ends();
  const rc::unique_fd signals(signalfd(-1, &set, SFD_CLOEXEC));
  if (!signals) throw rc::error(rc::errc::io, "watch signals", "signalfd: " + rc::errno_text(errno));
  const ready_line line(at, "legacy");
  rc::legacy_server server(std::move(at), {}, log_to_stderr);
  server.start();
  line.print();
  if (until_eof && input_is_over()) return;
  pollfd reasons[2] = {{signals.get(), POLLIN, 0}, {until_eof ? STDIN_FILENO : -1, POLLIN, 0}};
  do {
    reasons[0].revents = reasons[1].revents = 0;
    static_cast<void>(poll(reasons, 2, -1));
  } while (reasons[0].revents == 0 && (reasons[1].revents == 0 || input_goes_on()));
}

}  // namespace

int main(int argc, char** argv) {
  rc::fill_standard_descriptors();
  CLI::App app("Serves a key-value store that rollcall and PyTorch (TCPStore) clients can use.");
  std::string host = "127.0.0.1";
  int port = 29500;
  std::string unix_path;
  std::string back_end;
  std::optional<int> listen_fd;
  rlim_t max_files = 0;
  bool until_eof = false;
  CLI::Option* const given_host = app.add_option("--host", host, "address to listen on; '*' for all interfaces")->capture_default_str();
  CLI::Option* const given_port =
      app.add_option("--port", port, "port to listen on; 0 lets the system choose")->capture_default_str()->check(CLI::Range(0, 65535));
  CLI::Option* const given_path = app.add_option("--unix", unix_path, "path of a unix socket to listen on instead")
                                      ->type_name("PATH")
                                      ->excludes(given_host)
                                      ->excludes(given_port);
  app.add_option("--listen-fd", listen_fd, "descriptor of a bound or listening socket to serve on instead; its port must be --port, if given")
      ->check(options::at_least(0))
      ->type_name("N")
      ->excludes(given_host)
      ->excludes(given_path);
  app.add_option("--use-libuv", back_end, "1: the libuv back end; 0: the blocking one, legacy. USE_LIBUV unless given, else 1")
      ->check([](std::string const& s) { return rc::flag_value(s, "--use-libuv").has_value() ? "" : rc::flag_value(s, "--use-libuv").error().detail(); })
      ->type_name("0|1");
  app.add_option("--max-files", max_files, "limit of open descriptors; the hard limit unless given")->check(options::at_least(1));
  app.add_flag("--until-eof", until_eof, "end when standard input ends");
  app.footer("Where systemd has activated it (LISTEN_FDS=1), it serves on that socket.");
  if (const std::optional<int> over = options::parse(app, argc, argv)) return *over;

  set_file_limit(max_files);
  try {
    std::optional<bool> argument;
    if (!back_end.empty()) argument = rc::flag_value(back_end, "--use-libuv").value();
    const bool use_libuv = rc::choose_use_libuv(argument).value();
    if (!listen_fd && (listen_fd = server::activation())) {
      for (CLI::Option const* other : {given_host, given_path}) {
        if (other->count() == 0) continue;
        fmt::print(stderr, "rollcall-server: LISTEN_FDS and {} both say where to listen: socket activation goes without it\n", other->get_name());
        return options::usage_error;
      }
    }
    rc::listener at;
    if (listen_fd) {
      at = rc::listener::adopt(*listen_fd, given_port->count() > 0 ? port : -1);
    } else {
      if (!unix_path.empty()) hold_signals();  // from here on there is a file to be removed
      at = rc::listen(rc::listen_options{}.host(host).port(port).unix_path(unix_path));
    }
    if (!use_libuv) {
      serve_blocking(std::move(at), until_eof);
      return 0;
    }
    rc::loop loop;
    loop.log_to(log_to_stderr);
    rc::sync_wait(loop, serve_on_loop(loop, std::move(at), until_eof));
  } catch (std::exception const& e) {
    fmt::print(stderr, "rollcall-server: {}\n", e.what());
    return 1;
  }
  return 0;
}
