#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "detail/scanner.hpp"
#include "opcodes.hpp"

namespace rollcall {
inline namespace v0 {
namespace wire {

/// Walks a run of length-prefixed fields that a decoder has validated.
class field_cursor {
 public:
  explicit field_cursor(std::string_view run) noexcept : at_(run.data()), end_(run.data() + run.size()) {}
  [[nodiscard]] bool done() const noexcept { return at_ == end_; }
  /// The next field; only where !done().
  std::string_view next() noexcept {
    const auto n = static_cast<std::size_t>(load<std::uint64_t>(at_));
    const std::string_view field(at_ + 8, n);
    at_ += 8 + n;
    return field;
  }

 private:
  char const* at_;
  char const* end_;
};

/// One decoded request. Which members mean something depends on `op`; the others are unspecified.
struct request {
  opcode op = opcode::validate;
  std::uint32_t nonce = 0;     ///< PING
  std::string_view key;        ///< every request with exactly one key, CHECK, WAIT and MULTI_GET of one key among them
  std::string_view value;      ///< SET, APPEND, QUEUE_PUSH; the expected value of COMPARE_SET
  std::string_view value2;     ///< the desired value of COMPARE_SET
  std::int64_t number = 0;     ///< the delta of ADD, the world size of BARRIER
  std::uint64_t count = 0;     ///< keys (MULTI_SET: pairs) in `body`
  std::string_view body;       ///< CHECK, WAIT, MULTI_GET: the keys; MULTI_SET: key, value, key, value …; for field_cursor
};

namespace detail {

/// Restates protocol 2.
inline constexpr std::array<shape, opcode_count> request_shapes{{
    {0, false, 4},  // VALIDATE
    {2, false, 0},  // SET
    {3, false, 0},  // COMPARE_SET
    {1, false, 0},  // GET
    {1, false, 8},  // ADD
    {1, true, 0},   // CHECK
    {1, true, 0},   // WAIT
    {0, false, 0},  // GETNUMKEYS
    {1, false, 0},  // DELETE_KEY
    {2, false, 0},  // APPEND
    {1, true, 0},   // MULTI_GET
    {2, true, 0},   // MULTI_SET
    {0, false, 0},  // CANCEL_WAIT
    {0, false, 4},  // PING
    {2, false, 0},  // QUEUE_PUSH
    {1, false, 0},  // QUEUE_POP
    {1, false, 0},  // QUEUE_LEN
    {0, false, 0},  // LIST_KEYS
    {1, false, 8},  // BARRIER
}};

struct request_rules {
  limits const& max;
  /// Turns the count that was read into the number of fields that follow.
  [[nodiscard]] decode_error count(std::uint64_t& n, std::uint64_t columns) const noexcept {
    if (n > max.max_keys) return decode_error::too_many_keys;
    if (n > max.max_request_bytes / 8) return decode_error::request_too_long;
    n *= columns;
    return n > max.max_request_bytes / 8 ? decode_error::request_too_long : decode_error::none;
  }
  [[nodiscard]] decode_error field(std::uint64_t n, unsigned column, std::size_t at) const noexcept {
    if (column == 0) {
      if (n > max.max_key_bytes) return decode_error::key_too_long;
    } else if (n > max.max_value_bytes) {
      return decode_error::value_too_long;
    }
    return at > max.max_request_bytes || n > max.max_request_bytes - at ? decode_error::request_too_long : decode_error::none;
  }
};

}  // namespace detail

/// Server side: requests out of a byte stream that may be split anywhere.
///
/// A request that lies whole in the input is decoded in place and touches no heap. An incomplete one is kept, with exactly its own
/// bytes, and goes on where it stopped. Limits hold as soon as a length is read. The first message must be VALIDATE with the right
/// magic, later ones must not be (protocol 3.2; stricter than PyTorch's libuv server, 3.3).
class request_decoder {
 public:
  /// Takes the next request from the front of `input`. Call until it says need_more; an empty input is fine.
  ///
  /// input     advanced past what was taken; where the result is bad, unspecified.
  /// out       views into `input`'s bytes, or into this decoder; valid until the next call, and as long as the input's bytes.
  /// max       the same for all calls.
  /// throws    std::bad_alloc only; the connection is then to be closed.
  [[nodiscard]] decode_status next(std::string_view& input, request& out, limits const& max);

  [[nodiscard]] decode_error error() const noexcept { return error_; }
  /// Whether the peer has sent a correct VALIDATE.
  [[nodiscard]] bool validated() const noexcept { return validated_; }
  /// Whether part of a request has arrived and waits for the rest.
  [[nodiscard]] bool halfway() const noexcept { return partial_ && !partial_->done; }
  /// Bytes of heap held for an incomplete request.
  [[nodiscard]] std::size_t held() const noexcept { return partial_ ? sizeof *partial_ + partial_->bytes.capacity() : 0; }

 private:
  static bool take_whole(std::string_view& input, request& out, limits const& max) noexcept;
  decode_status first_look(std::string_view& input, request& out, limits const& max);
  decode_status resume(std::string_view& input, request& out, limits const& max);
  decode_status finish(char const* p, detail::scanner const& scan, request& out) noexcept;
  decode_status fail(decode_error e) noexcept {
    error_ = e;
    return decode_status::bad;
  }
  std::unique_ptr<detail::partial> partial_;
  decode_error error_ = decode_error::none;
  bool validated_ = false;
};
static_assert(sizeof(request_decoder) <= 2 * sizeof(void*));

inline decode_status request_decoder::next(std::string_view& input, request& out, limits const& max) {
  if (partial_) [[unlikely]] {
    if (!partial_->done) return resume(input, out, max);
    partial_.reset();
  }
  if (error_ != decode_error::none) [[unlikely]] return decode_status::bad;
  if (input.empty()) return decode_status::need_more;
  if (validated_ && take_whole(input, out, max)) [[likely]] return decode_status::complete;
  return first_look(input, out, max);
}

/// The short way for the requests of everyday: one key, whole in the input, within the limits. All others go through the scanner.
inline bool request_decoder::take_whole(std::string_view& input, request& out, limits const& max) noexcept {
  char const* const p = input.data();
  const std::size_t n = std::min(input.size(), max.max_request_bytes);
  std::size_t at = 0;
  const auto field = [p, n, &at](std::string_view& bytes, std::size_t longest) {  // the one whose length is at `at`
    if (n - at < 8) return false;
    const auto size = load<std::uint64_t>(p + at);
    at += 8;
    if (size > longest || size > n - at) return false;
    bytes = std::string_view(p + at, static_cast<std::size_t>(size));
    at += static_cast<std::size_t>(size);
    return true;
  };
  if (n == 0) return false;
  out.op = static_cast<opcode>(*p);
  at = 1;
  switch (out.op) {
    case opcode::get:
    case opcode::delete_key:
    case opcode::queue_pop:
    case opcode::queue_len:
      if (!field(out.key, max.max_key_bytes)) return false;
      break;
    case opcode::add:
    case opcode::barrier:
      if (!field(out.key, max.max_key_bytes) || n - at < 8) return false;
      out.number = static_cast<std::int64_t>(load<std::uint64_t>(p + at));
      at += 8;
      break;
    case opcode::set:
    case opcode::append:
    case opcode::queue_push:
      if (!field(out.key, max.max_key_bytes) || !field(out.value, max.max_value_bytes)) return false;
      break;
    case opcode::check:
    case opcode::wait:
      if (n < 9 || load<std::uint64_t>(p + 1) != 1 || max.max_keys == 0) return false;
      at = 9;
      if (!field(out.key, max.max_key_bytes)) return false;
      out.count = 1;
      out.body = std::string_view(p + 9, at - 9);
      break;
    default: return false;
  }
  input.remove_prefix(at);
  return true;
}

inline decode_status request_decoder::first_look(std::string_view& input, request& out, limits const& max) {
  const auto op = static_cast<std::uint8_t>(input[0]);
  if (!validated_) [[unlikely]] {
    if (op != static_cast<std::uint8_t>(opcode::validate)) return fail(decode_error::not_validated);
  } else if (op == static_cast<std::uint8_t>(opcode::validate)) [[unlikely]] {
    return fail(decode_error::validate_twice);
  }
  if (op >= opcode_count) [[unlikely]] return fail(decode_error::unknown_opcode);

  detail::scanner scan(detail::request_shapes[op], 1);
  switch (scan.advance(input.data(), input.size(), detail::request_rules{max}, error_)) {
    case decode_status::complete: {
      char const* const p = input.data();
      input.remove_prefix(scan.end());
      return finish(p, scan, out);
    }
    case decode_status::need_more:
      partial_ = std::make_unique<detail::partial>(scan);
      partial_->bytes.assign(input);
      input.remove_prefix(input.size());
      return decode_status::need_more;
    case decode_status::bad: break;
  }
  return decode_status::bad;
}

inline decode_status request_decoder::resume(std::string_view& input, request& out, limits const& max) {
  const decode_status s = partial_->feed(input, detail::request_rules{max}, error_);
  return s == decode_status::complete ? finish(partial_->bytes.data(), partial_->scan, out) : s;
}

inline decode_status request_decoder::finish(char const* p, detail::scanner const& scan, request& out) noexcept {
  const auto size_at = [](char const* at) { return static_cast<std::size_t>(load<std::uint64_t>(at)); };
  const detail::shape form = scan.form();
  out.op = static_cast<opcode>(*p);
  char const* at = p + 1;
  if (form.counted) {
    out.count = load<std::uint64_t>(at);
    out.body = std::string_view(at + 8, scan.end() - 9);
    if (out.count == 1) out.key = std::string_view(at + 16, size_at(at + 8));
    return decode_status::complete;
  }
  if (form.columns != 0) {
    out.key = std::string_view(at + 8, size_at(at));
    at = out.key.data() + out.key.size();
    if (form.columns > 1) {
      out.value = std::string_view(at + 8, size_at(at));
      at = out.value.data() + out.value.size();
      if (form.columns > 2) out.value2 = std::string_view(at + 8, size_at(at));
    } else if (form.tail != 0) {
      out.number = static_cast<std::int64_t>(load<std::uint64_t>(at));
    }
  } else if (form.tail != 0) {
    out.nonce = load<std::uint32_t>(at);
    if (out.op == opcode::validate) [[unlikely]] {
      if (out.nonce != validate_magic) return fail(decode_error::bad_magic);
      validated_ = true;
    }
  }
  return decode_status::complete;
}

/// What a client expects next on its stream; replies carry no tag of their own (protocol 8).
enum class reply_form : std::uint8_t {
  u8,      ///< CHECK, WAIT, BARRIER, CANCEL_WAIT
  u32,     ///< PING
  i64,     ///< ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN
  bytes,   ///< GET, COMPARE_SET
  many,    ///< MULTI_GET: as many values as keys were asked for
  popped,  ///< QUEUE_POP: i64 length before the pop, then bytes if that is > 0
  list,    ///< LIST_KEYS: i64 n, then bytes n times
};

/// One decoded reply. Which members mean something depends on the form.
struct reply {
  std::int64_t number = 0;    ///< u8, u32, i64; the length of popped, n of list
  std::string_view bytes;     ///< bytes; popped where number > 0
  std::uint64_t count = 0;    ///< fields in `body`
  std::string_view body;      ///< many, list: the values, for field_cursor
};

namespace detail {

struct reply_rules {
  std::size_t max;  // bytes of one reply
  bool popped;      // the number in front is a queue's length: one field follows if it is > 0
  [[nodiscard]] decode_error count(std::uint64_t& n, std::uint64_t) const noexcept {
    const bool negative = n >> 63 != 0;
    if (popped) {
      n = !negative && n != 0;
      return decode_error::none;
    }
    if (negative) return decode_error::negative_count;
    return n > max / 8 ? decode_error::reply_too_long : decode_error::none;
  }
  [[nodiscard]] decode_error field(std::uint64_t n, unsigned, std::size_t at) const noexcept {
    return at > max || n > max - at ? decode_error::reply_too_long : decode_error::none;
  }
};

}  // namespace detail

/// Client side: replies out of a byte stream that may be split anywhere. The same promises as request_decoder.
class reply_decoder {
 public:
  /// Largest reply accepted by default, in bytes: GET may exceed a request's limit after APPEND (protocol 6).
  static constexpr std::size_t default_max_bytes = std::size_t{4} << 30;

  explicit reply_decoder(std::size_t max_bytes = default_max_bytes) noexcept : max_(max_bytes) {}

  /// Says what comes next. To be called before the first next(), and again after each complete reply.
  ///
  /// count     for `many` only: how many values were asked for.
  /// discard   nobody wants the reply: value() is then unspecified.
  void expect(reply_form form, std::uint64_t count = 0, bool discard = false) noexcept;
  /// Takes the expected reply from the front of `input`; need_more takes all of it.
  [[nodiscard]] decode_status next(std::string_view& input);
  /// After complete: views into that call's input, or into this decoder; valid until the next call of expect() or next().
  [[nodiscard]] reply& value() noexcept { return value_; }

  [[nodiscard]] decode_error error() const noexcept { return error_; }
  /// Whether part of the reply has arrived and waits for the rest.
  [[nodiscard]] bool halfway() const noexcept { return partial_ && !partial_->done; }

 private:
  static constexpr detail::scanner start(reply_form form, std::uint64_t count) noexcept;
  void finish(char const* p, std::size_t end) noexcept;

  std::unique_ptr<detail::partial> partial_;
  std::size_t max_;
  std::uint64_t count_ = 0;
  reply value_;
  reply_form form_ = reply_form::u8;
  bool discard_ = false;
  decode_error error_ = decode_error::none;
};

constexpr detail::scanner reply_decoder::start(reply_form form, std::uint64_t count) noexcept {
  switch (form) {
    case reply_form::u8: return {{0, false, 1}, 0};
    case reply_form::u32: return {{0, false, 4}, 0};
    case reply_form::i64: return {{0, false, 8}, 0};
    case reply_form::bytes: return {{1, false, 0}, 0};
    case reply_form::many: return {{1, false, 0}, 0, count};
    case reply_form::popped:
    case reply_form::list: break;
  }
  return {{1, true, 0}, 0};
}

inline void reply_decoder::expect(reply_form form, std::uint64_t count, bool discard) noexcept {
  ROLLCALL_ASSERT(!halfway());
  partial_.reset();
  form_ = form;
  count_ = count;
  discard_ = discard;
}

inline decode_status reply_decoder::next(std::string_view& input) {
  if (error_ != decode_error::none) return decode_status::bad;
  const detail::reply_rules rules{max_, form_ == reply_form::popped};
  if (partial_) {
    const decode_status s = partial_->feed(input, rules, error_);
    if (s == decode_status::complete) finish(partial_->bytes.data(), partial_->scan.end());
    return s;
  }
  detail::scanner scan = start(form_, count_);
  const decode_status s = scan.advance(input.data(), input.size(), rules, error_);
  if (s == decode_status::complete) {
    char const* const p = input.data();
    input.remove_prefix(scan.end());
    finish(p, scan.end());
  } else if (s == decode_status::need_more && !input.empty()) {
    partial_ = std::make_unique<detail::partial>(scan);
    partial_->bytes.assign(input);
    input.remove_prefix(input.size());
  }
  return s;
}

inline void reply_decoder::finish(char const* p, std::size_t end) noexcept {
  if (discard_) return;
  const auto number = [p] { return static_cast<std::int64_t>(load<std::uint64_t>(p)); };
  switch (form_) {
    case reply_form::u8: value_.number = static_cast<std::uint8_t>(*p); break;
    case reply_form::u32: value_.number = load<std::uint32_t>(p); break;
    case reply_form::i64: value_.number = number(); break;
    case reply_form::bytes: value_.bytes = std::string_view(p + 8, end - 8); break;
    case reply_form::many:
      value_.count = count_;
      value_.body = std::string_view(p, end);
      break;
    case reply_form::popped:
      value_.number = number();
      value_.bytes = value_.number > 0 ? std::string_view(p + 16, end - 16) : std::string_view();
      break;
    case reply_form::list:
      value_.number = number();
      value_.count = static_cast<std::uint64_t>(value_.number);
      value_.body = std::string_view(p + 8, end - 8);
      break;
  }
}

}  // namespace wire
}  // namespace v0
}  // namespace rollcall
