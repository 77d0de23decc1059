#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "table.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

struct pending_wait;
class waiting;

/// One key of one WAIT: in the list of its entry until the key appears. Or a grant: the right to an item of a queue.
struct wait_node {
  wait_node* prev;
  wait_node* next;
  entry* at;           // null once the key has appeared
  pending_wait* wait;
  wait_node* sibling;  // the next key of the same wait; for a grant, the next grant of the same connection
};

/// One WAIT or BARRIER that has not been answered.
struct pending_wait {
  waiting* who;
  pending_wait* prev;
  pending_wait* next;
  wait_node* nodes;
  std::uint64_t left;  // nodes still in a list
};

/// What one connection waits for, and what it was woken for. Part of a client.
class waiting {
 public:
  waiting() noexcept = default;
  waiting(waiting const&) = delete;
  waiting& operator=(waiting const&) = delete;

  /// Keys that this connection's waits still hold nodes for.
  [[nodiscard]] std::uint32_t awaited_keys() const noexcept { return nodes_; }
  [[nodiscard]] bool waits() const noexcept { return waits_ != nullptr; }
  [[nodiscard]] bool granted() const noexcept { return grants_ != nullptr; }

 protected:
  ~waiting() = default;

 private:
  friend class waiters;
  pending_wait* waits_ = nullptr;
  wait_node* grants_ = nullptr;
  std::uint32_t nodes_ = 0;
};

/// The bookkeeping of WAIT and BARRIER (protocol 7), intrusive: every operation costs O(keys that it concerns), whoever else waits.
///
/// Cells are recycled; up to `spare_per_client` free ones are kept for each attached client, so that a steady flow of waits does
/// not allocate and a store without clients holds none.
class waiters {
 public:
  static constexpr std::size_t spare_per_client = 4;

  waiters() noexcept = default;
  waiters(waiters const&) = delete;
  waiters& operator=(waiters const&) = delete;
  ~waiters() { trim(0); }

  void attach() noexcept { ++clients_; }
  void detach() noexcept {
    --clients_;
    trim(clients_ * spare_per_client);
  }
  [[nodiscard]] std::size_t clients() const noexcept { return clients_; }
  /// Unanswered WAITs and BARRIERs.
  [[nodiscard]] std::uint64_t waits() const noexcept { return waits_; }
  /// Nodes linked, unlinked or freed so far: the work done, for tests of its order.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  [[nodiscard]] std::size_t spare_cells() const noexcept { return spare_; }

  /// Starts a wait for nothing yet.
  [[nodiscard]] pending_wait& begin(waiting& who);
  /// One more key to wait for; the same key again counts again.
  void await(pending_wait& w, entry& e);
  /// The first in e's list has seen its key. Returns the connection if that ends its wait, else null. Only where somebody waits.
  [[nodiscard]] waiting* advance(entry& e) noexcept;
  /// Drops all waits of `who`; `emptied(entry&)` is told of each entry that lost its last waiter.
  template <class F>
  void cancel(waiting& who, F&& emptied) noexcept;

  /// Gives `who`, whose wait advance() just ended, the right to an item of e's queue. Never allocates.
  void grant(waiting& who, entry& e) noexcept;
  /// Takes all grants of `who` off it; each is to be given to revoke().
  [[nodiscard]] wait_node* take_grants(waiting& who) noexcept { return std::exchange(who.grants_, nullptr); }
  /// Ends the first grant of a taken list and moves on to the next one. Returns its entry, which counts one grant less.
  [[nodiscard]] entry& revoke(wait_node*& grants) noexcept;

 private:
  struct free_cell {
    free_cell* next;
  };
  static constexpr std::size_t cell_bytes = sizeof(wait_node) > sizeof(pending_wait) ? sizeof(wait_node) : sizeof(pending_wait);

  [[nodiscard]] void* take() {
    if (!free_) return ::operator new(cell_bytes);
    --spare_;
    return std::exchange(free_, free_->next);
  }
  void give(void* cell) noexcept {
    if (spare_ >= clients_ * spare_per_client) {
      ::operator delete(cell);
      return;
    }
    free_ = ::new (cell) free_cell{free_};
    ++spare_;
  }
  void trim(std::size_t keep) noexcept {
    while (spare_ > keep) {
      --spare_;
      ::operator delete(std::exchange(free_, free_->next));
    }
  }
  void unlink(wait_node& n) noexcept;
  void finish(pending_wait& w) noexcept;

  free_cell* free_ = nullptr;
  std::size_t spare_ = 0;
  std::size_t clients_ = 0;
  std::uint64_t waits_ = 0;
  std::uint64_t steps_ = 0;
};

inline pending_wait& waiters::begin(waiting& who) {
  auto* w = ::new (take()) pending_wait{&who, nullptr, who.waits_, nullptr, 0};
  if (who.waits_) who.waits_->prev = w;
  who.waits_ = w;
  ++waits_;
  return *w;
}

inline void waiters::await(pending_wait& w, entry& e) {
  auto* n = ::new (take()) wait_node{e.last_waiter, nullptr, &e, &w, w.nodes};
  (e.last_waiter ? e.last_waiter->next : e.first_waiter) = n;
  e.last_waiter = n;
  w.nodes = n;
  ++w.left;
  ++w.who->nodes_;
  ++steps_;
}

inline void waiters::unlink(wait_node& n) noexcept {
  entry& e = *std::exchange(n.at, nullptr);
  (n.prev ? n.prev->next : e.first_waiter) = n.next;
  (n.next ? n.next->prev : e.last_waiter) = n.prev;
  ++steps_;
}

/// Frees a wait whose nodes are in no list any more.
inline void waiters::finish(pending_wait& w) noexcept {
  for (wait_node* n = w.nodes; n;) {
    wait_node* next = n->sibling;
    give(n);
    --w.who->nodes_;
    ++steps_;
    n = next;
  }
  (w.prev ? w.prev->next : w.who->waits_) = w.next;
  if (w.next) w.next->prev = w.prev;
  give(&w);
  --waits_;
}

inline waiting* waiters::advance(entry& e) noexcept {
  wait_node& n = *e.first_waiter;
  pending_wait& w = *n.wait;
  unlink(n);
  if (--w.left != 0) return nullptr;
  waiting* who = w.who;
  finish(w);
  return who;
}

template <class F>
void waiters::cancel(waiting& who, F&& emptied) noexcept {
  while (pending_wait* w = who.waits_) {
    for (wait_node* n = w->nodes; n; n = n->sibling) {
      entry* e = n->at;
      if (!e) continue;
      unlink(*n);
      if (!e->first_waiter) emptied(*e);
    }
    finish(*w);
  }
}

inline void waiters::grant(waiting& who, entry& e) noexcept {
  ROLLCALL_ASSERT(free_ != nullptr);  // the finished wait left two cells
  who.grants_ = ::new (take()) wait_node{nullptr, nullptr, &e, nullptr, who.grants_};
  ++e.grants;
}

inline entry& waiters::revoke(wait_node*& grants) noexcept {
  wait_node* g = std::exchange(grants, grants->sibling);
  entry& e = *g->at;
  give(g);
  --e.grants;
  return e;
}

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
