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
#include "../client/operations.hpp"

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
  [[nodiscard]] virtual std::string_view back_end() const noexcept = 0;
  [[nodiscard]] virtual task<> drain(client_ptr client, deadline limit) = 0;
};
using owner_ptr = std::shared_ptr<store_owner>;

class creation;

}  // namespace detail

/// A client of one store server: a cheap handle that may be copied; the connection closes with the last handle and operation.
class tcp_store : public store_operations {
 public:
  /// Connects to the store at `host` and `port` (1..65535), resolving, retrying and shaking hands until `limit` has passed. The host
  /// "unix:PATH" is a unix socket; then the port is not looked at.
  ///
  /// errors    refused or resolve at the limit, naming the address, what was tried and the last error; protocol at once when something
  ///           else than a store answers; invalid for a port out of range; io when this process has had no descriptor for 1 s.
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

  /// Another client of the same server, on a connection of its own with the same options; it never owns the server.
  ///
  /// limit     as connect().
  /// errors    what connect() throws; unsupported for a store over a stream without a dialler.
  /// cancel    as if never called.
  [[nodiscard]] task<tcp_store> clone(deadline limit = std::chrono::seconds(300)) const { return clone_task(client_, limit); }

  /// Connects again after a loss or a close(), for all copies of this handle. Nothing that failed is repeated: that is the caller's
  /// decision (error::effect()). At once where the store is open.
  ///
  /// limit     as connect(): resolves, retries and shakes hands until then.
  /// errors    server_replaced when another server answers than the one before, both rollcall's: what was stored is gone. PyTorch's
  ///           servers cannot be told apart. closed when close() was called meanwhile. Else what connect() throws; the store stays closed.
  /// cancel    the store stays closed.
  [[nodiscard]] task<> reconnect(deadline limit) const { return reconnect_task(client_, limit); }

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
  /// Which server that is: "libuv", on this loop, or "legacy", on a thread of its own; "" where there is none.
  [[nodiscard]] std::string_view back_end() const noexcept { return owns_server() ? owner_->back_end() : std::string_view(); }

  /// Closes the connection; pending and later operations fail with errc::closed. Idempotent, does not suspend. What send_set() and its
  /// kin have staged is written before, as far as the socket takes it. Items that were popped for stopped operations are pushed back at
  /// the tails of their queues, which may keep the loop alive for up to 2 s.
  void close() const { client_->close(); }
  /// Completes when the store is closed or its connection lost, and says why: closed, disconnected, protocol, ... At once where it is.
  ///
  /// cancel    as if never called.
  /// lifetime  keeps no loop alive: a connection on which nothing is asked does not.
  [[nodiscard]] task<failure> closed() const { return closed_task(client_); }
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
  /// The loop it lives on.
  [[nodiscard]] loop_ref home() const noexcept { return loop_ref(client_->core()); }

 private:
  explicit tcp_store(detail::client_ptr c, detail::owner_ptr o = {}) noexcept : store_operations(std::move(c)), owner_(std::move(o)) {}
  static task<> drain_task(detail::owner_ptr owner, detail::client_ptr client, deadline limit) {
    if (owner) co_await owner->drain(std::move(client), limit);
  }
  static task<failure> closed_task(detail::client_ptr c) {
    while (!c->closed()) co_await c->ended().wait();
    co_return *c->why_closed();
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
  /// One more client of the server of `c`.
  static task<detail::client_ptr> another(detail::client_ptr c, deadline limit) {
    detail::loop_core* const core = &c->core();
    if (!c->dialler()) {
      if (!c->resolver()) throw error(errc::unsupported, "connect", "this store stands on a stream that nobody can dial again");
      co_return co_await detail::connect_client(core, c->host(), c->port(), limit, c->options(), c->resolver());
    }
    const time_point until = limit.from(core->now());
    detail::back_off pauses;
    for (;;) {
      detail::client_ptr fresh(new detail::client_state(*core, c->host(), c->port(), c->options()));
      fresh->stand_on(c->dialler(), 0);
      fresh->begin_dialling(pauses.nonce());
      task<> greeted = detail::greeted(fresh);
      co_await with_deadline(std::move(greeted), until);
      if (fresh->ready()) co_return fresh;
      const errc why = fresh->why_closed()->code();
      if ((why != errc::refused && why != errc::disconnected) || core->now() >= until) throw error(fresh->why_closed());
      co_await with_deadline(sleep_for(pauses.next()), until);
    }
  }
  static task<tcp_store> clone_task(detail::client_ptr c, deadline limit) {
    detail::client_ptr fresh = co_await another(std::move(c), limit);
    co_return tcp_store(std::move(fresh));
  }
  static task<> reconnect_task(detail::client_ptr c, deadline limit) {
    const time_point begun = c->core().now();
    if (!c->closed()) co_return;
    const failure_ptr why = c->why_closed();
    tcp_store fresh(co_await another(c, limit.from(begun)));
    // Who it is was asked right behind the handshake: known when anything else is answered.
    static_cast<void>(co_await fresh.ping(limit.from(begun)));
    detail::server_info const& before = c->info();
    detail::server_info const& now = fresh.client_->info();
    if (before.was_replaced_by(now)) {
      failure f(errc::server_replaced, "reconnect",
                now.is_rollcall ? "another server answers there; what the old one held is gone" : "a server that is not rollcall's answers there");
      f.with_peer(c->endpoint());
      throw error(f.with_times(c->core().now() - begun, limit.length(begun)));
    }
    if (c->why_closed() == why) {
      c->adopt(*fresh.client_);
    } else if (c->closed()) {  // else another copy of the handle was quicker
      throw error(failure(errc::closed, "reconnect", "the store was closed meanwhile").with_peer(c->endpoint()));
    }
  }

  friend class detail::creation;
  detail::owner_ptr owner_;
};
static_assert(await_safe<tcp_store>);

}  // namespace v0
}  // namespace rollcall
