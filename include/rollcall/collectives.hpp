#pragma once
#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/ranges.hpp"
#include "rt/combine.hpp"
#include "rt/loop.hpp"
#include "rt/scope.hpp"
#include "rt/task.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// The steps that the collectives below share, over any store.
template <class Store>
class collective {
 public:
  collective(Store store, std::string_view operation, std::string name, deadline limit)
      : store_(std::move(store)),
        operation_(operation),
        name_(std::move(name)),
        begun_(store_.home().now()),
        limit_(limit),
        until_(limit.from(begun_)) {}
  collective(collective const&) = delete;
  collective& operator=(collective const&) = delete;

  [[nodiscard]] time_point until() const noexcept { return until_; }
  [[nodiscard]] Store const& store() const noexcept { return store_; }
  [[nodiscard]] std::string key_of(std::int64_t rank) const { return name_ + "/" + std::to_string(rank); }
  [[nodiscard]] error failed(errc code, std::string why, effect e = effect::none) const {
    failure f(code, std::string(operation_) + " '" + name_ + "'", std::move(why));
    f.with_effect(e);
    if (code == errc::timed_out) f.with_times(store_.home().now() - begun_, limit_.length(begun_));
    return error(std::move(f));
  }
  void check_rank(std::int64_t rank, std::int64_t world) const {
    if (world < 1 || world > most_members)
      throw failed(errc::invalid, "world size " + std::to_string(world) + " is not in 1.." + std::to_string(most_members));
    if (rank < 0 || rank >= world)
      throw failed(errc::invalid, "rank " + std::to_string(rank) + " is not in 0.." + std::to_string(world - 1) + " (world size " +
                                      std::to_string(world) + ")");
  }

  /// Puts this member's value. On a server known to wake waiters at COMPARE_SET (protocol 16) that finds a second user of the name, in
  /// the same one request.
  task<> put(std::string key, std::string value) {
    if constexpr (requires {
                    { store_.server_is_rollcall() } -> std::convertible_to<bool>;
                  }) {
      if (store_.server_is_rollcall()) {
        const std::string there = co_await store_.compare_set(key, "", value, until_);
        if (there == value) co_return;
        throw failed(errc::failed, "'" + key + "' holds another value already: the rank is there twice, or the name is used again");
      }
    }
    co_await store_.set(key, value, until_);
  }

  /// The values of all members, once they are there: a WAIT and a MULTI_GET. Else the error names the missing, as `describe` says it.
  template <class Describe>
  task<std::vector<std::string>> take_all(std::int64_t world, Describe describe) {
    std::vector<std::string> all;
    all.reserve(static_cast<std::size_t>(world));
    for (std::int64_t r = 0; r < world; ++r) all.push_back(key_of(r));
    // Stopped, not expired: an expired wait would ask for its missing keys itself, for the first 64 of them.
    const result<void> waited = co_await as_result(with_deadline(store_.wait(all, deadline::never()), until_));
    if (waited) {
      if constexpr (requires { store_.fetch_existing(keys(all), deadline(until_)), store_.server_is_rollcall(); }) {
        if (store_.server_is_rollcall()) co_return co_await store_.fetch_existing(all, until_);
      }
      co_return co_await store_.multi_get(all, until_);
    }
    if (waited.error().code() != errc::timed_out) throw error(waited.shared());
    std::vector<char> there(all.size(), 0);
    const bool learnt = co_await look_for(all, there);
    ranges_text missing;
    std::int64_t count = 0;
    for (std::size_t i = 0; i < there.size(); ++i) {
      if (there[i]) continue;
      ++count;
      missing.add(static_cast<std::int64_t>(i));
    }
    throw failed(errc::timed_out, learnt ? describe(count, missing.take()) : std::string("who is missing could not be learnt"),
                 effect::applied);
  }

 private:
  static constexpr std::int64_t most_members = 131072;  // the keys of one request (protocol 6)
  static constexpr std::size_t block = 32;
  static constexpr std::chrono::milliseconds look_time{400};

  /// Which keys are there now: by blocks, then by keys where a block is not whole. False where that takes longer than look_time.
  task<bool> look_for(std::vector<std::string> const& all, std::vector<char>& there) {
    const time_point by = store_.home().now() + look_time;
    std::vector<char> whole((all.size() + block - 1) / block, 0);
    scope blocks(&store_.home().core());
    for (std::size_t b = 0; b < whole.size(); ++b) {
      const std::size_t from = b * block;
      blocks.spawn(check(std::vector<std::string>(all.begin() + static_cast<std::ptrdiff_t>(from),
                                                  all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), from + block))),
                         &whole[b]));
    }
    if (!co_await in_time(blocks, by)) co_return false;
    scope single(&store_.home().core());
    for (std::size_t i = 0; i < all.size(); ++i) {
      there[i] = whole[i / block];
      if (!there[i]) single.spawn(check(std::vector<std::string>(1, all[i]), &there[i]));
    }
    co_return co_await in_time(single, by);
  }
  task<> check(std::vector<std::string> some, char* answer) { *answer = co_await store_.check(some, deadline::never()); }
  task<bool> in_time(scope& group, time_point by) {
    const result<void> ended = co_await as_result(with_deadline(group.join(), by));
    if (!ended && ended.error().code() == errc::cancelled) throw error(ended.shared());
    co_return ended.has_value();
  }

  Store store_;
  std::string_view operation_;
  std::string name_;
  time_point begun_;
  deadline limit_;
  time_point until_;
};

template <class Store>
task<std::vector<std::string>> all_gather_task(Store store, std::string name, std::int64_t rank, std::int64_t world, std::string value,
                                               deadline limit) {
  collective<Store> c(std::move(store), "all_gather", std::move(name), limit);
  c.check_rank(rank, world);
  co_await c.put(c.key_of(rank), std::move(value));
  const auto describe = [world](std::int64_t count, std::string const& who) {
    return std::to_string(count) + " of " + std::to_string(world) + " missing: " + who;
  };
  co_return co_await c.take_all(world, describe);
}

template <class Store>
task<std::string> broadcast_task(Store store, std::string name, std::int64_t rank, std::int64_t root, std::string value, deadline limit) {
  collective<Store> c(std::move(store), "broadcast", std::move(name), limit);
  if (rank < 0 || root < 0)
    throw c.failed(errc::invalid, "rank " + std::to_string(rank) + " and root " + std::to_string(root) + " must not be negative");
  if (rank == root) {
    co_await c.put(c.key_of(root), value);
    co_return value;
  }
  result<std::string> got = co_await as_result(c.store().get(c.key_of(root), c.until()));
  if (got) co_return std::move(*got);
  if (got.error().code() != errc::timed_out) throw error(got.shared());
  throw c.failed(errc::timed_out, "the root, rank " + std::to_string(root) + ", has not sent its value");
}

template <class Store>
task<std::int64_t> assign_ranks_task(Store store, std::string name, std::string identity, std::int64_t world, deadline limit) {
  collective<Store> c(std::move(store), "assign_ranks", std::move(name), limit);
  c.check_rank(0, world);
  const std::int64_t number = co_await c.store().add(c.key_of(-1), 1, c.until());
  if (number > world)
    throw c.failed(errc::failed,
                   "this is member number " + std::to_string(number) + " of a world of " + std::to_string(world) +
                       ": another job, or a restarted one, uses the name",
                   effect::applied);
  const std::int64_t mine = number - 1;
  co_await c.put(c.key_of(mine), std::move(identity));
  const auto describe = [world](std::int64_t count, std::string const&) {
    return std::to_string(world - count) + " of " + std::to_string(world) + " members came";
  };
  std::vector<std::string> const all = co_await c.take_all(world, describe);
  // The position of this member among all, by identity, then by arrival.
  std::int64_t rank = 0;
  for (std::int64_t i = 0; i < world; ++i) {
    const int order = all[static_cast<std::size_t>(i)].compare(all[static_cast<std::size_t>(mine)]);
    if (order < 0 || (order == 0 && i < mine)) ++rank;
  }
  co_return rank;
}

}  // namespace detail

/// Every member gives a value and gets those of all, in rank order.
///
/// name      serves once in the life of the store: keys "name/rank" stay. Restarted jobs use another one.
/// rank      0..world-1, world 1..131072 (the keys of one request).
/// limit     over all steps; who is missing may take 0.4 s more to learn.
/// costs     three requests a member on rollcall's servers (COMPARE_SET, WAIT, MULTI_GET), five on others; O(world) bytes each.
/// errors    timed_out: "3 of 1000 missing: 17, 96-97". failed: the rank has put another value before (found on rollcall's servers).
///           invalid: rank or world out of range. What the store's operations throw.
/// cancel    the value stays in the store; nothing else remains.
template <class Store>
[[nodiscard]] task<std::vector<std::string>> all_gather(Store const& store, std::string_view name, std::int64_t rank, std::int64_t world,
                                                        std::string_view value, deadline limit) {
  return detail::all_gather_task(store, std::string(name), rank, world, std::string(value), limit);
}

/// The root's value, for everybody; `value` counts at the root only, which does not wait for the others.
///
/// name      serves once, like all_gather's: the key "name/root" stays.
/// costs     O(1) requests a member.
/// errors    timed_out where the root has not sent; failed where it has sent another value before; invalid for a negative rank or root.
/// cancel    as if never called, except that the root's value stays.
template <class Store>
[[nodiscard]] task<std::string> broadcast(Store const& store, std::string_view name, std::int64_t rank, std::int64_t root,
                                          std::string_view value, deadline limit) {
  return detail::broadcast_task(store, std::string(name), rank, root, std::string(value), limit);
}

/// Gives members that only know who they are a rank each, 0..world-1: in the order of their identities (bytewise), those with the same
/// one in the order in which they came. So members of one host are neighbours when the identity begins with its name, and with
/// distinct identities the ranks are the same in every run, whoever comes first.
///
/// name      serves once; keys "name/-1" and "name/0".. stay.
/// identity  "host", "host:slot", "host/pid": at most 8 MiB.
/// costs     four requests a member on rollcall's servers; O(world) bytes.
/// errors    timed_out: "5 of 8 members came". failed: more than `world` came. invalid: world not in 1..131072.
/// cancel    the member stays counted.
template <class Store>
[[nodiscard]] task<std::int64_t> assign_ranks(Store const& store, std::string_view name, std::string_view identity, std::int64_t world,
                                              deadline limit) {
  return detail::assign_ranks_task(store, std::string(name), std::string(identity), world, limit);
}

}  // namespace v0
}  // namespace rollcall
