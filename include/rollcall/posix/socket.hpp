#pragma once
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "address.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// How many bytes these pieces (1..64) hold.
[[nodiscard]] inline std::size_t size_of(iovec const* pieces, int count) noexcept {
  std::size_t n = 0;
  for (int i = 0; i < count; ++i) n += pieces[i].iov_len;
  return n;
}

/// Writes what the socket takes at once and never raises SIGPIPE: the number of bytes, 0 where it is full, or a negative errno value.
[[nodiscard]] inline std::ptrdiff_t send_some(int fd, iovec const* pieces, int count) noexcept {
  for (;;) {
    ssize_t n = 0;
    if (count == 1) {
      n = ::send(fd, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else {
      msghdr m{};
      m.msg_iov = const_cast<iovec*>(pieces);
      m.msg_iovlen = static_cast<std::size_t>(count);
      n = ::sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (n >= 0) return n;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -errno;
  }
}

/// Who is at the other end, for logs.
[[nodiscard]] inline std::string peer_text(int fd) {
  const socket_address a = socket_address::peer(fd);
  return a.has_value() ? a.to_string() : std::string("a lost peer");
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
