#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "../core/bytes.hpp"
#include "../core/clock.hpp"

namespace rollcall {
inline namespace v0 {

/// How a file_store behaves. Chain the setters: `file_options{}.world_size(4).run_id("job-17")`.
class file_options {
 public:
  file_options() noexcept = default;

  /// Limit of each operation that is not given one of its own. Default 300 s, as the reference has it.
  file_options& timeout(deadline d) noexcept { return timeout_ = d, *this; }
  /// How many members the run has; who leaves last removes the file. Negative, the default: the file stays, as with the reference.
  file_options& world_size(int n) noexcept { return world_size_ = n, *this; }
  /// Which run this is, e.g. the launcher's job id; not empty. Who comes first writes it into the file, and a file of another run, or of
  /// none, is an error. Without one a file that an earlier run has left behind cannot be told from this run's, unless all of that run's
  /// members have left or are dead.
  file_options& run_id(std::string_view id) { return run_id_ = id, *this; }
  /// Which rank of the run this is, from 0 on; rendezvous() says it. Negative, the default: none. A rank is there once in an attempt, and
  /// no run goes on with what another one has left: where all of the file's members have left or are dead, and it is of another run, of
  /// one that failed, crashed or had this rank already, or of a lower attempt, it is begun anew, empty. Where some are there still they
  /// get 1 s to go, then it is an error that names them.
  file_options& rank(int r) noexcept { return rank_ = r, *this; }
  /// How often the run was restarted, from 0 on: dead members of lower attempts keep nobody out.
  file_options& attempt(int n) noexcept { return attempt_ = n, *this; }
  /// With a rank, on local file systems: the store ends, disconnected, within a second when another rank of this or a higher attempt is
  /// dead, which the error names. Default true.
  file_options& ends_with_members(bool on) noexcept { return ends_with_members_ = on, *this; }
  /// With a run id, takes a file that has records but no run's name for this run's: where a PyTorch process may come first.
  file_options& adopt(bool on = true) noexcept { return adopt_ = on, *this; }
  /// Off: the file must be made by somebody else, and open() waits for it.
  file_options& create(bool on) noexcept { return create_ = on, *this; }
  /// Off: not counted as one of the run's members, for those that only look in, at a file of whatever run, unless a run id is given.
  file_options& member(bool on) noexcept { return member_ = on, *this; }
  /// Off: no change notice by the kernel, only looks at the file, as on network file systems.
  file_options& watch(bool on) noexcept { return watch_ = on, *this; }
  /// A log that is larger than this, in bytes, and than eight times what lives in it is written anew while nobody else has it open.
  /// Default 1 MiB.
  file_options& compact_from(std::size_t bytes) noexcept { return compact_from_ = bytes, *this; }

  [[nodiscard]] deadline timeout() const noexcept { return timeout_; }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  [[nodiscard]] std::string const& run_id() const noexcept { return run_id_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int attempt() const noexcept { return attempt_; }
  [[nodiscard]] bool ends_with_members() const noexcept { return ends_with_members_; }
  [[nodiscard]] bool adopts() const noexcept { return adopt_; }
  [[nodiscard]] bool create() const noexcept { return create_; }
  [[nodiscard]] bool member() const noexcept { return member_; }
  [[nodiscard]] bool watch() const noexcept { return watch_; }
  [[nodiscard]] std::size_t compact_from() const noexcept { return compact_from_; }

 private:
  deadline timeout_ = std::chrono::seconds(300);
  int world_size_ = -1;
  int rank_ = -1;
  int attempt_ = 0;
  std::string run_id_;
  std::size_t compact_from_ = std::size_t{1} << 20;
  bool adopt_ = false;
  bool ends_with_members_ = true;
  bool create_ = true;
  bool member_ = true;
  bool watch_ = true;
};
static_assert(await_safe<file_options>);

}  // namespace v0
}  // namespace rollcall
