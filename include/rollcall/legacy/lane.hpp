#pragma once
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/intrusive.hpp"
#include "../engine/outbox.hpp"
#include "../engine/session.hpp"
#include "../posix/fd.hpp"
#include "../posix/socket.hpp"
#include "wait.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

class call;
struct caller_tag {};

/// One connection of a blocking store: a socket, its session, and the bytes the socket has not taken. Under the store's mutex, but for
/// the time that its reader stands in poll(2).
class lane {
 public:
  explicit lane(unique_fd fd) : fd_(std::move(fd)) {}
  lane(lane const&) = delete;
  lane& operator=(lane const&) = delete;

  /// Something is being tried out on it that may cost the connection; it serves nothing else meanwhile.
  bool trial = false;
  [[nodiscard]] engine::session& session() noexcept { return session_; }
  [[nodiscard]] bool dead() const noexcept { return why_ != nullptr; }
  [[nodiscard]] failure_ptr const& why() const noexcept { return why_; }
  [[nodiscard]] std::size_t backlog() noexcept { return unsent_.size() + session_.output().size(); }
  [[nodiscard]] list<call, caller_tag>& callers() noexcept { return callers_; }
  [[nodiscard]] call* reader() const noexcept { return reader_; }

  /// Writes what is staged, as far as the socket takes it; the reader sees to the rest. A broken socket is found by who reads.
  void flush() noexcept;
  /// Stands in poll(2) as the reader, with `lock` open meanwhile, until bytes have come, `until` has passed or it was poked; then feeds
  /// the session. `who` is the caller whose thread this is.
  void read(std::unique_lock<std::mutex>& lock, call& who, time_point until, std::span<char> slab);
  /// Makes the reader look up, if it stands in poll(2).
  void poke() const noexcept {
    if (polling_) wake_.poke();
  }
  /// Everything pending fails, and the server sees the end of the connection; the descriptor itself is closed with the lane.
  void end(failure_ptr why) noexcept {
    if (dead()) return;
    why_ = std::move(why);
    ::shutdown(fd_.get(), SHUT_RDWR);
    session_.lost();
    poke();
  }

 private:
  void write() noexcept;
  [[nodiscard]] failure_ptr receive(std::span<char> slab);

  unique_fd fd_;
  engine::session session_;
  wake_up wake_;
  list<call, caller_tag> callers_;  // those that wait for something on it
  call* reader_ = nullptr;
  bool polling_ = false;
  engine::outbox unsent_;
  failure_ptr why_;
};
using lane_ptr = std::shared_ptr<lane>;

/// What one thread waits for on one lane: replies in a row, a fence, or the end of a wait.
class call final : public engine::exchange, public list_hook<caller_tag> {
 public:
  struct answer {
    std::int64_t number = 0;
    std::string bytes;
  };

  /// What has come, in the order it was asked for.
  std::vector<answer> answers;
  lane_ptr on;
  std::condition_variable woken;

  call() = default;
  /// Under the store's mutex, also when an exception ends the operation.
  ~call() {
    if (!engaged()) return;
    try {
      on->session().abandon(*this);
    } catch (std::exception const&) {
      on->end(std::make_shared<failure const>(failure(errc::io, "write", "no memory")));
    }
  }
  /// A request that is answered.
  void ask(std::string_view head, std::string_view body, wire::reply_form form, std::uint64_t count = 0) {
    forms_.push_back(form);
    on->session().send(this, head, body, form, count);
  }
  /// Whether all that was asked is answered, and not just a wait over.
  [[nodiscard]] bool answered() const noexcept { return answers.size() == forms_.size(); }
  [[nodiscard]] bool over() const noexcept { return over_; }
  [[nodiscard]] bool lost() const noexcept { return lost_; }
  /// Makes its thread look again.
  void rouse() noexcept {
    woken.notify_one();
    if (on && on->reader() == this) on->poke();
  }

 private:
  void on_reply(std::size_t index, wire::reply& r) noexcept override {
    try {
      const wire::reply_form f = forms_[index];
      const bool fields = f == wire::reply_form::many || f == wire::reply_form::list;
      const bool bytes = f == wire::reply_form::bytes || (f == wire::reply_form::popped && r.number > 0);
      answers.push_back({r.number, std::string(fields ? r.body : bytes ? r.bytes : std::string_view())});
    } catch (std::exception const&) {
      lost_ = over_ = true;  // no memory for what was asked
    }
    if (answers.size() == forms_.size() || lost_) finish();
  }
  void on_done() noexcept override { finish(); }
  void on_lost() noexcept override {
    lost_ = true;
    finish();
  }
  void finish() noexcept {
    over_ = true;
    rouse();
  }
  std::vector<wire::reply_form> forms_;
  bool over_ = false;
  bool lost_ = false;
};

inline void lane::flush() noexcept {
  if (dead()) return;
  try {
    if (!unsent_.take(session_)) return;
  } catch (std::exception const&) {  // the stream cannot be kept in step
    return end(std::make_shared<failure const>(failure(errc::io, "write", "no memory")));
  }
  write();
  if (!unsent_.empty()) poke();
}

inline void lane::write() noexcept {
  while (!unsent_.empty()) {
    const std::string_view rest = unsent_.rest();
    const iovec piece{const_cast<char*>(rest.data()), rest.size()};
    const std::ptrdiff_t n = rollcall::detail::send_some(fd_.get(), &piece, 1);
    if (n == 0) return;
    if (n < 0) return unsent_.clear();  // the reading side reports it
    unsent_.consume(static_cast<std::size_t>(n));
  }
}

/// Why it is over, or nullptr.
inline failure_ptr lane::receive(std::span<char> slab) {
  const auto failed = [](errc code, std::string text) { return std::make_shared<failure const>(failure(code, "read", std::move(text))); };
  const ssize_t n = ::recv(fd_.get(), slab.data(), slab.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return nullptr;
  if (n < 0) return failed(errc::disconnected, errno_text(errno));
  if (n == 0) return failed(errc::disconnected, "the server closed the connection");
  if (!session_.feed(std::string_view(slab.data(), static_cast<std::size_t>(n)))) return failed(errc::protocol, session_.problem());
  return nullptr;
}

inline void lane::read(std::unique_lock<std::mutex>& lock, call& who, time_point until, std::span<char> slab) {
  pollfd p[2] = {{fd_.get(), static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT), 0}, {wake_.fd(), POLLIN, 0}};
  reader_ = &who;
  polling_ = true;
  lock.unlock();
  const int n = poll_for(p, 2, until == time_point::max() ? duration::max() : until - steady_now());
  lock.lock();
  polling_ = false;
  if (n > 0 && !dead()) {
    if ((p[0].revents & POLLOUT) != 0) write();
    if ((p[0].revents & (POLLIN | POLLERR | POLLHUP | POLLNVAL)) != 0) {
      failure_ptr why;
      try {
        why = receive(slab);
      } catch (std::exception const& e) {
        why = std::make_shared<failure const>(failure(errc::io, "read", e.what()));
      }
      if (why) end(std::move(why));
      if (!dead()) flush();  // what completed may have left something to send
    }
  }
  if (n > 0 && p[1].revents != 0) wake_.clear();
  reader_ = nullptr;
}

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall
