#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "../store.hpp"

namespace rollcall {
inline namespace v0 {

inline legacy::terms blocking_store::terms_of(std::string_view name, limit_option const& limit, keys const& k) const {
  return legacy::terms(name, limit ? *limit : core_->options().timeout(), k);
}

inline void blocking_store::judge(legacy::terms const& t, std::string_view key, std::optional<std::string_view> value) const {
  const auto refuse = [&](char const* what, std::size_t size, std::size_t most) {
    failure f(errc::limit, t.name,
              std::string("the ") + what + " has " + std::to_string(size) + " bytes, the limit is " + std::to_string(most));
    throw error(f.with_key(key.substr(0, 80)).with_peer(core_->endpoint()));
  };
  if (const std::size_t most = core_->options().max_key_bytes(); key.size() > most) refuse("key", key.size(), most);
  if (const std::size_t most = core_->options().max_value_bytes(); value && value->size() > most) refuse("value", value->size(), most);
}
inline void blocking_store::judge(legacy::terms const& t, keys const& k) const {
  if (k.size() > max_keys) {
    failure f(errc::limit, t.name, std::to_string(k.size()) + " keys, the limit is " + std::to_string(max_keys));
    throw error(f.with_peer(core_->endpoint()));
  }
  for (std::size_t i = 0; i < k.size(); ++i) judge(t, k[i]);
}
/// The keys of the pairs, for what errors tell.
inline std::vector<std::string_view> blocking_store::judge(pairs const& p, std::string_view name) const {
  const legacy::terms t(name, deadline::never());
  if (p.size() > max_keys) {
    failure f(errc::limit, name, std::to_string(p.size()) + " pairs, the limit is " + std::to_string(max_keys));
    throw error(f.with_peer(core_->endpoint()));
  }
  std::vector<std::string_view> names;
  names.reserve(p.size());
  for (kv const& one : p) {
    judge(t, one.key, one.value);
    names.push_back(one.key);
  }
  return names;
}

inline void blocking_store::set(std::string_view key, std::string_view value, limit_option limit) const {
  legacy::terms t = terms_of("set", limit, keys(key));
  judge(t, key, value);
  std::string request;
  wire::encode_set(request, prefix, key, value);
  lock l = core_->enter(t);
  fenced(l, t, request);
}
inline void blocking_store::append(std::string_view key, std::string_view value, limit_option limit) const {
  legacy::terms t = terms_of("append", limit, keys(key));
  judge(t, key, value);
  std::string request;
  wire::encode_append(request, prefix, key, value);
  lock l = core_->enter(t);
  fenced(l, t, request);
}
inline void blocking_store::multi_set(pairs p, limit_option limit) const {
  const std::vector<std::string_view> names = judge(p, "multi_set");
  legacy::terms t = terms_of("multi_set", limit, keys(names));
  std::string request;
  wire::encode_multi_set(request, prefix, p);
  lock l = core_->enter(t);
  fenced(l, t, request);
}

inline std::string blocking_store::get(std::string_view key, limit_option limit) const {
  legacy::terms t = terms_of("get", limit, keys(key));
  judge(t, key);
  std::string request;
  wire::encode_wait(request, prefix, keys(key));
  std::vector<std::string> values;
  lock l = core_->enter(t);
  static_cast<void>(read(l, t, request, true, values));
  return std::move(values.front());
}
inline std::size_t blocking_store::get_into(std::string_view key, std::span<char> buffer, limit_option limit) const {
  legacy::terms t = terms_of("get_into", limit, keys(key));
  judge(t, key);
  std::string request;
  wire::encode_wait(request, prefix, keys(key));
  std::vector<std::string> values;
  lock l = core_->enter(t);
  static_cast<void>(read(l, t, request, true, values));
  const std::string& value = values.front();
  if (value.size() > buffer.size())
    throw error(core_->describe(t, errc::limit,
                                "the value has " + std::to_string(value.size()) + " bytes, the buffer " + std::to_string(buffer.size())));
  std::copy(value.begin(), value.end(), buffer.begin());
  return value.size();
}
inline std::optional<std::string> blocking_store::find(std::string_view key, limit_option limit) const {
  legacy::terms t = terms_of("find", limit, keys(key));
  judge(t, key);
  std::string request;
  wire::encode_wait(request, prefix, keys(key));
  std::vector<std::string> values;
  lock l = core_->enter(t);
  if (!read(l, t, request, false, values)) return std::nullopt;
  return std::move(values.front());
}
inline std::vector<std::string> blocking_store::multi_get(keys k, limit_option limit) const {
  legacy::terms t = terms_of("multi_get", limit, k);
  judge(t, k);
  std::string request;
  wire::encode_wait(request, prefix, k);
  std::vector<std::string> values;
  lock l = core_->enter(t);
  if (k.empty()) {  // its reply would have no bytes, so nothing would show that it came
    static_cast<void>(one_reply(l, t, legacy::check_none, wire::reply_form::u8, false));
  } else {
    static_cast<void>(read(l, t, request, true, values));
  }
  return values;
}

inline std::int64_t blocking_store::add(std::string_view key, std::int64_t delta, limit_option limit) const {
  legacy::terms t = terms_of("add", limit, keys(key));
  judge(t, key);
  std::string request;
  wire::encode_add(request, prefix, key, delta);
  lock l = core_->enter(t);
  return one_reply(l, t, request, wire::reply_form::i64, true).number;
}
inline bool blocking_store::check(keys k, limit_option limit) const {
  legacy::terms t = terms_of("check", limit, k);
  judge(t, k);
  std::string request;
  wire::encode_check(request, prefix, k);
  lock l = core_->enter(t);
  const std::int64_t answer = one_reply(l, t, request, wire::reply_form::u8, false).number;
  if (answer > wire::check_not_ready) throw error(core_->describe(t, errc::protocol, "the answer to CHECK is neither 0 nor 1"));
  return answer == wire::check_ready;
}
inline void blocking_store::wait(keys k, limit_option limit) const {
  legacy::terms t = terms_of("wait", limit, k);
  judge(t, k);
  std::string request;
  wire::encode_wait(request, prefix, k);
  lock l = core_->enter(t);
  static_cast<void>(wait_for(l, t, request));
}
inline bool blocking_store::delete_key(std::string_view key, limit_option limit) const {
  legacy::terms t = terms_of("delete_key", limit, keys(key));
  judge(t, key);
  std::string request;
  wire::encode_delete_key(request, prefix, key);
  lock l = core_->enter(t);
  return one_reply(l, t, request, wire::reply_form::i64, true).number != 0;
}
inline std::int64_t blocking_store::num_keys(limit_option limit) const {
  legacy::terms t = terms_of("num_keys", limit);
  std::string request;
  wire::encode_num_keys(request);
  lock l = core_->enter(t);
  return one_reply(l, t, request, wire::reply_form::i64, false).number;
}
inline std::string blocking_store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                               limit_option limit) const {
  legacy::terms t = terms_of("compare_set", limit, keys(key));
  judge(t, key, expected);
  judge(t, key, desired);
  std::string request;
  wire::encode_compare_set(request, prefix, key, expected, desired);
  lock l = core_->enter(t);
  return one_reply(l, t, request, wire::reply_form::bytes, true).bytes;
}

inline void blocking_store::queue_push(std::string_view key, std::string_view value, limit_option limit) const {
  legacy::terms t = terms_of("queue_push", limit, keys(key));
  judge(t, key, value);
  const std::string wire_key = std::string(prefix).append(key);
  std::string request;
  wire::encode_queue_push(request, {}, wire_key, value);
  lock l = core_->enter(t);
  need(l, t, legacy::family::queues, wire_key);
  fenced(l, t, request);
}
inline std::string blocking_store::queue_pop(std::string_view key, limit_option limit) const {
  legacy::terms t = terms_of("queue_pop", limit, keys(key));
  judge(t, key);
  const std::string wire_key = std::string(prefix).append(key);
  lock l = core_->enter(t);
  return *pop(l, t, wire_key, true);
}
inline std::optional<std::string> blocking_store::queue_pop_now(std::string_view key, limit_option limit) const {
  legacy::terms t = terms_of("queue_pop_now", limit, keys(key));
  judge(t, key);
  const std::string wire_key = std::string(prefix).append(key);
  lock l = core_->enter(t);
  return pop(l, t, wire_key, false);
}
inline std::int64_t blocking_store::queue_len(std::string_view key, limit_option limit) const {
  legacy::terms t = terms_of("queue_len", limit, keys(key));
  judge(t, key);
  const std::string wire_key = std::string(prefix).append(key);
  std::string request;
  wire::encode_queue_len(request, {}, wire_key);
  lock l = core_->enter(t);
  need(l, t, legacy::family::queues, wire_key);
  return one_reply(l, t, request, wire::reply_form::i64, false).number;
}
inline std::vector<std::string> blocking_store::list_keys(limit_option limit) const {
  legacy::terms t = terms_of("list_keys", limit);
  std::string request;
  wire::encode_list_keys(request);
  lock l = core_->enter(t);
  need(l, t, legacy::family::list_keys, {});
  const legacy::call::answer answer = one_reply(l, t, request, wire::reply_form::list, false);
  std::vector<std::string> all;
  for (wire::field_cursor fields(answer.bytes); !fields.done();)
    if (const std::string_view key = fields.next(); key.starts_with('/')) all.emplace_back(key.substr(1));
  return all;
}
inline void blocking_store::server_barrier(std::string_view key, std::int64_t world_size, limit_option limit) const {
  legacy::terms t = terms_of("server_barrier", limit, keys(key));
  judge(t, key);
  const std::string wire_key = std::string(prefix).append(key);
  std::string request;
  wire::encode_barrier(request, {}, wire_key, world_size);
  lock l = core_->enter(t);
  std::vector<std::string>& left = core_->arrivals();
  if (const auto at = std::find(left.begin(), left.end(), wire_key); at != left.end()) {
    left.erase(at);
    return resume_barrier(l, t, wire_key, world_size);
  }
  const bool known = core_->knows(legacy::family::barrier);
  legacy::call c;
  c.on = known ? core_->wait_lane(l, t, false) : core_->trial_lane(l, t);
  t.in_doubt = true;
  c.on->session().wait(c, request, false);
  const ending how = core_->await(l, t, c);
  if (how == ending::done) {
    if (!known) core_->learn(legacy::family::barrier, *c.on);
    return;
  }
  core_->leave(c);
  if (!known) core_->drop(c.on);
  if (!known && how == ending::lost && !core_->closed()) not_known(l, t, legacy::family::barrier, wire_key);
  if (how != ending::lost) left.push_back(wire_key);
  core_->give_up(t, &c, how);
}
inline duration blocking_store::ping(limit_option limit) const {
  legacy::terms t = terms_of("ping", limit);
  constexpr std::uint32_t nonce = 0x676e6970;
  std::string request;
  lock l = core_->enter(t);
  if (core_->takes_ping()) {
    wire::encode_ping(request, nonce);
    if (one_reply(l, t, request, wire::reply_form::u32, false).number != nonce)
      throw error(core_->describe(t, errc::protocol, "the answer to PING is another number"));
  } else {
    static_cast<void>(one_reply(l, t, legacy::check_none, wire::reply_form::u8, false));  // servers before 2.5 close at PING
  }
  return legacy::steady_now() - t.begun;
}

inline void blocking_store::send_set(std::string_view key, std::string_view value) const {
  legacy::terms t = terms_of("send_set", {}, keys(key));
  judge(t, key, value);
  std::string request;
  wire::encode_set(request, prefix, key, value);
  lock l = core_->enter(t);
  core_->send(l, t, request);
}
inline void blocking_store::send_append(std::string_view key, std::string_view value) const {
  legacy::terms t = terms_of("send_append", {}, keys(key));
  judge(t, key, value);
  std::string request;
  wire::encode_append(request, prefix, key, value);
  lock l = core_->enter(t);
  core_->send(l, t, request);
}
inline void blocking_store::send_multi_set(pairs p) const {
  const std::vector<std::string_view> names = judge(p, "send_multi_set");
  legacy::terms t = terms_of("send_multi_set", {}, keys(names));
  std::string request;
  wire::encode_multi_set(request, prefix, p);
  lock l = core_->enter(t);
  core_->send(l, t, request);
}
inline void blocking_store::send_queue_push(std::string_view key, std::string_view value) const {
  legacy::terms t = terms_of("send_queue_push", {}, keys(key));
  judge(t, key, value);
  std::string request;
  wire::encode_queue_push(request, prefix, key, value);
  lock l = core_->enter(t);
  if (!core_->knows(legacy::family::queues))
    throw error(core_->describe(t, errc::unsupported,
                                "whether this server has queues is not known yet; call queue_len, queue_push or queue_pop before"));
  core_->send(l, t, request);
}
inline void blocking_store::flush(limit_option limit) const {
  legacy::terms t = terms_of("flush", limit);
  lock l = core_->look();
  core_->begin(t);
  core_->flush_sends(l, t);
}

inline void blocking_store::close() const noexcept { give_back(*core_); }
inline void blocking_store::reconnect(deadline limit) const {
  legacy::terms t("reconnect", limit);
  lock l = core_->look();
  core_->begin(t);
  core_->reconnect(l, t);
}

}  // namespace v0
}  // namespace rollcall
