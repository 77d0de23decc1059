#pragma once
#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/bytes.hpp"
#include "../core/clock.hpp"
#include "../rt/loop.hpp"
#include "../rt/task.hpp"
#include "any_operation.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

template <class A, class T>
concept gives = std::same_as<await_result_t<A>, T>;

}  // namespace detail

/// A store: a handle that may be copied, with these operations; they mean the same in all of them (docs/design/stores.md has more,
/// tests/net/stores_*.cpp ask it of every store there is). Whatever can be awaited may be an operation.
///
///   set(k, v)             creates or overwrites
///   get(k)                the value, once there is one; find(k) the value or none, now
///   add(k, n)             the sum in decimal; a missing key counts as 0. No number, or a sum past 64 bits: an error, and the value stays
///   check(keys)           whether all exist now; wait(keys) completes when each has existed. A queue with items exists
///   delete_key(k)         whether it was there; queues stay
///   num_keys()            keys with a value; list_keys() their names as users wrote them, without internal ones
///   compare_set(k, e, d)  stores d over e, or where the key is missing and e is empty; gives what is there then, or e where nothing is
///   append(k, v)          adds at the end, or creates
///   multi_get(keys)       the values in order, once all have one; multi_set(pairs) all or none
///   queue_push(q, v)      at the tail; queue_pop(q) the head, once there is one; queue_pop_now(q) the head or none; queue_len(q)
///
///   limit     the last argument, else the store's own, counted from the await; the concept does not ask again for what leaves it out.
///   errors    rollcall::error: timed_out (a wait names the keys that are missing), cancelled, closed, limit (a key past 8191 bytes, a value
///             past 8 MiB, 131072 keys), and what the kind of store adds: disconnected, io, ...
///   cancel    as if never called, for those that change nothing; else error::effect() tells. No item of a queue is lost.
///   lifetime  what is given is encoded or copied before the call returns.
template <class S>
concept store = requires(S const& s, std::string_view k, std::string_view v, std::int64_t n, keys many, pairs p, deadline d) {
  { s.set(k, v, d) } -> detail::gives<void>;
  { s.set(k, v) } -> detail::gives<void>;
  { s.get(k, d) } -> detail::gives<std::string>;
  { s.find(k, d) } -> detail::gives<std::optional<std::string>>;
  { s.add(k, n, d) } -> detail::gives<std::int64_t>;
  { s.check(many, d) } -> detail::gives<bool>;
  { s.wait(many, d) } -> detail::gives<void>;
  { s.delete_key(k, d) } -> detail::gives<bool>;
  { s.num_keys(d) } -> detail::gives<std::int64_t>;
  { s.list_keys(d) } -> detail::gives<std::vector<std::string>>;
  { s.compare_set(k, v, v, d) } -> detail::gives<std::string>;
  { s.append(k, v, d) } -> detail::gives<void>;
  { s.multi_get(many, d) } -> detail::gives<std::vector<std::string>>;
  { s.multi_set(p, d) } -> detail::gives<void>;
  { s.queue_push(k, v, d) } -> detail::gives<void>;
  { s.queue_pop(k, d) } -> detail::gives<std::string>;
  { s.queue_pop_now(k, d) } -> detail::gives<std::optional<std::string>>;
  { s.queue_len(k, d) } -> detail::gives<std::int64_t>;
  { s.home() } -> std::convertible_to<loop_ref>;
  { s.identity() } -> std::convertible_to<std::uint64_t>;
  { s.is_open() } -> std::convertible_to<bool>;
  s.close();
} && std::copy_constructible<S>;

namespace detail {

/// The value of a key that is known to exist: a string, or an optional one from stores that only have find().
template <class S>
[[nodiscard]] auto fetch_existing(S const& s, std::string_view key, deadline limit) {
  if constexpr (requires { s.fetch_existing(key, limit); }) {
    return s.fetch_existing(key, limit);
  } else {
    return s.find(key, limit);
  }
}
/// Whether COMPARE_SET wakes those that wait and a look at a missing key does no harm, so that steps may be saved.
template <class S>
[[nodiscard]] bool answers_like_rollcall(S const& s) noexcept {
  if constexpr (requires {
                  { s.server_is_rollcall() } -> std::convertible_to<bool>;
                }) {
    return s.server_is_rollcall();
  } else {
    return false;
  }
}

template <class S>
concept clones_in_time = requires(S const& s, deadline d) {
  { s.clone(d) } -> std::same_as<task<S>>;
};
template <class S>
concept clones_at_once = requires(S const& s) {
  { s.clone() } -> std::same_as<S>;
};
template <class S>
task<S> at_once(S s) {
  co_return s;
}
/// Another client of the same data, of stores that can make one.
template <class S>
  requires clones_in_time<S> || clones_at_once<S>
[[nodiscard]] task<S> clone_of(S const& s, deadline limit) {
  if constexpr (clones_in_time<S>) {
    return s.clone(limit);
  } else {
    return at_once<S>(s.clone());
  }
}
[[noreturn]] inline void throw_no_clone() { throw error(errc::unsupported, "clone", "this kind of store has none"); }

template <class T>
[[nodiscard]] task<T> value_or_empty(task<std::optional<T>> found) {
  std::optional<T> v = co_await std::move(found);
  if (!v) co_return T();
  co_return std::move(*v);
}

}  // namespace detail

/// A store that is chosen at run time: holds any store, and is one. A cheap handle that may be copied; an operation costs virtual calls,
/// and no allocation for the stores of rollcall (docs/design/stores.md, "Awaitable and allocation-light").
class any_store {
 public:
  using limit_option = std::optional<deadline>;

  template <class S>
    requires(!std::same_as<S, any_store> && store<S>)
  any_store(S s) : held_(std::make_shared<holder<S> const>(std::move(s))) {}

  [[nodiscard]] any_operation<void> set(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return held_->set(key, value, limit);
  }
  [[nodiscard]] any_operation<std::string> get(std::string_view key, limit_option limit = {}) const { return held_->get(key, limit); }
  [[nodiscard]] any_operation<std::optional<std::string>> find(std::string_view key, limit_option limit = {}) const {
    return held_->find(key, limit);
  }
  [[nodiscard]] any_operation<std::int64_t> add(std::string_view key, std::int64_t delta, limit_option limit = {}) const {
    return held_->add(key, delta, limit);
  }
  [[nodiscard]] any_operation<bool> check(keys k, limit_option limit = {}) const { return held_->check(k, limit); }
  [[nodiscard]] any_operation<void> wait(keys k, limit_option limit = {}) const { return held_->wait(k, limit); }
  [[nodiscard]] any_operation<bool> delete_key(std::string_view key, limit_option limit = {}) const {
    return held_->delete_key(key, limit);
  }
  [[nodiscard]] any_operation<std::int64_t> num_keys(limit_option limit = {}) const { return held_->num_keys(limit); }
  [[nodiscard]] any_operation<std::vector<std::string>> list_keys(limit_option limit = {}) const { return held_->list_keys(limit); }
  [[nodiscard]] any_operation<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                                       limit_option limit = {}) const {
    return held_->compare_set(key, expected, desired, limit);
  }
  [[nodiscard]] any_operation<void> append(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return held_->append(key, value, limit);
  }
  [[nodiscard]] any_operation<std::vector<std::string>> multi_get(keys k, limit_option limit = {}) const {
    return held_->multi_get(k, limit);
  }
  [[nodiscard]] any_operation<void> multi_set(pairs p, limit_option limit = {}) const { return held_->multi_set(p, limit); }
  [[nodiscard]] any_operation<void> queue_push(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return held_->queue_push(key, value, limit);
  }
  [[nodiscard]] any_operation<std::string> queue_pop(std::string_view key, limit_option limit = {}) const {
    return held_->queue_pop(key, limit);
  }
  [[nodiscard]] any_operation<std::optional<std::string>> queue_pop_now(std::string_view key, limit_option limit = {}) const {
    return held_->queue_pop_now(key, limit);
  }
  [[nodiscard]] any_operation<std::int64_t> queue_len(std::string_view key, limit_option limit = {}) const {
    return held_->queue_len(key, limit);
  }

  /// Another client of the same data, with a clone of what this one holds.
  ///
  /// limit     of stores that connect for it.
  /// errors    those of the store; unsupported where it has no clone().
  [[nodiscard]] task<any_store> clone(deadline limit = std::chrono::seconds(300)) const { return held_->clone(limit); }
  [[nodiscard]] loop_ref home() const noexcept { return held_->home(); }
  [[nodiscard]] std::uint64_t identity() const noexcept { return held_->identity(); }
  void close() const { held_->close(); }
  [[nodiscard]] bool is_open() const noexcept { return held_->is_open(); }
  /// Of stores that do not say so: false.
  [[nodiscard]] bool server_is_rollcall() const noexcept { return held_->server_is_rollcall(); }

  /// The store that it holds, if that is an S, else nullptr; valid as long as a copy of this handle.
  template <store S>
  [[nodiscard]] S const* get_if() const noexcept {
    return held_->type() == &type_of<S> ? &static_cast<holder<S> const&>(*held_).held : nullptr;
  }

  /// For rollcall's own layers: of keys that are known to exist.
  [[nodiscard]] any_operation<std::string> fetch_existing(std::string_view key, deadline limit) const {
    return held_->fetch_existing(key, limit);
  }
  [[nodiscard]] any_operation<std::vector<std::string>> fetch_existing(keys k, deadline limit) const {
    return held_->fetch_existing(k, limit);
  }

 private:
  template <class S>
  static constexpr char type_of = 0;  // its address tells S from other types

  class base {
   public:
    using limit = limit_option const&;
    base() noexcept = default;
    base(base const&) = delete;
    base& operator=(base const&) = delete;
    virtual ~base() = default;
    virtual any_operation<void> set(std::string_view key, std::string_view value, limit d) const = 0;
    virtual any_operation<std::string> get(std::string_view key, limit d) const = 0;
    virtual any_operation<std::optional<std::string>> find(std::string_view key, limit d) const = 0;
    virtual any_operation<std::int64_t> add(std::string_view key, std::int64_t delta, limit d) const = 0;
    virtual any_operation<bool> check(keys const& k, limit d) const = 0;
    virtual any_operation<void> wait(keys const& k, limit d) const = 0;
    virtual any_operation<bool> delete_key(std::string_view key, limit d) const = 0;
    virtual any_operation<std::int64_t> num_keys(limit d) const = 0;
    virtual any_operation<std::vector<std::string>> list_keys(limit d) const = 0;
    virtual any_operation<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                                   limit d) const = 0;
    virtual any_operation<void> append(std::string_view key, std::string_view value, limit d) const = 0;
    virtual any_operation<std::vector<std::string>> multi_get(keys const& k, limit d) const = 0;
    virtual any_operation<void> multi_set(pairs const& p, limit d) const = 0;
    virtual any_operation<void> queue_push(std::string_view key, std::string_view value, limit d) const = 0;
    virtual any_operation<std::string> queue_pop(std::string_view key, limit d) const = 0;
    virtual any_operation<std::optional<std::string>> queue_pop_now(std::string_view key, limit d) const = 0;
    virtual any_operation<std::int64_t> queue_len(std::string_view key, limit d) const = 0;
    virtual any_operation<std::string> fetch_existing(std::string_view key, deadline d) const = 0;
    virtual any_operation<std::vector<std::string>> fetch_existing(keys const& k, deadline d) const = 0;
    virtual task<any_store> clone(deadline d) const = 0;
    virtual loop_ref home() const noexcept = 0;
    virtual std::uint64_t identity() const noexcept = 0;
    virtual void close() const = 0;
    virtual bool is_open() const noexcept = 0;
    virtual bool server_is_rollcall() const noexcept = 0;
    virtual char const* type() const noexcept = 0;
  };

  template <class S>
  class holder final : public base {
   public:
    using limit = limit_option const&;
    explicit holder(S s) : held(std::move(s)) {}
    S held;

    any_operation<void> set(std::string_view k, std::string_view v, limit d) const override {
      return d ? erase(held.set(k, v, *d)) : erase(held.set(k, v));
    }
    any_operation<std::string> get(std::string_view k, limit d) const override { return d ? erase(held.get(k, *d)) : erase(held.get(k)); }
    any_operation<std::optional<std::string>> find(std::string_view k, limit d) const override {
      return d ? erase(held.find(k, *d)) : erase(held.find(k));
    }
    any_operation<std::int64_t> add(std::string_view k, std::int64_t n, limit d) const override {
      return d ? erase(held.add(k, n, *d)) : erase(held.add(k, n));
    }
    any_operation<bool> check(keys const& k, limit d) const override { return d ? erase(held.check(k, *d)) : erase(held.check(k)); }
    any_operation<void> wait(keys const& k, limit d) const override { return d ? erase(held.wait(k, *d)) : erase(held.wait(k)); }
    any_operation<bool> delete_key(std::string_view k, limit d) const override {
      return d ? erase(held.delete_key(k, *d)) : erase(held.delete_key(k));
    }
    any_operation<std::int64_t> num_keys(limit d) const override { return d ? erase(held.num_keys(*d)) : erase(held.num_keys()); }
    any_operation<std::vector<std::string>> list_keys(limit d) const override {
      return d ? erase(held.list_keys(*d)) : erase(held.list_keys());
    }
    any_operation<std::string> compare_set(std::string_view k, std::string_view e, std::string_view v, limit d) const override {
      return d ? erase(held.compare_set(k, e, v, *d)) : erase(held.compare_set(k, e, v));
    }
    any_operation<void> append(std::string_view k, std::string_view v, limit d) const override {
      return d ? erase(held.append(k, v, *d)) : erase(held.append(k, v));
    }
    any_operation<std::vector<std::string>> multi_get(keys const& k, limit d) const override {
      return d ? erase(held.multi_get(k, *d)) : erase(held.multi_get(k));
    }
    any_operation<void> multi_set(pairs const& p, limit d) const override {
      return d ? erase(held.multi_set(p, *d)) : erase(held.multi_set(p));
    }
    any_operation<void> queue_push(std::string_view k, std::string_view v, limit d) const override {
      return d ? erase(held.queue_push(k, v, *d)) : erase(held.queue_push(k, v));
    }
    any_operation<std::string> queue_pop(std::string_view k, limit d) const override {
      return d ? erase(held.queue_pop(k, *d)) : erase(held.queue_pop(k));
    }
    any_operation<std::optional<std::string>> queue_pop_now(std::string_view k, limit d) const override {
      return d ? erase(held.queue_pop_now(k, *d)) : erase(held.queue_pop_now(k));
    }
    any_operation<std::int64_t> queue_len(std::string_view k, limit d) const override {
      return d ? erase(held.queue_len(k, *d)) : erase(held.queue_len(k));
    }
    any_operation<std::string> fetch_existing(std::string_view k, deadline d) const override {
      if constexpr (requires { held.fetch_existing(k, d); }) {
        return erase(held.fetch_existing(k, d));
      } else {
        return erase(detail::value_or_empty<std::string>(detail::carry<std::optional<std::string>>(held.find(k, d))));
      }
    }
    any_operation<std::vector<std::string>> fetch_existing(keys const& k, deadline d) const override {
      if constexpr (requires { held.fetch_existing(k, d); }) {
        return erase(held.fetch_existing(k, d));
      } else {
        return erase(held.multi_get(k, d));
      }
    }
    task<any_store> clone(deadline d) const override {
      if constexpr (requires { detail::clone_of(held, d); }) {
        return cloned(detail::clone_of(held, d));
      } else {
        return no_clone();
      }
    }
    loop_ref home() const noexcept override { return held.home(); }
    std::uint64_t identity() const noexcept override { return held.identity(); }
    void close() const override { held.close(); }
    bool is_open() const noexcept override { return held.is_open(); }
    bool server_is_rollcall() const noexcept override { return detail::answers_like_rollcall(held); }
    char const* type() const noexcept override { return &type_of<S>; }

   private:
    static task<any_store> cloned(task<S> other) {
      S s = co_await std::move(other);
      co_return any_store(std::move(s));
    }
    template <class Op>
    [[nodiscard]] any_operation<await_result_t<Op>> erase(Op op) const {
      loop_ref const where = held.home();
      return any_operation<await_result_t<Op>>(detail::as_operation(std::move(op), &where.core()));
    }
  };

  static task<any_store> no_clone() {
    std::optional<any_store> never;
    if (!never) detail::throw_no_clone();
    co_return std::move(*never);
  }

  std::shared_ptr<base const> held_;
};
static_assert(await_safe<any_store> && store<any_store>);

}  // namespace v0
}  // namespace rollcall
