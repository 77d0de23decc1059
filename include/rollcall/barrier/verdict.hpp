#pragma once
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/ranges.hpp"

namespace rollcall {
inline namespace v0 {

/// How a generation of a barrier ended.
enum class barrier_verdict : unsigned char {
  ok,          ///< every rank arrived
  missing,     ///< a limit passed before every rank was there
  twice,       ///< one rank arrived as two processes of the same attempt
  worlds,      ///< members do not agree on the world size
  aborted,     ///< a member called abort()
  superseded,  ///< for this member alone: others arrived with a higher attempt
  passed_by,   ///< for this member alone: the generation went on, and was cleared away, without it
};

/// The rules of a roll call without a store: texts, judgement, and a member's state machine (docs/design/barrier.md).
namespace roll_call {

inline constexpr int max_world = 1 << 24;

/// One arrival, as members write it into `{name}/{g}/arrived`: "rank/incarnation/attempt/world,".
class arrival {
 public:
  arrival() noexcept = default;
  arrival(int r, int w, int a, std::uint64_t i) noexcept : incarnation(i), rank(r), world(w), attempt(a) {}
  std::uint64_t incarnation = 0;
  int rank = 0;
  int world = 0;
  int attempt = 0;
};

[[nodiscard]] inline std::string hex(std::uint64_t n) {
  char digits[16];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, n, 16).ptr);
}
[[nodiscard]] inline std::string to_text(arrival const& a) {
  return std::to_string(a.rank) + "/" + hex(a.incarnation) + "/" + std::to_string(a.attempt) + "/" + std::to_string(a.world) + ",";
}

/// Takes a whole number and the `end` behind it from the front of `text`; `end` 0: the number is all there is.
template <class T>
[[nodiscard]] bool take_number(std::string_view& text, char end, T& value, int base = 10) {
  const char* const last = text.data() + text.size();
  const auto [at, status] = std::from_chars(text.data(), last, value, base);
  if (status != std::errc() || (end == 0 ? at != last : at == last || *at != end)) return false;
  text.remove_prefix(static_cast<std::size_t>(at - text.data()) + (end != 0 ? 1 : 0));
  return true;
}

/// Calls `f(arrival)` for every entry; what is none (somebody else writes there, or half an entry) is skipped.
template <class F>
void for_each_arrival(std::string_view text, F f) {
  for (std::size_t comma; (comma = text.find(',')) != text.npos; text.remove_prefix(comma + 1)) {
    std::string_view one = text.substr(0, comma);
    arrival a;
    if (take_number(one, '/', a.rank) && take_number(one, '/', a.incarnation, 16) && take_number(one, '/', a.attempt) &&
        take_number(one, 0, a.world) && a.rank >= 0 && a.rank < a.world && a.world <= max_world && a.attempt >= 0)
      f(a);
  }
}

/// Ranks `first` to `last`, both included.
class rank_range {
 public:
  rank_range() noexcept = default;
  rank_range(int f, int l) noexcept : first(f), last(l) {}
  int first = 0;
  int last = 0;
};

/// Appends "17,96-97"; stops before a range that would make it longer than `limit` bytes.
inline void append_ranges(std::string& out, std::vector<rank_range> const& ranges, std::size_t limit) {
  const std::size_t start = out.size();
  for (rank_range const& r : ranges) {
    std::string one = out.size() > start ? "," : "";
    one += std::to_string(r.first);
    if (r.last > r.first) one += "-" + std::to_string(r.last);
    if (out.size() - start + one.size() > limit) return;
    out += one;
  }
}
/// Reads "17,96-97": ascending, below `world`. Stops at the first thing that is not.
[[nodiscard]] inline std::vector<rank_range> read_ranges(std::string_view text, int world) {
  std::vector<rank_range> ranges;
  for (int next = 0; !text.empty();) {
    const std::size_t comma = text.find(',');
    std::string_view one = text.substr(0, comma);
    rank_range r;
    const bool several = one.find('-') != one.npos;
    if (!take_number(one, several ? '-' : '\0', r.first) || (several && !take_number(one, 0, r.last))) break;
    if (!several) r.last = r.first;
    if (r.first < next || r.last < r.first || r.last >= world) break;
    ranges.push_back(r);
    next = r.last + 1;
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
  }
  return ranges;
}

[[nodiscard]] inline std::vector<int> ranks_in(std::vector<rank_range> const& ranges) {
  std::vector<int> ranks;
  for (rank_range const& r : ranges)
    for (int i = r.first; i <= r.last; ++i) ranks.push_back(i);
  return ranks;
}

/// A verdict: of a generation, or of this member alone.
class verdict {
 public:
  verdict() noexcept = default;
  explicit verdict(barrier_verdict k, int a = 0, std::string t = {}) noexcept : kind(k), attempt(a), text(std::move(t)) {}
  barrier_verdict kind = barrier_verdict::ok;
  int attempt = 0;        ///< whose it is: of the members with this attempt
  int world = 0;          ///< with `missing`
  int missing_count = 0;  ///< exact, also where `missing` had to be cut
  std::vector<rank_range> missing;
  std::string text;  ///< what else there is to say
};

/// Whether `v` says that `rank` had arrived.
[[nodiscard]] inline bool counts(verdict const& v, int rank) noexcept {
  if (v.kind == barrier_verdict::ok) return true;
  if (v.kind != barrier_verdict::missing) return false;
  std::int64_t listed = 0;
  for (rank_range const& r : v.missing) {
    if (r.first <= rank && rank <= r.last) return false;
    listed += r.last - r.first + 1;
  }
  return listed == v.missing_count;
}

[[nodiscard]] inline std::string missing_text(verdict const& v) {
  rollcall::detail::ranges_text text;
  std::int64_t unlisted = v.missing_count;
  for (rank_range const& r : v.missing) {
    text.add(r.first, r.last);
    unlisted -= r.last - r.first + 1;
  }
  if (unlisted > 0) text.more(unlisted);
  return text.take();
}

/// For people: "3 of 4096 missing: 17, 96-97". At most about 1200 bytes.
[[nodiscard]] inline std::string explain(verdict const& v) {
  std::string s;
  switch (v.kind) {
    case barrier_verdict::ok: return "all arrived";
    case barrier_verdict::missing:
      return std::to_string(v.missing_count) + " of " + std::to_string(v.world) + " missing: " + missing_text(v);
    case barrier_verdict::superseded: return "superseded by attempt " + std::to_string(v.attempt);
    case barrier_verdict::passed_by:
      return "the others passed this generation, and another process stood for this rank; give a restarted one a higher attempt";
    case barrier_verdict::twice:
    case barrier_verdict::worlds:
    case barrier_verdict::aborted: break;
  }
  rollcall::detail::append_printable(s, v.text, 1100);
  return s;
}

inline constexpr std::string_view verdict_names[] = {"ok", "missing", "twice", "worlds", "aborted"};
inline constexpr std::size_t max_ranges_bytes = 32 * 1024;
inline constexpr std::size_t max_reason_bytes = 1024;

/// For the store: "kind attempt token payload"; the token makes it unlike every other decider's.
[[nodiscard]] inline std::string write_verdict(verdict const& v, std::string_view token) {
  std::string s(verdict_names[static_cast<std::size_t>(v.kind)]);
  s += " " + std::to_string(v.attempt) + " ";
  s += token;
  s += ' ';
  if (v.kind == barrier_verdict::missing) {
    s += std::to_string(v.missing_count) + "/" + std::to_string(v.world) + " ";
    append_ranges(s, v.missing, max_ranges_bytes);
  } else {
    s += std::string_view(v.text).substr(0, max_reason_bytes);
  }
  return s;
}
[[nodiscard]] inline std::optional<verdict> read_verdict(std::string_view s) {
  const std::size_t space = s.find(' ');
  const auto* const name = std::find(std::begin(verdict_names), std::end(verdict_names), s.substr(0, space));
  if (space == s.npos || name == std::end(verdict_names)) return std::nullopt;
  verdict v(static_cast<barrier_verdict>(name - std::begin(verdict_names)));
  s.remove_prefix(space + 1);
  if (!take_number(s, ' ', v.attempt) || v.attempt < 0) return std::nullopt;
  const std::size_t token_end = s.find(' ');
  if (token_end == s.npos) return std::nullopt;
  s.remove_prefix(token_end + 1);
  if (v.kind == barrier_verdict::missing) {
    if (!take_number(s, '/', v.missing_count) || !take_number(s, ' ', v.world) || v.world < 1 || v.world > max_world || v.missing_count < 1 ||
        v.missing_count > v.world)
      return std::nullopt;
    v.missing = read_ranges(s, v.world);
  } else {
    v.text = s;
  }
  return v;
}

/// The ranks 0..world-1 that are not in `there`, which is ascending.
[[nodiscard]] inline std::vector<rank_range> gaps(std::vector<arrival> const& there, int world) {
  std::vector<rank_range> ranges;
  int next = 0;
  for (arrival const& a : there) {
    if (a.rank >= world) break;
    if (a.rank > next) ranges.emplace_back(next, a.rank - 1);
    next = a.rank + 1;
  }
  if (next < world) ranges.emplace_back(next, world - 1);
  return ranges;
}

/// Whom `arrived` lacks: of its highest attempt, but at least of `attempt`.
[[nodiscard]] inline std::vector<rank_range> absent(std::string_view arrived, int attempt, int world) {
  std::vector<arrival> there;
  for_each_arrival(arrived, [&](arrival const& a) {
    if (a.attempt > attempt) there.clear();
    attempt = std::max(attempt, a.attempt);
    if (a.attempt == attempt) there.push_back(a);
  });
  std::sort(there.begin(), there.end(), [](arrival const& a, arrival const& b) { return a.rank < b.rank; });
  return gaps(there, world);
}

/// What `arrived` says to a member of it: ok, missing, twice, worlds; superseded; passed_by when `self` is not in it.
[[nodiscard]] inline verdict evaluate(std::string_view arrived, arrival const& self) {
  std::vector<arrival> there;
  int highest = self.attempt;
  bool listed = false;
  for_each_arrival(arrived, [&](arrival const& a) {
    highest = std::max(highest, a.attempt);
    if (a.attempt != self.attempt) return;
    listed = listed || (a.rank == self.rank && a.incarnation == self.incarnation);
    there.push_back(a);
  });
  if (!listed) return verdict(barrier_verdict::passed_by, self.attempt);
  if (highest > self.attempt) return verdict(barrier_verdict::superseded, highest);
  std::sort(there.begin(), there.end(),
            [](arrival const& a, arrival const& b) { return a.rank != b.rank ? a.rank < b.rank : a.incarnation < b.incarnation; });
  const auto other_world = [&](arrival const& a) { return a.world != self.world; };
  if (const auto a = std::find_if(there.begin(), there.end(), other_world); a != there.end())
    return verdict(barrier_verdict::worlds, highest,
                   "two world sizes: rank " + std::to_string(a->rank) + " says " + std::to_string(a->world) + ", rank " +
                       std::to_string(self.rank) + " says " + std::to_string(self.world));
  const auto same_rank = [](arrival const& a, arrival const& b) { return a.rank == b.rank && a.incarnation != b.incarnation; };
  if (const auto a = std::adjacent_find(there.begin(), there.end(), same_rank); a != there.end())
    return verdict(barrier_verdict::twice, highest,
                   "rank " + std::to_string(a->rank) + " arrived twice: as process " + hex(a->incarnation) + " and as " +
                       hex(std::next(a)->incarnation) + ", both of attempt " + std::to_string(highest));
  verdict v(barrier_verdict::missing, highest);
  v.world = self.world;
  v.missing = gaps(there, self.world);
  for (rank_range const& r : v.missing) v.missing_count += r.last - r.first + 1;
  if (v.missing.empty()) v.kind = barrier_verdict::ok;
  return v;
}

}  // namespace roll_call
}  // namespace v0
}  // namespace rollcall
