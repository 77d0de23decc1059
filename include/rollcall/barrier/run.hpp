#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../core/error.hpp"
#include "../rt/combine.hpp"
#include "../rt/event.hpp"
#include "../rt/loop.hpp"
#include "../rt/scope.hpp"
#include "../stores/store.hpp"
#include "roll_call.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

template <class Store>
class barrier_run;

/// What the calls on one barrier share; lives as long as the barrier object and its calls.
template <class Store>
class barrier_state {
 public:
  barrier_state(Store s, std::string_view n, roll_call::arrival const& self, std::uint64_t nonce)
      : store(std::move(s)), name(n), member(self, nonce), idle(&store.home().core()) {
    idle.set();
  }
  Store store;
  std::string name;
  roll_call::member member;
  duration interval{};
  std::function<void(std::int64_t, int)> progress;
  barrier_run<Store>* run = nullptr;
  event idle;                   // set while nobody runs
  std::uint64_t verdicts = 0;   // that arrive_and_wait() took
  bool decided_itself = false;  // the last of them
};

/// Operations that run side by side. They start inside start(), so that what is started in a row leaves in that order and in one
/// write; destroying the group abandons them.
class operation_group final : private child_owner {
 public:
  operation_group() noexcept = default;
  ~operation_group() = default;
  void start(driver d) noexcept { launch(std::move(d), environment()); }
  void clear() noexcept { destroy_children(); }

 private:
  void child_ended(std::exception_ptr) noexcept override {}  // ask() lets none pass
};

/// One call on a barrier: carries the requests of the member to the store, the answers and the time back.
template <class Store>
class barrier_run {
 public:
  using kind = roll_call::request::kind;
  static constexpr std::chrono::milliseconds grace{500};  // past the limit, to obtain the verdict
  static constexpr std::chrono::milliseconds all_judge_within{250};

  barrier_run(barrier_state<Store>& s, time_point limit)
      : state_(s), core_(s.store.home().core()), limit_(limit), over_(&core_), judge_at_(*this), limit_at_(*this), look_at_(*this) {
    state_.run = this;
    state_.idle.reset();
  }
  barrier_run(barrier_run const&) = delete;
  barrier_run& operator=(barrier_run const&) = delete;
  ~barrier_run() {
    core_.remove_timer(judge_at_);
    core_.remove_timer(limit_at_);
    core_.remove_timer(look_at_);
    waits_.clear();
    others_.clear();
    state_.member.pause();
    state_.run = nullptr;
    state_.idle.set();
  }

  void arrive() {
    if (limit_ != time_point::max()) core_.add_timer(limit_at_, limit_);
    if (state_.progress) core_.add_timer(look_at_, after(core_.now(), state_.interval));
    roll_call::requests out;
    state_.member.begin(out);
    perform(out);
  }
  void abort(std::string reason) {
    if (limit_ != time_point::max() && !limit_at_.in_heap()) core_.add_timer(limit_at_, limit_);
    roll_call::requests out;
    state_.member.abort(std::move(reason), out);
    perform(out);
  }
  /// Completes when the member has its verdict, or this run has failed.
  [[nodiscard]] event::waiting over() noexcept { return over_.wait(); }
  /// Throws what made the run fail; returns whether there is a verdict (else the time was over).
  [[nodiscard]] bool has_verdict() const {
    if (thrown_) std::rethrow_exception(thrown_);
    return state_.member.done();
  }

 private:
  template <void (barrier_run::*F)()>
  class timer final : public timer_node {
   public:
    explicit timer(barrier_run& r) noexcept : timer_node([](timer_node& t) noexcept { static_cast<timer&>(t).fire(); }), run_(r) {}

   private:
    void fire() noexcept {
      run_.guarded([this] { (run_.*F)(); });
    }
    barrier_run& run_;
  };

  static time_point after(time_point t, duration d) noexcept { return t > time_point::max() - d ? time_point::max() : t + d; }

  template <class F>
  void guarded(F f) noexcept {
    try {
      f();
    } catch (...) {
      if (!thrown_) thrown_ = std::current_exception();
      over_.set();
    }
  }
  void perform(roll_call::requests const& out) {
    for (roll_call::request const& r : out) send(r);
    if (state_.member.done()) over_.set();
  }
  void send(roll_call::request const& r) {
    Store const& s = state_.store;
    const std::string key = state_.name + "/" + key_of(r);
    const deadline never = deadline::never();  // this run has its own limit, which is not the store's
    switch (r.what) {
      case kind::number: return start(others_, r, s.add(key, 0, never));
      case kind::check: return start(others_, r, s.check(key, never));
      case kind::append: return start(others_, r, s.append(key, r.text, never));
      case kind::count: return start(others_, r, s.add(key, 1, never));
      case kind::recount: return start(others_, r, s.add(key, 0, never));
      case kind::wait: return start(waits_, r, s.wait(key, never));
      case kind::leave: return waits_.clear();
      case kind::arrived:
      case kind::outcome: return start(others_, r, fetch_existing(s, key, never));
      case kind::advance: return start(others_, r, s.compare_set(key, std::to_string(r.generation), std::to_string(r.generation + 1), never));
      case kind::decide: return start(others_, r, s.compare_set(key, "", r.text, never));
      case kind::publish: return start(others_, r, s.set(key, r.text, never));
      case kind::drop_count:
      case kind::drop_arrived:
      case kind::drop_outcome: return start(others_, r, s.delete_key(key, never));
    }
  }
  template <class Op>
  void start(operation_group& group, roll_call::request const& r, Op op) {
    group.start(ask(this, r.what, r.generation, std::move(op)));
  }
  template <class Op>
  static driver ask(barrier_run* self, kind what, std::int64_t generation, Op op) {
    try {
      auto r = co_await as_result(std::move(op));
      self->guarded([&] { self->answered(what, generation, r); });
    } catch (...) {
      self->guarded([] { throw; });
    }
  }
  template <class R>
  void answered(kind what, std::int64_t generation, R& r) {
    if (over_.is_set()) return;
    static_cast<void>(r.value());  // a store that fails ends the run
    roll_call::member& m = state_.member;
    roll_call::requests out;
    if constexpr (std::is_same_v<R, result<void>>) {
      if (what == kind::wait) m.on_wait(out);
      if (what == kind::publish) m.on_publish();
    } else if constexpr (std::is_same_v<R, result<bool>>) {
      if (what == kind::check) {
        m.on_check(r.value(), out);
      } else {
        m.on_drop(generation, r.value(), out);
      }
    } else if constexpr (std::is_same_v<R, result<std::int64_t>>) {
      if (what == kind::number) {
        m.on_number(r.value(), out);
      } else {
        m.on_count(r.value(), out);
        judge_in_turn();
      }
    } else {
      const std::string_view text = text_of(r.value());
      if (what == kind::arrived) m.on_arrived(text, out);
      if (what == kind::outcome) m.on_outcome(text, out);
      if (what == kind::decide) m.on_decide(text, out);
    }
    perform(out);
  }

  static std::string_view text_of(std::string const& s) noexcept { return s; }
  static std::string_view text_of(std::optional<std::string> const& s) noexcept { return s ? std::string_view(*s) : std::string_view(); }

  /// Limits tend to pass at the same time. Whoever arrived first looks first, and ever more follow only while no verdict comes:
  /// at k steps past the limit those that drew up to 2^k. All within a quarter of a second.
  void judge_in_turn() {
    if (limit_ == time_point::max()) return;
    const auto log2 = [](std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) - 1; };
    const int world = state_.member.self().world;
    const auto drawn = std::min<std::int64_t>(state_.member.drawn(), world);
    // Between powers of two linearly, in 256ths.
    const auto turn = log2(drawn) * 256 + static_cast<int>(((drawn << 8) >> log2(drawn)) - 256);
    step_ = std::min<duration>(std::chrono::milliseconds(40), duration(all_judge_within) / (log2(world) + 1));
    core_.remove_timer(judge_at_);
    core_.add_timer(judge_at_, std::min(after(std::max(core_.now(), limit_), step_ * turn / 256), after(limit_, all_judge_within)));
  }
  void judge() {
    // A loop that stood still, or a process that was stopped: the verdict may wait in the socket. Let it be read first.
    if (!std::exchange(looked_twice_, true) && core_.now() > after(judge_at_.at(), step_ / 2))
      return core_.add_timer(judge_at_, after(core_.now(), step_));
    roll_call::requests out;
    state_.member.on_limit(out);
    perform(out);
  }
  void pass_limit() {
    if (std::exchange(passed_, true)) return over_.set();
    // Counted from now, for the same reason.
    core_.add_timer(limit_at_, after(core_.now(), grace));
  }
  void look() {
    // Only while it waits: whatever else it does is short.
    const auto g = state_.member.generation();
    if (state_.member.where() == roll_call::member::state::waiting && g) {
      const std::string key = state_.name + "/" + key_of(roll_call::request(kind::recount, *g));
      others_.start(show(this, state_.store.add(key, 0, deadline::never())));
    }
    core_.add_timer(look_at_, after(core_.now(), state_.interval));
  }
  template <class Op>
  static driver show(barrier_run* self, Op op) {
    try {
      const auto r = co_await as_result(std::move(op));
      self->guarded([&] {
        if (!self->over_.is_set()) self->state_.progress(r.value(), self->state_.member.self().world);
      });
    } catch (...) {
      self->guarded([] { throw; });
    }
  }

  barrier_state<Store>& state_;
  loop_core& core_;
  time_point limit_;
  event over_;
  std::exception_ptr thrown_;
  duration step_{};
  bool looked_twice_ = false;
  bool passed_ = false;
  timer<&barrier_run::judge> judge_at_;
  timer<&barrier_run::pass_limit> limit_at_;
  timer<&barrier_run::look> look_at_;
  operation_group waits_;
  operation_group others_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
