#pragma once
#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "../../engine/absent.hpp"
#include "../store.hpp"

namespace rollcall {
inline namespace v0 {

namespace legacy {

/// How many keys a WAIT, as encode_wait() writes it, asks for.
[[nodiscard]] inline std::uint64_t keys_of(std::string_view wait_request) noexcept {
  return wire::load<std::uint64_t>(wait_request.data() + 1);
}
/// Calls `f(index, key in wire form with its length)` for each of them.
template <class F>
void for_each_key(std::string_view wait_request, F f) {
  std::string_view rest = wait_request.substr(9);
  for (std::uint64_t i = 0, n = keys_of(wait_request); i < n; ++i) {
    const auto size = static_cast<std::size_t>(8 + wire::load<std::uint64_t>(rest.data()));
    f(i, rest.substr(0, size));
    rest.remove_prefix(size);
  }
}
[[nodiscard]] inline std::string with_length(std::string_view wire_key) {
  std::string s;
  wire::put_bytes(s, wire_key);
  return s;
}

}  // namespace legacy

/// A request with one reply.
inline legacy::call::answer blocking_store::one_reply(lock& l, legacy::terms& t, std::string_view request, wire::reply_form form,
                                                      bool changes) const {
  legacy::call c;
  c.on = core_->command_lane(l, t);
  t.in_doubt = changes;
  c.ask({}, request, form);
  const ending how = core_->await(l, t, c);
  core_->leave(c);
  if (how != ending::done) core_->give_up(t, &c, how);
  t.in_doubt = false;
  return std::move(c.answers.front());
}

/// A request without a reply, which is over when the server has executed it.
inline void blocking_store::fenced(lock& l, legacy::terms& t, std::string_view request) const {
  legacy::call c;
  c.on = core_->command_lane(l, t);
  t.in_doubt = true;
  c.on->session().post(c, request);
  const ending how = core_->await(l, t, c);
  core_->leave(c);
  if (how != ending::done) core_->give_up(t, &c, how);
}

/// A WAIT; `done`, or `item` for a pop.
inline blocking_store::ending blocking_store::wait_for(lock& l, legacy::terms& t, std::string_view request) const {
  constexpr std::size_t preemptible_bytes = 4096;
  const bool one = legacy::keys_of(request) == 1;
  const bool preemptible = one && request.size() <= preemptible_bytes;
  legacy::call c;
  c.on = core_->wait_lane(l, t, preemptible);
  c.on->session().wait(c, request, preemptible);
  ending how = core_->await(l, t, c);
  if (how == ending::expired && legacy::keys_of(request) > 1 && autopsy(l, t, c, request)) how = ending::done;
  core_->leave(c);
  if (how != ending::done && how != ending::item) core_->give_up(t, &c, how);
  return how;
}

/// An expired wait for several keys: which of them are missing? Asked on the connection that waited, up to a tenth of a second. True where
/// the wait is over after all; else throws, unless the connection was lost.
inline bool blocking_store::autopsy(lock& l, legacy::terms& t, legacy::call& c, std::string_view request) const {
  c.on->session().cancel(c);
  legacy::for_each_key(request, [&](std::uint64_t i, std::string_view key) {
    if (i < autopsy_keys) c.ask(legacy::check_one, key, wire::reply_form::u8);
  });
  const ending how = core_->await(l, t, c, legacy::steady_now() + autopsy_time);
  core_->leave(c);
  if (how == ending::lost) core_->give_up(t, &c, how);
  if (how == ending::done && !c.answered()) return true;  // it was faster than its cancel
  failure f(errc::timed_out, t.name);
  std::size_t missing = 0, unknown = 0;
  for (std::size_t i = 0; i < t.which.size(); ++i) {
    const bool told = i < c.answers.size();
    if (told && c.answers[i].number == wire::check_ready) continue;
    ++(told ? missing : unknown);
    f.with_key(t.which[i]);
  }
  if (missing + unknown == 0) return true;
  if (unknown > 0) f.with_detail("whether " + std::to_string(unknown) + " of them exist could not be learnt");
  f.with_peer(core_->endpoint()).with_times(legacy::steady_now() - t.begun, t.limit.length(t.begun));
  throw error(std::move(f));
}

/// Reads the keys of a WAIT request if they exist: false where one is missing. `exists`: a wait has just shown that they do, on a server
/// whose GET of a missing key may end the connection.
inline bool blocking_store::look(lock& l, legacy::terms& t, std::string_view request, bool exists, std::vector<std::string>& values) const {
  const std::uint64_t n = legacy::keys_of(request);
  const bool at_once = core_->is_rollcall();  // one round trip where a GET of a missing key is known to be answered
  const auto fetch = [&](legacy::call& c) {
    n == 1 ? c.ask("\x03", request.substr(9), wire::reply_form::bytes) : c.ask("\x0a", request.substr(1), wire::reply_form::many, n);
  };
  const auto ask = [&](bool check, bool value) {
    legacy::call c;
    c.on = core_->command_lane(l, t);
    if (check) c.ask("\x05", request.substr(1), wire::reply_form::u8);
    if (value) fetch(c);
    const ending how = core_->await(l, t, c);
    core_->leave(c);
    if (how != ending::done) core_->give_up(t, &c, how);
    return std::move(c.answers);
  };
  std::vector<legacy::call::answer> answers;
  if (at_once || !exists) {
    answers = ask(true, at_once);
    if (answers.front().number != wire::check_ready) return false;
  }
  if (!at_once) answers = ask(false, true);
  values.clear();
  if (n == 1) {
    values.push_back(std::move(answers.back().bytes));
  } else {
    for (wire::field_cursor fields(answers.back().bytes); !fields.done();) values.emplace_back(fields.next());
  }
  return true;
}

/// An empty value is also what a GET gives for a key that was deleted after the CHECK. A server of ours is asked again, in a way that tells
/// the two apart and changes nothing. False where a key is not there; `again`: one has a value by now.
inline bool blocking_store::confirmed(lock& l, legacy::terms& t, std::string_view request, std::vector<std::string> const& values,
                                      bool& again) const {
  again = false;
  const bool doubt = std::any_of(values.begin(), values.end(), [](std::string const& v) { return v.empty(); });
  if (!doubt || !core_->is_rollcall()) return true;
  legacy::call c;
  c.on = core_->command_lane(l, t);
  legacy::for_each_key(request, [&](std::uint64_t i, std::string_view key) {
    if (!values[static_cast<std::size_t>(i)].empty()) return;
    std::string body(key);
    body += engine::absent_twice;
    c.ask("\x02", body, wire::reply_form::bytes);
  });
  const ending how = core_->await(l, t, c);
  core_->leave(c);
  if (how != ending::done) core_->give_up(t, &c, how);
  for (legacy::call::answer const& a : c.answers) {
    if (a.bytes == engine::absent_key) return false;
    again = again || !a.bytes.empty();
  }
  return true;
}

/// Sleeps the longer the more rounds were fruitless, 64 ms at the most. `done`, or `item` for a pop.
inline blocking_store::ending blocking_store::pause(lock& l, legacy::terms& t, unsigned rounds) const {
  const ending how = core_->pause(l, t, std::chrono::milliseconds(1U << std::min(rounds, 6U)));
  if (how != ending::done && how != ending::item) core_->give_up(t, nullptr, how);
  return how;
}

/// The values of the keys of a WAIT request; waits for them or says that one is missing.
inline bool blocking_store::read(lock& l, legacy::terms& t, std::string_view request, bool waits, std::vector<std::string>& values) const {
  bool exists = false;
  for (unsigned rounds = 0;;) {
    bool again = false;
    if (look(l, t, request, exists, values) && confirmed(l, t, request, values, again)) {
      if (!again) return true;
      continue;
    }
    if (!waits) return false;
    // A queue under that key ends each WAIT at once, and it still has no value (protocol 7.4): then it asks ever more rarely.
    if (++rounds > 2) pause(l, t, rounds);
    static_cast<void>(wait_for(l, t, request));
    exists = true;
  }
}

/// The first use of a family of opcodes on a server that is not known to have them, on a connection of its own: it may close there.
inline void blocking_store::need(lock& l, legacy::terms& t, legacy::family f, std::string_view key) const {
  if (core_->knows(f)) return;
  const legacy::lane_ptr trial = core_->trial_lane(l, t);
  legacy::call c;
  c.on = trial;
  if (f == legacy::family::queues) {
    c.ask("\x10", legacy::with_length(key), wire::reply_form::i64);
  } else {
    c.ask("\x11", {}, wire::reply_form::list);
  }
  const ending how = core_->await(l, t, c);
  core_->leave(c);
  if (how == ending::done) return core_->learn(f, *trial);
  core_->drop(trial);
  if (how != ending::lost) {
    trial->end(std::make_shared<failure const>(failure(errc::cancelled, t.name)));
    core_->give_up(t, &c, how);
  }
  not_known(l, t, f, key);
}

/// A connection was closed at an opcode. By a server that still answers on others?
inline void blocking_store::not_known(lock& l, legacy::terms& t, legacy::family f, std::string_view key) const {
  const bool doubt = t.in_doubt;
  const std::string check =
      f == legacy::family::list_keys ? std::string(legacy::check_none) : std::string(legacy::check_one) + legacy::with_length(key);
  const bool there = one_reply(l, t, check, wire::reply_form::u8, doubt).number == wire::check_ready;
  std::string why = "the server closed the connection at the first ";
  switch (f) {
    case legacy::family::queues:
      why += "QUEUE_LEN: it has no queues (PyTorch's libuv server has them since 2.8, its blocking one has none)";
      break;
    case legacy::family::list_keys: why += "LIST_KEYS: it does not know it (PyTorch's servers do since 2.10)"; break;
    case legacy::family::barrier:
      why += "BARRIER: it does not know it (PyTorch's servers do since 2.12)";
      if (there) why += ", or the key holds no number";
  }
  throw error(core_->describe(t, errc::unsupported, std::move(why), doubt && there));  // without the key it was certainly not counted
}

/// `key` in wire form.
inline std::optional<std::string> blocking_store::pop(lock& l, legacy::terms& t, std::string_view key, bool waits) const {
  t.pops = key;
  if (core_->items().take(key, t.item)) return std::move(t.item);
  need(l, t, legacy::family::queues, key);
  const std::string key_with_length = legacy::with_length(key);
  std::string wait_request;
  wire::encode_wait(wait_request, {}, keys(key));
  for (unsigned rounds = 0;; ++rounds) {
    if (rounds > 0 || !waits || core_->is_rollcall()) {  // others are waited for first, as the reference does (protocol 5)
      legacy::call c;
      c.on = core_->command_lane(l, t);
      t.in_doubt = true;
      c.ask("\x0f", key_with_length, wire::reply_form::popped);
      const ending how = core_->await(l, t, c);
      if (how == ending::done) {
        t.in_doubt = false;
        if (c.answers.front().number > 0) return std::move(c.answers.front().bytes);
        if (!waits) return std::nullopt;
        if (core_->items().take(key, t.item)) return std::move(t.item);  // came for another one, before this answer
      } else {
        core_->leave_item(key, c);
        if (how == ending::item) return std::move(t.item);
        t.in_doubt = how == ending::lost;  // what comes for this one is kept
        core_->give_up(t, &c, how);
      }
    }
    // A value under the same key ends each WAIT at once (protocol 7.4): then it asks ever more rarely.
    ending how = rounds >= 3 ? pause(l, t, rounds) : ending::done;
    if (how == ending::done) how = wait_for(l, t, wait_request);
    if (how == ending::item) return std::move(t.item);
  }
}

/// This BARRIER was sent before and must not be counted twice, and a WAIT for its key would end at once: the count is looked at.
inline void blocking_store::resume_barrier(lock& l, legacy::terms& t, std::string_view key, std::int64_t world_size) const {
  std::string request;
  wire::encode_wait(request, {}, keys(key));
  for (unsigned rounds = 0;; ++rounds) {
    std::vector<std::string> values;
    std::int64_t count = 0;
    if (look(l, t, request, false, values)) std::from_chars(values[0].data(), values[0].data() + values[0].size(), count);
    if (count >= world_size) return;
    const ending how = core_->pause(l, t, std::chrono::milliseconds(1U << std::min(rounds, 6U)));
    if (how == ending::done) continue;
    t.in_doubt = true;
    if (how != ending::lost) core_->arrivals().emplace_back(key);
    core_->give_up(t, nullptr, how);
  }
}

/// Items that were popped for calls that have ended go back to the tails of their queues; then everything ends.
inline void blocking_store::give_back(legacy::store_core& core) noexcept {
  constexpr std::chrono::seconds patience{2};
  lock l = core.look();
  try {
    legacy::terms t("close", patience);
    core.begin(t);
    for (legacy::lane_ptr const& one : core.copy_of_lanes()) {
      if (!core.items().expects_from(one->session()) || !one->session().takes_command()) continue;
      legacy::call c;  // its answer comes behind those of the pops
      c.on = one;
      c.ask(legacy::check_none, {}, wire::reply_form::u8);
      static_cast<void>(core.await(l, t, c));
      core.leave(c);
    }
    std::string request;
    const std::size_t kept = core.items().kept();
    if (kept > 0 && !core.closed()) {
      core.items().give_away([&](std::string_view key, std::string_view value) { wire::encode_queue_push(request, {}, key, value); });
      legacy::call c;
      c.on = core.command_lane(l, t);
      c.on->session().post(c, request);
      if (core.await(l, t, c) == ending::done) request.clear();
      core.leave(c);
    }
    if (!request.empty() || core.items().kept() > 0)
      core.log(log_level::warning, std::to_string(kept) + " items of queues at " + core.endpoint() +
                                       ", popped for calls that had ended, are lost with the store: its connection was lost before");
  } catch (std::exception const&) {  // what could not be pushed back is lost with the connection
  }
  core.items().give_away([](std::string_view, std::string_view) {});
  core.close(std::make_shared<failure const>(failure(errc::closed, "store", "the store was closed").with_peer(core.endpoint())));
}

}  // namespace v0
}  // namespace rollcall
