#include <doctest/doctest.h>

#include <iostream>
#include <map>
#include <rollcall/barrier.hpp>
#include <set>

#include "world.hpp"

// Barriers of several members over links that split, delay, freeze and break, on virtual time: one verdict a generation, nobody late.
// ROLLCALL_SIM_SEED=n runs one seed, ROLLCALL_SIM_ROUNDS how many.

using namespace sim;

namespace {

struct tally {
  std::uint64_t seeds = 0, calls = 0, ok = 0, failed = 0, timed_out = 0, lost = 0, cancelled = 0, generations = 0, aborted = 0,
                complete = 0;
};

/// How one call on a barrier ended.
struct ending {
  int rank = 0;
  std::string verdict;  // empty: none
};

class barrier_world {
 public:
  explicit barrier_world(std::uint64_t seed) : random_(seed * 77777 + 5), w_(seed) {
    world_ = static_cast<int>(random_.between(3, 16));
    harsh_ = random_.chance(600);
    w_.plan.delays(random_.chance(500) ? duration(1ms) : duration(10ms));
    if (harsh_) w_.plan.losses(static_cast<unsigned>(random_.between(10, 150)), 3000).freezes(random_.chance(400) ? 100 : 0, 2s);
    rc::serve_options so;
    so.close_half_request_after(2h).close_unread_after(2h).validate_within(2h);
    w_.serve(so);
    for (int r = 0; r < world_; ++r) members_.emplace_back().rank = r;
  }

  std::string run(tally& t, int rounds) {
    tally_ = &t;
    ++t.seeds;
    rounds_ = rounds;
    members_left_ = world_;
    rc::scope all(w_.loop);
    for (member& m : members_) all.spawn(live(m));
    if (!w_.time.run_until([this] { return members_left_ == 0 || w_.complained > 0; }, 24h))
      w_.complain("the members do not come to an end");
    all.request_stop();
    w_.time.settle();
    w_.time.run_for(100s);
    bool joined = false;
    rc::start(w_.loop, all.join(), [&](rc::result<void> const&) { joined = true; });
    w_.time.settle();
    if (!joined) w_.complain("a member cannot be joined");
    members_.clear();
    networks_.clear();
    w_.time.run_for(100s);
    check_verdicts();
    if (w_.complained == 0) w_.check_server_empty();
    w_.stop_server();
    if (w_.complained == 0) w_.check_loop_empty();
    return w_.complained > 0 ? w_.report() : std::string();
  }

 private:
  struct member {
    int rank = 0;
    int attempt = 0;
    std::optional<rc::tcp_store> store;
    std::shared_ptr<std::vector<std::shared_ptr<rc::test::memory_link>>> links;
  };
  using barrier = rc::barrier<rc::tcp_store>;

  rc::task<> connect(member& m) {
    const int id = ++incarnations_;
    auto links = std::make_shared<std::vector<std::shared_ptr<rc::test::memory_link>>>();
    auto network = std::make_shared<rc::test::memory_network>(w_.loop, w_.plan, [this, id, links](rc::net::stream_ptr far, auto const& l) {
      links->push_back(l);
      w_.accept(id, std::move(far));
    });
    networks_.push_back(network);
    m.links = links;
    m.store = co_await rc::tcp_store::over(w_.loop, network->connect(), 10s, {}, network,
                                           static_cast<std::uint64_t>(id) * 0x10000001U + 0x1000000000000000U);
  }

  /// A member's life: it passes the barrier again and again, with one object or fresh ones, and comes back after a loss.
  rc::task<> live(member& m) {
    std::optional<barrier> b;
    int round = 0;
    int failures = 0;
    int made_for = 0;
    while (round < rounds_ && failures < 20) {
      std::exception_ptr lost;
      try {
        if (!m.store || !m.store->is_open()) {
          b.reset();
          m.attempt += m.store && random_.chance(700);  // a process that was restarted, or one that is not told that it was
          co_await connect(m);
        }
      } catch (rc::error const&) {
        lost = std::current_exception();
      }
      if (lost) {
        ++failures;
        co_await rc::sleep_for(100ms);
        continue;
      }
      if (!b || made_for != m.attempt || random_.chance(200)) {
        made_for = m.attempt;
        rc::barrier_options o;
        o.attempt(m.attempt).logging_interval(1s).nonce(random_.next() | 0x80000000U);
        if (random_.chance(200)) o.progress([](std::int64_t, int) {});
        b.emplace(*m.store, "sim", m.rank, world_, o);
      }
      co_await rc::sleep_for(random_.chance(50) ? random_.up_to(3s) : random_.up_to(20ms));
      if (harsh_ && random_.chance(20)) {
        co_await abort(m, *b);
        continue;
      }
      if (co_await pass(m, *b)) {
        ++round;
      } else if (++failures < 20) {
        b.reset();
      }
    }
    m.store.reset();
    --members_left_;
  }
  rc::task<> abort(member& m, barrier& b) {
    ++tally_->aborted;
    try {
      static_cast<void>(co_await b.abort("rank " + std::to_string(m.rank) + " has had enough", 2s));
    } catch (rc::error const&) {}
  }
  /// Whether there was a verdict.
  rc::task<bool> pass(member& m, barrier& b) {
    const time_point begun = w_.time.now();
    const duration limit = random_.chance(harsh_ ? 300 : 0) ? random_.up_to(2s) : duration(30s);
    rc::stop_source stop;
    std::uint64_t turn = 0;
    wake_at stopper(w_.loop, [&] {
      turn = w_.time.turns();
      stop.request_stop();
    });
    const bool stops = harsh_ && random_.chance(40);
    if (stops) stopper.in(random_.up_to(100ms));
    if (harsh_ && random_.chance(20) && !m.links->empty()) m.links->back()->lose(random_.chance(500) ? 0 : -ECONNRESET, -ECONNRESET);
    ++tally_->calls;
    std::optional<rc::result<void>> outcome;
    std::string verdict;
    int decided_by = 0;
    std::uint64_t ended = 0;
    rc::event over(w_.loop);
    rc::start(
        w_.loop, passing(b, limit, verdict, decided_by),
        [&](rc::result<void> r) {
          ended = w_.time.turns();
          if (turn == 0) stopper.cancel();
          outcome = std::move(r);
          over.set();
        },
        stop.token());
    co_await over.wait();
    if (w_.time.now() > begun + limit + 500ms)
      w_.complain("a member of rank " + std::to_string(m.rank) + " was kept past its limit and half a second");
    if (turn != 0 && ended != turn) w_.complain("a stopped member did not end in that turn");
    const std::int64_t after = b.generation().value_or(-1);
    if (*outcome) {
      ++tally_->ok;
      if (after > 0) endings_[after - 1].push_back({m.rank, "ok"});
      co_return true;
    }
    rc::failure const& f = outcome->error();
    switch (f.code()) {
      case rc::errc::failed:
        ++tally_->failed;
        m.attempt = std::max(m.attempt, decided_by);
        if (verdict != "superseded" && verdict != "passed_by" && after > 0) endings_[after - 1].push_back({m.rank, verdict});
        co_return true;
      case rc::errc::timed_out: ++tally_->timed_out; break;
      case rc::errc::cancelled:
        ++tally_->cancelled;
        if (turn == 0) w_.complain("a member was cancelled by nobody");
        break;
      case rc::errc::disconnected:
      case rc::errc::closed: {
        ++tally_->lost;
        const bool lossy = std::any_of(m.links->begin(), m.links->end(), [](auto const& l) { return l->lost(); });
        if (!lossy) w_.complain("a member lost a connection that stands: " + f.message());
        break;
      }
      default: w_.complain("unexpected: " + f.message());
    }
    co_return false;
  }
  static rc::task<> passing(barrier& b, duration limit, std::string& verdict, int& decided_by) {
    try {
      co_await b.arrive_and_wait(limit);
    } catch (rc::barrier_error const& e) {
      using enum rc::barrier_verdict;
      decided_by = e.attempt();
      switch (e.kind()) {
        case superseded: verdict = "superseded"; break;
        case passed_by: verdict = "passed_by"; break;
        default: verdict = std::to_string(static_cast<int>(e.kind())) + ": " + e.info().detail();
      }
      throw;
    }
  }

  void check_verdicts() {
    for (auto const& [g, list] : endings_) {
      ++tally_->generations;
      std::set<int> ranks;
      for (ending const& e : list) {
        ranks.insert(e.rank);
        if (e.verdict != list.front().verdict)
          w_.complain("generation " + std::to_string(g) + " has two verdicts: '" + list.front().verdict + "' and '" + e.verdict + "'");
      }
      if (!harsh_ && list.front().verdict != "ok")
        w_.complain("generation " + std::to_string(g) + " of members that all came ended with " + list.front().verdict);
      if (!harsh_ && static_cast<int>(ranks.size()) != world_)
        w_.complain("generation " + std::to_string(g) + " let only " + std::to_string(ranks.size()) + " pass");
      if (list.front().verdict == "ok") ++tally_->complete;
    }
  }

  random_source random_;
  world w_;
  int world_ = 0;
  int rounds_ = 0;
  int members_left_ = 0;
  int incarnations_ = 0;
  bool harsh_ = false;
  std::deque<member> members_;
  std::vector<std::shared_ptr<rc::test::memory_network>> networks_;
  std::map<std::int64_t, std::vector<ending>> endings_;
  tally* tally_ = nullptr;
};

}  // namespace

TEST_CASE("every generation of a barrier has one verdict, and nobody waits past the limit and half a second") {
  tally t;
  const std::uint64_t only = from_environment("ROLLCALL_SIM_SEED", 0);
  const int rounds = static_cast<int>(from_environment("ROLLCALL_SIM_ROUNDS", 12));
  for (std::uint64_t seed = only ? only : 1; seed <= (only ? only : 60); ++seed) {
    barrier_world b(seed);
    const std::string problem = b.run(t, rounds);
    CHECK_MESSAGE(problem.empty(), "ROLLCALL_SIM_SEED=" << seed << ": " << problem);
  }
  std::cout << "sim: " << t.seeds << " seeds, " << t.generations << " generations (" << t.complete << " ok), " << t.calls
            << " calls: " << t.ok << " ok, " << t.failed << " failed, " << t.timed_out << " without a verdict, " << t.lost << " lost, "
            << t.cancelled << " cancelled; " << t.aborted << " aborts\n";
  if (only != 0 || rounds < 12) return;
  // What does not happen is not tested.
  for (const std::uint64_t n : {t.ok, t.failed, t.timed_out, t.lost, t.cancelled, t.aborted, t.complete, t.generations - t.complete})
    CHECK(n > 0);
}

TEST_CASE("the reference's barrier keeps its limit and counts right") {
  const std::uint64_t only = from_environment("ROLLCALL_SIM_SEED", 0);
  for (std::uint64_t seed = only ? only : 1; seed <= (only ? only : 60); ++seed) {
    random_source random(seed);
    world w(seed);
    w.plan.delays(5ms);
    w.serve(rc::serve_options());
    const int members = static_cast<int>(random.between(3, 16));
    const int absent = random.chance(500) ? 0 : 1;
    int passed = 0;
    int missed = 0;
    int ended = 0;
    std::vector<std::shared_ptr<rc::test::memory_network>> networks;
    const auto arrive = [&](int rank, duration after) -> rc::task<> {
      auto network = std::make_shared<rc::test::memory_network>(
          w.loop, w.plan, [&w, rank](rc::net::stream_ptr far, auto const&) { w.accept(rank + 1, std::move(far)); });
      networks.push_back(network);
      rc::tcp_store s = co_await rc::tcp_store::over(w.loop, network->connect(), 10s, {}, network, static_cast<std::uint64_t>(rank + 1));
      co_await rc::sleep_for(after);
      const time_point begun = w.time.now();
      constexpr duration limit = 2s;
      try {
        co_await rc::store_based_barrier(s, "group", rank, members, limit, 300ms);
        ++passed;
      } catch (rc::error const& e) {
        missed += e.code() == rc::errc::timed_out;
        const std::string joined = "num_workers_joined=" + std::to_string(members - absent);
        if (e.code() != rc::errc::timed_out ||
            (std::string(e.what()).find(joined) == std::string::npos && w.time.now() - begun >= limit + 100ms))
          w.complain(e.what());
      }
      if (w.time.now() - begun > limit + 200ms) w.complain("the limit was not kept");
      ++ended;
    };
    {
      rc::scope all(w.loop);
      for (int r = 0; r < members - absent; ++r) all.spawn(arrive, r, random.up_to(1s));
      w.time.run_until([&] { return ended == members - absent; }, 1h);
      bool joined = false;
      rc::start(w.loop, all.join(), [&](rc::result<void> const&) { joined = true; });
      w.time.settle();
      CHECK(joined);
    }
    CHECK(passed == (absent ? 0 : members));
    CHECK(missed == (absent ? members - 1 : 0));
    w.time.run_for(10s);
    w.check_server_empty();
    w.stop_server();
    w.check_loop_empty();
    CHECK_MESSAGE(w.complained == 0, "ROLLCALL_SIM_SEED=" << seed << ": " << w.report());
  }
}
