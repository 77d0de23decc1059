#pragma once
#include <sys/uio.h>
#include <uv.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "../net/stream.hpp"
#include "../rt/detail/handle.hpp"
#include "../rt/loop.hpp"
#include "fault_plan.hpp"
#include "manual_clock.hpp"

namespace rollcall {
inline namespace v0 {
namespace test {

/// What two connected ends in memory share: the bytes under way and what happens to them. Lives while one end is open.
///
/// It keeps the contract of net::stream as a socket does: sinks are called from the loop only, an end that does not read holds its
/// bytes back, what an end has written before it closes still arrives, and bytes may be taken that nobody will ever see.
class memory_link final : public std::enable_shared_from_this<memory_link> {
 public:
  memory_link(detail::loop_core& core, link_faults const& first_to_second, link_faults const& second_to_first)
      : core_(core), channels_{channel(*this, 0, first_to_second), channel(*this, 1, second_to_first)} {}
  memory_link(memory_link const&) = delete;
  memory_link& operator=(memory_link const&) = delete;
  ~memory_link() {
    for (channel& c : channels_) {
      c.delivery.cancel();
      c.room.cancel();
    }
  }

  /// Nothing is delivered any more, in both directions, until thaw().
  void freeze() noexcept { frozen_ = true; }
  void thaw() noexcept {
    frozen_ = false;
    for (channel& c : channels_) pump(c);
  }
  /// The link is lost now, with all that is under way; each end is told its own way (0: orderly, or a negative errno value).
  void lose(int first, int second) noexcept {
    if (std::exchange(lost_, true)) return;
    for (channel& c : channels_) {
      c.bytes.clear();
      finish(c, c.from == 0 ? second : first);
      if (c.random.chance(500)) ends_[1 - c.from].broken = true;  // a write may find it out before the reader is told
      if (ends_[c.from].blocked) make_room(c);
    }
  }
  [[nodiscard]] bool lost() const noexcept { return lost_; }
  /// Bytes that an end, 0 or 1, has been given so far.
  [[nodiscard]] std::uint64_t delivered_to(int side) const noexcept { return channels_[static_cast<std::size_t>(1 - side)].delivered; }

 private:
  friend class memory_end;
  struct channel;
  /// Something that happens after a while, or, after no time at all, in its turn of what is ready.
  class later final : private detail::timer_node, private detail::ready_node {
   public:
    using act_fn = void (*)(channel&) noexcept;
    later(act_fn f, channel& c) noexcept
        : timer_node([](timer_node& t) noexcept { static_cast<later&>(t).act(); }, false),
          ready_node([](ready_node& n) noexcept { static_cast<later&>(n).act(); }),
          act_(f),
          of_(c) {}
    void in(duration d) noexcept {
      detail::loop_core& core = of_.link.core_;
      d > duration::zero() ? core.add_timer(*this, core.now() + d) : core.schedule(*this);
    }
    void cancel() noexcept {
      of_.link.core_.remove_timer(*this);
      list_hook<detail::ready_tag>::unlink();
    }
    [[nodiscard]] bool pending() const noexcept { return in_heap() || list_hook<detail::ready_tag>::linked(); }

   private:
    void act() noexcept { act_(of_); }
    act_fn act_;
    channel& of_;
  };
  /// From one end to the other.
  struct channel {
    channel(memory_link& l, int sender, link_faults const& f)
        : link(l),
          from(static_cast<std::size_t>(sender)),
          faults(f),
          random(f.seed),
          delivery(&memory_link::deliver, *this),
          room(&memory_link::writable, *this) {}
    memory_link& link;
    std::size_t from;
    link_faults faults;
    random_source random;
    std::string bytes;
    std::uint64_t delivered = 0;
    bool ends = false;  // after `bytes` comes the end
    int status = 0;
    later delivery;
    later room;
  };
  struct end {
    net::stream_sink* sink = nullptr;
    bool open = true;
    bool reading = false;
    bool ended = false;    // has been told
    bool broken = false;   // its writes fail
    bool blocked = false;  // is owed an on_writable
    bool shut = false;
  };

  void pump(channel& c) noexcept {
    end const& to = ends_[1 - c.from];
    if (c.delivery.pending() || frozen_ || !to.reading || to.ended || (c.bytes.empty() && !c.ends)) return;
    duration d{0};
    if (c.random.chance(c.faults.delayed_permille)) d = c.random.up_to(c.faults.max_delay);
    if (c.delivered >= c.faults.freeze_after) {
      c.faults.freeze_after = link_faults::never;
      d += c.faults.freeze_for;
    }
    c.delivery.in(d);
  }
  static void deliver(channel& c) noexcept {
    const auto self = c.link.shared_from_this();
    end& to = self->ends_[1 - c.from];
    if (self->frozen_ || !to.reading || to.ended) return;
    if (c.bytes.empty()) {
      if (!c.ends) return;
      to.ended = true;
      to.reading = false;
      to.broken = to.broken || c.status != 0 || self->lost_;
      return to.sink->on_end(c.status);
    }
    std::size_t n = std::min(c.bytes.size(), c.faults.max_piece);
    if (!c.faults.exact_pieces && c.faults.max_piece != SIZE_MAX) n = static_cast<std::size_t>(c.random.between(1, n));
    if (!self->lost_ && c.faults.lose_after - c.delivered <= n) {
      n = static_cast<std::size_t>(c.faults.lose_after - c.delivered);
      c.bytes.resize(n);
    }
    std::string piece = c.bytes.substr(0, n);  // its own block, so that whoever keeps a view of it is found out
    c.bytes.erase(0, n);
    spoil(c, piece);
    c.delivered += n;
    const bool loses = c.delivered >= c.faults.lose_after;
    if (!piece.empty()) to.sink->on_read(piece);
    if (loses) {
      const int* const s = c.faults.loss_status;
      c.from == 0 ? self->lose(s[0], s[1]) : self->lose(s[1], s[0]);
    }
    if (self->ends_[c.from].blocked && c.bytes.size() < c.faults.capacity) self->make_room(c);
    self->pump(c);
  }
  static void spoil(channel& c, std::string& piece) {
    const std::uint64_t at = c.faults.corrupt_at - c.delivered;
    if (c.faults.corrupt == corruption::none || at >= piece.size()) return;
    const auto i = static_cast<std::size_t>(at);
    if (c.faults.corrupt == corruption::drop) piece.erase(i, 1);
    if (c.faults.corrupt == corruption::duplicate) piece.insert(i, 1, piece[i]);
    if (c.faults.corrupt == corruption::flip) piece[i] = static_cast<char>(piece[i] ^ 1);
  }
  void make_room(channel& c) noexcept {
    if (!c.room.pending()) c.room.in(c.random.chance(500) ? duration(0) : c.random.up_to(c.faults.max_delay));
  }
  static void writable(channel& c) noexcept {
    const auto self = c.link.shared_from_this();
    end& e = self->ends_[c.from];
    if (std::exchange(e.blocked, false) && e.sink) e.sink->on_writable();
  }
  /// The receiver of `c` is told `status` after the bytes that are left.
  void finish(channel& c, int status) noexcept {
    c.ends = true;
    c.status = status;
    pump(c);
  }

  // What an end asks for.
  void start_read(std::size_t i, net::stream_sink& sink) noexcept {
    ends_[i].sink = &sink;
    ends_[i].reading = !ends_[i].ended;
    pump(channels_[1 - i]);
  }
  std::ptrdiff_t write(std::size_t i, iovec const* pieces, int count) {
    end& e = ends_[i];
    channel& c = channels_[i];
    if (e.broken || e.shut) return -EPIPE;
    if (e.blocked) return 0;
    std::size_t want = 0;
    for (int k = 0; k < count; ++k) want += pieces[k].iov_len;
    const bool vanishes = lost_ || !ends_[1 - i].open;
    std::size_t n = vanishes ? want : std::min(want, c.faults.capacity - std::min(c.faults.capacity, c.bytes.size()));
    if (c.random.chance(c.faults.short_write_permille)) n = static_cast<std::size_t>(c.random.below(n + 1));
    if (vanishes) {
      if (!lost_ && want > 0) reset(i);
    } else {
      std::size_t left = n;
      for (int k = 0; left > 0; ++k) {
        const std::size_t part = std::min(left, pieces[k].iov_len);
        c.bytes.append(static_cast<char const*>(pieces[k].iov_base), part);
        left -= part;
      }
    }
    if (n < want) {
      e.blocked = true;
      if (vanishes || c.bytes.size() < c.faults.capacity) make_room(c);
    }
    pump(c);
    return static_cast<std::ptrdiff_t>(n);
  }
  /// End i has written to one that is closed: it is told, by its reader or by its next write.
  void reset(std::size_t i) noexcept {
    channel& in = channels_[1 - i];
    in.bytes.resize(static_cast<std::size_t>(in.random.below(in.bytes.size() + 1)));
    if (in.random.chance(500)) ends_[i].broken = true;
    finish(in, -ECONNRESET);
  }
  void shutdown(std::size_t i) noexcept {
    ends_[i].shut = true;
    if (!lost_) finish(channels_[i], 0);
  }
  void close(std::size_t i) noexcept {
    ends_[i] = end();
    ends_[i].open = false;
    channel& out = channels_[i];
    channel& in = channels_[1 - i];
    if (!lost_) {
      finish(out, 0);
      if (!in.bytes.empty()) {  // unread bytes make a close a reset
        in.bytes.clear();
        reset(1 - i);
      }
      if (ends_[1 - i].blocked) make_room(in);
    }
    in.delivery.cancel();
    out.room.cancel();
  }

  detail::loop_core& core_;
  std::array<channel, 2> channels_;
  std::array<end, 2> ends_;
  bool frozen_ = false;
  bool lost_ = false;
};

/// One end of a memory_link. Like a socket it is a handle of the loop: it counts in live_handles() and keeps the loop alive.
class memory_end final : public net::stream {
 public:
  memory_end(detail::loop_core& c, std::shared_ptr<memory_link> l, int side)
      : core(&c), link_(std::move(l)), side_(static_cast<std::size_t>(side)) {
    uv_async_init(c.native(), &uv, nullptr);
    c.add_handle();
  }
  void start_read(net::stream_sink& sink) noexcept override { link_->start_read(side_, sink); }
  void stop_read() noexcept override { link_->ends_[side_].reading = false; }
  std::ptrdiff_t try_write(iovec const* pieces, int count) noexcept override { return link_->write(side_, pieces, count); }
  void shutdown() noexcept override { link_->shutdown(side_); }
  void keep_alive(bool on) noexcept override { (on ? uv_ref : uv_unref)(reinterpret_cast<uv_handle_t*>(&uv)); }
  [[nodiscard]] std::string peer_name() const override { return side_ == 0 ? "memory" : "a peer in memory"; }
  void close() noexcept override {
    link_->close(side_);
    link_.reset();
    detail::close_and_delete(this);
  }

  uv_async_t uv;
  detail::loop_core* core;

 private:
  std::shared_ptr<memory_link> link_;
  std::size_t side_;
};

/// Two connected streams, and a hand on the link between them.
class memory_pair {
 public:
  explicit memory_pair(loop& l, link_faults const& first_to_second = {}, link_faults const& second_to_first = {})
      : link(std::make_shared<memory_link>(l.core(), first_to_second, second_to_first)),
        first(new memory_end(l.core(), link, 0)),
        second(new memory_end(l.core(), link, 1)) {}
  std::shared_ptr<memory_link> link;
  net::stream_ptr first;
  net::stream_ptr second;
};

/// Where streams in memory are dialled: makes links from a plan and hands their far ends to whoever serves.
class memory_network final : public net::dialler {
 public:
  using accept_fn = std::function<void(net::stream_ptr, std::shared_ptr<memory_link> const&)>;
  /// May change what the plan has drawn for a link: the direction to the server, and the one back.
  using adjust_fn = std::function<void(link_faults&, link_faults&)>;
  memory_network(loop& l, fault_plan& plan, accept_fn accept) : loop_(l), plan_(plan), accept_(std::move(accept)) {}
  void adjust(adjust_fn f) { adjust_ = std::move(f); }

  /// A new connection to the server, that stands already.
  [[nodiscard]] net::stream_ptr connect() {
    link_faults there = plan_.direction();
    link_faults back = plan_.direction();
    if (adjust_) adjust_(there, back);
    memory_pair p(loop_, there, back);
    accept_(std::move(p.second), p.link);
    return std::move(p.first);
  }
  [[nodiscard]] std::unique_ptr<attempt> dial(void* owner, done_fn done) override {
    return std::make_unique<dialling>(*this, owner, done, plan_.delay(), plan_.refuses());
  }

 private:
  class dialling final : public attempt, private detail::timer_node {
   public:
    dialling(memory_network& n, void* owner, done_fn done, duration d, bool refused)
        : timer_node([](timer_node& t) noexcept { static_cast<dialling&>(t).arrive(); }),
          network_(n),
          owner_(owner),
          done_(done),
          refused_(refused) {
      n.loop_.core().add_timer(*this, n.loop_.now() + d);
    }
    ~dialling() override { network_.loop_.core().remove_timer(*this); }

   private:
    void arrive() noexcept {
      if (refused_) return done_(owner_, -ECONNREFUSED, nullptr);
      done_(owner_, 0, network_.connect());
    }
    memory_network& network_;
    void* owner_;
    done_fn done_;
    bool refused_;
  };
  loop& loop_;
  fault_plan& plan_;
  accept_fn accept_;
  adjust_fn adjust_;
};

/// Runs a loop on virtual time: everything that is ready, then the clock jumps to the next timer. What happens depends on nothing but
/// what the program does, as long as nothing on the loop waits for the real world.
class virtual_time {
 public:
  explicit virtual_time(loop& l) noexcept : loop_(l), clock_(l) {}
  [[nodiscard]] time_point now() noexcept { return clock_.now(); }
  /// Turns of the loop so far; firing the timers of one instant is one.
  [[nodiscard]] std::uint64_t turns() const noexcept { return turns_; }
  /// Runs what is ready, without letting time pass.
  void settle() {
    while (uv_loop_alive(loop_.native()) != 0 && uv_backend_timeout(loop_.native()) == 0) {
      turns_ += !loop_.core().has_ready();  // else the last turn had more to do than fits one, and goes on
      uv_run(loop_.native(), UV_RUN_NOWAIT);
    }
  }
  /// One jump of the clock and what follows from it; false when there is no timer.
  bool step() {
    ++turns_;
    const bool moved = clock_.advance_to_next();
    settle();
    return moved;
  }
  /// Steps until `done()`; false when `limit` of virtual time passes, or nothing is left to happen, before it is.
  template <class F>
  bool run_until(F done, duration limit) {
    const time_point until = now() + limit;
    settle();
    while (!done())
      if (loop_.core().next_timer() > until || !step()) return done();
    return true;
  }
  /// Lets `d` pass.
  void run_for(duration d) {
    const time_point until = now() + d;
    settle();
    while (loop_.core().next_timer() <= until && step()) {}
    clock_.advance(until - now());
    settle();
  }

 private:
  loop& loop_;
  manual_clock clock_;
  std::uint64_t turns_ = 0;
};

}  // namespace test
}  // namespace v0
}  // namespace rollcall
