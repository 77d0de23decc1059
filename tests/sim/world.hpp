#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <rollcall/rt/combine.hpp>
#include <rollcall/rt/start.hpp>
#include <rollcall/stores/tcp.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model.hpp"

namespace sim {

using namespace std::chrono_literals;
using rc::duration;
using rc::time_point;
using rc::test::random_source;

[[nodiscard]] inline std::uint64_t from_environment(char const* variable, std::uint64_t otherwise) {
  char const* const text = std::getenv(variable);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// What a simulation is like; everything else follows from the seed.
class world_options {
 public:
  world_options() = default;
  std::uint64_t seed = 1;
  std::size_t operations = 250;
  rc::test::corruption corrupt = rc::test::corruption::none;  // one byte of one direction of some link
  bool corrupt_answers = true;
  std::uint64_t corrupt_at = 100;
  bool only_checks = false;
};

/// A loop on virtual time, a server that is watched by a model, and the network between it and its clients.
class world {
 public:
  explicit world(std::uint64_t seed) : plan(seed), time(loop), model_(store_options(), [this](std::string s) { complain(std::move(s)); }) {
    model_.clock = &time;
    options_.store(store_options()).stats(&stats);
  }
  world(world const&) = delete;
  world& operator=(world const&) = delete;
  ~world() { stop_server(); }

  void complain(std::string what) {
    if (complaints.size() < 20) complaints.push_back(std::to_string(since_start().count()) + " ns: " + std::move(what));
    ++complained;
  }
  [[nodiscard]] duration since_start() { return time.now() - time_point(1h); }
  void serve(rc::serve_options o) {
    options_ = o.store(store_options()).stats(&stats);
    server.emplace(loop.core(), options_);
  }
  void accept(int client, rc::net::stream_ptr s) {
    if (!server || draining) return;  // refused
    auto p = std::make_shared<peer>(client);
    std::erase_if(peers, [](auto const& x) { return x->gone && x->closed; });
    peers.push_back(p);
    server->attach(rc::net::stream_ptr(new tap(std::move(s), std::move(p), model_, stats)));
  }
  void stop_server() {
    server.reset();
    time.settle();
  }
  /// After everything has ended: what must be left is the keys.
  void check_server_at_rest() {
    for (auto const& p : peers) {
      if (p->gone) continue;
      if (!p->out.empty()) complain("the server has not written " + std::to_string(p->out.size()) + " bytes it owes");
      if (!p->queue.empty()) complain("the server has not executed " + std::to_string(p->queue.size()) + " requests");
    }
  }
  void check_server_empty() {
    auto const& store = server->store();
    const auto s = store.stats();
    if (s.clients != 0 || stats.connections != 0) complain("the server keeps " + std::to_string(stats.connections) + " connections");
    if (s.waits != 0 || model_.waits() != 0) complain("the server keeps " + std::to_string(s.waits) + " waits");
    const auto queues = static_cast<std::size_t>(
        std::count_if(model_.queues.begin(), model_.queues.end(), [](auto const& q) { return !q.second.empty(); }));
    if (s.keys != model_.values().size() || store.entries() != s.keys + queues)
      complain("the server has " + std::to_string(s.keys) + " keys in " + std::to_string(store.entries()) + " entries, the model " +
               std::to_string(model_.values().size()));
    if (stats.paused != 0) complain("the server counts connections that are paused");
  }
  void check_loop_empty() {
    time.settle();
    if (loop.live_handles() != 0) complain(std::to_string(loop.live_handles()) + " handles are left");
    if (loop.live_frames() != 0) complain(std::to_string(loop.live_frames()) + " frames are left");
    if (loop.core().next_timer() != time_point::max()) complain("a timer is left");
  }
  static rc::engine::store_options store_options() {
    std::array<char, rc::wire::instance_id_bytes> id{};
    for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<char>(i + 1);
    return rc::engine::store_options().instance(id).seed(4711);
  }
  [[nodiscard]] std::string report() const {
    std::string text = std::to_string(complained) + " complaints";
    for (std::string const& c : complaints) text += "\n  " + c;
    return text;
  }

  rc::test::fault_plan plan;
  rc::loop loop;
  rc::test::virtual_time time;
  std::vector<std::string> complaints;
  std::size_t complained = 0;
  rc::server_stats stats;
  model model_;
  std::optional<rc::detail::server_core> server;
  std::vector<std::shared_ptr<peer>> peers;
  bool draining = false;

 private:
  rc::serve_options options_;
};

/// A coroutine that its owner may destroy wherever it is.
class breakable {
 public:
  struct promise_type {
    breakable get_return_object() noexcept { return breakable(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
  breakable(breakable&& o) noexcept : frame_(std::exchange(o.frame_, {})) {}
  breakable& operator=(breakable&&) = delete;
  ~breakable() {
    if (frame_) frame_.destroy();
  }

 private:
  explicit breakable(std::coroutine_handle<promise_type> h) noexcept : frame_(h) {}
  std::coroutine_handle<promise_type> frame_;
};

/// A function that is called at a point of the loop's time.
class wake_at final : private rc::detail::timer_node {
 public:
  wake_at(rc::loop& l, std::function<void()> f)
      : timer_node([](timer_node& t) noexcept { static_cast<wake_at&>(t).f_(); }), core_(l.core()), f_(std::move(f)) {}
  wake_at(wake_at const&) = delete;
  wake_at& operator=(wake_at const&) = delete;
  ~wake_at() { core_.remove_timer(*this); }
  void cancel() noexcept { core_.remove_timer(*this); }
  void in(duration d) {
    cancel();
    core_.add_timer(*this, core_.now() + d);
  }

 private:
  rc::detail::loop_core& core_;
  std::function<void()> f_;
};

}  // namespace sim
