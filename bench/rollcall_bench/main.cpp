// rollcall-bench: what the library costs, on this machine, against the floor of the machine and against peers, in one run.
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "child.hpp"
#include "counting.hpp"
#include "report.hpp"

namespace {

using bench::json;
using bench::settings;

/// A network of our own, in which listen queues are short: what overflows is reset at once if `abort`.
void enter_network(int somaxconn, bool abort) {
  const int flags = ::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET;
  if (::unshare(flags) != 0) throw std::runtime_error("no network namespace can be had here");
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  ifreq loopback{};
  std::string("lo").copy(loopback.ifr_name, IFNAMSIZ - 1);
  ::ioctl(fd, SIOCGIFFLAGS, &loopback);
  loopback.ifr_flags = static_cast<short>(loopback.ifr_flags | IFF_UP);
  const int status = ::ioctl(fd, SIOCSIFFLAGS, &loopback);
  ::close(fd);
  if (status != 0) throw std::runtime_error("the loopback interface of the new namespace cannot be started");
  std::ofstream("/proc/sys/net/core/somaxconn") << somaxconn << std::flush;
  std::ofstream("/proc/sys/net/ipv4/tcp_abort_on_overflow") << (abort ? 1 : 0) << std::flush;
  int now = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> now;
  if (now != somaxconn) throw std::runtime_error("somaxconn cannot be set in the new namespace");
}

}  // namespace

int main(int argc, char** argv) {
  bench::count_libuv();
  bench::raise_descriptor_limit();
  CLI::App app("Measures rollcall against the floor of this machine and against its peers. Lines for people, or --json.");
  app.require_subcommand(1);
  app.fallthrough();
  settings s;
  bool as_json = false, no_pin = false;
  app.add_option("--clients", s.clients, "stores of the load; of scale: the most ranks")->check(CLI::Range(2, 10'000'000));
  app.add_option("--procs", s.procs, "processes that the load is spread over; 20,000 descriptors each")->check(CLI::Range(1, 64));
  app.add_option("--runs", s.runs, "how often each is measured, in turns")->check(CLI::Range(1, 1000));
  app.add_option("--servers", s.servers, "of rollcall,legacy,floor,torch,torch-legacy; all: those that are there")->capture_default_str();
  app.add_option("--timeout", s.limit, "limit of each operation, in seconds")->capture_default_str();
  app.add_flag("--no-pin", no_pin, "do not keep server and load on processors of their own");
  app.add_flag("--json", as_json, "one JSON object instead of lines");

  std::int64_t inflight = 0, each = 100'000, keys = 1'000'000, awaited = 131'072, from = 1000, compare = 16'000;
  int rounds = 3, somaxconn = 0;
  bool abort_on_overflow = false, no_large = false;
  std::string kind = "store-based", scale_kind = "roll";
  const CLI::IsMember kinds({"roll", "store-based", "seed"});
  CLI::App* const init = app.add_subcommand("init", "clients connect, shake hands and count themselves");
  init->add_option("--inflight", inflight, "handshakes under way at once; 0: all")->capture_default_str();
  CLI::App* const storm = app.add_subcommand("storm", "all clients connect at once; failures, and latencies against the floor's");
  storm->add_option("--somaxconn", somaxconn, "in a network namespace of its own with listen queues of this length");
  storm->add_flag("--abort-on-overflow", abort_on_overflow, "there, what overflows is reset instead of ignored");
  CLI::App* const barrier = app.add_subcommand("barrier", "all clients pass barriers");
  barrier->add_option("--kind", kind, "roll: ours; store-based: PyTorch's; seed: PyTorch's under one name, as benchmarks of it do")->check(kinds)->capture_default_str();
  barrier->add_option("--rounds", rounds, "barriers in a row")->check(CLI::Range(1, 10000))->capture_default_str();
  CLI::App* const ops = app.add_subcommand("ops", "operations: server CPU, latencies, system calls, allocations; large requests");
  ops->add_option("--each", each, "operations of each kind and shape")->capture_default_str();
  ops->add_option("--keys", keys, "keys that are set and then deleted")->capture_default_str();
  ops->add_option("--awaited", awaited, "keys of the largest WAIT")->check(CLI::Range(1, 131'072))->capture_default_str();
  ops->add_flag("--no-large", no_large, "leave out the large requests");
  CLI::App* const fanout = app.add_subcommand("fanout", "one key wakes all clients; what a witness feels meanwhile");
  fanout->add_option("--rounds", rounds, "fan-outs in a row")->check(CLI::Range(1, 10000))->capture_default_str();
  CLI::App* const idle = app.add_subcommand("idle", "bytes a connection costs the server");
  CLI::App* const leave = app.add_subcommand("leave", "clients that wait for a key each leave at once: from 1000 on, doubled");
  leave->add_option("--from", from, "the smallest crowd")->check(CLI::PositiveNumber)->capture_default_str();
  CLI::App* const client = app.add_subcommand("client", "what our client costs: allocations, writes and reads, many stores in one process");
  client->add_option("--each", each, "operations of each kind")->check(CLI::PositiveNumber)->capture_default_str();
  CLI::App* const scale = app.add_subcommand("scale", "exact counts of one barrier in memory, compared with sockets; up to 1,000,000 ranks");
  scale->add_option("--kind", scale_kind, "roll or store-based")->check(CLI::IsMember({"roll", "store-based"}))->capture_default_str();
  scale->add_option("--from", from, "the smallest world; each is four times the one before")->check(CLI::Range(2, 10'000'000))->capture_default_str();
  scale->add_option("--compare", compare, "worlds up to this one are also run over sockets")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  s.pin = !no_pin;
  const bool sized = app.count("--clients") > 0;
  const bool repeated = app.count("--runs") > 0;
  if (*scale && !sized) s.clients = 1'024'000;
  if (*client && !sized) s.clients = 10'000;
  if (!repeated) s.runs = *leave ? 5 : *storm ? 3 : s.runs;
  if (*leave && app.count("--servers") == 0) s.servers = "rollcall";
  if (as_json) bench::be_silent();
  json out;
  out["bench"] = app.get_subcommands().front()->get_name();
  out["machine"] = bench::machine();
  bench::say(bench::machine_text());
  int status = 1;
  try {
    if (somaxconn > 0) {
      enter_network(somaxconn, abort_on_overflow);
      out["somaxconn"] = somaxconn;
      out["abort_on_overflow"] = abort_on_overflow;
    }
    if (*init) status = run_init(s, false, inflight, out);
    if (*storm) status = run_init(s, true, 0, out);
    if (*barrier) status = run_barrier(s, kind, rounds, out);
    if (*ops) {
      status = run_ops(s, each, out);
      if (!no_large && run_large(s, keys, awaited, out) != 0) status = 1;
    }
    if (*fanout) status = run_fanout(s, rounds, out);
    if (*idle) status = run_idle(s, out);
    if (*leave) status = run_leave(s, from, out);
    if (*client) status = run_client(s, each, out);
    if (*scale) status = run_scale(s, scale_kind, from, compare, out);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "rollcall-bench: %s\n", e.what());
    return 2;
  }
  if (as_json) std::fputs((out.dump(1) + "\n").c_str(), stdout);
  return status;
}
