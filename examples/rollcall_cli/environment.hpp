#pragma once
// What this process's launcher says, and what a rendezvous would make of it. Asks nobody.
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <rollcall/environment.hpp>
#include <rollcall/rendezvous/plan.hpp>
#include <string>
#include <vector>

#include "answer.hpp"

namespace cli {

namespace detail {

inline nlohmann::json value_json(std::int64_t n) { return n; }
inline nlohmann::json value_json(std::string const& text) { return json_of(text); }

template <class T>
void put_value(nlohmann::json& to, char const* name, rc::sourced<T> const& v) {
  if (v) {
    to[name]["value"] = value_json(*v);
    to[name]["from"] = v.origin();
  } else if (!v.problem().empty()) {
    to[name]["problem"] = v.problem();
  }
}

/// An environment and a plan have the same values; these are of one of them.
inline void put_values(nlohmann::json& to, rc::sourced<std::int64_t> const& rank, rc::sourced<std::int64_t> const& world,
                       rc::sourced<std::string> const& host, rc::sourced<std::int64_t> const& port) {
  put_value(to, "rank", rank);
  put_value(to, "world_size", world);
  put_value(to, "host", host);
  put_value(to, "port", port);
}

}  // namespace detail

/// Without a URL what auto:// finds; else what a rendezvous at that URL would do. Gives the exit status: `negative` where something is missing.
inline int print_environment(std::string const& url, output const& to) {
  const rc::variables all = rc::variables::of_process();
  nlohmann::json line;
  std::string text;
  std::vector<std::string> problems;
  if (url.empty()) {
    const rc::launch_environment e = rc::launch_environment::detect(all);
    problems = e.problems();
    text = e.describe();
    line["launcher"] = std::string(to_string(e.source()));
    detail::put_values(line, e.rank(), e.world_size(), e.host(), e.port());
    detail::put_value(line, "local_rank", e.local_rank());
    detail::put_value(line, "attempt", e.attempt());
    line["warnings"] = e.warnings();
  } else {
    const rc::rendezvous_plan p = rc::plan_rendezvous(url, {}, all);
    text = p.describe();
    line["launcher"] = std::string(to_string(p.source));
    detail::put_values(line, p.rank, p.world_size, p.host, p.port);
    detail::put_value(line, "local_rank", p.local_rank);
    detail::put_value(line, "attempt", p.attempt);
    line["serves"] = p.serves;
    line["warnings"] = p.warnings;
  }
  const status s = problems.empty() ? ok : negative;
  if (to.how != format::json) return detail::put_answer(to, text, s);
  line["ok"] = s == ok;
  line["problems"] = problems;
  return detail::put_answer(to, line.dump() + "\n", s);
}

}  // namespace cli
