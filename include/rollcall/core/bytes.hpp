#pragma once
#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {

/// What may stand as a temporary in a co_await expression on g++ 12 (docs/design/await-safety.md).
template <class T>
concept await_safe = !std::is_aggregate_v<T> || std::is_trivially_destructible_v<T>;

/// Several keys, given as `{"a", "b"}`, one string, a vector or a span of strings or views. Keys are opaque bytes.
///
/// Holds views only: what it was made from must live until the call it is passed to returns (operations encode at once).
/// Inline lists take up to `capacity` keys, checked at compile time; for more pass a vector or a span.
class keys {
 public:
  static constexpr std::size_t capacity = 16;

  constexpr keys() noexcept = default;

  template <class... S>
    requires(sizeof...(S) > 0 && (std::convertible_to<S const&, std::string_view> && ...))
  constexpr keys(S const&... s) noexcept : form_(form::inlined), size_(sizeof...(S)) {
    static_assert(sizeof...(S) <= capacity, "too many keys in one braced list: pass a std::vector or a std::span instead");
    std::size_t i = 0;
    ((inline_[i++] = std::string_view(s)), ...);
  }
  keys(std::vector<std::string> const& k) noexcept : form_(form::strings), size_(k.size()), far_(k.data()) {}
  keys(std::vector<std::string_view> const& k) noexcept : form_(form::views), size_(k.size()), far_(k.data()) {}
  keys(std::span<std::string const> k) noexcept : form_(form::strings), size_(k.size()), far_(k.data()) {}
  keys(std::span<std::string_view const> k) noexcept : form_(form::views), size_(k.size()), far_(k.data()) {}
  template <class T, std::size_t N>
    requires(std::same_as<std::remove_const_t<T>, std::string> || std::same_as<std::remove_const_t<T>, std::string_view>)
  keys(std::span<T, N> k) noexcept
      : form_(std::same_as<std::remove_const_t<T>, std::string> ? form::strings : form::views), size_(k.size()), far_(k.data()) {}

  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr std::string_view operator[](std::size_t i) const noexcept {
    switch (form_) {
      case form::inlined: return inline_[i];
      case form::strings: return static_cast<std::string const*>(far_)[i];
      case form::views: return static_cast<std::string_view const*>(far_)[i];
    }
    return {};
  }

 private:
  enum class form : unsigned char { inlined, strings, views };
  form form_ = form::inlined;
  std::size_t size_ = 0;
  void const* far_ = nullptr;
  std::array<std::string_view, capacity> inline_{};
};
static_assert(std::is_trivially_destructible_v<keys> && await_safe<keys>);

/// One key and its value, named so that it can be written in a list: `multi_set({kv("a", "1"), kv("b", v)})`.
class kv {
 public:
  constexpr kv() noexcept = default;
  constexpr kv(std::string_view k, std::string_view v) noexcept : key(k), value(v) {}
  std::string_view key;
  std::string_view value;
};

/// Several pairs: `{kv("a", "1"), kv("b", v)}`, or a vector or span of kv. Holds views only, like `keys`.
class pairs {
 public:
  static constexpr std::size_t capacity = 16;

  constexpr pairs() noexcept = default;
  template <class... P>
    requires(sizeof...(P) > 0 && (std::same_as<P, kv> && ...))
  constexpr pairs(P const&... p) noexcept : size_(sizeof...(P)) {
    static_assert(sizeof...(P) <= capacity, "too many pairs in one braced list: pass a std::vector<kv> or a std::span instead");
    std::size_t i = 0;
    ((inline_[i++] = p), ...);
  }
  pairs(std::vector<kv> const& p) noexcept : far_(p.data()), size_(p.size()) {}
  pairs(std::span<kv const> p) noexcept : far_(p.data()), size_(p.size()) {}

  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr kv const* begin() const noexcept { return far_ ? far_ : inline_.data(); }
  [[nodiscard]] constexpr kv const* end() const noexcept { return begin() + size_; }

 private:
  kv const* far_ = nullptr;
  std::size_t size_ = 0;
  std::array<kv, capacity> inline_{};
};
static_assert(std::is_trivially_destructible_v<pairs> && await_safe<pairs>);

}  // namespace v0
}  // namespace rollcall
