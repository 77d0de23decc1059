#pragma once
#include <memory>
#include <string>
#include <utility>

#include "../store_core.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

inline lane_ptr store_core::open(lock& l, terms const& t, bool trial) {
  if (lanes_.size() >= options_.max_lanes())
    throw error(describe(t, errc::limit,
                         "all " + std::to_string(options_.max_lanes()) +
                             " connections of this store are in use, in waits for example (blocking_options::max_lanes)"));
  if (closed_) throw error(describe(t, closed_->code(), closed_->detail()));
  if (epoch_ != t.epoch) throw error(describe(t, errc::cancelled, {}));
  dialler entry;
  diallers_.push_back(entry);
  const bool ping = with_ping_;
  l.unlock();
  struct relock {
    lock& l;
    ~relock() {
      if (!l.owns_lock()) l.lock();
    }
  };
  result<dialled> made = failure(errc::io, "connect");
  {
    const relock guard{l};
    dialling d(to_, options_.keep_alive(), t.until, entry.stop, ping);
    made = d.run([&](std::string const& why) {
      const lock inside(mutex_);
      log(log_level::warning,
          "still connecting to " + endpoint_ + ", " +
              (t.until == time_point::max() ? std::string("no limit") : rollcall::detail::duration_text(t.until - steady_now()) + " left") +
              ": " + why);
    });
  }
  static_cast<list_hook<>&>(entry).unlink();
  if (closed_) throw error(describe(t, closed_->code(), closed_->detail()));
  if (!made) {
    const bool late = greeted_ && steady_now() >= t.until;
    throw error(describe(t, late ? errc::timed_out : made.error().code(), made.error().detail()));
  }
  rollcall_server_ = made->rollcall_server;
  with_ping_ = made->with_ping;
  greeted_ = true;
  lanes_.push_back(std::make_shared<lane>(std::move(made->fd)));
  lanes_.back()->trial = trial;
  return lanes_.back();
}

inline store_core::ending store_core::await(lock& l, terms& t, call& c, time_point until) {
  const lane_ptr on = c.on;
  on->callers().push_back(c);
  on->flush();
  ending how = ending::done;
  for (;;) {
    if (on->dead() && !on->trial) end(on->why());
    if (c.over()) {
      how = c.lost() ? ending::lost : ending::done;
      break;
    }
    if (epoch_ != t.epoch) {
      how = ending::interrupted;
      break;
    }
    if (!t.pops.empty() && items_.take(t.pops, t.item)) {
      how = ending::item;
      break;
    }
    if (steady_now() >= until) {
      how = ending::expired;
      break;
    }
    if (!on->reader()) {
      on->read(l, c, until, slab_);
    } else {
      wait_until(c.woken, l, until);
    }
  }
  static_cast<list_hook<caller_tag>&>(c).unlink();
  if (!on->reader() && !on->callers().empty()) on->callers().front().woken.notify_one();  // the next one reads
  return how;
}

inline store_core::ending store_core::pause(lock& l, terms& t, duration d) {
  const time_point until = std::min(steady_now() + d, t.until);
  sleeper me;
  sleepers_.push_back(me);
  for (;;) {
    if (closed_) return ending::lost;
    if (epoch_ != t.epoch) return ending::interrupted;
    if (!t.pops.empty() && items_.take(t.pops, t.item)) return ending::item;
    const time_point now = steady_now();
    if (now >= t.until) return ending::expired;
    if (now >= until) return ending::done;
    wait_until(me.woken, l, until);
  }
}

inline void store_core::give_up(terms const& t, call const* c, ending how) const {
  const bool in_doubt = t.in_doubt && (how != ending::lost || !c || c->written());
  if (how == ending::expired) throw error(describe(t, errc::timed_out, {}, in_doubt));
  if (how == ending::interrupted) throw error(describe(t, errc::cancelled, {}, in_doubt));
  failure const* const why = closed_ ? closed_.get() : c && c->on ? c->on->why().get() : nullptr;
  if (!why) throw error(describe(t, errc::io, "no memory", in_doubt));
  throw error(describe(t, why->code(), why->detail(), in_doubt));
}

inline void store_core::flush_sends(lock& l, terms& t) {
  const std::uint64_t covers = sends_.sent;
  const auto tell = [&](failure_ptr const& why) {
    sends_.told = std::max(sends_.told, covers);
    throw error(describe(t, why->code(), why->detail(), true));
  };
  const std::uint64_t told = sends_.told;
  if (sends_.lost > told) tell(sends_.why);
  if (closed_) throw error(describe(t, closed_->code(), closed_->detail()));
  if (!sends_.outstanding()) return;
  call c;
  c.on = sends_.through;
  c.on->session().post(c, std::string_view());
  t.in_doubt = true;
  const ending how = await(l, t, c);
  leave(c);
  if (sends_.lost > told) tell(sends_.why);
  if (how != ending::done) give_up(t, &c, how);
}

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall
