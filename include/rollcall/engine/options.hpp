#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../core/clock.hpp"
#include "store.hpp"

namespace rollcall {
inline namespace v0 {

/// What a running server counts. The caller owns it and may read it at any time on the server's thread (serve(): the loop's).
class server_stats {
 public:
  server_stats() noexcept = default;
  std::string_view back_end;      ///< "libuv" or "legacy"
  std::uint64_t connections = 0;  ///< open now
  std::uint64_t accepted = 0;     ///< ever
  std::uint64_t refused = 0;      ///< closed at once: over max_connections, or out of descriptors
  std::uint64_t violations = 0;   ///< closed because of what the peer sent
  std::uint64_t timed_out = 0;    ///< closed because the peer stood still: no handshake, half a request, unread replies
  std::uint64_t requests = 0;
  std::uint64_t reads = 0;        ///< batches of bytes taken from connections
  std::uint64_t writes = 0;       ///< batches handed to connections
  std::uint64_t paused = 0;       ///< connections that are not read now because they do not read
};

/// How a server behaves, and every bound it keeps. Chain the setters: `serve_options{}.max_connections(1000)`.
class serve_options {
 public:
  serve_options() noexcept = default;

  /// Limits of the store itself: sizes of keys, values and requests, bytes stored.
  serve_options& store(engine::store_options const& o) noexcept { return store_ = o, *this; }
  /// Open connections; further ones are accepted and closed at once. Default 131072.
  serve_options& max_connections(std::size_t n) noexcept { return max_connections_ = n, *this; }
  /// Replies queued for one peer, in bytes, past which its requests are no longer read. Default 1 MiB.
  serve_options& max_unsent(std::size_t n) noexcept { return max_unsent_ = n, *this; }
  /// A peer that takes none of its replies for so long is closed. Default 60 s.
  serve_options& close_unread_after(duration d) noexcept { return unread_ = d, *this; }
  /// From accept to a whole VALIDATE. Default 30 s.
  serve_options& validate_within(duration d) noexcept { return validate_ = d, *this; }
  /// Half a request of which nothing more comes for so long ends the connection. Default 60 s.
  serve_options& close_half_request_after(duration d) noexcept { return half_ = d, *this; }
  /// How long a stopping server waits for peers to take what was answered. Default 2 s.
  serve_options& drain_within(duration d) noexcept { return drain_ = d, *this; }
  /// Whether a running server keeps the host's loop alive. Default true.
  serve_options& keep_alive(bool on) noexcept { return keep_alive_ = on, *this; }
  /// Counters to keep up to date; must outlive serve().
  serve_options& stats(server_stats* s) noexcept { return stats_ = s, *this; }

  [[nodiscard]] engine::store_options const& store() const noexcept { return store_; }
  [[nodiscard]] std::size_t max_connections() const noexcept { return max_connections_; }
  [[nodiscard]] std::size_t max_unsent() const noexcept { return max_unsent_; }
  [[nodiscard]] duration close_unread_after() const noexcept { return unread_; }
  [[nodiscard]] duration validate_within() const noexcept { return validate_; }
  [[nodiscard]] duration close_half_request_after() const noexcept { return half_; }
  [[nodiscard]] duration drain_within() const noexcept { return drain_; }
  [[nodiscard]] bool keep_alive() const noexcept { return keep_alive_; }
  [[nodiscard]] server_stats* stats() const noexcept { return stats_; }

 private:
  engine::store_options store_;
  std::size_t max_connections_ = 131072;
  std::size_t max_unsent_ = std::size_t{1} << 20;
  duration unread_ = std::chrono::seconds(60);
  duration validate_ = std::chrono::seconds(30);
  duration half_ = std::chrono::seconds(60);
  duration drain_ = std::chrono::seconds(2);
  bool keep_alive_ = true;
  server_stats* stats_ = nullptr;
};

}  // namespace v0
}  // namespace rollcall
