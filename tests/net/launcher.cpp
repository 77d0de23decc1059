// rollcall-run as its users see it: environments, several nodes, the hosted store, restarts, logs, summaries, and that it leaves nothing.
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>

#include "../support/net.hpp"

using namespace net_test;

namespace {

using clock_type = std::chrono::steady_clock;

bool has_line(string const& text, string const& line) {
  const std::vector<string> lines = lines_of(text);
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}
string words(std::initializer_list<string> list) {
  string all;
  for (string const& w : list) all += (all.empty() ? "" : " ") + w;
  return all;
}
int after_blank(string const& line) {
  const std::size_t blank = line.rfind(' ');
  if (blank == line.npos) FAIL("no number at the end of '" << line << "'");
  return std::atoi(line.c_str() + blank);
}
bool signal_is_pending(int pid, int number) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (string l; std::getline(status, l);)
    if (l.starts_with("ShdPnd:")) return (std::strtoull(l.c_str() + 7, nullptr, 16) >> (number - 1) & 1) != 0;
  return false;
}
string content(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  return string(std::istreambuf_iterator<char>(in), {});
}

class folder {
 public:
  folder() {
    char name[] = "/tmp/rollcall-launcher-XXXXXX";
    if (!mkdtemp(name)) FAIL("no temporary folder");
    path = name;
  }
  folder(folder const&) = delete;
  folder& operator=(folder const&) = delete;
  ~folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

/// `rollcall-run OPTIONS /bin/sh -c SCRIPT`
std::vector<string> shell_job(string const& launcher, std::vector<string> options, string const& script) {
  std::vector<string> all{launcher};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"/bin/sh", "-c", script});
  return all;
}
std::vector<string> node(string const& launcher, int rank, int nodes, int per_node, int port) {
  return {launcher,
          "--nnodes",
          std::to_string(nodes),
          "--node-rank",
          std::to_string(rank),
          "--nproc-per-node",
          std::to_string(per_node),
          "--master-addr",
          "127.0.0.1",
          "--master-port",
          std::to_string(port)};
}
std::vector<string> operator+(std::vector<string> a, std::vector<string> const& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr char const* everything =
    "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE $ROLE_NAME "
    "$MASTER_ADDR "
    "$MASTER_PORT $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE "
    "$ROLLCALL_ATTEMPT ${ROLLCALL_LISTEN_FD:-none}";

/// The descriptors over 2 that a rank has, as it says itself; from 10 on they are the shell's own.
constexpr char const* open_descriptors = "for i in 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$i ] && echo open $i; done; true";

}  // namespace

TEST_CASE("every rank of one node gets torchrun's environment", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const string port = std::to_string(unused_port());
  // What an outer launcher promised does not hold.
  child job(shell_job(launcher, {"-n", "3", "--master-port", port, "--run-id", "job-7"}, everything), false,
            {"ROLLCALL_LISTEN_FD=9", "TORCHELASTIC_USE_AGENT_STORE=True", "RANK=5", "GROUP_RANK=6"});
  CHECK(job.finish() == 0);
  for (int i = 0; i < 3; ++i) {
    const string r = std::to_string(i);
    CHECK(has_line(job.output(),
                   words({"[" + r + "]", r, "3", r, "3 0 1", r, "3 default 127.0.0.1", port, "0 0 job-7 False 0", i == 0 ? "3" : "none"})));
  }
  CHECK(launcher_only(job.errors()));
}

TEST_CASE("every rank of two nodes gets torchrun's environment", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const int port = unused_port();
  for (int k = 0; k < 2; ++k) {
    child job(node(launcher, k, 2, 2, port) + std::vector<string>{"/bin/sh", "-c", everything});
    CHECK(job.finish() == 0);
    for (int local = 0; local < 2; ++local) {
      const string r = std::to_string(2 * k + local);
      CHECK(has_line(job.output(), words({"[" + r + "]", r, "4", std::to_string(local), "2", std::to_string(k), "2", r,
                                          "4 default 127.0.0.1", std::to_string(port), "0 0 none False 0", r == "0" ? "3" : "none"})));
    }
  }
}

TEST_CASE("a rank has no descriptors but its own", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder logs;
  child job(shell_job(launcher, {"-n", "2", "--log-dir", logs.path, "--max-restarts", "1"}, open_descriptors));
  CHECK(job.finish() == 0);
  CHECK(job.output() == "[0] open 3\n");
  child hosted(shell_job(launcher, {"-n", "2", "--host-store"}, open_descriptors));
  CHECK(hosted.finish() == 0);
  CHECK(hosted.output().empty());
}

TEST_CASE("two launchers make one job of eight", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  const watchdog dog(current_case(), 120s);
  for (const bool hosted : {false, true}) {
    const int port = unused_port();
    std::vector<string> rest{barrier, "--runs", "3", "--timeout", "30"};
    if (hosted) rest.insert(rest.begin(), "--host-store");
    child late(node(launcher, 1, 2, 4, port) + rest);  // the order of starting does not matter
    child first(node(launcher, 0, 2, 4, port) + rest);
    CHECK(first.finish(40s) == 0);
    CHECK(late.finish(40s) == 0);
    CHECK(lines_with(first.output(), "world_size=8: store init in ") == 4);
    CHECK(lines_with(late.output(), "world_size=8: store init in ") == 4);
    CHECK(contains(late.output(), "[7] rank=7: mean of 3 barriers: "));
    // Two nodes on one machine: nobody but the launcher says anything, except for one hint, since loopback is not where node 0 is.
    CHECK(lines_with(late.errors(), "127.0.0.1 (MASTER_ADDR) is this node itself") == 1);
    CHECK(lines_with(late.errors(), "rollcall-run: ") + 1 == lines_of(late.errors()).size());
  }
}

TEST_CASE("with --host-store the launcher serves, and no descriptor is handed over", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  const watchdog dog(current_case());
  child job({launcher, "-n", "4", "--host-store", barrier, "--runs", "3"});
  CHECK(job.finish(40s) == 0);
  CHECK(lines_with(job.output(), "mean of 3 barriers: ") == 4);
  CHECK(launcher_only(job.errors()));

  child told(shell_job(launcher, {"-n", "1", "--host-store"}, "echo $TORCHELASTIC_USE_AGENT_STORE ${ROLLCALL_LISTEN_FD:-none}"));
  CHECK(told.finish() == 0);
  CHECK(told.output() == "[0] True none\n");
}

TEST_CASE("a hosted store stays for the ranks of other nodes", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder here;
  const string go = here.path / "go";
  const int port = unused_port();
  child job(node(launcher, 0, 2, 1, port) +
            std::vector<string>{"--host-store", "/bin/sh", "-c", "echo $$; while [ ! -e " + go + " ]; do sleep 0.02; done"});
  const int rank = after_blank(job.line());
  rc::unique_fd other_node = plain_connect(port);
  REQUIRE(other_node);
  REQUIRE(send_all(other_node.get(), req::validate() + req::add("k", 5)));
  REQUIRE(receive(other_node.get(), 8) == i64(5));
  std::ofstream(go).close();
  gone_at_last({rank});
  for (int i = 6; i < 200; ++i) {
    REQUIRE(send_all(other_node.get(), req::add("k", 1)));
    REQUIRE(receive(other_node.get(), 8) == i64(i));
  }
  other_node.reset();
  CHECK(job.finish() == 0);

  child interrupted(node(launcher, 0, 2, 1, port) +
                    std::vector<string>{"--host-store", "/bin/sh", "-c", "echo $$; while [ ! -e " + go + "2 ]; do sleep 0.02; done"});
  const int second = after_blank(interrupted.line());
  other_node = plain_connect(port);
  REQUIRE(send_all(other_node.get(), req::validate() + req::add("k", 5)));
  CHECK(receive(other_node.get(), 8) == i64(5));
  std::ofstream(go + "2").close();
  gone_at_last({second});
  interrupted.kill(SIGTERM);
  CHECK(interrupted.finish() == 128 + SIGTERM);
}

TEST_CASE("a job that fails is started again, on the same port", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  child job(shell_job(
      launcher, {"-n", "3", "--max-restarts", "2", "--grace", "0"},
      "echo attempt $ROLLCALL_ATTEMPT $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS ${ROLLCALL_LISTEN_FD:-none} $MASTER_PORT;"
      "[ $ROLLCALL_ATTEMPT = 1 ] && exit 0; [ $RANK = 2 ] && exit 9; exec sleep 600"));
  const string first = job.line();
  const int port = after_blank(first);
  CHECK(job.finish() == 0);
  const string all = first + "\n" + job.output();
  CHECK(has_line(all, "[0] attempt 1 1 2 3 " + std::to_string(port)));
  CHECK(has_line(all, "[2] attempt 1 1 2 none " + std::to_string(port)));
  CHECK(lines_with(all, "attempt 2") == 0);
  CHECK(contains(job.errors(), "rank 2 exited with status 9"));
  CHECK(contains(job.errors(), "restart 1 of 2"));
}

TEST_CASE("a job that fails in every attempt has the status of its last failure", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  child job(shell_job(launcher, {"-n", "1", "--max-restarts", "2"}, "echo attempt $ROLLCALL_ATTEMPT; exit $((40 + ROLLCALL_ATTEMPT))"));
  CHECK(job.finish() == 42);
  CHECK(job.output() == "[0] attempt 0\n[0] attempt 1\n[0] attempt 2\n");
}

TEST_CASE("no attempt sees what an earlier one has stored", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  const watchdog dog(current_case(), 120s);
  // In the first attempt all come as far as the barriers, which count in the store; then one fails.
  const string script = "if [ $ROLLCALL_ATTEMPT = 0 ]; then " + barrier +
                        " --runs 2 || exit 5; [ $RANK = 1 ] && exit 3; exec sleep 600; fi; exec " + barrier + " --runs 3 --timeout 20";
  for (const bool hosted : {false, true}) {
    std::vector<string> options{"-n", "3", "--max-restarts", "1", "--grace", "0.1"};
    if (hosted) options.emplace_back("--host-store");
    child job(shell_job(launcher, options, script));
    CHECK(job.finish(50s) == 0);
    CHECK(lines_with(job.output(), "mean of 2 barriers: ") == 3);
    CHECK(lines_with(job.output(), "mean of 3 barriers: ") == 3);
    CHECK(contains(job.errors(), "rank 1 exited with status 3"));
  }
}

TEST_CASE("a job whose ranks meet in a file is started again after a crash, and its next run, too", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  const watchdog dog(current_case(), 120s);
  const folder here;
  const string url = "file://" + (here.path / "ranks").string();
  const string meets = barrier + " --init-method " + url + " --timeout 60 --runs ";
  // In the first attempt all come as far as the barriers; then rank 1 is killed.
  const string out = (here.path / "said").string();
  const string script = "[ $ROLLCALL_ATTEMPT = 1 ] && exec " + meets + "3; [ $RANK != 1 ] && exec " + meets + "1000000; " + meets + "1000000 > " + out +
                        " & while ! grep -q 'store init in' " + out + "; do sleep 0.02; done; kill -9 $!; wait $!";
  for (int launch = 0; launch < 2; ++launch) {
    child job(shell_job(launcher, {"-n", "3", "--max-restarts", "1", "--grace", "5"}, script));
    CHECK(job.finish(100s) == 0);
    CHECK(lines_with(job.output(), "mean of 3 barriers: ") == 3);
    CHECK(contains(job.errors(), "restart 1 of 1"));
    CHECK(contains(job.errors(), "is dead: it ended without leaving"));
    CHECK_FALSE(std::filesystem::exists(here.path / "ranks"));
    // Another launch that is killed as a whole.
    std::filesystem::remove(out);
    child killed(shell_job(launcher, {"-n", "3"}, "exec " + meets + "1000000"));
    CHECK(killed.says("store init in "));
    killed.kill(SIGKILL);
    CHECK(killed.finish() == 128 + SIGKILL);
  }
}

TEST_CASE("each launch has a run id of its own, unless it is given one or is one of several", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const auto id = [&](std::vector<string> options) {
    child job(shell_job(launcher, std::move(options), "echo id $TORCHELASTIC_RUN_ID"));
    CHECK(job.finish() == 0);
    const std::vector<string> said = lines_of(job.output());
    REQUIRE(said.size() == 2);
    CHECK(said[0].substr(said[0].find("id")) == said[1].substr(said[1].find("id")));
    return said[0].substr(said[0].find("id"));
  };
  const string first = id({"-n", "2"});
  CHECK(first.starts_with("id run-"));
  CHECK(first.size() == 3 + 4 + 16);
  CHECK(id({"-n", "2"}) != first);
  CHECK(id({"-n", "2", "--run-id", "none"}) == "id none");
  CHECK(id({"-n", "2", "--run-id", "mine"}) == "id mine");
  std::vector<string> several = node(launcher, 0, 2, 2, unused_port());
  several.erase(several.begin());
  CHECK(id(several) == "id none");
}

TEST_CASE("a connection that waited for an ended attempt is closed before the next one starts", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder here;
  const string go = here.path / "go";
  child job(shell_job(
      launcher, {"-n", "1", "--max-restarts", "1", "--grace", "0"},
      "echo port $MASTER_PORT; [ $ROLLCALL_ATTEMPT = 1 ] && exec sleep 600; while [ ! -e " + go + " ]; do sleep 0.02; done; exit 1"));
  const int port = after_blank(job.line());
  const rc::unique_fd early = plain_connect(port);
  REQUIRE(early);
  REQUIRE(send_all(early.get(), req::validate() + req::set("addr", "of another attempt")));
  std::ofstream(go).close();
  CHECK(after_blank(job.line()) == port);
  char byte = 0;
  errno = 0;
  CHECK(::recv(early.get(), &byte, 1, 0) <= 0);
  CHECK(errno != EAGAIN);
  job.kill(SIGTERM);
  CHECK(job.finish() == 128 + SIGTERM);
  CHECK(lines_with(job.errors(), "starting all ranks again") == 1);
}

TEST_CASE("a job that was told to end is not started again", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  child job(shell_job(launcher, {"-n", "2", "--max-restarts", "5"}, "echo here; exec sleep 600"));
  CHECK(contains(job.line(), "here"));
  CHECK(contains(job.line(), "here"));
  job.kill(SIGINT);
  CHECK(job.finish() == 128 + SIGINT);
  CHECK_FALSE(contains(job.errors(), "starting all ranks again"));
  CHECK(contains(job.errors(), "ranks 0-1 were killed by SIGINT"));
}

TEST_CASE("each rank has a log file of what it said", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder here;
  const string logs = here.path / "a" / "b";
  std::vector<string> command = node(launcher, 0, 2, 2, unused_port());
  child job(command + std::vector<string>{"--log-dir", logs, "/bin/sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  CHECK(job.finish() == 0);
  CHECK(has_line(job.output(), "[1] out 1"));
  CHECK(has_line(job.errors(), "[1] err 1"));
  for (int i = 0; i < 2; ++i) {
    const string text = content(logs + "/rank-" + std::to_string(i) + ".log");
    CHECK(has_line(text, "out " + std::to_string(i)));
    CHECK(has_line(text, "err " + std::to_string(i)));
    CHECK(lines_of(text).size() == 2);
  }

  child again(shell_job(launcher, {"-n", "1", "--log-dir", logs, "--max-restarts", "1", "--quiet"},
                        "echo attempt $ROLLCALL_ATTEMPT; exit $((1 - ROLLCALL_ATTEMPT))"));
  CHECK(again.finish() == 0);
  CHECK(again.output().empty());
  CHECK(content(logs + "/attempt-0/rank-0.log") == "attempt 0\n");
  CHECK(content(logs + "/attempt-1/rank-0.log") == "attempt 1\n");
}

TEST_CASE("a log that cannot be written is an error before anything starts", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder here;
  std::ofstream(here.path / "file").close();
  child below_a_file(shell_job(launcher, {"-n", "2", "--log-dir", here.path / "file"}, "echo started"));
  CHECK(below_a_file.finish() == 1);
  CHECK(below_a_file.output().empty());
  CHECK(contains(below_a_file.errors(), "cannot write '" + string(here.path / "file" / "rank-0.log") + "'"));

  std::filesystem::create_symlink("/dev/full", here.path / "rank-1.log");
  child full(shell_job(launcher, {"-n", "2", "--log-dir", here.path}, "exec sleep 600"));
  CHECK(full.finish() == 1);
  CHECK(contains(full.errors(), "rank-1.log"));
  CHECK(contains(full.errors(), "ENOSPC"));
}

TEST_CASE("a log that cannot be written any more is told once, and nothing is lost on the terminal", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder here;
  // A limit of the file size stands for the full disk; the shell's unit is 512 or 1024 bytes.
  const string script = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i + 1)); done";
  child job({"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh", launcher, "-n", "2", "--log-dir", here.path, "/bin/sh", "-c",
             script});
  CHECK(job.finish() == 0);
  CHECK(lines_of(job.output()).size() == 1000);
  CHECK(lines_with(job.errors(), "cannot write") == 1);
  CHECK(contains(job.errors(), "EFBIG"));
  CHECK(content(here.path / "rank-0.log").starts_with("line 0\nline 1\n"));
}

TEST_CASE("a log that may not grow is told once, and the job goes on", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder here;
  const string lines = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i + 1)); done";
  child job({"/bin/sh", "-c", "ulimit -f 1; exec \"$0\" -n 2 --log-dir " + string(here.path) + " /bin/sh -c '" + lines + "'", launcher});
  CHECK(job.finish() == 0);
  CHECK(lines_of(job.output()).size() == 6000);
  CHECK(launcher_only(job.errors()));
  CHECK(lines_with(job.errors(), "EFBIG") == 1);
}

TEST_CASE("quiet shows only the launcher's own lines, and success has none", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  child fine(shell_job(launcher, {"-n", "2", "--quiet"}, "echo out; echo err >&2"));
  CHECK(fine.finish() == 0);
  CHECK(fine.output().empty());
  CHECK(fine.errors().empty());

  child bad(shell_job(launcher, {"-n", "2", "--quiet"}, "echo out $RANK; exit $RANK"));
  CHECK(bad.finish() == 1);
  CHECK(bad.output().empty());
  CHECK(contains(bad.errors(), "rollcall-run: rank 1 exited with status 1"));
  CHECK(has_line(bad.errors(), "  [1] out 1"));
}

TEST_CASE("the summary names all ranks by how they ended, and the last lines of the first failure", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  child job(
      shell_job(launcher, {"-n", "8"}, "[ $RANK = 3 ] || exit 0; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i + 1)); done; exit 7"));
  CHECK(job.finish() == 7);
  CHECK(has_line(job.errors(), "rollcall-run:   ranks 0-2, 4-7 exited with status 0"));
  CHECK(has_line(job.errors(), "rollcall-run:   rank 3 exited with status 7"));
  CHECK(contains(job.errors(), "rank 3 failed first; its last lines:\n  [3] line 20\n"));
  CHECK(lines_with(job.errors(), "  [3] line ") == 10);
  CHECK(lines_of(job.errors()).back() == "  [3] line 29");

  child fine(shell_job(launcher, {"-n", "4"}, "exit 0"));
  CHECK(fine.finish() == 0);
  CHECK(contains(fine.errors(), "4 ranks of 4 ended"));
  CHECK(has_line(fine.errors(), "rollcall-run:   ranks 0-3 exited with status 0"));

  child silent(shell_job(launcher, {"-n", "2", "--grace", "0.1"}, "[ $RANK = 0 ] && kill -SEGV $$; exec sleep 600"));
  CHECK(silent.finish() == 128 + SIGSEGV);
  CHECK(contains(silent.errors(), "rank 0 failed first; it said nothing"));
  CHECK(has_line(silent.errors(), "rollcall-run:   rank 1 was killed by SIGTERM"));
}

TEST_CASE("ranks that hang after a failure are ended when the grace is over", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const auto begun = clock_type::now();
  child job(
      shell_job(launcher, {"-n", "4", "--grace", "0.2"}, "trap '' TERM; echo $$; [ $RANK = 2 ] && exit 6; sleep 600 & wait; sleep 600"));
  CHECK(job.finish() == 6);
  CHECK(clock_type::now() - begun < 15s);  // 0.2 s to SIGTERM, at least 1 s more to SIGKILL
  CHECK(has_line(job.errors(), "rollcall-run: still running: 0-1, 3; sent SIGTERM"));
  CHECK(has_line(job.errors(), "rollcall-run: still running: 0-1, 3; sent SIGKILL"));
  CHECK(has_line(job.errors(), "rollcall-run:   ranks 0-1, 3 were killed by SIGKILL"));
}

TEST_CASE("ranks that ignore a signal get SIGKILL some time after the second", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  child job(shell_job(launcher, {"-n", "2", "--grace", "0.5"}, "trap 'echo told' TERM; echo here; while :; do sleep 0.05; done"));
  CHECK(contains(job.line(), "here"));
  CHECK(contains(job.line(), "here"));
  job.kill(SIGTERM);
  CHECK(contains(job.line(), "told"));
  CHECK(contains(job.line(), "told"));
  job.kill(SIGTERM);
  CHECK(job.finish() == 128 + SIGKILL);
  CHECK(contains(job.errors(), "still running: 0-1; sent SIGKILL"));
}

TEST_CASE("a launcher whose lines nobody reads still ends the ranks when it is told to", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const folder here;
  const string pid_file = string(here.path) + "/$RANK";
  child job(shell_job(launcher, {"-n", "2", "--grace", "0.5"},
                      "trap '' TERM; echo process $$ > " + pid_file + ".new; mv " + pid_file + ".new " + pid_file +
                          "; while :; do echo a line that nobody reads; done"));
  std::vector<int> pids;
  for (char const* rank : {"0", "1"}) {
    while (!std::filesystem::exists(here.path / rank)) std::this_thread::yield();
    pids.push_back(after_blank(lines_of(content(here.path / rank)).front()));
  }
  job.kill(SIGTERM);
  while (signal_is_pending(job.pid(), SIGTERM)) std::this_thread::yield();
  job.kill(SIGTERM);
  pids.push_back(job.pid());
  gone_at_last(pids);
  CHECK(job.finish() == 128 + SIGKILL);
}

TEST_CASE("a job goes on when the reader of its lines is gone", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const string lines = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i + 1)); done; grep SigIgn /proc/self/status >&2; exit 7";
  child job({"/bin/sh", "-c", "{ \"$0\" -n 2 /bin/sh -c '" + lines + "'; echo status $? >&2; } | head -n 1", launcher});
  CHECK(job.finish() == 0);
  CHECK(lines_of(job.output()).size() == 1);
  INFO(job.errors());
  CHECK(has_line(job.errors(), "status 7"));
  // The ranks do not inherit what keeps the launcher alive.
  for (string const& line : lines_of(job.errors())) {
    const std::size_t ignored = line.find("] SigIgn:\t");
    if (ignored == line.npos) continue;
    const auto signals = std::strtoull(line.c_str() + ignored + 10, nullptr, 16);
    CHECK((signals >> (SIGPIPE - 1) & 1) == 0);
    CHECK((signals >> (SIGXFSZ - 1) & 1) == 0);
  }
}

TEST_CASE("programs that are started without standard descriptors work all the same", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  NEEDS_EXAMPLE(server, "rollcall-server");
  const watchdog dog(current_case());
  for (char const* closed : {"0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"}) {
    INFO(closed);
    const folder here;
    child job({"/bin/sh", "-c", words({"exec \"$0\" -n 3 --log-dir", string(here.path), "\"$1\" --runs 3", closed}), launcher, barrier});
    CHECK(job.finish() == 0);
    for (char const* rank : {"0", "1", "2"})
      CHECK(lines_with(content(here.path / (string("rank-") + rank + ".log")), "mean of 3 barriers: ") == 1);
    child failing({"/bin/sh", "-c", words({"exec \"$0\" -n 2 --quiet /bin/sh -c 'exit 5'", closed}), launcher});
    CHECK(failing.finish() == 5);
    child ranks(shell_job(launcher, {"-n", "3"}, words({"exec", barrier, "--runs 3", closed})));
    CHECK(ranks.finish() == 0);
    CHECK(lines_with(ranks.output(), "mean of 3 barriers: ") == (string_view(closed).find("1>") == string_view::npos ? 3U : 0U));
    child served({"/bin/sh", "-c", words({"exec \"$0\" --port 0 --until-eof </dev/null", closed}), server});
    CHECK(served.finish() == 0);
  }
}

TEST_CASE("a launcher that is killed leaves neither ranks, nor what they started, nor its guard", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  for (const bool hosted : {false, true}) {
    // A child, one that has left the group and the session, and a daemon, whose parent is gone.
    std::vector<string> options{"-n", "3", "--log-dir", folder().path};
    if (hosted) options.emplace_back("--host-store");
    child job(shell_job(launcher, options,
                        "sleep 600 & echo child $!; setsid sh -c 'echo session $$; exec sleep 600' & "
                        "(setsid sh -c 'echo daemon $$; exec sleep 600' &); echo rank $$; exec sleep 600"));
    std::vector<int> pids;
    for (int i = 0; i < 12; ++i) pids.push_back(after_blank(job.line()));
    const string launcher_id = std::to_string(job.pid());
    std::istringstream children(content("/proc/" + launcher_id + "/task/" + launcher_id + "/children"));
    std::size_t direct = 0;
    for (int pid = 0; children >> pid; ++direct) pids.push_back(pid);
    CHECK((direct >= 4 || direct == 0));  // three ranks, the guard and orphans, where the kernel tells
    job.kill(SIGKILL);
    gone_at_last(pids);
    std::filesystem::remove_all(options[3]);
  }
}

TEST_CASE("a launcher that ends leaves nothing that its ranks have started", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  for (char const* status : {"0", "4"}) {
    const folder here;
    const string left = string(here.path) + "/$RANK";
    string both;  // have said all: the first to end takes the other with it
    for (char const* file : {"0", "0.bare", "1", "1.bare"}) both += (both.empty() ? "-e " : " -a -e ") + string(here.path) + "/" + file;
    child job(shell_job(launcher, {"-n", "2", "--grace", "0"},
                        "sleep 600 & echo child $!; env -i RANK=$RANK setsid sh -c 'echo bare $$; : > " + left + ".bare; exec sleep 600' & "
                        "setsid sh -c 'echo session $$; : > " + left + "; exec sleep 600' & while ! [ " + both +
                            " ]; do sleep 0.02; done; exit " + status));
    std::vector<int> pids;
    for (int i = 0; i < 6; ++i) pids.push_back(after_blank(job.line()));
    CHECK(job.finish() == std::atoi(status));
    gone_at_last(pids);
  }
}

TEST_CASE("children that the launcher's shell had before are not the launcher's", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  child job({"/bin/sh", "-c", "sleep 600 > /dev/null 2>&1 & echo before $!; exec " + launcher + " -n 1 /bin/true"});
  const int before = after_blank(job.line());
  CHECK(job.finish() == 0);
  CHECK(process_exists(before));
  ::kill(before, SIGKILL);
}

TEST_CASE("a launcher inside a rank has its own mark, and ends with the outer one", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  child job(shell_job(
      launcher, {"-n", "1"},
      "exec " + launcher + " -n 2 /bin/sh -c 'setsid sh -c \"echo session \\$\\$; exec sleep 600\" & echo rank $$; exec sleep 600'"));
  std::vector<int> pids;
  for (int i = 0; i < 4; ++i) pids.push_back(after_blank(job.line()));
  job.kill(SIGKILL);
  gone_at_last(pids);
}

TEST_CASE("options that contradict each other are usage errors that name them", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  struct wrong {
    std::vector<string> options;
    std::vector<string> named;
  };
  const std::vector<wrong> cases{
      {{}, {"-n", "--nproc-per-node"}},
      {{"-n", "2", "--nproc-per-node", "2"}, {"-n", "--nproc-per-node"}},
      {{"-n", "2", "--nnodes", "2"}, {"-n", "--nnodes 2", "--nproc-per-node"}},
      {{"-n", "2", "--node-rank", "1"}, {"--node-rank 1", "--nnodes 1"}},
      {{"--nnodes", "2", "--node-rank", "2", "--nproc-per-node", "2"}, {"--node-rank 2", "--nnodes 2"}},
      {{"--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "h", "--master-port", "5"}, {"--nnodes 2", "--node-rank"}},
      {{"--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "2", "--master-port", "5"}, {"--nnodes 2", "--master-addr"}},
      {{"--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "2", "--master-addr", "h"},
       {"--nnodes 2", "--master-port", "only node 0 learns"}},
      {{"--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "2", "--master-addr", "h", "--master-port", "0"},
       {"--master-port", "not 0"}},
      {{"--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "2", "--master-addr", "*", "--master-port", "5"},
       {"--nnodes 2", "--master-addr '*'"}},
      {{"--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "2", "--master-addr", "h", "--master-port", "5", "--max-restarts", "1"},
       {"--max-restarts 1", "--nnodes 2"}},
      {{"--nnodes", "65536", "--node-rank", "0", "--nproc-per-node", "65536"}, {"--nnodes 65536", "--nproc-per-node 65536"}},
      {{"-n", "2", "--max-restarts", "-1"}, {"--max-restarts"}},
      {{"-n", "2", "--port", "70000"}, {"--master-port", "70000"}},
      {{"-n", "2", "--grace", "-1"}, {"--grace"}},
      {{"-n", "2", "--no-such-option"}, {"--no-such-option"}},
  };
  for (wrong const& c : cases) {
    std::vector<string> command{launcher};
    child job(command + c.options + std::vector<string>{"/bin/true"});
    CAPTURE(c.options);
    CHECK(job.finish() == 2);
    for (string const& name : c.named) CHECK(contains(job.errors() + job.output(), name));
  }
  child nothing({launcher, "-n", "2"});
  CHECK(nothing.finish() == 2);
  CHECK(contains(nothing.errors() + nothing.output(), "PROGRAM"));
}

TEST_CASE("a taken master port is an error that names it, also for a hosted store", "[launcher]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const watchdog dog(current_case());
  const rc::listener holder = rc::listen(rc::listen_options{});
  for (char const* option : {"--quiet", "--host-store"}) {
    child job(node(launcher, 0, 2, 1, holder.port()) + std::vector<string>{option, "/bin/sh", "-c", "echo started"});
    CHECK(job.finish() == 1);
    CHECK(job.output().empty());
    CHECK(contains(job.errors(), holder.address().to_string()));
    CHECK(contains(job.errors(), "EADDRINUSE"));
  }
}

TEST_CASE("one launcher a node finds the nodes by what has started it", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const string port = std::to_string(unused_port());
  const string print = "echo $RANK of $WORLD_SIZE on $GROUP_RANK of $GROUP_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT";
  const auto node = [&](std::vector<string> environment, std::vector<string> options) {
    std::vector<string> command{"/usr/bin/env", "-i"};
    command.insert(command.end(), environment.begin(), environment.end());
    command.insert(command.end(), {launcher, "--init-method"});
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"/bin/sh", "-c", print});
    return std::make_unique<child>(std::move(command));
  };
  const string slurm_url = "auto://127.0.0.1:" + port;
  const std::vector<string> kubeflow{"PET_NNODES=2", "PET_NPROC_PER_NODE=2", "RANK=1", "WORLD_SIZE=4", "PET_NODE_RANK=1", "MASTER_ADDR=127.0.0.1",
                                     "MASTER_PORT=" + port};
  for (auto const& job : {node({"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0"}, {slurm_url, "--nproc-per-node", "2"}),
                          node(kubeflow, {"auto://"})}) {
    CHECK(job->finish() == 0);
    for (char const* rank : {"2", "3"})
      CHECK(has_line(job->output(), "[" + string(rank) + "] " + rank + " of 4 on 1 of 2 at 127.0.0.1:" + port));
  }
  const auto first = node({"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0"}, {slurm_url, "--nproc-per-node", "1"});
  CHECK(first->finish() == 0);
  CHECK(has_line(first->output(), "[0] 0 of 2 on 0 of 2 at 127.0.0.1:" + port));
  const auto nothing = node({}, {"auto://", "-n", "2"});
  CHECK(nothing->finish() == 2);
  CHECK(contains(nothing->errors(), "no launcher has left its variables"));
  const auto both = node({}, {"auto://", "--nnodes", "2", "--nproc-per-node", "2"});
  CHECK(both->finish() == 2);
  CHECK(contains(both->errors(), "both say which node this is"));
}
