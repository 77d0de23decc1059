#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "support.hpp"

using namespace unit;
using wire::blob_ref;
using wire::write_batch;

TEST_CASE("a blob is shared until somebody changes it") {
  blob_ref a("one");
  const blob_ref b = a;
  CHECK(a.shared());
  a.assign("two");
  CHECK(b.view() == "one");
  CHECK(a.view() == "two");
  CHECK_FALSE(a.shared());
  const blob_ref c = a;
  a.append(" more");
  CHECK(c.view() == "two");
  CHECK(a.view() == "two more");
}

TEST_CASE("a value that fits is assigned in place, one that is far too small for its block is not") {
  blob_ref a(std::string(100, 'x'));
  const std::size_t before = allocations().calls;
  a.assign(std::string_view("short"));
  a.assign(std::string_view("longer, but it fits"));
  CHECK(allocations().calls == before);
  blob_ref big(std::string(1 << 20, 'x'));
  big.assign("small");
  CHECK(big.capacity() < 4096);
  CHECK(big.view() == "small");
  CHECK(blob_ref().view().empty());
  CHECK(blob_ref("").view().empty());
  CHECK(static_cast<bool>(blob_ref("")));
}

TEST_CASE("appending to a blob costs amortised time") {
  blob_ref a("");
  const std::size_t before = allocations().calls;
  for (int i = 0; i < 10000; ++i) a.append("0123456789");
  CHECK(a.size() == 100000);
  CHECK(allocations().calls - before < 40);
}

TEST_CASE("a batch gives back what went in, in order, copied and referenced bytes mixed") {
  xorshift rng(3);
  write_batch batch;
  write_batch other;
  std::string expected;
  std::string got;
  for (int i = 0; i < 3000; ++i) {
    const std::string piece(rng.below(40), static_cast<char>('a' + i % 26));
    switch (rng.below(5)) {
      case 0:
      case 1:
        batch.append(piece);
        expected += piece;
        break;
      case 2:
        batch.append_blob(blob_ref(piece));
        expected += piece;
        break;
      case 3: {
        const write_batch::mark before = batch.position();
        batch.append("undone");
        batch.append_blob(blob_ref("undone as well"));
        batch.append(std::string(rng.below(600), '!'));
        batch.rewind(before);
        break;
      }
      default: {
        iovec pieces[4];
        const int n = batch.fill(pieces, 1 + static_cast<int>(rng.below(4)));
        std::size_t take = rng.below(batch.size() + 1);
        std::string front;
        for (int k = 0; k < n; ++k) front.append(static_cast<char const*>(pieces[k].iov_base), pieces[k].iov_len);
        take = std::min(take, front.size());
        got += front.substr(0, take);
        batch.consume(take);
        if (rng.below(8) == 0) {
          batch.move_to(other);
          CHECK(batch.empty());
          got += drain(other);
        }
      }
    }
    REQUIRE(batch.size() == expected.size() - got.size());
  }
  got += drain(batch);
  CHECK(got == expected);
}

TEST_CASE("a batch that is filled and sent again and again does not allocate") {
  write_batch batch;
  const blob_ref large(std::string(20000, 'x'));
  const auto round = [&] {
    for (int i = 0; i < 10; ++i) batch.append("some reply");
    batch.append_blob(large);
    batch.consume(batch.size() / 2);
    batch.consume(batch.size());
  };
  round();
  const std::size_t before = allocations().calls;
  for (int i = 0; i < 100; ++i) round();
  CHECK(allocations().calls == before);
  batch.release();
  CHECK(batch.capacity() == 0);
}

TEST_CASE("moving the rest of a batch does not copy a referenced value, half sent or not") {
  write_batch batch;
  write_batch other;
  batch.append("head");
  batch.append_blob(blob_ref(std::string(1 << 20, 'x')));
  batch.append_blob(blob_ref(std::string(1 << 20, 'y')));
  batch.append("tail");
  batch.consume(1000);
  const std::size_t before = allocations().bytes;
  batch.move_to(other);
  CHECK(allocations().bytes - before < 4096);
  CHECK(other.size() == (2 << 20) + 8 - 1000);
  const std::string got = drain(other);
  CHECK(got == std::string((1 << 20) - 996, 'x') + std::string(1 << 20, 'y') + "tail");
}

TEST_CASE("a large value is queued by reference for every reader") {
  engine::store s{engine::store_options()};
  peer writer(s);
  writer.set("big", std::string(1 << 20, 'b'));
  peer reader(s);
  const std::size_t before = allocations().bytes;
  std::string b;
  for (int i = 0; i < 20; ++i) wire::encode_get(b, "/", "big");
  reader.feed(b);
  CHECK(allocations().bytes - before < 16384);
  CHECK(reader.out.size() == 20 * (8 + (1 << 20)));
  writer.set("big", "changed meanwhile");
  CHECK(reader.take().substr(0, 10) == i64(1 << 20) + "bb");
}
