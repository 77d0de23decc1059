#pragma once
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
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

namespace detail {

/// An awaitable that can tell its outcome without throwing, as the operations of our stores can.
template <class A>
concept tells_result = requires(A& a) {
  { a.take_result() } -> std::same_as<result<await_result_t<A>>>;
};

template <tells_result A>
class [[nodiscard]] result_awaiter {
 public:
  explicit result_awaiter(A a) noexcept : awaited_(std::move(a)) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return awaited_.await_suspend(h);
  }
  result<await_result_t<A>> await_resume() { return awaited_.take_result(); }
  [[nodiscard]] loop_core* own_loop() const noexcept { return awaited_.own_loop(); }

 private:
  A awaited_;
};

}  // namespace detail

/// The outcome of a store's operation as a value: nothing is thrown and no frame is made.
template <detail::tells_result A>
[[nodiscard]] detail::result_awaiter<A> as_result(A operation) noexcept {
  return detail::result_awaiter<A>(std::move(operation));
}
/// The value or failure of a task, or of anything else that can be awaited, without throwing `error`; other exceptions pass through.
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

namespace detail {
class race;
template <class... A>
struct race_of;
}  // namespace detail

/// What when_any gives: which branch ended first, and the values. A branch that was stopped has none; a loser that had ended well
/// before the stop could reach it has one too, so that nothing it took (an item of a channel, a line of input) is lost.
template <class... T>
class [[nodiscard]] first_of {
 public:
  /// The position, from 0, of the branch that decided.
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// The value of branch I, or nullptr where it has none; never nullptr for I == index(). std::monostate for a branch without a value.
  template <std::size_t I>
  [[nodiscard]] auto* get_if() noexcept {
    auto& slot = std::get<I>(values_);
    return slot ? &*slot : nullptr;
  }
  template <std::size_t I>
  [[nodiscard]] auto const* get_if() const noexcept {
    auto const& slot = std::get<I>(values_);
    return slot ? &*slot : nullptr;
  }
  /// The value of branch I; errc::invalid where it has none.
  template <std::size_t I>
  [[nodiscard]] auto& get() & {
    return *checked(get_if<I>(), I);
  }
  template <std::size_t I>
  [[nodiscard]] auto get() && {
    return std::move(*checked(get_if<I>(), I));
  }

 private:
  template <class...>
  friend struct detail::race_of;
  first_of(std::size_t index, std::tuple<std::optional<T>...>&& values) noexcept(std::is_nothrow_move_constructible_v<std::tuple<std::optional<T>...>>)
      : index_(index), values_(std::move(values)) {}
  template <class V>
  V* checked(V* value, std::size_t wanted) const {
    if (!value) throw error(errc::invalid, "first_of::get", "branch " + std::to_string(wanted) + " has no value; branch " + std::to_string(index_) + " ended first");
    return value;
  }
  std::size_t index_;
  std::tuple<std::optional<T>...> values_;
};

namespace detail {

/// Who of several branches decides: the first that ends with a value or an error. A branch that ends as cancelled because the caller
/// was stopped decides only when no other does.
class race {
 public:
  race(scope& group, stop_token caller) noexcept : group_(group), caller_(caller) {}
  race(race const&) = delete;
  race& operator=(race const&) = delete;

  void ended_well(std::size_t branch) noexcept {
    if (decided_ && !given_up_) return;
    decide(branch, nullptr, false);
  }
  void failed(std::size_t branch, std::exception_ptr e, bool cancelled) noexcept {
    const bool gives_up = cancelled && caller_.stop_requested();
    if (decided_ && (!given_up_ || gives_up)) return;
    decide(branch, std::move(e), gives_up);
  }
  [[nodiscard]] std::size_t winner() const noexcept { return winner_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void decide(std::size_t branch, std::exception_ptr e, bool gives_up) noexcept {
    decided_ = true;
    given_up_ = gives_up;
    winner_ = branch;
    error_ = std::move(e);
    group_.request_stop();
  }
  scope& group_;
  stop_token caller_;
  std::exception_ptr error_;
  std::size_t winner_ = 0;
  bool decided_ = false;
  bool given_up_ = false;
};

template <class A, class T>
driver race_into(A awaitable, std::optional<T>* slot, race* r, std::size_t branch) {
  bool cancelled = false;
  std::exception_ptr thrown;
  try {
    if constexpr (std::is_void_v<await_result_t<A>>) {
      co_await std::move(awaitable);
      slot->emplace();
    } else {
      slot->emplace(co_await std::move(awaitable));
    }
  } catch (error const& e) {
    cancelled = e.code() == errc::cancelled;
    thrown = std::current_exception();
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thrown) {
    r->failed(branch, std::move(thrown), cancelled);
  } else {
    r->ended_well(branch);
  }
}

template <class... A>
struct race_of {
  using values = std::tuple<std::optional<object_of<await_result_t<A>>>...>;
  using outcome = first_of<object_of<await_result_t<A>>...>;
  template <std::size_t... I>
  static void launch(scope& group, values& v, race& r, std::index_sequence<I...>, A&... awaitables) {
    (group.start_driver(race_into(std::move(awaitables), &std::get<I>(v), &r, I)), ...);
  }
  static outcome take(race const& r, values& v) { return outcome(r.winner(), std::move(v)); }
};

}  // namespace detail

/// Runs operations and tasks at the same time until the first of them ends, asks the others to stop, waits until they have ended, and
/// gives a first_of: which one it was, and its value.
///
/// completes when all have ended. Store operations, sleeps, events and channels end in the loop turn of their stop, whatever the server
///           does; a task when it has handled its stop. One that is complete at once keeps those after it from being sent.
/// errors    the one with which the first ended, if it failed; a branch that shall not decide by failing goes in as as_result(branch).
///           What a loser throws is dropped.
/// cancel    stops all of them and waits for them; then errc::cancelled, unless one of them ended otherwise: that one decides.
/// lifetime  needs no loop of its own; in a coroutine type without an environment the branches run in the calls that complete them.
template <class... A>
task<typename detail::race_of<A...>::outcome> when_any(A... awaitables) {
  static_assert(sizeof...(A) > 0, "when_any() of nothing would never end: give it one awaitable at least");
  const environment env = co_await this_environment();
  typename detail::race_of<A...>::values slots;
  scope group(env.loop);
  detail::race referee(group, env.stop);
  detail::race_of<A...>::launch(group, slots, referee, std::index_sequence_for<A...>(), awaitables...);
  const result<void> joined = co_await as_result(group.join());  // a failure here: the caller was stopped, which the branches know
  static_cast<void>(joined);
  referee.rethrow();
  co_return detail::race_of<A...>::take(referee, slots);
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
