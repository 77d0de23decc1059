#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/clock.hpp"
#include "../core/result.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// An operation of one kind of store with the type of its value. `Body` knows nothing of that type: it awaits, and once it has ended it has
/// an `outcome()` (the failure, or nullptr), and of a success what the value is made of: `bytes()`, `number()` and `list()`.
template <class T, class Body>
class typed_operation : public Body {
 public:
  T await_resume() {
    if (failure_ptr f = this->outcome()) throw error(std::move(f));
    return value();
  }
  /// The outcome without throwing; what as_result() uses.
  result<T> take_result() {
    if (failure_ptr f = this->outcome()) return result<T>(std::move(f));
    if constexpr (std::is_void_v<T>) {
      return result<void>();
    } else {
      return result<T>(value());
    }
  }

 protected:
  using Body::Body;
  typed_operation(typed_operation&&) noexcept = default;
  ~typed_operation() = default;

 private:
  T value() {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::move(this->bytes());
    } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
      return this->number() != 0 ? std::optional<std::string>(std::move(this->bytes())) : std::nullopt;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return this->list();
    } else if constexpr (std::is_same_v<T, bool>) {
      return this->number() != 0;
    } else if constexpr (std::is_same_v<T, duration>) {
      return duration(this->number());
    } else if constexpr (!std::is_void_v<T>) {
      return static_cast<T>(this->number());
    }
  }
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
