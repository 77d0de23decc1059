#pragma once
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "../core/error.hpp"
#include "detail/waiter.hpp"
#include "loop.hpp"

namespace rollcall {
inline namespace v0 {

/// A bounded queue between coroutines of one loop. Senders wait while it is full, receivers while it is empty; both go on in the order
/// in which they began to wait, and items leave in the order in which they were sent.
///
/// Nothing is lost: an item stays here until a receiver has really gone on with it, so one that is stopped, or destroyed after it was
/// called, leaves its item to the next. Nothing allocates but the constructor.
///
/// capacity  1 or more items; errc::invalid for 0.
/// lifetime  one loop's thread only. When it is destroyed it is closed first, and what it holds is destroyed with it.
template <class T>
class channel {
  static_assert(std::is_object_v<T> && !std::is_const_v<T>);
  static_assert(std::is_nothrow_move_constructible_v<T>, "rollcall: items of a channel move without throwing");

 public:
  class sending;
  class receiving;

  channel(loop& l, std::size_t capacity) : core_(&l.core()), capacity_(capacity) {
    if (capacity == 0) throw error(errc::invalid, "channel", "the capacity is 0, it must be 1 or more");
    ring_ = std::make_unique<std::optional<T>[]>(capacity);
  }
  channel(channel const&) = delete;
  channel& operator=(channel const&) = delete;
  ~channel() {
    close();
    while (!called_.empty()) called_.pop_front().channel_ = nullptr;
  }

  /// Completes when there is room for `item`, at once when there is; it is in the channel then.
  ///
  /// errors    closed, when the channel is, or becomes so while it waits: the item was not sent.
  /// cancel    the item was not sent, and is destroyed with the operation.
  template <class U>
    requires std::convertible_to<U&&, T>
  [[nodiscard]] sending send(U&& item) {
    return sending(*this, T(std::forward<U>(item)));
  }
  /// The next item, or none when the channel is closed and empty: `while (std::optional<T> item = co_await ch.receive())`.
  ///
  /// cancel    takes no item.
  [[nodiscard]] receiving receive() noexcept { return receiving(*this); }

  /// Sends if there is room now. `item` is moved from only if it was sent; false when the channel is full or closed.
  [[nodiscard]] bool try_send(T&& item) noexcept {
    if (!has_room()) return false;
    push(std::move(item));
    return true;
  }
  [[nodiscard]] bool try_send(T const& item)
    requires std::is_copy_constructible_v<T>
  {
    return has_room() && try_send(T(item));
  }
  /// The next item if there is one that no waiting receiver was called for.
  [[nodiscard]] std::optional<T> try_receive() noexcept { return has_item() ? pop() : std::nullopt; }

  /// Ends sending: senders that wait fail with errc::closed, receivers get what is here and then none. Idempotent, resumes nobody
  /// inside this call.
  void close() noexcept {
    closed_ = true;
    while (!senders_.empty()) senders_.pop_front().refuse();
    while (!receivers_.empty()) receivers_.pop_front().dismiss();
  }
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  /// Items here, those included for which a receiver was called that has not gone on yet.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

  class [[nodiscard]] sending final : public list_hook<>, private detail::waiter {
   public:
    /// Awaitables move until they are awaited.
    sending(sending&& o) noexcept : sending(*o.channel_, std::move(o.item_)) {}
    ~sending() = default;
    [[nodiscard]] bool await_ready() const noexcept { return channel_->closed_ || channel_->has_room(); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      if (!begin(h, channel_->core_)) return false;
      channel_->senders_.push_back(*this);
      return true;
    }
    void await_resume() {
      if (was_stopped()) detail::throw_cancelled("send to a channel");
      if (how() == state::idle && channel_->has_room()) {
        channel_->push(std::move(item_));
      } else if (how() == state::idle || refused_) {
        throw error(errc::closed, "send to a channel", "the channel was closed");
      }
    }

   private:
    friend class channel;
    sending(channel& c, T&& item) noexcept : channel_(&c), item_(std::move(item)) {}
    T& accepted() noexcept {
      complete();
      return item_;
    }
    void refuse() noexcept {
      refused_ = true;
      complete();
    }
    void leave() noexcept override { list_hook<>::unlink(); }
    channel* channel_;
    T item_;
    bool refused_ = false;
  };

  class [[nodiscard]] receiving final : public list_hook<>, private detail::waiter {
   public:
    /// Awaitables move until they are awaited.
    receiving(receiving&& o) noexcept : receiving(*o.channel_) {}
    ~receiving() {
      if (called_) hang_up();
    }
    [[nodiscard]] bool await_ready() const noexcept { return channel_->has_item() || channel_->closed_; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      if (!begin(h, channel_->core_)) return false;
      channel_->receivers_.push_back(*this);
      return true;
    }
    std::optional<T> await_resume() {
      if (was_stopped()) detail::throw_cancelled("receive from a channel");
      if (how() == state::idle) return channel_->try_receive();
      if (!called_ || !channel_) return std::nullopt;
      hang_up_without_next();
      return channel_->pop();
    }

   private:
    friend class channel;
    explicit receiving(channel& c) noexcept : channel_(&c) {}
    /// There is an item for it.
    void call() noexcept {
      called_ = true;
      channel_->called_.push_back(*this);
      ++channel_->promised_;
      complete();
    }
    /// There never will be one.
    void dismiss() noexcept { complete(); }
    void hang_up_without_next() noexcept {
      called_ = false;
      list_hook<>::unlink();
      --channel_->promised_;
    }
    void hang_up() noexcept {
      if (!channel_) return;
      hang_up_without_next();
      channel_->call_next();
    }
    void leave() noexcept override { list_hook<>::unlink(); }
    channel* channel_;
    bool called_ = false;
  };

 private:
  // Senders wait only while the ring is full, receivers only while every item in it is promised to one that was called.
  [[nodiscard]] bool has_room() const noexcept { return !closed_ && size_ < capacity_; }
  [[nodiscard]] bool has_item() const noexcept { return size_ > promised_; }
  void push(T&& item) noexcept {
    ring_[(head_ + size_) % capacity_].emplace(std::move(item));
    ++size_;
    call_next();
  }
  std::optional<T> pop() noexcept {
    std::optional<T> item = std::exchange(ring_[head_], std::nullopt);
    head_ = (head_ + 1) % capacity_;
    --size_;
    if (!senders_.empty()) push(std::move(senders_.pop_front().accepted()));
    return item;
  }
  void call_next() noexcept {
    if (has_item() && !receivers_.empty()) receivers_.pop_front().call();
  }

  detail::loop_core* core_;
  std::size_t capacity_;
  std::unique_ptr<std::optional<T>[]> ring_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
  std::size_t promised_ = 0;
  list<sending> senders_;
  list<receiving> receivers_;
  list<receiving> called_;
  bool closed_ = false;
};

}  // namespace v0
}  // namespace rollcall
