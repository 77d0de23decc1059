#pragma once
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "../posix/address.hpp"
#include "../posix/fd.hpp"
#include "detail/socket_stream.hpp"
#include "stream.hpp"

namespace rollcall {
inline namespace v0 {
namespace net {

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

/// One attempt to connect; tells `done(status)` once unless it is destroyed before. Status 0, or a negative errno value.
class connecting final : private stream_sink {
 public:
  using done_fn = void (*)(void* owner, int status) noexcept;
  connecting() noexcept = default;
  connecting(connecting const&) = delete;
  connecting& operator=(connecting const&) = delete;
  ~connecting() = default;

  /// Starts; a status other than 0 means that `done` will not be called.
  int start(loop_core& core, socket_address const& to, void* owner, done_fn done) {
    unique_fd fd(::socket(to.data()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return -errno;
    if (::connect(fd.get(), to.data(), to.size()) != 0 && errno != EINPROGRESS && errno != EINTR) return -errno;
    fd_ = fd.get();
    owner_ = owner;
    done_ = done;
    return socket_stream::adopt_connecting(core, fd, *this, stream_);
  }
  /// Gives up; `done` is not called any more.
  void reset() noexcept { stream_.reset(); }
  /// After success: the connected stream.
  [[nodiscard]] stream_ptr take(socket_options const& options) noexcept {
    options.apply(fd_);
    return std::move(stream_);
  }

 private:
  void on_read(std::string_view) noexcept override {}
  void on_end(int) noexcept override {}
  void on_writable() noexcept override {
    int status = 0;
    socklen_t size = sizeof status;
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &status, &size) != 0) status = errno;
    // A port that nobody serves may be the very one the kernel picked for us: then we would talk to ourselves.
    if (status == 0 && rollcall::detail::connected_to_itself(fd_)) status = ECONNREFUSED;
    if (status != 0) stream_.reset();
    done_(owner_, -status);
  }
  stream_ptr stream_;
  int fd_ = -1;
  void* owner_ = nullptr;
  done_fn done_ = nullptr;
};

}  // namespace detail
}  // namespace net
}  // namespace v0
}  // namespace rollcall
