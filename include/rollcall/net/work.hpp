#pragma once
#include <uv.h>

#include <concepts>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "../rt/detail/waiter.hpp"
#include "../rt/loop.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// Runs `F` in libuv's thread pool. Function, value and request live in a block that the pool's callback frees, so that the
/// awaiting coroutine may leave or die at any time.
template <class F>
class [[nodiscard]] blocking_call final : private waiter {
  using value_type = std::invoke_result_t<F&>;
  using slot = std::conditional_t<std::is_void_v<value_type>, std::monostate, value_type>;
  static_assert(!std::is_reference_v<value_type>, "rollcall: run_blocking returns values, not references");

 public:
  blocking_call(loop_core* core, F f) : own_core_(core), block_(new block(std::move(f))) {}
  /// Only before it is awaited.
  blocking_call(blocking_call&& o) noexcept : waiter(), own_core_(o.own_core_), block_(std::exchange(o.block_, nullptr)) {}
  ~blocking_call() {
    if (how() == state::waiting && block_) {
      leave();
    } else {
      delete block_;
    }
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) {
    if (!begin(h, own_core_)) return false;
    int status = UV_EINVAL;
    if (core()) {
      block_->core = core();
      block_->owner = this;
      block_->request.data = block_;
      status = uv_queue_work(core()->native(), &block_->request, &blocking_call::on_work, &blocking_call::on_done);
    }
    if (status != 0) {
      delete std::exchange(block_, nullptr);
      throw error(core() ? errc::io : errc::invalid, "run_blocking",
                  core() ? uv_strerror(status) : "the awaiting coroutine has no loop: pass one, run_blocking(loop, f)");
    }
    core()->add_handle();
    return true;
  }
  value_type await_resume() {
    if (was_stopped()) throw error(failure(errc::cancelled, "run_blocking").with_effect(began_ ? effect::unknown : effect::none));
    if (block_->exception) std::rethrow_exception(block_->exception);
    if constexpr (!std::is_void_v<value_type>) return std::move(*block_->value);
  }

 private:
  struct block {
    explicit block(F fn) : f(std::move(fn)) {}
    uv_work_t request{};
    loop_core* core = nullptr;
    blocking_call* owner = nullptr;
    F f;
    std::optional<slot> value;
    std::exception_ptr exception;
  };

  static void on_work(uv_work_t* r) noexcept {
    auto* b = static_cast<block*>(r->data);
    try {
      if constexpr (std::is_void_v<value_type>) {
        b->f();
      } else {
        b->value.emplace(b->f());
      }
    } catch (...) {
      b->exception = std::current_exception();
    }
  }
  static void on_done(uv_work_t* r, int) noexcept {
    auto* b = static_cast<block*>(r->data);
    loop_core& core = *b->core;
    const loop_core::turn t(core);
    core.drop_handle();
    if (blocking_call* owner = std::exchange(b->owner, nullptr)) {
      owner->complete();
    } else {
      delete b;
    }
  }
  void leave() noexcept override {
    block* b = std::exchange(block_, nullptr);
    b->owner = nullptr;
    began_ = uv_cancel(reinterpret_cast<uv_req_t*>(&b->request)) != 0;
  }

  loop_core* own_core_;
  block* block_;
  bool began_ = false;
};

}  // namespace detail

/// Runs `f()` in libuv's thread pool, for calls that block, and gives its value or rethrows its exception.
///
/// f         owned by the call and destroyed on the loop's thread when it has returned; may run after the awaiting coroutine has gone, so
///           it must own what it uses. On g++ 12 name a capturing lambda first: a temporary one inside co_await is destroyed twice.
/// cancel    completes in this loop turn; a call that has not begun never runs (effect none), one that has begun goes on by itself
///           and its result is dropped (effect unknown). The loop stays alive until it has returned.
/// lifetime  needs the loop of the awaiting coroutine, or one as the first argument.
template <std::invocable F>
[[nodiscard]] detail::blocking_call<F> run_blocking(F f) {
  return detail::blocking_call<F>(nullptr, std::move(f));
}
template <std::invocable F>
[[nodiscard]] detail::blocking_call<F> run_blocking(loop& l, F f) {
  return detail::blocking_call<F>(&l.core(), std::move(f));
}

}  // namespace v0
}  // namespace rollcall
