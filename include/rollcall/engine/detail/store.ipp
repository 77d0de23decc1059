#pragma once
#include <cstring>
#include <utility>

#include "../store.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

namespace detail {

/// A key of rollcall's own bookkeeping, outside every client's name space (protocol 1, 17).
[[nodiscard]] inline bool is_own(std::string_view key) noexcept { return !key.empty() && key.front() == '\0'; }

}  // namespace detail

inline std::string_view to_string(apply_status s) noexcept {
  switch (s) {
    case apply_status::ok: return "ok";
    case apply_status::not_a_number: return "the stored value is not a number";
    case apply_status::number_overflow: return "the number is outside 64 bits";
    case apply_status::value_too_long: return "the appended value is too long";
    case apply_status::store_full: return "the store is full";
    case apply_status::reserved_key: return "the key is reserved";
    case apply_status::too_many_waits: return "the connection waits for too many keys";
    case apply_status::reply_too_long: return "the reply is too long";
  }
  return "unknown";
}

inline client::client(store& s) noexcept : store_(&s) { s.waiters_.attach(); }
inline client::~client() {
  if (store_) store_->disconnect(*this);
}

inline store::store(store_options const& options) : options_(options), table_(options.hash_seed) {
  wire::store(capability_.data(), wire::capability_version);
  wire::store(capability_.data() + 4, options_.capabilities);
  std::memcpy(capability_.data() + 12, options_.instance_id.data(), options_.instance_id.size());
}

inline store_stats store::stats() const noexcept {
  store_stats s;
  s.keys = keys_;
  s.clients = waiters_.clients();
  s.waits = waiters_.waits();
  s.stored_bytes = stored_;
  s.requests = requests_;
  return s;
}

inline void store::disconnect(client& c) noexcept {
  if (!c.store_) return;
  waiters_.cancel(c, [this](entry& e) { collect(e); });
  pass_on(waiters_.take_grants(c));
  static_cast<void>(take_due(c));
  waiters_.detach();
  c.store_ = nullptr;
}

inline std::uint32_t store::take_due(client& c) noexcept {
  static_cast<list_hook<woken_tag>&>(c).unlink();
  return std::exchange(c.due_, 0);
}

// Wake-ups

inline void store::notify(waiting& who) noexcept {
  client& c = static_cast<client&>(who);
  if (c.due_++ == 0) woken_.push_back(c);
}

inline void store::wake_all(entry& e) noexcept {
  while (e.first_waiter)
    if (waiting* who = waiters_.advance(e)) notify(*who);
}

/// An item arrived in e's queue, or one is left that nobody was woken for.
inline void store::wake_one(entry& e) noexcept {
  while (e.first_waiter) {
    if (waiting* who = waiters_.advance(e)) {
      notify(*who);
      waiters_.grant(*who, e);
      return;
    }
  }
}

/// Ends grants; where items are left over that no other connection was woken for, the next one in line is woken. Thus somebody
/// waits for a queue only while each of its items has a connection on its way to it.
inline void store::pass_on(wait_node* grants) noexcept {
  while (grants) {
    entry& e = waiters_.revoke(grants);
    if (e.queued > e.grants) wake_one(e);
    collect(e);
  }
}

inline void store::deliver(client& c, wire::write_batch& out) {
  if (c.due_ == 0) [[likely]] return;
  std::memset(out.extend(c.due_), wire::stop_waiting, c.due_);
  static_cast<void>(take_due(c));
}

// Entries

inline entry& store::insert(std::string_view key, std::uint64_t hash) {
  entry& e = table_.insert(key, hash);
  stored_ += key_cost + key.size();
  return e;
}

/// Erases an entry that holds nothing.
inline void store::collect(entry& e) noexcept {
  if (!e.idle()) return;
  stored_ -= key_cost + e.key_size;
  table_.erase(e);
}

/// Gives `key` a value; `e` is its entry, or null and then made.
inline apply_status store::put(entry*& e, std::string_view key, std::uint64_t hash, std::string_view value) {
  const std::size_t old = e ? e->value.size() : 0;
  const std::uint64_t growth = value.size() > old ? value.size() - old : 0;
  if (!fits(e ? growth : growth + key_cost + key.size())) return apply_status::store_full;
  if (e && e->present()) {
    e->value.assign(value);
  } else {
    blob_ref block(value);
    if (!e) e = &insert(key, hash);
    e->value = std::move(block);
    if (!detail::is_own(key)) [[likely]] {
      ++keys_;
      key_bytes_ += key.size();
    }
  }
  stored_ = stored_ - old + value.size();
  return apply_status::ok;
}

/// One more key for the wait `w`, which is begun at its first key.
inline apply_status store::await(client& c, pending_wait*& w, entry* e, std::string_view key, std::uint64_t hash) {
  if (c.awaited_keys() >= options_.max_awaited_keys) return apply_status::too_many_waits;
  if (!e && !fits(key_cost + key.size())) return apply_status::store_full;
  if (!w) w = &waiters_.begin(c);
  if (!e) e = &insert(key, hash);
  try {
    waiters_.await(*w, *e);
  } catch (...) {
    collect(*e);
    throw;
  }
  return apply_status::ok;
}

inline apply_status store::apply(client& c, wire::request const& r, wire::write_batch& out) {
  ++requests_[static_cast<std::size_t>(r.op)];
  deliver(c, out);
  if (!c.granted()) [[likely]] return execute(c, r, out);

  // This is the request that `c` was woken for, if it is a QUEUE_POP: it takes the item before the grant ends.
  // A CANCEL_WAIT comes first as well, so that the item is not offered to the very waits it drops.
  if (r.op != wire::opcode::queue_pop && r.op != wire::opcode::cancel_wait) {
    pass_on(waiters_.take_grants(c));
    deliver(c, out);
    return execute(c, r, out);
  }
  const apply_status s = execute(c, r, out);
  pass_on(waiters_.take_grants(c));
  deliver(c, out);
  return s;
}

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
