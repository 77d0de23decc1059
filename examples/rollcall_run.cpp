// rollcall-run: starts N ranks of a program on this machine and sees them to their end.
//
// The launcher binds the port itself and hands the listening descriptor to rank 0, so no other process can take the port in between.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <rollcall/net/process.hpp>
#include <rollcall/net/signal.hpp>
#include <rollcall/posix/listener.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/timer.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace {

constexpr int usage_error = 2;
constexpr int not_executable = 126;
constexpr int not_found = 127;
constexpr int listen_fd = 3;  // what ROLLCALL_LISTEN_FD tells rank 0

struct settings {
  int ranks = 0;
  std::int64_t port = 0;
  double grace_seconds = 2;
  std::vector<std::string> command;

  [[nodiscard]] rc::duration grace() const { return rc::saturate(std::chrono::duration<double>(grace_seconds)); }
};

void say(std::string_view text) { fmt::print(stderr, "rollcall-run: {}\n", text); }

// The inside of every rank before it becomes the program: `rollcall-run --exec-child PPID -- PROGRAM ARGS...`. It dies with the launcher,
// however that ends, and leads a process group of its own, so that a terminal's Ctrl-C reaches it once, through the launcher.
int exec_child(char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(argv[2])) return EXIT_FAILURE;  // the launcher was gone before prctl
  setpgid(0, 0);
  execvp(argv[4], argv + 4);
  const int why = errno;
  say(fmt::format("cannot start '{}': {} ({})", argv[4], rc::errno_name(why), std::strerror(why)));
  return why == ENOENT ? not_found : not_executable;
}

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

// One system call for a whole line, so that lines are never mixed; the launcher is the only writer. Blocking here is the back-pressure
// that holds up ranks whose lines nobody reads. Without a reader (and with SIGPIPE ignored) lines are dropped.
void write_line(int to, std::string_view line) {
  while (!line.empty()) {
    const ssize_t n = write(to, line.data(), line.size());
    if (n >= 0) {
      line.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd room{to, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

rc::task<> copy_lines(rc::line_reader& from, int to, std::string prefix) {
  for (;;) {
    const std::optional<std::string> line = co_await from.next_line();
    if (!line) co_return;
    write_line(to, prefix + *line + "\n");
  }
}

class rank {
 public:
  rank(int number, rc::process p) : number_(number), process_(std::move(p)) {}
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] rc::process& process() { return process_; }

  // To the rank and all it has started.
  void signal(int number) {
    if (process_.has_exited()) return;
    if (::kill(-process_.pid(), number) != 0) process_.kill(number);  // not yet the leader of its group
  }
  void kill_what_it_left_behind() { ::kill(-process_.pid(), SIGKILL); }

 private:
  int number_;
  rc::process process_;
};

class launcher {
 public:
  launcher(rc::loop& l, settings const& s) : loop_(l), settings_(s), signals_(l, SIGINT, SIGTERM), failed_(l) {}

  // Runs all ranks to their end; gives the exit status.
  rc::task<int> run() {
    start_ranks();
    rc::scope helpers(loop_);
    rc::scope followers(loop_);
    helpers.spawn(forward_signals());
    helpers.spawn(end_the_others());
    for (rank& r : ranks_) followers.spawn(follow(r));
    co_await followers.join();
    helpers.request_stop();
    co_await helpers.join();
    co_return exit_status_;
  }

 private:
  // An exception here leaves nothing running: a process that is destroyed is killed.
  void start_ranks() {
    rc::listener at = rc::listen(rc::listen_options().host("127.0.0.1").port(settings_.port));
    for (int i = 0; i < settings_.ranks; ++i) {
      rc::process_options o("/proc/self/exe");
      o.arg("--exec-child").arg(std::to_string(getpid())).arg("--").args(settings_.command);
      o.out(rc::stdio::pipe).err(rc::stdio::pipe);
      o.env("RANK", std::to_string(i)).env("WORLD_SIZE", std::to_string(settings_.ranks));
      o.env("LOCAL_RANK", std::to_string(i)).env("LOCAL_WORLD_SIZE", std::to_string(settings_.ranks));
      o.env("MASTER_ADDR", at.host()).env("MASTER_PORT", std::to_string(at.port()));
      // An outer launcher's promises do not hold here.
      o.unset_env("ROLLCALL_LISTEN_FD").unset_env("TORCHELASTIC_USE_AGENT_STORE");
      if (i == 0) o.inherit_fd(at.fd(), listen_fd).env("ROLLCALL_LISTEN_FD", std::to_string(listen_fd));
      ranks_.emplace_back(i, rc::process::spawn(loop_, o));
    }
  }  // our copy of the listening descriptor is closed: when rank 0 dies, the port is gone

  rc::task<> follow(rank& r) {
    rc::scope output(loop_);
    output.spawn(copy_lines(r.process().out(), STDOUT_FILENO, fmt::format("[{}] ", r.number())));
    output.spawn(copy_lines(r.process().err(), STDERR_FILENO, fmt::format("[{}] ", r.number())));
    const rc::exit_status how = co_await r.process().exited();
    const bool failed_first = !how.success() && !failed_.is_set();
    if (failed_first) {
      exit_status_ = how.shell_code();
      failed_.set();
    }
    // Its last words; what it has started may hold its output open for longer.
    const rc::result<void> all_said =
        co_await rc::as_result(rc::with_deadline(output.join(), std::max<rc::duration>(settings_.grace(), 1s)));
    r.kill_what_it_left_behind();
    if (failed_first) say(fmt::format("rank {} {}", r.number(), rc::to_string(how)));
  }

  // After the first failure the others get time to say why they, too, cannot go on.
  rc::task<> end_the_others() {
    co_await failed_.wait();
    co_await rc::sleep_for(settings_.grace());
    signal_all(SIGTERM);
    co_await rc::sleep_for(std::max<rc::duration>(settings_.grace(), 1s));
    signal_all(SIGKILL);
  }

  rc::task<> forward_signals() {
    for (;;) {
      const int number = co_await signals_.next();
      for (rank& r : ranks_) r.signal(number);
    }
  }

  void signal_all(int number) {
    std::string who;
    for (rank& r : ranks_) {
      if (r.process().has_exited()) continue;
      who += fmt::format("{}{}", who.empty() ? "" : ", ", r.number());
      r.signal(number);
    }
    if (!who.empty()) say(fmt::format("still running: {}; sent {}", who, rc::signal_name(number)));
  }

  rc::loop& loop_;
  settings const& settings_;
  rc::signal_watcher signals_;
  rc::event failed_;
  int exit_status_ = EXIT_SUCCESS;
  std::deque<rank> ranks_;
};

// Everything from PROGRAM on belongs to the program.
void declare(CLI::App& app, settings& s) {
  app.get_formatter()->label("OPTIONS", "OPTIONS] PROGRAM [ARGS...");
  app.add_option("-n,--ranks", s.ranks, "How many ranks to start")->required()->check(CLI::Range(1, 65536))->type_name("N");
  app.add_option("--port", s.port, "The port of the store; 0, the default, lets the system choose")
      ->check(CLI::Range(0, 65535))
      ->type_name("PORT");
  app.add_option("--grace", s.grace_seconds, "Seconds from the first failure until the other ranks get SIGTERM (default 2)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("SECONDS");
  app.prefix_command();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string_view(argv[1]) == "--exec-child") return exec_child(argv);

  settings s;
  CLI::App app("Starts N ranks of a program on this machine, each with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.");
  try {
    declare(app, s);
    app.parse(argc, argv);
    s.command = app.remaining();
    if (!s.command.empty() && s.command.front() == "--") s.command.erase(s.command.begin());
    if (s.command.empty()) throw CLI::RequiredError("PROGRAM");
    if (s.command.front().starts_with('-')) throw CLI::ExtrasError({s.command.front()});
  } catch (CLI::ParseError const& e) {
    return app.exit(e) == 0 ? EXIT_SUCCESS : usage_error;
  }
  if (const int why = why_not_executable(s.command.front()); why != 0) {
    say(fmt::format("cannot start '{}': {} ({})", s.command.front(), rc::errno_name(why), std::strerror(why)));
    return why == ENOENT ? not_found : not_executable;
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
