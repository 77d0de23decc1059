#pragma once
// Why nothing that a rank has started outlives the launcher. Four nets, each for what the one before lets through:
//   the kernel kills a rank when the launcher is gone (PR_SET_PDEATHSIG): at once, but only the rank itself
//   a rank leads a process group of its own, which is killed as a whole: reaches its children, unless they leave the group
//   every process inherits the launcher's mark in its environment: also those that left the group (setsid, daemons) are found by it
//   orphans become children of the launcher (PR_SET_CHILD_SUBREAPER): also those that got another environment are found
// While it lives the launcher kills, itself; when it is killed, a guard does, a process that waits for nothing but that. Only then the
// last net is missing.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <rollcall/net/process.hpp>
#include <rollcall/posix/fd.hpp>
#include <rollcall/rt/combine.hpp>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "output.hpp"

namespace run {

namespace rc = rollcall;

constexpr int not_executable = 126;
constexpr int not_found = 127;
constexpr int guard_channel = 4;                             // the rank's descriptor until it becomes its program
constexpr char const* mark_variable = "ROLLCALL_LAUNCHERS";  // ":ID:" for one launcher, ":OUTER:INNER:" for one inside another

/// What is running: calls `f(pid, folder in /proc)` for each process but this one.
template <class F>
void for_each_process(F f) {
  std::error_code none;  // this runs in a destructor
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator entry("/proc", none); entry != end; entry.increment(none)) {
    const std::string name = entry->path().filename().string();
    int pid = 0;
    std::from_chars(name.data(), name.data() + name.size(), pid);
    if (pid > 1 && pid != getpid()) f(pid, entry->path());
  }
}
inline std::string text_of(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}
inline bool is_child(std::filesystem::path const& process) {
  const std::string stat = text_of(process / "stat");  // "PID (NAME) STATE PARENT ..."
  const std::size_t name_end = stat.rfind(") ");
  return name_end != stat.npos && name_end + 4 < stat.size() && std::atoi(stat.c_str() + name_end + 4) == getpid();
}
inline std::set<pid_t> children() {
  std::set<pid_t> all;
  for_each_process([&](int pid, std::filesystem::path const& process) {
    if (is_child(process)) all.insert(pid);
  });
  return all;
}

/// Kills all processes that bear the mark of this launcher, and all children of this process but `spared`, until there are none.
inline void kill_what_is_left(std::string const& id, std::set<pid_t> const& spared) {
  const std::string mark = ":" + id + ":";
  const auto is_marked = [&](std::filesystem::path const& process) {
    const std::string environment = text_of(process / "environ");
    const std::size_t name = environment.find(std::string(mark_variable) + "=");
    return name != environment.npos && std::string_view(environment.c_str() + name).find(mark) != std::string_view::npos;
  };
  bool found = true;
  for (int round = 0; found && round < 100; ++round) {  // a process that dies in the kernel shows its environment for a moment longer
    if (round > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = false;
    for_each_process([&](int pid, std::filesystem::path const& process) {
      if (spared.contains(pid)) return;
      const bool child = is_child(process);
      if (!child && !is_marked(process)) return;
      found |= ::kill(pid, SIGKILL) == 0;
      if (child) waitpid(pid, nullptr, WNOHANG);  // nobody else does
    });
  }
}

/// `rollcall-run --guard ID`: learns from its channel which process groups there are, and kills them once nobody can write there any more.
inline int guard_main(char const* id) {
  setsid();  // out of reach of a terminal's signals
  for (const int ignored : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) signal(ignored, SIG_IGN);
  prctl(PR_SET_NAME, "rollcall-guard");
  std::set<pid_t> groups;
  for (;;) {
    pid_t group = 0;  // negative: it has ended
    const ssize_t n = recv(guard_channel, &group, sizeof group, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof group) break;
    if (group > 0) groups.insert(group);
    if (group < 0) groups.erase(-group);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  kill_what_is_left(id, {});
  return EXIT_SUCCESS;
}

/// The inside of every rank before it becomes the program: `rollcall-run --exec-child LAUNCHER -- PROGRAM ARGS...`. It leads a process
/// group of its own also so that a terminal's Ctrl-C reaches it once, through the launcher. That the rank tells the guard, and not the
/// launcher, leaves no moment in which its children could start unguarded.
inline int exec_child(char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(argv[2])) return EXIT_FAILURE;  // the launcher was gone before prctl
  setpgid(0, 0);
  const pid_t self = getpid();
  send(guard_channel, &self, sizeof self, MSG_NOSIGNAL);
  fcntl(guard_channel, F_SETFD, FD_CLOEXEC);
  execvp(argv[4], argv + 4);
  const int why = errno;
  say(fmt::format("cannot start '{}': {} ({})", argv[4], rc::errno_name(why), std::strerror(why)));
  return why == ENOENT ? not_found : not_executable;
}

/// The launcher's end of it.
class guard {
 public:
  explicit guard(rc::loop& l) : guard(l, new_id(), open_channel()) {}
  guard(guard const&) = delete;
  guard& operator=(guard const&) = delete;
  ~guard() {
    if (channel_) sweep();
  }

  /// What a rank is started with.
  void mark(rc::process_options& o) const {
    char const* outer = std::getenv(mark_variable);
    o.env(mark_variable, (outer && *outer ? outer : std::string(":")) + id_ + ":").inherit_fd(channel_.get(), guard_channel);
  }
  /// The group of this rank has been killed; its number may become another's.
  void forget(int rank) const {
    const pid_t ended = -rank;
    send(channel_.get(), &ended, sizeof ended, MSG_NOSIGNAL);
  }
  /// When all ranks have ended: what they left behind outside their groups.
  void sweep() const { kill_what_is_left(id_, spared_); }
  rc::task<> end() {
    channel_.reset();
    co_await process_.exited();
  }

 private:
  guard(rc::loop& l, std::string id, std::pair<rc::unique_fd, rc::unique_fd> ends)
      : id_(std::move(id)), channel_(std::move(ends.first)), process_(rc::process::spawn(l, command(id_, ends.second.get()))) {
    spared_.insert(process_.pid());
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  static std::string new_id() { return fmt::format("{}.{}", getpid(), std::chrono::system_clock::now().time_since_epoch().count()); }
  static std::pair<rc::unique_fd, rc::unique_fd> open_channel() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::system_error(errno, std::generic_category(), "cannot start the guard");
    return {rc::unique_fd(ends[0]), rc::unique_fd(ends[1])};
  }
  static rc::process_options command(std::string const& id, int channel) {
    rc::process_options o("/proc/self/exe");
    o.arg("--guard").arg(id).inherit_fd(channel, guard_channel);
    o.out(rc::stdio::null).err(rc::stdio::null).working_dir("/");  // holds nothing of the user's
    return o;
  }

  std::string id_;
  std::set<pid_t> spared_ = children();  // of the shell that became this launcher, and the guard
  rc::unique_fd channel_;
  rc::process process_;
};

}  // namespace run
