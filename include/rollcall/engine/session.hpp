#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/intrusive.hpp"
#include "../wire/decode.hpp"
#include "../wire/encode.hpp"
#include "detail/direct_reply.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

class session;

struct fenced_tag {};

/// One operation's stay in a session. The session calls it back; it must be abandoned or ended before it is destroyed.
/// Callbacks may stage further requests on the session but must not destroy it.
class exchange : private list_hook<>, private list_hook<fenced_tag> {
 public:
  /// A reply to the `index`-th request this exchange has sent in a row arrived.
  virtual void on_reply(std::size_t index, wire::reply& r) noexcept = 0;
  /// The unreplied requests it has posted were executed, or its wait is over.
  virtual void on_done() noexcept = 0;
  /// The connection is lost; nothing more will come.
  virtual void on_lost() noexcept = 0;
  /// Where the value of a reply of form `into` is put as it arrives; asked for each piece.
  [[nodiscard]] virtual std::span<char> room() noexcept { return {}; }
  [[nodiscard]] bool engaged() const noexcept { return list_hook<>::linked(); }
  /// Whether bytes of it may have reached the server.
  [[nodiscard]] bool written() const noexcept { return written_; }

 protected:
  exchange() noexcept = default;
  ~exchange() = default;

 private:
  friend class session;
  friend class list<exchange>;
  friend class list<exchange, fenced_tag>;
  std::uint64_t first_slot_ = 0;
  std::size_t slots_ = 0;
  std::uint64_t fence_ = 0;
  bool written_ = false;
  bool cancelled_ = false;  // a cancel slot that is no waiter's any more may name it
};

/// The ledger of one connection: which reply byte belongs to whom. No socket, no clock; the table in docs/design/session.md.
///
/// Slots live in a ring that grows to the deepest pipeline seen; nothing else allocates in steady state.
class session {
 public:
  enum class tail_state : unsigned char { free, held, parked, armed };

  session() = default;
  session(session const&) = delete;
  session& operator=(session const&) = delete;

  [[nodiscard]] tail_state tail() const noexcept { return tail_; }
  [[nodiscard]] bool dead() const noexcept { return dead_; }
  /// A command may be sent: the tail is free or can be made so.
  [[nodiscard]] bool takes_command() const noexcept { return !dead_ && (tail_ != tail_state::held || preemptible_); }
  [[nodiscard]] bool takes_wait() const noexcept { return !dead_ && (tail_ == tail_state::free || tail_ == tail_state::armed); }
  /// No exchange is pending here.
  [[nodiscard]] bool idle() noexcept { return pending_.empty(); }
  /// Nothing is due, also for nobody, and nothing waits at the server.
  [[nodiscard]] bool at_rest() noexcept { return idle() && slots() == 0 && tail_ == tail_state::free && out_.empty(); }
  [[nodiscard]] std::size_t slots() const noexcept { return static_cast<std::size_t>(next_slot_ - first_slot_); }

  /// Bytes of the handshake that nothing answers (VALIDATE).
  void stage(std::string_view bytes) { out_.append(bytes); }
  /// A request that is answered in its turn, given in two pieces. `x` may be nullptr: the reply is swallowed. `count`: replies of
  /// form `many`, at least 1 (nothing comes for none). The requests of x that are due stand in a row: no other's, no flush between them
  /// while a wait is held.
  void send(exchange* x, std::string_view head, std::string_view body, wire::reply_form form, std::uint64_t count = 0) {
    send(x, head, body, {}, form, count);
  }
  /// The same in three pieces, for what is put together at the last moment.
  void send(exchange* x, std::string_view head, std::string_view body, std::string_view end, wire::reply_form form, std::uint64_t count = 0) {
    clear_tail();
    make_room();
    write([&](std::string& out) { out.append(head).append(body).append(end); });
    push(slot{x, count, form, kind::reply});
    if (x) {
      ROLLCALL_ASSERT((x->slots_ == 0 || x->first_slot_ + x->slots_ == next_slot_ - 1) && "the requests of an exchange stand in a row");
      if (x->slots_ == 0) x->first_slot_ = next_slot_ - 1;
      ++x->slots_;
      engage(*x);
    }
  }
  /// A request that is answered with bytes, which go to x.room() if they fit: the reply tells their number, and shows them if they did.
  void send_into(exchange& x, std::string_view head, std::string_view body) {
    send(&x, head, body, wire::reply_form::bytes);
    at(next_slot_ - 1).direct = true;
  }
  /// A request without a reply; x completes when a later reply shows that it, and all that x has posted before, was executed. An
  /// exchange that posts does not wait.
  void post(exchange& x, std::string_view request) {
    clear_tail();
    out_.append(request);
    cover_later(x);
  }
  /// The same, of what `encode(std::string&)` appends.
  template <std::invocable<std::string&> F>
  void post(exchange& x, F encode) {
    clear_tail();
    write(encode);
    cover_later(x);
  }
  /// A WAIT or BARRIER. `request` must stay valid while x is engaged: it may be written again when it is `preemptible`, which only
  /// a WAIT for a single key is (with several, keys already seen would be forgotten; a BARRIER would count twice).
  void wait(exchange& x, std::string_view request, bool preemptible) {
    ROLLCALL_ASSERT(takes_wait() && !x.engaged());
    clear_tail();
    fence();
    out_.append(request);
    tail_ = tail_state::held;
    waiter_ = &x;
    wait_request_ = request;
    preemptible_ = preemptible;
    engage(x);
  }
  /// x is not interested any more; what it has sent stays sent, its replies are swallowed, its wait is cancelled.
  void abandon(exchange& x) {
    if (!x.engaged()) return;
    for (std::size_t i = 0; i < x.slots_; ++i) {
      const std::uint64_t n = x.first_slot_ + i;
      if (n >= first_slot_ && at(n).who == &x) at(n).who = nullptr;
    }
    if (waiter_ == &x) {
      forget_cancel_slot(x);
      waiter_ = nullptr;
      if (tail_ == tail_state::held) {
        tail_ = tail_state::armed;
        clear_tail();
      } else {
        tail_ = tail_state::free;
      }
    }
    release(x);
  }
  /// The replies that are due to `from` go to `to`, which was in nothing; `from` leaves. Neither a wait nor unreplied requests.
  void hand_over(exchange& from, exchange& to) noexcept {
    ROLLCALL_ASSERT(from.slots_ > 0 && !to.engaged() && waiter_ != &from && !static_cast<list_hook<fenced_tag>&>(from).linked());
    for (std::uint64_t n = from.first_slot_; n < from.first_slot_ + from.slots_; ++n)
      if (n >= first_slot_ && at(n).who == &from) at(n).who = &to;
    to.first_slot_ = from.first_slot_;
    to.slots_ = from.slots_;
    to.written_ = from.written_;
    if (to.written_) {  // those that are written stand in front of those that are not
      pending_.push_front(to);
    } else {
      pending_.push_back(to);
    }
    release(from);
  }
  /// Cancels the wait of x but keeps x: `01` is swallowed, `00` completes it. Used when a wait has expired.
  void cancel(exchange& x) {
    ROLLCALL_ASSERT(waiter_ == &x);
    if (tail_ == tail_state::held) {
      stage_cancel(&x);
    }
    x.cancelled_ = true;
    tail_ = tail_state::free;
    waiter_ = nullptr;
  }

  /// Ends a batch: adds the fence and the parked wait. Then write output().
  void flush() {
    fence();
    if (tail_ == tail_state::parked) {
      out_.append(wait_request_);
      tail_ = tail_state::held;
    }
  }
  /// What is to be written; the caller takes it and clears it.
  [[nodiscard]] std::string& output() noexcept { return out_; }
  /// The output was handed to the connection: from now on its requests may take effect.
  void mark_written() noexcept {
    for (exchange* x = pending_.empty() ? nullptr : &pending_.back(); x && !x->written_;) {
      x->written_ = true;
      x = pending_.previous(*x);
    }
  }

  /// Bytes from the peer, in any pieces. Returns false on a protocol error (see problem()); then call lost().
  bool feed(std::string_view bytes) {
    while (!bytes.empty() && !dead_) {
      if (first_slot_ == next_slot_) {
        if (!feed_tail(bytes)) return false;
      } else if (at(first_slot_).what == kind::cancel) {
        if (!feed_cancel(bytes)) return false;
      } else if (const auto status = feed_reply(bytes); status != wire::decode_status::complete) {
        return status == wire::decode_status::need_more;
      }
    }
    return true;
  }
  [[nodiscard]] std::string const& problem() const noexcept { return problem_; }

  /// The connection is gone: every pending exchange is told, once.
  void lost() noexcept {
    dead_ = true;
    waiter_ = nullptr;
    tail_ = tail_state::free;
    first_slot_ = next_slot_;
    while (!pending_.empty()) {
      exchange& x = pending_.front();
      release(x);
      x.on_lost();
    }
  }

 private:
  enum class kind : unsigned char { reply, cancel };
  struct slot {
    exchange* who = nullptr;
    std::uint64_t count = 0;
    wire::reply_form form{};
    kind what = kind::reply;
    bool zero_seen = false;
    bool direct = false;
  };

  [[nodiscard]] slot& at(std::uint64_t n) noexcept { return ring_[static_cast<std::size_t>(n) & (ring_.size() - 1)]; }
  // A request and its slot come together or, without memory, not at all: room for the slot first, then all bytes or none.
  void make_room() {
    if (slots() < ring_.size()) return;
    std::vector<slot> bigger(ring_.empty() ? 8 : ring_.size() * 2);
    for (std::uint64_t n = first_slot_; n != next_slot_; ++n) bigger[static_cast<std::size_t>(n) & (bigger.size() - 1)] = at(n);
    ring_.swap(bigger);
  }
  template <class F>
  void write(F encode) {
    const std::size_t before = out_.size();
    try {
      encode(out_);
    } catch (...) {
      out_.resize(before);
      throw;
    }
  }
  void push(slot s) noexcept {
    ++next_slot_;
    at(next_slot_ - 1) = s;
  }
  void engage(exchange& x) noexcept {
    if (x.engaged()) static_cast<list_hook<>&>(x).unlink();
    pending_.push_back(x);
    x.written_ = false;
  }
  void release(exchange& x) noexcept {
    static_cast<list_hook<>&>(x).unlink();
    static_cast<list_hook<fenced_tag>&>(x).unlink();
    x.slots_ = 0;
    if (std::exchange(x.cancelled_, false)) forget_cancel_slot(x);
  }
  void cover_later(exchange& x) noexcept {
    static_cast<list_hook<fenced_tag>&>(x).unlink();
    x.fence_ = next_slot_;
    unfenced_.push_back(x);
    engage(x);
  }
  void fence() {
    if (unfenced_.empty() || unfenced_.back().fence_ != next_slot_) return;
    make_room();
    write([](std::string& out) { wire::encode_check(out, {}, keys()); });
    push(slot{nullptr, 0, wire::reply_form::u8, kind::reply});
  }
  void stage_cancel(exchange* who) {
    make_room();
    wire::encode_cancel_wait(out_);
    push(slot{who, 0, wire::reply_form::u8, kind::cancel});
  }
  /// Makes room for a command: a wait that stands in the way is parked, one of nobody is cancelled for good.
  void clear_tail() {
    if (tail_ == tail_state::held) {
      ROLLCALL_ASSERT(preemptible_);
      stage_cancel(waiter_);
      tail_ = tail_state::parked;
    } else if (tail_ == tail_state::armed) {
      stage_cancel(nullptr);
      tail_ = tail_state::free;
    }
  }
  void forget_cancel_slot(exchange& x) noexcept {
    for (std::uint64_t n = first_slot_; n != next_slot_; ++n)
      if (at(n).what == kind::cancel && at(n).who == &x) at(n).who = nullptr;
  }
  /// The server has executed everything up to slot n.
  void executed(std::uint64_t n) noexcept {
    while (!unfenced_.empty() && unfenced_.front().fence_ <= n) {
      exchange& x = unfenced_.front();
      static_cast<list_hook<fenced_tag>&>(x).unlink();
      if (x.slots_ == 0) release(x);
      x.on_done();
    }
  }
  void wait_is_over(exchange& x) noexcept {
    waiter_ = nullptr;
    release(x);
    x.on_done();
  }

  bool feed_tail(std::string_view& bytes) noexcept {
    const bool waits = tail_ == tail_state::held || tail_ == tail_state::armed;
    if (!waits || bytes.front() != static_cast<char>(wire::stop_waiting)) {
      return bad(waits ? "expected 0x00, the end of a WAIT" : "bytes that no request asked for", bytes.front());
    }
    bytes.remove_prefix(1);
    tail_ = tail_state::free;
    if (waiter_) wait_is_over(*waiter_);
    return true;
  }
  bool feed_cancel(std::string_view& bytes) noexcept {
    slot& s = at(first_slot_);
    const char c = bytes.front();
    if (c == static_cast<char>(wire::stop_waiting) && !s.zero_seen) {
      bytes.remove_prefix(1);
      s.zero_seen = true;
      if (exchange* x = std::exchange(s.who, nullptr)) {
        if (waiter_ == x) tail_ = tail_ == tail_state::parked ? tail_state::free : tail_state::armed;
        forget_cancel_slot(*x);
        abandon_replies(*x);
        if (waiter_ == x) waiter_ = nullptr;
        release(*x);
        x->on_done();
      }
      return true;
    }
    if (c != static_cast<char>(wire::wait_canceled)) return bad("expected 0x01 or 0x00 0x01, the answer to CANCEL_WAIT", c);
    bytes.remove_prefix(1);
    executed(first_slot_++);
    return true;
  }
  void abandon_replies(exchange& x) noexcept {
    for (std::size_t i = 0; i < x.slots_; ++i) {
      const std::uint64_t n = x.first_slot_ + i;
      if (n >= first_slot_ && n < next_slot_ && at(n).who == &x) at(n).who = nullptr;
    }
  }
  wire::decode_status feed_reply(std::string_view& bytes) {
    const slot& s = at(first_slot_);
    if (!std::exchange(decoding_, true)) {
      reply_.expect(s.form, s.count);
      direct_ = detail::direct_reply();
    }
    const auto status = s.direct ? direct_.next(bytes, s.who ? s.who->room() : std::span<char>(), reply_.value()) : reply_.next(bytes);
    if (status == wire::decode_status::bad) problem_ = wire::to_string(s.direct ? wire::decode_error::reply_too_long : reply_.error());
    if (status != wire::decode_status::complete) return status;
    decoding_ = false;
    const std::uint64_t n = first_slot_;
    executed(n);  // may abandon whose slot this is, add slots, or lose the connection
    if (dead_) return status;
    exchange* who = at(n).who;
    ++first_slot_;
    if (who) {
      const auto index = static_cast<std::size_t>(n - who->first_slot_);
      if (index + 1 == who->slots_) release(*who);
      who->on_reply(index, reply_.value());
    }
    return status;
  }
  bool bad(std::string_view what, char c) {
    constexpr char hex[] = "0123456789abcdef";
    problem_ = what;
    problem_ += ", got 0x";
    problem_ += hex[static_cast<unsigned char>(c) >> 4];
    problem_ += hex[static_cast<unsigned char>(c) & 15];
    return false;
  }

  std::string out_;
  std::vector<slot> ring_;
  std::uint64_t first_slot_ = 1;
  std::uint64_t next_slot_ = 1;
  list<exchange> pending_;
  list<exchange, fenced_tag> unfenced_;
  tail_state tail_ = tail_state::free;
  bool preemptible_ = false;
  bool decoding_ = false;
  bool dead_ = false;
  exchange* waiter_ = nullptr;
  std::string_view wait_request_;
  wire::reply_decoder reply_;
  detail::direct_reply direct_;
  std::string problem_;
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
