#include <doctest/doctest.h>

#include <functional>
#include <iostream>
#include <variant>

#include "world.hpp"

// Random operations of several clients against the real server over links that split, delay, freeze and break, on virtual time.
// ROLLCALL_SIM_OPS=1000000 runs the long form, ROLLCALL_SIM_SEED=n one seed.

using namespace sim;

namespace {

enum class verb : unsigned char {
  set, get, find, add, check, wait, delete_key, num_keys, compare_set, append, multi_get, multi_set,
  queue_push, queue_pop, queue_pop_now, queue_len, list_keys, server_barrier, ping, get_into, flush
};
constexpr char const* names[] = {"set",        "get",       "find",          "add",       "check",     "wait",           "delete_key",
                                 "num_keys",   "compare_set", "append",      "multi_get", "multi_set", "queue_push",     "queue_pop",
                                 "queue_pop_now", "queue_len", "list_keys",  "server_barrier", "ping", "get_into",       "flush"};

using value = std::variant<std::monostate, bool, std::int64_t, std::string, std::optional<std::string>, std::vector<std::string>>;

struct incarnation {
  int id = 0;
  bool closed_by_us = false;
  std::size_t pending = 0;
  std::vector<std::shared_ptr<rc::test::memory_link>> links;
  std::shared_ptr<rc::test::memory_network> network;
};

struct op {
  verb what{};
  std::uint64_t id = 0;
  std::size_t slot = 0;
  std::shared_ptr<incarnation> by;
  std::vector<std::string> keys;  // as the user writes them
  std::string text;               // what it writes; the desired value of compare_set
  std::string expected;
  std::int64_t world = 0;         // of server_barrier
  std::vector<char> buffer;       // of get_into
  std::optional<duration> limit;  // of the operation
  std::optional<duration> outer;  // of with_deadline
  time_point begun{};
  std::uint64_t begun_event = 0;
  rc::stop_source stop;
  std::unique_ptr<wake_at> stop_wake;
  std::unique_ptr<breakable> frame;  // where it is destroyed instead of stopped
  bool destroyed = false;
  bool stopped = false;
  std::uint64_t stop_turn = 0;
  bool ended = false;
  bool success = false;
  rc::errc code{};
  rc::effect effect = rc::effect::none;
  value result;
};

/// What became of the operations of all simulations of one run.
struct tally {
  std::uint64_t seeds = 0, operations = 0, requests = 0, succeeded = 0, timed_out = 0, cancelled = 0, disconnected = 0, closed = 0,
                refused = 0, no_lane = 0, unknown = 0, none = 0, last_link = 0, destroyed = 0, cancel_waits = 0, most_lanes = 0,
                lost_links = 0, named_missing = 0, unsupported = 0, pushed = 0, popped = 0, returned = 0, left_behind = 0, reconnected = 0;
};

class simulation {
 public:
  explicit simulation(world_options const& o) : o_(o), random_(o.seed * 2654435761U + 17), w_(o.seed) {
    calm_ = random_.chance(250);
    masked_ = random_.chance(400);
    if (o_.corrupt != rc::test::corruption::none) {
      calm_ = true;
      masked_ = false;
    }
    slots_.resize(random_.between(1, 5));
    if (calm_) {
      w_.plan.delays(20us);
    } else {
      w_.plan.delays(random_.chance(500) ? duration(2ms) : duration(50ms)).freezes(random_.chance(300) ? 200 : 0, 3s);
      if (random_.chance(700))
        w_.plan.losses(static_cast<unsigned>(random_.between(20, 400)), 3000).refusals(random_.chance(300) ? 200 : 0);
    }
    rc::serve_options so;
    so.close_half_request_after(2h).close_unread_after(2h).validate_within(2h);
    if (random_.chance(400)) so.max_unsent(random_.between(1, 200));
    w_.serve(so);
    w_.loop.log_to([this](rc::log_level, std::string_view line) { items_given_up_ += line.find("popped for") != line.npos || line.find("an item of") != line.npos; });
  }
  ~simulation() {
    for (slot& s : slots_) s.tick.reset();
  }

  std::string run(tally& t) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].tick = std::make_unique<wake_at>(w_.loop, [this, i] { tick(i); });
      slots_[i].tick->in(random_.up_to(10ms));
    }
    const auto all_issued = [this] { return ops_.size() >= o_.operations || w_.complained > 0; };
    if (!w_.time.run_until(all_issued, 24h)) w_.complain("not all operations could be issued: " + std::to_string(ops_.size()));
    for (slot& s : slots_) s.tick.reset();
    finish();
    count(t);
    return w_.complained > 0 ? w_.report() : std::string();
  }

 private:
  struct slot {
    std::unique_ptr<wake_at> tick;
    std::optional<rc::tcp_store> store;
    std::shared_ptr<incarnation> now;
    bool connecting = false;
    bool seen_closed = false;
    std::optional<duration> timeout;
  };

  std::string name(op const& o) const { return std::string(names[static_cast<int>(o.what)]) + " #" + std::to_string(o.id); }
  void complain(op const& o, std::string const& what) { w_.complain(name(o) + ": " + what); }

  void connect(std::size_t i) {
    slot& s = slots_[i];
    s.connecting = true;
    auto in = std::make_shared<incarnation>();
    in->id = ++incarnations_;
    incarnation* const raw = in.get();
    in->network = std::make_shared<rc::test::memory_network>(w_.loop, w_.plan, [this, raw](rc::net::stream_ptr far, auto const& link) {
      raw->links.push_back(link);
      w_.accept(raw->id, std::move(far));
    });
    in->network->adjust([this](rc::test::link_faults& there, rc::test::link_faults& back) {
      if (masked_) back.break_byte(rc::test::corruption::flip, 4);  // the answer to the probe: not one of ours
      if (o_.corrupt != rc::test::corruption::none && !std::exchange(corrupted_, true)) {
        (o_.corrupt_answers ? back : there).break_byte(o_.corrupt, o_.corrupt_at);
        there.lose_after = back.lose_after = rc::test::link_faults::never;
      }
    });
    all_.push_back(in);
    rc::client_options co;
    constexpr std::optional<duration> timeouts[] = {50ms, 2s, 60s, std::nullopt};
    s.timeout = calm_ ? std::optional<duration>(60s) : timeouts[random_.below(4)];
    co.timeout(s.timeout ? rc::deadline(*s.timeout) : rc::deadline::never());
    co.max_lanes(random_.chance(200) ? random_.between(1, 4) : 64);
    s.now = in;
    rc::start(w_.loop,
              rc::tcp_store::over(w_.loop, in->network->connect(), calm_ ? 60s : 20s, co, in->network, static_cast<std::uint64_t>(in->id)),
              [this, i, in](rc::result<rc::tcp_store> r) {
                slot& me = slots_[i];
                me.connecting = false;
                if (r) {
                  me.store = std::move(r).value();
                  if (me.store->server_is_rollcall() == masked_) w_.complain("the probe told something else than the truth");
                  return;
                }
                const rc::errc c = r.error().code();
                const bool may = c == rc::errc::disconnected ? lossy(*in) : c == rc::errc::timed_out && !calm_;
                if (!may) w_.complain("connect: " + r.error().message());
              });
  }
  void reconnect(std::size_t i) {
    slots_[i].connecting = true;
    rc::start(w_.loop, slots_[i].store->reconnect(20s), [this, i](rc::result<void> r) {
      slot& me = slots_[i];
      me.connecting = false;
      if (r) {
        me.now->closed_by_us = false;
        ++reconnected_;
        if (!me.store->is_open()) ++lost_again_;
        return;
      }
      me.store.reset();
      const rc::errc c = r.error().code();
      if (c != rc::errc::disconnected && c != rc::errc::refused && c != rc::errc::timed_out) w_.complain("reconnect: " + r.error().message());
    });
  }
  bool lossy(incarnation const& in) const {
    return w_.draining || w_.model_.refused.contains(in.id) ||
           std::any_of(in.links.begin(), in.links.end(), [](auto const& l) { return l->lost(); });
  }

  void tick(std::size_t i) {
    slot& s = slots_[i];
    s.tick->in(random_.chance(200) ? duration(0) : random_.chance(100) ? random_.up_to(500ms) : random_.up_to(3ms));
    if (s.connecting) return;
    if (s.store && !s.store->is_open()) {
      if (s.now->pending != 0 && !std::exchange(s.seen_closed, true)) return s.tick->in(1ns);  // lost in this very turn
      s.seen_closed = false;
      if (s.now->pending != 0) w_.complain("operations outlive the loss of their connection");
      if (random_.chance(400)) return reconnect(i);
      s.store.reset();
    }
    if (!s.store) return connect(i);
    for (std::uint64_t n = random_.chance(300) ? random_.between(2, 12) : 1; n > 0 && ops_.size() < o_.operations; --n) issue(i);
    if (calm_) return;
    if (random_.chance(3)) {
      s.now->closed_by_us = true;
      s.store->close();
    } else if (random_.chance(3)) {
      s.store.reset();  // what is pending keeps the connection
    } else if (random_.chance(8)) {
      auto const& l = s.now->links[random_.below(s.now->links.size())];
      l->lose(random_.chance(500) ? 0 : -ECONNRESET, random_.chance(500) ? 0 : -ECONNRESET);
    }
  }

  std::string some_key() {
    const std::uint64_t n = random_.below(o_.only_checks ? 10 : 11);
    if (n == 10) return some_queue();
    if (n < 6) return "k" + std::to_string(n);
    if (n == 6) return "n" + std::to_string(random_.below(3));
    if (n == 7) return "a0";
    if (n == 8) return "e0";
    return "w" + std::to_string(ops_.size() + random_.below(6) - std::min<std::size_t>(3, ops_.size()));
  }
  std::string some_queue() { return "q" + std::to_string(random_.below(3)); }
  std::string text_for(std::string const& key, std::uint64_t id) {
    std::string v = key + "#" + std::to_string(id) + "|";
    const std::uint64_t dice = random_.below(1000);
    return v.append(dice < 3 ? random_.below(calm_ ? 1000 : 5000) : dice < 30 ? random_.below(400) : random_.below(20), 'x');
  }

  void issue(std::size_t i) {
    slot& s = slots_[i];
    ops_.emplace_back();
    op& o = ops_.back();
    o.id = ops_.size();
    o.slot = i;
    o.by = s.now;
    o.begun = w_.time.now();
    o.begun_event = w_.model_.events;
    o.limit = s.timeout;
    ++o.by->pending;
    constexpr verb often[] = {verb::set,         verb::set,    verb::get,       verb::find,     verb::add,        verb::add,
                              verb::check,       verb::wait,   verb::wait,      verb::wait,     verb::delete_key, verb::num_keys,
                              verb::compare_set, verb::append, verb::multi_get, verb::multi_set,
                              verb::queue_push, verb::queue_push, verb::queue_push, verb::queue_pop, verb::queue_pop, verb::queue_pop_now,
                              verb::queue_len, verb::list_keys, verb::server_barrier, verb::ping, verb::get_into, verb::flush};
    o.what = o_.only_checks ? verb::check : often[random_.below(std::size(often))];
    if (waits(o)) {
      constexpr std::optional<duration> limits[] = {duration(0),     duration(1ms), duration(20ms),
                                                    duration(100ms), duration(5s),  std::nullopt};
      o.limit = limits[random_.below(std::size(limits))];
      if (o.limit && *o.limit > 1ms && random_.chance(500)) o.limit = random_.up_to(*o.limit);
      if (o.what == verb::get && random_.chance(300)) o.limit = s.timeout;
    }
    if (random_.chance(80)) o.outer = random_.up_to(random_.chance(500) ? duration(5ms) : duration(2s));
    rc::tcp_store const& st = *s.store;
    most_lanes_ = std::max<std::uint64_t>(most_lanes_, st.connections());
    const rc::deadline limit = o.limit ? rc::deadline(*o.limit) : rc::deadline::never();
    o.keys.push_back(some_key());
    if (o.keys[0][0] == 'q' && o.what != verb::check && o.what != verb::wait) o.keys[0] = "k1";  // queues have names of their own
    switch (o.what) {
      case verb::set:
        if (o.keys[0][0] == 'n' || o.keys[0][0] == 'a') o.keys[0] = "k0";
        o.text = o.keys[0] == "e0" ? std::string() : text_for(o.keys[0], o.id);
        launch(o, st.set(o.keys[0], o.text));
        break;
      case verb::get: launch(o, st.get(o.keys[0], limit)); break;
      case verb::find: launch(o, st.find(o.keys[0])); break;
      case verb::add:
        o.keys[0] = random_.chance(calm_ ? 0 : 5) ? "k1" : "n" + std::to_string(random_.below(3));
        launch(o, st.add(o.keys[0], static_cast<std::int64_t>(o.id)));
        break;
      case verb::delete_key:
        if (random_.chance(300)) o.keys[0] = "d" + std::to_string(o.id);
        launch(o, st.delete_key(o.keys[0]));
        break;
      case verb::num_keys: launch(o, st.num_keys()); break;
      case verb::compare_set: {
        if (o.keys[0][0] != 'k' && o.keys[0][0] != 'w') o.keys[0] = "k2";
        const auto k = w_.model_.values().find("/" + o.keys[0]);
        if (k != w_.model_.values().end() && random_.chance(700)) o.expected = k->second;
        if (o.expected.empty() && random_.chance(200)) o.expected = "nothing#0|";
        o.text = text_for(o.keys[0], o.id);
        launch(o, st.compare_set(o.keys[0], o.expected, o.text));
        break;
      }
      case verb::append:
        o.keys[0] = "a0";
        o.text = text_for(o.keys[0], o.id);
        launch(o, st.append(o.keys[0], o.text));
        break;
      case verb::check:
      case verb::wait:
      case verb::multi_get:
        if (random_.chance(600))
          for (std::uint64_t n = random_.chance(20) ? 70 : random_.below(5); n > 0; --n) {
            o.keys.push_back(some_key());
            if (o.what == verb::multi_get && o.keys.back()[0] == 'q') o.keys.back() = "k4";
          }
        if (random_.chance(50)) o.keys.clear();
        if (o.what == verb::check) launch(o, st.check(o.keys));
        if (o.what == verb::wait) launch(o, st.wait(o.keys, limit));
        if (o.what == verb::multi_get) launch(o, st.multi_get(o.keys, limit));
        break;
      case verb::multi_set: {
        for (std::uint64_t n = random_.below(4); n > 0; --n) o.keys.push_back(some_key());
        std::vector<std::string> values;
        std::vector<rc::kv> pairs;
        for (std::string& k : o.keys) {
          if (k[0] != 'k' && k[0] != 'w') k = "k3";
          values.push_back(text_for(k, o.id));
        }
        for (std::size_t n = 0; n < o.keys.size(); ++n) pairs.emplace_back(o.keys[n], values[n]);
        o.text = values.back();
        launch(o, st.multi_set(pairs));
        break;
      }
      case verb::queue_push:
        o.keys[0] = some_queue();
        o.text = text_for(o.keys[0], o.id);
        launch(o, st.queue_push(o.keys[0], o.text));
        break;
      case verb::queue_pop:
        o.keys[0] = some_queue();
        launch(o, st.queue_pop(o.keys[0], limit));
        break;
      case verb::queue_pop_now:
        o.keys[0] = some_queue();
        launch(o, st.queue_pop_now(o.keys[0]));
        break;
      case verb::queue_len:
        o.keys[0] = some_queue();
        launch(o, st.queue_len(o.keys[0]));
        break;
      case verb::list_keys: launch(o, st.list_keys()); break;
      case verb::server_barrier:
        o.keys[0] = "b" + std::to_string(ops_.size() / 50);
        o.world = 1 + static_cast<std::int64_t>(ops_.size() / 50 % 4);
        launch(o, st.server_barrier(o.keys[0], o.world, limit));
        break;
      case verb::ping: launch(o, st.ping()); break;
      case verb::get_into:
        o.buffer.resize(random_.chance(100) ? 3 : 8192);
        launch(o, st.get_into(o.keys[0], o.buffer, limit));
        break;
      case verb::flush: {
        if (o.keys[0][0] != 'k' && o.keys[0][0] != 'w') o.keys[0] = "k5";
        o.text = text_for(o.keys[0], o.id);
        try {
          st.send_set(o.keys[0], o.text);
          launch(o, st.flush());
        } catch (rc::error const& e) {  // no connection is free
          if (e.code() != rc::errc::limit && e.code() != rc::errc::refused) complain(o, std::string("cannot send: ") + e.what());
          o.what = verb::ping;
          launch(o, st.ping());
        }
        break;
      }
    }
    if (random_.chance(120)) {
      op* const p = &o;
      if (random_.chance(200)) return stop(o);
      o.stop_wake = std::make_unique<wake_at>(w_.loop, [this, p] { stop(*p); });
      o.stop_wake->in(random_.chance(200) ? duration(0) : random_.up_to(random_.chance(500) ? duration(3ms) : duration(200ms)));
    }
  }
  void stop(op& o) {
    if (o.ended || o.stopped) return;
    if (o.frame) {
      o.frame.reset();
      o.destroyed = o.ended = true;
      --o.by->pending;
      return;
    }
    o.stopped = true;
    o.stop_turn = w_.time.turns();
    o.stop.request_stop();
  }
  template <class T>
  void launch(op& o, rc::operation<T> a) {
    if (o.outer) {
      rc::start(
          w_.loop, rc::with_deadline(std::move(a), *o.outer), [this, &o](rc::result<T> r) { ended(o, std::move(r)); }, o.stop.token());
    } else if (random_.chance(40)) {
      o.frame = std::make_unique<breakable>(await(*this, o, std::move(a)));
    } else {
      rc::start(std::move(a), [this, &o](rc::result<T> r) { ended(o, std::move(r)); }, o.stop.token());
    }
  }

  template <class T>
  static breakable await(simulation& s, op& o, rc::operation<T> a) {
    auto r = co_await rc::as_result(std::move(a));
    s.ended(o, std::move(r));
  }

  template <class T>
  void ended(op& o, rc::result<T> r) {
    if (std::exchange(o.ended, true)) return complain(o, "has ended twice");
    --o.by->pending;
    if (o.stop_wake) retired_.push_back(std::move(o.stop_wake));  // it may be the one that is calling
    if (o.stopped && !stopped_from_outside_ && w_.time.turns() != o.stop_turn)
      complain(o, "has not ended in the turn in which it was stopped, " + std::to_string(o.stop_turn) + ", but in " +
                      std::to_string(w_.time.turns()));
    const time_point now = w_.time.now();
    const bool several = (o.what == verb::wait || o.what == verb::multi_get) && o.keys.size() > 1;
    duration last = duration::max();
    duration first = duration::max();
    if (o.limit) {
      first = *o.limit;
      last = *o.limit + (several ? duration(100ms) : duration(0));
    }
    if (o.outer) {
      first = std::min(first, *o.outer);
      last = std::min(last, *o.outer);
    }
    const duration took = now - o.begun;
    if (took > last)
      complain(o, "ended " + std::to_string((took - last).count()) + " ns after its limit, with " + (r ? "a value" : r.error().message()));
    o.success = r.has_value();
    if (o.success) {
      if constexpr (std::is_same_v<T, std::size_t>) {
        o.result = std::string(o.buffer.data(), *r);
      } else if constexpr (!std::is_void_v<T> && !std::is_same_v<T, duration>) {
        o.result = std::move(*r);
      }
      check_success(o);
    } else {
      o.code = r.error().code();
      o.effect = r.error().effect();
      check_failure(o, r.error(), took, first);
    }
    if (random_.chance(30)) {  // from within this completion
      for (auto p = ops_.rbegin(); p != ops_.rend() && p - ops_.rbegin() < 20; ++p)
        if (!p->ended && !p->stopped && p->by == o.by) return stop(*p);
    }
    slot& s = slots_[o.slot];
    if (random_.chance(60) && ops_.size() < o_.operations && s.store && s.store->is_open()) issue(o.slot);
  }

  [[nodiscard]] bool changes(op const& o) const {
    return o.what == verb::set || o.what == verb::add || o.what == verb::delete_key || o.what == verb::compare_set ||
           o.what == verb::append || o.what == verb::multi_set || o.what == verb::queue_push || o.what == verb::server_barrier ||
           o.what == verb::flush;
  }
  [[nodiscard]] static bool waits(op const& o) {
    return o.what == verb::get || o.what == verb::wait || o.what == verb::multi_get || o.what == verb::get_into || o.what == verb::queue_pop ||
           o.what == verb::server_barrier;
  }
  [[nodiscard]] static bool is_pop(op const& o) { return o.what == verb::queue_pop || o.what == verb::queue_pop_now; }
  /// Whether the operation carries its number in what it writes.
  [[nodiscard]] bool numbered(op const& o) const {
    return changes(o) && o.what != verb::delete_key && o.what != verb::server_barrier && !(o.what == verb::set && o.text.empty());
  }
  std::vector<applied> const& applications(op const& o) {
    static const std::vector<applied> nothing;
    if (o.what == verb::delete_key) {
      const auto d = w_.model_.deletes.find({o.by->id, "/" + o.keys[0]});
      return d == w_.model_.deletes.end() ? nothing : d->second;
    }
    const auto a = w_.model_.by_id.find(o.id);
    return a == w_.model_.by_id.end() ? nothing : a->second;
  }

  void check_success(op& o) {
    model const& m = w_.model_;
    const std::uint64_t from = o.begun_event;
    const std::uint64_t to = m.events;
    const auto present = [](std::optional<std::string> const& v) { return v.has_value(); };
    const auto was = [&](std::string const& key, std::optional<std::string> const& v) {
      // A server that is not known for ours cannot be asked whether an empty value is none: the key may have gone after the CHECK.
      return m.ever("/" + key, from, to, [&](std::optional<std::string> const& x) { return x == v || (masked_ && v == "" && !x); });
    };
    if (numbered(o)) {
      auto const& a = applications(o);
      if (a.size() != 1) return complain(o, "succeeded, and was executed " + std::to_string(a.size()) + " times");
      if (a[0].at <= from) complain(o, "was executed before it was asked for");
      if (a[0].client != o.by->id) complain(o, "was executed for somebody else");
      if (a[0].key != "/" + o.keys[0] || (o.what != verb::add && a[0].value != o.text))
        complain(o, "was executed with another key or value");
      if (o.what == verb::add && a[0].number != std::get<std::int64_t>(o.result)) complain(o, "got the sum of another");
      if (o.what == verb::compare_set && a[0].answer != std::get<std::string>(o.result)) complain(o, "got the answer of another");
    }
    switch (o.what) {
      case verb::get_into:
      case verb::get:
        if (!was(o.keys[0], std::get<std::string>(o.result)))
          complain(o, "got what '" + o.keys[0] + "' never was: '" + std::get<std::string>(o.result) + "'");
        break;
      case verb::find: {
        auto const& v = std::get<std::optional<std::string>>(o.result);
        if (!was(o.keys[0], v)) complain(o, "found what '" + o.keys[0] + "' never was: " + (v ? "'" + *v + "'" : std::string("nothing")));
        break;
      }
      case verb::check: {
        bool all = true;
        bool some_missing = false;
        for (std::string const& k : o.keys) {
          all = all && m.ever("/" + k, from, to, present);
          some_missing = some_missing || m.ever("/" + k, from, to, [](auto const& v) { return !v.has_value(); });
        }
        if (std::get<bool>(o.result) ? !all : !some_missing)
          complain(o, std::string("answered what was never true: ") + (std::get<bool>(o.result) ? "yes" : "no"));
        break;
      }
      case verb::wait:
        for (std::string const& k : o.keys)
          if (!m.ever("/" + k, from, to, present)) complain(o, "ended though '" + k + "' was never there");
        break;
      case verb::multi_get: {
        auto const& v = std::get<std::vector<std::string>>(o.result);
        if (v.size() != o.keys.size()) return complain(o, "got another number of values");
        for (std::size_t i = 0; i < v.size(); ++i)
          if (!was(o.keys[i], v[i])) complain(o, "got what '" + o.keys[i] + "' never was: '" + v[i] + "'");
        break;
      }
      case verb::num_keys:
        if (!m.ever_counted(std::get<std::int64_t>(o.result), from, to)) complain(o, "counted a number of keys that never was");
        break;
      case verb::delete_key: {
        auto const& d = applications(o);
        const bool had = std::get<bool>(o.result);
        if (std::none_of(d.begin(), d.end(), [&](applied const& a) { return a.at > from && (a.number != 0) == had; }))
          complain(o, std::string("answered ") + (had ? "yes" : "no") + ", which no deletion of it did");
        break;
      }
      case verb::queue_pop: consume(o, std::get<std::string>(o.result)); break;
      case verb::queue_pop_now:
        if (auto const& v = std::get<std::optional<std::string>>(o.result)) {
          consume(o, *v);
        } else if (!m.ever("/" + o.keys[0], from, to, [](auto const& x) { return !x.has_value(); })) {
          complain(o, "found the queue empty, which it was not");
        }
        break;
      case verb::queue_len: {
        const std::int64_t n = std::get<std::int64_t>(o.result);
        if (!m.ever("/" + o.keys[0], from, to, [n](auto const& x) { return x == (n != 0 ? std::optional(std::to_string(n)) : std::nullopt); }))
          complain(o, "told a length that never was: " + std::to_string(n));
        break;
      }
      case verb::list_keys: {
        auto names_told = std::get<std::vector<std::string>>(o.result);
        const std::set<std::string> told(names_told.begin(), names_told.end());
        if (told.size() != names_told.size()) complain(o, "told a key twice");
        for (std::string const& k : told)
          if (!m.ever("/" + k, from, to, present)) complain(o, "told '" + k + "', which was never there");
        for (auto const& [k, v] : m.values())
          if (k.starts_with('/') && !told.contains(k.substr(1)) && !m.ever(k, from, to, [](auto const& x) { return !x.has_value(); }))
            complain(o, "did not tell '" + k.substr(1) + "', which was always there");
        break;
      }
      case verb::server_barrier:
        if (!finishing_ && !m.ever("/" + o.keys[0], 0, to, [&](auto const& x) { return x && std::stoll(*x) >= o.world; }))
          complain(o, "was let through before " + std::to_string(o.world) + " had come");
        break;
      default: break;
    }
  }

  /// An item was handed to an operation: it must have been popped for its client, and for nobody else before.
  void consume(op const& o, std::string const& v) {
    const auto i = w_.model_.items.find(v);
    if (i == w_.model_.items.end()) return complain(o, "got an item that nobody pushed: '" + v + "'");
    if (!v.starts_with(o.keys[0] + "#")) complain(o, "got an item of another queue: '" + v + "'");
    if (i->second.client != o.by->id) complain(o, "got an item that another client popped");
    if (++consumed_[v] > i->second.popped - i->second.returned) complain(o, "got an item that somebody got already: '" + v + "'");
  }

  void check_failure(op& o, rc::failure const& f, duration took, duration first) {
    switch (o.code) {
      case rc::errc::timed_out:
        if (took < first) complain(o, "timed out before its time");
        if (calm_) check_patience(o, took);
        check_missing(o, f);
        break;
      case rc::errc::cancelled:
        if (!o.stopped) complain(o, "was cancelled by nobody");
        break;
      case rc::errc::disconnected:
        if (!lossy(*o.by)) complain(o, "lost a connection that stands: " + f.message());
        break;
      case rc::errc::closed:  // a flush after a reconnect tells of what was sent before
        if (!o.by->closed_by_us && o.what != verb::flush) complain(o, "found the store closed, which it is not");
        break;
      case rc::errc::refused:
      case rc::errc::limit:
        // A barrier that is resumed was sent before.
        if (o.effect != rc::effect::none && o.what != verb::flush && o.what != verb::server_barrier) complain(o, "was not sent, and says it is " + std::string(rc::to_string(o.effect)));
        if (calm_ && o.code == rc::errc::refused) complain(o, "was refused");
        break;
      case rc::errc::unsupported:
        // The connection that a first use had for itself was lost by chance.
        if (!masked_ || !lossy(*o.by)) complain(o, "is said not to be known to a server that knows it");
        break;
      default: complain(o, "unexpected: " + f.message());
    }
    const bool lost_item = is_pop(o) && (o.code == rc::errc::disconnected || o.code == rc::errc::closed);
    if (!changes(o) && !lost_item && o.effect != rc::effect::none) complain(o, "changes nothing, and says it is " + std::string(rc::to_string(o.effect)));
    if (numbered(o)) {
      const std::size_t n = applications(o).size();
      if (o.effect == rc::effect::none && n != 0) complain(o, "says it was not executed, and was: " + f.message());
      if (o.effect == rc::effect::applied && n != 1) complain(o, "says it was executed, and was not: " + f.message());
    }
  }
  /// On links without faults nobody runs out of time but those who wait for keys that are not there.
  void check_patience(op const& o, duration took) {
    constexpr duration enough = 3s;
    if (took < enough) return;
    if (!waits(o)) return complain(o, "ran out of time on a perfect link");
    if (o.what == verb::queue_pop || o.what == verb::server_barrier) return;
    for (std::string const& k : o.keys) {
      const auto since = w_.model_.present_since("/" + k);
      if (!since || w_.time.now() - std::max(o.begun, w_.model_.when(*since)) < enough) return;
    }
    complain(o, "ran out of time though its keys are there");
  }
  void check_missing(op const& o, rc::failure const& f) {
    if (o.what != verb::wait || o.keys.size() < 2) return;
    const bool learnt = f.detail().empty();
    for (std::string const& k : f.keys()) {
      if (std::find(o.keys.begin(), o.keys.end(), k) == o.keys.end()) complain(o, "names '" + k + "', which it did not wait for");
      if (learnt && !o.outer && o.keys.size() <= 64 && o.limit && *o.limit > 0s) ++named_missing_;
    }
    for (std::string const& k : o.keys)
      if (std::find(f.keys().begin(), f.keys().end(), k) == f.keys().end() && f.key_count() <= 64 &&
          !w_.model_.ever("/" + k, o.begun_event, w_.model_.events, [](auto const& v) { return v.has_value(); }))
        complain(o, "does not name '" + k + "', which was never there");
  }

  /// Gives everybody what he waits for, then looks at what is left.
  void finish() {
    const auto all_ended = [this] {
      return std::all_of(ops_.begin(), ops_.end(), [](op const& o) { return o.ended; }) &&
             std::none_of(slots_.begin(), slots_.end(), [](slot const& s) { return s.connecting; });
    };
    rc::test::fault_plan perfect(1);
    rc::test::memory_network network(w_.loop, perfect, [this](rc::net::stream_ptr far, auto const&) { w_.accept(0, std::move(far)); });
    finishing_ = true;
    {
      std::optional<rc::tcp_store> janitor;
      if (w_.complained == 0 && o_.corrupt == rc::test::corruption::none && random_.chance(150)) {
        w_.draining = true;
        w_.server->drain();
        w_.time.run_for(100s);
      } else if (w_.complained == 0) {
        rc::start(w_.loop, rc::tcp_store::over(w_.loop, network.connect(), 60s),
                  [&](rc::result<rc::tcp_store> r) { janitor = std::move(r).value(); });
        for (int round = 0; round < 100 && !all_ended() && w_.complained == 0; ++round) {
          w_.time.run_for(3s);
          if (!janitor) continue;
          std::set<std::string> wanted;
          for (op const& o : ops_)
            if (!o.ended) wanted.insert(o.keys.begin(), o.keys.end());
          for (std::string const& k : wanted) {
            if (k[0] == 'n') {
              rc::start(janitor->add(k, 0), [](rc::result<std::int64_t> const&) {});
            } else if (k[0] == 'q') {
              rc::start(janitor->queue_push(k, k + "#0|" + std::to_string(++janitor_items_)), [](rc::result<void> const&) {});
            } else if (k[0] == 'b') {
              rc::start(janitor->server_barrier(k, 1), [](rc::result<void> const&) {});
            } else {
              rc::start(janitor->set(k, k == "e0" ? std::string() : k + "#0|"), [](rc::result<void> const&) {});
            }
          }
        }
      }
      if (w_.complained == 0) {
        for (op const& o : ops_)
          if (!o.ended) complain(o, w_.draining ? "does not end with its server" : "does not end, though all it can wait for is there");
      }
      if (w_.complained == 0) still_in_step();
      w_.time.run_for(10s);
      if (w_.complained == 0) w_.check_server_at_rest();
    }
    stopped_from_outside_ = true;
    for (op& o : ops_)
      if (!o.ended) stop(o);
    w_.time.settle();
    if (w_.complained > 0) w_.time.run_until(all_ended, 100s);
    for (slot& s : slots_) s.store.reset();
    retired_.clear();
    for (op& o : ops_) o.frame.reset();  // they hold their stores
    w_.time.run_for(100s);
    if (w_.complained == 0) {
      final_checks();
      w_.check_server_empty();
    }
    w_.stop_server();
    for (auto const& in : all_)
      lost_links_ += static_cast<std::uint64_t>(std::count_if(in->links.begin(), in->links.end(), [](auto const& l) { return l->lost(); }));
    if (w_.complained == 0) w_.check_loop_empty();
  }
  void still_in_step() {
    int asked = 0;
    int answered = 0;
    for (slot& s : slots_) {
      if (!s.store || !s.store->is_open()) continue;
      const auto in = s.now;
      ++asked;
      const std::uint64_t from = w_.model_.events;  // what was stopped may be executed still
      rc::start(s.store->num_keys(), [&, in, from](rc::result<std::int64_t> r) {
        ++answered;
        if (r ? !w_.model_.ever_counted(*r, from, w_.model_.events) : !lossy(*in) && r.error().code() != rc::errc::timed_out)
          w_.complain("a store is out of step at the end");
      });
    }
    w_.time.run_for(120s);
    if (answered != asked) w_.complain("a store does not answer at the end");
  }
  void check_items() {
    for (auto const& [v, i] : w_.model_.items) {
      const std::uint64_t consumed = consumed_.contains(v) ? consumed_[v] : 0;
      if (consumed > 1) w_.complain("item '" + v + "' was given to " + std::to_string(consumed));
      // What was popped has reached somebody, or is back; else a link was lost with it, and that was told.
      const auto lost = static_cast<std::int64_t>(i.popped) - static_cast<std::int64_t>(i.returned + consumed);
      left_behind_ += lost > 0;
      const auto by = std::find_if(all_.begin(), all_.end(), [&](auto const& in) { return in->id == i.client; });
      if (lost > 0 && items_given_up_ == 0 && (by == all_.end() || !lossy(**by))) w_.complain("item '" + v + "' was popped and reached nobody");
    }
  }
  void final_checks() {
    check_items();
    std::map<std::pair<int, std::string>, std::array<std::size_t, 3>> deletions;  // succeeded with no, with yes, unknown
    for (op const& o : ops_) {
      if (o.what == verb::delete_key) {
        auto& d = deletions[{o.by->id, "/" + o.keys[0]}];
        if (o.success) {
          ++d[std::get<bool>(o.result) ? 1 : 0];
        } else if (o.effect != rc::effect::none || o.destroyed) {
          ++d[2];
        }
      }
      if (!numbered(o)) continue;
      const std::size_t n = applications(o).size();
      if (n > 1) complain(o, "was executed " + std::to_string(n) + " times");
      if (!o.success && !o.destroyed && o.effect == rc::effect::none && n != 0) complain(o, "said it was not executed, and was later");
    }
    for (auto const& [who, d] : w_.model_.deletes) {
      const auto yes = static_cast<std::size_t>(std::count_if(d.begin(), d.end(), [](applied const& a) { return a.number != 0; }));
      auto const& seen = deletions[who];
      if (yes < seen[1] || d.size() - yes < seen[0] || d.size() > seen[0] + seen[1] + seen[2])
        w_.complain("deletions of " + who.second + " by client " + std::to_string(who.first) + ": " + std::to_string(d.size()) +
                    " executed, " + std::to_string(seen[0] + seen[1]) + " succeeded, " + std::to_string(seen[2]) + " unknown");
    }
  }
  void count(tally& t) {
    if (o_.corrupt != rc::test::corruption::none) t.last_link = all_[0]->links[0]->delivered_to(o_.corrupt_answers ? 0 : 1);
    ++t.seeds;
    t.operations += ops_.size();
    t.requests += w_.model_.events;
    t.cancel_waits += w_.model_.seen[static_cast<std::size_t>(rc::wire::opcode::cancel_wait)];
    t.most_lanes = std::max(t.most_lanes, most_lanes_);
    t.lost_links += lost_links_;
    t.named_missing += named_missing_;
    for (auto const& [v, i] : w_.model_.items) t.returned += i.returned;
    t.left_behind += left_behind_;
    t.reconnected += reconnected_;
    for (op const& o : ops_) {
      if (o.success) {
        ++t.succeeded;
        t.pushed += o.what == verb::queue_push;
        t.popped += o.what == verb::queue_pop || (o.what == verb::queue_pop_now && std::get<std::optional<std::string>>(o.result));
        continue;
      }
      t.destroyed += o.destroyed;
      if (o.destroyed) continue;
      if (changes(o)) ++(o.effect == rc::effect::none ? t.none : t.unknown);
      switch (o.code) {
        case rc::errc::timed_out: ++t.timed_out; break;
        case rc::errc::cancelled: ++t.cancelled; break;
        case rc::errc::disconnected: ++t.disconnected; break;
        case rc::errc::closed: ++t.closed; break;
        case rc::errc::refused: ++t.refused; break;
        case rc::errc::limit: ++t.no_lane; break;
        case rc::errc::unsupported: ++t.unsupported; break;
        default: break;
      }
    }
  }

  world_options o_;
  random_source random_;
  world w_;
  bool calm_ = false;
  bool masked_ = false;
  bool corrupted_ = false;
  bool finishing_ = false;
  bool stopped_from_outside_ = false;
  int incarnations_ = 0;
  std::uint64_t most_lanes_ = 0;
  std::uint64_t lost_links_ = 0;
  std::uint64_t named_missing_ = 0;
  std::uint64_t items_given_up_ = 0;  // warnings that say so
  std::uint64_t left_behind_ = 0;
  std::uint64_t reconnected_ = 0;
  std::uint64_t lost_again_ = 0;  // in the turn in which they were connected
  std::uint64_t janitor_items_ = 0;
  std::map<std::string, std::uint64_t> consumed_;
  std::vector<std::shared_ptr<incarnation>> all_;
  std::vector<slot> slots_;
  std::deque<op> ops_;
  std::vector<std::unique_ptr<wake_at>> retired_;
};

std::string simulate(world_options const& o, tally& t) {
  simulation s(o);
  return s.run(t);
}

}  // namespace

TEST_CASE("random operations over random links agree with the model") {
  tally t;
  const std::uint64_t only = from_environment("ROLLCALL_SIM_SEED", 0);
  const std::uint64_t wanted = from_environment("ROLLCALL_SIM_OPS", 52'000);
  for (std::uint64_t seed = only ? only : 1; t.operations < wanted; ++seed) {
    world_options o;
    o.seed = seed;
    const std::string problem = simulate(o, t);
    CHECK_MESSAGE(problem.empty(), "ROLLCALL_SIM_SEED=" << seed << ": " << problem);
    if (only != 0 || (!problem.empty() && t.seeds > 100000)) break;
  }
  std::cout << "sim: " << t.seeds << " seeds, " << t.operations << " operations, " << t.requests << " requests; " << t.succeeded
            << " succeeded, " << t.timed_out << " timed out (" << t.named_missing << " keys named), " << t.cancelled << " cancelled, "
            << t.disconnected << " disconnected, " << t.closed << " closed, " << t.refused << " refused, " << t.no_lane
            << " without a lane, " << t.destroyed << " destroyed; effect unknown " << t.unknown << ", none " << t.none << "; "
            << t.unsupported << " thought to be unsupported; " << t.pushed << " items pushed, " << t.popped << " popped, " << t.returned
            << " brought back, " << t.left_behind << " lost with their links; " << t.reconnected << " reconnected, " << t.lost_links << " links lost, " << t.cancel_waits << " CANCEL_WAIT, up to " << t.most_lanes << " lanes\n";
  if (only != 0) return;
  CHECK(t.seeds >= 200);
  for (std::uint64_t n : {t.succeeded, t.timed_out, t.cancelled, t.disconnected, t.closed, t.refused, t.no_lane, t.unknown, t.none,
                          t.lost_links, t.cancel_waits, t.named_missing, t.destroyed, t.unsupported, t.pushed, t.popped, t.returned, t.reconnected})
    CHECK(n > 0);
  CHECK(t.most_lanes > 3);
}

TEST_CASE("a link that breaks one byte is found out") {
  using rc::test::corruption;
  tally t;
  for (const auto kind : {corruption::drop, corruption::duplicate, corruption::flip}) {
    for (const bool answers : {false, true}) {
      int found = 0;
      int broken = 0;
      for (int i = 0; i < 16; ++i) {
        world_options o;
        o.seed = 1000 + static_cast<std::uint64_t>(i);
        o.operations = 300;
        o.corrupt = kind;
        o.corrupt_answers = answers;
        o.corrupt_at = 60 + static_cast<std::uint64_t>(i) * 13;
        const bool noticed = !simulate(o, t).empty();
        if (!noticed && t.last_link < o.corrupt_at + 30) continue;  // that link was hardly used
        ++broken;
        found += noticed;
      }
      // Some of it is no fault to anybody: a key may turn into another one that is there as well, and a `00` in front of the answer to
      // CANCEL_WAIT may come, or not.
      CHECK(broken >= 8);
      CHECK_MESSAGE(found * 4 >= broken * (kind == corruption::flip ? 2 : 3), found << " of " << broken);
    }
  }
}

TEST_CASE("a client that swallows one reply is found out") {
  // Checks only, so that every reply is one byte, and a lost one shifts all that follow.
  tally t;
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    world_options o;
    o.seed = seed;
    o.only_checks = true;
    CHECK(simulate(o, t).empty());
    o.corrupt = rc::test::corruption::drop;
    o.corrupt_at = 60;
    const bool noticed = !simulate(o, t).empty();
    CHECK((noticed || t.last_link < 70));
    found += noticed;
  }
  CHECK(found >= 8);
}

TEST_CASE("a seed decides everything") {
  tally a;
  tally b;
  world_options o;
  o.seed = 4242;
  CHECK(simulate(o, a) == simulate(o, b));
  CHECK(a.requests == b.requests);
  CHECK(a.succeeded == b.succeeded);
  CHECK(a.cancelled == b.cancelled);
}
