#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../core/bytes.hpp"
#include "../rt/loop.hpp"
#include "../rt/task.hpp"
#include "../wire/opcodes.hpp"
#include "file_operation.hpp"
#include "store.hpp"

namespace rollcall {
inline namespace v0 {

/// A store in a file that processes share, on one host or over a network file system whose locks work: PyTorch's format and locks
/// (docs/design/file-store.md), so that its FileStores may be among them. Semantics are those of every store (docs/design/stores.md).
///
/// A cheap handle that may be copied. The file is opened and locked in libuv's thread pool, never on the loop's thread. The last handle
/// or operation of a client that goes, or close(), says good-bye to the other members there, and removes the file where it was the last
/// of them; that keeps the loop alive, for 1 s at most where the lock cannot be had. One loop's thread only. What differs:
///
///   limit     holds whatever the file does: while the lock is held by a process that is stopped (timed_out, which names its pid), while
///             the end of a record is missing (protocol, which says where), while the file is not there yet (open()).
///   errors    invalid, limit as hash_store has them; io with the system's error, effect none (a full disk: the file stays readable);
///             protocol where the file is damaged; disconnected when it was removed or replaced by another one, or another rank of the
///             run has died: the store is closed then.
///   cancel    a change that a job in the thread pool has begun is finished there: effect unknown. An item that comes for a pop that was
///             given up goes back to the head of its queue.
///   order     of one client's operations is that of their awaits. Each wait-free one sees every change that any member has completed.
///
/// After fork() the copy in the child is dead: it writes nothing, and removes nothing.
class file_store {
 public:
  using limit_option = std::optional<deadline>;

  /// Opens the file at `path`, which is made where it is missing, and counts this client in as a member.
  ///
  /// path      of a file in a directory that is there, a relative one from where the process is now; of a directory, if there is a run
  ///           id: PATH/rollcall-RUN_ID then.
  /// limit     for the lock, and for the file to appear where file_options::create() is off.
  /// errors    io at once where the directory is missing or nothing may be written there, with the path; invalid for what is no file;
  ///           failed for the file of an earlier run, or of one that this rank cannot join (file_options::rank), with who is there;
  ///           timed_out or protocol at the limit, with what was in the way.
  /// cancel    as if never called.
  [[nodiscard]] static task<file_store> open(loop& l, std::string_view path, deadline limit = std::chrono::seconds(300),
                                             file_options options = {}) {
    return open_task(&l.core(), std::string(path), limit, std::move(options));
  }
  /// Another client of the same file: a member of its own, with the same options, but no rank. As open().
  [[nodiscard]] task<file_store> clone(deadline limit = std::chrono::seconds(300)) const {
    file_options o = client_->state().options();
    o.rank(-1);
    return open_task(&client_->state().core(), client_->state().path(), limit, std::move(o));
  }

  [[nodiscard]] file_operation<void> set(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return on_key<void>(detail::op_kind::set, key, limit, value);
  }
  [[nodiscard]] file_operation<std::string> get(std::string_view key, limit_option limit = {}) const {
    return on_key<std::string>(detail::op_kind::get, key, limit);
  }
  [[nodiscard]] file_operation<std::optional<std::string>> find(std::string_view key, limit_option limit = {}) const {
    return on_key<std::optional<std::string>>(detail::op_kind::find, key, limit);
  }
  [[nodiscard]] file_operation<std::int64_t> add(std::string_view key, std::int64_t delta, limit_option limit = {}) const {
    auto op = on_key<std::int64_t>(detail::op_kind::add, key, limit);
    op.request_->number = delta;
    return op;
  }
  [[nodiscard]] file_operation<bool> check(keys k, limit_option limit = {}) const {
    return on_keys<bool>(detail::op_kind::check, k, limit);
  }
  [[nodiscard]] file_operation<void> wait(keys k, limit_option limit = {}) const { return on_keys<void>(detail::op_kind::wait, k, limit); }
  [[nodiscard]] file_operation<bool> delete_key(std::string_view key, limit_option limit = {}) const {
    return on_key<bool>(detail::op_kind::delete_key, key, limit);
  }
  [[nodiscard]] file_operation<std::int64_t> num_keys(limit_option limit = {}) const {
    return make<std::int64_t>(detail::op_kind::num_keys, limit);
  }
  [[nodiscard]] file_operation<std::vector<std::string>> list_keys(limit_option limit = {}) const {
    return make<std::vector<std::string>>(detail::op_kind::list_keys, limit);
  }
  [[nodiscard]] file_operation<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                                        limit_option limit = {}) const {
    return on_key<std::string>(detail::op_kind::compare_set, key, limit, expected, desired);
  }
  /// Costs what the whole value costs, as the format has no record for it.
  [[nodiscard]] file_operation<void> append(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return on_key<void>(detail::op_kind::append, key, limit, value);
  }
  [[nodiscard]] file_operation<std::vector<std::string>> multi_get(keys k, limit_option limit = {}) const {
    return on_keys<std::vector<std::string>>(detail::op_kind::multi_get, k, limit);
  }
  [[nodiscard]] file_operation<void> multi_set(pairs p, limit_option limit = {}) const {
    auto op = make<void>(detail::op_kind::multi_set, limit);
    if (!few_enough(op, p.size(), "pairs")) return op;
    for (kv const& one : p) {
      if (!fits(op, one.key) || !value_fits(op, one.key, one.value)) return op;
      op.request_->keys.emplace_back(one.key);
      op.request_->values.emplace_back(one.value);
    }
    return op;
  }
  /// Queues are rollcall's: PyTorch's FileStore has none, and keeps their records as values that nobody asks for.
  [[nodiscard]] file_operation<void> queue_push(std::string_view key, std::string_view value, limit_option limit = {}) const {
    return on_key<void>(detail::op_kind::queue_push, key, limit, value);
  }
  [[nodiscard]] file_operation<std::string> queue_pop(std::string_view key, limit_option limit = {}) const {
    return on_key<std::string>(detail::op_kind::queue_pop, key, limit);
  }
  [[nodiscard]] file_operation<std::optional<std::string>> queue_pop_now(std::string_view key, limit_option limit = {}) const {
    return on_key<std::optional<std::string>>(detail::op_kind::queue_pop_now, key, limit);
  }
  [[nodiscard]] file_operation<std::int64_t> queue_len(std::string_view key, limit_option limit = {}) const {
    return on_key<std::int64_t>(detail::op_kind::queue_len, key, limit);
  }

  /// The file, also where open() was given a directory.
  [[nodiscard]] std::string const& path() const noexcept { return client_->state().path(); }
  /// The loop it lives on.
  [[nodiscard]] loop_ref home() const noexcept { return loop_ref(client_->state().core()); }
  /// Tells this client from every other one; random.
  [[nodiscard]] std::uint64_t identity() const noexcept { return client_->identity(); }
  /// Ends this client, for all copies of the handle: pending and later operations fail with errc::closed, and it is a member no more.
  void close() const noexcept { client_->close({}); }
  /// close(), which says that the run has failed, and why: ranks that come while others are there get it as an error, those that come later
  /// begin anew. For members with a rank; others only close. The last handle does the same where an exception destroys it.
  ///
  /// why       not empty; at most 1024 bytes are kept.
  void close_failed(std::string_view why) const noexcept { client_->close(why); }
  /// Completes when the store has ended, and says why: closed; disconnected where the file was removed or replaced, or a rank is dead
  /// (file_options::ends_with_members); protocol where it is damaged. Keeps no member from leaving. What happens to the file is noticed
  /// while anyone waits for a key; where there are ranks, always.
  [[nodiscard]] task<failure> closed() const { return closed_task(client_->shared_state()); }
  /// False once it was closed, or the file was removed, replaced or damaged, or a rank is dead.
  [[nodiscard]] bool is_open() const noexcept { return !client_->state().ended(); }

 private:
  explicit file_store(detail::file_client_ptr c) noexcept : client_(std::move(c)) {}

  static task<file_store> open_task(detail::loop_core* core, std::string path, deadline limit, file_options options) {
    if (path.empty()) throw error(errc::invalid, "open", "the path of the file is empty");
    std::error_code ignored;
    if (path.front() != '/') path = std::filesystem::absolute(path, ignored).string();
    file_store s(std::make_shared<detail::file_client>(*core, std::move(path), options));
    file_operation<void> joins(s.client_, detail::op_kind::ping, limit);
    co_await std::move(joins);
    s.client_->state().opened();
    co_return s;
  }

  static task<failure> closed_task(std::shared_ptr<detail::file_state> s) {
    co_await s->over().wait();
    failure why(s->ended_by(), "file store", std::string(s->why_ended()));
    why.with_peer(s->path());
    co_return why;
  }

  template <class T>
  [[nodiscard]] file_operation<T> make(detail::op_kind k, limit_option limit) const {
    return file_operation<T>(client_, k, limit ? *limit : client_->state().options().timeout());
  }
  template <class T, class... Value>
  [[nodiscard]] file_operation<T> on_key(detail::op_kind k, std::string_view key, limit_option limit, Value... values) const {
    auto op = make<T>(k, limit);
    if (!fits(op, key) || !(value_fits(op, key, values) && ...)) return op;
    op.request_->keys.emplace_back(key);
    (op.request_->values.emplace_back(values), ...);
    return op;
  }
  template <class T>
  [[nodiscard]] file_operation<T> on_keys(detail::op_kind kind, keys const& k, limit_option limit) const {
    auto op = make<T>(kind, limit);
    if (!few_enough(op, k.size(), "keys")) return op;
    op.request_->keys.reserve(k.size());
    for (std::size_t i = 0; i < k.size(); ++i) {
      if (!fits(op, k[i])) return op;
      op.request_->keys.emplace_back(k[i]);
    }
    return op;
  }

  template <class T>
  static bool few_enough(file_operation<T>& op, std::size_t n, char const* what) {
    const std::size_t most = wire::limits().max_keys;
    if (n <= most) return true;
    op.refuse(failure(errc::limit, op.request_->name(), std::to_string(n) + " " + what + ", the limit is " + std::to_string(most)));
    return false;
  }
  template <class T>
  static bool fits(file_operation<T>& op, std::string_view key) {
    const std::size_t most = wire::limits().max_key_bytes - 1;
    return key.size() <= most || refused(op, "key", key.substr(0, 80), key.size(), most);
  }
  template <class T>
  static bool value_fits(file_operation<T>& op, std::string_view key, std::string_view value) {
    const std::size_t most = wire::limits().max_value_bytes;
    return value.size() <= most || refused(op, "value", key, value.size(), most);
  }
  template <class T>
  static bool refused(file_operation<T>& op, char const* what, std::string_view key, std::size_t size, std::size_t most) {
    failure f(errc::limit, op.request_->name(),
              std::string("the ") + what + " has " + std::to_string(size) + " bytes, the limit is " + std::to_string(most));
    op.refuse(std::move(f.with_key(key)));
    return false;
  }

  detail::file_client_ptr client_;
};
static_assert(await_safe<file_store> && store<file_store>);

}  // namespace v0
}  // namespace rollcall
