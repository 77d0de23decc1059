#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "call_on.hpp"
#include "loop.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

template <class T>
class remote_object final : public remote_base {
 public:
  remote_object(loop& l, T&& o) : door(l.post_handle()), object(std::move(o)), core_(l.core()) {
    core_.check_thread();
    core_.attached<call_desk>().keep(*this);
    keep_alive(true);
  }
  remote_object(remote_object const&) = delete;
  remote_object& operator=(remote_object const&) = delete;
  ~remote_object() {
    if (object) let_go();
  }
  void keep_alive(bool on) noexcept {
    if (std::exchange(keeps_alive_, on) != on) core_.expect_posts(on);
  }
  void let_go() noexcept override {
    object.reset();
    keep_alive(false);
  }
  /// Destroyed on the loop's thread; at once, and without the object, when the loop has ended.
  static void send_home(remote_object* o) {
    const poster door = o->door;
    door.post([owned = std::unique_ptr<remote_object>(o)] {});
  }

  poster door;
  std::optional<T> object;  // none once the loop has ended

 private:
  loop_core& core_;
  bool keeps_alive_ = false;
};

template <class T, class F, class... Args>
class remote_function {
 public:
  template <class G, class... A>
  remote_function(std::shared_ptr<remote_object<T>> o, G&& f, A&&... args)
      : object_(std::move(o)), f_(std::forward<G>(f)), args_(std::forward<A>(args)...) {}
  decltype(auto) operator()() {
    return std::apply([this](Args&... a) -> decltype(auto) { return std::invoke(f_, *object_->object, a...); }, args_);
  }

 private:
  std::shared_ptr<remote_object<T>> object_;
  F f_;
  std::tuple<Args...> args_;
};

}  // namespace detail

/// A handle for any thread on an object that belongs to one loop, a store for instance:
///
///   rc::remote<rc::tcp_store> shared(loop, store);                                                       // on the loop's thread
///   shared.blocking_call([](rc::tcp_store& s) { return s.get("k"); }).get();                             // in a thread without a loop
///   co_await shared.call([](rc::tcp_store& s, std::string const& k) { return s.get(k); }, key);          // in a coroutine of another loop
///
/// Copies share the object, which is destroyed on its loop's thread after the last handle and call; earlier, if the loop ends: then
/// calls give errc::closed. While there is a handle the loop stays alive, so that its thread can sit in run(); keep_alive(false) opts out.
template <class T>
class remote {
 public:
  /// On the loop's thread.
  remote(loop& l, T object) : object_(new detail::remote_object<T>(l, std::move(object)), &detail::remote_object<T>::send_home) {}

  /// Calls `f(object, args...)` on the object's loop: see call_on(). `args` are copied or moved into the call and live until what f
  /// returned has ended; pass them rather than capture them where the call stands in a co_await expression.
  template <class F, class... Args>
    requires std::invocable<std::decay_t<F>&, T&, std::decay_t<Args>&...>
  [[nodiscard]] auto call(F&& f, Args&&... args) const {
    return call_on(object_->door, bind(std::forward<F>(f), std::forward<Args>(args)...));
  }
  /// The same for coroutine types that have no environment.
  template <class F, class... Args>
    requires std::invocable<std::decay_t<F>&, T&, std::decay_t<Args>&...>
  [[nodiscard]] auto call(loop& from, F&& f, Args&&... args) const {
    return call_on(from, object_->door, bind(std::forward<F>(f), std::forward<Args>(args)...));
  }
  /// For threads without a loop: see rollcall::blocking_call().
  template <class F>
    requires std::invocable<F&, T&>
  [[nodiscard]] auto blocking_call(F f, deadline limit = deadline::never()) const {
    return rollcall::blocking_call(object_->door, bind(std::move(f)), limit);
  }
  /// On the loop's thread: whether this object keeps the loop alive while there are handles.
  void keep_alive(bool on) const noexcept { object_->keep_alive(on); }

 private:
  template <class F, class... Args>
  auto bind(F&& f, Args&&... args) const {
    return detail::remote_function<T, std::decay_t<F>, std::decay_t<Args>...>(object_, std::forward<F>(f), std::forward<Args>(args)...);
  }
  std::shared_ptr<detail::remote_object<T>> object_;
};

}  // namespace v0
}  // namespace rollcall
