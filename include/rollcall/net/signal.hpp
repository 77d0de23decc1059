#pragma once
#include <uv.h>

#include <array>
#include <concepts>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "../rt/detail/handle.hpp"
#include "../rt/detail/waiter.hpp"
#include "../rt/loop.hpp"

namespace rollcall {
inline namespace v0 {

/// "SIGTERM" for 15; "signal 63" for those without a name.
[[nodiscard]] inline std::string signal_name(int signal) {
  struct named {
    int number;
    char const* name;
  };
  static constexpr named names[] = {
      {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
      {SIGABRT, "SIGABRT"},     {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},
      {SIGSEGV, "SIGSEGV"},     {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
      {SIGCHLD, "SIGCHLD"},     {SIGCONT, "SIGCONT"}, {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"}, {SIGTTIN, "SIGTTIN"},
      {SIGTTOU, "SIGTTOU"},     {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},   {SIGWINCH, "SIGWINCH"},
      {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGIO, "SIGIO"},     {SIGPWR, "SIGPWR"},   {SIGURG, "SIGURG"}};
  for (named const& n : names)
    if (n.number == signal) return n.name;
  return "signal " + std::to_string(signal);
}

/// Catches signals of the process and hands them out in the order they came: `signal_watcher w(loop, SIGINT, SIGTERM);`.
///
/// While it lives their default action does not happen; libuv restores SIG_DFL when the last watcher of a signal on any loop goes.
/// Several watchers of one signal all get it. Keeps the loop alive only while somebody waits in next(). Must outlive its waiters.
class signal_watcher {
  using own = detail::handle<uv_signal_t, signal_watcher>;

 public:
  /// errors  io, naming the signal, for one that cannot be caught.
  template <std::same_as<int>... Signal>
    requires(sizeof...(Signal) > 0)
  explicit signal_watcher(loop& l, Signal... signals) : core_(&l.core()) {
    handles_.reserve(sizeof...(Signal));
    (watch(signals), ...);
  }
  signal_watcher(signal_watcher const&) = delete;
  signal_watcher& operator=(signal_watcher const&) = delete;
  ~signal_watcher() = default;

  class [[nodiscard]] waiting final : public list_hook<>, private detail::waiter {
   public:
    explicit waiting(signal_watcher& w) noexcept : watcher_(w) {}
    /// Only before it is awaited.
    waiting(waiting&& o) noexcept : list_hook<>(), detail::waiter(), watcher_(o.watcher_) {}
    ~waiting() {
      if (how() == state::waiting) leave();
      if (signal_ != 0) watcher_.give_back(signal_);  // the coroutine died before it could look: the next one gets it
    }
    [[nodiscard]] bool await_ready() noexcept {
      signal_ = watcher_.take();
      return signal_ != 0;
    }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      if (!begin(h, watcher_.core_)) return false;
      if (watcher_.waiters_.empty()) watcher_.keep_alive(true);
      watcher_.waiters_.push_back(*this);
      return true;
    }
    int await_resume() {
      if (was_stopped()) detail::throw_cancelled("wait for a signal");
      return std::exchange(signal_, 0);
    }

   private:
    friend class signal_watcher;
    void caught(int signal) noexcept {
      signal_ = signal;
      complete();
    }
    void leave() noexcept override {
      if (!list_hook<>::linked()) return;
      list_hook<>::unlink();
      if (watcher_.waiters_.empty()) watcher_.keep_alive(false);
    }
    signal_watcher& watcher_;
    int signal_ = 0;
  };

  /// The next signal, as its number. Each is handed out once; the first 64 that nobody has waited for yet are kept.
  ///
  /// errors  cancelled.
  /// cancel  as if never called; a signal that arrives later goes to the next caller.
  [[nodiscard]] waiting next() noexcept { return waiting(*this); }

 private:
  static constexpr std::size_t most_kept = 64;

  void watch(int signal) {
    own h;
    int status = h.open(*core_, this, [](uv_loop_t* l, uv_signal_t* s) { return uv_signal_init(l, s); });
    if (status == 0) status = uv_signal_start(h.get(), &signal_watcher::on_signal, signal);
    if (status != 0) throw error(errc::io, "watch " + signal_name(signal), uv_strerror(status));
    uv_unref(reinterpret_cast<uv_handle_t*>(h.get()));
    handles_.push_back(std::move(h));
  }
  static void on_signal(uv_signal_t* h, int signal) noexcept {
    const detail::loop_core::turn t(own::core_of(h));
    if (signal_watcher* self = own::owner_of(h)) self->caught(signal);
  }
  void caught(int signal) noexcept {
    if (waiters_.empty()) {
      if (kept_ < most_kept) queue_[(first_ + kept_++) % most_kept] = signal;
      return;
    }
    waiting& w = waiters_.pop_front();
    if (waiters_.empty()) keep_alive(false);
    w.caught(signal);
  }
  int take() noexcept {
    if (kept_ == 0) return 0;
    const int signal = queue_[first_];
    first_ = (first_ + 1) % most_kept;
    --kept_;
    return signal;
  }
  void give_back(int signal) noexcept {
    if (!waiters_.empty()) return caught(signal);
    if (kept_ == most_kept) return;
    first_ = (first_ + most_kept - 1) % most_kept;
    queue_[first_] = signal;
    ++kept_;
  }
  void keep_alive(bool on) noexcept {
    for (own const& h : handles_) (on ? uv_ref : uv_unref)(reinterpret_cast<uv_handle_t*>(h.get()));
  }

  detail::loop_core* core_;
  std::array<int, most_kept> queue_{};
  std::size_t first_ = 0;
  std::size_t kept_ = 0;
  list<waiting> waiters_;
  std::vector<own> handles_;
};

}  // namespace v0
}  // namespace rollcall
