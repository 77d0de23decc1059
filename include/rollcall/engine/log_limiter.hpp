#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "../core/clock.hpp"
#include "../core/log.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// At most so many log lines a second on average; counts what it swallows. `Host` has logs(), now() and log(level, line).
class log_limiter {
 public:
  static constexpr int burst = 20;
  static constexpr std::chrono::milliseconds refill{500};
  template <class Host, class Line>
  void log(Host& host, log_level level, Line line) {
    if (!host.logs()) return;
    const time_point now = host.now();
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
    host.log(level, text);
  }

 private:
  int tokens_ = burst;
  time_point last_{};
  std::uint64_t swallowed_ = 0;
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
