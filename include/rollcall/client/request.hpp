#pragma once
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// The encoded request of an operation: short ones inside the operation, long ones on the heap.
class request_bytes {
 public:
  request_bytes() noexcept {}
  request_bytes(request_bytes&& o) noexcept : size_(o.size_), far_(std::move(o.far_)) {
    if (size_ <= inside) std::memcpy(near_, o.near_, size_);
  }
  void append(char const* p, std::size_t n) {
    if (size_ + n <= inside) {
      std::memcpy(near_ + size_, p, n);
    } else {
      if (size_ <= inside) far_.assign(near_, size_);
      far_.append(p, n);
    }
    size_ += n;
  }
  [[nodiscard]] std::string_view view() const noexcept {
    return size_ <= inside ? std::string_view(near_, size_) : std::string_view(far_);
  }

 private:
  static constexpr std::size_t inside = 96;
  std::size_t size_ = 0;
  char near_[inside];
  std::string far_;
};

/// What nobody stores: COMPARE_SET(key, this, this) changes nothing, and answers this only where the key is missing (protocol 4.1).
inline constexpr std::string_view absent_key("\0rollcall:none\0\0", 16);
/// The two values of that request, as they are sent.
[[nodiscard]] inline std::string absent_twice() {
  std::string bytes(2 * (8 + absent_key.size()), '\0');
  for (std::size_t at = 0; at < bytes.size(); at += bytes.size() / 2) {
    bytes[at] = static_cast<char>(absent_key.size());
    bytes.replace(at + 8, absent_key.size(), absent_key);
  }
  return bytes;
}

enum class op_kind : unsigned char {
  set, get, find, add, check, wait, delete_key, num_keys, compare_set, append, multi_get, multi_set, fetch, multi_fetch
};

[[nodiscard]] constexpr std::string_view to_string(op_kind k) noexcept {
  constexpr std::string_view names[] = {"set",      "get",         "find",   "add",       "check",     "wait", "delete_key",
                                        "num_keys", "compare_set", "append", "multi_get", "multi_set", "get",       "multi_get"};
  return names[static_cast<std::size_t>(k)];
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
