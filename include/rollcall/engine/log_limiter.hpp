#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

#include "../core/clock.hpp"
#include "../core/log.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// At most so many log lines a second on average; counts what it swallows, a line for which there is no memory too. `Host` has logs(),
/// now() and log(level, line), none of which throws; line() makes the text, and may.
class log_limiter {
 public:
  static constexpr int burst = 20;
  static constexpr std::chrono::milliseconds refill{500};
  template <class Host, class Line>
  void log(Host& host, log_level level, Line line) noexcept {
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
    try {
      std::string text = line();
      if (swallowed_ > 0) text += " (" + std::to_string(swallowed_) + " more lines like this were not logged)";
      swallowed_ = 0;
      host.log(level, text);
    } catch (std::exception const&) {
      ++swallowed_;
    }
  }

 private:
  int tokens_ = burst;
  time_point last_{};
  std::uint64_t swallowed_ = 0;
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
