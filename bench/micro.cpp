// micro: what the pieces cost by themselves, without a socket. Run it with --benchmark-samples 20 for a quick look.
#include <rollcall/engine/store.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/rt/task.hpp>
#include <rollcall/wire/decode.hpp>
#include <rollcall/wire/encode.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

namespace rc = rollcall;
namespace wire = rollcall::wire;
namespace engine = rollcall::engine;

namespace {

/// A connection without a socket.
class peer {
 public:
  explicit peer(engine::store& s) : client_(s), store_(s) {
    std::string hello;
    wire::encode_validate(hello);
    feed(hello);
  }
  /// Executes whole requests; how many bytes the answers have.
  std::size_t feed(std::string_view bytes) {
    wire::request r;
    out_.clear();
    while (decoder_.next(bytes, r, store_.limits()) == wire::decode_status::complete) static_cast<void>(store_.apply(client_, r, out_));
    return out_.size();
  }

 private:
  engine::client client_;
  engine::store& store_;
  wire::request_decoder decoder_;
  wire::write_batch out_;
};

template <class F>
std::string request(F encode) {
  std::string bytes;
  encode(bytes);
  return bytes;
}

}  // namespace

TEST_CASE("codec") {
  const std::string value(64, 'v');
  std::string out;
  BENCHMARK("encode SET, 64 bytes") {
    out.clear();
    wire::encode_set(out, "/", "addr/12345", value);
    return out.size();
  };
  const std::string validate = request([](std::string& b) { wire::encode_validate(b); });
  const std::string set = request([&](std::string& b) { wire::encode_set(b, "/", "addr/12345", value); });
  wire::request_decoder decoder;
  const wire::limits limits;
  wire::request r;
  std::string_view hello = validate;
  static_cast<void>(decoder.next(hello, r, limits));
  BENCHMARK("decode SET, 64 bytes") {
    std::string_view input = set;
    static_cast<void>(decoder.next(input, r, limits));
    return r.value.size();
  };
  std::string sixteen;
  for (int i = 0; i < 16; ++i) wire::encode_get(sixteen, "/", "addr/12345");
  BENCHMARK("decode 16 GETs") {
    std::string_view input = sixteen;
    std::size_t n = 0;
    while (decoder.next(input, r, limits) == wire::decode_status::complete) ++n;
    return n;
  };
  const std::string reply = request([&](std::string& b) { wire::put_bytes(b, value); });
  wire::reply_decoder replies;
  BENCHMARK("decode a reply of 64 bytes") {
    std::string_view input = reply;
    replies.expect(wire::reply_form::bytes, 0);
    static_cast<void>(replies.next(input));
    return replies.value().bytes.size();
  };
}

TEST_CASE("engine: one request") {
  engine::store store{engine::store_options()};
  peer p(store);
  const std::string value(64, 'v');
  p.feed(request([&](std::string& b) { wire::encode_set(b, "/", "key", value); }));
  const std::string get = request([](std::string& b) { wire::encode_get(b, "/", "key"); });
  const std::string set = request([&](std::string& b) { wire::encode_set(b, "/", "key", value); });
  const std::string add = request([](std::string& b) { wire::encode_add(b, "/", "number", 1); });
  const std::string wait = request([](std::string& b) { wire::encode_wait(b, "/", rc::keys("key")); });
  BENCHMARK("GET, 64 bytes") { return p.feed(get); };
  BENCHMARK("SET, 64 bytes") { return p.feed(set); };
  BENCHMARK("ADD") { return p.feed(add); };
  BENCHMARK("WAIT of a key that exists") { return p.feed(wait); };
}

TEST_CASE("engine: waiters") {
  for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{1'000'000}}) {
    engine::store store{engine::store_options()};
    std::vector<std::unique_ptr<peer>> peers;
    for (std::size_t i = 0; i < n; ++i) peers.push_back(std::make_unique<peer>(store));
    peer setter(store);
    const std::string wait = request([](std::string& b) { wire::encode_wait(b, "/", rc::keys("go")); });
    const std::string set = request([](std::string& b) { wire::encode_set(b, "/", "go", "1"); });
    const std::string remove = request([](std::string& b) { wire::encode_delete_key(b, "/", "go"); });
    BENCHMARK(std::to_string(n) + " clients wait for a key, one SET wakes them, it is deleted") {
      for (auto const& p : peers) p->feed(wait);
      setter.feed(set);
      std::uint64_t woken = 0;
      while (!store.woken().empty()) woken += store.take_due(store.woken().front());
      setter.feed(remove);
      return woken;
    };
  }
}

namespace {

rc::task<int> leaf(int n) { co_return n; }
rc::task<std::int64_t> many_awaits(int n) {
  std::int64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += co_await leaf(i);
  co_return sum;
}
rc::task<int> nested(int depth) {
  if (depth == 0) co_return 0;
  const int below = co_await nested(depth - 1);
  co_return below + 1;
}

class node : public rc::detail::timer_node {
 public:
  node() noexcept : timer_node([](timer_node&) noexcept {}) {}
};

}  // namespace

TEST_CASE("tasks") {
  rc::loop loop;
  BENCHMARK("1000 awaits of a task that is ready") { return rc::sync_wait(loop, many_awaits(1000)); };
  BENCHMARK("tasks nested 1000 deep") { return rc::sync_wait(loop, nested(1000)); };
}

TEST_CASE("timers") {
  for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{1'000'000}}) {
    rc::loop loop;
    rc::detail::loop_core& core = loop.core();
    std::vector<node> others(n);
    std::uint64_t random = 1;
    const auto later = [&] {
      random = random * 6364136223846793005U + 1442695040888963407U;
      return core.now() + std::chrono::hours(1) + rc::duration(static_cast<std::int64_t>(random >> 24));
    };
    for (node& t : others) core.add_timer(t, later());
    node mine;
    BENCHMARK("a timer is set and removed beside " + std::to_string(n) + " others") {
      core.add_timer(mine, later());
      core.remove_timer(mine);
    };
    for (node& t : others) core.remove_timer(t);
  }
}
