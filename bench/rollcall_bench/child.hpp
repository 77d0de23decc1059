#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace bench {

/// Monotonic nanoseconds, the same in all processes.
[[nodiscard]] std::uint64_t now_ns() noexcept;

/// All of `n` bytes; false at the end or at an error.
bool read_all(int fd, void* to, std::size_t n) noexcept;
bool write_all(int fd, void const* from, std::size_t n) noexcept;

/// A forked process with a socket between it and us. It ends when we do, at the latest; destroying this ends it.
class child {
 public:
  /// The child runs `body(its end of the socket)` and exits with what it returns. `cpu`: the only one it may run on; -1: any.
  explicit child(std::function<int(int)> const& body, int cpu = -1);
  child(child const&) = delete;
  child& operator=(child const&) = delete;
  ~child();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] int socket() const noexcept { return socket_; }
  /// User and system time of all its threads so far, in ns.
  [[nodiscard]] std::uint64_t cpu_ns() const;
  /// Resident bytes.
  [[nodiscard]] std::uint64_t rss() const;

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

/// CPU time of this thread, in ns.
[[nodiscard]] std::uint64_t thread_cpu_ns() noexcept;
/// The soft limit of descriptors becomes the hard one.
void raise_descriptor_limit() noexcept;
/// How many descriptors this process has open.
[[nodiscard]] std::size_t open_descriptors();

}  // namespace bench
