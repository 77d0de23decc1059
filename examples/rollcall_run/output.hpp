#pragma once
// Where lines go: the launcher's own, and those of the ranks.
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <rollcall/posix/address.hpp>
#include <rollcall/posix/fd.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/loop.hpp>
#include <rollcall/rt/task.hpp>
#include <rollcall/rt/timer.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace run {

namespace rc = rollcall;

/// All of `text` in one system call where that is possible, so that lines are never mixed. Gives 0, or the errno of what failed.
inline int write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(to, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd room{to, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

inline void say(std::string_view text) { write_all(STDERR_FILENO, fmt::format("rollcall-run: {}\n", text)); }

/// Standard output and error, which all lines share. Whoever does not read them holds up the ranks whose lines they are, but never the
/// launcher, which must still hear signals.
class terminals {
 public:
  explicit terminals(rc::loop& l) : free_(l) { free_.set(); }

  rc::task<> write(int to, std::string text) {
    while (!free_.is_set()) co_await free_.wait();
    const turn mine(free_);
    for (std::string_view left = text; !left.empty();) {
      while (!has_room(to)) {
        if (gave_up_) co_return;
        co_await rc::sleep_for(std::chrono::milliseconds(5));
      }
      // What a pipe with room takes without blocking. Without a reader lines are dropped.
      const std::string_view piece = left.substr(0, PIPE_BUF);
      if (write_all(to, piece) != 0) co_return;
      left.remove_prefix(piece.size());
    }
  }
  /// A line of the launcher's own.
  rc::task<> say(std::string text) { return write(STDERR_FILENO, fmt::format("rollcall-run: {}\n", text)); }

  /// Whether somebody waits for a reader.
  [[nodiscard]] bool held_up() const { return !free_.is_set(); }
  /// From now on lines that nobody reads are dropped.
  void give_up() { gave_up_ = true; }

 private:
  class turn {
   public:
    explicit turn(rc::event& free) : free_(free) { free_.reset(); }
    turn(turn const&) = delete;
    turn& operator=(turn const&) = delete;
    ~turn() { free_.set(); }

   private:
    rc::event& free_;
  };
  static bool has_room(int to) {
    pollfd room{to, POLLOUT, 0};
    return poll(&room, 1, 0) != 0;  // an error is told by write()
  }
  rc::event free_;
  bool gave_up_ = false;
};

/// The files of one run: D/rank-3.log, or D/attempt-1/rank-3.log. What cannot be written is an error at the start of the job; later it is
/// told once, and the job goes on.
class log_folder {
 public:
  /// "": there are no files.
  log_folder(std::string const& folder, bool by_attempt) : folder_(folder), by_attempt_(by_attempt) {}

  [[nodiscard]] std::string path(int attempt, int rank) const {
    std::filesystem::path p = folder_;
    if (by_attempt_) p /= fmt::format("attempt-{}", attempt);
    return p / fmt::format("rank-{}.log", rank);
  }
  [[nodiscard]] rc::unique_fd open(int attempt, int rank) {
    if (folder_.empty()) return {};
    const std::string file = path(attempt, rank);
    std::error_code why;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path(), why);
    rc::unique_fd fd;
    if (!why) {
      fd.reset(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
      // A full disk shows when something is written, not when a file is made.
      if (!fd || write_all(fd.get(), "\n") != 0 || (ftruncate(fd.get(), 0) != 0 && errno != EINVAL) || lseek(fd.get(), 0, SEEK_SET) < 0)
        why.assign(errno, std::generic_category());
    }
    if (!why) return fd;
    if (attempt == 0) throw std::runtime_error(complaint(file, why.value()));
    failed(file, why.value());
    return {};
  }
  void failed(std::string const& file, int why) {
    if (!std::exchange(told_, true)) say(complaint(file, why) + "; the logs are not complete");
  }

 private:
  static std::string complaint(std::string const& file, int why) {
    return fmt::format("cannot write '{}': {} ({})", file, rc::errno_name(why), std::strerror(why));
  }
  std::filesystem::path folder_;
  bool by_attempt_;
  bool told_ = false;
};

/// Where the lines of one rank go; remembers the last ones.
class rank_output {
 public:
  rank_output(terminals& shared, log_folder& logs, int attempt, int rank, bool quiet)
      : terminals_(shared), logs_(logs), file_(logs.path(attempt, rank)), prefix_(fmt::format("[{}] ", rank)), quiet_(quiet), log_(logs.open(attempt, rank)) {}

  rc::task<> line(int terminal, std::string text) {
    if (log_) {
      if (const int why = write_all(log_.get(), fmt::format("{}\n", text)); why != 0) {
        logs_.failed(file_, why);
        log_.reset();  // a gap would look like silence
      }
    }
    if (last_.size() == lines_kept) last_.pop_front();
    last_.push_back(text.size() <= longest_kept ? text : fmt::format("{}...", text.substr(0, longest_kept)));
    if (quiet_) co_return;
    std::string shown = fmt::format("{}{}\n", prefix_, text);
    co_await terminals_.write(terminal, std::move(shown));
  }
  [[nodiscard]] std::string const& prefix() const { return prefix_; }
  [[nodiscard]] std::deque<std::string> const& last_lines() const { return last_; }

 private:
  static constexpr std::size_t lines_kept = 10;
  static constexpr std::size_t longest_kept = 2000;  // bytes
  terminals& terminals_;
  log_folder& logs_;
  std::string file_;
  std::string prefix_;
  bool quiet_;
  rc::unique_fd log_;
  std::deque<std::string> last_;
};

}  // namespace run
