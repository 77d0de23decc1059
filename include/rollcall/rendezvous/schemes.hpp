#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../rt/loop.hpp"
#include "../rt/task.hpp"
#include "../stores/store.hpp"
#include "plan.hpp"

namespace rollcall {
inline namespace v0 {

/// Schemes of rendezvous URLs beside tcp, unix, file, env and auto: an object that its user fills and passes on, so that nothing is global.
///
///   rc::rendezvous_schemes mine;
///   mine.add("etcd", [](rc::loop& l, rc::rendezvous_plan p, rc::deadline d) { return open_etcd(l, std::move(p), d); });
///   co_await rc::rendezvous(loop, "etcd://h:2379/job", rc::rendezvous_options().schemes(mine).rank(0).world_size(8));
class rendezvous_schemes {
 public:
  /// Opens one rank's store. The plan has the URL taken apart, rank and world size that are right, and where each value came from; judges
  /// the parameters of the URL that it takes. A plain function that returns a task, or a coroutine without captures.
  using opener = std::function<task<any_store>(loop& l, rendezvous_plan plan, deadline limit)>;

  rendezvous_schemes() = default;

  /// name      in lower case: a letter, then letters, digits, '+', '-', '.'.
  /// errors    invalid for another name, for tcp, unix, file, env and auto, for one that is there already, for an empty function.
  rendezvous_schemes& add(std::string_view name, opener open) {
    const auto refuse = [&](std::string why) {
      throw error(errc::invalid, "add a scheme", detail::in_quotes(name) + " " + std::move(why));
    };
    const bool plain = std::all_of(
        name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || detail::is_digit(c) || c == '+' || c == '-' || c == '.'; });
    if (name.empty() || !plain || !detail::is_letter(name.front()))
      refuse("is no scheme: a letter comes first, then letters, digits, +, - and ., in lower case");
    for (char const* own : {"tcp", "unix", "file", "env", "auto"})
      if (name == own) refuse("is one of rollcall's own");
    if (find(name)) refuse("is there already");
    if (!open) refuse("has no function that opens it");
    all_.emplace_back(name, std::move(open));
    return *this;
  }
  [[nodiscard]] opener const* find(std::string_view name) const noexcept {
    for (auto const& [known, open] : all_)
      if (known == name) return &open;
    return nullptr;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (auto const& each : all_) names.push_back(each.first);
    return names;
  }

 private:
  std::vector<std::pair<std::string, opener>> all_;
};
static_assert(await_safe<rendezvous_schemes>);

}  // namespace v0
}  // namespace rollcall
