// Whose file it is: every case of docs/design/file-store.md, "Earlier runs", without a file.
#include <doctest/doctest.h>

#include <rollcall/stores/detail/file_members.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace rc = rollcall;
using namespace rollcall::detail;
using what = file_judgement::what;

namespace {

/// A file's records, and whose marks there are.
class scene {
 public:
  scene& run(std::string_view id) { return put(file_format::run, id); }
  scene& put(std::string_view key, std::string_view value) {
    map.apply(key, value);
    empty = false;
    return *this;
  }
  scene& counts(int open, int left) {
    return put(file_format::refcount, std::to_string(open)).put(file_format::cleanup, std::to_string(left));
  }
  scene& member(int number, std::string_view text, bool lives) {
    if (lives) alive.insert(number);
    return put(std::string(file_format::member) + std::to_string(number), text);
  }
  scene& left(int rank, int attempt) { return put(std::string(file_format::left) + std::to_string(rank), std::to_string(attempt)); }
  [[nodiscard]] file_roll roll() const {
    return file_roll(map, [this](std::int64_t n) { return alive.count(n) != 0; });
  }
  [[nodiscard]] file_judgement judge(rc::file_options const& o) const { return judge_file(map, empty, roll(), o); }
  [[nodiscard]] what decide(rc::file_options const& o) const { return judge(o).decision; }

  file_map map;
  std::set<std::int64_t> alive;
  bool empty = true;
};

rc::file_options rank(int r, int attempt = 0) { return rc::file_options{}.world_size(3).rank(r).attempt(attempt); }
rc::file_options plain() { return rc::file_options{}.world_size(3); }
bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("a member's record is read as it was written, and nothing else is one") {
  file_member m;
  m.number = 7;
  m.rank = 2;
  m.attempt = 1;
  m.process = 4711;
  CHECK(m.text() == "2/1/4711");
  CHECK(m.name() == "rank 2 (process 4711)");
  const auto again = file_member::read("7", m.text());
  REQUIRE(again);
  CHECK(again->number == 7);
  CHECK(again->text() == m.text());
  CHECK(file_member::read("0", "-1/0/1")->name() == "process 1");
  for (std::string_view wrong : {"", "2", "2/1", "2/1/", "2/1/x", "2/1/5/6", "-2/0/1", "0/-1/1", "x/0/1"})
    CHECK_FALSE(file_member::read("7", wrong));
  for (std::string_view wrong : {"", "x", "-1", "7x", "9223372036854775807"}) CHECK_FALSE(file_member::read(wrong, "2/1/5"));
}

TEST_CASE("a roll counts who is there, who is dead, and who says nothing of itself") {
  scene s;
  s.counts(5, 1).member(0, "0/0/10", true).member(1, "1/0/11", false).member(3, "2/2/12", true).left(4, 3);
  s.put(file_format::failed, "1 rank 1: no space");
  const file_roll r = s.roll();
  CHECK(r.alive.size() == 2);
  CHECK(r.dead.size() == 1);
  CHECK(r.unmarked == 2);
  CHECK(r.attempt == 3);
  CHECK(r.failed_attempt == 1);
  CHECK(r.failure == "rank 1: no space");
  CHECK_FALSE(r.is_deserted());
  CHECK(contains(r.who_is_there(), "(process 10)"));
  CHECK(contains(r.who_is_there(), " and 2 more"));
}

TEST_CASE("a file that is empty, or whose run goes on, is joined") {
  CHECK(scene().decide(rank(0)) == what::join);
  CHECK(scene().decide(rank(0).run_id("a")) == what::join);
  scene s;
  s.run("a").counts(1, 0).member(0, "1/0/10", true);
  CHECK(s.decide(rank(0).run_id("a")) == what::join);
  CHECK(s.decide(plain().run_id("a")) == what::join);
  // Somebody has worked and left before the others came.
  scene early;
  early.run("a").counts(0, 1).left(1, 0);
  CHECK(early.decide(rank(0).run_id("a")) == what::join);
  CHECK(early.decide(plain().run_id("a")) == what::join);
  // PyTorch's say nothing of themselves.
  scene torch;
  torch.counts(2, 0).put("/k", "v");
  CHECK(torch.decide(rank(0)) == what::join);
}

TEST_CASE("a run of which nobody is left is begun anew by a rank, and refused to who has none") {
  scene dead;
  dead.run("a").counts(2, 0).member(0, "0/0/10", false).member(1, "1/0/11", false);
  for (char const* id : {"a", "b", ""}) {
    CHECK(dead.decide(rank(2).run_id(id)) == what::begin_anew);
    CHECK(dead.decide(plain().run_id(id)) == what::refuse);
  }
  CHECK(contains(dead.judge(rank(2).run_id("a")).why, "rank 0 (process 10) of the run before has died"));
  CHECK(contains(dead.judge(plain().run_id("a")).why, "is of a run that crashed: none of its 2 members is alive"));
  CHECK(dead.decide(plain().run_id("a").attempt(1)) == what::begin_anew);  // it says that it is a restart
  scene failed;
  failed.counts(0, 2).left(0, 0).left(1, 0).put(file_format::failed, "0 rank 1: out of paper");
  CHECK(failed.decide(rank(2)) == what::begin_anew);
  CHECK(contains(failed.judge(rank(2)).why, "out of paper"));
  scene had_this_rank;
  had_this_rank.counts(0, 1).left(1, 0);
  CHECK(had_this_rank.decide(rank(1)) == what::begin_anew);
  CHECK(had_this_rank.decide(rank(2)) == what::join);
  CHECK(had_this_rank.decide(rank(2, 1)) == what::begin_anew);
  scene of_another;
  of_another.run("a").counts(0, 1).left(1, 0);
  CHECK(of_another.decide(rank(2).run_id("b")) == what::begin_anew);
  CHECK(of_another.decide(rank(2)) == what::begin_anew);
  CHECK(of_another.decide(plain().run_id("b")) == what::refuse);
  // Where one of PyTorch's may be there nothing is dropped.
  dead.counts(3, 0);
  CHECK(dead.decide(rank(2).run_id("a")) == what::busy);
  CHECK(dead.decide(rank(2).run_id("b")) == what::refuse);
}

TEST_CASE("a rank does not come into a run that goes on without one, or has it already") {
  scene partly;
  partly.run("a").counts(2, 0).member(0, "0/1/10", false).member(1, "1/1/11", true);
  file_judgement j = partly.judge(rank(2, 1).run_id("a"));
  CHECK(j.decision == what::busy);
  CHECK(contains(j.why, "rank 0 (process 10) has died, while others are there: rank 1 (process 11); end all of them"));
  j = partly.judge(rank(2, 0).run_id("a"));
  CHECK(j.decision == what::refuse);
  CHECK(contains(j.why, "supersedes this one: this is attempt 0, and rank 1 (process 11) is of attempt 1"));
  CHECK(partly.decide(rank(2, 2).run_id("a")) == what::begin_anew);
  CHECK(partly.decide(plain().run_id("a")) == what::join);
  j = partly.judge(rank(2, 1).run_id("b"));
  CHECK(j.decision == what::busy);
  CHECK(contains(j.why, " belongs to run 'a', this is run 'b'; rank 1 (process 11) still there"));
  CHECK(partly.decide(plain().run_id("b")) == what::refuse);
  scene twice;
  twice.counts(1, 0).member(0, "0/0/10", true);
  j = twice.judge(rank(0));
  CHECK(j.decision == what::busy);
  CHECK(contains(j.why, "has rank 0 already: process 10"));
  CHECK(twice.decide(rank(0, 1)) == what::begin_anew);
  scene failing;
  failing.counts(1, 1).member(0, "0/0/10", true).left(1, 0).put(file_format::failed, "0 rank 1: out of paper");
  j = failing.judge(rank(2));
  CHECK(j.decision == what::busy);
  CHECK(contains(j.why, "has failed (rank 1: out of paper), and others are there: rank 0 (process 10)"));
  CHECK(failing.decide(rank(2, 1)) == what::begin_anew);
  scene has_left;
  has_left.counts(1, 1).member(0, "0/0/10", true).left(1, 0);
  CHECK(has_left.decide(rank(1)) == what::busy);
  CHECK(has_left.decide(rank(2)) == what::join);
}

TEST_CASE("what is no run's of ours is refused where that can be told") {
  scene nameless;
  nameless.counts(1, 0).put("/k", "v");
  CHECK(nameless.decide(rank(0).run_id("a")) == what::refuse);
  CHECK(nameless.decide(rank(0).run_id("a").adopt()) == what::join);
  nameless.member(0, "1/0/11", true);
  CHECK(nameless.decide(rank(0).run_id("a")) == what::busy);
  CHECK(contains(nameless.judge(rank(0).run_id("a")).why, "rank 1 (process 11) still there"));
  scene over;
  over.counts(0, 3).put("/k", "v");
  CHECK(over.decide(rank(0)) == what::refuse);
  CHECK(over.decide(plain()) == what::refuse);
  CHECK(over.decide(plain().world_size(4)) == what::join);
  scene adopted;
  adopted.counts(1, 0).member(0, "-1/0/10", false);
  CHECK(adopted.decide(plain().run_id("a").adopt()) == what::join);
  // Who only looks sees all but a run that it did not ask for.
  scene any;
  any.run("a").counts(2, 5).member(0, "0/0/10", false);
  const auto look = rc::file_options{}.member(false);
  CHECK(any.decide(look) == what::join);
  CHECK(any.decide(rc::file_options{}.member(false).run_id("b")) == what::refuse);
}

TEST_CASE("a run's file has a name that a directory takes, whatever the id is") {
  CHECK(run_file_name("job 17/a") == "rollcall-job%2017%2Fa");
  CHECK(run_file_name(std::string(238, 'x')) == "rollcall-" + std::string(238, 'x'));
  std::set<std::string> names;
  for (std::string id : {std::string(239, 'x'), std::string(255, 'x'), std::string(255, ' '), std::string(254, ' ') + "a"}) {
    const std::string name = run_file_name(id);
    CHECK(name.size() == 247);  // PATH.compact, too, is a name
    CHECK(name.starts_with("rollcall-"));
    names.insert(name);
  }
  CHECK(names.size() == 4);
}
