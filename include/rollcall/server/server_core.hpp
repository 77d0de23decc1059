#pragma once
#include <uv.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "../engine/peers.hpp"
#include "../net/detail/accept.hpp"
#include "../net/tcp.hpp"
#include "../rt/event.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// A running server on a loop: gives `peers` its streams, the time, and a turn when they ask for one. serve() owns one.
class server_core final : public engine::peers, private net::detail::accept_sink, private timer_node {
 public:
  /// Without a listener: serves what attach() is given.
  server_core(loop_core& core, serve_options const& options)
      : engine::peers(options, "libuv"),
        timer_node([](timer_node& t) noexcept { static_cast<server_core&>(t).sweep(); }, false),
        core_(core),
        drained_(&core) {
    check(check_.open(core, this, [](uv_loop_t* l, uv_check_t* h) { return uv_check_init(l, h); }));
    check(idle_.open(core, this, [](uv_loop_t* l, uv_idle_t* h) { return uv_idle_init(l, h); }));
  }
  server_core(loop_core& core, listener at, serve_options const& options) : server_core(core, options) {
    acceptor_.emplace(core, std::move(at), static_cast<net::detail::accept_sink&>(*this));
    acceptor_->keep_alive(options.keep_alive());
  }
  ~server_core() {
    remove_all();
    core_.remove_timer(*this);
  }

  /// Serves a stream that stands, like one that was accepted.
  void attach(net::stream_ptr s) {
    if (!options().keep_alive()) s->keep_alive(false);
    engine::peers::attach(std::move(s));
  }
  /// Stops accepting, closes what is quiet, lets the others take what was answered.
  void drain() noexcept {
    acceptor_.reset();
    core_.remove_timer(*this);
    engine::peers::drain();
    if (connections() == 0) drained_.set();
  }
  [[nodiscard]] event::waiting drained() noexcept { return drained_.wait(); }

 private:
  static void check(int status) {
    if (status != 0) throw error(errc::io, "serve", errno_text(-status));
  }

  void on_accept(unique_fd fd) noexcept override {
    if (!admits()) return;
    try {
      net::stream_ptr s;
      if (const int status = net::detail::socket_stream::adopt(core_, fd, s); status != 0) return on_accept_error(status);
      attach(std::move(s));
    } catch (std::exception const&) {
      on_accept_error(UV_ENOMEM);
    }
  }
  void on_accept_error(int status) noexcept override { refused([status] { return errno_text(-status); }); }

  [[nodiscard]] time_point now() noexcept override { return core_.now(); }
  [[nodiscard]] bool logs() const noexcept override { return core_.logs(); }
  void log(log_level level, std::string_view line) noexcept override { core_.log(level, line); }
  void wakes_are_due() noexcept override {
    uv_check_start(check_.get(), [](uv_check_t* h) noexcept {
      const loop_core::turn t(handle_of<uv_check_t>::core_of(h));
      if (server_core* self = handle_of<uv_check_t>::owner_of(h)) self->deliver();
    });
    uv_idle_start(idle_.get(), [](uv_idle_t*) noexcept {});  // do not sleep before that
  }
  void deliver() noexcept {
    if (deliver_some()) return;
    uv_check_stop(check_.get());
    uv_idle_stop(idle_.get());
  }
  bool sweep_is_set() noexcept override { return timer_node::in_heap(); }
  void sweep_at(time_point t) noexcept override { core_.add_timer(*this, t); }
  void emptied() noexcept override { drained_.set(); }

  template <class H>
  using handle_of = handle<H, server_core>;

  loop_core& core_;
  event drained_;
  handle_of<uv_check_t> check_;
  handle_of<uv_idle_t> idle_;
  std::optional<net::detail::acceptor_core> acceptor_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
