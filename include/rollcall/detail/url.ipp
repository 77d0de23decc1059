// How a rendezvous URL is read and printed. Part of url.hpp.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../url.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// One error for all problems: "2 problems with tcp://h: it has no port: tcp://HOST:PORT; ?rank is empty".
inline failure all_problems(std::string_view operation, std::string_view url, std::vector<std::string> const& problems,
                            std::string const& more = {}) {
  std::string text = problems.size() == 1 ? std::string() : std::to_string(problems.size()) + " problems with ";
  append_printable(text, url, 200);
  text += ": ";
  for (std::size_t i = 0; i < problems.size(); ++i) text += (i > 0 ? "; " : "") + problems[i];
  return failure(errc::invalid, operation, text + more);
}

/// Percent-escapes for all but letters, digits, "-._~" and the bytes of `also`.
inline std::string percent_encoded(std::string_view text, std::string_view also) {
  constexpr char hex[] = "0123456789ABCDEF";
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_letter(c) || is_digit(c) || std::string_view("-._~").find(c) != std::string_view::npos || also.find(c) != also.npos) {
      out += c;
    } else {
      out += '%';
      out += hex[byte >> 4];
      out += hex[byte & 15];
    }
  }
  return out;
}

inline constexpr std::string_view path_characters = "/!$&'()*+,;=:@";

inline int hex_digit(char c) noexcept {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace detail

inline std::optional<std::string> rendezvous_url::parameter(std::string_view name) const {
  for (auto const& [key, value] : parameters_)
    if (key == name) return value;
  return std::nullopt;
}

inline rendezvous_url rendezvous_url::read(std::string_view text, std::vector<std::string> const& further) {
  rendezvous_url u;
  u.text_ = text;
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    u.wrong("it has a control character in it (a line break, perhaps)");
  if (text.find('#') != text.npos) u.wrong("'#' begins a fragment, which nobody reads: write %23");
  std::string_view rest = text;
  if (!u.read_scheme(rest, further)) return u;
  const std::size_t mark = rest.find('?');
  const std::string_view before = rest.substr(0, mark);
  const std::size_t slash = std::min(before.find('/'), before.size());
  const std::string_view path = before.substr(slash);
  u.authority_ = before.substr(0, slash);
  if (u.is_network()) {
    u.read_address(u.authority_);
    if (!path.empty() && path != "/") u.wrong("it has a path, " + detail::in_quotes(path) + ", which means nothing for " + u.scheme_ + "://");
  } else if (u.is_path()) {
    u.read_path(u.authority_, path);
  } else {
    u.path_ = u.decoded(path);
  }
  if (mark != rest.npos) u.read_query(rest.substr(mark + 1));
  u.check_values();
  return u;
}

inline result<rendezvous_url> rendezvous_url::try_parse(std::string_view text, std::vector<std::string> const& further) {
  rendezvous_url u = read(text, further);
  std::vector<std::string> all = u.problems_;
  if (u.use_libuv().is_wrong()) all.push_back(u.use_libuv().problem());
  const sourced<std::int64_t> rank = u.rank();
  const sourced<std::int64_t> world = u.world_size();
  if (rank && world && *rank >= *world) all.push_back("?rank=" + detail::show(*rank) + " is not below ?world_size=" + detail::show(*world));
  if (all.empty()) return u;
  return detail::all_problems("rendezvous URL", text, all);
}

inline std::string rendezvous_url::decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 1 < text.size() ? detail::hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? detail::hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      wrong(detail::in_quotes(text.substr(i, 3)) + " is no percent-escape: two hexadecimal digits follow a %; the percent sign itself is %25");
      out += '%';
    } else if (high == 0 && low == 0) {
      wrong("%00 is a zero byte, which nothing here may have");
      i += 2;
    } else {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

inline bool rendezvous_url::read_scheme(std::string_view& rest, std::vector<std::string> const& further) {
  std::size_t end = rest.find("://");
  const bool is_printed = rest.starts_with("unix:/") && !rest.starts_with("unix://");  // as a listener prints its address
  if (is_printed) end = 4;
  if (end == rest.npos || end == 0 || rest.find_first_of("/?") < end) {
    if (rest.starts_with("file:/")) {
      wrong("three slashes begin a path: file:///" + std::string(rest.substr(6)));
    } else {
      wrong("it does not begin with tcp://, unix://, file://, env:// or auto://");
    }
    return false;
  }
  scheme_ = detail::lower(rest.substr(0, end));
  rest.remove_prefix(end + (is_printed ? 1 : 3));
  if (is_ours() || std::find(further.begin(), further.end(), scheme_) != further.end()) return true;
  std::string text = "there is no scheme " + detail::in_quotes(scheme_) + ": tcp, unix, file, env, auto";
  for (std::string const& other : further) text += ", " + other;
  wrong(std::move(text));
  return true;  // what it says beside that is read, so that it is not missed
}

inline void rendezvous_url::read_address(std::string_view authority) {
  if (authority.empty()) {
    if (scheme_ == "tcp") wrong("it has no host and no port: tcp://HOST:PORT");
    return;
  }
  if (authority.find('@') != authority.npos) return wrong("it has a user's name (@), which nobody asks for");
  if (authority.starts_with("unix:")) return wrong("a unix socket has a scheme of its own: unix:///PATH");
  if (authority.front() == '[') return read_brackets(authority);
  const std::size_t colon = authority.rfind(':');
  if (colon != authority.find(':')) {
    const std::string_view before = authority.substr(0, colon);
    const bool has_port = detail::is_ipv6(before) && detail::all_digits(authority.substr(colon + 1));
    std::string proposal =
        has_port ? "[" + std::string(before) + "]" + std::string(authority.substr(colon)) : "[" + std::string(authority) + "]:PORT";
    if (!has_port && !detail::is_ipv6(authority)) proposal = "[::1]:29500";
    return wrong("an IPv6 address stands in brackets: " + scheme_ + "://" + proposal);
  }
  const std::string host = decoded(authority.substr(0, colon));
  if (!host.empty()) {
    if (const std::string problem = detail::host_problem(host); !problem.empty()) {
      host_ = sourced<std::string>::wrong("host " + detail::in_quotes(host) + " " + problem);
      wrong(host_.problem());
    } else {
      host_ = sourced<std::string>(host, "the URL");
    }
  } else if (scheme_ == "tcp") {
    wrong("it has no host: tcp://HOST:PORT");
  }
  if (colon != authority.npos) return read_port(authority.substr(colon + 1));
  if (scheme_ == "tcp") wrong("it has no port: tcp://HOST:PORT");
}

/// [::1]:29500, [fe80::1%25eth0]:29500 (RFC 6874), [fe80::1%eth0]:29500
inline void rendezvous_url::read_brackets(std::string_view authority) {
  const std::size_t end = authority.find(']');
  if (end == authority.npos) return wrong("the bracket before an IPv6 address is not closed: " + scheme_ + "://[::1]:29500");
  const std::string_view inside = authority.substr(1, end - 1);
  const std::size_t percent = inside.find('%');
  std::string host(inside.substr(0, percent));
  if (percent != inside.npos) {
    const std::string_view zone = inside.substr(percent + 1);
    host += "%";
    host += zone.size() > 2 && zone.starts_with("25") ? decoded(zone.substr(2)) : std::string(zone);
  }
  if (detail::is_ipv6(host)) {
    host_ = sourced<std::string>(std::move(host), "the URL");
  } else {
    host_ = sourced<std::string>::wrong("host " + detail::in_quotes(host) + " is not an IPv6 address, and only such stand in brackets");
    wrong(host_.problem());
  }
  const std::string_view rest = authority.substr(end + 1);
  if (rest.starts_with(':')) return read_port(rest.substr(1));
  if (!rest.empty()) wrong(detail::in_quotes(rest) + " follows the bracket where :PORT belongs");
  if (rest.empty() && scheme_ == "tcp") wrong("it has no port: tcp://HOST:PORT");
}

inline void rendezvous_url::read_port(std::string_view text) {
  port_ = detail::number("port", text, 0, 65535);
  if (port_.is_wrong()) return wrong(port_.problem());
  port_ = sourced<std::int64_t>(*port_, "the URL");
}

inline void rendezvous_url::read_path(std::string_view authority, std::string_view path) {
  if (!authority.empty() && detail::lower(authority) != "localhost") {
    wrong("the path is not absolute: " + detail::in_quotes(authority) + " stands where a host does; three slashes begin a path: " + scheme_ +
          ":///" + std::string(authority) + std::string(path));
    return;
  }
  path_ = decoded(path);
  if (path_.empty()) return wrong("it has no path: " + scheme_ + ":///PATH");
  if (scheme_ == "file") return;
  if (const std::string problem = detail::unix_path_problem(path_); !problem.empty()) {
    host_ = sourced<std::string>::wrong(detail::in_quotes(path_) + " " + problem);
    wrong(host_.problem());
  } else {
    host_ = sourced<std::string>("unix:" + path_, "the URL");
  }
}

inline void rendezvous_url::read_query(std::string_view query) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    const std::string name = decoded(pair.substr(0, equals));
    if (equals == pair.npos) {
      wrong("?" + detail::show(name) + " has no value: " + detail::show(name) + "=...");
      continue;
    }
    std::string value = decoded(pair.substr(equals + 1));
    if (parameter(name)) {
      wrong("?" + detail::show(name) + " is given more than once");
      continue;
    }
    check_parameter(name);
    parameters_.emplace_back(name, std::move(value));
  }
}

inline void rendezvous_url::check_parameter(std::string const& name) {
  if (!is_ours()) return;
  std::string all;
  for (known_parameter const& p : known) {
    if (p.name == name && belongs(p, scheme_)) return;
    if (belongs(p, scheme_)) all += (all.empty() ? "" : ", ") + std::string(p.name);
  }
  wrong("there is no parameter " + detail::in_quotes(name) + " for " + scheme_ + "://, only " + all);
}

inline void rendezvous_url::check_values() {
  const auto check = [this](auto const& value) {
    if (value.is_wrong()) wrong(value.problem());
  };
  check(rank());
  check(world_size());
  check(timeout());
  check(generation());
  if (!is_ours()) return;
  check(bind());
  check(port_file());
  check(run_id());
  check(from());
}

inline std::string rendezvous_url::to_string() const {
  std::string out = scheme_ + "://";
  if (is_network()) {
    std::string host = host_.value_or("");
    const std::size_t percent = host.find('%');
    if (percent != host.npos) host = host.substr(0, percent) + "%25" + detail::percent_encoded(host.substr(percent + 1), "");
    if (host.find(':') != host.npos) host = "[" + host + "]";
    out += host;
    if (port_) out += ":" + std::to_string(*port_);
  } else {
    out += (is_path() ? std::string() : authority_) + detail::percent_encoded(path_, detail::path_characters);
  }
  char separator = '?';
  for (auto const& [name, value] : parameters_) {
    out += separator + detail::percent_encoded(name, "") + "=" + detail::percent_encoded(value, "/!$'()*+,;:@=");
    separator = '&';
  }
  return out;
}

}  // namespace v0
}  // namespace rollcall
