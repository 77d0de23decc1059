#pragma once
#include <memory>
#include <string>
#include <utility>

#include "../store_core.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

inline lane_ptr store_core::command_lane(lock& l, terms const& t) {
  for (;;) {
    if (sends_.outstanding() && sends_.through->session().takes_command()) return judged(t, sends_.through);
    for (lane_ptr const& one : lanes_)
      if (!one->trial && one->session().takes_command()) return judged(t, one);
    if (opening_for_commands_ || (is_full() && opening_ > 0)) {
      await_opening(l, t);
      continue;
    }
    struct mark {
      bool& set;
      ~mark() { set = false; }
    };
    opening_for_commands_ = true;
    const mark guard{opening_for_commands_};
    open(l, t, false);
  }
}

inline lane_ptr store_core::wait_lane(lock& l, terms const& t, bool preemptible) {
  for (;;) {
    bool kept = false;
    for (lane_ptr const& one : lanes_) {
      if (one->trial || !one->session().takes_wait()) continue;
      if (preemptible) return judged(t, one);
      if (sends_.outstanding() && one == sends_.through) continue;
      if (leaves_a_lane(one.get(), 0)) return judged(t, one);
      kept = true;
    }
    if (is_full() && opening_ > 0) {
      await_opening(l, t);
    } else if (is_full() && kept) {
      refuse_lane(t);
    } else {
      open(l, t, false);
    }
  }
}

inline void store_core::await_opening(lock& l, terms const& t) {
  sleeper me;
  sleepers_.push_back(me);
  for (const std::uint64_t before = opened_; opened_ == before;) {
    if (closed_) throw error(describe(t, closed_->code(), closed_->detail()));
    if (epoch_ != t.epoch) throw error(describe(t, errc::cancelled, {}));
    if (steady_now() >= t.until) throw error(describe(t, errc::timed_out, "no connection is free, and another one is still being made"));
    wait_until(me.woken, l, t.until);
  }
}

inline result<dialled> store_core::dial(lock& l, terms const& t, destination const& to) {
  const destination where = to;  // what it refers to may change meanwhile
  if (epoch_ != t.epoch) return failure(errc::cancelled, "connect");
  dialler entry;
  diallers_.push_back(entry);
  ++opening_;
  const bool ping = with_ping_;
  struct over {
    store_core& core;
    lock& l;
    ~over() {
      if (!l.owns_lock()) l.lock();
      --core.opening_;
      ++core.opened_;
      core.rouse_sleepers();  // those in await_opening()
    }
  };
  const over guard{*this, l};
  l.unlock();
  dialling d(where, options_.keep_alive(), t.until, entry.stop, ping);
  return d.run([&](std::string const& why) {
    const lock inside(mutex_);
    log(log_level::warning,
        "still connecting to " + endpoint_ + ", " +
            (t.until == time_point::max() ? std::string("no limit") : rollcall::detail::duration_text(t.until - steady_now()) + " left") + ": " + why);
  });
}

inline lane_ptr store_core::open(lock& l, terms const& t, bool trial) {
  if (closed_) throw error(describe(t, closed_->code(), closed_->detail()));
  if (is_full())
    throw error(describe(t, errc::limit,
                         "all " + std::to_string(options_.max_lanes()) +
                             " connections of this store are in use, in waits for example (blocking_options::max_lanes)"));
  const bool first = !peer_.has_value();
  result<dialled> made = dial(l, t, first ? to_ : destination(peer_));
  if (closed_) throw error(describe(t, closed_->code(), closed_->detail()));
  if (!made) {
    const bool late = !first && steady_now() >= t.until;
    throw error(describe(t, late ? errc::timed_out : made.error().code(), made.error().detail()));
  }
  with_ping_ = made->with_ping;
  const auto fresh = std::make_shared<lane>(std::move(made->fd));
  fresh->trial = trial;
  lanes_.push_back(fresh);
  if (first) {
    peer_ = made->peer;
    introduction_.info.is_rollcall = made->rollcall_server;
    if (made->rollcall_server) introduction_.ask(fresh);
  }
  return fresh;
}

inline void store_core::reconnect(lock& l, terms& t) {
  if (!closed_) return;
  const failure_ptr why = closed_;
  result<dialled> made = dial(l, t, to_);
  if (!closed_) return;  // another thread was quicker
  if (closed_ != why) throw error(describe(t, errc::closed, "the store was closed meanwhile"));
  if (!made) throw error(describe(t, made.error().code(), made.error().detail()));
  const auto fresh = std::make_shared<lane>(std::move(made->fd));
  fresh->trial = true;  // nobody else's yet
  lanes_.push_back(fresh);
  struct undo {
    store_core& core;
    lane_ptr const& of;
    ~undo() {
      if (!of->trial) return;
      of->end(std::make_shared<failure const>(failure(errc::cancelled, "reconnect")));
      core.drop(of);
    }
  };
  const undo guard{*this, fresh};
  engine::server_info now;
  now.is_rollcall = made->rollcall_server;
  if (now.is_rollcall) {
    call c;
    c.on = fresh;
    c.ask(engine::introduce_request, {}, wire::reply_form::bytes);
    const ending how = await(l, t, c);
    leave(c);
    if (how != ending::done) give_up(t, &c, how);
    now.learn(c.answers.front().bytes);
  }
  if (!closed_) return;
  if (closed_ != why) throw error(describe(t, errc::closed, "the store was closed meanwhile"));
  if (introduction_.info.was_replaced_by(now))
    throw error(describe(t, errc::server_replaced,
                         now.is_rollcall ? "another server answers there; what the old one held is gone" : "a server that is not rollcall's answers there"));
  if (!introduction_.info.has_instance || !now.has_instance) arrivals_.clear();
  introduction_.info = now;
  peer_ = made->peer;
  with_ping_ = made->with_ping;
  known_ = {};
  fresh->trial = false;
  closed_ = nullptr;
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
  failure const* const why = c && c->on && c->on->dead() ? c->on->why().get() : closed_.get();
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
