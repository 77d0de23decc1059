#pragma once
#include <cstdio>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "combine.hpp"
#include "loop.hpp"
#include "scope.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

class sync_owner final : public child_owner {
 public:
  sync_owner() noexcept = default;
  ~sync_owner() = default;
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  void child_ended(std::exception_ptr e) noexcept override {
    exception_ = std::move(e);
    ended_ = true;
  }
  bool ended_ = false;
  std::exception_ptr exception_;
};

}  // namespace detail

/// Runs `l` until `awaitable` has ended; gives its value or rethrows its error. For plain code, never from within the loop.
/// errc::failed when nothing is left on the loop that could complete it. Anything else on the loop runs meanwhile.
template <class A>
await_result_t<A> sync_wait(loop& l, A awaitable, stop_token stop = {}) {
  std::optional<detail::object_of<await_result_t<A>>> value;
  detail::sync_owner owner;
  l.core().bind_thread();
  owner.launch(detail::drive_into(std::move(awaitable), &value), environment(&l.core(), stop));
  while (!owner.ended()) {
    if (uv_run(l.native(), UV_RUN_ONCE) == 0 && !owner.ended())
      throw error(errc::failed, "sync_wait", "nothing is left on the loop that could complete it");
  }
  owner.rethrow();
  if constexpr (!std::is_void_v<await_result_t<A>>) return std::move(*value);
}

/// For `main`: makes a loop, runs `f(loop)`, a task, to its end. Returns its int, 0 for a void task, or 1 after printing an
/// exception to standard error.
template <class F>
  requires std::invocable<F&, loop&>
int run(F f) {
  try {
    loop l;
    using value = await_result_t<std::invoke_result_t<F&, loop&>>;
    if constexpr (std::is_void_v<value>) {
      sync_wait(l, f(l));
      return 0;
    } else {
      return static_cast<int>(sync_wait(l, f(l)));
    }
  } catch (std::exception const& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
  } catch (...) {
    std::fputs("error: unknown exception\n", stderr);
  }
  return 1;
}

}  // namespace v0
}  // namespace rollcall
