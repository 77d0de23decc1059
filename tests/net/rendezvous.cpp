// rendezvous(): who serves and where, what is said when that cannot work, and how all learn of an end.
#include <rollcall/rendezvous.hpp>
#include <rollcall/stores/hash.hpp>

#include "../support/net.hpp"

using namespace net_test;

namespace {

rc::rendezvous_options place(int rank, int world) {
  return rc::rendezvous_options().rank(rank).world_size(world).timeout(20s).environment({});
}
string tcp_at(int port) { return "tcp://127.0.0.1:" + std::to_string(port); }

rc::task<rc::failure> refused(rc::loop& l, string url, rc::rendezvous_options o) {
  rc::task<rc::rendezvous_session> t = rc::rendezvous(l, url, std::move(o));
  const rc::result<rc::rendezvous_session> r = co_await rc::as_result(std::move(t));
  co_return failure_of(r);
}
rc::task<> keep(rc::loop& l, string url, rc::rendezvous_options o, std::vector<rc::rendezvous_session>* into) {
  rc::rendezvous_session s = co_await rc::rendezvous(l, url, std::move(o));
  into->push_back(s);
}

/// A resolver that knows one name from the nth question on.
class names {
 public:
  names(string name, string const& addresses, int known_from = 1) : state_(std::make_shared<state>()) {
    state_->name = std::move(name);
    state_->known_from = known_from;
    std::istringstream in(addresses);
    for (string each; in >> each;) state_->addresses.push_back(each);
  }
  [[nodiscard]] rc::resolve_fn function() const {
    return [s = state_](string host, std::uint16_t port) { return look(s, std::move(host), port); };
  }
  [[nodiscard]] int asked() const { return state_->asked; }
  void learn() const { state_->known_from = 0; }

 private:
  struct state {
    string name;
    std::vector<string> addresses;
    int known_from = 1;
    int asked = 0;
  };
  static rc::task<std::vector<rc::socket_address>> look(std::shared_ptr<state> s, string host, std::uint16_t port) {
    if (++s->asked < s->known_from || host != s->name)
      throw rc::error(rc::errc::resolve, "resolve '" + host + "'", "EAI_NONAME: unknown node");
    std::vector<rc::socket_address> all;
    for (string const& a : s->addresses) all.push_back(rc::socket_address::ip(a, port).value());
    co_return all;
  }
  std::shared_ptr<state> state_;
};

/// Ticks every 10 ms and knows the longest time between two.
rc::task<> tick(rc::loop& l, rc::duration* longest) {
  for (rc::time_point last = l.now();;) {
    co_await rc::sleep_for(10ms);
    *longest = std::max(*longest, l.now() - last);
    last = l.now();
  }
}

class logged {
 public:
  explicit logged(rc::loop& l) {
    l.log_to([this](rc::log_level level, string_view line) {
      if (level >= rc::log_level::warning) lines.emplace_back(line);
    });
  }
  std::vector<string> lines;
};

}  // namespace

TEST_CASE("three ranks meet by a URL, an option and an environment", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    std::vector<rc::rendezvous_session> all;
    rc::scope ranks(l);
    rc::variables second;
    second.set("RANK", "1").set("WORLD_SIZE", "3").set("MASTER_ADDR", "127.0.0.1").set("MASTER_PORT", std::to_string(port));
    second.set("TORCHELASTIC_RESTART_COUNT", "0");
    ranks.spawn(keep(l, tcp_at(port) + "?rank=0&world_size=3", rc::rendezvous_options().environment({}), &all));
    ranks.spawn(keep(l, "env://", rc::rendezvous_options().environment(second), &all));
    ranks.spawn(keep(l, tcp_at(port) + "?rank=0&world_size=9", place(2, 3), &all));
    co_await ranks.join();
    REQUIRE(all.size() == 3);
    int owners = 0;
    for (rc::rendezvous_session const& s : all) {
      CHECK(s.world_size() == 3);
      CHECK(s.url() == tcp_at(port));
      owners += s.owns_server();
      const string key = "rank/" + std::to_string(s.rank());
      co_await s.store().set(key, "here");
    }
    CHECK(owners == 1);
    co_await all[0].store().wait({"rank/0", "rank/1", "rank/2"});
    rc::scope leaving(l);
    for (rc::rendezvous_session const& s : all) leaving.spawn(s.leave(10s));
    co_await leaving.join();
    for (rc::rendezvous_session const& s : all) CHECK_FALSE(s.store().is_open());
    CHECK(rc::try_listen(rc::listen_options().port(port)).has_value());
  });
}

TEST_CASE("everything that is wrong is one error, and nothing is opened", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::variables v;
    v.set("RANK", "").set("WORLD_SIZE", "2");
    const rc::failure f = co_await refused(l, "env://?timout=5", rc::rendezvous_options().environment(v));
    CHECK(f.code() == rc::errc::invalid);
    for (char const* part : {"4 problems with env://?timout=5", "there is no parameter 'timout'", "RANK is empty", "MASTER_ADDR is not set",
                             "MASTER_PORT is not set", "found: world_size 2 (WORLD_SIZE)"})
      CHECK(contains(f.message(), part));
    constexpr int never[][2] = {{0, 0}, {-1, 2}, {2, 2}, {1, 1}};
    for (auto const& each : never) {
      const rc::failure g = co_await refused(l, tcp_at(unused_port()), place(each[0], each[1]));
      CHECK(g.code() == rc::errc::invalid);
    }
    CHECK(l.live_handles() == 0);
  });
}

TEST_CASE("rank 0 serves at exactly the address that was announced", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const rc::rendezvous_session s = co_await rc::rendezvous(l, "tcp://127.0.0.2:0", place(0, 1));
    CHECK(s.owns_server());
    const int port = s.tcp()->port();
    CHECK(port != 0);
    CHECK(s.url() == "tcp://127.0.0.2:" + std::to_string(port));
    CHECK_FALSE(plain_connect(port));  // 127.0.0.1 is another address
    const rc::tcp_store other = co_await rc::tcp_store::connect(l, "127.0.0.2", port, 5s);
    co_await other.set("k", "v");
    CHECK_AWAIT(co_await s.store().get("k"), "v");
    other.close();
    co_await s.leave(5s);
    const rc::rendezvous_session all = co_await rc::rendezvous(l, "tcp://127.0.0.2:0?bind=*", place(0, 1));
    CHECK(plain_connect(all.tcp()->port()));
    co_await all.leave(5s);
  });
}

TEST_CASE("a name that leads to loopback or to another host is an error before anything is served", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    rc::variables two_nodes;
    two_nodes.set("RANK", "0").set("WORLD_SIZE", "4").set("LOCAL_RANK", "0").set("LOCAL_WORLD_SIZE", "2").set("MASTER_ADDR", "node0");
    two_nodes.set("MASTER_PORT", std::to_string(port));
    const auto options = [&](string const& addresses) {
      return rc::rendezvous_options().environment(two_nodes).timeout(20s).wait_for_workers(false).resolver(
          names("node0", addresses).function());
    };
    rc::failure f = co_await refused(l, "env://", options("127.0.1.1"));
    CHECK(f.code() == rc::errc::invalid);
    CHECK(contains(f.message(), "'node0' (MASTER_ADDR) is 127.0.1.1 on this host, which ranks on other nodes cannot reach"));
    CHECK(contains(f.message(), "?bind="));
    const bool binds_anything = rc::try_listen(rc::listen_options().host("203.0.113.7")).has_value();
    if (binds_anything) {
      WARN("this host binds addresses that are not its own: not tried what happens elsewhere");
    } else {
      f = co_await refused(l, "env://", options("203.0.113.7 203.0.113.8"));
      CHECK(f.code() == rc::errc::invalid);
      CHECK(contains(f.message(), "'node0' (MASTER_ADDR) is 203.0.113.7, 203.0.113.8, which is no address of this host"));
      CHECK(contains(f.message(), "?bind=*"));
    }
    CHECK(rc::try_listen(rc::listen_options().port(port)).has_value());
    CHECK(l.live_handles() == 0);

    // Said where to listen, both are fine; rank 0 itself needs no name then.
    constexpr char const* binds[] = {"?bind=127.0.0.1", "?bind=*"};
    for (char const* bind : binds) {
      const rc::rendezvous_session s = co_await rc::rendezvous(l, "env://" + string(bind), options("203.0.113.7"));
      CHECK(s.owns_server());
      co_await s.store().set("k", "v");
      co_await s.leave(5s);
    }
    // All ranks are here: loopback is what they need.
    two_nodes.set("LOCAL_WORLD_SIZE", "4");
    const logged log(l);
    const rc::rendezvous_session s = co_await rc::rendezvous(l, "env://", options("127.0.1.1"));
    CHECK(s.owns_server());
    CHECK(log.lines.empty());
    co_await s.leave(5s);
    l.log_to({});
  });
}

TEST_CASE("a loopback literal is obeyed, with one warning; other nodes get a hint at once", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    rc::variables v;
    v.set("RANK", "0").set("WORLD_SIZE", "4").set("LOCAL_RANK", "0").set("LOCAL_WORLD_SIZE", "2").set("GROUP_RANK", "0");
    v.set("MASTER_ADDR", "127.0.0.1").set("MASTER_PORT", std::to_string(port));
    logged log(l);
    const rc::rendezvous_session s = co_await rc::rendezvous(l, "env://", rc::rendezvous_options().environment(v).wait_for_workers(false));
    REQUIRE(log.lines.size() == 1);
    CHECK(contains(log.lines[0], "rank 0 serves at 127.0.0.1 (MASTER_ADDR), where only its own node reaches it"));
    co_await s.leave(5s);
    log.lines.clear();
    v.set("RANK", "2").set("GROUP_RANK", "1");
    const rc::failure f = co_await refused(l, "env://", rc::rendezvous_options().environment(v).timeout(200ms));
    REQUIRE(log.lines.size() == 1);
    CHECK(contains(log.lines[0], "127.0.0.1 (MASTER_ADDR) is this node itself, number 1 (GROUP_RANK)"));
    CHECK(f.code() == rc::errc::refused);
    CHECK(contains(f.message(), "it is where rank 0 is to serve: host from MASTER_ADDR, port from MASTER_PORT"));
    CHECK(contains(f.message(), "is this node itself"));
    l.log_to({});
  });
}

TEST_CASE("a name that becomes known late is waited for, by who serves and by who connects", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    const names late("pod-0", "127.0.0.1", 1000);
    const string url = "tcp://pod-0:" + std::to_string(port);
    std::vector<rc::rendezvous_session> all;
    rc::scope ranks(l);
    for (int rank = 0; rank < 2; ++rank) ranks.spawn(keep(l, url, place(rank, 2).resolver(late.function()), &all));
    rc::duration longest{};
    rc::scope ticker(l);
    ticker.spawn(tick(l, &longest));
    const rc::time_point begun = l.now();
    co_await eventually([&] { return late.asked() >= 6 && l.now() - begun >= 2s; });
    CHECK(all.empty());
    late.learn();
    co_await ranks.join();
    ticker.request_stop();
    co_await ticker.join();
    CHECK(all.size() == 2);
    INFO("the ticker's longest gap: " << std::chrono::duration<double>(longest).count() << " s");
    CHECK(longest < 500ms);  // the bound is 50 ms
    for (rc::rendezvous_session const& s : all) s.store().close();
  });
}

TEST_CASE("a name that never becomes known is an error at the limit, with the resolver's words", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const names never("pod-0", "", 1000000);
    for (int rank = 0; rank < 2; ++rank) {
      rc::duration longest{};
      rc::scope ticker(l);
      ticker.spawn(tick(l, &longest));
      const rc::time_point begun = l.now();
      const rc::failure f = co_await refused(l, "tcp://pod-0:29500", place(rank, 2).timeout(400ms).resolver(never.function()));
      const rc::duration took = l.now() - begun;
      ticker.request_stop();
      co_await ticker.join();
      CHECK(f.code() == rc::errc::resolve);
      CHECK(contains(f.message(), "pod-0:29500"));
      CHECK(contains(f.message(), "EAI_NONAME: unknown node"));
      CHECK(took >= 390ms);
      CHECK(took < 4s);
      CHECK(longest < 500ms);
    }
    // The system's resolver: in a thread, with real names.
    rc::duration longest{};
    rc::scope ticker(l);
    ticker.spawn(tick(l, &longest));
    const rc::failure f = co_await refused(l, "tcp://nonexistent.invalid:29500", place(1, 2).timeout(600ms));
    ticker.request_stop();
    co_await ticker.join();
    CHECK(f.code() == rc::errc::resolve);
    CHECK(contains(f.message(), "nonexistent.invalid"));
    CHECK(longest < 500ms);
  });
}

TEST_CASE("a port that is taken is named, with the ways out, and who holds it keeps serving", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server first(l);
    const rc::time_point begun = l.now();
    const rc::failure f = co_await refused(l, tcp_at(first.port()), place(0, 2));
    CHECK(l.now() - begun < 10s);  // its limit is 20 s
    CHECK(f.code() == rc::errc::address_in_use);
    for (string const& part :
         {std::to_string(first.port()), string("EADDRINUSE"), string("choose another port, or port 0"), string("rank 0's address")})
      CHECK(contains(f.message(), part));
    const rc::tcp_store s = co_await client_of(l, first.port());
    CHECK_AWAIT(co_await s.num_keys(), 0);  // nobody has registered there
    s.close();
    co_await first.stop();
  });
}

TEST_CASE("port 0 is told by a file, and what an earlier run has left there is not believed", "[rendezvous]") {
  char folder[] = "/tmp/rollcall-port-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const string file = string(folder) + "/port";
  on_loop([&](rc::loop& l) -> rc::task<> {
    const string url = "tcp://127.0.0.1:0?port_file=" + file;
    rc::variables v;
    v.set("TORCHELASTIC_RUN_ID", "job 7");
    const auto rank = [&](int r) { return place(r, 3).environment(v); };
    local_server other(l);
    std::ofstream(file) << "rollcall port 1\n" << other.port() << "\njob 6\n";
    std::vector<rc::rendezvous_session> all;
    rc::scope ranks(l);
    ranks.spawn(keep(l, url, rank(1), &all));
    ranks.spawn(keep(l, url, rank(2), &all));
    co_await rc::sleep_for(100ms);  // they have looked at what is there
    std::ofstream(file) << "rollcall port 1\n" << unused_port() << "\njob 7\n";
    co_await rc::sleep_for(100ms);
    ranks.spawn(keep(l, url, rank(0), &all));
    co_await ranks.join();
    CHECK(all.size() == 3);
    CHECK(other.stats().accepted == 0);
    for (rc::rendezvous_session const& s : all) {
      CHECK(s.tcp()->port() != 0);
      CHECK(s.url() == all.front().url());
    }
    rc::rendezvous_options look;
    rc::any_store seen = co_await rc::open_store(l, url, look.environment({}).timeout(10s));
    co_await seen.set("k", "v");
    seen.close();
    rc::scope leaving(l);
    for (rc::rendezvous_session const& s : all) leaving.spawn(s.leave(10s));
    co_await leaving.join();
    all.clear();
    CHECK(::access(file.c_str(), F_OK) != 0);
    co_await other.stop();

    rc::failure f = co_await refused(l, url, place(1, 3).timeout(150ms));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(contains(f.message(), file));
    f = co_await refused(l, "tcp://127.0.0.1:0?port_file=" + string(folder) + "/none/port", place(1, 3));
    CHECK(f.code() == rc::errc::io);
    CHECK(contains(f.message(), "the directory of '" + string(folder) + "/none/port' does not exist"));
    f = co_await refused(l, "tcp://127.0.0.1:0?port_file=" + string(folder) + "/none/port", place(0, 3));
    CHECK(f.code() == rc::errc::io);
  });
  ::unlink(file.c_str());
  CHECK(::rmdir(folder) == 0);
}

TEST_CASE("ranks meet in a file, which is gone afterwards", "[rendezvous]") {
  char folder[] = "/tmp/rollcall-file-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const string file = string(folder) + "/a b";
  const string url = "file://" + string(folder) + "/a%20b";
  on_loop([&](rc::loop& l) -> rc::task<> {
    // A look makes no file: it would be taken for one of an earlier run.
    rc::task<rc::any_store> early = rc::open_store(l, url, rc::rendezvous_options().environment({}).timeout(100ms));
    const rc::result<rc::any_store> nothing = co_await rc::as_result(std::move(early));
    CHECK_FALSE(nothing.has_value());
    CHECK(::access(file.c_str(), F_OK) != 0);

    std::vector<rc::rendezvous_session> all;
    rc::scope ranks(l);
    for (int rank = 0; rank < 3; ++rank) ranks.spawn(keep(l, url, place(rank, 3).run_id("job 7").generation("g"), &all));
    co_await ranks.join();
    REQUIRE(all.size() == 3);
    CHECK(all[0].url() == url);
    CHECK_FALSE(all[0].owns_server());
    rc::any_store look = co_await rc::open_store(l, url + "?generation=g", rc::rendezvous_options().environment({}).timeout(10s));
    co_await look.set("k", "v");
    CHECK_AWAIT(co_await all[1].store().get("k"), "v");
    look.close();
    const rc::failure f = co_await refused(l, url, place(0, 3).run_id("job 8"));
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.message(), "job 7"));
    std::vector<string> told(3);
    const auto one = [&](rc::rendezvous_session s) -> rc::task<> {
      const auto body = [](rc::rendezvous_session& self) -> rc::task<> {
        rc::barrier<rc::any_store> all_here = self.make_barrier("all");
        co_await all_here.arrive_and_wait(10s);
        if (self.rank() == 2) throw std::runtime_error("out of paper");
        co_await all_here.arrive_and_wait(50s);
      };
      try {
        co_await s.run(body);
      } catch (std::exception const& e) {
        told[static_cast<std::size_t>(s.rank())] = e.what();
      }
    };
    rc::scope bodies(l);
    for (rc::rendezvous_session const& s : all) bodies.spawn(one, s);
    co_await bodies.join();
    CHECK(told[2] == "out of paper");
    CHECK(contains(told[0], "rank 2: out of paper"));
    CHECK(contains(told[1], "rank 2: out of paper"));
  });
  CHECK(::access(file.c_str(), F_OK) != 0);
  CHECK(::rmdir(folder) == 0);
  on_loop([&](rc::loop& l) -> rc::task<> {
    const rc::failure f = co_await refused(l, url, place(0, 3));
    CHECK(f.code() == rc::errc::io);
    CHECK(contains(f.message(), folder));
  });
}

namespace {

/// The program barrier as a rank of four that meet in a file.
std::unique_ptr<child> rank_in_file(string const& barrier, string const& url, int rank, std::vector<string> options) {
  std::vector<string> command{barrier, "--init-method", url, "--rank", std::to_string(rank), "--world-size", "4"};
  command.insert(command.end(), options.begin(), options.end());
  return std::make_unique<child>(command);
}
/// Returns when `n` have arrived in generation 0 of the barrier of all.
void until_arrived(string const& url, std::int64_t n) {
  on_loop([&](rc::loop& l) -> rc::task<> {
    rc::any_store s = co_await rc::open_store(l, url, rc::rendezvous_options().environment({}).timeout(20s));
    co_await s.wait("everyone/0/count");
    while (co_await s.add("everyone/0/count", 0) < n) co_await rc::sleep_for(1ms);
  });
}

}  // namespace

TEST_CASE("what killed or failed ranks have left in a file releases nobody", "[rendezvous][programs]") {
  NEEDS_EXAMPLE(barrier, "barrier");
  for (string const& run : std::vector<string>{"?run_id=job", ""})
    for (const bool killed : {true, false}) {
      const scratch here;
      const string url = "file://" + here.path + "/ranks" + run;
      std::vector<std::unique_ptr<child>> early;
      for (int rank = 0; rank < 3; ++rank) early.push_back(rank_in_file(barrier, url, rank, {"--timeout", killed ? "600" : "1"}));
      if (killed) until_arrived(url, 3);
      for (auto const& c : early)
        if (killed) c->kill(SIGKILL);
      for (auto const& c : early) CHECK(c->finish(60s) == (killed ? 128 + SIGKILL : 1));
      CAPTURE(run, killed);
      // The one that was missing comes alone, and must not pass.
      const auto alone = rank_in_file(barrier, url, 3, {"--timeout", "1"});
      CHECK(alone->finish(60s) == 1);
      CHECK(contains(alone->errors(), "3 of 4 missing: 0-2"));
      // And all together do.
      std::vector<std::unique_ptr<child>> again;
      for (int rank = 0; rank < 4; ++rank) again.push_back(rank_in_file(barrier, url, rank, {"--timeout", "60", "--runs", "2"}));
      for (auto const& c : again) {
        const int status = c->finish(60s);
        INFO(c->errors());
        CHECK(status == 0);
      }
      CHECK(::access((here.path + "/ranks").c_str(), F_OK) != 0);
    }
}

TEST_CASE("everybody is told when a rank dies that met the others in a file, also who asks nothing", "[rendezvous][programs]") {
  NEEDS_EXAMPLE(barrier, "barrier");
  const scratch here;
  const string url = "file://" + here.path + "/ranks";
  const auto dies = rank_in_file(barrier, url, 0, {"--timeout", "600"});
  const string text = "rank 0 (process " + std::to_string(dies->pid()) + ") is dead";
  const auto waits = rank_in_file(barrier, url, 1, {"--timeout", "600"});
  until_arrived(url, 2);
  on_loop([&](rc::loop& l) -> rc::task<> {
    const rc::rendezvous_session s = co_await rc::rendezvous(l, url, place(2, 4));
    string told;
    bool in_place = false;
    const auto body = [&](rc::rendezvous_session&) -> rc::task<> {
      in_place = true;
      co_await rc::sleep_for(50s);
    };
    const auto one = [&]() -> rc::task<> {
      try {
        co_await s.run(body);
      } catch (rc::error const& e) {
        if (e.code() == rc::errc::disconnected) told = e.what();
      }
    };
    rc::scope ranks(l);
    ranks.spawn(one);
    co_await eventually([&] { return in_place; });
    const rc::time_point begun = l.now();
    dies->kill(SIGKILL);
    co_await ranks.join();
    CHECK(l.now() - begun < 10s);  // the bound is 1 s
    CHECK(contains(told, text));
  });
  CHECK(waits->finish(60s) == 1);
  CHECK(contains(waits->errors(), text));
  // Those that were left took the file with them.
  CHECK(dies->finish() == 128 + SIGKILL);
  CHECK(::access((here.path + "/ranks").c_str(), F_OK) != 0);
}

TEST_CASE("one rank is there once", "[rendezvous]") {
  const scratch here;
  const string url = "file://" + here.path + "/ranks";
  on_loop([&](rc::loop& l) -> rc::task<> {
    std::vector<rc::rendezvous_session> all;
    co_await keep(l, url, place(1, 3), &all);
    const rc::failure f = co_await refused(l, url, place(1, 3));
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.message(), here.path + "/ranks has rank 1 already: process " + std::to_string(::getpid())));
    // A clone is no second one.
    rc::any_store other = co_await all[0].store().clone(20s);
    co_await other.set("k", "v");
    CHECK_AWAIT(co_await all[0].store().get("k"), "v");
    other.close();
    // One after the other it may come again, in a run that begins anew.
    for (int round = 0; round < 5; ++round) {
      co_await all.back().leave(10s);
      co_await keep(l, url, place(1, 3), &all);
      CHECK_AWAIT(co_await all.back().store().check("k"), false);
      co_await all.back().store().set("k", "v");
    }
    all.clear();
  });
}

TEST_CASE("port 0 is told through a store that is there already", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const rc::hash_store bootstrap(l);
    const auto rank = [&](int r) { return place(r, 2).publish_port(rc::port_board::key(bootstrap, "port")); };
    std::vector<rc::rendezvous_session> all;
    rc::scope ranks(l);
    ranks.spawn(keep(l, "tcp://127.0.0.1:0", rank(1), &all));
    ranks.spawn(keep(l, "tcp://127.0.0.1:0", rank(0), &all));
    co_await ranks.join();
    REQUIRE(all.size() == 2);
    CHECK(all[0].url() == all[1].url());
    for (rc::rendezvous_session const& s : all) s.store().close();
  });
}

TEST_CASE("rank 0 takes its launcher's descriptor, for the launcher's address only", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::listener at = rc::listen(rc::listen_options());
    const int port = at.port();
    rc::variables v;
    v.set("RANK", "0").set("WORLD_SIZE", "1").set("MASTER_ADDR", "127.0.0.1").set("MASTER_PORT", std::to_string(port));
    v.set("ROLLCALL_LISTEN_FD", std::to_string(at.fd()));
    const rc::rendezvous_session s = co_await rc::rendezvous(l, "env://", rc::rendezvous_options().environment(v));
    CHECK(s.tcp()->port() == port);
    static_cast<void>(at.release());
    const rc::rendezvous_session other = co_await rc::rendezvous(l, tcp_at(unused_port()), rc::rendezvous_options().environment(v));
    CHECK(other.owns_server());
    co_await s.leave(5s);
    co_await other.leave(5s);
    v.set("ROLLCALL_LISTEN_FD", "0");
    const rc::failure f = co_await refused(l, "env://", rc::rendezvous_options().environment(v));
    CHECK(contains(f.message(), "ROLLCALL_LISTEN_FD"));
    CHECK(contains(f.message(), "adopt descriptor 0"));
  });
}

TEST_CASE("use_libuv in the URL says what rank 0 serves with, and no client looks at it", "[rendezvous]") {  // field log F36
  on_loop([](rc::loop& l) -> rc::task<> {
    for (int i = 0; i < 2; ++i) {
      const bool libuv = i == 0;
      string url = "tcp://127.0.0.1:0?use_libuv=no";
      if (libuv) url = "tcp://127.0.0.1:0?use_libuv=yes";
      const rc::rendezvous_session s = co_await rc::rendezvous(l, url, place(0, 1));
      const string back_end(s.tcp()->back_end());
      CHECK(back_end == (libuv ? "libuv" : "legacy"));
      co_await s.store().set("k", "v");
      CHECK_AWAIT(co_await s.store().get("k"), "v");
      co_await s.leave(10s);
    }
    rc::failure f = co_await refused(l, "tcp://127.0.0.1:0?use_libuv=maybe", place(0, 1));
    CHECK(f.code() == rc::errc::invalid);
    CHECK(contains(f.message(), "?use_libuv= in the URL is 'maybe'"));
    f = co_await refused(l, tcp_at(unused_port()) + "?use_libuv=maybe", place(1, 2).timeout(100ms));
    CHECK(f.code() == rc::errc::refused);
  });
}

TEST_CASE("where the launcher serves every rank is a client, and nobody waits", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server launchers(l);
    rc::variables v;
    v.set("RANK", "0").set("WORLD_SIZE", "2").set("MASTER_ADDR", "127.0.0.1").set("MASTER_PORT", std::to_string(launchers.port()));
    v.set("TORCHELASTIC_USE_AGENT_STORE", "True").set("TORCHELASTIC_RESTART_COUNT", "3");
    const rc::rendezvous_session s = co_await rc::rendezvous(l, "env://?generation=g3", rc::rendezvous_options().environment(v));
    CHECK_FALSE(s.owns_server());
    CHECK(s.attempt() == 3);
    co_await s.store().set("k", "v");
    CHECK_AWAIT(co_await s.tcp()->get("g3/k"), "v");
    CHECK_AWAIT(co_await s.tcp()->num_keys(), 1);
    co_await s.leave();
    co_await launchers.stop();
  });
}

TEST_CASE("who leaves by an exception tells the others why, in their barriers", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    std::vector<string> told(3);
    const auto one = [&](int rank) -> rc::task<> {
      const rc::rendezvous_session s = co_await rc::rendezvous(l, tcp_at(port), place(rank, 3));
      const auto body = [&](rc::rendezvous_session& self) -> rc::task<> {
        rc::barrier<rc::any_store> start = self.make_barrier("start");
        co_await start.arrive_and_wait(10s);
        rc::barrier<rc::any_store> end = self.make_barrier("end");
        if (self.rank() == 1) throw std::runtime_error("no GPU left");
        co_await end.arrive_and_wait(60s);
      };
      try {
        co_await s.run(body, 10s);
      } catch (std::exception const& e) {
        told[static_cast<std::size_t>(rank)] = e.what();
      }
    };
    rc::scope ranks(l);
    for (int rank = 0; rank < 3; ++rank) ranks.spawn(one, rank);
    co_await ranks.join();
    CHECK(told[1] == "no GPU left");
    for (std::size_t rank : {std::size_t{0}, std::size_t{2}}) CHECK(contains(told[rank], "rank 1: no GPU left"));
    CHECK(rc::try_listen(rc::listen_options().port(port)).has_value());
  });
}

TEST_CASE("everybody is told when the server dies, also who asks nothing of it", "[rendezvous]") {
  NEEDS_EXAMPLE(program, "rollcall-server");
  server_process server(program);
  on_loop([&](rc::loop& l) -> rc::task<> {
    rc::variables v;
    v.set("MASTER_ADDR", "127.0.0.1").set("MASTER_PORT", std::to_string(server.port())).set("TORCHELASTIC_USE_AGENT_STORE", "1");
    std::vector<rc::errc> told;
    int in_place = 0;
    const auto one = [&](int rank) -> rc::task<> {
      const rc::rendezvous_session s = co_await rc::rendezvous(l, "env://", place(rank, 4).environment(v));
      const auto body = [&](rc::rendezvous_session& self) -> rc::task<> {
        rc::barrier<rc::any_store> all = self.make_barrier("all");
        ++in_place;
        if (self.rank() == 1) {
          co_await rc::sleep_for(50s);
        } else {
          co_await all.arrive_and_wait(50s);
        }
      };
      try {
        co_await s.run(body);
      } catch (rc::error const& e) {
        told.push_back(e.code());
      }
    };
    rc::scope ranks(l);
    for (int rank = 1; rank < 4; ++rank) ranks.spawn(one, rank);
    co_await eventually([&] { return in_place == 3; });
    const rc::time_point begun = l.now();
    server.kill(SIGKILL);
    co_await ranks.join();
    CHECK(l.now() - begun < 10s);  // the bound is 1 s
    const bool all_lost = told == std::vector<rc::errc>(3, rc::errc::disconnected);
    CHECK(all_lost);
  });
}

TEST_CASE("a body that ends without a word leaves, and a stop is passed on", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const rc::rendezvous_session s = co_await rc::rendezvous(l, "tcp://127.0.0.1:0", place(0, 1));
    int ran = 0;
    const auto quick = [&](rc::rendezvous_session&) -> rc::task<> {
      ++ran;
      co_return;
    };
    co_await s.run(quick);
    CHECK(ran == 1);
    CHECK_FALSE(s.store().is_open());
    const rc::rendezvous_session t = co_await rc::rendezvous(l, "tcp://127.0.0.1:0", place(0, 1));
    const auto long_one = [&](rc::rendezvous_session&) -> rc::task<> { co_await rc::sleep_for(50s); };
    rc::task<> running = t.run(long_one);
    const rc::result<void> stopped = co_await rc::as_result(rc::with_deadline(std::move(running), 50ms));
    CHECK(failure_of(stopped).code() == rc::errc::timed_out);
    CHECK_FALSE(t.store().is_open());
  });
}

TEST_CASE("a user's scheme is opened with the plan, and no other name is taken", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const rc::hash_store shared(l);
    std::vector<string> seen;
    rc::rendezvous_schemes mine;
    const auto open = [](rc::hash_store s) -> rc::task<rc::any_store> { co_return rc::any_store(s); };
    mine.add("memory", [&](rc::loop&, rc::rendezvous_plan p, rc::deadline) {
      seen.push_back(p.url.authority() + p.url.path() + " " + p.url.parameter("ttl").value_or("-"));
      return open(shared);
    });
    const auto refuses = [&](char const* name) {
      try {
        mine.add(name, [](rc::loop&, rc::rendezvous_plan, rc::deadline) -> rc::task<rc::any_store> { throw std::bad_alloc(); });
        return false;
      } catch (rc::error const& e) {
        return e.code() == rc::errc::invalid;
      }
    };
    for (char const* name : {"memory", "tcp", "file", "env", "auto", "", "1x", "Upper", "a b"}) CHECK(refuses(name));
    const rc::rendezvous_session s = co_await rc::rendezvous(l, "memory://a:1,b:2/x%20y?ttl=5&generation=g", place(1, 2).schemes(mine));
    REQUIRE(seen.size() == 1);
    CHECK(seen[0] == "a:1,b:2/x y 5");
    CHECK(s.rank() == 1);
    CHECK_FALSE(s.owns_server());
    co_await s.store().set("k", "v");
    CHECK_AWAIT(co_await shared.get("g/k"), "v");
    co_await s.leave();
    const rc::failure f = co_await refused(l, "other://a", place(1, 2).schemes(mine));
    CHECK(contains(f.message(), "there is no scheme 'other': tcp, file, env, auto, memory"));
  });
}

TEST_CASE("a missing rank 0, and a world that does not come together, are named at the limit", "[rendezvous]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    rc::scope ranks(l);
    std::vector<rc::rendezvous_session> all;
    ranks.spawn(keep(l, tcp_at(port), place(2, 4), &all));
    const rc::failure f = co_await refused(l, tcp_at(port), place(0, 4).timeout(500ms));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(contains(f.message(), "2 of 4 joined"));
    CHECK(contains(f.message(), "missing 1, 3"));
    co_await ranks.join();
  });
}

TEST_CASE("sessions on one port, one after the other, do not wait for each other's ends", "[rendezvous]") {  // field log F28, F87
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    for (int round = 0; round < 50; ++round) {
      std::vector<rc::rendezvous_session> all;
      rc::scope ranks(l);
      for (int rank = 0; rank < 3; ++rank) ranks.spawn(keep(l, tcp_at(port), place((rank + round) % 3, 3), &all));
      co_await ranks.join();
      REQUIRE(all.size() == 3);
      rc::scope leaving(l);
      for (rc::rendezvous_session const& s : all) leaving.spawn(s.leave(10s));
      co_await leaving.join();
    }
  });
}

TEST_CASE("the example program meets by every URL", "[rendezvous][programs]") {
  NEEDS_EXAMPLE(barrier, "barrier");
  NEEDS_EXAMPLE(launcher, "rollcall-run");
  const auto meet = [&](string const& url, std::vector<std::vector<string>> const& environments, bool by_options) {
    std::vector<std::unique_ptr<child>> ranks;
    for (std::size_t r = 0; r < environments.size(); ++r) {
      std::vector<string> command{"/usr/bin/env", "-i"};
      command.insert(command.end(), environments[r].begin(), environments[r].end());
      command.insert(command.end(), {barrier, "--runs", "2", "--timeout", "30", "--init-method", url});
      if (by_options) command.insert(command.end(), {"--rank", std::to_string(r), "--world-size", std::to_string(environments.size())});
      ranks.push_back(std::make_unique<child>(std::move(command)));
    }
    for (auto const& r : ranks) {
      const int status = r->finish(60s);
      INFO(url << ": " << r->errors());
      CHECK(status == 0);
      CHECK(r->errors().empty());
    }
  };
  const string port = std::to_string(unused_port());
  meet("tcp://127.0.0.1:" + port, {{}, {}, {}}, true);
  meet("tcp://localhost:" + port, {{"RANK=0", "WORLD_SIZE=2"}, {"RANK=1", "WORLD_SIZE=2"}}, false);
  const std::vector<string> at{"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
  meet("env://", {{at[0], at[1], "RANK=0", "WORLD_SIZE=2"}, {at[0], at[1], "RANK=1", "WORLD_SIZE=2"}}, false);
  meet("auto://", {{at[0], at[1], "PMI_RANK=0", "PMI_SIZE=2"}, {at[0], at[1], "PMI_RANK=1", "PMI_SIZE=2"}}, false);
  meet("auto://127.0.0.1:" + port,
       {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0"}, {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0"}}, false);
  char folder[] = "/tmp/rollcall-file-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  meet("file://" + string(folder) + "/ranks", {{}, {}, {}, {}}, true);
  CHECK(::rmdir(folder) == 0);  // nothing is left in it
  for (char const* url : {"env://", "auto://"}) {
    child job({launcher, "-n", "3", "--quiet", barrier, "--runs", "2", "--init-method", url});
    CHECK(job.finish(60s) == 0);
    CHECK(job.errors().empty());
  }
}

TEST_CASE("the example program lists every variable that is missing or bad, at once", "[rendezvous][programs]") {
  NEEDS_EXAMPLE(barrier, "barrier");
  child wrong({"/usr/bin/env", "-i", "RANK=", "WORLD_SIZE=2", barrier, "--init-method", "env://"});
  CHECK(wrong.finish(10s) == 1);
  CHECK(lines_of(wrong.errors()).size() == 1);
  for (char const* part : {"3 problems with env://", "RANK is empty", "MASTER_ADDR is not set", "MASTER_PORT is not set"})
    CHECK(contains(wrong.errors(), part));
}
