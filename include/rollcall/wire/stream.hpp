#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace wire {

/// Receives what happens on a stream. Callbacks, not coroutines, so that a quiet connection needs no frame and no buffer.
/// Every function may close the stream, also destroy the sink; it is called on the thread that drives the stream (a loop's, a server's), and
/// never from within a call on the stream.
class stream_sink {
 public:
  /// Bytes arrived; `bytes` is valid during the call only.
  virtual void on_read(std::string_view bytes) noexcept = 0;
  /// No more bytes will come: `status` 0 is the peer's orderly end, else a negative errno value. Called once at the most.
  virtual void on_end(int status) noexcept = 0;
  /// After try_write took less than it was given: there is room again.
  virtual void on_writable() noexcept = 0;

 protected:
  ~stream_sink() = default;
};

/// A byte stream that never blocks: TCP, a unix socket, or a pair in memory, on a loop or under poll(2). The primitive under servers and
/// clients, and under the awaitables of net/tcp.hpp.
class stream {
 public:
  stream() noexcept = default;
  stream(stream const&) = delete;
  stream& operator=(stream const&) = delete;

  /// Deliver what arrives to `sink`, which must stay valid until stop_read() or close().
  virtual void start_read(stream_sink& sink) noexcept = 0;
  virtual void stop_read() noexcept = 0;
  /// Writes what fits at once. Returns the bytes taken (0: none fit now), or a negative errno value when the stream is broken.
  /// When it takes less than all of it, on_writable() of the sink follows once there is room. Never raises SIGPIPE.
  virtual std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept = 0;
  /// No more writes: the peer sees an orderly end after what was written.
  virtual void shutdown() noexcept = 0;
  /// Whether the open stream keeps its loop running; it does unless told otherwise.
  virtual void keep_alive(bool on) noexcept = 0;
  /// The other end in numbers, "127.0.0.1:4711" or "[::1]:4711"; no name look-up.
  [[nodiscard]] virtual std::string peer_name() const = 0;
  /// Closes and frees the stream; no call to the sink follows. Safe from within a callback of the sink.
  virtual void close() noexcept = 0;

 protected:
  ~stream() = default;
};

struct stream_closer {
  void operator()(stream* s) const noexcept { s->close(); }
};
/// Owns a stream; letting go closes it.
using stream_ptr = std::unique_ptr<stream, stream_closer>;

}  // namespace wire
}  // namespace v0
}  // namespace rollcall
