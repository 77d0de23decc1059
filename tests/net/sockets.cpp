#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../support/net.hpp"

using namespace net_test;

namespace {

struct pair_of_sockets {
  rc::net::socket here, there;
};

/// Two ends of one TCP connection on the loop.
rc::task<pair_of_sockets> connected(rc::loop& l) {
  rc::net::acceptor acceptor(l, rc::listen(rc::listen_options{}));
  const int port = acceptor.at().port();
  auto both = co_await rc::when_all(acceptor.accept(), rc::net::connect(l, rc::socket_address::ip("127.0.0.1", port).value()));
  pair_of_sockets p;
  p.here = std::move(std::get<1>(both));
  p.there = std::move(std::get<0>(both));
  co_return p;
}

rc::task<string> read_all(rc::net::socket& s) {
  string all;
  for (;;) {
    const string_view piece = co_await s.read_some();
    if (piece.empty()) co_return all;
    all += piece;
  }
}

}  // namespace

TEST_CASE("what one end writes the other reads, until the end", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    pair_of_sockets p = co_await connected(l);
    co_await p.here.write("hello ");
    co_await p.here.write("");
    co_await p.here.write("world");
    p.here.shutdown();
    const string got = co_await read_all(p.there);
    CHECK(got == "hello world");
    co_await p.there.write("answer after the end");
    p.there.close();
    const string back = co_await read_all(p.here);
    CHECK(back == "answer after the end");
  });
}

TEST_CASE("a write that the peer does not take waits, and arrives whole", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    pair_of_sockets p = co_await connected(l);
    string big(std::size_t{32} << 20, '\0');
    for (std::size_t i = 0; i < big.size(); ++i) big[i] = static_cast<char>(i * 2654435761U >> 13);
    bool written = false;
    rc::scope writer(l);
    auto write = [&]() -> rc::task<> {
      co_await p.here.write(big);
      written = true;
      p.here.shutdown();
    };
    writer.spawn(write);
    co_await rc::sleep_for(1ms);
    CHECK_FALSE(written);
    const string got = co_await read_all(p.there);
    CHECK((got == big));
    co_await writer.join();
    CHECK(written);
  });
}

TEST_CASE("a stopped read loses nothing", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    pair_of_sockets p = co_await connected(l);
    const rc::failure f = failure_of(co_await rc::as_result(rc::with_deadline(p.there.read_some(), 1ms)));
    CHECK(f.code() == rc::errc::timed_out);
    co_await p.here.write("late");
    const string got(co_await p.there.read_some());
    CHECK(got == "late");
  });
}

TEST_CASE("a stopped write still goes out, and the stream stays whole", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    pair_of_sockets p = co_await connected(l);
    const string big(std::size_t{16} << 20, 'b');
    const rc::failure f = failure_of(co_await rc::as_result(rc::with_deadline(p.here.write(big), 1ms)));
    CHECK(f.code() == rc::errc::timed_out);
    rc::scope reader(l);
    string got;
    auto read = [&]() -> rc::task<> { got = co_await read_all(p.there); };
    reader.spawn(read);
    co_await p.here.write("end");
    p.here.shutdown();
    co_await reader.join();
    CHECK(got.size() == big.size() + 3);
    CHECK(got.ends_with("bend"));
  });
}

TEST_CASE("a peer's reset is an error that names it; nobody dies of SIGPIPE", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::net::acceptor acceptor(l, rc::listen(rc::listen_options{}));
    rc::unique_fd peer = plain_connect(acceptor.at().port());
    rc::net::socket s = co_await acceptor.accept();
    const string name = s.peer_name();
    CHECK(name.starts_with("127.0.0.1:"));
    reset_connection(std::move(peer));
    const rc::failure f = failure_of(co_await rc::as_result(s.read_some()));
    CHECK(f.code() == rc::errc::disconnected);
    CHECK(contains(f.message(), "ECONNRESET"));
    for (int i = 0; i < 3; ++i) {
      const rc::result<void> w = co_await rc::as_result(s.write("x"));
      CHECK_FALSE(w);
    }
  });
}

TEST_CASE("closing ends a pending read and write of one's own", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    pair_of_sockets p = co_await connected(l);
    const string big(std::size_t{16} << 20, 'c');
    rc::scope both(l);
    int closed = 0;
    auto read = [&]() -> rc::task<> {
      const rc::failure f = failure_of(co_await rc::as_result(p.here.read_some()));
      if (f.code() == rc::errc::closed) ++closed;
    };
    auto write = [&]() -> rc::task<> {
      const rc::failure f = failure_of(co_await rc::as_result(p.here.write(big)));
      if (f.code() == rc::errc::closed) ++closed;
    };
    both.spawn(read);
    both.spawn(write);
    co_await rc::sleep_for(1ms);
    p.here.close();
    p.here.close();
    co_await both.join();
    CHECK(closed == 2);
    CHECK_FALSE(p.here);
  });
}

TEST_CASE("connecting to nobody is refused with the address", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const int port = unused_port();
    const rc::failure f = failure_of(co_await rc::as_result(rc::net::connect(l, rc::socket_address::ip("127.0.0.1", port).value())));
    CHECK(f.code() == rc::errc::refused);
    CHECK(contains(f.message(), "127.0.0.1:" + std::to_string(port)));
    CHECK(contains(f.message(), "ECONNREFUSED"));
  });
}

TEST_CASE("a connect without an answer can be stopped, and leaves nothing", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    const black_hole hole;
    const rc::failure f = failure_of(co_await rc::as_result(rc::with_deadline(rc::net::connect(l, hole.address()), 10ms)));
    CHECK(f.code() == rc::errc::timed_out);
  });
}

TEST_CASE("a stopped accept leaves connections queued for the next one", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::net::acceptor acceptor(l, rc::listen(rc::listen_options{}));
    const rc::failure f = failure_of(co_await rc::as_result(rc::with_deadline(acceptor.accept(), 1ms)));
    CHECK(f.code() == rc::errc::timed_out);
    const rc::unique_fd peer = plain_connect(acceptor.at().port());
    rc::net::socket s = co_await acceptor.accept();
    CHECK(send_all(peer.get(), "x"));
    const string got(co_await s.read_some());
    CHECK(got == "x");
  });
}

TEST_CASE("sockets and acceptors may be destroyed while they are waited in", "[sockets]") {
  const watchdog dog(current_case());
  rc::loop l;
  {
    rc::scope children(l);
    auto reader = [](rc::loop& on) -> rc::task<> {
      pair_of_sockets p = co_await connected(on);
      co_await p.here.read_some();
    };
    auto writer = [](rc::loop& on) -> rc::task<> {
      pair_of_sockets p = co_await connected(on);
      const string big(std::size_t{16} << 20, 'd');
      co_await p.here.write(big);
    };
    auto server = [](rc::loop& on) -> rc::task<> {
      rc::net::acceptor acceptor(on, rc::listen(rc::listen_options{}));
      co_await acceptor.accept();
    };
    children.spawn(reader, std::ref(l));
    children.spawn(writer, std::ref(l));
    children.spawn(server, std::ref(l));
    rc::sync_wait(l, rc::sleep_for(5ms));
    CHECK(children.size() == 3);
    children.request_stop();  // and destroyed at once: the frames go while they are suspended
  }
  expect_nothing_left(l);
}

namespace {

/// Descriptors that this process's epoll sets watch, by what the kernel tells of them.
int watched_descriptors() {
  int n = 0;
  for (auto const& file : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream info(file.path());
    for (string l; std::getline(info, l);) n += l.starts_with("tfd:") ? 1 : 0;
  }
  return n;
}

/// Counts the turns of a loop.
class turns {
 public:
  explicit turns(rc::loop& l) {
    uv_check_init(l.native(), &check_);
    check_.data = this;
    uv_check_start(&check_, [](uv_check_t* h) { ++static_cast<turns*>(h->data)->count; });
    uv_unref(reinterpret_cast<uv_handle_t*>(&check_));
  }
  turns(turns const&) = delete;
  turns& operator=(turns const&) = delete;
  ~turns() = default;
  /// Before it is destroyed.
  rc::task<> end() {
    uv_close(reinterpret_cast<uv_handle_t*>(&check_), [](uv_handle_t* h) { static_cast<turns*>(h->data)->closed_ = true; });
    co_await eventually([this] { return closed_; });
  }
  int count = 0;

 private:
  uv_check_t check_{};
  bool closed_ = false;
};

}  // namespace

TEST_CASE("a reset that nobody reads or writes to see does not spin the loop", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    rc::net::acceptor acceptor(l, rc::listen(rc::listen_options{}));
    rc::unique_fd peer = plain_connect(acceptor.at().port());
    rc::net::socket s = co_await acceptor.accept();
    CHECK(send_all(peer.get(), "bytes"));
    CHECK_AWAIT(string(co_await s.read_some()), "bytes");  // reading has stopped again
    reset_connection(std::move(peer));
    turns passed(l);
    co_await rc::sleep_for(50ms);
    CHECK(passed.count < 200);  // a handful; a spinning loop has tens of thousands
    bool broken = false;
    try {
      const string_view end = co_await s.read_some();
      CHECK(end.empty());
    } catch (rc::error const& e) {
      broken = e.code() == rc::errc::disconnected;
    }
    CHECK(broken);
    co_await passed.end();
  });
}

TEST_CASE("a socket that a forked child still holds is forgotten all the same", "[sockets]") {
  on_loop([](rc::loop& l) -> rc::task<> {
    pair_of_sockets quiet = co_await connected(l);
    rc::net::acceptor acceptor(l, rc::listen(rc::listen_options{}));
    const rc::unique_fd peer = plain_connect(acceptor.at().port());
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    const rc::unique_fd until(ends[0]);
    rc::unique_fd hold(ends[1]);
    const int before = watched_descriptors();
    pid_t child = -1;
    {
      rc::net::socket s = co_await acceptor.accept();
      CHECK(watched_descriptors() == before + 1);
      child = fork();
      if (child == 0) {  // holds what the parent had, until the parent lets go of the pipe
        hold.reset();
        char c;
        static_cast<void>(!::read(until.get(), &c, 1));
        _exit(0);
      }
    }
    REQUIRE(child > 0);
    CHECK(send_all(peer.get(), "for nobody"));  // the connection lives on in the child, and so does the kernel's watch
    co_await eventually([&] { return watched_descriptors() == before; });
    turns passed(l);
    co_await rc::sleep_for(20ms);
    CHECK(passed.count < 200);
    co_await quiet.here.write("still watched");
    CHECK_AWAIT(string(co_await quiet.there.read_some()), "still watched");
    hold.reset();
    CHECK(::waitpid(child, nullptr, 0) == child);
    co_await passed.end();
  });
}
