#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "../../wire/decode.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {
namespace detail {

/// One reply of the form `bytes` that is put where it is wanted as it arrives, without a copy in between.
class direct_reply {
 public:
  /// Takes bytes of the reply from the front of `input`. `room`: where the value goes if it fits; it may be gone (empty) at a later call.
  /// Where the result is complete, `out.number` is the value's size and `out.bytes` the value, if it had room.
  wire::decode_status next(std::string_view& input, std::span<char> room, wire::reply& out) noexcept {
    while (head_ < sizeof size_bytes_ && !input.empty()) {
      size_bytes_[head_++] = input.front();
      input.remove_prefix(1);
    }
    if (head_ < sizeof size_bytes_) return wire::decode_status::need_more;
    const auto size = wire::load<std::uint64_t>(size_bytes_);
    if (size > wire::reply_decoder::default_max_bytes) return wire::decode_status::bad;
    const std::size_t n = std::min(static_cast<std::size_t>(size) - got_, input.size());
    const bool fits = size <= room.size();
    if (fits && n > 0) std::memcpy(room.data() + got_, input.data(), n);
    got_ += n;
    input.remove_prefix(n);
    if (got_ < size) return wire::decode_status::need_more;
    out.number = static_cast<std::int64_t>(size);
    out.bytes = fits ? std::string_view(room.data(), got_) : std::string_view();
    return wire::decode_status::complete;
  }

 private:
  char size_bytes_[8] = {};
  std::size_t head_ = 0;
  std::size_t got_ = 0;
};

}  // namespace detail
}  // namespace engine
}  // namespace v0
}  // namespace rollcall
