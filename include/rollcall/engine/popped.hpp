#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "session.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

struct catcher_tag {};

/// Items that were popped for an operation that had ended when they came (design 5). Nobody's until a pop of their key takes them.
class popped_items {
 public:
  /// Whom the items belong to.
  class owner {
   public:
    virtual void item_arrived(std::string_view key, std::string_view item) noexcept = 0;
    /// The connection was lost before the answer came: the queue may have one item less.
    virtual void item_lost(std::string_view key) noexcept = 0;
    /// A QUEUE_POP that nobody waits for any more was answered, or will not be.
    virtual void pop_settled() noexcept = 0;

   protected:
    ~owner() = default;
  };
  explicit popped_items(owner& o) noexcept : owner_(&o) {}
  popped_items(popped_items const&) = delete;
  popped_items& operator=(popped_items const&) = delete;
  ~popped_items() {
    while (!catchers_.empty()) delete &catchers_.front();
  }
  void rebind(owner& o) noexcept { owner_ = &o; }

  [[nodiscard]] std::size_t kept() const noexcept { return items_.size(); }
  [[nodiscard]] bool expects_more() noexcept { return !catchers_.empty(); }
  [[nodiscard]] bool expects_from(session const& s) noexcept {
    for (catcher* c = catchers_.empty() ? nullptr : &catchers_.front(); c; c = catchers_.next(*c))
      if (c->comes_from(s)) return true;
    return false;
  }
  /// The oldest item of `key`, if there is one.
  [[nodiscard]] bool take(std::string_view key, std::string& out) {
    const auto at = std::find_if(items_.begin(), items_.end(), [key](item const& i) { return i.key == key; });
    if (at == items_.end()) return false;
    out = std::move(at->value);
    items_.erase(at);
    return true;
  }
  void keep(std::string_view key, std::string_view value) { items_.push_back(item{std::string(key), std::string(value)}); }
  /// Calls f(key, value) for each item, in order, and forgets it.
  template <class F>
  void give_away(F f) {
    for (; !items_.empty(); items_.erase(items_.begin())) f(items_.front().key, items_.front().value);
  }
  /// The one reply that is due to `from`, that of a QUEUE_POP of `key`, is kept when it comes.
  void expect(std::string_view key, session& s, exchange& from) {
    auto c = std::make_unique<catcher>(*this, s, key);
    s.hand_over(from, *c);
    catchers_.push_back(*c.release());
  }

 private:
  struct item {
    std::string key;
    std::string value;
  };
  /// Owns itself until the reply has come.
  class catcher final : public exchange, public list_hook<catcher_tag> {
   public:
    catcher(popped_items& to, session& s, std::string_view key) : to_(to), session_(s), key_(key) {}
    ~catcher() { session_.abandon(*this); }
    [[nodiscard]] bool comes_from(session const& s) const noexcept { return &session_ == &s; }

   private:
    void on_reply(std::size_t, wire::reply& r) noexcept override {
      owner* const o = to_.owner_;
      list_hook<catcher_tag>::unlink();
      if (r.number > 0) o->item_arrived(key_, r.bytes);
      settle(o);
    }
    void on_done() noexcept override {}
    void on_lost() noexcept override {
      owner* const o = to_.owner_;
      list_hook<catcher_tag>::unlink();
      if (written()) o->item_lost(key_);
      settle(o);
    }
    void settle(owner* o) noexcept {
      delete this;
      o->pop_settled();
    }
    popped_items& to_;
    session& session_;
    std::string key_;
  };

  owner* owner_;
  std::vector<item> items_;
  list<catcher, catcher_tag> catchers_;
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
