#include <algorithm>

#include "../support/net.hpp"

// rollcall-server as a program: when it is ready, how it ends, and what it says of a command line or an environment that cannot be meant.

using namespace net_test;

namespace {

bool exists(string const& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Runs a command that must fail before it serves; its exit status.
int fails(child& c) {
  const int status = c.finish();
  INFO(c.errors());
  CHECK_FALSE(contains(c.output(), "ready"));
  CHECK_FALSE(c.errors().empty());
  return status;
}
/// The program as systemd would start it, with these words in the place of LISTEN_PID=... and LISTEN_FDS=....
std::vector<string> activated(string const& program, string const& variables, std::vector<string> options = {}) {
  std::vector<string> command{"/bin/bash", "-c", "export " + variables + "; exec \"$0\" \"$@\"", program, "--use-libuv", "0"};
  command.insert(command.end(), options.begin(), options.end());
  return command;
}

}  // namespace

TEST_CASE("a signal right after ready, or as soon as the socket is there, ends the server orderly and leaves no file", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  const scratch here;
  for (int i = 0; i < 20; ++i) {
    for (char const* const use_libuv : {"1", "0"}) {
      for (const bool at_once : {false, true}) {
        INFO("--use-libuv " << use_libuv << (at_once ? ", the file is there" : ", ready"));
        const string path = here.path + "/socket";
        child server({program, "--unix", path, "--use-libuv", use_libuv});
        if (at_once) {
          REQUIRE(soon([&] { return exists(path); }));
        } else {
          REQUIRE(contains(server.line(), "ready unix:"));
        }
        server.kill(i % 2 == 0 ? SIGTERM : SIGINT);
        CHECK(server.finish() == 0);
        CHECK_FALSE(exists(path));
      }
    }
  }
}

// A program under the address and undefined behaviour sanitizers needs descriptors for their own checks (a pipe for each vptr that is looked at).
#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("with any limit of descriptors a server is ready and serves, or says what it lacks", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  for (char const* const use_libuv : {"1", "0"}) {
    int ready = 0, told = 0;
    for (int files = 4; files <= 24; ++files) {
      INFO("--use-libuv " << use_libuv << " --max-files " << files);
      child server({program, "--port", "0", "--use-libuv", use_libuv, "--max-files", std::to_string(files)});
      const string line = server.line();
      if (line.starts_with("ready ")) {
        ++ready;
        const rc::unique_fd peer = plain_connect(std::atoi(line.c_str() + line.rfind(':') + 1));
        REQUIRE(send_all(peer.get(), req::validate() + req::ping(7)));
        CHECK(receive(peer.get(), 4) == u32(7));
        server.kill(SIGTERM);
        CHECK(server.finish() == 0);
        CHECK(server.errors().empty());
      } else {
        ++told;
        CHECK(fails(server) == 1);
        CHECK(ready == 0);  // more is never worse
        CHECK(contains(server.errors(), "EMFILE"));
        CHECK(contains(server.errors(), "ulimit -n"));
      }
    }
    CHECK(ready > 0);
    CHECK(told > 0);
  }
  child tight({"/bin/bash", "-c", "ulimit -n 5; exec \"$0\" --port 0 --use-libuv 1", program});
  CHECK(fails(tight) == 1);
  CHECK(contains(tight.errors(), "ulimit -n"));
}
#endif

TEST_CASE("an empty value of an option is an error that names the option", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  for (char const* option : {"--unix", "--host", "--port", "--listen-fd", "--use-libuv", "--max-files"}) {
    INFO(option);
    child server({program, option, ""});
    CHECK(fails(server) == 2);
    CHECK(contains(server.errors(), option));
  }
}

TEST_CASE("two options that both say where to listen are an error that names both", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  const std::pair<std::pair<char const*, char const*>, std::pair<char const*, char const*>> rows[] = {
      {{"--listen-fd", "3"}, {"--unix", "/tmp/nowhere"}},
      {{"--listen-fd", "3"}, {"--host", "127.0.0.1"}},
      {{"--unix", "/tmp/nowhere"}, {"--host", "127.0.0.1"}},
      {{"--unix", "/tmp/nowhere"}, {"--port", "0"}},
  };
  for (auto const& [a, b] : rows) {
    child server({program, a.first, a.second, b.first, b.second});
    CHECK(fails(server) == 2);
    CHECK(contains(server.errors(), a.first));
    CHECK(contains(server.errors(), b.first));
  }
  for (auto const& [option, value] : {std::pair{"--unix", "/tmp/nowhere"}, std::pair{"--host", "127.0.0.1"}}) {
    child server(activated(program, "LISTEN_PID=$$ LISTEN_FDS=1", {option, value}));
    CHECK(fails(server) == 2);
    CHECK(contains(server.errors(), "LISTEN_FDS"));
    CHECK(contains(server.errors(), option));
  }
}

TEST_CASE("the variables of a socket activation are numbers and nothing else", "[programs]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  for (char const* value : {"", "abc", " 1", "1x", "-1", "99999999999999999999"}) {
    INFO("'" << value << "'");
    child server(activated(program, "LISTEN_PID=$$ LISTEN_FDS='" + string(value) + "'"));
    CHECK(fails(server) == 1);
    CHECK(contains(server.errors(), "LISTEN_FDS is '" + string(value) + "', which is not a number"));
    child other(activated(program, "LISTEN_PID='" + string(value) + "' LISTEN_FDS=1"));
    CHECK(fails(other) == 1);
    CHECK(contains(other.errors(), "LISTEN_PID is '" + string(value) + "'"));
  }
  child none(activated(program, "LISTEN_PID=$$ LISTEN_FDS=0"));
  CHECK(fails(none) == 1);
  CHECK(contains(none.errors(), "LISTEN_FDS says 0 sockets, where one is needed"));
  child without(activated(program, "LISTEN_PID=$$", {"--port", "0"}));  // as sd_listen_fds() has it
  CHECK(without.line().starts_with("ready 127.0.0.1:"));
}

TEST_CASE("wrong usage has exit status 2 in every program, and says what would be right", "[programs]") {
  NEEDS_EXAMPLE(server, "rollcall-server");
  NEEDS_EXAMPLE(mini, "mini_server");
  NEEDS_EXAMPLE(cli, "rollcall-cli");
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  NEEDS_EXAMPLE(barrier, "barrier");
  struct row {
    std::vector<string> command;
    char const* told;
  };
  for (row const& r : {row{{server, "--port", "many"}, "many"},
                       row{{server, "--port", "70000"}, "70000"},
                       row{{server, "--what"}, "--what"},
                       row{{server, "--max-files", "0"}, "'0' is not at least 1"},
                       row{{server, "--max-files", "few"}, "'few' is not a whole number"},
                       row{{server, "--listen-fd", "-1"}, "'-1' is not at least 0"},
                       row{{server, "--use-libuv", "maybe"}, "maybe"},
                       row{{mini, "--port", "many"}, "many"},
                       row{{mini, "--what"}, "--what"},
                       row{{cli, "--timeout", "long", "ping"}, "long"},
                       row{{launcher, "-n", "some", "/bin/true"}, "some"},
                       row{{barrier, "--runs", "some"}, "some"},
                       row{{barrier, "--what"}, "--what"}}) {
    INFO(r.told);
    child c(r.command);
    CHECK(fails(c) == 2);
    CHECK(contains(c.errors(), r.told));
  }
  child help({server, "--help"});
  CHECK(help.finish() == 0);
  CHECK(contains(help.output(), "--until-eof"));
}
