// The format of PyTorch's FileStore (rendezvous 3.1), cut at every byte, with every kind of damage.
#include <doctest/doctest.h>

#include <rollcall/stores/detail/file_map.hpp>
#include <string>
#include <string_view>
#include <vector>

using namespace rollcall::detail;
using namespace std::string_view_literals;
using status = record_reader::status;

namespace {

// What PyTorch 2.6 wrote: construction, set k=v, add n 5, add n -7, delete zz, delete k, compare_set c ""->x, then x->y.
constexpr std::string_view recorded =
    "\x09\0\0\0refcount/\x01\0\0\0"
    "1"
    "\x02\0\0\0/k\x01\0\0\0v"
    "\x02\0\0\0/n\x01\0\0\0"
    "5"
    "\x02\0\0\0/n\x02\0\0\0-2"
    "\x04\0\0\0-/zz\0\0\0\0"
    "\x03\0\0\0-/k\0\0\0\0"
    "\x02\0\0\0/c\x01\0\0\0x"
    "\x02\0\0\0/c\x01\0\0\0y"sv;

/// Reads `bytes` into `map`; how it ended, and how many records there were.
status read(std::string_view bytes, file_map& map, int& count) {
  record_reader records(bytes);
  status s = records.next();
  for (count = 0; s == status::record; s = records.next(), ++count) map.apply(records.key(), records.value());
  return s;
}
std::string value(file_map const& m, std::string_view key) {
  std::string const* v = m.find(key);
  return v ? *v : "(none)";
}

}  // namespace

TEST_CASE("a recorded file reads as it was written") {
  file_map m;
  int count = 0;
  CHECK(read(recorded, m, count) == status::end);
  CHECK(count == 8);
  CHECK(m.size() == 2);
  CHECK(value(m, "n") == "-2");
  CHECK(value(m, "c") == "y");
  CHECK(value(m, "k") == "(none)");
  CHECK(m.count(file_format::refcount) == 1);
  CHECK(m.count(file_format::cleanup) == 0);
}

TEST_CASE("records are written as PyTorch writes them") {
  std::string out;
  put_record(out, {}, file_format::refcount, "1");
  put_record(out, file_format::user, "k", "v");
  put_record(out, file_format::user, "n", "5");
  put_record(out, file_format::user, "n", "-2");
  put_record(out, file_format::removal, "zz", "");
  put_record(out, file_format::removal, "k", "");
  put_record(out, file_format::user, "c", "x");
  put_record(out, file_format::user, "c", "y");
  CHECK(out == recorded);
}

TEST_CASE("a file that is cut anywhere is whole up to its last whole record, and torn behind it") {
  std::vector<std::size_t> ends{0};
  {
    record_reader records(recorded);
    while (records.next() == status::record) ends.push_back(recorded.size() - records.rest().size());
  }
  for (std::size_t cut = 0; cut <= recorded.size(); ++cut) {
    CAPTURE(cut);
    file_map m;
    int count = 0;
    std::size_t whole = 0;
    while (whole + 1 < ends.size() && ends[whole + 1] <= cut) ++whole;
    CHECK(read(recorded.substr(0, cut), m, count) == (ends[whole] == cut ? status::end : status::torn));
    CHECK(count == static_cast<int>(whole));
    record_reader records(recorded.substr(0, cut));
    while (records.next() == status::record) {}
    CHECK(records.rest().size() == cut - ends[whole]);
    if (ends[whole] != cut) CHECK(records.wanted() > records.rest().size());
    if (ends[whole] != cut) CHECK(records.wanted() <= ends[whole + 1] - ends[whole]);
  }
}

TEST_CASE("a length that no record has is damage, not a size to allocate") {
  file_map m;
  int count = 0;
  CHECK(read("\xff\xff\xff\xff"sv, m, count) == status::damaged);
  CHECK(read("\xff\xff\x10\0"sv, m, count) == status::damaged);
  CHECK(read("\xff\xff\0\0"sv, m, count) == status::torn);  // longer than ours, but PyTorch has no limit
  CHECK(read("\x02\0\0\0/k\x01\0\0\x80v"sv, m, count) == status::damaged);
  CHECK(read("\x02\0\0\0/k\xff\xff\xff\x0f"sv, m, count) == status::torn);  // 256 MiB may yet come
  CHECK(count == 0);
}

TEST_CASE("what is damaged is told, with the limit") {
  const auto damage = [](std::string_view bytes) {
    record_reader records(bytes);
    REQUIRE(records.next() == status::damaged);
    return records.damage();
  };
  CHECK(damage("\xff\xff\xff\xff"sv) == "a record announces a key of 4294967295 bytes, and the limit is 1048576");
  CHECK(damage("\x02\0\0\0/k\0\0\0\x80v"sv) == "a record announces a value of 2147483648 bytes, and the limit is 268435456");
  CHECK(damage("\0\0\0\0"sv).starts_with("there is a record without a key"));
}

TEST_CASE("zeros are no records: nobody writes an empty key") {
  file_map m;
  int count = 0;
  for (const std::size_t n : {4U, 8U, 4096U}) CHECK(read(std::string(n, '\0'), m, count) == status::damaged);
  CHECK(count == 0);
  CHECK(read(std::string(3, '\0'), m, count) == status::torn);
  CHECK(read(std::string(recorded) + std::string(64, '\0'), m, count) == status::damaged);
  CHECK(count == 8);
  CHECK(read("\x01\0\0\0/\0\0\0\0"sv, m, count) == status::end);  // the user's key "", without a value
  CHECK(value(m, "") == "");
}

TEST_CASE("queues are records of their own, and what is written anew is the same") {
  file_map m;
  const auto put = [&m](std::string_view family, std::string_view key, std::string_view v) { m.apply(std::string(family).append(key), v); };
  put(file_format::user, "q", "a value");
  put(file_format::push, "q", "1");
  put(file_format::push, "q", "2");
  put(file_format::push, "q", "3");
  put(file_format::pop, "q", "");
  CHECK(m.head("q") == "2");
  put(file_format::back, "q", "1");
  CHECK(m.queued("q") == 3);
  CHECK(m.head("q") == "1");
  put(file_format::pop, "empty", "");
  CHECK(m.queued("empty") == 0);
  put({}, file_format::refcount, "1");
  put(file_format::user, "", "no name");
  std::string all;
  m.write_all(all);
  file_map again;
  int count = 0;
  CHECK(read(all, again, count) == status::end);
  CHECK(count == 6);
  CHECK(again.live() == m.live());
  CHECK(value(again, "q") == "a value");
  CHECK(value(again, "") == "no name");
  CHECK(again.head("q") == "1");
  CHECK(again.queued("q") == 3);
  while (again.queued("q") > 0) again.apply(std::string(file_format::pop).append("q"), "");
  again.apply("-/q", "");
  again.apply("-/", "");
  again.apply("-refcount/", "");
  CHECK(again.live() == 0);
  CHECK(again.take_touched().size() == 5);
}
