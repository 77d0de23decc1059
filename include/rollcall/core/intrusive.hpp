#pragma once
#include <cstddef>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {

/// A link that its object carries by inheritance; `Tag` tells several links of one object apart. Leaves its list when destroyed.
template <class Tag = void>
class list_hook {
 public:
  list_hook() noexcept = default;
  list_hook(list_hook const&) = delete;
  list_hook& operator=(list_hook const&) = delete;
  ~list_hook() { unlink(); }

  [[nodiscard]] bool linked() const noexcept { return next_ != nullptr; }
  void unlink() noexcept {
    if (!next_) return;
    prev_->next_ = next_;
    next_->prev_ = prev_;
    prev_ = next_ = nullptr;
  }

 private:
  template <class, class>
  friend class list;
  list_hook* prev_ = nullptr;
  list_hook* next_ = nullptr;
};

/// A doubly linked list of objects that derive from list_hook<Tag>. Owns nothing; insertion and removal are O(1) and never allocate.
template <class T, class Tag = void>
class list {
  using hook = list_hook<Tag>;

 public:
  list() noexcept { head_.prev_ = head_.next_ = &head_; }
  list(list const&) = delete;
  list& operator=(list const&) = delete;
  ~list() {
    while (!empty()) head_.next_->unlink();
    head_.prev_ = head_.next_ = nullptr;
  }

  [[nodiscard]] bool empty() const noexcept { return head_.next_ == &head_; }
  [[nodiscard]] T& front() noexcept { return static_cast<T&>(*head_.next_); }
  [[nodiscard]] T& back() noexcept { return static_cast<T&>(*head_.prev_); }
  void push_back(T& item) noexcept { insert(*head_.prev_, item); }
  void push_front(T& item) noexcept { insert(head_, item); }
  T& pop_front() noexcept {
    T& item = front();
    static_cast<hook&>(item).unlink();
    return item;
  }
  /// Moves everything in `other` to the end of this list, O(1).
  void splice_back(list& other) noexcept {
    if (other.empty()) return;
    hook* first = other.head_.next_;
    hook* last = other.head_.prev_;
    other.head_.prev_ = other.head_.next_ = &other.head_;
    first->prev_ = head_.prev_;
    head_.prev_->next_ = first;
    last->next_ = &head_;
    head_.prev_ = last;
  }
  /// The item after `item`, or nullptr at the end.
  [[nodiscard]] T* next(T& item) noexcept {
    hook* n = static_cast<hook&>(item).next_;
    return n == &head_ ? nullptr : &static_cast<T&>(*n);
  }
  /// The item before `item`, or nullptr at the start.
  [[nodiscard]] T* previous(T& item) noexcept {
    hook* p = static_cast<hook&>(item).prev_;
    return p == &head_ ? nullptr : &static_cast<T&>(*p);
  }

 private:
  static void insert(hook& after, T& item) noexcept {
    hook& h = item;
    ROLLCALL_ASSERT(!h.linked());
    h.prev_ = &after;
    h.next_ = after.next_;
    after.next_->prev_ = &h;
    after.next_ = &h;
  }
  hook head_;
};

/// A link for an intrusive pairing heap.
class heap_hook {
 public:
  heap_hook() noexcept = default;
  heap_hook(heap_hook const&) = delete;
  heap_hook& operator=(heap_hook const&) = delete;
  ~heap_hook() { ROLLCALL_ASSERT(!in_heap_); }
  [[nodiscard]] bool in_heap() const noexcept { return in_heap_; }

 private:
  template <class, class>
  friend class heap;
  heap_hook* child_ = nullptr;
  heap_hook* next_ = nullptr;
  heap_hook* prev_ = nullptr;  // the left sibling, or the parent for a first child
  bool in_heap_ = false;
};

/// A pairing heap of objects that derive from heap_hook; `Less(a, b)` tells which comes first. push is O(1), removal of any
/// item O(log n) amortised; nothing allocates.
template <class T, class Less>
class heap {
 public:
  heap() noexcept = default;
  heap(heap const&) = delete;
  heap& operator=(heap const&) = delete;

  [[nodiscard]] bool empty() const noexcept { return root_ == nullptr; }
  [[nodiscard]] T& top() noexcept { return static_cast<T&>(*root_); }
  void push(T& item) noexcept {
    heap_hook& h = item;
    ROLLCALL_ASSERT(!h.in_heap_);
    h.in_heap_ = true;
    root_ = root_ ? meld(root_, &h) : &h;
  }
  void remove(T& item) noexcept {
    heap_hook* h = &static_cast<heap_hook&>(item);
    ROLLCALL_ASSERT(h->in_heap_);
    heap_hook* rest = merge_children(h->child_);
    if (h == root_) {
      root_ = rest;
    } else {
      (h->prev_->child_ == h ? h->prev_->child_ : h->prev_->next_) = h->next_;
      if (h->next_) h->next_->prev_ = h->prev_;
      if (rest) root_ = meld(root_, rest);
    }
    h->child_ = h->next_ = h->prev_ = nullptr;
    h->in_heap_ = false;
  }

 private:
  static heap_hook* meld(heap_hook* a, heap_hook* b) noexcept {
    if (Less{}(static_cast<T const&>(*b), static_cast<T const&>(*a))) {
      heap_hook* t = a;
      a = b;
      b = t;
    }
    b->prev_ = a;
    b->next_ = a->child_;
    if (a->child_) a->child_->prev_ = b;
    a->child_ = b;
    return a;
  }
  static heap_hook* merge_children(heap_hook* first) noexcept {
    heap_hook* pairs = nullptr;  // melded pairs, last one first, linked through next_
    while (first) {
      heap_hook* a = first;
      heap_hook* b = a->next_;
      first = b ? b->next_ : nullptr;
      a->next_ = a->prev_ = nullptr;
      if (b) {
        b->next_ = b->prev_ = nullptr;
        a = meld(a, b);
      }
      a->next_ = pairs;
      pairs = a;
    }
    heap_hook* root = nullptr;
    while (pairs) {
      heap_hook* n = pairs->next_;
      pairs->next_ = nullptr;
      root = root ? meld(root, pairs) : pairs;
      pairs = n;
    }
    if (root) root->prev_ = nullptr;
    return root;
  }
  heap_hook* root_ = nullptr;
};

}  // namespace v0
}  // namespace rollcall
