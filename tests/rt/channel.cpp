#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <rollcall/rt/channel.hpp>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/event.hpp>
#include <rollcall/rt/scope.hpp>
#include <rollcall/rt/timer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/co_test.hpp"

namespace rc = rollcall;
using namespace std::chrono_literals;
using co_test::next_turn;
using co_test::settled;

namespace {

/// Long enough to lie on the heap, so that the sanitizers see what becomes of it.
std::string item(int n) { return "item " + std::to_string(n) + std::string(40, '.'); }

/// An item that counts how many of its kind hold something.
class counted {
 public:
  counted(int n, int* alive) noexcept : number(n), alive_(alive) { ++*alive_; }
  counted(counted&& o) noexcept : number(o.number), alive_(std::exchange(o.alive_, nullptr)) {}
  counted& operator=(counted&&) = delete;
  ~counted() {
    if (alive_) --*alive_;
  }
  int number;

 private:
  int* alive_;
};

rc::task<> send_one(rc::channel<std::string>& ch, int n, std::vector<std::string>& log) {
  const rc::result<void> r = co_await rc::as_result(ch.send(item(n)));
  log.push_back("sent " + std::to_string(n) + (r ? "" : " " + std::string(rc::to_string(r.error().code()))));
}
rc::task<> receive_one(rc::channel<std::string>& ch, std::string name, std::vector<std::string>& log) {
  rc::result<std::optional<std::string>> r = co_await rc::as_result(ch.receive());
  if (!r) {
    log.push_back(name + " " + std::string(rc::to_string(r.error().code())));
  } else if (!*r) {
    log.push_back(name + " none");
  } else {
    log.push_back(name + " " + (**r).substr(0, (**r).find('.')));
  }
}
using lines = std::vector<std::string>;

}  // namespace

CO_TEST_CASE("items come out in the order in which they went in, at once where they can") {
  rc::channel<std::string> ch(loop, 3);
  for (int round = 0; round < 5; ++round) {
    co_await ch.send(item(1));
    co_await ch.send(std::string(50, 'x'));
    CHECK(ch.try_send(item(3)));
    CHECK(ch.size() == 3);
    std::string kept = item(4);
    CHECK(!ch.try_send(std::move(kept)));
    CHECK(kept == item(4));
    CHECK(!ch.try_send(std::as_const(kept)));
    const std::optional<std::string> first = co_await ch.receive();
    CHECK(*first == item(1));
    CHECK(*ch.try_receive() == std::string(50, 'x'));
    CHECK(*ch.try_receive() == item(3));
    CHECK(!ch.try_receive());
  }
}

CO_TEST_CASE("a full channel lets senders wait, an empty one receivers, each in its order") {
  rc::channel<std::string> ch(loop, 2);
  lines log;
  rc::scope s(loop);
  for (int n = 1; n <= 5; ++n) s.spawn(send_one(ch, n, log));
  co_await settled(loop);
  CHECK(log == lines{"sent 1", "sent 2"});
  CHECK(ch.size() == 2);
  CHECK(*ch.try_receive() == item(1));
  CHECK(ch.size() == 2);  // the third went in at once
  co_await settled(loop);
  CHECK(log == lines{"sent 1", "sent 2", "sent 3"});
  for (char const* name : {"a", "b", "c", "d", "e", "f"}) s.spawn(receive_one(ch, name, log));
  co_await settled(loop);
  CHECK(ch.size() == 0);
  log.clear();
  CHECK(ch.try_send(item(6)));
  CHECK(!ch.try_receive());  // it is promised to the one that waits longest
  co_await settled(loop);
  CHECK(log == lines{"e item 6"});
  co_await ch.send(item(7));
  co_await s.join();
  CHECK(log == lines{"e item 6", "f item 7"});
}

CO_TEST_CASE("nobody is resumed inside send, receive or close") {
  rc::channel<std::string> ch(loop, 1);
  lines log;
  rc::scope s(loop);
  s.spawn(receive_one(ch, "a", log));
  s.spawn(receive_one(ch, "b", log));
  co_await settled(loop);
  CHECK(ch.try_send(item(1)));
  CHECK(log.empty());
  ch.close();
  CHECK(log.empty());
  co_await s.join();
  CHECK(log == lines{"a item 1", "b none"});
}

CO_TEST_CASE("close: what is in it is still received, who waits to send is refused, and both say so from then on") {
  rc::channel<std::string> ch(loop, 1);
  lines log;
  rc::scope s(loop);
  for (int n = 1; n <= 3; ++n) s.spawn(send_one(ch, n, log));
  co_await settled(loop);
  ch.close();
  ch.close();
  CHECK(ch.closed());
  co_await s.join();
  CHECK(log == lines{"sent 1", "sent 2 closed", "sent 3 closed"});
  CHECK(!ch.try_send(item(4)));
  const rc::result<void> late = co_await rc::as_result(ch.send(item(4)));
  CHECK(late.code() == rc::errc::closed);
  CHECK(late.error().effect() == rc::effect::none);
  int got = 0;
  while (std::optional<std::string> one = co_await ch.receive()) {
    CHECK(*one == item(1));
    ++got;
  }
  CHECK(got == 1);
  CHECK(!ch.try_receive());
}

CO_TEST_CASE("a stopped receive takes no item, a stopped send leaves none") {
  rc::channel<std::string> ch(loop, 1);
  lines log;
  {
    rc::scope s(loop);
    s.spawn(receive_one(ch, "a", log));
    co_await settled(loop);
    s.request_stop();
    CHECK(ch.try_send(item(1)));
    co_await s.join();
  }
  CHECK(log == lines{"a cancelled"});
  CHECK(ch.size() == 1);
  {
    rc::scope s(loop);
    s.spawn(send_one(ch, 2, log));
    co_await settled(loop);
    s.request_stop();
    CHECK(*ch.try_receive() == item(1));
    co_await s.join();
  }
  CHECK(log == lines{"a cancelled", "sent 2 cancelled"});
  CHECK(ch.size() == 0);
  const rc::result<std::optional<std::string>> late = co_await rc::as_result(rc::with_deadline(ch.receive(), 1ms));
  CHECK(late.code() == rc::errc::timed_out);
}

CO_TEST_CASE("a stop that comes after the item was promised: the receiver has it, it is not lost") {
  rc::channel<std::string> ch(loop, 1);
  lines log;
  rc::scope s(loop);
  s.spawn(receive_one(ch, "a", log));
  co_await settled(loop);
  CHECK(ch.try_send(item(1)));
  s.request_stop();
  co_await s.join();
  CHECK(log == lines{"a item 1"});
}

CO_TEST_CASE("a receiver that is destroyed after it was called passes its item on, in order") {
  rc::channel<std::string> ch(loop, 2);
  lines log;
  rc::scope others(loop);
  {
    rc::scope s(loop);
    s.spawn(receive_one(ch, "a", log));
    co_await settled(loop);
    others.spawn(receive_one(ch, "b", log));
    others.spawn(receive_one(ch, "c", log));
    co_await settled(loop);
    CHECK(ch.try_send(item(1)));
    s.request_stop();
  }  // "a" was ready, and is gone
  CHECK(ch.try_send(item(2)));
  co_await others.join();
  CHECK(log == lines{"b item 1", "c item 2"});
  CHECK(ch.size() == 0);
}

CO_TEST_CASE("when_any over channels loses no item") {
  rc::channel<std::string> a(loop, 1);
  rc::channel<std::string> b(loop, 1);
  rc::scope s(loop);
  auto both = [&]() -> rc::task<> {
    auto first = co_await rc::when_any(a.receive(), b.receive(), rc::sleep_for(1h));
    CHECK(first.index() == 1);
    CHECK(**first.get_if<1>() == item(1));
    REQUIRE(first.get_if<0>() != nullptr);
    CHECK(**first.get_if<0>() == item(2));
    auto next = co_await rc::when_any(a.receive(), b.receive());
    CHECK(next.index() == 0);
    CHECK(next.get_if<1>() == nullptr);
  };
  s.spawn(both);
  co_await settled(loop);
  CHECK(b.try_send(item(1)));
  CHECK(a.try_send(item(2)));
  co_await settled(loop);
  CHECK(a.try_send(item(3)));
  co_await s.join();
  CHECK(b.try_send(item(4)));
  CHECK(*b.try_receive() == item(4));
}

CO_TEST_CASE("items are destroyed: with the channel, with a stopped send, with what was received") {
  int alive = 0;
  {
    rc::channel<counted> ch(loop, 2);
    rc::scope s(loop);
    auto sends = [&](int n) -> rc::task<> { co_await ch.send(counted(n, &alive)); };
    for (int n = 0; n < 4; ++n) s.spawn(sends, n);
    co_await settled(loop);
    CHECK(alive == 4);
    CHECK(ch.try_receive()->number == 0);
    CHECK(alive == 3);
    s.request_stop();
    co_await s.join();
    CHECK(alive == 2);  // the third had taken the room
  }
  CHECK(alive == 0);
}

CO_TEST_CASE("a channel that is destroyed is closed: who waits goes on, also one that was called") {
  auto ch = std::make_unique<rc::channel<std::string>>(loop, 1);
  lines log;
  rc::scope s(loop);
  s.spawn(receive_one(*ch, "a", log));
  s.spawn(receive_one(*ch, "b", log));
  co_await settled(loop);
  CHECK(ch->try_send(item(1)));
  ch.reset();
  co_await s.join();
  CHECK(log == lines{"a none", "b none"});
  ch = std::make_unique<rc::channel<std::string>>(loop, 1);
  log.clear();
  s.spawn(send_one(*ch, 1, log));
  s.spawn(send_one(*ch, 2, log));
  co_await settled(loop);
  ch.reset();
  co_await s.join();
  CHECK(log == lines{"sent 1", "sent 2 closed"});
  CHECK_THROWS_AS(rc::channel<int>(loop, 0), rc::error);
}

CO_TEST_CASE("a pipeline of producers and consumers: every item arrives once, each producer's in its order") {
  constexpr int producers = 4, consumers = 3, each = 2000;
  rc::channel<std::pair<int, int>> ch(loop, 7);
  std::vector<int> next(producers, 0);
  int received = 0;
  bool in_order = true;
  auto produce = [&](int who) -> rc::task<> {
    for (int n = 0; n < each; ++n) {
      if (n % 17 == 0) co_await next_turn(loop);
      co_await ch.send(std::pair(who, n));
    }
  };
  auto consume = [&]() -> rc::task<> {
    while (std::optional<std::pair<int, int>> one = co_await ch.receive()) {
      in_order = in_order && one->second == next[static_cast<std::size_t>(one->first)]++;
      if (++received % 13 == 0) co_await next_turn(loop);
    }
  };
  rc::scope in(loop);
  rc::scope out(loop);
  for (int i = 0; i < consumers; ++i) out.spawn(consume);
  for (int i = 0; i < producers; ++i) in.spawn(produce, i);
  co_await in.join();
  ch.close();
  co_await out.join();
  CHECK(received == producers * each);
  CHECK(in_order);
}

namespace {

/// Random sends, receives, stops and destructions against what a queue on paper would hold.
rc::task<> storm(rc::loop& loop, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto upto = [&random](int n) { return std::uniform_int_distribution(0, n - 1)(random); };
  rc::channel<int> ch(loop, static_cast<std::size_t>(1 + upto(4)));
  int sent = 0;
  std::vector<int> got;
  std::vector<bool> arrived(1000, false);
  std::deque<std::unique_ptr<rc::scope>> running;
  auto sends = [&](int n) -> rc::task<> {
    co_await ch.send(n);
    ++sent;
  };
  auto receives = [&]() -> rc::task<> {
    if (const std::optional<int> n = co_await ch.receive()) got.push_back(*n);
  };
  for (int step = 0; step < 400; ++step) {
    switch (upto(8)) {
      case 0:
      case 1:
      case 2:
        running.push_back(std::make_unique<rc::scope>(loop));
        running.back()->spawn(sends, step);
        break;
      case 3:
      case 4:
        running.push_back(std::make_unique<rc::scope>(loop));
        running.back()->spawn(receives);
        break;
      case 5:
        if (const std::optional<int> n = ch.try_receive()) got.push_back(*n);
        break;
      case 6:
        if (!running.empty()) running[static_cast<std::size_t>(upto(static_cast<int>(running.size())))]->request_stop();
        break;
      default:
        if (!running.empty()) {
          std::swap(running.front(), running[static_cast<std::size_t>(upto(static_cast<int>(running.size())))]);
          running.front()->request_stop();
          running.pop_front();  // destroyed wherever it is
        }
    }
    if (upto(3) == 0) co_await next_turn(loop);
    if (upto(20) == 0) co_await settled(loop);
  }
  co_await settled(loop);
  for (auto const& s : running) s->request_stop();
  for (auto const& s : running) co_await s->join();
  while (const std::optional<int> n = ch.try_receive()) got.push_back(*n);
  CHECK(ch.size() == 0);
  // A sender or receiver whose frame was destroyed does not tell; so every item at most once, and none of those that were told is lost.
  for (const int n : got) {
    CHECK(!arrived[static_cast<std::size_t>(n)]);
    arrived[static_cast<std::size_t>(n)] = true;
  }
  CHECK(static_cast<int>(got.size()) >= sent);
}

}  // namespace

CO_TEST_CASE("storm: sends, receives, stops and destruction at random lose and double nothing") {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    co_await storm(loop, seed);
  }
}
