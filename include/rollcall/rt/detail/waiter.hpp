#pragma once
#include <coroutine>
#include <utility>

#include "../../core/error.hpp"
#include "../stop.hpp"
#include "../task.hpp"
#include "core.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// A coroutine that is suspended in one of our operations: resumed through the ready queue, exactly once, by completion or by stop.
/// Destroying it while it waits is safe; what it waited for finds it gone (the derived class unlinks itself).
class waiter : private ready_node, private stop_listener {
 public:
  waiter() noexcept : ready_node([](ready_node& n) noexcept { static_cast<waiter&>(n).handle_.resume(); }) {}
  waiter(waiter const&) = delete;
  waiter& operator=(waiter const&) = delete;

 protected:
  ~waiter() = default;
  enum class state : unsigned char { idle, waiting, done, stopped };

  /// Begins to wait; returns false when a stop was requested before: then it is done at once, as stopped.
  template <class P>
  bool begin(std::coroutine_handle<P> h, loop_core* fallback = nullptr) noexcept {
    return begin(h, env_of(h), fallback);
  }
  /// The same where the type of the promise is lost.
  bool begin(std::coroutine_handle<> h, environment const& e, loop_core* fallback) noexcept {
    core_ = e.loop ? e.loop : fallback;
    handle_ = h;
    if (!e.stop.listen(*this)) {
      state_ = state::stopped;
      return false;
    }
    state_ = state::waiting;
    return true;
  }
  /// It is over before the coroutine was suspended; for `return finish_at_once();` in await_suspend.
  bool finish_at_once() noexcept {
    state_ = state::done;
    static_cast<stop_listener&>(*this).unlink();
    return false;
  }
  /// It happened: resume in the loop's turn.
  void complete() noexcept {
    if (state_ == state::waiting) finish(state::done);
  }
  [[nodiscard]] state how() const noexcept { return state_; }
  [[nodiscard]] bool was_stopped() const noexcept { return state_ == state::stopped; }
  [[nodiscard]] loop_core* core() const noexcept { return core_; }

  /// The operation is to be abandoned; called before the waiter is scheduled as stopped.
  virtual void leave() noexcept = 0;

 private:
  void finish(state s) noexcept {
    state_ = s;
    static_cast<stop_listener&>(*this).unlink();
    if (core_) {
      core_->schedule(*this);
    } else {
      ready_node::run();
    }
  }
  void on_stop() noexcept override {
    if (state_ != state::waiting) return;
    leave();
    finish(state::stopped);
  }

  std::coroutine_handle<> handle_;
  loop_core* core_ = nullptr;
  state state_ = state::idle;
};

[[noreturn]] inline void throw_cancelled(std::string_view operation) { throw error(errc::cancelled, operation); }

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
