#pragma once
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "result.hpp"

namespace rollcall {
inline namespace v0 {

/// What a yes-or-no setting says: 1, 0, true, false, yes, no, on, off, in any case.
///
/// source    what the value was given by, for the error: "USE_LIBUV", "--use-libuv".
/// errors    invalid for everything else, naming the source and the value.
[[nodiscard]] inline result<bool> flag_value(std::string_view value, std::string_view source) {
  std::string lower(value);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (lower == "1" || lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "0" || lower == "false" || lower == "no" || lower == "off") return false;
  std::string text(source);
  text += " is '";
  detail::append_printable(text, value, 80);
  return failure(errc::invalid, "use_libuv", text += "'; it takes 1, 0, true, false, yes, no, on or off");
}

/// Which back end a process that serves takes: libuv (true, the default) or the blocking one. The first source that is given decides, the
/// others are not looked at: the argument, `use_libuv=` in the URL, USE_LIBUV in the environment. Not for pure clients, who have no say.
///
/// query         the value of `use_libuv` in the URL, decoded.
/// environment   the value of USE_LIBUV; the form without it reads the environment.
/// errors        invalid where the one that decides says neither yes nor no; names it and its value.
[[nodiscard]] inline result<bool> choose_use_libuv(std::optional<bool> argument, std::optional<std::string_view> query,
                                                   std::optional<std::string_view> environment) {
  if (argument) return *argument;
  if (query) return flag_value(*query, "?use_libuv= in the URL");
  if (environment) return flag_value(*environment, "USE_LIBUV in the environment");
  return true;
}
[[nodiscard]] inline result<bool> choose_use_libuv(std::optional<bool> argument, std::optional<std::string_view> query = {}) {
  char const* const environment = argument || query ? nullptr : std::getenv("USE_LIBUV");
  return choose_use_libuv(argument, query, environment ? std::optional<std::string_view>(environment) : std::nullopt);
}

}  // namespace v0
}  // namespace rollcall
