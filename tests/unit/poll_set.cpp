#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include <rollcall/legacy/poll_set.hpp>

namespace {
namespace rc = rollcall;
using rc::duration;
using rc::legacy::poll_set;

/// A member that counts, and may do something when it is told.
class member final : public rc::legacy::polled {
 public:
  int told = 0;
  short last = 0;
  std::function<void()> act;

 private:
  void on_events(short revents) noexcept override {
    ++told;
    last = revents;
    if (act) act();
  }
};

/// The kernel's part: descriptors that are ready, and poll(2) on what it is shown.
struct kernel {
  std::set<int> ready;
  std::size_t looked_at = 0;
  std::size_t looks = 0;
  /// One look and what follows; how many were told. `blocked`: it found nothing and would have waited for ever.
  int turn(poll_set& set, duration limit = duration::max()) {
    const poll_set::look l = set.next(limit);
    ++looks;
    looked_at += l.count;
    int n = 0;
    for (std::size_t i = 0; i < l.count; ++i) {
      const bool on = l.fds[i].fd >= 0 && ready.count(l.fds[i].fd) != 0;
      l.fds[i].revents = on ? static_cast<short>(l.fds[i].events & POLLIN) : short{0};
      n += l.fds[i].revents != 0;
    }
    full = l.full;
    patience = l.patience;
    set.take(l, n);
    set.dispatch();
    return n;
  }
  bool full = false;
  duration patience{};
};

void fill(poll_set& set, std::deque<member>& all, int n) {
  for (int i = 0; i < n; ++i) {
    all.emplace_back();
    set.add(all.back(), static_cast<int>(all.size()) - 1, POLLIN);
  }
}

}  // namespace

TEST_CASE("a small set is always looked at as a whole, and blocks as long as it may") {
  poll_set set;
  std::deque<member> all;
  fill(set, all, 20);
  kernel k;
  for (int i = 0; i < 5; ++i) {
    CHECK(k.turn(set) == 0);
    CHECK(k.full);
    CHECK(k.patience == duration::max());
  }
  k.ready = {3, 7};
  CHECK(k.turn(set, std::chrono::milliseconds(5)) == 2);
  CHECK(k.patience == std::chrono::milliseconds(5));
  CHECK(all[3].told == 1);
  CHECK(all[7].told == 1);
  CHECK(all[3].last == POLLIN);
  CHECK(all[4].told == 0);
}

TEST_CASE("whoever is ready is told within a bounded number of entries, however busy others are") {
  constexpr int n = 4000;
  poll_set set;
  std::deque<member> all;
  fill(set, all, n);
  kernel k;
  while (set.hot() > 0) k.turn(set);
  CHECK(k.turn(set) == 0);
  k.ready = {1};  // busy all the time
  for (int i = 0; i < 100; ++i) k.turn(set);
  CHECK(all[1].told >= 99);
  k.ready.insert(n - 1);
  k.looked_at = 0;
  int turns = 0;
  while (all[n - 1].told == 0 && turns < 10000) {
    k.turn(set);
    ++turns;
  }
  CHECK(all[n - 1].told == 1);
  CHECK(k.looked_at <= poll_set::patience_for_cold * n + n + 64);  // the hot looks, and one full look
  CHECK(turns <= poll_set::patience_for_cold * n / 32 + 3);
}

TEST_CASE("a busy one among many idle ones costs a look at itself, not at all of them") {
  constexpr int n = 16000;
  poll_set set;
  std::deque<member> all;
  fill(set, all, n);
  kernel k;
  while (set.hot() > 0) k.turn(set);
  k.ready = {5};
  k.turn(set);
  k.looked_at = 0;
  constexpr int rounds = 10000;
  const int before = all[5].told;
  for (int i = 0; i < rounds; ++i) k.turn(set);
  CHECK(all[5].told == before + rounds);
  CHECK(k.looked_at < std::size_t{rounds} * 32);  // poll(2) alone: 16,000 each
}

TEST_CASE("connects cost little more the more are connected, one after the other as well") {
  std::size_t cost[2];
  for (const std::size_t scale : {std::size_t{0}, std::size_t{1}}) {
    const int n = scale == 0 ? 4000 : 16000;
    poll_set set;
    std::deque<member> all;
    kernel k;
    for (int i = 0; i < n; ++i) {
      // It is accepted, sends its handshake, sends a request, and is quiet from then on.
      fill(set, all, 1);
      k.ready = {i};
      k.turn(set);
      k.turn(set);
      k.ready.clear();
    }
    cost[scale] = k.looked_at / static_cast<std::size_t>(n);
  }
  CHECK(cost[1] < 1000);          // entries a connect; poll(2) alone: 16,000 on average
  CHECK(cost[1] <= 3 * cost[0]);  // grows with the root at the most
}

TEST_CASE("when nothing is hot any more, the next look is a full one that may block") {
  poll_set set;
  std::deque<member> all;
  fill(set, all, 1000);
  kernel k;
  while (set.hot() > 0) k.turn(set);
  k.ready = {9};
  k.turn(set);
  CHECK(set.hot() == 1);
  k.ready.clear();
  int looks = 0;
  do {
    k.turn(set);
    ++looks;
    if (!k.full) CHECK(k.patience <= std::chrono::microseconds(50));  // as long as a full look costs
  } while (!k.full && looks < 10);
  CHECK(looks <= 2);
  CHECK(k.patience == duration::max());
}

TEST_CASE("members may leave, come and be destroyed while others are told") {
  poll_set set;
  std::deque<member> all;
  auto victim = std::make_unique<member>();
  auto late = std::make_unique<member>();
  fill(set, all, 3);
  set.add(*victim, 50, POLLIN);
  all[0].act = [&] {
    if (!victim) return;
    victim.reset();
    set.add(*late, 60, POLLIN);
  };
  kernel k;
  k.ready = {0, 1, 2, 50};
  CHECK(k.turn(set) == 4);
  CHECK(all[1].told == 1);
  CHECK(all[2].told == 1);
  CHECK(set.size() == 4);
  CHECK(late->told == 0);
  k.ready = {60};
  CHECK(k.turn(set) == 1);
  CHECK(late->told == 1);
  late.reset();
  set.remove(all[1]);
  CHECK(set.size() == 2);
  k.ready = {0, 1, 2};
  CHECK(k.turn(set) == 2);
  CHECK(all[1].told == 1);
}

TEST_CASE("what is watched can change, and a member without a descriptor is passed over") {
  poll_set set;
  std::deque<member> all;
  fill(set, all, 2);
  kernel k;
  k.ready = {0, 1};
  set.watch(all[0], 0);
  set.set_fd(all[1], -1);
  CHECK(k.turn(set) == 0);
  CHECK(set.watched(all[0]) == 0);
  set.watch(all[0], POLLIN | POLLOUT);
  set.set_fd(all[1], 1);
  CHECK(k.turn(set) == 2);
}

TEST_CASE("a call that failed changes nothing") {
  poll_set set;
  std::deque<member> all;
  fill(set, all, 500);
  kernel k;
  while (set.hot() > 0) k.turn(set);
  k.ready = {4};
  k.turn(set);
  REQUIRE(set.hot() == 1);
  const poll_set::look l = set.next(duration::max());
  CHECK_FALSE(l.full);
  set.take(l, -1);
  set.dispatch();
  CHECK_FALSE(set.next(duration::max()).full);  // an interrupted look has not shown that nothing is hot
}
