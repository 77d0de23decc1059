// The roll call's rules: its texts, its transition table row by row, and every order in which three members of it can act.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <rollcall/barrier/roll_call.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace rc = rollcall;
namespace roll = rollcall::roll_call;
using kind = roll::request::kind;
using rc::barrier_verdict;
using state = roll::member::state;

namespace {

std::string arrivals(std::vector<roll::arrival> const& all) {
  std::string s;
  for (auto const& a : all) s += roll::to_text(a);
  return s;
}

}  // namespace

TEST_CASE("absent ranks are shown as ranges, cut at a length") {
  const auto text = [](std::vector<int> const& ranks) { return rc::ranges_of(ranks); };
  CHECK(text({3}) == "3");
  CHECK(text({17, 96, 97}) == "17, 96-97");
  CHECK(text({0, 1, 2, 7}) == "0-2, 7");
  CHECK(text({}).empty());
  std::vector<int> odd;
  for (int i = 1; i < 200'000; i += 2) odd.push_back(i);
  roll::verdict v(barrier_verdict::missing);
  v.world = 200'000;
  v.missing_count = 100'000;
  for (const int i : odd) v.missing.emplace_back(i, i);
  CHECK(roll::explain(v).starts_with("100000 of 200000 missing: 1, 3, 5, "));
  CHECK(roll::explain(v).size() < 1200);
  CHECK(roll::explain(v).ends_with(" more"));
  const std::string wire = roll::write_verdict(v, "t");
  CHECK(wire.size() < 33'000);
  const auto back = roll::read_verdict(wire);
  REQUIRE(back.has_value());
  CHECK(back->missing_count == 100'000);
  CHECK(back->missing.size() > 5'000);
  CHECK(roll::explain(*back) == roll::explain(v));
}

TEST_CASE("a verdict survives its text") {
  roll::verdict v(barrier_verdict::missing, 4);
  v.world = 4096;
  v.missing = {{17, 17}, {96, 97}};
  v.missing_count = 3;
  const std::string text = roll::write_verdict(v, "9f.2.1");
  CHECK(text == "missing 4 9f.2.1 3/4096 17,96-97");
  const auto back = roll::read_verdict(text);
  REQUIRE(back.has_value());
  CHECK(back->attempt == 4);
  CHECK(roll::explain(*back) == "3 of 4096 missing: 17, 96-97");
  CHECK(roll::ranks_in(back->missing) == std::vector<int>{17, 96, 97});

  const auto aborted =
      roll::read_verdict(roll::write_verdict(roll::verdict(barrier_verdict::aborted, 0, "rank 17: no space left, \n!"), "t"));
  REQUIRE(aborted.has_value());
  CHECK(roll::explain(*aborted) == "rank 17: no space left, \\x0a!");
  for (char const* bad : {"", " ", "ok", "ok ", "ok 0", "ok 0 t", "ok -1 t ", "ok x t ", "fine 0 t ", "missing 0 t 3", "missing 0 t 3/x 1",
                          "missing 0 t 1/-4 ", "missing 0 t 1/99999999999 0"})
    CHECK_MESSAGE(!roll::read_verdict(bad).has_value(), bad);
  CHECK(roll::read_verdict("ok 0 t ").has_value());
  CHECK(roll::read_verdict("missing 0 t 2/8 5,3")->missing.size() == 1);
  CHECK(roll::read_verdict("missing 0 t 2/8 5-900")->missing.empty());
}

TEST_CASE("arrivals are judged by the highest attempt, by process, by world") {
  const roll::arrival me(0, 3, 0, 0xa);
  const auto judge = [&](std::vector<roll::arrival> const& all) { return roll::evaluate(arrivals(all), me); };
  CHECK(judge({me, {1, 3, 0, 0xb}, {2, 3, 0, 0xc}}).kind == barrier_verdict::ok);
  CHECK(judge({{2, 3, 0, 0xc}, me, {1, 3, 0, 0xb}, me, {1, 3, 0, 0xb}}).kind == barrier_verdict::ok);
  CHECK(roll::explain(judge({me, {2, 3, 0, 0xc}})) == "1 of 3 missing: 1");
  CHECK(roll::explain(judge({me})) == "2 of 3 missing: 1-2");
  CHECK(judge({{1, 3, 0, 0xb}, {2, 3, 0, 0xc}}).kind == barrier_verdict::passed_by);
  CHECK(judge({}).kind == barrier_verdict::passed_by);
  const auto newer = judge({me, {1, 3, 0, 0xb}, {2, 3, 0, 0xc}, {1, 3, 2, 0xd}});
  CHECK(newer.kind == barrier_verdict::superseded);
  CHECK(roll::explain(newer) == "superseded by attempt 2");
  const roll::arrival again(1, 3, 1, 0xb);
  CHECK(roll::explain(roll::evaluate(arrivals({me, {2, 3, 0, 0xc}, again}), again)) == "2 of 3 missing: 0, 2");
  CHECK(roll::explain(judge({me, {2, 3, 0, 0xc}, {2, 3, 0, 0xd}})) == "rank 2 arrived twice: as process c and as d, both of attempt 0");
  CHECK(roll::explain(judge({me, {3, 4, 0, 0xc}})) == "two world sizes: rank 3 says 4, rank 0 says 3");
  const std::string garbage = "nonsense,1/b/0/3/9,-1/b/0/3,3/b/0/3,0/b/0/0,1/b/-1/3,1/b/0/99999999999," + arrivals({me}) + "2/c/0/3";
  CHECK(roll::explain(roll::evaluate(garbage, me)) == "2 of 3 missing: 1-2");
  CHECK(roll::ranks_in(roll::absent(arrivals({me, {1, 3, 1, 0xb}}), 0, 3)) == std::vector<int>{0, 2});
  CHECK(roll::ranks_in(roll::absent("", 0, 3)) == std::vector<int>{0, 1, 2});
}

namespace {

constexpr std::string_view names[] = {"number",  "check",  "append",  "count",   "recount",    "wait",         "leave",       "arrived",
                                      "advance", "decide", "publish", "outcome", "drop_count", "drop_arrived", "drop_outcome"};
std::string to_text(roll::requests const& all) {
  std::string s;
  for (auto const& r : all)
    s += (s.empty() ? "" : " ") + std::string(names[static_cast<std::size_t>(r.what)]) + ":" + std::to_string(r.generation);
  return s;
}

/// One member of three, and what it asked for last.
class one {
 public:
  explicit one(int attempt = 0) : m(roll::arrival(0, 3, attempt, 0xa), 7) {}
  roll::member m;
  roll::requests out;

  template <class F>
  std::string on(F f) {
    out.clear();
    f();
    return to_text(out);
  }
  std::string begin() {
    return on([&] { m.begin(out); });
  }
  std::string number(std::int64_t n) {
    return on([&] { m.on_number(n, out); });
  }
  std::string check(bool decided) {
    return on([&] { m.on_check(decided, out); });
  }
  std::string count(std::int64_t n) {
    return on([&] { m.on_count(n, out); });
  }
  std::string wait() {
    return on([&] { m.on_wait(out); });
  }
  std::string arrived(std::string_view t) {
    return on([&] { m.on_arrived(t, out); });
  }
  std::string decide(std::string_view t) {
    return on([&] { m.on_decide(t, out); });
  }
  std::string outcome(std::string_view t) {
    return on([&] { m.on_outcome(t, out); });
  }
  std::string drop(std::int64_t g, bool existed) {
    return on([&] { m.on_drop(g, existed, out); });
  }
  std::string limit() {
    return on([&] { m.on_limit(out); });
  }
  std::string abort(char const* why) {
    return on([&] { m.abort(why, out); });
  }
  std::string proposal() const {
    for (auto const& r : out)
      if (r.what == kind::decide) return r.text;
    return "";
  }
  /// A fresh object that waits in generation 5.
  static one waiting(int attempt = 0) {
    one o(attempt);
    o.begin();
    o.number(5);
    o.check(false);
    o.count(1);
    return o;
  }
  /// An object that passed generation 4.
  static one kept(int attempt = 0) {
    one o(attempt);
    o.begin();
    o.number(4);
    o.check(false);
    o.count(1);
    o.wait();
    o.outcome("ok " + std::to_string(attempt) + " t ");
    static_cast<void>(o.m.take());
    return o;
  }
};

const std::string everybody = arrivals({{0, 3, 0, 0xa}, {1, 3, 0, 0xb}, {2, 3, 0, 0xc}});
const std::string without_2 = arrivals({{0, 3, 0, 0xa}, {1, 3, 0, 0xb}});

}  // namespace

TEST_CASE("table: arriving") {
  one fresh;
  CHECK(fresh.begin() == "number:0");
  CHECK(fresh.m.where() == state::numbering);
  CHECK(fresh.number(5) == "check:5 append:5 count:5 wait:5");
  CHECK(fresh.out[1].text == "0/a/0/3,");
  CHECK(fresh.m.where() == state::arriving);
  CHECK(fresh.check(false).empty());
  CHECK(fresh.count(1).empty());
  CHECK(fresh.m.where() == state::waiting);

  SUBCASE("woken: reads the outcome, adopts it, counts up") {
    CHECK(fresh.wait() == "outcome:5");
    CHECK(fresh.m.where() == state::reading);
    CHECK(fresh.outcome("ok 0 t ").empty());
    REQUIRE(fresh.m.done());
    CHECK(fresh.m.take().kind == barrier_verdict::ok);
    CHECK(fresh.begin() == "check:6 append:6 count:6 wait:6");
  }
  SUBCASE("a failure is adopted and counted, too") {
    fresh.wait();
    fresh.outcome("missing 0 t 1/3 2");
    REQUIRE(fresh.m.done());
    CHECK(roll::explain(fresh.m.take()) == "1 of 3 missing: 2");
    CHECK(fresh.m.generation() == 6);
  }
  SUBCASE("the outcome is gone: the member was passed by, and reads the number again") {
    fresh.wait();
    fresh.outcome("");
    REQUIRE(fresh.m.done());
    CHECK(fresh.m.take().kind == barrier_verdict::passed_by);
    CHECK(fresh.begin() == "number:0");
  }
  SUBCASE("a number of somebody else ends it, and is read again") {
    for (const std::int64_t n : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
      one o;
      o.begin();
      CHECK(o.number(n).empty());
      REQUIRE(o.m.done());
      CHECK(roll::explain(o.m.take()) == "the generation is none of a barrier's: " + std::to_string(n));
      CHECK(o.begin() == "number:0");
    }
  }
  SUBCASE("a text of somebody else ends it") {
    fresh.wait();
    fresh.outcome("hello");
    REQUIRE(fresh.m.done());
    CHECK(roll::explain(fresh.m.take()) == "the outcome is none of a barrier's: hello");
  }
  SUBCASE("a verdict of a higher attempt: superseded, for good") {
    fresh.wait();
    fresh.outcome("ok 2 t ");
    REQUIRE(fresh.m.done());
    CHECK(fresh.m.take().kind == barrier_verdict::superseded);
    CHECK(fresh.begin().empty());
    REQUIRE(fresh.m.done());
    CHECK(fresh.m.take().attempt == 2);
  }
}

TEST_CASE("table: a verdict of a lower attempt is not for this member: it arrives in the next generation") {
  one o = one::waiting(1);
  o.wait();
  CHECK(o.outcome("missing 0 t 1/3 2") == "check:6 append:6 count:6 wait:6");
}

TEST_CASE("table: the verdict was there before the arrival") {
  SUBCASE("a number from the store: the next generation") {
    one o;
    o.begin();
    o.number(5);
    CHECK(o.check(true).empty());
    CHECK(o.count(4).empty());
    CHECK(o.wait() == "check:6 append:6 count:6 wait:6");
    SUBCASE("and so on") {
      o.check(true);
      o.count(4);
      CHECK(o.wait() == "check:7 append:7 count:7 wait:7");
    }
  }
  SUBCASE("a number of its own: a failure is adopted") {
    one o = one::kept();
    CHECK(o.begin() == "check:5 append:5 count:5 wait:5");
    o.check(true);
    o.count(3);
    CHECK(o.wait() == "outcome:5");
    o.outcome("missing 0 t 1/3 0");
    REQUIRE(o.m.done());
    CHECK(o.m.take().kind == barrier_verdict::missing);
    CHECK(o.m.generation() == 6);
  }
  SUBCASE("a number of its own, but the verdict counts its rank: another object stood for it; the next generation") {
    one o = one::kept();
    o.begin();
    o.check(true);
    o.count(4);
    o.wait();
    SUBCASE("ok") { CHECK(o.outcome("ok 0 t ") == "check:6 append:6 count:6 wait:6"); }
    SUBCASE("another is missing") { CHECK(o.outcome("missing 0 t 1/3 2") == "check:6 append:6 count:6 wait:6"); }
    SUBCASE("missing, but not all of them are listed") {
      CHECK(o.outcome("missing 0 t 2/3 2").empty());
      CHECK(o.m.done());
    }
  }
}

TEST_CASE("table: deciding") {
  one o;
  o.begin();
  o.number(5);
  o.check(false);
  SUBCASE("the count is full: reads who arrived") {
    CHECK(o.count(3) == "leave:5 arrived:5");
    CHECK(o.m.where() == state::judging);
    SUBCASE("all: the number goes first; the winner wakes and clears") {
      CHECK(o.arrived(everybody) == "advance:5 decide:5");
      const std::string text = o.proposal();
      CHECK(text == "ok 0 a.7.1 ");
      CHECK(o.decide(text) == "publish:5 drop_count:4 drop_arrived:4 drop_outcome:4 drop_count:3 drop_arrived:3 drop_outcome:3");
      CHECK(o.m.where() == state::publishing);
      o.m.on_publish();
      for (int i = 0; i < 3; ++i) CHECK(o.drop(4, true).empty());
      for (int i = 0; i < 2; ++i) CHECK(o.drop(3, false).empty());
      CHECK(!o.m.done());
      SUBCASE("nothing older is left") {
        CHECK(o.drop(3, false).empty());
        REQUIRE(o.m.done());
        CHECK(o.m.decided_itself());
        CHECK(o.m.take().kind == barrier_verdict::ok);
      }
      SUBCASE("something older is left") {
        CHECK(o.drop(3, true) == "drop_count:2 drop_arrived:2 drop_outcome:2 drop_count:1 drop_arrived:1 drop_outcome:1");
        CHECK(!o.m.done());
      }
    }
    SUBCASE("all, but somebody decided before: adopts that") {
      o.arrived(everybody);
      CHECK(o.decide("missing 0 t 1/3 2").empty());
      REQUIRE(o.m.done());
      CHECK(!o.m.decided_itself());
      CHECK(o.m.take().kind == barrier_verdict::missing);
    }
    SUBCASE("not all (a restart counted twice): waits on, and does not look again") {
      CHECK(o.arrived(without_2) == "wait:5");
      CHECK(o.m.where() == state::waiting);
      CHECK(o.count(4).empty());
      CHECK(o.limit() == "leave:5 arrived:5");
    }
    SUBCASE("the limit passes meanwhile: it is the judge") {
      CHECK(o.limit().empty());
      CHECK(o.arrived(without_2) == "advance:5 decide:5");
      CHECK(o.proposal() == "missing 0 a.7.1 1/3 2");
    }
    SUBCASE("twice") {
      CHECK(o.arrived(everybody + roll::to_text({2, 3, 0, 0xd})) == "advance:5 decide:5");
      CHECK(o.proposal().starts_with("twice 0 a.7.1 rank 2 arrived twice"));
      CHECK(o.decide(o.proposal()) == "publish:5");
      o.m.on_publish();
      CHECK(o.m.done());
    }
    SUBCASE("two worlds") {
      o.arrived(without_2 + roll::to_text({3, 4, 0, 0xd}));
      CHECK(o.proposal() == "worlds 0 a.7.1 two world sizes: rank 3 says 4, rank 0 says 3");
    }
    SUBCASE("a higher attempt is there: never decides for others") {
      CHECK(o.arrived(everybody + roll::to_text({2, 3, 1, 0xd})).empty());
      REQUIRE(o.m.done());
      CHECK(o.m.take().kind == barrier_verdict::superseded);
    }
    SUBCASE("it is not listed: cleared away without it") {
      CHECK(o.arrived("").empty());
      REQUIRE(o.m.done());
      CHECK(o.m.take().kind == barrier_verdict::passed_by);
    }
  }
  SUBCASE("the limit passes before the answers: judges when it knows that it arrived in time") {
    CHECK(o.limit().empty());
    CHECK(o.count(2) == "leave:5 arrived:5");
  }
  SUBCASE("the limit passes while waiting; the loser wakes the others, too: the winner may have died") {
    o.count(2);
    CHECK(o.limit() == "leave:5 arrived:5");
    o.arrived(without_2);
    CHECK(o.decide("missing 0 t 1/3 1") == "publish:5");
    CHECK(o.out[0].text == "missing 0 t 1/3 1");
    CHECK(!o.m.done());
    o.m.on_publish();
    REQUIRE(o.m.done());
    CHECK(roll::ranks_in(o.m.take().missing) == std::vector<int>{1});
  }
}

TEST_CASE("table: abort") {
  SUBCASE("a fresh object reads the number first") {
    one o;
    CHECK(o.abort("no space") == "number:0");
    CHECK(o.number(5) == "advance:5 decide:5");
    CHECK(o.proposal() == "aborted 0 a.7.1 rank 0: no space");
    SUBCASE("a failure stood: it stands") {
      CHECK(o.decide("missing 0 t 1/3 0").empty());
      CHECK(o.m.done());
      CHECK(!o.m.decided_itself());
    }
    SUBCASE("all arrived there: the next generation") { CHECK(o.decide("ok 0 t ") == "advance:6 decide:6"); }
    SUBCASE("it is the verdict") {
      CHECK(o.decide(o.proposal()) == "publish:5");
      o.m.on_publish();
      REQUIRE(o.m.done());
      CHECK(o.m.decided_itself());
      CHECK(roll::explain(o.m.take()) == "rank 0: no space");
      CHECK(o.m.generation() == 6);
    }
  }
  SUBCASE("the verdict there is of a lower attempt: the next generation") {
    one o = one::kept(1);
    o.abort("x");
    CHECK(o.decide("missing 0 t 1/3 0") == "advance:6 decide:6");
  }
  SUBCASE("a kept object knows the number") { CHECK(one::kept().abort("x") == "advance:5 decide:5"); }
  SUBCASE("while it waits") { CHECK(one::waiting().abort("x") == "leave:5 advance:5 decide:5"); }
  SUBCASE("while it arrives: first it must know where") {
    one o;
    o.begin();
    o.number(5);
    CHECK(o.abort("x").empty());
    CHECK(o.check(false).empty());
    CHECK(o.count(1) == "leave:5 advance:5 decide:5");
  }
  SUBCASE("while it judges") {
    one o = one::waiting();
    o.limit();
    CHECK(o.abort("x").empty());
    CHECK(o.arrived(everybody) == "advance:5 decide:5");
    CHECK(o.proposal().starts_with("aborted"));
  }
  SUBCASE("while it reads the verdict: too late") {
    one o = one::waiting();
    o.wait();
    CHECK(o.abort("x").empty());
    o.outcome("ok 0 t ");
    CHECK(o.m.done());
    CHECK(!o.m.decided_itself());
  }
}

TEST_CASE("table: stopped, and gone on") {
  SUBCASE("before it arrived: begins anew") {
    one o;
    o.begin();
    o.m.pause();
    CHECK(o.begin() == "number:0");
  }
  SUBCASE("afterwards: counted already; looks at the count, it may have been the last") {
    one o = one::waiting();
    o.m.pause();
    CHECK(o.begin() == "recount:5 wait:5");
    SUBCASE("waits") {
      CHECK(o.count(2).empty());
      CHECK(o.wait() == "outcome:5");
    }
    SUBCASE("judges") { CHECK(o.count(3) == "leave:5 arrived:5"); }
    SUBCASE("the count is gone") {
      CHECK(o.count(0).empty());
      CHECK(o.limit() == "leave:5 arrived:5");
    }
  }
  SUBCASE("while it decides") {
    one o = one::waiting();
    o.limit();
    o.arrived(without_2);
    o.m.pause();
    CHECK(o.begin() == "recount:5 wait:5");
  }
  SUBCASE("with the verdict in its hands: gives it") {
    one o = one::waiting();
    o.limit();
    o.arrived(without_2);
    o.decide(o.proposal());
    CHECK(!o.m.done());
    o.m.pause();
    CHECK(o.begin().empty());
    REQUIRE(o.m.done());
    CHECK(o.m.take().kind == barrier_verdict::missing);
  }
}

// ---- Every order in which three members can act --------------------------------------------------------------------------------

namespace {

/// A rule that is broken on purpose, at the border between a member and its store.
enum class breakage {
  none,
  ignores_check,           // CHECK always says "no verdict yet"
  never_advances,          // no COMPARE_SET of the number
  advances_after,          // the number goes after the outcome
  judges_blindly,          // takes everybody for arrived
  ignores_attempts,        // takes a verdict of any attempt for its own
  decides_for_newer,       // does not see that a higher attempt arrived
  sets,                    // SET where COMPARE_SET belongs
  wakes_nobody,            // no SET after the COMPARE_SET
  counts_first,            // ADD before APPEND
  deletes_too_early,       // the decider clears its own generation, too
  deletes_after_failures,  // and after any verdict
};

constexpr int ranks = 3;
constexpr int most_generations = 6;
constexpr char const* unasked = "unasked";  // of a request that the member knows nothing of

/// What may happen in a run, and how much of it.
class world_rules {
 public:
  bool compare_set_wakes = true;
  std::array<bool, ranks> fresh{};  // a new object for each round
  bool turns = false;               // rank 0's new objects take turns with one that it keeps
  int rounds = 2;
  int faults = 1;
  bool crashes = true;
  bool early_limits = true;
  bool aborts = true;
  bool stops = true;
  std::function<bool(roll::requests const&)> crash_when;  // given what has not been executed; everywhere unless given
  std::vector<int> restarts{-1, 0, 1};                    // after a crash: none, or with an attempt so much higher
  bool lingers = true;                                    // what a dead process had sent may still be executed
  breakage broken = breakage::none;
  unsigned faulty = (1U << ranks) - 1;  // whom it may befall; one of them stands for all that are alike
  bool trace = false;                   // remember how each state came about
};

/// One generation: its keys, and what an observer knows of it.
class slot {
 public:
  std::string outcome, arrived;
  std::int64_t count = -1;
  std::string verdict;  // as decided first
  std::string listed;   // who had arrived then
};

/// A process: one member object at a time, its connection's requests that the server has not executed, its wait.
class process {
 public:
  explicit process(roll::arrival const& a) : m(a, 0) {}
  roll::member m;
  roll::requests sent;
  std::vector<roll::member> kept;  // an object that waits for its turn
  std::int64_t waits = -1;
  std::size_t unheard = 0;  // so many of `sent` were sent by calls that are over
  int rounds_left = 0;
  int objects = 0;
  bool alive = true;
  bool ended = false;
  bool limit = false;    // has passed in this round
  bool saw_all = false;  // everybody was there when it judged
  bool saw_newer = false;
};

class world_state {
 public:
  std::int64_t number = -1;
  std::vector<slot> g;
  std::vector<process> p;
  std::vector<roll::requests> ghosts;  // of connections whose process is dead, or does not listen any more
  std::array<std::int64_t, ranks> last_returned{-1, -1, -1};
  int attempts[ranks] = {0, 0, 0};
  int faults = 0;
  int interrupted = 0;  // crashes and stops
  int processes = 0;
  unsigned cleared = 0;                // generations whose outcome was deleted
  unsigned moved = (1U << ranks) - 1;  // who took part in the last step
  std::string path;
  bool orderly = true;  // nothing but arrivals so far

  [[nodiscard]] std::uint64_t hash(bool with_moved) const {
    std::uint64_t h = 1469598103934665603U;
    const auto number_in = [&h](std::uint64_t n) {
      h = (h ^ n) * 0x9e3779b97f4a7c15U;
      h ^= h >> 32;
    };
    const auto text_in = [&](std::string_view t) { number_in(std::hash<std::string_view>()(t)); };
    const auto requests_in = [&](roll::requests const& all) {
      for (auto const& r : all) {
        number_in(static_cast<std::uint64_t>(r.what) << 32 | static_cast<std::uint64_t>(r.generation));
        if (!r.text.empty()) text_in(r.text);
      }
      number_in(all.size());
    };
    number_in(static_cast<std::uint64_t>(number));
    for (auto const& x : g) {
      text_in(x.outcome);
      text_in(x.arrived);
      number_in(static_cast<std::uint64_t>(x.count));
    }
    for (auto const& x : p) {
      x.m.describe(number_in, text_in);
      for (auto const& k : x.kept) k.describe(number_in, text_in);
      requests_in(x.sent);
      number_in(static_cast<std::uint64_t>(x.waits) * 16 + x.unheard);
      number_in(static_cast<std::uint64_t>(x.rounds_left * 32 + x.alive * 16 + x.ended * 8 + x.limit * 4 + x.saw_all * 2 + x.saw_newer));
    }
    for (auto const& x : ghosts) requests_in(x);
    for (const auto r : last_returned) number_in(static_cast<std::uint64_t>(r));
    number_in(cleared);
    number_in(static_cast<std::uint64_t>(faults * 64 + interrupted * 2 + orderly));
    if (with_moved) number_in(moved);
    return h;
  }
};

class checker {
 public:
  explicit checker(world_rules const& r) : rules_(r) {}
  std::size_t visited = 0;
  std::string violation;

  /// Every state that can be reached; stops at the first that breaks an invariant.
  bool run() {
    world_state first;
    for (int r = 0; r < ranks; ++r) {
      first.p.emplace_back(roll::arrival(r, ranks, 0, static_cast<std::uint64_t>(++first.processes)));
      first.p.back().rounds_left = rules_.rounds;
    }
    for (auto& x : first.p) call(first, x);
    push(std::move(first));
    while (!open_.empty() && violation.empty()) {
      const world_state s = std::move(open_.back());
      open_.pop_back();
      expand(s);
    }
    return violation.empty();
  }

 private:
  void push(world_state&& s) {
    if (!violation.empty()) return;
    if (!seen_.insert(s.hash(s.faults < rules_.faults)).second) return;
    ++visited;
    open_.push_back(std::move(s));
  }
  void wrong(world_state const& s, std::string what) {
    if (violation.empty()) violation = std::move(what) + s.path;
  }
  void note(world_state& n, std::size_t i, std::string const& what) const {
    if (rules_.trace) n.path += "\n  " + std::to_string(i) + " " + what;
  }
  void note(world_state& n, std::size_t i, roll::request const& r) const {
    if (rules_.trace) note(n, i, std::string(names[static_cast<std::size_t>(r.what)]) + ":" + std::to_string(r.generation) + " " + r.text);
  }

  /// Steps that commute with whatever others can do meanwhile need not be tried in every order: the first of them is taken alone.
  ///
  /// Deleting: old keys are read by nobody; `erased` checks that, and as early as possible is the worst moment. Where COMPARE_SET
  /// wakes, a WAIT comes out the same before and after it, and the SET behind it changes nothing. And while nobody decides, and
  /// nobody else can be made to, nobody will before this member has arrived: its own steps up to the count are seen by nobody.
  [[nodiscard]] bool commutes(world_state const& s, std::size_t i, bool calm) const {
    const bool others_may_fail = s.faults < rules_.faults && (rules_.faulty & ~(1U << i)) != 0;
    switch (s.p[i].sent.front().what) {
      case kind::drop_count:
      case kind::drop_arrived:
      case kind::drop_outcome: return true;
      case kind::wait:
      case kind::publish: return rules_.compare_set_wakes && s.faults >= rules_.faults;
      case kind::number:
      case kind::check:
      case kind::append: return calm && !others_may_fail;
      default: return false;
    }
  }
  [[nodiscard]] bool is_calm(world_state const& s) const {
    if (!s.ghosts.empty() || rules_.broken == breakage::counts_first) return false;
    for (auto const& x : s.p) {
      if (x.limit || x.saw_all || x.saw_newer || x.unheard > 0) return false;
      if (x.m.where() == state::judging || x.m.where() == state::deciding) return false;
      for (auto const& r : x.sent)
        if (r.what == kind::advance || r.what == kind::decide || r.what == kind::arrived) return false;
    }
    return true;
  }
  void expand(world_state const& s) {
    bool quiet = s.ghosts.empty();
    const bool calm = is_calm(s);
    for (std::size_t i = 0; i < s.p.size(); ++i) {
      if (s.p[i].sent.empty()) continue;
      quiet = false;
      if (!commutes(s, i, calm)) continue;
      world_state n = s;
      n.moved = 0;
      execute(n, i);
      n.moved |= s.moved;
      return push(std::move(n));
    }
    for (std::size_t i = 0; i < s.p.size(); ++i) {
      if (s.p[i].sent.empty()) continue;
      world_state n = s;
      n.moved = 0;
      execute(n, i);
      push(std::move(n));
    }
    for (std::size_t i = 0; i < s.ghosts.size(); ++i) {
      world_state n = s;
      n.moved = 0;
      execute_ghost(n, i);
      push(std::move(n));
    }
    for (std::size_t i = 0; i < s.p.size(); ++i) {
      if (s.faults < rules_.faults && (s.moved & rules_.faulty & 1U << i) != 0) faults_of(s, i);
      // A limit that passes when nothing else can happen is free.
      process const& x = s.p[i];
      if (!quiet || !x.alive || x.ended || x.limit) continue;
      if (s.orderly) return wrong(s, "nobody is at fault, and yet rank " + std::to_string(i) + " waits for its limit");
      world_state n = s;
      n.moved = 0;
      pass_limit(n, n.p[i]);
      push(std::move(n));
    }
    if (quiet) at_rest(s);
  }

  /// What may go wrong with one member. It concerns nobody else until its next request is executed, so it is enough to try it right
  /// after the member's own last step.
  void faults_of(world_state const& s, std::size_t i) {
    if (!s.p[i].alive || s.p[i].ended) return;
    const auto with_fault = [&](auto f) {
      world_state n = s;
      ++n.faults;
      n.orderly = false;
      f(n, n.p[i]);
      n.moved |= s.moved;
      push(std::move(n));
    };
    if (rules_.early_limits && !s.p[i].limit) with_fault([&](world_state& n, process& x) { pass_limit(n, x); });
    if (rules_.aborts)
      with_fault([&](world_state& n, process& x) {
        note(n, i, "abort");
        roll::requests out;
        x.m.abort("why", out);
        follow(n, x, out);
      });
    if (rules_.stops)
      with_fault([&](world_state& n, process& x) {
        note(n, i, "stop");
        ++n.interrupted;
        std::erase_if(x.sent, [](auto const& q) { return q.what == kind::wait; });
        x.unheard = x.sent.size();
        x.waits = -1;
        x.m.pause();
        call(n, x);
      });
    if (!rules_.crashes || (rules_.crash_when && !rules_.crash_when(s.p[i].sent))) return;
    for (const bool drop : {true, false}) {
      if (!drop && (!rules_.lingers || s.p[i].sent.empty())) continue;
      for (const int restart : rules_.restarts)
        with_fault([&](world_state& n, process& x) {
          note(n, i, "crash drop " + std::to_string(drop) + " restart " + std::to_string(restart));
          ++n.interrupted;
          if (!drop) n.ghosts.push_back(std::move(x.sent));
          const int left = x.rounds_left;
          x = process(
              roll::arrival(static_cast<int>(i), ranks, n.attempts[i] += std::max(restart, 0), static_cast<std::uint64_t>(++n.processes)));
          x.rounds_left = left;
          x.alive = restart >= 0;
          if (x.alive) call(n, x);
        });
    }
  }
  void pass_limit(world_state& n, process& x) {
    note(n, static_cast<std::size_t>(x.m.self().rank), "limit");
    x.limit = true;
    n.orderly = false;
    roll::requests out;
    x.m.on_limit(out);
    follow(n, x, out);
  }

  /// Nothing is on its way. Who has not ended waits for a limit that is still to come, or is dead.
  void at_rest(world_state const& s) {
    bool all = true;
    std::int64_t last = 0;
    for (auto const& x : s.p) {
      all = all && x.ended;
      if (x.alive && !x.ended && x.limit) wrong(s, "rank " + std::to_string(x.m.self().rank) + " hangs past its limit");
      if (x.m.generation()) last = std::max(last, *x.m.generation());
    }
    // What was decided ok, by a decider that could finish, leaves nothing behind but itself.
    if (!all || s.interrupted > 0) return;
    for (auto const& r : s.last_returned)
      if (r != s.last_returned[0]) return;
    const auto top = static_cast<std::size_t>(s.last_returned[0]);
    if (!s.g[top].verdict.starts_with("ok")) return;
    for (std::size_t i = 0; i < top; ++i)
      if (!s.g[i].outcome.empty() || !s.g[i].arrived.empty() || s.g[i].count >= 0)
        wrong(s, "keys of generation " + std::to_string(i) + " are left");
  }

  void call(world_state& n, process& x) {
    x.limit = false;
    roll::requests out;
    x.m.begin(out);
    follow(n, x, out);
  }
  /// Takes what a member asked for, and the end of its call.
  void follow(world_state& n, process& x, roll::requests& out) {
    n.moved |= 1U << x.m.self().rank;
    for (auto& r : out) {
      if (rules_.broken == breakage::never_advances && r.what == kind::advance) continue;
      if (rules_.broken == breakage::wakes_nobody && r.what == kind::publish) {
        x.m.on_publish();
        continue;
      }
      if (r.what == kind::leave) {
        x.waits = -1;
        std::erase_if(x.sent, [](auto const& q) { return q.what == kind::wait; });
        continue;
      }
      x.sent.push_back(std::move(r));
    }
    out.clear();
    const auto swap_last = [&](kind a, kind b) {
      for (std::size_t k = 1; k < x.sent.size(); ++k)
        if (x.sent[k - 1].what == a && x.sent[k].what == b) std::swap(x.sent[k - 1], x.sent[k]);
    };
    if (rules_.broken == breakage::advances_after) swap_last(kind::advance, kind::decide);
    if (rules_.broken == breakage::counts_first) swap_last(kind::append, kind::count);
    if (x.m.done()) returned(n, x);
  }
  void returned(world_state& n, process& x) {
    const std::int64_t g = x.m.generation().value_or(-1);
    const bool arrived = x.m.arrived();
    const roll::verdict v = x.m.take();
    const auto rank = static_cast<std::size_t>(x.m.self().rank);
    const auto at = static_cast<std::size_t>(std::max<std::int64_t>(g, 0));
    const std::string who = "rank " + std::to_string(rank) + " in generation " + std::to_string(g) + ": ";
    if (v.kind == barrier_verdict::passed_by) {
      // Right only for a process beside which another one stood for the same rank.
      return wrong(n, who + "was passed by");
    }
    if (v.kind == barrier_verdict::superseded) {
      if (*std::max_element(std::begin(n.attempts), std::end(n.attempts)) <= x.m.self().attempt) wrong(n, who + "superseded by nobody");
      x.ended = true;
      return;
    }
    if (at >= n.g.size()) return wrong(n, who + "returns from where nobody was");
    const auto decided = roll::read_verdict(n.g[at].verdict);
    if (!decided) return wrong(n, who + "returns a verdict that nobody decided");
    if (decided->kind != v.kind || roll::explain(*decided) != roll::explain(v))
      return wrong(n, who + "returns another verdict than was decided");
    if (v.attempt != x.m.self().attempt) wrong(n, who + "takes the verdict of another attempt");
    // Its own arrival was among them, or that of a predecessor that died without being followed by a higher attempt.
    bool listed = false;
    roll::for_each_arrival(n.g[at].listed, [&](roll::arrival const& a) {
      listed = listed || (a.rank == x.m.self().rank && a.attempt == v.attempt && a.incarnation <= x.m.self().incarnation);
    });
    if (v.kind == barrier_verdict::ok && (!arrived || !listed)) wrong(n, who + "ok, although its arrival was not among them");
    if (g <= n.last_returned[rank]) wrong(n, who + "returns from a generation that its rank has left");
    n.last_returned[rank] = g;
    x.saw_all = x.saw_newer = false;
    if (--x.rounds_left == 0 || g + 2 >= most_generations) {
      x.ended = true;
      return;
    }
    if (rules_.turns && rank == 0) {
      if (x.kept.empty()) {
        x.kept.push_back(std::exchange(x.m, roll::member(x.m.self(), static_cast<std::uint64_t>(++x.objects))));
      } else {
        x.m = std::move(x.kept.back());
        x.kept.clear();
      }
    } else if (rules_.fresh[rank]) {
      x.m = roll::member(x.m.self(), static_cast<std::uint64_t>(++x.objects));
    }
    call(n, x);
  }

  // The server. One request at a time, in each connection's order; the answer arrives at once (that it arrives later is the same as
  // that what it leads to is executed later).
  void execute_ghost(world_state& n, std::size_t i) {
    roll::requests& q = n.ghosts[i];
    const roll::request r = std::move(q.front());
    q.erase(q.begin());
    if (q.empty()) n.ghosts.erase(n.ghosts.begin() + static_cast<std::ptrdiff_t>(i));
    note(n, 9, r);
    if (!only_reads(r)) apply(n, r, nullptr);
  }
  static bool only_reads(roll::request const& r) {
    return r.what == kind::wait || r.what == kind::check || r.what == kind::outcome || r.what == kind::arrived || r.what == kind::recount;
  }
  void execute(world_state& n, std::size_t i) {
    process& x = n.p[i];
    const roll::request r = std::move(x.sent.front());
    x.sent.erase(x.sent.begin());
    note(n, i, r);
    if (x.unheard == 0) return apply(n, r, &x);
    --x.unheard;
    if (!only_reads(r)) apply(n, r, nullptr);
  }
  void wake(world_state& n, std::int64_t g) {
    for (auto& x : n.p) {
      if (x.waits != g) continue;
      x.waits = -1;
      roll::requests out;
      x.m.on_wait(out);
      follow(n, x, out);
    }
  }
  void decided(world_state& n, std::int64_t g, std::string const& text, process const* by) {
    const auto at = static_cast<std::size_t>(g);
    // What a dead process still had on its way may come when everybody has left; then it is a key that nobody reads.
    if (!by && (n.cleared >> g & 1) != 0) return;
    if (!n.g[at].verdict.empty() && n.g[at].verdict != text) return wrong(n, "generation " + std::to_string(g) + " has two verdicts");
    if (!n.g[at].verdict.empty()) return;
    n.g[at].verdict = text;
    n.g[at].listed = n.g[at].arrived;
    const auto v = roll::read_verdict(text);
    int there = 0;
    for (int r = 0; r < ranks; ++r) {
      bool listed = false;
      roll::for_each_arrival(n.g[at].listed, [&](roll::arrival const& a) { listed = listed || (a.rank == r && a.attempt == v->attempt); });
      there += listed;
    }
    if (v->kind == barrier_verdict::ok && there < ranks) wrong(n, "generation " + std::to_string(g) + " is ok without everybody");
    if (!by) return;
    if (v->kind == barrier_verdict::missing && by->saw_all) wrong(n, "a complete generation is not ok");
    if (v->kind != barrier_verdict::aborted && by->saw_newer) wrong(n, "a lower attempt decides for a higher one");
  }
  void erased(world_state const& n, std::int64_t g) {
    for (auto const& x : n.p)
      if (x.alive && x.m.arrived() && x.m.generation() == g)
        wrong(n, "generation " + std::to_string(g) + " is deleted under rank " + std::to_string(x.m.self().rank));
  }

  void apply(world_state& n, roll::request const& r, process* x) {
    if (r.generation + 1 >= most_generations) return wrong(n, "the model needs more generations");
    if (n.g.size() <= static_cast<std::size_t>(r.generation)) n.g.resize(static_cast<std::size_t>(r.generation) + 1);
    slot& s = n.g[static_cast<std::size_t>(r.generation)];
    roll::requests out;
    switch (r.what) {
      case kind::number:
        if (n.number < 0) n.number = 0;
        if (x) x->m.on_number(n.number, out);
        break;
      case kind::check: x->m.on_check(rules_.broken != breakage::ignores_check && !s.outcome.empty(), out); break;
      case kind::append: s.arrived += r.text; break;
      case kind::count:
        s.count = std::max<std::int64_t>(s.count, 0) + 1;
        if (x) x->m.on_count(s.count, out);
        break;
      case kind::recount:
        s.count = std::max<std::int64_t>(s.count, 0);
        x->m.on_count(s.count, out);
        break;
      case kind::wait:
        if (s.outcome.empty()) {
          x->waits = r.generation;
        } else {
          x->m.on_wait(out);
        }
        break;
      case kind::leave: break;
      case kind::arrived: {
        const auto v = roll::evaluate(s.arrived, x->m.self());
        x->saw_all = v.kind == barrier_verdict::ok;
        x->saw_newer = v.kind == barrier_verdict::superseded;
        std::string text = s.arrived;
        if (rules_.broken == breakage::judges_blindly)
          for (int k = 0; k < ranks; ++k)
            if (("," + text).find("," + std::to_string(k) + "/") == text.npos) text += roll::to_text({k, ranks, x->m.self().attempt, 99});
        if (rules_.broken == breakage::decides_for_newer) {
          text.clear();
          roll::for_each_arrival(s.arrived, [&](roll::arrival const& a) {
            if (a.attempt <= x->m.self().attempt) text += roll::to_text(a);
          });
        }
        x->m.on_arrived(text, out);
        break;
      }
      case kind::advance:
        if (n.number == r.generation) n.number = r.generation + 1;
        break;
      case kind::decide:
        if (s.outcome.empty() || rules_.broken == breakage::sets) {
          s.outcome = r.text;
          decided(n, r.generation, r.text, x);
          if (x) x->m.on_decide(r.text, out);
          if (rules_.broken == breakage::deletes_too_early && r.text.starts_with("ok"))
            for (const auto k : {kind::drop_count, kind::drop_arrived, kind::drop_outcome}) out.emplace_back(k, r.generation, unasked);
          if (rules_.broken == breakage::deletes_after_failures && !r.text.starts_with("ok") && r.generation > 0)
            for (const auto k : {kind::drop_count, kind::drop_arrived, kind::drop_outcome}) out.emplace_back(k, r.generation - 1, unasked);
          if (x) follow(n, *x, out);
          if (rules_.compare_set_wakes) wake(n, r.generation);
        } else if (x) {
          x->m.on_decide(s.outcome, out);
        }
        break;
      case kind::publish:
        s.outcome = r.text;
        decided(n, r.generation, r.text, nullptr);
        if (x) x->m.on_publish();
        if (x) follow(n, *x, out);
        wake(n, r.generation);
        break;
      case kind::outcome: {
        std::string text = s.outcome;
        if (rules_.broken == breakage::ignores_attempts && !text.empty()) {
          auto v = roll::read_verdict(text);
          v->attempt = x->m.self().attempt;
          text = roll::write_verdict(*v, "t");
        }
        x->m.on_outcome(text, out);
        break;
      }
      case kind::drop_count: drop(n, r, std::exchange(s.count, -1) >= 0, x, out); break;
      case kind::drop_arrived: drop(n, r, !std::exchange(s.arrived, "").empty(), x, out); break;
      case kind::drop_outcome:
        n.cleared |= 1U << r.generation;
        drop(n, r, !std::exchange(s.outcome, "").empty(), x, out);
        break;
    }
    if (x) follow(n, *x, out);
  }
  void drop(world_state& n, roll::request const& r, bool existed, process* x, roll::requests& out) {
    erased(n, r.generation);
    if (x && r.text != unasked) x->m.on_drop(r.generation, existed, out);
  }

  world_rules rules_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<world_state> open_;
};

}  // namespace

namespace {

enum : unsigned { crash = 1, limits = 2, aborts = 4, stops = 8, all_faults = 15 };

world_rules with(unsigned kinds, int faults, int rounds, bool wakes, std::array<bool, ranks> fresh) {
  world_rules r;
  r.crashes = (kinds & crash) != 0;
  r.early_limits = (kinds & limits) != 0;
  r.aborts = (kinds & aborts) != 0;
  r.stops = (kinds & stops) != 0;
  r.faults = faults;
  r.rounds = rounds;
  r.compare_set_wakes = wakes;
  r.fresh = fresh;
  r.faulty = 1;  // all are alike
  return r;
}
constexpr std::array<bool, ranks> fresh_objects{true, true, true};
constexpr std::array<bool, ranks> kept_objects{false, false, false};

}  // namespace

TEST_CASE("model: every order in which three members act, run into limits, die, restart, abort, stop") {
  const auto begun = std::chrono::steady_clock::now();
  std::size_t states = 0;
  const auto check = [&](char const* what, world_rules const& r) {
    checker c(r);
    CHECK_MESSAGE(c.run(), what << ": " << c.violation);
    states += c.visited;
  };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const bool brief = true;  // five times as slow
#else
  const bool brief = false;
#endif
  for (const bool wakes : {true, false}) {
    const int rounds = wakes ? 3 : 2;
    world_rules any = with(all_faults, 1, 1, wakes, fresh_objects);
    any.lingers = wakes || !brief;
    check("one round, one fault", any);
    check("fresh objects, no fault", with(0, 0, rounds, wakes, fresh_objects));
    check("kept objects, no fault", with(0, 0, rounds, wakes, kept_objects));
  }
  world_rules in_turn = with(0, 0, 3, true, kept_objects);
  in_turn.turns = true;
  check("objects that take turns", in_turn);
  if (!brief) check("two rounds, stops", with(stops, 1, 2, true, kept_objects));
  if (std::getenv("ROLLCALL_LONG")) {
    for (const bool wakes : {true, false}) {
      for (auto const& objects : {fresh_objects, kept_objects}) check("two rounds, one fault", with(all_faults, 1, 2, wakes, objects));
      check("three rounds, a limit or abort", with(limits | aborts, 1, 3, wakes, fresh_objects));
      world_rules turns = with(limits, 1, 3, wakes, fresh_objects);
      turns.turns = true;
      check("no fault, four rounds", with(0, 0, 4, wakes, fresh_objects));
      check("objects that take turns, one fault", turns);
      for (const unsigned kinds : {limits | aborts | stops, crash | limits}) {
        world_rules two = with(kinds, 2, 1, wakes, fresh_objects);
        two.faulty = 3;
        check("one round, two faults", two);
      }
    }
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun).count();
  MESSAGE(states << " states visited in " << took << " ms");
}

TEST_CASE("model: every rule is needed: with any one of them broken an invariant breaks") {
  const auto breaks = [](std::string const& rule, breakage b, world_rules r) {
    r.broken = b;
    checker c(r);
    CHECK_MESSAGE(!c.run(), rule);
    MESSAGE(rule << ": " << c.violation << " (" << c.visited << " states)");
  };
  const world_rules calm = with(0, 0, 3, true, fresh_objects);
  const world_rules early = with(limits, 1, 2, true, fresh_objects);
  const world_rules restarts = with(crash, 1, 1, true, fresh_objects);
  world_rules turns = calm;
  turns.turns = true;
  breaks("CHECK tells who is late", breakage::ignores_check, turns);
  breaks("a decider advances the number", breakage::never_advances, calm);
  world_rules in_between = with(crash, 1, 3, true, fresh_objects);
  in_between.restarts = {0};
  in_between.lingers = false;
  in_between.crash_when = [](roll::requests const& left) { return !left.empty() && left.front().what == kind::advance; };
  breaks("the number goes first", breakage::advances_after, in_between);
  breaks("a decider reads who arrived", breakage::judges_blindly, early);
  breaks("a verdict speaks for its attempt", breakage::ignores_attempts, restarts);
  breaks("a lower attempt does not decide for a higher one", breakage::decides_for_newer, restarts);
  breaks("the verdict is a COMPARE_SET", breakage::sets, early);
  breaks("the winner wakes the others", breakage::wakes_nobody, with(0, 0, 1, false, fresh_objects));
  breaks("APPEND goes before ADD", breakage::counts_first, with(0, 0, 1, true, fresh_objects));
  breaks("a decider deletes older generations only", breakage::deletes_too_early, calm);
  breaks("only after an ok", breakage::deletes_after_failures, with(limits, 1, 2, true, fresh_objects));
}
