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
#include "values.hpp"

namespace rollcall {
inline namespace v0 {

/// Where a store is, for who wants to look at it without being a rank: a command-line client, a monitor.
class store_location {
 public:
  store_location() = default;
  std::string scheme;          ///< "tcp" (also for unix://, env:// and auto://) or "file"
  sourced<std::string> host;   ///< tcp: always there, without brackets; "unix:PATH" for a unix socket
  sourced<std::int64_t> port;  ///< tcp: there unless the host is a unix socket; 0 only with a port_file
  std::string path;            ///< file
  sourced<std::string> generation, run_id, port_file;
  sourced<duration> timeout;
};
static_assert(await_safe<store_location>);

/// Reads a rendezvous URL for what it says of the place; ranks and sizes are not looked for, those in the URL must be right nevertheless.
///
/// errors    invalid: one that names every problem.
[[nodiscard]] inline result<store_location> try_locate_store(std::string_view text, variables const& all) {
  const rendezvous_url url = rendezvous_url::read(text);
  std::vector<std::string> problems = url.problems();
  store_location at;
  at.scheme = url.scheme() == "file" ? "file" : "tcp";
  at.path = url.path();
  at.generation = url.generation();
  at.port_file = url.port_file();
  at.timeout = url.timeout();
  launch_environment environment;
  if (url.scheme() == "auto") {
    std::optional<launcher> from;
    if (url.from()) from = launcher_named(*url.from());
    if (url.from() && !from) problems.push_back("?from=" + detail::in_quotes(*url.from()) + " is not the name of a launcher");
    environment = launch_environment::detect(all, from);
  } else {
    environment = launch_environment::torch(all);
  }
  at.run_id = url.run_id();  // who looks may belong to another run, or to none
  const bool from_environment = url.scheme() == "env" || url.scheme() == "auto";
  if (at.scheme == "tcp" && !url.scheme().empty()) {
    at.host = from_environment ? detail::first_there(url.host(), environment.host()) : url.host();
    at.port = from_environment ? detail::first_there(url.port(), environment.port()) : url.port();
    // What is wrong in the URL is among its problems already.
    if (from_environment && !at.host && !url.host().is_wrong()) detail::add_once(problems, at.host.problem());
    if (at.host && detail::is_unix_host(*at.host)) at.port = sourced<std::int64_t>();
    if (from_environment && !at.port && !url.port().is_wrong() && !(at.host && detail::is_unix_host(*at.host)))
      detail::add_once(problems, at.port.problem());
    if (at.port && *at.port == 0 && !at.port_file)
      problems.push_back("port 0 (" + at.port.origin() + ") says nothing of where the store is: name the port that was chosen");
  }
  if (problems.empty()) return at;
  return detail::all_problems("locate a store", text, problems);
}

}  // namespace v0
}  // namespace rollcall
