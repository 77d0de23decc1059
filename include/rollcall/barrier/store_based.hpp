#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "../core/error.hpp"
#include "../rt/combine.hpp"
#include "../rt/loop.hpp"
#include "../rt/task.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

template <class Store>
task<> store_based_barrier_task(Store store, std::string group, int rank, int world, deadline limit, duration interval) {
  const loop_ref home = store.home();
  const time_point begun = home.now();
  const time_point until = limit.from(begun);
  const std::string key = "store_based_barrier_key:" + group;
  const std::string last_key = key + ":last_worker";
  const auto left = [&] { return until == time_point::max() ? duration::max() : until - home.now(); };
  const auto timed_out = [&](std::int64_t joined, std::string_view why) {
    failure f(errc::timed_out, "store_based_barrier",
              "Timed out initializing process group in store based barrier on rank " + std::to_string(rank) + ", for key: " + key +
                  " (world_size=" + std::to_string(world) + ", num_workers_joined=" + std::to_string(joined) +
                  ", timeout=" + duration_text(limit.length(begun)) + " error=" + std::string(why) + ")");
    return error(f.with_key(key).with_effect(effect::applied).with_times(home.now() - begun, limit.length(begun)));
  };

  if (world < 1 || rank < 0 || rank >= world)
    throw error(
        errc::invalid, "store_based_barrier",
        "rank " + std::to_string(rank) + " is not in 0.." + std::to_string(world - 1) + " (world size " + std::to_string(world) + ")");
  const auto look_at = [&](std::int64_t joined) {
    if (joined <= world) return;
    // The reference would wait for ever here: nobody sees the count equal the world size any more (field log F30).
    failure f(errc::failed, "store_based_barrier",
              key + " counts " + std::to_string(joined) + " arrivals in a world of " + std::to_string(world) +
                  ": the name is used a second time, or by another job");
    throw error(f.with_key(key).with_effect(effect::applied));
  };
  co_await store.add(key, 1, until);
  home.log(log_level::debug, "Added key: " + key + " to store for rank: " + std::to_string(rank));
  std::int64_t joined = co_await store.add(key, 0, until);
  look_at(joined);
  if (joined == world) co_await store.set(last_key, "1", until);
  for (;;) {
    const duration step = std::min(interval, left());
    try {
      co_await store.wait(last_key, step);
      break;
    } catch (error const& e) {
      if (e.code() != errc::timed_out) throw;
    }
    // Past the limit a tenth of a second is left for the count that the error tells.
    const time_point counted_by = left() > duration::zero() ? until : home.now() + std::chrono::milliseconds(100);
    const result<std::int64_t> count = co_await as_result(store.add(key, 0, counted_by));
    if (count) joined = *count;
    if (!count && count.error().code() != errc::timed_out) throw error(count.shared());
    look_at(joined);
    home.log(log_level::debug, "Waiting in store based barrier to initialize process group for " + duration_text(home.now() - begun) +
                                   " rank: " + std::to_string(rank) + ", key: " + key + " (world_size=" + std::to_string(world) +
                                   ", num_workers_joined=" + std::to_string(joined) + ", timeout=" + duration_text(limit.length(begun)) +
                                   ")");
    if (left() <= duration::zero()) throw timed_out(joined, "wait timeout after " + duration_text(step) + ", keys: " + last_key);
  }
  home.log(log_level::info, "Rank " + std::to_string(rank) + ": Completed store-based barrier for key:" + key + " with " +
                                std::to_string(world) + " nodes.");
}

}  // namespace detail

/// The reference's barrier of process groups: the same keys and messages, so that PyTorch ranks and ours may meet in one
/// (rendezvous 6.1). A group name serves once; it counts the missing but cannot name them: `barrier` can.
///
/// limit     over all steps. Unlike the reference's it holds to the millisecond: each wait lasts min(interval, time left).
/// interval  between two looks at the count; 10 s or (10 + world / 1000) s, whichever is longer, unless given.
/// errors    timed_out with the joined and expected counts; failed when more arrived than the world has; invalid for a rank outside
///           0..world-1; whatever the store's operations throw.
/// cancel    the arrival stays counted.
template <class Store>
[[nodiscard]] task<> store_based_barrier(Store const& store, std::string_view group, int rank, int world, deadline limit,
                                         duration interval = duration::zero()) {
  if (interval <= duration::zero())
    interval = std::max<duration>(std::chrono::seconds(10), std::chrono::milliseconds(10'000 + std::int64_t{world}));
  return detail::store_based_barrier_task(store, std::string(group), rank, world, limit, interval);
}

}  // namespace v0
}  // namespace rollcall
