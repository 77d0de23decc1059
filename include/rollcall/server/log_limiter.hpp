#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "../rt/detail/core.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// At most so many log lines a second on average; counts what it swallows.
class log_limiter {
 public:
  static constexpr int burst = 20;
  static constexpr std::chrono::milliseconds refill{500};
  template <class Line>
  void log(loop_core& core, log_level level, Line line) {
    if (!core.logs()) return;
    const time_point now = core.now();
    const auto earned = (now - last_) / refill;
    if (earned > 0) {
      tokens_ = static_cast<int>(std::min<std::int64_t>(burst, tokens_ + earned));
      last_ = now;
    }
    if (tokens_ == 0) {
      ++swallowed_;
      return;
    }
    --tokens_;
    std::string text = line();
    if (swallowed_ > 0) text += " (" + std::to_string(std::exchange(swallowed_, 0)) + " more lines like this were not logged)";
    core.log(level, text);
  }

 private:
  int tokens_ = burst;
  time_point last_{};
  std::uint64_t swallowed_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
