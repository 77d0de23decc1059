#pragma once
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/log.hpp"
#include "../engine/peers.hpp"
#include "../posix/accept.hpp"
#include "../posix/address.hpp"
#include "../posix/socket.hpp"
#include "poll_set.hpp"
#include "wait.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

/// Where the bytes of the peer that is being read stand; one for a server.
class read_slab {
 public:
  static constexpr std::size_t bytes = 64 * 1024;
  read_slab() : data_(new char[bytes]) {}
  [[nodiscard]] char* data() const noexcept { return data_.get(); }

 private:
  std::unique_ptr<char[]> data_;
};

/// A socket in a poll_set. One bounded step for each event, so that nobody is kept from his turn.
class polled_stream final : public wire::stream, private polled {
 public:
  polled_stream(poll_set& set, read_slab const& slab, unique_fd fd) : set_(set), slab_(slab), fd_(std::move(fd)) {
    set_.add(*this, fd_.get(), 0);
  }
  void start_read(wire::stream_sink& sink) noexcept override {
    sink_ = &sink;
    watch(POLLIN, true);
  }
  void stop_read() noexcept override { watch(POLLIN, false); }
  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override {
    const std::ptrdiff_t n = rollcall::detail::send_some(fd_.get(), pieces, count);
    if (n >= 0 && static_cast<std::size_t>(n) < rollcall::detail::size_of(pieces, count)) watch(POLLOUT, true);
    return n;
  }
  void shutdown() noexcept override { ::shutdown(fd_.get(), SHUT_WR); }
  void keep_alive(bool) noexcept override {}
  [[nodiscard]] std::string peer_name() const override { return rollcall::detail::peer_text(fd_.get()); }
  void close() noexcept override { delete this; }

 private:
  ~polled_stream() {
    if (gone_) *gone_ = true;
  }
  void watch(short events, bool on) noexcept {
    const short now = set_.watched(*this);
    set_.watch(*this, static_cast<short>(on ? now | events : now & ~events));
  }
  void on_events(short revents) noexcept override {
    const bool reads = (set_.watched(*this) & POLLIN) != 0;
    if ((revents & POLLOUT) != 0 || !reads) {  // a peer that is not read and has gone shows it when it is written to
      bool gone = false;
      gone_ = &gone;
      watch(POLLOUT, false);
      sink_->on_writable();
      if (gone) return;
      gone_ = nullptr;
    }
    if (reads && (revents & (POLLIN | POLLERR | POLLHUP | POLLNVAL)) != 0 && (set_.watched(*this) & POLLIN) != 0) read();
  }
  void read() noexcept {
    const ssize_t n = ::recv(fd_.get(), slab_.data(), read_slab::bytes, MSG_DONTWAIT);
    if (n > 0) return sink_->on_read(std::string_view(slab_.data(), static_cast<std::size_t>(n)));
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    const int status = n == 0 ? 0 : -errno;
    watch(POLLIN, false);
    sink_->on_end(status);
  }

  poll_set& set_;
  read_slab const& slab_;
  unique_fd fd_;
  wire::stream_sink* sink_ = nullptr;
  bool* gone_ = nullptr;  // told by the destructor
};

/// A running server over poll(2): gives `peers` its streams, the time, and its turns. run() is its thread's; stop() and stats() anybody's.
class poll_server final : private engine::peers {
 public:
  static constexpr int accept_batch = 256;
  static constexpr std::chrono::milliseconds accept_pause{100};

  poll_server(listener at, serve_options const& options, log_sink sink)
      : engine::peers(options, "legacy"), log_(std::move(sink)), address_(at.address()), door_(std::in_place, *this, std::move(at)), waker_(*this) {
    set_.add(*door_, door_->queue.at().fd(), POLLIN);
    set_.add(waker_, wake_.fd(), POLLIN);
    published_ = engine::peers::stats();
  }
  ~poll_server() { remove_all(); }

  [[nodiscard]] socket_address const& address() const noexcept { return address_; }
  using engine::peers::back_end;
  using engine::peers::put;  // before run()
  /// Any thread: run() drains and returns.
  void stop() noexcept {
    stop_ = std::max(stop_.load(), stopping::draining);
    wake_.poke();
  }
  /// Any thread: run() returns at once.
  void abandon() noexcept {
    stop_ = stopping::at_once;
    wake_.poke();
  }
  /// Any thread, after stop(): its listener is closed, which its thread does in its next turn.
  void wait_until_closed() {
    std::unique_lock lock(mutex_);
    closed_.wait(lock, [this] { return is_closed_; });
  }
  /// Any thread: `f` is called in the server's thread, between two turns; never, if it ends before.
  void call(std::function<void(engine::peers&)> f) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(f));
    }
    wake_.poke();
  }
  /// Any thread but its own: all that was answered before the call is counted. Takes it a turn.
  [[nodiscard]] server_stats stats() const {
    std::unique_lock lock(mutex_);
    if (is_running_) {
      wake_.poke();
      published_anew_.wait(lock, [this, turn = turns_] { return turns_ != turn || !is_running_; });
    }
    return published_;
  }
  void run() noexcept {
    run_or_end(true);
    while (stop_ < stopping::at_once && (!draining_ || connections() > 0)) turn();
    close();
    publish();
    run_or_end(false);
  }

 private:
  struct acceptor final : polled {
    acceptor(poll_server& s, listener at) noexcept : server(s), queue(std::move(at)) {}
    void on_events(short) noexcept override { server.accept_some(); }
    poll_server& server;
    rollcall::detail::accept_queue queue;
  };
  struct waker final : polled {
    explicit waker(poll_server& s) noexcept : server(s) {}
    void on_events(short) noexcept override {
      server.wake_.clear();
      server.answer_calls();
    }
    poll_server& server;
  };

  void turn() noexcept {
    const time_point next = std::min(sweep_at_, accept_at_);
    const duration limit = wakes_due_ ? duration::zero() : next == time_point::max() ? duration::max() : next - now();
    const poll_set::look look = set_.next(limit);
    const int n = poll_for(look.fds, look.count, look.patience);
    if (n < 0 && errno != EINTR) {
      // No memory, or more descriptors than a limit that was lowered allows: not worth a spin.
      refused([e = errno] { return "poll: " + errno_text(e); });
      static_cast<void>(poll_for(nullptr, 0, std::chrono::milliseconds(10)));
    }
    set_.take(look, n);
    set_.dispatch();
    if (wakes_due_) wakes_due_ = deliver_some();
    if (std::min(sweep_at_, accept_at_) != time_point::max()) timers();
    if (stop_ != stopping::no && !std::exchange(draining_, true)) {
      close();
      accept_at_ = sweep_at_ = time_point::max();
      drain();
    }
    publish();
  }
  void close() noexcept {
    door_.reset();
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    closed_.notify_all();
  }
  void answer_calls() noexcept {
    std::vector<std::function<void(engine::peers&)>> due;
    {
      const std::lock_guard lock(mutex_);
      due.swap(calls_);
    }
    for (auto const& f : due) f(*this);
  }
  void timers() noexcept {
    const time_point t = now();
    if (t >= sweep_at_) {
      sweep_at_ = time_point::max();
      sweep();
    }
    if (t >= accept_at_) {
      accept_at_ = time_point::max();
      set_.set_fd(*door_, door_->queue.at().fd());
    }
  }
  void accept_some() noexcept {
    using outcome = rollcall::detail::accept_queue::outcome;
    for (int i = 0; i < accept_batch; ++i) {
      unique_fd fd;
      int why = 0;
      switch (door_->queue.next(fd, why)) {
        case outcome::accepted: serve(std::move(fd)); continue;
        case outcome::again: continue;
        case outcome::nobody: return;
        case outcome::refused: refused([why] { return errno_text(why); }); continue;
        case outcome::broken:
          refused([why] { return errno_text(why); });
          set_.set_fd(*door_, -1);
          accept_at_ = now() + accept_pause;
          return;
      }
    }
  }
  void serve(unique_fd fd) noexcept {
    if (!admits()) return;
    try {
      attach(wire::stream_ptr(new polled_stream(set_, slab_, std::move(fd))));
    } catch (std::exception const&) {
      refused([] { return std::string("no memory"); });
    }
  }
  void publish() noexcept {
    {
      const std::lock_guard lock(mutex_);
      published_ = engine::peers::stats();
      ++turns_;
    }
    published_anew_.notify_all();
  }
  void run_or_end(bool runs) noexcept {
    {
      const std::lock_guard lock(mutex_);
      is_running_ = runs;
    }
    published_anew_.notify_all();
  }

  [[nodiscard]] time_point now() noexcept override { return steady_now(); }
  [[nodiscard]] bool logs() const noexcept override { return static_cast<bool>(log_); }
  void log(log_level level, std::string_view line) noexcept override { log_(level, line); }
  void wakes_are_due() noexcept override { wakes_due_ = true; }
  bool sweep_is_set() noexcept override { return sweep_at_ != time_point::max(); }
  void sweep_at(time_point t) noexcept override { sweep_at_ = t; }
  void emptied() noexcept override {}

  log_sink log_;
  socket_address address_;
  wake_up wake_;
  read_slab slab_;
  poll_set set_;
  std::optional<acceptor> door_;
  waker waker_;
  time_point sweep_at_ = time_point::max();
  time_point accept_at_ = time_point::max();
  bool wakes_due_ = false;
  bool draining_ = false;
  enum class stopping : unsigned char { no, draining, at_once };
  std::atomic<stopping> stop_{stopping::no};
  mutable std::mutex mutex_;  // of the following
  server_stats published_;
  std::uint64_t turns_ = 0;
  bool is_running_ = false;
  mutable std::condition_variable published_anew_;
  std::vector<std::function<void(engine::peers&)>> calls_;
  bool is_closed_ = false;
  std::condition_variable closed_;
};

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall
