#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "support.hpp"

using namespace unit;

namespace {

using peers = std::vector<std::unique_ptr<peer>>;

peers connect(engine::store& s, std::size_t n) {
  peers p;
  for (std::size_t i = 0; i < n; ++i) p.push_back(std::make_unique<peer>(s));
  return p;
}

/// Work done in the waiters' lists by `act`.
template <class F>
std::uint64_t steps(engine::store& s, F&& act) {
  const std::uint64_t before = s.bookkeeping().steps();
  act();
  return s.bookkeeping().steps() - before;
}

/// Allocations that `act` makes once it has run `warm` times.
template <class F>
std::size_t allocations_of(F&& act, int warm = 3, int runs = 50) {
  for (int i = 0; i < warm; ++i) act();
  const std::size_t before = allocations().calls;
  for (int i = 0; i < runs; ++i) act();
  return allocations().calls - before;
}

}  // namespace

TEST_CASE("leaving costs the waits of the one who leaves, however many others wait for the same key") {
  for (const std::size_t n : {std::size_t{10}, std::size_t{1000}}) {
    engine::store s{engine::store_options()};
    peers all = connect(s, n);
    for (auto& p : all) p->wait({"same"});
    CHECK(steps(s, [&] { all[n / 2]->close(); }) == 2);
    CHECK(steps(s, [&] { all[0]->cancel(); }) == 2);
    CHECK(steps(s, [&] { all[n - 1]->close(); }) == 2);
    CHECK(s.stats().waits == n - 3);
  }
}

TEST_CASE("N connections that wait for N keys leave in time linear in N") {
  std::uint64_t work[2];
  for (const std::size_t scale : {std::size_t{0}, std::size_t{1}}) {
    const std::size_t n = 1000U << scale;
    engine::store s{engine::store_options()};
    peers all = connect(s, n);
    for (std::size_t i = 0; i < n; ++i) all[i]->wait({"key/" + std::to_string(i)});
    CHECK(s.entries() == n);
    work[scale] = steps(s, [&] { all.clear(); });
    CHECK(s.entries() == 0);
    CHECK(s.stats().stored_bytes == 0);
  }
  CHECK(work[1] == 2 * work[0]);
}

TEST_CASE("waking all, and waking one after the other, is linear in those who wait") {
  engine::store s{engine::store_options()};
  peers all = connect(s, 1000);
  peer setter(s);
  for (auto& p : all) p->wait({"same"});
  CHECK(steps(s, [&] { setter.set("same", ""); }) == 2000);
  std::size_t due = 0;
  while (!s.woken().empty()) due += s.take_due(s.woken().front());
  CHECK(due == 1000);
  for (auto& p : all) p->wait({"queue"});
  CHECK(steps(s, [&] {
          for (int i = 0; i < 1000; ++i) setter.push("queue", "item");
        }) == 2000);
}

TEST_CASE("a WAIT for many keys costs its keys: to register, to cancel, to leave, to end") {
  engine::store s{engine::store_options()};
  std::vector<std::string> names;
  for (int i = 0; i < 500; ++i) names.push_back(std::to_string(i));
  peer a(s);
  peer b(s);
  CHECK(steps(s, [&] { a.wait(names); }) == 500);
  CHECK(a.client.awaited_keys() == 500);
  CHECK(steps(s, [&] { a.cancel(); }) == 1000);
  CHECK(a.client.awaited_keys() == 0);
  a.wait(names);
  for (std::size_t i = 0; i + 1 < names.size(); ++i) CHECK(steps(s, [&] { b.set(names[i], ""); }) == 1);
  CHECK(a.take() == nothing);
  CHECK(steps(s, [&] { b.set(names.back(), ""); }) == 501);
  CHECK(a.take() == stop);
}

TEST_CASE("cells of waits are recycled, and given back when connections leave") {
  engine::store s{engine::store_options()};
  {
    peers all = connect(s, 100);
    for (auto& p : all) p->wait({"a", "b", "c", "d", "e", "f", "g", "h"});
    for (auto& p : all) p->cancel();
    CHECK(s.bookkeeping().spare_cells() <= 100 * engine::waiters::spare_per_client);
    CHECK(s.bookkeeping().spare_cells() > 0);
  }
  CHECK(s.bookkeeping().spare_cells() == 0);
}

TEST_CASE("in steady state no request on an existing key allocates") {
  engine::store s{engine::store_options()};
  peer a(s);
  a.set("k", std::string(100, 'x'));
  a.set("large", std::string(20000, 'x'));
  a.add("n", 1);
  a.push("q", "1");
  std::vector<std::string> requests(12);
  wire::encode_set(requests[0], "/", "k", std::string(100, 'y'));
  wire::encode_get(requests[1], "/", "k");
  wire::encode_add(requests[2], "/", "n", 123456789);
  wire::encode_check(requests[3], "/", {"k"});
  wire::encode_check(requests[4], "/", {"k", "n", "missing"});
  wire::encode_wait(requests[5], "/", {"k", "n"});
  wire::encode_multi_get(requests[6], "/", {"k", "n"});
  wire::encode_compare_set(requests[7], "/", "n", "never", "x");
  wire::encode_ping(requests[8], 1);
  wire::encode_num_keys(requests[9]);
  wire::encode_queue_len(requests[10], "/", "q");
  wire::encode_get(requests[11], "/", "large");
  for (std::string const& r : requests) {
    CAPTURE(r);
    CHECK(allocations_of([&] {
            a.feed(r);
            a.out.consume(a.out.size());
          }) == 0);
  }
  std::string pipelined;
  for (int i = 0; i < 16; ++i) pipelined += requests[static_cast<std::size_t>(i) % 4];
  CHECK(allocations_of([&] {
          a.feed(pipelined);
          a.out.consume(a.out.size());
        }) == 0);
}

TEST_CASE("in steady state waiting, waking, cancelling and leaving a grant do not allocate") {
  engine::store s{engine::store_options()};
  peer a(s);
  peer b(s);
  peer c(s);
  std::string wait;
  wire::encode_wait(wait, "/", {"barrier"});
  std::string cancel;
  wire::encode_cancel_wait(cancel);
  std::string arrive;
  wire::encode_barrier(arrive, "/", "count", INT64_MAX);
  CHECK(allocations_of([&] {
          a.feed(arrive);
          a.feed(cancel);
          a.out.consume(a.out.size());
        }) == 0);
  c.feed(wait);  // holds the key's entry, so that the others come to one that exists
  CHECK(allocations_of([&] {
          a.feed(wait);
          b.feed(wait);
          a.feed(cancel);
          b.feed(cancel);
          a.out.consume(a.out.size());
          b.out.consume(b.out.size());
        }) == 0);
  std::string add;
  wire::encode_add(add, "/", "count", 1);
  CHECK(allocations_of([&] {
          a.feed(arrive);
          b.feed(arrive);
          c.feed(add);
          while (!s.woken().empty()) CHECK(s.take_due(s.woken().front()) == 1);
          c.out.consume(c.out.size());
        }) == 0);
}

TEST_CASE("an idle connection costs its decoder and its client, no heap") {
  engine::store s{engine::store_options()};
  std::string b;
  wire::encode_validate(b);
  wire::encode_ping(b, 1);
  const std::size_t before = allocations().calls;
  {
    engine::client c(s);
    wire::request_decoder d;
    wire::write_batch out;
    std::string_view input = b;
    wire::request r;
    CHECK(d.next(input, r, s.limits()) == wire::decode_status::complete);
    CHECK(s.apply(c, r, out) == apply_status::ok);
  }
  CHECK(allocations().calls == before);
  CHECK(sizeof(engine::client) + sizeof(wire::request_decoder) <= 80);
}
