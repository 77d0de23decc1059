#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../core/result.hpp"
#include "node_list.hpp"
#include "values.hpp"
#include "variables.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What Slurm tells a task of an srun step (rendezvous.md 8.2). The step's variables come before the job's: its nodes may be fewer.
class slurm_reader {
 public:
  explicit slurm_reader(variables const& all) noexcept : all_(all) {}

  /// Whether srun has started this process; a batch script and a shell of salloc have step ids of their own, or none.
  [[nodiscard]] bool is_step() const {
    char const* const name = step_id_name();
    if (!all_.has(name)) return all_.has("SLURM_STEP_NUM_TASKS");
    return all_.number(name, 0, last_step).has_value();
  }
  [[nodiscard]] bool is_there() const {
    if (!all_.has("SLURM_PROCID")) return false;
    const sourced<std::int64_t> size = world_size();
    return is_step() || size.is_wrong() || size.value_or(0) > 1;
  }

  [[nodiscard]] sourced<std::int64_t> rank() const { return all_.number("SLURM_PROCID", 0, most_ranks - 1); }
  [[nodiscard]] sourced<std::int64_t> world_size() const {
    return first_number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}, 1,
                        "neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS nor SLURM_NPROCS is set");
  }
  [[nodiscard]] sourced<std::int64_t> local_rank() const { return all_.number("SLURM_LOCALID", 0, most_ranks - 1); }
  [[nodiscard]] sourced<std::int64_t> node() const { return all_.number("SLURM_NODEID", 0, most_ranks - 1); }
  [[nodiscard]] sourced<std::int64_t> nodes() const {
    return first_number({"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}, 1, "");
  }
  [[nodiscard]] sourced<std::int64_t> local_world_size() const;
  /// What the step says of itself and cannot all be true; "" where it can.
  [[nodiscard]] std::string contradiction() const;
  [[nodiscard]] sourced<std::string> host() const;
  [[nodiscard]] sourced<std::int64_t> port() const;
  /// "4242.0"; without a step "4242".
  [[nodiscard]] sourced<std::string> run_id() const {
    char const* const name = job_id_name();
    if (!all_.has(name)) return sourced<std::string>::missing("SLURM_JOB_ID is not set");
    if (!is_step() || !all_.has(step_id_name())) return run_name(name, all_.get(name));
    return run_name(std::string(name) + " and " + step_id_name(), all_.get(name) + "." + all_.get(step_id_name()));
  }

 private:
  static constexpr std::int64_t last_step = 4294967279;  // the ids above belong to batch scripts, interactive shells and the like
  using list = std::vector<char const*>;

  [[nodiscard]] char const* job_id_name() const { return all_.has("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID"; }
  [[nodiscard]] char const* step_id_name() const { return all_.has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID"; }
  [[nodiscard]] sourced<std::int64_t> first_number(list const& names, std::int64_t low, char const* advice) const {
    for (char const* name : names)
      if (all_.has(name)) return all_.number(name, low, most_ranks);
    return *advice ? sourced<std::int64_t>::missing(advice) : sourced<std::int64_t>();
  }
  /// Whether rank 0 may be on another node than the first of the list (field log F50): why, or "".
  [[nodiscard]] std::string doubt() const {
    const std::string distribution = all_.get("SLURM_DISTRIBUTION");
    if (lower(distribution).find("arbitrary") != std::string::npos)
      return "SLURM_DISTRIBUTION=" + in_quotes(distribution) + " puts ranks on nodes in an order that the node list does not tell";
    if (distribution.empty() && all_.has("SLURM_HOSTFILE"))
      return "SLURM_HOSTFILE is set, so the node list may not have the order of the ranks";
    if (const sourced<std::int64_t> parts = all_.number("SLURM_HET_SIZE", 0, most_ranks); parts && *parts > 1)
      return "a heterogeneous job (SLURM_HET_SIZE=" + std::to_string(*parts) + ") has a node list for each part";
    return {};
  }

  variables const& all_;
};

inline sourced<std::int64_t> slurm_reader::local_world_size() const {
  const sourced<std::int64_t> here = node();
  for (std::string const name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (!all_.has(name)) continue;
    const result<std::vector<std::int64_t>> tasks = expand_tasks_per_node(all_.get(name));
    if (!tasks) return sourced<std::int64_t>::wrong(name + ": " + tasks.error().detail());
    if (!here) return sourced<std::int64_t>();
    const auto index = static_cast<std::size_t>(*here);
    if (index >= tasks->size())
      return sourced<std::int64_t>::wrong(name + "=" + in_quotes(all_.get(name)) + " has no node " + std::to_string(*here) +
                                          " (SLURM_NODEID)");
    return {(*tasks)[index], name + "=" + in_quotes(all_.get(name)) + " at SLURM_NODEID=" + std::to_string(*here)};
  }
  return {};
}

inline std::string slurm_reader::contradiction() const {
  if (const sourced<std::int64_t> parts = all_.number("SLURM_HET_SIZE", 0, most_ranks); parts && *parts > 1) return {};
  const auto differ = [](sourced<std::int64_t> const& said, std::int64_t counted, char const* where, char const* what) {
    if (!said || *said == counted) return std::string();
    return said.origin() + "=" + std::to_string(*said) + " and " + where + " cannot both be true: that has " + std::to_string(counted) + what;
  };
  std::string why;
  if (const auto tasks = expand_tasks_per_node(all_.get("SLURM_STEP_TASKS_PER_NODE")); tasks) {
    std::int64_t sum = 0;
    for (std::int64_t n : *tasks) sum += n;
    why = differ(all_.number("SLURM_STEP_NUM_TASKS", 1, most_ranks), sum, "SLURM_STEP_TASKS_PER_NODE", " tasks");
  }
  if (const auto nodes = expand_node_list(all_.get("SLURM_STEP_NODELIST")); why.empty() && nodes && !nodes->empty())
    why = differ(all_.number("SLURM_STEP_NUM_NODES", 1, most_ranks), static_cast<std::int64_t>(nodes->size()), "SLURM_STEP_NODELIST", " nodes");
  return why;
}

inline sourced<std::string> slurm_reader::host() const {
  using value = sourced<std::string>;
  for (std::string const name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const std::string text = all_.get(name);
    if (text.empty() || text == "(null)") continue;
    const result<std::vector<std::string>> nodes = expand_node_list(text);
    if (!nodes) return value::wrong(name + ": " + nodes.error().detail());
    if (nodes->size() > 1) {
      if (const std::string why = doubt(); !why.empty())
        return value::missing("MASTER_ADDR is not set, and " + why + ": set it to the host of rank 0");
    }
    std::string const& first = nodes->front();
    if (const std::string problem = host_problem(first); !problem.empty())
      return value::wrong(name + ": host " + in_quotes(first) + " " + problem);
    return {first, "first of " + name + "=" + in_quotes(text)};
  }
  return value::missing("MASTER_ADDR is not set, and Slurm gives no node list");
}

inline sourced<std::int64_t> slurm_reader::port() const {
  using value = sourced<std::int64_t>;
  const char* const name = job_id_name();
  const value job = all_.number(name, 0, INT64_C(1) << 53);
  if (job.is_wrong()) return job;
  if (!job) return value::missing("MASTER_PORT is not set, and there is no SLURM_JOB_ID that it could follow from");
  const value step = all_.number(step_id_name(), 0, last_step);
  // Steps of one job may share nodes. Below what the system gives to outgoing connections, above what services use.
  std::string origin = "20000 + (" + std::string(name) + "=" + std::to_string(*job);
  if (step) origin += " + " + std::string(step_id_name()) + "=" + std::to_string(*step);
  return {20000 + (*job + step.value_or(0)) % 10000, origin + ") % 10000"};
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
