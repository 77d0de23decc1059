#pragma once
#include <charconv>
#include <cstring>
#include <memory>

#include "../../wire/encode.hpp"
#include "../store.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

namespace detail {

[[nodiscard]] inline bool is_reserved(std::string_view key) noexcept { return key == wire::capability_key; }

/// Room for any 64-bit number in decimal.
struct number_text {
  explicit number_text(std::int64_t n) noexcept
      : size(static_cast<std::size_t>(std::to_chars(text, text + sizeof text, n).ptr - text)) {}
  [[nodiscard]] std::string_view view() const noexcept { return {text, size}; }
  char text[20];
  std::size_t size;
};
static_assert(sizeof(number_text::text) <= blob_ref::min_capacity);

/// Reads like C's strtoll in base 10 (protocol 4.2): leading white space, a sign, digits; what follows is ignored.
[[nodiscard]] inline apply_status parse_number(std::string_view text, std::int64_t& out) noexcept {
  char const* p = text.data();
  char const* const end = p + text.size();
  while (p != end && (*p == ' ' || (*p >= '\t' && *p <= '\r'))) ++p;
  const bool negative = p != end && *p == '-';
  if (negative || (p != end && *p == '+')) ++p;
  char const* const digits = p;
  std::uint64_t n = 0;
  for (; p != end; ++p) {
    const unsigned digit = static_cast<unsigned char>(*p) - unsigned{'0'};
    if (digit > 9) break;
    if (n > UINT64_MAX / 10 - 1) return apply_status::number_overflow;  // far past 64 signed bits
    n = n * 10 + digit;
  }
  if (p == digits) return apply_status::not_a_number;
  constexpr std::uint64_t half = std::uint64_t{1} << 63;
  if (n > half || (n == half && !negative)) return apply_status::number_overflow;
  out = static_cast<std::int64_t>(negative ? 0 - n : n);
  return apply_status::ok;
}

inline void put_value(wire::write_batch& out, blob_ref const& value) {
  const std::string_view v = value.view();
  if (v.size() < wire::write_batch::reference_from) [[likely]] {
    char* p = out.extend(8 + v.size());
    wire::store(p, std::uint64_t{v.size()});
    if (!v.empty()) std::memcpy(p + 8, v.data(), v.size());
  } else {
    wire::store(out.extend(8), std::uint64_t{v.size()});
    out.append_blob(value);
  }
}
inline void put_i64(wire::write_batch& out, std::int64_t v) { wire::store(out.extend(8), static_cast<std::uint64_t>(v)); }
inline void put_u8(wire::write_batch& out, std::uint8_t v) { *out.extend(1) = static_cast<char>(v); }

}  // namespace detail

inline apply_status store::execute(client& c, wire::request const& r, wire::write_batch& out) {
  using wire::opcode;
  switch (r.op) {
    case opcode::validate: return apply_status::ok;
    case opcode::set: return set(c, r.key, r.value, out);
    case opcode::compare_set: return compare_set(c, r, out);
    case opcode::get: return get(r.key, out);
    case opcode::add: return add(c, r.key, r.number, out);
    case opcode::check: return check(r, out);
    case opcode::wait: return wait(c, r, out);
    case opcode::num_keys: detail::put_i64(out, static_cast<std::int64_t>(keys_)); return apply_status::ok;
    case opcode::delete_key: return delete_key(r.key, out);
    case opcode::append: return append(c, r.key, r.value, out);
    case opcode::multi_get: return multi_get(r, out);
    case opcode::multi_set: return multi_set(c, r, out);
    case opcode::cancel_wait: cancel_wait(c, out); return apply_status::ok;
    case opcode::ping: wire::put_u32(out, r.nonce); return apply_status::ok;
    case opcode::queue_push: return queue_push(c, r.key, r.value, out);
    case opcode::queue_pop: return queue_pop(r.key, out);
    case opcode::queue_len: return queue_len(r.key, out);
    case opcode::list_keys: return list_keys(out);
    case opcode::barrier: return barrier(c, r.key, r.number, out);
  }
  return apply_status::ok;
}

inline apply_status store::get(std::string_view key, wire::write_batch& out) {
  if (detail::is_reserved(key)) [[unlikely]] {
    wire::put_bytes(out, {capability_.data(), capability_.size()});
    return apply_status::ok;
  }
  entry const* e = table_.find(key, table_.hash(key));
  if (e) [[likely]] {
    detail::put_value(out, e->value);
  } else {
    detail::put_i64(out, 0);
  }
  return apply_status::ok;
}

inline apply_status store::set(client& c, std::string_view key, std::string_view value, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  const std::uint64_t hash = table_.hash(key);
  entry* e = table_.find(key, hash);
  if (const apply_status s = put(e, key, hash, value); s != apply_status::ok) return s;
  wake_all(*e);
  deliver(c, out);
  return apply_status::ok;
}

inline apply_status store::compare_set(client& c, wire::request const& r, wire::write_batch& out) {
  if (detail::is_reserved(r.key)) return apply_status::reserved_key;
  const std::uint64_t hash = table_.hash(r.key);
  entry* e = table_.find(r.key, hash);
  const bool present = e && e->present();
  if (present ? e->value.view() != r.value : !r.value.empty()) {  // protocol 4.1, rows 2 and 4
    if (present) {
      detail::put_value(out, e->value);
    } else {
      wire::put_bytes(out, r.value);
    }
    return apply_status::ok;
  }
  if (const apply_status s = put(e, r.key, hash, r.value2); s != apply_status::ok) return s;
  wake_all(*e);
  deliver(c, out);
  detail::put_value(out, e->value);
  return apply_status::ok;
}

inline apply_status store::add(client& c, std::string_view key, std::int64_t delta, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  const std::uint64_t hash = table_.hash(key);
  entry* e = table_.find(key, hash);
  std::int64_t sum = delta;
  if (e && e->present()) {
    std::int64_t old = 0;
    if (const apply_status s = detail::parse_number(e->value.view(), old); s != apply_status::ok) return s;
    if (__builtin_add_overflow(old, delta, &sum)) return apply_status::number_overflow;
  }
  if (const apply_status s = put(e, key, hash, detail::number_text(sum).view()); s != apply_status::ok) return s;
  if (e->first_waiter) {
    wake_all(*e);
    deliver(c, out);
  }
  detail::put_i64(out, sum);
  return apply_status::ok;
}

inline apply_status store::check(wire::request const& r, wire::write_batch& out) {
  const auto ready = [this](std::string_view key) {
    if (detail::is_reserved(key)) return true;
    entry const* e = table_.find(key, table_.hash(key));
    return e && e->ready();
  };
  bool all = true;
  if (r.count == 1) {
    all = ready(r.key);
  } else {
    for (wire::field_cursor k(r.body); all && !k.done();) all = ready(k.next());
  }
  detail::put_u8(out, all ? wire::check_ready : wire::check_not_ready);
  return apply_status::ok;
}

inline apply_status store::wait(client& c, wire::request const& r, wire::write_batch& out) {
  pending_wait* w = nullptr;
  for (wire::field_cursor k(r.body); !k.done();) {
    const std::string_view key = k.next();
    if (detail::is_reserved(key)) continue;
    const std::uint64_t hash = table_.hash(key);
    entry* e = table_.find(key, hash);
    if (e && e->ready()) continue;
    if (const apply_status s = await(c, w, e, key, hash); s != apply_status::ok) return s;
  }
  if (!w) detail::put_u8(out, wire::stop_waiting);
  return apply_status::ok;
}

inline void store::cancel_wait(client& c, wire::write_batch& out) {
  waiters_.cancel(c, [this](entry& e) { collect(e); });
  detail::put_u8(out, wire::wait_canceled);
}

inline apply_status store::delete_key(std::string_view key, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  entry* e = table_.find(key, table_.hash(key));
  const bool present = e && e->present();
  detail::put_i64(out, present);
  if (present) {
    stored_ -= e->value.size();
    e->value = blob_ref();
    if (!detail::is_own(key)) [[likely]] {
      --keys_;
      key_bytes_ -= key.size();
    }
    collect(*e);
  }
  return apply_status::ok;
}

inline apply_status store::append(client& c, std::string_view key, std::string_view value, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  const std::uint64_t hash = table_.hash(key);
  entry* e = table_.find(key, hash);
  const std::size_t old = e ? e->value.size() : 0;
  if (value.size() > options_.max_appended_bytes || old > options_.max_appended_bytes - value.size())
    return apply_status::value_too_long;
  if (e && e->present()) {
    if (!fits(value.size())) return apply_status::store_full;
    e->value.append(value);
    stored_ += value.size();
  } else if (const apply_status s = put(e, key, hash, value); s != apply_status::ok) {
    return s;
  }
  wake_all(*e);
  deliver(c, out);
  return apply_status::ok;
}

inline apply_status store::multi_get(wire::request const& r, wire::write_batch& out) {
  const wire::write_batch::mark before = out.position();
  std::size_t copied = 0;
  for (wire::field_cursor k(r.body); !k.done();) {
    const std::string_view key = k.next();
    entry const* e = detail::is_reserved(key) ? nullptr : table_.find(key, table_.hash(key));
    copied += 8 + (e && e->value.size() < wire::write_batch::reference_from ? e->value.size() : 0);
    if (copied > options_.max_reply_bytes) {
      out.rewind(before);
      return apply_status::reply_too_long;
    }
    if (e) {
      detail::put_value(out, e->value);
    } else if (const apply_status s = get(key, out); s != apply_status::ok) {
      return s;
    }
  }
  return apply_status::ok;
}

inline apply_status store::multi_set(client& c, wire::request const& r, wire::write_batch& out) {
  std::uint64_t growth = 0;  // at the most: a key that is given twice is counted twice
  for (wire::field_cursor pairs(r.body); !pairs.done();) {
    const std::string_view key = pairs.next();
    const std::string_view value = pairs.next();
    if (detail::is_reserved(key)) return apply_status::reserved_key;
    entry const* e = table_.find(key, table_.hash(key));
    const std::size_t old = e ? e->value.size() : 0;
    growth += (value.size() > old ? value.size() - old : 0) + (e ? 0 : key_cost + key.size());
  }
  if (!fits(growth)) return apply_status::store_full;
  for (wire::field_cursor pairs(r.body); !pairs.done();) {
    const std::string_view key = pairs.next();
    const std::string_view value = pairs.next();
    const std::uint64_t hash = table_.hash(key);
    entry* e = table_.find(key, hash);
    if (const apply_status s = put(e, key, hash, value); s != apply_status::ok) return s;
    wake_all(*e);
  }
  deliver(c, out);
  return apply_status::ok;
}

inline apply_status store::queue_push(client& c, std::string_view key, std::string_view value, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  const std::uint64_t hash = table_.hash(key);
  entry* e = table_.find(key, hash);
  if (!fits(item_cost + value.size() + (e ? 0 : key_cost + key.size())) || (e && e->queued == UINT32_MAX))
    return apply_status::store_full;
  auto item = std::make_unique<queue_item>(nullptr, blob_ref(value));
  if (!e) e = &insert(key, hash);
  e->push(item.release());
  stored_ += item_cost + value.size();
  wake_one(*e);
  deliver(c, out);
  return apply_status::ok;
}

inline apply_status store::queue_pop(std::string_view key, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  entry* e = table_.find(key, table_.hash(key));
  if (!e || e->queued == 0) {
    detail::put_i64(out, 0);
    return apply_status::ok;
  }
  blob_ref const& head = e->queue_tail->next->value;
  detail::put_i64(out, e->queued);
  detail::put_value(out, head);
  stored_ -= item_cost + head.size();
  delete e->pop();
  collect(*e);
  return apply_status::ok;
}

inline apply_status store::queue_len(std::string_view key, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  entry const* e = table_.find(key, table_.hash(key));
  detail::put_i64(out, e ? e->queued : 0);
  return apply_status::ok;
}

inline apply_status store::list_keys(wire::write_batch& out) {
  const std::uint64_t size = 8 + 8 * keys_ + key_bytes_;
  if (size > options_.max_reply_bytes) return apply_status::reply_too_long;
  char* p = out.extend(static_cast<std::size_t>(size));
  wire::store(p, keys_);
  p += 8;
  table_.for_each([&p](entry const& e) {
    if (!e.present() || detail::is_own(e.key())) return;
    wire::store(p, std::uint64_t{e.key_size});
    if (e.key_size != 0) std::memcpy(p + 8, e.key().data(), e.key_size);
    p += 8 + e.key_size;
  });
  return apply_status::ok;
}

inline apply_status store::barrier(client& c, std::string_view key, std::int64_t world_size, wire::write_batch& out) {
  if (detail::is_reserved(key)) return apply_status::reserved_key;
  const std::uint64_t hash = table_.hash(key);
  entry* e = table_.find(key, hash);
  std::int64_t count = 0;
  if (e && e->present()) {
    if (const apply_status s = detail::parse_number(e->value.view(), count); s != apply_status::ok) return s;
  }
  if (__builtin_add_overflow(count, 1, &count)) return apply_status::number_overflow;
  const bool complete = count >= world_size;
  if (!complete && c.awaited_keys() >= options_.max_awaited_keys) return apply_status::too_many_waits;
  if (const apply_status s = put(e, key, hash, detail::number_text(count).view()); s != apply_status::ok) return s;
  if (complete) {
    wake_all(*e);
    deliver(c, out);
    detail::put_u8(out, wire::stop_waiting);
    return apply_status::ok;
  }
  pending_wait* w = nullptr;
  return await(c, w, e, key, hash);
}

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
