#pragma once
#include <concepts>
#include <cstddef>
#include <coroutine>
#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

#include "event.hpp"
#include "loop.hpp"
#include "task.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

class child_owner;

/// The outermost frame of something that runs by itself: a child of a scope, a branch of when_all, a call of start().
/// Starts and ends through the ready queue; tells its owner when it has ended.
class driver {
 public:
  class promise_type final : public promise_base, public ready_node, public list_hook<> {
   public:
    promise_type() noexcept : ready_node(&promise_type::turn) {}
    driver get_return_object() noexcept { return driver(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      class last {
       public:
        last() noexcept = default;
        [[nodiscard]] bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<promise_type> h) const noexcept { schedule_or_run(h.promise().env().loop, h.promise()); }
        void await_resume() const noexcept {}
      };
      return last();
    }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { exception = std::current_exception(); }
    child_owner* owner = nullptr;
    std::exception_ptr exception;

   private:
    static void turn(ready_node& n) noexcept;
  };
  using handle = std::coroutine_handle<promise_type>;

  driver(driver&& o) noexcept : frame_(std::exchange(o.frame_, {})) {}
  driver& operator=(driver&&) = delete;
  ~driver() {
    if (frame_) frame_.destroy();
  }

 private:
  friend class child_owner;
  explicit driver(handle h) noexcept : frame_(h) {}
  handle frame_;
};

/// Owns running drivers; learns of each one's end.
class child_owner {
 public:
  child_owner() noexcept = default;
  child_owner(child_owner const&) = delete;
  child_owner& operator=(child_owner const&) = delete;
  [[nodiscard]] std::size_t running() const noexcept { return running_; }

  void launch(driver d, environment const& e) noexcept {
    driver::handle h = std::exchange(d.frame_, {});
    driver::promise_type& p = h.promise();
    p.owner = this;
    p.start_in(e);
    children_.push_back(p);
    ++running_;
    if (e.loop) {
      e.loop->schedule(p);
    } else {
      h.resume();
    }
  }

 protected:
  ~child_owner() { destroy_children(); }
  void destroy_children() noexcept {
    while (!children_.empty()) {
      driver::promise_type& p = children_.pop_front();
      destroy_frame(driver::handle::from_promise(p));
    }
    running_ = 0;
  }
  /// One child ended, with `e` where it threw. The last call for it; may destroy the owner.
  virtual void child_ended(std::exception_ptr e) noexcept = 0;

 private:
  friend class driver::promise_type;
  void retire(driver::handle h) noexcept {
    std::exception_ptr e = std::move(h.promise().exception);
    h.destroy();
    --running_;
    child_ended(std::move(e));
  }
  list<driver::promise_type> children_;
  std::size_t running_ = 0;
};

inline void driver::promise_type::turn(ready_node& n) noexcept {
  auto& p = static_cast<promise_type&>(n);
  const handle h = handle::from_promise(p);
  if (h.done()) {
    p.owner->retire(h);
  } else {
    h.resume();
  }
}

template <class A>
driver drive(A awaitable) {
  co_await std::move(awaitable);
}
template <class F, class... Args>
driver drive_call(F f, Args... args) {
  co_await std::invoke(f, std::move(args)...);
}

}  // namespace detail

/// Runs children on a loop and waits for all of them. The first error of a child asks the others to stop; join() rethrows it.
///
/// Every scope must be joined. One that is destroyed without (an exception passed by, or the coroutine it lives in is destroyed) stops
/// its children and destroys their frames, which is safe at every await; what they had sent stays sent.
class scope final : private detail::child_owner {
 public:
  explicit scope(loop& l) noexcept : scope(&l.core()) {}
  /// For rollcall's own layers: without a loop, children run and end inside the calls that make them go on.
  explicit scope(detail::loop_core* c) noexcept : core_(c), idle_(c) { idle_.set(); }
  ~scope() {
    ROLLCALL_ASSERT((running() == 0 || std::uncaught_exceptions() > 0 || stop_.stop_requested() || joining_ || (core_ && core_->tearing_down())) &&
                    "rollcall: scope destroyed before join()");
    stop_.request_stop();
    destroy_children();
  }

  /// Starts an operation or a task as a child, in the loop's turn. Its value is dropped; its error stops the scope.
  template <class A>
    requires(!std::invocable<A> && std::move_constructible<A>)
  void spawn(A awaitable) {
    start_driver(detail::drive(std::move(awaitable)));
  }
  /// Calls `f(args...)` and runs the awaitable it returns; keeps `f` and `args` alive meanwhile, so a capturing lambda that is a
  /// coroutine is safe here.
  template <class F, class... Args>
    requires std::invocable<F&, Args...>
  void spawn(F f, Args... args) {
    start_driver(detail::drive_call(std::move(f), std::move(args)...));
  }

  /// Asks every child to stop; they complete with errc::cancelled, which join() does not count as an error.
  void request_stop() noexcept { stop_.request_stop(); }
  [[nodiscard]] stop_token token() noexcept { return stop_.token(); }
  [[nodiscard]] std::size_t size() const noexcept { return running(); }

  /// Waits until every child has ended, then rethrows the first error. A stop of the caller stops the children and waits for them.
  task<> join() {
    const environment env = co_await this_environment();
    {
      auto on_stop = [this]() noexcept { stop_.request_stop(); };
      const stop_callback link(env.stop, on_stop);
      co_await detail::stop_with(stop_token());
      joining_ = true;
      while (running() > 0) co_await idle_.wait();  // somebody may spawn after the last child has ended
      joining_ = false;
    }
    co_await detail::stop_with(env.stop);
    if (std::exception_ptr e = std::exchange(first_error_, nullptr)) std::rethrow_exception(e);
    if (env.stop.stop_requested()) detail::throw_cancelled("join a scope");
  }

  /// For rollcall's own layers: starts a frame that is already made.
  void start_driver(detail::driver d) noexcept {
    idle_.reset();
    launch(std::move(d), environment(core_, stop_.token()));
  }

 private:
  void child_ended(std::exception_ptr e) noexcept override {
    if (e && !first_error_ && !(stop_.stop_requested() && is_cancelled(e))) {
      first_error_ = std::move(e);
      stop_.request_stop();
    }
    if (running() == 0) idle_.set();
  }
  static bool is_cancelled(std::exception_ptr const& e) noexcept {
    try {
      std::rethrow_exception(e);
    } catch (error const& x) {
      return x.code() == errc::cancelled;
    } catch (...) {
      return false;
    }
  }

  detail::loop_core* core_;
  stop_source stop_;
  event idle_;
  std::exception_ptr first_error_;
  bool joining_ = false;
};

}  // namespace v0
}  // namespace rollcall
