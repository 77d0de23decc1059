#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "../../core/random.hpp"
#include "../../posix/listener.hpp"
#include "../../rt/combine.hpp"
#include "../../rt/event.hpp"
#include "../../rt/scope.hpp"
#include "../../rt/timer.hpp"
#include "../../server/server_core.hpp"
#include "../tcp.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// A server that stores own together, by count. When the last lets go it stops accepting at once, closes who is quiet, and is gone once
/// the others have taken what was answered (serve_options::drain_within); nobody waits for that.
class hosted_server final : public list_hook<>, private child_owner {
 public:
  hosted_server(loop_core& core, listener at, serve_options const& options, bool shared)
      : core_(core), port_(at.port()), shared_(shared), server_(core, std::move(at), options) {}

  [[nodiscard]] loop_core& core() const noexcept { return core_; }
  [[nodiscard]] server_core& server() noexcept { return server_; }
  [[nodiscard]] int port() const noexcept { return port_; }
  /// Whether a further create() may share it.
  [[nodiscard]] bool shares(int port) const noexcept { return shared_ && owners_ > 0 && port == port_; }
  [[nodiscard]] std::size_t owners() const noexcept { return owners_; }

  void own() noexcept { ++owners_; }
  void disown() noexcept {
    if (--owners_ > 0) return;
    server_.drain();
    if (server_.connections() == 0) {
      delete this;
      return;
    }
    try {
      launch(wait_until_drained(server_), environment(&core_, stop_token()));
    } catch (std::exception const&) {
      delete this;  // no memory to wait with: closed as they are
    }
  }

 private:
  friend class hosting;
  ~hosted_server() { destroy_children(); }
  static driver wait_until_drained(server_core& server) { co_await server.drained(); }
  void child_ended(std::exception_ptr) noexcept override { delete this; }

  loop_core& core_;
  int port_;
  bool shared_;
  std::size_t owners_ = 0;
  server_core server_;
};

/// The servers that stores of one loop own: what `multi_tenant` shares, since nothing is global.
class hosting final : public loop_attachment {
 public:
  hosting() = default;
  ~hosting() override {
    while (!servers_.empty()) delete &servers_.front();
  }
  /// The server on `port` that may be shared, or nullptr.
  [[nodiscard]] hosted_server* find(int port) noexcept {
    for (hosted_server* s = servers_.empty() ? nullptr : &servers_.front(); s; s = servers_.next(*s))
      if (s->shares(port)) return s;
    return nullptr;
  }
  [[nodiscard]] hosted_server& serve(loop_core& core, listener at, serve_options const& options, bool shared) {
    auto* s = new hosted_server(core, std::move(at), options, shared);
    servers_.push_back(*s);
    return *s;
  }
  /// Tells this loop from all others: who registers a rank again from here, for one more tenant, is the same member.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }

 private:
  list<hosted_server> servers_;
  std::uint64_t identity_ = random_bits();
};

/// What the handles of one store hold of their server.
class server_share final : public store_owner {
 public:
  explicit server_share(hosted_server& s) noexcept : hosted_(&s) { hosted_->own(); }
  ~server_share() override { give_up(); }
  [[nodiscard]] bool serves() const noexcept override { return hosted_ != nullptr; }
  [[nodiscard]] hosted_server& hosted() const noexcept { return *hosted_; }

  [[nodiscard]] task<> drain(client_ptr client, deadline limit) override {
    if (!hosted_) co_return;
    loop_core& core = hosted_->core();
    const time_point begun = core.now();
    const time_point until = limit.from(begun);
    std::size_t left = 0;
    {
      departures gone(core, hosted_->server());
      while (last_owner() && (left = others(*client)) > 0 && core.now() < until) {
        gone.reset();
        // Of its own connections it knows those that stand. While one is being opened, the count is looked at again soon.
        const bool opening = hosted_->server().connections() <= client->lane_count();
        const time_point next = opening ? std::min(until, core.now() + std::chrono::milliseconds(20)) : until;
        const result<void> changed = co_await as_result(with_deadline(gone.wait(), next));
        if (!changed && changed.error().code() != errc::timed_out) throw error(changed.shared());
        if (changed && last_owner() && others(*client) == 0) {
          // One of its own may have been cut off just now: its end is read in between.
          for (int turns = 0; turns < 2; ++turns) co_await sleep_for(std::chrono::milliseconds(1));
        }
      }
    }
    if (!last_owner()) left = 0;
    client->close();
    give_up();
    if (left == 0) co_return;
    failure f(
        errc::timed_out, "drain",
        std::to_string(left) + (left == 1 ? " other client is" : " other clients are") + " still connected; the server ended all the same");
    throw error(f.with_peer(client->endpoint()).with_times(core.now() - begun, limit.length(begun)));
  }

 private:
  /// Set when anything happened at the server.
  class departures final : private engine::server_watch {
   public:
    departures(loop_core& core, server_core& s) noexcept : server_(s), before_(s.connections()), changed_(&core) { s.watches().add(*this); }
    void reset() noexcept {
      before_ = server_.connections();
      changed_.reset();
    }
    [[nodiscard]] event::waiting wait() noexcept { return changed_.wait(); }

   private:
    void on_served() noexcept override {
      if (server_.connections() != before_) changed_.set();
    }
    server_core& server_;
    std::size_t before_;
    event changed_;
  };

  [[nodiscard]] bool last_owner() const noexcept { return hosted_ && hosted_->owners() == 1; }
  [[nodiscard]] std::size_t others(client_state const& own) const noexcept {
    const std::size_t all = hosted_->server().connections();
    return all - std::min(all, own.ready_lanes());
  }
  void give_up() noexcept {
    if (hosted_) std::exchange(hosted_, nullptr)->disown();
  }
  hosted_server* hosted_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
