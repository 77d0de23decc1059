#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support.hpp"

using namespace unit;
using nlohmann::json;

namespace {

std::string unhex(std::string_view h) {
  std::string out;
  for (std::size_t i = 0; i + 1 < h.size(); i += 2) out += static_cast<char>(std::stoi(std::string(h.substr(i, 2)), nullptr, 16));
  return out;
}
std::string hex(std::string_view b) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : b) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

/// One bit for each recorded server.
enum servers : unsigned { old_legacy = 1, old_libuv = 2, new_legacy = 4, new_libuv = 8, legacy = 5, libuv = 10, newest = 12, all = 15 };

struct recording {
  std::string name;
  servers server;
  std::vector<json> lines;
};

std::vector<recording> const& recordings() {
  static std::vector<recording> const read = [] {
    std::vector<recording> r{{"torch-2.6.0", old_legacy, {}},
                             {"torch-2.6.0-libuv", old_libuv, {}},
                             {"torch-2.13.0-legacy", new_legacy, {}},
                             {"torch-2.13.0-libuv", new_libuv, {}}};
    for (recording& f : r) {
      std::ifstream in(std::string(ROLLCALL_TEST_VECTORS "/") + f.name + ".jsonl");
      for (std::string line; std::getline(in, line);) f.lines.push_back(json::parse(line));
    }
    return r;
  }();
  return read;
}

std::string field(json const& line, char const* name) { return line.at(name).get<std::string>(); }
bool is_raw(json const& line) { return field(line, "op").rfind("raw:", 0) == 0; }

/// What another client did while the recorded one waited, where the recording does not say so itself.
std::string meanwhile(std::string const& op) {
  std::string b;
  if (op == "wait (set by another client after 0.5 s)") wire::encode_set(b, "/", "late", "x");
  if (op == "wait (add by another client after 0.5 s)") wire::encode_add(b, "/", "late-add", 1);
  if (op == "queue_pop (pushed by another client after 0.5 s)") wire::encode_queue_push(b, "/", "lq", "item");
  if (op == "barrier (other comes after 0.5 s)") wire::encode_barrier(b, "/", "b3", 2);
  return b;
}

/// Where we answer differently from recorded servers, and why (design.md 4, protocol.md 16).
struct difference {
  unsigned server;
  std::string op;
  std::string sent;  // hex of what we send instead
  bool closed;
  std::string reason;
};

std::vector<difference> const& differences() {
  static std::vector<difference> const list{
      {libuv, "raw:no validate, PING first", "", true, "peers that do not validate are refused at once"},
      {libuv, "raw:no validate, SET then CHECK", "", true, "peers that do not validate are refused at once"},
      {libuv, "raw:validate with a wrong magic, then PING", "", true, "a wrong magic is refused at once"},
      {new_libuv, "raw:VALIDATE split after the opcode, then PING", "07000000", false, "VALIDATE may be split as any message"},
      {new_libuv, "raw:VALIDATE split inside the magic, then PING", "07000000", false, "VALIDATE may be split as any message"},
      {legacy, "raw:GET of a missing key", "0000000000000000", false, "a missing key has an empty value"},
      {legacy, "raw:MULTI_GET with a missing key", "0100000000000000310000000000000000", false, "a missing key has an empty value"},
      {all, "raw:ADD past the largest int64", "", true, "a sum outside 64 bits closes, it does not wrap"},
      {legacy, "raw:COMPARE_SET wakes a waiter?", "00", false, "a COMPARE_SET that stores wakes"},
      {libuv, "raw:COMPARE_SET that does not match: wakes a waiter of the absent key?", "", false, "one that stores nothing wakes nobody"},
      {legacy, "raw:key length over the limit (8193)", "", true, "limits hold on every back end"},
      {legacy, "raw:value length claimed 8 MiB + 1", "", true, "limits hold on every back end"},
      {legacy, "raw:WAIT claims 128 Ki + 1 keys", "", true, "limits hold on every back end"},
      {old_legacy | old_libuv | new_legacy, "raw:QUEUE_PUSH, QUEUE_LEN, QUEUE_POP, QUEUE_POP",
       "010000000000000001000000000000000100000000000000610000000000000000", false, "queues on every back end"},
      {new_legacy, "raw:WAIT on a queue, pushed by another", "00", false, "queues on every back end"},
      {new_legacy, "raw:CHECK of a queue that has an item", "00", false, "queues on every back end"},
      {new_legacy, "raw:WAIT on a queue that has an item and a missing key; then SET of the key", "", false,
       "queues on every back end; the recorded server closed before the key was set"},
      {new_libuv, "raw:WAIT on a queue that has an item and a missing key; then SET of the key", "00", false,
       "only what is missing is waited for: the item is there"},
      {new_legacy, "raw:GET, DELETE_KEY, GETNUMKEYS do not see queues", "2500000000000000250000000000000000000000000000000100000000000000",
       false, "queues on every back end"},
      {new_legacy, "raw:QUEUE_PUSH of an empty item, QUEUE_POP", "01000000000000000000000000000000", false, "queues on every back end"},
      {newest, "raw:CHECK of a key outside the / name space", "00", false, "this is the capability probe: we are the ones who say READY"},
  };
  return list;
}

difference const* find_difference(recording const& f, std::string const& op) {
  for (difference const& d : differences())
    if (d.op == op && (d.server & f.server) != 0) return &d;
  return nullptr;
}

/// LIST_KEYS tells its keys in no order: sorted here, so that they compare as a set.
std::string sorted_list(std::string const& reply) {
  std::vector<std::string> names;
  for (wire::field_cursor f(std::string_view(reply).substr(8)); !f.done();) names.emplace_back(f.next());
  std::sort(names.begin(), names.end());
  std::string out = reply.substr(0, 8);
  for (std::string const& n : names) out += bytes(n);
  return out;
}

/// Replays one line against `store`; what the recorded client was sent, and whether it was closed.
std::pair<std::string, bool> replay(engine::store& store, peer& client, json const& line) {
  const std::string op = field(line, "op");
  std::string other_bytes = meanwhile(op);
  std::string got;
  std::string said;
  for (json const& step : line.at("exchange")) {
    const std::string who = step.at(0);
    const std::string what = unhex(step.at(1).get<std::string>());
    if (who == "c") {
      client.feed(what);
      said += what;
    } else if (who == "other" || (who == "s" && !other_bytes.empty())) {
      peer other(store);
      other.feed(who == "other" ? what : std::exchange(other_bytes, ""));
      got += client.take();
    } else {
      CHECK(who == "s");
    }
    got += client.take();
  }
  CHECK(hex(said) == field(line, "client_to_server"));
  CHECK(other_bytes.empty());
  return {got, client.closed};
}

}  // namespace

TEST_CASE("PyTorch's clients get from this engine what they got from PyTorch's servers") {
  std::map<difference const*, unsigned> used;
  for (recording const& f : recordings()) {
    REQUIRE(f.lines.size() >= 76);
    engine::store store{engine::store_options()};
    std::unique_ptr<peer> client;
    for (json const& line : f.lines) {
      const std::string op = field(line, "op");
      CAPTURE(f.name);
      CAPTURE(op);
      std::pair<std::string, bool> got;
      if (is_raw(line)) {
        // raw lines have a connection of their own, which has sent VALIDATE unless they are about just that
        const bool validate = op.rfind("raw:no validate", 0) != 0 && op.rfind("raw:validate with a wrong magic", 0) != 0 &&
                              op.rfind("raw:VALIDATE split", 0) != 0;
        peer raw(store, validate);
        got = replay(store, raw, line);
      } else {
        if (op.rfind("connect", 0) == 0) client = std::make_unique<peer>(store, false);
        got = replay(store, *client, line);
      }
      std::string expected = unhex(field(line, "server_to_client"));
      bool closed = is_raw(line) && line.at("closed").get<bool>();
      if (difference const* d = find_difference(f, op)) {
        used[d] |= f.server;
        CHECK((hex(expected) != d->sent || closed != d->closed));
        expected = unhex(d->sent);
        closed = d->closed;
      }
      if (op == "list_keys" || op == "raw:LIST_KEYS") {
        got.first = sorted_list(got.first);
        expected = sorted_list(expected);
      }
      CHECK(hex(got.first) == hex(expected));
      CHECK(got.second == closed);
    }
  }
  for (difference const& d : differences()) {
    CAPTURE(d.op);
    CHECK(used[&d] == d.server);
  }
}

namespace {

/// Our encoding of a recorded call of PyTorch's client (protocol 5).
std::string encode_call(json const& line) {
  const std::string whole = field(line, "op");
  const std::string op = whole.substr(0, whole.find(" ("));
  json const& args = line.at("args");
  const auto text = [&args](std::size_t i) { return args.at(i).get<std::string>(); };
  const auto list = [&args](std::size_t i) { return args.at(i).get<std::vector<std::string>>(); };
  std::string b;
  if (op == "connect") {
    wire::encode_validate(b);
    wire::encode_ping(b, wire::load<std::uint32_t>(unhex(field(line, "server_to_client")).data()));
    if (whole != op) wire::encode_add(b, "", "init/", 1);
  } else if (op == "set") {
    wire::encode_set(b, "/", text(0), text(1));
  } else if (op == "get") {
    wire::encode_wait(b, "/", keys(text(0)));
    wire::encode_get(b, "/", text(0));
  } else if (op == "add") {
    wire::encode_add(b, "/", text(0), args.at(1).get<std::int64_t>());
  } else if (op == "compare_set") {
    wire::encode_compare_set(b, "/", text(0), text(1), text(2));
  } else if (op == "check") {
    wire::encode_check(b, "/", list(0));
  } else if (op == "wait") {
    wire::encode_wait(b, "/", list(0));
  } else if (op == "num_keys") {
    wire::encode_num_keys(b);
  } else if (op == "delete_key") {
    wire::encode_delete_key(b, "/", text(0));
  } else if (op == "append") {
    wire::encode_append(b, "/", text(0), text(1));
  } else if (op == "multi_set") {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (std::size_t i = 0; i < list(0).size(); ++i) pairs.emplace_back(list(0)[i], list(1)[i]);
    wire::encode_multi_set(b, "/", pairs);
  } else if (op == "multi_get") {
    wire::encode_wait(b, "/", list(0));
    wire::encode_multi_get(b, "/", list(0));
  } else if (op == "queue_push") {
    wire::encode_queue_push(b, "/", text(0), text(1));
  } else if (op == "queue_pop") {
    if (args.size() < 2 || args.at(1).get<bool>()) wire::encode_wait(b, "/", keys(text(0)));
    wire::encode_queue_pop(b, "/", text(0));
  } else if (op == "queue_len") {
    wire::encode_queue_len(b, "/", text(0));
  } else if (op == "list_keys") {
    wire::encode_list_keys(b);
  } else if (op == "barrier") {
    wire::encode_barrier(b, "/", text(0), args.at(1).get<std::int64_t>());
  } else {
    FAIL("no encoding for " << whole);
  }
  if (whole.find("times out") != std::string::npos) wire::encode_cancel_wait(b);
  return b;
}

}  // namespace

TEST_CASE("our encoding of every recorded call is PyTorch's, byte for byte") {
  for (recording const& f : recordings()) {
    for (json const& line : f.lines) {
      if (is_raw(line)) continue;
      const std::string op = field(line, "op");
      CAPTURE(f.name);
      CAPTURE(op);
      if (f.server == new_legacy && op.rfind("queue_", 0) == 0) {
        CHECK(field(line, "client_to_server").empty());  // refused by the client itself (protocol 5)
      } else {
        CHECK(hex(encode_call(line)) == field(line, "client_to_server"));
      }
    }
  }
}
