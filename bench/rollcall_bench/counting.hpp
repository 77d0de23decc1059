#pragma once
#include <cstdint>

namespace bench {

/// What this process has allocated so far. Programs here have one thread; nothing is atomic.
struct allocation_counts {
  std::uint64_t calls = 0;       ///< of operator new, ever
  std::uint64_t live_bytes = 0;  ///< as malloc rounds them
  std::uint64_t live_blocks = 0;
  std::uint64_t libuv_bytes = 0;  ///< what libuv itself holds by malloc: mostly its table of watchers, which never shrinks
};

[[nodiscard]] allocation_counts allocations() noexcept;
/// Counts libuv's own allocations too, from here on: before the first loop is made.
void count_libuv() noexcept;

}  // namespace bench
