#pragma once
// What all programs want of their command line.
#include <CLI/CLI.hpp>
#include <string>

namespace command_line {

/// An option that is given with nothing in it ("--rank $R" where R is not set) is an error that names it, not one that was not given.
/// Keys and values, which have no option before them, may be empty.
inline void refuse_empty_values(CLI::App const& app) {
  for (CLI::Option const* o : app.get_options()) {
    if (o->get_positional()) continue;
    for (std::string const& value : o->results())
      if (value.empty()) throw CLI::ValidationError(o->get_name() + " is empty");
  }
  for (CLI::App const* each : app.get_subcommands()) refuse_empty_values(*each);
}

}  // namespace command_line
