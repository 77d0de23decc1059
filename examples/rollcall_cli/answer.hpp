#pragma once
// What a command found out, and the three ways to print it: text, --raw, --json.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <rollcall/barrier.hpp>
#include <rollcall/core/error.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cli {

namespace rc = rollcall;

enum class format { text, raw, json };

/// Where answers go, and how.
class output {
 public:
  output(format f, bool open) noexcept : how(f), is_open(open) {}
  format how;
  bool is_open;  // standard output was there when the program started
};

/// The exit status says it without words.
enum status : int { ok = 0, negative = 1, usage = 2, timed_out = 3, connection = 4 };

[[nodiscard]] inline status status_of(rc::errc code) noexcept {
  switch (code) {
    case rc::errc::failed: return negative;
    case rc::errc::invalid:
    case rc::errc::limit: return usage;
    case rc::errc::timed_out: return timed_out;
    default: return connection;
  }
}
/// Where nobody answered, the time is over; where somebody refused all the time, there is no store.
[[nodiscard]] inline status status_of(rc::error const& e) noexcept {
  const bool silence = e.code() == rc::errc::refused && e.info().system_error() == ETIMEDOUT;
  return silence ? timed_out : status_of(e.code());
}

/// A value as it is stored: any bytes.
class bytes {
 public:
  bytes() = default;
  explicit bytes(std::string d, bool is_there = true) : data(std::move(d)), there(is_there) {}
  std::string data;
  bool there = true;  // false in a list: no such key; JSON's null, to keep the others' places
};

/// `none` prints nothing as text.
class answer {
 public:
  using none = std::monostate;
  using any = std::variant<none, bool, std::int64_t, double, bytes, std::vector<bytes>>;

  answer() = default;
  explicit answer(any v, status s = ok) : value(std::move(v)), exit(s) {}
  answer& with_name(char const* n) noexcept { return name = n, *this; }
  /// What else is to be said; on standard error unless --json.
  answer& with_remark(std::string r) { return remark = std::move(r), *this; }

  any value;
  status exit = ok;
  char const* name = "value";
  std::string remark;
};

/// Length of the UTF-8 character that `text` begins with, 0 where there is none.
[[nodiscard]] inline std::size_t character(std::string_view text) noexcept {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t n = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  if (n == 0 || text.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  // Overlong forms, surrogates, and what is past U+10FFFF.
  if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) > 0x9f) || (first == 0xf0 && at(1) < 0x90) ||
      (first == 0xf4 && at(1) > 0x8f))
    return 0;
  return n;
}
[[nodiscard]] inline bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t n = character(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

/// Text as it is; what a terminal would take for a command, and bytes that are no UTF-8, as \xNN. The end of a line too, where `text`
/// must stay on one.
[[nodiscard]] inline std::string printable(std::string_view text, bool one_line = false) {
  std::string out;
  while (!text.empty()) {
    const std::size_t n = character(text);
    const auto c = static_cast<unsigned char>(text.front());
    const bool control = (c < 0x20 && c != '\t' && (c != '\n' || one_line)) || c == 0x7f ||
                         (n == 2 && c == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0);
    const std::size_t taken = n == 0 ? 1 : n;
    if (n == 0 || control) {
      for (std::size_t i = 0; i < taken; ++i) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    } else {
      out.append(text.substr(0, n));
    }
    text.remove_prefix(taken);
  }
  return out;
}

namespace detail {

class as_text {
 public:
  std::string operator()(answer::none) const { return {}; }
  std::string operator()(bool b) const { return b ? "true\n" : "false\n"; }
  std::string operator()(std::int64_t n) const { return fmt::format("{}\n", n); }
  std::string operator()(double d) const { return fmt::format("{:.6f}\n", d); }
  std::string operator()(bytes const& b) const { return printable(b.data) + "\n"; }
  std::string operator()(std::vector<bytes> const& list) const {
    std::string all;
    for (bytes const& b : list)
      if (b.there) all += printable(b.data, true) + "\n";
    return all;
  }
};

/// Bytes as they are and nothing else; each of several ends with a zero byte.
class as_raw : public as_text {
 public:
  using as_text::operator();
  std::string operator()(bytes const& b) const { return b.data; }
  std::string operator()(std::vector<bytes> const& list) const {
    std::string all;
    for (bytes const& b : list)
      if (b.there) all += b.data + '\0';
    return all;
  }
};

/// A string; what is no UTF-8 as {"base64": "..."}.
inline nlohmann::json json_of(std::string const& data) {
  if (is_utf8(data)) return data;
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < data.size(); i += 3) {
    const auto at = [&](std::size_t k) { return i + k < data.size() ? static_cast<unsigned char>(data[i + k]) : 0U; };
    const unsigned group = at(0) << 16 | at(1) << 8 | at(2);
    for (std::size_t k = 0; k < 4; ++k) text += i + k <= data.size() ? digits[group >> (18 - 6 * k) & 63] : '=';
  }
  nlohmann::json coded;
  coded["base64"] = text;
  return coded;
}
class as_json {
 public:
  nlohmann::json operator()(answer::none) const { return nullptr; }
  nlohmann::json operator()(bool b) const { return b; }
  nlohmann::json operator()(std::int64_t n) const { return n; }
  nlohmann::json operator()(double d) const { return d; }
  nlohmann::json operator()(bytes const& b) const { return json_of(b.data); }
  nlohmann::json operator()(std::vector<bytes> const& list) const {
    nlohmann::json all = nlohmann::json::array();
    for (bytes const& b : list) all.push_back(b.there ? json_of(b.data) : nlohmann::json());
    return all;
  }
};

inline void put(std::FILE* to, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

/// Writes the answer, or tells why it cannot be written. Gives the exit status: `s`, unless that would say that all is well.
inline status put_answer(output const& to, std::string_view text, status s) {
  if (text.empty()) return s;
  errno = EBADF;
  if (to.is_open && std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return s;
  put(stderr, fmt::format("rollcall-cli: standard output does not take the answer: {}\n", std::strerror(errno)));
  return s == ok ? connection : s;
}

}  // namespace detail

/// Prints the answer to standard output and what else there is to say to standard error. Gives the exit status.
inline int print(answer const& a, output const& to) {
  if (to.how == format::json) {
    nlohmann::json line;
    line["ok"] = a.exit == ok;
    if (!std::holds_alternative<answer::none>(a.value)) line[a.name] = std::visit(detail::as_json(), a.value);
    if (!a.remark.empty()) line["remark"] = detail::json_of(a.remark);
    return detail::put_answer(to, line.dump() + "\n", a.exit);
  }
  const std::string text = to.how == format::raw ? std::visit(detail::as_raw(), a.value) : std::visit(detail::as_text(), a.value);
  const status told = detail::put_answer(to, text, a.exit);
  if (!a.remark.empty()) detail::put(stderr, "rollcall-cli: " + a.remark + "\n");
  return told;
}

/// The same for what went wrong.
inline int print(rc::error const& e, output const& to) {
  if (to.how == format::json) {
    nlohmann::json about;
    std::string code(to_string(e.code()));
    std::replace(code.begin(), code.end(), ' ', '_');
    about["code"] = code;
    about["effect"] = std::string(to_string(e.effect()));
    about["message"] = e.what();
    about["keys"] = nlohmann::json::array();
    for (std::string const& k : e.info().keys()) about["keys"].push_back(detail::json_of(k));
    if (auto const* b = dynamic_cast<rc::barrier_error const*>(&e)) about["missing"] = b->missing();
    nlohmann::json line;
    line["ok"] = false;
    line["error"] = std::move(about);
    return detail::put_answer(to, line.dump() + "\n", status_of(e));
  }
  // The wire has no error to answer with.
  const bool no_number = e.code() == rc::errc::disconnected && e.info().operation() == "add";
  detail::put(stderr, fmt::format("rollcall-cli: {}{}\n", e.what(), no_number ? "; is the value no number, or the sum past 64 bits?" : ""));
  return status_of(e);
}

}  // namespace cli
