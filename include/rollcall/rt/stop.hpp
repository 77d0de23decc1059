#pragma once
#include <concepts>
#include <utility>

#include "../core/intrusive.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {
struct stop_tag {};

/// What a stop source calls. Linked while registered; leaves by itself when destroyed.
class stop_listener : public list_hook<stop_tag> {
 public:
  virtual void on_stop() noexcept = 0;

 protected:
  ~stop_listener() = default;
};
}  // namespace detail

class stop_token;

/// Asks everything that runs under its token to finish. One thread only; neither copied nor moved; must outlive its tokens
/// (structured concurrency sees to that: a scope outlives its children). Nothing allocates.
class stop_source {
 public:
  stop_source() noexcept = default;
  stop_source(stop_source const&) = delete;
  stop_source& operator=(stop_source const&) = delete;

  /// Idempotent. Operations under the token complete with errc::cancelled in this loop turn; nobody is resumed inside this call.
  void request_stop() noexcept {
    if (std::exchange(requested_, true)) return;
    while (!listeners_.empty()) listeners_.pop_front().on_stop();
  }
  [[nodiscard]] bool stop_requested() const noexcept { return requested_; }
  [[nodiscard]] stop_token token() noexcept;

 private:
  friend class stop_token;
  list<detail::stop_listener, detail::stop_tag> listeners_;
  bool requested_ = false;
};

/// A view of a stop source; the default one never stops.
class stop_token {
 public:
  stop_token() noexcept = default;
  [[nodiscard]] bool stop_possible() const noexcept { return source_ != nullptr; }
  [[nodiscard]] bool stop_requested() const noexcept { return source_ && source_->requested_; }
  /// Registers `l` unless stop was requested already; returns whether it is registered (or never needs to be).
  bool listen(detail::stop_listener& l) const noexcept {
    if (!source_) return true;
    if (source_->requested_) return false;
    source_->listeners_.push_back(l);
    return true;
  }

 private:
  friend class stop_source;
  explicit stop_token(stop_source* s) noexcept : source_(s) {}
  stop_source* source_ = nullptr;
};

inline stop_token stop_source::token() noexcept { return stop_token(this); }

/// Calls `f` once when a stop is requested, at once when it was requested before. `f` must not throw and must not resume anybody.
template <std::invocable F>
class stop_callback final : private detail::stop_listener {
 public:
  stop_callback(stop_token t, F f) noexcept : f_(std::move(f)) {
    if (!t.listen(*this)) f_();
  }

 private:
  void on_stop() noexcept override { f_(); }
  F f_;
};

}  // namespace v0
}  // namespace rollcall
