#pragma once
#include <chrono>
#include <cstdint>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {

/// The clock all deadlines are measured on: monotonic, resolution 1 ns, read through a loop (or a simulator), never globally.
struct loop_clock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = std::chrono::duration<rep, period>;
  using time_point = std::chrono::time_point<loop_clock>;
  static constexpr bool is_steady = true;
};

using duration = loop_clock::duration;
using time_point = loop_clock::time_point;

/// Where `now` comes from. The loop owns a real one; tests and the simulator plug in their own.
class clock_source {
 public:
  virtual time_point now() noexcept = 0;

 protected:
  ~clock_source() = default;
};

/// `d` as nanoseconds; values past the range of 64 bits become the largest or smallest one.
template <class Rep, class Period>
[[nodiscard]] constexpr duration saturate(std::chrono::duration<Rep, Period> d) noexcept {
  using wide = std::chrono::duration<long double, std::nano>;
  const long double ns = std::chrono::duration_cast<wide>(d).count();
  if (!(ns < 9.2e18L)) return duration::max();
  if (ns < -9.2e18L) return duration::min();
  return std::chrono::duration_cast<duration>(d);
}

/// A limit on one operation: a duration that starts to count when the operation is awaited, a point on the loop clock, or none.
///
/// Converts from any std::chrono duration. A bare integer does not compile. A duration of zero or less has passed at once.
class deadline {
 public:
  template <class Rep, class Period>
  constexpr deadline(std::chrono::duration<Rep, Period> after) noexcept : value_(saturate(after)), kind_(kind::after) {
    if (value_ == duration::max()) kind_ = kind::never;
  }
  constexpr deadline(time_point at) noexcept : value_(at.time_since_epoch()), kind_(kind::at) {
    if (value_ == duration::max()) kind_ = kind::never;
  }
  [[nodiscard]] static constexpr deadline never() noexcept { return deadline(duration::max()); }

  [[nodiscard]] constexpr bool is_never() const noexcept { return kind_ == kind::never; }
  /// Whether it is a point on the loop clock, which passes once for all operations.
  [[nodiscard]] constexpr bool is_point() const noexcept { return kind_ == kind::at; }

  /// The point this limit means when counted from `now`; time_point::max() for never.
  [[nodiscard]] constexpr time_point from(time_point now) const noexcept {
    if (kind_ == kind::never) return time_point::max();
    if (kind_ == kind::at) return time_point(value_);
    if (value_ > duration::zero() && now.time_since_epoch() > duration::max() - value_) return time_point::max();
    return now + value_;
  }

  /// How long this limit is when counted from `now`; duration::max() for never.
  [[nodiscard]] constexpr duration length(time_point now) const noexcept {
    if (kind_ == kind::never) return duration::max();
    if (kind_ == kind::after) return value_;
    if (value_ < duration::zero() && now.time_since_epoch() > duration::zero()) return duration::zero();  // long past; the difference may overflow
    return time_point(value_) - now;
  }

 private:
  enum class kind : std::uint8_t { after, at, never };
  duration value_;
  kind kind_;
};

}  // namespace v0
}  // namespace rollcall
