// The README's program: serves a store, runs two ranks that meet in it, ends by itself.
#include <cstdio>
#include <rollcall/rollcall.hpp>
#include <string>

using namespace std::chrono_literals;
namespace rc = rollcall;

rc::task<> rank_main(rc::loop& loop, int port, int rank) {
  rc::tcp_store store = co_await rc::tcp_store::connect(loop, "127.0.0.1", port);
  co_await store.set("addr/" + std::to_string(rank), "10.0.0." + std::to_string(rank + 1) + ":4242");
  co_await store.wait({"addr/0", "addr/1"}, 30s);
  std::string peer = co_await store.get("addr/" + std::to_string(1 - rank));
  std::printf("rank %d: my peer is at %s\n", rank, peer.c_str());
}

rc::task<> everyone(rc::loop& loop) {
  rc::listener at = rc::listen(rc::listen_options{}.port(0));
  const int port = at.port();
  rc::scope server(loop);
  server.spawn(rc::serve(loop, std::move(at)));
  co_await rc::when_all(rank_main(loop, port, 0), rank_main(loop, port, 1));
  server.request_stop();
  co_await server.join();
}

int main() { return rc::run(everyone); }
