#pragma once
// The store of --host-store. It has a thread of its own, and a loop where USE_LIBUV does not say otherwise: whoever does not read the launcher's output holds up the launcher, and
// with it the ranks' lines, but never the store.
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <future>
#include <optional>
#include <rollcall/legacy/server.hpp>
#include <rollcall/posix/listener.hpp>
#include <rollcall/rt/loop.hpp>
#include <rollcall/rt/stop.hpp>
#include <rollcall/rt/sync_wait.hpp>
#include <rollcall/server.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "output.hpp"

namespace run {

namespace rc = rollcall;

/// An empty store from the beginning to the end of this object.
class hosted_store {
 public:
  hosted_store(rc::listener at, bool use_libuv) {
    if (use_libuv) {
      poster_.emplace(start(std::move(at)));
    } else {
      blocking_.emplace(std::move(at), rc::serve_options{}, log);
      blocking_->start();
    }
  }
  hosted_store(hosted_store const&) = delete;
  hosted_store& operator=(hosted_store const&) = delete;
  ~hosted_store() {
    if (!poster_) return;
    poster_->post([this] { stop_.request_stop(); });
    thread_.join();
  }

  /// How many clients were connected when the store last looked, which it does soon after each call; 1 before it has looked.
  [[nodiscard]] std::uint64_t clients() {
    if (blocking_) return blocking_->stats().connections;
    if (!poster_->post([this] { clients_ = stats_.connections; })) clients_ = 0;
    return clients_;
  }

 private:
  static void log(rc::log_level level, std::string_view line) {
    if (level >= rc::log_level::warning) say(fmt::format("store: {}", line));
  }
  rc::poster start(rc::listener at) {
    thread_ = std::thread([this](rc::listener l) { serve(std::move(l)); }, std::move(at));
    std::future<rc::poster> running = started_.get_future();
    try {
      return running.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }
  void serve(rc::listener at) {
    bool running = false;
    try {
      rc::loop l;
      l.log_to(log);
      started_.set_value(l.post_handle());
      running = true;
      rc::sync_wait(l, rc::serve(l, std::move(at), rc::serve_options{}.stats(&stats_)), stop_.token());
    } catch (std::exception const& e) {
      if (!running) return started_.set_exception(std::current_exception());
      say(fmt::format("the store has ended: {}", e.what()));
    }
  }

  // Of the store's thread:
  rc::stop_source stop_;
  rc::server_stats stats_;
  // Of both:
  std::atomic<std::uint64_t> clients_{1};
  std::promise<rc::poster> started_;
  // Of the launcher's:
  std::thread thread_;
  std::optional<rc::poster> poster_;
  std::optional<rc::legacy_server> blocking_;
};

}  // namespace run
