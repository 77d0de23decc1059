#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lane.hpp"
#include "popped.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Brings the items that a closed client has popped for nobody back to the tails of their queues, then closes its connections. Keeps the
/// loop alive meanwhile, for `patience` at the most.
class give_back final : private lane_owner, private popped_items::owner, private engine::exchange, private timer_node, private ready_node {
 public:
  static constexpr std::chrono::seconds patience{2};

  using lanes = std::vector<std::unique_ptr<lane>>;
  /// Takes over lanes that serve nobody any more.
  static void start(loop_core& core, lanes l, std::unique_ptr<popped_items> items, server_info const& info) {
    pending& all = core.attached<pending>();
    all.under_way.push_back(std::unique_ptr<give_back>(new give_back(core, all, std::move(l), std::move(items), info)));
    all.under_way.back()->begin();
  }
  give_back(give_back const&) = delete;
  give_back& operator=(give_back const&) = delete;
  ~give_back() {
    core_.remove_timer(*this);
    items_.reset();
    if (through_) through_->session().abandon(*this);
    for (auto const& l : lanes_) l->close(nullptr);
    lanes_.clear();
    core_.release();
  }

 private:
  /// All of one loop; what is left of them ends with it.
  class pending final : public loop_attachment {
   public:
    std::vector<std::unique_ptr<give_back>> under_way;
  };

  give_back(loop_core& core, pending& all, lanes l, std::unique_ptr<popped_items> items, server_info const& info)
      : timer_node([](timer_node& t) noexcept { static_cast<give_back&>(t).give_up(); }),
        ready_node([](ready_node& n) noexcept { static_cast<give_back&>(n).go_on(); }),
        core_(core),
        all_(all),
        lanes_(std::move(l)),
        items_(std::move(items)),
        info_(info) {
    core_.keep();
    for (auto const& one : lanes_) one->rebind(*this);
    items_->rebind(*this);
  }
  void begin() {
    core_.add_timer(*this, core_.now() + patience);
    look_again();
  }
  void look_again() noexcept {
    if (!list_hook<ready_tag>::linked()) core_.schedule(*this);
  }
  /// Pushes what has come; ends when nothing is under way. Runs where no call of a lane is on the stack.
  void go_on() noexcept {
    try {
      push();
    } catch (std::exception const&) {  // no memory: what could not be staged is lost with the connections
    }
    for (auto const& l : lanes_) l->flush();
    if (!items_->expects_more() && !engine::exchange::engaged()) finish();
  }
  void push() {
    if (items_->kept() == 0) return;
    if (!through_) {
      for (auto const& l : lanes_)
        if (!l->dead() && l->session().takes_command()) through_ = l.get();
      if (!through_) return;
    }
    items_->give_away([this](std::string_view key, std::string_view value) {
      through_->session().post(*this, [&](std::string& out) { wire::encode_queue_push(out, {}, key, value); });
      ++pushed_;
    });
  }
  void finish() noexcept {
    const std::size_t lost = items_->kept() + pushed_;
    if (lost > 0) {
      core_.log(log_level::warning, std::to_string(lost) + (lost == 1 ? " item that was" : " items that were") +
                                        " popped for an operation that had ended could not be pushed back before the connection ended");
    }
    const auto me = std::find_if(all_.under_way.begin(), all_.under_way.end(), [this](auto const& p) { return p.get() == this; });
    const std::unique_ptr<give_back> last = std::move(*me);
    all_.under_way.erase(me);
  }
  void give_up() noexcept { finish(); }

  void item_arrived(std::string_view key, std::string_view item) noexcept override {
    try {
      items_->keep(key, item);
    } catch (std::exception const&) {
      item_lost(key);
    }
  }
  void item_lost(std::string_view) noexcept override { ++pushed_; }
  void pop_settled() noexcept override { look_again(); }

  void on_reply(std::size_t, wire::reply&) noexcept override {}
  void on_done() noexcept override {
    pushed_ = 0;
    look_again();
  }
  void on_lost() noexcept override { look_again(); }
  void lane_ready(lane& l) noexcept override { l.flush(); }
  void lane_lost(lane& l, failure_ptr const&, bool) noexcept override {
    if (&l == through_) through_ = nullptr;
    look_again();
  }
  [[nodiscard]] server_info& info() noexcept override { return info_; }

  loop_core& core_;
  pending& all_;
  lanes lanes_;
  std::unique_ptr<popped_items> items_;
  server_info info_;
  lane* through_ = nullptr;  // the lane that the items are pushed on
  std::size_t pushed_ = 0;   // and not known to have arrived
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
