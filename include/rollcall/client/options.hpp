#pragma once
#include <chrono>
#include <cstddef>

#include "../core/clock.hpp"
#include "../net/tcp.hpp"

namespace rollcall {
inline namespace v0 {

/// How a client behaves. Chain the setters: `client_options{}.timeout(30s).max_lanes(4)`.
class client_options {
 public:
  client_options() noexcept = default;

  /// Limit of each operation that is not given one of its own. Default 300 s, as the reference has it.
  client_options& timeout(deadline d) noexcept { return timeout_ = d, *this; }
  /// Longest user key in bytes; longer ones fail with errc::limit and are not sent. Default 8191, what PyTorch's libuv server takes.
  client_options& max_key_bytes(std::size_t n) noexcept { return max_key_bytes_ = n, *this; }
  /// Longest value in bytes of one request. Default 8 MiB.
  client_options& max_value_bytes(std::size_t n) noexcept { return max_value_bytes_ = n, *this; }
  /// Connections one store may open: a wait for several keys occupies one until it is over. Default 64.
  client_options& max_lanes(std::size_t n) noexcept { return max_lanes_ = n, *this; }
  /// Bytes staged for a server that does not read, past which operations fail with errc::limit. Default 64 MiB.
  client_options& max_unsent(std::size_t n) noexcept { return max_unsent_ = n, *this; }
  client_options& socket(net::socket_options o) noexcept { return socket_ = o, *this; }

  [[nodiscard]] deadline timeout() const noexcept { return timeout_; }
  [[nodiscard]] std::size_t max_key_bytes() const noexcept { return max_key_bytes_; }
  [[nodiscard]] std::size_t max_value_bytes() const noexcept { return max_value_bytes_; }
  [[nodiscard]] std::size_t max_lanes() const noexcept { return max_lanes_; }
  [[nodiscard]] std::size_t max_unsent() const noexcept { return max_unsent_; }
  [[nodiscard]] net::socket_options const& socket() const noexcept { return socket_; }

 private:
  deadline timeout_ = std::chrono::seconds(300);
  std::size_t max_key_bytes_ = 8191;
  std::size_t max_value_bytes_ = std::size_t{8} << 20;
  std::size_t max_lanes_ = 64;
  std::size_t max_unsent_ = std::size_t{64} << 20;
  net::socket_options socket_;
};

}  // namespace v0
}  // namespace rollcall
