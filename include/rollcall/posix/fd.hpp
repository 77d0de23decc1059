#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {

/// Owns one file descriptor and closes it once; -1 means none. Leaves `errno` as it was, so that a failure can be read after cleaning up.
class unique_fd {
 public:
  unique_fd() noexcept = default;
  explicit unique_fd(int fd) noexcept : fd_(fd) {}
  unique_fd(unique_fd&& o) noexcept : fd_(o.release()) {}
  unique_fd& operator=(unique_fd&& o) noexcept {
    if (this != &o) reset(o.release());
    return *this;
  }
  ~unique_fd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Hands the descriptor to the caller, who closes it from now on.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd);
    if (old < 0) return;
    const int saved = errno;
    ::close(old);  // not repeated after EINTR: on Linux the number is free by then, and may be somebody else's
    errno = saved;
  }

 private:
  int fd_ = -1;
};

/// Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed. Otherwise the next socket gets the number: what is written to
/// standard output or error goes there, and libuv aborts when it closes it. For the first line of main() in a program that may be
/// started without them; a library must not. Gives which of them were open: nobody sees what is written to the others.
inline std::array<bool, 3> fill_standard_descriptors() noexcept {
  std::array<bool, 3> open{};
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    open[static_cast<std::size_t>(fd)] = ::fcntl(fd, F_GETFD) >= 0 || errno != EBADF;
    if (!open[static_cast<std::size_t>(fd)]) static_cast<void>(::open("/dev/null", O_RDWR));
  }
  return open;
}

}  // namespace v0
}  // namespace rollcall
