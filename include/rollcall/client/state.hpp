#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../core/random.hpp"
#include "../net/resolve.hpp"
#include "../rt/event.hpp"
#include "../rt/loop.hpp"
#include "give_back.hpp"
#include "lane.hpp"
#include "options.hpp"
#include "popped.hpp"
#include "sends.hpp"

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
class client_state final : private lane_owner, private popped_items::owner, private ready_node {
 public:
  client_state(loop_core& core, std::string host, int port, client_options options)
      : ready_node([](ready_node& n) noexcept {
          auto& self = static_cast<client_state&>(n);
          self.give_up_dialling();
          self.flush();
        }),
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
  [[nodiscard]] std::string endpoint() const { return endpoint_text(host_, port_); }
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
  /// Set while closed().
  [[nodiscard]] event& ended() noexcept { return ended_; }

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
  [[nodiscard]] std::shared_ptr<net::dialler> const& dialler() const noexcept { return dialler_; }
  /// Who resolves the host again for clone() and reconnect(); empty for a client on a stream.
  void resolve_by(resolve_fn f) noexcept { resolver_ = std::move(f); }
  [[nodiscard]] resolve_fn const& resolver() const noexcept { return resolver_; }
  /// The first lane, dialled by dialler().
  void begin_dialling(std::uint32_t nonce) {
    lane& l = add_lane();
    l.greet(nonce, with_ping_);
    l.dial(*dialler_);
  }
  /// Called once when the first lane is ready or lost.
  void on_greeted(void (*f)(void*) noexcept, void* arg) noexcept {
    greeted_ = f;
    greeted_arg_ = arg;
  }
  [[nodiscard]] bool ready() const noexcept { return !lanes_.empty() && lanes_.front()->ready(); }

  /// A lane that takes a command now; opens one more where all are occupied by waits that cannot be preempted. nullptr: no more
  /// may be opened. What is sent behind send_set() and its kin goes the same way as they, so that it finds them done.
  lane* command_lane() {
    if (sends_.outstanding() && sends_.through()->session().takes_command()) return sends_.through();
    for (auto const& l : lanes_)
      if (usable(*l) && l->session().takes_wait()) return l.get();
    for (auto const& l : lanes_)
      if (usable(*l) && l->session().takes_command()) return l.get();
    return open_lane();
  }
  /// A lane whose tail is free. A wait that cannot be preempted does not bar the way of unconfirmed sends.
  lane* wait_lane(bool preemptible) {
    for (auto const& l : lanes_)
      if (usable(*l) && l->session().takes_wait() && (preemptible || !sends_.outstanding() || l.get() != sends_.through())) return l.get();
    if (lane* const l = open_lane()) return l;
    return sends_.outstanding() && sends_.through()->session().takes_wait() ? sends_.through() : nullptr;  // the only one
  }
  /// Whether the server is known to take the opcodes of a family; on a server that is not ours only their first use can tell.
  [[nodiscard]] bool knows(op_family f) const noexcept { return info_.is_rollcall || f == op_family::common || known_[index(f)]; }
  /// A connection of its own for the first use of a family: a server that does not know it closes there. One beside the first that has
  /// nothing to do serves as well.
  lane* trial_lane(op_family f) {
    for (auto const& l : lanes_)
      if (!l->dead() && l->trial() == f && l->session().takes_wait()) return l.get();
    const auto spare = std::find_if(lanes_.begin(), lanes_.end(), [this](auto const& l) {
      return l != lanes_.front() && l->ready() && usable(*l) && l->session().at_rest();
    });
    lane* const l = spare != lanes_.end() ? spare->get() : open_lane();
    if (l) l->set_trial(f);
    return l;
  }
  /// The server has answered on a trial lane, which serves everybody from now on.
  void learned(lane& l) noexcept {
    known_[index(l.trial())] = true;
    l.set_trial(op_family::common);
  }

  [[nodiscard]] bool takes_ping() const noexcept { return with_ping_; }
  [[nodiscard]] std::uint32_t next_nonce() noexcept { return ++nonce_; }

  /// What send_set() and its kin do: stages what `encode(std::string&)` appends.
  template <class F>
  void send(std::string_view name, F encode) {
    core_.check_thread();
    const auto refuse = [&](errc code, std::string why) {
      failure f(code, name, std::move(why));
      return error(std::move(f.with_peer(endpoint())));
    };
    if (closed_) throw refuse(closed_->code(), closed_->detail());
    lane* const l = command_lane();
    if (!l || (sends_.outstanding() && l != sends_.through()))  // they stay in order, and one fence covers them
      throw refuse(errc::limit, "all connections of this store are in use (client_options::max_lanes)");
    if (l->backlog() > options_.max_unsent())
      throw refuse(errc::limit, "the server does not read: " + std::to_string(l->backlog()) + " bytes wait for it (client_options::max_unsent)");
    sends_.post(*l, encode);
    request_flush();
  }
  /// What send_set() and its kin have sent.
  [[nodiscard]] unconfirmed_sends& sends() noexcept { return sends_; }
  [[nodiscard]] spare_buffers& spares() noexcept { return spares_; }

  [[nodiscard]] bool take_popped(std::string_view key, std::string& out) { return items_ && items_->take(key, out); }
  /// The reply to the QUEUE_POP of an operation that has ended is still due: its item goes to the next pop.
  void keep_popped(std::string_view key, lane& l, engine::exchange& from) {
    if (!items_) items_ = std::make_unique<popped_items>(static_cast<popped_items::owner&>(*this));
    items_->expect(key, l.session(), from);
  }

  /// An item that came for an operation which was destroyed before it could take it.
  void leave_popped(std::string_view key, std::string_view item) noexcept {
    try {
      if (!items_) items_ = std::make_unique<popped_items>(static_cast<popped_items::owner&>(*this));
      item_arrived(key, item);
    } catch (std::exception const&) {
      item_lost(key);
    }
  }

  /// BARRIERs that were sent for an operation that has ended: their arrivals count, and must not be repeated.
  void remember_arrival(std::string_view key) { arrivals_.emplace_back(key); }
  [[nodiscard]] bool take_arrival(std::string_view key) noexcept {
    const auto at = std::find(arrivals_.begin(), arrivals_.end(), key);
    if (at == arrivals_.end()) return false;
    arrivals_.erase(at);
    return true;
  }

  /// Something was staged: it is written in this loop turn, after everything that is ready now has staged its own.
  void request_flush() noexcept {
    if (!list_hook<ready_tag>::linked()) core_.schedule(*this);
  }
  void flush() noexcept {
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i]->flush();
  }

  /// A running operation keeps the host's loop alive; an idle connection does not.
  void operation_begins(running_op& op) noexcept {
    if (running_.empty() && !lanes_.empty()) lanes_.front()->keep_alive(true);
    running_.push_back(op);
  }
  void operation_ends(running_op& op) noexcept {
    static_cast<list_hook<running_tag>&>(op).unlink();
    if (!running_.empty() || lanes_.empty()) return;
    lanes_.front()->keep_alive(false);
    if (!closed_ && std::any_of(lanes_.begin() + 1, lanes_.end(), [](auto const& l) { return l->dialling(); })) request_flush();
  }

  /// Everything pending fails with errc::closed, and items that were popped for nobody go back to their queues. Idempotent.
  void close() {
    core_.check_thread();
    auto why = std::make_shared<failure const>(failure(errc::closed, "store", "the store was closed").with_peer(endpoint()));
    if (!closed_) return end(std::move(why), true);
    closed_ = std::move(why);  // also for a reconnect() that is under way
    drop_items();
  }
  /// Goes on with the connections of another client, which has just made them and shares them with nobody.
  void adopt(client_state& fresh) noexcept {
    lanes_ = std::move(fresh.lanes_);
    fresh.lanes_.clear();
    for (auto const& l : lanes_) l->rebind(*this);
    peer_ = fresh.peer_;
    with_ping_ = fresh.with_ping_;
    if (!(info_.has_instance && fresh.info_.has_instance)) arrivals_.clear();
    info_ = fresh.info_;
    known_ = {};
    closed_ = nullptr;
    ended_.reset();
    if (!lanes_.empty()) lanes_.front()->keep_alive(!running_.empty());
    request_flush();
  }

 private:
  friend class client_ptr;
  ~client_state() {
    end(nullptr, true);
    drop_items();
    lanes_.clear();
    core_.release();
  }
  /// All operations and connections end. Items that were popped for nobody go back where `returns`, else after a reconnect().
  void end(failure_ptr why, bool returns) noexcept {
    if (!closed_) flush();  // what send_set() and its kin have staged in this turn
    closed_ = std::move(why);
    sends_.lose(closed_);
    while (!running_.empty()) running_.pop_front().store_ends();
    ended_.set();
    if (items_) return_items(returns);
    for (auto const& l : lanes_) l->close(closed_);
  }
  void return_items(bool all) noexcept {
    try {
      give_back::lanes stay;
      for (auto& l : lanes_)
        if (l->ready() && items_->expects_from(l->session())) stay.push_back(std::move(l));
      std::erase(lanes_, nullptr);
      if (all && stay.empty() && items_->kept() > 0) {
        const auto l = std::find_if(lanes_.begin(), lanes_.end(), [](auto const& x) { return x->ready() && usable(*x); });
        if (l != lanes_.end()) stay.push_back(std::move(*l));
        std::erase(lanes_, nullptr);
      }
      if (!stay.empty()) give_back::start(core_, std::move(stay), std::move(items_), info_);
    } catch (std::exception const&) {  // no memory: the items are lost with the connections
    }
  }
  void drop_items() noexcept {
    if (items_ && items_->kept() > 0)
      core_.log(log_level::warning, std::to_string(items_->kept()) + " items of queues at " + endpoint() +
                                        ", popped for operations that had ended, are lost with the store: its connection was lost before");
    items_ = nullptr;
  }
  /// A further connection that does not stand yet would keep the host's loop alive as long as the kernel tries, for nobody.
  void give_up_dialling() noexcept {
    if (!running_.empty() || lanes_.size() < 2 || closed_) return;
    for (auto const& l : lanes_) {
      const bool needed = l == lanes_.front() || (sends_.outstanding() && sends_.through() == l.get()) || (items_ && items_->expects_from(l->session()));
      if (l->dialling() && !needed) l->close(closed_);
    }
  }
  [[nodiscard]] static constexpr std::size_t index(op_family f) noexcept { return static_cast<std::size_t>(f); }
  [[nodiscard]] static bool usable(lane const& l) noexcept { return !l.dead() && l.trial() == op_family::common; }
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
      l.keep_alive(!running_.empty());
      report();
    } else {
      l.keep_alive(false);
    }
    request_flush();  // behind whoever waited for it, so that the first operation goes in the same write
  }
  void lane_lost(lane& l, failure_ptr const& why, bool handshake) noexcept override {
    const bool first = &l == lanes_.front().get();
    if (!first && (handshake || l.trial() != op_family::common)) return;  // only what was staged on it fails
    if (!closed_) end(why, false);
    if (first && handshake) report();
  }
  /// For the first pop of the key that has not ended, else for the next one.
  void item_arrived(std::string_view key, std::string_view item) noexcept override {
    for (running_op* op = running_.empty() ? nullptr : &running_.front(); op; op = running_.next(*op))
      if (op->pops(key)) return op->take_item(item);
    try {
      items_->keep(key, item);
    } catch (std::exception const&) {
      item_lost(key);
    }
  }
  void item_lost(std::string_view key) noexcept override {
    std::string line = "an item of queue '";
    append_printable(line, key.substr(key.starts_with('/')), 80);
    core_.log(log_level::warning, line + "' may be lost: the connection to " + endpoint() + " ended before a pop that was stopped was answered");
  }
  void pop_settled() noexcept override {}
  void report() noexcept {
    if (auto f = std::exchange(greeted_, nullptr)) f(greeted_arg_);
  }

  loop_core& core_;
  std::string host_;
  int port_;
  client_options options_;
  std::size_t references_ = 0;
  list<running_op, running_tag> running_;
  socket_address peer_;
  std::shared_ptr<net::dialler> dialler_;
  bool with_ping_ = true;  // what the first lane's handshake showed that the server takes
  server_info info_;
  std::uint32_t nonce_ = 0;
  std::uint64_t identity_ = random_bits();
  failure_ptr closed_;
  event ended_{&core_};
  resolve_fn resolver_;
  std::array<bool, op_family_count> known_{};
  std::vector<std::string> arrivals_;  // keys in wire form
  std::vector<std::unique_ptr<lane>> lanes_;
  unconfirmed_sends sends_;
  spare_buffers spares_;
  std::unique_ptr<popped_items> items_;
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
