#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "../../core/random.hpp"
#include "../../posix/listener.hpp"
#include "../../rt/combine.hpp"
#include "../../rt/event.hpp"
#include "../../rt/scope.hpp"
#include "../../rt/timer.hpp"
#include "../tcp.hpp"
#include "hosted.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

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
  /// `job`: what stands under job_key; "": nothing.
  [[nodiscard]] hosted_server& serve(loop_core& core, listener at, serve_options const& options, bool shared, bool use_libuv,
                                     std::string_view job) {
    hosted_server* s = nullptr;
    if (use_libuv) {
      s = new looping_server(core, std::move(at), options, shared, job);
    } else {
      s = new threaded_server(core, std::move(at), options, shared, job);
    }
    servers_.push_back(*s);
    return *s;
  }
  /// Tells this loop from all others: who registers a rank again from here, for one more tenant or one more rendezvous, is the same member.
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
  [[nodiscard]] std::string_view back_end() const noexcept override { return hosted_->back_end(); }
  [[nodiscard]] hosted_server& hosted() const noexcept { return *hosted_; }

  [[nodiscard]] task<> drain(client_ptr client, deadline limit) override {
    if (!hosted_) co_return;
    loop_core& core = hosted_->core();
    const time_point begun = core.now();
    const time_point until = limit.from(begun);
    std::size_t left = 0;
    {
      departures gone(*hosted_);
      for (;;) {
        gone.reset();  // before it is counted: what changes from here on is told
        if (!last_owner() || (left = others(*client)) == 0 || core.now() >= until) break;
        // Of its own connections it knows those that stand. While one is being opened, the count is looked at again soon.
        const bool opening = hosted_->connections() <= client->lane_count();
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
  /// Set when somebody has come or left since reset().
  class departures final : private server_view {
   public:
    explicit departures(hosted_server& s) : server_(s), changed_(&s.core()) { s.watch(*this); }
    ~departures() { detach(); }
    void reset() noexcept {
      const auto l = lock();
      before_ = server_.connections();
      changed_.reset();
    }
    [[nodiscard]] event::waiting wait() noexcept { return changed_.wait(); }

   private:
    bool look(engine::peers& p) noexcept override { return p.connections() != before_; }
    void told() noexcept override { changed_.set(); }
    hosted_server& server_;
    std::size_t before_ = 0;
    event changed_;
  };

  [[nodiscard]] bool last_owner() const noexcept { return hosted_ && hosted_->owners() == 1; }
  [[nodiscard]] std::size_t others(client_state const& own) const noexcept {
    const std::size_t all = hosted_->connections();
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
