#pragma once
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Buffers that long requests were encoded in and the next ones will be, so that a steady flow of them allocates nothing.
class spare_buffers {
 public:
  [[nodiscard]] std::string take() noexcept {
    std::string s;
    if (kept_.empty()) return s;
    s.swap(kept_.back());
    kept_.pop_back();
    return s;
  }
  void give(std::string& s) noexcept {
    if (kept_.size() == most || s.capacity() > largest) return;
    try {
      if (kept_.capacity() == 0) kept_.reserve(most);
    } catch (std::bad_alloc const&) {
      return;
    }
    s.clear();
    kept_.push_back(std::move(s));
  }

 private:
  static constexpr std::size_t most = 16;
  static constexpr std::size_t largest = 64 * 1024;
  std::vector<std::string> kept_;
};

/// The encoded request of an operation: short ones inside the operation, long ones on the heap.
class request_bytes {
 public:
  explicit request_bytes(spare_buffers& spares) noexcept : spares_(&spares) {}
  request_bytes(request_bytes&& o) noexcept : size_(o.size_), far_(std::move(o.far_)), spares_(o.spares_) {
    if (size_ <= inside) std::memcpy(near_, o.near_, size_);
  }
  /// Before the spares may be gone; nothing is in it afterwards.
  void release() noexcept {
    if (size_ > inside && far_.capacity() > inside) spares_->give(far_);
    size_ = 0;
  }
  void append(char const* p, std::size_t n) {
    if (size_ + n <= inside) {
      std::memcpy(near_ + size_, p, n);
    } else {
      if (size_ <= inside) {
        if (far_.capacity() < size_ + n) far_ = spares_->take();
        far_.assign(near_, size_);
      }
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
  spare_buffers* spares_;
};

/// What nobody stores: COMPARE_SET(key, this, this) changes nothing, and answers this only where the key is missing (protocol 4.1).
inline constexpr std::string_view absent_key("\0rollcall:none\0\0", 16);
/// The two values of that request, as they are sent.
inline constexpr std::string_view absent_twice(
    "\x10\0\0\0\0\0\0\0\0rollcall:none\0\0"
    "\x10\0\0\0\0\0\0\0\0rollcall:none\0\0",
    48);

enum class op_kind : unsigned char {
  set,
  get,
  find,
  add,
  check,
  wait,
  delete_key,
  num_keys,
  compare_set,
  append,
  multi_get,
  multi_set,
  fetch,
  multi_fetch,
  get_into,
  queue_push,
  queue_pop,
  queue_pop_now,
  queue_len,
  list_keys,
  server_barrier,
  ping,
  flush,
};

/// Opcodes that came into the protocol together, so that a server knows all of a family or none (protocol 2).
enum class op_family : unsigned char { common, queues, list_keys, barrier };
inline constexpr std::size_t op_family_count = 4;

/// What is fixed for each kind of operation.
struct op_traits {
  std::string_view name;
  bool counts_keys;  // the encoded request counts its keys (CHECK and WAIT do; reads are kept as the WAIT they may become)
  bool has_key;      // it names one or more keys
  op_family family;
};

[[nodiscard]] constexpr op_traits traits_of(op_kind k) noexcept {
  constexpr op_family common = op_family::common;
  switch (k) {
    case op_kind::set: return {"set", false, true, common};
    case op_kind::get: return {"get", true, true, common};
    case op_kind::find: return {"find", true, true, common};
    case op_kind::add: return {"add", false, true, common};
    case op_kind::check: return {"check", true, true, common};
    case op_kind::wait: return {"wait", true, true, common};
    case op_kind::delete_key: return {"delete_key", false, true, common};
    case op_kind::num_keys: return {"num_keys", false, false, common};
    case op_kind::compare_set: return {"compare_set", false, true, common};
    case op_kind::append: return {"append", false, true, common};
    case op_kind::multi_get: return {"multi_get", true, true, common};
    case op_kind::multi_set: return {"multi_set", true, true, common};
    case op_kind::fetch: return {"get", false, true, common};
    case op_kind::multi_fetch: return {"multi_get", true, true, common};
    case op_kind::get_into: return {"get_into", true, true, common};
    case op_kind::queue_push: return {"queue_push", false, true, op_family::queues};
    case op_kind::queue_pop: return {"queue_pop", true, true, op_family::queues};
    case op_kind::queue_pop_now: return {"queue_pop_now", true, true, op_family::queues};
    case op_kind::queue_len: return {"queue_len", false, true, op_family::queues};
    case op_kind::list_keys: return {"list_keys", false, false, op_family::list_keys};
    case op_kind::server_barrier: return {"server_barrier", false, true, op_family::barrier};
    case op_kind::ping: return {"ping", false, false, common};
    case op_kind::flush: return {"flush", false, false, common};
  }
  return {};
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
