#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "../core/error.hpp"
#include "../core/log.hpp"
#include "connection.hpp"
#include "log_limiter.hpp"
#include "options.hpp"
#include "seeded.hpp"
#include "watch.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// All peers of one server: the store, the connections by state, their clocks, the wake-ups. Knows no socket and no loop: who drives it
/// (serve(), legacy_server) gives it streams, and calls deliver_some() and sweep() when the hooks have asked for them. One thread.
class peers {
 public:
  peers(peers const&) = delete;
  peers& operator=(peers const&) = delete;

  /// Serves a stream that stands, like one that was accepted.
  void attach(wire::stream_ptr s) {
    auto* c = new connection(*this, store_, std::move(s));
    ++connections_;
    ++stats_.accepted;
    stats_.connections = connections_;
    move(*c, state::fresh);
    c->start();
  }
  /// Whether one more may be served; counts and logs it where not, and it is to be closed.
  [[nodiscard]] bool admits() noexcept {
    if (connections_ < options_.max_connections()) return true;
    ++stats_.refused;
    limiter_.log(*this, log_level::warning,
                 [&] { return "refused a connection: " + std::to_string(connections_) + " are open (serve_options::max_connections)"; });
    return false;
  }
  /// A socket had to be refused, or accepting pauses; `why()` names the error, in a string.
  template <class Why>
  void refused(Why why) noexcept {
    ++stats_.refused;
    limiter_.log(*this, log_level::error, [&] {
      return "refused a connection: " + why() + "; " + std::to_string(connections_) + " are open";
    });
  }

  /// Sends wake-ups to as many peers as fit a turn; whether some are left for the next one.
  bool deliver_some() noexcept {
    for (int budget = wakes_per_turn; budget > 0 && !store_.woken().empty(); --budget)
      static_cast<connection&>(store_.woken().front()).deliver_due();
    return !store_.woken().empty();
  }
  /// Ends those who have stood still for too long.
  void sweep() noexcept {
    const time_point t = now();
    bool more = false;
    for (const auto s : {state::fresh, state::half, state::stuck, state::ending}) {
      const duration limit = limit_of(s);
      while (!in(s).empty() && (t - in(s).front().since() >= limit || (draining_ && t >= drain_until_))) {
        connection& c = in(s).front();
        ++stats_.timed_out;
        limiter_.log(*this, log_level::warning, [&] {
          constexpr std::string_view why[] = {"it has not sent VALIDATE", "", "it has sent half a request", "it does not take its replies",
                                              "it does not take its replies"};
          return "closed " + c.peer_name() + ": " + std::string(why[static_cast<std::size_t>(s)]) + " within " +
                 rollcall::detail::duration_text(draining_ ? std::min(limit, options_.drain_within()) : limit);
        });
        remove(c);
      }
      more = more || !in(s).empty();
    }
    if (more) watch();
  }
  /// Closes what is quiet, lets the others take what was answered. Then emptied() is called, unless `connections()` is 0 already.
  void drain() noexcept {
    drain_until_ = deadline(options_.drain_within()).from(now());
    draining_ = true;
    while (!store_.woken().empty()) static_cast<connection&>(store_.woken().front()).deliver_due();
    for (const auto s : {state::fresh, state::open, state::half})
      while (!in(s).empty()) remove(in(s).front());
    while (!in(state::stuck).empty()) {
      connection& c = in(state::stuck).front();
      if (!std::exchange(c.reading_, true)) --stats_.paused;
      c.stream_->stop_read();
      c.overflow_->unread.clear();
      move(c, state::ending);
    }
    sweep();
  }

  /// Stores a value of this process's own, without a connection. In the server's thread, between two requests or before the first.
  void put(std::string_view key, std::string_view value) {
    client self(store_);
    wire::request r;
    r.op = wire::opcode::set;
    r.key = key;
    r.value = value;
    batch_.clear();
    static_cast<void>(store_.apply(self, r, batch_));
    deliver_wakes();
  }

  [[nodiscard]] engine::store const& store() const noexcept { return store_; }
  [[nodiscard]] std::size_t connections() const noexcept { return connections_; }
  [[nodiscard]] serve_options const& options() const noexcept { return options_; }
  [[nodiscard]] server_stats const& stats() const noexcept { return stats_; }
  [[nodiscard]] std::string_view back_end() const noexcept { return stats_.back_end; }
  [[nodiscard]] watch_list& watches() noexcept { return watches_; }

  // The hooks, also for the log limiter.
  [[nodiscard]] virtual time_point now() noexcept = 0;
  [[nodiscard]] virtual bool logs() const noexcept = 0;
  virtual void log(log_level level, std::string_view line) noexcept = 0;

 protected:
  explicit peers(serve_options const& options, std::string_view back_end = {})
      : options_(options), store_(seeded(options.store())), stats_(options.stats() ? *options.stats() : own_stats_) {
    stats_.back_end = back_end;
    const auto low = std::min({options_.validate_within(), options_.close_half_request_after(), options_.close_unread_after()});
    sweep_every_ = std::clamp<duration>(low / 4, std::chrono::milliseconds(10), std::chrono::seconds(1));
  }
  ~peers() { ROLLCALL_ASSERT(connections_ == 0 && "remove_all() first: removing calls the hooks"); }
  void remove_all() noexcept {
    for (auto& l : lists_)
      while (!l.empty()) remove(l.front());
  }

  /// Somebody is to be woken: deliver_some() in this turn, after all that was read in it, again and again until it says false. Called
  /// many times a turn.
  virtual void wakes_are_due() noexcept = 0;
  /// sweep() is to be called at `t`; whether it is already going to be called, at whatever time.
  virtual bool sweep_is_set() noexcept = 0;
  virtual void sweep_at(time_point t) noexcept = 0;
  /// The last connection has gone while draining.
  virtual void emptied() noexcept = 0;

 private:
  friend class connection;
  using state = connection::state;
  static constexpr int wakes_per_turn = 256;
  static constexpr std::size_t keep_batch = std::size_t{1} << 20;

  [[nodiscard]] list<connection>& in(state s) noexcept { return lists_[static_cast<std::size_t>(s)]; }
  [[nodiscard]] duration limit_of(state s) const noexcept {
    switch (s) {
      case state::fresh: return options_.validate_within();
      case state::half: return options_.close_half_request_after();
      case state::stuck:
      case state::ending: return options_.close_unread_after();
      case state::open: break;
    }
    return duration::max();
  }
  void move(connection& c, state s) noexcept {
    static_cast<list_hook<>&>(c).unlink();
    in(s).push_back(c);
    c.state_ = s;
    if (s == state::open) return;
    c.since_ = now();
    watch();
  }
  void watch() noexcept {
    if (sweep_is_set()) return;
    const time_point next = now() + sweep_every_;
    sweep_at(draining_ ? std::min(next, drain_until_) : next);
  }
  /// Takes a connection off and deletes it. Its unanswered waits end; wake-ups it leaves to others are delivered in this turn.
  void remove(connection& c) noexcept {
    if (c.where() == state::stuck && !c.reading_) --stats_.paused;
    static_cast<list_hook<>&>(c).unlink();
    delete &c;
    stats_.connections = --connections_;
    deliver_wakes();
    watches_.tell();
    if (draining_ && connections_ == 0) emptied();
  }
  /// Wakes are delivered once a turn: one write a connection, a budget at a time.
  void deliver_wakes() noexcept {
    if (!store_.woken().empty()) wakes_are_due();
  }

  serve_options options_;
  engine::store store_;
  server_stats own_stats_;
  server_stats& stats_;
  wire::write_batch batch_;  // replies of the connection that is being served
  std::array<list<connection>, 5> lists_;
  std::size_t connections_ = 0;
  duration sweep_every_{};
  bool draining_ = false;
  time_point drain_until_{};
  watch_list watches_;
  log_limiter limiter_;
};

inline void connection::on_read(std::string_view bytes) noexcept {
  ++all_.stats_.reads;
  try {
    if (!process(bytes)) return;
  } catch (std::exception const&) {
    return gone("no memory");
  }
  settle();
}

inline bool connection::process(std::string_view bytes) {
  wire::write_batch& out = all_.batch_;
  out.clear();
  wire::request r;
  for (;;) {
    const wire::decode_status status = decoder_.next(bytes, r, all_.store_.limits());
    if (status == wire::decode_status::need_more) break;
    if (status == wire::decode_status::bad) return reject(wire::to_string(decoder_.error()), nullptr);
    ++all_.stats_.requests;
    if (const auto s = all_.store_.apply(*this, r, out); s != apply_status::ok) [[unlikely]]
      return reject(engine::to_string(s), &r);
    if (out.size() >= all_.options_.max_unsent()) [[unlikely]] {
      if (!send(out)) return false;
      if (over_limit()) {
        overflow_->unread.append(bytes);
        break;
      }
    }
  }
  if (!send(out)) return false;
  if (out.capacity() > peers::keep_batch) [[unlikely]]
    out.release();
  all_.deliver_wakes();
  all_.watches_.tell();
  return true;
}

/// The requests before the bad one are answered; then the connection ends, and nobody else's.
inline bool connection::reject(std::string_view why, wire::request const* r) noexcept {
  ++all_.stats_.violations;
  all_.limiter_.log(all_, log_level::warning, [&] {
    std::string line = "closed " + stream_->peer_name() + ": ";
    if (r) {
      line += wire::to_string(r->op);
      line += " '";
      rollcall::detail::append_printable(line, r->key, 80);
      line += "': ";
    }
    return line += why;
  });
  try {
    if (send(all_.batch_)) finish();
  } catch (std::exception const&) {
    all_.remove(*this);
  }
  return false;
}

/// Nothing is read any more; what is queued for the peer is still sent.
inline void connection::finish() noexcept {
  if (!overflow_) return all_.remove(*this);
  stream_->stop_read();
  all_.store_.disconnect(*this);
  all_.deliver_wakes();
  all_.move(*this, state::ending);
}

inline bool connection::push(wire::write_batch& batch) noexcept {
  constexpr int most_pieces = 64;
  iovec pieces[most_pieces];
  while (!batch.empty()) {
    const int count = batch.fill(pieces, most_pieces);
    std::size_t want = 0;
    for (int i = 0; i < count; ++i) want += pieces[i].iov_len;
    ++all_.stats_.writes;
    const std::ptrdiff_t n = stream_->try_write(pieces, count);
    if (n < 0) return false;
    batch.consume(static_cast<std::size_t>(n));
    if (static_cast<std::size_t>(n) < want) break;
  }
  return true;
}

inline bool connection::send(wire::write_batch& batch) {
  if (batch.empty()) return true;
  if (!overflow_) {
    if (!push(batch)) {
      gone("the peer is gone");
      return false;
    }
    if (batch.empty()) return true;
    overflow_ = std::make_unique<overflow>();
  }
  batch.move_to(overflow_->unsent);
  return true;
}

inline void connection::deliver_due() noexcept {
  const std::uint32_t n = all_.store_.take_due(*this);
  try {
    wire::write_batch& out = all_.batch_;
    out.clear();
    for (std::uint32_t i = 0; i < n; ++i) out.append("\0", 1);  // STOP_WAITING (protocol 7.1)
    if (!send(out)) return;
  } catch (std::exception const&) {
    return gone("no memory");
  }
  settle();
}

inline bool connection::over_limit() const noexcept { return overflow_ && overflow_->unsent.size() >= all_.options_.max_unsent(); }

/// Puts the connection where it belongs now, after bytes went in or out.
inline void connection::settle() noexcept {
  if (state_ == state::ending) return;
  state s = state::fresh;
  if (overflow_) {
    s = state::stuck;
    if (reading_ && over_limit()) {
      reading_ = false;
      stream_->stop_read();
      ++all_.stats_.paused;
    }
  } else if (decoder_.validated()) {
    s = decoder_.halfway() ? state::half : state::open;
  }
  if (s == state_ && s != state::half) return;
  all_.move(*this, s);
}

inline void connection::on_writable() noexcept {
  if (!overflow_) return;
  const std::size_t before = overflow_->unsent.size();
  if (!push(overflow_->unsent)) return gone("the peer is gone");
  const bool progress = overflow_->unsent.size() < before;
  if (overflow_->unsent.empty() && state_ == state::ending) return gone("");
  if (!reading_ && overflow_->unsent.size() <= all_.options_.max_unsent() / 2 && state_ != state::ending) {
    const std::string unread = std::move(overflow_->unread);
    overflow_->unread.clear();
    if (overflow_->unsent.empty()) overflow_.reset();
    reading_ = true;
    --all_.stats_.paused;
    stream_->start_read(*this);
    try {
      if (!process(unread)) return;
    } catch (std::exception const&) {
      return gone("no memory");
    }
  } else if (overflow_->unsent.empty()) {
    overflow_.reset();
  }
  if (overflow_ && progress) all_.move(*this, state_);
  settle();
}

/// The peer has sent its end: what it asked before is answered, a pending wait is not (protocol 10).
inline void connection::on_end(int status) noexcept {
  if (status == 0) return finish();
  gone("");
}

inline void connection::gone(std::string_view why) noexcept {
  if (!why.empty()) all_.limiter_.log(all_, log_level::debug, [&] { return "closed " + stream_->peer_name() + ": " + std::string(why); });
  all_.remove(*this);
}

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
