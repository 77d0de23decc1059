#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Writes ascending numbers as "3, 17-42"; past 1 KiB only how many there are besides.
class ranges_text {
 public:
  ranges_text() noexcept = default;
  /// Adds first..last, which lie past everything that was added before.
  void add(std::int64_t first, std::int64_t last) {
    if (pending_ && first == last_ + 1) {
      last_ = last;
      return;
    }
    write();
    pending_ = true;
    first_ = first;
    last_ = last;
  }
  void add(std::int64_t number) { add(number, number); }
  /// There are `n` more, nobody knows which.
  void more(std::int64_t n) noexcept { unwritten_ += n; }
  [[nodiscard]] std::string take() {
    write();
    if (unwritten_ > 0) text_ += ", and " + std::to_string(unwritten_) + " more";
    return std::move(text_);
  }

 private:
  static constexpr std::size_t limit = 1024;
  void write() {
    if (!pending_) return;
    pending_ = false;
    if (text_.size() >= limit) {
      unwritten_ += last_ - first_ + 1;
      return;
    }
    if (!text_.empty()) text_ += ", ";
    text_ += std::to_string(first_);
    if (last_ != first_) text_ += "-" + std::to_string(last_);
  }
  std::string text_;
  bool pending_ = false;
  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
  std::int64_t unwritten_ = 0;
};

}  // namespace detail

/// "3, 17-42" for ascending numbers; past 1 KiB only how many there are besides.
template <class Numbers>
[[nodiscard]] std::string ranges_of(Numbers const& numbers) {
  detail::ranges_text text;
  for (std::int64_t n : numbers) text.add(n);
  return text.take();
}

}  // namespace v0
}  // namespace rollcall
