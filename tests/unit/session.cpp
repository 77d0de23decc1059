#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rollcall/engine/session.hpp>

#include "support.hpp"

/// docs/design/session.md, executed: its table row by row, then all orders of what may happen to a WAIT, then random operation
/// against a small server.

namespace {

using namespace unit;
using engine::session;
using tail = engine::session::tail_state;
using wire::reply_form;
using lines = std::vector<std::string>;

std::string add_request(std::string_view key, std::int64_t n) {
  std::string s;
  wire::encode_add(s, "/", key, n);
  return s;
}
std::string set_request(std::string_view key, std::string_view value) {
  std::string s;
  wire::encode_set(s, "/", key, value);
  return s;
}
std::string get_request(std::string_view key) {
  std::string s;
  wire::encode_get(s, "/", key);
  return s;
}
std::string check_request(keys const& k) {
  std::string s;
  wire::encode_check(s, "/", k);
  return s;
}
std::string wait_request(keys const& k) {
  std::string s;
  wire::encode_wait(s, "/", k);
  return s;
}
std::string const fence = check_request(keys());
std::string const cancel_wait(1, '\x0c');
std::string const zero(1, '\0');
std::string const one(1, '\1');

/// An exchange that writes down what happens to it.
class recorder final : public engine::exchange {
 public:
  recorder(session& s, lines& log, std::string name) : session_(s), log_(log), name_(std::move(name)) {}
  recorder(recorder const&) = delete;
  recorder& operator=(recorder const&) = delete;
  ~recorder() { session_.abandon(*this); }
  std::function<void()> then;
  std::vector<reply_form> forms;  // of its replies in order; numbers where not given

 private:
  void on_reply(std::size_t index, wire::reply& r) noexcept override {
    std::string line = name_;
    line += '[';
    line += std::to_string(index);
    line += "]=";
    switch (index < forms.size() ? forms[index] : reply_form::i64) {
      case reply_form::bytes: line += r.bytes; break;
      case reply_form::popped: line += std::to_string(r.number) + (r.number > 0 ? std::string(r.bytes) : std::string()); break;
      case reply_form::many:
      case reply_form::list: line += std::to_string(r.count) + std::string(r.body); break;
      default: line += std::to_string(r.number);
    }
    log_.push_back(line);
    if (then) then();
  }
  void on_done() noexcept override { end(" done"); }
  void on_lost() noexcept override { end(" lost"); }
  void end(char const* what) {
    log_.push_back(name_ + what);
    if (then) then();
  }
  session& session_;
  lines& log_;
  std::string name_;
};

/// A session, three exchanges, and what came of them.
class bench {
 public:
  session s;
  lines log;
  recorder w{s, log, "W"};
  recorder x{s, log, "X"};
  recorder y{s, log, "Y"};
  std::string const wait_k = wait_request("k");
  std::string const add_x = add_request("x", 1);
  std::string const add_y = add_request("y", 2);
  std::string const set_x = set_request("x", "1");
  std::string const set_y = set_request("y", "2");

  /// Everything staged since the last call; `flush`: at the end of a batch.
  std::string staged() { return std::exchange(s.output(), std::string()); }
  std::string flushed() {
    s.flush();
    s.mark_written();
    return staged();
  }
  void send(recorder& r, std::string_view request) { s.send(&r, {}, request, reply_form::i64); }
  lines heard() { return std::exchange(log, lines()); }
  /// Feeds bytes that the session has to take.
  lines feed(std::string_view bytes) {
    CHECK(s.feed(bytes));
    return heard();
  }

  // The four tails, each with nothing staged and nothing due but what belongs to it.
  void held(bool preemptible = true) {
    s.wait(w, wait_k, preemptible);
    static_cast<void>(flushed());
  }
  /// W was cancelled for X's ADD; due: cancel(W), X's reply.
  void parked() {
    held();
    send(x, add_x);
    static_cast<void>(staged());
  }
  /// W was written again behind X's ADD; due: cancel(W), X's reply, then W.
  void held_again() {
    parked();
    static_cast<void>(flushed());
  }
  /// The first WAIT came true although it was cancelled: the second one stands at the server for nobody. Nothing is due but it.
  void armed() {
    held_again();
    CHECK(feed(zero) == lines{"W done"});
    CHECK(s.tail() == tail::armed);
    CHECK(feed(one + i64(5)) == lines{"X[0]=5"});
    CHECK(s.slots() == 0);
  }
};

}  // namespace

// ---- The table -------------------------------------------------------------------------------------------------------------------

TEST_CASE("send, tail free: the bytes, a reply slot") {
  bench b;
  b.s.send(&b.x, b.add_x.substr(0, 3), b.add_x.substr(3), reply_form::i64);
  CHECK(b.staged() == b.add_x);
  CHECK(b.s.slots() == 1);
  CHECK(b.s.tail() == tail::free);
  CHECK(b.x.engaged());
  CHECK(b.flushed().empty());
  CHECK(b.feed(i64(7)) == lines{"X[0]=7"});
  CHECK(!b.x.engaged());
  CHECK(b.s.idle());
}

TEST_CASE("send, tail held by a wait that can be preempted: CANCEL_WAIT, then the bytes; the wait is parked") {
  bench b;
  b.held();
  b.send(b.x, b.add_x);
  CHECK(b.staged() == cancel_wait + b.add_x);
  CHECK(b.s.slots() == 2);
  CHECK(b.s.tail() == tail::parked);
}

TEST_CASE("send, tail parked: only the bytes") {
  bench b;
  b.parked();
  b.send(b.y, b.add_y);
  CHECK(b.staged() == b.add_y);
  CHECK(b.s.tail() == tail::parked);
  CHECK(b.flushed() == b.wait_k);
  CHECK(b.feed(one + i64(5) + i64(6) + zero) == lines{"X[0]=5", "Y[0]=6", "W done"});
}

TEST_CASE("send, tail armed: CANCEL_WAIT for nobody, then the bytes") {
  for (std::string const& answer : {one, zero + one}) {
    bench b;
    b.armed();
    b.send(b.y, b.add_y);
    CHECK(b.staged() == cancel_wait + b.add_y);
    CHECK(b.s.tail() == tail::free);
    CHECK(b.flushed().empty());
    CHECK(b.feed(answer + i64(6)) == lines{"Y[0]=6"});
    CHECK(b.s.idle());
  }
}

TEST_CASE("a tail held by a wait that cannot be preempted takes no command, and no tail but free and armed takes a wait") {
  bench b;
  CHECK(b.s.takes_command());
  CHECK(b.s.takes_wait());
  b.held(false);
  CHECK(!b.s.takes_command());
  CHECK(!b.s.takes_wait());
  bench c;
  c.held();
  CHECK(c.s.takes_command());
  CHECK(!c.s.takes_wait());
  bench d;
  d.parked();
  CHECK(d.s.takes_command());
  CHECK(!d.s.takes_wait());
  bench e;
  e.armed();
  CHECK(e.s.takes_command());
  CHECK(e.s.takes_wait());
}

TEST_CASE("post: as send, without a slot; done when a later reply shows that it was executed") {
  bench b;
  b.s.post(b.x, b.set_x);
  CHECK(b.staged() == b.set_x);
  CHECK(b.s.slots() == 0);
  CHECK(b.flushed() == fence);
  CHECK(b.feed(zero) == lines{"X done"});
  CHECK(b.s.idle());

  bench c;
  c.held();
  c.s.post(c.x, c.set_x);
  CHECK(c.staged() == cancel_wait + c.set_x);
  CHECK(c.s.tail() == tail::parked);
  CHECK(c.flushed() == fence + c.wait_k);
  CHECK(c.feed(one).empty());  // the cancel was executed before the SET
  CHECK(c.feed(zero) == lines{"X done"});
  CHECK(c.feed(zero) == lines{"W done"});

  bench d;
  d.armed();
  d.s.post(d.x, d.set_x);
  CHECK(d.flushed() == cancel_wait + d.set_x + fence);
  CHECK(d.feed(one + zero) == lines{"X done"});
}

TEST_CASE("wait, tail free: a fence if something is uncovered, then the bytes") {
  bench b;
  b.s.wait(b.w, b.wait_k, true);
  CHECK(b.staged() == b.wait_k);
  CHECK(b.s.tail() == tail::held);
  CHECK(b.s.slots() == 0);
  CHECK(b.feed(zero) == lines{"W done"});
  CHECK(b.s.tail() == tail::free);

  bench c;
  c.s.post(c.x, c.set_x);
  c.s.wait(c.w, c.wait_k, true);
  CHECK(c.staged() == c.set_x + fence + c.wait_k);
  CHECK(c.feed(zero) == lines{"X done"});
  CHECK(c.feed(zero) == lines{"W done"});
}

TEST_CASE("wait, tail armed: CANCEL_WAIT for nobody, then the bytes") {
  for (std::string const& answer : {one, zero + one}) {
    bench b;
    b.armed();
    b.s.wait(b.y, b.wait_k, true);
    CHECK(b.flushed() == cancel_wait + b.wait_k);
    CHECK(b.s.tail() == tail::held);
    CHECK(b.feed(answer).empty());
    CHECK(b.feed(zero) == lines{"Y done"});
  }
}

TEST_CASE("post again: one exchange for all of it, done when the last was executed, behind those that posted meanwhile") {
  bench b;
  b.s.post(b.x, b.set_x);
  b.s.post(b.y, b.set_y);
  b.s.post(b.x, [&b](std::string& out) { out += b.set_x; });
  CHECK(b.flushed() == b.set_x + b.set_y + b.set_x + fence);
  CHECK(b.feed(zero) == lines{"Y done", "X done"});

  bench c;
  c.s.post(c.x, c.set_x);
  CHECK(c.flushed() == c.set_x + fence);
  c.s.post(c.x, c.set_x);  // the first one's fence does not end it
  c.s.post(c.y, c.set_y);
  CHECK(c.flushed() == c.set_x + c.set_y + fence);
  CHECK(c.feed(zero).empty());
  CHECK(c.x.engaged());
  CHECK(c.feed(zero) == lines{"X done", "Y done"});

  bench d;  // what is posted behind a reply that is due is not covered by it
  d.s.post(d.x, d.set_x);
  d.send(d.y, d.add_y);
  d.s.post(d.x, d.set_x);
  CHECK(d.flushed() == d.set_x + d.add_y + d.set_x + fence);
  CHECK(d.feed(i64(1)) == lines{"Y[0]=1"});
  CHECK(d.feed(zero) == lines{"X done"});
}

TEST_CASE("flush: one fence for all that no slot covers, none where a reply comes anyway") {
  bench b;
  b.s.post(b.x, b.set_x);
  b.s.post(b.y, b.set_y);
  CHECK(b.flushed() == b.set_x + b.set_y + fence);
  CHECK(b.flushed().empty());
  CHECK(b.feed(zero) == lines{"X done", "Y done"});

  bench c;
  c.s.post(c.x, c.set_x);
  c.send(c.y, c.add_y);
  CHECK(c.flushed() == c.set_x + c.add_y);
  CHECK(c.feed(i64(3)) == lines{"X done", "Y[0]=3"});

  bench d;
  d.send(d.y, d.add_y);
  d.s.post(d.x, d.set_x);
  CHECK(d.flushed() == d.add_y + d.set_x + fence);
  CHECK(d.feed(i64(3)) == lines{"Y[0]=3"});
  CHECK(d.feed(zero) == lines{"X done"});
}

TEST_CASE("flush, tail parked: the WAIT again") {
  bench b;
  b.parked();
  CHECK(b.flushed() == b.wait_k);
  CHECK(b.s.tail() == tail::held);
  CHECK(b.flushed().empty());
}

TEST_CASE("00 at cancel(W): W is over; a parked WAIT is not written again, one that was is armed") {
  bench b;
  b.parked();
  CHECK(b.feed(zero) == lines{"W done"});
  CHECK(b.s.tail() == tail::free);
  CHECK(b.flushed().empty());
  CHECK(b.feed(one + i64(5)) == lines{"X[0]=5"});
  CHECK(b.s.idle());

  bench c;
  c.held_again();
  CHECK(c.feed(zero) == lines{"W done"});
  CHECK(c.s.tail() == tail::armed);
  CHECK(c.feed(one + i64(5)) == lines{"X[0]=5"});
  CHECK(c.feed(zero).empty());  // no slots, tail armed: swallowed
  CHECK(c.s.tail() == tail::free);
}

TEST_CASE("01 at cancel(W): W goes on waiting") {
  bench b;
  b.held_again();
  CHECK(b.feed(one).empty());
  CHECK(b.feed(i64(5)) == lines{"X[0]=5"});
  CHECK(b.s.tail() == tail::held);
  CHECK(b.feed(zero) == lines{"W done"});
  CHECK(b.s.tail() == tail::free);
}

TEST_CASE("bytes that nobody asked for are protocol errors, named with the byte") {
  bench b;
  CHECK(!b.s.feed(zero));
  CHECK(b.s.problem() == "bytes that no request asked for, got 0x00");
  b.s.lost();
  CHECK(b.s.dead());

  bench c;
  c.held();
  CHECK(!c.s.feed("\x2a"));
  CHECK(c.s.problem() == "expected 0x00, the end of a WAIT, got 0x2a");
  CHECK(!c.s.feed(one));

  bench d;
  d.armed();
  CHECK(!d.s.feed(one));

  for (std::string const& wrong : {std::string("\x02"), zero + zero, zero + "\x7f"}) {
    bench e;
    e.parked();
    CHECK(!e.s.feed(wrong));
    CHECK(e.s.problem().find("0x01 or 0x00 0x01, the answer to CANCEL_WAIT, got 0x") != std::string::npos);
    e.s.lost();
    lines const heard = e.heard();
    CHECK(heard.back() == "X lost");
    CHECK(heard.size() == 2);  // W is done or lost, not both
  }

  bench f;
  f.parked();
  CHECK(f.feed(one).empty());
  CHECK(f.feed(i64(5)) == lines{"X[0]=5"});
  CHECK(!f.s.feed(zero));  // the tail is parked: nothing is at the server
}

TEST_CASE("a reply that cannot be is a protocol error, and all that is pending is lost") {
  bench b;
  b.s.send(&b.x, {}, b.add_x, reply_form::list);
  CHECK(!b.s.feed(std::string(8, '\xff')));
  CHECK(b.s.problem() == "negative count");
  b.s.lost();
  CHECK(b.heard() == lines{"X lost"});
}

TEST_CASE("abandon: slots stay for nobody, a write stays staged, the other exchanges do not notice") {
  bench b;
  b.send(b.x, b.add_x);
  b.send(b.x, b.add_x);
  b.send(b.y, b.add_y);
  b.s.abandon(b.x);
  CHECK(!b.x.engaged());
  CHECK(b.flushed() == b.add_x + b.add_x + b.add_y);
  CHECK(b.feed(i64(1) + i64(2) + i64(3)) == lines{"Y[0]=3"});

  bench c;
  c.s.post(c.x, c.set_x);
  c.s.post(c.y, c.set_y);
  c.s.abandon(c.x);
  CHECK(c.flushed() == c.set_x + c.set_y + fence);
  CHECK(c.feed(zero) == lines{"Y done"});

  bench d;
  d.s.post(d.x, d.set_x);
  d.s.abandon(d.x);
  CHECK(d.flushed() == d.set_x);  // nobody wants to know
}

namespace {

/// Takes one value into a buffer.
class taker final : public engine::exchange {
 public:
  explicit taker(std::size_t size) : buffer(size, '.') {}
  std::string buffer;
  std::optional<std::int64_t> number;
  std::string seen;

 private:
  std::span<char> room() noexcept override { return buffer; }
  void on_reply(std::size_t, wire::reply& r) noexcept override {
    number = r.number;
    seen = r.bytes;
  }
  void on_done() noexcept override {}
  void on_lost() noexcept override {}
};

}  // namespace

TEST_CASE("send_into: the value goes to the exchange's buffer, split anywhere; where it has no room or has gone, to nowhere") {
  const std::string reply = bytes("0123456789");
  for (std::size_t cut = 0; cut <= reply.size(); ++cut) {
    for (const std::size_t room : {std::size_t{0}, std::size_t{9}, std::size_t{10}, std::size_t{11}}) {
      for (const bool leaves : {false, true}) {
        bench b;
        taker t(room);
        b.s.send_into(t, "get", "k");
        b.send(b.x, b.add_x);
        CHECK(b.flushed() == "getk" + b.add_x);
        CHECK(b.feed(std::string_view(reply).substr(0, cut)).empty());
        if (leaves) b.s.abandon(t);
        const std::string before = t.buffer;
        CHECK(b.feed(reply.substr(cut) + i64(7)) == lines{"X[0]=7"});
        CHECK(b.s.idle());
        if (room < 10 || (leaves && cut < 9)) CHECK(t.buffer == std::string(room, '.'));
        if (leaves && cut < reply.size()) {
          CHECK(t.buffer == before);
          CHECK(!t.number);
          continue;
        }
        CHECK(t.number == 10);
        CHECK(t.seen == (room < 10 ? "" : "0123456789"));
        if (room >= 10) CHECK(t.buffer.starts_with("0123456789"));
      }
    }
  }
  bench empty;
  taker t(4);
  empty.s.send_into(t, "get", "k");
  CHECK(empty.feed(bytes("")).empty());
  CHECK(t.number == 0);
  bench absurd;
  absurd.s.send_into(t, "get", "k");
  CHECK(!absurd.s.feed(std::string(8, '\x7f')));
  CHECK(absurd.s.problem() == "reply too long");
  absurd.s.lost();
}

TEST_CASE("hand_over(x, y): the replies of x are y's, at whatever point of their bytes") {
  const std::string item = i64(2) + bytes("item");
  for (std::size_t cut = 0; cut < item.size(); ++cut) {
    for (const bool written : {false, true}) {
      bench b;
      b.y.forms = {reply_form::popped};
      b.s.send(&b.x, {}, "pop", reply_form::popped);
      b.send(b.w, b.add_x);
      if (written || cut > 0) CHECK(b.flushed() == "pop" + b.add_x);
      CHECK(b.feed(std::string_view(item).substr(0, cut)).empty());
      b.s.hand_over(b.x, b.y);
      CHECK(!b.x.engaged());
      CHECK(b.y.engaged());
      static_cast<void>(b.flushed());
      CHECK(b.y.written());
      CHECK(b.w.written());
      b.s.send(&b.x, {}, "pop", reply_form::i64);  // x begins anew
      CHECK(b.feed(std::string_view(item).substr(cut)) == lines{"Y[0]=2item"});
      CHECK(b.feed(i64(5) + i64(6)) == lines{"W[0]=5", "X[0]=6"});
      CHECK(b.s.idle());
    }
  }
  bench c;  // several, of which one was answered
  c.send(c.x, c.add_x);
  c.send(c.x, c.add_x);
  c.send(c.x, c.add_x);
  CHECK(c.feed(i64(1)) == lines{"X[0]=1"});
  c.s.hand_over(c.x, c.y);
  CHECK(c.feed(i64(2) + i64(3)) == lines{"Y[1]=2", "Y[2]=3"});

  bench d;  // y may be abandoned or lost as if it had asked
  d.send(d.x, d.add_x);
  d.s.hand_over(d.x, d.y);
  d.s.abandon(d.y);
  CHECK(d.feed(i64(1)).empty());
  CHECK(d.s.idle());
  bench e;
  e.send(e.x, e.add_x);
  e.s.hand_over(e.x, e.y);
  e.s.lost();
  CHECK(e.heard() == lines{"Y lost"});

  bench f;  // what was written stays so without another write, and does not hide what was not
  f.send(f.x, f.add_x);
  CHECK(f.flushed() == f.add_x);
  f.send(f.w, f.add_y);
  f.s.hand_over(f.x, f.y);
  CHECK(f.y.written());
  CHECK(!f.w.written());
  static_cast<void>(f.flushed());
  CHECK(f.w.written());
}

TEST_CASE("hand_over(x, y) from within the callback of another reply, and of x itself for what is still due") {
  bench b;
  b.send(b.w, b.add_x);
  b.send(b.x, b.add_x);
  b.w.then = [&b] { b.s.hand_over(b.x, b.y); };
  CHECK(b.feed(i64(1) + i64(2)) == lines{"W[0]=1", "Y[0]=2"});
  bench c;
  c.send(c.x, c.add_x);
  c.send(c.x, c.add_x);
  c.x.then = [&c] { c.s.hand_over(c.x, c.y); };
  CHECK(c.feed(i64(1) + i64(2)) == lines{"X[0]=1", "Y[1]=2"});
  bench d;  // a write that the very reply covers
  d.s.post(d.w, d.set_x);
  d.send(d.x, d.add_x);
  d.w.then = [&d] { d.s.hand_over(d.x, d.y); };
  CHECK(d.feed(i64(2)) == lines{"W done", "Y[0]=2"});
}

TEST_CASE("abandon(W), tail held: CANCEL_WAIT for nobody") {
  for (std::string const& answer : {one, zero + one}) {
    bench b;
    b.held();
    b.s.abandon(b.w);
    CHECK(b.flushed() == cancel_wait);
    CHECK(b.s.tail() == tail::free);
    CHECK(b.feed(answer).empty());
    CHECK(b.s.idle());
    CHECK(b.s.slots() == 0);
  }
}

TEST_CASE("abandon(W), tail parked: nothing more is written") {
  for (std::string const& answer : {one, zero + one}) {
    bench b;
    b.parked();
    b.s.abandon(b.w);
    CHECK(b.s.tail() == tail::free);
    CHECK(b.flushed().empty());
    CHECK(b.feed(answer + i64(5)) == lines{"X[0]=5"});
  }
}

TEST_CASE("abandon(W), written again: both CANCEL_WAITs are for nobody") {
  for (std::string const& first : {one, zero + one}) {
    for (std::string const& second : {one, zero + one}) {
      bench b;
      b.held_again();
      b.s.abandon(b.w);
      CHECK(b.flushed() == cancel_wait);
      CHECK(b.feed(first + i64(5)) == lines{"X[0]=5"});
      CHECK(b.feed(second).empty());
      CHECK(b.s.slots() == 0);
    }
  }
}

TEST_CASE("cancel(W), tail held: CANCEL_WAIT, and W stays for the answer: 00 completes it, 01 does not") {
  bench b;
  b.held(false);
  b.s.cancel(b.w);
  b.s.send(&b.w, {}, check_request("k"), reply_form::u8);
  CHECK(b.flushed() == cancel_wait + check_request("k"));
  CHECK(b.s.tail() == tail::free);
  CHECK(b.feed(one).empty());
  CHECK(b.feed(one) == lines{"W[0]=1"});
  CHECK(b.s.idle());

  bench c;
  c.held(false);
  c.s.cancel(c.w);
  c.s.send(&c.w, {}, check_request("k"), reply_form::u8);
  CHECK(c.feed(zero) == lines{"W done"});
  CHECK(c.s.idle());
  CHECK(c.feed(one + zero).empty());  // what it asked is swallowed
}

TEST_CASE("cancel(W), tail parked: no further byte") {
  bench b;
  b.parked();
  b.s.cancel(b.w);
  CHECK(b.flushed().empty());
  CHECK(b.s.tail() == tail::free);
  CHECK(b.feed(zero) == lines{"W done"});
  CHECK(b.s.tail() == tail::free);
  CHECK(b.feed(one + i64(5)) == lines{"X[0]=5"});
}

TEST_CASE("an exchange that is abandoned after cancel() is not called when the answer comes late") {
  for (std::string const& answer : {one, zero + one}) {
    bench b;
    auto gone = std::make_unique<recorder>(b.s, b.log, "gone");
    b.s.wait(*gone, b.wait_k, false);
    b.s.cancel(*gone);
    b.s.send(gone.get(), {}, check_request("k"), reply_form::u8);
    static_cast<void>(b.flushed());
    gone.reset();
    CHECK(b.feed(answer).empty());
    CHECK(b.feed(one).empty());
    CHECK(b.s.slots() == 0);
  }
}

TEST_CASE("lost: every exchange is told once, whatever it waits for") {
  bench b;
  recorder z(b.s, b.log, "Z");
  b.s.post(z, b.set_x);
  b.held();
  b.send(b.x, b.add_x);
  b.send(b.x, b.add_x);
  b.s.post(b.y, b.set_y);
  b.s.lost();
  CHECK(b.heard() == lines{"Z lost", "W lost", "X lost", "Y lost"});
  CHECK(b.s.idle());
  CHECK(b.s.slots() == 0);
  b.s.lost();
  CHECK(b.heard().empty());
  CHECK(!b.s.takes_command());
  CHECK(!b.s.takes_wait());
  CHECK(b.s.feed("anything"));
}

TEST_CASE("written() tells whether bytes may have reached the server") {
  bench b;
  b.send(b.x, b.add_x);
  CHECK(!b.x.written());
  static_cast<void>(b.flushed());
  b.s.post(b.y, b.set_y);
  CHECK(b.x.written());
  CHECK(!b.y.written());
  static_cast<void>(b.flushed());
  CHECK(b.y.written());
}

// ---- Orders ----------------------------------------------------------------------------------------------------------------------

TEST_CASE("replies of every form may be split at every byte") {
  std::string list = i64(2) + bytes("one") + bytes("");
  struct due {
    reply_form form;
    std::string bytes;
    std::uint64_t count;
  };
  const std::vector<due> all{
      {reply_form::u8, one, 0},           {reply_form::u32, std::string("\1\2\3\4"), 0}, {reply_form::i64, i64(-5), 0},
      {reply_form::bytes, bytes("hello"), 0}, {reply_form::many, bytes("a") + bytes(""), 2},  {reply_form::popped, i64(0), 0},
      {reply_form::popped, i64(3) + bytes("item"), 0}, {reply_form::list, list, 0}, {reply_form::u8, zero, 0}};
  std::string stream;
  for (due const& d : all) stream += d.bytes;
  std::vector<reply_form> forms;
  for (due const& d : all) forms.push_back(d.form);
  lines whole;
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    bench b;
    b.x.forms = forms;
    for (due const& d : all) b.s.send(&b.x, {}, "r", d.form, d.count);
    lines heard = b.feed(std::string_view(stream).substr(0, cut));
    for (std::string& line : b.feed(std::string_view(stream).substr(cut))) heard.push_back(std::move(line));
    CHECK(heard.size() == all.size());
    if (cut == 0) whole = heard;
    CHECK(heard == whole);
    CHECK(b.s.idle());
  }
  bench b;
  b.x.forms = forms;
  for (due const& d : all) b.s.send(&b.x, {}, "r", d.form, d.count);
  for (const char c : stream) CHECK(b.s.feed({&c, 1}));
  CHECK(b.heard() == whole);
}

TEST_CASE("a preempted wait, all answers, split everywhere: W is done exactly once, X has its own reply") {
  // What the server may send for WAIT, CANCEL_WAIT, ADD, WAIT: each of the two WAITs may come true, the first before its cancel.
  struct outcome {
    std::string bytes;
    tail end;
  };
  for (outcome const& o : {outcome{one + i64(5), tail::held}, outcome{one + i64(5) + zero, tail::free},
                           outcome{zero + one + i64(5), tail::armed}, outcome{zero + one + i64(5) + zero, tail::free}}) {
    const bool w_done = o.end != tail::held;
    for (std::size_t cut = 0; cut <= o.bytes.size(); ++cut) {
      bench b;
      b.held_again();
      lines heard = b.feed(std::string_view(o.bytes).substr(0, cut));
      for (std::string& line : b.feed(std::string_view(o.bytes).substr(cut))) heard.push_back(std::move(line));
      CHECK(std::count(heard.begin(), heard.end(), "W done") == (w_done ? 1 : 0));
      CHECK(std::count(heard.begin(), heard.end(), "X[0]=5") == 1);
      CHECK(b.s.tail() == o.end);
    }
  }
}

TEST_CASE("a wait that is preempted again and again, before any answer") {
  constexpr int times = 4;
  for (unsigned early = 0; early < (1U << (times + 1)); ++early) {  // which of the five WAITs come true before they are cancelled
    bench b;
    b.held();
    std::string stream;
    bool over = false;
    for (int i = 0; i < times; ++i) {
      b.send(b.x, b.add_x);
      CHECK(b.flushed() == cancel_wait + b.add_x + b.wait_k);
      if (early >> i & 1) stream += zero;
      stream += one + i64(i);
      b.s.abandon(b.x);
    }
    const bool last = (early >> times & 1) != 0;
    if (last) stream += zero;
    for (const char c : stream) {
      REQUIRE(b.s.feed({&c, 1}));
      over = over || !b.w.engaged();
    }
    CHECK(b.heard() == (early != 0 ? lines{"W done"} : lines{}));
    CHECK(over == (early != 0));
    CHECK(b.s.slots() == 0);
    CHECK(b.s.tail() == (last ? tail::free : early != 0 ? tail::armed : tail::held));
  }
}

TEST_CASE("abandon and loss at every point of a preempted wait: no callback afterwards, the stream stays in step") {
  for (const bool lose : {false, true}) {
    for (std::string const& first : {one, zero + one}) {
      for (std::string const& second : {one, zero + one}) {
        const std::string before = first + i64(5);
        for (std::size_t at = 0; at <= before.size(); ++at) {
          bench b;
          b.held_again();
          lines heard = b.feed(std::string_view(before).substr(0, at));
          const bool w_done = std::count(heard.begin(), heard.end(), "W done") != 0;
          CHECK(w_done == (first.size() == 2 && at >= 1));
          if (lose) {
            b.s.lost();
            const bool x_done = at == before.size();
            lines expected;
            if (!w_done) expected.emplace_back("W lost");
            if (!x_done) expected.emplace_back("X lost");
            lines got = b.heard();
            std::sort(got.begin(), got.end());
            CHECK(got == expected);
            continue;
          }
          b.s.abandon(b.w);
          b.s.abandon(b.x);
          const std::string more = b.flushed();
          CHECK(more == (w_done ? std::string() : cancel_wait));
          CHECK(b.feed(std::string_view(before).substr(at)).empty());
          if (w_done) {
            CHECK(b.s.tail() == tail::armed);
            if (second.size() == 2) CHECK(b.feed(zero).empty());
          } else {
            CHECK(b.feed(second).empty());
          }
          b.send(b.y, b.add_y);
          CHECK(b.flushed() == (b.s.slots() == 2 ? cancel_wait : std::string()) + b.add_y);
          CHECK(b.feed((b.s.slots() == 2 ? one : std::string()) + i64(9)) == lines{"Y[0]=9"});
        }
      }
    }
  }
}

TEST_CASE("a blocking pop: WAIT, then QUEUE_POP, until an item is its own; preempted, split and lost at every point") {
  // The server's side of WAIT(q) preempted by an ADD, the end of the WAIT, a QUEUE_POP that finds nothing, WAIT and QUEUE_POP again.
  const std::string wait_q = wait_request("q");
  std::string pop_q;
  wire::encode_queue_pop(pop_q, "/", "q");
  const std::string stream = one + i64(5) + zero + i64(0) + zero + i64(1) + bytes("mine");
  for (std::size_t lose_at = 0; lose_at <= stream.size(); ++lose_at) {
    bench b;
    int pops = 0;
    b.w.forms = {reply_form::popped};
    b.w.then = [&] {  // as an operation does
      if (b.log.back() == "W done") {
        ++pops;
        b.s.send(&b.w, {}, pop_q, reply_form::popped);
      } else if (b.log.back() == "W[0]=0") {
        b.s.wait(b.w, wait_q, true);
      }
    };
    b.s.wait(b.w, wait_q, true);
    CHECK(b.flushed() == wait_q);
    b.send(b.x, b.add_x);
    CHECK(b.flushed() == cancel_wait + b.add_x + wait_q);
    lines heard;
    for (std::size_t i = 0; i < lose_at; ++i) {
      REQUIRE(b.s.feed({&stream[i], 1}));
      static_cast<void>(b.flushed());
    }
    heard = b.heard();
    if (lose_at == stream.size()) {
      CHECK(heard == lines{"X[0]=5", "W done", "W[0]=0", "W done", "W[0]=1mine"});
      CHECK(pops == 2);
      CHECK(b.s.idle());
      continue;
    }
    b.s.lost();
    const lines lost = b.heard();
    CHECK(std::count(lost.begin(), lost.end(), "W lost") == 1);
    CHECK(std::count(lost.begin(), lost.end(), "X lost") == (lose_at < 9 ? 1 : 0));
    CHECK(b.s.idle());
  }
}

TEST_CASE("a BARRIER is never preempted; cancelled, its answer is 01 or 00 01, or a late 00 in front of it") {
  std::string barrier;
  wire::encode_barrier(barrier, "/", "b", 2);
  for (std::string const& answer : {one, zero + one}) {
    for (std::size_t cut = 0; cut <= answer.size(); ++cut) {
      bench b;
      b.s.wait(b.w, barrier, false);
      CHECK(b.flushed() == barrier);
      CHECK(!b.s.takes_command());
      b.s.abandon(b.w);
      b.send(b.x, b.add_x);
      CHECK(b.flushed() == cancel_wait + b.add_x);  // and never the BARRIER again
      CHECK(b.feed(std::string_view(answer).substr(0, cut)).empty());
      CHECK(b.feed(std::string_view(answer).substr(cut)).empty());
      CHECK(b.feed(i64(3)) == lines{"X[0]=3"});
      CHECK(b.flushed().empty());
    }
  }
  bench c;
  c.s.wait(c.w, barrier, false);
  CHECK(c.feed(zero) == lines{"W done"});
  bench d;
  d.s.wait(d.w, barrier, false);
  d.s.lost();
  CHECK(d.heard() == lines{"W lost"});
}

TEST_CASE("a callback may stage more: the next request of the same exchange, a wait, a write") {
  bench b;
  b.send(b.x, b.add_x);
  int rounds = 0;
  b.x.then = [&] {
    if (++rounds < 50) b.send(b.x, b.add_x);
    if (rounds == 10) b.s.post(b.y, b.set_y);
  };
  for (int i = 0; i < 50; ++i) {
    static_cast<void>(b.flushed());
    CHECK(b.s.feed(i == 10 ? i64(i) + zero : i64(i)));  // the fence of Y's write
  }
  CHECK(rounds == 50);
  CHECK(b.s.idle());
}

TEST_CASE("the callback of a write that a reply covers may abandon the exchange whose reply it is") {
  bench b;
  b.s.post(b.x, b.set_x);
  auto y = std::make_unique<recorder>(b.s, b.log, "gone");
  b.send(*y, b.add_y);
  b.x.then = [&y] { y.reset(); };
  CHECK(b.feed(i64(3)) == lines{"X done"});
  CHECK(b.s.idle());
  CHECK(b.s.slots() == 0);
}

TEST_CASE("the callback of a write that a reply covers may give up the connection") {
  bench b;
  b.s.post(b.x, b.set_x);
  b.send(b.y, b.add_y);
  b.x.then = [&b] { b.s.lost(); };
  CHECK(b.feed(i64(3) + i64(4)) == lines{"X done", "Y lost"});
}

TEST_CASE("the callback of a write that a reply covers may stage so much that the ring of slots grows") {
  bench b;
  for (int i = 0; i < 7; ++i) b.s.send(nullptr, {}, "r", reply_form::u8);
  b.s.post(b.x, b.set_x);
  b.send(b.y, b.add_y);
  recorder z(b.s, b.log, "Z");
  b.x.then = [&] {
    for (int i = 0; i < 9; ++i) b.send(z, b.add_x);
  };
  CHECK(b.feed(std::string(7, '\0') + i64(3)) == lines{"X done", "Y[0]=3"});
  CHECK(b.s.slots() == 9);
  for (int i = 0; i < 9; ++i) CHECK(b.feed(i64(i)).size() == 1);
  CHECK(b.s.idle());
}

TEST_CASE("without memory a request is not sent at all, and the others keep their replies") {
  const std::string far = get_request(std::string(300, 'k'));
  bool failed = true;
  for (std::size_t n = 1; failed; ++n) {
    bench b;
    failed = false;
    // The ring of slots grows at the first and at the ninth of these, the output whenever it has to.
    fail_allocation(n);
    for (int i = 0; i < 12; ++i) {
      try {
        if (i == 5) {
          b.s.post(b.y, b.set_y);
        } else if (i == 6) {
          b.s.flush();
        } else {
          b.s.send(nullptr, std::string_view(far).substr(0, 1), std::string_view(far).substr(1), reply_form::bytes);
        }
      } catch (std::bad_alloc const&) {
        failed = true;
      }
    }
    fail_allocation(0);
    b.send(b.x, b.add_x);
    const std::string out = b.flushed();
    std::string answers;
    std::size_t due = 0;
    for (std::string_view rest = out; !rest.empty();) {
      std::string_view const requests[] = {far, fence, b.add_x, b.set_y};
      std::string const replies[] = {bytes("v"), zero, i64(5), std::string()};
      std::size_t k = 0;
      while (k < 4 && !rest.starts_with(requests[k])) ++k;
      REQUIRE(k < 4);
      rest.remove_prefix(requests[k].size());
      answers += replies[k];
      due += !replies[k].empty();
    }
    CHECK(b.s.slots() == due);
    const lines heard = b.feed(answers);
    CHECK(std::find(heard.begin(), heard.end(), "X[0]=5") != heard.end());
    CHECK(b.s.slots() == 0);
    CHECK_FALSE(b.y.engaged());
  }
}

TEST_CASE("in steady state nothing is allocated") {
  session s;
  lines log;
  log.reserve(16);
  class silent final : public engine::exchange {
   public:
    int ended = 0;

   private:
    void on_reply(std::size_t, wire::reply&) noexcept override { ++ended; }
    void on_done() noexcept override { ++ended; }
    void on_lost() noexcept override {}
  };
  silent w;
  silent x;
  silent y;
  const std::string wait_k = wait_request("k");
  const std::string add_x = add_request("x", 1);
  const std::string set_y = set_request("y", "1");
  const std::string replies = one + i64(1) + zero + zero;
  std::size_t first = 0;
  for (int round = 0; round < 1000; ++round) {
    if (round == 10) first = allocations().calls;
    s.wait(w, wait_k, true);
    s.flush();
    s.send(&x, {}, add_x, reply_form::i64);  // preempts
    s.post(y, set_y);
    s.flush();
    s.output().clear();
    s.mark_written();
    if (!s.feed(replies)) FAIL("out of step");
  }
  CHECK(allocations().calls == first);
  CHECK(w.ended == 1000);
  CHECK(x.ended == 1000);
  CHECK(y.ended == 1000);
}

// ---- A server --------------------------------------------------------------------------------------------------------------------

namespace {

/// Answers in order; a WAIT comes true when the test likes. Knows what a client must not do.
class server {
 public:
  explicit server(xorshift& random) : random_(random) {
    std::string hello;
    wire::encode_validate(hello);
    read(hello);
  }
  void read(std::string_view in) {
    wire::request r;
    for (;;) {
      const wire::decode_status status = decoder_.next(in, r, limits_);
      if (status == wire::decode_status::bad) violation = "undecodable bytes";
      if (status != wire::decode_status::complete) return;
      if (!waiting.empty() && r.op != wire::opcode::cancel_wait) violation = "a request behind a pending WAIT";
      switch (r.op) {
        case wire::opcode::validate: break;
        case wire::opcode::set: executed.insert(std::string(r.value)); break;
        case wire::opcode::add: wire::put_i64(out, r.number * 3 + 1); break;
        case wire::opcode::get: wire::put_bytes(out, std::string(r.key) + "!"); break;
        case wire::opcode::check: wire::put_u8(out, r.count == 0 ? 0 : static_cast<std::uint8_t>(r.key.size() % 2)); break;
        case wire::opcode::wait:
          waiting = r.key;
          if (true_already.count(waiting) != 0 && random_.below(2) == 0) come_true();
          break;
        case wire::opcode::cancel_wait:
          waiting.clear();
          wire::put_u8(out, wire::wait_canceled);
          break;
        default: violation = "an opcode that nobody sends";
      }
    }
  }
  void come_true() {
    if (waiting.empty()) return;
    true_already.insert(waiting);
    waiting.clear();
    wire::put_u8(out, wire::stop_waiting);
  }
  std::string out;
  std::string waiting;
  std::set<std::string> true_already;
  std::set<std::string> executed;
  std::string violation;

 private:
  wire::request_decoder decoder_;
  wire::limits limits_;
  xorshift& random_;
};

class world;

/// One that uses the session at random and knows what it has to hear.
class user final : public engine::exchange {
 public:
  enum class state { idle, sending, posting, waiting, asking };
  user(world& w, std::size_t id) : world_(w), name_(std::to_string(id)) {}
  void begin();
  void abandon();
  void hand_over_to(user& other);
  void time_is_over();
  state now = state::idle;

 private:
  friend class world;
  void on_reply(std::size_t index, wire::reply& r) noexcept override;
  void on_done() noexcept override;
  void on_lost() noexcept override {
    now = state::idle;
    ++lost_;
  }
  void ended();
  world& world_;
  std::string name_;
  int lost_ = 0;
  std::uint64_t round_ = 0;
  std::string request_;                 // the WAIT, to be written again
  std::string key_;                     // of the WAIT
  std::string value_;                   // of the SET
  std::vector<std::string> expected_;   // replies in order, as text
  std::size_t answered_ = 0;
};

class world {
 public:
  explicit world(std::uint64_t seed) : random(seed), peer(random) {
    for (std::size_t i = 0; i < 12; ++i) users.push_back(std::make_unique<user>(*this, i));
  }
  ~world() {
    for (auto const& u : users) s.abandon(*u);
  }
  world(world const&) = delete;
  world& operator=(world const&) = delete;

  void step() {
    user& u = *users[random.below(users.size())];
    switch (random.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3: u.begin(); break;
      case 4:
        switch (random.below(6)) {
          case 0:
          case 1: u.abandon(); break;
          case 2:
          case 3: u.hand_over_to(*users[random.below(users.size())]); break;
        }
        break;
      case 5:
        if (random.below(3) == 0) u.time_is_over();
        break;
      case 6: flush(); break;
      case 7:
      case 8: {
        const std::size_t n = std::min(to_server.size(), random.below(200));
        peer.read(std::string_view(to_server).substr(0, n));
        to_server.erase(0, n);
        break;
      }
      case 9: peer.come_true(); break;
      default: {
        const std::size_t n = std::min(peer.out.size(), random.below(60));
        const std::string piece = peer.out.substr(0, n);
        peer.out.erase(0, n);
        if (!s.feed(piece)) wrong = s.problem();
      }
    }
  }
  void flush() {
    s.flush();
    to_server += s.output();
    s.output().clear();
    s.mark_written();
  }
  /// Lets everything come to its end.
  void drain() {
    for (int i = 0; i < 20; ++i) {
      flush();
      peer.read(std::exchange(to_server, std::string()));
      peer.come_true();
      if (!s.feed(std::exchange(peer.out, std::string()))) wrong = s.problem();
    }
  }
  [[nodiscard]] bool fine() const { return wrong.empty() && peer.violation.empty(); }

  xorshift random;
  session s;
  server peer;
  std::string to_server;
  std::vector<std::unique_ptr<user>> users;
  std::string wrong;
  bool calm = false;
  std::uint64_t completed = 0;
  std::uint64_t handed_over = 0;
};

void user::begin() {
  if (now != state::idle) return;
  session& s = world_.s;
  xorshift& random = world_.random;
  ++round_;
  expected_.clear();
  answered_ = 0;
  switch (random.below(4)) {
    case 0:
      if (!s.takes_command()) return;
      value_ = name_ + "." + std::to_string(round_);
      s.post(*this, set_request(name_, value_));
      now = state::posting;
      return;
    case 1:
      if (!s.takes_wait()) return;
      key_ = "/" + name_ + "." + std::to_string(round_);
      request_ = wait_request(std::string_view(key_).substr(1));
      s.wait(*this, request_, random.below(4) != 0);
      now = state::waiting;
      return;
    default:
      if (!s.takes_command()) return;
      now = state::sending;
      for (std::size_t i = 0, n = 1 + random.below(3); i < n; ++i) {
        if (random.below(2) == 0) {
          const auto number = static_cast<std::int64_t>(random.below(1'000'000));
          s.send(this, {}, add_request(name_, number), reply_form::i64);
          expected_.push_back(std::to_string(number * 3 + 1));
        } else {
          const std::string key = name_ + "." + std::to_string(round_) + std::string(random.below(40), 'g');
          s.send(this, "\x03", get_request(key).substr(1), reply_form::bytes);
          expected_.push_back("/" + key + "!");
        }
      }
  }
}
void user::abandon() {
  world_.s.abandon(*this);
  if (engaged()) world_.wrong = "abandoned and still engaged";
  now = state::idle;
}
void user::hand_over_to(user& other) {
  if (now != state::sending || other.now != state::idle || other.engaged()) return;
  other.now = now;
  other.expected_ = expected_;
  other.answered_ = answered_;
  world_.s.hand_over(*this, other);
  if (engaged() || !other.engaged()) world_.wrong = "handed over, and not as it should be";
  now = state::idle;
  ++world_.handed_over;
}
void user::time_is_over() {
  if (now != state::waiting) return;
  now = state::asking;
  world_.s.cancel(*this);
  for (std::size_t i = 0, n = 1 + world_.random.below(3); i < n; ++i) {
    const std::string key = std::string(1 + world_.random.below(9), 'c');
    world_.s.send(this, {}, check_request(key), reply_form::u8);
    expected_.push_back(std::to_string((key.size() + 1) % 2));
  }
}
void user::on_reply(std::size_t index, wire::reply& r) noexcept {
  if (now != state::sending && now != state::asking) world_.wrong = "a reply for somebody who asked nothing";
  const bool text = index < expected_.size() && expected_[index].ends_with('!');
  const std::string got = text ? std::string(r.bytes) : std::to_string(r.number);
  if (index != answered_ || index >= expected_.size() || got != expected_[index]) world_.wrong = name_ + " got " + got;
  if (++answered_ == expected_.size()) ended();
}
void user::on_done() noexcept {
  if (now == state::posting) {
    if (world_.peer.executed.count(value_) == 0) world_.wrong = "told that a write was executed which was not";
  } else if (now == state::waiting || now == state::asking) {
    if (world_.peer.true_already.count(key_) == 0) world_.wrong = "told of the end of a wait that has not ended";
  } else {
    world_.wrong = "done without having begun";
  }
  ended();
}
void user::ended() {
  if (engaged()) world_.wrong = "ended and still engaged";
  now = state::idle;
  ++world_.completed;
  if (!world_.calm && world_.random.below(4) == 0) begin();  // from within the callback
}

}  // namespace

TEST_CASE("random use against a server: every exchange gets exactly its own replies") {
  constexpr std::uint64_t first_seed = 7'000;
  constexpr int runs = 40;
  constexpr int steps = 5'000;
  std::uint64_t completed = 0;
  std::uint64_t handed_over = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + runs; ++seed) {
    world w(seed);
    int step = 0;
    for (; step < steps && w.fine(); ++step) w.step();
    w.calm = true;
    if (w.fine()) w.drain();
    for (auto const& u : w.users)
      if (w.fine() && u->now != user::state::idle) w.wrong = "somebody was forgotten";
    if (w.fine() && !w.s.idle()) w.wrong = "somebody is still engaged";
    INFO("seed " << seed << ", step " << step << ": " << w.wrong << " " << w.peer.violation);
    REQUIRE(w.fine());
    completed += w.completed;
    handed_over += w.handed_over;
  }
  MESSAGE("seeds " << first_seed << " to " << first_seed + runs - 1 << ", " << runs * steps << " steps, " << completed << " exchanges");
  CHECK(completed > 10'000);
  CHECK(handed_over > 500);
}
