#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "load.hpp"
#include "report.hpp"
#include "servers.hpp"

namespace bench {

namespace {

crowd crowd_of(settings const& s, server_process const& server, std::int64_t clients) {
  crowd c;
  c.port = server.port();
  c.count = clients;
  c.world = clients;
  c.limit = s.limit;
  return c;
}

order make(step what, std::int64_t number = 0) {
  order o;
  o.what = what;
  o.number = number;
  return o;
}

/// Server and load of one measurement.
class trial {
 public:
  trial(settings const& s, server_kind const& kind) : trial(s, kind, s.clients) {}
  trial(settings const& s, server_kind const& kind, std::int64_t clients)
      : server(kind, s.server_cpu()), all(crowd_of(s, server, clients), s.procs, s.load_cpu()), clients_(clients) {}

  /// Runs `o` and notes what the server spent on it.
  outcome_of_all measure(order const& o) {
    before = server.ask();
    const std::uint64_t cpu = server.cpu_ns();
    const outcome_of_all result = all.run(o);
    settle();
    server_cpu_us = static_cast<double>(server.cpu_ns() - cpu) / 1000;
    after = server.ask();
    return result;
  }
  outcome_of_all must(order const& o) {
    outcome_of_all result = all.run(o);
    if (result.failed > 0) throw std::runtime_error(std::string(server.kind().name) + ": " + result.error);
    return result;
  }
  /// Until the server has nothing to do.
  void settle() const {
    for (std::uint64_t last = server.cpu_ns();;) {
      ::usleep(20'000);
      const std::uint64_t now = server.cpu_ns();
      if (now - last < 300'000) return;
      last = now;
    }
  }
  void wait_until_waiting() const {
    if (!server.kind().reports || server.kind().name == "floor") return settle();
    const auto n = static_cast<std::uint64_t>(clients_);
    if (server.ask_until([n](server_report const& r) { return r.waits == n; }).waits != n) throw std::runtime_error("the waits did not all arrive");
  }
  void wait_until_empty() const {
    server.ask_until([](server_report const& r) { return r.connections == 0; });
    if (!server.kind().reports) settle();
  }
  [[nodiscard]] double per_client(double x) const noexcept { return x / static_cast<double>(clients_); }

  server_process server;
  load all;
  server_report before;
  server_report after;
  double server_cpu_us = 0;

 private:
  std::int64_t clients_;
};

json row_of(server_kind const& kind, std::int64_t clients, int run) {
  json row;
  row["server"] = kind.name;
  row["clients"] = clients;
  row["run"] = run;
  return row;
}
void add_outcome(json& row, outcome_of_all const& o) {
  row["failed"] = o.failed;
  if (o.failed > 0) row["error"] = o.error;
  row["wall_seconds"] = o.seconds();
  row["client_cpu_seconds"] = static_cast<double>(o.cpu_ns) / 1e9;
}
double of_median(std::map<std::string, std::vector<double>> const& of, char const* name) {
  const auto at = of.find(name);
  return median(at == of.end() ? std::vector<double>() : at->second);
}

}  // namespace

int run_init(settings const& s, bool storm, std::int64_t inflight, json& out) {
  std::uint64_t failed = 0;
  std::map<std::string, std::vector<double>> tails, cpus;
  for (int run = 0; run < s.runs; ++run) {
    for (server_kind const& kind : servers_named(s.servers)) {
      trial t(s, kind);
      const outcome_of_all o = t.measure(make(storm ? step::connect : step::init, inflight));
      json row = row_of(kind, s.clients, run);
      add_outcome(row, o);
      const percentiles took(o.took);
      row["server_cpu_us_per_client"] = t.per_client(t.server_cpu_us);
      row["latency"] = took.to_json();
      std::string more;
      if (kind.reports) {
        const auto accepted = static_cast<std::int64_t>(t.after.accepted - t.before.accepted);
        row["accepted"] = accepted;
        row["live_bytes_per_connection"] = t.per_client(static_cast<double>(t.after.memory.live_bytes) - static_cast<double>(t.before.memory.live_bytes));
        row["allocations_per_client"] = t.per_client(static_cast<double>(t.after.memory.calls - t.before.memory.calls));
        row["reads_per_client"] = t.per_client(static_cast<double>(t.after.reads - t.before.reads));
        row["writes_per_client"] = t.per_client(static_cast<double>(t.after.writes - t.before.writes));
        more = fmt::format(", {} accepted, {:.3f} reads and {:.3f} writes a client, {:.0f} B a connection", accepted, row["reads_per_client"].get<double>(),
                           row["writes_per_client"].get<double>(), row["live_bytes_per_connection"].get<double>());
      }
      say(fmt::format("{:<13} {} clients in {:.3f} s, {} failed; server CPU {:.2f} us a client; {}{}", kind.name, s.clients, o.seconds(), o.failed,
                      t.per_client(t.server_cpu_us), took.text(), more));
      if (o.failed > 0) say(fmt::format("{:<13} the first failure: {}", kind.name, o.error));
      failed += o.failed;
      tails[std::string(kind.name)].push_back(took.us(0.999));
      cpus[std::string(kind.name)].push_back(t.per_client(t.server_cpu_us));
      out["rows"].push_back(row);
    }
  }
  out["failed"] = failed;
  if (tails.count("floor") != 0 && tails.count("rollcall") != 0) {
    const double tail = of_median(tails, "rollcall") / of_median(tails, "floor");
    const double cpu = of_median(cpus, "rollcall") / of_median(cpus, "floor");
    out["p99.9_to_floor"] = tail;
    out["server_cpu_to_floor"] = cpu;
    say(fmt::format("rollcall to floor: p99.9 {:.2f}, server CPU {:.2f} (medians of {})", tail, cpu, s.runs));
  }
  say(fmt::format("{} failures", failed));
  return failed > 0 ? 1 : 0;
}

int run_barrier(settings const& s, std::string const& kind_name, int rounds, json& out) {
  const std::map<std::string, barrier_kind> kinds{{"roll", barrier_kind::roll}, {"store-based", barrier_kind::store_based}, {"seed", barrier_kind::seed}};
  std::uint64_t failed = 0;
  for (int run = 0; run < s.runs; ++run) {
    for (server_kind const& kind : servers_named(s.servers)) {
      if (kinds.at(kind_name) == barrier_kind::roll && !kind.is_whole) continue;
      trial t(s, kind);
      t.must(make(step::connect, 256));
      order o = make(step::barrier, rounds);
      o.kind = kinds.at(kind_name);
      const outcome_of_all result = t.measure(o);
      json row = row_of(kind, s.clients, run);
      row["kind"] = kind_name;
      row["rounds"] = rounds;
      add_outcome(row, result);
      const percentiles took(result.took);
      const double mean = result.seconds() / rounds;
      row["seconds_per_barrier"] = mean;
      row["server_cpu_us_per_client"] = t.per_client(t.server_cpu_us) / rounds;
      row["latency"] = took.to_json();
      std::string more;
      if (kind.reports) {
        row["requests_per_client"] = t.per_client(static_cast<double>(t.after.requests - t.before.requests)) / rounds;
        row["server_allocations_per_client"] = t.per_client(static_cast<double>(t.after.memory.calls - t.before.memory.calls)) / rounds;
        more = fmt::format(", {:.3f} requests a client", row["requests_per_client"].get<double>());
      }
      say(fmt::format("{:<13} {} clients, {} barriers ({}): {:.4f} s each, {} failed; server CPU {:.2f} us a client{}; {}", kind.name, s.clients, rounds,
                      kind_name, mean, result.failed, t.per_client(t.server_cpu_us) / rounds, more, took.text()));
      if (result.failed > 0) say(fmt::format("{:<13} the first failure: {}", kind.name, result.error));
      failed += result.failed;
      out["rows"].push_back(row);
    }
  }
  out["failed"] = failed;
  return failed > 0 ? 1 : 0;
}

int run_ops(settings const& s, std::int64_t each, json& out) {
  struct shape {
    std::int64_t clients;
    std::int32_t depth;
  };
  const std::int64_t few = std::min<std::int64_t>(50, s.clients);
  std::vector<shape> shapes{{few, 1}, {few, 16}};
  if (s.clients > few) shapes.push_back({s.clients, 1});
  const std::vector<std::pair<std::string, operation>> all{
      {"get", operation::get}, {"add", operation::add}, {"set", operation::set}, {"check", operation::check}, {"wait", operation::wait}};
  std::uint64_t failed = 0;
  std::uint64_t allocations_of_ours = 0;
  std::map<std::string, double> cpu_of_ours, cpu_of_floor;
  for (int run = 0; run < s.runs; ++run) {
    for (server_kind const& kind : servers_named(s.servers)) {
      for (shape const& shape : shapes) {
        trial t(s, kind, shape.clients);
        t.must(make(step::connect, 256));
        t.must(make(step::publish));
        for (auto const& [name, op] : all) {
          if (op == operation::wait && shape.depth > 1) continue;  // each wait at a time has a connection of its own
          order o = make(step::operate, std::max<std::int64_t>(each / shape.clients / shape.depth, 1) * shape.depth);
          o.depth = shape.depth;
          o.op = op;
          order warm = o;
          warm.number = shape.depth * std::int64_t{20};
          t.must(warm);
          const outcome_of_all result = t.measure(o);
          const auto n = static_cast<double>(result.done);
          json row = row_of(kind, shape.clients, run);
          row["op"] = name;
          row["depth"] = shape.depth;
          row["operations"] = result.done;
          add_outcome(row, result);
          const percentiles took(result.took);
          row["server_cpu_us_per_op"] = t.server_cpu_us / n;
          row["client_allocations_per_op"] = static_cast<double>(result.allocations) / n;
          row["latency"] = took.to_json();
          std::string more;
          if (kind.reports) {
            const std::uint64_t calls = t.after.memory.calls - t.before.memory.calls;
            row["server_allocations"] = calls;
            row["server_allocations_per_op"] = static_cast<double>(calls) / n;
            row["server_reads_per_op"] = static_cast<double>(t.after.reads - t.before.reads) / n;
            row["server_writes_per_op"] = static_cast<double>(t.after.writes - t.before.writes) / n;
            if (kind.name == "rollcall") allocations_of_ours += calls;
            more = fmt::format(", {:g} allocations an operation, {:.3f} reads, {:.3f} writes", static_cast<double>(calls) / n,
                               row["server_reads_per_op"].get<double>(), row["server_writes_per_op"].get<double>());
          }
          const std::string row_name = fmt::format("{:<5} {:>5} connections, depth {:>2}", name, shape.clients, shape.depth);
          if (kind.name == "rollcall") cpu_of_ours[row_name] = t.server_cpu_us / n;
          if (kind.name == "floor") cpu_of_floor[row_name] = t.server_cpu_us / n;
          say(fmt::format("{:<13} {}: server CPU {:.3f} us{}; {:.0f} a second; {}", kind.name, row_name, t.server_cpu_us / n, more, n / result.seconds(),
                          took.text()));
          failed += result.failed;
          out["rows"].push_back(row);
        }
      }
    }
  }
  for (auto const& [name, cpu] : cpu_of_ours)
    if (cpu_of_floor.count(name) != 0) say(fmt::format("{}: server CPU {:.2f} of the floor's", name, cpu / cpu_of_floor[name]));
  say(fmt::format("allocations per operation of our server: {}", allocations_of_ours == 0 ? "0" : "NOT 0"));
  out["failed"] = failed;
  out["server_allocations"] = allocations_of_ours;
  return failed > 0 || allocations_of_ours > 0 ? 1 : 0;
}

int run_fanout(settings const& s, int rounds, json& out) {
  std::uint64_t failed = 0;
  std::map<std::string, std::vector<double>> lasts;
  for (int run = 0; run < s.runs; ++run) {
    for (server_kind const& kind : servers_named(s.servers)) {
      trial t(s, kind);
      const shared<bool> over;
      crowd one = crowd_of(s, t.server, 1);
      one.first = s.clients;
      one.over = &*over;
      load setter(one, 1, s.load_cpu());
      load witness(one, 1, s.load_cpu());
      t.must(make(step::connect, 256));
      setter.run(make(step::connect));
      witness.run(make(step::connect));
      witness.run(make(step::publish));
      std::vector<std::uint64_t> woken, felt, accepted;
      std::vector<double> last;
      double cpu_us = 0;
      for (std::int32_t round = 0; round < rounds; ++round) {
        order o = make(step::wait_common);
        o.round = round;
        t.must(o);
        t.wait_until_waiting();
        *over = false;
        witness.begin(make(step::witness));
        t.all.begin(make(step::collect));
        const std::uint64_t cpu = t.server.cpu_ns();
        o.what = step::set;
        const outcome_of_all set = setter.run(o);
        const outcome_of_all done = t.all.finish();
        *over = true;
        const outcome_of_all seen = witness.finish();
        t.settle();
        cpu_us += static_cast<double>(t.server.cpu_ns() - cpu) / 1000;
        failed += set.failed + done.failed + seen.failed + static_cast<std::uint64_t>(s.clients) - done.done;
        for (const std::uint64_t at : done.took) woken.push_back(at - set.begun);
        felt.insert(felt.end(), seen.took.begin(), seen.took.end());
        accepted.insert(accepted.end(), seen.connected.begin(), seen.connected.end());
        last.push_back(static_cast<double>(done.ended - set.begun) / 1e9);
      }
      const percentiles waiters(woken), others(felt), newcomers(accepted);
      lasts[std::string(kind.name)].push_back(median(last));
      json row = row_of(kind, s.clients, run);
      row["rounds"] = rounds;
      row["last_woken_seconds"] = median(last);
      row["server_cpu_us_per_client"] = t.per_client(cpu_us) / rounds;
      row["woken"] = waiters.to_json();
      row["witness"] = others.to_json();
      row["witness_connects"] = newcomers.to_json();
      out["rows"].push_back(row);
      say(fmt::format("{:<13} {} waiters: the last one woken after {:.4f} s; server CPU {:.2f} us a waiter; a witness meanwhile: {}; its connects: {}",
                      kind.name, s.clients, median(last), t.per_client(cpu_us) / rounds, others.text(), newcomers.text()));
    }
  }
  out["failed"] = failed;
  if (lasts.count("floor") != 0 && lasts.count("rollcall") != 0) {
    out["last_woken_to_floor"] = of_median(lasts, "rollcall") / of_median(lasts, "floor");
    say(fmt::format("rollcall to floor: last woken {:.2f}", out["last_woken_to_floor"].get<double>()));
  }
  say(fmt::format("{} failures", failed));
  return failed > 0 ? 1 : 0;
}

int run_idle(settings const& s, json& out) {
  bool fine = true;
  for (server_kind const& kind : servers_named(s.servers)) {
    trial t(s, kind);
    {
      load first(crowd_of(s, t.server, 1), 1, s.load_cpu());  // what is made once is made now
      first.run(make(step::connect));
      first.run(make(step::leave));
    }
    t.settle();
    const server_report start = t.server.ask();
    const std::uint64_t rss = t.server.rss();
    const auto grown = [&](server_report const& r) {
      return t.per_client(static_cast<double>(r.memory.live_bytes) - static_cast<double>(start.memory.live_bytes));
    };
    json row = row_of(kind, s.clients, 0);
    std::string line = fmt::format("{:<13} {} connections:", kind.name, s.clients);
    const auto note = [&](char const* name, char const* label) {
      t.settle();
      const server_report r = t.server.ask();
      const double resident = t.per_client(static_cast<double>(t.server.rss()) - static_cast<double>(rss));
      row[std::string(name) + "_rss"] = resident;
      if (kind.reports) {
        row[name] = grown(r);
        row[std::string(name) + "_libuv"] = t.per_client(static_cast<double>(r.memory.libuv_bytes) - static_cast<double>(start.memory.libuv_bytes));
        line += fmt::format(" {} {:.0f} B ({:.0f} resident);", label, grown(r), resident);
      } else {
        line += fmt::format(" {} {:.0f} B resident;", label, resident);
      }
    };
    t.must(make(step::connect, 256));
    note("idle_bytes", "idle");
    t.must(make(step::wait_common));
    t.wait_until_waiting();
    note("waiting_bytes", "waiting for one key");
    t.must(make(step::leave));
    t.wait_until_empty();
    t.must(make(step::connect, 256));
    t.must(make(step::wait_own));
    t.wait_until_waiting();
    note("waiting_own_bytes", "waiting for a key of its own");
    t.must(make(step::leave));
    t.wait_until_empty();
    note("left_bytes", "after all have left");
    const server_report end = t.server.ask();
    if (kind.reports) {
      row["left_bytes_total"] = static_cast<std::int64_t>(end.memory.live_bytes) - static_cast<std::int64_t>(start.memory.live_bytes);
      row["left_blocks_total"] = static_cast<std::int64_t>(end.memory.live_blocks) - static_cast<std::int64_t>(start.memory.live_blocks);
      line += fmt::format(" in all {} B in {} blocks more than before", row["left_bytes_total"].get<std::int64_t>(), row["left_blocks_total"].get<std::int64_t>());
    }
    if (kind.name == "rollcall" && (row["idle_bytes"].get<double>() > 512 || row["waiting_bytes"].get<double>() > 768)) fine = false;
    say(line);
    out["rows"].push_back(row);
  }
  out["within_budget"] = fine;
  say(fmt::format("budget: 512 B idle, 768 B waiting: {}", fine ? "kept" : "MISSED"));
  return fine ? 0 : 1;
}

int run_leave(settings const& s, std::int64_t from, json& out) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = std::min(from, s.clients); n < s.clients; n *= 2) sizes.push_back(n);
  while (sizes.size() > 1 && static_cast<double>(s.clients) / static_cast<double>(sizes.back()) < 1.3) sizes.pop_back();  // no more than noise
  sizes.push_back(s.clients);
  bool fine = true;
  // The least of all runs: what it is more in others, the machine's other work has cost.
  const auto judge = [&](std::string const& name, std::vector<std::int64_t> const& of, std::vector<double> const& took, bool is_ours, bool is_server) {
    double worst = 0;
    for (std::size_t i = 0; i < of.size(); ++i) {
      std::string ratio;
      if (i > 0) {
        const double r = doubling_ratio(static_cast<double>(of[i - 1]), took[i - 1], static_cast<double>(of[i]), took[i]);
        worst = std::max(worst, r);
        ratio = fmt::format(", doubling ratio {:.2f}", r);
      }
      say(fmt::format("{:<13} {:>6} waiters on as many keys leave: {} CPU {:.3f} ms, {:.2f} us each{}", name, of[i], is_server ? "server" : "both ends'", took[i] * 1e3,
                      took[i] * 1e6 / static_cast<double>(of[i]), ratio));
      json row;
      row["server"] = name;
      row["clients"] = of[i];
      row["server_cpu_seconds"] = took[i];
      out["rows"].push_back(row);
    }
    out["doubling_ratio"][name] = worst;
    say(fmt::format("{:<13} worst doubling ratio {:.2f}", name, worst));
    if (is_ours && worst > 2.2) fine = false;
  };
  for (server_kind const& kind : servers_named(s.servers)) {
    std::vector<double> took;
    for (const std::int64_t n : sizes) {
      std::vector<double> cpu;
      for (int run = 0; run < s.runs; ++run) {
        trial t(s, kind, n);
        t.must(make(step::connect, 256));
        t.must(make(step::wait_own));
        t.wait_until_waiting();
        const std::uint64_t before = t.server.cpu_ns();
        t.must(make(step::leave));
        t.wait_until_empty();
        cpu.push_back(static_cast<double>(t.server.cpu_ns() - before) / 1e9);
      }
      took.push_back(*std::min_element(cpu.begin(), cpu.end()));
    }
    judge(std::string(kind.name), sizes, took, kind.name == "rollcall", true);
  }
  // From where the processor's caches do not hold it any more (2 kB each, both ends): before that each doubling finds less of it there.
  std::vector<std::int64_t> more;
  std::vector<double> took;
  for (std::int64_t n = s.clients < 1000 ? s.clients : 40'000; more.size() < 4; n *= 2) more.push_back(n);
  for (const std::int64_t n : more) {
    std::vector<double> cpu;
    for (int run = 0; run < s.runs; ++run) cpu.push_back(leave_in_memory(n));
    took.push_back(*std::min_element(cpu.begin(), cpu.end()));
  }
  judge("in memory", more, took, true, false);
  say(fmt::format("limit 2.2: {}", fine ? "kept" : "MISSED"));
  return fine ? 0 : 1;
}

}  // namespace bench
