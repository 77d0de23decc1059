#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "session.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// What one connection's session has staged and its socket has not taken yet.
class outbox {
 public:
  outbox() = default;
  outbox(outbox const&) = delete;
  outbox& operator=(outbox const&) = delete;

  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size() - sent_; }
  /// What is to be written next; valid until the next call that changes something.
  [[nodiscard]] std::string_view rest() const noexcept { return std::string_view(bytes_).substr(sent_); }
  /// Ends the session's batch and takes its output; whether there was any. throws bad_alloc: the stream cannot be kept in step then.
  bool take(session& s) {
    s.flush();
    std::string& staged = s.output();
    if (staged.empty()) return false;
    if (bytes_.empty()) {
      bytes_.swap(staged);
    } else {
      bytes_.append(staged);
    }
    staged.clear();
    s.mark_written();
    return true;
  }
  /// The socket has taken `n` bytes of rest().
  void consume(std::size_t n) noexcept {
    sent_ += n;
    if (sent_ == bytes_.size()) clear();
  }
  void clear() noexcept {
    constexpr std::size_t keep_capacity = 64 * 1024;
    sent_ = 0;
    bytes_.clear();
    if (bytes_.capacity() > keep_capacity) std::string().swap(bytes_);
  }

 private:
  std::string bytes_;
  std::size_t sent_ = 0;
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
