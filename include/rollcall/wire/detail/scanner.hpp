#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "../opcodes.hpp"

namespace rollcall {
inline namespace v0 {
namespace wire {

enum class decode_status : std::uint8_t {
  complete,   ///< one message was taken from the front of the input
  need_more,  ///< all of the input was taken, and no message is complete
  bad,        ///< the peer broke the protocol, error() says how; every later call says bad again
};

enum class decode_error : std::uint8_t {
  none,
  unknown_opcode,
  key_too_long,
  value_too_long,
  too_many_keys,
  request_too_long,
  bad_magic,
  not_validated,   ///< the first message is not VALIDATE
  validate_twice,
  reply_too_long,
  negative_count,  ///< LIST_KEYS answered with less than 0
};

[[nodiscard]] constexpr std::string_view to_string(decode_error e) noexcept {
  switch (e) {
    case decode_error::none: return "no error";
    case decode_error::unknown_opcode: return "unknown opcode";
    case decode_error::key_too_long: return "key too long";
    case decode_error::value_too_long: return "value too long";
    case decode_error::too_many_keys: return "too many keys";
    case decode_error::request_too_long: return "request too long";
    case decode_error::bad_magic: return "VALIDATE with a wrong magic";
    case decode_error::not_validated: return "first message is not VALIDATE";
    case decode_error::validate_twice: return "second VALIDATE";
    case decode_error::reply_too_long: return "reply too long";
    case decode_error::negative_count: return "negative count";
  }
  return "unknown error";
}

namespace detail {

/// What follows the opcode: `columns` length-prefixed fields (the first one a key), a count before them if they repeat, and a
/// fixed tail of `tail` bytes.
struct shape {
  std::uint8_t columns;
  bool counted;
  std::uint8_t tail;
};

/// How far into a message the bytes have been understood. Never goes back: what lies before `at` is not looked at again.
class scanner {
 public:
  /// `start`: offset of the first byte after the opcode. Replies have no opcode and no keys.
  constexpr scanner(shape s, std::size_t start) noexcept : scanner(s, start, s.counted ? 0 : s.columns) {}
  constexpr scanner(shape s, std::size_t start, std::uint64_t fields) noexcept
      : at_(start), left_(fields), shape_(s), counting_(s.counted) {}

  /// Looks at the first `n` bytes of a message. complete: it is `end()` bytes long. need_more: `need()` bytes are needed to get on.
  template <class Rules>
  decode_status advance(char const* p, std::size_t n, Rules const& rules, decode_error& error) noexcept {
    if (counting_) {
      if (n < at_ + 8) return wants(at_ + 8);
      left_ = load<std::uint64_t>(p + at_);
      at_ += 8;
      if ((error = rules.count(left_, shape_.columns)) != decode_error::none) return decode_status::bad;
      counting_ = false;
    }
    while (left_ != 0) {
      if (n < at_ + 8) return wants(at_ + 8);
      const auto size = load<std::uint64_t>(p + at_);
      if ((error = rules.field(size, column_, at_ + 8)) != decode_error::none) [[unlikely]] return decode_status::bad;
      const std::size_t end = at_ + 8 + static_cast<std::size_t>(size);
      if (n < end) return wants(end);
      at_ = end;
      if (++column_ == shape_.columns) column_ = 0;
      --left_;
    }
    if (n < at_ + shape_.tail) return wants(at_ + shape_.tail);
    return decode_status::complete;
  }
  [[nodiscard]] std::size_t need() const noexcept { return need_; }
  [[nodiscard]] std::size_t end() const noexcept { return at_ + shape_.tail; }
  [[nodiscard]] shape form() const noexcept { return shape_; }

 private:
  decode_status wants(std::size_t n) noexcept {
    need_ = n;
    return decode_status::need_more;
  }
  std::size_t at_;
  std::size_t need_ = 0;
  std::uint64_t left_;  // fields still to come
  shape shape_;
  bool counting_;  // the count is still to come
  std::uint8_t column_ = 0;
};

/// The bytes of one incomplete message. Grows with bytes that arrived, whatever sizes they declare.
struct partial {
  explicit partial(scanner const& s) noexcept : scan(s) {}

  /// Moves bytes from `input` until the message is complete or the input is used up.
  template <class Rules>
  decode_status feed(std::string_view& input, Rules const& rules, decode_error& error) {
    for (;;) {
      if (scan.need() > bytes.size()) {
        const std::size_t n = std::min(scan.need() - bytes.size(), input.size());
        bytes.append(input.data(), n);
        input.remove_prefix(n);
        if (bytes.size() < scan.need()) return decode_status::need_more;
      }
      const decode_status s = scan.advance(bytes.data(), bytes.size(), rules, error);
      if (s != decode_status::need_more) {
        done = true;
        return s;
      }
    }
  }
  scanner scan;
  bool done = false;
  std::string bytes;
};

}  // namespace detail
}  // namespace wire
}  // namespace v0
}  // namespace rollcall
