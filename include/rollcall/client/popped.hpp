#pragma once
#include <string_view>

#include "../engine/popped.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

using engine::popped_items;

struct running_tag {};

/// An operation that has begun and not ended, as its client sees it.
class running_op : private list_hook<running_tag> {
 public:
  /// It is a pop of this key (in wire form) and would take an item.
  [[nodiscard]] virtual bool pops(std::string_view key) const noexcept = 0;
  /// An item that another pop of its key has left: the operation is over.
  virtual void take_item(std::string_view item) noexcept = 0;
  /// The store is closed or lost: the operation is over, and an item that is under way to it stays behind.
  virtual void store_ends() noexcept = 0;

 protected:
  running_op() noexcept = default;
  ~running_op() = default;
  void leave_running() noexcept { list_hook<running_tag>::unlink(); }

 private:
  friend class client_state;
  friend class list<running_op, running_tag>;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
