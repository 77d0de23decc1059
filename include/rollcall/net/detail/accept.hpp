#pragma once
#include <uv.h>

#include <chrono>
#include <utility>

#include "../../posix/accept.hpp"
#include "../../posix/fd.hpp"
#include "../../posix/listener.hpp"
#include "../../rt/detail/handle.hpp"
#include "poller.hpp"

namespace rollcall {
inline namespace v0 {
namespace net {
namespace detail {

/// Receives accepted sockets.
class accept_sink {
 public:
  /// A new socket, non-blocking and close-on-exec; the callee owns it.
  virtual void on_accept(unique_fd fd) noexcept = 0;
  /// A socket had to be refused, or accepting pauses: a negative errno value.
  virtual void on_accept_error(int status) noexcept = 0;

 protected:
  ~accept_sink() = default;
};

/// Accepts on a listener in bounded batches, so that a storm of connects does not starve those inside. Out of descriptors, it gives up
/// a reserve to take and close the waiting connection (a refusal the peer can see), and pauses where even that fails.
class acceptor_core final : private rollcall::detail::timer_node {
  using loop_core = rollcall::detail::loop_core;

 public:
  static constexpr int batch = 256;
  static constexpr std::chrono::milliseconds pause{100};

  acceptor_core(loop_core& core, listener at, accept_sink& sink)
      : timer_node([](timer_node& t) noexcept { static_cast<acceptor_core&>(t).resume(); }), core_(core), queue_(std::move(at)), sink_(sink) {
    const int status = poll_.open(core, this, [this](uv_loop_t* l, uv_poll_t* h) { return uv_poll_init(l, h, queue_.at().fd()); });
    if (status != 0) throw error(errc::io, "serve", queue_.at().url() + ": " + errno_text(-status));
    // The sockets that come need it; so it is not made anew for each that is alone.
    int joined = 0;
    connections_ = poller_ptr(core, joined);
    if (joined != 0) throw error(errc::io, "serve", queue_.at().url() + ": " + errno_text(-joined));
    resume();
  }
  acceptor_core(acceptor_core const&) = delete;
  acceptor_core& operator=(acceptor_core const&) = delete;
  ~acceptor_core() { core_.remove_timer(*this); }

  [[nodiscard]] listener const& at() const noexcept { return queue_.at(); }
  /// Whether accepting keeps the host's loop alive; it does unless told otherwise.
  void keep_alive(bool on) noexcept { (on ? uv_ref : uv_unref)(reinterpret_cast<uv_handle_t*>(poll_.get())); }
  /// No more is accepted until resume(); connections queue in the kernel.
  void suspend() noexcept {
    core_.remove_timer(*this);
    uv_poll_stop(poll_.get());
  }
  void resume() noexcept {
    core_.remove_timer(*this);
    uv_poll_start(poll_.get(), UV_READABLE, [](uv_poll_t* h, int, int) noexcept {
      const loop_core::turn t(handle::core_of(h));
      if (acceptor_core* self = handle::owner_of(h)) self->accept_some();
    });
  }

 private:
  using handle = rollcall::detail::handle<uv_poll_t, acceptor_core>;
  using queue = rollcall::detail::accept_queue;

  void accept_some() noexcept {
    for (int i = 0; i < batch; ++i) {
      unique_fd fd;
      int why = 0;
      switch (queue_.next(fd, why)) {
        case queue::outcome::accepted:
          sink_.on_accept(std::move(fd));
          if (!uv_is_active(reinterpret_cast<uv_handle_t*>(poll_.get()))) return;  // the sink has suspended us
          continue;
        case queue::outcome::again: continue;
        case queue::outcome::nobody: return;
        case queue::outcome::refused: sink_.on_accept_error(-why); continue;
        case queue::outcome::broken:
          sink_.on_accept_error(-why);
          suspend();
          core_.add_timer(*this, core_.now() + pause);
          return;
      }
    }
  }

  loop_core& core_;
  queue queue_;
  accept_sink& sink_;
  poller_ptr connections_;
  handle poll_;
};

}  // namespace detail
}  // namespace net
}  // namespace v0
}  // namespace rollcall
