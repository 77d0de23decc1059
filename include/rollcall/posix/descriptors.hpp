#pragma once
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "../core/clock.hpp"
#include "fd.hpp"

namespace rollcall {
inline namespace v0 {

/// Whether this process cannot open `n` (0..64) more descriptors now: EMFILE, its own limit, or ENFILE, the system's; 0 if it can.
[[nodiscard]] inline int lacks_descriptors(int n) noexcept {
  if (n <= 0) return 0;
  const unique_fd one(::eventfd(0, EFD_CLOEXEC));
  return one ? lacks_descriptors(n - 1) : errno;
}

namespace detail {

/// For those who try again and again: that nothing works may be for want of descriptors here, and then nobody else can help.
class descriptor_watch {
 public:
  static constexpr std::chrono::seconds patience{1};  ///< others of this process may give some back
  descriptor_watch() noexcept = default;
  /// After an attempt that failed: EMFILE or ENFILE once there has been no descriptor for `patience`, else 0.
  [[nodiscard]] int failed(time_point now) noexcept {
    const int why = lacks_descriptors(1);
    since_ = why == 0 ? time_point::max() : std::min(since_, now);
    return why != 0 && now - since_ >= patience ? why : 0;
  }

 private:
  time_point since_ = time_point::max();
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
