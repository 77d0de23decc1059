// rollcall-cli as its users and their scripts see it: what it prints, in three formats, and its exit status.
#include "../support/net.hpp"

using namespace net_test;

namespace {

struct outcome {
  int status = -1;
  string said;
  string complaint;
};

/// A store in a process of its own, and the program that talks to it.
class cli {
 public:
  cli(string const& program, string const& server) : program_(program), server_(server) {}

  [[nodiscard]] string url() const { return "tcp://127.0.0.1:" + std::to_string(server_.port()); }
  server_process& server() { return server_; }
  std::vector<string> command(std::vector<string> words) const {
    std::vector<string> all{program_, "--url", url(), "--timeout", "20"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  outcome operator()(std::vector<string> words) const { return run(command(std::move(words))); }
  /// `input | rollcall-cli WORDS`, `input` in printf's spelling.
  outcome fed(string const& input, std::vector<string> words) const {
    std::vector<string> all{"/bin/sh", "-c", "printf '" + input + "' | \"$0\" \"$@\""};
    for (string const& w : command(std::move(words))) all.push_back(w);
    return run(std::move(all));
  }
  static outcome run(std::vector<string> words, std::vector<string> environment = {}) {
    child c(std::move(words), false, std::move(environment));
    outcome o;
    o.status = c.finish(60s);
    o.said = c.output();
    o.complaint = c.errors();
    return o;
  }

 private:
  string program_;
  server_process server_;
};

/// What it printed, where all went well and nothing was complained about.
string said(outcome const& o) {
  CHECK(o.status == 0);
  CHECK(o.complaint.empty());
  return o.said;
}
/// A negative answer: status 1, and the reason.
string negative(outcome const& o) {
  CHECK(o.status == 1);
  return o.said + o.complaint;
}
string usage(outcome const& o) {
  CHECK(o.status == 2);
  CHECK(o.said.empty());
  return o.complaint;
}

}  // namespace

#define NEEDS_CLI(name)                      \
  NEEDS_EXAMPLE(program_, "rollcall-cli");   \
  NEEDS_EXAMPLE(server_, "rollcall-server"); \
  const watchdog dog(current_case());        \
  cli name(program_, server_)

TEST_CASE("values, numbers and their absence", "[cli]") {
  NEEDS_CLI(c);
  CHECK(negative(c({"get", "k"})) == "rollcall-cli: there is no key 'k'\n");
  CHECK(said(c({"set", "k", "v"})).empty());
  CHECK(said(c({"get", "k"})) == "v\n");
  CHECK(said(c({"get", "--wait", "k"})) == "v\n");
  CHECK(said(c({"append", "k", "w"})).empty());
  CHECK(said(c({"get", "k"})) == "vw\n");
  CHECK(said(c({"set", "k", ""})).empty());
  CHECK(said(c({"get", "k"})) == "\n");
  CHECK(said(c({"set", "", "the empty key"})).empty());
  CHECK(said(c({"get", ""})) == "the empty key\n");
  CHECK(said(c({"add", "n"})) == "1\n");
  CHECK(said(c({"add", "n", "41"})) == "42\n");
  CHECK(said(c({"add", "n", "-43"})) == "-1\n");
  CHECK(said(c({"add", "n", "--", "-9223372036854775807"})) == "-9223372036854775808\n");
  CHECK(said(c({"delete", "n", "k", "nope"})) == "2\n");
  CHECK(negative(c({"delete", "k"})) == "0\n");
}

TEST_CASE("compare and set", "[cli]") {
  NEEDS_CLI(c);
  CHECK(contains(negative(c({"cas", "k", "old", "new"})), "there is no key 'k'"));
  CHECK(said(c({"cas", "k", "", "one"})) == "one\n");
  CHECK(said(c({"cas", "k", "one", "two"})) == "two\n");
  CHECK(negative(c({"cas", "k", "one", "three"})) == "two\nrollcall-cli: another value is there; nothing was stored\n");
  CHECK(said(c({"get", "k"})) == "two\n");
}

TEST_CASE("check and wait", "[cli]") {
  NEEDS_CLI(c);
  said(c({"mset", "a", "1", "b", "2"}));
  CHECK(said(c({"check", "a", "b"})) == "true\n");
  CHECK(negative(c({"check", "a", "z"})) == "false\n");
  CHECK(said(c({"wait", "a", "b"})).empty());
  const outcome late = c({"--timeout", "0.5", "wait", "a", "y", "z"});
  CHECK(late.status == 3);
  CHECK(late.said.empty());
  CHECK(contains(late.complaint, "wait of keys 'y', 'z' at 127.0.0.1:"));
  CHECK(contains(late.complaint, "timed out"));
  CHECK(c({"get", "--wait", "z", "--timeout", "0.5"}).status == 3);

  child waiting(c.command({"get", "--wait", "z"}));
  CHECK(said(c({"set", "z", "here"})).empty());
  CHECK(waiting.finish() == 0);
  CHECK(waiting.output() == "here\n");
}

TEST_CASE("several keys", "[cli]") {
  NEEDS_CLI(c);
  said(c({"mset", "a", "1", "b", "2"}));
  CHECK(said(c({"mget", "b", "a", "b"})) == "2\n1\n2\n");
  CHECK(negative(c({"mget", "a", "y", "z"})) == "1\nrollcall-cli: there is no 'y', 'z'\n");
  CHECK(negative(c({"--raw", "mget", "y", "a", "z"})) == string("1\0", 2) + "rollcall-cli: there is no 'y', 'z'\n");
  CHECK(negative(c({"--json", "mget", "y", "a", "z"})) ==
        "{\"ok\":false,\"remark\":\"there is no 'y', 'z'\",\"values\":[null,\"1\",null]}\n");
  CHECK(c({"mget", "--wait", "a", "z", "--timeout", "0.5"}).status == 3);
  CHECK(said(c({"keys"})) == "a\nb\n");
  said(c({"set", "two\nlines", "of\ntext"}));
  CHECK(said(c({"mget", "a", "two\nlines"})) == "1\nof\\x0atext\n");
  CHECK(said(c({"keys"})) == "a\nb\ntwo\\x0alines\n");
  CHECK(said(c({"delete", "two\nlines"})) == "1\n");
  CHECK(negative(c({"get", "two\nlines"})) == "rollcall-cli: there is no key 'two\\x0alines'\n");
  CHECK(said(c({"num-keys"})) == "2\n");
}

TEST_CASE("queues", "[cli]") {
  NEEDS_CLI(c);
  CHECK(said(c({"len", "q"})) == "0\n");
  said(c({"push", "q", "first"}));
  said(c({"push", "q", "--", "-second"}));
  CHECK(said(c({"len", "q"})) == "2\n");
  CHECK(said(c({"pop", "q"})) == "first\n");
  CHECK(said(c({"pop", "--wait", "q"})) == "-second\n");
  CHECK(negative(c({"pop", "q"})) == "rollcall-cli: queue 'q' is empty\n");
  CHECK(c({"pop", "q", "--wait", "--timeout", "0.5"}).status == 3);
}

TEST_CASE("values come from standard input, byte by byte", "[cli]") {
  NEEDS_CLI(c);
  said(c.fed("a\\000\\377\\033b\\n", {"set", "k", "-"}));
  CHECK(said(c({"get", "k"})) == "a\\x00\\xff\\x1bb\n\n");
  CHECK(said(c({"--raw", "get", "k"})) == string("a\0\xff\x1b"
                                                 "b\n",
                                                 6));
  said(c.fed("two", {"cas", "n", "", "-"}));
  said(c.fed("x", {"append", "n", "-"}));
  said(c.fed("", {"push", "q", "-"}));
  said(c.fed("2", {"mset", "m1", "1", "m2", "-"}));
  CHECK(said(c({"--raw", "mget", "n", "m2"})) == string("twox\0"
                                                        "2\0",
                                                        7));
  CHECK(said(c({"pop", "q"})) == "\n");
  said(c({"set", "-", "a key"}));
  CHECK(said(c({"get", "-"})) == "a key\n");
  CHECK(contains(usage(c.fed("x", {"cas", "k", "-", "-"})), "only one value can come from standard input"));
  const outcome most = c.run({"/bin/sh", "-c", "head -c 8388608 /dev/zero | \"$0\" --url \"$1\" set big -", c.command({})[0], c.url()});
  CHECK(said(most).empty());
  const outcome more = c.run({"/bin/sh", "-c", "head -c 8388609 /dev/zero | \"$0\" --url \"$1\" set big -", c.command({})[0], c.url()});
  CHECK(contains(usage(more), "more than 8388608 bytes"));
}

TEST_CASE("JSON says everything, for any bytes", "[cli]") {
  NEEDS_CLI(c);
  CHECK(said(c({"--json", "set", "k", "\"v\"\n"})) == "{\"ok\":true}\n");
  CHECK(said(c({"--json", "get", "k"})) == "{\"ok\":true,\"value\":\"\\\"v\\\"\\n\"}\n");
  CHECK(said(c({"--json", "set", "u", "\xc3\xbc"})) == "{\"ok\":true}\n");
  CHECK(said(c({"--json", "get", "u"})) == "{\"ok\":true,\"value\":\"\xc3\xbc\"}\n");
  for (auto const& [bytes, coded] : std::vector<std::pair<string, string>>{
           {"\\377", "/w=="}, {"a\\377", "Yf8="}, {"a\\000\\377", "YQD/"}, {"\\300\\200ab", "wIBhYg=="}, {"\\355\\240\\200", "7aCA"}}) {
    said(c.fed(bytes, {"set", "b", "-"}));
    CHECK(said(c({"--json", "get", "b"})) == "{\"ok\":true,\"value\":{\"base64\":\"" + coded + "\"}}\n");
  }
  CHECK(said(c({"add", "n", "7", "--json"})) == "{\"ok\":true,\"value\":7}\n");
  CHECK(said(c({"--json", "mget", "n", "u"})) == "{\"ok\":true,\"values\":[\"7\",\"\xc3\xbc\"]}\n");
  CHECK(said(c({"--json", "check", "n"})) == "{\"ok\":true,\"there\":true}\n");
  CHECK(said(c({"--json", "len", "q"})) == "{\"length\":0,\"ok\":true}\n");
  CHECK(said(c({"--json", "delete", "b"})) == "{\"deleted\":1,\"ok\":true}\n");
  CHECK(said(c({"--json", "keys"})) == "{\"keys\":[\"k\",\"n\",\"u\"],\"ok\":true}\n");
  CHECK(said(c({"--json", "num-keys"})) == "{\"keys\":3,\"ok\":true}\n");
  CHECK(contains(said(c({"--json", "ping"})), "\"seconds\":"));

  outcome o = c({"--json", "check", "n", "nope"});
  CHECK(o.status == 1);
  CHECK(o.said == "{\"ok\":false,\"there\":false}\n");
  o = c({"--json", "get", "nope"});
  CHECK(o.status == 1);
  CHECK(o.said == "{\"ok\":false,\"remark\":\"there is no key 'nope'\"}\n");
  CHECK(o.complaint.empty());
  o = c({"--json", "--timeout", "0.5", "wait", "n", "nope"});
  CHECK(o.status == 3);
  CHECK(contains(o.said, "\"code\":\"timed_out\",\"effect\":\"none\",\"keys\":[\"nope\"]"));
  CHECK(o.complaint.empty());
}

TEST_CASE("a barrier of scripts", "[cli]") {
  NEEDS_CLI(c);
  for (int round = 0; round < 2; ++round) {  // the same name serves again
    child other(c.command({"barrier", "--name", "b", "--rank", "1", "--world", "2"}));
    CHECK(said(c({"barrier", "--name", "b", "--rank", "0", "--world", "2"})) == "2\n");
    CHECK(other.finish() == 0);
  }
  const outcome alone = c({"--timeout", "0.5", "barrier", "--name", "b", "--rank", "0", "--world", "4"});
  CHECK(contains(negative(alone), "3 of 4 missing: 1-3"));
  const outcome told = c({"--json", "--timeout", "0.5", "barrier", "--rank", "1", "--world", "3"});
  CHECK(told.status == 1);
  CHECK(contains(told.said, "\"missing\":[0,2]"));
  CHECK(contains(usage(c({"barrier", "--rank", "2", "--world", "2"})), "rank 2 of world size 2"));
  CHECK(contains(usage(c({"barrier", "--world", "2"})), "--rank is required"));
}

TEST_CASE("ping and what it prints", "[cli]") {
  NEEDS_CLI(c);
  const string seconds = said(c({"ping"}));
  CHECK(std::atof(seconds.c_str()) < 20);
  CHECK(seconds.starts_with("0."));
}

TEST_CASE("wrong usage is told before anybody is asked", "[cli]") {
  NEEDS_EXAMPLE(program, "rollcall-cli");
  const auto ask = [&](std::vector<string> words, std::vector<string> environment = {"MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}) {
    words.insert(words.begin(), program);
    return usage(cli::run(std::move(words), std::move(environment)));
  };
  CHECK(contains(ask({}), "which command?"));
  CHECK(contains(ask({"steal", "k"}), "rollcall-cli: there is no command 'steal'"));
  CHECK(contains(ask({"set", "k", "-v"}), "there is no option -v; keys and values that begin with a dash follow --"));
  CHECK(contains(ask({"get"}), "get takes KEY, not 0 words"));
  CHECK(contains(ask({"set", "k"}), "set takes KEY VALUE, not 1 word"));
  CHECK(contains(ask({"set", "k", "v", "w"}), "set takes KEY VALUE, not 3 words"));
  CHECK(contains(ask({"mset", "a", "1", "b"}), "the last key, 'b', has no value"));
  CHECK(contains(ask({"keys", "--", "x"}), "keys takes none, not 1 word"));
  CHECK(contains(ask({"add", "n", "many"}), "'many' is not a whole number of 64 bits"));
  CHECK(contains(ask({"add", "n", "9223372036854775808"}), "'9223372036854775808'"));
  CHECK(contains(ask({"get", "k", "--json", "--raw"}), "--raw"));
  CHECK(contains(ask({"get", "k", "--timeout", "-1"}), "--timeout"));
  CHECK(contains(ask({"get", "k", "--timeout", "soon"}), "--timeout"));
  CHECK(contains(ask({"get", "k", "--timeout", "inf"}), "--timeout"));
  for (string const& option : std::vector<string>{"--url", "--name"})
    CHECK(contains(ask({"barrier", "--rank", "0", "--world", "1", option, ""}), option + " is empty"));
  for (string const& option : std::vector<string>{"--rank", "--world", "--attempt"})
    CHECK(contains(ask({"barrier", "--rank", "0", "--world", "1", option, ""}), option));
  CHECK(contains(ask({"get", "k"}, {"MASTER_ADDR=tcp://h:1", "MASTER_PORT=1"}), "MASTER_ADDR='tcp://h:1' is a URL"));
  for (string const& time : std::vector<string>{"0", "-1", "nan", "", "5s"})
    CHECK(contains(ask({"get", "k", "--timeout", time}), "--timeout: '" + time + "' is not a number of seconds above 0"));
  CHECK(contains(ask({"barrier", "--rank", "-1", "--world", "2"}), "--rank: Value -1 not in range 0 to 16777215"));
  for (auto const& [url, why] : std::vector<std::pair<string, string>>{{"http://h:1", "there is no scheme 'http'"},
                                                                       {"tcp://h", "has no port"},
                                                                       {"tcp://[::1]", "has no port"},
                                                                       {"tcp://h:", "port is empty"},
                                                                       {"tcp://h:65536", "port='65536' is not in 0..65535"},
                                                                       {"tcp://h:0", "port 0 (the URL) says nothing of where the store is"},
                                                                       {"tcp://h:1/x", "it has a path, '/x'"},
                                                                       {"tcp://:1", "has no host"},
                                                                       {"tcp://::1:1", "in brackets"}}) {
    INFO(url);
    const string told = ask({"--url", url, "get", "k"});
    CHECK(contains(told, "--url '" + url + "'"));
    CHECK(contains(told, why));
  }
  CHECK(contains(ask({"get", "k"}, {"MASTER_ADDR=", "MASTER_PORT="}), "set MASTER_ADDR and MASTER_PORT"));
  CHECK(contains(ask({"get", "k"}, {"MASTER_ADDR=h", "MASTER_PORT="}), "set MASTER_PORT"));
  CHECK(contains(ask({"get", "k"}, {"MASTER_ADDR=h", "MASTER_PORT=x"}), "MASTER_PORT: 'x' is not a port"));
  const outcome help = cli::run({program, "--help"});
  CHECK(help.status == 0);
  CHECK(contains(help.said, "Exit status: 0 done; 1 a negative answer"));
  const outcome folder = cli::run({program, "--url", "file:///tmp", "get", "k"});
  CHECK(folder.status == 2);
  CHECK(contains(folder.complaint, "/tmp is a directory; name a file in it"));
}

TEST_CASE("standard descriptors that are closed or full", "[cli]") {
  NEEDS_CLI(c);
  const auto redirected = [&](string const& how, std::vector<string> words) {
    std::vector<string> all{"/bin/sh", "-c", "\"$0\" \"$@\" " + how};
    for (string const& w : c.command(std::move(words))) all.push_back(w);
    return cli::run(std::move(all));
  };
  said(c({"set", "k", "v"}));
  CHECK(said(redirected(">&-", {"set", "k", "v"})).empty());
  for (std::vector<string> const& command : std::vector<std::vector<string>>{{"get", "k"}, {"--json", "set", "k", "v"}, {"check", "k"}}) {
    const outcome closed = redirected(">&-", command);
    CHECK(closed.status != 0);
    CHECK(contains(closed.complaint, "standard output does not take the answer: Bad file descriptor"));
  }
  CHECK(redirected(">&-", {"get", "k"}).status == 4);
  CHECK(said(redirected("<&- 2>&-", {"get", "k"})) == "v\n");
  CHECK(contains(usage(redirected("<&-", {"set", "k", "-"})), "standard input: Bad file descriptor"));
  CHECK(said(c({"get", "k"})) == "v\n");
  const outcome full = redirected(">/dev/full", {"get", "k"});
  CHECK(full.status == 4);
  CHECK(contains(full.complaint, "standard output does not take the answer: No space left on device"));
}

TEST_CASE("the environment says where the store is", "[cli]") {
  NEEDS_CLI(c);
  const std::vector<string> where{"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(c.server().port())};
  CHECK(said(cli::run({c.command({})[0], "set", "k", "v"}, where)).empty());
  CHECK(said(c({"get", "k"})) == "v\n");
  CHECK(said(cli::run({c.command({})[0], "--url", "env://", "get", "k"}, where)) == "v\n");
  CHECK(said(cli::run({c.command({})[0], "--url", "auto://", "get", "k"}, where)) == "v\n");
  CHECK(said(cli::run({c.command({})[0], "--url", "env://?generation=g1", "set", "k", "other"}, where)).empty());
  CHECK(said(c({"get", "g1/k"})) == "other\n");
  const scratch here;
  child local({server_, "--unix", here.path + "/s"});
  CHECK(contains(local.line(), "ready "));
  CHECK(said(cli::run({c.command({})[0], "set", "k", "by path"}, {"MASTER_ADDR=unix:" + here.path + "/s", "MASTER_PORT="})).empty());
  CHECK(said(cli::run({c.command({})[0], "--url", "env://", "get", "k"}, {"MASTER_ADDR=unix:" + here.path + "/s"})) == "by path\n");
  CHECK(said(cli::run({c.command({})[0], "--url", "unix://" + here.path + "/s", "get", "k"})) == "by path\n");
  CHECK(contains(usage(cli::run({c.command({})[0], "--url", "env://", "get", "k"}, {"MASTER_ADDR=", "MASTER_PORT=x"})),
                 "2 problems with env://: MASTER_ADDR is empty; MASTER_PORT='x' is not a whole number"));
}

TEST_CASE("a file that ranks meet in can be looked at", "[cli]") {
  NEEDS_CLI(c);
  const string path = "/tmp/rollcall-cli-" + std::to_string(::getpid());
  const auto cli_on_file = [&](std::vector<string> words) {
    words.insert(words.begin(), {c.command({})[0], "--url", "file://" + path, "--timeout", "1"});
    return cli::run(std::move(words));
  };
  CHECK(cli_on_file({"get", "k"}).status == 3);
  CHECK(::access(path.c_str(), F_OK) != 0);  // a look makes none
  on_loop([&](rc::loop& l) -> rc::task<> {
    const rc::file_store member = co_await rc::file_store::open(l, path, 10s, rc::file_options().world_size(1));
    co_await member.set("k", "v");
    CHECK(said(cli_on_file({"get", "k"})) == "v\n");
    CHECK(said(cli_on_file({"set", "l", "w"})).empty());
    CHECK_AWAIT(co_await member.get("l"), "w");
    CHECK(cli_on_file({"ping"}).status == 4);
    member.close();
  });
  CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("env shows what the launcher says, and which variable", "[cli]") {
  NEEDS_CLI(c);
  const auto env = [&](std::vector<string> variables, std::vector<string> words) {
    std::vector<string> all{"/usr/bin/env", "-i"};
    all.insert(all.end(), variables.begin(), variables.end());
    all.push_back(c.command({})[0]);
    all.insert(all.end(), words.begin(), words.end());
    return cli::run(std::move(all));
  };
  const std::vector<string> slurm{"SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_ID=0", "SLURM_JOB_ID=4242", "SLURM_STEP_NODELIST=n[08-09]"};
  const string shown = said(env(slurm, {"env"}));
  CHECK(contains(shown, "launcher          slurm\n"));
  CHECK(contains(shown, "SLURM_STEP_NUM_TASKS\n"));
  CHECK(contains(shown, "first of SLURM_STEP_NODELIST='n[08-09]'\n"));
  CHECK(contains(said(env(slurm, {"--json", "env"})), R"("rank":{"from":"SLURM_PROCID","value":3})"));
  CHECK(contains(said(env(slurm, {"--url", "auto://:7", "env"})), "client of rank 0"));
  CHECK_FALSE(contains(said(env({}, {"--url", "file:///x?rank=0&world_size=1", "env"})), "launcher"));
  CHECK(contains(said(env({}, {"--json", "--url", "file:///x?rank=0&world_size=1", "env"})), R"("launcher":"none")"));
  CHECK(contains(negative(env({"RANK="}, {"env"})), "(missing)"));
  const outcome o = env({"RANK=", "WORLD_SIZE=2"}, {"--url", "env://", "env"});
  CHECK(contains(usage(o), "3 problems with env://: RANK is empty; MASTER_ADDR is not set; MASTER_PORT is not set"));
}

TEST_CASE("no store, and one that goes", "[cli]") {
  NEEDS_CLI(c);
  const string nobody = "tcp://127.0.0.1:" + std::to_string(unused_port());
  outcome o = c({"--url", nobody, "--timeout", "2", "get", "k"});
  CHECK(o.status == 4);
  CHECK(contains(o.complaint, "ECONNREFUSED"));
  const black_hole hole;
  o = c({"--url", "tcp://127.0.0.1:" + std::to_string(hole.port()), "--timeout", "0.5", "get", "k"});
  CHECK(o.status == 3);
  CHECK(contains(o.complaint, "refused after"));
  said(c({"set", "text", "no number"}));
  o = c({"add", "text"});
  CHECK(o.status == 4);
  CHECK(contains(o.complaint, "whether it took effect is unknown; is the value no number, or the sum past 64 bits?"));
  CHECK(said(c({"get", "text"})) == "no number\n");

  child waiting(c.command({"wait", "never"}));
  said(c({"set", "k", "v"}));
  c.server().kill(SIGKILL);
  CHECK(waiting.finish() == 4);
  CHECK((contains(waiting.errors(), "disconnected") || contains(waiting.errors(), "refused")));
  // Something else than a store.
  const rc::listener other = rc::listen(rc::listen_options{});
  std::thread answers([&] {
    pollfd called{other.fd(), POLLIN, 0};
    ::poll(&called, 1, 20'000);
    const rc::unique_fd peer(::accept4(other.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    send_all(peer.get(), "HTTP/1.1 400 Bad Request\r\n\r\n");
    while (!receive(peer.get(), 64).empty()) {}
  });
  o = c({"--url", "tcp://127.0.0.1:" + std::to_string(other.port()), "get", "k"});
  answers.join();
  CHECK(o.status == 4);
  CHECK(contains(o.complaint, "protocol error"));
}
