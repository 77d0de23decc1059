#pragma once
#include <sys/epoll.h>
#include <unistd.h>
#include <uv.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../../posix/fd.hpp"
#include "../../rt/detail/handle.hpp"

namespace rollcall {
inline namespace v0 {
namespace net {
namespace detail {

using rollcall::detail::loop_core;

class poller;

/// A descriptor in a poller's set.
class watched {
 public:
  /// EPOLL* bits. May remove this object, also destroy it.
  virtual void on_events(std::uint32_t events) noexcept = 0;

 protected:
  watched() noexcept = default;
  ~watched() = default;

 private:
  friend class poller;
  std::uint32_t generation_ = 0;
  std::uint32_t mask_ = 0;  // what the kernel watches for
};

/// All sockets of a loop: an epoll set of our own that libuv polls as one descriptor. A connection costs one epoll_ctl when it comes and
/// none when it goes, and no libuv handle (docs/design/transport.md).
///
/// Exists while somebody has joined. Descriptors leave the set when they are closed; where another process still holds one (a fork that
/// has not exec'd), its events would go on for nobody: then the set is made anew.
class poller final {
 public:
  /// The poller of `core`, one user more; nullptr and a negative errno value where there can be none.
  [[nodiscard]] static poller* join(loop_core& core, int& status) {
    home& h = core.attached<home>();
    if (!h.tenant) {
      std::unique_ptr<poller> p(new poller(core, h));
      if ((status = p->open()) != 0) return nullptr;
      h.tenant = p.release();
    }
    ++h.tenant->users_;
    status = 0;
    return h.tenant;
  }
  void leave() noexcept {
    if (--users_ == 0) delete this;
  }
  poller(poller const&) = delete;
  poller& operator=(poller const&) = delete;

  [[nodiscard]] loop_core& core() const noexcept { return core_; }

  /// Watches `fd` for `mask`, none of it: only for its end. Returns 0 or a negative errno value.
  [[nodiscard]] int add(int fd, watched& w, std::uint32_t mask) {
    const auto at = static_cast<std::size_t>(fd);
    if (at >= table_.size()) table_.resize(at + at / 2 + 16);
    w.generation_ = ++generations_;
    w.mask_ = mask;
    if (control(set_.get(), EPOLL_CTL_ADD, fd, w) != 0) return -errno;
    table_[at] = &w;
    return 0;
  }
  void change(int fd, watched& w, std::uint32_t mask) noexcept {
    if (std::exchange(w.mask_, mask) != mask) control(set_.get(), EPOLL_CTL_MOD, fd, w);
  }
  /// Before the descriptor is closed.
  void remove(int fd) noexcept {
    table_[static_cast<std::size_t>(fd)] = nullptr;
    removed_ = true;
  }
  [[nodiscard]] static std::uint32_t mask_of(watched const& w) noexcept { return w.mask_; }
  [[nodiscard]] static std::uint32_t generation_of(watched const& w) noexcept { return w.generation_; }
  /// Whether that descriptor is still there, and not another one under its number.
  [[nodiscard]] watched* find(int fd, std::uint32_t generation) const noexcept {
    const auto at = static_cast<std::size_t>(fd);
    watched* const w = at < table_.size() ? table_[at] : nullptr;
    return w && w->generation_ == generation ? w : nullptr;
  }

  /// While anybody holds it, the host's loop stays alive.
  void hold(bool on) noexcept {
    holders_ += on ? 1 : -1;
    if (holders_ == (on ? 1 : 0)) refer();
  }

 private:
  /// Where a loop's poller is found. May end before it.
  struct home final : rollcall::detail::loop_attachment {
    home() noexcept = default;
    ~home() override {
      if (tenant) tenant->home_ = nullptr;
    }
    poller* tenant = nullptr;
  };
  using handle = rollcall::detail::handle<uv_poll_t, poller>;
  static constexpr int batch = 256;

  poller(loop_core& core, home& h) noexcept : core_(core), home_(&h) {}
  ~poller() {
    if (home_) home_->tenant = nullptr;
    poll_.reset();  // libuv forgets the descriptor in uv_close, so that it may be closed here
  }
  friend std::default_delete<poller>;

  int open() {
    unique_fd set(::epoll_create1(EPOLL_CLOEXEC));
    if (!set) return -errno;
    for (std::size_t i = 0; i < table_.size(); ++i)
      if (table_[i] && control(set.get(), EPOLL_CTL_ADD, static_cast<int>(i), *table_[i]) != 0) return -errno;
    handle poll;
    const int status = poll.open(core_, this, [&](uv_loop_t* l, uv_poll_t* h) { return uv_poll_init(l, h, set.get()); });
    if (status != 0) return status;
    poll_ = std::move(poll);
    set_ = std::move(set);
    uv_poll_start(poll_.get(), UV_READABLE, [](uv_poll_t* h, int, int) noexcept {
      if (poller* self = handle::owner_of(h)) self->dispatch();
    });
    refer();
    return 0;
  }
  void refer() noexcept { (holders_ > 0 ? uv_ref : uv_unref)(reinterpret_cast<uv_handle_t*>(poll_.get())); }

  static int control(int set, int what, int fd, watched const& w) noexcept {
    epoll_event e{};
    // Ends are told whether asked for or not, but to one who wants nothing only once.
    e.events = w.mask_ != 0 ? w.mask_ : static_cast<std::uint32_t>(EPOLLET);
    e.data.u64 = (std::uint64_t{w.generation_} << 32) | static_cast<std::uint32_t>(fd);
    return ::epoll_ctl(set, what, fd, &e);
  }

  void dispatch() noexcept {
    ++users_;
    removed_ = false;
    bool stale = false;
    epoll_event events[batch];
    const int n = ::epoll_wait(set_.get(), events, batch, 0);
    for (int i = 0; i < n; ++i) {
      const auto fd = static_cast<int>(static_cast<std::uint32_t>(events[i].data.u64));
      if (watched* const w = find(fd, static_cast<std::uint32_t>(events[i].data.u64 >> 32))) {
        const loop_core::turn t(core_);  // each has its own: what it makes ready runs before the next is read
        w->on_events(events[i].events);
      } else {
        stale = stale || !removed_;  // else it was removed by one before it in this batch
      }
    }
    if (stale) remake();
    leave();
  }
  void remake() noexcept {
    try {
      static_cast<void>(open());
    } catch (...) {  // no memory: the next event tries again
    }
  }

  loop_core& core_;
  home* home_;
  unique_fd set_;
  handle poll_;
  std::vector<watched*> table_;  // by descriptor
  std::uint32_t generations_ = 0;
  std::size_t users_ = 0;
  int holders_ = 0;
  bool removed_ = false;
};

/// A membership.
class poller_ptr {
 public:
  poller_ptr() noexcept = default;
  /// Joins; on failure owns nothing, and `status` is a negative errno value.
  poller_ptr(loop_core& core, int& status) : poller_(poller::join(core, status)) {}
  poller_ptr(poller_ptr&& o) noexcept : poller_(std::exchange(o.poller_, nullptr)) {}
  poller_ptr& operator=(poller_ptr o) noexcept {
    std::swap(poller_, o.poller_);
    return *this;
  }
  ~poller_ptr() {
    if (poller_) poller_->leave();
  }
  [[nodiscard]] poller* operator->() const noexcept { return poller_; }
  [[nodiscard]] poller& operator*() const noexcept { return *poller_; }
  [[nodiscard]] explicit operator bool() const noexcept { return poller_ != nullptr; }

 private:
  poller* poller_ = nullptr;
};

}  // namespace detail
}  // namespace net
}  // namespace v0
}  // namespace rollcall
