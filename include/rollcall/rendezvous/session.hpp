#pragma once
#include <algorithm>
#include <chrono>
#include <concepts>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "../barrier.hpp"
#include "../rt/combine.hpp"
#include "../rt/scope.hpp"
#include "../rt/timer.hpp"
#include "../stores/create.hpp"
#include "../stores/file.hpp"
#include "../stores/store.hpp"
#include "plan.hpp"
#include "port_board.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

class rendezvous_opening;

/// What the copies of a session share.
class session_state {
 public:
  session_state(loop& l, rendezvous_plan p, any_store s) : home(l), plan(std::move(p)), store(std::move(s)) {}
  session_state(session_state const&) = delete;
  session_state& operator=(session_state const&) = delete;
  ~session_state() {
    if (!notice.empty()) board.erase(notice);
  }

  loop& home;
  rendezvous_plan plan;
  any_store store;
  std::optional<tcp_store> tcp;
  std::optional<file_store> file;
  std::string url;
  port_board board;    // where this process has told its port,
  std::string notice;  // and what stands there
  bool stop_when_lost = true;
  std::map<std::string, barrier<any_store>, std::less<>> barriers;
};

}  // namespace detail

/// A process's place in a job: the store where all ranks meet, which rank of how many this is, and the server where this process owns it.
/// A cheap handle that may be copied; the store, and with it a server, ends with the last copy. One loop's thread only; must end before
/// the loop does.
class rendezvous_session {
 public:
  /// What all ranks share; with ?generation= inside that prefix.
  [[nodiscard]] any_store const& store() const noexcept { return state_->store; }
  [[nodiscard]] int rank() const noexcept { return static_cast<int>(*state_->plan.rank); }
  [[nodiscard]] int world_size() const noexcept { return static_cast<int>(*state_->plan.world_size); }
  /// How often the job was restarted.
  [[nodiscard]] int attempt() const noexcept { return static_cast<int>(state_->plan.attempt.value_or(0)); }
  /// What was decided, and where each value came from; describe() prints it.
  [[nodiscard]] rendezvous_plan const& plan() const noexcept { return state_->plan; }
  /// Whether the server lives in this process, as long as this session does.
  [[nodiscard]] bool owns_server() const noexcept { return state_->tcp && state_->tcp->owns_server(); }
  /// The client itself, where the store is a server's; without the prefix of a generation.
  [[nodiscard]] std::optional<tcp_store> const& tcp() const noexcept { return state_->tcp; }
  /// Where others reach the store, with the real port: "tcp://node0:29500".
  [[nodiscard]] std::string const& url() const noexcept { return state_->url; }

  /// A barrier of all ranks. The last one of each name is remembered: fail() aborts them.
  [[nodiscard]] barrier<any_store> make_barrier(std::string_view name, barrier_options options = {}) const {
    if (options.attempt() == 0) options.attempt(attempt());
    barrier<any_store> b(store(), name, rank(), world_size(), options);
    state_->barriers.insert_or_assign(std::string(name), b);
    return b;
  }

  /// Tells everybody who waits, or will wait, in one of this session's barriers that this rank gives up, and why.
  ///
  /// limit     for all of them together. What cannot be told by then, or because the store is lost, is not.
  /// cancel    completes in that loop turn; what was sent stays sent.
  [[nodiscard]] task<> fail(std::string_view reason, deadline limit = std::chrono::seconds(2)) const {
    return fail_task(state_, std::string(reason), limit);
  }

  /// Leaves quietly: a server stays until all others have gone, or `limit` has passed; then the store is closed.
  ///
  /// errors    timed_out, with how many are still connected; the server ends nevertheless.
  /// cancel    as if never called: the server goes on.
  [[nodiscard]] task<> leave(deadline limit = std::chrono::seconds(300)) const { return leave_task(state_, limit); }

  /// Runs `body(session)`, a task, and leaves. When the body ends by an exception, it tells the reason to everybody who waits in a barrier
  /// of this session (fail()), gives others 5 s to hear of it where this process serves, and rethrows.
  ///
  /// body      kept until it has ended. On g++ 12 name a capturing lambda first.
  /// errors    what the body throws. disconnected, within a second, when the server is lost, or with a file:// on a local file system
  ///           another rank has died, while the body asks nothing of it: the body is stopped then (rendezvous_options::stop_when_lost).
  ///           What leave() throws.
  /// cancel    stops the body; then as with an exception, which takes up to 2 s.
  template <class Body>
    requires std::invocable<Body&, rendezvous_session&>
  [[nodiscard]] task<> run(Body body, deadline leave_within = std::chrono::seconds(300)) const {
    return run_task<Body>(*this, std::move(body), leave_within);
  }

  /// Completes when the connection to the server is lost or the store closed, and says why; with a file also when another rank has died
  /// (file_store::closed()); never for stores of the caller's schemes.
  [[nodiscard]] task<failure> lost() const { return lost_task(state_); }

 private:
  friend class detail::rendezvous_opening;
  using state_ptr = std::shared_ptr<detail::session_state>;
  explicit rendezvous_session(state_ptr s) noexcept : state_(std::move(s)) {}

  static task<> fail_task(state_ptr s, std::string reason, deadline limit) {
    if (!s->store.is_open()) co_return;
    const time_point until = limit.from(s->home.now());
    scope all(s->home);
    for (auto& [name, b] : s->barriers) all.spawn(abort_one(b, reason, until));
    co_await all.join();
  }
  static task<> abort_one(barrier<any_store> b, std::string reason, time_point until) {
    auto abort = with_deadline(b.abort(reason, until), until);
    const result<bool> told = co_await as_result(std::move(abort));
    static_cast<void>(told);  // the store may be gone, or the barrier's verdict known
  }
  static task<> leave_task(state_ptr s, deadline limit) {
    if (s->tcp && s->tcp->owns_server()) {
      co_await s->tcp->drain(limit);
    } else {
      s->store.close();
    }
  }
  static task<failure> lost_task(state_ptr s) {
    if (s->tcp) {
      failure why = co_await s->tcp->closed();
      co_return why;
    }
    if (!s->file) {
      event never(s->home);
      co_await never.wait();
    }
    failure why = co_await s->file->closed();
    co_return why;
  }
  /// Ends by an error some time after a loss: the body's own operations, which know more, have ended by then.
  static task<> watch(state_ptr s) {
    failure why = co_await lost_task(s);
    if (why.code() == errc::closed) {
      event never(s->home);
      co_await never.wait();  // the body itself has closed it
    }
    co_await sleep_for(std::chrono::milliseconds(200));
    throw error(why);
  }
  template <class Body>
  static task<> body_task(Body* body, rendezvous_session* self) {
    co_await (*body)(*self);
  }
  template <class Body>
  static task<> run_task(rendezvous_session self, Body body, deadline leave_within) {
    std::exception_ptr thrown;
    std::string reason = "left by an exception";
    try {
      if ((self.state_->tcp || self.state_->file) && self.state_->stop_when_lost) {
        task<> work = body_task(&body, &self);
        task<> loss = watch(self.state_);
        auto first = co_await when_any(std::move(work), std::move(loss));
        static_cast<void>(first);
      } else {
        co_await body(self);
      }
    } catch (std::exception const& e) {
      thrown = std::current_exception();
      reason = e.what();
    } catch (...) {
      thrown = std::current_exception();
    }
    if (!thrown) {
      co_await leave_task(self.state_, leave_within);
      co_return;
    }
    co_await detail::stop_with(stop_token());  // also when it was stopped: others are told
    co_await fail_task(self.state_, reason, std::chrono::seconds(2));
    if (self.state_->file) self.state_->file->close_failed("rank " + std::to_string(self.rank()) + ": " + reason);
    const time_point now = self.state_->home.now();
    const time_point until = std::min(now + std::chrono::seconds(5), leave_within.from(now));
    const result<void> left = co_await as_result(leave_task(self.state_, until));
    static_cast<void>(left);  // the reason why it leaves counts
    std::rethrow_exception(thrown);
  }

  state_ptr state_;
};
static_assert(await_safe<rendezvous_session>);

}  // namespace v0
}  // namespace rollcall
