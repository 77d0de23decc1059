// mini_server: a store server written with the public awaitables alone: accept, read, decode, apply, write, each by co_await. The
// conformance tests pass against it. serve() does the same from callbacks, which saves a coroutine frame a connection, and bounds
// everything; this is the page to start from for a server of your own.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <fmt/format.h>
#include <optional>
#include <rollcall/rollcall.hpp>
#include <string>

#include "options.hpp"

namespace rc = rollcall;

namespace {

/// One peer: its socket, and itself as the store knows it.
class peer : public rc::engine::client {
 public:
  peer(rc::loop& loop, rc::engine::store& s, rc::net::socket from) : client(s), socket(std::move(from)), due(loop) {}
  rc::net::socket socket;
  rc::event due;  // STOP_WAITING bytes are owed
  std::string unsent;
};

/// Sets the event of every peer that another one's request has woken.
void tell_woken(rc::engine::store& store, std::string_view zeros = std::string_view("\0", 1)) {
  while (!store.woken().empty()) {
    auto& woken = static_cast<peer&>(store.woken().front());
    for (auto n = store.take_due(woken); n > 0; --n) woken.unsent += zeros;
    woken.due.set();
  }
}

/// Writes what others caused; runs beside the reader. One write at a time: both go through `unsent`.
rc::task<> write_woken(peer& p) {
  for (;;) {
    co_await p.due.wait();
    p.due.reset();
    const std::string bytes = std::exchange(p.unsent, {});
    co_await p.socket.write(bytes);
  }
}

rc::task<> read_requests(peer& p, rc::engine::store& store) {
  rc::wire::request_decoder decoder;
  rc::wire::request request;
  rc::wire::write_batch replies;
  for (;;) {
    std::string_view bytes = co_await p.socket.read_some();
    if (bytes.empty()) co_return;
    bool fine = true;
    rc::wire::decode_status status;
    while (fine && (status = decoder.next(bytes, request, store.limits())) == rc::wire::decode_status::complete)
      fine = store.apply(p, request, replies) == rc::engine::apply_status::ok;
    iovec pieces[64];
    while (const int n = replies.fill(pieces, 64)) {
      for (int i = 0; i < n; ++i) {
        p.unsent.append(static_cast<char const*>(pieces[i].iov_base), pieces[i].iov_len);
        replies.consume(pieces[i].iov_len);
      }
    }
    p.due.set();
    tell_woken(store);
    if (!fine || status == rc::wire::decode_status::bad) co_return;
  }
}

rc::task<> serve_peer(rc::loop& loop, rc::engine::store& store, rc::net::socket socket) {
  peer p(loop, store, std::move(socket));
  rc::scope writer(loop);
  writer.spawn(write_woken(p));
  try {
    co_await read_requests(p, store);
  } catch (rc::error const& e) {
    if (e.code() != rc::errc::disconnected && e.code() != rc::errc::cancelled) fmt::print(stderr, "mini_server: {}\n", e.what());
  }
  if (!p.unsent.empty()) co_await rc::as_result(rc::with_deadline(p.socket.write(std::exchange(p.unsent, {})), std::chrono::seconds(2)));
  writer.request_stop();
  co_await rc::as_result(writer.join());
  store.disconnect(p);
  tell_woken(store);
}

rc::task<> mini_server(rc::loop& loop, rc::net::acceptor& acceptor, rc::scope& everything) {
  rc::engine::store store{rc::engine::store_options{}};
  rc::scope peers(loop);
  rc::result<rc::net::socket> next = co_await rc::as_result(acceptor.accept());
  for (; next; next = co_await rc::as_result(acceptor.accept())) peers.spawn(serve_peer(loop, store, std::move(*next)));
  peers.request_stop();
  co_await rc::as_result(peers.join());
  everything.request_stop();
}

rc::task<> until_signal(rc::loop& loop, rc::scope& everything) {
  rc::signal_watcher signals(loop, SIGINT, SIGTERM);
  co_await signals.next();
  everything.request_stop();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A store server of one page.");
  int port = 29500;
  app.add_option("--port", port, "port on 127.0.0.1; 0 lets the system choose")->capture_default_str()->check(CLI::Range(0, 65535));
  if (const std::optional<int> over = options::parse(app, argc, argv)) return *over;
  return rc::run([port](rc::loop& loop) -> rc::task<> {
    rc::net::acceptor acceptor(loop, rc::listen(rc::listen_options{}.port(port)));
    fmt::print("ready {}\n", acceptor.at().address().to_string());
    std::fflush(stdout);
    rc::scope everything(loop);
    everything.spawn(until_signal(loop, everything));
    everything.spawn(mini_server(loop, acceptor, everything));
    co_await everything.join();
  });
}
