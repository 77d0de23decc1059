#pragma once
#include "../core/error.hpp"
#include "detail/waiter.hpp"
#include "loop.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

class [[nodiscard]] sleep_awaiter final : private waiter {
 public:
  sleep_awaiter(loop_core* core, deadline until) noexcept
      : timer_([](timer_node& t) noexcept { static_cast<node&>(t).self.complete(); }, *this), own_core_(core), until_(until) {}
  /// Awaitables move until they are awaited.
  sleep_awaiter(sleep_awaiter&& o) noexcept : sleep_awaiter(o.own_core_, o.until_) {}
  ~sleep_awaiter() { leave(); }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) {
    if (!begin(h, own_core_)) return false;
    if (!core()) throw error(errc::invalid, "sleep", "the awaiting coroutine has no loop: pass one, sleep_for(loop, d)");
    if (!until_.is_never()) core()->add_timer(timer_, until_.from(core()->now()));
    return true;
  }
  void await_resume() const {
    if (was_stopped()) throw_cancelled("sleep");
  }

 private:
  struct node : timer_node {
    node(fire_fn f, sleep_awaiter& s) noexcept : timer_node(f), self(s) {}
    sleep_awaiter& self;
  };
  void leave() noexcept override {
    if (core()) core()->remove_timer(timer_);
  }
  node timer_;
  loop_core* own_core_;
  deadline until_;
};

}  // namespace detail

/// Suspends for `d` on the loop of the awaiting coroutine (never less; 1 ms steps). A stop ends it at once with errc::cancelled.
[[nodiscard]] inline detail::sleep_awaiter sleep_for(duration d) noexcept { return {nullptr, d}; }
[[nodiscard]] inline detail::sleep_awaiter sleep_until(time_point t) noexcept { return {nullptr, t}; }
/// The same for coroutine types that have no environment.
[[nodiscard]] inline detail::sleep_awaiter sleep_for(loop& l, duration d) noexcept { return {&l.core(), d}; }
[[nodiscard]] inline detail::sleep_awaiter sleep_until(loop& l, time_point t) noexcept { return {&l.core(), t}; }

}  // namespace v0
}  // namespace rollcall
