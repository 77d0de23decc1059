#pragma once
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "../core/result.hpp"
#include "scope.hpp"
#include "task.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// void has no object: a branch without a value yields std::monostate.
template <class T>
using object_of = std::conditional_t<std::is_void_v<T>, std::monostate, std::remove_cvref_t<T>>;

template <class A, class T>
driver drive_into(A awaitable, std::optional<T>* slot) {
  if constexpr (std::is_void_v<await_result_t<A>>) {
    co_await std::move(awaitable);
    slot->emplace();
  } else {
    slot->emplace(co_await std::move(awaitable));
  }
}

template <class... A, class... T, std::size_t... I>
void launch_into(scope& s, std::tuple<std::optional<T>...>& slots, std::index_sequence<I...>, A&... awaitables) {
  (s.start_driver(drive_into(std::move(awaitables), &std::get<I>(slots))), ...);
}

template <class... T, std::size_t... I>
std::tuple<T...> unwrap(std::tuple<std::optional<T>...>& slots, std::index_sequence<I...>) {
  return std::tuple<T...>(std::move(*std::get<I>(slots))...);
}

/// Asks `source` to stop at a point in time, and remembers that it was the one.
class deadline_timer final : private timer_node {
 public:
  deadline_timer(loop_core& core, time_point at, stop_source& source) noexcept
      : timer_node([](timer_node& t) noexcept { static_cast<deadline_timer&>(t).expire(); }), core_(core), source_(source) {
    if (at != time_point::max()) core_.add_timer(*this, at);
  }
  deadline_timer(deadline_timer const&) = delete;
  deadline_timer& operator=(deadline_timer const&) = delete;
  ~deadline_timer() { core_.remove_timer(*this); }
  [[nodiscard]] bool expired() const noexcept { return expired_; }

 private:
  void expire() noexcept {
    expired_ = !source_.stop_requested();
    source_.request_stop();
  }
  loop_core& core_;
  stop_source& source_;
  bool expired_ = false;
};

}  // namespace detail

/// Runs operations and tasks at the same time and waits for all of them; gives a tuple of their values (std::monostate for void).
///
/// errors    the first one, after the others were asked to stop and have ended.
/// cancel    stops all of them, waits for them, then errc::cancelled.
template <class... A>
task<std::tuple<detail::object_of<await_result_t<A>>...>> when_all(A... awaitables) {
  const environment env = co_await this_environment();
  std::tuple<std::optional<detail::object_of<await_result_t<A>>>...> slots;
  scope group(env.loop);
  detail::launch_into(group, slots, std::index_sequence_for<A...>(), awaitables...);
  co_await group.join();
  co_return detail::unwrap(slots, std::index_sequence_for<A...>());
}

/// The value or failure of an operation or task, without throwing `error`; other exceptions pass through.
template <class A>
task<result<await_result_t<A>>> as_result(A awaitable) {
  try {
    if constexpr (std::is_void_v<await_result_t<A>>) {
      co_await std::move(awaitable);
      co_return result<void>();
    } else {
      co_return result<await_result_t<A>>(co_await std::move(awaitable));
    }
  } catch (error const& e) {
    co_return result<await_result_t<A>>(e.shared());
  }
}

/// Runs an operation or a task under a limit: when it passes, the awaited is asked to stop, and errc::timed_out is thrown once it
/// has ended. The awaiting coroutine must have a loop.
///
/// errors    timed_out with the effect the stopped operation reports; its own errors otherwise; invalid where there is no loop.
/// cancel    passed on to the awaited; then its errc::cancelled.
template <class A>
task<await_result_t<A>> with_deadline(A awaitable, deadline limit) {
  const environment env = co_await this_environment();
  if (!env.loop) throw error(errc::invalid, "with_deadline", "the awaiting coroutine has no loop");
  const time_point begun = env.loop->now();
  stop_source inner;
  auto pass_on = [&inner]() noexcept { inner.request_stop(); };
  const stop_callback link(env.stop, pass_on);
  const detail::deadline_timer timer(*env.loop, limit.from(begun), inner);
  co_await detail::stop_with(inner.token());
  try {
    if constexpr (std::is_void_v<await_result_t<A>>) {
      co_await std::move(awaitable);
      co_return;
    } else {
      co_return co_await std::move(awaitable);
    }
  } catch (error const& e) {
    if (!timer.expired() || e.code() != errc::cancelled) throw;
    failure f = e.info();
    throw error(f.with_code(errc::timed_out).with_times(env.loop->now() - begun, limit.length(begun)));
  }
}

}  // namespace v0
}  // namespace rollcall
