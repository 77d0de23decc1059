#pragma once
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace wire {

/// A block of bytes on the heap with a count of its owners; made and reached through blob_ref only. One thread.
class blob {
  friend class blob_ref;
  std::size_t size_;
  std::size_t capacity_;
  std::uint32_t refs_;
};

/// One owner of a blob, or of nothing. Copying shares the block; changing a shared block copies it first.
class blob_ref {
 public:
  /// Room that even the smallest block has, in bytes: a counter's text never needs another one.
  static constexpr std::size_t min_capacity = 24;

  blob_ref() noexcept = default;
  explicit blob_ref(std::string_view bytes) : blob_ref(bytes, bytes.size()) {}
  /// A block with `bytes` in it and room for `capacity` (at least bytes.size()).
  blob_ref(std::string_view bytes, std::size_t capacity);
  blob_ref(blob_ref const& other) noexcept : block_(other.block_) {
    if (block_) ++block_->refs_;
  }
  blob_ref(blob_ref&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  blob_ref& operator=(blob_ref other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~blob_ref() {
    if (block_ && --block_->refs_ == 0) ::operator delete(block_);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return block_ != nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return block_ ? block_->size_ : 0; }
  [[nodiscard]] std::size_t capacity() const noexcept { return block_ ? block_->capacity_ : 0; }
  [[nodiscard]] bool shared() const noexcept { return block_ && block_->refs_ > 1; }
  /// Valid until this owner changes the block, or the last owner lets go.
  [[nodiscard]] std::string_view view() const noexcept {
    return block_ ? std::string_view(data(), block_->size_) : std::string_view();
  }
  /// Replaces the bytes. In place, without allocating, where they fit a block of one owner that is not far too large for them.
  void assign(std::string_view bytes);
  /// Adds bytes at the end, amortised O(bytes.size()) while there is one owner. `bytes` must not lie in this block.
  void append(std::string_view bytes);

 private:
  [[nodiscard]] char* data() const noexcept { return reinterpret_cast<char*>(block_ + 1); }
  blob* block_ = nullptr;
};

/// Replies of one connection, in order: bytes copied into one piece of storage, and large values held by reference.
///
/// Keeps its storage between uses, so that a batch that is filled and sent again and again does not allocate.
class write_batch {
 public:
  /// From this size, in bytes, a value is worth a reference instead of a copy.
  static constexpr std::size_t reference_from = 16 * 1024;

  write_batch() noexcept = default;
  write_batch(write_batch const&) = delete;
  write_batch& operator=(write_batch const&) = delete;
  ~write_batch() { ::operator delete(bytes_); }

  /// Bytes not yet consumed.
  [[nodiscard]] std::size_t size() const noexcept { return tail_ - head_ + referenced_; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Bytes of own storage, used or not.
  [[nodiscard]] std::size_t capacity() const noexcept { return room_; }

  /// `n` writable bytes at the end that count as appended; valid until the next call.
  [[nodiscard]] char* extend(std::size_t n) {
    if (room_ - tail_ < n) [[unlikely]] grow(n);
    char* at = bytes_ + tail_;
    tail_ += n;
    return at;
  }
  void append(char const* bytes, std::size_t n) {
    if (n != 0) std::memcpy(extend(n), bytes, n);
  }
  void append(std::string_view bytes) { append(bytes.data(), bytes.size()); }
  /// Appends the bytes of `b` as they are now; b's owner copies before it changes them.
  void append_blob(blob_ref b);

  /// Describes the front of the batch in at most `max` pieces (max >= 1); returns how many. Valid until the next change.
  [[nodiscard]] int fill(iovec* pieces, int max) const noexcept;
  /// Drops `n` <= size() bytes from the front.
  void consume(std::size_t n) noexcept;
  /// Drops everything, keeps the storage.
  void clear() noexcept;
  /// Drops everything and gives the storage back.
  void release() noexcept;
  /// Appends all that is unsent here to `other`, in order, and leaves this batch empty with its storage.
  void move_to(write_batch& other);

  /// A point to come back to: undoes every append since, provided that nothing was consumed meanwhile.
  struct mark {
    std::size_t own, references, referenced;
  };
  [[nodiscard]] mark position() const noexcept { return {tail_ - head_, references_.size(), referenced_}; }
  void rewind(mark const& to) noexcept;

 private:
  struct reference {
    std::size_t at;  // offset in bytes_ before which the blob goes
    blob_ref what;
    std::size_t sent;  // bytes of it already consumed
    [[nodiscard]] std::size_t left() const noexcept { return what.size() - sent; }
  };
  void append_rest(blob_ref b, std::size_t sent);
  void grow(std::size_t n);

  char* bytes_ = nullptr;
  std::size_t head_ = 0, tail_ = 0, room_ = 0;
  std::vector<reference> references_;
  std::size_t next_reference_ = 0;  // first one not wholly consumed
  std::size_t referenced_ = 0;      // unsent bytes in references
};

inline blob_ref::blob_ref(std::string_view bytes, std::size_t capacity) {
  capacity = std::max({capacity, bytes.size(), min_capacity});
  block_ = static_cast<blob*>(::operator new(sizeof(blob) + capacity));
  block_->size_ = bytes.size();
  block_->capacity_ = capacity;
  block_->refs_ = 1;
  if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
}

inline void blob_ref::assign(std::string_view bytes) {
  constexpr std::size_t small = 1024;  // below this an oversized block is not worth replacing
  if (block_ && block_->refs_ == 1 && bytes.size() <= block_->capacity_ &&
      (block_->capacity_ <= small || block_->capacity_ / 4 <= bytes.size())) {
    if (!bytes.empty()) std::memmove(data(), bytes.data(), bytes.size());
    block_->size_ = bytes.size();
    return;
  }
  *this = blob_ref(bytes);
}

inline void blob_ref::append(std::string_view bytes) {
  const std::size_t old = size();
  if (!block_ || block_->refs_ > 1 || block_->capacity_ - old < bytes.size()) {
    *this = blob_ref(view(), std::max(old + bytes.size(), old + old / 2));
  }
  if (!bytes.empty()) std::memcpy(data() + old, bytes.data(), bytes.size());
  block_->size_ = old + bytes.size();
}

inline void write_batch::append_blob(blob_ref b) {
  if (b.size() != 0) append_rest(std::move(b), 0);
}

inline void write_batch::append_rest(blob_ref b, std::size_t sent) {
  const std::size_t n = b.size() - sent;
  references_.push_back({tail_, std::move(b), sent});
  referenced_ += n;
}

inline void write_batch::grow(std::size_t n) {
  const std::size_t used = tail_ - head_;
  if (head_ != 0 && room_ - used >= n && head_ >= used) {
    std::memmove(bytes_, bytes_ + head_, used);
  } else {
    const std::size_t room = std::max({std::size_t{256}, room_ * 2, used + n});
    char* bytes = static_cast<char*>(::operator new(room));
    if (used != 0) std::memcpy(bytes, bytes_ + head_, used);
    ::operator delete(bytes_);
    bytes_ = bytes;
    room_ = room;
  }
  for (std::size_t i = next_reference_; i < references_.size(); ++i) references_[i].at -= head_;
  head_ = 0;
  tail_ = used;
}

inline int write_batch::fill(iovec* pieces, int max) const noexcept {
  int count = 0;
  std::size_t at = head_;
  for (std::size_t i = next_reference_; i < references_.size() && count < max; ++i) {
    reference const& r = references_[i];
    if (r.at > at) {
      pieces[count++] = {bytes_ + at, r.at - at};
      at = r.at;
      if (count == max) return count;
    }
    pieces[count++] = {const_cast<char*>(r.what.view().data()) + r.sent, r.left()};
  }
  if (count < max && tail_ > at) pieces[count++] = {bytes_ + at, tail_ - at};
  return count;
}

inline void write_batch::consume(std::size_t n) noexcept {
  ROLLCALL_ASSERT(n <= size());
  while (n != 0) {
    const bool at_end = next_reference_ == references_.size();
    const std::size_t own = (at_end ? tail_ : references_[next_reference_].at) - head_;
    if (own != 0) {
      const std::size_t step = std::min(own, n);
      head_ += step;
      n -= step;
      continue;
    }
    reference& r = references_[next_reference_];
    const std::size_t step = std::min(r.left(), n);
    r.sent += step;
    referenced_ -= step;
    n -= step;
    if (r.left() == 0) {
      r.what = blob_ref();
      ++next_reference_;
    }
  }
  if (empty()) return clear();
  if (next_reference_ >= 64 && next_reference_ * 2 >= references_.size()) {  // a batch that never runs empty must not remember all it sent
    references_.erase(references_.begin(), references_.begin() + static_cast<std::ptrdiff_t>(next_reference_));
    next_reference_ = 0;
  }
}

inline void write_batch::clear() noexcept {
  head_ = tail_ = 0;
  references_.clear();
  next_reference_ = referenced_ = 0;
}

inline void write_batch::release() noexcept {
  clear();
  ::operator delete(bytes_);
  bytes_ = nullptr;
  room_ = 0;
  references_ = std::vector<reference>();
}

inline void write_batch::rewind(mark const& to) noexcept {
  tail_ = head_ + to.own;
  references_.erase(references_.begin() + static_cast<std::ptrdiff_t>(to.references), references_.end());
  referenced_ = to.referenced;
}

inline void write_batch::move_to(write_batch& other) {
  while (!empty()) {
    const bool at_end = next_reference_ == references_.size();
    const std::size_t own = (at_end ? tail_ : references_[next_reference_].at) - head_;
    other.append(bytes_ + head_, own);
    if (at_end) break;
    reference const& r = references_[next_reference_];
    other.append_rest(r.what, r.sent);
    consume(own + r.left());
  }
  clear();
}

}  // namespace wire
}  // namespace v0
}  // namespace rollcall
