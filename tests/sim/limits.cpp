#include <doctest/doctest.h>

#include <set>

#include "world.hpp"

// A link that stands still, at any moment: every kind of operation ends at its own limit or its stop, says what it was, and afterwards the
// next reply is the right one.

using namespace sim;

namespace {

/// A client of the real server on a link of its own, 1 ms long in each direction.
class bench {
 public:
  explicit bench(bool known) : w(1) {
    w.serve(rc::serve_options().close_half_request_after(2h).close_unread_after(2h).validate_within(2h));
    network = std::make_shared<rc::test::memory_network>(w.loop, w.plan, [this](rc::net::stream_ptr far, auto const& link) {
      links.push_back(link);
      if (frozen) link->freeze();
      w.accept(1, std::move(far));
    });
    network->adjust([known](rc::test::link_faults& there, rc::test::link_faults& back) {
      there = rc::test::link_faults().delays(1ms).seeded(1);
      back = rc::test::link_faults().delays(1ms).seeded(2);
      if (!known) back.break_byte(rc::test::corruption::flip, 4);  // the answer to the probe: not one of ours
    });
    rc::start(w.loop, rc::tcp_store::over(w.loop, network->connect(), 10s, rc::client_options().timeout(100ms), network, 1),
              [this](rc::result<rc::tcp_store> r) { store = std::move(r).value(); });
    w.time.run_for(1s);
    REQUIRE(store);
    CHECK(store->server_is_rollcall() == known);
  }
  ~bench() {
    store.reset();
    w.time.run_for(10s);
  }
  void freeze(bool on) {
    frozen = on;
    for (auto const& l : links) on ? l->freeze() : l->thaw();
  }
  world w;
  std::vector<std::shared_ptr<rc::test::memory_link>> links;
  std::shared_ptr<rc::test::memory_network> network;
  bool frozen = false;
  std::optional<rc::tcp_store> store;
};

struct kind {
  char const* name;
  bool changes;
  bool has_key;
  std::function<void(rc::tcp_store const&, std::function<void(rc::failure const*)>, rc::stop_token)> start;
};

template <class F>
kind kind_of(char const* name, bool changes, bool has_key, F make) {
  return kind{name, changes, has_key, [make](rc::tcp_store const& s, std::function<void(rc::failure const*)> done, rc::stop_token stop) {
                rc::start(make(s), [done](auto r) { done(r ? nullptr : &r.error()); }, stop);
              }};
}

std::vector<kind> const& kinds() {
  static char room[16];
  static const std::vector<kind> all{
      kind_of("set", true, true, [](rc::tcp_store const& s) { return s.set("k", "1"); }),
      kind_of("get", false, true, [](rc::tcp_store const& s) { return s.get("k"); }),
      kind_of("get_into", false, true, [](rc::tcp_store const& s) { return s.get_into("k", room); }),
      kind_of("find", false, true, [](rc::tcp_store const& s) { return s.find("k"); }),
      kind_of("add", true, true, [](rc::tcp_store const& s) { return s.add("k", 1); }),
      kind_of("check", false, true, [](rc::tcp_store const& s) { return s.check("k"); }),
      kind_of("wait", false, true, [](rc::tcp_store const& s) { return s.wait("k"); }),
      kind_of("wait", false, true, [](rc::tcp_store const& s) { return s.wait({"k", "l"}); }),
      kind_of("delete_key", true, true, [](rc::tcp_store const& s) { return s.delete_key("k"); }),
      kind_of("num_keys", false, false, [](rc::tcp_store const& s) { return s.num_keys(); }),
      kind_of("compare_set", true, true, [](rc::tcp_store const& s) { return s.compare_set("k", "a", "b"); }),
      kind_of("append", true, true, [](rc::tcp_store const& s) { return s.append("k", "1"); }),
      kind_of("multi_get", false, true, [](rc::tcp_store const& s) { return s.multi_get({"k", "l"}); }),
      kind_of("multi_set", true, true, [](rc::tcp_store const& s) { return s.multi_set({rc::kv("k", "1"), rc::kv("l", "2")}); }),
      kind_of("queue_push", true, true, [](rc::tcp_store const& s) { return s.queue_push("k", "1"); }),
      kind_of("queue_pop", false, true, [](rc::tcp_store const& s) { return s.queue_pop("k"); }),
      kind_of("queue_pop_now", false, true, [](rc::tcp_store const& s) { return s.queue_pop_now("k"); }),
      kind_of("queue_len", false, true, [](rc::tcp_store const& s) { return s.queue_len("k"); }),
      kind_of("list_keys", false, false, [](rc::tcp_store const& s) { return s.list_keys(); }),
      kind_of("server_barrier", true, true, [](rc::tcp_store const& s) { return s.server_barrier("k", 2); }),
      kind_of("ping", false, false, [](rc::tcp_store const& s) { return s.ping(); }),
      kind_of("flush", true, false,
              [](rc::tcp_store const& s) {
                s.send_set("k", "1");
                return s.flush();
              }),
  };
  return all;
}

/// Starts one operation, freezes `at` later, lets it end, thaws, and looks whether the store is in step.
void once(kind const& k, bool known, duration at, bool stops) {
  bench b(known);
  b.w.time.run_for(1s);
  std::optional<rc::failure> failed;
  bool ended = false;
  rc::stop_source stop;
  const time_point begun = b.w.time.now();
  time_point end{};
  k.start(
      *b.store,
      [&](rc::failure const* f) {
        ended = true;
        end = b.w.time.now();
        if (f) failed = *f;
      },
      stop.token());
  if (at > duration(0)) b.w.time.run_for(at);
  b.freeze(true);
  if (stops) {
    b.w.time.run_for(10ms);
    stop.request_stop();
    b.w.time.settle();
    CHECK(ended);
  }
  b.w.time.run_for(5s);
  REQUIRE(ended);
  if (at == duration(0)) REQUIRE(failed);  // nothing can have come back
  if (failed && (!stops || end - begun >= 100ms)) {
    const std::string text = failed->message();
    CAPTURE(text);
    CHECK(failed->code() == rc::errc::timed_out);
    const bool several = failed->key_count() > 1 && (failed->operation() == "wait" || failed->operation() == "multi_get");
    CHECK(failed->elapsed() >= 100ms);
    CHECK(failed->elapsed() <= (several ? 200ms : 100ms));
    CHECK(end - begun == failed->elapsed());
  } else if (failed) {
    CHECK(failed->code() == rc::errc::cancelled);
  }
  if (failed) {
    CHECK(failed->operation() == k.name);
    CHECK(failed->limit() == 100ms);
    CHECK(!failed->peer().empty());
    CHECK((failed->key_count() > 0) == k.has_key);
    if (k.has_key) CHECK(failed->keys().front() == "k");
    if (!k.changes) CHECK(failed->effect() == rc::effect::none);
    if (k.changes && known) CHECK(failed->effect() == rc::effect::unknown);
    CHECK(failed->message().size() < 4096);
  }
  b.freeze(false);
  std::vector<std::int64_t> sums;
  for (int i = 0; i < 5; ++i)
    rc::start(b.store->add("count", 1, 10s), [&](rc::result<std::int64_t> r) { sums.push_back(r ? *r : -1); });
  b.w.time.run_for(5s);
  CHECK(sums == std::vector<std::int64_t>{1, 2, 3, 4, 5});
  CHECK(b.store->is_open());
  if (b.w.complained > 0) FAIL(b.w.report());
}

}  // namespace

TEST_CASE("on a link that stands still every operation ends at its limit, and afterwards the next reply is the right one") {
  for (kind const& k : kinds()) {
    for (const bool known : {true, false}) {
      for (const duration at : {duration(0), duration(1ms), duration(2ms), duration(3ms), duration(5ms), duration(8ms)}) {
        CAPTURE(k.name);
        CAPTURE(known);
        const std::int64_t after = at.count();
        CAPTURE(after);
        once(k, known, at, false);
      }
    }
  }
}

TEST_CASE("a stop on a link that stands still ends the operation in that turn") {
  for (kind const& k : kinds()) {
    for (const bool known : {true, false}) {
      for (const duration at : {duration(0), duration(2ms), duration(4ms)}) {
        CAPTURE(k.name);
        CAPTURE(known);
        const std::int64_t after = at.count();
        CAPTURE(after);
        once(k, known, at, true);
      }
    }
  }
}

TEST_CASE("a lost connection fails what is pending at once, and no write reports success") {
  for (kind const& k : kinds()) {
    for (const duration at : {duration(0), duration(500us), duration(1500us)}) {
      CAPTURE(k.name);
      bench b(true);
      std::optional<rc::failure> failed;
      bool ended = false;
      k.start(
          *b.store,
          [&](rc::failure const* f) {
            ended = true;
            if (f) failed = *f;
          },
          rc::stop_token());
      if (at > duration(0)) b.w.time.run_for(at);
      const std::uint64_t before = b.w.model_.events;
      const time_point lost = b.w.time.now();
      for (auto const& l : b.links) l->lose(-ECONNRESET, -ECONNRESET);
      b.w.time.run_for(50ms);
      REQUIRE(ended);
      if (failed) {
        CHECK(failed->code() == rc::errc::disconnected);
        CHECK(b.w.time.now() - lost <= 50ms);
        if (k.changes && before == 3 && at == duration(0)) CHECK(failed->effect() != rc::effect::applied);
      }
      CHECK(!b.store->is_open());
      std::optional<rc::failure> later;
      rc::start(b.store->set("k", "v"), [&](rc::result<void> r) {
        if (!r) later = r.error();
      });
      b.w.time.run_for(50ms);
      REQUIRE(later);
      CHECK(later->code() == rc::errc::disconnected);
      CHECK(later->effect() == rc::effect::none);
    }
  }
}

TEST_CASE("an item that a thawed server gives to a pop that has timed out goes to the next one") {
  bench b(true);
  std::vector<std::string> got;
  int failures = 0;
  const auto pop = [&](rc::deadline limit) {
    rc::start(b.store->queue_pop("q", limit), [&](rc::result<std::string> r) { r ? got.push_back(*r) : void(++failures); });
  };
  for (char const* item : {"1", "2", "3"}) rc::start(b.store->queue_push("q", item), [](rc::result<void> const&) {});
  b.w.time.run_for(1s);
  b.freeze(true);
  pop(100ms);
  pop(100ms);
  b.w.time.run_for(1s);
  CHECK(failures == 2);
  pop(100s);  // takes the first of those that come
  b.w.time.run_for(1s);
  b.freeze(false);
  b.w.time.run_for(1s);
  CHECK(got == std::vector<std::string>{"1"});
  pop(1s);
  pop(1s);
  b.w.time.run_for(100ms);
  CHECK(got == std::vector<std::string>{"1", "2", "3"});
  if (b.w.complained > 0) FAIL(b.w.report());
}

TEST_CASE("an item that has come for an operation which is destroyed before it is resumed goes to the next pop") {
  bench b(true);
  rc::start(b.store->queue_push("q", "1"), [](rc::result<void> const&) {});
  b.w.time.run_for(1s);
  std::optional<rc::result<std::string>> got;
  {
    // Both replies come in one piece: the first one's completion destroys the second operation, which has its item by then.
    std::optional<breakable> pop;
    struct waiting {
      static breakable for_item(rc::operation<std::string> a, std::optional<rc::result<std::string>>* r) {
        auto x = co_await rc::as_result(std::move(a));
        r->emplace(std::move(x));
      }
    };
    rc::start(b.store->ping(), [&](rc::result<rc::duration> const&) { pop.reset(); });
    b.w.time.settle();
    pop.emplace(waiting::for_item(b.store->queue_pop("q"), &got));
    b.w.time.run_for(1s);
    CHECK(!got);
    CHECK(!pop);
  }
  std::optional<std::string> next;
  rc::start(b.store->queue_pop("q", 1s), [&](rc::result<std::string> r) {
    if (r) next = *r;
  });
  b.w.time.run_for(2s);
  CHECK(next == "1");
  if (b.w.complained > 0) FAIL(b.w.report());
}

TEST_CASE("a lost send is told by every flush that was called before the loss was told, and by none called later") {
  bench b(true);
  rc::start(b.store->wait({"never", "ever"}, 100s), [](rc::result<void> const&) {});
  b.w.time.run_for(1s);
  std::vector<std::string> ends;
  const auto note = [&](char const* name) {
    return [&ends, name](rc::result<void> const& r) {
      ends.push_back(std::string(name) + (r ? " fine" : r.error().effect() == rc::effect::unknown ? " unknown" : " none"));
    };
  };
  b.store->send_set("k", "1");  // goes to a second connection, which does not come to stand
  rc::start(b.store->flush(), note("first"));
  b.store->send_set("k", "2");
  auto second = b.store->flush();
  b.w.time.settle();
  while (b.links.size() < 2) REQUIRE(b.w.time.step());
  b.links[1]->lose(-ECONNRESET, -ECONNRESET);
  b.w.time.run_for(50ms);
  CHECK(ends == std::vector<std::string>{"first unknown"});
  CHECK(b.store->is_open());
  auto third = b.store->flush();
  rc::start(std::move(second), note("second"));
  b.w.time.run_for(50ms);
  rc::start(std::move(third), note("third"));  // called before the second send's loss was told
  b.w.time.run_for(50ms);
  rc::start(b.store->flush(), note("fourth"));
  b.w.time.run_for(50ms);
  CHECK(ends == std::vector<std::string>{"first unknown", "second unknown", "third unknown", "fourth fine"});
  b.w.time.run_for(100s);
  if (b.w.complained > 0) FAIL(b.w.report());
}
