#pragma once
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "../core/result.hpp"
#include "../rt/combine.hpp"
#include "../rt/task.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What the operations of our own stores are: they can be started where the type of the awaiting promise is lost, and tell their outcome
/// without throwing.
template <class A>
concept store_operation = std::move_constructible<A> && tells_result<A> && requires(A& a, std::coroutine_handle<> h, environment const& e) {
  { a.suspend(h, e) } -> std::same_as<bool>;
  { a.own_loop() } -> std::convertible_to<loop_core*>;
};

/// Anything that can be awaited, as a store operation; carried by a task.
template <class T>
class [[nodiscard]] task_operation {
 public:
  task_operation(task<T> t, loop_core* core) noexcept : task_(std::move(t)), core_(core) {}
  /// Moves until it is awaited.
  task_operation(task_operation&& o) noexcept : task_(std::move(o.task_)), core_(o.core_) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return suspend(h, env_of(h));
  }
  bool suspend(std::coroutine_handle<> h, environment const& e) noexcept {
    // A coroutine type without an environment: the operations inside know their loop, the task itself must learn it.
    return awaiter_.emplace(std::move(task_).operator co_await()).suspend(h, e.loop ? e : environment(core_, e.stop));
  }
  T await_resume() { return awaiter_->await_resume(); }
  result<T> take_result() {
    try {
      if constexpr (std::is_void_v<T>) {
        awaiter_->await_resume();
        return result<void>();
      } else {
        return result<T>(awaiter_->await_resume());
      }
    } catch (error const& e) {
      return result<T>(e.shared());
    }
  }
  [[nodiscard]] loop_core* own_loop() const noexcept { return core_; }

 private:
  task<T> task_;
  loop_core* core_;
  std::optional<task_awaiter<T>> awaiter_;
};

template <class T, class A>
task<T> carry(A awaitable) {
  co_return co_await std::move(awaitable);
}
/// `a` itself where it is a store operation, else a task around it.
template <class A>
[[nodiscard]] auto as_operation(A a, loop_core* core) {
  if constexpr (store_operation<A>) {
    static_cast<void>(core);
    return a;
  } else {
    using value = await_result_t<A>;
    if constexpr (std::same_as<A, task<value>>) {
      return task_operation<value>(std::move(a), core);
    } else {
      return task_operation<value>(carry<value>(std::move(a)), core);
    }
  }
}

/// An operation behind virtual calls.
template <class T>
class erased_operation {
 public:
  erased_operation() noexcept = default;
  erased_operation(erased_operation const&) = delete;
  erased_operation& operator=(erased_operation const&) = delete;
  virtual ~erased_operation() = default;
  [[nodiscard]] virtual bool suspend(std::coroutine_handle<> h, environment const& e) noexcept = 0;
  virtual T resume() = 0;
  [[nodiscard]] virtual result<T> take_result() = 0;
  [[nodiscard]] virtual loop_core* own_loop() const noexcept = 0;
  /// Makes this operation anew in `room`, moved.
  virtual erased_operation* move_to(void* room) noexcept = 0;
};

template <class T, store_operation Op>
class erased final : public erased_operation<T> {
 public:
  explicit erased(Op op) noexcept : op_(std::move(op)) {}
  bool suspend(std::coroutine_handle<> h, environment const& e) noexcept override { return op_.suspend(h, e); }
  T resume() override { return op_.await_resume(); }
  result<T> take_result() override { return op_.take_result(); }
  loop_core* own_loop() const noexcept override { return op_.own_loop(); }
  erased_operation<T>* move_to(void* room) noexcept override { return ::new (room) erased(std::move(op_)); }

 private:
  Op op_;
};

}  // namespace detail

/// An operation of any store: the store's own operation, which lies inside where it fits (`room` bytes), else on the heap. Await it once;
/// it may be moved until then.
template <class T>
class [[nodiscard]] any_operation final {
 public:
  static constexpr std::size_t room = 704;
  /// Whether operations of type Op lie inside, so that nothing is allocated for them.
  template <class Op>
  static constexpr bool fits = sizeof(detail::erased<T, Op>) <= room && alignof(detail::erased<T, Op>) <= alignof(std::max_align_t) &&
                               std::is_nothrow_move_constructible_v<Op>;

  template <class Op>
    requires(!std::same_as<Op, any_operation> && detail::store_operation<Op> && std::same_as<await_result_t<Op>, T>)
  explicit any_operation(Op op) {
    using held = detail::erased<T, Op>;
    if constexpr (fits<Op>) {
      op_ = ::new (static_cast<void*>(room_)) held(std::move(op));
    } else {
      op_ = new held(std::move(op));
      far_ = true;
    }
  }
  any_operation(any_operation&& o) noexcept : far_(o.far_) {
    if (far_) {
      op_ = std::exchange(o.op_, nullptr);
    } else if (o.op_) {
      op_ = o.op_->move_to(room_);
    }
  }
  any_operation& operator=(any_operation&&) = delete;
  ~any_operation() {
    if (far_) {
      delete op_;
    } else if (op_) {
      std::destroy_at(op_);
    }
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return op_->suspend(h, detail::env_of(h));
  }
  T await_resume() { return op_->resume(); }
  /// The outcome without throwing; what as_result() uses.
  result<T> take_result() { return op_->take_result(); }

  /// For rollcall's own layers.
  bool suspend(std::coroutine_handle<> h, environment const& e) noexcept { return op_->suspend(h, e); }
  [[nodiscard]] detail::loop_core* own_loop() const noexcept { return op_->own_loop(); }

 private:
  detail::erased_operation<T>* op_ = nullptr;
  bool far_ = false;
  alignas(std::max_align_t) unsigned char room_[room];
};

}  // namespace v0
}  // namespace rollcall
