#pragma once
#include <uv.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../../core/clock.hpp"
#include "../../core/intrusive.hpp"
#include "../../core/log.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

struct ready_tag {};
struct post_box;

/// Something the loop runs in its turn: a coroutine to resume, a completion to deliver. Leaves the queue when destroyed.
class ready_node : public list_hook<ready_tag> {
 public:
  using run_fn = void (*)(ready_node&) noexcept;
  explicit ready_node(run_fn f) noexcept : run_(f) {}
  void run() noexcept { run_(*this); }

 private:
  run_fn run_;
};

/// A point in time somebody waits for. Must be removed before it is destroyed.
class timer_node : public heap_hook {
 public:
  using fire_fn = void (*)(timer_node&) noexcept;
  explicit timer_node(fire_fn f, bool keeps_alive = true) noexcept : keeps_alive_(keeps_alive), fire_(f) {}
  [[nodiscard]] time_point at() const noexcept { return at_; }

 private:
  friend class loop_core;
  friend struct earlier;
  bool keeps_alive_;
  std::uint64_t order_ = 0;
  time_point at_{};
  fire_fn fire_;
};
struct earlier {
  bool operator()(timer_node const& a, timer_node const& b) const noexcept {
    return a.at_ != b.at_ ? a.at_ < b.at_ : a.order_ < b.order_;
  }
};

/// Something that a layer above hangs on a loop; ends with the loop object.
class loop_attachment {
 public:
  loop_attachment() noexcept = default;
  loop_attachment(loop_attachment const&) = delete;
  loop_attachment& operator=(loop_attachment const&) = delete;
  virtual ~loop_attachment() = default;
};

/// What all objects of one loop share: the ready queue, the timers, the clock, counters. Lives until the last handle on it is closed.
///
/// libuv callbacks and completions only push to the ready queue; the outermost callback drains it (`turn`), a budget at a time,
/// and an idle handle runs the rest in later turns. So nobody is resumed inside another's call, and I/O goes on in between.
class loop_core {
 public:
  static constexpr int drain_budget = 1024;

  explicit loop_core(uv_loop_t* uv) noexcept : uv_(uv) {}
  loop_core(loop_core const&) = delete;
  loop_core& operator=(loop_core const&) = delete;

  [[nodiscard]] uv_loop_t* native() const noexcept { return uv_; }

  /// Encloses every libuv callback: what it makes ready runs when the outermost one ends.
  class turn {
   public:
    explicit turn(loop_core& c) noexcept : core_(c) {
      core_.keep();  // the core outlives the callback whatever is closed in it
      if (++core_.depth_ == 1) core_.bind_thread();
    }
    turn(turn const&) = delete;
    turn& operator=(turn const&) = delete;
    ~turn() {
      if (core_.depth_ == 1) core_.drain();
      --core_.depth_;
      core_.release();
    }

   private:
    loop_core& core_;
  };

  /// Encloses the destruction of frames that are suspended somewhere: what lies in them does not end in good order.
  class teardown {
   public:
    explicit teardown(loop_core& c) noexcept : core_(c) {
      core_.keep();
      ++core_.teardowns_;
    }
    teardown(teardown const&) = delete;
    teardown& operator=(teardown const&) = delete;
    ~teardown() {
      --core_.teardowns_;
      core_.release();
    }

   private:
    loop_core& core_;
  };
  [[nodiscard]] bool tearing_down() const noexcept { return teardowns_ > 0; }

  void schedule(ready_node& n) noexcept {
    check_thread();
    ready_.push_back(n);
    if (depth_ == 0) wake_up();
  }
  /// Runs before everything else that is ready: the continuation of what just ended.
  void schedule_next(ready_node& n) noexcept {
    check_thread();
    ready_.push_front(n);
    if (depth_ == 0) wake_up();
  }
  [[nodiscard]] bool has_ready() noexcept { return !ready_.empty(); }

  [[nodiscard]] time_point now() noexcept {
    return clock_ ? clock_->now() : time_point(duration(static_cast<std::int64_t>(uv_hrtime())));
  }
  /// Replaces the clock; nullptr brings the real one back. With a clock of its own the loop's timers fire by fire_timers() only.
  void set_clock(clock_source* c) noexcept {
    clock_ = c;
    armed_for_ = time_point::max();
    if (!c && !timers_.empty()) arm_timer(timers_.top().at());
  }

  /// Timers of the same instant fire in the order in which they were added.
  void add_timer(timer_node& t, time_point at) noexcept {
    check_thread();
    t.at_ = at;
    t.order_ = ++timers_added_;
    timers_.push(t);
    if (t.keeps_alive_ && ++live_timers_ == 1) timer_reference(true);
    if (!clock_ && at < armed_for_) arm_timer(at);
  }
  void remove_timer(timer_node& t) noexcept {
    if (!t.in_heap()) return;
    timers_.remove(t);
    if (t.keeps_alive_ && --live_timers_ == 0) timer_reference(false);
  }
  /// Runs what is due. For clocks that are moved by hand; otherwise the loop's own timer calls it.
  void fire_timers() noexcept {
    const turn t(*this);
    armed_for_ = time_point::max();
    const time_point n = now();
    while (!timers_.empty() && timers_.top().at() <= n) {
      timer_node& due = timers_.top();
      remove_timer(due);
      due.fire_(due);
    }
    if (!timers_.empty() && !clock_) arm_timer(timers_.top().at());
  }
  /// When the next timer is due; time_point::max() when there is none.
  [[nodiscard]] time_point next_timer() noexcept { return timers_.empty() ? time_point::max() : timers_.top().at(); }

  void set_log(log_sink s) { log_ = std::move(s); }
  [[nodiscard]] bool logs() const noexcept { return static_cast<bool>(log_); }
  void log(log_level l, std::string_view line) const noexcept {
    if (log_) log_(l, line);
  }

  // Counters: what is alive on this loop. All return to their start when everything ended.
  void add_handle() noexcept {
    ++handles_;
    keep();
  }
  void drop_handle() noexcept {
    --handles_;
    release();
  }
  [[nodiscard]] std::size_t handles() const noexcept { return handles_; }
  void add_frame() noexcept {
    check_thread();
    ++frames_;
    keep();
  }
  void drop_frame() noexcept {
    --frames_;
    release();
  }
  [[nodiscard]] std::size_t frames() const noexcept { return frames_; }

  /// One read buffer for all streams of the loop: what was read is consumed before the next read, so idle connections need none.
  static constexpr std::size_t slab_bytes = 64 * 1024;
  /// nullptr when there is no memory for it.
  [[nodiscard]] char* read_slab() noexcept {
    if (!slab_) slab_.reset(new (std::nothrow) char[slab_bytes]);
    return slab_.get();
  }

  /// This loop's one object of type A, made when it is first asked for: what would be global if there were only one loop.
  template <class A>
  [[nodiscard]] A& attached() {
    static char type = 0;  // its address tells A from other types
    for (auto const& a : attachments_)
      if (a.first == &type) return static_cast<A&>(*a.second);
    attachments_.emplace_back(&type, std::make_unique<A>());
    return static_cast<A&>(*attachments_.back().second);
  }
  /// The last that came goes first: it may use those that were there before it.
  void end_attachments() noexcept {
    const teardown t(*this);
    while (!attachments_.empty()) {
      const std::unique_ptr<loop_attachment> last = std::move(attachments_.back().second);
      attachments_.pop_back();
    }
  }

  /// The core is destroyed with the last of the loop object, handles, frames and other holders.
  void keep() noexcept { ++references_; }
  void release() noexcept {
    if (--references_ == 0) delete this;
  }

  /// The door for other threads; nullptr when the loop has ended.
  [[nodiscard]] std::shared_ptr<post_box> door() const noexcept;
  /// While on, the host's loop stays alive for what other threads will post. Counted.
  void expect_posts(bool on) noexcept {
    posts_expected_ += on ? 1 : -1;
    if (posts_expected_ == (on ? 1 : 0)) post_reference(on);
  }

  /// The loop belongs to the thread that ran it last, from its first turn on; none before.
  void bind_thread() noexcept {
    const auto here = std::this_thread::get_id();
    if (thread_.load(std::memory_order_relaxed) != here) thread_.store(here, std::memory_order_relaxed);
  }
  /// Debug builds: everything but posting happens on that thread.
  void check_thread() const noexcept {
    ROLLCALL_ASSERT(on_its_thread() && "rollcall: call from a thread that does not run this loop; use loop.post() or rollcall::remote, or "
                                       "loop.bind_to_this_thread() where the loop has moved");
  }

 private:
  friend class helpers;

  [[nodiscard]] bool on_its_thread() const noexcept {
    const auto owner = thread_.load(std::memory_order_relaxed);
    return owner == std::thread::id() || owner == std::this_thread::get_id();
  }
  void drain() noexcept {
    for (int budget = drain_budget; budget > 0 && !ready_.empty(); --budget) ready_.pop_front().run();
    if (!ready_.empty()) wake_up();
  }
  void wake_up() noexcept;
  void arm_timer(time_point at) noexcept;
  void timer_reference(bool on) noexcept;
  void post_reference(bool on) noexcept;

  uv_loop_t* uv_;
  list<ready_node, ready_tag> ready_;
  int depth_ = 0;
  int teardowns_ = 0;
  heap<timer_node, earlier> timers_;
  time_point armed_for_ = time_point::max();
  std::uint64_t timers_added_ = 0;
  std::size_t live_timers_ = 0;
  clock_source* clock_ = nullptr;
  std::size_t references_ = 1;
  std::size_t handles_ = 0;
  std::size_t frames_ = 0;
  log_sink log_;
  std::unique_ptr<char[]> slab_;
  std::vector<std::pair<char const*, std::unique_ptr<loop_attachment>>> attachments_;
  std::atomic<std::thread::id> thread_;  // atomic only so that the check itself is no race
  int posts_expected_ = 0;
  class helpers* helpers_ = nullptr;
};

/// Runs `n` through the loop where there is one, else at once.
inline void schedule_or_run(loop_core* core, ready_node& n) noexcept {
  if (core) {
    core->schedule_next(n);
  } else {
    n.run();
  }
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
