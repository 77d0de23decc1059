#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../client/connect.hpp"
#include "../client/operation.hpp"

namespace rollcall {
inline namespace v0 {

class create_options;

namespace detail {

/// The share of a server that the handles of one store hold; ends with the last of them.
class store_owner {
 public:
  store_owner() noexcept = default;
  store_owner(store_owner const&) = delete;
  store_owner& operator=(store_owner const&) = delete;
  virtual ~store_owner() = default;
  [[nodiscard]] virtual bool serves() const noexcept = 0;
  [[nodiscard]] virtual task<> drain(client_ptr client, deadline limit) = 0;
};
using owner_ptr = std::shared_ptr<store_owner>;

class creation;

}  // namespace detail

/// A client of one store server: a cheap handle that may be copied; the connection closes with the last handle and operation.
///
/// Every operation encodes its request before it returns, so what it was given may die then, and is sent when it is awaited, spawned
/// or started. Several may be awaited at once: requests pipeline on one connection, and a wait never delays another operation (one is
/// interrupted and sent again, or another connection is opened: docs/design/session.md). Unless it says otherwise, an operation
///
///   errors    throws rollcall::error: timed_out past its limit, cancelled, disconnected when the connection is lost, closed, protocol,
///             limit when a key or value is too long. error::effect() tells whether a change took place.
///   cancel    completes in that loop turn and never waits for the server; the connection stays usable.
///   limit     client_options::timeout(), 300 s unless set, counted from the await.
///
/// One loop's thread only. Keys and values are opaque bytes.
class tcp_store {
 public:
  /// Connects to the store at `host` and `port` (1..65535), resolving, retrying and shaking hands until `limit` has passed.
  ///
  /// errors    refused or resolve at the limit, naming the address, what was tried and the last error; protocol at once when something
  ///           else than a store answers; invalid for a port out of range.
  /// cancel    as if never called.
  [[nodiscard]] static task<tcp_store> connect(loop& l, std::string_view host, int port, deadline limit = std::chrono::seconds(300),
                                               client_options options = {}, resolve_fn resolver = resolve_by_system) {
    return connect_task(&l.core(), std::string(host), port, limit, options, std::move(resolver));
  }

  /// A client on a stream that stands already, for streams that are no sockets; completes when the handshake is answered.
  ///
  /// further   makes the connections beside this one; without it there is only this one, whatever client_options::max_lanes() says.
  /// identity  what identity() gives, and what the handshake's nonce is made from; 0: random.
  /// errors    disconnected, protocol, timed_out at the limit.
  /// cancel    closes the stream.
  [[nodiscard]] static task<tcp_store> over(loop& l, net::stream_ptr s, deadline limit, client_options options = {},
                                            std::shared_ptr<net::dialler> further = {}, std::uint64_t identity = 0) {
    if (!further) options.max_lanes(1);
    detail::client_ptr c(new detail::client_state(l.core(), s->peer_name(), 0, options));
    c->stand_on(std::move(further), identity);
    return over_task(std::move(c), std::move(s), limit);
  }

  /// The reference's constructor: serves if this process is the master, connects, registers, and the master waits for the others.
  /// Include <rollcall/stores/create.hpp>, which describes it.
  [[nodiscard]] static inline task<tcp_store> create(loop& l, std::string_view host, int port, create_options const& options);

  /// Stores `value` (at most 8 MiB) under `key`; completes when the server has applied it. effect unknown once it was sent.
  [[nodiscard]] operation<void> set(std::string_view key, std::string_view value) const {
    auto op = make<void>(detail::op_kind::set, client_->options().timeout());
    if (fits(op, "set", key) && value_fits(op, "set", key, value)) wire::encode_set(op.request_, prefix, key, value);
    return op;
  }
  /// The value of `key`, once it exists.
  [[nodiscard]] operation<std::string> get(std::string_view key) const { return get(key, client_->options().timeout()); }
  [[nodiscard]] operation<std::string> get(std::string_view key, deadline limit) const {
    auto op = make<std::string>(detail::op_kind::get, limit);
    if (fits(op, "get", key)) wire::encode_wait(op.request_, prefix, keys(key));
    return op;
  }
  /// The value of `key`, or none when it does not exist now.
  [[nodiscard]] operation<std::optional<std::string>> find(std::string_view key) const {
    auto op = make<std::optional<std::string>>(detail::op_kind::find, client_->options().timeout());
    if (fits(op, "find", key)) wire::encode_wait(op.request_, prefix, keys(key));
    return op;
  }
  /// Adds `delta` to the decimal number under `key` (0 where it is missing) and gives the sum. A value that is no number, and a sum past
  /// 64 bits, make the server close the connection (protocol 4.2). effect unknown once it was sent; never retried.
  [[nodiscard]] operation<std::int64_t> add(std::string_view key, std::int64_t delta) const {
    auto op = make<std::int64_t>(detail::op_kind::add, client_->options().timeout());
    if (fits(op, "add", key)) wire::encode_add(op.request_, prefix, key, delta);
    return op;
  }
  /// Whether every key exists now (true for no keys).
  [[nodiscard]] operation<bool> check(keys k) const {
    auto op = make<bool>(detail::op_kind::check, client_->options().timeout());
    if (fit(op, "check", k)) wire::encode_check(op.request_, prefix, k);
    return op;
  }
  /// Waits until every key exists: 0..131072 keys. "Existed at some moment", not "all exist now" (protocol 7.3).
  ///
  /// errors    timed_out names the keys that are still missing (of the first 64; to learn which may take 100 ms past the limit).
  /// cancel    as if never called; no state remains at the server.
  [[nodiscard]] operation<void> wait(keys k) const { return wait(k, client_->options().timeout()); }
  [[nodiscard]] operation<void> wait(keys k, deadline limit) const {
    auto op = make<void>(detail::op_kind::wait, limit);
    if (fit(op, "wait", k)) wire::encode_wait(op.request_, prefix, k);
    return op;
  }
  /// Deletes `key`; whether it existed. effect unknown once it was sent.
  [[nodiscard]] operation<bool> delete_key(std::string_view key) const {
    auto op = make<bool>(detail::op_kind::delete_key, client_->options().timeout());
    if (fits(op, "delete_key", key)) wire::encode_delete_key(op.request_, prefix, key);
    return op;
  }
  /// How many keys the server holds, internal ones (`init/`) included (protocol 4).
  [[nodiscard]] operation<std::int64_t> num_keys() const {
    auto op = make<std::int64_t>(detail::op_kind::num_keys, client_->options().timeout());
    wire::encode_num_keys(op.request_);
    return op;
  }

  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Gives the value there is afterwards;
  /// `expected` itself where the key is missing and `expected` is not empty (protocol 4.1). effect unknown once it was sent.
  [[nodiscard]] operation<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired) const {
    auto op = make<std::string>(detail::op_kind::compare_set, client_->options().timeout());
    if (fits(op, "compare_set", key) && value_fits(op, "compare_set", key, expected) && value_fits(op, "compare_set", key, desired))
      wire::encode_compare_set(op.request_, prefix, key, expected, desired);
    return op;
  }
  /// Adds `value` to the end of what `key` holds, or creates it; completes when applied. effect unknown once it was sent.
  [[nodiscard]] operation<void> append(std::string_view key, std::string_view value) const {
    auto op = make<void>(detail::op_kind::append, client_->options().timeout());
    if (fits(op, "append", key) && value_fits(op, "append", key, value)) wire::encode_append(op.request_, prefix, key, value);
    return op;
  }
  /// The values of 0..131072 keys, in order, once all of them exist.
  [[nodiscard]] operation<std::vector<std::string>> multi_get(keys k) const { return multi_get(k, client_->options().timeout()); }
  [[nodiscard]] operation<std::vector<std::string>> multi_get(keys k, deadline limit) const {
    auto op = make<std::vector<std::string>>(detail::op_kind::multi_get, limit);
    if (fit(op, "multi_get", k)) wire::encode_wait(op.request_, prefix, k);
    return op;
  }
  /// Sets several keys: all or none on rollcall's servers, one after the other on PyTorch's (protocol 4). Completes when applied.
  [[nodiscard]] operation<void> multi_set(pairs p) const {
    auto op = make<void>(detail::op_kind::multi_set, client_->options().timeout());
    if (p.size() > max_keys) {
      op.refuse(failure(errc::limit, "multi_set", std::to_string(p.size()) + " pairs, the limit is " + std::to_string(max_keys)));
      return op;
    }
    for (kv const& one : p)
      if (!fits(op, "multi_set", one.key) || !value_fits(op, "multi_set", one.key, one.value)) return op;
    wire::encode_multi_set(op.request_, prefix, p);
    return op;
  }

  /// For rollcall's own layers: GET and nothing else, of a key that is known to exist. Elsewhere it may cost the connection.
  [[nodiscard]] operation<std::string> fetch_existing(std::string_view key, deadline limit) const {
    auto op = make<std::string>(detail::op_kind::fetch, limit);
    if (fits(op, "get", key)) wire::encode_get(op.request_, prefix, key);
    return op;
  }

  [[nodiscard]] operation<std::vector<std::string>> fetch_existing(keys k, deadline limit) const {
    if (k.empty()) return multi_get(k, limit);
    auto op = make<std::vector<std::string>>(detail::op_kind::multi_fetch, limit);
    if (fit(op, "multi_get", k)) wire::encode_wait(op.request_, prefix, k);
    return op;
  }

  /// For a store that owns its server (create() with is_master): serves on until all other clients have disconnected, or `limit` has
  /// passed; then this store gives its server up, which ends with its last owner. Who leaves last by this cuts nobody off. At once for
  /// a store that owns no server, or has given it up before, and for one that shares it with another owner.
  ///
  /// limit     measured on the loop clock (1 ms). Ends within 20 ms after the last of the others has gone.
  /// errors    timed_out, with how many are still connected; the server ends nevertheless.
  /// cancel    as if never called: the server goes on.
  /// lifetime  what was connected by the call counts; the store is closed afterwards.
  [[nodiscard]] task<> drain(deadline limit) const { return drain_task(owner_, client_, limit); }
  /// Whether a server lives in this process as long as this store, or a copy of it, does.
  [[nodiscard]] bool owns_server() const noexcept { return owner_ && owner_->serves(); }

  /// Closes the connection; pending and later operations fail with errc::closed. Idempotent, does not suspend.
  void close() const { client_->close(); }
  /// False once the store was closed or its connection lost.
  [[nodiscard]] bool is_open() const noexcept { return client_ && !client_->closed(); }
  [[nodiscard]] std::string const& host() const noexcept { return client_->host(); }
  [[nodiscard]] int port() const noexcept { return client_->port(); }
  /// Tells this client from every other one, also from its predecessor in a restarted process; random.
  [[nodiscard]] std::uint64_t identity() const noexcept { return client_->identity(); }
  /// Whether the server is rollcall's, by the capability probe of the handshake (protocol 17).
  [[nodiscard]] bool server_is_rollcall() const noexcept { return client_->info().is_rollcall; }
  /// How many connections this store has: 1 unless waits for several keys overlap other operations.
  [[nodiscard]] std::size_t connections() const noexcept { return client_->lane_count(); }
  [[nodiscard]] detail::loop_core& core() const noexcept { return client_->core(); }

 private:
  static constexpr std::string_view prefix = "/";  // the client's, not the server's (protocol 1)
  static constexpr std::size_t max_keys = 131072;   // in one request (protocol 6)

  explicit tcp_store(detail::client_ptr c, detail::owner_ptr o = {}) noexcept : client_(std::move(c)), owner_(std::move(o)) {}
  static task<> drain_task(detail::owner_ptr owner, detail::client_ptr client, deadline limit) {
    if (owner) co_await owner->drain(std::move(client), limit);
  }
  static task<tcp_store> connect_task(detail::loop_core* core, std::string host, int port, deadline limit, client_options options,
                                      resolve_fn resolver) {
    detail::client_ptr c = co_await detail::connect_client(core, std::move(host), port, limit, options, std::move(resolver));
    co_return tcp_store(std::move(c));
  }
  static task<tcp_store> over_task(detail::client_ptr c, net::stream_ptr s, deadline limit) {
    c->begin(std::move(s), socket_address(), static_cast<std::uint32_t>(c->identity()), true);
    task<> greeted = detail::greeted(c);
    co_await with_deadline(std::move(greeted), limit);
    if (!c->ready()) throw error(c->why_closed());
    co_return tcp_store(std::move(c));
  }
  template <class T>
  [[nodiscard]] operation<T> make(detail::op_kind k, deadline limit) const {
    return operation<T>(client_, k, limit);
  }
  template <class T>
  bool fits(operation<T>& op, std::string_view name, std::string_view key) const {
    const std::size_t most = client_->options().max_key_bytes();
    if (key.size() <= most) return true;
    failure f(errc::limit, name, "the key has " + std::to_string(key.size()) + " bytes, the limit is " + std::to_string(most));
    op.refuse(std::move(f.with_key(key.substr(0, 80))));
    return false;
  }
  template <class T>
  bool value_fits(operation<T>& op, std::string_view name, std::string_view key, std::string_view value) const {
    const std::size_t most = client_->options().max_value_bytes();
    if (value.size() <= most) return true;
    failure f(errc::limit, name, "the value has " + std::to_string(value.size()) + " bytes, the limit is " + std::to_string(most));
    op.refuse(std::move(f.with_key(key)));
    return false;
  }
  template <class T>
  bool fit(operation<T>& op, std::string_view name, keys const& k) const {
    if (k.size() > max_keys) {
      op.refuse(failure(errc::limit, name, std::to_string(k.size()) + " keys, the limit is " + std::to_string(max_keys)));
      return false;
    }
    for (std::size_t i = 0; i < k.size(); ++i)
      if (!fits(op, name, k[i])) return false;
    return true;
  }
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
  [[nodiscard]] operation<std::string> fetch_raw(std::string_view wire_key, deadline limit) const {
    auto op = make<std::string>(detail::op_kind::fetch, limit);
    wire::encode_get(op.request_, {}, wire_key);
    return op;
  }

  friend class detail::creation;
  detail::client_ptr client_;
  detail::owner_ptr owner_;
};
static_assert(await_safe<tcp_store>);

}  // namespace v0
}  // namespace rollcall
