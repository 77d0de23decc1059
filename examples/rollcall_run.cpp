// rollcall-run: starts the ranks of a job, on this machine or as one launcher of several, and sees them to their end.
//
// The launcher binds the port itself and hands the listening descriptor to rank 0, so no other process can take the port in between.
// Its parts are in rollcall_run/: what it is told (settings), the ranks (attempt), where their lines go (output), the store of
// --host-store (hosted_store), and what ends all of it, however the launcher ends (guard).
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <rollcall/core/use_libuv.hpp>
#include <rollcall/net/signal.hpp>
#include <rollcall/posix/fd.hpp>
#include <rollcall/posix/listener.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/timer.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "rollcall_run/attempt.hpp"
#include "rollcall_run/guard.hpp"
#include "rollcall_run/hosted_store.hpp"
#include "rollcall_run/output.hpp"
#include "rollcall_run/settings.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;
using run::say;

namespace {

constexpr int usage_error = 2;

// 0 if execvp can start `program`, else the errno it would give. Asked once, before N ranks would each say the same.
int why_not_executable(std::string const& program) {
  std::vector<std::string> candidates;
  if (program.find('/') != program.npos) {
    candidates.push_back(program);
  } else {
    char const* path = std::getenv("PATH");
    for (std::string const& folder : CLI::detail::split(path ? path : "/bin:/usr/bin", ':'))
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
  }
  int why = ENOENT;
  for (std::string const& c : candidates) {
    struct stat file;
    if (stat(c.c_str(), &file) != 0) continue;
    if (S_ISREG(file.st_mode) && access(c.c_str(), X_OK) == 0) return 0;
    why = EACCES;
  }
  return why;
}

/// The port of the job, which node 0's launcher owns.
rc::listener bind_port(run::settings const& s) {
  rc::listener at = rc::listen(rc::listen_options{}.host(s.master_addr).port(s.master_port));
  if (s.nodes == 1 || !at.address().is_loopback()) return at;
  // Debian's /etc/hosts gives a machine's own name 127.0.1.1. A literal says what it means.
  if (!rc::socket_address::looks_like_ip(s.master_addr) && s.master_addr != "localhost")
    throw std::runtime_error(fmt::format(
        "--master-addr {} is {} on this machine, where other nodes cannot reach it: give the address itself", s.master_addr, at.host()));
  say(fmt::format("only this machine can reach --master-addr {}: all {} nodes must be on it", s.master_addr, s.nodes));
  return at;
}

/// The same listening socket once more.
rc::listener another(rc::listener const& at) {
  rc::unique_fd fd(fcntl(at.fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd) throw std::system_error(errno, std::generic_category(), "cannot share the listening socket");
  rc::listener copy = rc::listener::adopt(fd.get(), at.port());
  static_cast<void>(fd.release());
  return copy;
}

/// Closes the connections that wait for a server that is gone: the next one must not hear what was meant for it.
void turn_away_waiting(rc::listener const& at) {
  const rc::listener queue = another(at);  // does not block, whatever rank 0 did to the socket it shared
  for (;;) {
    const rc::unique_fd late(accept4(queue.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!late && errno != EINTR && errno != ECONNABORTED) return;
  }
}

class launcher {
 public:
  launcher(rc::loop& l, run::settings const& s)
      : loop_(l), settings_(s), signals_(l, SIGINT, SIGTERM), terminals_(l), logs_(s.log_dir, s.max_restarts > 0), guard_(l) {}

  // Runs all ranks to their end, again where they may be restarted; gives the exit status.
  rc::task<int> run() {
    rc::scope helpers(loop_);
    helpers.spawn(forward_signals(helpers));
    if (settings_.owns_port()) at_ = co_await own_port();
    if (at_ && settings_.host_store) {
      use_libuv_ = rc::choose_use_libuv(std::nullopt).value();
      if (!use_libuv_ && !settings_.quiet) say("the store is served by the legacy back end");
    }
    int status = EXIT_SUCCESS;
    for (int number = 0;; ++number) {
      status = co_await one_attempt(number);
      if (status == EXIT_SUCCESS || interrupted_by_ != 0 || number == settings_.max_restarts) break;
      std::string text = fmt::format("starting all ranks again: restart {} of {}", number + 1, settings_.max_restarts);
      co_await terminals_.say(std::move(text));
      if (interrupted_by_ != 0) break;
      turn_away_waiting(at_);
    }
    helpers.request_stop();
    co_await helpers.join();
    co_await guard_.end();
    co_return status;
  }

 private:
  /// The name of a node that has just started may not be known for a while.
  rc::task<rc::listener> own_port() {
    const rc::time_point until = loop_.now() + (settings_.placed ? 60s : 0s);
    for (bool told = false;; told = true) {
      std::string why;
      try {
        co_return bind_port(settings_);
      } catch (rc::error const& e) {
        if (e.code() != rc::errc::resolve || interrupted_by_ != 0 || loop_.now() >= until) throw;
        why = e.what();
      }
      if (!told) co_await terminals_.say(std::move(why));
      co_await rc::sleep_for(250ms);
    }
  }

  rc::task<int> one_attempt(int number) {
    std::optional<run::hosted_store> store;
    if (at_ && settings_.host_store) store.emplace(another(at_), use_libuv_);
    run::attempt ranks(loop_, settings_, guard_, terminals_, logs_, number);
    ranks.start(at_);
    // The last rank 0 alone holds the port: when it dies, the port is gone, and nobody waits for an answer there.
    if (!settings_.host_store && number == settings_.max_restarts) at_.close();
    running_ = &ranks;
    co_await ranks.run();
    running_ = nullptr;
    guard_.sweep();
    int status = ranks.exit_status();
    if (store && settings_.nodes > 1 && !ranks.failed()) {
      co_await serve_the_other_nodes(*store);
      if (interrupted_by_ != 0) status = 128 + interrupted_by_;
    }
    if (ranks.failed() || !settings_.quiet) co_await ranks.report();
    co_return status;
  }

  // The ranks of this node are done; the store stays while it has clients. One whose machine is gone is found by keep-alive.
  rc::task<> serve_the_other_nodes(run::hosted_store& store) {
    const rc::time_point told_at = loop_.now() + 5s;
    bool told = false;
    while (interrupted_by_ == 0) {
      const auto clients = store.clients();
      if (clients == 0) co_return;
      if (!told && loop_.now() >= told_at) {
        told = true;
        std::string text = fmt::format("the ranks of this node are done; the store stays for {} connections of other nodes", clients);
        co_await terminals_.say(std::move(text));
      }
      co_await rc::sleep_for(20ms);
    }
  }

  rc::task<> forward_signals(rc::scope& helpers) {
    for (int count = 1;; ++count) {
      interrupted_by_ = co_await signals_.next();
      if (running_) running_->pass_on(interrupted_by_);
      if (count == 2) helpers.spawn(insist());
    }
  }

  // Told twice to end: who ignores it is killed.
  rc::task<> insist() {
    co_await rc::sleep_for(settings_.grace());
    terminals_.give_up();
    if (running_) co_await running_->end_with(SIGKILL);
  }

  rc::loop& loop_;
  run::settings const& settings_;
  rc::signal_watcher signals_;
  run::terminals terminals_;
  run::log_folder logs_;
  run::guard guard_;
  rc::listener at_;  // kept while a restart may need it
  bool use_libuv_ = true;  // for the store of --host-store
  run::attempt* running_ = nullptr;
  int interrupted_by_ = 0;  // the last signal
};

}  // namespace

int main(int argc, char** argv) {
  rc::fill_standard_descriptors();
  if (argc > 4 && std::string_view(argv[1]) == "--exec-child") return run::exec_child(argv);
  if (argc == 3 && std::string_view(argv[1]) == "--guard") return run::guard_main(argv[2]);

  // Without a reader lines are dropped, a log that is too large (ulimit -f) is told, and the job goes on; ranks start with the defaults.
  for (const int ignored : {SIGPIPE, SIGXFSZ}) std::signal(ignored, SIG_IGN);
  run::settings s;
  CLI::App app("Starts N ranks of a program, each with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, and sees them to their end.");
  try {
    run::parse(app, s, argc, argv);
  } catch (CLI::ParseError const& e) {
    return app.exit(e) == 0 ? EXIT_SUCCESS : usage_error;
  }
  if (const int why = why_not_executable(s.command.front()); why != 0) {
    say(fmt::format("cannot start '{}': {} ({})", s.command.front(), rc::errno_name(why), std::strerror(why)));
    return why == ENOENT ? run::not_found : run::not_executable;
  }
  try {
    rc::loop l;
    launcher all(l, s);
    return rc::sync_wait(l, all.run());
  } catch (std::exception const& e) {
    say(e.what());
    return EXIT_FAILURE;
  }
}
