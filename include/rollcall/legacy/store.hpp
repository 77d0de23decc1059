#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/bytes.hpp"
#include "../core/error.hpp"
#include "options.hpp"
#include "store_core.hpp"

namespace rollcall {
inline namespace v0 {

/// The operations of tcp_store for programs without a loop: each call returns when it is over. No thread of its own.
///
/// Any number of threads may call at once. Calls share one connection; one that waits delays no other (it is interrupted and sent again,
/// or another connection is opened in the calling thread). Unless it says otherwise, an operation
///
///   limit     is the deadline given last, else blocking_options::timeout(), 300 s unless set, on the monotonic clock. One limit for all
///             its steps; signals do not move it. Afterwards the connection is in step.
///   errors    throws rollcall::error: timed_out past its limit, cancelled by interrupt(), disconnected, closed, protocol, limit when a
///             key or value is too long. error::effect() tells whether a change took place.
///   cancel    interrupt() from any thread.
///
/// Changes return when the server has applied them; one that fails once it was sent has effect unknown, and nothing is retried.
/// Keys are 0..8191 bytes, values 0..8 MiB, both opaque. Copies share the connection; the last one to go close()s, which may wait 2 s where
/// items of queues that were popped for nobody have to go back.
class blocking_store {
 public:
  using limit_option = std::optional<deadline>;

  /// Connects to the store at `host` and `port` (1..65535), resolving, retrying and shaking hands until `limit` has passed. A name is
  /// resolved by the system, whose own time-out may exceed the limit; literals and "localhost" are not asked of it. The host "unix:PATH"
  /// is a unix socket; then the port is not looked at.
  ///
  /// errors    refused or resolve at the limit, with what was tried and the last error; protocol at once when something else than a store
  ///           answers; invalid for a port out of range; io when this process has had no descriptor for 1 s.
  [[nodiscard]] static blocking_store connect(std::string_view host, int port, deadline limit = std::chrono::seconds(300),
                                              blocking_options o = {}) {
    return blocking_store(legacy::destination(std::string(host), port), limit, std::move(o));
  }
  /// The same at an address, a unix socket's for example: `socket_address::unix_path("/run/job/store").value()`.
  [[nodiscard]] static blocking_store connect(socket_address const& at, deadline limit = std::chrono::seconds(300),
                                              blocking_options o = {}) {
    return blocking_store(legacy::destination(at), limit, std::move(o));
  }
  /// Another client of the same server, on a connection of its own with the same options.
  [[nodiscard]] blocking_store clone(deadline limit = std::chrono::seconds(300)) const {
    return blocking_store(core_->to(), limit, core_->options());
  }

  /// Stores `value` under `key`.
  void set(std::string_view key, std::string_view value, limit_option limit = {}) const;
  /// The value of `key`, once it exists.
  [[nodiscard]] std::string get(std::string_view key, limit_option limit = {}) const;
  /// The value of `key`, once it exists, copied into `buffer`; how many bytes it has.
  ///
  /// errors    limit when the value is longer than the buffer, which is then unchanged. After other errors its contents are unspecified.
  [[nodiscard]] std::size_t get_into(std::string_view key, std::span<char> buffer, limit_option limit = {}) const;
  /// The value of `key`, or none when it does not exist now.
  [[nodiscard]] std::optional<std::string> find(std::string_view key, limit_option limit = {}) const;
  /// Adds `delta` to the decimal number under `key` (0 where it is missing) and gives the sum. A value that is no number, and a sum past
  /// 64 bits, make the server close the connection (protocol 4.2).
  std::int64_t add(std::string_view key, std::int64_t delta, limit_option limit = {}) const;
  /// Whether every key exists now (true for no keys); a queue that is not empty exists.
  [[nodiscard]] bool check(keys k, limit_option limit = {}) const;
  /// Waits until every key exists: 0..131072 keys. "Existed at some moment", not "all exist now" (protocol 7.3).
  ///
  /// errors    timed_out names the keys that are still missing (of the first 64; to learn which may take 100 ms past the limit).
  void wait(keys k, limit_option limit = {}) const;
  /// Deletes `key`; whether it existed. Queues are not touched.
  bool delete_key(std::string_view key, limit_option limit = {}) const;
  /// How many keys the server holds, internal ones (`init/`) included; queues do not count (protocol 4).
  [[nodiscard]] std::int64_t num_keys(limit_option limit = {}) const;
  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Gives the value there is afterwards;
  /// `expected` itself where the key is missing and `expected` is not empty (protocol 4.1).
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired, limit_option limit = {}) const;
  /// Adds `value` to the end of what `key` holds, or creates it.
  void append(std::string_view key, std::string_view value, limit_option limit = {}) const;
  /// The values of 0..131072 keys, in order, once all of them exist.
  [[nodiscard]] std::vector<std::string> multi_get(keys k, limit_option limit = {}) const;
  /// Sets several keys: all or none on rollcall's servers, one after the other on PyTorch's (protocol 4).
  void multi_set(pairs p, limit_option limit = {}) const;

  /// Puts `value` at the tail of queue `key`.
  ///
  /// errors    unsupported where the server has no queues: then only a connection of its own was spent to learn that, and the store goes
  ///           on. The same holds for queue_pop, queue_pop_now and queue_len.
  void queue_push(std::string_view key, std::string_view value, limit_option limit = {}) const;
  /// Takes the head of queue `key`, once there is one for this caller: never "the queue is empty".
  ///
  /// cancel    loses no item, nor does a time-out: one that comes afterwards goes to this store's next pop of the key, and close() pushes
  ///           it back at the tail. A lost connection may lose one; then the effect is unknown.
  [[nodiscard]] std::string queue_pop(std::string_view key, limit_option limit = {}) const;
  /// Takes the head of queue `key`, or none when it is empty now. Interrupted, it loses no item, as queue_pop().
  [[nodiscard]] std::optional<std::string> queue_pop_now(std::string_view key, limit_option limit = {}) const;
  /// How many items queue `key` holds; 0 where there is none.
  [[nodiscard]] std::int64_t queue_len(std::string_view key, limit_option limit = {}) const;
  /// The keys that users of the store have set, in no order; neither internal ones (`init/`) nor queues.
  ///
  /// errors    unsupported where the server does not know it.
  [[nodiscard]] std::vector<std::string> list_keys(limit_option limit = {}) const;
  /// The server's own BARRIER: counts this caller under `key` and returns when `world_size` have come (protocol 4.3). One use per key.
  ///
  /// errors    unsupported where the server does not know it. A key that holds no number makes the server close the connection.
  /// cancel    the arrival stays counted, also past the limit: the next call on this store with the same key goes on where this one ended
  ///           and does not count again. After a lost connection the effect is unknown, and the next call counts again.
  void server_barrier(std::string_view key, std::int64_t world_size, limit_option limit = {}) const;
  /// How long a request and its reply take.
  duration ping(limit_option limit = {}) const;

  /// Like set(), but does not wait for its reply, and commands that are asked of this store afterwards find it executed; server_barrier(), a wait for
  /// several keys and the first use of queues or list_keys() on a server that is not rollcall's may overtake it. Nobody waits for it
  /// but flush(). Where a wait that cannot be interrupted has the only connection, another one is made first: that may fail as connect() may,
  /// within blocking_options::timeout().
  ///
  /// errors    throws closed, and limit for what is too long, past blocking_options::max_unsent(), or where every connection is in use.
  ///           Everything later is told by flush().
  void send_set(std::string_view key, std::string_view value) const;
  /// Like append(); see send_set().
  void send_append(std::string_view key, std::string_view value) const;
  /// Like multi_set(); see send_set().
  void send_multi_set(pairs p) const;
  /// Like queue_push(); see send_set(). Unsupported where it is not known yet that the server has queues.
  void send_queue_push(std::string_view key, std::string_view value) const;
  /// Returns when the server has applied everything that was sent by send_set() and its kin before.
  void flush(limit_option limit = {}) const;

  /// Ends every call that is under way, in any thread, with errc::cancelled; later ones go on. Any thread, not a signal handler.
  void interrupt() const noexcept { core_->interrupt(); }
  /// Closes the connections; pending and later operations fail with errc::closed. Idempotent. Items that were popped for calls that had
  /// ended are pushed back at the tails of their queues first, which may take up to 2 s; otherwise at once.
  void close() const noexcept;
  /// Connects again after a loss or a close(), for all copies of this handle and all threads; resolves the name anew. Nothing that failed is
  /// repeated: that is the caller's decision (error::effect()). At once where the store is open. When the limit is reached nothing has changed.
  ///
  /// errors    server_replaced when another server answers than the one before, both rollcall's: what was stored is gone. PyTorch's servers
  ///           cannot be told apart. closed when close() was called meanwhile. Else what connect() throws; the store stays closed.
  /// cancel    interrupt(); the store stays closed.
  void reconnect(deadline limit) const;
  /// Tells this client, and its copies, from every other one, also from its predecessor in a restarted process; random.
  [[nodiscard]] std::uint64_t identity() const noexcept { return core_->identity(); }
  /// False once the store was closed or its connection was found to be lost.
  [[nodiscard]] bool is_open() const noexcept {
    const auto l = core_->look();
    return !core_->closed();
  }
  [[nodiscard]] std::string const& endpoint() const noexcept { return core_->endpoint(); }
  /// Whether the server is rollcall's, by the capability probe of the handshake (protocol 17).
  [[nodiscard]] bool server_is_rollcall() const noexcept {
    const auto l = core_->look();
    return core_->is_rollcall();
  }
  /// How many connections this store has.
  [[nodiscard]] std::size_t connections() const noexcept {
    const auto l = core_->look();
    return core_->lanes();
  }

 private:
  using lock = legacy::store_core::lock;
  using ending = legacy::store_core::ending;
  static constexpr std::string_view prefix = "/";  // the client's, not the server's (protocol 1)
  static constexpr std::size_t max_keys = 131072;  // in one request (protocol 6)
  static constexpr std::chrono::milliseconds autopsy_time{100};
  static constexpr std::size_t autopsy_keys = 64;

  blocking_store(legacy::destination to, deadline limit, blocking_options o)
      : core_(new legacy::store_core(std::move(to), std::move(o)), [](legacy::store_core* c) {
          give_back(*c);
          delete c;
        }) {
    legacy::terms t("connect", limit);
    lock l = core_->enter(t);
    static_cast<void>(core_->command_lane(l, t));
  }

  [[nodiscard]] legacy::terms terms_of(std::string_view name, limit_option const& limit, keys const& k = {}) const;
  void judge(legacy::terms const& t, std::string_view key, std::optional<std::string_view> value = {}) const;
  void judge(legacy::terms const& t, keys const& k) const;
  [[nodiscard]] std::vector<std::string_view> judge(pairs const& p, std::string_view name) const;

  // detail/store.ipp: one step of an operation each; they return with the lock held, or throw
  [[nodiscard]] legacy::call::answer one_reply(lock& l, legacy::terms& t, std::string_view request, wire::reply_form form,
                                               bool changes) const;
  void fenced(lock& l, legacy::terms& t, std::string_view request) const;
  [[nodiscard]] ending wait_for(lock& l, legacy::terms& t, std::string_view request) const;
  ending pause(lock& l, legacy::terms& t, unsigned rounds) const;
  [[nodiscard]] bool autopsy(lock& l, legacy::terms& t, legacy::call& c, std::string_view request) const;
  [[nodiscard]] bool look(lock& l, legacy::terms& t, std::string_view request, bool exists, std::vector<std::string>& values) const;
  [[nodiscard]] bool confirmed(lock& l, legacy::terms& t, std::string_view request, std::vector<std::string> const& values,
                               bool& again) const;
  [[nodiscard]] bool read(lock& l, legacy::terms& t, std::string_view request, bool waits, std::vector<std::string>& values) const;
  void need(lock& l, legacy::terms& t, legacy::family f, std::string_view key) const;
  [[noreturn]] void not_known(lock& l, legacy::terms& t, legacy::family f, std::string_view key) const;
  [[nodiscard]] std::optional<std::string> pop(lock& l, legacy::terms& t, std::string_view key, bool waits) const;
  void resume_barrier(lock& l, legacy::terms& t, std::string_view key, std::int64_t world_size) const;
  static void give_back(legacy::store_core& c) noexcept;

  std::shared_ptr<legacy::store_core> core_;
};

}  // namespace v0
}  // namespace rollcall

#include "detail/store.ipp"
#include "detail/store_steps.ipp"
