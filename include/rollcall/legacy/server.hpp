#pragma once
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "../core/error.hpp"
#include "../core/log.hpp"
#include "../engine/options.hpp"
#include "../posix/listener.hpp"
#include "poll_server.hpp"
#include "thread.hpp"

namespace rollcall {
inline namespace v0 {

/// A store server on a thread of its own, over poll(2): for programs without a loop, and the other back end of `use_libuv=0`. Answers as
/// serve() does, keeps the same bounds, and no peer can delay another.
///
///     legacy_server server(listen(listen_options{}.port(29500)));     // or listener::adopt(listen_fd)
///     server.start();
///
/// All member functions are for one thread at a time, but stats(), which is for any while no other than start() runs.
class legacy_server {
 public:
  /// Does not serve yet; clients queue in the kernel.
  ///
  /// at        a listener, from listen() or listener::adopt(); owned from here.
  /// options   serve_options::keep_alive() has no meaning here, and serve_options::stats() belongs to the server's thread until stop().
  /// log       called on the server's thread.
  /// errors    io: out of descriptors.
  explicit legacy_server(listener at, serve_options const& options = {}, log_sink log = {})
      : server_(std::make_unique<legacy::poll_server>(std::move(at), options, std::move(log))), address_(server_->address()) {}
  /// Listens as well: everything that listen() says.
  explicit legacy_server(listen_options const& at, serve_options const& options = {}, log_sink log = {})
      : legacy_server(listen(at), options, std::move(log)) {}
  legacy_server(legacy_server&&) noexcept = default;
  legacy_server& operator=(legacy_server&& o) noexcept {
    if (this == &o) return *this;
    stop();
    server_ = std::move(o.server_);
    thread_ = std::move(o.thread_);
    address_ = o.address_;
    last_ = o.last_;
    return *this;
  }
  /// stop()s.
  ~legacy_server() { stop(); }

  /// Serves from now on. Idempotent. Signals stay with the threads that had them.
  ///
  /// errors    closed after stop(); io when there is no thread to be had, and start() may be called again.
  void start();
  /// Stops accepting (the port is free at once), sends what is answered, for serve_options::drain_within() at the most, closes every
  /// connection, and ends the thread. Idempotent; not from the log sink. Waits that are pending get no answer.
  void stop() noexcept;
  [[nodiscard]] bool running() const noexcept { return thread_.joinable(); }

  /// The real port, also where 0 was asked for, and after stop(); 0 for a unix socket.
  [[nodiscard]] int port() const noexcept { return address_.port(); }
  [[nodiscard]] socket_address const& address() const noexcept { return address_; }
  /// "tcp://127.0.0.1:29500", "unix:/run/job/store".
  [[nodiscard]] std::string url() const { return (address_.is_inet() ? "tcp://" : "unix:") + address_.to_string(); }
  /// The counters: all that was answered before the call is in them. Waits for a turn of the server's thread, so not from the log sink.
  /// After stop() the last ones.
  [[nodiscard]] server_stats stats() const { return server_ ? server_->stats() : last_; }

 private:
  std::unique_ptr<legacy::poll_server> server_;
  std::thread thread_;
  socket_address address_;
  server_stats last_;
};

inline void legacy_server::start() {
  if (running()) return;
  if (!server_) throw error(errc::closed, "serve", "the server was stopped");
  try {
    thread_ = legacy::start_thread([server = server_.get()] { server->run(); });
  } catch (std::system_error const& e) {
    throw error(errc::io, "serve", std::string("no thread: ") + e.what());
  }
}

inline void legacy_server::stop() noexcept {
  if (!server_) return;
  if (thread_.joinable()) {
    server_->stop();
    thread_.join();
  }
  last_ = server_->stats();
  server_.reset();
}

}  // namespace v0
}  // namespace rollcall
