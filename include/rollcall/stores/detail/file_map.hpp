#pragma once
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// PyTorch's file (rendezvous 3.1): records of key length, key, value length, value; lengths are 32 bits in host byte order. The last
/// record of a key wins.
///
///   "/" + key           a value
///   "-" + record key    a deletion of what that record key has set
///   refcount/ cleanup/  members that have the file open, and members that have left; decimal
///   rollcall/...        ours; PyTorch keeps them as values that nobody asks for, since its users' keys begin with a slash
namespace file_format {
inline constexpr std::string_view user = "/";
inline constexpr std::string_view removal = "-/";
inline constexpr std::string_view push = "rollcall/push/";  // + queue: one more item at the tail
inline constexpr std::string_view pop = "rollcall/pop/";    // + queue: its head is taken
inline constexpr std::string_view back = "rollcall/back/";  // + queue: an item that was taken is put back at the head
inline constexpr std::string_view refcount = "refcount/";
inline constexpr std::string_view cleanup = "cleanup/";
inline constexpr std::string_view run = "rollcall/run";         // the run id
inline constexpr std::string_view member = "rollcall/member/";  // + number: one of those of refcount/ that are marked while they live
inline constexpr std::string_view left = "rollcall/left/";      // + rank: in which attempt it has left
inline constexpr std::string_view failed = "rollcall/failed";   // in which attempt the run has failed, a blank, why

inline constexpr std::size_t max_key = std::size_t{1} << 20;      // bytes in a record; PyTorch has no limit, ours write 8 KiB at most
inline constexpr std::size_t max_value = std::size_t{256} << 20;  // after append
}  // namespace file_format

/// Appends a record whose key is `family` and `key`.
inline void put_record(std::string& out, std::string_view family, std::string_view key, std::string_view value) {
  const auto length = [&out](std::size_t n) {
    const auto size = static_cast<std::uint32_t>(n);
    char bytes[sizeof size];
    std::memcpy(bytes, &size, sizeof size);
    out.append(bytes, sizeof bytes);
  };
  length(family.size() + key.size());
  out.append(family).append(key);
  length(value.size());
  out.append(value);
}

/// Walks over the records of some bytes, which may end anywhere.
class record_reader {
 public:
  enum class status : unsigned char { record, end, torn, damaged };

  explicit record_reader(std::string_view bytes) noexcept : rest_(bytes) {}
  /// record: key() and value() are the next one's. torn: the bytes end inside a record. damaged: a length that no record has, see
  /// damage(). At these two the reader stays where the record begins, and wanted() is how many bytes it has, as far as it is there.
  [[nodiscard]] status next() noexcept {
    if (rest_.empty()) return status::end;
    std::size_t size = 4;
    const auto length = [this, &size](std::size_t at, std::size_t most, std::size_t& n) {
      std::uint32_t said = 0;
      std::memcpy(&said, rest_.data() + at, sizeof said);
      announced_ = n = said;
      most_ = most;
      size += n;
      return n <= most;
    };
    wanted_ = size;
    if (rest_.size() < size) return status::torn;
    std::size_t key_size = 0, value_size = 0;
    if (!length(0, file_format::max_key, key_size) || key_size == 0) return wanted_ = size, status::damaged;
    size += 4;
    wanted_ = size;
    if (rest_.size() < size) return status::torn;
    if (!length(size - 4, file_format::max_value, value_size)) return wanted_ = size, status::damaged;
    wanted_ = size;
    if (rest_.size() < size) return status::torn;
    key_ = rest_.substr(4, key_size);
    value_ = rest_.substr(8 + key_size, value_size);
    rest_.remove_prefix(size);
    return status::record;
  }
  [[nodiscard]] std::string_view key() const noexcept { return key_; }
  [[nodiscard]] std::string_view value() const noexcept { return value_; }
  [[nodiscard]] std::string_view rest() const noexcept { return rest_; }
  [[nodiscard]] std::size_t wanted() const noexcept { return wanted_; }
  /// What is wrong with a damaged record.
  [[nodiscard]] std::string damage() const {
    if (announced_ == 0) return "there is a record without a key, as where zeros are left after a crash of the machine";
    return "a record announces a " + std::string(most_ == file_format::max_key ? "key" : "value") + " of " + std::to_string(announced_) +
           " bytes, and the limit is " + std::to_string(most_);
  }

 private:
  std::string_view rest_, key_, value_;
  std::size_t wanted_ = 0;
  std::size_t announced_ = 0, most_ = 0;  // the length that was read last, and its limit
};

struct text_hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const noexcept { return std::hash<std::string_view>{}(s); }
};
template <class T>
using text_map = std::unordered_map<std::string, T, text_hash, std::equal_to<>>;

/// What the records of a file that were read so far make together.
class file_map {
 public:
  void apply(std::string_view key, std::string_view value) {
    using namespace file_format;
    if (key.starts_with('-')) {
      key.remove_prefix(1);
      return key.starts_with(file_format::user) ? erase(values_, key.substr(1)) : erase(others_, key);
    }
    if (key.starts_with(file_format::user)) {
      key.remove_prefix(1);
      put(values_, key, value);
      return touch(key);
    }
    if (key.starts_with(push) || key.starts_with(back)) {
      const bool first = key.starts_with(back);
      key.remove_prefix(first ? back.size() : push.size());
      std::deque<std::string>& items = queue(key);
      if (first) {
        items.emplace_front(value);
      } else {
        items.emplace_back(value);
      }
      live_ += cost(key, value) + push.size();
      return touch(key);
    }
    if (key.starts_with(pop)) {
      key.remove_prefix(pop.size());
      const auto at = queues_.find(key);
      if (at == queues_.end()) return;
      live_ -= cost(key, at->second.front()) + push.size();
      at->second.pop_front();
      if (at->second.empty()) queues_.erase(at);
      return;
    }
    put(others_, key, value);
  }

  [[nodiscard]] std::string const* find(std::string_view key) const noexcept { return find(values_, key); }
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  template <class F>
  void for_each_key(F f) const {
    for (auto const& [key, value] : values_) f(key);
  }
  [[nodiscard]] std::size_t queued(std::string_view key) const noexcept {
    const auto at = queues_.find(key);
    return at == queues_.end() ? 0 : at->second.size();
  }
  /// The head of a queue that has one.
  [[nodiscard]] std::string const& head(std::string_view key) const noexcept { return queues_.find(key)->second.front(); }
  [[nodiscard]] bool exists(std::string_view key) const noexcept { return find(key) || queued(key) != 0; }

  /// Of records that are no user's: none, or its value.
  [[nodiscard]] std::string const* other(std::string_view key) const noexcept { return find(others_, key); }
  /// Calls `f(key, value)` for those whose keys begin with `family`, without that.
  template <class F>
  void for_each_other(std::string_view family, F f) const {
    for (auto const& [key, value] : others_)
      if (key.starts_with(family)) f(std::string_view(key).substr(family.size()), std::string_view(value));
  }
  /// other() as a number; 0 for what is missing or none.
  [[nodiscard]] std::int64_t count(std::string_view key) const noexcept {
    std::int64_t n = 0;
    if (std::string const* text = other(key)) std::from_chars(text->data(), text->data() + text->size(), n);
    return n;
  }

  /// Bytes of a log that would hold no more than this.
  [[nodiscard]] std::size_t live() const noexcept { return live_; }
  void write_all(std::string& out) const {
    using namespace file_format;
    out.reserve(live_);
    for (auto const& [key, value] : others_) put_record(out, {}, key, value);
    for (auto const& [key, value] : values_) put_record(out, file_format::user, key, value);
    for (auto const& [key, items] : queues_)
      for (std::string const& item : items) put_record(out, push, key, item);
  }

  /// Keys that came to exist since the last call, also those that are gone again; only noted while `on`.
  [[nodiscard]] std::vector<std::string> take_touched() noexcept { return std::exchange(touched_, {}); }
  void note_touched(bool on) noexcept { notes_ = on; }
  void clear() noexcept {
    values_.clear();
    others_.clear();
    queues_.clear();
    touched_.clear();
    live_ = 0;
  }

 private:
  [[nodiscard]] static std::size_t cost(std::string_view key, std::string_view value) noexcept { return 9 + key.size() + value.size(); }
  [[nodiscard]] static std::string const* find(text_map<std::string> const& in, std::string_view key) noexcept {
    const auto at = in.find(key);
    return at == in.end() ? nullptr : &at->second;
  }
  void put(text_map<std::string>& in, std::string_view key, std::string_view value) {
    live_ += cost(key, value);
    const auto at = in.find(key);
    if (at == in.end()) {
      in.emplace(key, value);
      return;
    }
    live_ -= cost(key, at->second);
    at->second.assign(value);
  }
  void erase(text_map<std::string>& in, std::string_view key) noexcept {
    const auto at = in.find(key);
    if (at == in.end()) return;
    live_ -= cost(key, at->second);
    in.erase(at);
  }
  [[nodiscard]] std::deque<std::string>& queue(std::string_view key) {
    const auto at = queues_.find(key);
    return at == queues_.end() ? queues_.emplace(key, std::deque<std::string>()).first->second : at->second;
  }
  void touch(std::string_view key) {
    if (notes_) touched_.emplace_back(key);
  }

  text_map<std::string> values_;  // by users' keys
  text_map<std::string> others_;  // by record keys
  text_map<std::deque<std::string>> queues_;
  std::vector<std::string> touched_;
  std::size_t live_ = 0;
  bool notes_ = true;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
