#include <rollcall/collectives.hpp>
#include <rollcall/stores/create.hpp>

#include "../support/net.hpp"

using namespace net_test;

namespace {

rc::task<rc::failure> failed_gather(rc::tcp_store s, string name, int rank, int world, rc::deadline limit) {
  const rc::result<std::vector<string>> r = co_await rc::as_result(rc::all_gather(s, name, rank, world, "v", limit));
  co_return failure_of(r);
}
double seconds(rc::duration d) { return std::chrono::duration<double>(d).count(); }

/// A store as others are: PyTorch's legacy server wakes nobody at COMPARE_SET, closes at a GET of what is missing, and is not ours.
class plain_store {
 public:
  explicit plain_store(rc::tcp_store s) : store_(std::move(s)) {}
  [[nodiscard]] auto set(string_view k, string_view v, rc::deadline d) const { return store_.set(k, v, d); }
  [[nodiscard]] auto get(string_view k, rc::deadline d) const { return store_.get(k, d); }
  [[nodiscard]] auto add(string_view k, std::int64_t n, rc::deadline d) const { return store_.add(k, n, d); }
  [[nodiscard]] auto check(rc::keys k, rc::deadline d) const { return store_.check(k, d); }
  [[nodiscard]] auto wait(rc::keys k, rc::deadline d) const { return store_.wait(k, d); }
  [[nodiscard]] auto multi_get(rc::keys k, rc::deadline d) const { return store_.multi_get(k, d); }
  [[nodiscard]] rc::loop_ref home() const { return store_.home(); }

 private:
  rc::tcp_store store_;
};

template <class Store>
rc::task<> gather_one(Store s, string name, int rank, int world, string value, std::vector<string> const* expected, int* good) {
  const std::vector<string> all = co_await rc::all_gather(s, name, rank, world, value, 20s);
  *good += all == *expected;
}

}  // namespace

TEST_CASE("all_gather gives everybody all values in rank order, on any store") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    std::vector<string> expected;
    for (int r = 0; r < 40; ++r) expected.push_back(r % 3 == 0 ? "" : string(static_cast<std::size_t>(r), static_cast<char>('a' + r % 26)));
    int good = 0;
    rc::tcp_store one = co_await client_of(l, server.port());
    rc::tcp_store two = co_await client_of(l, server.port());
    rc::scope members(l);
    for (int r = 39; r >= 0; --r) {
      const string value = expected[static_cast<std::size_t>(r)];
      members.spawn(gather_one(one, "g", r, 40, value, &expected, &good));  // all on one store
      members.spawn(gather_one(plain_store(two), "p", r, 40, value, &expected, &good));
    }
    co_await members.join();
    CHECK(good == 80);
    const std::vector<string> alone = co_await rc::all_gather(one, "alone", 0, 1, "x", 5s);
    CHECK(alone == std::vector<string>{"x"});
    co_await server.stop();
  });
}

namespace {

/// `present` members gather a thousand values of 100 bytes; the others' values are there already.
void gather_a_thousand(int present) {
  const auto body = [present](rc::loop& l) -> rc::task<> {
    local_server server(l);
    constexpr int world = 1000;
    std::vector<string> expected, names;
    std::vector<rc::kv> others;
    for (int r = 0; r < world; ++r) {
      expected.push_back(string(97, 'v') + std::to_string(100 + r % 900));
      names.push_back("big/" + std::to_string(r));
    }
    for (auto r = static_cast<std::size_t>(present); r < world; ++r) others.emplace_back(names[r], expected[r]);
    std::vector<rc::tcp_store> stores;
    for (int r = 0; r < present; ++r) {
      rc::tcp_store s = co_await client_of(l, server.port());
      stores.push_back(s);
      co_await s.num_keys();  // behind the handshake
    }
    co_await stores[0].multi_set(others);
    int good = 0;
    const std::uint64_t before = server.stats().requests;
    rc::scope members(l);
    for (auto r = static_cast<std::size_t>(0); r < stores.size(); ++r)
      members.spawn(gather_one(stores[r], "big", static_cast<int>(r), world, expected[r], &expected, &good));
    co_await members.join();
    CHECK(good == present);
    CHECK(server.stats().requests - before <= static_cast<std::uint64_t>(3 * present));
    CHECK(server.stats().connections == stores.size());  // one a member
    stores.clear();
    co_await server.stop();
  };
  on_loop(body, 90s);
}

}  // namespace

TEST_CASE("all_gather of a thousand values of 100 bytes costs three requests a member") { gather_a_thousand(50); }  // field log F85
TEST_CASE("all_gather of a thousand values by a thousand members", "[.long]") { gather_a_thousand(1000); }

TEST_CASE("all_gather names the missing ranks") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    rc::tcp_store s = co_await client_of(l, server.port());
    const auto missing = [](int r) { return r == 3 || (r >= 70 && r < 75) || r == 199; };
    for (int r = 50; r < 200; ++r)
      if (!missing(r)) co_await s.set("g/" + std::to_string(r), "v");
    int named = 0;
    const rc::time_point begun = l.now();
    const auto one = [&](int r) -> rc::task<> {
      const rc::failure f = co_await failed_gather(s, "g", r, 200, 300ms);
      CHECK(f.code() == rc::errc::timed_out);
      CHECK(f.limit() == 300ms);
      CHECK(f.detail() == "7 of 200 missing: 3, 70-74, 199");
      ++named;
    };
    rc::scope members(l);
    for (int r = 0; r < 50; ++r)
      if (!missing(r)) members.spawn(one, r);
    co_await members.join();
    CHECK(named == 49);
    CHECK(seconds(l.now() - begun) >= 0.3);
    CHECK(seconds(l.now() - begun) < 5);
    const rc::failure f = co_await failed_gather(s, "few", 1, 4, 50ms);
    CHECK(contains(f.message(), "all_gather 'few': timed out"));
    CHECK(f.detail() == "3 of 4 missing: 0, 2-3");
    const rc::result<std::vector<string>> plain = co_await rc::as_result(rc::all_gather(plain_store(s), "plain", 1, 4, "v", 50ms));
    CHECK(failure_of(plain).detail() == "3 of 4 missing: 0, 2-3");
    co_await server.stop();
  });
}

TEST_CASE("a rank that is there twice, or a name that is used again, is an error and no wrong answer") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    rc::tcp_store s = co_await client_of(l, server.port());
    co_await rc::all_gather(s, "g", 0, 1, "first", 5s);
    const rc::failure f = co_await failed_gather(s, "g", 0, 1, 5s);
    CHECK(f.code() == rc::errc::failed);
    CHECK(contains(f.message(), "'g/0' holds another value already: the rank is there twice, or the name is used again"));
    CHECK_AWAIT(co_await s.get("g/0"), "first");
    co_await server.stop();
  });
}

TEST_CASE("ranks and sizes that can never work are refused before anything is sent") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    rc::tcp_store s = co_await client_of(l, server.port());
    co_await s.num_keys();
    const std::uint64_t before = server.stats().requests;
    const int table[][2] = {{0, 0}, {-1, 2}, {2, 2}, {1, 1}, {0, -1}, {0, 131073}};
    for (auto const& row : table) {
      const rc::failure f = co_await failed_gather(s, "g", row[0], row[1], 5s);
      CHECK(f.code() == rc::errc::invalid);
    }
    const rc::result<std::int64_t> r = co_await rc::as_result(rc::assign_ranks(s, "a", "me", 0, 5s));
    CHECK(r.code() == rc::errc::invalid);
    const rc::result<string> b = co_await rc::as_result(rc::broadcast(s, "b", 0, -1, "", 5s));
    CHECK(b.code() == rc::errc::invalid);
    CHECK(server.stats().requests == before);
    co_await server.stop();
  });
}

TEST_CASE("broadcast gives the root's value to everybody") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    rc::tcp_store s = co_await client_of(l, server.port());
    int good = 0;
    const auto one = [&](int r) -> rc::task<> {
      const string got = co_await rc::broadcast(s, "id", r, 2, r == 2 ? "the value" : "ignored", 5s);
      good += got == "the value";
    };
    rc::scope members(l);
    for (int r = 0; r < 5; ++r) members.spawn(one, r);
    co_await members.join();
    CHECK(good == 5);
    const rc::result<string> late = co_await rc::as_result(rc::broadcast(s, "other", 0, 1, "", 50ms));
    const rc::failure f = failure_of(late);
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.detail() == "the root, rank 1, has not sent its value");
    co_await server.stop();
  });
}

TEST_CASE("assign_ranks gives unique ranks in the order of identities, whoever comes first") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    rc::tcp_store s = co_await client_of(l, server.port());
    const std::vector<string> identities{"node-b/1", "node-a/0", "node-b/0", "node-a", "node-a", "node-c"};
    for (const bool backwards : {false, true}) {
      std::vector<std::int64_t> ranks(identities.size(), -1);
      const auto one = [&](std::size_t i) -> rc::task<> {
        ranks[i] = co_await rc::assign_ranks(s, backwards ? "b" : "f", identities[i], static_cast<std::int64_t>(identities.size()), 5s);
      };
      rc::scope members(l);
      for (std::size_t i = 0; i < identities.size(); ++i) members.spawn(one, backwards ? identities.size() - 1 - i : i);
      co_await members.join();
      CHECK(ranks[0] == 4);
      CHECK(ranks[1] == 2);
      CHECK(ranks[2] == 3);
      CHECK(ranks[3] + ranks[4] == 1);  // the same identity: by arrival
      CHECK(ranks[5] == 5);
    }
    const rc::result<std::int64_t> more = co_await rc::as_result(rc::assign_ranks(s, "f", "late", 6, 5s));
    CHECK(more.code() == rc::errc::failed);
    CHECK(contains(more.error().message(), "this is member number 7 of a world of 6"));
    const rc::result<std::int64_t> few = co_await rc::as_result(rc::assign_ranks(s, "few", "me", 3, 50ms));
    CHECK(few.code() == rc::errc::timed_out);
    CHECK(few.error().detail() == "1 of 3 members came");
    co_await server.stop();
  });
}

TEST_CASE("a collective that is stopped or cut off ends at once") {
  on_loop([](rc::loop& l) -> rc::task<> {
    std::optional<rc::tcp_store> owner = co_await rc::tcp_store::create(l, "127.0.0.1", 0, rc::create_options{}.is_master(true));
    rc::tcp_store s = co_await client_of(l, owner->port());
    const rc::result<std::vector<string>> stopped = co_await rc::as_result(rc::with_deadline(rc::all_gather(s, "g", 0, 2, "v", 10s), 30ms));
    CHECK(stopped.code() == rc::errc::timed_out);
    CHECK(s.is_open());
    rc::failure f(rc::errc::io, "");
    const auto one = [&]() -> rc::task<> { f = co_await failed_gather(s, "h", 0, 2, 10s); };
    rc::scope group(l);
    group.spawn(one);
    co_await rc::sleep_for(20ms);
    owner.reset();
    co_await group.join();
    CHECK(f.code() == rc::errc::disconnected);
  });
}
