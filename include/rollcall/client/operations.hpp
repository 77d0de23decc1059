#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operation.hpp"

namespace rollcall {
inline namespace v0 {

/// The operations of a store that is reached over a connection; tcp_store is one.
///
/// Every operation encodes its request before it returns, so what it was given may die then, and is sent when it is awaited, spawned
/// or started. Several may be awaited at once: requests pipeline on one connection, and a wait never delays another operation (one is
/// interrupted and sent again, or another connection is opened: docs/design/session.md). Unless it says otherwise, an operation
///
///   limit     is the deadline given last, else client_options::timeout(), 300 s unless set, counted from the await. One limit for all
///             its steps, also where the server is frozen; afterwards the connection is usable, and the next reply is the right one.
///   errors    throws rollcall::error: timed_out past its limit, cancelled, disconnected when the connection is lost, closed, protocol,
///             limit when a key or value is too long. error::effect() tells whether a change took place.
///   cancel    completes in that loop turn and never waits for the server; the connection stays usable.
///
/// Changes complete when the server has applied them; a stopped or timed-out one has effect unknown once it was sent, and is never
/// retried. Keys are 0..8191 bytes, values 0..8 MiB, both opaque. One loop's thread only.
class store_operations {
 public:
  using limit_option = std::optional<deadline>;

  /// Stores `value` under `key`.
  [[nodiscard]] operation<void> set(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return change<void>(detail::op_kind::set, key, value, limit, [&](auto& out) { wire::encode_set(out, prefix, key, value); });
  }
  /// The value of `key`, once it exists.
  [[nodiscard]] operation<std::string> get(std::string_view key, limit_option limit = {}) const {
    return on_key<std::string>(detail::op_kind::get, key, limit, [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  /// The value of `key`, once it exists, read straight into `buffer`; how many bytes it has. Allocates nothing.
  ///
  /// errors    limit when the value is longer than the buffer, which is then unchanged. After other errors its contents are unspecified.
  /// cancel    nothing is written to the buffer any more.
  /// lifetime  the buffer must live until the operation has ended.
  [[nodiscard]] operation<std::size_t> get_into(std::string_view key, std::span<char> buffer, limit_option limit = {}) const {
    auto op = on_key<std::size_t>(detail::op_kind::get_into, key, limit, [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
    op.buffer_ = buffer;
    return op;
  }
  /// The value of `key`, or none when it does not exist now.
  [[nodiscard]] operation<std::optional<std::string>> find(std::string_view key, limit_option limit = {}) const {
    return on_key<std::optional<std::string>>(detail::op_kind::find, key, limit,
                                              [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  /// Adds `delta` to the decimal number under `key` (0 where it is missing) and gives the sum. A value that is no number, and a sum past
  /// 64 bits, make the server close the connection (protocol 4.2).
  [[nodiscard]] operation<std::int64_t> add(std::string_view key, std::int64_t delta, limit_option limit = {}) const {
    return on_key<std::int64_t>(detail::op_kind::add, key, limit, [&](auto& out) { wire::encode_add(out, prefix, key, delta); });
  }
  /// Whether every key exists now (true for no keys); a queue that is not empty exists.
  [[nodiscard]] operation<bool> check(keys k, limit_option limit = {}) const {
    return on_keys<bool>(detail::op_kind::check, k, limit, [&](auto& out) { wire::encode_check(out, prefix, k); });
  }
  /// Waits until every key exists: 0..131072 keys. "Existed at some moment", not "all exist now" (protocol 7.3).
  ///
  /// errors    timed_out names the keys that are still missing (of the first 64; to learn which may take 100 ms past the limit).
  /// cancel    as if never called; no state remains at the server.
  [[nodiscard]] operation<void> wait(keys k, limit_option limit = {}) const {
    return on_keys<void>(detail::op_kind::wait, k, limit, [&](auto& out) { wire::encode_wait(out, prefix, k); });
  }
  /// Deletes `key`; whether it existed. Queues are not touched.
  [[nodiscard]] operation<bool> delete_key(std::string_view key, limit_option limit = {}) const {
    return on_key<bool>(detail::op_kind::delete_key, key, limit, [&](auto& out) { wire::encode_delete_key(out, prefix, key); });
  }
  /// How many keys the server holds, internal ones (`init/`) included; queues do not count (protocol 4).
  [[nodiscard]] operation<std::int64_t> num_keys(limit_option limit = {}) const {
    auto op = make<std::int64_t>(detail::op_kind::num_keys, limit);
    wire::encode_num_keys(op.request_);
    return op;
  }
  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Gives the value there is afterwards;
  /// `expected` itself where the key is missing and `expected` is not empty (protocol 4.1).
  [[nodiscard]] operation<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                                   limit_option limit = {}) const {
    auto op = make<std::string>(detail::op_kind::compare_set, limit);
    if (fits(op, key) && value_fits(op, key, expected) && value_fits(op, key, desired))
      wire::encode_compare_set(op.request_, prefix, key, expected, desired);
    return op;
  }
  /// Adds `value` to the end of what `key` holds, or creates it.
  [[nodiscard]] operation<void> append(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return change<void>(detail::op_kind::append, key, value, limit, [&](auto& out) { wire::encode_append(out, prefix, key, value); });
  }
  /// The values of 0..131072 keys, in order, once all of them exist.
  [[nodiscard]] operation<std::vector<std::string>> multi_get(keys k, limit_option limit = {}) const {
    return on_keys<std::vector<std::string>>(detail::op_kind::multi_get, k, limit, [&](auto& out) { wire::encode_wait(out, prefix, k); });
  }
  /// Sets several keys: all or none on rollcall's servers, one after the other on PyTorch's (protocol 4).
  [[nodiscard]] operation<void> multi_set(pairs p, limit_option limit = {}) const {
    auto op = make<void>(detail::op_kind::multi_set, limit);
    if (fit(op, p)) wire::encode_multi_set(op.request_, prefix, p);
    return op;
  }

  /// Puts `value` at the tail of queue `key`. Queues and keys of one name are independent, but a wait for the name sees both.
  ///
  /// errors    unsupported where the server has no queues: then only a connection of its own was spent to learn that, and the store goes
  ///           on. The same holds for queue_pop, queue_pop_now and queue_len.
  [[nodiscard]] operation<void> queue_push(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return change<void>(detail::op_kind::queue_push, key, value, limit, [&](auto& out) { wire::encode_queue_push(out, prefix, key, value); });
  }
  /// Takes the head of queue `key`, once there is one for this caller: never "the queue is empty".
  ///
  /// cancel    loses no item, nor does a time-out: one that comes afterwards goes to this store's next pop of the key, and close() pushes
  ///           it back at the tail. A lost connection may lose one; then the effect is unknown.
  [[nodiscard]] operation<std::string> queue_pop(std::string_view key, limit_option limit = {}) const {
    return on_key<std::string>(detail::op_kind::queue_pop, key, limit, [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  /// Takes the head of queue `key`, or none when it is empty now. Stopped, it loses no item, as queue_pop().
  [[nodiscard]] operation<std::optional<std::string>> queue_pop_now(std::string_view key, limit_option limit = {}) const {
    return on_key<std::optional<std::string>>(detail::op_kind::queue_pop_now, key, limit,
                                              [&](auto& out) { wire::encode_wait(out, prefix, keys(key)); });
  }
  /// How many items queue `key` holds; 0 where there is none.
  [[nodiscard]] operation<std::int64_t> queue_len(std::string_view key, limit_option limit = {}) const {
    return on_key<std::int64_t>(detail::op_kind::queue_len, key, limit, [&](auto& out) { wire::encode_queue_len(out, prefix, key); });
  }
  /// The keys that users of the store have set, in no order; neither internal ones (`init/`) nor queues.
  ///
  /// errors    unsupported where the server does not know it.
  [[nodiscard]] operation<std::vector<std::string>> list_keys(limit_option limit = {}) const {
    auto op = make<std::vector<std::string>>(detail::op_kind::list_keys, limit);
    wire::encode_list_keys(op.request_);
    return op;
  }
  /// The server's own BARRIER: counts this caller under `key` and completes when `world_size` have come (protocol 4.3). One use per key:
  /// the count stays, so whoever comes afterwards is let through. It tells no names; rollcall::barrier does.
  ///
  /// errors    unsupported where the server does not know it. A key that holds no number makes the server close the connection.
  /// cancel    the arrival stays counted, also past the limit: the next call on this store with the same key goes on where this one ended
  ///           and does not count again. After a lost connection the effect is unknown, and the next call counts again.
  [[nodiscard]] operation<void> server_barrier(std::string_view key, std::int64_t world_size, limit_option limit = {}) const {
    return on_key<void>(detail::op_kind::server_barrier, key, limit, [&](auto& out) { wire::encode_barrier(out, prefix, key, world_size); });
  }
  /// How long a request and its reply take, from the await on, by the loop clock (ns).
  [[nodiscard]] operation<duration> ping(limit_option limit = {}) const {
    auto op = make<duration>(detail::op_kind::ping, limit);
    if (client_->takes_ping()) {
      wire::encode_ping(op.request_, client_->next_nonce());
    } else {
      wire::encode_check(op.request_, prefix, {});  // servers before 2.5 close at PING
    }
    return op;
  }

  /// Like set(), but returns at once: the request leaves in this loop turn, in order with all others of its kind, and commands that are
  /// asked of this store afterwards find it executed. What takes another connection may overtake it: server_barrier(), a wait for several
  /// keys, the first use of queues or list_keys() on a server that is not rollcall's; flush() before those. Nobody waits for it but
  /// flush().
  ///
  /// errors    throws closed, and limit for what is too long, past client_options::max_unsent(), or where every connection is in use.
  ///           Everything later is told by flush().
  void send_set(std::string_view key, std::string_view value) const {
    send("send_set", key, value, [&](std::string& out) { wire::encode_set(out, prefix, key, value); });
  }
  /// Like append(); see send_set().
  void send_append(std::string_view key, std::string_view value) const {
    send("send_append", key, value, [&](std::string& out) { wire::encode_append(out, prefix, key, value); });
  }
  /// Like multi_set(); see send_set().
  void send_multi_set(pairs p) const {
    auto judge = make<void>(detail::op_kind::multi_set, deadline::never());
    if (!fit(judge, p)) throw error(judge.failure_);
    client_->send("send_multi_set", [&](std::string& out) { wire::encode_multi_set(out, prefix, p); });
  }
  /// Like queue_push(); see send_set(). On a server that is not rollcall's await another operation on queues first, which learns whether
  /// it has any: before that this throws unsupported.
  void send_queue_push(std::string_view key, std::string_view value) const {
    if (!client_->knows(detail::op_family::queues)) {
      failure f(errc::unsupported, "send_queue_push",
                "whether this server has queues is not known yet; await queue_len, queue_push or queue_pop before");
      throw error(f.with_key(key).with_peer(client_->endpoint()));
    }
    send("send_queue_push", key, value, [&](std::string& out) { wire::encode_queue_push(out, prefix, key, value); });
  }
  /// Completes when the server has applied everything that was sent by send_set() and its kin before; one fence for all of it.
  ///
  /// errors    what lost it, with effect unknown: also in the first flush() after a reconnect(), and in every one that was called before
  ///           that loss was told.
  /// cancel    what was sent stays sent.
  [[nodiscard]] operation<void> flush(limit_option limit = {}) const {
    auto op = make<void>(detail::op_kind::flush, limit);
    op.cover_sends();
    return op;
  }

  /// For rollcall's own layers: GET and nothing else, of a key that is known to exist. Elsewhere it may cost the connection.
  [[nodiscard]] operation<std::string> fetch_existing(std::string_view key, deadline limit) const {
    return on_key<std::string>(detail::op_kind::fetch, key, limit, [&](auto& out) { wire::encode_get(out, prefix, key); });
  }
  [[nodiscard]] operation<std::vector<std::string>> fetch_existing(keys k, deadline limit) const {
    if (k.empty()) return multi_get(k, limit);
    return on_keys<std::vector<std::string>>(detail::op_kind::multi_fetch, k, limit, [&](auto& out) { wire::encode_wait(out, prefix, k); });
  }

 protected:
  static constexpr std::string_view prefix = "/";  // the client's, not the server's (protocol 1)
  static constexpr std::size_t max_keys = 131072;   // in one request (protocol 6)

  explicit store_operations(detail::client_ptr c) noexcept : client_(std::move(c)) {}
  store_operations(store_operations const&) noexcept = default;
  store_operations(store_operations&&) noexcept = default;
  store_operations& operator=(store_operations const&) noexcept = default;
  store_operations& operator=(store_operations&&) noexcept = default;
  ~store_operations() = default;

  // Keys in wire form, for what is outside the name space of users (protocol 1).
  [[nodiscard]] operation<std::int64_t> add_raw(std::string_view wire_key, std::int64_t delta, deadline limit) const {
    auto op = make<std::int64_t>(detail::op_kind::add, limit);
    wire::encode_add(op.request_, {}, wire_key, delta);
    return op;
  }
  [[nodiscard]] operation<void> append_raw(std::string_view wire_key, std::string_view value, deadline limit) const {
    auto op = make<void>(detail::op_kind::append, limit);
    wire::encode_append(op.request_, {}, wire_key, value);
    return op;
  }
  [[nodiscard]] operation<std::string> compare_set_raw(std::string_view wire_key, std::string_view expected, std::string_view desired,
                                                       deadline limit) const {
    auto op = make<std::string>(detail::op_kind::compare_set, limit);
    wire::encode_compare_set(op.request_, {}, wire_key, expected, desired);
    return op;
  }
  [[nodiscard]] operation<std::string> fetch_raw(std::string_view wire_key, deadline limit) const {
    auto op = make<std::string>(detail::op_kind::fetch, limit);
    wire::encode_get(op.request_, {}, wire_key);
    return op;
  }

  detail::client_ptr client_;

 private:
  template <class T>
  [[nodiscard]] operation<T> make(detail::op_kind k, limit_option limit) const {
    return operation<T>(client_, k, limit ? *limit : client_->options().timeout());
  }
  template <class T, class F>
  [[nodiscard]] operation<T> on_key(detail::op_kind k, std::string_view key, limit_option limit, F encode) const {
    auto op = make<T>(k, limit);
    if (fits(op, key)) encode(op.request_);
    return op;
  }
  template <class T, class F>
  [[nodiscard]] operation<T> change(detail::op_kind k, std::string_view key, std::string_view value, limit_option limit, F encode) const {
    auto op = make<T>(k, limit);
    if (fits(op, key) && value_fits(op, key, value)) encode(op.request_);
    return op;
  }
  template <class T, class F>
  [[nodiscard]] operation<T> on_keys(detail::op_kind kind, keys const& k, limit_option limit, F encode) const {
    auto op = make<T>(kind, limit);
    if (k.size() > max_keys) {
      op.refuse(failure(errc::limit, detail::traits_of(kind).name, too_many(k.size(), "keys")));
      return op;
    }
    for (std::size_t i = 0; i < k.size(); ++i)
      if (!fits(op, k[i])) return op;
    encode(op.request_);
    return op;
  }
  /// Judged like an operation, then staged.
  template <class F>
  void send(std::string_view name, std::string_view key, std::string_view value, F encode) const {
    if (key.size() > client_->options().max_key_bytes() || value.size() > client_->options().max_value_bytes()) {
      failure f(errc::limit, name);
      static_cast<void>(judge(f, "value", value.size(), client_->options().max_value_bytes()));
      static_cast<void>(judge(f, "key", key.size(), client_->options().max_key_bytes()));
      throw error(std::move(f.with_key(key.substr(0, 80)).with_peer(client_->endpoint())));
    }
    client_->send(name, encode);
  }
  [[nodiscard]] static bool judge(failure& f, char const* what, std::size_t size, std::size_t most) {
    if (size <= most) return true;
    f.with_detail(std::string("the ") + what + " has " + std::to_string(size) + " bytes, the limit is " + std::to_string(most));
    return false;
  }
  template <class T>
  bool fits(operation<T>& op, std::string_view key) const {
    const std::size_t most = client_->options().max_key_bytes();
    return key.size() <= most || refused(op, "key", key.substr(0, 80), key.size(), most);
  }
  template <class T>
  bool value_fits(operation<T>& op, std::string_view key, std::string_view value) const {
    const std::size_t most = client_->options().max_value_bytes();
    return value.size() <= most || refused(op, "value", key, value.size(), most);
  }
  template <class T>
  static bool refused(operation<T>& op, char const* what, std::string_view key, std::size_t size, std::size_t most) {
    failure f(errc::limit, detail::traits_of(op.kind()).name);
    static_cast<void>(judge(f, what, size, most));
    op.refuse(std::move(f.with_key(key)));
    return false;
  }
  bool fit(operation<void>& op, pairs const& p) const {
    if (p.size() > max_keys) {
      op.refuse(failure(errc::limit, "multi_set", too_many(p.size(), "pairs")));
      return false;
    }
    for (kv const& one : p)
      if (!fits(op, one.key) || !value_fits(op, one.key, one.value)) return false;
    return true;
  }
  [[nodiscard]] static std::string too_many(std::size_t n, char const* what) {
    return std::to_string(n) + " " + what + ", the limit is " + std::to_string(max_keys);
  }
};

}  // namespace v0
}  // namespace rollcall
