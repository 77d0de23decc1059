#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../posix/address.hpp"
#include "../posix/fd.hpp"
#include "../rt/detail/handle.hpp"
#include "../rt/detail/waiter.hpp"
#include "../rt/loop.hpp"
#include "line_reader.hpp"
#include "signal.hpp"

namespace rollcall {
inline namespace v0 {

/// What a child's standard stream is connected to.
enum class stdio : unsigned char { null, inherit, pipe };

/// How to start a child. Holds copies of all it is given.
class process_options {
 public:
  process_options() = default;
  explicit process_options(std::string_view program) : program_(program) {}

  /// A path, or a name that is looked up in the child's PATH.
  process_options& program(std::string_view p) { return program_ = p, *this; }
  process_options& arg(std::string_view a) { return args_.emplace_back(a), *this; }
  template <class Range>
  process_options& args(Range const& range) {
    for (auto const& a : range) args_.emplace_back(a);
    return *this;
  }
  /// Added to, or replaced in, the environment that the child inherits.
  process_options& env(std::string_view name, std::string_view value) {
    unset_env(name);
    environment_.push_back(std::string(name) + "=" + std::string(value));
    return *this;
  }
  process_options& unset_env(std::string_view name) {
    std::erase_if(environment_, [name](std::string const& e) { return names(e, name); });
    removed_.emplace_back(name);
    return *this;
  }
  process_options& working_dir(std::string_view d) { return directory_ = d, *this; }
  /// The child gets descriptor `fd` of this process as its descriptor `child_fd` (3..255). Descriptors that are close-on-exec,
  /// which all of ours are, reach it in no other way.
  process_options& inherit_fd(int fd, int child_fd) { return inherited_.emplace_back(fd, child_fd), *this; }
  /// null (the default) or inherit.
  process_options& in(stdio s) { return streams_[0] = s, *this; }
  /// inherit is the default of both; what goes to a pipe is read with process::out() and process::err().
  process_options& out(stdio s) { return streams_[1] = s, *this; }
  process_options& err(stdio s) { return streams_[2] = s, *this; }

 private:
  friend class process;
  static bool names(std::string_view entry, std::string_view name) noexcept {
    return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
  }
  /// The whole environment of the child.
  [[nodiscard]] std::vector<std::string> environment() const {
    std::vector<std::string> all = environment_;
    for (char** e = ::environ; e && *e; ++e) {
      const auto removed = [e](std::string const& name) { return names(*e, name); };
      if (std::none_of(removed_.begin(), removed_.end(), removed)) all.emplace_back(*e);
    }
    return all;
  }

  std::string program_;
  std::vector<std::string> args_;
  std::vector<std::string> environment_;
  std::vector<std::string> removed_;
  std::string directory_;
  std::vector<std::pair<int, int>> inherited_;
  std::array<stdio, 3> streams_{stdio::null, stdio::inherit, stdio::inherit};
};
static_assert(await_safe<process_options>);

/// How a child ended.
class exit_status {
 public:
  exit_status() noexcept = default;
  exit_status(int code, int signal) noexcept : exit_code(code), term_signal(signal) {}
  int exit_code = 0;
  int term_signal = 0;  ///< the signal that killed it; 0: it exited by itself
  [[nodiscard]] bool success() const noexcept { return exit_code == 0 && term_signal == 0; }
  /// What a shell would report: the exit code, or 128 + signal.
  [[nodiscard]] int shell_code() const noexcept { return term_signal ? 128 + term_signal : exit_code; }
};
/// "exited with status 1", "was killed by SIGKILL".
[[nodiscard]] inline std::string to_string(exit_status s) {
  return s.term_signal ? "was killed by " + signal_name(s.term_signal) : "exited with status " + std::to_string(s.exit_code);
}

/// A running child process. Move-only.
///
/// Destroying it while the child lives does not block: the child is killed with SIGKILL and reaped in the background; its own
/// children are not touched. A living child keeps the loop alive. One loop thread only.
class process {
  class child;

 public:
  /// Starts a child: close-on-exec descriptors stay here, its signals are at their defaults and unblocked. Blocks for fork and exec.
  ///
  /// errors  io, naming the program and the errno name ("start 'foo': ... ENOENT"); invalid for options that can never work.
  [[nodiscard]] static process spawn(loop& l, process_options const& o) {
    process p(std::make_unique<child>(l.core()));
    p.child_->start(o);
    return p;
  }

  [[nodiscard]] int pid() const noexcept { return child_->pid; }
  [[nodiscard]] bool has_exited() const noexcept { return child_->exited; }
  /// Sends a signal; false once the child was reaped (its pid may be another's by now).
  bool kill(int signal) noexcept { return child_->alive() && ::kill(child_->pid, signal) == 0; }
  /// The child's standard output and error, where they are pipes. They end when every holder of the other end is gone, which
  /// may be later than the child's own end when it has children.
  [[nodiscard]] line_reader& out() { return child_->reader(0); }
  [[nodiscard]] line_reader& err() { return child_->reader(1); }

  class [[nodiscard]] exiting final : public list_hook<>, private detail::waiter {
   public:
    explicit exiting(child& c) noexcept : child_(c) {}
    /// Only before it is awaited.
    exiting(exiting&& o) noexcept : list_hook<>(), detail::waiter(), child_(o.child_) {}
    [[nodiscard]] bool await_ready() const noexcept { return child_.exited; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      if (!begin(h, &child_.core)) return false;
      child_.waiters.push_back(*this);
      return true;
    }
    exit_status await_resume() const {
      if (was_stopped()) detail::throw_cancelled("wait for a process");
      return child_.status;
    }

   private:
    friend class child;
    void ended() noexcept { complete(); }
    void leave() noexcept override { list_hook<>::unlink(); }
    child& child_;
  };
  /// Completes when the child has ended and was reaped; any number may wait, also later.
  ///
  /// errors  cancelled.
  /// cancel  as if never called; the child goes on. The process object must outlive the wait.
  [[nodiscard]] exiting exited() noexcept { return exiting(*child_); }

 private:
  class child {
    using own = detail::handle<uv_process_t, child>;

   public:
    explicit child(detail::loop_core& c) noexcept : core(c) {}
    child(child const&) = delete;
    child& operator=(child const&) = delete;
    ~child() {
      handle_.reset();  // from here on libuv does not reap it
      if (!exited && pid > 0) kill_and_reap(pid);
    }
    void start(process_options const& o);
    [[nodiscard]] line_reader& reader(std::size_t i) {
      if (!readers_[i]) throw error(errc::invalid, i == 0 ? "process::out" : "process::err", "the stream was not opened as a pipe");
      return *readers_[i];
    }
    /// Not reaped yet, so that the pid is still its own.
    [[nodiscard]] bool alive() const noexcept {
      siginfo_t info;
      return !exited && ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    }

    detail::loop_core& core;
    int pid = 0;
    bool exited = false;
    exit_status status;
    list<exiting> waiters;

   private:
    static void on_exit(uv_process_t* h, std::int64_t code, int signal) noexcept {
      const detail::loop_core::turn t(own::core_of(h));
      child* self = own::owner_of(h);
      if (!self) return;
      self->exited = true;
      self->status = exit_status(static_cast<int>(code), signal);
      self->handle_.reset();
      while (!self->waiters.empty()) self->waiters.pop_front().ended();
    }
    static void kill_and_reap(int target) noexcept {
      if (::waitpid(target, nullptr, WNOHANG) != 0) return;
      ::kill(target, SIGKILL);
      try {
        std::thread([target] {
          while (::waitpid(target, nullptr, 0) < 0 && errno == EINTR) {}
        }).detach();
      } catch (std::system_error const&) {
        ::waitpid(target, nullptr, WNOHANG);  // no thread to be had: at worst a zombie until this process ends
      }
    }

    own handle_;
    std::array<std::unique_ptr<line_reader>, 2> readers_;
  };

  explicit process(std::unique_ptr<child> c) noexcept : child_(std::move(c)) {}
  std::unique_ptr<child> child_;
};

inline void process::child::start(process_options const& o) {
  const auto invalid = [&o](char const* why) { throw error(errc::invalid, "start '" + o.program_ + "'", why); };
  if (o.program_.empty()) invalid("no program is given");

  // Child descriptors by number. Pipes are real ones, not libuv's socket pairs, so that the child may open /dev/stdout.
  std::vector<uv_stdio_container_t> table(3);
  for (auto& slot : table) slot.flags = UV_IGNORE;
  const auto put = [&table](int fd, std::size_t child_fd) {
    if (table.size() <= child_fd) table.resize(child_fd + 1, uv_stdio_container_t{UV_IGNORE, {}});
    table[child_fd].flags = UV_INHERIT_FD;
    table[child_fd].data.fd = fd;
  };
  std::array<unique_fd, 2> ends;
  if (o.streams_[0] == stdio::pipe) invalid("standard input cannot be a pipe");
  for (std::size_t i = 0; i < 3; ++i) {
    if (o.streams_[i] == stdio::inherit) put(static_cast<int>(i), i);
    if (o.streams_[i] != stdio::pipe) continue;
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) throw error(errc::io, "start '" + o.program_ + "'", errno_name(errno));
    ends[i - 1] = unique_fd(fds[1]);
    readers_[i - 1] = std::make_unique<line_reader>(core, unique_fd(fds[0]));
    put(fds[1], i);
  }
  for (auto const& [fd, child_fd] : o.inherited_) {
    if (child_fd < 3 || child_fd > 255) invalid("an inherited descriptor's number must be 3..255");
    put(fd, static_cast<std::size_t>(child_fd));
  }

  std::string program = o.program_;
  std::vector<std::string> args = o.args_;
  std::vector<std::string> environment = o.environment();
  std::vector<char*> argv{program.data()};
  for (auto& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (auto& e : environment) envp.push_back(e.data());
  envp.push_back(nullptr);

  uv_process_options_t options{};
  options.exit_cb = &child::on_exit;
  options.file = program.c_str();
  options.args = argv.data();
  options.env = envp.data();
  options.cwd = o.directory_.empty() ? nullptr : o.directory_.c_str();
  options.stdio = table.data();
  options.stdio_count = static_cast<int>(table.size());
  // A handle whose spawn failed must be closed like any other, so `open` always succeeds.
  int failed = 0;
  handle_.open(core, this, [&](uv_loop_t* l, uv_process_t* h) {
    failed = uv_spawn(l, h, &options);
    return 0;
  });
  if (failed != 0) {
    handle_.reset();
    std::string text = errno_name(-failed) + " (" + uv_strerror(failed) + ")";
    if (!o.directory_.empty()) text += ", working directory '" + o.directory_ + "'";
    throw error(errc::io, "start '" + o.program_ + "'", std::move(text));
  }
  pid = handle_.get()->pid;
}

}  // namespace v0
}  // namespace rollcall
