// rollcall-server: serves a store until SIGINT, SIGTERM, or (with --until-eof) the end of its standard input.
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <string>
#include <string_view>
#include <system_error>

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

rc::task<> stop_at_signal(rc::loop& loop, rc::scope& everything) {
  rc::signal_watcher signals(loop, SIGINT, SIGTERM);
  co_await signals.next();
  everything.request_stop();
}

rc::task<> stop_at_eof(rc::loop& loop, rc::scope& everything) {
  // A file or /dev/null has its end behind it; a loop cannot watch one.
  const uv_handle_type input_is = uv_guess_handle(STDIN_FILENO);
  if (input_is == UV_FILE || input_is == UV_UNKNOWN_HANDLE) {
    everything.request_stop();
    co_return;
  }
  rc::line_reader input(loop, rc::unique_fd(STDIN_FILENO));
  while (co_await input.next_line()) {
  }
  everything.request_stop();
}

/// "ready 127.0.0.1:29500 libuv": who waits for it may connect from now on.
void announce(rc::listener const& at, std::string_view back_end) {
  fmt::print("ready {}{} {}\n", at.address().is_inet() ? "" : "unix:", at.address().to_string(), back_end);
  std::fflush(stdout);
}

rc::task<> server(rc::loop& loop, rc::listener at, bool until_eof) {
  announce(at, "libuv");
  rc::scope everything(loop);
  everything.spawn(stop_at_signal(loop, everything));
  if (until_eof) everything.spawn(stop_at_eof(loop, everything));
  everything.spawn(rc::serve(loop, std::move(at)));
  co_await everything.join();
}

/// The same without a loop: the server has its thread, and this one waits for a reason to end.
void serve_blocking(rc::listener at, bool until_eof) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  const rc::unique_fd signals(signalfd(-1, &ends, SFD_CLOEXEC));
  if (!signals) throw std::system_error(errno, std::generic_category(), "signalfd");
  announce(at, "legacy");
  rc::legacy_server server(std::move(at), {}, log_to_stderr);
  server.start();
  pollfd reasons[2] = {{signals.get(), POLLIN, 0}, {until_eof ? STDIN_FILENO : -1, POLLIN, 0}};
  char ignored[4096];
  while (poll(reasons, 2, -1) < 0 || (reasons[0].revents == 0 && read(STDIN_FILENO, ignored, sizeof ignored) > 0)) {
  }
}

/// One number from the environment variable `name`; -1 where it holds none.
long number_of(char const* name) {
  char const* const text = std::getenv(name);
  long value = -1;
  if (text) std::from_chars(text, text + std::string_view(text).size(), value);
  return value;
}
/// The socket that systemd has activated this process with, if it has (sd_listen_fds(3)).
std::optional<int> activation() {
  constexpr int first = 3;
  if (number_of("LISTEN_PID") != getpid()) return std::nullopt;
  if (const long count = number_of("LISTEN_FDS"); count != 1)
    throw rc::error(rc::errc::invalid, "socket activation", fmt::format("LISTEN_FDS says {} sockets, where one is needed", count));
  return first;
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
  app.add_option("--host", host, "address to listen on; '*' for all interfaces")->capture_default_str();
  const CLI::Option* given_port =
      app.add_option("--port", port, "port to listen on; 0 lets the system choose")->capture_default_str()->check(CLI::Range(0, 65535));
  app.add_option("--unix", unix_path, "path of a unix socket to listen on instead")->type_name("PATH");
  app.add_option("--listen-fd", listen_fd, "descriptor of a bound or listening socket to serve on instead; its port must be --port, if given")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  app.add_option("--use-libuv", back_end, "1: the libuv back end; 0: the blocking one, legacy. USE_LIBUV unless given, else 1")
      ->check([](std::string const& s) { return rc::flag_value(s, "--use-libuv").has_value() ? "" : rc::flag_value(s, "--use-libuv").error().detail(); })
      ->type_name("0|1");
  app.add_option("--max-files", max_files, "limit of open descriptors; the hard limit unless given")->check(CLI::PositiveNumber);
  app.add_flag("--until-eof", until_eof, "end when standard input ends");
  app.footer("Where systemd has activated it (LISTEN_FDS=1), it serves on that socket.");
  CLI11_PARSE(app, argc, argv);

  set_file_limit(max_files);
  try {
    std::optional<bool> argument;
    if (!back_end.empty()) argument = rc::flag_value(back_end, "--use-libuv").value();
    const bool use_libuv = rc::choose_use_libuv(argument).value();
    if (!listen_fd) listen_fd = activation();
    rc::listener at;
    if (listen_fd) {
      at = rc::listener::adopt(*listen_fd, given_port->count() > 0 ? port : -1);
    } else {
      at = rc::listen(rc::listen_options{}.host(host).port(port).unix_path(unix_path));
    }
    if (!use_libuv) {
      serve_blocking(std::move(at), until_eof);
      return 0;
    }
    rc::loop loop;
    loop.log_to(log_to_stderr);
    rc::sync_wait(loop, server(loop, std::move(at), until_eof));
  } catch (std::exception const& e) {
    fmt::print(stderr, "rollcall-server: {}\n", e.what());
    return 1;
  }
  return 0;
}
