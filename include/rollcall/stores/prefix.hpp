#pragma once
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/bytes.hpp"
#include "../core/error.hpp"
#include "../core/result.hpp"
#include "store.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// "prefix/" and a key, composed; short ones without the heap.
class composed_key {
 public:
  composed_key(std::string_view prefix, std::string_view key) : size_(prefix.size() + key.size()) {
    char* to = near_;
    if (size_ > sizeof near_) {
      far_.resize(size_);
      to = far_.data();
    }
    if (!prefix.empty()) std::memcpy(to, prefix.data(), prefix.size());
    if (!key.empty()) std::memcpy(to + prefix.size(), key.data(), key.size());
  }
  composed_key(composed_key const&) = delete;
  composed_key& operator=(composed_key const&) = delete;
  operator std::string_view() const noexcept { return {size_ > sizeof near_ ? far_.data() : near_, size_}; }

 private:
  std::size_t size_;
  char near_[128];
  std::string far_;
};

/// What of the outcome below is handed on: all of it; keys of the prefix, without it; how many those are.
enum class prefix_form : unsigned char { as_it_is, own_keys, count };

template <class T, prefix_form Form>
using prefix_value = std::conditional_t<Form == prefix_form::count, std::int64_t, T>;

/// An operation of the store below; its errors name keys as the prefix's user wrote them.
template <store_operation Op, prefix_form Form>
class [[nodiscard]] prefix_operation {
  using below = await_result_t<Op>;

 public:
  using value_type = prefix_value<below, Form>;

  prefix_operation(Op op, std::shared_ptr<std::string const> prefix) noexcept : op_(std::move(op)), prefix_(std::move(prefix)) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> h) noexcept {
    return op_.suspend(h, env_of(h));
  }
  value_type await_resume() {
    result<value_type> r = take_result();
    if (!r) throw error(r.shared());
    if constexpr (!std::is_void_v<value_type>) return std::move(*r);
  }
  /// The outcome without throwing; what as_result() uses.
  result<value_type> take_result() {
    result<below> r = op_.take_result();
    if (!r) return result<value_type>(translated(r.error()));
    if constexpr (Form == prefix_form::own_keys) {
      return result<value_type>(own(std::move(*r)));
    } else if constexpr (Form == prefix_form::count) {
      return result<value_type>(static_cast<std::int64_t>(own(std::move(*r)).size()));
    } else {
      return r;
    }
  }

  /// For rollcall's own layers.
  bool suspend(std::coroutine_handle<> h, environment const& e) noexcept { return op_.suspend(h, e); }
  [[nodiscard]] loop_core* own_loop() const noexcept { return op_.own_loop(); }

 private:
  [[nodiscard]] std::vector<std::string> own(std::vector<std::string> all) const {
    std::size_t kept = 0;
    for (std::string& key : all) {
      if (!key.starts_with(*prefix_)) continue;
      key.erase(0, prefix_->size());
      if (&all[kept] != &key) all[kept] = std::move(key);
      ++kept;
    }
    all.resize(kept);
    return all;
  }
  [[nodiscard]] failure translated(failure const& f) const {
    failure mine(f.code(), Form == prefix_form::count ? std::string_view("num_keys") : std::string_view(f.operation()), f.detail());
    std::string where = "prefix '";
    append_printable(where, std::string_view(*prefix_).substr(0, prefix_->size() - 1), 80);
    where += '\'';
    if (!f.peer().empty()) where += " of " + f.peer();
    mine.with_effect(f.effect()).with_peer(where).with_times(f.elapsed(), f.limit());
    for (std::string const& key : f.keys()) {
      std::string_view k = key;
      if (k.starts_with(*prefix_)) k.remove_prefix(prefix_->size());
      mine.with_key(k);
    }
    for (std::size_t i = f.keys().size(); i < f.key_count(); ++i) mine.with_key({});  // past those that are kept, only counted
    return mine;
  }

  Op op_;
  std::shared_ptr<std::string const> prefix_;  // with its '/'
};

}  // namespace detail

/// A name space in another store: key `k` is `prefix + "/" + k` there, whatever the two are. Nothing is escaped or normalised: an empty
/// prefix gives "/k", and prefix "a" with key "b/c" is prefix "a/b" with key "c". Nested, the innermost wrapper is leftmost:
/// prefix_store(prefix_store(s, "p2"), "p1") puts `k` at "p2/p1/k".
///
/// A cheap handle that may be copied: a view of the store, whose client, home(), identity() and close() it shares. Operations are those of
/// every store (docs/design/stores.md); what differs:
///
///   limit     the prefix's own where one was given, else that of the store below.
///   errors    keys as the user of the prefix wrote them; the peer says "prefix 'a' of 127.0.0.1:29500".
///   list_keys num_keys   of the keys below "prefix/" only. Both list all keys of the store below: O(all), and unsupported where its server
///             knows no LIST_KEYS.
template <class Store = any_store>
class prefix_store {
 public:
  using limit_option = std::optional<deadline>;

  /// limit     of each operation that is not given one of its own.
  prefix_store(Store below, std::string_view prefix, limit_option limit = {})
      : prefix_store(std::move(below), std::make_shared<std::string const>(std::string(prefix) + '/'), limit) {}

  [[nodiscard]] auto set(std::string_view key, std::string_view value, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.set(std::string_view(k), value, d...); });
  }
  [[nodiscard]] auto get(std::string_view key, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.get(std::string_view(k), d...); });
  }
  [[nodiscard]] auto find(std::string_view key, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.find(std::string_view(k), d...); });
  }
  [[nodiscard]] auto add(std::string_view key, std::int64_t delta, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.add(std::string_view(k), delta, d...); });
  }
  [[nodiscard]] auto check(keys k, limit_option limit = {}) const {
    const std::vector<std::string> all = composed(k);
    return ask(limit, [&](auto... d) { return below_.check(keys(all), d...); });
  }
  [[nodiscard]] auto wait(keys k, limit_option limit = {}) const {
    const std::vector<std::string> all = composed(k);
    return ask(limit, [&](auto... d) { return below_.wait(keys(all), d...); });
  }
  [[nodiscard]] auto delete_key(std::string_view key, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.delete_key(std::string_view(k), d...); });
  }
  [[nodiscard]] auto num_keys(limit_option limit = {}) const {
    return ask<detail::prefix_form::count>(limit, [&](auto... d) { return below_.list_keys(d...); });
  }
  [[nodiscard]] auto list_keys(limit_option limit = {}) const {
    return ask<detail::prefix_form::own_keys>(limit, [&](auto... d) { return below_.list_keys(d...); });
  }
  [[nodiscard]] auto compare_set(std::string_view key, std::string_view expected, std::string_view desired, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.compare_set(std::string_view(k), expected, desired, d...); });
  }
  [[nodiscard]] auto append(std::string_view key, std::string_view value, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.append(std::string_view(k), value, d...); });
  }
  [[nodiscard]] auto multi_get(keys k, limit_option limit = {}) const {
    const std::vector<std::string> all = composed(k);
    return ask(limit, [&](auto... d) { return below_.multi_get(keys(all), d...); });
  }
  [[nodiscard]] auto multi_set(pairs p, limit_option limit = {}) const {
    std::vector<std::string> names;
    names.reserve(p.size());
    std::vector<kv> all;
    all.reserve(p.size());
    for (kv const& one : p) {
      names.push_back(composed(one.key));
      all.emplace_back(names.back(), one.value);
    }
    return ask(limit, [&](auto... d) { return below_.multi_set(pairs(all), d...); });
  }
  [[nodiscard]] auto queue_push(std::string_view key, std::string_view value, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.queue_push(std::string_view(k), value, d...); });
  }
  [[nodiscard]] auto queue_pop(std::string_view key, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.queue_pop(std::string_view(k), d...); });
  }
  [[nodiscard]] auto queue_pop_now(std::string_view key, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.queue_pop_now(std::string_view(k), d...); });
  }
  [[nodiscard]] auto queue_len(std::string_view key, limit_option limit = {}) const {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](auto... d) { return below_.queue_len(std::string_view(k), d...); });
  }

  /// The prefix as it was given.
  [[nodiscard]] std::string_view prefix() const noexcept { return std::string_view(*prefix_).substr(0, prefix_->size() - 1); }
  /// The store below.
  [[nodiscard]] Store const& below() const noexcept { return below_; }

  /// The same name space, and limit, in a clone of the store below: what `Store::clone()` says of `limit` and errors.
  [[nodiscard]] task<prefix_store> clone(deadline limit = std::chrono::seconds(300)) const
    requires requires(Store const& s) { detail::clone_of(s, limit); }
  {
    return around(detail::clone_of(below_, limit), prefix_, limit_);
  }
  [[nodiscard]] loop_ref home() const noexcept { return below_.home(); }
  [[nodiscard]] std::uint64_t identity() const noexcept { return below_.identity(); }
  /// Closes the store below.
  void close() const { below_.close(); }
  [[nodiscard]] bool is_open() const noexcept { return below_.is_open(); }
  [[nodiscard]] bool server_is_rollcall() const noexcept { return detail::answers_like_rollcall(below_); }

  /// For rollcall's own layers: of keys that are known to exist.
  [[nodiscard]] auto fetch_existing(std::string_view key, deadline limit) const
    requires requires(Store const& s) { s.fetch_existing(key, limit); }
  {
    const detail::composed_key k(*prefix_, key);
    return ask(limit, [&](deadline d) { return below_.fetch_existing(std::string_view(k), d); });
  }
  [[nodiscard]] auto fetch_existing(keys k, deadline limit) const
    requires requires(Store const& s) { s.fetch_existing(k, limit); }
  {
    const std::vector<std::string> all = composed(k);
    return ask(limit, [&](deadline d) { return below_.fetch_existing(keys(all), d); });
  }

 private:
  prefix_store(Store below, std::shared_ptr<std::string const> with_slash, limit_option limit)
      : below_(std::move(below)), prefix_(std::move(with_slash)), limit_(limit) {}
  static task<prefix_store> around(task<Store> below, std::shared_ptr<std::string const> with_slash, limit_option limit) {
    Store s = co_await std::move(below);
    co_return prefix_store(std::move(s), std::move(with_slash), limit);
  }
  [[nodiscard]] std::string composed(std::string_view key) const {
    std::string s;
    s.reserve(prefix_->size() + key.size());
    return s.append(*prefix_).append(key);
  }
  [[nodiscard]] std::vector<std::string> composed(keys const& k) const {
    std::vector<std::string> all;
    all.reserve(k.size());
    for (std::size_t i = 0; i < k.size(); ++i) all.push_back(composed(k[i]));
    return all;
  }
  /// `f` with the limit that holds, or without one; then what it returns is awaited through the prefix.
  template <detail::prefix_form Form = detail::prefix_form::as_it_is, class F>
  [[nodiscard]] auto ask(limit_option const& given, F f) const {
    limit_option const& limit = given ? given : limit_;
    if constexpr (requires { f(); }) {
      return limit ? wrap<Form>(f(*limit)) : wrap<Form>(f());
    } else {
      return wrap<Form>(f(*limit));
    }
  }
  template <detail::prefix_form Form, class Op>
  [[nodiscard]] auto wrap(Op op) const {
    const loop_ref where = below_.home();
    auto carried = detail::as_operation(std::move(op), &where.core());
    return detail::prefix_operation<decltype(carried), Form>(std::move(carried), prefix_);
  }

  Store below_;
  std::shared_ptr<std::string const> prefix_;  // with its '/'
  limit_option limit_;
};
template <class Store>
prefix_store(Store, std::string_view, std::optional<deadline> = {}) -> prefix_store<Store>;
static_assert(await_safe<prefix_store<any_store>> && store<prefix_store<any_store>>);

}  // namespace v0
}  // namespace rollcall
