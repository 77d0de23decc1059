#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "../wire/buffer.hpp"
#include "../wire/opcodes.hpp"

namespace rollcall {
inline namespace v0 {
/// Layer 2: the store and the client's ledger. No socket, no clock, no thread.
namespace engine {

using wire::blob_ref;

struct wait_node;

/// One value in a queue.
struct queue_item {
  queue_item* next;
  blob_ref value;
};

/// All that the store knows about one key. Its bytes follow it in memory.
///
/// A key is *present* if it has a value; a non-empty queue makes it *ready* too (protocol 4). An entry may hold neither and stand
/// for the connections that wait for the key; once it holds nothing, it is erased.
struct entry {
  entry* chain;
  std::uint64_t hash;
  blob_ref value;
  queue_item* queue_tail;  // circular: its `next` is the head
  wait_node* first_waiter;
  wait_node* last_waiter;
  std::uint32_t queued;    // items in the queue
  std::uint32_t grants;    // connections that were woken for an item and have sent no request since
  std::uint32_t key_size;

  [[nodiscard]] std::string_view key() const noexcept { return {reinterpret_cast<char const*>(this + 1), key_size}; }
  [[nodiscard]] bool present() const noexcept { return static_cast<bool>(value); }
  [[nodiscard]] bool ready() const noexcept { return value || queued != 0; }
  [[nodiscard]] bool idle() const noexcept { return !value && queued == 0 && first_waiter == nullptr && grants == 0; }

  void push(queue_item* item) noexcept {
    if (queue_tail) {
      item->next = queue_tail->next;
      queue_tail->next = item;
    } else {
      item->next = item;
    }
    queue_tail = item;
    ++queued;
  }
  /// Only where queued != 0; the caller owns the item.
  [[nodiscard]] queue_item* pop() noexcept {
    queue_item* item = queue_tail->next;
    if (--queued == 0) {
      queue_tail = nullptr;
    } else {
      queue_tail->next = item->next;
    }
    return item;
  }
};

/// A keyed hash: who does not know the seed cannot aim keys at one bucket.
class key_hash {
 public:
  explicit key_hash(std::uint64_t seed) noexcept
      : a_(fold(seed ^ 0x9E3779B97F4A7C15U, 0xD1B54A32D192ED03U)), b_(fold(seed ^ 0x8CB92BA72F3D8DD7U, 0xA0761D6478BD642FU)) {}

  [[nodiscard]] std::uint64_t operator()(std::string_view key) const noexcept {
    using wire::load;
    char const* p = key.data();
    const std::size_t n = key.size();
    std::uint64_t h = b_;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    if (n >= 8) {
      for (std::size_t left = n; left > 16; left -= 16, p += 16) h = fold(load<std::uint64_t>(p) ^ a_, load<std::uint64_t>(p + 8) ^ h);
      char const* const end = key.data() + n;
      first = load<std::uint64_t>(n > 16 ? end - 16 : p);
      last = load<std::uint64_t>(end - 8);
    } else if (n >= 4) {
      first = load<std::uint32_t>(p);
      last = load<std::uint32_t>(p + n - 4);
    } else if (n != 0) {
      const auto byte = [p](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(p[i])}; };
      first = byte(0) << 16 | byte(n / 2) << 8 | byte(n - 1);
    }
    return fold(a_ ^ n, fold(first ^ a_, last ^ h));
  }

 private:
  [[nodiscard]] static std::uint64_t fold(std::uint64_t x, std::uint64_t y) noexcept {
    __extension__ using wide = unsigned __int128;
    const wide product = wide{x} * y;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  std::uint64_t a_, b_;
};

/// Keys to entries. Grows by one bucket for each insertion and shrinks by a few for an erasure (linear hashing), so that no single
/// operation pays for all the others, and a look-up always walks one chain of about one entry.
class table {
 public:
  explicit table(std::uint64_t seed);
  table(table const&) = delete;
  table& operator=(table const&) = delete;
  ~table();

  [[nodiscard]] std::uint64_t hash(std::string_view key) const noexcept { return hash_(key); }
  [[nodiscard]] entry* find(std::string_view key, std::uint64_t hash) const noexcept {
    for (entry* e = buckets_[index(hash)]; e; e = e->chain)
      if (e->hash == hash && e->key() == key) return e;
    return nullptr;
  }
  /// Adds an entry that holds nothing, for a key that has none. The key is copied.
  [[nodiscard]] entry& insert(std::string_view key, std::uint64_t hash);
  /// Frees an entry, its value and its queue; no waiter may be left on it.
  void erase(entry& e) noexcept;
  /// Entries, present or not.
  [[nodiscard]] std::size_t size() const noexcept { return entries_; }
  [[nodiscard]] std::size_t buckets() const noexcept { return half_ + split_; }

  /// Calls f(entry&) for each entry, in no order; f must not insert or erase.
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t i = 0; i < buckets(); ++i)
      for (entry* e = buckets_[i]; e; e = e->chain) f(*e);
  }

 private:
  static constexpr std::size_t min_half = 8;

  [[nodiscard]] std::size_t index(std::uint64_t hash) const noexcept {
    const std::size_t i = static_cast<std::size_t>(hash) & (2 * half_ - 1);
    return i < half_ + split_ ? i : i - half_;
  }
  [[nodiscard]] bool resize(std::size_t buckets) noexcept;
  void grow() noexcept;
  void shrink() noexcept;
  static void destroy(entry& e) noexcept;

  key_hash hash_;
  entry** buckets_ = nullptr;     // room for 2 * half_; half_ + split_ are in use
  std::size_t half_ = min_half;   // a power of two
  std::size_t split_ = 0;         // buckets [0, split_) have given half of their entries to [half_, half_ + split_)
  std::size_t entries_ = 0;
};

inline table::table(std::uint64_t seed) : hash_(seed) {
  if (!resize(2 * min_half)) throw std::bad_alloc();
  for (std::size_t i = 0; i < min_half; ++i) buckets_[i] = nullptr;
}

inline table::~table() {
  for (std::size_t i = 0; i < buckets(); ++i)
    while (entry* e = buckets_[i]) {
      buckets_[i] = e->chain;
      destroy(*e);
    }
  std::free(buckets_);
}

inline void table::destroy(entry& e) noexcept {
  while (e.queued != 0) delete e.pop();
  e.~entry();
  ::operator delete(&e);
}

inline bool table::resize(std::size_t buckets) noexcept {
  // realloc moves the pages of a large array instead of its bytes
  void* p = std::realloc(static_cast<void*>(buckets_), buckets * sizeof(entry*));
  if (!p) return false;
  buckets_ = static_cast<entry**>(p);
  return true;
}

inline entry& table::insert(std::string_view key, std::uint64_t hash) {
  ROLLCALL_ASSERT(key.size() <= UINT32_MAX);
  void* room = ::operator new(sizeof(entry) + key.size());
  entry** at = &buckets_[index(hash)];
  entry* e = ::new (room) entry{*at, hash, {}, nullptr, nullptr, nullptr, 0, 0, static_cast<std::uint32_t>(key.size())};
  if (!key.empty()) std::memcpy(static_cast<void*>(e + 1), key.data(), key.size());
  *at = e;
  if (++entries_ > buckets()) grow();
  return *e;
}

inline void table::erase(entry& e) noexcept {
  ROLLCALL_ASSERT(e.first_waiter == nullptr && e.grants == 0);
  entry** at = &buckets_[index(e.hash)];
  while (*at != &e) at = &(*at)->chain;
  *at = e.chain;
  destroy(e);
  --entries_;
  for (int i = 0; i < 4 && entries_ < buckets() / 4; ++i) shrink();  // as many as keep the array in proportion
}

inline void table::grow() noexcept {
  if (split_ == half_) {
    if (!resize(4 * half_)) return;  // longer chains, nothing worse
    half_ *= 2;
    split_ = 0;
  }
  entry** low = &buckets_[split_];
  entry** high = &buckets_[half_ + split_];
  ++split_;
  entry* e = std::exchange(*low, nullptr);
  *high = nullptr;
  while (e) {
    entry* next = e->chain;
    entry** at = (static_cast<std::size_t>(e->hash) & half_) != 0 ? high : low;
    e->chain = *at;
    *at = e;
    e = next;
  }
}

inline void table::shrink() noexcept {
  if (split_ == 0) {
    if (half_ == min_half) return;
    half_ /= 2;
    split_ = half_;
    static_cast<void>(resize(2 * half_));  // giving memory back may fail; the larger array serves as well
  }
  --split_;
  entry** at = &buckets_[split_];
  while (*at) at = &(*at)->chain;
  *at = buckets_[half_ + split_];
}

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
