#pragma once
#include <algorithm>
#include <cstdint>

#include "lane.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What send_set() and its kin have sent and the server has not been heard to have executed: one exchange for all of it, on one lane, so
/// that it is executed in order. Sends are numbered: a loss is told by every flush() that was called before it was told for its sends.
class unconfirmed_sends final : private engine::exchange {
 public:
  unconfirmed_sends() noexcept = default;
  ~unconfirmed_sends() { abandon(); }

  [[nodiscard]] bool outstanding() const noexcept { return engine::exchange::engaged(); }
  /// Where it is under way; only while it is outstanding.
  [[nodiscard]] lane* through() const noexcept { return through_; }
  template <class F>
  void post(lane& l, F encode) {
    through_ = &l;
    ++sent_;
    l.session().post(*this, encode);
  }
  /// The connection ends.
  void lose(failure_ptr const& why) noexcept {
    if (!outstanding()) return;
    abandon();
    note_loss(why);
  }

  /// How many there were, and up to which one losses have been told: what a flush() remembers when it is called.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  [[nodiscard]] std::uint64_t told() const noexcept { return told_; }
  /// Why some behind number `told` may not have been executed; nullptr where nothing is known to be lost.
  [[nodiscard]] failure const* lost_behind(std::uint64_t told) const noexcept { return lost_ > told ? why_.get() : nullptr; }
  /// A flush() has told of the losses up to number `n`.
  void tell(std::uint64_t n) noexcept { told_ = std::max(told_, n); }

 private:
  void abandon() noexcept {
    if (outstanding()) through_->session().abandon(*this);
  }
  void note_loss(failure_ptr const& why) noexcept {
    lost_ = sent_;
    why_ = why;
  }
  void on_reply(std::size_t, wire::reply&) noexcept override {}
  void on_done() noexcept override {}
  void on_lost() noexcept override { note_loss(through_->why()); }

  lane* through_ = nullptr;
  std::uint64_t sent_ = 0;
  std::uint64_t lost_ = 0;  // the last one that may be
  std::uint64_t told_ = 0;
  failure_ptr why_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
