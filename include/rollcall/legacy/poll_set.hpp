#pragma once
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/clock.hpp"
#include "../core/intrusive.hpp"

namespace rollcall {
inline namespace v0 {
namespace legacy {

class poll_set;
struct ready_tag {};

/// Somebody with a descriptor in a poll_set. Leaves the set when destroyed.
class polled : private list_hook<ready_tag> {
 public:
  polled() noexcept = default;
  polled(polled const&) = delete;
  polled& operator=(polled const&) = delete;
  /// What poll(2) has said; may destroy any member, itself as well.
  virtual void on_events(short revents) noexcept = 0;

 protected:
  inline ~polled();

 private:
  friend class poll_set;
  friend class list<polled, ready_tag>;
  poll_set* set_ = nullptr;
  std::size_t at_ = 0;
  short revents_ = 0;
  bool used_ = false;  // since the last full look
};

/// The descriptors of one poll(2) call: hot ones in front, cold ones behind. Most looks are at the hot ones only, so that a look costs
/// what is going on and not how many are connected; the rules are those of docs/design/legacy.md. No system call here.
///
///     look l = set.next(limit);  n = ppoll(l.fds, l.count, l.patience);  set.take(l, n);  set.dispatch();
class poll_set {
 public:
  static constexpr std::size_t few = 128;        ///< so many cold ones cost nothing worth saving
  static constexpr std::size_t event_cost = 32;  ///< handling one event, in entries looked at
  static constexpr std::size_t patience_for_cold = 4;  ///< what is done between two full looks, in looks at all cold ones
  static constexpr std::chrono::nanoseconds entry_cost{50};

  struct look {
    pollfd* fds;
    std::size_t count;
    duration patience;  ///< never negative; duration::max() for no limit
    bool full;
  };

  poll_set() noexcept = default;
  poll_set(poll_set const&) = delete;
  poll_set& operator=(poll_set const&) = delete;
  ~poll_set() {
    for (polled* m : members_) m->set_ = nullptr;
  }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] std::size_t hot() const noexcept { return hot_; }
  /// Watches `fd` for `events`. throws bad_alloc; nothing has happened then.
  void add(polled& m, int fd, short events) {
    if (entries_.size() == entries_.capacity()) entries_.reserve(std::max<std::size_t>(16, entries_.size() * 2));
    members_.reserve(entries_.capacity());
    entries_.push_back(pollfd{fd, events, 0});
    members_.push_back(&m);
    m.set_ = this;
    m.at_ = entries_.size() - 1;
    m.used_ = true;
    heat(m);
  }
  void watch(polled& m, short events) noexcept { entries_[m.at_].events = events; }
  [[nodiscard]] short watched(polled const& m) const noexcept { return entries_[m.at_].events; }
  /// A descriptor of -1 is not looked at.
  void set_fd(polled& m, int fd) noexcept { entries_[m.at_].fd = fd; }
  void remove(polled& m) noexcept {
    static_cast<list_hook<ready_tag>&>(m).unlink();
    if (m.at_ < hot_) cool(m);
    swap(m.at_, entries_.size() - 1);
    entries_.pop_back();
    members_.pop_back();
    m.set_ = nullptr;
  }

  /// What to look at next, and how long that may take until something happens.
  [[nodiscard]] look next(duration limit) noexcept {
    limit = std::max(limit, duration::zero());
    const std::size_t cold = entries_.size() - hot_;
    if (hot_ == 0 || cold <= few || work_ >= patience_for_cold * cold) return {entries_.data(), entries_.size(), limit, true};
    return {entries_.data(), hot_, std::min<duration>(limit, static_cast<std::int64_t>(cold) * entry_cost), false};
  }
  /// What came of it: `n` descriptors have events, 0 for none, negative where the call failed.
  void take(look const& l, int n) noexcept {
    if (l.full) work_ = 0;
    for (std::size_t i = 0; i < l.count && n > 0; ++i) {
      if (entries_[i].revents == 0) continue;
      --n;
      polled& m = *members_[i];
      m.revents_ = std::exchange(entries_[i].revents, short{0});
      m.used_ = true;
      if (!static_cast<list_hook<ready_tag>&>(m).linked()) ready_.push_back(m);
      work_ += event_cost;
    }
    if (!l.full) {
      work_ += l.count;
      if (n == 0 && ready_.empty()) work_ = patience_for_cold * (entries_.size() - hot_);  // nothing is hot: look at all of them, and block
      return;
    }
    for (polled* m = ready_.empty() ? nullptr : &ready_.front(); m; m = ready_.next(*m)) heat(*m);
    for (std::size_t i = hot_; i-- > 0;) {
      polled& m = *members_[i];
      if (!std::exchange(m.used_, false)) cool(m);
    }
  }
  /// Tells everybody who has events.
  void dispatch() noexcept {
    while (!ready_.empty()) {
      polled& m = ready_.pop_front();
      m.on_events(m.revents_);
    }
  }

 private:
  void swap(std::size_t a, std::size_t b) noexcept {
    if (a == b) return;
    std::swap(entries_[a], entries_[b]);
    std::swap(members_[a], members_[b]);
    members_[a]->at_ = a;
    members_[b]->at_ = b;
  }
  void heat(polled& m) noexcept {
    if (m.at_ < hot_) return;
    swap(m.at_, hot_++);
  }
  void cool(polled& m) noexcept { swap(m.at_, --hot_); }

  std::vector<pollfd> entries_;
  std::vector<polled*> members_;  // of the entry with the same index
  list<polled, ready_tag> ready_;
  std::size_t hot_ = 0;
  std::size_t work_ = 0;  // of the last full look and since then, in entries
};

inline polled::~polled() {
  if (set_) set_->remove(*this);
}

}  // namespace legacy
}  // namespace v0
}  // namespace rollcall
