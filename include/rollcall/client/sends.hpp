#pragma once
#include "lane.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What send_set() and its kin have sent and the server has not been heard to have executed: one exchange for all of it, on one lane, so
/// that it is executed in order.
class unconfirmed_sends final : private engine::exchange {
 public:
  unconfirmed_sends() noexcept = default;
  ~unconfirmed_sends() { forget(); }

  [[nodiscard]] bool outstanding() const noexcept { return engine::exchange::engaged(); }
  /// Where it is under way; only while it is outstanding.
  [[nodiscard]] lane* through() const noexcept { return through_; }
  template <class F>
  void post(lane& l, F encode) {
    through_ = &l;
    l.session().post(*this, encode);
  }
  /// Why some of it may not have been executed; nullptr where nothing is known to be lost.
  [[nodiscard]] failure_ptr const& loss() const noexcept { return lost_; }
  /// Somebody was told of the loss, or nobody is to be.
  void forget() noexcept {
    if (outstanding()) through_->session().abandon(*this);
    lost_ = nullptr;
  }
  /// The connection ends.
  void lose(failure_ptr const& why) noexcept {
    if (!outstanding()) return;
    forget();
    lost_ = why;
  }

 private:
  void on_reply(std::size_t, wire::reply&) noexcept override {}
  void on_done() noexcept override {}
  void on_lost() noexcept override { lost_ = through_->why(); }
  lane* through_ = nullptr;
  failure_ptr lost_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
