#pragma once
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "../fd.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// The file of a unix socket: removed once, by the process that made it, and only while it is still that same file.
class socket_file {
 public:
  socket_file() noexcept = default;
  /// `path` was just bound. Kept as an absolute path, for programs that change their directory.
  explicit socket_file(std::string path) : path_(std::move(path)), maker_(::getpid()) {
    if (char* whole = ::realpath(path_.c_str(), nullptr)) {
      path_ = whole;
      std::free(whole);
    }
    if (struct stat s; ::lstat(path_.c_str(), &s) == 0) {
      device_ = s.st_dev;
      inode_ = s.st_ino;
    } else {
      maker_ = 0;
    }
  }
  socket_file(socket_file&& o) noexcept
      : path_(std::move(o.path_)), device_(o.device_), inode_(o.inode_), maker_(std::exchange(o.maker_, 0)) {}
  socket_file& operator=(socket_file&& o) noexcept {
    if (this == &o) return *this;
    remove();
    path_ = std::move(o.path_);
    device_ = o.device_;
    inode_ = o.inode_;
    maker_ = std::exchange(o.maker_, 0);
    return *this;
  }
  ~socket_file() { remove(); }

  void forget() noexcept { maker_ = 0; }
  void remove() noexcept {
    const pid_t maker = std::exchange(maker_, 0);
    if (maker == 0 || maker != ::getpid()) return;
    if (struct stat s; ::lstat(path_.c_str(), &s) == 0 && s.st_dev == device_ && s.st_ino == inode_) ::unlink(path_.c_str());
  }

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  pid_t maker_ = 0;  // 0: nothing to remove
};

/// Held while a unix socket is bound in the directory of `path`, so that of two processes that find the same stale file only one
/// replaces it. Waits up to 1 s; empty where the directory cannot be locked. Leaves no file.
[[nodiscard]] inline unique_fd lock_directory_of(std::string const& path) {
  const std::size_t slash = path.rfind('/');
  std::string directory = ".";
  if (slash != path.npos) directory = path.substr(0, slash + 1);
  unique_fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (i == 100 || (errno != EWOULDBLOCK && errno != EINTR)) return {};
    ::poll(nullptr, 0, 10);
  }
  return fd;
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
