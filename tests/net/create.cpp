#include <rollcall/stores/create.hpp>

#include "../support/net.hpp"

using namespace net_test;

namespace {

/// A port that is bound before anybody serves: members can be told of it while the owner is still being made.
class seat {
 public:
  seat() : at_(rc::listen(rc::listen_options{})), port(at_.port()) {}
  /// For create_options::listen_fd, once.
  int take() { return at_.release(); }

 private:
  rc::listener at_;

 public:
  int port;
};

rc::create_options member(int rank, int world) { return rc::create_options{}.rank(rank).world_size(world).timeout(10s); }
rc::create_options owner(seat& s, int rank, int world) { return member(rank, world).is_master(true).listen_fd(s.take()); }

rc::task<rc::tcp_store> create(rc::loop& l, int port, rc::create_options o) {
  co_return co_await rc::tcp_store::create(l, "127.0.0.1", port, o);
}
rc::task<> join(rc::loop& l, int port, rc::create_options o, std::vector<rc::tcp_store>* into) {
  rc::tcp_store s = co_await create(l, port, o);
  into->push_back(s);
}
rc::task<rc::failure> failed(rc::task<rc::tcp_store> t) {
  const rc::result<rc::tcp_store> r = co_await rc::as_result(std::move(t));
  co_return failure_of(r);
}
bool bindable(int port) { return rc::try_listen(rc::listen_options{}.port(port)).has_value(); }
double seconds(rc::duration d) { return std::chrono::duration<double>(d).count(); }
string pid() { return std::to_string(::getpid()); }

/// As on_loop(), with a master that serves by libuv, and once more with the blocking back end.
template <class F>
void on_both(F f) {
  for (char const* const use_libuv : {"1", "0"}) {
    INFO("USE_LIBUV=" << use_libuv);
    setenv("USE_LIBUV", use_libuv, 1);
    on_loop(f);
    unsetenv("USE_LIBUV");
  }
}

/// What PyTorch's client does when it registers, and nothing else.
rc::task<std::int64_t> register_like_pytorch(raw_peer* p, std::int64_t delta) {
  const string answer = co_await p->ask(req::add("init/", delta), 8);
  std::int64_t n = -1;
  if (answer.size() == sizeof n) std::memcpy(&n, answer.data(), sizeof n);
  co_return n;
}

}  // namespace

TEST_CASE("sizes, ranks and ports that can never work are refused before a socket is opened") {
  on_both([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    const auto ask = [&](rc::create_options o, int at, string_view text) -> rc::task<> {
      for (const bool master : {true, false}) {
        const rc::failure f = co_await failed(create(l, at, o.is_master(master)));
        CHECK(f.code() == rc::errc::invalid);
        CHECK(contains(f.message(), text));
        CHECK(f.effect() == rc::effect::none);
        CHECK(l.live_handles() == 0);
        CHECK(bindable(port));
      }
    };
    const auto o = [](std::int64_t rank, std::int64_t world) { return rc::create_options{}.rank(rank).world_size(world); };
    co_await ask(o(0, 0), port, "world size 0 is not in 1..2147483647");
    co_await ask(o(-1, 2), port, "rank -1 is not in 0..1 (world size 2)");
    co_await ask(o(2, 2), port, "rank 2 is not in 0..1 (world size 2)");
    co_await ask(o(1, 1), port, "rank 1 is not in 0..0 (world size 1)");
    co_await ask(o(0, -1), port, "world size -1");
    co_await ask(o(0, std::int64_t{1} << 31), port, "world size 2147483648");
    co_await ask(o(0, INT64_MIN), port, "world size -9223372036854775808");
    co_await ask(rc::create_options{}.rank(-7), port, "rank -7");
    co_await ask(o(0, 1), -1, "port -1");
    co_await ask(o(0, 1), 65536, "port 65536");
    co_await ask(o(0, 1).attempt(-1), port, "attempt -1");
    rc::failure f = co_await failed(create(l, port, o(0, 1).listen_fd(0)));
    CHECK(contains(f.message(), "a descriptor to listen on (0) is given, but is_master is not"));
    f = co_await failed(create(l, 0, o(0, 1)));
    CHECK(contains(f.message(), "port 0 is not in 1..65535"));
    f = co_await failed(rc::tcp_store::create(l, "", port, o(0, 1)));
    CHECK(contains(f.message(), "the host is empty"));
  });
}

TEST_CASE("server and three clients of a world of four meet on one loop") {  // field log F89
  on_both([](rc::loop& l) -> rc::task<> {
    seat s;
    const int port = s.port;
    std::vector<rc::tcp_store> stores;
    rc::scope members(l);
    for (int rank : {2, 1, 3}) members.spawn(join(l, port, member(rank, 4), &stores));
    rc::tcp_store store = co_await create(l, port, owner(s, 0, 4));
    co_await members.join();
    CHECK(stores.size() == 3);
    CHECK(store.owns_server());
    CHECK(store.port() == port);
    CHECK_FALSE(stores[0].owns_server());
    // What PyTorch's would count: "init/" and nothing else (protocol 11).
    CHECK_AWAIT(co_await stores[2].num_keys(), 1);
    raw_peer p = co_await raw_peer::open(l, port);
    const string listed = i64(1) + str("init/");
    CHECK_AWAIT(co_await p.ask(op(17), listed.size()), listed);
    CHECK_AWAIT(co_await p.ask(req::get("init/"), 9), str("4"));
    co_await stores[1].set("k", "v");
    CHECK_AWAIT(co_await store.get("k"), "v");
    CHECK_AWAIT(co_await store.num_keys(), 2);
  });
}

TEST_CASE("the owner says exactly who is missing, at its limit") {
  on_both([](rc::loop& l) -> rc::task<> {
    seat s;
    const int port = s.port;
    std::vector<rc::tcp_store> stores;
    rc::scope members(l);
    for (int rank = 1; rank < 64; ++rank)
      if (rank != 3 && (rank < 17 || rank > 42)) members.spawn(join(l, port, member(rank, 64), &stores));
    const rc::time_point begun = l.now();
    const rc::failure f = co_await failed(create(l, port, owner(s, 0, 64).timeout(700ms)));
    const double took = seconds(l.now() - begun);
    co_await members.join();
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.detail() == "37 of 64 joined after 700 ms: missing 3, 17-42");
    CHECK(took >= 0.7);
    CHECK(took < 7);
    CHECK(bindable(port));  // nothing is served after an error
  });
}

TEST_CASE("who joins without a rank is counted, and the error says that it cannot name the missing") {
  on_both([](rc::loop& l) -> rc::task<> {
    for (const bool some_with_rank : {true, false}) {
      seat s;
      const int port = s.port;
      std::vector<rc::tcp_store> stores;
      rc::scope members(l);
      members.spawn(join(l, port, rc::create_options{}.world_size(6), &stores));
      if (some_with_rank) members.spawn(join(l, port, member(4, 6), &stores));
      rc::create_options o = owner(s, 0, 6).timeout(300ms);
      if (!some_with_rank) o.rank(std::nullopt);
      const rc::failure f = co_await failed(create(l, port, o));
      co_await members.join();
      CHECK(f.detail() == (some_with_rank ? "3 of 6 joined after 300 ms, 1 of them without a rank (PyTorch's tell none): "
                                            "the 3 that are missing are among 1-3, 5"
                                          : "2 of 6 joined after 300 ms; none has told its rank (PyTorch's do not), "
                                            "so who is missing is not known"));
    }
  });
}

TEST_CASE("the owner sees the last registration at once and asks nobody meanwhile, whoever it was") {
  on_loop([](rc::loop& l) -> rc::task<> {
    seat s;
    rc::server_stats stats;
    const int port = s.port;
    rc::time_point returned{};
    std::vector<rc::tcp_store> stores;
    const rc::create_options o = owner(s, 0, 3).serve(rc::serve_options{}.stats(&stats));
    const auto own = [&]() -> rc::task<> {
      rc::tcp_store store = co_await create(l, port, o);
      stores.push_back(store);
      returned = l.now();
    };
    rc::scope group(l);
    group.spawn(own);
    raw_peer p = co_await raw_peer::open(l, port);
    raw_peer q = co_await raw_peer::open(l, port);
    CHECK_AWAIT(co_await register_like_pytorch(&p, 1), 2);
    const std::uint64_t before = stats.requests;
    co_await rc::sleep_for(150ms);
    CHECK(stats.requests == before);
    CHECK(stores.empty());
    const rc::time_point last = l.now();
    CHECK_AWAIT(co_await register_like_pytorch(&q, 1), 3);
    co_await group.join();
    CHECK(seconds(returned - last) < 5);  // its limit is 10 s
  });
}

TEST_CASE("a rank that registers twice is named, with who did it") {  // field log F30, F33
  on_both([](rc::loop& l) -> rc::task<> {
    seat s;
    const int port = s.port;
    std::vector<rc::tcp_store> stores;
    rc::scope members(l);
    std::vector<rc::failure> refused;
    const auto one = [&]() -> rc::task<> {
      const rc::result<rc::tcp_store> r = co_await rc::as_result(create(l, port, member(2, 4)));
      if (r) {
        stores.push_back(*r);
      } else {
        refused.push_back(r.error());
      }
    };
    for (int i = 0; i < 2; ++i) members.spawn(one);
    const rc::failure f = co_await failed(create(l, port, owner(s, 0, 4)));
    co_await members.join();
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.detail(), "rank 2 registered twice: by pid " + pid() + " on "));
    CHECK(stores.size() == 1);  // who came first is not told here: it may be the right one
    REQUIRE(refused.size() == 1);
    CHECK((refused[0].code() == rc::errc::failed || refused[0].code() == rc::errc::disconnected));  // the owner ends its server
  });
}

TEST_CASE("a rank that is taken refuses the second process, and the job goes on") {
  on_both([](rc::loop& l) -> rc::task<> {
    for (const bool registers : {true, false}) {
      const auto o = [&](int rank) { return member(rank, 2).wait_for_workers(registers).claims_rank(true); };
      seat s;
      const int port = s.port;
      std::vector<rc::tcp_store> stores;
      rc::scope members(l);
      members.spawn(join(l, port, o(1), &stores));
      rc::create_options first = o(0);
      const rc::tcp_store store = co_await create(l, port, first.is_master(true).listen_fd(s.take()));
      co_await members.join();
      const auto come_again = [&] {  // another loop is another process to a store
        rc::loop other;
        return rc::sync_wait(other, failed(create(other, port, o(1))));
      };
      auto elsewhere = rc::run_blocking(come_again);
      const rc::failure f = co_await std::move(elsewhere);
      CHECK(f.code() == rc::errc::failed);
      for (string const& part : {"rank 1 registered twice: by pid " + pid() + " on ", " and by pid " + pid(), string("two jobs need an address each")})
        CHECK(contains(f.message(), part));
      CHECK_AWAIT(co_await stores[0].add("n", 1), 1);
      CHECK_AWAIT(co_await store.add("n", 1), 2);
      CHECK_AWAIT(co_await store.num_keys(), (registers ? 2 : 1));  // claims are not counted
    }
  });
}

TEST_CASE("a restart takes its rank over, and what it has superseded does not get it back") {
  on_both([](rc::loop& l) -> rc::task<> {
    const rc::tcp_store store = co_await create(l, 0, member(0, 2).is_master(true).wait_for_workers(false));
    const auto o = [](int attempt) { return member(1, 2).attempt(attempt); };
    const rc::tcp_store first = co_await create(l, store.port(), o(0));
    const rc::tcp_store second = co_await create(l, store.port(), o(2));
    rc::failure f = co_await failed(create(l, store.port(), o(1)));
    CHECK(contains(f.message(), "rank 1 of attempt 1 is superseded: attempt 2 is there, pid " + pid()));
    f = co_await failed(create(l, store.port(), o(2)));
    CHECK(contains(f.message(), "rank 1 registered twice"));
    const rc::tcp_store third = co_await create(l, store.port(), o(3));
    CHECK(third.is_open());
  });
}

TEST_CASE("a member of another run is refused before it counts, one of no run is let in") {
  on_both([](rc::loop& l) -> rc::task<> {
    seat s;
    const int port = s.port;
    std::vector<rc::tcp_store> stores;
    rc::scope group(l);
    const auto own = [&](rc::create_options o) -> rc::task<> {
      rc::tcp_store made = co_await create(l, port, o);
      stores.push_back(made);
    };
    group.spawn(own, owner(s, 0, 3).run_id("job 7"));
    const rc::failure f = co_await failed(create(l, port, member(1, 3).run_id("job 8")));
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.message(), "the store there is of run 'job 7', and this is run 'job 8': two jobs on one address"));
    CHECK(f.effect() == rc::effect::none);
    CHECK(stores.empty());
    group.spawn(own, member(1, 3).run_id("job 7"));
    group.spawn(own, member(2, 3));
    co_await group.join();
    CHECK(stores.size() == 3);
    CHECK_AWAIT(co_await stores[0].num_keys(), 1);
    const rc::failure worldless = co_await failed(create(l, 0, rc::create_options{}.is_master(true).run_id("job 7")));
    CHECK(worldless.code() == rc::errc::invalid);
    CHECK(contains(worldless.message(), "a master's run_id needs a world_size"));
    const string bad_ids[] = {string(), string(256, 'x')};
    for (string const& id : bad_ids) {
      const rc::failure bad = co_await failed(create(l, port, member(1, 3).run_id(id)));
      CHECK(bad.code() == rc::errc::invalid);
    }
  });
}

TEST_CASE("who counts another world is refused, also when all are there") {
  on_both([](rc::loop& l) -> rc::task<> {
    const rc::tcp_store store = co_await create(l, 0, member(0, 1).is_master(true));
    const rc::failure f = co_await failed(create(l, store.port(), member(5, 8)));
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.message(), "counts a world of 8, not of 1: two jobs on one port"));
    CHECK_AWAIT(co_await store.add("n", 1), 1);
  });
}

TEST_CASE("two jobs on one port are an error for both, not a wait") {  // field log F30
  on_both([](rc::loop& l) -> rc::task<> {
    {
      seat s;
      const int port = s.port;
      std::vector<rc::tcp_store> stores;
      rc::scope members(l);
      members.spawn(join(l, port, member(5, 8), &stores));
      const rc::failure f = co_await failed(create(l, port, owner(s, 0, 4)));
      const rc::result<void> other = co_await rc::as_result(members.join());
      CHECK_FALSE(other.has_value());
      CHECK(f.code() == rc::errc::failed);
      CHECK(contains(f.detail(), "rank 5 (pid " + pid()));
      CHECK(contains(f.detail(), "counts a world of 8, not of 4: two jobs on one port"));
    }
    {
      // Foreign workers that only count.
      seat s;
      rc::scope group(l);
      const int port = s.port;
      rc::failure f(rc::errc::io, "");
      const rc::create_options o = owner(s, 0, 3);
      const auto own = [&]() -> rc::task<> { f = co_await failed(create(l, port, o)); };
      group.spawn(own);
      raw_peer p = co_await raw_peer::open(l, port);
      co_await register_like_pytorch(&p, 4);
      co_await group.join();
      CHECK(f.code() == rc::errc::failed);
      CHECK(f.detail() == "5 joined a world of 3: two jobs on one port, or a process registered twice");
    }
    {
      // The world is complete; more come.
      rc::tcp_store store = co_await create(l, 0, member(0, 1).is_master(true));
      const int port = store.port();
      rc::failure f = co_await failed(create(l, port, member(0, 1)));
      CHECK(f.code() == rc::errc::failed);
      CHECK(contains(f.message(), "rank 0 registered twice"));
      f = co_await failed(create(l, port, rc::create_options{}.world_size(1).timeout(5s)));
      CHECK(contains(f.message(), "number 3 to register in a world of 1"));
      // A restart tells its attempt; a further tenant its flag; one that does not register is no member.
      rc::tcp_store again = co_await create(l, port, member(0, 1).attempt(1));
      rc::tcp_store tenant = co_await create(l, port, member(0, 1).multi_tenant(true));
      rc::tcp_store guest = co_await create(l, port, member(0, 1).wait_for_workers(false));
      CHECK(again.is_open());
      CHECK_AWAIT(co_await guest.add("n", 1), 1);
    }
  });
}

TEST_CASE("without a world size, and without waiting for workers, nobody registers") {
  on_both([](rc::loop& l) -> rc::task<> {
    for (const rc::create_options& o : {rc::create_options{}, member(0, 2).wait_for_workers(false)}) {
      rc::create_options master = o;
      rc::tcp_store store = co_await create(l, 0, master.is_master(true));
      rc::tcp_store other = co_await create(l, store.port(), o);
      CHECK_AWAIT(co_await store.num_keys(), 0);
    }
  });
}

TEST_CASE("tenants of one loop share a server, which ends with the last of them") {  // field log F41
  on_both([](rc::loop& l) -> rc::task<> {
    const rc::create_options o = member(0, 1).is_master(true).multi_tenant(true);
    const int port = unused_port();
    std::optional<rc::tcp_store> first, second;
    first = co_await create(l, port, o);
    rc::failure f = co_await failed(create(l, port, member(0, 1).is_master(true)));
    CHECK(f.code() == rc::errc::address_in_use);
    CHECK(contains(f.message(), std::to_string(port)));
    second = co_await create(l, port, o);
    CHECK(first->owns_server());
    CHECK(second->owns_server());
    co_await first->set("k", "v");
    CHECK_AWAIT(co_await second->get("k"), "v");
    const rc::tcp_store copy = *first;
    first.reset();
    CHECK_AWAIT(co_await copy.get("k"), "v");
    co_await copy.drain(5s);  // at once: the second one goes on serving
    CHECK_FALSE(copy.owns_server());
    CHECK_FALSE(copy.is_open());
    CHECK_AWAIT(co_await second->get("k"), "v");
    CHECK_FALSE(bindable(port));
    second.reset();
    CHECK(bindable(port));
    // A new one on the same port, at once, with nothing of the old.
    rc::tcp_store third = co_await create(l, port, o);
    CHECK_AWAIT(co_await third.check("k"), false);
  });
}

TEST_CASE("another loop finds the port taken, flag or not") {
  rc::loop a, b;
  const rc::create_options o = member(0, 1).is_master(true).multi_tenant(true);
  std::optional<rc::tcp_store> store = rc::sync_wait(a, create(a, 0, o));
  const rc::failure f = rc::sync_wait(b, failed(create(b, store->port(), o)));
  CHECK(f.code() == rc::errc::address_in_use);
  store.reset();
  expect_nothing_left(a);
  expect_nothing_left(b);
}

TEST_CASE("a descriptor is taken over, or stays with the caller when it does not fit") {
  on_both([](rc::loop& l) -> rc::task<> {
    rc::listener at = rc::listen(rc::listen_options{});
    const int port = at.port();
    rc::create_options o = member(0, 1).is_master(true).listen_fd(at.fd());
    rc::failure f = co_await failed(create(l, port == 65535 ? 1 : port + 1, o));
    CHECK(f.code() == rc::errc::invalid);
    CHECK(contains(f.message(), "port " + std::to_string(port)));
    REQUIRE(fcntl(at.fd(), F_GETFD) != -1);
    static_cast<void>(at.release());
    std::optional<rc::tcp_store> store = co_await create(l, 0, o);
    CHECK(store->port() == port);
    store.reset();
    CHECK(bindable(port));

    const string path = "/tmp/rollcall-create-" + pid();
    rc::listener local = rc::listen(rc::listen_options{}.unix_path(path));
    f = co_await failed(create(l, 0, o.listen_fd(local.fd())));
    CHECK(contains(f.message(), path));
    CHECK(fcntl(local.fd(), F_GETFD) != -1);
  });
}

TEST_CASE("the master listens on exactly what it announces, or on what bind() says") {
  on_both([](rc::loop& l) -> rc::task<> {
    rc::tcp_store store = co_await rc::tcp_store::create(l, "127.0.0.1", 0, rc::create_options{}.is_master(true));
    const int port = store.port();
    CHECK(rc::try_listen(rc::listen_options{}.host("127.0.0.2").port(port)).has_value());
    const rc::create_options all = rc::create_options{}.is_master(true).bind("*");
    rc::tcp_store wide = co_await rc::tcp_store::create(l, "localhost", 0, all);
    CHECK(rc::try_listen(rc::listen_options{}.host("127.0.0.2").port(wide.port())).code() == rc::errc::address_in_use);
    rc::tcp_store near = co_await rc::tcp_store::create(l, "127.0.0.2", wide.port(), rc::create_options{});
    co_await near.set("a", "b");
    CHECK_AWAIT(co_await wide.get("a"), "b");

    // A name is resolved aside; its addresses of other hosts are passed over.
    int asked = 0;
    const auto resolver = [&asked](string host, std::uint16_t p) -> rc::task<std::vector<rc::socket_address>> {
      ++asked;
      std::vector<rc::socket_address> found;
      if (host == "far") found.push_back(rc::socket_address::ip("192.0.2.1", p).value());
      if (host != "nowhere") found.push_back(rc::socket_address::ip(host == "far" ? "192.0.2.2" : "127.0.0.3", p).value());
      co_return found;
    };
    const rc::create_options by_name = rc::create_options{}.is_master(true).resolver(resolver).timeout(5s);
    rc::tcp_store named = co_await rc::tcp_store::create(l, "node7", 0, by_name);
    CHECK(asked >= 2);
    CHECK(rc::try_listen(rc::listen_options{}.port(named.port())).has_value());
    rc::failure f = co_await failed(rc::tcp_store::create(l, "nowhere", 0, by_name));
    CHECK(f.code() == rc::errc::resolve);
    if (rc::try_listen(rc::listen_options{}.host("192.0.2.2"))) {
      WARN("this host binds addresses that are not its own: not tried what happens elsewhere");
      co_return;
    }
    f = co_await failed(rc::tcp_store::create(l, "far", 0, by_name));
    CHECK(f.code() == rc::errc::io);
    CHECK(contains(f.message(), "192.0.2.2"));
    CHECK(contains(f.message(), "asked for as 'far', create_options::bind"));
  });
}

TEST_CASE("with drain, the owner may finish first and nobody notices") {  // field log F25, F26
  on_both([](rc::loop& l) -> rc::task<> {
    seat s;
    const int port = s.port;
    int done = 0;
    bool drains = false;
    const auto work = [&](int rank) -> rc::task<> {
      rc::tcp_store store = co_await create(l, port, member(rank, 8));
      co_await eventually([&] { return drains && (rank != 3 || done == 6); });  // one is longer at it than all others
      for (int i = 0; i < 20; ++i) co_await store.add("n", 1);
      ++done;
    };
    rc::scope members(l);
    for (int rank = 1; rank < 8; ++rank) members.spawn(work, rank);
    rc::tcp_store store = co_await create(l, port, owner(s, 0, 8));
    const rc::tcp_store copy = store;
    // The owner's own further connections do not count: a wait for several keys opens one.
    const auto wait = [](rc::tcp_store st) -> rc::task<> { static_cast<void>(co_await rc::as_result(st.wait({"x", "y"}, 10s))); };
    rc::scope own(l);
    own.spawn(wait, copy);
    CHECK_AWAIT(co_await store.check("n"), false);
    drains = true;
    co_await store.drain(20s);
    CHECK(done == 7);
    CHECK_FALSE(copy.owns_server());
    CHECK_FALSE(copy.is_open());
    CHECK(bindable(port));
    co_await copy.drain(1s);
    co_await own.join();
    co_await members.join();
  });
}

TEST_CASE("without drain the others learn of the end at once") {  // field log F25
  on_both([](rc::loop& l) -> rc::task<> {
    std::optional<rc::tcp_store> store = co_await create(l, 0, rc::create_options{}.is_master(true));
    rc::tcp_store other = co_await create(l, store->port(), rc::create_options{});
    rc::failure f(rc::errc::io, "");
    const auto wait = [&]() -> rc::task<> {
      const rc::result<void> r = co_await rc::as_result(other.wait("never", 10s));
      f = failure_of(r);
    };
    rc::scope group(l);
    group.spawn(wait);
    co_await rc::sleep_for(20ms);
    const rc::time_point begun = l.now();
    store.reset();
    co_await group.join();
    CHECK(f.code() == rc::errc::disconnected);
    CHECK(seconds(l.now() - begun) < 5);
  });
}

TEST_CASE("a drain that is over its limit says how many are left, and one of a client is over at once") {
  on_both([](rc::loop& l) -> rc::task<> {
    rc::tcp_store store = co_await create(l, 0, rc::create_options{}.is_master(true));
    const int port = store.port();
    rc::tcp_store a = co_await create(l, port, rc::create_options{});
    rc::tcp_store b = co_await create(l, port, rc::create_options{});
    co_await a.drain(10s);
    CHECK(a.is_open());
    const rc::result<void> stopped = co_await rc::as_result(rc::with_deadline(store.drain(10s), 30ms));
    CHECK(stopped.code() == rc::errc::timed_out);
    CHECK(store.owns_server());  // a drain that was stopped has changed nothing
    CHECK_AWAIT(co_await store.add("n", 1), 1);
    const rc::time_point begun = l.now();
    const rc::result<void> late = co_await rc::as_result(store.drain(200ms));
    const rc::failure f = failure_of(late);
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(contains(f.message(), "2 other clients are still connected"));
    CHECK(seconds(l.now() - begun) >= 0.2);
    CHECK(seconds(l.now() - begun) < 5);
    CHECK(bindable(port));
  });
}

TEST_CASE("an owner that is dropped in plain code frees port and memory at once, whatever its peers do") {
  for (const bool stuck : {false, true}) {
    const watchdog dog("dropped owner");
    rc::loop l;
    rc::unique_fd peer;
    int port = 0;
    {
      std::optional<rc::tcp_store> store = rc::sync_wait(l, create(l, 0, rc::create_options{}.is_master(true)));
      port = store->port();
      if (stuck) {
        // Replies that this peer never takes.
        peer = plain_connect(port, 4096);
        const auto provoke = [&](rc::tcp_store s) -> rc::task<> {
          const string big(std::size_t{1} << 20, 'x');
          co_await s.set("big", big);
          string gets = req::validate();
          for (int i = 0; i < 32; ++i) gets += req::get("/big");
          send_all(peer.get(), gets);
          co_await rc::sleep_for(50ms);
        };
        rc::sync_wait(l, provoke(*store));
      }
    }
    CHECK(bindable(port));
    if (stuck) CHECK(l.live_handles() > 0);  // it is given two seconds, unless the loop ends
  }
}

TEST_CASE("a create that is stopped leaves nothing behind") {
  on_both([](rc::loop& l) -> rc::task<> {
    seat s;
    const int port = s.port;
    const rc::result<rc::tcp_store> r = co_await rc::as_result(rc::with_deadline(create(l, port, owner(s, 0, 2)), 50ms));
    CHECK(r.code() == rc::errc::timed_out);
    CHECK(bindable(port));
  });
}
