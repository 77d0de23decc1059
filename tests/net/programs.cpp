#include <algorithm>
#include <fstream>
#include <sstream>

#include "../support/net.hpp"

using namespace net_test;

namespace {

/// Runs a command to its end; what it said is in the child.
int run(child& c, std::chrono::milliseconds limit = 60s) { return c.finish(limit); }

std::chrono::steady_clock::duration since(std::chrono::steady_clock::time_point t) { return std::chrono::steady_clock::now() - t; }

}  // namespace

TEST_CASE("ranks meet under rollcall-run, pass their barriers and say so", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  child job({launcher, "-n", "8", barrier, "--runs", "3"});
  CHECK(run(job) == 0);
  CHECK(lines_with(job.output(), "world_size=8: store init in ") == 8);
  CHECK(lines_with(job.output(), "mean of 3 barriers: ") == 8);
  for (int rank = 0; rank < 8; ++rank) {
    const string prefix = "[" + std::to_string(rank) + "] rank=" + std::to_string(rank) + ", ";
    CHECK(lines_with(job.output(), prefix) == 1);
  }
  CHECK(launcher_only(job.errors()));
}

TEST_CASE("sixty-four ranks pass ten barriers", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  child job({launcher, "-n", "64", barrier, "--runs", "10"});
  CHECK(run(job) == 0);
  CHECK(lines_with(job.output(), "world_size=64: store init in ") == 64);
  CHECK(lines_with(job.output(), "mean of 10 barriers: ") == 64);
}

TEST_CASE("a rank that fails ends the job, with its status and its name", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  child job({launcher, "-n", "3", "--grace", "0.1", "/bin/sh", "-c", "if [ $RANK = 1 ]; then echo cannot go on; exit 7; fi; exec sleep 600"});
  const auto begun = std::chrono::steady_clock::now();
  CHECK(run(job) == 7);
  CHECK(since(begun) < 30s);
  CHECK(contains(job.output(), "[1] cannot go on"));
  CHECK(contains(job.errors(), "rank 1 exited with status 7"));
}

TEST_CASE("a rank killed by a signal gives 128 and the signal", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  child job({launcher, "-n", "2", "--grace", "0.1", "/bin/sh", "-c", "if [ $RANK = 0 ]; then kill -KILL $$; fi; exec sleep 600"});
  CHECK(run(job) == 128 + SIGKILL);
  CHECK(contains(job.errors(), "rank 0 was killed by SIGKILL"));
}

TEST_CASE("a program that cannot be started is named, and nothing is left running", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  child job({launcher, "-n", "2", "/no/such/program"});
  CHECK(run(job) == 127);
  CHECK(contains(job.errors(), "/no/such/program"));
  CHECK(contains(job.errors(), "ENOENT"));
}

TEST_CASE("wrong options are a usage error", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  for (char const* n : {"0", "-3", "many"}) {
    child job({launcher, "-n", n, "/bin/true"});
    CHECK(run(job) != 0);
    CHECK(contains(job.errors(), n));
  }
}

TEST_CASE("a taken port is an error at once that names it and the ways out", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(server, "rollcall-server");
  const rc::listener holder = rc::listen(rc::listen_options{});
  const string port = std::to_string(holder.port());
  const std::vector<std::vector<string>> commands{{launcher, "-n", "2", "--port", port, "/bin/true"}, {server, "--port", port}};
  for (std::vector<string> const& command : commands) {
    child late(command);
    const auto begun = std::chrono::steady_clock::now();
    CHECK(run(late) != 0);
    CHECK(since(begun) < 10s);
    CHECK(contains(late.errors(), "127.0.0.1:" + port));
    CHECK(contains(late.errors(), "EADDRINUSE"));
    CHECK(contains(late.errors(), "port 0"));
  }
}

TEST_CASE("a job interrupted by a signal passes it on to its ranks", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  for (const int signal : {SIGINT, SIGTERM}) {
    child job({launcher, "-n", "2", "/bin/sh", "-c", "trap 'echo told; exit 3' INT TERM; echo here; while :; do sleep 0.05; done"});
    CHECK(contains(job.line(), "here"));
    CHECK(contains(job.line(), "here"));
    job.kill(signal);
    CHECK(run(job) == 3);
    CHECK(lines_with(job.output(), "told") == 2);
  }
}

TEST_CASE("no rank outlives a launcher that is killed", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  child job({launcher, "-n", "4", "/bin/sh", "-c", "echo $$; exec sleep 600"});
  std::vector<int> ranks;
  for (int i = 0; i < 4; ++i) {
    const string line = job.line();
    const std::size_t blank = line.find(' ');
    REQUIRE(blank != line.npos);
    ranks.push_back(std::atoi(line.c_str() + blank));
  }
  job.kill(SIGKILL);
  gone_at_last(ranks);
}

TEST_CASE("the environment of a rank is the launcher's word", "[programs]") {
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  child job({launcher, "-n", "2", "/bin/sh", "-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} ${ROLLCALL_LISTEN_FD:-none}"});
  CHECK(run(job) == 0);
  CHECK(lines_with(job.output(), "[0] 0 2 0 2 127.0.0.1 port 3") == 1);
  CHECK(lines_with(job.output(), "[1] 1 2 1 2 127.0.0.1 port none") == 1);
}

TEST_CASE("rollcall-server says where it is, drains at SIGTERM and frees its port", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  for (const int signal : {SIGTERM, SIGINT, -SIGTERM, -SIGINT}) {  // negative: the blocking back end
    server_process server(program, {"--use-libuv", signal > 0 ? "1" : "0"});
    rc::unique_fd peer = plain_connect(server.port());
    REQUIRE(peer);
    REQUIRE(send_all(peer.get(), req::validate() + req::add("k", 5)));
    CHECK(receive(peer.get(), 8) == i64(5));
    server.kill(std::abs(signal));
    CHECK(server.finish() == 0);
    CHECK(receive(peer.get(), 1).empty());
    const rc::listener again = rc::listen(rc::listen_options{}.port(server.port()));
    CHECK(again.port() == server.port());
  }
}

TEST_CASE("rollcall-server ends with its standard input when it was asked to", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  for (char const* const use_libuv : {"1", "0"}) {
    child server({program, "--port", "0", "--until-eof", "--use-libuv", use_libuv}, true);
    CHECK(contains(server.line(), "ready 127.0.0.1:"));
    server.close_input();
    CHECK(server.finish() == 0);
  }
}

TEST_CASE("an input that is a file, a device or closed has its end behind it", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  for (char const* input : {"</dev/null", "</dev/zero", "</proc/self/exe", "</", "<&-"}) {
    for (char const* const use_libuv : {"1", "0"}) {
      INFO(input << ", --use-libuv " << use_libuv);
      child server({"/bin/sh", "-c", "exec \"$0\" --port 0 --until-eof --use-libuv \"$1\" " + string(input), program, use_libuv});
      CHECK(server.finish() == 0);
      CHECK(contains(server.output(), "ready 127.0.0.1:"));
    }
  }
}

TEST_CASE("the lessons run and end by themselves", "[programs]") {
  NEEDS_EXAMPLE(hello, "hello");
  NEEDS_EXAMPLE(embed, "embed_in_uv_loop");
  NEEDS_EXAMPLE(blocking, "hello_blocking");
  child h({hello});
  CHECK(run(h) == 0);
  CHECK(contains(h.output(), "rank 0: my peer is at 10.0.0.2:4242"));
  CHECK(contains(h.output(), "rank 1: my peer is at 10.0.0.1:4242"));
  child b({blocking});
  CHECK(run(b) == 0);
  CHECK(b.output() == "hello\n");
  child e({embed});
  CHECK(run(e) == 0);
  CHECK(contains(e.output(), "the echo server says hello"));
  CHECK(contains(e.output(), "ticked all the while"));
}

TEST_CASE("barrier without a launcher says what is missing", "[programs]") {
  NEEDS_EXAMPLE(barrier, "barrier");
  child alone({barrier}, false, {"WORLD_SIZE="});
  CHECK(run(alone) == 1);
  CHECK(contains(alone.errors(), "WORLD_SIZE"));
  child odd({barrier}, false, {"WORLD_SIZE=2", "RANK=2", "MASTER_PORT=1"});
  CHECK(run(odd) == 1);
  CHECK(contains(odd.errors(), "rank 2 (RANK) is not below world_size 2 (WORLD_SIZE)"));
}
