#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "../core/intrusive.hpp"
#include "../wire/buffer.hpp"
#include "../wire/decode.hpp"
#include "table.hpp"
#include "waiters.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// What became of a request. Anything but `ok` means: close that connection, and nothing else; no key and no queue has changed.
enum class apply_status : std::uint8_t {
  ok,
  not_a_number,     ///< ADD or BARRIER on a value that does not start with a number, or an empty one (protocol 4.2)
  number_overflow,  ///< ADD or BARRIER: the stored number, or the sum, is outside 64 bits; PyTorch wraps the sum
  value_too_long,   ///< APPEND past max_appended_bytes
  store_full,       ///< past max_stored_bytes
  reserved_key,     ///< the capability key is virtual and cannot be changed
  too_many_waits,   ///< past max_awaited_keys of one connection
  reply_too_long,   ///< past max_reply_bytes
};
[[nodiscard]] std::string_view to_string(apply_status s) noexcept;

/// What a store holds at the most. The defaults are design decisions, PyTorch's servers have no such bounds.
class store_options {
 public:
  store_options() noexcept {}

  wire::limits limits;                                         ///< of one request; for the decoder, kept here for those who need both
  std::size_t max_appended_bytes = std::size_t{256} << 20;     ///< of one value, after APPEND
  std::uint64_t max_stored_bytes = std::uint64_t{4} << 30;     ///< as store_stats::stored_bytes counts
  std::size_t max_reply_bytes = std::size_t{256} << 20;        ///< copied into one reply: LIST_KEYS, MULTI_GET of small values
  std::uint32_t max_awaited_keys = 1 << 20;                    ///< in the unanswered WAITs of one connection
  std::uint64_t capabilities = 0;                              ///< bits told under the reserved key
  std::array<char, wire::instance_id_bytes> instance_id{};     ///< random; tells one server from its successor
  std::uint64_t hash_seed = 0;                                 ///< random and secret: keeps peers from aiming keys at one bucket

  store_options& request_limits(wire::limits const& l) noexcept { return limits = l, *this; }
  store_options& appended_bytes(std::size_t n) noexcept { return max_appended_bytes = n, *this; }
  store_options& stored_bytes(std::uint64_t n) noexcept { return max_stored_bytes = n, *this; }
  store_options& reply_bytes(std::size_t n) noexcept { return max_reply_bytes = n, *this; }
  store_options& awaited_keys(std::uint32_t n) noexcept { return max_awaited_keys = n, *this; }
  store_options& capability_bits(std::uint64_t bits) noexcept { return capabilities = bits, *this; }
  store_options& instance(std::array<char, wire::instance_id_bytes> const& id) noexcept { return instance_id = id, *this; }
  store_options& seed(std::uint64_t s) noexcept { return hash_seed = s, *this; }
};

/// A snapshot of a store's counters.
struct store_stats {
  std::uint64_t keys = 0;          ///< with a value; what GETNUMKEYS answers
  std::uint64_t clients = 0;
  std::uint64_t waits = 0;         ///< unanswered WAITs and BARRIERs
  std::uint64_t stored_bytes = 0;  ///< keys, values and queued values, plus store::key_cost a key and store::item_cost a queued value
  std::array<std::uint64_t, wire::opcode_count> requests{};  ///< applied, by opcode
};

class store;
struct woken_tag {};

/// One connection as the store sees it. Embed it in the connection or derive from it; it must not outlive the store.
class client : public waiting, private list_hook<woken_tag> {
 public:
  explicit client(store& s) noexcept;
  ~client();

  /// STOP_WAITING bytes that this connection is owed; see store::woken().
  [[nodiscard]] std::uint32_t due() const noexcept { return due_; }

 private:
  friend class store;
  friend class list<client, woken_tag>;
  std::uint32_t due_ = 0;
  store* store_;
};
static_assert(sizeof(client) <= 64);

/// The whole server without a socket: requests in, replies and wake-ups out. Executes one request at a time.
///
/// Rules where PyTorch's two servers differ (protocol 16): GET of a missing key answers an empty value; COMPARE_SET wakes only when
/// it has stored; MULTI_SET happens wholly or not at all; every WAIT of a connection is answered; ADD past 64 bits closes.
/// Keys that begin with 0x00 are rollcall's own: no client's key looks like that (protocol 1), so they are neither counted nor listed.
class store {
 public:
  using woken_list = list<client, woken_tag>;

  /// Bookkeeping counted into stored_bytes, in bytes: for each entry (also one that is only waited for), and each queued value.
  static constexpr std::size_t key_cost = 96;
  static constexpr std::size_t item_cost = 48;

  explicit store(store_options const& options);
  store(store const&) = delete;
  store& operator=(store const&) = delete;
  ~store() { ROLLCALL_ASSERT(waiters_.clients() == 0); }

  /// Executes one request of `c` and appends what `c` gets for it to `replies`: first the STOP_WAITING bytes that are due to `c`, old
  /// ones and ones that this request causes, then the reply. Other clients are put into woken().
  ///
  /// replies   the batch that everything for `c` goes through, in order.
  /// throws    std::bad_alloc only; `c` is then to be closed, and the store is intact.
  [[nodiscard]] apply_status apply(client& c, wire::request const& r, wire::write_batch& replies);

  /// Drops the waits of `c`, passes on wake-ups that it has not used, and forgets what is due to it. Idempotent; ~client calls it.
  void disconnect(client& c) noexcept;

  /// Clients that are owed STOP_WAITING bytes, in the order they were woken. Drain it with take_due(front()), as many as fit a turn;
  /// apply() takes care of a client whose next request is executed first.
  [[nodiscard]] woken_list& woken() noexcept { return woken_; }
  /// How many bytes of 0x00 `c` is to be sent now; it leaves woken().
  [[nodiscard]] std::uint32_t take_due(client& c) noexcept;

  [[nodiscard]] store_options const& options() const noexcept { return options_; }
  [[nodiscard]] wire::limits const& limits() const noexcept { return options_.limits; }
  [[nodiscard]] store_stats stats() const noexcept;
  /// Entries in the table, also those that are only waited for.
  [[nodiscard]] std::size_t entries() const noexcept { return table_.size(); }
  /// The value of a key, for those who are in the process; valid until the next request. None where it is missing.
  [[nodiscard]] std::optional<std::string_view> peek(std::string_view key) const noexcept {
    entry const* e = table_.find(key, table_.hash(key));
    return e && e->present() ? std::optional(e->value.view()) : std::nullopt;
  }
  [[nodiscard]] waiters const& bookkeeping() const noexcept { return waiters_; }

 private:
  friend class client;

  [[nodiscard]] apply_status execute(client& c, wire::request const& r, wire::write_batch& out);
  [[nodiscard]] apply_status set(client& c, std::string_view key, std::string_view value, wire::write_batch& out);
  [[nodiscard]] apply_status compare_set(client& c, wire::request const& r, wire::write_batch& out);
  [[nodiscard]] apply_status get(std::string_view key, wire::write_batch& out);
  [[nodiscard]] apply_status add(client& c, std::string_view key, std::int64_t delta, wire::write_batch& out);
  [[nodiscard]] apply_status check(wire::request const& r, wire::write_batch& out);
  [[nodiscard]] apply_status wait(client& c, wire::request const& r, wire::write_batch& out);
  [[nodiscard]] apply_status delete_key(std::string_view key, wire::write_batch& out);
  [[nodiscard]] apply_status append(client& c, std::string_view key, std::string_view value, wire::write_batch& out);
  [[nodiscard]] apply_status multi_get(wire::request const& r, wire::write_batch& out);
  [[nodiscard]] apply_status multi_set(client& c, wire::request const& r, wire::write_batch& out);
  void cancel_wait(client& c, wire::write_batch& out);
  [[nodiscard]] apply_status queue_push(client& c, std::string_view key, std::string_view value, wire::write_batch& out);
  [[nodiscard]] apply_status queue_pop(std::string_view key, wire::write_batch& out);
  [[nodiscard]] apply_status queue_len(std::string_view key, wire::write_batch& out);
  [[nodiscard]] apply_status list_keys(wire::write_batch& out);
  [[nodiscard]] apply_status barrier(client& c, std::string_view key, std::int64_t world_size, wire::write_batch& out);

  [[nodiscard]] bool fits(std::uint64_t growth) const noexcept {
    return stored_ <= options_.max_stored_bytes && growth <= options_.max_stored_bytes - stored_;
  }
  [[nodiscard]] entry& insert(std::string_view key, std::uint64_t hash);
  [[nodiscard]] apply_status put(entry*& e, std::string_view key, std::uint64_t hash, std::string_view value);
  [[nodiscard]] apply_status await(client& c, pending_wait*& w, entry* e, std::string_view key, std::uint64_t hash);
  void collect(entry& e) noexcept;

  void notify(waiting& who) noexcept;
  void wake_all(entry& e) noexcept;
  void wake_one(entry& e) noexcept;
  void pass_on(wait_node* grants) noexcept;
  void deliver(client& c, wire::write_batch& out);

  store_options options_;
  std::array<char, wire::capability_bytes> capability_{};
  table table_;
  waiters waiters_;
  woken_list woken_;
  std::uint64_t stored_ = 0;
  std::uint64_t keys_ = 0;
  std::uint64_t key_bytes_ = 0;  // of the keys that are present
  std::array<std::uint64_t, wire::opcode_count> requests_{};
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall

#include "detail/store.ipp"
#include "detail/store_requests.ipp"
