#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

#include "clock.hpp"
#include "random.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// The jittered pause between two rounds: 25 ms at first, half as long again each time, at most 2 s.
class back_off {
 public:
  back_off() : random_(static_cast<std::minstd_rand::result_type>(random_bits())) {}
  [[nodiscard]] duration next() {
    const auto d = duration(static_cast<std::int64_t>(static_cast<double>(base_.count()) * std::uniform_real_distribution(0.5, 1.5)(random_)));
    base_ = std::min(base_ + base_ / 2, duration(std::chrono::seconds(2)));
    return d;
  }
  /// How long the next handshake may stand still: 1 s at first, then twice as long each time, at most 30 s; jittered.
  [[nodiscard]] duration patience() {
    const auto d = duration(static_cast<std::int64_t>(static_cast<double>(patience_.count()) * std::uniform_real_distribution(0.75, 1.25)(random_)));
    patience_ = std::min(patience_ * 2, duration(std::chrono::seconds(30)));
    return d;
  }
  [[nodiscard]] std::uint32_t nonce() { return static_cast<std::uint32_t>(random_()); }

 private:
  std::minstd_rand random_;
  duration base_ = std::chrono::milliseconds(25);
  duration patience_ = std::chrono::seconds(1);
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
