#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
/// Layer 1: bytes to messages and back. No socket, no policy; section numbers refer to the project's protocol description.
namespace wire {

/// First byte of every request (protocol 2). 14 and up are unknown to some peers, which close at them.
enum class opcode : std::uint8_t {
  validate = 0,      ///< u32 magic; no reply; the first message of a connection and only that
  set = 1,           ///< key, value; no reply
  compare_set = 2,   ///< key, expected, desired; bytes
  get = 3,           ///< key; bytes
  add = 4,           ///< key, i64; i64
  check = 5,         ///< count, keys; u8
  wait = 6,          ///< count, keys; u8, now or later
  num_keys = 7,      ///< nothing; i64
  delete_key = 8,    ///< key; i64, 0 or 1
  append = 9,        ///< key, value; no reply
  multi_get = 10,    ///< count, keys; bytes, count times
  multi_set = 11,    ///< count, (key, value) count times; no reply
  cancel_wait = 12,  ///< nothing; u8 = wait_canceled
  ping = 13,         ///< u32 nonce; the same u32
  queue_push = 14,   ///< key, value; no reply
  queue_pop = 15,    ///< key; i64 length before the pop, then bytes if it is > 0
  queue_len = 16,    ///< key; i64
  list_keys = 17,    ///< nothing; i64 n, then bytes n times
  barrier = 18,      ///< key, i64 world size; u8, now or later
};
inline constexpr std::size_t opcode_count = 19;

/// Carried by VALIDATE (protocol 2).
inline constexpr std::uint32_t validate_magic = 0x3C85F7CE;

/// One-byte replies (protocol 2); 0 means "yes" in both pairs.
inline constexpr std::uint8_t check_ready = 0;
inline constexpr std::uint8_t check_not_ready = 1;
inline constexpr std::uint8_t stop_waiting = 0;
inline constexpr std::uint8_t wait_canceled = 1;

/// The reserved key of the capability probe (protocol 17): outside the `/` name space of user keys, virtual, never stored.
inline constexpr std::string_view capability_key{"\0cap", 4};
/// Value of the reserved key: u32 version, u64 capability bits, then the instance id.
inline constexpr std::uint32_t capability_version = 1;
inline constexpr std::size_t instance_id_bytes = 16;
inline constexpr std::size_t capability_bytes = 4 + 8 + instance_id_bytes;

/// What a server accepts in one request; the defaults are those of PyTorch's libuv server (protocol 6) plus a total.
struct limits {
  limits() noexcept {}

  std::size_t max_key_bytes = 8192;                           ///< wire form, with the prefix
  std::size_t max_value_bytes = std::size_t{8} << 20;         ///< each value of a request
  std::uint64_t max_keys = 131072;                            ///< keys of CHECK, WAIT, MULTI_GET, MULTI_SET
  std::size_t max_request_bytes = std::size_t{256} << 20;     ///< a whole request, opcode included

  limits& key_bytes(std::size_t n) noexcept { return max_key_bytes = n, *this; }
  limits& value_bytes(std::size_t n) noexcept { return max_value_bytes = n, *this; }
  limits& key_count(std::uint64_t n) noexcept { return max_keys = n, *this; }
  limits& request_bytes(std::size_t n) noexcept { return max_request_bytes = n, *this; }
};

/// Upper-case name as in the protocol description; "?" for a value without a meaning.
[[nodiscard]] constexpr std::string_view to_string(opcode op) noexcept {
  switch (op) {
    case opcode::validate: return "VALIDATE";
    case opcode::set: return "SET";
    case opcode::compare_set: return "COMPARE_SET";
    case opcode::get: return "GET";
    case opcode::add: return "ADD";
    case opcode::check: return "CHECK";
    case opcode::wait: return "WAIT";
    case opcode::num_keys: return "GETNUMKEYS";
    case opcode::delete_key: return "DELETE_KEY";
    case opcode::append: return "APPEND";
    case opcode::multi_get: return "MULTI_GET";
    case opcode::multi_set: return "MULTI_SET";
    case opcode::cancel_wait: return "CANCEL_WAIT";
    case opcode::ping: return "PING";
    case opcode::queue_push: return "QUEUE_PUSH";
    case opcode::queue_pop: return "QUEUE_POP";
    case opcode::queue_len: return "QUEUE_LEN";
    case opcode::list_keys: return "LIST_KEYS";
    case opcode::barrier: return "BARRIER";
  }
  return "?";
}

namespace detail {

template <class T>
[[nodiscard]] constexpr T swapped(T v) noexcept {
  T out = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) out = static_cast<T>((out << 8) | ((v >> (8 * i)) & 0xff));
  return out;
}

}  // namespace detail

/// Reads a little-endian unsigned integer (protocol 1) from sizeof(T) bytes at `p`, any alignment.
template <class T>
[[nodiscard]] inline T load(char const* p) noexcept {
  T v;
  std::memcpy(&v, p, sizeof v);
  if constexpr (std::endian::native == std::endian::big) v = detail::swapped(v);
  return v;
}

/// Writes a little-endian unsigned integer to sizeof(T) bytes at `p`, any alignment.
template <class T>
inline void store(char* p, T v) noexcept {
  if constexpr (std::endian::native == std::endian::big) v = detail::swapped(v);
  std::memcpy(p, &v, sizeof v);
}

}  // namespace wire
}  // namespace v0
}  // namespace rollcall
