#pragma once
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "../core/clock.hpp"
#include "../core/error.hpp"
#include "../posix/fd.hpp"
#include "../posix/listener.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

/// The clock of everything here: monotonic, the same that a loop reads.
[[nodiscard]] inline time_point steady_now() noexcept { return time_point(std::chrono::steady_clock::now().time_since_epoch()); }

/// ppoll(2) for `patience` at the most (duration::max(): for ever); as it returns.
[[nodiscard]] inline int poll_for(pollfd* fds, std::size_t count, duration patience) noexcept {
  if (patience == duration::max()) return ::ppoll(fds, count, nullptr, nullptr);
  const std::int64_t ns = patience.count() > 0 ? patience.count() : 0;
  const timespec limit{static_cast<std::time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  return ::ppoll(fds, count, &limit, nullptr);
}

/// Makes a thread that stands in poll(2) look up, from any thread.
class wake_up {
 public:
  wake_up() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!fd_) throw error(errc::io, "start", "eventfd: " + errno_text(errno));
  }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void poke() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(fd_.get(), &one, sizeof one));  // EAGAIN: there are 2^64 pokes in it
  }
  void clear() const noexcept {
    std::uint64_t pokes = 0;
    static_cast<void>(!::read(fd_.get(), &pokes, sizeof pokes));
  }

 private:
  unique_fd fd_;
};

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall
