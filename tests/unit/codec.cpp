#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support.hpp"

using namespace unit;
using wire::decode_error;
using wire::decode_status;
using wire::opcode;

namespace {

using text = std::string;
using pairs = std::vector<std::pair<text, text>>;

/// A request with bytes of its own.
struct owned_request {
  opcode op{};
  std::uint32_t nonce = 0;
  text key, value, value2;
  std::int64_t number = 0;
  std::vector<text> fields;
  bool operator==(owned_request const&) const = default;
};

owned_request own(wire::request const& r) {
  owned_request o;
  o.op = r.op;
  const wire::detail::shape form = wire::detail::request_shapes[static_cast<std::size_t>(r.op)];
  if (form.counted) {
    for (wire::field_cursor f(r.body); !f.done();) o.fields.emplace_back(f.next());
    CHECK(o.fields.size() == r.count * form.columns);
    if (r.count == 1) o.key = r.key;
    return o;
  }
  if (form.columns > 0) o.key = r.key;
  if (form.columns > 1) o.value = r.value;
  if (form.columns > 2) o.value2 = r.value2;
  if (form.tail == 8) o.number = r.number;
  if (form.tail == 4) o.nonce = r.nonce;
  return o;
}

struct form {
  text bytes;
  owned_request meaning;
};

/// One or more of each opcode, empty and binary fields among them. VALIDATE is not here: it comes first and only once.
std::vector<form> const& every_form() {
  static std::vector<form> const all = [] {
    std::vector<form> v;
    const text binary("\0\xff/\n", 4);
    const auto one = [&v](auto&& encode, owned_request meaning) {
      text b;
      encode(b);
      v.push_back({b, std::move(meaning)});
    };
    const auto key_only = [&](opcode op, auto encode) {
      one([&](text& b) { encode(b, "/", "k"); }, {op, 0, "/k", "", "", 0, {}});
      one([&](text& b) { encode(b, "", ""); }, {op, 0, "", "", "", 0, {}});
    };
    const auto key_value = [&](opcode op, auto encode) {
      one([&](text& b) { encode(b, "/", "key", "value"); }, {op, 0, "/key", "value", "", 0, {}});
      one([&](text& b) { encode(b, "/p/", binary, ""); }, {op, 0, "/p/" + binary, "", "", 0, {}});
      one([&](text& b) { encode(b, "", "", text(300, 'x')); }, {op, 0, "", text(300, 'x'), "", 0, {}});
    };
    const auto key_number = [&](opcode op, auto encode) {
      for (const std::int64_t n : {std::int64_t{7}, std::int64_t{-1}, INT64_MIN, INT64_MAX})
        one([&](text& b) { encode(b, "/", "n", n); }, {op, 0, "/n", "", "", n, {}});
      one([&](text& b) { encode(b, "", "init/", 1); }, {op, 0, "init/", "", "", 1, {}});
    };
    const auto many = [&](opcode op, auto encode) {
      one([&](text& b) { encode(b, "/", keys()); }, {op, 0, "", "", "", 0, {}});
      one([&](text& b) { encode(b, "/", keys("a")); }, {op, 0, "/a", "", "", 0, {"/a"}});
      one([&](text& b) { encode(b, "", keys("", binary, "ccc")); }, {op, 0, "", "", "", 0, {"", binary, "ccc"}});
    };
    key_value(opcode::set, [](text& b, auto... a) { wire::encode_set(b, a...); });
    key_value(opcode::append, [](text& b, auto... a) { wire::encode_append(b, a...); });
    key_value(opcode::queue_push, [](text& b, auto... a) { wire::encode_queue_push(b, a...); });
    key_only(opcode::get, [](text& b, auto... a) { wire::encode_get(b, a...); });
    key_only(opcode::delete_key, [](text& b, auto... a) { wire::encode_delete_key(b, a...); });
    key_only(opcode::queue_pop, [](text& b, auto... a) { wire::encode_queue_pop(b, a...); });
    key_only(opcode::queue_len, [](text& b, auto... a) { wire::encode_queue_len(b, a...); });
    key_number(opcode::add, [](text& b, auto... a) { wire::encode_add(b, a...); });
    key_number(opcode::barrier, [](text& b, auto... a) { wire::encode_barrier(b, a...); });
    many(opcode::check, [](text& b, auto const&... a) { wire::encode_check(b, a...); });
    many(opcode::wait, [](text& b, auto const&... a) { wire::encode_wait(b, a...); });
    many(opcode::multi_get, [](text& b, auto const&... a) { wire::encode_multi_get(b, a...); });
    one([](text& b) { wire::encode_compare_set(b, "/", "k", "old", "newer"); }, {opcode::compare_set, 0, "/k", "old", "newer", 0, {}});
    one([](text& b) { wire::encode_compare_set(b, "/", "k", "", ""); }, {opcode::compare_set, 0, "/k", "", "", 0, {}});
    one([](text& b) { wire::encode_multi_set(b, "/", pairs()); }, {opcode::multi_set, 0, "", "", "", 0, {}});
    one([](text& b) { wire::encode_multi_set(b, "/", pairs{{"a", "1"}, {"b", ""}}); },
        {opcode::multi_set, 0, "", "", "", 0, {"/a", "1", "/b", ""}});
    one([](text& b) { wire::encode_num_keys(b); }, {opcode::num_keys, 0, "", "", "", 0, {}});
    one([](text& b) { wire::encode_cancel_wait(b); }, {opcode::cancel_wait, 0, "", "", "", 0, {}});
    one([](text& b) { wire::encode_list_keys(b); }, {opcode::list_keys, 0, "", "", "", 0, {}});
    one([](text& b) { wire::encode_ping(b, 0xfedcba98); }, {opcode::ping, 0xfedcba98, "", "", "", 0, {}});
    return v;
  }();
  return all;
}

text validation() {
  text b;
  wire::encode_validate(b);
  return b;
}

/// What a decoder makes of a stream that arrives in the given pieces.
struct outcome {
  std::vector<owned_request> requests;
  decode_error error = decode_error::none;
  bool halfway = false;
  bool operator==(outcome const&) const = default;
};

class feeder {
 public:
  explicit feeder(wire::limits const& max = {}) : max_(max) {}
  void feed(std::string_view piece) {
    wire::request r;
    for (;;) {
      const decode_status s = decoder_.next(piece, r, max_);
      if (s == decode_status::complete) {
        got_.requests.push_back(own(r));
        continue;
      }
      if (s == decode_status::need_more) CHECK(piece.empty());
      got_.error = decoder_.error();
      got_.halfway = s == decode_status::need_more && decoder_.halfway();
      return;
    }
  }
  [[nodiscard]] outcome const& got() const { return got_; }
  wire::request_decoder& decoder() { return decoder_; }

 private:
  wire::limits max_;
  wire::request_decoder decoder_;
  outcome got_;
};

outcome decode(std::vector<std::string_view> const& pieces, wire::limits const& max = {}) {
  feeder f(max);
  for (std::string_view p : pieces) f.feed(p);
  return f.got();
}

/// A decoder that has seen VALIDATE, for one more message.
decode_error error_of(std::string_view message, wire::limits const& max = {}) {
  const outcome o = decode({validation(), message}, max);
  CHECK(o.requests.size() == 1);
  return o.error;
}

text head(opcode op, std::initializer_list<std::uint64_t> numbers) {
  text b(1, static_cast<char>(op));
  for (const std::uint64_t n : numbers) wire::put_u64(b, n);
  return b;
}

}  // namespace

TEST_CASE("the numbers of the protocol") {
  text b;
  wire::encode_validate(b);
  CHECK(b == text("\0\xce\xf7\x85\x3c", 5));
  b.clear();
  wire::encode_add(b, "/", "n", 7);
  CHECK(b == text("\x04\x02\0\0\0\0\0\0\0/n\x07\0\0\0\0\0\0\0", 19));
  CHECK(static_cast<int>(opcode::barrier) == 18);
  CHECK(to_string(opcode::num_keys) == "GETNUMKEYS");
  CHECK(to_string(static_cast<opcode>(19)) == "?");
  CHECK(wire::detail::swapped(std::uint32_t{0x01020304}) == 0x04030201);
}

TEST_CASE("every request form survives encode and decode, whole, in two pieces split anywhere, and byte by byte") {
  for (form const& f : every_form()) {
    CAPTURE(to_string(f.meaning.op));
    const outcome expected{{{opcode::validate, wire::validate_magic, "", "", "", 0, {}}, f.meaning}, decode_error::none, false};
    const text stream = validation() + f.bytes;
    CHECK(decode({stream}) == expected);
    const std::string_view s = stream;
    for (std::size_t i = 0; i <= s.size(); ++i) CHECK(decode({s.substr(0, i), s.substr(i)}) == expected);
    feeder one_by_one;
    for (std::size_t i = 0; i < s.size(); ++i) one_by_one.feed(s.substr(i, 1));
    CHECK(one_by_one.got() == expected);
  }
}

TEST_CASE("all request forms in one stream are found again, however the stream is cut") {
  text stream = validation();
  std::vector<owned_request> expected{{opcode::validate, wire::validate_magic, "", "", "", 0, {}}};
  for (form const& f : every_form()) {
    stream += f.bytes;
    expected.push_back(f.meaning);
  }
  const std::string_view s = stream;
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, std::size_t{64}, s.size()}) {
    feeder f;
    for (std::size_t i = 0; i < s.size(); i += step) f.feed(s.substr(i, step));
    CHECK(f.got() == outcome{expected, decode_error::none, false});
  }
}

TEST_CASE("a whole request is decoded in place and touches no heap") {
  feeder f;
  f.feed(validation());
  for (form const& m : every_form()) {
    const text input = m.bytes;
    std::string_view left = input;
    wire::request r;
    const std::size_t before = allocations().calls;
    CHECK(f.decoder().next(left, r, {}) == decode_status::complete);
    CHECK(allocations().calls == before);
    CHECK(left.empty());
    if (r.op == opcode::set) CHECK((r.key.data() >= input.data() && r.key.data() <= input.data() + input.size()));
  }
}

TEST_CASE("an incomplete request holds its own bytes only, and lets go of them when the next call comes") {
  feeder f;
  text set = validation();
  wire::encode_set(set, "/", "key", text(100, 'v'));
  f.feed(std::string_view(set).substr(0, 60));
  CHECK(f.decoder().halfway());
  CHECK(f.decoder().held() > 0);
  CHECK(f.decoder().held() < 512);
  text rest = set.substr(60);
  wire::encode_ping(rest, 1);
  std::string_view left = rest;
  wire::request r;
  CHECK(f.decoder().next(left, r, {}) == decode_status::complete);
  CHECK(r.value == text(100, 'v'));
  CHECK(left.size() == 5);
  CHECK_FALSE(f.decoder().halfway());
  CHECK(f.decoder().next(left, r, {}) == decode_status::complete);
  CHECK(f.decoder().held() == 0);
}

TEST_CASE("the first message must be VALIDATE with the right magic, later ones must not be") {
  CHECK(decode({text("\x0d\x07\0\0\0", 5)}).error == decode_error::not_validated);
  CHECK(decode({"\x63"}).error == decode_error::not_validated);
  CHECK(decode({text("\0\x01\x02\x03\x04", 5)}).error == decode_error::bad_magic);
  const text wrong("\0\xce\xf7\x85\x3d", 5);
  for (std::size_t i = 0; i <= 5; ++i)
    CHECK(decode({std::string_view(wrong).substr(0, i), std::string_view(wrong).substr(i)}).error == decode_error::bad_magic);
  CHECK(error_of(validation()) == decode_error::validate_twice);
  CHECK(error_of(std::string_view(validation()).substr(0, 1)) == decode_error::validate_twice);
}

TEST_CASE("unknown opcodes are refused") {
  for (unsigned op = wire::opcode_count; op < 256; ++op)
    CHECK(error_of(text(1, static_cast<char>(op))) == decode_error::unknown_opcode);
}

TEST_CASE("a decoder that has met an error says so for ever") {
  feeder f;
  f.feed("\x63");
  f.feed(validation());
  CHECK(f.got().requests.empty());
  CHECK(f.got().error == decode_error::not_validated);
}

TEST_CASE("limits hold as soon as the length is read, at N + 1 and not at N") {
  const std::uint64_t key = 8192;
  const std::uint64_t value = 8 << 20;
  for (const opcode op : {opcode::set, opcode::get, opcode::add, opcode::delete_key, opcode::compare_set, opcode::barrier,
                          opcode::queue_pop}) {
    CHECK(error_of(head(op, {key})) == decode_error::none);
    CHECK(error_of(head(op, {key + 1})) == decode_error::key_too_long);
    CHECK(error_of(head(op, {std::uint64_t{1} << 63})) == decode_error::key_too_long);
    CHECK(error_of(head(op, {UINT64_MAX})) == decode_error::key_too_long);
  }
  for (const opcode op : {opcode::set, opcode::append, opcode::queue_push, opcode::compare_set}) {
    CHECK(error_of(head(op, {0, value})) == decode_error::none);
    CHECK(error_of(head(op, {0, value + 1})) == decode_error::value_too_long);
    CHECK(error_of(head(op, {0, UINT64_MAX})) == decode_error::value_too_long);
  }
  CHECK(error_of(head(opcode::compare_set, {0, 0, value + 1})) == decode_error::value_too_long);
  for (const opcode op : {opcode::check, opcode::wait, opcode::multi_get, opcode::multi_set}) {
    CHECK(error_of(head(op, {131072})) == decode_error::none);
    CHECK(error_of(head(op, {131073})) == decode_error::too_many_keys);
    CHECK(error_of(head(op, {UINT64_MAX})) == decode_error::too_many_keys);
    CHECK(error_of(head(op, {1, key + 1})) == decode_error::key_too_long);
    CHECK(error_of(head(op, {2, 0, op == opcode::multi_set ? value + 1 : key + 1})) != decode_error::none);
  }
}

TEST_CASE("limits hold however the request is cut") {
  const wire::limits small = wire::limits().key_bytes(4).value_bytes(6).key_count(2).request_bytes(40);
  const auto judge = [&](text const& message) {
    const text stream = validation() + message;
    const decode_error whole = decode({stream}, small).error;
    for (std::size_t i = 0; i <= stream.size(); ++i) {
      const std::string_view s = stream;
      CHECK(decode({s.substr(0, i), s.substr(i)}, small).error == whole);
    }
    return whole;
  };
  text b;
  wire::encode_set(b, "", "1234", "123456");
  CHECK(judge(b) == decode_error::none);
  b.clear();
  wire::encode_set(b, "", "12345", "1");
  CHECK(judge(b) == decode_error::key_too_long);
  b.clear();
  wire::encode_set(b, "", "1", "1234567");
  CHECK(judge(b) == decode_error::value_too_long);
  b.clear();
  wire::encode_check(b, "", {"a", "b"});
  CHECK(judge(b) == decode_error::none);
  b.clear();
  wire::encode_check(b, "", {"a", "b", "c"});
  CHECK(judge(b) == decode_error::too_many_keys);
  b.clear();
  wire::encode_compare_set(b, "", "1234", "123456", "12345");
  CHECK(b.size() == 40);
  CHECK(judge(b) == decode_error::none);
  b.clear();
  wire::encode_compare_set(b, "", "1234", "123456", "123456");
  CHECK(judge(b) == decode_error::request_too_long);
  b.clear();
  wire::encode_multi_set(b, "", pairs{{"a", "1"}, {"b", "12345"}});
  CHECK(judge(b) == decode_error::request_too_long);
  CHECK(error_of(head(opcode::multi_set, {100000}), wire::limits().request_bytes(1000)) == decode_error::request_too_long);
}

TEST_CASE("a declared size reserves nothing") {
  const std::uint64_t value = 8 << 20;
  for (text const& start : {head(opcode::set, {0, value}), head(opcode::set, {8192}), head(opcode::multi_set, {131072, 8192}),
                            head(opcode::wait, {131072, 8192}), head(opcode::compare_set, {0, value})}) {
    feeder f;
    f.feed(validation());
    const std::size_t before = allocations().bytes;
    f.feed(start);
    f.feed("some bytes that really arrive");
    CHECK(allocations().bytes - before < 1024);
    CHECK(f.decoder().halfway());
    CHECK(f.decoder().held() < 512);
  }
}

TEST_CASE("a long request in small pieces costs a number of allocations that is logarithmic in its size") {
  text message = validation();
  wire::encode_set(message, "/", "k", text(200000, 'v'));
  feeder f;
  const std::size_t before = allocations().calls;
  for (std::size_t i = 0; i < message.size(); i += 500) f.feed(std::string_view(message).substr(i, 500));
  CHECK(f.got().requests.size() == 2);
  CHECK(allocations().calls - before < 60);
}

TEST_CASE("garbage never confuses a decoder: whole or in pieces, it comes to the same requests and the same error") {
  xorshift rng(7);
  text valid;
  for (form const& f : every_form()) valid += f.bytes;
  for (int round = 0; round < 300; ++round) {
    text stream = validation();
    if (round % 3 == 0) {
      for (int i = 0; i < 40; ++i) stream += static_cast<char>(rng.below(256));
    } else {
      const std::size_t from = rng.below(valid.size());
      stream += every_form()[rng.below(every_form().size())].bytes + valid.substr(from, 200);
      for (std::size_t n = rng.below(4); n > 0; --n) stream[rng.below(stream.size())] = static_cast<char>(rng.below(256));
    }
    const outcome whole = decode({stream});
    feeder f;
    for (std::string_view s = stream; !s.empty();) {
      const std::size_t n = std::min(s.size(), 1 + rng.below(9));
      f.feed(s.substr(0, n));
      s.remove_prefix(n);
    }
    CHECK(f.got() == whole);
  }
}

namespace {

struct owned_reply {
  std::int64_t number = 0;
  text value;
  std::vector<text> fields;
  bool operator==(owned_reply const&) const = default;
};

struct reply_case {
  wire::reply_form form;
  std::uint64_t count;
  text encoded;
  owned_reply meaning;
};

owned_reply own(wire::reply const& r, wire::reply_form f) {
  owned_reply o;
  switch (f) {
    case wire::reply_form::u8:
    case wire::reply_form::u32:
    case wire::reply_form::i64: o.number = r.number; break;
    case wire::reply_form::bytes: o.value = r.bytes; break;
    case wire::reply_form::popped: o.number = r.number, o.value = r.bytes; break;
    case wire::reply_form::list: o.number = r.number; [[fallthrough]];
    case wire::reply_form::many:
      for (wire::field_cursor c(r.body); !c.done();) o.fields.emplace_back(c.next());
      CHECK(o.fields.size() == r.count);
  }
  return o;
}

std::vector<reply_case> const& every_reply() {
  using wire::reply_form;
  static std::vector<reply_case> const all{
      {reply_form::u8, 0, u8(1), {1, "", {}}},
      {reply_form::u32, 0, text("\x98\xba\xdc\xfe", 4), {0xfedcba98, "", {}}},
      {reply_form::i64, 0, i64(-2), {-2, "", {}}},
      {reply_form::bytes, 0, bytes("value"), {0, "value", {}}},
      {reply_form::bytes, 0, bytes(""), {0, "", {}}},
      {reply_form::many, 0, "", {0, "", {}}},
      {reply_form::many, 3, bytes("a") + bytes("") + bytes("ccc"), {0, "", {"a", "", "ccc"}}},
      {reply_form::popped, 0, i64(0), {0, "", {}}},
      {reply_form::popped, 0, i64(-1), {-1, "", {}}},
      {reply_form::popped, 0, i64(5) + bytes("item"), {5, "item", {}}},
      {reply_form::popped, 0, i64(1) + bytes(""), {1, "", {}}},
      {reply_form::list, 0, i64(0), {0, "", {}}},
      {reply_form::list, 0, i64(2) + bytes("/a") + bytes("init/"), {2, "", {"/a", "init/"}}},
  };
  return all;
}

}  // namespace

TEST_CASE("every reply form is decoded whole, in two pieces split anywhere, and byte by byte") {
  for (reply_case const& c : every_reply()) {
    const auto feed = [&](wire::reply_decoder& d, std::vector<std::string_view> const& pieces) {
      d.expect(c.form, c.count);
      decode_status s = decode_status::need_more;
      for (std::string_view p : pieces) {
        REQUIRE(s == decode_status::need_more);
        s = d.next(p);
        CHECK(p.empty());
      }
      REQUIRE(s == decode_status::complete);
      CHECK(own(d.value(), c.form) == c.meaning);
    };
    wire::reply_decoder d;
    const std::string_view s = c.encoded;
    feed(d, {s});
    for (std::size_t i = 0; i < s.size(); ++i) feed(d, {s.substr(0, i), s.substr(i)});
    std::vector<std::string_view> bytes_of;
    for (std::size_t i = 0; i < s.size(); ++i) bytes_of.push_back(s.substr(i, 1));
    if (!bytes_of.empty()) feed(d, bytes_of);
  }
}

TEST_CASE("replies in one stream follow each other, wanted or not") {
  text stream;
  for (reply_case const& c : every_reply()) stream += c.encoded;
  for (const bool discard : {false, true}) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{5}, stream.size()}) {
      wire::reply_decoder d;
      std::string_view input;
      std::size_t taken = 0;
      for (reply_case const& c : every_reply()) {
        d.expect(c.form, c.count, discard);
        while (d.next(input) == decode_status::need_more) {
          REQUIRE(taken < stream.size());
          input = std::string_view(stream).substr(taken, step);
          taken += input.size();
        }
        if (!discard) CHECK(own(d.value(), c.form) == c.meaning);
      }
      CHECK(input.empty());
      CHECK(d.error() == decode_error::none);
    }
  }
}

TEST_CASE("a reply with an impossible size is an error, and reserves nothing") {
  const auto error = [](wire::reply_form f, text const& b) {
    wire::reply_decoder d(1000);
    d.expect(f);
    std::string_view v = b;
    const std::size_t before = allocations().bytes;
    const decode_status s = d.next(v);
    CHECK(allocations().bytes - before < 512);
    CHECK((s == decode_status::bad) == (d.error() != decode_error::none));
    return d.error();
  };
  CHECK(error(wire::reply_form::bytes, i64(992)) == decode_error::none);
  CHECK(error(wire::reply_form::bytes, i64(993)) == decode_error::reply_too_long);
  CHECK(error(wire::reply_form::bytes, i64(-1)) == decode_error::reply_too_long);
  CHECK(error(wire::reply_form::list, i64(-1)) == decode_error::negative_count);
  CHECK(error(wire::reply_form::list, i64(126)) == decode_error::reply_too_long);
  CHECK(error(wire::reply_form::list, i64(2) + i64(500)) == decode_error::none);
  CHECK(error(wire::reply_form::popped, i64(1) + i64(993)) == decode_error::reply_too_long);
}
