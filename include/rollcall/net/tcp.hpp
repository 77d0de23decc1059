#pragma once
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "../posix/address.hpp"
#include "../rt/detail/handle.hpp"
#include "../rt/detail/waiter.hpp"
#include "../rt/loop.hpp"
#include "stream.hpp"

namespace rollcall {
inline namespace v0 {
namespace net {

/// "ECONNREFUSED (Connection refused)"; takes a positive errno value.
[[nodiscard]] inline std::string errno_text(int value) { return errno_name(value) + " (" + std::generic_category().message(value) + ")"; }

/// Socket options of a client connection. Servers set theirs on the listener.
class socket_options {
 public:
  socket_options() noexcept = default;
  int keep_alive_idle = 10;     ///< seconds before the first probe
  int keep_alive_interval = 3;  ///< seconds between probes
  int keep_alive_count = 3;     ///< lost probes that end the connection

  /// Keep-alive and TCP_NODELAY on `fd`; errors are ignored (a unix socket has neither).
  void apply(int fd) const noexcept {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keep_alive_idle, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keep_alive_interval, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &keep_alive_count, sizeof(int));
  }
};

namespace detail {

using rollcall::detail::close_and_delete;
using rollcall::detail::loop_core;

/// Tells when a full socket has room again: polls a duplicate of the descriptor, since libuv's own watcher of the original belongs to
/// the reading side; without a descriptor to spare it asks again every few milliseconds.
template <class Stream>
class write_watch final : private rollcall::detail::timer_node {
 public:
  /// `keeps_alive`: whether what is unsent holds the host's loop.
  write_watch(loop_core& core, Stream& s, int fd, bool keeps_alive)
      : timer_node([](timer_node& t) noexcept { static_cast<write_watch&>(t).stream_.room(); }, keeps_alive), core_(core), stream_(s) {
    fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd_ >= 0 && poll_.open(core, this, [this](uv_loop_t* l, uv_poll_t* h) { return uv_poll_init(l, h, fd_); }) == 0) {
      uv_poll_start(poll_.get(), UV_WRITABLE, [](uv_poll_t* h, int, int) noexcept {
        const loop_core::turn t(handle::core_of(h));
        if (write_watch* self = handle::owner_of(h)) self->stream_.room();
      });
      if (!keeps_alive) uv_unref(reinterpret_cast<uv_handle_t*>(poll_.get()));
    } else {
      core_.add_timer(*this, core_.now() + retry);
    }
  }
  write_watch(write_watch const&) = delete;
  write_watch& operator=(write_watch const&) = delete;
  ~write_watch() {
    core_.remove_timer(*this);
    poll_.reset();  // libuv forgets the descriptor in uv_close, so that it may be closed here
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  static constexpr std::chrono::milliseconds retry{5};
  using handle = rollcall::detail::handle<uv_poll_t, write_watch>;
  loop_core& core_;
  Stream& stream_;
  int fd_ = -1;
  handle poll_;
};

/// A stream on a TCP socket. Reads through libuv into the loop's slab; writes with send(MSG_NOSIGNAL) on the descriptor, because
/// libuv's own writes can raise SIGPIPE in a process that embeds us (docs/design/transport.md).
class tcp_stream final : public stream {
 public:
  /// Takes over a connected socket `fd`; on failure returns the libuv status, and the descriptor stays the caller's.
  static int adopt(loop_core& core, int fd, stream_ptr& out) {
    auto s = std::unique_ptr<tcp_stream>(new tcp_stream(core));
    if (const int status = uv_tcp_init(core.native(), &s->uv); status != 0) return status;
    core.add_handle();
    tcp_stream* raw = s.release();
    if (const int status = uv_tcp_open(&raw->uv, fd); status != 0) {
      close_and_delete(raw);
      return status;
    }
    raw->fd_ = fd;
    out.reset(raw);
    return 0;
  }

  void start_read(stream_sink& sink) noexcept override {
    sink_ = &sink;
    uv_read_start(
        reinterpret_cast<uv_stream_t*>(&uv),
        [](uv_handle_t* h, std::size_t, uv_buf_t* b) noexcept {
          char* const slab = self(h).core->read_slab();
          *b = uv_buf_init(slab, slab ? loop_core::slab_bytes : 0);  // without one, libuv reports ENOBUFS
        },
        [](uv_stream_t* h, ssize_t n, uv_buf_t const* b) noexcept {
          tcp_stream& s = self(h);
          const loop_core::turn t(*s.core);
          if (n > 0) {
            s.sink_->on_read(std::string_view(b->base, static_cast<std::size_t>(n)));
          } else if (n < 0) {
            uv_read_stop(h);
            s.sink_->on_end(n == UV_EOF ? 0 : static_cast<int>(n));
          }
        });
  }
  void stop_read() noexcept override { uv_read_stop(reinterpret_cast<uv_stream_t*>(&uv)); }

  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override {
    if (watch_) return 0;
    std::size_t want = 0;
    for (int i = 0; i < count; ++i) want += pieces[i].iov_len;
    ssize_t n;
    do {
      if (count == 1) {
        n = ::send(fd_, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
      } else {
        msghdr m{};
        m.msg_iov = const_cast<iovec*>(pieces);
        m.msg_iovlen = static_cast<std::size_t>(count);
        n = ::sendmsg(fd_, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) return -errno;
      n = 0;
    }
    if (static_cast<std::size_t>(n) < want) {
      try {
        const bool referenced = uv_has_ref(reinterpret_cast<uv_handle_t*>(&uv)) != 0;
        watch_ = std::make_unique<write_watch<tcp_stream>>(*core, *this, fd_, referenced);
      } catch (...) {
        return -ENOMEM;
      }
    }
    return n;
  }
  void shutdown() noexcept override { ::shutdown(fd_, SHUT_WR); }
  void keep_alive(bool on) noexcept override { (on ? uv_ref : uv_unref)(reinterpret_cast<uv_handle_t*>(&uv)); }
  [[nodiscard]] std::string peer_name() const override {
    const socket_address a = socket_address::peer(fd_);
    return a.has_value() ? a.to_string() : std::string("a lost peer");
  }
  void close() noexcept override {
    watch_.reset();
    close_and_delete(this);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }

  uv_tcp_t uv;
  loop_core* core;

 private:
  friend class write_watch<tcp_stream>;
  friend class connecting;
  template <class B>
  friend void rollcall::detail::close_and_delete(B*) noexcept;

  explicit tcp_stream(loop_core& c) noexcept : core(&c) { uv.data = this; }
  static tcp_stream& self(void* h) noexcept { return *static_cast<tcp_stream*>(static_cast<uv_handle_t*>(h)->data); }
  void room() noexcept {
    watch_.reset();
    if (sink_) sink_->on_writable();
  }
  ~tcp_stream() = default;
  friend std::default_delete<tcp_stream>;

  int fd_ = -1;
  stream_sink* sink_ = nullptr;
  std::unique_ptr<write_watch<tcp_stream>> watch_;
};

/// One attempt to connect; tells `done(status)` once unless it is destroyed before. Status 0, or a negative errno value.
class connecting {
 public:
  using done_fn = void (*)(void* owner, int status) noexcept;
  connecting() noexcept = default;
  connecting(connecting const&) = delete;
  connecting& operator=(connecting const&) = delete;
  ~connecting() { reset(); }

  /// Starts; a status other than 0 means that `done` will not be called.
  int start(loop_core& core, socket_address const& to, void* owner, done_fn done) {
    auto s = std::unique_ptr<tcp_stream>(new tcp_stream(core));
    if (const int status = uv_tcp_init(core.native(), &s->uv); status != 0) return status;
    core.add_handle();
    stream_ = s.release();
    request_ = new request{{}, this};
    request_->uv.data = request_;
    const int status = uv_tcp_connect(&request_->uv, &stream_->uv, to.data(), [](uv_connect_t* r, int st) noexcept {
      const std::unique_ptr<request> mine(static_cast<request*>(r->data));
      if (!mine->owner) return;
      const loop_core::turn t(*mine->owner->stream_->core);
      mine->owner->request_ = nullptr;
      mine->owner->finished(st);
    });
    if (status != 0) {
      delete std::exchange(request_, nullptr);
      reset();
      return status;
    }
    owner_ = owner;
    done_ = done;
    return 0;
  }
  /// Gives up; `done` is not called any more.
  void reset() noexcept {
    if (request_) std::exchange(request_, nullptr)->owner = nullptr;
    if (stream_) close_and_delete(std::exchange(stream_, nullptr));
  }
  /// After success: the connected stream.
  [[nodiscard]] stream_ptr take(socket_options const& options) noexcept {
    uv_os_fd_t fd = -1;
    uv_fileno(reinterpret_cast<uv_handle_t*>(&stream_->uv), &fd);
    stream_->fd_ = fd;
    options.apply(fd);
    return stream_ptr(std::exchange(stream_, nullptr));
  }

 private:
  struct request {
    uv_connect_t uv;
    connecting* owner;
  };
  void finished(int status) noexcept {
    // A port that nobody serves may be the very one the kernel picked for us: then we would talk to ourselves.
    if (status == 0 && connected_to_itself()) status = UV_ECONNREFUSED;
    if (status != 0) reset();
    done_(owner_, status);
  }
  [[nodiscard]] bool connected_to_itself() const noexcept {
    uv_os_fd_t fd = -1;
    uv_fileno(reinterpret_cast<uv_handle_t*>(&stream_->uv), &fd);
    const socket_address here = socket_address::local(fd);
    return here.is_inet() && here == socket_address::peer(fd);
  }
  tcp_stream* stream_ = nullptr;
  request* request_ = nullptr;
  void* owner_ = nullptr;
  done_fn done_ = nullptr;
};

}  // namespace detail
}  // namespace net
}  // namespace v0
}  // namespace rollcall
