#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "barrier/roll_call.hpp"
#include "barrier/run.hpp"
#include "barrier/store_based.hpp"
#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "rt/combine.hpp"
#include "rt/event.hpp"
#include "rt/loop.hpp"
#include "rt/task.hpp"

namespace rollcall {
inline namespace v0 {

/// How a barrier behaves. Chain the setters: `barrier_options{}.attempt(1)`.
class barrier_options {
 public:
  barrier_options() noexcept = default;

  /// How often this rank's process was restarted: a higher number than others makes theirs superseded. Default 0.
  barrier_options& attempt(int n) noexcept { return attempt_ = n, *this; }
  /// Time between two calls of progress(), at least 1 ms. Default 10 s, as the reference has it.
  barrier_options& logging_interval(duration d) noexcept { return interval_ = d, *this; }
  /// Called while arrive_and_wait() waits: how many arrivals the generation has, of how many. One read of the count each time. It is
  /// called on the loop's thread; what it throws ends that arrive_and_wait().
  barrier_options& progress(std::function<void(std::int64_t arrived, int world)> f) { return progress_ = std::move(f), *this; }

  /// Tells two objects of one process apart; 0: random. Given by simulations, which repeat themselves.
  barrier_options& nonce(std::uint64_t n) noexcept { return nonce_ = n, *this; }

  [[nodiscard]] std::uint64_t nonce() const noexcept { return nonce_; }
  [[nodiscard]] int attempt() const noexcept { return attempt_; }
  [[nodiscard]] duration logging_interval() const noexcept { return interval_; }
  [[nodiscard]] std::function<void(std::int64_t, int)> const& progress() const noexcept { return progress_; }

 private:
  int attempt_ = 0;
  std::uint64_t nonce_ = 0;
  duration interval_ = std::chrono::seconds(10);
  std::function<void(std::int64_t, int)> progress_;
};
static_assert(await_safe<barrier_options>);

/// A barrier ended otherwise than with everybody there. Its code is errc::failed.
class barrier_error : public error {
 public:
  barrier_error(failure f, roll_call::verdict v) : error(std::move(f)), verdict_(std::move(v)) {}

  [[nodiscard]] barrier_verdict kind() const noexcept { return verdict_.kind; }
  /// With barrier_verdict::missing: the ranks that had not arrived, ascending. Of very many that follow no pattern only the first
  /// 32 KiB of text are known; missing_count() is exact.
  [[nodiscard]] std::vector<int> missing() const { return roll_call::ranks_in(verdict_.missing); }
  [[nodiscard]] int missing_count() const noexcept { return verdict_.missing_count; }
  /// The attempt that decided.
  [[nodiscard]] int attempt() const noexcept { return verdict_.attempt; }

 private:
  roll_call::verdict verdict_;
};

class tcp_store;

/// A meeting of all ranks of a job in a store: it ends the same way for every one of them, and says who is missing.
///
///   rollcall::barrier everyone{store, "init", rank, world};
///   co_await everyone.arrive_and_wait(5min);                     // throws "1 of 8 missing: 3"
///
/// Passed any number of times: by one object, by fresh objects of the same name, after a restart with a higher attempt. The store
/// keeps the number of the generation under `{name}/generation`, and what belongs to generation g under `{name}/{g}/`; old ones are
/// deleted. Works with every server of the protocol, PyTorch's included. One generation costs a member 5 requests, a fresh object 6;
/// the deciding ones some more. Copies of `store` in one process are one process to it. Pass `store` by value: any store will do
/// (stores/store.hpp). One loop's thread only. The object may go before its calls do.
template <class Store = tcp_store>
class barrier {
 public:
  /// errors    invalid, at once, for a rank outside 0..world-1, a world outside 1..16777216, a negative attempt.
  barrier(Store store, std::string_view name, int rank, int world, barrier_options options = {}) {
    if (world < 1 || world > roll_call::max_world || rank < 0 || rank >= world || options.attempt() < 0)
      throw error(failure(errc::invalid, "barrier",
                          "rank " + std::to_string(rank) + " of world size " + std::to_string(world) + ", attempt " +
                              std::to_string(options.attempt()) + ": the world has 1.." + std::to_string(roll_call::max_world) +
                              " ranks, counted from 0; attempts count from 0")
                      .with_key(name));
    const roll_call::arrival self(rank, world, options.attempt(), store.identity());
    state_ = std::make_shared<state>(std::move(store), name, self, options.nonce() != 0 ? options.nonce() : detail::random_bits());
    state_->interval = std::max<duration>(options.logging_interval(), std::chrono::milliseconds(1));
    state_->progress = options.progress();
  }

  /// Arrives, and waits until the generation has its verdict.
  ///
  /// limit     the first limit of a member that passes decides for all. A member has 0.5 s past its own to learn the verdict.
  /// errors    barrier_error, code failed: who is missing, which rank came twice, what abort() said, that this attempt is superseded.
  ///           timed_out: the verdict is unknown, because the store did not answer in time. What the store's operations throw, at
  ///           once, when the server is lost. invalid when another call on this object is waiting.
  /// cancel    completes in that loop turn; the arrival stays counted. So it does after timed_out. Calling again goes on in the same
  ///           generation without arriving again.
  [[nodiscard]] task<> arrive_and_wait(deadline limit = std::chrono::seconds(300)) { return arrive_task(state_, limit); }

  /// Decides the generation this member is in, or would enter next, against everyone: all get "rank 17: reason". Returns whether that
  /// is the verdict now; false where there was one before.
  ///
  /// reason    at most 1024 bytes are kept.
  /// limit     to learn whether it is, and at most 0.5 s more; also while another call on this object waits, which then goes on.
  /// errors    what the store's operations throw; timed_out, effect unknown.
  /// cancel    completes in that loop turn; the effect is unknown.
  [[nodiscard]] task<bool> abort(std::string_view reason, deadline limit = std::chrono::seconds(10)) {
    return abort_task(state_, std::string(reason), limit);
  }

  /// The ranks that have not arrived in the current generation, ascending; for progress bars. Costs the server O(world) bytes.
  ///
  /// errors    what the store's operations throw.
  [[nodiscard]] task<std::vector<int>> missing() { return missing_task(state_); }

  /// The generation this member is in or enters next; none while it has not read it from the store.
  [[nodiscard]] std::optional<std::int64_t> generation() const noexcept { return state_->member.generation(); }

  /// Whether no other copy of this object, and no call on one, is left.
  [[nodiscard]] bool is_last_copy() const noexcept { return state_.use_count() == 1; }

 private:
  using state = detail::barrier_state<Store>;
  using state_ptr = std::shared_ptr<state>;
  using run = detail::barrier_run<Store>;

  static failure describe(state const& s, errc code, std::string detail, time_point begun, deadline limit) {
    failure f(code, "barrier", std::move(detail));
    f.with_key(s.name).with_times(s.store.home().now() - begun, limit.length(begun));
    if (code != errc::failed && s.member.arrived()) f.with_effect(effect::applied);
    return f;
  }
  static error abort_unknown(state const& s, time_point begun, deadline limit) {
    failure f = describe(s, errc::timed_out, "whether the abort took effect is unknown: the store did not answer in time", begun, limit);
    return error(f.with_effect(effect::unknown));
  }
  static std::string where(state const& s) {
    roll_call::member const& m = s.member;
    std::string text = "rank " + std::to_string(m.self().rank) + " of " + std::to_string(m.self().world);
    if (m.arrived()) text += " has arrived in generation " + std::to_string(*m.generation()) + " and stays counted";
    return text;
  }

  static task<> arrive_task(state_ptr s, deadline limit) {
    const time_point begun = s->store.home().now();
    if (s->run) throw error(describe(*s, errc::invalid, "another call on this barrier is waiting", begun, limit));
    roll_call::verdict v;
    {
      run now(*s, limit.from(begun));
      now.arrive();
      try {
        co_await now.over();
      } catch (error const& e) {
        if (e.code() != errc::cancelled) throw;
        throw error(describe(*s, errc::cancelled, where(*s), begun, limit));
      }
      if (!now.has_verdict())
        throw error(describe(*s, errc::timed_out, "the verdict is unknown: the store did not answer in time; " + where(*s), begun, limit));
      v = s->member.take();
      ++s->verdicts;
      s->decided_itself = s->member.decided_itself();
    }
    if (v.kind == barrier_verdict::ok) co_return;
    failure f = describe(*s, errc::failed, roll_call::explain(v), begun, limit);
    throw barrier_error(std::move(f), std::move(v));
  }

  static task<bool> abort_task(state_ptr s, std::string reason, deadline limit) {
    const time_point begun = s->store.home().now();
    const time_point until = limit.from(begun);
    while (s->run) {
      // The call that is waiting does it, and takes the verdict.
      const bool in_time = !s->member.done();
      const std::uint64_t before = s->verdicts;
      if (in_time) s->run->abort(reason);
      const result<void> idle = co_await as_result(with_deadline(s->idle.wait(), until));
      if (!idle && idle.code() == errc::timed_out) throw abort_unknown(*s, begun, limit);
      if (!idle) throw error(idle.shared());
      if (in_time && s->verdicts > before) co_return s->decided_itself;
    }
    run now(*s, until);
    now.abort(std::move(reason));
    co_await now.over();
    if (!now.has_verdict()) throw abort_unknown(*s, begun, limit);
    static_cast<void>(s->member.take());
    co_return s->member.decided_itself();
  }

  static task<std::vector<int>> missing_task(state_ptr s) {
    roll_call::arrival const& self = s->member.self();
    std::int64_t g = 0;
    if (const auto known = s->member.generation()) {
      g = *known;
    } else {
      g = co_await s->store.add(s->name + "/" + key_of(roll_call::request(roll_call::request::kind::number, 0)), 0);
    }
    const std::string key = s->name + "/" + key_of(roll_call::request(roll_call::request::kind::arrived, g));
    const std::optional<std::string> text = co_await s->store.find(key);
    std::string_view there;
    if (text) there = *text;
    co_return roll_call::ranks_in(roll_call::absent(there, self.attempt, self.world));
  }

  state_ptr state_;
};
template <class Store>
barrier(Store, std::string_view, int, int, barrier_options = {}) -> barrier<Store>;

}  // namespace v0
}  // namespace rollcall
