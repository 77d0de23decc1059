#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "verdict.hpp"

namespace rollcall {
inline namespace v0 {
namespace roll_call {

/// One request to the store, of the generation `generation`.
class request {
 public:
  enum class kind : unsigned char {
    number,   ///< ADD generation 0: read it, or make it 0
    check,    ///< CHECK outcome
    append,   ///< APPEND arrived `text`
    count,    ///< ADD count 1
    recount,  ///< ADD count 0
    wait,     ///< WAIT outcome
    leave,    ///< end the WAIT that is pending
    arrived,  ///< GET arrived
    advance,  ///< COMPARE_SET generation g -> g + 1
    decide,   ///< COMPARE_SET outcome "" -> `text`
    publish,  ///< SET outcome `text`
    outcome,  ///< GET outcome
    drop_count,
    drop_arrived,
    drop_outcome,  ///< DELETE_KEY
  };
  request(kind k, std::int64_t g, std::string t = {}) noexcept : what(k), generation(g), text(std::move(t)) {}
  kind what;
  std::int64_t generation;
  std::string text;
};
using requests = std::vector<request>;

inline constexpr std::int64_t highest_generation = std::int64_t{1} << 62;

/// The key a request is about, without the barrier's name: "generation", "7/outcome".
[[nodiscard]] inline std::string key_of(request const& r) {
  switch (r.what) {
    case request::kind::number:
    case request::kind::advance: return "generation";
    case request::kind::append:
    case request::kind::arrived:
    case request::kind::drop_arrived: return std::to_string(r.generation) + "/arrived";
    case request::kind::count:
    case request::kind::recount:
    case request::kind::drop_count: return std::to_string(r.generation) + "/count";
    default: return std::to_string(r.generation) + "/outcome";
  }
}

/// One member of a barrier: events in, requests out; no store, no clock. The table in docs/design/barrier.md, which
/// tests/unit/barrier_model.cpp executes. Whoever drives it sends the requests of one call in one write and in their order, on one
/// connection, and reports each answer with the call named after it. After a pause() answers that are still to come are dropped.
class member {
 public:
  enum class state : unsigned char { idle, numbering, arriving, waiting, judging, deciding, reading, publishing, done };

  /// `nonce` tells the verdicts of two objects of one process apart.
  member(arrival const& self, std::uint64_t nonce) noexcept : self_(self), nonce_(nonce) {}

  [[nodiscard]] state where() const noexcept { return state_; }
  [[nodiscard]] bool done() const noexcept { return state_ == state::done; }
  [[nodiscard]] arrival const& self() const noexcept { return self_; }
  /// The generation this member is in, or enters next; none before it has read the number.
  [[nodiscard]] std::optional<std::int64_t> generation() const noexcept {
    return numbered_ ? std::optional<std::int64_t>(generation_) : std::nullopt;
  }
  /// Whether it is counted in that generation.
  [[nodiscard]] bool arrived() const noexcept { return arrived_; }
  /// The count its arrival made; 0 where that is not known.
  [[nodiscard]] std::int64_t drawn() const noexcept { return drawn_; }
  /// Whether the last verdict was this member's own text.
  [[nodiscard]] bool decided_itself() const noexcept { return won_; }

  /// Calls `number(uint64)` and `text(string_view)` with everything that tells this state from another; for model checks.
  template <class N, class T>
  void describe(N number, T text) const {
    std::uint64_t bits = static_cast<std::uint64_t>(state_);
    for (const bool b : {numbered_, from_store_, arrived_, checked_, late_, woken_, judged_, limit_, publishing_, more_, won_,
                         reason_.has_value(), superseded_.has_value()})
      bits = bits * 2 + (b ? 1 : 0);
    number(bits | static_cast<std::uint64_t>(self_.attempt) << 32);
    number(static_cast<std::uint64_t>(generation_) | static_cast<std::uint64_t>(drawn_) << 32);
    number(static_cast<std::uint64_t>(lowest_) | std::uint64_t{drops_} << 32);
    number(std::uint64_t{proposals_} | static_cast<std::uint64_t>(verdict_.kind) << 32);
    number(self_.incarnation);
    number(nonce_);
    text(proposal_);
    text(verdict_.text);
  }

  /// Arrives; or goes on where a pause() left it, without arriving again.
  void begin(requests& out) {
    limit_ = judged_ = woken_ = won_ = false;
    reason_.reset();
    if (state_ == state::done) return;
    if (superseded_) return finish(*superseded_);
    if (!numbered_) return ask_number(out);
    if (!arrived_) return arrive(out);
    state_ = state::arriving;
    checked_ = true;
    drawn_ = 0;
    ask(out, request::kind::recount);
    ask(out, request::kind::wait);
  }
  /// Decides the generation it is in, or would enter next, against everyone. May be called in any state.
  void abort(std::string reason, requests& out) {
    const bool resting = state_ == state::idle;
    if (resting) limit_ = judged_ = woken_ = won_ = false;
    reason_ = std::move(reason);
    if (superseded_) return finish(*superseded_);
    if (resting) return numbered_ ? decide(own_verdict(), out) : ask_number(out);
    settle(out);
  }
  /// The limit of begin() has passed.
  void on_limit(requests& out) {
    limit_ = true;
    settle(out);
  }
  /// Whoever waited for it has gone. The arrival stays counted.
  void pause() noexcept {
    if (state_ == state::publishing) state_ = state::done;
    if (state_ != state::done) state_ = state::idle;
    publishing_ = false;
    drops_ = 0;
  }
  /// The verdict, once done(); ready for the next generation afterwards.
  [[nodiscard]] verdict take() {
    arrived_ = late_ = from_store_ = false;
    state_ = state::idle;
    if (verdict_.kind == barrier_verdict::passed_by) {
      numbered_ = false;
    } else if (numbered_ && !superseded_) {
      ++generation_;
    }
    return std::exchange(verdict_, verdict());
  }

  void on_number(std::int64_t n, requests& out) {
    // Somebody else writes there; it could not be counted up, either.
    if (n < 0 || n > highest_generation)
      return finish(verdict(barrier_verdict::aborted, self_.attempt, "the generation is none of a barrier's: " + std::to_string(n)));
    generation_ = n;
    numbered_ = from_store_ = true;
    return reason_ ? decide(own_verdict(), out) : arrive(out);
  }
  /// `decided`: there was a verdict before this arrival.
  void on_check(bool decided, requests& out) {
    late_ = decided;
    checked_ = true;
    settle(out);
  }
  void on_count(std::int64_t n, requests& out) {
    drawn_ = n > 0 ? n : 1;
    settle(out);
  }
  void on_wait(requests& out) {
    woken_ = true;
    settle(out);
  }
  void on_arrived(std::string_view text, requests& out) {
    if (reason_) return decide(own_verdict(), out);
    verdict v = evaluate(text, self_);
    if (v.kind == barrier_verdict::missing && !limit_) {
      judged_ = true;
      state_ = state::waiting;
      return ask(out, request::kind::wait);
    }
    if (v.kind == barrier_verdict::superseded || v.kind == barrier_verdict::passed_by) return finish(std::move(v));
    decide(v, out);
  }
  /// `text`: what the outcome is now.
  void on_decide(std::string_view text, requests& out) {
    if (text != proposal_) {
      // Its author may have died between writing it and waking the others.
      if (limit_) publish(text, out);
      return adopt(text, out);
    }
    won_ = true;
    publish(text, out);
    verdict v = *read_verdict(text);
    if (v.kind == barrier_verdict::ok) drop_before(generation_, out);
    finish(std::move(v));
  }
  void on_publish() noexcept {
    publishing_ = false;
    rest();
  }
  void on_outcome(std::string_view text, requests& out) { adopt(text, out); }
  /// A key of generation `g` was deleted; whether it existed.
  void on_drop(std::int64_t g, bool existed, requests& out) {
    --drops_;
    more_ = more_ || (existed && g == lowest_);
    if (drops_ == 0 && more_) drop_before(lowest_, out);
    rest();
  }

 private:
  void ask(requests& out, request::kind k, std::string text = {}) { out.emplace_back(k, generation_, std::move(text)); }
  void ask_number(requests& out) {
    state_ = state::numbering;
    out.emplace_back(request::kind::number, 0);
  }
  void arrive(requests& out) {
    state_ = state::arriving;
    arrived_ = true;
    checked_ = late_ = judged_ = woken_ = false;
    drawn_ = 0;
    ask(out, request::kind::check);
    ask(out, request::kind::append, to_text(self_));
    ask(out, request::kind::count);
    ask(out, request::kind::wait);
  }
  /// What to do next, once it is known whether and as which this member arrived.
  void settle(requests& out) {
    if ((state_ != state::arriving && state_ != state::waiting) || !checked_ || drawn_ == 0) return;
    state_ = state::waiting;
    if (late_) {
      if (!woken_) return;  // it comes at once
      if (from_store_) return next(out);
      state_ = state::reading;
      return ask(out, request::kind::outcome);
    }
    if (woken_) {
      state_ = state::reading;
      return ask(out, request::kind::outcome);
    }
    if (reason_) {
      ask(out, request::kind::leave);
      return decide(own_verdict(), out);
    }
    if (limit_ || (drawn_ >= self_.world && !judged_)) {
      state_ = state::judging;
      ask(out, request::kind::leave);
      ask(out, request::kind::arrived);
    }
  }
  void next(requests& out) {
    ++generation_;
    arrive(out);
  }
  [[nodiscard]] verdict own_verdict() const {
    return verdict(barrier_verdict::aborted, self_.attempt, "rank " + std::to_string(self_.rank) + ": " + *reason_);
  }
  /// The number goes first: whoever can see a verdict cannot read the number of its generation any more.
  void decide(verdict const& v, requests& out) {
    state_ = state::deciding;
    proposal_ = write_verdict(v, hex(self_.incarnation) + "." + hex(nonce_) + "." + std::to_string(++proposals_));
    ask(out, request::kind::advance);
    ask(out, request::kind::decide, proposal_);
  }
  void publish(std::string_view text, requests& out) {
    publishing_ = true;
    ask(out, request::kind::publish, std::string(text));
  }
  /// A verdict of another attempt is not for this member, nor one that counts its rank although it came too late for it: then another
  /// object stood for the rank.
  void adopt(std::string_view text, requests& out) {
    if (text.empty()) return finish(verdict(barrier_verdict::passed_by, self_.attempt));
    std::optional<verdict> v = read_verdict(text);
    if (!v)
      return finish(
          verdict(barrier_verdict::aborted, self_.attempt, "the outcome is none of a barrier's: " + std::string(text.substr(0, 80))));
    if (v->attempt > self_.attempt) return finish(verdict(barrier_verdict::superseded, v->attempt));
    const bool not_for_us = v->attempt < self_.attempt || ((late_ || !arrived_) && counts(*v, self_.rank));
    if (!not_for_us) return finish(*std::move(v));
    if (arrived_) return next(out);
    ++generation_;
    decide(own_verdict(), out);
  }
  void finish(verdict v) {
    if (v.kind == barrier_verdict::superseded) superseded_ = v;
    verdict_ = std::move(v);
    state_ = state::publishing;
    rest();
  }
  void rest() noexcept {
    if (state_ == state::publishing && !publishing_ && drops_ == 0) state_ = state::done;
  }
  /// Every rank has arrived in a later generation, so none will look at these again. Two at a time: the second ends it in the
  /// common case. The outcome goes last, so that what is left by a decider that dies here is found by the next.
  void drop_before(std::int64_t g, requests& out) {
    more_ = false;
    for (lowest_ = g; lowest_ > 0 && lowest_ > g - 2;) {
      --lowest_;
      for (const auto k : {request::kind::drop_count, request::kind::drop_arrived, request::kind::drop_outcome}) {
        out.emplace_back(k, lowest_);
        ++drops_;
      }
    }
  }

  arrival self_;
  std::uint64_t nonce_;
  std::int64_t generation_ = 0;
  std::int64_t drawn_ = 0;
  std::int64_t lowest_ = 0;
  std::uint32_t proposals_ = 0;
  std::uint32_t drops_ = 0;
  state state_ = state::idle;
  bool numbered_ = false;    // generation_ is known
  bool from_store_ = false;  // and was read there, not counted up
  bool arrived_ = false;     // the arrival in generation_ was sent
  bool checked_ = false;
  bool late_ = false;  // there was a verdict before
  bool woken_ = false;
  bool judged_ = false;  // `arrived` was read because of the count, and was not complete
  bool limit_ = false;
  bool publishing_ = false;
  bool more_ = false;
  bool won_ = false;
  std::optional<std::string> reason_;
  std::optional<verdict> superseded_;
  verdict verdict_;
  std::string proposal_;
};

}  // namespace roll_call
}  // namespace v0
}  // namespace rollcall
