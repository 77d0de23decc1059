#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bench {

using json = nlohmann::ordered_json;

/// What every subcommand knows of its command line.
struct settings {
  std::int64_t clients = 1000;
  int procs = 1;
  int runs = 1;
  std::string servers = "rollcall,floor";
  double limit = 120;  // s, of each operation
  bool pin = true;     // server on the first processor, load on the others
  [[nodiscard]] int server_cpu() const;
  [[nodiscard]] int load_cpu() const;
};

/// Machine, compiler, flags, commit: what figures mean nothing without.
[[nodiscard]] json machine();
/// The same in two lines.
[[nodiscard]] std::string machine_text();

/// Samples in ns; tells parts of them in µs.
class percentiles {
 public:
  explicit percentiles(std::vector<std::uint64_t> samples);
  [[nodiscard]] double us(double part) const noexcept;
  [[nodiscard]] json to_json() const;
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::uint64_t> sorted_;
};

[[nodiscard]] double median(std::vector<double> v);
/// How much more y there is for twice the x, between two points: 2 is linear, 4 quadratic.
[[nodiscard]] double doubling_ratio(double x1, double y1, double x2, double y2) noexcept;

/// y = base + slope x, by least squares of the relative errors.
struct line_fit {
  double base = 0;
  double slope = 0;
  double worst = 0;  // the largest relative error of a point
};
[[nodiscard]] line_fit fit_line(std::vector<double> const& x, std::vector<double> const& y);

/// Lines for people go through this; silent where JSON is wanted.
void say(std::string const& line);
void be_silent() noexcept;

// The subcommands. Each adds to `out`, and returns the exit status: 1 where something failed that must not.
int run_init(settings const& s, bool storm, std::int64_t inflight, json& out);
int run_barrier(settings const& s, std::string const& kind, int rounds, json& out);
int run_ops(settings const& s, std::int64_t each, json& out);
int run_large(settings const& s, std::int64_t keys, std::int64_t awaited, json& out);
int run_fanout(settings const& s, int rounds, json& out);
int run_idle(settings const& s, json& out);
int run_leave(settings const& s, std::int64_t from, json& out);
int run_client(settings const& s, std::int64_t times, json& out);
int run_scale(settings const& s, std::string const& kind, std::int64_t from, std::int64_t compare_up_to, json& out);

/// N waiters on N keys that leave at once, over streams in memory: CPU seconds of it.
[[nodiscard]] double leave_in_memory(std::int64_t clients);

}  // namespace bench
