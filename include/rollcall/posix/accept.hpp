#pragma once
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fd.hpp"
#include "listener.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Takes connections off a listener, one at a time. Out of descriptors, it gives up a reserve to take and close the waiting connection,
/// a refusal that the peer can see.
class accept_queue {
 public:
  enum class outcome : unsigned char {
    accepted,  ///< non-blocking and close-on-exec
    again,     ///< that one had gone before it was accepted: ask for the next one
    nobody,    ///< nobody waits
    refused,   ///< out of descriptors, and the one that waited was closed
    broken,    ///< accepting cannot go on for now: pause
  };

  explicit accept_queue(listener at) noexcept : listener_(std::move(at)), reserve_(spare()) {}
  [[nodiscard]] listener const& at() const noexcept { return listener_; }
  /// `why` is the errno value of `refused` and `broken`.
  outcome next(unique_fd& taken, int& why) noexcept {
    taken.reset(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (taken) return outcome::accepted;
    switch (why = errno) {
      case EAGAIN: return outcome::nobody;
      case EINTR:
      case ECONNABORTED:
      case EPROTO:
      case ENETDOWN:
      case ENOPROTOOPT:
      case EHOSTDOWN:
      case EHOSTUNREACH:
      case EOPNOTSUPP:
      case ENETUNREACH: return outcome::again;
      case EMFILE:
      case ENFILE: return refuse_one();
      default: return outcome::broken;
    }
  }

 private:
  static unique_fd spare() noexcept { return unique_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  outcome refuse_one() noexcept {
    if (!reserve_) reserve_ = spare();
    if (!reserve_) return outcome::broken;
    reserve_.reset();
    unique_fd victim(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    // accept4 wants a descriptor before it looks whether somebody waits.
    const outcome how = victim ? outcome::refused : errno == EAGAIN ? outcome::nobody : outcome::broken;
    victim.reset();
    reserve_ = spare();
    return how;
  }

  listener listener_;
  unique_fd reserve_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
