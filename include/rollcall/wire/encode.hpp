#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "../core/bytes.hpp"
#include "opcodes.hpp"

namespace rollcall {
inline namespace v0 {
namespace wire {

/// Every function appends one whole message to `out`, anything with `append(char const*, std::size_t)`, for example a std::string.
/// Requests put `prefix` in front of each key on the wire: "/" for user keys, "" for raw ones such as `init/` (protocol 1).
/// Nothing is checked against limits; nothing is kept.

template <class Buffer>
void put_u8(Buffer& out, std::uint8_t v) {
  const char c = static_cast<char>(v);
  out.append(&c, std::size_t{1});
}
template <class Buffer>
void put_u32(Buffer& out, std::uint32_t v) {
  char b[4];
  store(b, v);
  out.append(b, sizeof b);
}
template <class Buffer>
void put_u64(Buffer& out, std::uint64_t v) {
  char b[8];
  store(b, v);
  out.append(b, sizeof b);
}
template <class Buffer>
void put_i64(Buffer& out, std::int64_t v) {
  put_u64(out, static_cast<std::uint64_t>(v));
}
/// u64 length, then the bytes (protocol 1).
template <class Buffer>
void put_bytes(Buffer& out, std::string_view bytes) {
  put_u64(out, bytes.size());
  if (!bytes.empty()) out.append(bytes.data(), bytes.size());
}
template <class Buffer>
void put_key(Buffer& out, std::string_view prefix, std::string_view key) {
  put_u64(out, prefix.size() + key.size());
  if (!prefix.empty()) out.append(prefix.data(), prefix.size());
  if (!key.empty()) out.append(key.data(), key.size());
}

namespace detail {

template <class Buffer>
void put_opcode(Buffer& out, opcode op) {
  put_u8(out, static_cast<std::uint8_t>(op));
}
template <class Buffer>
void put_one_key(Buffer& out, opcode op, std::string_view prefix, std::string_view key) {
  put_opcode(out, op);
  put_key(out, prefix, key);
}
template <class Buffer>
void put_key_value(Buffer& out, opcode op, std::string_view prefix, std::string_view key, std::string_view value) {
  put_one_key(out, op, prefix, key);
  put_bytes(out, value);
}
template <class Buffer>
void put_key_number(Buffer& out, opcode op, std::string_view prefix, std::string_view key, std::int64_t number) {
  put_one_key(out, op, prefix, key);
  put_i64(out, number);
}
template <class Buffer>
void put_keys(Buffer& out, opcode op, std::string_view prefix, keys const& k) {
  put_opcode(out, op);
  put_u64(out, k.size());
  for (std::size_t i = 0; i < k.size(); ++i) put_key(out, prefix, k[i]);
}

}  // namespace detail

template <class Buffer>
void encode_validate(Buffer& out) {
  detail::put_opcode(out, opcode::validate);
  put_u32(out, validate_magic);
}
template <class Buffer>
void encode_set(Buffer& out, std::string_view prefix, std::string_view key, std::string_view value) {
  detail::put_key_value(out, opcode::set, prefix, key, value);
}
template <class Buffer>
void encode_compare_set(Buffer& out, std::string_view prefix, std::string_view key, std::string_view expected,
                        std::string_view desired) {
  detail::put_key_value(out, opcode::compare_set, prefix, key, expected);
  put_bytes(out, desired);
}
template <class Buffer>
void encode_get(Buffer& out, std::string_view prefix, std::string_view key) {
  detail::put_one_key(out, opcode::get, prefix, key);
}
template <class Buffer>
void encode_add(Buffer& out, std::string_view prefix, std::string_view key, std::int64_t delta) {
  detail::put_key_number(out, opcode::add, prefix, key, delta);
}
template <class Buffer>
void encode_check(Buffer& out, std::string_view prefix, keys const& k) {
  detail::put_keys(out, opcode::check, prefix, k);
}
template <class Buffer>
void encode_wait(Buffer& out, std::string_view prefix, keys const& k) {
  detail::put_keys(out, opcode::wait, prefix, k);
}
template <class Buffer>
void encode_num_keys(Buffer& out) {
  detail::put_opcode(out, opcode::num_keys);
}
template <class Buffer>
void encode_delete_key(Buffer& out, std::string_view prefix, std::string_view key) {
  detail::put_one_key(out, opcode::delete_key, prefix, key);
}
template <class Buffer>
void encode_append(Buffer& out, std::string_view prefix, std::string_view key, std::string_view value) {
  detail::put_key_value(out, opcode::append, prefix, key, value);
}
template <class Buffer>
void encode_multi_get(Buffer& out, std::string_view prefix, keys const& k) {
  detail::put_keys(out, opcode::multi_get, prefix, k);
}
/// `pairs`: a sized range whose elements decompose into a key and a value, `for (auto const& [key, value] : pairs)`.
template <class Buffer, class Pairs>
void encode_multi_set(Buffer& out, std::string_view prefix, Pairs const& pairs) {
  detail::put_opcode(out, opcode::multi_set);
  put_u64(out, std::size(pairs));
  for (auto const& [key, value] : pairs) {
    put_key(out, prefix, key);
    put_bytes(out, value);
  }
}
template <class Buffer>
void encode_cancel_wait(Buffer& out) {
  detail::put_opcode(out, opcode::cancel_wait);
}
template <class Buffer>
void encode_ping(Buffer& out, std::uint32_t nonce) {
  detail::put_opcode(out, opcode::ping);
  put_u32(out, nonce);
}
template <class Buffer>
void encode_queue_push(Buffer& out, std::string_view prefix, std::string_view key, std::string_view value) {
  detail::put_key_value(out, opcode::queue_push, prefix, key, value);
}
template <class Buffer>
void encode_queue_pop(Buffer& out, std::string_view prefix, std::string_view key) {
  detail::put_one_key(out, opcode::queue_pop, prefix, key);
}
template <class Buffer>
void encode_queue_len(Buffer& out, std::string_view prefix, std::string_view key) {
  detail::put_one_key(out, opcode::queue_len, prefix, key);
}
template <class Buffer>
void encode_list_keys(Buffer& out) {
  detail::put_opcode(out, opcode::list_keys);
}
template <class Buffer>
void encode_barrier(Buffer& out, std::string_view prefix, std::string_view key, std::int64_t world_size) {
  detail::put_key_number(out, opcode::barrier, prefix, key, world_size);
}

}  // namespace wire
}  // namespace v0
}  // namespace rollcall
