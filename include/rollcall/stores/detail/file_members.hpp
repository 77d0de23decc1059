#pragma once
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../file_options.hpp"
#include "file_map.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// A member of ours, as its record `rollcall/member/NUMBER` tells it: "rank/attempt/process".
class file_member {
 public:
  std::int64_t number = 0;  // of its mark (file_locks.hpp)
  int rank = -1;            // -1: it has none
  int attempt = 0;
  std::int64_t process = 0;

  [[nodiscard]] std::string text() const { return std::to_string(rank) + "/" + std::to_string(attempt) + "/" + std::to_string(process); }
  /// Nothing for what is no member's record.
  [[nodiscard]] static std::optional<file_member> read(std::string_view number, std::string_view value) noexcept {
    file_member m;
    if (!take(number, '\0', m.number) || !take(value, '/', m.rank) || !take(value, '/', m.attempt) || !take(value, '\0', m.process) ||
        m.number < 0 || m.number > most || m.rank < -1 || m.attempt < 0)
      return std::nullopt;
    return m;
  }
  /// "rank 2 (process 4711)"
  [[nodiscard]] std::string name() const {
    const std::string who = "process " + std::to_string(process);
    return rank < 0 ? who : "rank " + std::to_string(rank) + " (" + who + ")";
  }

  static constexpr std::int64_t most = std::int64_t{1} << 60;

 private:
  template <class T>
  static bool take(std::string_view& from, char end, T& n) noexcept {
    const char* const last = from.data() + from.size();
    const auto [at, status] = std::from_chars(from.data(), last, n);
    if (status != std::errc() || (end == '\0' ? at != last : at == last || *at != end)) return false;
    from.remove_prefix(static_cast<std::size_t>(at - from.data()) + (end == '\0' ? 0 : 1));
    return true;
  }
};

/// Who a file says is of its run, which of them are alive, and how it went.
class file_roll {
 public:
  /// is_alive   of a member's number.
  template <class F>
  file_roll(file_map const& m, F is_alive) {
    using namespace file_format;
    m.for_each_other(member, [&](std::string_view number, std::string_view value) {
      const std::optional<file_member> one = file_member::read(number, value);
      if (!one) return;
      attempt = std::max(attempt, one->attempt);
      (is_alive(one->number) ? alive : dead).push_back(*one);
    });
    for (auto* all : {&alive, &dead})
      std::sort(all->begin(), all->end(),
                [](file_member const& a, file_member const& b) { return a.rank != b.rank ? a.rank < b.rank : a.number < b.number; });
    m.for_each_other(left, [&](std::string_view rank, std::string_view) { attempt = std::max(attempt, left_attempt(m, rank)); });
    if (std::string const* why = m.other(failed)) {
      const std::size_t blank = std::min(why->find(' '), why->size());
      std::from_chars(why->data(), why->data() + blank, failed_attempt);
      failure = why->substr(std::min(blank + 1, why->size()));
      attempt = std::max(attempt, failed_attempt);
    }
    const auto ours = static_cast<std::int64_t>(alive.size() + dead.size());
    unmarked = std::max<std::int64_t>(m.count(refcount) - ours, 0);
  }

  /// In which attempt that rank has left; -1 where it has not.
  [[nodiscard]] static int left_attempt(file_map const& m, std::string_view rank) {
    std::string const* text = m.other(std::string(file_format::left).append(rank));
    int n = -1;
    if (text) std::from_chars(text->data(), text->data() + text->size(), n);
    return n;
  }
  /// All that are counted in have left or are dead.
  [[nodiscard]] bool is_deserted() const noexcept { return alive.empty() && unmarked == 0; }
  /// "rank 0 (process 12), rank 3 (process 15) and 4 more"
  [[nodiscard]] std::string who_is_there() const {
    std::string text;
    std::size_t told = 0;
    for (; told < alive.size() && told < 3; ++told) text += (told > 0 ? ", " : "") + alive[told].name();
    const std::int64_t rest = static_cast<std::int64_t>(alive.size() - told) + unmarked;
    if (rest > 0) text += told > 0 ? " and " + std::to_string(rest) + " more" : std::to_string(rest) + " of PyTorch's or without a mark";
    return text;
  }

  std::vector<file_member> alive, dead;
  std::int64_t unmarked = 0;  // counted in refcount/ beside them: PyTorch's, or on a file system without marks
  int attempt = -1;           // the highest that is told of; -1: none
  int failed_attempt = -1;    // -1: nobody says that the run has failed
  std::string failure;
};

/// What is to be done about a file that a client would join.
class file_judgement {
 public:
  enum class what : unsigned char {
    join,
    begin_anew,  // its run is over, or this one supersedes it: what it holds is dropped
    busy,        // others are there that must go first; if they do not, it is an error
    refuse,
  };
  file_judgement() noexcept = default;
  file_judgement(what d, std::string t) noexcept : decision(d), why(std::move(t)) {}
  what decision = what::join;
  std::string why;  // behind the path
};

/// Whose file is it? Who has a rank is of a run, and no run begins with what another one has left; who has none drops nothing, except
/// with a higher attempt than the file tells of.
///
/// empty     there is no record, nor a part of one.
[[nodiscard]] inline file_judgement judge_file(file_map const& map, bool empty, file_roll const& roll, file_options const& o) {
  using enum file_judgement::what;
  if (empty) return {};
  std::string const& mine = o.run_id();
  std::string const* const theirs = map.other(file_format::run);
  const bool nameless = !theirs && !mine.empty() && !o.adopts();
  const bool is_other = theirs && *theirs != mine && (o.member() || !mine.empty());
  const bool ranked = o.member() && o.rank() >= 0;
  const int left = ranked ? file_roll::left_attempt(map, std::to_string(o.rank())) : -1;
  const auto ended_as = [&]() -> std::string {
    if (roll.attempt >= 0 && o.attempt() > roll.attempt && !is_other) return "this is attempt " + std::to_string(o.attempt());
    if (!ranked) return {};
    if (is_other) return "it was of run '" + *theirs + "'";
    if (!roll.dead.empty()) return roll.dead.front().name() + " of the run before has died";
    if (roll.failed_attempt >= 0) return "the run before has failed: " + roll.failure;
    if (left >= 0) return "rank " + std::to_string(o.rank()) + " of the run before has left";
    return {};
  };
  if (o.member() && roll.is_deserted() && (theirs || !o.adopts()))
    if (std::string why = ended_as(); !why.empty()) return {begin_anew, " is begun anew: " + why};

  if (is_other) {
    std::string text = " belongs to run '" + *theirs + "', this is " + (mine.empty() ? "a run without an id" : "run '" + mine + "'");
    if (roll.alive.empty()) return {refuse, text + "; remove it, or give each run a path of its own"};
    return {ranked ? busy : refuse, text + "; " + roll.who_is_there() + " still there: give each run a path of its own"};
  }
  if (nameless && ranked && !roll.alive.empty())
    return {busy, " belongs to a run without an id, this is run '" + mine + "'; " + roll.who_is_there() +
                      " still there: give each run a path of its own"};
  if (nameless)
    return {refuse, " belongs to a run without an id, this is run '" + mine + "'; remove it, or adopt it if PyTorch's came first"};
  if (!o.member()) return {};

  if (ranked && !roll.alive.empty()) {
    const auto by_attempt = [](file_member const& a, file_member const& b) { return a.attempt < b.attempt; };
    file_member const& newest = *std::max_element(roll.alive.begin(), roll.alive.end(), by_attempt);
    const std::string both =
        "this is attempt " + std::to_string(o.attempt()) + ", and " + newest.name() + " is of attempt " + std::to_string(newest.attempt);
    if (newest.attempt > o.attempt()) return {refuse, " is of an attempt that supersedes this one: " + both};
    if (newest.attempt < o.attempt() && roll.unmarked == 0) return {begin_anew, " is begun anew: " + both};
  }
  if (ranked && !roll.is_deserted()) {
    const std::string advice = "; end all of them and start again, or let all start again with a higher attempt (ROLLCALL_ATTEMPT)";
    const std::string rank = "rank " + std::to_string(o.rank());
    for (file_member const& m : roll.alive)
      if (m.rank == o.rank() && m.attempt >= o.attempt())
        return {busy, " has " + rank + " already: process " + std::to_string(m.process) + ", attempt " + std::to_string(m.attempt)};
    for (file_member const& m : roll.dead)
      if (m.rank >= 0 && m.attempt >= o.attempt())
        return {busy, " is of a run whose " + m.name() + " has died, while others are there: " + roll.who_is_there() + advice};
    if (roll.failed_attempt >= o.attempt())
      return {busy, " is of a run that has failed (" + roll.failure + "), and others are there: " + roll.who_is_there() + advice};
    if (left >= o.attempt())
      return {busy, " is of a run that " + rank + " has left already, and others are there: " + roll.who_is_there() + advice};
  }
  const std::int64_t gone = map.count(file_format::cleanup);
  if (o.world_size() > 0 && gone >= o.world_size() && roll.alive.empty())
    return {refuse, " is of an earlier run: all of its " + std::to_string(gone) + " members have left; remove it"};
  if (!ranked && !roll.dead.empty() && roll.is_deserted() && (theirs || mine.empty()))
    return {refuse, " is of a run that crashed: none of its " + std::to_string(roll.dead.size()) +
                        " members is alive; remove it, or let those that start again have a higher attempt"};
  return {};
}

/// The name that a run's file has in a directory: "rollcall-RUN_ID", percent-encoded; what would be too long for a name ends in a hash of
/// it all.
[[nodiscard]] inline std::string run_file_name(std::string_view run_id) {
  constexpr std::size_t most = 255 - 8;  // NAME_MAX, less ".compact"
  constexpr char hex[] = "0123456789ABCDEF";
  std::string s = "rollcall-";
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : run_id) {
    const auto byte = static_cast<unsigned char>(c);
    hash = (hash ^ byte) * 0x100000001b3U;
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
    if (plain) {
      s += c;
    } else {
      s += {'%', hex[byte >> 4], hex[byte & 15]};
    }
  }
  if (s.size() <= most) return s;
  s.resize(most - 17);
  s += '-';
  for (int shift = 60; shift >= 0; shift -= 4) s += hex[(hash >> shift) & 15];
  return s;
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
