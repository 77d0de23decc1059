// The program barrier, with processes that stay away, are stopped, are killed.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/net.hpp"

using namespace net_test;
using nlohmann::json;

namespace {

/// What the ranks of a job run with --json have said, by rank.
std::vector<json> reports(string const& output, std::size_t world) {
  std::vector<json> all(world);
  std::istringstream in(output);
  for (string l; std::getline(in, l);) {
    const std::size_t brace = l.find('{');
    if (brace == l.npos) continue;
    json one = json::parse(l.substr(brace));
    const auto rank = one.at("rank").get<std::size_t>();
    REQUIRE(rank < world);
    REQUIRE(all[rank].is_null());
    all[rank] = std::move(one);
  }
  for (json const& one : all) REQUIRE(one.is_object());
  return all;
}

/// Ranks of one job that are started one by one; the store is a process of its own.
class separate_ranks {
 public:
  separate_ranks(string server, string barrier, int world) : store(server), barrier_(std::move(barrier)), world_(world) {}
  std::unique_ptr<child> start(int rank, std::vector<string> options) const {
    options.insert(options.begin(), barrier_);
    return start_command(rank, options);
  }
  std::unique_ptr<child> start_command(int rank, std::vector<string> const& command) const {
    const std::vector<string> environment{"RANK=" + std::to_string(rank),
                                          "WORLD_SIZE=" + std::to_string(world_),
                                          "MASTER_ADDR=127.0.0.1",
                                          "MASTER_PORT=" + std::to_string(store.port()),
                                          "TORCHELASTIC_USE_AGENT_STORE=True",
                                          "ROLLCALL_ATTEMPT=0"};
    return std::make_unique<child>(command, false, environment);
  }
  /// Returns when `n` have arrived in generation 0.
  void until_arrived(std::int64_t n) const {
    on_loop([&](rc::loop& l) -> rc::task<> {
      rc::tcp_store s = co_await client_of(l, store.port());
      co_await s.wait("everyone/0/count");
      while (co_await s.add("everyone/0/count", 0) < n) co_await rc::sleep_for(1ms);
    });
  }
  server_process store;

 private:
  string barrier_;
  int world_;
};

}  // namespace

TEST_CASE("each kind of barrier is passed, and reported as JSON", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  for (char const* kind : {"roll", "store-based", "seed"}) {
    child job({launcher, "-n", "4", barrier, "--kind", kind, "--runs", "5", "--json"});
    CHECK(job.finish(60s) == 0);
    CHECK(launcher_only(job.errors()));
    std::vector<json> const all = reports(job.output(), 4);
    for (json const& one : all) {
      CHECK(one.at("world_size") == 4);
      CHECK(one.at("kind") == kind);
      CHECK(one.at("runs") == 5);
      CHECK(one.at("init_seconds") > 0.0);
      CHECK(one.at("barrier_mean_seconds") > 0.0);
      CHECK(one.at("neighbour") == "127.0.0.1#" + std::to_string((one.at("rank").get<int>() + 1) % 4));
    }
  }
}

TEST_CASE("seven of eight are told by the launcher's lines that rank 3 is missing", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  child job({launcher, "-n", "8", barrier, "--absent", "3", "--timeout", "2"});
  CHECK(job.finish(60s) == 1);
  for (const int rank : {0, 1, 2, 4, 5, 6, 7}) {
    const string prefix = "[" + std::to_string(rank) + "] barrier: rank " + std::to_string(rank) + ": barrier of key 'everyone'";
    CHECK(contains("\n" + job.errors(), "\n" + prefix));
  }
  CHECK(lines_with(job.errors(), "] barrier: rank ") >= 7);
  CHECK(lines_with(job.errors(), ": 1 of 8 missing: 3") >= 7);
  CHECK(contains(job.output(), "[3] rank=3 stays away"));
}

TEST_CASE("the missing are named also when the rank that stays away is the one that serves, and in JSON", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  child job({launcher, "-n", "3", barrier, "--absent", "0", "--timeout", "1.5", "--json"});
  CHECK(job.finish(60s) == 1);
  std::vector<json> const all = reports(job.output(), 3);
  CHECK(all[0].at("absent") == true);
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}}) {
    CHECK(all[rank].at("error").at("code") == "failed");
    CHECK(all[rank].at("error").at("missing") == json::array({0}));
    CHECK(contains(all[rank].at("error").at("message").get<string>(), "1 of 3 missing: 0"));
  }
}

TEST_CASE("under PyTorch's constructor the rank that serves says who has not joined", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  child job({launcher, "-n", "4", barrier, "--kind", "seed", "--absent", "2", "--timeout", "1.5"});
  CHECK(job.finish(60s) == 1);
  CHECK(contains(job.errors(), "3 of 4 joined after 1500 ms: missing 2"));
}

TEST_CASE("four processes with fresh objects pass 1,000 rounds one by one, and the keys stay as many", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  for (const int rounds : {10, 1000}) {
    child job({launcher, "-n", "4", barrier, "--fresh", "--runs", std::to_string(rounds), "--json"});
    CHECK(job.finish(120s) == 0);
    std::vector<json> const all = reports(job.output(), 4);
    // Nobody can pass a generation twice or alone and still be in this one at the end.
    for (json const& one : all) CHECK(one.at("generation") == rounds + 1);
    // Four addresses, four of the barrier; three more where rank 0, which was woken first, looks before the last decider has deleted.
    const int keys = all[0].at("keys").get<int>();
    CAPTURE(rounds, keys);
    CHECK((keys == 8 || keys == 11));
  }
}

TEST_CASE("what is no number is refused as a time", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  for (std::vector<string> const& command : std::vector<std::vector<string>>{
           {launcher, "-n", "1", "--grace", "nan", "/bin/true"}, {barrier, "--timeout", "nan"}, {barrier, "--interval", "-1"}}) {
    child wrong(command);
    CHECK(wrong.finish() == 2);
  }
}

TEST_CASE("an option with nothing in it is refused, and named", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  const auto refuses = [](std::vector<string> const& command, string const& option) {
    child wrong(command);
    CHECK(wrong.finish() == 2);
    INFO(wrong.errors());
    CHECK(contains(wrong.errors(), option));
    CHECK(wrong.output().empty());
  };
  for (char const* option :
       {"--init-method", "--rank", "--world-size", "--runs", "--kind", "--absent", "--use-libuv", "--timeout", "--interval"})
    refuses({barrier, "--init-method", "tcp://127.0.0.1:0", "--rank", "0", "--world-size", "1", option, ""}, option);
  for (char const* option : {"--ranks", "--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port", "--init-method",
                               "--max-restarts", "--log-dir", "--grace", "--run-id"})
    refuses({launcher, option, "", "/bin/true"}, option);
}

TEST_CASE("what standard output does not take is an error", "[programs]") {
  NEEDS_EXAMPLE(barrier, "barrier");
  for (char const* how : {">&-", ">/dev/full"})
    for (char const* option : {"--fresh", "--json"}) {
      child c({"/bin/sh", "-c", string("\"$0\" \"$@\" ") + how, barrier, "--init-method", "tcp://127.0.0.1:0", "--rank", "0", "--world-size", "1",
               "--runs", "1", option});
      const bool wanted = how != string(">&-") || option == string("--json");  // who closes it wants no lines
      CHECK(c.finish(60s) == (wanted ? 1 : 0));
      INFO(how << " " << option << " " << c.errors());
      CHECK(contains(c.errors(), "barrier: rank 0: standard output does not take what there is to say: ") == wanted);
    }
}

TEST_CASE("the line that says where rank 0 serves can be used as it is", "[programs]") {
  NEEDS_EXAMPLE(barrier, "barrier");
  const scratch here;
  const std::vector<std::pair<string, string>> places{{"tcp://127.0.0.1:0", "rank=0: serves the store at 127.0.0.1:"},
                                                      {"tcp://[::1]:0", "rank=0: serves the store at [::1]:"},
                                                      {"tcp://127.0.0.1:0?bind=*", " (all interfaces) (libuv)"},
                                                      {"unix://" + here.path + "/s", "rank=0: serves the store at unix:" + here.path + "/s (libuv)"}};
  for (auto const& [url, line] : places) {
    child c({"/usr/bin/env", "-i", barrier, "--init-method", url, "--rank", "0", "--world-size", "1", "--runs", "1"});
    const int status = c.finish(60s);
    if (status != 0 && contains(c.errors(), "EADDRNOTAVAIL")) continue;  // no IPv6 here
    INFO(url << ": " << c.errors());
    CHECK(status == 0);
    CHECK(contains(c.output(), line));
  }
}

TEST_CASE("a terminal shows a bar with who is waited for, other places get lines", "[programs]") {
  NEEDS_EXAMPLE(server, "rollcall-server");
  NEEDS_EXAMPLE(barrier, "barrier");
  separate_ranks ranks(server, barrier, 4);
  const auto plain = ranks.start(0, {"--interval", "0.02", "--runs", "0"});
  CHECK(plain->says(": 1/4, waiting for 1-3\n"));
  plain->kill(SIGKILL);

  separate_ranks others(server, barrier, 4);
  const auto shown = others.start_command(0, {"/usr/bin/env", "script", "-qefc", barrier + " --runs 0", "/dev/null"});
  CHECK(shown->says("\r\x1b[K[#######                       ] 1/4, waiting for 1-3"));
  const auto two = others.start(2, {"--runs", "0"});
  CHECK(shown->says("[###############               ] 2/4, waiting for 1, 3"));
  const auto one = others.start(1, {"--runs", "0"});
  const auto three = others.start(3, {"--runs", "0"});
  CHECK(shown->finish(60s) == 0);
  CHECK(contains(shown->output(), "rank=0, world_size=4: store init in "));
  CHECK(one->finish() == 0);
  CHECK(two->finish() == 0);
  CHECK(three->finish() == 0);
}

TEST_CASE("a member that is stopped past the limit and goes on gets the verdict of the others", "[programs]") {
  NEEDS_EXAMPLE(server, "rollcall-server");
  NEEDS_EXAMPLE(barrier, "barrier");
  separate_ranks ranks(server, barrier, 4);
  std::vector<std::unique_ptr<child>> there;
  for (const int rank : {0, 1, 3}) there.push_back(ranks.start(rank, {"--timeout", "3"}));
  ranks.until_arrived(3);
  there[1]->kill(SIGSTOP);
  CHECK(there[0]->finish(60s) == 1);
  CHECK(there[2]->finish(60s) == 1);
  there[1]->kill(SIGCONT);
  CHECK(there[1]->finish(60s) == 1);
  for (auto const& c : there) CHECK(lines_with(c->errors(), ": 1 of 4 missing: 2") == 1);
}

TEST_CASE("a member that is killed after its arrival counts; one that never came is named", "[programs]") {
  NEEDS_EXAMPLE(server, "rollcall-server");
  NEEDS_EXAMPLE(barrier, "barrier");
  separate_ranks ranks(server, barrier, 4);
  std::vector<std::unique_ptr<child>> there;
  for (const int rank : {0, 1, 3}) there.push_back(ranks.start(rank, {"--timeout", "4", "--runs", "1"}));
  ranks.until_arrived(3);
  there[2]->kill(SIGKILL);
  there.push_back(ranks.start(2, {"--timeout", "4", "--runs", "1"}));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    CHECK(there[i]->finish(60s) == 1);
    CHECK(lines_with(there[i]->output(), "world_size=4: store init in ") == 1);  // the first barrier was complete
    CHECK(lines_with(there[i]->errors(), ": 1 of 4 missing: 3") == 1);           // the second was not
  }
}

TEST_CASE("the server is killed inside a barrier: everyone is told", "[programs]") {
  NEEDS_EXAMPLE(server, "rollcall-server");
  NEEDS_EXAMPLE(barrier, "barrier");
  separate_ranks ranks(server, barrier, 4);
  std::vector<std::unique_ptr<child>> there;
  for (const int rank : {0, 1, 2}) there.push_back(ranks.start(rank, {"--timeout", "600"}));
  ranks.until_arrived(3);
  ranks.store.kill(SIGKILL);
  for (auto const& c : there) {
    CHECK(c->finish(60s) == 1);
    CHECK(lines_with(c->errors(), "disconnected") == 1);
  }
}
