#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/result.hpp"
#include "values.hpp"

namespace rollcall {
inline namespace v0 {

namespace detail {

/// Slurm's short form of a list of host names (rendezvous.md 8.2):
///
///   list  = item *( "," item )
///   item  = 1*( text / "[" range *( "," range ) "]" )
///   range = number / number "-" number
///
/// Text is letters, digits and "._-". A name has at most 255 bytes, a list `most` names.
class node_list_reader {
 public:
  using names = std::vector<std::string>;
  static constexpr std::size_t most = 262144;
  static constexpr std::size_t longest = 255;

  explicit node_list_reader(std::string_view list) noexcept : list_(list) {}

  result<names> read() {
    if (list_.empty() || list_ == "(null)") return names();
    do {
      if (!read_item()) return failure(errc::invalid, "node list", "node list " + in_quotes(list_, 200) + ": " + problem_);
    } while (take(','));
    return std::move(all_);
  }

 private:
  bool wrong(std::string why) {
    problem_ = std::move(why) + " at character " + std::to_string(at_ + 1);
    return false;
  }
  [[nodiscard]] bool ended() const noexcept { return at_ == list_.size(); }
  [[nodiscard]] char next() const noexcept { return ended() ? '\0' : list_[at_]; }
  bool take(char c) noexcept {
    if (ended() || list_[at_] != c) return false;
    ++at_;
    return true;
  }

  /// The names of one item: all products of what its brackets hold, the leftmost bracket slowest.
  bool read_item() {
    if (ended() || next() == ',') return wrong("a name is missing");
    names made(1);
    while (!ended() && next() != ',') {
      names pieces;
      if (take('[')) {
        if (!read_ranges(pieces, made.size())) return false;
      } else {
        const std::size_t from = at_;
        while (!ended() && (is_letter(next()) || is_digit(next()) || std::string_view("._-").find(next()) != std::string_view::npos)) ++at_;
        if (at_ == from) return wrong(in_quotes(list_.substr(at_, 1)) + " is not part of a name");
        pieces.emplace_back(list_.substr(from, at_ - from));
      }
      names product;
      product.reserve(made.size() * pieces.size());
      for (std::string const& left : made)
        for (std::string const& right : pieces) product.push_back(left + right);
      if (std::any_of(product.begin(), product.end(), [](std::string const& n) { return n.size() > longest; }))
        return wrong("a name is longer than " + std::to_string(longest) + " characters");
      made = std::move(product);
    }
    if (all_.size() + made.size() > most) return too_many();
    std::move(made.begin(), made.end(), std::back_inserter(all_));
    return true;
  }

  /// What stands in one bracket, which is open. Each piece stands for `times` names.
  bool read_ranges(names& pieces, std::size_t times) {
    do {
      std::string_view low;
      if (!read_number(low)) return false;
      std::string_view high = low;
      if (take('-') && !read_number(high)) return false;
      if (next() == 'x') return wrong("the box form of three-dimensional machines is not supported");
      const std::int64_t first = *number("", low, 0, most_number);
      const std::int64_t last = *number("", high, 0, most_number);
      if (last < first) return wrong("the range " + std::string(low) + "-" + std::string(high) + " runs backwards");
      if (static_cast<std::uint64_t>(last - first) >= most / times - std::min(pieces.size(), most / times)) return too_many();
      for (std::int64_t n = first; n <= last; ++n) {
        std::string digits = std::to_string(n);
        // As wide as the low bound is written.
        if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
        pieces.push_back(std::move(digits));
      }
    } while (take(','));
    if (!take(']')) return wrong(ended() ? "a bracket is not closed" : in_quotes(list_.substr(at_, 1)) + " does not belong into a bracket");
    return true;
  }

  bool read_number(std::string_view& text) {
    const std::size_t from = at_;
    while (!ended() && is_digit(next())) ++at_;
    text = list_.substr(from, at_ - from);
    if (text.empty()) return wrong("a number is missing");
    if (text.size() > longest || !number("", text, 0, most_number)) return wrong("the number " + in_quotes(text, 40) + " is too large");
    return true;
  }
  bool too_many() {
    problem_ = "it has more than " + std::to_string(most) + " names";
    return false;
  }

  static constexpr std::int64_t most_number = 999'999'999'999'999;
  std::string_view list_;
  std::size_t at_ = 0;
  names all_;
  std::string problem_;
};

}  // namespace detail

/// The host names that a Slurm node list means: "n[08-10],login" is n08 n09 n10 login; "r[1-2]n[1-2]" is r1n1 r1n2 r2n1 r2n2. In the order
/// written, repeated ones kept; none for "" and "(null)".
///
/// errors    invalid: a bracket that is not closed, a range that runs backwards, more than 262144 names, ...: with the place.
[[nodiscard]] inline result<std::vector<std::string>> expand_node_list(std::string_view list) {
  return detail::node_list_reader(list).read();
}

/// Slurm's number of tasks on each node: "4(x3),2" is 4 4 4 2.
///
/// errors    invalid: another form, or more than 262144 nodes.
[[nodiscard]] inline result<std::vector<std::int64_t>> expand_tasks_per_node(std::string_view text) {
  const auto wrong = [text](std::string const& why) {
    return failure(errc::invalid, "tasks per node", "tasks per node " + detail::in_quotes(text, 200) + ": " + why);
  };
  std::vector<std::int64_t> all;
  for (std::string_view rest = text;;) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, end);
    const std::size_t open = std::min(item.find("(x"), item.size());
    const bool repeated = open < item.size();
    if (repeated && item.back() != ')') return wrong("a bracket is not closed");
    const std::string_view times = repeated ? item.substr(open + 2, item.size() - open - 3) : std::string_view("1");
    const sourced<std::int64_t> tasks = detail::number("", item.substr(0, open), 0, detail::most_ranks);
    const sourced<std::int64_t> nodes = detail::number("", times, 1, detail::most_ranks);
    if (!tasks || !nodes) return wrong(detail::in_quotes(item) + " is neither a number nor NUMBER(xNODES)");
    constexpr std::size_t most = detail::node_list_reader::most;
    if (static_cast<std::size_t>(*nodes) > most - all.size()) return wrong("it has more than " + std::to_string(most) + " nodes");
    all.insert(all.end(), static_cast<std::size_t>(*nodes), *tasks);
    if (end == rest.size()) return all;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace v0
}  // namespace rollcall
