#pragma once
#include <cstddef>

#include "detail/waiter.hpp"
#include "loop.hpp"

namespace rollcall {
inline namespace v0 {

/// A flag that coroutines of one loop can wait for. Stays set until reset(). One thread only; must outlive its waiters.
class event {
 public:
  explicit event(loop& l) noexcept : core_(&l.core()) {}
  /// For rollcall's own layers: without a loop, set() resumes the waiters itself.
  explicit event(detail::loop_core* c) noexcept : core_(c) {}
  event(event const&) = delete;
  event& operator=(event const&) = delete;

  /// Lets every waiter go, in order of waiting, in this loop turn; resumes nobody inside this call.
  void set() noexcept {
    set_ = true;
    list<waiting> gone;  // without a loop, the last waiter may destroy this event
    gone.splice_back(waiters_);
    while (!gone.empty()) gone.pop_front().arrived();
  }
  void reset() noexcept { set_ = false; }
  [[nodiscard]] bool is_set() const noexcept { return set_; }

  class [[nodiscard]] waiting final : public list_hook<>, private detail::waiter {
   public:
    explicit waiting(event& e) noexcept : event_(e) {}
    /// Awaitables move until they are awaited.
    waiting(waiting&& o) noexcept : waiting(o.event_) {}
    ~waiting() = default;
    [[nodiscard]] bool await_ready() const noexcept { return event_.set_; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      if (!begin(h, event_.core_)) return false;
      event_.waiters_.push_back(*this);
      return true;
    }
    void await_resume() const {
      if (was_stopped()) detail::throw_cancelled("wait for an event");
    }

   private:
    friend class event;
    void arrived() noexcept { complete(); }
    void leave() noexcept override { list_hook<>::unlink(); }
    event& event_;
  };
  /// Completes when the event is set, at once when it is. A stop ends the wait with errc::cancelled and leaves nothing behind.
  [[nodiscard]] waiting wait() noexcept { return waiting(*this); }

 private:
  detail::loop_core* core_;
  list<waiting> waiters_;
  bool set_ = false;
};

/// Opens when it has been counted down to zero.
class latch {
 public:
  latch(loop& l, std::size_t count) noexcept : left_(count), open_(l) {
    if (left_ == 0) open_.set();
  }
  void count_down(std::size_t n = 1) noexcept {
    ROLLCALL_ASSERT(n <= left_);
    left_ -= n;
    if (left_ == 0) open_.set();
  }
  [[nodiscard]] std::size_t left() const noexcept { return left_; }
  [[nodiscard]] event::waiting wait() noexcept { return open_.wait(); }

 private:
  std::size_t left_;
  event open_;
};

}  // namespace v0
}  // namespace rollcall
