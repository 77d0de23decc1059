#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../core/clock.hpp"
#include "../wire/decode.hpp"
#include "../wire/stream.hpp"
#include "store.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

class peers;

/// What only a connection in trouble has: replies the socket did not take, and requests that are not looked at meanwhile.
struct overflow {
  wire::write_batch unsent;
  std::string unread;
};

/// One peer of a server: bytes in, the store, bytes out. Driven by the stream's callbacks; idle, it holds no buffer and no frame.
///
/// | state | left by |
/// |---|---|
/// | fresh: has not sent VALIDATE | validated → open; validate_within → closed |
/// | open: quiet, between requests | half a request → half; replies not taken → stuck |
/// | half: part of a request is here | the rest → open; close_half_request_after without a byte → closed |
/// | stuck: replies are queued; past max_unsent no more is read | all taken → open or half; close_unread_after without progress → closed |
/// | ending: the peer has sent its end, or what no peer may; replies are queued | all taken → closed; close_unread_after → closed |
///
/// Every state but `open` has a clock; `peers` keeps one list a state, in the order of their clocks.
class connection final : public wire::stream_sink, public list_hook<>, public client {
 public:
  enum class state : unsigned char { fresh, open, half, stuck, ending };

  connection(peers& all, engine::store& of, wire::stream_ptr s) noexcept : client(of), all_(all), stream_(std::move(s)) {}
  void start() noexcept { stream_->start_read(*this); }

  void on_read(std::string_view bytes) noexcept override;
  void on_end(int status) noexcept override;
  void on_writable() noexcept override;

  /// Sends the STOP_WAITING bytes it is owed.
  void deliver_due() noexcept;
  [[nodiscard]] state where() const noexcept { return state_; }
  [[nodiscard]] time_point since() const noexcept { return since_; }
  [[nodiscard]] std::string peer_name() const { return stream_->peer_name(); }

 private:
  friend class peers;

  // Each returns false when the connection is gone, and `this` with it.
  bool process(std::string_view bytes);
  bool reject(std::string_view why, wire::request const* r) noexcept;
  bool send(wire::write_batch& batch);
  bool push(wire::write_batch& batch) noexcept;
  void finish() noexcept;
  void gone(std::string_view why) noexcept;
  void settle() noexcept;
  [[nodiscard]] bool over_limit() const noexcept;

  peers& all_;
  wire::stream_ptr stream_;
  wire::request_decoder decoder_;
  std::unique_ptr<overflow> overflow_;
  time_point since_{};
  state state_ = state::fresh;
  bool reading_ = true;
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
