#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/result.hpp"
#include "../environment.hpp"
#include "../url.hpp"
#include "arguments.hpp"
#include "values.hpp"

namespace rollcall {
inline namespace v0 {

/// What a rendezvous will do, and where each value came from. Nothing in it is wrong; what is not there takes its default.
class rendezvous_plan {
 public:
  rendezvous_plan() = default;

  rendezvous_url url;
  /// "tcp" (also for unix://, env:// and auto://), "file", or a scheme of the caller's.
  std::string scheme;
  launcher source = launcher::none;  ///< whose word something of the plan is
  sourced<std::int64_t> rank, world_size;  ///< always there; rank < world_size
  sourced<std::string> host;               ///< tcp: always there, without brackets; "unix:PATH" for a unix socket
  sourced<std::int64_t> port;              ///< tcp: there unless the host is a unix socket; 0 only where that can work
  std::string path;                        ///< file
  bool serves = false;                     ///< this process is the server
  bool launcher_serves = false;            ///< the launcher is, and no rank
  std::string role;                        ///< which of them it is, and why; "" for file
  sourced<bool> use_libuv;                 ///< only where it serves
  sourced<std::string> bind;               ///< only where it serves
  sourced<std::int64_t> listen_fd;         ///< only where it serves
  sourced<duration> timeout;
  sourced<std::string> port_file;           ///< only with port 0
  sourced<std::string> generation, run_id;
  sourced<std::int64_t> attempt;
  sourced<std::int64_t> local_rank, local_world_size, node, nodes;  ///< only where the rank is the launcher's
  std::vector<std::string> warnings;

  [[nodiscard]] bool is_unix() const { return host && detail::is_unix_host(*host); }
  /// Whether ranks live on several nodes; nothing where that is not known.
  [[nodiscard]] std::optional<bool> spans_nodes() const {
    if (nodes) return *nodes > 1;
    if (local_world_size && world_size) return *local_world_size < *world_size;
    return std::nullopt;
  }
  /// One line a value: its name, the value, where it came from.
  [[nodiscard]] std::string describe() const;
};
static_assert(await_safe<rendezvous_plan>);

namespace detail {

class planner {
 public:
  planner(std::string_view url, rendezvous_arguments const& arguments, variables const& all)
      : arguments_(arguments), variables_(all), text_(url) {}

  result<rendezvous_plan> run() {
    plan_.url = rendezvous_url::read(text_, arguments_.schemes());
    problems_ = plan_.url.problems();
    std::string const& scheme = plan_.url.scheme();
    is_tcp_ = scheme == "tcp" || scheme == "unix" || scheme == "env" || scheme == "auto";
    plan_.scheme = is_tcp_ ? "tcp" : scheme;
    environment_ = scheme == "auto" ? launch_environment::detect(variables_, from()) : launch_environment::torch(variables_);
    // Where the URL cannot be read, what it does not say is no news.
    if (!scheme.empty()) {
      decide_ranks();
      if (is_tcp_) decide_address();
      if (is_tcp_) decide_role();
    }
    decide_rest();
    look_for_loopback();
    look_beside();
    if (problems_.empty()) return std::move(plan_);
    return all_problems("rendezvous", text_, problems_, found());
  }

 private:
  using number = sourced<std::int64_t>;
  static constexpr char const* caller = "the caller";

  void wrong(std::string problem) { add_once(problems_, std::move(problem)); }
  /// The first that is there of the three. One that is wrong is told.
  template <class T>
  sourced<T> choose(sourced<T> const& argument, sourced<T> const& url, sourced<T> const& env = {}) {
    const sourced<T> chosen = first_there(first_there(argument, in_url(url)), env);
    if (chosen.is_wrong()) wrong(chosen.problem());
    return chosen;
  }
  template <class T>
  static sourced<T> in_url(sourced<T> const& v) {
    return v ? sourced<T>(*v, v.origin().starts_with('?') ? v.origin() + " of the URL" : v.origin()) : v;
  }
  template <class T>
  static sourced<T> given(std::optional<T> const& v) {
    return v ? sourced<T>(*v, caller) : sourced<T>();
  }
  static number given(char const* name, std::optional<std::int64_t> v, std::int64_t low, std::int64_t high) {
    if (!v || (*v >= low && *v <= high)) return given(v);
    return number::wrong(std::string(name) + " " + show(*v) + " (the caller's) is not in " + show(low) + ".." + show(high));
  }
  static sourced<std::string> given(char const* name, std::optional<std::string> const& v,
                                    sourced<std::string> (*rule)(std::string const&, std::string_view)) {
    if (!v) return {};
    const sourced<std::string> judged = rule(name, *v);
    return judged ? sourced<std::string>(*judged, caller) : judged;
  }

  std::optional<launcher> from() {
    const sourced<std::string> name = plan_.url.from();
    if (!name) return std::nullopt;
    const std::optional<launcher> l = launcher_named(*name);
    if (l) return l;
    std::string all;
    for (std::size_t i = 1; i < launcher_names.size(); ++i) all += (i > 1 ? ", " : "") + std::string(launcher_names[i]);
    wrong("?from=" + in_quotes(*name) + " is none of " + all);
    return std::nullopt;
  }

  void decide_ranks();
  void decide_address();
  void decide_socket();
  void decide_role();
  void decide_rest();
  void look_for_loopback();
  void look_beside();
  /// Whether the rank is the environment's word, so that what it says of this rank's place holds.
  [[nodiscard]] bool is_at_its_place() const { return plan_.rank.origin() == environment_.rank().origin(); }
  [[nodiscard]] std::string found() const;
  [[nodiscard]] bool is_at_launchers() const;
  /// What a scheduler says that this scheme does not read.
  [[nodiscard]] std::string overlooked() const {
    if (plan_.url.scheme() == "auto") return {};
    const launch_environment other = launch_environment::detect(variables_);
    if (other.source() == launcher::torch || !other.rank()) return {};
    return ", and " + other.rank().origin() + "=" + show(*other.rank()) + " (" + std::string(to_string(other.source())) +
           ") is read by auto:// only";
  }

  rendezvous_arguments const& arguments_;
  variables const& variables_;
  std::string text_;
  bool is_tcp_ = false;
  launch_environment environment_;
  rendezvous_plan plan_;
  std::vector<std::string> problems_;
};

inline void planner::decide_ranks() {
  plan_.rank = choose(given("rank", arguments_.rank(), 0, most_ranks - 1), plan_.url.rank(), environment_.rank());
  plan_.world_size = choose(given("world_size", arguments_.world_size(), 1, most_ranks), plan_.url.world_size(), environment_.world_size());
  for (auto const& [name, value] : {std::pair("rank", plan_.rank), std::pair("world_size", plan_.world_size)})
    if (!value && !value.is_wrong())
      wrong("there is no " + std::string(name) + ": no ?" + name + "= in the URL, and " + value.problem() + overlooked());
  if (plan_.rank && plan_.world_size && *plan_.rank >= *plan_.world_size) wrong(rank_past_world(plan_.rank, plan_.world_size));
  if (!is_at_its_place()) return;
  plan_.local_rank = environment_.local_rank();
  plan_.local_world_size = environment_.local_world_size();
  plan_.node = environment_.node();
  plan_.nodes = environment_.nodes();
  plan_.warnings = environment_.warnings();
}

inline void planner::decide_address() {
  const bool from_environment = plan_.url.scheme() == "env" || plan_.url.scheme() == "auto";
  plan_.host = choose({}, plan_.url.host(), from_environment ? environment_.host() : sourced<std::string>());
  if (plan_.is_unix()) return decide_socket();
  plan_.port = choose({}, plan_.url.port(), from_environment ? environment_.port() : number());
  if (from_environment) {
    if (!plan_.host && !plan_.host.is_wrong()) wrong(plan_.host.problem());
    if (!plan_.port && !plan_.port.is_wrong()) wrong(plan_.port.problem());
  }
  plan_.port_file = choose({}, plan_.url.port_file());
  if (plan_.port_file && plan_.port && *plan_.port != 0)
    wrong("port " + show(*plan_.port) + " (" + plan_.port.origin() + ") needs no ?port_file, which is for port 0");
  const bool publishes = arguments_.publishes_port() || plan_.port_file;
  if (!plan_.port || *plan_.port != 0 || publishes || !plan_.rank || !plan_.world_size) return;
  if (*plan_.world_size > 1)
    wrong("port 0 (" + plan_.port.origin() + ") lets the system choose a port that none of the " + show(*plan_.world_size - 1) +
          " other rank" + (*plan_.world_size > 2 ? "s" : "") + " would learn: name a port, or give ?port_file=/PATH on a file system that all of them have");
}

/// A unix socket has a path, and nothing that belongs to a port.
inline void planner::decide_socket() {
  const std::string what = *plan_.host + " (" + plan_.host.origin() + ") is a unix socket";
  if (plan_.url.port()) wrong(what + ", and port " + show(*plan_.url.port()) + " is given");
  if (plan_.url.port_file()) wrong(what + ", which has no port that ?port_file could tell");
  if (plan_.url.bind() || arguments_.bind()) wrong(what + ", which is listened at where it is: no bind");
  if (plan_.spans_nodes().value_or(false)) wrong(what + ", which is reached on its own host only, and ranks live on several nodes");
}

/// Whether this is the address that the launcher's flags are about, MASTER_ADDR:MASTER_PORT.
inline bool planner::is_at_launchers() const {
  rendezvous_url const& url = plan_.url;
  const bool from_environment = url.scheme() == "env" || url.scheme() == "auto";
  if (from_environment && !url.host() && !url.port()) return true;
  sourced<std::string> const& host = environment_.host();
  sourced<std::int64_t> const& port = environment_.port();
  if (plan_.is_unix()) return host && *plan_.host == *host;
  return plan_.host && plan_.port && host && port && lower(*plan_.host) == lower(*host) && *plan_.port == *port;
}

inline void planner::decide_role() {
  const number fd = given("listen_fd", arguments_.listen_fd(), 0, most_ranks);
  if (fd.is_wrong()) wrong(fd.problem());
  const sourced<std::string> bind = given("bind", arguments_.bind(), bind_host);
  if (bind.is_wrong()) wrong(bind.problem());
  const bool at_launchers = is_at_launchers();
  sourced<bool> const& agent = environment_.agent_store();
  if (at_launchers && agent.is_wrong()) wrong(agent.problem());
  if (!plan_.rank) {
    // It may be rank 0 that something is wrong with.
    if (at_launchers && environment_.listen_fd().is_wrong()) wrong(environment_.listen_fd().problem());
    if (environment_.use_libuv().is_wrong() && !plan_.url.use_libuv()) wrong(environment_.use_libuv().problem());
    return;
  }
  const bool launcher_serves = at_launchers && agent.value_or(false);
  plan_.launcher_serves = launcher_serves;
  plan_.serves = *plan_.rank == 0 && !launcher_serves;
  if (launcher_serves) {
    plan_.role = "client of the launcher's store (TORCHELASTIC_USE_AGENT_STORE)";
  } else {
    plan_.role = plan_.serves ? "server, as rank 0" : "client of rank 0";
    if (agent.value_or(false))
      plan_.role += "; the launcher's store (TORCHELASTIC_USE_AGENT_STORE) is at another address, MASTER_ADDR:MASTER_PORT";
  }
  if (!plan_.serves) {
    if (fd) wrong("a descriptor to listen on (" + show(*fd) + ") is given, but this process does not serve: " + plan_.role);
    return;
  }
  plan_.listen_fd = choose(fd, number(), at_launchers ? environment_.listen_fd() : number());
  plan_.use_libuv = choose(given(arguments_.use_libuv()), plan_.url.use_libuv(), environment_.use_libuv());
  plan_.bind = choose(bind, plan_.url.bind());
}

inline void planner::decide_rest() {
  const bool is_file = plan_.scheme == "file";
  if (is_file) plan_.path = plan_.url.path();
  sourced<duration> limit = given(arguments_.timeout());
  if (limit && *limit <= duration::zero()) limit = sourced<duration>::wrong("the timeout (the caller's) is not above 0");
  plan_.timeout = choose(limit, plan_.url.timeout());
  plan_.generation = choose(given("generation", arguments_.generation(), generation_name), plan_.url.generation());
  plan_.attempt = choose(given("attempt", arguments_.attempt(), 0, most_ranks), number(), environment_.attempt());
  const bool names_run = is_file || plan_.port_file || arguments_.publishes_port() || !is_tcp_;
  sourced<std::string> launchers = environment_.run_id();
  if (!names_run) {
    // A server refuses who is of another run, so nothing may be guessed: the launcher's word counts only where it numbers the ranks, and
    // Slurm's steps only where they are the job, not each of them a rank that somebody else has numbered. An id that is no file's name
    // is of no use here.
    const bool is_theirs = plan_.rank && is_at_its_place() &&
                           (launchers.origin() == "TORCHELASTIC_RUN_ID" || environment_.source() == launcher::slurm);
    if (!is_theirs || launchers.is_wrong()) launchers = {};
  }
  plan_.run_id = choose(given("run_id", arguments_.run_id(), run_name), plan_.url.run_id(), launchers);
  const auto is_environments = [&](auto const& value, auto const& theirs) { return value && value.origin() == theirs.origin(); };
  if (is_environments(plan_.rank, environment_.rank()) || is_environments(plan_.world_size, environment_.world_size()) ||
      is_environments(plan_.host, environment_.host()) || is_environments(plan_.port, environment_.port()) ||
      is_environments(plan_.run_id, environment_.run_id()) || is_environments(plan_.attempt, environment_.attempt()))
    plan_.source = environment_.source();
}

/// What is wrong with a rank's place on its node is told beside other problems; alone it only warns.
inline void planner::look_beside() {
  if (plan_.rank && !is_at_its_place()) return;
  std::vector<std::string> found;
  for (number const* each : {&environment_.local_rank(), &environment_.local_world_size(), &environment_.node(), &environment_.nodes()})
    if (each->is_wrong()) add_once(found, each->problem());
  for (std::string const& each : found) {
    if (problems_.empty()) {
      plan_.warnings.push_back(each + "; it is not used");
    } else {
      wrong(each);
    }
  }
}

inline void planner::look_for_loopback() {
  if (!plan_.host || plan_.is_unix()) return;
  const bool loopback = is_loopback_literal(*plan_.host) || lower(*plan_.host) == "localhost";
  const bool wildcard = is_wildcard_literal(*plan_.host);
  // A pod is a host of its own, whatever its launcher says of nodes.
  const bool alone = variables_.has("KUBERNETES_SERVICE_HOST") && !plan_.local_world_size && plan_.world_size.value_or(1) > 1;
  const bool several = plan_.spans_nodes().value_or(alone) || alone;
  if (wildcard) {
    plan_.warnings.push_back(
        *plan_.host + " (" + plan_.host.origin() +
        ") is no address to connect to: only ranks beside rank 0 get there; name rank 0's, and ?bind=* to listen on all interfaces");
  } else if (loopback && plan_.node.value_or(0) > 0) {
    plan_.warnings.push_back(*plan_.host + " (" + plan_.host.origin() + ") is this node itself, number " + show(*plan_.node) + " (" +
                             plan_.node.origin() + "), and rank 0 is on node 0: unless both are one machine, give its address");
  } else if (loopback && alone && !plan_.serves && !plan_.launcher_serves && !plan_.local_rank) {
    plan_.warnings.push_back(*plan_.host + " (" + plan_.host.origin() + ") is this pod itself, and rank 0 is in another one: give its address");
  } else if (loopback && several && plan_.serves) {
    plan_.warnings.push_back("rank 0 serves at " + *plan_.host + " (" + plan_.host.origin() +
                             "), where only its own node reaches it, and ranks live on others");
  }
}

/// "; found: rank 3 (SLURM_PROCID), world_size 8 (?world_size of the URL)"
inline std::string planner::found() const {
  std::string text;
  const auto add = [&text](char const* name, auto const& value) {
    if (value) text += (text.empty() ? "; found: " : ", ") + std::string(name) + " " + show(*value) + " (" + value.origin() + ")";
  };
  add("rank", plan_.rank);
  add("world_size", plan_.world_size);
  add("host", plan_.host);
  add("port", plan_.port);
  return text;
}

}  // namespace detail

inline std::string rendezvous_plan::describe() const {
  std::string out = detail::spaced("url", 18) + detail::show(url.text()) + "\n";
  const auto line = [&out](char const* name, auto const& value) {
    if (value.has_value()) out += detail::described(name, value);
  };
  if (source != launcher::none) out += detail::spaced("launcher", 18) + std::string(to_string(source)) + "\n";
  line("rank", rank);
  line("world_size", world_size);
  line("host", host);
  line("port", port);
  if (!path.empty()) out += detail::spaced("path", 18) + detail::show(path) + "\n";
  if (!role.empty()) out += detail::spaced("role", 18) + role + "\n";
  line("use_libuv", use_libuv);
  line("bind", bind);
  line("listen_fd", listen_fd);
  line("port_file", port_file);
  line("timeout", timeout);
  line("generation", generation);
  line("run_id", run_id);
  line("attempt", attempt);
  line("local_rank", local_rank);
  line("local_world_size", local_world_size);
  line("node", node);
  line("nodes", nodes);
  for (std::string const& text : warnings) out += detail::spaced("warning", 18) + text + "\n";
  return out;
}

/// Decide what a rendezvous will do: the caller's arguments beat the URL, the URL beats the environment. A plain function: no I/O.
///
/// url        tcp://, unix://, file://, env://, auto://, or a scheme that the arguments name (docs/design/rendezvous.md).
/// errors     invalid: one that names every problem, and what was found.
[[nodiscard]] inline result<rendezvous_plan> try_plan_rendezvous(std::string_view url, rendezvous_arguments const& arguments,
                                                                 variables const& all) {
  return detail::planner(url, arguments, all).run();
}
[[nodiscard]] inline rendezvous_plan plan_rendezvous(std::string_view url, rendezvous_arguments const& arguments, variables const& all) {
  return try_plan_rendezvous(url, arguments, all).value();
}

}  // namespace v0
}  // namespace rollcall
