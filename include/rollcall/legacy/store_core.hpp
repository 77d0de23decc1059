#pragma once
#include <algorithm>
#include <array>
#include <chrono>
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

#include "../core/bytes.hpp"
#include "../core/error.hpp"
#include "../core/log.hpp"
#include "../core/random.hpp"
#include "../engine/popped.hpp"
#include "../engine/server_info.hpp"
#include "../wire/encode.hpp"
#include "dial.hpp"
#include "lane.hpp"
#include "options.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

/// Opcodes that came into the protocol together, so that a server knows all of a family or none (protocol 2).
enum class family : unsigned char { queues, list_keys, barrier };

/// A CHECK of one key, which follows, and of none.
inline constexpr std::string_view check_one{"\x05\x01\0\0\0\0\0\0\0", 9};
inline constexpr std::string_view check_none{"\x05\0\0\0\0\0\0\0\0", 9};

/// What one operation is asked with, what its errors tell, and since when it may be interrupted. Lives on its caller's stack.
class terms {
 public:
  terms(std::string_view n, deadline d, keys const& k = {}) noexcept
      : name(n), which(k), limit(d), begun(steady_now()), until(d.from(begun)) {}
  std::string_view name;
  keys which;  // as the user wrote them
  deadline limit;
  time_point begun;
  time_point until;
  std::uint64_t epoch = 0;
  std::string_view pops;  // a pop's key in wire form: it ends when an item of that is kept
  std::string item;
  bool in_doubt = false;  // a request that changes something was staged, and its answer has not come
};

/// What the threads of one blocking store share: a mutex, the lanes, and the rule who reads. The table is in docs/design/legacy.md.
class store_core final : private engine::popped_items::owner {
 public:
  using lock = std::unique_lock<std::mutex>;
  enum class ending : unsigned char { done, lost, expired, interrupted, item };

  store_core(destination to, blocking_options o) : to_(std::move(to)), options_(std::move(o)), slab_(64 * 1024), items_(*this) {}
  store_core(store_core const&) = delete;
  store_core& operator=(store_core const&) = delete;

  [[nodiscard]] destination const& to() const noexcept { return to_; }
  [[nodiscard]] blocking_options const& options() const noexcept { return options_; }
  [[nodiscard]] std::string const& endpoint() const noexcept { return endpoint_; }
  [[nodiscard]] lock enter(terms& t) {
    lock l(mutex_);
    begin(t);
    if (closed_) throw error(describe(t, closed_->code(), closed_->detail()));
    return l;
  }
  void begin(terms& t) const noexcept { t.epoch = epoch_; }
  [[nodiscard]] std::vector<lane_ptr> copy_of_lanes() const { return lanes_; }
  /// For those who look only.
  [[nodiscard]] lock look() const { return lock(mutex_); }
  [[nodiscard]] bool closed() const noexcept { return closed_ != nullptr; }
  [[nodiscard]] bool is_rollcall() const noexcept { return introduction_.info.is_rollcall; }
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] bool takes_ping() const noexcept { return with_ping_; }
  [[nodiscard]] std::size_t lanes() const noexcept { return lanes_.size(); }
  [[nodiscard]] engine::popped_items& items() noexcept { return items_; }
  [[nodiscard]] std::vector<std::string>& arrivals() noexcept { return arrivals_; }
  [[nodiscard]] bool knows(family f) const noexcept { return is_rollcall() || known_[static_cast<std::size_t>(f)]; }
  /// The server has answered on a trial lane, which serves everybody from now on.
  void learn(family f, lane& l) noexcept {
    known_[static_cast<std::size_t>(f)] = true;
    l.trial = false;
  }
  /// A trial lane that the server has closed.
  void drop(lane_ptr const& l) noexcept { std::erase(lanes_, l); }

  /// A lane for a command; where all are taken one is opened, by one thread for all that need one.
  [[nodiscard]] lane_ptr command_lane(lock& l, terms const& t);
  /// A lane whose tail is free. A wait that cannot be preempted bars the way neither of unconfirmed sends nor of all commands.
  [[nodiscard]] lane_ptr wait_lane(lock& l, terms const& t, bool preemptible);
  /// One more connection, for what may cost it.
  [[nodiscard]] lane_ptr trial_lane(lock& l, terms const& t) {
    while (is_full() && opening_ > 0) await_opening(l, t);
    if (!leaves_a_lane(nullptr, 1)) refuse_lane(t);
    return open(l, t, true);
  }
  /// Connects again after everything has ended; at once where it has not.
  void reconnect(lock& l, terms& t);

  /// Waits until `c`, which has staged its requests, is over, `until` has passed, or it is interrupted. The lock is open meanwhile.
  [[nodiscard]] ending await(lock& l, terms& t, call& c, time_point until);
  [[nodiscard]] ending await(lock& l, terms& t, call& c) { return await(l, t, c, t.until); }
  /// Sleeps; interrupted and ended as await().
  [[nodiscard]] ending pause(lock& l, terms& t, duration d);
  /// `c` is not interested any more: what it has sent stays sent, its replies are swallowed, its wait is cancelled.
  void leave(call& c) noexcept {
    if (!c.engaged()) return;
    try {
      c.on->session().abandon(c);
      c.on->flush();
    } catch (std::exception const&) {
      end(std::make_shared<failure const>(failure(errc::io, "write", "no memory")));
    }
  }
  /// The reply to the QUEUE_POP of `c` is still due: its item goes to the next pop of the key.
  void leave_item(std::string_view key, call& c) {
    if (!c.engaged()) return;
    items_.expect(key, c.on->session(), c);
  }
  /// Throws what `how` means. `c`: nullptr where what was sent had been sent before.
  [[noreturn]] void give_up(terms const& t, call const* c, ending how) const;
  [[nodiscard]] failure describe(terms const& t, errc code, std::string detail, bool in_doubt = false) const {
    failure f(code, t.name, std::move(detail));
    for (std::size_t i = 0; i < t.which.size(); ++i) f.with_key(t.which[i]);
    f.with_peer(endpoint_).with_times(steady_now() - t.begun, t.limit.length(t.begun));
    if (in_doubt) f.with_effect(effect::unknown);
    return f;
  }

  /// What send_set() and its kin do.
  void send(lock& l, terms const& t, std::string_view request) {
    sends_.post(command_lane(l, t), request);
    sends_.through->flush();
  }
  void flush_sends(lock& l, terms& t);

  /// All calls that are under way end with `cancelled`.
  void interrupt() noexcept {
    const std::lock_guard l(mutex_);
    ++epoch_;
    rouse_all();
  }
  /// Everything ends: pending calls fail with `why`, and so do later ones. Where it had ended before, the reason stays.
  void end(failure_ptr why) noexcept {
    if (closed_) return;
    closed_ = std::move(why);
    sends_.lose(closed_);
    for (lane_ptr const& one : lanes_) one->end(closed_);
    lanes_.clear();  // who still waits on one holds it
    introduction_.forget();
    rouse_all();
  }
  /// The same by the user's will, also while somebody connects again.
  void close(failure_ptr why) noexcept {
    if (!closed_) return end(std::move(why));
    closed_ = std::move(why);
    for (lane_ptr const& one : lanes_) one->end(closed_);  // the one that is being tried
    rouse_all();
  }
  void log(log_level level, std::string_view line) const noexcept {
    if (options_.log()) options_.log()(level, line);
  }

 private:
  /// A thread that is opening a connection.
  struct dialler : list_hook<> {
    wake_up stop;
  };
  /// A thread that sleeps for a while.
  struct sleeper : list_hook<> {
    std::condition_variable woken;
  };
  /// What send_set() and its kin have sent and the server has not been heard to have executed; numbered as in docs/design/session.md, "Sends".
  class unconfirmed final : private engine::exchange {
   public:
    ~unconfirmed() { abandon(); }
    [[nodiscard]] bool outstanding() const noexcept { return engaged(); }
    void post(lane_ptr l, std::string_view request) {
      through = std::move(l);
      through->session().post(*this, request);
      ++sent;
    }
    void lose(failure_ptr const& w) noexcept {
      if (!outstanding()) return;
      abandon();
      lost = sent;
      why = w;
    }
    lane_ptr through;
    std::uint64_t sent = 0;
    std::uint64_t lost = 0;  // the last one that may be
    std::uint64_t told = 0;
    failure_ptr why;

   private:
    void abandon() noexcept {
      if (outstanding()) through->session().abandon(*this);
    }
    void on_reply(std::size_t, wire::reply&) noexcept override {}
    void on_done() noexcept override {}
    void on_lost() noexcept override {
      lost = sent;
      why = through->why();
    }
  };

  /// Asks the server who it is, for reconnect(); nobody waits for the answer.
  class introduction final : private engine::exchange {
   public:
    ~introduction() { forget(); }
    void ask(lane_ptr l) {
      through_ = std::move(l);
      through_->session().send(this, engine::introduce_request, {}, wire::reply_form::bytes);
    }
    /// The answer is not wanted any more; what is known stays.
    void forget() noexcept {
      if (engaged()) through_->session().abandon(*this);
      through_ = nullptr;
    }
    engine::server_info info;

   private:
    void on_reply(std::size_t, wire::reply& r) noexcept override { info.learn(r.bytes); }
    void on_done() noexcept override {}
    void on_lost() noexcept override {}
    lane_ptr through_;
  };

  [[nodiscard]] bool is_full() const noexcept { return lanes_.size() + opening_ >= options_.max_lanes(); }
  /// Whether commands have a lane, or can have one, when `taken` takes none any more and `further` are opened beside it.
  [[nodiscard]] bool leaves_a_lane(lane const* taken, std::size_t further) const noexcept {
    if (options_.max_lanes() < 2 || lanes_.size() + opening_ + further < options_.max_lanes()) return true;
    for (lane_ptr const& one : lanes_)
      if (!one->trial && one.get() != taken && one->session().takes_command()) return true;
    return false;
  }
  [[noreturn]] void refuse_lane(terms const& t) const {
    throw error(describe(t, errc::limit,
                         "the " + std::to_string(options_.max_lanes()) +
                             " connections of this store are in use, in waits for example, but for one that is kept for commands "
                             "(blocking_options::max_lanes)"));
  }
  /// A further connection; the mutex is open while it is being made.
  lane_ptr open(lock& l, terms const& t, bool trial);
  /// The same, of which the store does not know yet.
  [[nodiscard]] result<dialled> dial(lock& l, terms const& t, destination const& to);
  /// Waits until another thread's attempt to open a connection is over.
  void await_opening(lock& l, terms const& t);

  [[nodiscard]] lane_ptr judged(terms const& t, lane_ptr l) const {
    if (l->backlog() > options_.max_unsent())
      throw error(
          describe(t, errc::limit,
                   "the server does not read: " + std::to_string(l->backlog()) + " bytes wait for it (blocking_options::max_unsent)"));
    return l;
  }
  void rouse_sleepers() noexcept {
    for (sleeper* s = sleepers_.empty() ? nullptr : &sleepers_.front(); s; s = sleepers_.next(*s)) s->woken.notify_one();
  }
  void rouse_callers() noexcept {
    for (lane_ptr const& one : lanes_)
      for (call* c = one->callers().empty() ? nullptr : &one->callers().front(); c; c = one->callers().next(*c)) c->rouse();
    rouse_sleepers();
  }
  /// Also those that are connecting, who give up.
  void rouse_all() noexcept {
    rouse_callers();
    for (dialler* d = diallers_.empty() ? nullptr : &diallers_.front(); d; d = diallers_.next(*d)) d->stop.poke();
  }
  static void wait_until(std::condition_variable& c, lock& l, time_point until) {
    if (until == time_point::max()) return c.wait(l);
    c.wait_until(l, std::chrono::steady_clock::time_point(until.time_since_epoch()));
  }

  void item_arrived(std::string_view key, std::string_view item) noexcept override {
    try {
      items_.keep(key, item);
      rouse_callers();  // a pop of that key takes it
    } catch (std::exception const&) {
      item_lost(key);
    }
  }
  void item_lost(std::string_view key) noexcept override {
    std::string line = "an item of queue '";
    rollcall::detail::append_printable(line, key.substr(key.starts_with('/')), 80);
    log(log_level::warning, line + "' may be lost: the connection to " + endpoint_ + " ended before a pop that was stopped was answered");
  }
  void pop_settled() noexcept override {}

  destination to_;
  blocking_options options_;
  std::string endpoint_ = to_.text();
  mutable std::mutex mutex_;
  std::vector<char> slab_;
  const std::uint64_t identity_ = rollcall::detail::random_bits();
  socket_address peer_;  // where the first connection led: the others go there as well
  bool with_ping_ = true;
  bool opening_for_commands_ = false;
  std::size_t opening_ = 0;   // connections that are being made
  std::uint64_t opened_ = 0;  // attempts that are over
  std::array<bool, 3> known_{};
  std::uint64_t epoch_ = 0;  // one more for each interrupt()
  failure_ptr closed_;
  std::vector<std::string> arrivals_;  // keys in wire form of BARRIERs that were left
  list<dialler> diallers_;
  list<sleeper> sleepers_;
  std::vector<lane_ptr> lanes_;
  introduction introduction_;
  unconfirmed sends_;
  engine::popped_items items_;
};

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall

#include "detail/store_core.ipp"
