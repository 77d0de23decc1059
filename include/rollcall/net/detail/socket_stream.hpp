#pragma once
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../../posix/fd.hpp"
#include "../../posix/socket.hpp"
#include "../stream.hpp"
#include "poller.hpp"

namespace rollcall {
inline namespace v0 {
namespace net {
namespace detail {

/// A stream on a socket, TCP or unix. Reads into the loop's slab; writes with send(MSG_NOSIGNAL), so that a peer that is gone never
/// raises SIGPIPE in a process that embeds us.
///
/// Reading that is stopped and started again within a turn costs no system call: what the kernel watches for changes when it must, or
/// when it tells what nobody wants.
class socket_stream final : public stream, private watched {
 public:
  /// Takes over a connected, non-blocking socket. On failure returns a negative errno value, and leaves `fd` as it is.
  [[nodiscard]] static int adopt(loop_core& core, unique_fd& fd, stream_ptr& out) { return make(core, fd, out, EPOLLIN); }
  /// Takes over a socket that is being connected: `sink` is told on_writable() when that is over, well or not.
  [[nodiscard]] static int adopt_connecting(loop_core& core, unique_fd& fd, stream_sink& sink, stream_ptr& out) {
    const int status = make(core, fd, out, EPOLLOUT);
    if (status != 0) return status;
    auto& s = static_cast<socket_stream&>(*out);
    s.sink_ = &sink;
    s.blocked_ = true;
    s.settle();
    return 0;
  }

  void start_read(stream_sink& sink) noexcept override {
    sink_ = &sink;
    reading_ = true;
    if ((mask() & EPOLLIN) == 0) watch();
    settle();
  }
  void stop_read() noexcept override {
    reading_ = false;
    settle();
  }
  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override {
    if (blocked_) return 0;
    const std::ptrdiff_t n = rollcall::detail::send_some(fd_.get(), pieces, count);
    if (n < 0) return n;
    if (static_cast<std::size_t>(n) < rollcall::detail::size_of(pieces, count)) {
      blocked_ = true;
      watch();
      settle();
    }
    return n;
  }
  void shutdown() noexcept override { ::shutdown(fd_.get(), SHUT_WR); }
  void keep_alive(bool on) noexcept override {
    keeps_alive_ = on;
    settle();
  }
  [[nodiscard]] std::string peer_name() const override { return rollcall::detail::peer_text(fd_.get()); }
  void close() noexcept override { delete this; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  static constexpr int reads_in_a_row = 8;  // of full slabs; then others have their turn
  static constexpr std::uint32_t ends = EPOLLHUP | EPOLLERR;

  explicit socket_stream(poller_ptr p) noexcept : poller_(std::move(p)) { poller_->core().add_handle(); }
  ~socket_stream() {
    if (held_) poller_->hold(false);
    if (fd_) poller_->remove(fd_.get());
    fd_.reset();
    loop_core& core = poller_->core();
    poller_ = poller_ptr();
    core.drop_handle();
  }
  friend std::default_delete<socket_stream>;

  static int make(loop_core& core, unique_fd& fd, stream_ptr& out, std::uint32_t mask) {
    int status = 0;
    poller_ptr p(core, status);
    if (!p) return status;
    auto s = std::unique_ptr<socket_stream>(new socket_stream(std::move(p)));
    if ((status = s->poller_->add(fd.get(), *s, mask)) != 0) return status;
    s->fd_ = std::move(fd);
    out.reset(s.release());
    return 0;
  }

  [[nodiscard]] std::uint32_t mask() const noexcept { return poller::mask_of(*this); }
  [[nodiscard]] std::uint32_t wanted() const noexcept { return (reading_ ? EPOLLIN : 0U) | (blocked_ ? EPOLLOUT : 0U); }
  void watch() noexcept { poller_->change(fd_.get(), *this, wanted()); }
  /// Whether it keeps the host's loop running: while something is to come of it.
  void settle() noexcept {
    const bool hold = keeps_alive_ && (reading_ || blocked_);
    if (hold == held_) return;
    held_ = hold;
    poller_->hold(hold);
  }

  void on_events(std::uint32_t events) noexcept override {
    const bool unwanted = wanted() == 0 || (events & ~wanted() & (EPOLLIN | EPOLLOUT)) != 0;
    poller& p = *poller_;
    const int fd = fd_.get();
    const std::uint32_t generation = poller::generation_of(*this);
    if (reading_ && (events & (EPOLLIN | ends)) != 0) {
      read();
      if (!p.find(fd, generation)) return;
    }
    if (blocked_ && (events & (EPOLLOUT | ends)) != 0) {
      blocked_ = false;
      sink_->on_writable();
      if (!p.find(fd, generation)) return;
      settle();
      if (!blocked_) watch();
    }
    if (unwanted) watch();
  }
  void read() noexcept {
    poller& p = *poller_;
    const int fd = fd_.get();
    const std::uint32_t generation = poller::generation_of(*this);
    for (int i = 0; i < reads_in_a_row && reading_; ++i) {
      char* const slab = p.core().read_slab();
      ssize_t n = -1;
      if (!slab) errno = ENOBUFS;
      while (slab && (n = ::recv(fd, slab, loop_core::slab_bytes, MSG_DONTWAIT)) < 0 && errno == EINTR) {
      }
      if (n > 0) {
        sink_->on_read(std::string_view(slab, static_cast<std::size_t>(n)));
        if (static_cast<std::size_t>(n) < loop_core::slab_bytes || !p.find(fd, generation)) return;
      } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
        const int status = n == 0 ? 0 : -errno;
        stop_read();
        return sink_->on_end(status);
      } else {
        return;
      }
    }
  }

  poller_ptr poller_;
  stream_sink* sink_ = nullptr;
  unique_fd fd_;
  bool reading_ = false;
  bool blocked_ = false;  // the socket is full, or not connected yet
  bool keeps_alive_ = true;
  bool held_ = false;
};

}  // namespace detail
}  // namespace net
}  // namespace v0
}  // namespace rollcall
