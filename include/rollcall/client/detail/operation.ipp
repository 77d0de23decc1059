#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "../operation.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// An empty value is also what a GET gives for a key that was deleted after the CHECK. A server of ours is asked again, in a way that
/// tells the two apart and changes nothing (elsewhere the same COMPARE_SET could wake somebody: protocol 4).
inline void store_op::confirm() noexcept {
  if (!client_->info().is_rollcall || (kind_ != op_kind::get && kind_ != op_kind::find && kind_ != op_kind::multi_get)) return end();
  guarded([this] {
    bool doubt = false;
    wire::field_cursor values(kind_ == op_kind::multi_get ? std::string_view(bytes_) : std::string_view());
    for_each_key([&](std::uint64_t, std::string_view key) {
      if (!(kind_ == op_kind::multi_get ? values.next() : bytes_).empty()) return;
      if (!std::exchange(doubt, true) && !take(client_->command_lane(), phase::confirming)) return;
      if (lane_) send("\x02", std::string(key) + absent_twice(), wire::reply_form::bytes);
    });
    doubt ? client_->request_flush() : end();
  });
}

inline failure store_op::describe(errc code, std::string detail) const {
  std::uint64_t unknown = 0;
  failure f(code, to_string(kind_));
  for_each_key([&](std::uint64_t i, std::string_view key) {
    if (phase_ == phase::autopsy) {
      const bool answered = i < autopsy_keys && (asked_ >> i & 1) != 0;
      if (answered && (missing_ >> i & 1) == 0) return;
      if (!answered) ++unknown;
    }
    f.with_key(as_user_wrote(key));
  });
  if (unknown > 0) detail = "whether " + std::to_string(unknown) + " of them exist could not be learnt";
  f.with_peer(client_->endpoint()).with_times(core() ? core()->now() - begun_ : duration(-1), limit_.length(begun_));
  // What is staged on a connection goes out with its next write, also when nobody waits for it any more.
  if (changes_something() && (engine::exchange::written() || engine::exchange::engaged() || left_behind_)) f.with_effect(effect::unknown);
  return f.with_detail(std::move(detail));
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
