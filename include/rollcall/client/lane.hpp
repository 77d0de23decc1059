#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../core/result.hpp"
#include "../engine/outbox.hpp"
#include "../engine/server_info.hpp"
#include "../engine/session.hpp"
#include "../net/tcp.hpp"
#include "request.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

using engine::server_info;

class lane;

/// Who owns lanes.
class lane_owner {
 public:
  /// The handshake was answered as a store answers it. Something may be staged, to be flushed now or later in this turn.
  virtual void lane_ready(lane& l) noexcept = 0;
  /// The lane is dead. `handshake` tells that it was before lane_ready.
  virtual void lane_lost(lane& l, failure_ptr const& why, bool handshake) noexcept = 0;
  [[nodiscard]] virtual server_info& info() noexcept = 0;

 protected:
  ~lane_owner() = default;
};

/// One connection of a client: a stream, its session, and the bytes the socket has not taken. Requests may be staged before the
/// connection stands; they leave behind the handshake.
class lane final : private net::stream_sink {
 public:
  lane(loop_core& core, lane_owner& owner, std::string_view peer) : core_(core), owner_(&owner), peer_(peer), greeting_(*this) {}
  lane(lane const&) = delete;
  lane& operator=(lane const&) = delete;

  /// Belongs to somebody else from now on.
  void rebind(lane_owner& owner) noexcept { owner_ = &owner; }
  /// What is tried out on this lane; it serves nothing else meanwhile.
  [[nodiscard]] op_family trial() const noexcept { return trial_; }
  void set_trial(op_family f) noexcept {
    trial_ = f;
    tried_ = false;
  }
  /// Whether a request of that family was sent on it.
  [[nodiscard]] bool tried() const noexcept { return tried_; }
  void set_tried() noexcept { tried_ = true; }
  [[nodiscard]] engine::session& session() noexcept { return session_; }
  [[nodiscard]] std::string const& peer() const noexcept { return peer_; }
  [[nodiscard]] bool ready() const noexcept { return state_ == state::ready; }
  [[nodiscard]] bool dead() const noexcept { return state_ == state::dead; }
  /// No connection stands yet.
  [[nodiscard]] bool dialling() const noexcept { return state_ == state::dialling; }
  /// Bytes that wait for the server to read, in bytes.
  [[nodiscard]] std::size_t backlog() noexcept { return unsent_.size() + session_.output().size(); }

  /// Stages VALIDATE, PING (`with_ping`; servers before 2.5 close at it) and the capability probe, all in the first write
  /// (protocol 3.1, 17).
  void greet(std::uint32_t nonce, bool with_ping) {
    std::string bytes;
    wire::encode_validate(bytes);
    session_.stage(bytes);
    greeting_.nonce = nonce;
    greeting_.with_ping = with_ping;
    if (with_ping) {
      bytes.clear();
      wire::encode_ping(bytes, nonce);
      session_.send(&greeting_, bytes, {}, wire::reply_form::u32);
    }
    bytes.clear();
    wire::encode_check(bytes, {}, keys(wire::capability_key));
    session_.send(&greeting_, bytes, {}, wire::reply_form::u8);
  }
  /// Connects by itself; for the further lanes of a store.
  void dial(socket_address const& to, net::socket_options const& options) {
    options_ = options;
    const int status = dial_.start(core_, to, this, [](void* self, int st) noexcept {
      lane& l = *static_cast<lane*>(self);
      l.dialled(st, st == 0 ? l.dial_.take(l.options_) : net::stream_ptr());
    });
    if (status != 0) dialled(status, nullptr);
  }
  void dial(net::dialler& by) {
    attempt_ = by.dial(this, [](void* self, int st, net::stream_ptr s) noexcept { static_cast<lane*>(self)->dialled(st, std::move(s)); });
  }
  /// Starts on a stream that stands.
  void open(net::stream_ptr s) {
    stream_ = std::move(s);
    stream_->start_read(*this);
    state_ = state::greeting;
    flush();
  }
  /// Writes what is staged, in one go.
  void flush() noexcept {
    if (stream_ && unsent_.take(session_)) write();
  }
  void keep_alive(bool on) noexcept {
    if (stream_) stream_->keep_alive(on);
  }
  /// Why the lane is dead.
  [[nodiscard]] failure_ptr const& why() const noexcept { return why_; }
  /// Fails everything pending with `why` and closes; the owner is not told.
  void close(failure_ptr why) noexcept {
    if (state_ == state::dead) return;
    state_ = state::dead;
    why_ = std::move(why);
    dial_.reset();
    attempt_.reset();
    stream_.reset();
    session_.lost();
  }

 private:
  enum class state : unsigned char { dialling, greeting, ready, dead };

  /// Takes the answers to the handshake.
  class greeter final : public engine::exchange {
   public:
    explicit greeter(lane& l) noexcept : lane_(l) {}
    ~greeter() { lane_.session_.abandon(*this); }
    std::uint32_t nonce = 0;
    bool with_ping = true;

   private:
    void on_reply(std::size_t index, wire::reply& r) noexcept override {
      if (with_ping && index == 0) {
        if (r.number != nonce) lane_.not_a_store_ = true;
      } else if (lane_.state_ == state::greeting) {
        if (r.number > wire::check_not_ready) lane_.not_a_store_ = true;
        if (lane_.not_a_store_) return;
        lane_.greeted(r.number == wire::check_ready);
      } else {
        lane_.owner_->info().learn(r.bytes);
      }
    }
    void on_done() noexcept override {}
    void on_lost() noexcept override {}
    lane& lane_;
  };

  void greeted(bool rollcall_server) noexcept {
    state_ = state::ready;
    server_info& info = owner_->info();
    info.is_rollcall = rollcall_server;
    if (rollcall_server && !info.has_instance && session_.takes_command()) {
      // Who it is, for reconnect(); nobody waits for it.
      greeting_.with_ping = false;
      session_.send(&greeting_, engine::introduce_request, {}, wire::reply_form::bytes);
    }
    owner_->lane_ready(*this);
  }
  void dialled(int status, net::stream_ptr s) noexcept {
    if (status != 0) {
      die(failure(errc::refused, "connect", errno_text(-status)));
      return;
    }
    try {
      open(std::move(s));
      keep_alive(false);  // operations keep the loop alive by the first lane
    } catch (std::exception const& e) {
      die(failure(errc::io, "connect", e.what()));
    }
  }
  void on_read(std::string_view bytes) noexcept override {
    bool fine = false;
    try {
      fine = session_.feed(bytes);
    } catch (std::exception const& e) {
      die(failure(errc::io, "read", e.what()));
      return;
    }
    if (state_ == state::dead) return;
    if (not_a_store_ || !fine) {
      const bool greeted_before = state_ == state::ready;
      die(failure(errc::protocol, greeted_before ? "read" : "connect",
                  greeted_before ? session_.problem() : "whatever listens there is not a store: it does not answer the handshake as one"));
      return;
    }
    if (!session_.output().empty()) flush();
  }
  void on_end(int status) noexcept override {
    die(failure(errc::disconnected, state_ == state::ready ? "read" : "connect",
                status == 0 ? std::string("the server closed the connection") : errno_text(-status)));
  }
  void on_writable() noexcept override { write(); }
  void write() noexcept {
    const std::string_view rest = unsent_.rest();
    const iovec piece{const_cast<char*>(rest.data()), rest.size()};
    const std::ptrdiff_t n = stream_->try_write(&piece, 1);
    if (n < 0) {
      // The reading side reports it, so that nobody is called back from within a write.
      unsent_.clear();
      stream_->shutdown();
      return;
    }
    unsent_.consume(static_cast<std::size_t>(n));
  }
  void die(failure f) noexcept {
    const bool handshake = state_ != state::ready;
    state_ = state::dead;
    dial_.reset();
    attempt_.reset();
    stream_.reset();
    f.with_peer(peer_);
    why_ = std::make_shared<failure const>(std::move(f));
    owner_->lane_lost(*this, why_, handshake);
    session_.lost();
  }

  loop_core& core_;
  lane_owner* owner_;
  std::string peer_;
  state state_ = state::dialling;
  op_family trial_ = op_family::common;
  bool tried_ = false;
  bool not_a_store_ = false;
  engine::session session_;
  greeter greeting_;
  net::detail::connecting dial_;
  std::unique_ptr<net::dialler::attempt> attempt_;
  net::socket_options options_;
  net::stream_ptr stream_;
  engine::outbox unsent_;
  failure_ptr why_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
