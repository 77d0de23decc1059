#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#include <chrono>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <stdexcept>
#include <string>

#include "counted_stream.hpp"
#include "members.hpp"
#include "report.hpp"
#include "servers.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;

namespace bench {

namespace {

/// Instructions this thread has executed in user space; none where the machine does not count them.
class instruction_counter {
 public:
  instruction_counter() {
    perf_event_attr a{};
    a.size = sizeof a;
    a.type = PERF_TYPE_HARDWARE;
    a.config = PERF_COUNT_HW_INSTRUCTIONS;
    a.exclude_kernel = 1;
    a.exclude_hv = 1;
    fd_.reset(static_cast<int>(::syscall(SYS_perf_event_open, &a, 0, -1, -1, 0)));
  }
  [[nodiscard]] bool works() const noexcept { return static_cast<bool>(fd_); }
  [[nodiscard]] std::uint64_t now() const noexcept {
    std::uint64_t n = 0;
    return works() && ::read(fd_.get(), &n, sizeof n) == sizeof n ? n : 0;
  }

 private:
  rc::unique_fd fd_;
};

struct cost {
  double allocations = 0;
  double instructions = 0;
  double cpu_us = 0;
};

class client_bench {
 public:
  client_bench(settings const& s, std::int64_t times, json& out) : times_(times), out_(out), clients_(s.clients), server_(servers().front(), s.server_cpu()) {}

  bool run() {
    rc::loop loop;
    loop_ = &loop;
    rc::sync_wait(loop, everything());
    many();
    loop_ = nullptr;
    return fine_;
  }

 private:
  void expect(bool kept, std::string const& what) {
    say(what + (kept ? "" : "   MISSED"));
    fine_ = fine_ && kept;
  }

  template <class F>
  rc::task<> repeat(F op, std::int64_t times) {
    for (std::int64_t n = 0; n < times; ++n) co_await op();
  }
  template <class F>
  rc::task<> price(std::string name, F op, double allowed) {
    rc::task<> warm = repeat(op, 100);
    co_await std::move(warm);
    const std::uint64_t calls = allocations().calls;
    const std::uint64_t instructions = instructions_.now();
    const std::uint64_t cpu = thread_cpu_ns();
    rc::task<> measured = repeat(op, times_);
    co_await std::move(measured);
    const auto n = static_cast<double>(times_);
    cost c;
    c.instructions = static_cast<double>(instructions_.now() - instructions) / n;
    c.cpu_us = static_cast<double>(thread_cpu_ns() - cpu) / 1000 / n;
    c.allocations = static_cast<double>(allocations().calls - calls - 1) / n;  // one is the frame of repeat()
    json row;
    row["op"] = name;
    row["allocations"] = c.allocations;
    row["cpu_us"] = c.cpu_us;
    std::string line = fmt::format("{:<24} {:g} allocations, CPU {:.2f} us", name, c.allocations, c.cpu_us);
    if (instructions_.works()) {
      row["instructions"] = c.instructions;
      line += fmt::format(", {:.0f} instructions in user space", c.instructions);
    }
    out_["operations"].push_back(row);
    expect(c.allocations <= allowed, line);
  }

  rc::task<> everything() {
    rc::net::stream_ptr s = dial_counted(loop_->core(), server_.port(), traffic_);
    rc::tcp_store store = co_await rc::tcp_store::over(*loop_, std::move(s), 10s);
    say(instructions_.works() ? "one store, one operation after the other:"
                              : "one store, one operation after the other (this machine does not count instructions; valgrind --tool=callgrind does):");
    rc::task<> prices = all_prices(store);
    co_await std::move(prices);
    rc::task<> sixteen = concurrent(store);
    co_await std::move(sixteen);
    rc::task<> arriving = arrival(store);
    co_await std::move(arriving);
  }

  rc::task<> all_prices(rc::tcp_store store) {
    const rc::deadline never = rc::deadline::never();
    const std::string value(64, 'v');
    const std::string_view v = value;
    co_await store.set("key", value);
    co_await store.queue_push("queue", value);
    char buffer[128];
    const std::span<char> room(buffer);
    auto add = [&] { return store.add("number", 1, never); };
    auto set = [&] { return store.set("key", v, never); };
    const std::string long_value(4096, 'l');
    const std::string_view l = long_value;
    auto set_long = [&] { return store.set("long", l, never); };
    auto append = [&] { return store.append("grows", "", never); };
    auto check = [&] { return store.check("key", never); };
    auto wait = [&] { return store.wait("key", never); };
    auto get_into = [&] { return store.get_into("key", room, never); };
    auto get = [&] { return store.get("key", never); };
    auto find = [&] { return store.find("key", never); };
    auto compare_set = [&] { return store.compare_set("key", v, v, never); };
    auto num_keys = [&] { return store.num_keys(never); };
    auto queue_len = [&] { return store.queue_len("queue", never); };
    rc::task<> one = price("add", add, 0);
    co_await std::move(one);
    one = price("set, 64 bytes", set, 0);
    co_await std::move(one);
    one = price("set, 4096 bytes", set_long, 0);
    co_await std::move(one);
    one = price("check", check, 0);
    co_await std::move(one);
    one = price("wait, existing", wait, 0);
    co_await std::move(one);
    one = price("get_into, 64 bytes", get_into, 0);
    co_await std::move(one);
    one = price("get, 64 bytes", get, 1);
    co_await std::move(one);
    one = price("find, 64 bytes", find, 1);
    co_await std::move(one);
    one = price("compare_set, 64 bytes", compare_set, 1);
    co_await std::move(one);
    one = price("num_keys", num_keys, 0);
    co_await std::move(one);
    one = price("append", append, 0);
    co_await std::move(one);
    one = price("queue_len", queue_len, 0);
    co_await std::move(one);
  }

  rc::task<> sixteen_adds(rc::tcp_store store) {
    rc::scope all(*loop_);
    for (int i = 0; i < 16; ++i) all.spawn(store.add("number", 1));
    co_await all.join();
  }
  rc::task<> concurrent(rc::tcp_store store) {
    constexpr int rounds = 100;
    rc::task<> warm = sixteen_adds(store);
    co_await std::move(warm);
    const traffic before = traffic_;
    const server_report seen = server_.ask();
    for (int i = 0; i < rounds; ++i) {
      rc::task<> round = sixteen_adds(store);
      co_await std::move(round);
    }
    const server_report after = server_.ask();
    json row;
    row["writes"] = static_cast<double>(traffic_.writes - before.writes) / rounds;
    row["reads"] = static_cast<double>(traffic_.reads - before.reads) / rounds;
    row["server_reads"] = static_cast<double>(after.reads - seen.reads) / rounds;
    row["server_writes"] = static_cast<double>(after.writes - seen.writes) / rounds;
    row["requests"] = static_cast<double>(after.requests - seen.requests) / rounds;
    out_["sixteen_at_once"] = row;
    expect(row["writes"] == 1 && row["reads"] == 1,
           fmt::format("16 operations at once: {:g} writes and {:g} reads (of the connection: a send and a recv each); at the server {:g} reads, {:g} writes, {:g} requests",
                       row["writes"].get<double>(), row["reads"].get<double>(), row["server_reads"].get<double>(), row["server_writes"].get<double>(),
                       row["requests"].get<double>()));
  }

  /// Of two members: this one arrives in a barrier that it knows, and the other keeps it waiting.
  rc::task<> arrival(rc::tcp_store store) {
    traffic of_other;
    rc::net::stream_ptr s = dial_counted(loop_->core(), server_.port(), of_other);
    rc::tcp_store another = co_await rc::tcp_store::over(*loop_, std::move(s), 10s);
    rc::barrier here(store, "arrival", 0, 2);
    rc::barrier there(another, "arrival", 1, 2);
    rc::task<> first = here.arrive_and_wait(10s);
    rc::task<> second = there.arrive_and_wait(10s);
    co_await rc::when_all(std::move(first), std::move(second));
    co_await rc::sleep_for(50ms);
    const traffic before = traffic_;
    const server_report seen = server_.ask();
    rc::scope waiting(*loop_);
    waiting.spawn(here.arrive_and_wait(10s));
    for (server_report r = server_.ask(); r.waits == seen.waits; r = server_.ask()) co_await rc::sleep_for(1ms);
    co_await rc::sleep_for(50ms);
    const std::uint64_t writes = traffic_.writes - before.writes;
    const std::uint64_t requests = server_.ask().requests - seen.requests;
    rc::task<> last = there.arrive_and_wait(10s);
    co_await std::move(last);
    co_await waiting.join();
    out_["arrival"]["writes"] = writes;
    out_["arrival"]["requests"] = requests;
    expect(writes == 1, fmt::format("a barrier's arrival: {} write with {} requests", writes, requests));
  }

  rc::task<> connect_one(std::size_t i) {
    const std::string host = "127.0.0." + std::to_string(1 + i % 16);
    rc::tcp_store store = co_await rc::tcp_store::connect(*loop_, host, server_.port(), 2min);
    members_[i].emplace(store, static_cast<std::int64_t>(i), clients_, false);
  }
  rc::task<> meet_one(std::size_t i) {
    rc::task<> one = members_[i]->pass(barrier_kind::roll, 0, 2min);
    co_await std::move(one);
  }
  template <class F>
  double all_at_once(F f) {
    const std::uint64_t begun = now_ns();
    rc::scope all(*loop_);
    for (std::size_t i = 0; i < members_.size(); ++i) all.spawn(f(i));
    rc::sync_wait(*loop_, all.join());
    return static_cast<double>(now_ns() - begun) / 1e9;
  }
  /// Many stores in one process connect, meet and leave.
  void many() {
    const std::size_t descriptors = open_descriptors();
    const allocation_counts start = allocations();
    members_.resize(static_cast<std::size_t>(clients_));
    const double connects = all_at_once([this](std::size_t i) { return connect_one(i); });
    const std::size_t open = open_descriptors() - descriptors;
    const auto bytes = static_cast<double>(allocations().live_bytes - start.live_bytes) / static_cast<double>(clients_);
    const double meets = all_at_once([this](std::size_t i) { return meet_one(i); });
    const std::size_t most = open_descriptors() - descriptors;
    const std::uint64_t begun = now_ns();
    members_.clear();
    members_.shrink_to_fit();
    while (loop_->live_handles() != 0) uv_run(loop_->native(), UV_RUN_NOWAIT);
    const double leaves = static_cast<double>(now_ns() - begun) / 1e9;
    const auto left = static_cast<std::int64_t>(allocations().live_bytes) - static_cast<std::int64_t>(start.live_bytes);
    const std::uint64_t still = server_.ask_until([](server_report const& r) { return r.connections == 0; }).connections;
    json& o = out_["stores"];
    o["stores"] = clients_;
    o["connect_seconds"] = connects;
    o["meet_seconds"] = meets;
    o["leave_seconds"] = leaves;
    o["descriptors"] = std::max(open, most);
    o["bytes_per_store"] = bytes;
    o["bytes_left"] = left;
    o["connections_left_at_server"] = still;
    constexpr std::size_t of_the_loop = 4;
    expect(std::max(open, most) <= static_cast<std::size_t>(clients_) + of_the_loop && still == 0,
           fmt::format("{} stores in one process: connect in {:.3f} s, meet in {:.3f} s, leave in {:.3f} s; {} descriptors, {:.0f} B a store, {} B left afterwards",
                       clients_, connects, meets, leaves, most, bytes, left));
  }

  std::int64_t times_;
  json& out_;
  std::int64_t clients_;
  server_process server_;
  instruction_counter instructions_;
  traffic traffic_;
  rc::loop* loop_ = nullptr;
  std::vector<std::optional<meeting>> members_;
  bool fine_ = true;
};

}  // namespace

int run_client(settings const& s, std::int64_t times, json& out) {
  client_bench b(s, times, out);
  const bool fine = b.run();
  out["kept"] = fine;
  return fine ? 0 : 1;
}

}  // namespace bench
