#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../../engine/peers.hpp"
#include "../../legacy/poll_server.hpp"
#include "../../legacy/thread.hpp"
#include "../../posix/listener.hpp"
#include "../../rt/loop.hpp"
#include "../../rt/scope.hpp"
#include "../../server/server_core.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Whose store a server is: "WORLD/RUN", put there by its owner before anybody is served; in wire form, and like all keys that begin with
/// 0x00 neither counted nor listed.
inline constexpr std::string_view job_key("\0job", 4);

/// Looks at a server of this process whenever it has executed requests or a connection has ended, in whichever thread it runs, and tells
/// the loop when there is something to tell. Whoever derives from it calls detach() first of all in its destructor.
class server_view {
 public:
  server_view(server_view const&) = delete;
  server_view& operator=(server_view const&) = delete;

 protected:
  server_view() : link_(std::make_shared<link>()) { link_->view = this; }
  ~server_view() { ROLLCALL_ASSERT(!link_->view); }
  /// Nothing is called any more; waits for a look that is under way.
  void detach() noexcept {
    {
      const std::lock_guard l(link_->mutex);
      link_->view = nullptr;
    }
    link_->node.reset();
  }
  /// For what look() writes and the loop reads.
  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock(link_->mutex); }
  /// On the server's thread, under lock(). Whether told() is to be called.
  virtual bool look(engine::peers& p) noexcept = 0;
  /// On the loop's thread, soon after. Must resume nobody, and must not end the server.
  virtual void told() noexcept = 0;

 private:
  friend class hosted_server;
  struct link {
    std::mutex mutex;
    server_view* view = nullptr;  // written on the loop's thread only
    std::shared_ptr<void> node;   // what a server on the loop has here
    [[nodiscard]] bool look(engine::peers& p) noexcept {
      const std::lock_guard l(mutex);
      return view && view->look(p);
    }
    void tell() noexcept {
      if (view) view->told();
    }
    [[nodiscard]] bool gone() noexcept {
      const std::lock_guard l(mutex);
      return !view;
    }
  };
  std::shared_ptr<link> link_;
};

/// A server that stores own together, by count. When the last lets go it stops accepting at once, closes who is quiet, and is gone once
/// the others have taken what was answered (serve_options::drain_within); nobody waits for that.
class hosted_server : public list_hook<> {
 public:
  hosted_server(hosted_server const&) = delete;
  hosted_server& operator=(hosted_server const&) = delete;

  [[nodiscard]] loop_core& core() const noexcept { return core_; }
  [[nodiscard]] int port() const noexcept { return port_; }
  /// Whether a further create() may share it.
  [[nodiscard]] bool shares(int port) const noexcept { return shared_ && owners_ > 0 && port == port_; }
  [[nodiscard]] std::size_t owners() const noexcept { return owners_; }
  void own() noexcept { ++owners_; }
  void disown() noexcept {
    if (--owners_ == 0) end();
  }

  [[nodiscard]] virtual std::string_view back_end() const noexcept = 0;
  /// Clients that are connected and have sent something.
  [[nodiscard]] virtual std::size_t connections() const noexcept = 0;
  /// `v` looks now and again from now on.
  virtual void watch(server_view& v) = 0;

 protected:
  hosted_server(loop_core& core, int port, bool shared) noexcept : core_(core), port_(port), shared_(shared) {}
  virtual ~hosted_server() = default;
  /// The last owner has let go: it deletes itself, now or later.
  virtual void end() noexcept = 0;

  using link = server_view::link;
  [[nodiscard]] static std::shared_ptr<link> const& link_of(server_view& v) noexcept { return v.link_; }
  [[nodiscard]] static std::shared_ptr<void>& node_of(server_view& v) noexcept { return v.link_->node; }

 private:
  friend class hosting;
  loop_core& core_;
  int port_;
  bool shared_;
  std::size_t owners_ = 0;
};

/// serve() on the owner's loop.
class looping_server final : public hosted_server, private child_owner {
 public:
  looping_server(loop_core& core, listener at, serve_options const& options, bool shared, std::string_view job)
      : hosted_server(core, at.port(), shared), server_(core, std::move(at), options) {
    if (!job.empty()) server_.put(job_key, job);
  }

  [[nodiscard]] std::string_view back_end() const noexcept override { return server_.back_end(); }
  [[nodiscard]] std::size_t connections() const noexcept override { return server_.connections(); }
  void watch(server_view& v) override {
    auto n = std::make_shared<node>(*link_of(v), server_);
    server_.watches().add(*n);
    n->on_served();
    node_of(v) = std::move(n);
  }

 private:
  struct node final : engine::server_watch {
    node(link& l, engine::peers& p) noexcept : of(l), server(p) {}
    void on_served() noexcept override {
      if (of.look(server)) of.tell();
    }
    link& of;  // which owns this
    engine::peers& server;
  };
  ~looping_server() override { destroy_children(); }
  void end() noexcept override {
    server_.drain();
    if (server_.connections() == 0) {
      delete this;
      return;
    }
    try {
      launch(wait_until_drained(server_), environment(&core(), stop_token()));
    } catch (std::exception const&) {
      delete this;  // no memory to wait with: closed as they are
    }
  }
  static driver wait_until_drained(server_core& server) { co_await server.drained(); }
  void child_ended(std::exception_ptr) noexcept override { delete this; }

  server_core server_;
};

/// The blocking server, on a thread of its own. The loop is alive as long as it serves, as with one on the loop.
class threaded_server final : public hosted_server {
 public:
  threaded_server(loop_core& core, listener at, serve_options const& options, bool shared, std::string_view job)
      : hosted_server(core, at.port(), shared),
        door_(core.door()),
        keeps_alive_(options.keep_alive()),
        server_(std::move(at), options, core.logs() ? sink(core, door_) : log_sink()) {
    if (!job.empty()) server_.put(job_key, job);
    server_.call([this](engine::peers& p) {
      count_.emplace(connections_);
      count_->server = &p;
      p.watches().add(*count_);  // before all others: they compare with what it counts
    });
    try {
      thread_ = legacy::start_thread([this] {
        server_.run();
        try {
          door_.post([this] { delete this; });
        } catch (std::exception const&) {
          // No memory: it ends with its loop.
        }
      });
    } catch (std::system_error const& e) {
      throw error(errc::io, "serve", std::string("no thread: ") + e.what());
    }
    if (keeps_alive_) core.expect_posts(true);
  }

  [[nodiscard]] std::string_view back_end() const noexcept override { return server_.back_end(); }
  [[nodiscard]] std::size_t connections() const noexcept override { return connections_; }
  void watch(server_view& v) override {
    server_.call([this, n = std::make_shared<node>(link_of(v), door_)](engine::peers& p) {
      std::erase_if(nodes_, [](auto const& each) { return each->of->gone(); });
      nodes_.push_back(n);
      n->server = &p;
      p.watches().add(*n);
      n->on_served();
    });
  }

 private:
  struct counter final : engine::server_watch {
    explicit counter(std::atomic<std::size_t>& c) noexcept : count(c) {}
    void on_served() noexcept override { count = server->connections(); }
    std::atomic<std::size_t>& count;
    engine::peers* server = nullptr;
  };
  struct node final : engine::server_watch {
    node(std::shared_ptr<link> l, poster const& p) noexcept : of(std::move(l)), door(p) {}
    void on_served() noexcept override {
      due = of->look(*server) || due;
      if (!due) return;
      try {
        door.post([l = of] { l->tell(); });
        due = false;
      } catch (std::exception const&) {
        // No memory: told after the next request.
      }
    }
    std::shared_ptr<link> of;
    poster door;
    engine::peers* server = nullptr;
    bool due = false;
  };
  ~threaded_server() override {
    if (keeps_alive_) core().expect_posts(false);
    server_.abandon();
    thread_.join();
  }
  /// Its listener is closed when this returns, a turn of its thread later, so that the port is free; the rest takes its time.
  void end() noexcept override {
    server_.stop();
    server_.wait_until_closed();
  }
  static log_sink sink(loop_core& core, poster const& door) {
    return [&core, door](log_level level, std::string_view line) {
      try {
        door.post([&core, level, text = std::string(line)] { core.log(level, text); });
      } catch (std::exception const&) {
        // No memory for a line.
      }
    };
  }

  poster door_;
  bool keeps_alive_;
  std::atomic<std::size_t> connections_{0};
  legacy::poll_server server_;
  // Of the server's thread:
  std::optional<counter> count_;
  std::vector<std::shared_ptr<node>> nodes_;
  // Of the loop's:
  std::thread thread_;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
