#include "../support/net.hpp"

// The same raw exchanges against serve(), legacy_server and examples/mini_server: whoever drives the decoder and the engine answers alike.

using namespace net_test;

namespace {

struct exchange {
  char const* rule;
  string request;   // after VALIDATE, on a connection of its own
  string reply;     // exactly this ...
  bool closes;      // ... and then the server closes
};

string cas(string_view k, string_view expected, string_view desired) { return op(2) + str(k) + str(expected) + str(desired); }
string delete_key(string_view k) { return op(8) + str(k); }
string append(string_view k, string_view v) { return op(9) + str(k) + str(v); }
string multi_set(std::vector<std::pair<string, string>> const& all) {
  string s = op(11) + u64(all.size());
  for (auto const& pair : all) s += str(pair.first) + str(pair.second);
  return s;
}
string push(string_view k, string_view v) { return op(14) + str(k) + str(v); }
string pop(string_view k) { return op(15) + str(k); }
string len(string_view k) { return op(16) + str(k); }
string barrier(string_view k, std::int64_t world) { return op(18) + str(k) + i64(world); }
const string yes(1, '\0');
const string no(1, '\1');

/// In order: later ones see what earlier ones stored.
std::vector<exchange> table() {
  return {
      {"PING echoes its nonce", req::ping(0x01020304), u32(0x01020304), false},
      {"SET answers nothing, GET the value", req::set("/k", "v1") + req::get("/k"), str("v1"), false},
      {"GET of a missing key answers an empty value", req::get("/missing"), str(""), false},
      {"CHECK is 0 for all there, 1 otherwise, 0 for none asked", req::check({"/k"}) + req::check({"/k", "/x"}) + req::check({}), yes + no + yes, false},
      {"ADD starts at nothing, goes below zero, is decimal text", req::add("/n", 5) + req::add("/n", -7) + req::get("/n"), i64(5) + i64(-2) + str("-2"), false},
      {"ADD takes blanks, a sign and trailing letters", req::set("/t", " +12xyz") + req::add("/t", 1), i64(13), false},
      {"ADD on text ends the connection", req::set("/text", "abc") + req::add("/text", 1), "", true},
      {"ADD on an empty value ends the connection", req::set("/empty", "") + req::add("/empty", 1), "", true},
      {"ADD past 64 bits ends the connection and changes nothing", req::set("/max", "9223372036854775807") + req::get("/max") + req::add("/max", 1),
       str("9223372036854775807"), true},
      {"COMPARE_SET creates where nothing was expected", cas("/c", "", "new") + req::get("/c"), str("new") + str("new"), false},
      {"COMPARE_SET answers its expectation where the key is missing", cas("/c2", "x", "new") + req::check({"/c2"}), str("x") + no, false},
      {"COMPARE_SET swaps on a match, tells the value otherwise", cas("/c", "new", "b") + cas("/c", "zzz", "d"), str("b") + str("b"), false},
      {"DELETE_KEY tells whether it was there", delete_key("/c") + delete_key("/c"), i64(1) + i64(0), false},
      {"APPEND creates and extends", append("/a", "one") + append("/a", "two") + req::get("/a"), str("onetwo"), false},
      {"MULTI_SET and MULTI_GET keep their order; a missing key is empty",
       multi_set({{"/m1", "1"}, {"/m2", "22"}}) + req::counted(10, {"/m2", "/gone", "/m1"}), str("22") + str("") + str("1"), false},
      {"MULTI_GET of nothing answers nothing", req::counted(10, {}) + req::ping(1), u32(1), false},
      {"WAIT for what is there, and for nothing, ends at once", req::wait({"/k"}) + req::wait({}), yes + yes, false},
      {"a wait is woken by its own connection's SET, before the next reply", req::wait({"/w"}) + req::set("/w", "1") + req::ping(2), yes + u32(2), false},
      {"the same missing key twice is woken by one SET", req::wait({"/w2", "/w2"}) + req::set("/w2", "1") + req::ping(3), yes + u32(3), false},
      {"CANCEL_WAIT answers 01 with and without a wait", req::cancel_wait() + req::wait({"/never"}) + req::cancel_wait(), no + no, false},
      {"a completion that was faster stands before the 01", req::wait({"/w3"}) + req::set("/w3", "") + req::cancel_wait(), yes + no, false},
      {"two waits are both answered, and one CANCEL_WAIT cancels all", req::wait({"/p"}) + req::wait({"/q"}) + req::set("/q", "") + req::set("/p", "") + req::wait({"/r"}) + req::wait({"/s"}) + req::cancel_wait(),
       yes + yes + no, false},
      {"queues are first in, first out, and tell their length before the pop", push("/fifo", "a") + push("/fifo", "bb") + len("/fifo") + pop("/fifo") + pop("/fifo") + pop("/fifo"),
       i64(2) + i64(2) + str("a") + i64(1) + str("bb") + i64(0), false},
      {"CHECK and WAIT see a queue", push("/see", "x") + req::check({"/see"}) + req::wait({"/see"}), yes + yes, false},
      {"BARRIER of one passes, and its key holds the count", barrier("/bar", 1) + req::get("/bar"), yes + str("1"), false},
      {"a key of no bytes is a key", req::set("", "e") + req::get(""), str("e"), false},
      {"the capability key is there, and not counted", req::check({string("\0cap", 4)}) + req::get("/k"), yes + str("v1"), false},
      {"an unknown opcode ends the connection", op(19), "", true},
      {"the last opcode of all ends the connection", op(255), "", true},
      {"a second VALIDATE ends the connection", req::validate(), "", true},
      {"a key of 8193 bytes ends the connection at its length", op(1) + u64(8193), "", true},
      {"a value past 8 MiB ends the connection at its length", op(1) + str("/v") + u64((8u << 20) + 1), "", true},
      {"131,073 keys end the connection at their count", op(6) + u64(131073), "", true},
      {"a length of 2^63 ends the connection", op(3) + u64(std::uint64_t{1} << 63), "", true},
      {"replies before the fault are sent", req::ping(9) + op(77), u32(9), true},
  };
}

/// Plain sockets in this thread: the server runs elsewhere.
void conforms(int port) {
  for (exchange const& e : table()) {
    INFO(e.rule);
    for (const bool in_pieces : {false, true}) {
      // The second time round state differs; what creates or counts is told once.
      if (in_pieces && (e.closes || e.reply.empty() || contains(e.rule, "VALIDATE"))) continue;
      const rc::unique_fd peer = plain_connect(port);
      REQUIRE(peer);
      const string bytes = req::validate() + (in_pieces ? req::ping(4) : e.request);
      if (in_pieces) {
        for (const char c : bytes) REQUIRE(send_all(peer.get(), string_view(&c, 1)));
        CHECK(receive(peer.get(), 4) == u32(4));
        continue;
      }
      REQUIRE(send_all(peer.get(), bytes));
      const string reply = receive(peer.get(), e.reply.size());
      CHECK((reply == e.reply));
      if (e.closes) {
        CHECK(receive(peer.get(), 1).empty());
      } else {
        REQUIRE(send_all(peer.get(), req::ping(0xabcd)));  // still there, and nothing stands in between
        CHECK(receive(peer.get(), 4) == u32(0xabcd));
      }
    }
  }
  for (string const& first : {req::ping(1), op(0) + u32(0x04030201), req::set("/nv", "1")}) {
    const rc::unique_fd peer = plain_connect(port);
    REQUIRE(send_all(peer.get(), first));
    CHECK(receive(peer.get(), 1).empty());
  }
}

}  // namespace

TEST_CASE("serve() answers as the table says", "[wire]") {
  const watchdog dog(current_case());
  rc::listener at = rc::listen(rc::listen_options{});
  const int port = at.port();
  rc::loop l;
  rc::poster door = l.post_handle();
  rc::stop_source stop;
  std::thread server([&] { rc::sync_wait(l, rc::serve(l, std::move(at)), stop.token()); });
  conforms(port);
  door.post([&] { stop.request_stop(); });
  server.join();
  expect_nothing_left(l);
}

TEST_CASE("legacy_server answers as the table says", "[wire]") {
  const watchdog dog(current_case());
  rc::legacy_server server(rc::listen_options{});
  server.start();
  conforms(server.port());
}

TEST_CASE("mini_server answers as the table says", "[wire]") {
  NEEDS_EXAMPLE(program, "mini_server");
  server_process server(program);
  conforms(server.port());
  server.kill(SIGTERM);
  CHECK(server.finish() == 0);
}
