#include "report.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <uv.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <rollcall/version.hpp>
#include <thread>

#include "commit.hpp"

namespace bench {

namespace {

bool silent = false;

std::string line_of(char const* file, std::string const& start) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.compare(0, start.size(), start) == 0) return line.substr(line.find_first_not_of(" \t:", start.size()));
  return "unknown";
}
std::string first_word(char const* file) {
  std::string word = "unknown";
  std::ifstream(file) >> word;
  return word;
}

constexpr char const* compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}
constexpr char const* assertions() {
#ifdef NDEBUG
  return "off";
#else
  return "on";
#endif
}

}  // namespace

int settings::server_cpu() const { return pin && std::thread::hardware_concurrency() > 1 ? 0 : -1; }
int settings::load_cpu() const { return pin && std::thread::hardware_concurrency() == 2 ? 1 : -1; }

json machine() {
  utsname u{};
  uname(&u);
  json m;
  m["processor"] = line_of("/proc/cpuinfo", "model name");
  m["processors"] = std::thread::hardware_concurrency();
  m["memory_mib"] = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / (1 << 20);
  m["kernel"] = std::string(u.sysname) + " " + u.release;
  m["somaxconn"] = first_word("/proc/sys/net/core/somaxconn");
  m["compiler"] = compiler();
  m["flags"] = ROLLCALL_BENCH_FLAGS;
  m["assertions"] = assertions();
  m["libuv"] = uv_version_string();
  m["commit"] = ROLLCALL_BENCH_COMMIT;
  return m;
}

std::string machine_text() {
  const json m = machine();
  return fmt::format("{} x {}, {} MiB, {}, somaxconn {}\n{}, {}, assertions {}, libuv {}, commit {}", m["processors"].get<unsigned>(),
                     m["processor"].get<std::string>(), m["memory_mib"].get<std::int64_t>(), m["kernel"].get<std::string>(),
                     m["somaxconn"].get<std::string>(), m["compiler"].get<std::string>(), m["flags"].get<std::string>(),
                     m["assertions"].get<std::string>(), m["libuv"].get<std::string>(), m["commit"].get<std::string>());
}

percentiles::percentiles(std::vector<std::uint64_t> samples) : sorted_(std::move(samples)) { std::sort(sorted_.begin(), sorted_.end()); }
double percentiles::us(double part) const noexcept {
  if (sorted_.empty()) return std::nan("");
  const auto i = static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted_.size())));
  return static_cast<double>(sorted_[i > 0 ? i - 1 : 0]) / 1000;
}
json percentiles::to_json() const {
  json p;
  p["samples"] = sorted_.size();
  p["p50_us"] = us(0.5);
  p["p99_us"] = us(0.99);
  p["p99.9_us"] = us(0.999);
  p["max_us"] = us(1);
  return p;
}
std::string percentiles::text() const {
  return fmt::format("p50 {:.1f} us, p99 {:.1f}, p99.9 {:.1f}, max {:.1f}", us(0.5), us(0.99), us(0.999), us(1));
}

double median(std::vector<double> v) {
  if (v.empty()) return std::nan("");
  std::sort(v.begin(), v.end());
  return v.size() % 2 == 1 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

double doubling_ratio(double x1, double y1, double x2, double y2) noexcept { return std::pow(y2 / y1, 1 / std::log2(x2 / x1)); }

line_fit fit_line(std::vector<double> const& x, std::vector<double> const& y) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double weight = y[i] > 0 ? 1 / (y[i] * y[i]) : 1;
    w += weight;
    wx += weight * x[i];
    wy += weight * y[i];
    wxx += weight * x[i] * x[i];
    wxy += weight * x[i] * y[i];
  }
  line_fit f;
  f.slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  f.base = (wy - f.slope * wx) / w;
  for (std::size_t i = 0; i < x.size(); ++i) f.worst = std::max(f.worst, std::abs(f.base + f.slope * x[i] - y[i]) / std::max(y[i], 1e-300));
  return f;
}

void say(std::string const& line) {
  if (silent) return;
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}
void be_silent() noexcept { silent = true; }

}  // namespace bench
