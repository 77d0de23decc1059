#pragma once
#include <uv.h>

#include <chrono>
#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "../core/error.hpp"
#include "combine.hpp"
#include "detail/waiter.hpp"
#include "loop.hpp"
#include "scope.hpp"
#include "stop.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

template <class A>
concept awaitable = requires(A&& a) {
  { get_awaiter(std::forward<A>(a)).await_ready() } -> std::convertible_to<bool>;
  get_awaiter(std::forward<A>(a)).await_resume();
};
template <class R>
struct call_outcome {
  using type = std::remove_cvref_t<R>;
};
template <awaitable R>
struct call_outcome<R> {
  using type = std::remove_cvref_t<await_result_t<R>>;
};
/// What a call of F gives to the other side: the value of what it returns, awaited where that can be awaited.
template <class F>
using call_result_t = typename call_outcome<std::invoke_result_t<F&>>::type;

/// What the two sides of a call between threads share. The mutex guards the flags, and is held while F is called: F may refer to what
/// the waiting side keeps alive. Everything else has one owner at a time: `stop` the loop's thread, the outcome first that, then the
/// waiting side.
template <class T>
class call_record {
 public:
  call_record() noexcept = default;
  call_record(call_record const&) = delete;
  call_record& operator=(call_record const&) = delete;
  virtual ~call_record() = default;

  /// Tells the waiting side that the outcome is in. On the loop's thread, or, where the loop has ended, on any.
  static void end(std::shared_ptr<call_record> r) noexcept {
    {
      const std::lock_guard lock(r->mutex);
      r->ended = true;
      if (r->given_up) return;
    }
    call_record& record = *r;
    record.deliver(std::move(r));
  }
  T take() {
    if (failure_of_loop) throw error(failure_of_loop);
    if (exception) std::rethrow_exception(std::exchange(exception, nullptr));
    if (!value) throw error(failure(errc::closed, "call on another loop", "that loop has ended").with_effect(begun ? effect::unknown : effect::none));
    if constexpr (!std::is_void_v<T>) return std::move(*value);
  }

  std::mutex mutex;
  bool given_up = false;  // nobody waits any more
  bool begun = false;     // F was called
  bool ended = false;     // the outcome is in
  stop_source stop;
  std::optional<object_of<T>> value;
  failure_ptr failure_of_loop;
  std::exception_ptr exception;

 private:
  virtual void deliver(std::shared_ptr<call_record> self) noexcept = 0;
};

/// Whatever becomes of the call, its outcome goes to the waiting side when this is destroyed.
template <class T>
class call_end {
 public:
  explicit call_end(std::shared_ptr<call_record<T>> r) noexcept : record(std::move(r)) {}
  call_end(call_end const&) = delete;
  call_end& operator=(call_end const&) = delete;
  ~call_end() {
    if (record) call_record<T>::end(std::move(record));
  }
  std::shared_ptr<call_record<T>> record;
};

/// `asked`: when the limit began to count, on the clock of the system.
template <class T, class F>
driver run_call(std::shared_ptr<call_record<T>> r, F f, deadline limit, std::uint64_t asked) {
  const environment env = co_await this_environment();
  const call_end<T> end(r);
  std::unique_lock lock(r->mutex);
  if (r->given_up) co_return;
  try {
    const time_point now = env.loop->now();
    const time_point until = limit.from(now - duration(static_cast<std::int64_t>(uv_hrtime() - asked)));
    if (until <= now) throw error(failure(errc::timed_out, "call on another loop", "the limit passed before that loop took it up"));
    r->begun = true;
    if constexpr (awaitable<std::invoke_result_t<F&>>) {
      auto operation = f();
      lock.unlock();
      if (until != time_point::max()) {
        if constexpr (std::is_void_v<T>) {
          co_await with_deadline(std::move(operation), until);
          r->value.emplace();
        } else {
          r->value.emplace(co_await with_deadline(std::move(operation), until));
        }
      } else if constexpr (std::is_void_v<T>) {
        co_await std::move(operation);
        r->value.emplace();
      } else {
        r->value.emplace(co_await std::move(operation));
      }
    } else if constexpr (std::is_void_v<T>) {
      f();
      r->value.emplace();
    } else {
      r->value.emplace(f());
    }
  } catch (error const& e) {
    r->failure_of_loop = e.shared();
  } catch (...) {
    r->exception = std::current_exception();
  }
}

/// An object that belongs to a loop and that handles in other threads share. Destroyed on the loop's thread.
class remote_base : public list_hook<> {
 public:
  virtual void let_go() noexcept = 0;

 protected:
  ~remote_base() = default;
};

/// What other threads have on a loop: running calls and shared objects. Ends with the loop, and they with it.
class call_desk final : public loop_attachment, private child_owner {
 public:
  ~call_desk() override {
    destroy_children();  // each tells who waits for it
    while (!objects_.empty()) objects_.pop_front().let_go();
  }
  void run(driver d, environment const& e) noexcept { launch(std::move(d), e); }
  void keep(remote_base& o) noexcept { objects_.push_back(o); }

 private:
  void child_ended(std::exception_ptr) noexcept override {}
  list<remote_base> objects_;
};

/// A call under way to its loop. Refused, or dropped with the loop, it tells the waiting side.
template <class T, class F>
class call_start final : public posted {
 public:
  call_start(std::shared_ptr<call_record<T>> r, F&& f, deadline limit)
      : end_(std::move(r)), f_(std::move(f)), limit_(limit), coroutine_(&run_call<T, F>) {}
  void run(loop_core& core) override {
    std::shared_ptr<call_record<T>> r = std::move(end_.record);
    const environment e(&core, r->stop.token());
    core.attached<call_desk>().run(coroutine_(std::move(r), std::move(f_), limit_, asked_), e);
  }

 private:
  call_end<T> end_;
  F f_;
  deadline limit_;
  std::uint64_t asked_ = uv_hrtime();
  // Named in the constructor: instantiated from this virtual function alone, it makes g++ 12 warn of lambdas without linkage.
  driver (*coroutine_)(std::shared_ptr<call_record<T>>, F, deadline, std::uint64_t);
};

/// Awaits, on this loop, a call on another.
template <class F>
class [[nodiscard]] loop_call final : private waiter {
  using value_type = call_result_t<F>;

 public:
  loop_call(loop_core* from, poster to, F f) : from_(from), to_(std::move(to)), f_(std::move(f)) {}
  /// Only before it is awaited.
  loop_call(loop_call&& o) : waiter(), from_(o.from_), to_(o.to_), f_(std::move(o.f_)) {}
  ~loop_call() {
    if (how() == state::waiting) leave();
  }
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) {
    if (!begin(h, from_)) return false;
    if (!core()) throw error(errc::invalid, "call_on", "the awaiting coroutine has no loop: pass one, call_on(loop, door, f)");
    record_ = std::make_shared<record>(poster(core()->door()), *this);
    core()->expect_posts(true);
    to_.box().put(std::make_unique<call_start<value_type, F>>(record_, std::move(f_), deadline::never()));
    return true;
  }
  value_type await_resume() {
    if (was_stopped() && !in_time_) throw error(failure(errc::cancelled, "call on another loop").with_effect(begun_ ? effect::unknown : effect::none));
    return record_->take();
  }

 private:
  class record final : public call_record<value_type> {
   public:
    record(poster reply, loop_call& owner) : owner_(&owner), reply_(std::move(reply)) {}
    loop_call* owner_;  // for the waiting thread

   private:
    void deliver(std::shared_ptr<call_record<value_type>> self) noexcept override {
      reply_.post([this, self = std::move(self)] {
        if (owner_) owner_->arrived();
      });
    }
    poster reply_;
  };
  void arrived() noexcept {
    record_->owner_ = nullptr;
    core()->expect_posts(false);
    complete();
  }
  void leave() noexcept override {
    if (!record_) return;  // it was not even posted
    {
      const std::lock_guard lock(record_->mutex);
      record_->given_up = true;
      in_time_ = record_->ended;
      begun_ = record_->begun;
    }
    record_->owner_ = nullptr;
    core()->expect_posts(false);
    if (begun_ && !in_time_) to_.post([r = record_] { r->stop.request_stop(); });
  }

  loop_core* from_;
  poster to_;
  F f_;
  std::shared_ptr<record> record_;
  bool begun_ = false;
  bool in_time_ = false;
};

/// A call whose outcome a thread without a loop waits for.
template <class T>
class future_call final : public call_record<T> {
 public:
  std::condition_variable in;

 private:
  void deliver(std::shared_ptr<call_record<T>>) noexcept override { in.notify_all(); }
};

}  // namespace detail

/// Calls `f()` on the loop behind `to`, awaits there what it returns (an operation, a task, or a plain value), and completes here, on the
/// loop of the awaiting coroutine, with its value or error. `to` comes from loop::post_handle(); it may be this loop's own.
///
/// f         called once, on that loop's thread, and only while this side waits: it may refer to what the awaiting coroutine keeps alive,
///           but what it returns must own, or have encoded, what it needs. Destroyed on that thread with all it holds, or here when the
///           loop has ended. Must not block. On g++ 12 name a capturing lambda first: a temporary one in a co_await expression is
///           destroyed twice; one that captures only references and numbers is safe.
/// completes with a value that was made there and is moved here: it must not belong to that loop.
/// errors    those of f and of what it returned; closed when that loop has ended, or ends meanwhile; invalid where no loop awaits.
/// cancel    completes in this loop turn, and stops what runs over there. effect none: f was not called and never will be; unknown: it
///           was. An item that a stopped pop took in that moment is lost; give such an operation a limit of its own instead.
/// lifetime  keeps the awaiting loop alive; the other one stays alive as long as what runs there, or a `remote`, keeps it so.
template <class F>
  requires std::invocable<F&>
[[nodiscard]] detail::loop_call<F> call_on(poster to, F f) {
  return detail::loop_call<F>(nullptr, std::move(to), std::move(f));
}
/// The same for coroutine types that have no environment; `from` is the loop to complete on.
template <class F>
  requires std::invocable<F&>
[[nodiscard]] detail::loop_call<F> call_on(loop& from, poster to, F f) {
  return detail::loop_call<F>(&from.core(), std::move(to), std::move(f));
}

/// What a thread waits for that has no loop: as std::future, but it can be stopped, and is when it is dropped. Made by blocking_call().
///
/// lifetime  for one thread at a time. Never wait for it on the thread of the loop that was called, which would be waiting for itself.
template <class T>
class [[nodiscard]] future {
 public:
  future(future&&) noexcept = default;
  future& operator=(future o) noexcept {
    std::swap(call_, o.call_);
    std::swap(to_, o.to_);
    return *this;
  }
  ~future() {
    if (call_) stop();
  }
  /// Blocks until the call has ended, then gives its value or throws its error; once. errc::cancelled at once when it was stopped.
  T get() {
    std::unique_lock lock(call_->mutex);
    call_->in.wait(lock, [this] { return call_->ended || call_->given_up; });
    if (!call_->ended) throw error(failure(errc::cancelled, "call on another loop").with_effect(call_->begun ? effect::unknown : effect::none));
    lock.unlock();
    return call_->take();
  }
  /// Blocks until get() will not, for `d` at the most; whether it will not.
  template <class Rep, class Period>
  [[nodiscard]] bool wait_for(std::chrono::duration<Rep, Period> d) const {
    std::unique_lock lock(call_->mutex);
    return call_->in.wait_for(lock, d, [this] { return call_->ended || call_->given_up; });
  }
  /// Stops what runs over there, and does not wait for it. effect and all else as where a coroutine's call_on() is stopped.
  void stop() noexcept {
    {
      const std::lock_guard lock(call_->mutex);
      if (call_->ended || std::exchange(call_->given_up, true) || !call_->begun) return;
    }
    to_.post([c = call_] { c->stop.request_stop(); });
  }

 private:
  template <class F>
    requires std::invocable<F&>
  friend auto blocking_call(poster to, F f, deadline limit) -> future<detail::call_result_t<F>>;
  explicit future(poster to) : to_(std::move(to)), call_(std::make_shared<detail::future_call<T>>()) {}
  poster to_;
  std::shared_ptr<detail::future_call<T>> call_;
};

/// The same for threads without a loop: `blocking_call(door, f).get()` gives the value or throws the error.
///
/// f         as above, but it must own what it uses, or the future must not outlive that.
/// limit     counts from now; what f returned is stopped when it passes, and get() throws timed_out. A loop that does not turn cannot
///           keep it: future::wait_for does.
template <class F>
  requires std::invocable<F&>
[[nodiscard]] auto blocking_call(poster to, F f, deadline limit = deadline::never()) -> future<detail::call_result_t<F>> {
  using value = detail::call_result_t<F>;
  future<value> answer(to);
  to.box().put(std::make_unique<detail::call_start<value, F>>(answer.call_, std::move(f), limit));
  return answer;
}

}  // namespace v0
}  // namespace rollcall
