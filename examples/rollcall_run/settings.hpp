#pragma once
// What rollcall-run is told on its command line, and what of it cannot be meant.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <rollcall/core/clock.hpp>
#include <rollcall/rendezvous/plan.hpp>
#include <string>
#include <vector>

#include "../options.hpp"

namespace run {

namespace rc = rollcall;

struct settings {
  int nodes = 1;
  int node_rank = 0;
  int ranks = 0;  // of this node
  std::string master_addr = "127.0.0.1";
  std::int64_t master_port = 0;
  std::string run_id;
  std::string log_dir;  // "": no files
  double grace_seconds = 2;
  int max_restarts = 0;
  bool placed = false;  // by --init-method: the name of node 0 may be new, and not known yet
  bool host_store = false;
  bool quiet = false;
  std::vector<std::string> command;

  [[nodiscard]] int world() const { return nodes * ranks; }
  [[nodiscard]] int first_rank() const { return node_rank * ranks; }
  /// Node 0's launcher owns the port of the store; the others only tell their ranks where it is.
  [[nodiscard]] bool owns_port() const { return node_rank == 0; }
  [[nodiscard]] rc::duration grace() const { return rc::saturate(std::chrono::duration<double>(grace_seconds)); }
};

constexpr char const* help_footer =
    "Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and torchrun's other variables.\n"
    "The launcher of node 0 binds the port and hands the listening socket to rank 0 as descriptor 3 (ROLLCALL_LISTEN_FD=3), so that\n"
    "nobody can take the port in between; with --host-store it serves the store itself.\n\n"
    "A restart ends every rank first. The port stays, and no attempt sees what an earlier one has stored: a store that the launcher hosts\n"
    "starts empty again, and connections that still waited for the old one are closed. Restarts are for one node only: a launcher can end\n"
    "only its own ranks, and those of the other nodes would stay in the attempt before.\n\n"
    "Nothing that a rank has started outlives the launcher: process groups are killed, orphans, and every process whose environment\n"
    "still has the launcher's mark (ROLLCALL_LAUNCHERS). Where the launcher itself is killed, its guard does all but the orphans.\n\n"
    "SIGINT and SIGTERM are passed on; after the second, ranks that still run when the grace is over get SIGKILL. The exit status is that\n"
    "of the rank that failed first, 128 + signal where one killed it; 2 for wrong options; 126 or 127 for a PROGRAM that cannot be "
    "started.";

/// Which of the nodes this is, where something else has started one launcher on each: what is a rank to that one is a node here.
class node_place {
 public:
  node_place(std::string const& url, rc::variables all) {
    // Where a pod is told both, these are about pods for certain (rendezvous.md 8.3).
    if (all.has("PET_NODE_RANK") && all.has("PET_NNODES")) all.unset("RANK").unset("WORLD_SIZE");
    if (const rc::sourced<std::int64_t> n = all.number("PET_NPROC_PER_NODE", 1, 65536)) ranks = static_cast<int>(*n);
    all.unset("PET_NPROC_PER_NODE");
    const rc::rendezvous_plan plan = rc::plan_rendezvous(url, {}, all);
    if (plan.scheme != "tcp" || plan.is_unix()) throw rc::error(rc::errc::invalid, "--init-method", "only tcp://, env:// and auto:// say where node 0 is");
    node = static_cast<int>(*plan.rank);
    nodes = static_cast<int>(*plan.world_size);
    host = *plan.host;
    port = *plan.port;
  }
  int node = 0, nodes = 1;
  std::optional<int> ranks;  // of a node
  std::string host;
  std::int64_t port = 0;
};

/// Fills `s`. Everything from PROGRAM on belongs to the program. Throws CLI::ParseError, also for --help.
inline void parse(CLI::App& app, settings& s, int argc, char** argv) {
  const CLI::Range count(1, 65536);
  app.get_formatter()->label("OPTIONS", "OPTIONS] PROGRAM [ARGS...");
  CLI::Option const* n =
      app.add_option("-n,--ranks", s.ranks, "How many ranks to start, all on this machine")->check(count)->type_name("N");
  CLI::Option const* nodes =
      app.add_option("--nnodes", s.nodes, "How many machines, each with a launcher of its own (default 1)")->check(count)->type_name("N");
  CLI::Option const* node_rank =
      app.add_option("--node-rank", s.node_rank, "Which of them this is, from 0 on")->check(CLI::Range(0, 65535))->type_name("K");
  CLI::Option const* per_node =
      app.add_option("--nproc-per-node", s.ranks, "How many ranks to start on each machine")->check(count)->type_name("P");
  CLI::Option const* addr = app.add_option("--master-addr", s.master_addr, "An address of node 0 (default 127.0.0.1)")->type_name("A");
  CLI::Option const* port = app.add_option("--master-port,--port", s.master_port, "The port of the store; 0, the default, lets the system choose")
      ->check(CLI::Range(0, 65535))
      ->type_name("Q");
  std::string init_method;
  app.add_option("--init-method", init_method,
                 "Where something else starts one launcher on each node: auto:// (Slurm, Open MPI, PMI, Kubernetes) or env:// says which of them "
                 "this is, and where node 0 is, in place of --nnodes, --node-rank and --master-addr")
      ->type_name("URL");
  app.add_flag("--host-store", s.host_store,
               "Serve the store here (on node 0) and set TORCHELASTIC_USE_AGENT_STORE=True: for programs with init_method=\"env://\"; "
               "the store outlives rank 0. To be given on every node");
  app.add_option("--max-restarts", s.max_restarts, "How often to end all ranks and start them again when one has failed (default 0)")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("R");
  app.add_option("--log-dir", s.log_dir, "Write what rank 3 says to D/rank-3.log; with --max-restarts to D/attempt-0/rank-3.log and so on")
      ->type_name("D");
  app.add_flag("--quiet", s.quiet, "Show nothing of what the ranks say, and of success nothing at all");
  app.add_option("--grace", s.grace_seconds, "Seconds from the first failure until the other ranks get SIGTERM (default 2)")
      ->check(CLI::Range(0.0, 1e9))
      ->type_name("SECONDS");
  CLI::Option const* run_id =
      app.add_option("--run-id", s.run_id,
                     "What TORCHELASTIC_RUN_ID says; it tells a file:// of this run from others'. Default: a new one, or with --nnodes none, "
                     "which is torchrun's word for no id")
          ->type_name("ID");
  app.footer(help_footer);
  app.prefix_command();
  app.parse(argc, argv);
  options::refuse_empty_values(app);

  const auto wrong = [](std::string const& text) { throw CLI::ValidationError(text); };
  if (!init_method.empty()) {
    if (nodes->count() + node_rank->count() > 0) wrong("--init-method and --nnodes or --node-rank both say which node this is: give one of them");
    try {
      const node_place found(init_method, rc::variables::of_process());
      s.nodes = found.nodes;
      s.node_rank = found.node;
      if (addr->count() == 0) s.master_addr = found.host;
      if (port->count() == 0) s.master_port = found.port;
      if (n->count() + per_node->count() == 0 && found.ranks) s.ranks = *found.ranks;
      s.placed = true;
    } catch (rc::error const& e) {
      wrong(fmt::format("--init-method: {}", e.what()));
    }
  }
  if (n->count() > 0 && per_node->count() > 0) wrong("-n and --nproc-per-node both say how many ranks to start here: give one of them");
  if (n->count() > 0 && s.nodes > 1)
    wrong(fmt::format("-n is the short form for one node: with --nnodes {} it takes --nproc-per-node P", s.nodes));
  if (s.ranks == 0) wrong("how many ranks? -n N, or --nproc-per-node P");
  if (std::isnan(s.grace_seconds)) wrong("--grace is not a number");
  if (s.node_rank >= s.nodes) {
    wrong(fmt::format("--node-rank {} is not below --nnodes {}{}", s.node_rank, s.nodes, nodes->count() > 0 ? "" : ", the default"));
  }
  if (std::int64_t{s.nodes} * s.ranks > 1 << 24)
    wrong(fmt::format("--nnodes {} times --nproc-per-node {} is more than {} ranks", s.nodes, s.ranks, 1 << 24));
  if (s.nodes > 1) {
    const std::string several = fmt::format("--nnodes {}", s.nodes);
    if (node_rank->count() == 0 && !s.placed) wrong(several + " needs --node-rank K: which of the nodes this is");
    if (addr->count() == 0 && !s.placed) wrong(several + " needs --master-addr A: where the ranks of all nodes reach node 0");
    for (char const* everywhere : {"", "*", "0.0.0.0", "::"})
      if (s.master_addr == everywhere)
        wrong(fmt::format("{} needs an address of node 0 that the others can connect to, not --master-addr '{}'", several, s.master_addr));
    if (s.master_port == 0) wrong(several + " needs --master-port Q, not 0: the system would choose a port that only node 0 learns");
    if (s.max_restarts > 0) {
      wrong(
          fmt::format("--max-restarts {} works on one node, not with {}: a launcher can end only its own ranks, and those of the "
                      "other nodes would stay in the attempt before",
                      s.max_restarts, several));
    }
  }

  if (run_id->count() == 0) {
    std::random_device dice;
    s.run_id = fmt::format("run-{:08x}{:08x}", dice(), dice());
    if (s.nodes > 1) s.run_id = "none";  // the launchers of several nodes cannot agree on one
  }

  s.command = app.remaining();
  if (!s.command.empty() && s.command.front() == "--") s.command.erase(s.command.begin());
  if (s.command.empty()) throw CLI::RequiredError("PROGRAM");
  if (s.command.front().starts_with('-')) throw CLI::ExtrasError({s.command.front()});
}

}  // namespace run
