#pragma once
#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <random>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// 64 bits from the system. Not std::random_device: each of those executes CPUID, which a virtual machine traps: some 10 µs, more than all
/// the rest of making a client.
[[nodiscard]] inline std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits)) return bits;
  std::random_device other;  // a kernel without it, or before it has entropy
  return (std::uint64_t{other()} << 32) | other();
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
