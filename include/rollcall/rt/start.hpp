#pragma once
#include <exception>
#include <type_traits>
#include <utility>

#include "combine.hpp"
#include "loop.hpp"
#include "scope.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// Owns one driver that nobody waits for, and itself.
class detached final : private child_owner {
 public:
  static void launch(driver d, environment const& e) { (new detached())->child_owner::launch(std::move(d), e); }

 private:
  detached() noexcept = default;
  ~detached() = default;
  void child_ended(std::exception_ptr e) noexcept override {
    if (e) std::rethrow_exception(e);  // noexcept: a callback that throws ends the program, as documented
    delete this;
  }
};

template <class A, class F>
driver drive_callback(A awaitable, F callback) {
  callback(co_await as_result(std::move(awaitable)));
}

}  // namespace detail

/// Starts an operation from code that is no coroutine; `callback(result<T>)` is called once, on the loop's thread, never inside this call.
/// To be able to stop it, give a token; its source must outlive the operation. An exception of the callback, or one of the awaitable that
/// is no rollcall::error, ends the program: there is nobody to take it.
template <class A, class F>
  requires std::invocable<F&, result<await_result_t<A>>>
void start(loop& l, A awaitable, F callback, stop_token stop = {}) {
  detail::detached::launch(detail::drive_callback(std::move(awaitable), std::move(callback)), environment(&l.core(), stop));
}
/// The same for operations that know their loop, which store operations do.
template <class A, class F>
  requires(std::invocable<F&, result<await_result_t<A>>> && requires(A const& a) {
    { a.own_loop() } -> std::convertible_to<detail::loop_core*>;
  })
void start(A awaitable, F callback, stop_token stop = {}) {
  const environment e(awaitable.own_loop(), stop);
  detail::detached::launch(detail::drive_callback(std::move(awaitable), std::move(callback)), e);
}

}  // namespace v0
}  // namespace rollcall
