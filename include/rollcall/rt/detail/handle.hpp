#pragma once
#include <uv.h>

#include <utility>

#include "core.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// Closes `b->uv` and frees `b` once libuv has let go of it; for objects that carry their handle inside: `uv` and a `core` pointer.
template <class Block>
void close_and_delete(Block* b) noexcept {
  b->uv.data = b;
  uv_close(reinterpret_cast<uv_handle_t*>(&b->uv), [](uv_handle_t* h) noexcept {
    auto* closed = static_cast<Block*>(h->data);
    loop_core* core = closed->core;
    delete closed;
    core->drop_handle();
  });
}

/// Owns one libuv handle. The handle lives in a heap block together with the pointer its callbacks need; letting go detaches the
/// owner at once, closes the handle, and the close callback frees the block. The only place that calls uv_close.
template <class Handle, class Owner>
class handle {
 public:
  handle() noexcept = default;
  handle(handle&& o) noexcept : block_(std::exchange(o.block_, nullptr)) {}
  handle& operator=(handle&& o) noexcept {
    if (this != &o) {
      reset();
      block_ = std::exchange(o.block_, nullptr);
    }
    return *this;
  }
  ~handle() { reset(); }

  /// Makes the block and runs `init(uv_loop_t*, Handle*)`; returns its status. On failure nothing is owned.
  template <class Init>
  int open(loop_core& core, Owner* owner, Init init) {
    ROLLCALL_ASSERT(!block_);
    auto* b = new block{{}, &core, owner};
    if (const int status = init(core.native(), &b->uv); status != 0) {
      delete b;
      return status;
    }
    b->uv.data = b;
    core.add_handle();
    block_ = b;
    return 0;
  }
  void reset() noexcept {
    if (!block_) return;
    block_->owner = nullptr;
    close_and_delete(std::exchange(block_, nullptr));
  }
  /// Whose handle it is; changes when an object that owns it moves.
  void set_owner(Owner* owner) noexcept { block_->owner = owner; }

  [[nodiscard]] Handle* get() const noexcept { return &block_->uv; }
  [[nodiscard]] explicit operator bool() const noexcept { return block_ != nullptr; }

  /// In a callback: the owner, or nullptr when it has let go.
  [[nodiscard]] static Owner* owner_of(void const* h) noexcept { return static_cast<block*>(static_cast<Handle const*>(h)->data)->owner; }
  [[nodiscard]] static loop_core& core_of(void const* h) noexcept { return *static_cast<block*>(static_cast<Handle const*>(h)->data)->core; }

 private:
  struct block {
    Handle uv;
    loop_core* core;
    Owner* owner;
  };
  block* block_ = nullptr;
};

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
