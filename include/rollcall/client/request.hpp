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
