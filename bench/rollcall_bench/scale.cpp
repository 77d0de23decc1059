#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <rollcall/test/memory_stream.hpp>
#include <stdexcept>

#include "load.hpp"
#include "members.hpp"
#include "memory_ends.hpp"
#include "report.hpp"
#include "servers.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace bench {

namespace {

/// What happened between two moments.
struct counts {
  double requests = 0;
  double bytes_to_server = 0;
  double bytes_to_clients = 0;
  double allocations = 0;  // of both sides
  double cpu_us = 0;       // of both sides
};

/// A server and its clients on one loop, in memory and on virtual time.
class house {
 public:
  explicit house(std::int64_t clients)
      : time_(loop_), members_(static_cast<std::size_t>(clients)), clients_(clients), core_(loop_.core(), rc::serve_options{}.max_connections(SIZE_MAX).store(roomy()).stats(&stats_)) {}
  house(house const&) = delete;
  house& operator=(house const&) = delete;
  ~house() {
    all_.reset();
    members_.clear();
    time_.settle();
  }

  counts connect() {
    return counted([this] {
      for (std::size_t i = 0; i < members_.size(); ++i) all().spawn(connect_one(i));
      finish();
    });
  }
  /// All but the last rank arrive, then the last one.
  counts meet(barrier_kind kind) {
    return counted([this, kind] {
      passed_ = 0;
      for (std::size_t i = 0; i + 1 < members_.size(); ++i) all().spawn(arrive(i, kind));
      time_.settle();
      time_.run_for(1s);
      if (core_.store().stats().waits != static_cast<std::uint64_t>(clients_ - 1)) throw std::runtime_error("not all wait for the last one");
      all().spawn(arrive(members_.size() - 1, kind));
      finish();
      if (passed_ != clients_) throw std::runtime_error("not all have passed the barrier");
    });
  }
  void wait_for_own_keys() {
    for (std::size_t i = 0; i < members_.size(); ++i) all().spawn(wait_one(i));
    time_.settle();
    if (core_.store().stats().waits != static_cast<std::uint64_t>(clients_)) throw std::runtime_error("not all wait");
  }
  counts leave() {
    return counted([this] {
      for (auto& m : members_) m->store().close();
      time_.settle();
      if (core_.connections() != 0) throw std::runtime_error("not all have left");
    });
  }

 private:
  /// The arrivals of a million ranks are one value, and their waits one connection's at the most.
  static rc::engine::store_options roomy() {
    rc::engine::store_options o;
    return o.appended_bytes(SIZE_MAX).reply_bytes(SIZE_MAX);
  }
  template <class F>
  counts counted(F f) {
    const allocation_counts memory = allocations();
    const rc::server_stats before = stats_;
    const traffic seen = at_clients_;
    const std::uint64_t cpu = thread_cpu_ns();
    f();
    counts c;
    c.cpu_us = static_cast<double>(thread_cpu_ns() - cpu) / 1000;
    c.allocations = static_cast<double>(allocations().calls - memory.calls);
    c.requests = static_cast<double>(stats_.requests - before.requests);
    c.bytes_to_server = static_cast<double>(at_clients_.bytes_written - seen.bytes_written);
    c.bytes_to_clients = static_cast<double>(at_clients_.bytes_read - seen.bytes_read);
    return c;
  }
  rc::scope& all() {
    if (!all_) all_.emplace(loop_);
    return *all_;
  }
  void finish() {
    bool joined = false;
    std::string problem;
    rc::start(loop_, all().join(), [&](rc::result<void> const& r) {
      joined = true;
      if (!r) problem = rc::error(r.shared()).what();
    });
    time_.settle();
    if (!joined) throw std::runtime_error("a step does not come to its end");
    if (!problem.empty()) throw std::runtime_error(problem);
    all_.reset();
  }
  rc::task<> connect_one(std::size_t i) {
    auto* const near = new memory_end(loop_.core(), at_clients_);
    auto* const far = new memory_end(loop_.core(), at_server_);
    memory_end::join(*near, *far);
    core_.attach(rc::net::stream_ptr(far));
    const auto rank = static_cast<std::int64_t>(i);
    rc::tcp_store store = co_await rc::tcp_store::over(loop_, rc::net::stream_ptr(near), 1min, rc::client_options{}, nullptr, identity_of(rank));
    members_[i].emplace(store, rank, clients_, true);
  }
  rc::task<> arrive(std::size_t i, barrier_kind kind) {
    rc::task<> one = members_[i]->pass(kind, 0, 1h);
    co_await std::move(one);
    ++passed_;
  }
  rc::task<> wait_one(std::size_t i) {
    const std::string key = "wait/" + std::to_string(i);
    static_cast<void>(co_await rc::as_result(members_[i]->store().wait(key)));
  }

  rc::loop loop_;
  rc::test::virtual_time time_;
  rc::server_stats stats_;
  traffic at_clients_;
  traffic at_server_;
  std::optional<rc::scope> all_;
  std::vector<std::optional<meeting>> members_;
  std::int64_t clients_;
  std::int64_t passed_ = 0;
  rc::detail::server_core core_;
};

struct run_counts {
  counts connect;
  counts barrier;
};

run_counts in_memory(std::int64_t n, barrier_kind kind) {
  house h(n);
  run_counts c;
  c.connect = h.connect();
  c.barrier = h.meet(kind);
  h.leave();
  return c;
}

run_counts over_sockets(settings const& s, std::int64_t n, barrier_kind kind) {
  server_process server(servers().front(), s.server_cpu());
  crowd who;
  who.port = server.port();
  who.count = who.world = n;
  who.limit = s.limit;
  who.counted = true;
  load all(who, 1, s.load_cpu());
  const auto step_of = [&](order o) {
    outcome_of_all result = all.run(o);
    if (result.failed > 0) throw std::runtime_error(result.error);
    return result;
  };
  const auto difference = [](server_report const& r0, std::uint64_t cpu0, server_report const& r1, std::uint64_t cpu1) {
    counts c;
    c.requests = static_cast<double>(r1.requests - r0.requests);
    c.allocations = static_cast<double>(r1.memory.calls - r0.memory.calls);
    c.cpu_us = static_cast<double>(cpu1 - cpu0) / 1000;
    return c;
  };
  const auto add = [](counts& c, outcome_of_all const& o) {
    c.allocations += static_cast<double>(o.allocations);
    c.cpu_us += static_cast<double>(o.cpu_ns) / 1000;
  };
  run_counts of;
  const server_report at_start = server.ask();
  const std::uint64_t cpu_at_start = server.cpu_ns();
  order o;
  o.what = step::connect;
  o.number = 256;
  const outcome_of_all connected = step_of(o);
  order quiet;  // the last answers of the handshakes
  quiet.what = step::arrive;
  const outcome_of_all rest = step_of(quiet);
  const server_report stands = server.ask();
  const std::uint64_t cpu_stands = server.cpu_ns();
  of.connect = difference(at_start, cpu_at_start, stands, cpu_stands);
  add(of.connect, connected);
  of.connect.bytes_to_server = static_cast<double>(rest.bytes_sent);
  of.connect.bytes_to_clients = static_cast<double>(rest.bytes_received);

  o.what = step::arrive;
  o.kind = kind;
  o.number = n - 1;
  const outcome_of_all most = step_of(o);
  if (server.ask_until([n](server_report const& r) { return r.waits == static_cast<std::uint64_t>(n - 1); }).waits != static_cast<std::uint64_t>(n - 1))
    throw std::runtime_error("not all wait for the last one");
  o.first = n - 1;
  o.number = 1;
  const outcome_of_all last = step_of(o);
  o.what = step::collect;
  const outcome_of_all over = step_of(o);
  if (over.done != static_cast<std::uint64_t>(n)) throw std::runtime_error("not all have passed the barrier");
  of.barrier = difference(stands, cpu_stands, server.ask(), server.cpu_ns());
  add(of.barrier, most);
  add(of.barrier, last);
  add(of.barrier, over);
  of.barrier.bytes_to_server = static_cast<double>(over.bytes_sent - rest.bytes_sent);
  of.barrier.bytes_to_clients = static_cast<double>(over.bytes_received - rest.bytes_received);
  return of;
}

json to_json(counts const& c) {
  json j;
  j["requests"] = static_cast<std::int64_t>(c.requests);
  j["bytes_to_server"] = static_cast<std::int64_t>(c.bytes_to_server);
  j["bytes_to_clients"] = static_cast<std::int64_t>(c.bytes_to_clients);
  j["allocations"] = static_cast<std::int64_t>(c.allocations);
  j["cpu_us"] = c.cpu_us;
  return j;
}

std::string text_of(counts const& c, std::int64_t n) {
  const auto each = [n](double x) { return x / static_cast<double>(n); };
  return fmt::format("{:.0f} requests ({:.4f} each), {:.0f} B to the server ({:.1f}), {:.0f} B to the ranks ({:.1f}), {:.0f} allocations ({:.2f}), CPU {:.2f} us each",
                     c.requests, each(c.requests), c.bytes_to_server, each(c.bytes_to_server), c.bytes_to_clients, each(c.bytes_to_clients),
                     c.allocations, each(c.allocations), each(c.cpu_us));
}

/// Messages and bytes the same, allocations within 2 %.
bool agree(counts const& a, counts const& b) {
  return a.requests == b.requests && a.bytes_to_server == b.bytes_to_server && a.bytes_to_clients == b.bytes_to_clients;
}
bool allocations_agree(counts const& a, counts const& b) { return std::abs(a.allocations - b.allocations) <= 0.02 * std::max(a.allocations, b.allocations); }

}  // namespace

double leave_in_memory(std::int64_t clients) {
  house h(clients);
  h.connect();
  h.wait_for_own_keys();
  return h.leave().cpu_us / 1e6;
}

int run_scale(settings const& s, std::string const& kind_name, std::int64_t from, std::int64_t compare_up_to, json& out) {
  const barrier_kind kind = kind_name == "roll" ? barrier_kind::roll : barrier_kind::store_based;
  bool fine = true;
  std::vector<double> x;
  std::vector<counts> connects, barriers;
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = std::min(from, s.clients); n < s.clients; n *= 4) sizes.push_back(n);
  sizes.push_back(s.clients);
  for (const std::int64_t n : sizes) {
    const run_counts memory = in_memory(n, kind);
    x.push_back(static_cast<double>(n));
    connects.push_back(memory.connect);
    barriers.push_back(memory.barrier);
    json row;
    row["ranks"] = n;
    row["connect"] = to_json(memory.connect);
    row["barrier"] = to_json(memory.barrier);
    say(fmt::format("{:>8} ranks connect: {}", n, text_of(memory.connect, n)));
    say(fmt::format("{:>8} ranks meet:    {}", n, text_of(memory.barrier, n)));
    if (n <= compare_up_to) {
      const run_counts sockets = over_sockets(s, n, kind);
      const bool same = agree(memory.connect, sockets.connect) && agree(memory.barrier, sockets.barrier);
      const bool close = allocations_agree(memory.barrier, sockets.barrier);
      row["sockets"]["connect"] = to_json(sockets.connect);
      row["sockets"]["barrier"] = to_json(sockets.barrier);
      row["sockets"]["messages_and_bytes_equal"] = same;
      row["sockets"]["allocations_within_2_percent"] = close;
      if (!same) {
        say(fmt::format("{:>8} over sockets, connect: {}", n, text_of(sockets.connect, n)));
      }
      say(fmt::format("{:>8} over sockets:  {}", n, text_of(sockets.barrier, n)));
      say(fmt::format("{:>8} messages and bytes {}, allocations of the barrier {}", n, same ? "are the same" : "DIFFER",
                      close ? "within 2 %" : "DIFFER by more than 2 %"));
      fine = fine && same && close;
    }
    out["rows"].push_back(row);
  }
  const auto fit = [&](char const* name, std::vector<counts> const& of, char const* what, double counts::*figure) {
    std::vector<double> y;
    for (counts const& c : of) y.push_back(c.*figure);
    const line_fit f = fit_line(x, y);
    json j;
    j["base"] = f.base;
    j["each"] = f.slope;
    j["worst_relative_error"] = f.worst;
    out["fit"][name][what] = j;
    say(fmt::format("{:<8} {:<16} = {:.1f} + {:.4f} a rank; no point is off by more than {:.2f} %", name, what, f.base, f.slope, 100 * f.worst));
  };
  if (sizes.size() > 1) {
    for (auto const& [name, of] : {std::pair{"connect", &connects}, std::pair{"barrier", &barriers}}) {
      fit(name, *of, "requests", &counts::requests);
      fit(name, *of, "bytes_to_server", &counts::bytes_to_server);
      fit(name, *of, "bytes_to_clients", &counts::bytes_to_clients);
      fit(name, *of, "allocations", &counts::allocations);
      fit(name, *of, "cpu_us", &counts::cpu_us);
    }
  }
  out["agrees"] = fine;
  return fine ? 0 : 1;
}

}  // namespace bench
