// barrier: one rank of a job whose ranks meet through a store, pass barriers, and say who is missing when somebody stays away.
// Where they meet is a URL (--init-method). Rank 0 serves, where it is no file or launcher's store, and leaves last.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "options.hpp"

using namespace std::chrono_literals;
namespace rc = rollcall;

namespace {

constexpr int usage_error = 2;
constexpr char const* help_footer =
    "Kinds of barrier:\n"
    "  roll         rollcall's own: one name, any number of times; all ranks get the same verdict, which names the missing.\n"
    "  store-based  PyTorch's, with a fresh name each round, as a new process group has: a true meeting each time. It counts.\n"
    "  seed         PyTorch's with one name again and again, as benchmarks of it do: from the second round on nobody waits for anybody,\n"
    "               it is three requests. To compare figures with such benchmarks.\n"
    "With the last two, ranks start through tcp_store::create, the twin of PyTorch's constructor: rank 0's init time is how long it takes\n"
    "until all have joined. With roll a first barrier takes its place, so that everybody learns who is missing.";

struct job {
  std::string url = "env://";
  rc::rendezvous_arguments place;  // what the command line says of it
  int rank = 0;
  int world = 1;
  std::string host;
  std::optional<bool> use_libuv;
  bool serves = false;
  int runs = 10;
  std::string kind = "roll";
  bool fresh = false;
  std::optional<int> absent;
  std::chrono::duration<double> timeout{300};
  std::chrono::duration<double> interval{10};
  bool json = false;

  /// Which rank this is; everything that is missing or wrong, in one error.
  void find_place() {
    const rc::rendezvous_plan plan = rc::plan_rendezvous(url, place, rc::variables::of_process());
    rank = static_cast<int>(*plan.rank);
    world = static_cast<int>(*plan.world_size);
    host = plan.host.value_or(plan.path);
    serves = plan.serves;
    if (plan.timeout) timeout = *plan.timeout;
    if (absent && *absent >= world)
      throw rc::error(rc::errc::invalid, "--absent", fmt::format("rank {} is not in 0..{} (world size {})", *absent, world - 1, world));
  }
  [[nodiscard]] rc::deadline limit() const { return timeout; }
  [[nodiscard]] bool stays_away() const { return absent == rank; }
};

/// What one rank has to tell; told as a line for people as soon as it is known, or as one JSON object at the end.
class report {
 public:
  /// Who closes standard output wants no lines; JSON is asked for to be read.
  report(job const& j, bool has_output) : json_(j.json), problem_(has_output || !j.json ? 0 : EBADF) {
    all_["rank"] = j.rank;
    all_["world_size"] = j.world;
    all_["kind"] = j.kind;
    all_["runs"] = j.runs;
  }
  template <class T>
  void add(char const* name, T const& value) {
    all_[name] = value;
  }
  void line(std::string const& text) {
    if (!json_) print(text);
  }
  void end() {
    if (json_) print(all_.dump());
  }
  /// The errno of the first line that standard output did not take; 0: it has taken all.
  [[nodiscard]] int problem() const { return said_something_ ? problem_ : 0; }

 private:
  void print(std::string const& text) {
    said_something_ = true;
    const bool taken = std::fputs((text + "\n").c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    if (!taken && problem_ == 0) problem_ = errno;
  }
  bool json_;
  int problem_;
  bool said_something_ = false;
  nlohmann::ordered_json all_;
};

double seconds(rc::duration d) { return std::chrono::duration<double>(d).count(); }

/// Shows whom a barrier waits for, once it has waited for a while: a bar that moves on a terminal, a line now and then elsewhere.
rc::task<> show_progress(rc::loop& loop, rc::barrier<rc::any_store>& b, int world, std::chrono::duration<double> line_interval) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const rc::duration interval = terminal ? rc::duration(200ms) : std::max<rc::duration>(rc::saturate(line_interval), 1ms);
  const rc::time_point begun = loop.now();
  std::optional<std::int64_t> looked_at;
  for (;;) {
    co_await rc::sleep_for(interval);
    const std::optional<std::int64_t> generation = b.generation();
    const bool is_same = generation && generation == looked_at;
    looked_at = generation;
    if (!is_same) {
      if (terminal) fmt::print(stderr, "\r\x1b[K");
      continue;
    }
    const std::vector<int> missing = co_await b.missing();
    const int arrived = world - static_cast<int>(missing.size());
    const std::string text = fmt::format("{}/{}, waiting for {}", arrived, world, rc::ranges_of(missing));
    if (terminal) {
      constexpr int width = 30;
      const auto done = static_cast<std::size_t>(std::int64_t{width} * arrived / world);
      fmt::print(stderr, "\r\x1b[K[{:<{}}] {}", std::string(done, '#'), width, text);
    } else {
      fmt::print(stderr, "after {:.0f} s: {}\n", seconds(loop.now() - begun), text);
    }
    std::fflush(stderr);
  }
}

/// What comes before and after each barrier of one kind.
class meeting {
 public:
  meeting(job const& j, rc::rendezvous_session const& s) : job_(j), session_(s) {
    if (j.kind == "roll") begin_roll();
  }
  [[nodiscard]] rc::barrier<rc::any_store>* roll() { return roll_ ? &*roll_ : nullptr; }
  rc::task<> pass(int round) {
    if (roll_) {
      if (job_.fresh && round > 0) begin_roll();
      co_await roll_->arrive_and_wait(job_.limit());
    } else if (job_.kind == "store-based") {
      co_await rc::store_based_barrier(session_.store(), fmt::format("run-{}", round), job_.rank, job_.world, job_.limit());
    } else {
      co_await pass_again();
    }
  }

 private:
  void begin_roll() { roll_.emplace(session_.make_barrier("everyone")); }

  /// The requests of PyTorch's barrier, under one name for all rounds. Not store_based_barrier(), which refuses that: a name used twice
  /// is two jobs on one store.
  rc::task<> pass_again() {
    const std::string key = "store_based_barrier_key:seed";
    const std::string last_key = key + ":last_worker";
    rc::any_store const& store = session_.store();
    co_await store.add(key, 1);
    const std::int64_t joined = co_await store.add(key, 0);
    if (joined == job_.world) co_await store.set(last_key, "1");
    co_await store.wait(last_key, job_.limit());
  }

  job const& job_;
  rc::rendezvous_session const& session_;
  std::optional<rc::barrier<rc::any_store>> roll_;
};

rc::task<> meet(rc::loop& loop, job const& j, rc::rendezvous_session const& session, rc::time_point begun, report& said) {
  rc::any_store const store = session.store();
  meeting all(j, session);
  rc::scope progress(loop);
  if (j.rank == 0 && all.roll()) progress.spawn(show_progress(loop, *all.roll(), j.world, j.interval));
  std::exception_ptr failed;
  try {
    co_await store.set(fmt::format("addr/{}", j.rank), fmt::format("{}#{}", j.host, j.rank));
    if (j.kind == "roll") co_await all.pass(0);
    const rc::duration init = loop.now() - begun;
    const std::string neighbour = co_await store.get(fmt::format("addr/{}", (j.rank + 1) % j.world));
    said.add("init_seconds", seconds(init));
    said.add("neighbour", neighbour);
    said.line(fmt::format("rank={}, world_size={}: store init in {:.6f} s (neighbour at {})", j.rank, j.world, seconds(init), neighbour));

    const rc::time_point first = loop.now();
    for (int run = 0; run < j.runs; ++run) co_await all.pass(1 + run);
    const double mean = j.runs > 0 ? seconds(loop.now() - first) / j.runs : 0;
    if (j.runs > 0) {
      said.add("barrier_mean_seconds", mean);
      said.line(fmt::format("rank={}: mean of {} barriers: {:.6f} s", j.rank, j.runs, mean));
    }
    if (all.roll()) said.add("generation", all.roll()->generation().value_or(-1));
    if (j.json && j.rank == 0) said.add("keys", co_await store.num_keys());
  } catch (...) {
    failed = std::current_exception();
  }
  progress.request_stop();
  static_cast<void>(co_await rc::as_result(progress.join()));
  if (failed) std::rethrow_exception(failed);
}

rc::task<> rank_main(rc::loop& loop, job const& j, report& said) {
  const rc::time_point begun = loop.now();
  rc::rendezvous_options how(j.place);
  how.wait_for_workers(j.kind != "roll");
  rc::rendezvous_session session = co_await rc::rendezvous(loop, j.url, how);
  if (session.owns_server()) {
    rc::tcp_store const& store = *session.tcp();
    said.add("back_end", store.back_end());
    said.line(fmt::format("rank={}: serves the store at {} ({})", j.rank, session.listens_at(), store.back_end()));
  }
  const auto body = [&](rc::rendezvous_session& s) -> rc::task<> {
    if (j.stays_away()) {
      co_await rc::sleep_for(rc::saturate(j.timeout));  // it serves the others
    } else {
      co_await meet(loop, j, s, begun, said);
    }
  };
  co_await session.run(body, j.limit());  // whoever serves leaves last; after a failure the others get the time they need to learn of it
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_output = rc::fill_standard_descriptors()[STDOUT_FILENO];
  CLI::App app("One rank of a job: meets the others in a store and passes barriers.");
  job j;
  std::optional<std::int64_t> rank, world;
  double timeout = 300;
  double interval = 10;
  app.add_option("--init-method", j.url,
                 "Where the ranks meet: env:// (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), auto:// (what the launcher says), "
                 "tcp://HOST:PORT, unix:///PATH or file:///PATH")
      ->capture_default_str()
      ->type_name("URL");
  app.add_option("--rank", rank, "Which rank this is, from 0 on; else the URL or the environment says it")->type_name("R");
  app.add_option("--world-size", world, "How many there are; else the URL or the environment says it")->type_name("N");
  app.add_option("--runs", j.runs, "Barriers to pass after the start")->capture_default_str()->check(options::at_least(0));
  app.add_option("--kind", j.kind, "Which barrier")->capture_default_str()->check(CLI::IsMember({"roll", "store-based", "seed"}));
  app.add_option("--absent", j.absent, "The rank that stays away")->check(options::at_least(0))->type_name("R");
  std::string back_end;
  app.add_option("--use-libuv", back_end, "What rank 0 serves with. 1: libuv; 0: the blocking back end, legacy. USE_LIBUV unless given, else 1")
      ->check([](std::string const& s) { return rc::flag_value(s, "--use-libuv").has_value() ? "" : rc::flag_value(s, "--use-libuv").error().detail(); })
      ->type_name("0|1");
  app.add_flag("--fresh", j.fresh, "A fresh object for each round of roll, under the same name");
  CLI::Option const* const limit = app.add_option("--timeout", timeout, "Seconds for each step")->capture_default_str()->check(options::above(0.0));
  app.add_option("--interval", interval, "Seconds between two lines that say whom rank 0 waits for; a terminal shows a bar")
      ->capture_default_str()
      ->check(options::above(0.0));
  app.add_flag("--json", j.json, "Say everything as one JSON object, at the end");
  app.footer(help_footer);
  try {
    app.parse(argc, argv);
    options::refuse_empty_values(app);
    if (std::isnan(timeout) || std::isnan(interval)) throw CLI::ValidationError("--timeout and --interval take numbers");
  } catch (CLI::ParseError const& e) {
    return app.exit(e) == 0 ? EXIT_SUCCESS : usage_error;
  }
  if (!back_end.empty()) j.use_libuv = *rc::flag_value(back_end, "--use-libuv");
  j.timeout = std::chrono::duration<double>(timeout);
  j.place.rank(rank).world_size(world).use_libuv(j.use_libuv);
  if (limit->count() > 0) j.place.timeout(rc::saturate(j.timeout));
  j.interval = std::chrono::duration<double>(interval);

  std::optional<report> said;
  const auto fail = [&](std::string_view code, std::string_view text, std::vector<int> const& missing = {}) {
    fmt::print(stderr, "barrier: {}{}\n", said ? fmt::format("rank {}: ", j.rank) : "", text);
    if (!said) return EXIT_FAILURE;
    said->add("error", nlohmann::ordered_json{{"code", code}, {"message", text}, {"missing", missing}});
    said->end();
    return EXIT_FAILURE;
  };
  try {
    j.find_place();
    said.emplace(j, has_output);
    if (j.stays_away()) {
      said->line(fmt::format("rank={} stays away", j.rank));
      said->add("absent", true);
    }
    if (!j.stays_away() || j.serves) {
      rc::loop loop;
      loop.log_to([&](rc::log_level l, std::string_view line) {
        if (l >= rc::log_level::warning) fmt::print(stderr, "rank {}: {}\n", j.rank, line);
      });
      rc::sync_wait(loop, rank_main(loop, j, *said));
    }
    said->end();
  } catch (rc::barrier_error const& e) {
    return fail(rc::to_string(rc::errc::failed), e.what(), e.missing());
  } catch (rc::error const& e) {
    return fail(rc::to_string(e.code()), e.what());
  } catch (std::exception const& e) {
    return fail("internal", e.what());
  }
  if (said->problem() == 0) return EXIT_SUCCESS;
  fmt::print(stderr, "barrier: rank {}: standard output does not take what there is to say: {}\n", j.rank, std::strerror(said->problem()));
  return EXIT_FAILURE;
}
