#pragma once
#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../core/error.hpp"
#include "../posix/listener.hpp"
#include "../rt/detail/waiter.hpp"
#include "../rt/loop.hpp"
#include "detail/accept.hpp"
#include "stream.hpp"
#include "tcp.hpp"

namespace rollcall {
inline namespace v0 {
namespace net {

/// The error for a broken stream: `status` is a negative errno value, or 0 for the peer's orderly end.
[[nodiscard]] inline failure stream_failure(std::string_view operation, std::string_view peer, int status) {
  failure f(errc::disconnected, operation, status == 0 ? "the peer closed the connection" : errno_text(-status));
  f.with_peer(peer);
  return f;
}

/// A connected byte stream for coroutines: adapts the callback primitive `stream` to read_some, write, shutdown and close.
///
/// Move-only; must outlive its reader and its writer (close() ends them first). A default-constructed one may only be tested, assigned
/// and destroyed. Reading stops while nobody reads, so a peer that floods fills its own socket, not our memory. One reader and one
/// writer at a time. Destroying it closes the connection.
class socket {
 public:
  socket() noexcept = default;
  socket(rollcall::detail::loop_core& core, stream_ptr s) : state_(std::make_unique<inner>(core, std::move(s))) {}

  [[nodiscard]] explicit operator bool() const noexcept { return state_ && state_->stream; }
  [[nodiscard]] std::string peer_name() const { return *this ? state_->stream->peer_name() : std::string(); }

 private:
  class inner final : public stream_sink {
   public:
    inner(rollcall::detail::loop_core& c, stream_ptr s) : core(&c), stream(std::move(s)) {
      // The stream knows its sink from here, so that what a write left over is sent though nobody reads or waits.
      stream->start_read(*this);
      stream->stop_read();
    }
    void on_read(std::string_view bytes) noexcept override {
      arrived.append(bytes);
      stream->stop_read();
      reading = false;
      if (reader) reader->go();
    }
    void on_end(int s) noexcept override {
      ended = true;
      status = s;
      reading = false;
      if (reader) reader->go();
      if (s == 0) return;
      broken = s;
      drop_unsent();
      if (writer) writer->go();
    }
    void on_writable() noexcept override {
      flush();
      if (writer && (unsent.empty() || broken != 0)) writer->go();
    }
    void flush() noexcept {
      while (!unsent.empty() && broken == 0) {
        iovec piece{unsent.data() + sent, unsent.size() - sent};
        const std::ptrdiff_t n = stream->try_write(&piece, 1);
        if (n < 0) broken = static_cast<int>(n);
        if (n == 0) return;
        if (n > 0) sent += static_cast<std::size_t>(n);
        if (broken != 0 || sent == unsent.size()) drop_unsent();
      }
      if (ending && broken == 0) stream->shutdown();
    }
    void drop_unsent() noexcept {
      std::string().swap(unsent);
      sent = 0;
    }
    class side : public rollcall::detail::waiter {
     public:
      void go() noexcept { complete(); }

     protected:
      side() noexcept = default;
      ~side() = default;
    };

    rollcall::detail::loop_core* core;
    stream_ptr stream;
    std::string arrived;
    std::string taken;
    std::string unsent;
    std::size_t sent = 0;  // of `unsent`
    side* reader = nullptr;
    side* writer = nullptr;
    bool reading = false;
    bool ended = false;
    bool ending = false;  // shutdown() was called
    int status = 0;
    int broken = 0;
  };

 public:
  class [[nodiscard]] read_awaiter final : private inner::side {
   public:
    explicit read_awaiter(inner& s) noexcept : state_(s) {}
    /// Awaitables move until they are awaited.
    read_awaiter(read_awaiter&& o) noexcept : read_awaiter(o.state_) {}
    ~read_awaiter() { leave(); }
    [[nodiscard]] bool await_ready() const noexcept { return !state_.arrived.empty() || state_.ended || !state_.stream; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      ROLLCALL_ASSERT(!state_.reader && "one reader at a time");
      if (!begin(h, state_.core)) return false;
      state_.reader = this;
      if (!std::exchange(state_.reading, true)) state_.stream->start_read(state_);
      return true;
    }
    std::string_view await_resume() {
      leave();
      if (was_stopped()) rollcall::detail::throw_cancelled("read");
      state_.taken.clear();
      state_.taken.swap(state_.arrived);
      if (state_.taken.empty()) {
        if (!state_.stream) throw error(errc::closed, "read");
        if (state_.status != 0) throw error(stream_failure("read", state_.stream->peer_name(), state_.status));
      }
      return state_.taken;
    }

   private:
    void leave() noexcept override {
      if (state_.reader == this) state_.reader = nullptr;
    }
    inner& state_;
  };

  class [[nodiscard]] write_awaiter final : private inner::side {
   public:
    write_awaiter(inner& s, std::string_view bytes) : state_(s) {
      if (!state_.stream || state_.broken != 0) return;
      state_.unsent.append(bytes);
      state_.flush();
    }
    write_awaiter(write_awaiter&& o) noexcept : inner::side(), state_(o.state_) {}
    ~write_awaiter() { leave(); }
    [[nodiscard]] bool await_ready() const noexcept { return state_.unsent.empty(); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      ROLLCALL_ASSERT(!state_.writer && "one writer at a time");
      if (!begin(h, state_.core)) return false;
      state_.writer = this;
      // A peer that is gone may show on this side; one that only talks fills no more than this one piece.
      if (!state_.reading && !state_.ended && state_.arrived.empty()) {
        state_.reading = true;
        state_.stream->start_read(state_);
      }
      return true;
    }
    void await_resume() {
      leave();
      if (was_stopped()) rollcall::detail::throw_cancelled("write");
      if (!state_.stream) throw error(errc::closed, "write");
      if (state_.broken != 0) throw error(stream_failure("write", state_.stream->peer_name(), state_.broken));
    }

   private:
    void leave() noexcept override {
      if (state_.writer == this) state_.writer = nullptr;
    }
    inner& state_;
  };

  /// Waits for bytes; gives those that are there, valid until the next read_some, or none at the peer's orderly end.
  ///
  /// errors    disconnected with the peer and the system's reason; closed after close().
  /// cancel    nothing is lost: bytes that arrive meanwhile are there for the next read.
  [[nodiscard]] read_awaiter read_some() noexcept { return read_awaiter(*state_); }

  /// Writes all of `bytes`: sends at once what fits, copies the rest, completes when the kernel has taken everything.
  ///
  /// errors    disconnected, closed.
  /// cancel    what was not taken yet is still sent; the stream stays whole.
  [[nodiscard]] write_awaiter write(std::string_view bytes) { return write_awaiter(*state_, bytes); }

  /// No more writes: the peer sees the end after what was written.
  void shutdown() noexcept {
    if (!*this) return;
    state_->ending = true;
    state_->flush();
  }
  /// Closes; a pending read or write completes with errc::closed. Idempotent.
  void close() noexcept {
    if (!*this) return;
    state_->stream.reset();
    state_->drop_unsent();
    if (state_->reader) state_->reader->go();
    if (state_->writer) state_->writer->go();
  }

 private:
  std::unique_ptr<inner> state_;
};

/// Accepts connections for coroutines. Sockets that nobody took are closed with it.
class acceptor {
 public:
  /// Serves on `at`, which it owns from here.
  acceptor(loop& l, listener at) : state_(std::make_unique<inner>(l.core(), std::move(at))) {}

  [[nodiscard]] listener const& at() const noexcept { return state_->accepting.at(); }

 private:
  class accept_awaiter_base : public rollcall::detail::waiter {
   public:
    void go() noexcept { complete(); }

   protected:
    ~accept_awaiter_base() = default;
  };
  class inner final : public detail::accept_sink {
   public:
    inner(rollcall::detail::loop_core& c, listener at) : core(c), accepting(c, std::move(at), *this) { accepting.suspend(); }
    void on_accept(unique_fd fd) noexcept override {
      try {
        queue.push_back(std::move(fd));
      } catch (...) {
        return;
      }
      accepting.suspend();
      if (waiting) waiting->go();
    }
    void on_accept_error(int status) noexcept override {
      core.log(log_level::warning, "a connection was refused: " + errno_text(-status));
    }
    rollcall::detail::loop_core& core;
    std::deque<unique_fd> queue;
    accept_awaiter_base* waiting = nullptr;
    detail::acceptor_core accepting;
  };

 public:
  class [[nodiscard]] accept_awaiter final : private accept_awaiter_base {
   public:
    explicit accept_awaiter(inner& s) noexcept : state_(s) {}
    accept_awaiter(accept_awaiter&& o) noexcept : accept_awaiter(o.state_) {}
    ~accept_awaiter() { leave(); }
    [[nodiscard]] bool await_ready() const noexcept { return !state_.queue.empty(); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> h) noexcept {
      ROLLCALL_ASSERT(!state_.waiting && "one accept at a time");
      if (!begin(h, &state_.core)) return false;
      state_.waiting = this;
      state_.accepting.resume();
      return true;
    }
    socket await_resume() {
      leave();
      if (was_stopped()) rollcall::detail::throw_cancelled("accept");
      unique_fd fd = std::move(state_.queue.front());
      state_.queue.pop_front();
      stream_ptr s;
      if (const int status = detail::socket_stream::adopt(state_.core, fd, s); status != 0)
        throw error(errc::io, "accept", errno_text(-status));
      return socket(state_.core, std::move(s));
    }

   private:
    void leave() noexcept override {
      if (state_.waiting != this) return;
      state_.waiting = nullptr;
      state_.accepting.suspend();
    }
    inner& state_;
  };
  /// The next connection. A stop ends the wait with errc::cancelled; connections stay queued.
  [[nodiscard]] accept_awaiter accept() noexcept { return accept_awaiter(*state_); }

 private:
  std::unique_ptr<inner> state_;
};

/// See connect().
class [[nodiscard]] connect_awaiter final : private rollcall::detail::waiter {
 public:
  connect_awaiter(rollcall::detail::loop_core& core, socket_address to, socket_options options) noexcept
      : own_(core), to_(std::move(to)), options_(options) {}
  connect_awaiter(connect_awaiter&& o) noexcept : connect_awaiter(o.own_, o.to_, o.options_) {}
  ~connect_awaiter() = default;
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) {
    if (!begin(h, &own_)) return false;
    status_ = attempt_.start(own_, to_, this, [](void* self, int status) noexcept {
      static_cast<connect_awaiter*>(self)->status_ = status;
      static_cast<connect_awaiter*>(self)->complete();
    });
    if (status_ != 0) complete();
    return true;
  }
  socket await_resume() {
    if (was_stopped()) rollcall::detail::throw_cancelled("connect");
    if (status_ != 0) {
      failure f(errc::refused, "connect", errno_text(-status_));
      throw error(f.with_peer(to_.to_string()));
    }
    return socket(own_, attempt_.take(options_));
  }

 private:
  void leave() noexcept override { attempt_.reset(); }
  rollcall::detail::loop_core& own_;
  socket_address to_;
  socket_options options_;
  detail::connecting attempt_;
  int status_ = 0;
};

/// Connects to one address, once; no name look-up, no retry (stores do those). Bound it by with_deadline.
///
/// errors    refused with the address and the system's reason.
/// cancel    as if never called.
[[nodiscard]] inline connect_awaiter connect(loop& l, socket_address to, socket_options options = {}) {
  return connect_awaiter(l.core(), std::move(to), options);
}

}  // namespace net
}  // namespace v0
}  // namespace rollcall
