#pragma once
// What the command lines of the programs have in common.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <type_traits>

namespace options {

/// The exit status of wrong usage, whatever is wrong with it.
inline constexpr int usage_error = 2;

namespace detail {

template <class T, class Fits>
[[nodiscard]] CLI::Validator number(Fits fits, std::string wanted) {
  return CLI::Validator(
      [fits, wanted](std::string& text) {
        T value{};
        bool is_number = CLI::detail::lexical_cast(text, value);
        if constexpr (std::is_floating_point_v<T>) is_number = is_number && std::isfinite(value);
        if (!is_number) return fmt::format("'{}' is not a {}number", text, std::is_integral_v<T> ? "whole " : "");
        return fits(value) ? std::string() : fmt::format("'{}' is not {}", text, wanted);
      },
      "");
}

}  // namespace detail

/// That a number is `low` or more; CLI11's own would name the largest double as the other end.
template <class T>
[[nodiscard]] CLI::Validator at_least(T low) {
  return detail::number<T>([low](T n) { return n >= low; }, fmt::format("at least {}", low));
}
template <class T>
[[nodiscard]] CLI::Validator above(T low) {
  return detail::number<T>([low](T n) { return n > low; }, fmt::format("above {}", low));
}

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

/// Parses the command line, where no option takes an empty value. Gives the exit status if the program is over: after --help, or when
/// told what is wrong.
[[nodiscard]] inline std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    refuse_empty_values(app);
  } catch (CLI::ParseError const& e) {
    return app.exit(e) == 0 ? 0 : usage_error;
  }
  return std::nullopt;
}

}  // namespace options
