#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../rt/loop.hpp"
#include "lane.hpp"
#include "options.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

class client_state;

/// A single-thread counted reference to a client; every store handle and every operation holds one.
class client_ptr {
 public:
  client_ptr() noexcept = default;
  explicit client_ptr(client_state* c) noexcept;
  client_ptr(client_ptr const& o) noexcept : client_ptr(o.state_) {}
  client_ptr(client_ptr&& o) noexcept : state_(std::exchange(o.state_, nullptr)) {}
  client_ptr& operator=(client_ptr o) noexcept {
    std::swap(state_, o.state_);
    return *this;
  }
  ~client_ptr();
  [[nodiscard]] client_state* operator->() const noexcept { return state_; }
  [[nodiscard]] client_state& operator*() const noexcept { return *state_; }
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  client_state* state_ = nullptr;
};

/// One store client: its lanes (one in the common case), and who may use which. What the handles and operations share.
class client_state final : private lane_owner, private ready_node {
 public:
  client_state(loop_core& core, std::string host, int port, client_options options)
      : ready_node([](ready_node& n) noexcept { static_cast<client_state&>(n).flush(); }),
        core_(core),
        host_(std::move(host)),
        port_(port),
        options_(options) {
    core_.keep();
  }
  client_state(client_state const&) = delete;
  client_state& operator=(client_state const&) = delete;

  [[nodiscard]] loop_core& core() const noexcept { return core_; }
  [[nodiscard]] client_options const& options() const noexcept { return options_; }
  [[nodiscard]] std::string const& host() const noexcept { return host_; }
  [[nodiscard]] int port() const noexcept { return port_; }
  /// "host:port" as the user gave them.
  [[nodiscard]] std::string endpoint() const {
    return (host_.find(':') != host_.npos && host_.front() != '[' ? "[" + host_ + "]" : host_) + ":" + std::to_string(port_);
  }
  /// Tells this client from every other one, also from its predecessor in a restarted process; random.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] server_info& info() noexcept override { return info_; }
  [[nodiscard]] std::size_t lane_count() const noexcept { return lanes_.size(); }
  [[nodiscard]] std::size_t ready_lanes() const noexcept {
    std::size_t n = 0;
    for (auto const& l : lanes_) n += l->ready();
    return n;
  }
  [[nodiscard]] bool closed() const noexcept { return closed_ != nullptr; }
  /// Why operations fail from now on.
  [[nodiscard]] failure_ptr const& why_closed() const noexcept { return closed_; }

  /// The first lane, on a stream that stands. `nonce` is echoed by the peer.
  lane& begin(net::stream_ptr s, socket_address const& to, std::uint32_t nonce, bool with_ping) {
    peer_ = to;
    with_ping_ = with_ping;
    lane& l = add_lane();
    l.greet(nonce, with_ping);
    l.open(std::move(s));
    return l;
  }
  /// For streams that are no sockets: who makes the further lanes. `identity` 0 keeps the random one.
  void stand_on(std::shared_ptr<net::dialler> further, std::uint64_t identity) noexcept {
    dialler_ = std::move(further);
    if (identity != 0) identity_ = identity;
  }
  /// Called once when the first lane is ready or lost.
  void on_greeted(void (*f)(void*) noexcept, void* arg) noexcept {
    greeted_ = f;
    greeted_arg_ = arg;
  }
  [[nodiscard]] bool ready() const noexcept { return !lanes_.empty() && lanes_.front()->ready(); }

  /// A lane that takes a command now; opens one more where all are occupied by waits that cannot be preempted. nullptr: no more
  /// may be opened.
  lane* command_lane() {
    for (auto const& l : lanes_)
      if (!l->dead() && l->session().takes_wait()) return l.get();
    for (auto const& l : lanes_)
      if (!l->dead() && l->session().takes_command()) return l.get();
    return open_lane();
  }
  /// A lane whose tail is free.
  lane* wait_lane() {
    for (auto const& l : lanes_)
      if (!l->dead() && l->session().takes_wait()) return l.get();
    return open_lane();
  }
  /// Something was staged: it is written in this loop turn, after everything that is ready now has staged its own.
  void request_flush() noexcept {
    if (!list_hook<ready_tag>::linked()) core_.schedule(*this);
  }
  void flush() noexcept {
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i]->flush();
  }

  /// A running operation keeps the host's loop alive; an idle connection does not.
  void operation_begins() noexcept {
    if (++running_ == 1 && !lanes_.empty()) lanes_.front()->keep_alive(true);
  }
  void operation_ends() noexcept {
    if (--running_ == 0 && !lanes_.empty()) lanes_.front()->keep_alive(false);
  }

  /// Everything pending fails with errc::closed. Idempotent.
  void close() {
    core_.check_thread();
    if (!closed_) close(std::make_shared<failure const>(failure(errc::closed, "store", "the store was closed").with_peer(endpoint())));
  }

 private:
  friend class client_ptr;
  ~client_state() {
    for (auto const& l : lanes_) l->close(nullptr);
    lanes_.clear();
    core_.release();
  }
  void close(failure_ptr why) noexcept {
    closed_ = std::move(why);
    for (auto const& l : lanes_) l->close(closed_);
  }
  lane& add_lane() {
    lanes_.push_back(std::unique_ptr<lane>(new lane(core_, *this, endpoint())));
    return *lanes_.back();
  }
  lane* open_lane() {
    // Lanes that died while they were being opened are swept here, where no call of theirs is on the stack.
    std::erase_if(lanes_, [](auto const& l) { return l->dead(); });
    if (lanes_.size() >= options_.max_lanes()) return nullptr;
    lane& l = add_lane();
    l.greet(static_cast<std::uint32_t>(lanes_.size()), with_ping_);
    if (dialler_) {
      l.dial(*dialler_);
    } else {
      l.dial(peer_, options_.socket());
    }
    if (l.dead()) throw error(l.why());  // not even begun: out of descriptors
    return &l;
  }
  void lane_ready(lane& l) noexcept override {
    if (&l == lanes_.front().get()) {
      l.keep_alive(running_ > 0);
      report();
    } else {
      l.keep_alive(false);
    }
  }
  void lane_lost(lane& l, failure_ptr const& why, bool handshake) noexcept override {
    const bool first = &l == lanes_.front().get();
    if (!first && handshake) return;  // only what was staged on it fails
    if (!closed_) close(why);
    if (first && handshake) report();
  }
  void report() noexcept {
    if (auto f = std::exchange(greeted_, nullptr)) f(greeted_arg_);
  }

  loop_core& core_;
  std::string host_;
  int port_;
  client_options options_;
  std::size_t references_ = 0;
  std::size_t running_ = 0;
  socket_address peer_;
  std::shared_ptr<net::dialler> dialler_;
  bool with_ping_ = true;  // what the first lane's handshake showed that the server takes
  server_info info_;
  std::uint64_t identity_ = (std::uint64_t{std::random_device()()} << 32) | std::random_device()();
  failure_ptr closed_;
  std::vector<std::unique_ptr<lane>> lanes_;
  void (*greeted_)(void*) noexcept = nullptr;
  void* greeted_arg_ = nullptr;
};

inline client_ptr::client_ptr(client_state* c) noexcept : state_(c) {
  if (state_) ++state_->references_;
}
inline client_ptr::~client_ptr() {
  if (state_ && --state_->references_ == 0) delete state_;
}

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
