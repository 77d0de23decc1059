#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slurm.hpp"
#include "values.hpp"
#include "variables.hpp"

namespace rollcall {
inline namespace v0 {

/// Who has started this process and numbered its ranks.
enum class launcher : unsigned char { none, torch, slurm, openmpi, pmi, flux, jsm, mvapich, pmix, pals, kubernetes };

namespace detail {
inline constexpr std::array<std::string_view, 11> launcher_names{"none", "torch",   "slurm", "openmpi", "pmi",       "flux",
                                                                 "jsm",  "mvapich", "pmix",  "pals",    "kubernetes"};
}

[[nodiscard]] constexpr std::string_view to_string(launcher l) noexcept {
  const auto i = static_cast<std::size_t>(l);
  return i < detail::launcher_names.size() ? detail::launcher_names[i] : "none";
}
/// The launcher of that name, "slurm"; nothing for others, and for "none".
[[nodiscard]] constexpr std::optional<launcher> launcher_named(std::string_view name) noexcept {
  for (std::size_t i = 1; i < detail::launcher_names.size(); ++i)
    if (detail::launcher_names[i] == name) return static_cast<launcher>(i);
  return std::nullopt;
}

namespace detail {

/// The values of one launcher.
class launcher_view {
 public:
  launcher_view() = default;
  launcher source = launcher::none;
  sourced<std::int64_t> rank, world_size, local_rank, local_world_size, node, nodes, port, attempt, listen_fd;
  sourced<std::string> host, run_id;
  sourced<bool> agent_store, use_libuv;
  std::vector<std::string> warnings, unused;
};

/// The launchers that say no more than this (rendezvous.md 8.2), in the order in which they are believed.
struct rank_variables {
  launcher name;
  std::string_view rank, size, local_rank, local_size;
};
inline constexpr std::array<rank_variables, 7> rank_variable_table{{
    {launcher::openmpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {launcher::pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {launcher::flux, "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""},
    {launcher::jsm, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", ""},
    {launcher::mvapich, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", ""},
    {launcher::pmix, "PMIX_RANK", "", "", ""},
    {launcher::pals, "PALS_RANKID", "", "PALS_LOCAL_RANKID", ""},
}};

inline std::string rank_past_world(sourced<std::int64_t> const& rank, sourced<std::int64_t> const& world) {
  return "rank " + show(*rank) + " (" + rank.origin() + ") is not below world_size " + show(*world) + " (" + world.origin() +
         "); ranks count from 0";
}

/// Finds out who has started this process, and reads what it says.
class launcher_reader {
 public:
  explicit launcher_reader(variables const& all) noexcept : all_(all) {}

  [[nodiscard]] launcher_view torch() const {
    launcher_view v = torch_ranks();
    finish(v);
    return v;
  }
  [[nodiscard]] launcher_view detect(std::optional<launcher> from) const;

 private:
  using number = sourced<std::int64_t>;
  using text = sourced<std::string>;

  [[nodiscard]] launcher_view view_of(launcher l) const;
  [[nodiscard]] launcher_view torch_ranks() const;
  [[nodiscard]] launcher_view slurm_ranks() const;
  [[nodiscard]] launcher_view plain_ranks(rank_variables const& names) const;
  [[nodiscard]] launcher_view kubernetes_ranks() const;
  [[nodiscard]] launcher_view nobody() const;
  [[nodiscard]] number pod_rank() const;
  void finish(launcher_view& v) const;
  void compare_with_lone(launcher_view& v) const;
  [[nodiscard]] std::string contradiction(launcher_view const& v) const;

  [[nodiscard]] number optional(std::string_view name, std::int64_t low = 0) const {
    return all_.find(name) ? all_.number(name, low, most_ranks) : number();
  }
  [[nodiscard]] bool has_torch() const { return all_.has("RANK") && all_.has("WORLD_SIZE"); }
  [[nodiscard]] bool has_pod() const { return all_.has("JOB_COMPLETION_INDEX") || all_.has("PET_NODE_RANK"); }
  [[nodiscard]] static std::string shown(number const& n) { return n ? n.origin() + "=" + show(*n) : n.problem(); }
  /// "slurm (SLURM_PROCID=0, SLURM_NTASKS=2)"
  [[nodiscard]] static std::string claim(launcher_view const& v) {
    return std::string(to_string(v.source)) + " (" + shown(v.rank) + ", " + shown(v.world_size) + ")";
  }
  [[nodiscard]] static bool disagree(launcher_view const& a, launcher_view const& b) {
    const auto differ = [](number const& x, number const& y) { return x && y && *x != *y; };
    return differ(a.rank, b.rank) || differ(a.world_size, b.world_size);
  }
  /// Nothing that depends on who is right may be used.
  static void distrust(launcher_view& v, std::string const& why) {
    v.rank = v.world_size = v.port = number::wrong(why);
    v.host = text::wrong(why);
    v.local_rank = v.local_world_size = v.node = v.nodes = number();
  }

  variables const& all_;
};

/// MASTER_ADDR, MASTER_PORT and what else does not depend on who numbers the ranks.
inline void launcher_reader::finish(launcher_view& v) const {
  v.host = all_.find("MASTER_ADDR") ? all_.host("MASTER_ADDR") : v.host;
  v.port = all_.find("MASTER_PORT") ? all_.port("MASTER_PORT") : v.port;
  if (v.host.problem().empty() && !v.host) v.host = text::missing("MASTER_ADDR is not set");
  if (v.port.problem().empty() && !v.port) v.port = number::missing("MASTER_PORT is not set");
  if (all_.find("ROLLCALL_ATTEMPT")) v.attempt = optional("ROLLCALL_ATTEMPT");
  if (all_.find("USE_LIBUV")) v.use_libuv = all_.on_off("USE_LIBUV");
  if (v.source != launcher::slurm && all_.has("SLURM_PROCID"))
    v.unused.push_back("SLURM_PROCID=" + show(all_.get("SLURM_PROCID")) + " (slurm)");
  for (rank_variables const& each : rank_variable_table)
    if (each.name != v.source && all_.has(each.rank))
      v.unused.push_back(std::string(each.rank) + "=" + show(all_.get(each.rank)) + " (" + std::string(to_string(each.name)) + ")");
  if (v.source != launcher::kubernetes)
    for (char const* name : {"JOB_COMPLETION_INDEX", "PET_NODE_RANK"})
      if (all_.has(name)) v.unused.push_back(std::string(name) + "=" + show(all_.get(name)) + " (kubernetes)");
  if (v.source != launcher::torch)
    for (char const* name : {"RANK", "WORLD_SIZE"})
      if (all_.has(name) && v.world_size.origin() != name) v.unused.push_back(std::string(name) + "=" + show(all_.get(name)) + " (torch)");
}

inline launcher_view launcher_reader::torch_ranks() const {
  launcher_view v;
  v.source = launcher::torch;
  v.rank = all_.number("RANK", 0, most_ranks - 1);
  v.world_size = all_.number("WORLD_SIZE", 1, most_ranks);
  v.local_rank = optional("LOCAL_RANK");
  v.local_world_size = optional("LOCAL_WORLD_SIZE", 1);
  v.node = all_.find("GROUP_RANK") ? optional("GROUP_RANK") : optional("PET_NODE_RANK");
  v.nodes = optional("GROUP_WORLD_SIZE", 1);
  v.attempt = optional("TORCHELASTIC_RESTART_COUNT");
  v.listen_fd = optional("ROLLCALL_LISTEN_FD");
  if (all_.find("TORCHELASTIC_USE_AGENT_STORE")) v.agent_store = all_.on_off("TORCHELASTIC_USE_AGENT_STORE");
  const std::string run = all_.get("TORCHELASTIC_RUN_ID");
  // "none" is torchrun's word for no id.
  v.run_id = run.empty() || run == "none" ? slurm_reader(all_).run_id() : run_name("TORCHELASTIC_RUN_ID", run);
  const number pods = optional("PET_NNODES", 1);
  const number each = optional("PET_NPROC_PER_NODE", 1);
  if (v.rank && v.world_size && pods && each && *each > 1 && *pods * *each == *v.world_size && !all_.has("LOCAL_RANK") && *v.rank < *pods)
    v.rank = number::wrong("RANK=" + show(*v.rank) + " counts pods, WORLD_SIZE=" + show(*v.world_size) +
                           " counts processes (PET_NNODES times PET_NPROC_PER_NODE=" + show(*each) +
                           "): start the program with torchrun, which numbers them");
  return v;
}

inline launcher_view launcher_reader::slurm_ranks() const {
  const slurm_reader slurm(all_);
  launcher_view v;
  v.source = launcher::slurm;
  v.rank = slurm.rank();
  v.world_size = slurm.world_size();
  v.local_rank = all_.find("SLURM_LOCALID") ? slurm.local_rank() : number();
  v.local_world_size = slurm.local_world_size();
  v.node = all_.find("SLURM_NODEID") ? slurm.node() : number();
  v.nodes = slurm.nodes();
  v.host = slurm.host();
  v.port = slurm.port();
  v.run_id = slurm.run_id();
  v.attempt = optional("SLURM_RESTART_COUNT");
  if (!slurm.is_step())
    v.warnings.push_back("there is no srun step: if this is the batch script itself, one rank runs where " + shown(v.world_size) +
                         " says more; srun starts all");
  return v;
}

inline launcher_view launcher_reader::plain_ranks(rank_variables const& names) const {
  launcher_view v;
  v.source = names.name;
  const std::string who(to_string(names.name));
  v.rank = all_.number(names.rank, 0, most_ranks - 1);
  v.world_size = names.size.empty() ? number::missing("WORLD_SIZE is not set, and " + who + " does not tell how many ranks there are")
                                    : all_.number(names.size, 1, most_ranks);
  if (!names.local_rank.empty()) v.local_rank = optional(names.local_rank);
  if (!names.local_size.empty()) v.local_world_size = optional(names.local_size, 1);
  if (v.world_size && v.local_world_size && *v.world_size == *v.local_world_size) {
    v.host = text("127.0.0.1", v.local_world_size.origin() + " is " + v.world_size.origin() + ": all ranks are on this node");
    v.nodes = number(1, v.host.origin());
  } else {
    v.host = text::missing("MASTER_ADDR is not set, and " + who + " does not tell on which host rank 0 is");
  }
  v.port = number::missing("MASTER_PORT is not set, and " + who + " gives nothing that it could follow from");
  return v;
}

inline sourced<std::int64_t> launcher_reader::pod_rank() const {
  if (!has_pod()) return number::missing("neither JOB_COMPLETION_INDEX nor PET_NODE_RANK is set");
  const number node = optional("PET_NODE_RANK");
  if (!all_.has("JOB_COMPLETION_INDEX")) return node;
  const number index = optional("JOB_COMPLETION_INDEX");
  if (!all_.has("JOB_GLOBAL_INDEX")) {
    if (index && node && *index != *node) return number::wrong(shown(index) + " and " + shown(node) + " differ: unset one of them");
    return index;
  }
  const number job = optional("JOB_GLOBAL_INDEX");
  if (!all_.has("PODS_PER_JOB"))
    return number::wrong(shown(job) +
                         " needs PODS_PER_JOB beside it: the rank is JOB_GLOBAL_INDEX times PODS_PER_JOB plus JOB_COMPLETION_INDEX");
  const number pods = optional("PODS_PER_JOB", 1);
  for (number const& each : {index, job, pods})
    if (!each) return each;
  if (*index >= *pods) return number::wrong(shown(index) + " is not below " + shown(pods));
  return number(*job * *pods + *index, shown(job) + " times " + shown(pods) + " plus " + shown(index));
}

inline launcher_view launcher_reader::kubernetes_ranks() const {
  launcher_view v;
  v.source = launcher::kubernetes;
  v.rank = pod_rank();
  if (v.rank && *v.rank >= most_ranks) v.rank = number::wrong(v.rank.origin() + " is too large for a rank");
  const std::string counted = all_.get("PET_NNODES");
  // torchrun writes a fixed number as 2:2 too.
  const std::string nodes = counted.substr(0, counted.find(':')) + ":" + counted.substr(0, counted.find(':')) == counted
                                ? counted.substr(0, counted.find(':'))
                                : counted;
  const std::string each = all_.get("PET_NPROC_PER_NODE");
  v.world_size = counted.empty() ? number::missing("WORLD_SIZE is not set, and Kubernetes does not tell a pod how many there are")
                                 : number::missing("WORLD_SIZE is not set");
  if (!nodes.empty() && nodes.find(':') == nodes.npos) v.world_size = detail::number("PET_NNODES", nodes, 1, most_ranks);
  std::string why;
  if (nodes.find(':') != nodes.npos) why = "PET_NNODES=" + in_quotes(counted) + " is a range that torchrun settles";
  if (!each.empty() && each != "1") why = "PET_NPROC_PER_NODE=" + in_quotes(each) + " asks torchrun for several ranks in this pod";
  if (!why.empty()) v.rank = v.world_size = number::wrong(why + ": start the program with torchrun, which numbers them");
  v.node = v.rank ? v.rank : number();  // one rank a pod
  v.host = all_.find("PET_MASTER_ADDR") ? all_.host("PET_MASTER_ADDR")
                                        : text::missing("MASTER_ADDR is not set: the name of the pod with rank 0, JOB-0.SUBDOMAIN");
  v.port = all_.find("PET_MASTER_PORT") ? all_.port("PET_MASTER_PORT") : number();
  return v;
}

inline launcher_view launcher_reader::nobody() const {
  launcher_view v;
  std::vector<std::string_view> names{"RANK", "WORLD_SIZE", "SLURM_PROCID"};
  for (rank_variables const& each : rank_variable_table) names.push_back(each.rank);
  for (char const* each : {"JOB_COMPLETION_INDEX", "PET_NODE_RANK"}) names.emplace_back(each);
  std::string unset, odd;
  for (std::string_view each : names) {
    if (!all_.find(each)) unset += (unset.empty() ? "" : ", ") + std::string(each);
    if (all_.find(each) && !all_.has(each)) odd += ", and " + std::string(each) + " is empty";
  }
  if (all_.has("SLURM_PROCID")) {
    const number task = slurm_reader(all_).rank();
    odd += ", and " + shown(task) + (task ? "" : ",") + " is there without an srun step or a number of tasks above 1 (SLURM_STEP_ID, SLURM_NTASKS)";
  }
  v.rank = number::missing("no launcher has left its variables: none of " + unset + " is set" + odd);
  v.world_size = number::missing("WORLD_SIZE is not set");
  return v;
}

inline launcher_view launcher_reader::view_of(launcher l) const {
  if (l == launcher::torch) return torch_ranks();
  if (l == launcher::slurm) return slurm_ranks();
  if (l == launcher::kubernetes) return kubernetes_ranks();
  for (rank_variables const& each : rank_variable_table)
    if (each.name == l) return plain_ranks(each);
  return nobody();
}

/// RANK or WORLD_SIZE without the other is the user's word too: it may say the same, or what the launcher does not say.
inline void launcher_reader::compare_with_lone(launcher_view& v) const {
  const number lone_rank = all_.has("RANK") ? optional("RANK") : number();
  const number lone_size = all_.has("WORLD_SIZE") ? optional("WORLD_SIZE", 1) : number();
  if (!v.world_size && !v.world_size.is_wrong()) v.world_size = first_there(lone_size, v.world_size);
  for (auto const& [lone, theirs] : {std::pair(lone_rank, v.rank), std::pair(lone_size, v.world_size)}) {
    if (lone.is_wrong() || (lone && theirs && *lone != *theirs)) {
      return distrust(v, shown(lone) + (lone ? " and " + shown(theirs) + " (" + std::string(to_string(v.source)) + ") differ" : "") +
                             ": unset it, or set both RANK and WORLD_SIZE");
    }
  }
}

/// Counts of one launcher that cannot all be true: "" where they can.
inline std::string launcher_reader::contradiction(launcher_view const& v) const {
  // Slurm counts the tasks of the job and those of the step, which may be fewer.
  const auto counts_step = [](number const& n) {
    const std::string from = n.origin();
    return from.starts_with("SLURM_STEP_") || from == "SLURM_LOCALID" || from == "SLURM_NODEID";
  };
  const auto past = [&](number const& a, number const& b, bool may_be_equal) {
    return a && b && counts_step(a) == counts_step(b) && (may_be_equal ? *a > *b : *a >= *b);
  };
  const auto both = [](number const& a, number const& b, char const* why) { return shown(a) + " and " + shown(b) + " cannot both be true: " + why; };
  if (past(v.local_world_size, v.world_size, true)) return both(v.local_world_size, v.world_size, "more ranks on this node than there are");
  if (past(v.local_rank, v.local_world_size, false))
    return both(v.local_rank, v.local_world_size, "ranks of a node count from 0");
  if (past(v.node, v.nodes, false)) return both(v.node, v.nodes, "nodes count from 0");
  if (past(v.nodes, v.world_size, true)) return both(v.nodes, v.world_size, "more nodes than ranks");
  return v.source == launcher::slurm ? slurm_reader(all_).contradiction() : std::string();
}

inline launcher_view launcher_reader::detect(std::optional<launcher> from) const {
  if (!from && has_torch()) return torch();
  launcher_view v;
  if (from) {
    v = view_of(*from);
  } else {
    std::vector<launcher_view> all;
    for (rank_variables const& each : rank_variable_table)
      if (all_.has(each.rank)) all.push_back(plain_ranks(each));
    const slurm_reader slurm(all_);
    // A batch script's variables are those of its step, but mpirun may have started what runs in it.
    if (slurm.is_there() && (slurm.is_step() || all.empty())) all.insert(all.begin(), slurm_ranks());
    if (!all.empty()) {
      v = all.front();
      for (launcher_view const& other : all) {
        if (!disagree(v, other)) continue;
        distrust(v, claim(v) + " and " + claim(other) + " disagree, one may have started the other: say whom to believe with ?from=" +
                        std::string(to_string(v.source)) + " or ?from=" + std::string(to_string(other.source)));
        break;
      }
    } else if (has_pod()) {
      v = kubernetes_ranks();
    } else if (all_.has("RANK") || all_.has("WORLD_SIZE")) {
      return torch();
    } else {
      v = nobody();
    }
  }
  if (v.source != launcher::torch && v.source != launcher::none) {
    if (const std::string why = contradiction(v); !why.empty()) distrust(v, why);
    if (!has_torch()) compare_with_lone(v);
  }
  finish(v);
  return v;
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
