#pragma once
#include <uv.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "../net/detail/accept.hpp"
#include "../net/tcp.hpp"
#include "../rt/event.hpp"
#include "connection.hpp"
#include "log_limiter.hpp"
#include "options.hpp"
#include "watch.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// A running server: the store, the connections by state, the clocks, the wake-ups. serve() owns one.
class server_core final : private net::detail::accept_sink, private timer_node {
 public:
  /// Without a listener: serves what attach() is given.
  server_core(loop_core& core, serve_options const& options)
      : timer_node([](timer_node& t) noexcept { static_cast<server_core&>(t).sweep(); }, false),
        core_(core),
        options_(options),
        store_(seeded(options.store())),
        stats_(options.stats() ? *options.stats() : own_stats_),
        drained_(&core) {
    check(check_.open(core, this, [](uv_loop_t* l, uv_check_t* h) { return uv_check_init(l, h); }));
    check(idle_.open(core, this, [](uv_loop_t* l, uv_idle_t* h) { return uv_idle_init(l, h); }));
    const auto [low, high] = std::minmax({options_.validate_within(), options_.close_half_request_after(), options_.close_unread_after()});
    sweep_every_ = std::clamp<duration>(low / 4, std::chrono::milliseconds(10), std::chrono::seconds(1));
  }
  server_core(loop_core& core, listener at, serve_options const& options) : server_core(core, options) {
    acceptor_.emplace(core, std::move(at), static_cast<net::detail::accept_sink&>(*this));
    acceptor_->keep_alive(options_.keep_alive());
  }
  server_core(server_core const&) = delete;
  server_core& operator=(server_core const&) = delete;
  ~server_core() {
    for (auto& l : lists_)
      while (!l.empty()) remove(l.front());
    core_.remove_timer(*this);
  }

  /// Serves a stream that stands, like one that was accepted.
  void attach(net::stream_ptr s) {
    if (!options_.keep_alive()) s->keep_alive(false);
    auto* c = new connection(*this, store_, std::move(s));
    ++connections_;
    ++stats_.accepted;
    stats_.connections = connections_;
    move(*c, state::fresh);
    c->start();
  }
  [[nodiscard]] engine::store const& store() const noexcept { return store_; }

  /// Stops accepting, closes what is quiet, lets the others take what was answered.
  void drain() noexcept {
    draining_ = true;
    acceptor_.reset();
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
    drain_until_ = deadline(options_.drain_within()).from(core_.now());
    core_.remove_timer(*this);
    sweep();
    if (connections_ == 0) drained_.set();
  }
  [[nodiscard]] event::waiting drained() noexcept { return drained_.wait(); }
  [[nodiscard]] std::size_t connections() const noexcept { return connections_; }
  [[nodiscard]] watch_list& watches() noexcept { return watches_; }

 private:
  friend class connection;
  using state = connection::state;
  static constexpr int wakes_per_turn = 1024;
  static constexpr std::size_t keep_batch = std::size_t{1} << 20;

  static void check(int status) {
    if (status != 0) throw error(errc::io, "serve", uv_strerror(status));
  }
  static engine::store_options seeded(engine::store_options o) {
    std::random_device random;
    if (std::all_of(o.instance_id.begin(), o.instance_id.end(), [](char c) { return c == 0; }))
      for (char& c : o.instance_id) c = static_cast<char>(random());
    if (o.hash_seed == 0) o.hash_seed = (std::uint64_t{random()} << 32) | random();
    return o;
  }

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
    c.since_ = core_.now();
    watch();
  }
  void watch() noexcept {
    if (timer_node::in_heap()) return;
    const time_point next = core_.now() + sweep_every_;
    core_.add_timer(*this, draining_ ? std::min(next, drain_until_) : next);
  }
  void sweep() noexcept {
    const time_point now = core_.now();
    bool more = false;
    for (const auto s : {state::fresh, state::half, state::stuck, state::ending}) {
      const duration limit = limit_of(s);
      while (!in(s).empty() && (now - in(s).front().since() >= limit || (draining_ && now >= drain_until_))) {
        connection& c = in(s).front();
        ++stats_.timed_out;
        limiter_.log(core_, log_level::warning, [&] {
          constexpr std::string_view why[] = {"it has not sent VALIDATE", "", "it has sent half a request", "it does not take its replies",
                                              "it does not take its replies"};
          return "closed " + c.peer_name() + ": " + std::string(why[static_cast<std::size_t>(s)]) + " within " + duration_text(draining_ ? std::min(limit, options_.drain_within()) : limit);
        });
        remove(c);
      }
      more = more || !in(s).empty();
    }
    if (more) watch();
  }

  void on_accept(unique_fd fd) noexcept override {
    if (connections_ >= options_.max_connections()) {
      ++stats_.refused;
      limiter_.log(core_, log_level::warning, [&] {
        return "refused a connection: " + std::to_string(connections_) + " are open (serve_options::max_connections)";
      });
      return;
    }
    try {
      net::stream_ptr s;
      if (const int status = net::detail::socket_stream::adopt(core_, fd, s); status != 0) return on_accept_error(status);
      attach(std::move(s));
    } catch (std::exception const&) {
      on_accept_error(UV_ENOMEM);
    }
  }
  void on_accept_error(int status) noexcept override {
    ++stats_.refused;
    limiter_.log(core_, log_level::error, [&] {
      return "refused a connection: " + net::errno_text(-status) + "; " + std::to_string(connections_) + " are open" +
             (status == UV_EMFILE ? " (raise the limit of descriptors: ulimit -n)" : "");
    });
  }

  /// Takes a connection off and deletes it. Its unanswered waits end; wake-ups it leaves to others are delivered in this turn.
  void remove(connection& c) noexcept {
    if (c.where() == state::stuck && !c.reading_) --stats_.paused;
    static_cast<list_hook<>&>(c).unlink();
    delete &c;
    stats_.connections = --connections_;
    deliver_wakes();
    watches_.tell();
    if (draining_ && connections_ == 0) drained_.set();
  }

  /// Wakes are delivered once a turn, after all that was read in it: one write a connection, a budget at a time.
  void deliver_wakes() noexcept {
    if (store_.woken().empty()) return;
    uv_check_start(check_.get(), [](uv_check_t* h) noexcept {
      const loop_core::turn t(handle_of<uv_check_t>::core_of(h));
      if (server_core* self = handle_of<uv_check_t>::owner_of(h)) self->deliver_some();
    });
    uv_idle_start(idle_.get(), [](uv_idle_t*) noexcept {});  // do not sleep before that
  }
  void deliver_some() noexcept {
    for (int budget = wakes_per_turn; budget > 0 && !store_.woken().empty(); --budget)
      static_cast<connection&>(store_.woken().front()).deliver_due();
    if (!store_.woken().empty()) return;
    uv_check_stop(check_.get());
    uv_idle_stop(idle_.get());
  }

  template <class H>
  using handle_of = handle<H, server_core>;

  loop_core& core_;
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
  event drained_;
  watch_list watches_;
  log_limiter limiter_;
  handle_of<uv_check_t> check_;
  handle_of<uv_idle_t> idle_;
  std::optional<net::detail::acceptor_core> acceptor_;
};

inline void connection::on_read(std::string_view bytes) noexcept {
  ++server_.stats_.reads;
  try {
    if (!process(bytes)) return;
  } catch (std::exception const&) {
    return gone("no memory");
  }
  settle();
}

inline bool connection::process(std::string_view bytes) {
  wire::write_batch& out = server_.batch_;
  out.clear();
  wire::request r;
  for (;;) {
    const wire::decode_status status = decoder_.next(bytes, r, server_.store_.limits());
    if (status == wire::decode_status::need_more) break;
    if (status == wire::decode_status::bad) return reject(wire::to_string(decoder_.error()), nullptr);
    ++server_.stats_.requests;
    if (const auto s = server_.store_.apply(*this, r, out); s != engine::apply_status::ok) [[unlikely]]
      return reject(engine::to_string(s), &r);
    if (out.size() >= server_.options_.max_unsent()) [[unlikely]] {
      if (!send(out)) return false;
      if (over_limit()) {
        overflow_->unread.append(bytes);
        break;
      }
    }
  }
  if (!send(out)) return false;
  if (out.capacity() > server_core::keep_batch) [[unlikely]] out.release();
  server_.deliver_wakes();
  server_.watches_.tell();
  return true;
}

/// The requests before the bad one are answered; then the connection ends, and nobody else's.
inline bool connection::reject(std::string_view why, wire::request const* r) noexcept {
  ++server_.stats_.violations;
  server_.limiter_.log(server_.core_, log_level::warning, [&] {
    std::string line = "closed " + stream_->peer_name() + ": ";
    if (r) {
      line += wire::to_string(r->op);
      line += " '";
      append_printable(line, r->key, 80);
      line += "': ";
    }
    return line += why;
  });
  try {
    if (send(server_.batch_)) finish();
  } catch (std::exception const&) {
    server_.remove(*this);
  }
  return false;
}

/// Nothing is read any more; what is queued for the peer is still sent.
inline void connection::finish() noexcept {
  if (!overflow_) return server_.remove(*this);
  stream_->stop_read();
  server_.store_.disconnect(*this);
  server_.deliver_wakes();
  server_.move(*this, state::ending);
}

inline bool connection::push(wire::write_batch& batch) noexcept {
  constexpr int most_pieces = 64;
  iovec pieces[most_pieces];
  while (!batch.empty()) {
    const int count = batch.fill(pieces, most_pieces);
    std::size_t want = 0;
    for (int i = 0; i < count; ++i) want += pieces[i].iov_len;
    ++server_.stats_.writes;
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
  const std::uint32_t n = server_.store_.take_due(*this);
  try {
    wire::write_batch& out = server_.batch_;
    out.clear();
    for (std::uint32_t i = 0; i < n; ++i) out.append("\0", 1);  // STOP_WAITING (protocol 7.1)
    if (!send(out)) return;
  } catch (std::exception const&) {
    return gone("no memory");
  }
  settle();
}

inline bool connection::over_limit() const noexcept { return overflow_ && overflow_->unsent.size() >= server_.options_.max_unsent(); }

/// Puts the connection where it belongs now, after bytes went in or out.
inline void connection::settle() noexcept {
  if (state_ == state::ending) return;
  state s = state::fresh;
  if (overflow_) {
    s = state::stuck;
    if (reading_ && over_limit()) {
      reading_ = false;
      stream_->stop_read();
      ++server_.stats_.paused;
    }
  } else if (decoder_.validated()) {
    s = decoder_.halfway() ? state::half : state::open;
  }
  if (s == state_ && s != state::half) return;
  server_.move(*this, s);
}

inline void connection::on_writable() noexcept {
  if (!overflow_) return;
  const std::size_t before = overflow_->unsent.size();
  if (!push(overflow_->unsent)) return gone("the peer is gone");
  const bool progress = overflow_->unsent.size() < before;
  if (overflow_->unsent.empty() && state_ == state::ending) return gone("");
  if (!reading_ && overflow_->unsent.size() <= server_.options_.max_unsent() / 2 && state_ != state::ending) {
    const std::string unread = std::move(overflow_->unread);
    overflow_->unread.clear();
    if (overflow_->unsent.empty()) overflow_.reset();
    reading_ = true;
    --server_.stats_.paused;
    stream_->start_read(*this);
    try {
      if (!process(unread)) return;
    } catch (std::exception const&) {
      return gone("no memory");
    }
  } else if (overflow_->unsent.empty()) {
    overflow_.reset();
  }
  if (overflow_ && progress) server_.move(*this, state_);
  settle();
}

/// The peer has sent its end: what it asked before is answered, a pending wait is not (protocol 10).
inline void connection::on_end(int status) noexcept {
  if (status == 0) return finish();
  gone("");
}

inline void connection::gone(std::string_view why) noexcept {
  if (!why.empty()) server_.limiter_.log(server_.core_, log_level::debug, [&] { return "closed " + stream_->peer_name() + ": " + std::string(why); });
  server_.remove(*this);
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
