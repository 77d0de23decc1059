#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/launchers.hpp"
#include "rendezvous/values.hpp"
#include "rendezvous/variables.hpp"

namespace rollcall {
inline namespace v0 {

/// What one launcher says about this process, in a list of variables: which rank of how many it is, and where they meet. Rank, size and place
/// come from one launcher, never from two (docs/design/rendezvous.md). Each value knows its variable; what is wrong or missing says so.
class launch_environment {
 public:
  launch_environment() = default;

  /// As env:// has it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and torchrun's other variables.
  [[nodiscard]] static launch_environment torch(variables const& all) { return launch_environment(detail::launcher_reader(all).torch()); }
  /// As auto:// has it: the launcher that is found, or the one that `from` names. What allows two readings is wrong and says what to do.
  [[nodiscard]] static launch_environment detect(variables const& all, std::optional<launcher> from = std::nullopt) {
    return launch_environment(detail::launcher_reader(all).detect(from));
  }

  [[nodiscard]] launcher source() const noexcept { return found_.source; }
  [[nodiscard]] sourced<std::int64_t> const& rank() const noexcept { return found_.rank; }
  [[nodiscard]] sourced<std::int64_t> const& world_size() const noexcept { return found_.world_size; }
  /// Which of the ranks of this node it is, and how many there are.
  [[nodiscard]] sourced<std::int64_t> const& local_rank() const noexcept { return found_.local_rank; }
  [[nodiscard]] sourced<std::int64_t> const& local_world_size() const noexcept { return found_.local_world_size; }
  /// Which of the nodes this is, and how many there are.
  [[nodiscard]] sourced<std::int64_t> const& node() const noexcept { return found_.node; }
  [[nodiscard]] sourced<std::int64_t> const& nodes() const noexcept { return found_.nodes; }
  /// Where rank 0 serves; without brackets, "unix:PATH" for a unix socket, which needs no port. MASTER_ADDR and MASTER_PORT, or what the
  /// launcher tells.
  [[nodiscard]] sourced<std::string> const& host() const noexcept { return found_.host; }
  [[nodiscard]] sourced<std::int64_t> const& port() const noexcept { return found_.port; }
  /// How often the job was restarted.
  [[nodiscard]] sourced<std::int64_t> const& attempt() const noexcept { return found_.attempt; }
  /// What tells this run from others: TORCHELASTIC_RUN_ID unless "none", or Slurm's job and step.
  [[nodiscard]] sourced<std::string> const& run_id() const noexcept { return found_.run_id; }
  /// Whether the launcher itself serves at MASTER_ADDR:MASTER_PORT.
  [[nodiscard]] sourced<bool> const& agent_store() const noexcept { return found_.agent_store; }
  /// The listening descriptor for MASTER_ADDR:MASTER_PORT that the launcher has handed over.
  [[nodiscard]] sourced<std::int64_t> const& listen_fd() const noexcept { return found_.listen_fd; }
  /// USE_LIBUV; only the process that serves judges it.
  [[nodiscard]] sourced<bool> const& use_libuv() const noexcept { return found_.use_libuv; }
  /// What is usable and yet strange.
  [[nodiscard]] std::vector<std::string> const& warnings() const noexcept { return found_.warnings; }
  /// What else was there and does not count: "PMI_RANK=3 (pmi)".
  [[nodiscard]] std::vector<std::string> const& unused() const noexcept { return found_.unused; }

  /// Every problem of rank, world size, host and port, and what is wrong with attempt and agent_store; none: a rank can start from here.
  [[nodiscard]] std::vector<std::string> problems() const;
  /// One line a value: its name, the value or what is wrong, the variable it came from.
  [[nodiscard]] std::string describe() const;

 private:
  explicit launch_environment(detail::launcher_view found) : found_(std::move(found)) {}
  detail::launcher_view found_;
};
static_assert(await_safe<launch_environment>);

inline std::vector<std::string> launch_environment::problems() const {
  std::vector<std::string> all;
  const auto look_at = [&all](auto const& value) {
    if (!value.has_value()) detail::add_once(all, value.problem());
  };
  look_at(rank());
  look_at(world_size());
  if (rank() && world_size() && *rank() >= *world_size()) all.push_back(detail::rank_past_world(rank(), world_size()));
  look_at(host());
  if (!host() || !detail::is_unix_host(*host())) look_at(port());
  const auto look_beside = [&all](auto const& value) {
    if (value.is_wrong()) detail::add_once(all, value.problem());
  };
  look_beside(attempt());
  look_beside(agent_store());
  return all;
}

inline std::string launch_environment::describe() const {
  std::string out = detail::spaced("launcher", 18) + std::string(to_string(source())) + "\n";
  out += detail::described("rank", rank());
  out += detail::described("world_size", world_size());
  out += detail::described("host", host());
  if (!host() || !detail::is_unix_host(*host())) out += detail::described("port", port());
  const auto optional = [&out](char const* name, auto const& value) {
    if (value.has_value() || value.is_wrong()) out += detail::described(name, value);
  };
  optional("local_rank", local_rank());
  optional("local_world_size", local_world_size());
  optional("node", node());
  optional("nodes", nodes());
  optional("attempt", attempt());
  optional("run_id", run_id());
  optional("agent_store", agent_store());
  optional("listen_fd", listen_fd());
  optional("use_libuv", use_libuv());
  if (rank() && world_size() && *rank() >= *world_size())
    out += detail::spaced("problem", 18) + detail::rank_past_world(rank(), world_size()) + "\n";
  for (std::string const& text : warnings()) out += detail::spaced("warning", 18) + text + "\n";
  for (std::string const& text : unused()) out += detail::spaced("not used", 18) + text + "\n";
  return out;
}

}  // namespace v0
}  // namespace rollcall
