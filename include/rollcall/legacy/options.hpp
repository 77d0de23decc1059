#pragma once
#include <chrono>
#include <cstddef>
#include <utility>

#include "../core/clock.hpp"
#include "../core/log.hpp"
#include "../posix/listener.hpp"

namespace rollcall {
inline namespace v0 {

/// How a blocking_store behaves. Chain the setters: `blocking_options{}.timeout(30s)`.
class blocking_options {
 public:
  blocking_options() = default;

  /// Limit of each operation that is not given one of its own. Default 300 s, as the reference has it.
  blocking_options& timeout(deadline d) noexcept { return timeout_ = d, *this; }
  /// Longest user key in bytes; longer ones fail with errc::limit and are not sent. Default 8191, what PyTorch's libuv server takes.
  blocking_options& max_key_bytes(std::size_t n) noexcept { return max_key_bytes_ = n, *this; }
  /// Longest value in bytes of one request. Default 8 MiB.
  blocking_options& max_value_bytes(std::size_t n) noexcept { return max_value_bytes_ = n, *this; }
  /// Connections one store may open, ≥ 1. Waits for several keys and server_barrier() occupy one each until they are over, but, of two and
  /// more, never the last that commands can take. Default 64.
  blocking_options& max_lanes(std::size_t n) noexcept { return max_lanes_ = n, *this; }
  /// Bytes staged for a server that does not read, past which operations fail with errc::limit. Default 64 MiB.
  blocking_options& max_unsent(std::size_t n) noexcept { return max_unsent_ = n, *this; }
  /// When a silent server is asked whether it is still there. Default 10 s, 3 s, 3.
  blocking_options& keep_alive(keep_alive_times t) noexcept { return keep_alive_ = t, *this; }
  /// Called by whichever thread has something to tell, with the store's mutex held: it must not call the store.
  blocking_options& log(log_sink sink) { return log_ = std::move(sink), *this; }

  [[nodiscard]] deadline timeout() const noexcept { return timeout_; }
  [[nodiscard]] std::size_t max_key_bytes() const noexcept { return max_key_bytes_; }
  [[nodiscard]] std::size_t max_value_bytes() const noexcept { return max_value_bytes_; }
  [[nodiscard]] std::size_t max_lanes() const noexcept { return max_lanes_; }
  [[nodiscard]] std::size_t max_unsent() const noexcept { return max_unsent_; }
  [[nodiscard]] keep_alive_times keep_alive() const noexcept { return keep_alive_; }
  [[nodiscard]] log_sink const& log() const noexcept { return log_; }

 private:
  deadline timeout_ = std::chrono::seconds(300);
  std::size_t max_key_bytes_ = 8191;
  std::size_t max_value_bytes_ = std::size_t{8} << 20;
  std::size_t max_lanes_ = 64;
  std::size_t max_unsent_ = std::size_t{64} << 20;
  keep_alive_times keep_alive_{std::chrono::seconds(10), std::chrono::seconds(3), 3};
  log_sink log_;
};

}  // namespace v0
}  // namespace rollcall
