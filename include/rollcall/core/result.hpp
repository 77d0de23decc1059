#pragma once
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "error.hpp"

namespace rollcall {
inline namespace v0 {

/// A value, or the failure that stands in its place.
template <class T>
class result {
 public:
  using value_type = T;
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(failure f) : state_(std::in_place_index<1>, std::make_shared<failure const>(std::move(f))) {}
  result(failure_ptr f) : state_(std::in_place_index<1>, std::move(f)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  /// The value; throws `error` where there is none.
  [[nodiscard]] T& value() & { return check(), *std::get_if<0>(&state_); }
  [[nodiscard]] T const& value() const& { return check(), *std::get_if<0>(&state_); }
  [[nodiscard]] T value() && { return check(), std::move(*std::get_if<0>(&state_)); }
  [[nodiscard]] T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  [[nodiscard]] T const& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  [[nodiscard]] T* operator->() noexcept { return std::get_if<0>(&state_); }
  [[nodiscard]] T const* operator->() const noexcept { return std::get_if<0>(&state_); }
  /// The failure; only where has_value() is false.
  [[nodiscard]] failure const& error() const noexcept { return **std::get_if<1>(&state_); }
  [[nodiscard]] failure_ptr const& shared() const noexcept { return *std::get_if<1>(&state_); }
  [[nodiscard]] std::error_code code() const noexcept {
    return has_value() ? std::error_code() : make_error_code(error().code());
  }

 private:
  void check() const {
    if (!has_value()) throw rollcall::error(*std::get_if<1>(&state_));
  }
  std::variant<T, failure_ptr> state_;
};

template <>
class result<void> {
 public:
  using value_type = void;
  result() noexcept = default;
  result(failure f) : failure_(std::make_shared<failure const>(std::move(f))) {}
  result(failure_ptr f) noexcept : failure_(std::move(f)) {}

  [[nodiscard]] bool has_value() const noexcept { return failure_ == nullptr; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  void value() const {
    if (failure_) throw rollcall::error(failure_);
  }
  [[nodiscard]] failure const& error() const noexcept { return *failure_; }
  [[nodiscard]] failure_ptr const& shared() const noexcept { return failure_; }
  [[nodiscard]] std::error_code code() const noexcept {
    return has_value() ? std::error_code() : make_error_code(failure_->code());
  }

 private:
  failure_ptr failure_;
};

}  // namespace v0
}  // namespace rollcall
