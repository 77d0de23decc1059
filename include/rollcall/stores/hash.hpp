#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/bytes.hpp"
#include "../wire/encode.hpp"
#include "hash_operation.hpp"
#include "store.hpp"

namespace rollcall {
inline namespace v0 {

/// A store in this process: the server's engine without a socket, with the semantics of every store (docs/design/stores.md).
///
/// A cheap handle that may be copied. The data lives as long as a client of it, a handle, or an operation. One loop's thread only; for
/// other threads there is rollcall::remote. Operations are as those of tcp_store, of the same names; what differs:
///
///   limit     an operation that need not wait is done before any limit can pass.
///   errors    nothing can be lost, so effect() is always none: cancelled and timed_out come only to those that wait. An add to what is no
///             number is invalid, a sum past 64 bits and what is past hash_options::store are limit; the value stays, and so does the store.
///   cancel    as if never called. An item of a queue that came for a coroutine which was destroyed goes back to the tail.
class hash_store {
 public:
  using limit_option = std::optional<deadline>;

  explicit hash_store(loop& l, hash_options const& o = {})
      : hash_store(std::make_shared<detail::hash_client>(std::make_shared<detail::hash_data>(l.core(), o))) {}

  /// Another client of the same data: closed by itself, with an identity of its own.
  [[nodiscard]] hash_store clone() const { return hash_store(std::make_shared<detail::hash_client>(client_->shared())); }

  [[nodiscard]] hash_operation<void> set(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return change(detail::op_kind::set, key, value, limit, [&](auto& out) { wire::encode_set(out, prefix, key, value); });
  }
  [[nodiscard]] hash_operation<std::string> get(std::string_view key, limit_option limit = {}) const {
    return on_key<std::string>(detail::op_kind::get, key, limit, [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  [[nodiscard]] hash_operation<std::optional<std::string>> find(std::string_view key, limit_option limit = {}) const {
    return on_key<std::optional<std::string>>(detail::op_kind::find, key, limit,
                                              [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  [[nodiscard]] hash_operation<std::int64_t> add(std::string_view key, std::int64_t delta, limit_option limit = {}) const {
    return on_key<std::int64_t>(detail::op_kind::add, key, limit, [&](auto& out) { wire::encode_add(out, prefix, key, delta); });
  }
  [[nodiscard]] hash_operation<bool> check(keys k, limit_option limit = {}) const {
    return on_keys<bool>(detail::op_kind::check, k, limit, [&](auto& out) { wire::encode_check(out, prefix, k); });
  }
  [[nodiscard]] hash_operation<void> wait(keys k, limit_option limit = {}) const {
    return on_keys<void>(detail::op_kind::wait, k, limit, [&](auto& out) { wire::encode_wait(out, prefix, k); });
  }
  [[nodiscard]] hash_operation<bool> delete_key(std::string_view key, limit_option limit = {}) const {
    return on_key<bool>(detail::op_kind::delete_key, key, limit, [&](auto& out) { wire::encode_delete_key(out, prefix, key); });
  }
  [[nodiscard]] hash_operation<std::int64_t> num_keys(limit_option limit = {}) const {
    auto op = make<std::int64_t>(detail::op_kind::num_keys, limit);
    wire::encode_num_keys(op.request_);
    return op;
  }
  [[nodiscard]] hash_operation<std::vector<std::string>> list_keys(limit_option limit = {}) const {
    auto op = make<std::vector<std::string>>(detail::op_kind::list_keys, limit);
    wire::encode_list_keys(op.request_);
    return op;
  }
  [[nodiscard]] hash_operation<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                                        limit_option limit = {}) const {
    auto op = make<std::string>(detail::op_kind::compare_set, limit);
    if (fits(op, key) && value_fits(op, key, expected) && value_fits(op, key, desired))
      wire::encode_compare_set(op.request_, prefix, key, expected, desired);
    return op;
  }
  [[nodiscard]] hash_operation<void> append(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return change(detail::op_kind::append, key, value, limit, [&](auto& out) { wire::encode_append(out, prefix, key, value); });
  }
  [[nodiscard]] hash_operation<std::vector<std::string>> multi_get(keys k, limit_option limit = {}) const {
    return on_keys<std::vector<std::string>>(detail::op_kind::multi_get, k, limit, [&](auto& out) { wire::encode_wait(out, prefix, k); });
  }
  [[nodiscard]] hash_operation<void> multi_set(pairs p, limit_option limit = {}) const {
    auto op = make<void>(detail::op_kind::multi_set, limit);
    if (!few_enough(op, p.size(), "pairs")) return op;
    for (kv const& one : p)
      if (!fits(op, one.key) || !value_fits(op, one.key, one.value)) return op;
    wire::encode_multi_set(op.request_, prefix, p);
    return op;
  }
  [[nodiscard]] hash_operation<void> queue_push(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return change(detail::op_kind::queue_push, key, value, limit, [&](auto& out) { wire::encode_queue_push(out, prefix, key, value); });
  }
  [[nodiscard]] hash_operation<std::string> queue_pop(std::string_view key, limit_option limit = {}) const {
    return on_key<std::string>(detail::op_kind::queue_pop, key, limit, [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  [[nodiscard]] hash_operation<std::optional<std::string>> queue_pop_now(std::string_view key, limit_option limit = {}) const {
    return on_key<std::optional<std::string>>(detail::op_kind::queue_pop_now, key, limit,
                                              [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  [[nodiscard]] hash_operation<std::int64_t> queue_len(std::string_view key, limit_option limit = {}) const {
    return on_key<std::int64_t>(detail::op_kind::queue_len, key, limit, [&](auto& out) { wire::encode_queue_len(out, prefix, key); });
  }

  /// The loop it lives on.
  [[nodiscard]] loop_ref home() const noexcept { return loop_ref(client_->core()); }
  /// Tells this client from every other one; random.
  [[nodiscard]] std::uint64_t identity() const noexcept { return client_->identity(); }
  /// Ends this client, for all copies of the handle: pending and later operations fail with errc::closed. The data stays with others.
  void close() const noexcept { client_->close(); }
  [[nodiscard]] bool is_open() const noexcept { return !client_->closed(); }
  /// It answers as rollcall's servers do (design 4).
  [[nodiscard]] bool server_is_rollcall() const noexcept { return true; }
  /// A snapshot of what it holds.
  [[nodiscard]] engine::store_stats stats() const noexcept { return client_->data().store().stats(); }

  /// For rollcall's own layers: the value of a key that is known to exist; empty where it does not.
  [[nodiscard]] hash_operation<std::string> fetch_existing(std::string_view key, deadline limit) const {
    return on_key<std::string>(detail::op_kind::fetch, key, limit, [&](auto& out) { wire::encode_get(out, prefix, key); });
  }
  [[nodiscard]] hash_operation<std::vector<std::string>> fetch_existing(keys k, deadline limit) const {
    return on_keys<std::vector<std::string>>(detail::op_kind::multi_fetch, k, limit, [&](auto& out) { wire::encode_wait(out, prefix, k); });
  }

 private:
  // Keys lie in the engine as they come over a connection, so that the name space of rollcall's own keys is out of reach (protocol 1).
  static constexpr std::string_view prefix = "/";

  explicit hash_store(detail::hash_client_ptr c) noexcept : client_(std::move(c)) {}

  template <class T>
  [[nodiscard]] hash_operation<T> make(detail::op_kind k, limit_option limit) const {
    return hash_operation<T>(client_, k, limit ? *limit : client_->options().timeout());
  }
  template <class T, class F>
  [[nodiscard]] hash_operation<T> on_key(detail::op_kind k, std::string_view key, limit_option limit, F encode) const {
    auto op = make<T>(k, limit);
    if (fits(op, key)) encode(op.request_);
    return op;
  }
  template <class F>
  [[nodiscard]] hash_operation<void> change(detail::op_kind k, std::string_view key, std::string_view value, limit_option limit,
                                            F encode) const {
    auto op = make<void>(k, limit);
    if (fits(op, key) && value_fits(op, key, value)) encode(op.request_);
    return op;
  }
  template <class T, class F>
  [[nodiscard]] hash_operation<T> on_keys(detail::op_kind kind, keys const& k, limit_option limit, F encode) const {
    auto op = make<T>(kind, limit);
    if (!few_enough(op, k.size(), "keys")) return op;
    for (std::size_t i = 0; i < k.size(); ++i)
      if (!fits(op, k[i])) return op;
    encode(op.request_);
    return op;
  }

  [[nodiscard]] wire::limits const& limits() const noexcept { return client_->options().store().limits; }
  template <class T>
  bool few_enough(hash_operation<T>& op, std::size_t n, char const* what) const {
    if (n <= limits().max_keys) return true;
    op.refuse(failure(errc::limit, op.name(), std::to_string(n) + " " + what + ", the limit is " + std::to_string(limits().max_keys)));
    return false;
  }
  template <class T>
  bool fits(hash_operation<T>& op, std::string_view key) const {
    const std::size_t most = limits().max_key_bytes - prefix.size();
    return key.size() <= most || refused(op, "key", key.substr(0, 80), key.size(), most);
  }
  template <class T>
  bool value_fits(hash_operation<T>& op, std::string_view key, std::string_view value) const {
    const std::size_t most = limits().max_value_bytes;
    return value.size() <= most || refused(op, "value", key, value.size(), most);
  }
  template <class T>
  static bool refused(hash_operation<T>& op, char const* what, std::string_view key, std::size_t size, std::size_t most) {
    failure f(errc::limit, op.name(),
              std::string("the ") + what + " has " + std::to_string(size) + " bytes, the limit is " + std::to_string(most));
    op.refuse(std::move(f.with_key(key)));
    return false;
  }

  detail::hash_client_ptr client_;
};
static_assert(await_safe<hash_store> && store<hash_store>);

}  // namespace v0
}  // namespace rollcall
