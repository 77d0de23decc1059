// barrier: one rank of a job whose ranks meet through a store. Rank 0 serves it, on the descriptor its launcher hands over
// (ROLLCALL_LISTEN_FD) or on MASTER_ADDR:MASTER_PORT. Every rank publishes an address, reads its neighbour's, passes barriers.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <string>

using namespace std::chrono_literals;
namespace rc = rollcall;

namespace {

/// A whole number from the environment; an error that names the variable and its value otherwise.
int number_from_environment(char const* name, int low, int high) {
  char const* text = std::getenv(name);
  if (!text || !*text) throw rc::error(rc::errc::invalid, "environment", fmt::format("{} is not set; run this under rollcall-run", name));
  int value = 0;
  char const* end = text + std::string_view(text).size();
  const auto parsed = std::from_chars(text, end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < low || value > high)
    throw rc::error(rc::errc::invalid, "environment", fmt::format("{}='{}' is not a number in {}..{}", name, text, low, high));
  return value;
}

struct job {
  int rank = 0;
  int world = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  std::optional<int> listen_fd;
  bool serves = false;
  int runs = 10;
  std::chrono::duration<double> timeout{300};

  void read_environment() {
    world = number_from_environment("WORLD_SIZE", 1, 1 << 24);
    rank = number_from_environment("RANK", 0, world - 1);
    port = number_from_environment("MASTER_PORT", 1, 65535);
    if (char const* h = std::getenv("MASTER_ADDR"); h && *h) host = h;
    char const* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");  // "True": the launcher serves
    serves = rank == 0 && !(agent && std::string_view(agent) == "True");
    if (serves && std::getenv("ROLLCALL_LISTEN_FD")) listen_fd = number_from_environment("ROLLCALL_LISTEN_FD", 0, 1 << 20);
  }
};

double seconds(rc::duration d) { return std::chrono::duration<double>(d).count(); }

void say(std::string const& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

rc::task<> meet(rc::loop& loop, job j) {
  const rc::time_point begun = loop.now();
  const rc::deadline limit = j.timeout;
  rc::tcp_store store = co_await rc::tcp_store::connect(loop, j.host, j.port, limit, rc::client_options{}.timeout(limit));
  co_await store.set(fmt::format("addr/{}", j.rank), fmt::format("{}#{}", j.host, j.rank));
  const std::string neighbour = co_await store.get(fmt::format("addr/{}", (j.rank + 1) % j.world));
  co_await rc::store_based_barrier(store, "init", j.rank, j.world, limit);
  say(fmt::format("rank={}, world_size={}: store init in {:.6f} s (neighbour at {})", j.rank, j.world, seconds(loop.now() - begun), neighbour));

  const rc::time_point first = loop.now();
  for (int run = 0; run < j.runs; ++run) co_await rc::store_based_barrier(store, fmt::format("run-{}", run), j.rank, j.world, limit);
  if (j.runs > 0) say(fmt::format("rank={}: mean of {} barriers: {:.6f} s", j.rank, j.runs, seconds(loop.now() - first) / j.runs));

  // Rank 0 leaves last: it serves the others.
  if (co_await store.add("left", 1) == j.world) co_await store.set("all_left", "1");
  if (j.rank == 0) co_await store.wait("all_left", limit);
}

rc::task<> rank_main(rc::loop& loop, job j) {
  rc::scope server(loop);
  if (j.serves) {
    rc::listener at;
    if (j.listen_fd) {
      at = rc::listener::adopt(*j.listen_fd, j.port);
    } else {
      at = rc::listen(rc::listen_options{}.host(j.host).port(j.port));
    }
    server.spawn(rc::serve(loop, std::move(at)));
  }
  rc::result<void> met = co_await rc::as_result(meet(loop, j));
  server.request_stop();
  co_await server.join();
  met.value();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One rank of a job: meets the others in a store and passes barriers. Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.");
  job j;
  double timeout = 300;
  app.add_option("--runs", j.runs, "barriers to pass after the start")->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("--timeout", timeout, "seconds for each step")->capture_default_str()->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  j.timeout = std::chrono::duration<double>(timeout);
  try {
    j.read_environment();
    rc::loop loop;
    loop.log_to([&](rc::log_level l, std::string_view line) {
      if (l >= rc::log_level::warning) fmt::print(stderr, "rank {}: {}\n", j.rank, line);
    });
    rc::sync_wait(loop, rank_main(loop, j));
  } catch (std::exception const& e) {
    fmt::print(stderr, "barrier: rank {}: {}\n", j.rank, e.what());
    return 1;
  }
  return 0;
}
