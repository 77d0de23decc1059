#pragma once
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "../../posix/errno.hpp"
#include "../../posix/fd.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// "cannot open: EACCES (Permission denied)".
[[nodiscard]] inline std::string system_text(std::string_view what, int number) { return std::string(what) + ": " + errno_text(number); }

/// Takes the lock of a whole file, shared or exclusive, within `patience`; the system's error number, EWOULDBLOCK where it passed.
/// Never blocks in flock(): nothing could give up on a holder that is stopped. `eager`: looks often, for whom it is the last chance.
[[nodiscard]] inline int lock_file(int fd, bool exclusive, std::chrono::microseconds patience, bool eager = false) {
  const auto until = std::chrono::steady_clock::now() + patience;
  std::minstd_rand dice;
  for (long pause = 100;; pause = pause < 1000 && !eager ? pause * 2 : pause) {
    if (::flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= until) return errno;
    if (pause == 100) dice.seed(static_cast<std::minstd_rand::result_type>(until.time_since_epoch().count() ^ ::getpid()));
    std::this_thread::sleep_for(std::chrono::microseconds(pause / 2 + static_cast<long>(dice()) % pause));
  }
}

/// Who holds the lock of the file that `of` is about: "pid 4711", or "somebody else" where /proc/locks does not tell. By the inode alone:
/// file systems that lie over others show another device there.
[[nodiscard]] inline std::string lock_holder(struct stat const& of) {
  std::string found;
  if (std::FILE* f = std::fopen("/proc/locks", "re")) {
    char line[256];
    while (found.empty() && std::fgets(line, sizeof line, f)) {
      int pid = 0;
      unsigned long inode = 0;
      if (std::sscanf(line, "%*d: FLOCK %*s %*s %d %*[^:]:%*[^:]:%lu", &pid, &inode) != 2) continue;
      if (inode == of.st_ino && pid > 0) found = "pid " + std::to_string(pid);
    }
    std::fclose(f);
  }
  return found.empty() ? "somebody else" : found;
}

/// Whether other hosts may change a file there without notice to this one, and flock() may be a record lock in disguise.
[[nodiscard]] inline bool on_network(int fd) noexcept {
  struct statfs s{};
  if (::fstatfs(fd, &s) != 0) return true;
  switch (static_cast<std::uint32_t>(s.f_type)) {
    case 0xEF53U:      // ext2, ext3, ext4
    case 0x58465342U:  // XFS
    case 0x9123683EU:  // btrfs
    case 0xF2F52010U:  // f2fs
    case 0x2FC12FC1U:  // ZFS
    case 0x01021994U:  // tmpfs
    case 0x858458F6U:  // ramfs
    case 0x794C7630U:  // overlayfs
      return false;
    default: return true;
  }
}

/// The mark of a live member of ours, or of who looks in: a lock on one byte far behind every record, which the kernel drops with the
/// process. It belongs to the open file description, and has nothing to do with flock() on local file systems; on others there is none.
/// Each member has a byte of its own; those that look share one before them.
class presence {
 public:
  /// Marks the member of that number, 0..2^60, as present in the file that is open as `fd`, for reading.
  void enter(unique_fd fd, std::int64_t number) noexcept { take(std::move(fd), first + number); }
  void enter_to_look(unique_fd fd) noexcept { take(std::move(fd), lookers); }
  void leave() noexcept { fd_.reset(); }
  [[nodiscard]] bool entered() const noexcept { return static_cast<bool>(fd_); }
  /// The descriptor that has it, for questions about others.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// Whether another one, of either kind, is present beside this, where it is marked.
  [[nodiscard]] bool sees_others() const noexcept { return entered() && is_locked(fd_.get(), lookers, (off_t{1} << 61) + 1); }
  /// Whether the member of that number is present, unless it is `fd` itself that marks it; true where it cannot be told.
  [[nodiscard]] static bool of_member(int fd, std::int64_t number) noexcept { return is_locked(fd, first + number, 1); }
  /// Whether anybody looks in; true where it cannot be told.
  [[nodiscard]] static bool of_lookers(int fd) noexcept { return is_locked(fd, lookers, 1); }

 private:
  static constexpr off_t first = off_t{1} << 62, lookers = first - 1;

  void take(unique_fd fd, off_t at) noexcept {
    struct flock l = bytes(F_RDLCK, at, 1);
    if (::fcntl(fd.get(), F_OFD_SETLK, &l) == 0) fd_ = std::move(fd);
  }
  [[nodiscard]] static bool is_locked(int fd, off_t at, off_t n) noexcept {
    struct flock l = bytes(F_WRLCK, at, n);
    return ::fcntl(fd, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
  }
  [[nodiscard]] static struct flock bytes(short type, off_t at, off_t n) noexcept {
    struct flock l{};
    l.l_type = type;
    l.l_whence = SEEK_SET;
    l.l_start = at;
    l.l_len = n;
    return l;
  }
  unique_fd fd_;
};

/// While one lives, a write past RLIMIT_FSIZE fails with EFBIG in this thread, instead of ending the process.
class no_size_signal {
 public:
  no_size_signal() noexcept {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  no_size_signal(no_size_signal const&) = delete;
  no_size_signal& operator=(no_size_signal const&) = delete;
  ~no_size_signal() {
    const timespec none{};
    while (sigtimedwait(&set_, nullptr, &none) == SIGXFSZ) {}
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t set_, before_;
};

/// Writes all of `bytes` at `at`; 0, or the system's error number.
[[nodiscard]] inline int write_at(int fd, std::string_view bytes, off_t at) noexcept {
  const no_size_signal quiet;
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    bytes.remove_prefix(static_cast<std::size_t>(n));
    at += n;
  }
  return 0;
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
