#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <rollcall/rt/start.hpp>
#include <rollcall/server/server_core.hpp>
#include <rollcall/stores/tcp.hpp>
#include <rollcall/test/memory_stream.hpp>
#include <rollcall/test/scripted_peer.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rc = rollcall;
using namespace std::chrono_literals;
using rc::test::link_faults;
using rc::test::memory_pair;
using rc::test::virtual_time;

namespace {

/// Reads all, and remembers what it was told and whether it was told inside a call of its own.
class recorder final : public rc::net::stream_sink {
 public:
  std::string got;
  std::vector<std::size_t> pieces;
  std::optional<int> end;
  int writable = 0;
  bool inside = false;
  bool called_inside = false;
  bool called_after_end = false;
  rc::net::stream_ptr* close_at_read = nullptr;

  std::ptrdiff_t write(rc::net::stream& s, std::string_view bytes) {
    inside = true;
    const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    const std::ptrdiff_t n = s.try_write(&piece, 1);
    inside = false;
    return n;
  }

 private:
  void note() noexcept {
    called_inside = called_inside || inside;
    called_after_end = called_after_end || end.has_value();
  }
  void on_read(std::string_view bytes) noexcept override {
    note();
    got.append(bytes);
    pieces.push_back(bytes.size());
    if (close_at_read) close_at_read->reset();
  }
  void on_end(int status) noexcept override {
    note();
    end = status;
  }
  void on_writable() noexcept override {
    called_inside = called_inside || inside;
    ++writable;
  }
};

struct fixture {
  rc::loop loop;
  virtual_time time{loop};
  recorder a;
  recorder b;
  ~fixture() {
    time.run_for(1h);
    CHECK(loop.live_handles() == 0);
    CHECK(!a.called_inside);
    CHECK(!b.called_inside);
    CHECK(!a.called_after_end);
    CHECK(!b.called_after_end);
  }
};

}  // namespace

TEST_CASE_FIXTURE(fixture, "a perfect link delivers what was written, later, and then the end") {
  memory_pair p(loop);
  p.first->start_read(a);
  p.second->start_read(b);
  CHECK(a.write(*p.first, "hello") == 5);
  CHECK(b.got.empty());
  p.first.reset();
  time.run_for(0s);
  CHECK(b.got == "hello");
  CHECK(b.end == 0);
}

TEST_CASE_FIXTURE(fixture, "pieces are as long as the plan says") {
  memory_pair p(loop, link_faults().pieces(2).delays(1ms));
  p.second->start_read(b);
  CHECK(a.write(*p.first, "seven b") == 7);
  time.run_for(10s);
  CHECK(b.got == "seven b");
  CHECK(b.pieces == std::vector<std::size_t>{2, 2, 2, 1});
}

TEST_CASE_FIXTURE(fixture, "a full link takes what fits and says when there is room") {
  memory_pair p(loop, link_faults().room(4));
  p.first->start_read(a);
  CHECK(a.write(*p.first, "abcdef") == 4);
  CHECK(a.write(*p.first, "ef") == 0);
  time.run_for(1s);
  CHECK(a.writable == 0);  // nobody reads
  p.second->start_read(b);
  time.run_for(1s);
  CHECK(a.writable == 1);
  CHECK(a.write(*p.first, "ef") == 2);
  p.second->stop_read();
  time.run_for(1s);
  CHECK(b.got == "abcd");
  p.second->start_read(b);
  time.run_for(1s);
  CHECK(b.got == "abcdef");
}

TEST_CASE_FIXTURE(fixture, "a link is lost at a byte, and each end is told its own way") {
  memory_pair p(loop, link_faults().lose(3, -ECONNRESET, 0));
  p.first->start_read(a);
  p.second->start_read(b);
  CHECK(a.write(*p.first, "abcdef") == 6);
  time.run_for(1s);
  CHECK(b.got == "abc");
  CHECK(b.end == 0);
  CHECK(a.end == -ECONNRESET);
  CHECK(a.write(*p.first, "x") == -EPIPE);
  CHECK(b.write(*p.second, "x") == -EPIPE);
}

TEST_CASE_FIXTURE(fixture, "closing with bytes unread, and writing to who has closed, is a reset") {
  memory_pair p(loop);
  p.first->start_read(a);
  CHECK(a.write(*p.first, "unread") == 6);
  SUBCASE("unread") {}
  SUBCASE("written later") {
    p.second->start_read(b);
    time.run_for(1s);
  }
  p.second.reset();
  a.write(*p.first, "more");
  time.run_for(1s);
  CHECK(a.end == -ECONNRESET);
}

TEST_CASE_FIXTURE(fixture, "a sink may close its stream while it is called") {
  memory_pair p(loop, link_faults().pieces(1));
  p.first->start_read(a);
  p.second->start_read(b);
  b.close_at_read = &p.second;
  CHECK(a.write(*p.first, "abc") == 3);
  time.run_for(1s);
  CHECK(b.got == "a");
  CHECK(a.end == -ECONNRESET);
}

TEST_CASE_FIXTURE(fixture, "shutdown ends one direction only") {
  memory_pair p(loop);
  p.first->start_read(a);
  p.second->start_read(b);
  CHECK(a.write(*p.first, "bye") == 3);
  p.first->shutdown();
  CHECK(a.write(*p.first, "more") < 0);
  time.run_for(1s);
  CHECK(b.got == "bye");
  CHECK(b.end == 0);
  CHECK(b.write(*p.second, "and you") == 7);
  time.run_for(1s);
  CHECK(a.got == "and you");
  CHECK(!a.end);
}

TEST_CASE_FIXTURE(fixture, "frozen links deliver nothing until they thaw") {
  memory_pair p(loop);
  p.second->start_read(b);
  p.link->freeze();
  CHECK(a.write(*p.first, "abc") == 3);
  time.run_for(100s);
  CHECK(b.got.empty());
  p.link->thaw();
  time.run_for(0s);
  CHECK(b.got == "abc");
}

TEST_CASE("an open stream keeps the loop alive, also on the real clock, unless told otherwise") {
  rc::loop loop;
  memory_pair p(loop);
  CHECK(uv_loop_alive(loop.native()) != 0);
  p.first->keep_alive(false);
  CHECK(uv_loop_alive(loop.native()) != 0);
  p.second->keep_alive(false);
  CHECK(uv_loop_alive(loop.native()) == 0);
}

namespace {

constexpr std::size_t validate_bytes = 1 + 4;
const std::string key_k("\x02\0\0\0\0\0\0\0/k", 10);
std::string one(char op, std::string const& key) { return op + std::string("\x01\0\0\0\0\0\0\0", 8) + key; }

/// Two clients of a server in memory; the links of the first are made by `links`.
struct served : fixture {
  using links_fn = std::function<void(int, link_faults&, link_faults&)>;
  std::optional<rc::detail::server_core> server;
  rc::test::fault_plan none{1};
  std::shared_ptr<rc::test::memory_network> network;
  links_fn links;
  int dialled = 0;
  std::optional<rc::tcp_store> first;
  std::optional<rc::tcp_store> second;
  served() {
    server.emplace(loop.core(), rc::serve_options{});
    network = std::make_shared<rc::test::memory_network>(loop, none,
                                                         [this](rc::net::stream_ptr s, auto const&) { server->attach(std::move(s)); });
  }
  void connect() {
    for (auto* const s : {&second, &first}) {
      rc::start(loop, rc::tcp_store::over(loop, network->connect(), 1s, {}, network, 1),
                [s](rc::result<rc::tcp_store> r) { *s = std::move(r).value(); });
      time.run_for(20ms);
      REQUIRE(*s);
      network->adjust([this](link_faults& there, link_faults& back) {
        if (links) links(dialled++, there, back);
      });
    }
  }
  ~served() {
    first.reset();
    second.reset();
    time.run_for(1s);
    CHECK(server->store().stats().waits == 0);
    CHECK(server->store().stats().clients == 0);
    server.reset();
  }
};

/// Bytes of a client up to and including the capability GET.
constexpr std::uint64_t introduction = (1 + 4) + (1 + 4) + (1 + 8 + 8 + 4) + (1 + 8 + 4);

/// A client whose server is a script that does not know the capability key.
struct scripted : fixture {
  memory_pair p{loop};
  rc::test::scripted_peer peer{std::move(p.second)};
  std::optional<rc::tcp_store> store;
  scripted() {
    peer.skip(validate_bytes + 5 + 9 + 8 + rc::wire::capability_key.size());
    peer.send(std::string("\x07\0\0\0\x01", 5));
    rc::start(loop, rc::tcp_store::over(loop, std::move(p.first), 1s, {}, {}, 7), [this](rc::result<rc::tcp_store> r) {
      if (r) store = std::move(r).value();
    });
    time.run_for(100ms);
    REQUIRE(store);
    CHECK(!store->server_is_rollcall());
  }
  ~scripted() {
    CHECK(peer.problem() == "");
    store.reset();
  }
};

}  // namespace

TEST_CASE_FIXTURE(served, "a key that goes between CHECK and GET is not found with an empty value") {
  // Both leave in one write, but may arrive in two pieces.
  links = [](int, link_faults& there, link_faults&) { there.pieces(1).freeze(introduction + 1 + 8 + 10, 100ms); };
  connect();
  rc::start(second->set("k", "v"), [](rc::result<void> const&) {});
  time.run_for(1ms);
  bool asked = false;
  std::optional<std::string> found;
  std::optional<std::string> got;
  SUBCASE("find") {
    rc::start(first->find("k"), [&](rc::result<std::optional<std::string>> r) {
      asked = true;
      found = r.value();
    });
  }
  SUBCASE("get waits for it again") {
    rc::start(first->get("k", 1s), [&](rc::result<std::string> r) { got = r.value(); });
  }
  SUBCASE("multi_get as well") {
    rc::start(first->multi_get({"k"}, 1s), [&](rc::result<std::vector<std::string>> r) { got = r.value().at(0); });
  }
  time.run_for(50ms);
  rc::start(second->delete_key("k"), [](rc::result<bool> r) { CHECK(r.value()); });
  time.run_for(100ms);
  CHECK(!found);
  CHECK(!got);
  rc::start(second->set("k", "w"), [](rc::result<void> const&) {});
  time.run_for(1ms);
  CHECK((asked || got == "w"));
}

TEST_CASE_FIXTURE(served, "an empty value is a value") {
  connect();
  std::optional<std::string> found;
  std::optional<std::string> got;
  std::vector<std::string> many;
  rc::start(first->multi_set({rc::kv("k", ""), rc::kv("l", "x")}), [](rc::result<void> const&) {});
  rc::start(first->find("k"), [&](rc::result<std::optional<std::string>> r) { found = r.value(); });
  rc::start(first->get("k"), [&](rc::result<std::string> r) { got = r.value(); });
  rc::start(first->multi_get({"k", "l", "k"}), [&](rc::result<std::vector<std::string>> r) { many = r.value(); });
  time.run_for(1ms);
  CHECK(found == "");
  CHECK(got == "");
  CHECK(many == std::vector<std::string>{"", "x", ""});
}

TEST_CASE_FIXTURE(served, "a multi_get has 100 ms past its limit once, also if its keys came and went meanwhile") {
  links = [](int, link_faults&, link_faults& back) { back.delays(1ms); };
  connect();
  std::optional<rc::duration> took;
  const rc::time_point begun = time.now();
  rc::start(first->multi_get({"k", "l"}, 50ms), [&](rc::result<std::vector<std::string>> r) {
    took = time.now() - begun;
    CHECK(r.code() == rc::errc::timed_out);
  });
  // At the limit, before the CANCEL_WAIT is there, both keys exist; when they are read they are gone.
  time.run_for(50ms - 1us);
  rc::start(second->multi_set({rc::kv("k", "1"), rc::kv("l", "2")}), [](rc::result<void> const&) {});
  rc::start(second->delete_key("k"), [](rc::result<bool> const&) {});
  time.run_for(1s);
  REQUIRE(took);
  CHECK(*took <= 150ms);
}

TEST_CASE_FIXTURE(served, "a further connection may be in a wait before it is greeted") {
  links = [](int n, link_faults&, link_faults& back) {
    if (n == 0) back.pieces(1).freeze(5, 100ms);  // the probe's answer comes at once, who the server is comes later
  };
  connect();
  int ended = 0;
  for (int i = 0; i < 3; ++i) rc::start(first->wait({"a", "b"}, 10s), [&](rc::result<void> r) { ended += r.has_value(); });
  time.run_for(50ms);
  CHECK(first->connections() == 3);
  rc::start(second->multi_set({rc::kv("a", "1"), rc::kv("b", "2")}), [](rc::result<void> const&) {});
  time.run_for(200ms);
  CHECK(ended == 3);
}

TEST_CASE_FIXTURE(scripted, "an unknown server is asked whether a key exists before it is asked for the value") {
  std::optional<std::string> v;
  rc::start(store->get("k"), [&](rc::result<std::string> r) { v = *r; });
  peer.expect(one('\5', key_k)).send(std::string("\x01", 1)).expect(one('\6', key_k));
  time.run_for(1ms);
  CHECK(peer.done());
  peer.send(std::string("\0", 1)).expect("\3" + key_k).send(std::string("\1\0\0\0\0\0\0\0x", 9));
  time.run_for(1ms);
  CHECK(peer.done());
  CHECK(v == "x");
}

TEST_CASE_FIXTURE(scripted, "a wait that began between CHECK and GET is not cut short by the GET") {
  std::optional<rc::errc> found;
  std::optional<rc::errc> waited;
  rc::start(store->find("k"), [&](rc::result<std::optional<std::string>> r) { found = r ? rc::errc{} : r.error().code(); });
  time.run_for(1ms);
  rc::start(store->wait({"k", "l"}, 1s), [&](rc::result<void> r) { waited = r ? rc::errc{} : r.error().code(); });
  peer.expect(one('\5', key_k));
  time.run_for(1ms);
  CHECK(!peer.unread().empty());  // the WAIT for two keys holds the only connection
  peer.skip(peer.unread().size()).send(std::string("\0", 1));
  time.run_for(1ms);
  CHECK(peer.unread().empty());
  CHECK(found == rc::errc::limit);  // there may be no second one here
  CHECK(!waited);
  peer.send(std::string("\0", 1));
  time.run_for(1ms);
  CHECK(waited == rc::errc{});
}
