// A libuv program that was there before rollcall: a TCP echo server and a timer on uv_default_loop(). It takes a store server and a
// client on board, uses the store from a plain callback and from a coroutine, and ends cleanly: uv_loop_close() returns 0.
#include <uv.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <rollcall/rollcall.hpp>
#include <string>

using namespace std::chrono_literals;
namespace rc = rollcall;

namespace {

// ---- the host program: plain libuv, knows nothing of coroutines ----

void on_alloc(uv_handle_t*, std::size_t size, uv_buf_t* buffer) {
  *buffer = uv_buf_init(static_cast<char*>(std::malloc(size)), static_cast<unsigned>(size));
}
void on_closed(uv_handle_t* h) { delete reinterpret_cast<uv_tcp_t*>(h); }
struct echo_write {
  uv_write_t request;
  char* bytes;
};
void on_echo(uv_stream_t* s, ssize_t n, uv_buf_t const* buffer) {
  if (n <= 0) {
    std::free(buffer->base);
    if (n < 0) uv_close(reinterpret_cast<uv_handle_t*>(s), on_closed);
    return;
  }
  auto* w = new echo_write{{}, buffer->base};
  uv_buf_t out = uv_buf_init(buffer->base, static_cast<unsigned>(n));
  uv_write(&w->request, s, &out, 1, [](uv_write_t* r, int) {
    auto* done = reinterpret_cast<echo_write*>(r);
    std::free(done->bytes);
    delete done;
  });
}
void on_connection(uv_stream_t* listener, int status) {
  if (status < 0) return;
  auto* peer = new uv_tcp_t;
  uv_tcp_init(listener->loop, peer);
  if (uv_accept(listener, reinterpret_cast<uv_stream_t*>(peer)) == 0) {
    uv_read_start(reinterpret_cast<uv_stream_t*>(peer), on_alloc, on_echo);
  } else {
    uv_close(reinterpret_cast<uv_handle_t*>(peer), on_closed);
  }
}

struct host_program {
  uv_tcp_t echo;
  uv_timer_t timer;
  int ticks = 0;
  int echo_port = 0;

  void start(uv_loop_t* loop) {
    uv_tcp_init(loop, &echo);
    sockaddr_in here{};
    uv_ip4_addr("127.0.0.1", 0, &here);
    uv_tcp_bind(&echo, reinterpret_cast<sockaddr const*>(&here), 0);
    uv_listen(reinterpret_cast<uv_stream_t*>(&echo), 16, on_connection);
    int size = sizeof here;
    uv_tcp_getsockname(&echo, reinterpret_cast<sockaddr*>(&here), &size);
    echo_port = ntohs(here.sin_port);
    uv_timer_init(loop, &timer);
    timer.data = this;
    uv_timer_start(&timer, [](uv_timer_t* t) { ++static_cast<host_program*>(t->data)->ticks; }, 1, 1);
  }
  void stop() {
    uv_close(reinterpret_cast<uv_handle_t*>(&timer), nullptr);
    uv_close(reinterpret_cast<uv_handle_t*>(&echo), nullptr);
  }
};

// ---- what rollcall adds ----

rc::task<> client(rc::loop& loop, int store_port, int echo_port) {
  rc::tcp_store store = co_await rc::tcp_store::connect(loop, "127.0.0.1", store_port, 10s);
  co_await store.set("echo/port", std::to_string(echo_port));

  // From callback code, without a coroutine:
  rc::event answered(loop);
  rc::start(store.get("echo/port"), [&answered](rc::result<std::string> r) {
    std::printf("callback: the echo server listens on a port of %zu digits\n", r.value().size());
    answered.set();
  });
  co_await answered.wait();

  // The host's echo server, through rollcall's awaitables:
  const int port = std::stoi(co_await store.get("echo/port"));
  rc::net::socket peer = co_await rc::net::connect(loop, rc::socket_address::ip("127.0.0.1", port).value());
  co_await peer.write("hello");
  std::string back;
  while (back.size() < 5) back += co_await peer.read_some();
  std::printf("coroutine: the echo server says %s\n", back.c_str());
  co_await rc::sleep_for(5ms);  // the host's timer has its turns, too
}

}  // namespace

int main() {
  uv_loop_t* host_loop = uv_default_loop();
  host_program host;
  host.start(host_loop);
  bool failed = false;
  {
    rc::loop loop{host_loop};
    rc::scope server(&loop.core());
    rc::listener at = rc::listen(rc::listen_options{}.port(0));
    const int store_port = at.port();
    server.spawn(rc::serve(loop, std::move(at)));
    rc::start(loop, client(loop, store_port, host.echo_port), [&](rc::result<void> r) {
      if (!r) std::fprintf(stderr, "embed_in_uv_loop: %s\n", r.error().message().c_str());
      failed = !r;
      server.request_stop();
      host.stop();
    });
    uv_run(host_loop, UV_RUN_DEFAULT);  // returns when the server has stopped and the host's handles are closed
  }
  uv_run(host_loop, UV_RUN_DEFAULT);  // one more turn for what ~loop closes
  std::printf("the host's timer ticked %s\n", host.ticks > 0 ? "all the while" : "never");
  const int status = uv_loop_close(host_loop);
  if (status != 0) std::fprintf(stderr, "embed_in_uv_loop: the loop cannot be closed: %s\n", uv_strerror(status));
  return failed || status != 0 || host.ticks == 0 ? 1 : 0;
}
