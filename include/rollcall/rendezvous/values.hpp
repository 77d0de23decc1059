#pragma once
#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../core/clock.hpp"
#include "../core/error.hpp"
#include "../core/use_libuv.hpp"
#include "../posix/address.hpp"

namespace rollcall {
inline namespace v0 {

/// A value with where it came from; or what is wrong with what is there; or, where nothing is there, what would give it.
template <class T>
class sourced {
 public:
  sourced() = default;
  sourced(T value, std::string origin) : value_(std::move(value)), text_(std::move(origin)) {}
  /// Something is there, and cannot be used: nobody looks further.
  [[nodiscard]] static sourced wrong(std::string problem) { return without_value(true, std::move(problem)); }
  /// Nothing is there; `advice` says so and what to do.
  [[nodiscard]] static sourced missing(std::string advice) { return without_value(false, std::move(advice)); }

  [[nodiscard]] bool has_value() const noexcept { return value_.has_value(); }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] bool is_wrong() const noexcept { return wrong_; }
  /// Only where has_value().
  [[nodiscard]] T const& operator*() const noexcept { return *value_; }
  [[nodiscard]] T const* operator->() const noexcept { return &*value_; }
  [[nodiscard]] T value_or(T otherwise) const { return value_ ? *value_ : std::move(otherwise); }
  [[nodiscard]] std::optional<T> const& value() const noexcept { return value_; }
  /// Where the value came from: "RANK", "?rank of the URL"; "" without a value.
  [[nodiscard]] std::string origin() const { return value_ ? text_ : std::string(); }
  /// What is wrong or missing; "" with a value.
  [[nodiscard]] std::string problem() const { return value_ ? std::string() : text_; }

 private:
  static sourced without_value(bool is_wrong, std::string text) {
    sourced v;
    v.text_ = std::move(text);
    v.wrong_ = is_wrong;
    return v;
  }
  std::optional<T> value_;
  std::string text_;
  bool wrong_ = false;
};
static_assert(await_safe<sourced<std::string>>);

namespace detail {

/// The first that is there, wrong or not; else the last, whose advice is the best.
template <class T>
[[nodiscard]] sourced<T> first_there(sourced<T> const& first, sourced<T> const& second) {
  return first.has_value() || first.is_wrong() ? first : second;
}

inline constexpr std::int64_t most_ranks = 2147483647;

/// 'text', printable and of bounded length.
inline std::string in_quotes(std::string_view text, std::size_t limit = 80) {
  std::string out = "'";
  append_printable(out, text, limit);
  return out += "'";
}

inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool all_digits(std::string_view text) noexcept { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// A whole number in low..high, of decimal digits, perhaps with a minus. `name` is what an error calls it, and the origin.
inline sourced<std::int64_t> number(std::string const& name, std::string_view text, std::int64_t low, std::int64_t high) {
  using value = sourced<std::int64_t>;
  if (text.empty()) return value::wrong(name + " is empty");
  const bool minus = text.front() == '-';
  if (!all_digits(text.substr(minus ? 1 : 0))) return value::wrong(name + "=" + in_quotes(text) + " is not a whole number");
  std::int64_t n = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), n);
  if (parsed.ec != std::errc() || n < low || n > high)
    return value::wrong(name + "=" + in_quotes(text) + " is not in " + std::to_string(low) + ".." + std::to_string(high));
  return value(n, name);
}

/// What flag_value() takes. `place` follows the name in errors.
inline sourced<bool> on_off(std::string const& name, std::string_view text, char const* place) {
  if (text.empty()) return sourced<bool>::wrong(name + " is empty");
  const result<bool> read = flag_value(text, name + place);
  return read ? sourced<bool>(*read, name) : sourced<bool>::wrong(read.error().detail());
}

/// "30" (seconds), "0.5", "500ms", "30s", "5min", "1h"; above 0.
inline sourced<duration> time_limit(std::string const& name, std::string_view text) {
  using value = sourced<duration>;
  if (text.empty()) return value::wrong(name + " is empty");
  const std::string is = name + "=" + in_quotes(text);
  double n = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, n, std::chars_format::fixed);
  const std::string_view unit(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  const double scale = unit == "ms" ? 1e-3 : unit.empty() || unit == "s" ? 1.0 : unit == "min" ? 60.0 : unit == "h" ? 3600.0 : 0.0;
  if (!is_digit(text.front()) || parsed.ec != std::errc() || scale == 0.0)
    return value::wrong(is + " is not a time: a number of seconds, or one with ms, s, min or h");
  const double seconds = n * scale;
  if (seconds < 1e-3) return value::wrong(is + " is shorter than 1 ms; nothing waits for ever here, so 0 does not mean that");
  if (seconds > 1e9) return value::wrong(is + " is longer than 1000000000 s");
  return {saturate(std::chrono::duration<double>(seconds)), name};
}

/// An IPv6 address, perhaps with a zone.
inline bool is_ipv6(std::string_view text) {
  const std::size_t percent = text.find('%');
  if (percent != text.npos && percent + 1 == text.size()) return false;
  const std::string address(text.substr(0, percent));
  in6_addr parsed{};
  return address.find('\0') == address.npos && ::inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}
inline bool is_ipv4(std::string_view text) {
  const std::string address(text);
  in_addr parsed{};
  return address.find('\0') == address.npos && ::inet_pton(AF_INET, address.c_str(), &parsed) == 1;
}

/// What is wrong with a host's name or address, written without brackets; "" where nothing is.
inline std::string host_problem(std::string_view host) {
  if (host.empty()) return "is empty";
  if (is_ipv6(host) || is_ipv4(host)) return {};
  if (host.find(':') != host.npos) return "is not an IPv6 address";
  for (char c : host)
    if (!is_digit(c) && !is_letter(c) && c != '.' && c != '-' && c != '_') return "has " + in_quotes({&c, 1}) + " in it, which no host has";
  if (host.size() > 253) return "is longer than 253 characters";
  if (host.front() == '.' || host.front() == '-' || host.find("..") != host.npos) return "is not the name of a host";
  // A name that ends in a number is meant as an IPv4 address; the system would read some of them as quite another one.
  const std::string_view whole = host.substr(0, host.size() - (host.back() == '.' ? 1 : 0));
  if (all_digits(whole.substr(whole.rfind('.') + 1))) return "is not an IPv4 address";
  return {};
}

inline std::string_view without_brackets(std::string_view host) noexcept {
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return brackets ? host.substr(1, host.size() - 2) : host;
}

/// What is wrong with the path of a unix socket that is spelt unix:PATH, or "". Relative ones are another file for each process.
inline std::string unix_path_problem(std::string_view path) {
  constexpr std::size_t longest = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path.front() != '/' || path.back() == '/') return "is not the absolute path of a unix socket";
  if (path.find('\0') != path.npos) return "has a zero byte in it";
  if (path.size() > longest)
    return "has " + std::to_string(path.size()) + " bytes, and the system takes at most " + std::to_string(longest) + " for a unix socket";
  return {};
}
inline bool is_unix_host(std::string_view host) noexcept { return !unix_path_in(host).empty(); }

/// What tells a run from others; it may become the name of a file.
inline sourced<std::string> run_name(std::string const& name, std::string_view text) {
  using value = sourced<std::string>;
  if (text.empty()) return value::wrong(name + " is empty");
  const bool odd =
      std::any_of(text.begin(), text.end(), [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (odd || text.size() > 255 || text == "." || text == "..")
    return value::wrong(name + "=" + in_quotes(text) + " cannot be the name of a file: 1..255 characters without /");
  return value(std::string(text), name);
}

inline sourced<std::string> absolute_path(std::string const& name, std::string_view text) {
  using value = sourced<std::string>;
  if (text.empty()) return value::wrong(name + " is empty");
  if (text.front() != '/' || text.back() == '/') return value::wrong(name + "=" + in_quotes(text) + " is not the absolute path of a file");
  return value(std::string(text), name);
}

/// The prefix of all keys of one generation.
inline sourced<std::string> generation_name(std::string const& name, std::string_view text) {
  using value = sourced<std::string>;
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return is_letter(c) || is_digit(c) || std::string_view("._-").find(c) != std::string_view::npos;
  });
  if (text.empty() || text.size() > 128 || !plain) {
    return value::wrong(name + "=" + in_quotes(text) + " is not 1..128 letters, digits, dots, dashes and underscores");
  }
  return value(std::string(text), name);
}

/// What to listen on: a host, brackets around it or not, or * for all interfaces.
inline sourced<std::string> bind_host(std::string const& name, std::string_view text) {
  const std::string_view host = without_brackets(text);
  const std::string problem = host == "*" ? "" : host_problem(host);
  if (problem.empty()) return {std::string(host), name};
  return sourced<std::string>::wrong(name + "=" + in_quotes(text) + " " + problem + "; * means all interfaces");
}

/// Whether the text itself says "this machine", whatever a resolver would say.
inline bool is_loopback_literal(std::string_view host) {
  if (is_ipv4(host)) return host.starts_with("127.");
  in6_addr a{};
  const std::string text(host);
  return ::inet_pton(AF_INET6, text.c_str(), &a) == 1 && (IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127));
}
inline bool is_wildcard_literal(std::string_view host) {
  in6_addr a{};
  const std::string text(host);
  return host == "0.0.0.0" || (::inet_pton(AF_INET6, text.c_str(), &a) == 1 && IN6_IS_ADDR_UNSPECIFIED(&a));
}

/// One cause may spoil several values; it is told once.
inline void add_once(std::vector<std::string>& all, std::string text) {
  if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(std::move(text));
}

inline std::string spaced(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}
inline std::string show(std::int64_t n) { return std::to_string(n); }
inline std::string show(bool on) { return on ? "true" : "false"; }
inline std::string show(duration d) { return duration_text(d); }
inline std::string show(std::string const& text) {
  std::string out;
  append_printable(out, text, 255);
  return out;
}

/// One line of a description: what, which value, where it came from; or what is wrong. "" where there is nothing to tell.
template <class T>
std::string described(char const* name, sourced<T> const& v) {
  if (v.has_value()) return spaced(name, 18) + spaced(show(*v), 24) + "  " + v.origin() + "\n";
  const std::string problem = v.problem();
  return problem.empty() ? problem : spaced(name, 18) + spaced(v.is_wrong() ? "(wrong)" : "(missing)", 24) + "  " + problem + "\n";
}

}  // namespace detail

/// "node0:29500", "127.0.0.1:29500", "[::1]:29500"; "unix:/run/job/store", which has no port.
[[nodiscard]] inline std::string host_port(std::string_view host, std::int64_t port) {
  if (detail::is_unix_host(host)) return std::string(host);
  const bool brackets = host.find(':') != host.npos;
  return (brackets ? "[" : "") + std::string(host) + (brackets ? "]:" : ":") + std::to_string(port);
}

}  // namespace v0
}  // namespace rollcall
