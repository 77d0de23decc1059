// Stores by their own types: operations that are awaited as they are, and what only one of them has. What all have in common is asked in
// stores_values.cpp, stores_waiting.cpp and stores_life.cpp.
#include "../support/hall_types.hpp"

using namespace net_test;

static_assert(rc::store<rc::tcp_store> && rc::store<rc::hash_store> && rc::store<rc::file_store> && rc::store<rc::any_store>);
static_assert(rc::store<rc::prefix_store<rc::tcp_store>> && rc::store<rc::prefix_store<rc::prefix_store<rc::any_store>>>);

TEMPLATE_TEST_CASE("each type of store is awaited, started, stopped and cloned as it is", "[stores]", tcp_hall, hash_hall, watched,
                   prefixed<tcp_hall>, prefixed<erased<hash_hall>>) {
  on_loop([](rc::loop& l) -> rc::task<> {
    TestType data(l);
    {
      using store_type = typename TestType::store_type;
      const store_type s = co_await data.open();
      co_await s.set("k", "v");
      CHECK_AWAIT(co_await s.get("k"), "v");
      CHECK_AWAIT(co_await s.find("missing"), std::nullopt);
      CHECK_AWAIT(co_await s.add("n", 5), 5);
      CHECK_AWAIT(co_await s.check({"k", "n"}), true);
      co_await s.wait({"k", "n"}, 20s);
      CHECK_AWAIT(co_await s.delete_key("n"), true);
      CHECK_AWAIT(co_await s.num_keys(), 1);
      CHECK_AWAIT(co_await s.list_keys(), strings{"k"});
      CHECK_AWAIT(co_await s.compare_set("k", "v", "w"), "w");
      co_await s.append("k", "x");
      co_await s.multi_set({rc::kv("a", "1"), rc::kv("b", "2")});
      CHECK_AWAIT(co_await s.multi_get({"b", "k"}), strings{"2", "wx"});
      co_await s.queue_push("q", "item");
      CHECK_AWAIT(co_await s.queue_len("q"), 1);
      CHECK_AWAIT(co_await s.queue_pop("q"), "item");
      CHECK_AWAIT(co_await s.queue_pop_now("q"), std::nullopt);

      const rc::failure late = failure_of(co_await rc::as_result(s.get("missing", 20ms)));
      CHECK(late.code() == rc::errc::timed_out);
      CHECK(late.keys() == strings{"missing"});
      bool thrown = false;
      try {
        co_await s.wait({"missing", "k"}, 20ms);
      } catch (rc::error const& e) {
        thrown = e.code() == rc::errc::timed_out;
      }
      CHECK(thrown);
      outcome<string> gets;
      gets.start(s.get("later", 20s));
      outcome<void> stopped;
      stopped.start(s.wait("never", 20s));
      auto other = co_await rc::detail::clone_of(s, 20s);
      static_assert(std::same_as<decltype(other), store_type>);
      co_await other.set("later", "y");
      stopped.stop.request_stop();
      co_await eventually([&] { return gets.r && stopped.r; });
      CHECK(gets.r->value() == "y");
      CHECK(failure_of(*stopped.r).code() == rc::errc::cancelled);
      const auto both = co_await rc::as_result(rc::when_all(s.wait("together", 20s), s.set("together", "")));
      CHECK(both.has_value());
      const auto bounded = co_await rc::as_result(rc::with_deadline(s.queue_pop("q", 20s), 20ms));
      CHECK(failure_of(bounded).code() == rc::errc::timed_out);
    }
    co_await data.close();
  });
}

// ---- what only one of them has ----

TEST_CASE("a prefix is a name space: nothing escaped, innermost leftmost, listed up to its '/'", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::hash_store base(l);
    rc::prefix_store a(base, "a");
    rc::prefix_store ab(base, "ab");
    rc::prefix_store nested(rc::prefix_store(base, "p2"), "p1");
    rc::prefix_store none(base, "");
    rc::prefix_store slash(base, "a/");
    co_await nested.set("k", "nested");
    CHECK_AWAIT(co_await base.get("p2/p1/k"), "nested");
    co_await none.set("k", "none");
    CHECK_AWAIT(co_await base.get("/k"), "none");
    co_await slash.set("k", "slash");
    CHECK_AWAIT(co_await base.get("a//k"), "slash");
    CHECK_AWAIT(co_await a.get("/k"), "slash");
    co_await a.set("k", "1");
    co_await a.set("b/c", "2");
    co_await ab.set("x", "3");
    co_await base.set("a", "no slash");
    CHECK_AWAIT(sorted(co_await a.list_keys()), strings{"/k", "b/c", "k"});
    CHECK_AWAIT(co_await a.num_keys(), 3);
    CHECK_AWAIT(sorted(co_await ab.list_keys()), strings{"x"});
    CHECK_AWAIT(sorted(co_await nested.list_keys()), strings{"k"});
    CHECK_AWAIT(co_await base.num_keys(), 7);
    CHECK(nested.prefix() == "p1");
    CHECK(nested.below().prefix() == "p2");
    const string name(300, 'n');  // longer than what is composed without the heap
    co_await a.set(name, "long");
    CHECK_AWAIT(co_await base.get("a/" + name), "long");
    CHECK_AWAIT(co_await a.check({name, "k"}), true);
  });
}

TEST_CASE("a prefix has a limit of its own, and its errors say where", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    {
      rc::tcp_store below = co_await client_of(l, server.port());
      rc::prefix_store quick(below, "a", 30ms);
      rc::prefix_store nested(rc::any_store(quick), "b", 60ms);
      const rc::failure f = failure_of(co_await rc::as_result(quick.wait({"x", "y"})));
      CHECK(f.limit() == 30ms);
      CHECK(f.keys() == strings{"x", "y"});
      CHECK(f.peer() == "prefix 'a' of 127.0.0.1:" + std::to_string(server.port()));
      const rc::failure deep = failure_of(co_await rc::as_result(nested.get("k")));
      CHECK(deep.limit() == 60ms);
      CHECK(deep.keys() == strings{"k"});
      CHECK(deep.peer() == "prefix 'b' of prefix 'a' of 127.0.0.1:" + std::to_string(server.port()));
      const rc::failure given = failure_of(co_await rc::as_result(quick.get("k", 10ms)));
      CHECK(given.limit() == 10ms);
      outcome<string> patient;  // the store below keeps its own
      patient.start(below.get("slow"));
      co_await rc::sleep_for(80ms);
      CHECK_FALSE(patient.r);
      co_await below.set("slow", "");
      co_await eventually([&] { return patient.r.has_value(); });
      CHECK(patient.r->has_value());
    }
    co_await server.stop();
  });
}

namespace {

/// The least that is a store: tasks instead of operations, no hints.
class users_store {
 public:
  explicit users_store(rc::hash_store s) : s_(std::move(s)) {}
  using limit = std::optional<rc::deadline>;
  rc::task<> set(string_view k, string_view v, limit d = {}) const { return run<void>(s_.set(k, v, d)); }
  rc::task<string> get(string_view k, limit d = {}) const { return run<string>(s_.get(k, d)); }
  rc::task<std::optional<string>> find(string_view k, limit d = {}) const { return run<std::optional<string>>(s_.find(k, d)); }
  rc::task<std::int64_t> add(string_view k, std::int64_t n, limit d = {}) const { return run<std::int64_t>(s_.add(k, n, d)); }
  rc::task<bool> check(rc::keys k, limit d = {}) const { return run<bool>(s_.check(k, d)); }
  rc::task<> wait(rc::keys k, limit d = {}) const { return run<void>(s_.wait(k, d)); }
  rc::task<bool> delete_key(string_view k, limit d = {}) const { return run<bool>(s_.delete_key(k, d)); }
  rc::task<std::int64_t> num_keys(limit d = {}) const { return run<std::int64_t>(s_.num_keys(d)); }
  rc::task<strings> list_keys(limit d = {}) const { return run<strings>(s_.list_keys(d)); }
  rc::task<string> compare_set(string_view k, string_view e, string_view v, limit d = {}) const {
    return run<string>(s_.compare_set(k, e, v, d));
  }
  rc::task<> append(string_view k, string_view v, limit d = {}) const { return run<void>(s_.append(k, v, d)); }
  rc::task<strings> multi_get(rc::keys k, limit d = {}) const { return run<strings>(s_.multi_get(k, d)); }
  rc::task<> multi_set(rc::pairs p, limit d = {}) const { return run<void>(s_.multi_set(p, d)); }
  rc::task<> queue_push(string_view k, string_view v, limit d = {}) const { return run<void>(s_.queue_push(k, v, d)); }
  rc::task<string> queue_pop(string_view k, limit d = {}) const { return run<string>(s_.queue_pop(k, d)); }
  rc::task<std::optional<string>> queue_pop_now(string_view k, limit d = {}) const {
    return run<std::optional<string>>(s_.queue_pop_now(k, d));
  }
  rc::task<std::int64_t> queue_len(string_view k, limit d = {}) const { return run<std::int64_t>(s_.queue_len(k, d)); }
  [[nodiscard]] rc::loop_ref home() const { return s_.home(); }
  [[nodiscard]] std::uint64_t identity() const { return s_.identity(); }
  [[nodiscard]] bool is_open() const { return s_.is_open(); }
  void close() const { s_.close(); }

 private:
  template <class T, class Op>
  static rc::task<T> run(Op op) {
    co_return co_await std::move(op);
  }
  rc::hash_store s_;
};
static_assert(rc::store<users_store>);

}  // namespace

TEST_CASE("any_store holds users' stores too, and tells what it holds", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::hash_store base(l);
    const rc::any_store s{users_store(base)};
    const rc::any_store plain = base;
    CHECK(s.get_if<users_store>() != nullptr);
    CHECK(s.get_if<rc::hash_store>() == nullptr);
    CHECK(plain.get_if<rc::hash_store>() != nullptr);
    CHECK_FALSE(s.server_is_rollcall());
    const rc::failure no_clone = failure_of(co_await rc::as_result(s.clone(1s)));
    CHECK(no_clone.code() == rc::errc::unsupported);
    CHECK(plain.server_is_rollcall());
    const rc::prefix_store under(s, "p");
    co_await under.set("k", "v");
    CHECK_AWAIT(co_await base.get("p/k"), "v");
    CHECK_AWAIT(co_await s.fetch_existing(string_view("p/k"), 1s), "v");
    CHECK_AWAIT(co_await s.fetch_existing(string_view("missing"), 1s), "");
    const rc::failure f = failure_of(co_await rc::as_result(under.get("missing", 20ms)));
    CHECK(f.code() == rc::errc::timed_out);
    CHECK(f.keys() == strings{"missing"});
    outcome<string> stopped;
    stopped.start(under.get("missing", 20s));
    co_await rc::sleep_for(5ms);
    stopped.stop.request_stop();
    co_await eventually([&] { return stopped.r.has_value(); });
    CHECK(failure_of(*stopped.r).code() == rc::errc::cancelled);
    rc::barrier alone{users_store(base), "alone", 0, 1};
    co_await alone.arrive_and_wait(20s);
  });
}

namespace {

template <class Store>
rc::task<std::uint64_t> allocations_of(Store s) {
  const string value(40, 'v');
  std::uint64_t before = 0;
  for (int i = 0; i < 300; ++i) {
    if (i == 100) before = counted_allocations();
    co_await s.set("k", value);
    static_cast<void>(co_await s.add("n", 1));
    static_cast<void>(co_await s.check({"k", "n"}));
    co_await s.wait("k");
  }
  co_return counted_allocations() - before;
}

}  // namespace

TEST_CASE("any_store adds no allocation to the operations of our stores", "[stores]") {
  using prefixed_tcp = rc::prefix_store<rc::tcp_store>;
  using text = rc::operation<string>;
  static_assert(rc::any_operation<string>::fits<text> && rc::any_operation<string>::fits<rc::hash_operation<string>>);
  static_assert(rc::any_operation<string>::fits<rc::file_operation<string>>);
  static_assert(rc::any_operation<string>::fits<decltype(std::declval<prefixed_tcp>().get(""))>);
  static_assert(rc::any_operation<string>::fits<decltype(std::declval<rc::prefix_store<prefixed_tcp>>().get(""))>);
  on_loop([](rc::loop& l) -> rc::task<> {
    local_server server(l);
    {
      rc::tcp_store tcp = co_await client_of(l, server.port());
      const rc::hash_store hash(l);
      CHECK_AWAIT(co_await allocations_of(rc::any_store(tcp)), 0U);
      CHECK_AWAIT(co_await allocations_of(hash), 0U);
      CHECK_AWAIT(co_await allocations_of(rc::any_store(hash)), 0U);
      CHECK_AWAIT(co_await allocations_of(tcp), 0U);
    }
    co_await server.stop();
  });
}

TEST_CASE("a hash_store holds the limits of the server's engine", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::engine::store_options most;
    most.stored_bytes(2000).appended_bytes(600).awaited_keys(3);
    most.request_limits(rc::wire::limits().key_bytes(9).value_bytes(500).key_count(4));
    rc::hash_store s(l, rc::hash_options{}.store(most));
    const rc::failure key = failure_of(co_await rc::as_result(s.set("123456789", "")));
    CHECK(contains(key.message(), "the key has 9 bytes, the limit is 8"));
    const rc::failure value = failure_of(co_await rc::as_result(s.set("k", string(501, 'v'))));
    CHECK(value.code() == rc::errc::limit);
    const rc::failure many = failure_of(co_await rc::as_result(s.check({"1", "2", "3", "4", "5"})));
    CHECK(contains(many.message(), "5 keys, the limit is 4"));
    co_await s.set("k", string(400, 'v'));
    const rc::failure appended = failure_of(co_await rc::as_result(s.append("k", string(300, 'w'))));
    CHECK(appended.code() == rc::errc::limit);
    CHECK_AWAIT((co_await s.get("k")).size(), 400U);
    co_await s.set("l", string(500, 'v'));
    co_await s.set("m", string(500, 'v'));
    const rc::failure full = failure_of(co_await rc::as_result(s.queue_push("q", string(500, 'v'))));
    CHECK(full.code() == rc::errc::limit);
    CHECK(contains(full.message(), "queue_push of key 'q'"));
    CHECK(contains(full.message(), "the store is full"));
    CHECK_AWAIT(co_await s.queue_len("q"), 0);
    const rc::failure waits = failure_of(co_await rc::as_result(s.wait({"1", "2", "3", "4"}, 20s)));
    CHECK(waits.code() == rc::errc::limit);
    CHECK(s.stats().waits == 0);
    CHECK(s.stats().keys == 3);
  });
}

TEST_CASE("an item that comes for a coroutine which is destroyed is not lost", "[stores]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::hash_store s(l);
    const auto pop = [](rc::hash_operation<string> op) -> rc::detail::driver { static_cast<void>(co_await std::move(op)); };
    rc::detail::operation_group pops;
    pops.start(pop(s.queue_pop("q", 20s)));
    CHECK(s.stats().waits == 1);
    // The item comes, and the frame that would take it is destroyed before its turn.
    rc::hash_operation<void> push = s.queue_push("q", "item");
    CHECK(push.suspend(std::noop_coroutine(), rc::environment(&l.core(), rc::stop_token())));
    CHECK_AWAIT(co_await s.queue_len("q"), 0);
    pops.start(pop(s.queue_pop("q", 20s)));
    CHECK(s.stats().waits == 1);
    rc::hash_operation<void> more = s.queue_push("q", "more");
    CHECK(more.suspend(std::noop_coroutine(), rc::environment(&l.core(), rc::stop_token())));
    pops.clear();
    CHECK(s.stats().waits == 0);
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::optional<string>("more"));
    CHECK_AWAIT(co_await s.queue_pop_now("q"), std::nullopt);
  });
}

TEST_CASE("a wait in process keeps the loop for what other threads post", "[stores]") {
  const watchdog dog("a wait in process keeps the loop");
  rc::loop l;
  {
    rc::hash_store s(l);
    std::thread helper([door = l.post_handle(), &s] {
      std::this_thread::sleep_for(30ms);
      door.post([&s] { rc::start(s.set("k", "posted"), [](rc::result<void>) {}); });
    });
    CHECK(rc::sync_wait(l, s.get("k", rc::deadline::never())) == "posted");
    helper.join();
  }
  expect_nothing_left(l);
}
