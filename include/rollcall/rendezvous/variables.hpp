#pragma once
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "values.hpp"

namespace rollcall {
inline namespace v0 {

/// A list of environment variables: the process's, or any other.
class variables {
 public:
  variables() = default;

  /// A copy of this process's. Nothing else here looks at it. Not while another thread changes it.
  [[nodiscard]] static variables of_process() {
    variables v;
    if (!::environ) return v;
    for (char** each = ::environ; *each; ++each) {
      const std::string_view entry(*each);
      const std::size_t equals = entry.find('=');
      // Of a repeated name the first counts, as for getenv().
      if (equals != entry.npos) v.all_.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
    return v;
  }

  variables& set(std::string name, std::string value) { return all_.insert_or_assign(std::move(name), std::move(value)), *this; }
  variables& unset(std::string_view name) {
    if (const auto at = all_.find(name); at != all_.end()) all_.erase(at);
    return *this;
  }
  /// nullptr where it is not set; an empty value is one.
  [[nodiscard]] std::string const* find(std::string_view name) const {
    const auto at = all_.find(name);
    return at == all_.end() ? nullptr : &at->second;
  }
  /// Set, and not empty.
  [[nodiscard]] bool has(std::string_view name) const {
    std::string const* value = find(name);
    return value && !value->empty();
  }
  /// "" where it is not set.
  [[nodiscard]] std::string get(std::string_view name) const {
    std::string const* value = find(name);
    return value ? *value : std::string();
  }

  /// A whole number in low..high. An empty or bad value is wrong, an absent one missing.
  [[nodiscard]] sourced<std::int64_t> number(std::string_view name, std::int64_t low, std::int64_t high) const {
    std::string const* value = find(name);
    return value ? detail::number(std::string(name), *value, low, high) : absent<std::int64_t>(name);
  }
  [[nodiscard]] sourced<bool> on_off(std::string_view name) const {
    std::string const* value = find(name);
    return value ? detail::on_off(std::string(name), *value, " in the environment") : absent<bool>(name);
  }
  /// A host's name or address, brackets around it or not; or unix:PATH.
  [[nodiscard]] sourced<std::string> host(std::string_view name) const;
  /// 0..65535.
  [[nodiscard]] sourced<std::int64_t> port(std::string_view name) const;

 private:
  template <class T>
  static sourced<T> absent(std::string_view name) {
    return sourced<T>::missing(std::string(name) + " is not set");
  }
  std::map<std::string, std::string, std::less<>> all_;
};
static_assert(await_safe<variables>);

inline sourced<std::string> variables::host(std::string_view name) const {
  std::string const* value = find(name);
  if (!value) return absent<std::string>(name);
  const std::string is = std::string(name) + (value->empty() ? "" : "=" + detail::in_quotes(*value));
  if (const std::string_view path = detail::unix_path_in(*value); !path.empty()) {
    if (const std::string problem = detail::unix_path_problem(path); !problem.empty()) return sourced<std::string>::wrong(is + " " + problem);
    return {*value, std::string(name)};
  }
  if (value->find("://") != value->npos)
    return sourced<std::string>::wrong(is + " is a URL, and a host's name or address belongs here, without tcp:// and without a port");
  const std::string_view host = detail::without_brackets(*value);
  const std::string problem = detail::host_problem(host);
  if (problem.empty()) return {std::string(host), std::string(name)};
  const std::size_t colon = value->rfind(':');
  const bool has_port = colon != value->npos && detail::all_digits(std::string_view(*value).substr(colon + 1)) &&
                        detail::host_problem(detail::without_brackets(std::string_view(*value).substr(0, colon))).empty();
  return sourced<std::string>::wrong(is + " " + (has_port ? "has a port in it, which is said elsewhere" : problem));
}

inline sourced<std::int64_t> variables::port(std::string_view name) const {
  std::string const* value = find(name);
  if (!value) return absent<std::int64_t>(name);
  if (value->starts_with("tcp://")) {
    return sourced<std::int64_t>::wrong(
        std::string(name) + "=" + detail::in_quotes(*value) +
        " is not a port; Kubernetes sets it so for a Service of that name: enableServiceLinks: false in the "
        "pod's specification ends that");
  }
  return detail::number(std::string(name), *value, 0, 65535);
}

}  // namespace v0
}  // namespace rollcall
