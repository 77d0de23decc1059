#pragma once
#include "../rt/loop.hpp"

namespace rollcall {
inline namespace v0 {
namespace test {

/// A loop's time in the hands of a test: stands still until it is moved. Installs itself, and brings the real clock back when it is
/// destroyed. Make it before anything on the loop sets a timer; timers that are set under it keep no loop running.
class manual_clock final : public clock_source {
 public:
  explicit manual_clock(loop& l, time_point start = time_point(std::chrono::hours(1))) noexcept : core_(l.core()), now_(start) {
    core_.keep();
    core_.set_clock(this);
  }
  manual_clock(manual_clock const&) = delete;
  manual_clock& operator=(manual_clock const&) = delete;
  ~manual_clock() {
    core_.set_clock(nullptr);
    core_.release();
  }

  [[nodiscard]] time_point now() noexcept override { return now_; }
  /// Moves on by `d`, never back, and stops on the way at every instant a timer is due, so that each sees its own time.
  ///
  /// Called from within the loop (from a coroutine on it), timers make their coroutines ready, and these run when the caller
  /// suspends; called from plain code, they run within this call.
  void advance(duration d) noexcept {
    const time_point end = deadline(d).from(now_);
    core_.fire_timers();
    for (time_point next = core_.next_timer(); next > now_ && next <= end; next = core_.next_timer()) {
      now_ = next;
      core_.fire_timers();
    }
    if (end <= now_) return;
    now_ = end;
    core_.fire_timers();
  }
  /// Moves to the next instant a timer is due; false when there is no timer.
  bool advance_to_next() noexcept {
    const time_point next = core_.next_timer();
    if (next == time_point::max()) return false;
    if (next > now_) now_ = next;
    core_.fire_timers();
    return true;
  }

 private:
  detail::loop_core& core_;
  time_point now_;
};

}  // namespace test
}  // namespace v0
}  // namespace rollcall
