#pragma once
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../../core/clock.hpp"
#include "../../core/error.hpp"
#include "../../core/intrusive.hpp"
#include "../../core/random.hpp"
#include "../../engine/seeded.hpp"
#include "../../rt/detail/core.hpp"

namespace rollcall {
inline namespace v0 {

/// How a hash_store behaves. Chain the setters: `hash_options{}.timeout(30s)`.
class hash_options {
 public:
  hash_options() noexcept = default;

  /// Limit of each operation that is not given one of its own. Default 300 s, as the reference has it.
  hash_options& timeout(deadline d) noexcept { return timeout_ = d, *this; }
  /// What the store holds at the most, as for a server. A user's key is one byte shorter than limits.max_key_bytes; the instance id and
  /// the seed are random unless given.
  hash_options& store(engine::store_options const& o) noexcept { return store_ = o, *this; }

  [[nodiscard]] deadline timeout() const noexcept { return timeout_; }
  [[nodiscard]] engine::store_options const& store() const noexcept { return store_; }

 private:
  deadline timeout_ = std::chrono::seconds(300);
  engine::store_options store_;
};

namespace detail {

class hash_waiter;

/// Who is told by the engine: an operation that waits.
class hash_sleeper {
 public:
  virtual void woken() noexcept = 0;

 protected:
  ~hash_sleeper() = default;
};

/// One waiting operation as the engine sees it, so that wake-ups and the right to an item are the server's.
class hash_waiter final : public engine::client {
 public:
  hash_waiter(engine::store& s, hash_sleeper& who) noexcept : engine::client(s), who_(who) {}
  void tell() noexcept { who_.woken(); }

 private:
  hash_sleeper& who_;
};

/// The data that clients of one process share: the server's engine, called directly.
class hash_data {
 public:
  hash_data(loop_core& core, hash_options const& o) : core_(core), options_(o), store_(engine::seeded(o.store())), common_(store_) { core_.keep(); }
  hash_data(hash_data const&) = delete;
  hash_data& operator=(hash_data const&) = delete;
  ~hash_data() { core_.release(); }

  [[nodiscard]] loop_core& core() const noexcept { return core_; }
  [[nodiscard]] hash_options const& options() const noexcept { return options_; }
  [[nodiscard]] engine::store& store() noexcept { return store_; }

  /// Executes a request that does not wait.
  [[nodiscard]] engine::apply_status apply(wire::request const& r) { return apply(common_, r); }
  [[nodiscard]] engine::apply_status apply(engine::client& c, wire::request const& r) {
    replies_.clear();
    return store_.apply(c, r, replies_);
  }
  /// Whether the request was answered; a WAIT may not be.
  [[nodiscard]] bool answered() const noexcept { return !replies_.empty(); }
  /// The number in front of the reply.
  [[nodiscard]] std::int64_t number() const noexcept {
    iovec piece{};
    ROLLCALL_ASSERT(replies_.size() >= 8);
    static_cast<void>(replies_.fill(&piece, 1));
    return static_cast<std::int64_t>(wire::load<std::uint64_t>(static_cast<char const*>(piece.iov_base)));
  }
  [[nodiscard]] std::uint8_t byte() const noexcept {
    iovec piece{};
    ROLLCALL_ASSERT(!replies_.empty());
    static_cast<void>(replies_.fill(&piece, 1));
    return static_cast<std::uint8_t>(*static_cast<char const*>(piece.iov_base));
  }
  /// Takes the reply from byte `from` on.
  void take(std::size_t from, std::string& out) {
    replies_.consume(from);
    out.clear();
    out.reserve(replies_.size());
    while (!replies_.empty()) {
      iovec pieces[8];
      const int count = replies_.fill(pieces, 8);
      std::size_t n = 0;
      for (int i = 0; i < count; ++i) {
        out.append(static_cast<char const*>(pieces[i].iov_base), pieces[i].iov_len);
        n += pieces[i].iov_len;
      }
      replies_.consume(n);
    }
    if (replies_.capacity() > keep_batch) replies_.release();
  }

  /// Tells those that were woken, in order; what they do may wake more. Nobody is resumed in here.
  void wake() noexcept {
    if (std::exchange(waking_, true)) return;
    while (!store_.woken().empty()) {
      auto& who = static_cast<hash_waiter&>(store_.woken().front());
      static_cast<void>(store_.take_due(who));
      who.tell();
    }
    waking_ = false;
  }

 private:
  static constexpr std::size_t keep_batch = std::size_t{1} << 20;

  loop_core& core_;
  hash_options options_;
  engine::store store_;
  engine::client common_;  // of all requests that do not wait
  wire::write_batch replies_;
  bool waking_ = false;
};

struct hash_pending_tag {};

/// A waiting operation as its client sees it.
class hash_pending : public list_hook<hash_pending_tag> {
 public:
  /// The store is closed: the operation is over.
  virtual void store_ends() noexcept = 0;

 protected:
  ~hash_pending() = default;
};

/// One client of the data: what the copies of a handle and their operations share.
class hash_client {
 public:
  explicit hash_client(std::shared_ptr<hash_data> d) : data_(std::move(d)) {}
  hash_client(hash_client const&) = delete;
  hash_client& operator=(hash_client const&) = delete;

  [[nodiscard]] std::shared_ptr<hash_data> const& shared() const noexcept { return data_; }
  [[nodiscard]] hash_data& data() const noexcept { return *data_; }
  [[nodiscard]] loop_core& core() const noexcept { return data_->core(); }
  [[nodiscard]] hash_options const& options() const noexcept { return data_->options(); }
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  void close() noexcept {
    core().check_thread();
    closed_ = true;
    while (!pending_.empty()) pending_.pop_front().store_ends();
  }
  /// A pending operation keeps the host's loop alive, for what other threads post.
  void begins(hash_pending& op) noexcept {
    pending_.push_back(op);
    core().expect_posts(true);
  }
  void ends(hash_pending& op) noexcept {
    op.unlink();
    core().expect_posts(false);
  }

 private:
  std::shared_ptr<hash_data> data_;
  std::uint64_t identity_ = random_bits();
  bool closed_ = false;
  list<hash_pending, hash_pending_tag> pending_;
};
using hash_client_ptr = std::shared_ptr<hash_client>;

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
