#pragma once
#include <cstdint>
#include <utility>

#include "core/error.hpp"
#include "engine/options.hpp"
#include "posix/listener.hpp"
#include "rt/event.hpp"
#include "rt/loop.hpp"
#include "rt/task.hpp"
#include "server/server_core.hpp"

namespace rollcall {
inline namespace v0 {

/// Serves a store on `at` until it is stopped; then stops accepting, sends what is answered (for at most serve_options::drain_within),
/// closes every connection and the listener, and returns. Waits that are pending get no answer.
///
/// at        a listener, from listen() or listener::adopt(): bind errors are known before this is called. Owned from here.
/// errors    io when the listener cannot be watched. Whatever a peer does ends its own connection at the most.
/// cancel    the stop of the awaiting coroutine, or of the scope it was spawned in, is how a server ends: no error.
/// lifetime  keeps the loop alive while it runs, unless serve_options::keep_alive(false).
[[nodiscard]] inline task<> serve(loop& l, listener at, serve_options options = {}) {
  detail::server_core server(l.core(), std::move(at), options);
  event never(l);
  try {
    co_await never.wait();
  } catch (error const& e) {
    if (e.code() != errc::cancelled) throw;
  }
  co_await detail::stop_with(stop_token());
  server.drain();
  co_await server.drained();
}

}  // namespace v0
}  // namespace rollcall
