// rollcall-server: serves a store until SIGINT, SIGTERM, or (with --until-eof) the end of its standard input.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <fmt/format.h>
#include <rollcall/rollcall.hpp>

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

rc::task<> server(rc::loop& loop, rc::listener at, bool until_eof) {
  fmt::print("ready {}\n", at.address().to_string());
  std::fflush(stdout);
  rc::scope everything(loop);
  everything.spawn(stop_at_signal(loop, everything));
  if (until_eof) everything.spawn(stop_at_eof(loop, everything));
  everything.spawn(rc::serve(loop, std::move(at)));
  co_await everything.join();
}

}  // namespace

int main(int argc, char** argv) {
  rc::fill_standard_descriptors();
  CLI::App app("Serves a key-value store that rollcall and PyTorch (TCPStore) clients can use.");
  std::string host = "127.0.0.1";
  int port = 29500;
  rlim_t max_files = 0;
  bool until_eof = false;
  app.add_option("--host", host, "address to listen on; '*' for all interfaces")->capture_default_str();
  app.add_option("--port", port, "port to listen on; 0 lets the system choose")->capture_default_str()->check(CLI::Range(0, 65535));
  app.add_option("--max-files", max_files, "limit of open descriptors; the hard limit unless given")->check(CLI::PositiveNumber);
  app.add_flag("--until-eof", until_eof, "end when standard input ends");
  CLI11_PARSE(app, argc, argv);

  set_file_limit(max_files);
  try {
    rc::listener at = rc::listen(rc::listen_options{}.host(host).port(port));
    rc::loop loop;
    loop.log_to(log_to_stderr);
    rc::sync_wait(loop, server(loop, std::move(at), until_eof));
  } catch (std::exception const& e) {
    fmt::print(stderr, "rollcall-server: {}\n", e.what());
    return 1;
  }
  return 0;
}
