#pragma once
// The socket that systemd hands over (sd_listen_fds(3)).
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <rollcall/core/error.hpp>
#include <string_view>

namespace server {

namespace rc = rollcall;

/// What an environment variable of the activation says, digits and nothing else; none where it is not set.
inline std::optional<long> activation_number(char const* name) {
  char const* const value = std::getenv(name);
  if (!value) return std::nullopt;
  const std::string_view text = value;
  long n = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size() || n < 0)
    throw rc::error(rc::errc::invalid, "socket activation", fmt::format("{} is '{}', which is not a number", name, text));
  return n;
}

/// The descriptor, if this process was activated.
inline std::optional<int> activation() {
  constexpr int first = 3;
  if (activation_number("LISTEN_PID") != getpid()) return std::nullopt;
  const std::optional<long> count = activation_number("LISTEN_FDS");
  if (!count) return std::nullopt;
  if (*count != 1)
    throw rc::error(rc::errc::invalid, "socket activation", fmt::format("LISTEN_FDS says {} sockets, where one is needed", *count));
  return first;
}

}  // namespace server
