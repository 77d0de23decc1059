#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <rollcall/barrier.hpp>
#include <rollcall/stores/tcp.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "load.hpp"

namespace bench {

/// One barrier of one member, the same over sockets and in memory.
class meeting {
 public:
  meeting(rollcall::tcp_store store, std::int64_t rank, std::int64_t world, bool fixed) : store_(std::move(store)), rank_(static_cast<int>(rank)), world_(static_cast<int>(world)), fixed_(fixed) {}

  rollcall::task<> pass(barrier_kind kind, int round, rollcall::deadline limit) {
    if (kind == barrier_kind::roll) {
      if (!roll_) make_roll();
      return roll_->arrive_and_wait(limit);
    }
    if (kind == barrier_kind::store_based) return rollcall::store_based_barrier(store_, "round-" + std::to_string(round), rank_, world_, limit);
    return seed(limit);
  }

  [[nodiscard]] rollcall::tcp_store const& store() const noexcept { return store_; }

 private:
  /// A number of nineteen digits, so that what is made from it is as long for each rank.
  [[nodiscard]] std::uint64_t long_number() const noexcept { return 1'000'000'000'000'000'000U + static_cast<std::uint64_t>(rank_); }
  void make_roll() {
    rollcall::barrier_options o;
    if (fixed_) o.nonce(long_number());
    roll_.emplace(store_, "everyone", rank_, world_, o);
  }
  /// PyTorch's barrier under one name for all rounds, as benchmarks of it do: from the second round on nobody waits for anybody.
  rollcall::task<> seed(rollcall::deadline limit) {
    constexpr std::string_view key = "store_based_barrier_key:seed";
    constexpr std::string_view last_key = "store_based_barrier_key:seed:last_worker";
    co_await store_.add(key, 1, limit);
    const std::int64_t joined = co_await store_.add(key, 0, limit);
    if (joined == world_) co_await store_.set(last_key, "1", limit);
    co_await store_.wait(last_key, limit);
  }

  rollcall::tcp_store store_;
  int rank_;
  int world_;
  bool fixed_;
  std::optional<rollcall::barrier<rollcall::tcp_store>> roll_;
};

/// What identity() of rank `r` is where it is fixed: as many digits for each.
[[nodiscard]] inline std::uint64_t identity_of(std::int64_t r) noexcept { return 0x7000'0000'0000'0000U + static_cast<std::uint64_t>(r); }

}  // namespace bench
