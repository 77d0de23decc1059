#include <fmt/format.h>
#include <uv.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <rollcall/rollcall.hpp>
#include <string>
#include <vector>

#include "report.hpp"
#include "servers.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace bench {

namespace {

/// What is large: a WAIT of very many keys, and very many keys that are set and deleted.
class large_bench {
 public:
  large_bench(server_kind const& kind, int cpu) : server_(kind, cpu) {}

  /// Server CPU, in us a key, of one WAIT of `n` keys that exist already or, `pending`, come while it waits.
  double wait_for(std::int64_t n) {
    return run([this, n](rc::tcp_store s) { return wait_task(s, n); }) / static_cast<double>(n);
  }
  /// Server CPU, in us a key, of setting or deleting `n` keys.
  double set_all(std::int64_t n) {
    return run([this, n](rc::tcp_store s) { return in_streams(s, n, false); }) / static_cast<double>(n);
  }
  double delete_all(std::int64_t n) {
    return run([this, n](rc::tcp_store s) { return in_streams(s, n, true); }) / static_cast<double>(n);
  }
  [[nodiscard]] std::uint64_t keys() const { return server_.ask().keys; }

 private:
  static constexpr std::int64_t streams = 64;

  template <class F>
  double run(F f) {
    rc::loop loop;
    loop_ = &loop;
    rc::sync_wait(loop, connected(f));
    return server_cpu_us_;
  }
  template <class F>
  rc::task<> connected(F f) {
    rc::tcp_store store = co_await rc::tcp_store::connect(*loop_, "127.0.0.1", server_.port(), 1min);
    const std::uint64_t before = server_.cpu_ns();
    rc::task<> work = f(store);
    co_await std::move(work);
    co_await rc::sleep_for(20ms);
    server_cpu_us_ = static_cast<double>(server_.cpu_ns() - before) / 1000;
  }
  static std::string key_of(std::int64_t i) { return "large/" + std::to_string(i); }
  rc::task<> wait_task(rc::tcp_store store, std::int64_t n) {
    std::vector<std::string> keys;
    for (std::int64_t i = 0; i < n; ++i) keys.push_back(key_of(i));
    const rc::keys all(keys);
    co_await store.wait(all, 1min);
  }
  /// The same number of commands under way at any time, so that both are batched alike.
  rc::task<> in_streams(rc::tcp_store store, std::int64_t n, bool deletes) {
    rc::scope all(*loop_);
    for (std::int64_t i = 0; i < streams; ++i) all.spawn(one_stream(store, i, n, deletes));
    co_await all.join();
  }
  rc::task<> one_stream(rc::tcp_store store, std::int64_t first, std::int64_t n, bool deletes) {
    for (std::int64_t i = first; i < n; i += streams) {
      const std::string key = key_of(i);
      if (deletes) {
        const bool was_there = co_await store.delete_key(key, 1min);
        if (!was_there) throw rc::error(rc::errc::failed, "delete_key", key + " was not there");
      } else {
        co_await store.set(key, "value", 1min);
      }
    }
  }

  server_process server_;
  rc::loop* loop_ = nullptr;
  double server_cpu_us_ = 0;
};

}  // namespace

int run_large(settings const& s, std::int64_t keys, std::int64_t awaited, json& out) {
  bool fine = true;
  server_kind const& ours = servers().front();
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = std::min<std::int64_t>(awaited, 16384); n < awaited; n *= 2) sizes.push_back(n);
  sizes.push_back(awaited);
  std::vector<double> took;
  for (const std::int64_t n : sizes) {
    std::vector<double> each;
    for (int run = 0; run < s.runs; ++run) {
      large_bench b(ours, s.server_cpu());
      b.set_all(n);
      each.push_back(b.wait_for(n));
    }
    took.push_back(median(each));
    std::string ratio;
    const auto count = static_cast<double>(n);
    if (took.size() > 1) {
      const auto before = static_cast<double>(sizes[took.size() - 2]);
      const double r = doubling_ratio(before, before * took[took.size() - 2], count, count * took.back());
      ratio = fmt::format(", doubling ratio {:.2f}", r);
      out["wait_doubling_ratio"].push_back(r);
    }
    say(fmt::format("one WAIT of {} keys: server CPU {:.3f} us a key{}", n, took.back(), ratio));
    json row;
    row["keys"] = n;
    row["server_cpu_us_per_key"] = took.back();
    out["wait"].push_back(row);
  }
  std::vector<double> sets, deletes;
  std::uint64_t left = 0;
  for (int run = 0; run < s.runs; ++run) {
    large_bench b(ours, s.server_cpu());
    sets.push_back(b.set_all(keys));
    if (b.keys() != static_cast<std::uint64_t>(keys)) fine = false;
    deletes.push_back(b.delete_all(keys));
    left += b.keys();
  }
  out["set_us_per_key"] = median(sets);
  out["delete_us_per_key"] = median(deletes);
  out["keys"] = keys;
  out["keys_left"] = left;
  fine = fine && left == 0;
  say(fmt::format("{} keys: server CPU {:.3f} us to set one, {:.3f} to delete one; {} are left", keys, median(sets), median(deletes), left));
  return fine ? 0 : 1;
}

}  // namespace bench
