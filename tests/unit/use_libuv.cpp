#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <rollcall/core/use_libuv.hpp>

namespace {
namespace rc = rollcall;
using text = std::optional<std::string_view>;

const std::optional<bool> no_argument;
const text unset;

/// USE_LIBUV for one scope.
class environment {
 public:
  explicit environment(char const* value) {
    if (char const* now = std::getenv("USE_LIBUV")) before_ = now;
    value ? ::setenv("USE_LIBUV", value, 1) : ::unsetenv("USE_LIBUV");
  }
  environment(environment const&) = delete;
  environment& operator=(environment const&) = delete;
  ~environment() { before_ ? ::setenv("USE_LIBUV", before_->c_str(), 1) : ::unsetenv("USE_LIBUV"); }

 private:
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("the argument comes before the URL, the URL before the environment, and libuv is what nobody spoke of") {
  // Each source unset, 0 and 1: all 27, in the order argument, URL, environment. The last column is the back end: 1 is libuv.
  struct row {
    char argument, query, environment;
    bool libuv;
  };
  constexpr row table[] = {
      {'-', '-', '-', true},  {'-', '-', '0', false}, {'-', '-', '1', true},   //
      {'-', '0', '-', false}, {'-', '0', '0', false}, {'-', '0', '1', false},  //
      {'-', '1', '-', true},  {'-', '1', '0', true},  {'-', '1', '1', true},   //
      {'0', '-', '-', false}, {'0', '-', '0', false}, {'0', '-', '1', false},  //
      {'0', '0', '-', false}, {'0', '0', '0', false}, {'0', '0', '1', false},  //
      {'0', '1', '-', false}, {'0', '1', '0', false}, {'0', '1', '1', false},  //
      {'1', '-', '-', true},  {'1', '-', '0', true},  {'1', '-', '1', true},   //
      {'1', '0', '-', true},  {'1', '0', '0', true},  {'1', '0', '1', true},   //
      {'1', '1', '-', true},  {'1', '1', '0', true},  {'1', '1', '1', true},
  };
  static_assert(sizeof table / sizeof *table == 27);
  const auto as_text = [](char const& c) { return c == '-' ? unset : text(std::string_view(&c, 1)); };
  for (row const& r : table) {
    CAPTURE(r.argument);
    CAPTURE(r.query);
    CAPTURE(r.environment);
    const std::optional<bool> argument = r.argument == '-' ? no_argument : std::optional<bool>(r.argument == '1');
    CHECK(rc::choose_use_libuv(argument, as_text(r.query), as_text(r.environment)).value() == r.libuv);
    const char value[] = {r.environment, '\0'};
    const environment set(r.environment == '-' ? nullptr : value);
    CHECK(rc::choose_use_libuv(argument, as_text(r.query)).value() == r.libuv);
  }
}

TEST_CASE("yes and no have four spellings each, in any case") {
  for (char const* yes : {"1", "true", "TRUE", "True", "yes", "YES", "on", "oN"}) CHECK(rc::flag_value(yes, "x").value());
  for (char const* no : {"0", "false", "FALSE", "no", "No", "off", "OFF"}) CHECK_FALSE(rc::flag_value(no, "x").value());
}

TEST_CASE("anything else is an error that names the source and the value") {
  for (char const* wrong : {"", "maybe", "2", "01", "true ", " 1", "y", "enable", "\xff"}) {
    CAPTURE(wrong);
    const auto r = rc::choose_use_libuv(no_argument, unset, wrong);
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().code() == rc::errc::invalid);
    CHECK(r.error().message().find("USE_LIBUV in the environment") != std::string::npos);
  }
  CHECK(rc::choose_use_libuv(no_argument, unset, "maybe").error().message().find("'maybe'") != std::string::npos);
  const std::string from_url = rc::choose_use_libuv(no_argument, "perhaps", "1").error().message();
  CHECK(from_url.find("?use_libuv=") != std::string::npos);
  CHECK(from_url.find("'perhaps'") != std::string::npos);
  CHECK(rc::flag_value("si", "--use-libuv").error().message().find("--use-libuv is 'si'") != std::string::npos);
}

TEST_CASE("only the source that decides is judged") {
  CHECK(rc::choose_use_libuv(true, "nonsense", "nonsense").value());
  CHECK_FALSE(rc::choose_use_libuv(no_argument, "off", "nonsense").value());
  const environment set("nonsense");
  CHECK_FALSE(rc::choose_use_libuv(false).value());
  CHECK_FALSE(rc::choose_use_libuv(no_argument).has_value());
}
