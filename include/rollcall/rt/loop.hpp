#pragma once
#include <uv.h>

#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../posix/descriptors.hpp"
#include "../posix/errno.hpp"
#include "detail/core.hpp"
#include "detail/handle.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// One function to run on the loop's thread.
class posted {
 public:
  posted() noexcept = default;
  posted(posted const&) = delete;
  posted& operator=(posted const&) = delete;
  virtual ~posted() = default;
  virtual void run(loop_core& core) = 0;
};

/// The thread-safe door to a loop; outlives it.
struct post_box {
  std::mutex mutex;
  std::vector<std::unique_ptr<posted>> queue;
  uv_async_t* wake = nullptr;  // nullptr once the loop is closed

  /// False when the loop is closed; `p` is then destroyed in the caller's thread, without the lock.
  bool put(std::unique_ptr<posted> p) {
    const std::lock_guard lock(mutex);
    if (!wake) return false;
    queue.push_back(std::move(p));
    uv_async_send(wake);
    return true;
  }
};

/// The loop's own handles: idle (ready work that is left), timer (the one uv_timer_t), async (posts). None keeps the host's loop alive
/// unless there is work for it.
class helpers {
 public:
  explicit helpers(loop_core& core) : core_(core), box_(std::make_shared<post_box>()) {
    check(idle_.open(core, this, [](uv_loop_t* l, uv_idle_t* h) { return uv_idle_init(l, h); }));
    check(timer_.open(core, this, [](uv_loop_t* l, uv_timer_t* h) { return uv_timer_init(l, h); }));
    check(async_.open(core, this, [](uv_loop_t* l, uv_async_t* h) { return uv_async_init(l, h, &helpers::on_post); }));
    uv_unref(reinterpret_cast<uv_handle_t*>(timer_.get()));
    uv_unref(reinterpret_cast<uv_handle_t*>(async_.get()));
    box_->wake = async_.get();
    core.helpers_ = this;
  }
  helpers(helpers const&) = delete;
  helpers& operator=(helpers const&) = delete;
  ~helpers() {
    core_.helpers_ = nullptr;
    std::vector<std::unique_ptr<posted>> dropped;
    const std::lock_guard lock(box_->mutex);
    box_->wake = nullptr;
    dropped.swap(box_->queue);
  }

  void wake_up() noexcept { uv_idle_start(idle_.get(), &helpers::on_idle); }
  void arm_timer(duration in) noexcept {
    // Older libuv (1.44) runs a timer of zero that is set while timers run in the same sweep: sleeps of zero in a row would leave nothing
    // else its turn.
    if (in <= duration::zero()) {
      is_due_ = true;
      return wake_up();
    }
    uv_timer_start(timer_.get(), &helpers::on_timer, (static_cast<std::uint64_t>(in.count()) + 999'999) / 1'000'000, 0);
  }
  void timer_reference(bool on) noexcept {
    (on ? uv_ref : uv_unref)(reinterpret_cast<uv_handle_t*>(timer_.get()));
  }
  void post_reference(bool on) noexcept {
    (on ? uv_ref : uv_unref)(reinterpret_cast<uv_handle_t*>(async_.get()));
  }
  [[nodiscard]] std::shared_ptr<post_box> const& box() const noexcept { return box_; }

 private:
  template <class H>
  using own = handle<H, helpers>;

  static void check(int status) {
    if (status != 0) throw error(errc::io, "attach to the loop", uv_strerror(status));
  }
  static void on_idle(uv_idle_t* h) noexcept {
    uv_idle_stop(h);
    loop_core& core = own<uv_idle_t>::core_of(h);
    const loop_core::turn t(core);
    helpers* self = own<uv_idle_t>::owner_of(h);
    if (self && std::exchange(self->is_due_, false)) core.fire_timers();
  }
  static void on_timer(uv_timer_t* h) noexcept { own<uv_timer_t>::core_of(h).fire_timers(); }
  static void on_post(uv_async_t* h) noexcept {
    loop_core& core = own<uv_async_t>::core_of(h);
    const loop_core::turn t(core);
    helpers* self = own<uv_async_t>::owner_of(h);
    if (!self) return;
    std::vector<std::unique_ptr<posted>> batch;
    {
      const std::lock_guard lock(self->box_->mutex);
      batch.swap(self->box_->queue);
    }
    for (auto const& p : batch) p->run(core);
  }

  loop_core& core_;
  bool is_due_ = false;  // a timer, when the idle handle's turn comes
  std::shared_ptr<post_box> box_;
  own<uv_idle_t> idle_;
  own<uv_timer_t> timer_;
  own<uv_async_t> async_;
};

inline void loop_core::wake_up() noexcept {
  if (helpers_) helpers_->wake_up();
}
inline void loop_core::arm_timer(time_point at) noexcept {
  if (!helpers_) return;
  armed_for_ = at;
  const time_point n = now();
  helpers_->arm_timer(at > n ? at - n : duration::zero());  // points in the past may be further away than a duration can say
}
inline void loop_core::timer_reference(bool on) noexcept {
  if (helpers_) helpers_->timer_reference(on);
}
inline void loop_core::post_reference(bool on) noexcept {
  if (helpers_) helpers_->post_reference(on);
}
inline std::shared_ptr<post_box> loop_core::door() const noexcept { return helpers_ ? helpers_->box() : nullptr; }

}  // namespace detail

/// Lets any thread run something on a loop's thread. A copyable handle that may outlive the loop.
class poster {
 public:
  /// Runs `f` on the loop's thread, in order of posting; returns false when the loop is closed (then `f` is dropped). Thread-safe.
  ///
  /// f         must not throw. Destroyed on the loop's thread once it has run or the loop ends, in this thread when it was refused.
  /// lifetime  a post does not keep the loop alive: a loop on which nothing else is alive returns from uv_run with the post in its
  ///           queue, and runs it when it is run again, or drops it when it ends. A `remote` keeps its loop alive.
  template <class F>
  bool post(F f) const {
    struct item final : detail::posted {
      explicit item(F fn) : f(std::move(fn)) {}
      void run(detail::loop_core&) override { f(); }
      F f;
    };
    return box_->put(std::make_unique<item>(std::move(f)));
  }
  /// For rollcall's own layers.
  explicit poster(std::shared_ptr<detail::post_box> b) noexcept : box_(std::move(b)) {}
  [[nodiscard]] detail::post_box& box() const noexcept { return *box_; }

 private:
  std::shared_ptr<detail::post_box> box_;
};

/// The runtime of rollcall on one libuv loop: its own, or one that exists already.
///
/// Attaching neither runs nor stops the host's loop, touches no `uv_loop_t::data`, and an idle runtime does not keep it alive.
/// All members but `post` are for the loop's thread: the one that ran it last. Debug builds assert it (docs/design/threads.md). Must
/// outlive everything that was made on it.
class loop {
 public:
  /// A loop of its own; drive it with run(), sync_wait() or rollcall::run().
  ///
  /// errors    io: out of descriptors (it takes six, the first loop of a process).
  loop() : owned_(std::make_unique<uv_loop_t>()) {
    // libuv aborts where the pipe that all its loops share for signals cannot be made.
    if (const int why = lacks_descriptors(needed_descriptors); why != 0) throw error(errc::io, "make a loop", errno_text(why));
    if (const int status = uv_loop_init(owned_.get()); status != 0) throw error(errc::io, "make a loop", uv_strerror(status));
    try {
      attach(owned_.get());
    } catch (...) {
      finish_owned();
      throw;
    }
  }
  /// On the host's loop, which must outlive this object by the turns that closing takes: after ~loop run it once more, then
  /// uv_loop_close succeeds.
  explicit loop(uv_loop_t* host) { attach(host); }
  loop(loop const&) = delete;
  loop& operator=(loop const&) = delete;
  ~loop() {
    core_->bind_thread();
    core_->end_attachments();
    helpers_.reset();
    core_->set_clock(nullptr);
    core_->release();
    if (owned_) finish_owned();
  }

  [[nodiscard]] uv_loop_t* native() const noexcept { return core_->native(); }
  /// Runs an owned loop until nothing keeps it alive. For an attached loop the host calls uv_run.
  void run() {
    ROLLCALL_ASSERT(owned_);
    core_->bind_thread();
    uv_run(owned_.get(), UV_RUN_DEFAULT);
  }
  [[nodiscard]] time_point now() const noexcept { return core_->now(); }

  /// Tells debug builds that the loop has moved to this thread before it runs here. run(), sync_wait() and the loop's own callbacks do
  /// it by themselves; only calls that come before them, on a loop that another thread has run, need it.
  void bind_to_this_thread() noexcept { core_->bind_thread(); }

  /// Runs `f` on this loop's thread; the one member that any thread may call. See poster::post: it does not keep the loop alive.
  template <class F>
  bool post(F f) {
    return poster_->post(std::move(f));
  }
  /// A handle for other threads that may outlive this loop.
  [[nodiscard]] poster post_handle() const { return *poster_; }

  /// Where everything on this loop logs to; silent unless set.
  void log_to(log_sink sink) { core_->set_log(std::move(sink)); }

  /// For tests: handles that are open or closing beside the loop's own, and coroutine frames that were started.
  [[nodiscard]] std::size_t live_handles() const noexcept { return core_->handles() - own_handles; }
  [[nodiscard]] std::size_t live_frames() const noexcept { return core_->frames(); }

  /// For rollcall's own layers.
  [[nodiscard]] detail::loop_core& core() const noexcept { return *core_; }

 private:
  static constexpr std::size_t own_handles = 3;
  static constexpr int needed_descriptors = 6;  // epoll, an eventfd, two pipes

  void attach(uv_loop_t* uv) {
    core_ = new detail::loop_core(uv);
    try {
      helpers_ = std::make_unique<detail::helpers>(*core_);
      poster_ = std::make_unique<poster>(poster(helpers_->box()));
    } catch (...) {
      helpers_.reset();
      core_->release();
      throw;
    }
  }
  void finish_owned() noexcept {
    // Closing takes loop turns. A look-up or a blocking call that was given up still ends in its thread, which holds the loop: it is
    // waited for. What else is alive then would be an object that outlives its loop.
    int status = uv_loop_close(owned_.get());
    for (int turns = 0; status == UV_EBUSY && turns < 1000; ++turns) {
      uv_run(owned_.get(), owned_->active_reqs.count > 0 ? UV_RUN_ONCE : UV_RUN_NOWAIT);
      status = uv_loop_close(owned_.get());
    }
    ROLLCALL_ASSERT(status == 0 && "rollcall: an object outlives its loop");
  }

  std::unique_ptr<uv_loop_t> owned_;
  detail::loop_core* core_ = nullptr;
  std::unique_ptr<detail::helpers> helpers_;
  std::unique_ptr<poster> poster_;
};

/// The loop that an object lives on, for who has only the object: copyable, and valid as long as the loop is. What stores give as home().
class loop_ref {
 public:
  loop_ref(loop& l) noexcept : core_(&l.core()) {}
  /// For rollcall's own layers.
  explicit loop_ref(detail::loop_core& c) noexcept : core_(&c) {}

  /// The clock of all deadlines.
  [[nodiscard]] time_point now() const noexcept { return core_->now(); }
  /// Writes to where the loop logs to; whether that is anywhere.
  void log(log_level l, std::string_view line) const noexcept { core_->log(l, line); }
  [[nodiscard]] bool logs() const noexcept { return core_->logs(); }

  /// For rollcall's own layers.
  [[nodiscard]] detail::loop_core& core() const noexcept { return *core_; }

 private:
  detail::loop_core* core_;
};

}  // namespace v0
}  // namespace rollcall
