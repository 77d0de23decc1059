#pragma once
#include <concepts>
#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "../core/bytes.hpp"
#include "detail/core.hpp"
#include "stop.hpp"

namespace rollcall {
inline namespace v0 {

/// What flows down from an awaiting coroutine to what it awaits: the loop, and the token that stops it. Both may be absent.
class environment {
 public:
  environment() noexcept = default;
  environment(detail::loop_core* l, stop_token s) noexcept : loop(l), stop(s) {}
  detail::loop_core* loop = nullptr;
  stop_token stop;
};

/// A promise that offers an environment. Operations work in any coroutine type; where the promise has none, nothing stops them
/// from outside.
template <class P>
concept has_environment = requires(P& p) {
  { p.env() } -> std::convertible_to<environment const&>;
};

namespace detail {

template <class P>
[[nodiscard]] environment env_of(std::coroutine_handle<P> h) noexcept {
  if constexpr (has_environment<P>) {
    return h.promise().env();
  } else {
    return {};
  }
}

/// Common part of our promises: the environment, and the count of started frames of the loop.
class promise_base {
 public:
  promise_base() noexcept = default;
  promise_base(promise_base const&) = delete;
  promise_base& operator=(promise_base const&) = delete;
  ~promise_base() {
    if (env_.loop) env_.loop->drop_frame();
  }
  [[nodiscard]] environment const& env() const noexcept { return env_; }
  void start_in(environment const& e) noexcept {
    env_ = e;
    if (env_.loop) env_.loop->add_frame();
  }
  void set_stop(stop_token t) noexcept { env_.stop = t; }

 private:
  environment env_;
};

/// Destroys a frame of ours, wherever it is.
template <class P>
void destroy_frame(std::coroutine_handle<P> h) noexcept {
  loop_core* core = h.promise().env().loop;
  if (core && !h.done()) {
    const loop_core::teardown t(*core);
    h.destroy();
  } else {
    h.destroy();
  }
}

/// A task's promise without its value. No symmetric transfer (g++ 12 does not tail-call it): the awaiter resumes the child and goes
/// on at once when it has finished; a child that finishes later hands its parent to the ready queue.
class task_promise_base : public promise_base, public ready_node {
 public:
  task_promise_base() noexcept
      : ready_node([](ready_node& n) noexcept { static_cast<task_promise_base&>(n).parent_.resume(); }) {}

  std::suspend_always initial_suspend() noexcept { return {}; }
  auto final_suspend() noexcept {
    class last {
     public:
      explicit last(task_promise_base& p) noexcept : promise_(p) {}
      [[nodiscard]] bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<>) noexcept {
        promise_.finished_ = true;
        if (promise_.parent_waits_) schedule_or_run(promise_.env().loop, promise_);
      }
      void await_resume() const noexcept {}

     private:
      task_promise_base& promise_;
    };
    return last(*this);
  }
  void unhandled_exception() noexcept { exception_ = std::current_exception(); }

 protected:
  template <class>
  friend class task_awaiter;
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::coroutine_handle<> parent_;
  std::exception_ptr exception_;
  bool finished_ = false;
  bool parent_waits_ = false;
};

template <class T>
class task_promise;

template <class T>
class task_awaiter {
 public:
  explicit task_awaiter(std::coroutine_handle<task_promise<T>> h) noexcept : child_(h) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> parent) noexcept {
    return suspend(parent, env_of(parent));
  }
  /// The same where the type of the promise is lost.
  bool suspend(std::coroutine_handle<> parent, environment const& e) noexcept {
    task_promise<T>& p = child_.promise();
    p.start_in(e);
    p.parent_ = parent;
    child_.resume();
    if (p.finished_) return false;
    p.parent_waits_ = true;
    return true;
  }
  T await_resume() { return child_.promise().take(); }

 private:
  std::coroutine_handle<task_promise<T>> child_;
};

}  // namespace detail

/// A coroutine that starts when it is awaited, once, as an rvalue: `co_await f()`, or `co_await std::move(t)`.
///
/// Owns its frame; one that is never awaited is destroyed cleanly, one that is destroyed while suspended leaves every operation it
/// waits in. Takes the environment of whoever awaits it. Coroutine parameters should be values: views dangle once it is spawned.
template <class T = void>
class [[nodiscard]] task {
 public:
  using promise_type = detail::task_promise<T>;
  using value_type = T;

  task(task&& o) noexcept : frame_(std::exchange(o.frame_, {})) {}
  task& operator=(task&& o) noexcept {
    if (this != &o) {
      if (frame_) detail::destroy_frame(frame_);
      frame_ = std::exchange(o.frame_, {});
    }
    return *this;
  }
  ~task() {
    if (frame_) detail::destroy_frame(frame_);
  }
  auto operator co_await() && noexcept { return detail::task_awaiter<T>(frame_); }

 private:
  friend promise_type;
  explicit task(std::coroutine_handle<promise_type> h) noexcept : frame_(h) {}
  std::coroutine_handle<promise_type> frame_;
};
static_assert(await_safe<task<int>>);

namespace detail {

template <class T>
class task_promise final : public task_promise_base {
 public:
  task<T> get_return_object() noexcept { return task<T>(std::coroutine_handle<task_promise>::from_promise(*this)); }
  template <std::convertible_to<T> U>
  void return_value(U&& v) {
    value_.emplace(std::forward<U>(v));
  }
  T take() {
    rethrow();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class task_promise<void> final : public task_promise_base {
 public:
  task<void> get_return_object() noexcept { return task<void>(std::coroutine_handle<task_promise>::from_promise(*this)); }
  void return_void() const noexcept {}
  void take() const { rethrow(); }
};

/// `co_await this_environment()`: the environment of the coroutine itself.
class environment_awaiter {
 public:
  environment_awaiter() noexcept = default;
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    env_ = env_of(h);
    return false;
  }
  [[nodiscard]] environment await_resume() const noexcept { return env_; }

 private:
  environment env_;
};

/// `co_await stop_with(token)` in one of our tasks: what it awaits from here on runs under `token`.
class stop_with {
 public:
  explicit stop_with(stop_token t) noexcept : token_(t) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <std::derived_from<promise_base> P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    h.promise().set_stop(token_);
    return false;
  }
  void await_resume() const noexcept {}

 private:
  stop_token token_;
};

template <class A>
decltype(auto) get_awaiter(A&& a) {
  if constexpr (requires { std::forward<A>(a).operator co_await(); }) {
    return std::forward<A>(a).operator co_await();
  } else if constexpr (requires { operator co_await(std::forward<A>(a)); }) {
    return operator co_await(std::forward<A>(a));
  } else {
    return std::forward<A>(a);
  }
}

}  // namespace detail

/// The environment of the calling coroutine: its loop and its stop token. Never suspends.
[[nodiscard]] inline detail::environment_awaiter this_environment() noexcept { return {}; }

/// What `co_await std::move(a)` gives.
template <class A>
using await_result_t = decltype(detail::get_awaiter(std::declval<A>()).await_resume());

}  // namespace v0
}  // namespace rollcall
