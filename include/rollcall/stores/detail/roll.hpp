#pragma once
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "../../core/error.hpp"
#include "../../core/ranges.hpp"
#include "../../engine/store.hpp"
#include "../../rt/event.hpp"
#include "hosted.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Counts the workers, like the reference (protocol 11); in wire form, without the '/' that users' keys have.
inline constexpr std::string_view worker_count_key = "init/";
/// Who the workers are. Only rollcall's clients write it, and only on rollcall's servers, which neither count nor list keys that begin
/// with 0x00 and on which no user's key can look like that: PyTorch's clients see the keys they expect.
inline constexpr std::string_view worker_records_key("\0reg", 4);

/// Whose a rank is: the record, without its comma, of the process that came first in the highest attempt. Written by COMPARE_SET, so that of
/// two processes one learns at once that the other is there, whatever else is known.
[[nodiscard]] inline std::string worker_claim_key(std::int64_t rank) {
  return std::string(worker_records_key) + "/" + std::to_string(rank);
}

/// What stands under job_key.
class job_notice {
 public:
  job_notice(std::int64_t w, std::string_view r) : world(w), run(r) {}
  [[nodiscard]] std::string text() const { return std::to_string(world) + '/' + std::string(run); }
  [[nodiscard]] static std::optional<job_notice> parse(std::string_view s) noexcept {
    std::int64_t world = 0;
    const auto [end, wrong] = std::from_chars(s.data(), s.data() + s.size(), world);
    if (wrong != std::errc() || end == s.data() + s.size() || *end != '/') return std::nullopt;
    return job_notice(world, s.substr(static_cast<std::size_t>(end - s.data()) + 1));
  }
  std::int64_t world;
  std::string_view run;  // "" where it has no name
};

/// One worker's registration. On the wire: "rank/world/attempt/identity/where,", appended to worker_records_key.
class worker_record {
 public:
  worker_record() noexcept = default;
  std::int64_t rank = -1;
  std::int64_t world = 0;
  std::int64_t attempt = 0;
  std::uint64_t identity = 0;
  std::string_view where;

  /// "pid 4711 on node7", for errors: nothing depends on it.
  [[nodiscard]] static std::string this_process() {
    char host[256] = "";
    if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    std::string s = "pid " + std::to_string(::getpid()) + " on ";
    append_printable(s, host, 64);
    std::replace_if(s.begin(), s.end(), [](char c) { return c == ',' || c == '/'; }, '?');
    return s;
  }
  [[nodiscard]] std::string text() const {
    return std::to_string(rank) + '/' + std::to_string(world) + '/' + std::to_string(attempt) + '/' + std::to_string(identity) + '/' +
           std::string(where) + ',';
  }
  /// Reads one record without its comma.
  [[nodiscard]] static std::optional<worker_record> parse(std::string_view s) noexcept {
    worker_record r;
    if (!number(s, r.rank) || !number(s, r.world) || !number(s, r.attempt) || !number(s, r.identity)) return std::nullopt;
    r.where = s;
    return r;
  }

 private:
  template <class N>
  static bool number(std::string_view& s, N& n) noexcept {
    const auto [end, wrong] = std::from_chars(s.data(), s.data() + s.size(), n);
    if (wrong != std::errc() || end == s.data() + s.size() || *end != '/') return false;
    s.remove_prefix(static_cast<std::size_t>(end - s.data()) + 1);
    return true;
  }
};

/// The members of one job, as far as they have said who they are. The highest attempt counts; what older ones left is forgotten.
class worker_roll {
 public:
  explicit worker_roll(std::int64_t world) noexcept : world_(world) {}

  /// Takes in what was appended since the last call; `records` is the whole value.
  void read(std::string_view records) {
    if (records.size() < read_) *this = worker_roll(world_);
    for (std::size_t end = 0; (end = records.find(',', read_)) != records.npos; read_ = end + 1) {
      ++records_;
      if (const auto r = worker_record::parse(records.substr(read_, end - read_))) take(*r);
    }
  }
  /// What makes this no job at all: one rank twice, two world sizes, before all ranks were there; "" while all is well. Who comes later is
  /// refused by itself, and is no fault of the job's.
  [[nodiscard]] std::string const& problem() const noexcept { return problem_; }

  /// How many have joined when worker_count_key says `count`: those known by rank, and the rest.
  [[nodiscard]] std::int64_t joined(std::int64_t count) const noexcept { return known() + unknown(count); }
  [[nodiscard]] std::int64_t unknown(std::int64_t count) const noexcept { return std::max<std::int64_t>(0, count - records_); }

  /// "37 of 64 joined after 30 s: missing 3, 17-42". Who joined without a rank is counted, and the text says so.
  [[nodiscard]] std::string missing_text(std::int64_t count, std::string_view after) const {
    std::string s = std::to_string(joined(count)) + " of " + std::to_string(world_) + " joined";
    if (!after.empty()) s.append(" after ").append(after);
    if (known() == 0) return s + "; none has told its rank (PyTorch's do not), so who is missing is not known";
    const std::string absent = absent_text();
    if (unknown(count) == 0) return s + ": missing " + absent;
    return s + ", " + std::to_string(unknown(count)) + " of them without a rank (PyTorch's tell none): the " +
           std::to_string(world_ - joined(count)) + " that are missing are among " + absent;
  }
  [[nodiscard]] static std::string printable(std::string_view where) {
    std::string s;
    append_printable(s, where, 100);
    return s;
  }
  [[nodiscard]] static std::string twice_text(std::int64_t rank, std::string_view first, std::string_view second) {
    return "rank " + std::to_string(rank) + " registered twice: by " + printable(first) + " and by " + printable(second);
  }
  [[nodiscard]] static std::string world_text(worker_record const& r, std::int64_t world) {
    return "rank " + std::to_string(r.rank) + " (" + printable(r.where) + ") counts a world of " + std::to_string(r.world) + ", not of " +
           std::to_string(world) + ": two jobs on one port";
  }

 private:
  class member {
   public:
    member(std::uint64_t i, std::string_view w) : identity(i), where(w) {}
    std::uint64_t identity;
    std::string where;
  };
  [[nodiscard]] std::int64_t known() const noexcept { return static_cast<std::int64_t>(members_.size()); }

  void take(worker_record const& r) {
    if (r.attempt < attempt_) return;
    if (r.attempt > attempt_) {
      attempt_ = r.attempt;
      members_.clear();
      problem_.clear();
    }
    if (known() == world_) return;
    if (r.world != world_) {
      if (problem_.empty()) problem_ = world_text(r, world_);
      return;
    }
    if (r.rank < 0 || r.rank >= world_) return;
    const auto [at, fresh] = members_.try_emplace(r.rank, r.identity, r.where);
    if (fresh || at->second.identity == r.identity || !problem_.empty()) return;
    problem_ = twice_text(r.rank, at->second.where, r.where);
  }
  [[nodiscard]] std::string absent_text() const {
    ranges_text text;
    std::int64_t next = 0;
    for (auto const& m : members_) {
      if (m.first > next) text.add(next, m.first - 1);
      next = m.first + 1;
    }
    if (next < world_) text.add(next, world_ - 1);
    return text.take();
  }

  std::int64_t world_;
  std::int64_t attempt_ = 0;
  std::int64_t records_ = 0;
  std::size_t read_ = 0;
  std::map<std::int64_t, member> members_;
  std::string problem_;
};

/// The owner's view of who has joined its server: looks after every batch of requests, in the process, so that nobody polls and a
/// worker that knows nothing of rollcall counts as well.
class registration_watch final : private server_view {
 public:
  /// `shared`: several rounds of one world may register here (multi_tenant), so a larger count is no error.
  registration_watch(hosted_server& server, std::int64_t world, bool shared)
      : world_(world), shared_(shared), roll_(world), decided_(&server.core()) {
    server.watch(*this);
  }
  ~registration_watch() { detach(); }
  [[nodiscard]] event::waiting decided() noexcept { return decided_.wait(); }
  /// Why this can never be complete; "" when it is.
  [[nodiscard]] std::string problem() const {
    const auto l = lock();
    return problem_;
  }
  [[nodiscard]] std::string missing_text(std::string_view after) const {
    const auto l = lock();
    return roll_.missing_text(count_, after);
  }

 private:
  bool look(engine::peers& p) noexcept override {
    if (is_over_) return false;
    try {
      read(p.store());
    } catch (std::exception const&) {
      // No memory: looked at again after the next request, or told by the limit.
    }
    return is_over_;
  }
  void told() noexcept override { decided_.set(); }
  void read(engine::store const& store) {
    count_ = 0;
    if (const auto n = store.peek(worker_count_key)) static_cast<void>(engine::detail::parse_number(*n, count_));
    if (const auto records = store.peek(worker_records_key)) roll_.read(*records);
    problem_ = roll_.problem();
    const std::int64_t joined = roll_.joined(count_);
    if (problem_.empty() && joined > world_ && !shared_)
      problem_ =
          std::to_string(joined) + " joined a world of " + std::to_string(world_) + ": two jobs on one port, or a process registered twice";
    is_over_ = joined >= world_ || !problem_.empty();
  }

  std::int64_t world_;
  bool shared_;
  std::int64_t count_ = 0;
  worker_roll roll_;
  std::string problem_;
  bool is_over_ = false;
  event decided_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
