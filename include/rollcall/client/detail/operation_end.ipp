#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "../operation.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

inline void store_op::on_lost() noexcept {
  resumable_ = false;
  failure const* const why = lane_->why().get();
  // What another operation has tried there is this one's verdict as well.
  const bool tried = phase_ == phase::trying || (phase_ == phase::knocking && lane_->tried());
  if (tried && why && why->code() == errc::disconnected && !client_->closed()) {
    // The server may have closed at an opcode that it does not know. Asked in a later turn: a call of that lane is on the stack.
    lane_ = nullptr;
    phase_ = phase::doubting;
    set_timer(core()->now());
    return;
  }
  in_doubt_ = in_doubt_ && (engine::exchange::written() || only_looks());
  guarded([&] { failure_ = std::make_shared<failure const>(describe_loss(why)); });
  if (kind_ == op_kind::flush) client_->sends().tell(asked_);
  end();
}

inline void store_op::store_ends() noexcept {
  resumable_ = false;
  in_doubt_ = in_doubt_ && (!engine::exchange::engaged() || engine::exchange::written() || only_looks());
  if (kind_ == op_kind::flush) client_->sends().tell(asked_);
  guarded([this] { failure_ = std::make_shared<failure const>(describe_loss(client_->why_closed().get())); });
  end();
}

inline void store_op::expire() noexcept {
  guarded([this] {
    const bool paused = phase_ == phase::pausing || phase_ == phase::doubting;
    const bool late = core()->now() >= limit_.from(begun_);
    if (paused && !late) {
      set_timer(limit_.from(begun_));
      return resume();
    }
    if (phase_ == phase::autopsy) return conclude();
    if (phase_ != phase::waiting || key_count() <= 1 || !lane_->ready() || std::exchange(expired_, true)) return fail(errc::timed_out, {});
    // Which of the keys are missing? Asked on the connection that waited, up to a tenth of a second.
    phase_ = phase::autopsy;
    lane_->session().cancel(*this);
    for_each_key([this](std::uint64_t i, std::string_view key) {
      if (i < autopsy_keys) send(check_one, key, wire::reply_form::u8);
    });
    client_->request_flush();
    set_timer(core()->now() + autopsy_time);
  });
}
inline void store_op::conclude() {
  const std::uint64_t n = key_count();
  const std::uint64_t bits = n >= autopsy_keys ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
  if (kind_ == op_kind::wait && n <= autopsy_keys && asked_ == bits && missing_ == 0) return end();  // they came while we asked
  fail(errc::timed_out, {});
}

inline void store_op::fail(errc code, std::string detail) {
  failure_ = std::make_shared<failure const>(describe(code, std::move(detail)));
  end();
}
inline void store_op::end() noexcept {
  retire();
  complete();
}

/// Leaves the session and the timers; what was sent stays sent.
inline void store_op::retire() noexcept {
  if (!std::exchange(active_, false)) return;
  core()->remove_timer(*this);
  if (lane_ && engine::exchange::engaged()) leave_session();
  if (std::exchange(resumable_, false)) {
    try {
      client_->remember_arrival(key());
    } catch (...) {  // no memory: calling again counts again
    }
  }
  lane_ = nullptr;
  client_->operation_ends(*this);
}
inline void store_op::leave_session() noexcept {
  try {
    if (phase_ == phase::popping && !lane_->dead()) {
      client_->keep_popped(key(), *lane_, *this);
    } else {
      lane_->session().abandon(*this);
    }
    client_->request_flush();
  } catch (...) {
    // No memory for one byte: the connection cannot be kept in step.
    leave_running();
    client_->close();
  }
}

inline failure store_op::describe_loss(failure const* why) const {
  if (!why) return describe(errc::closed, "the store was closed");
  return describe(why->code(), why->detail());
}

inline failure store_op::describe(errc code, std::string detail) const {
  std::uint64_t unknown = 0;
  failure f(code, traits().name);
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
  // What is staged on a connection goes out with its next write, also when nobody waits for it any more. An item that a stopped pop has
  // left behind is kept for the next one, so only a loss makes that doubtful.
  const bool kept = is_pop() && (code == errc::timed_out || code == errc::cancelled);
  // What a flush() was to confirm may have been executed whenever that fails.
  if ((in_doubt_ && !kept) || kind_ == op_kind::flush) f.with_effect(effect::unknown);
  return f.with_detail(std::move(detail));
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
