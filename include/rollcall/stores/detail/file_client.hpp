#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../../core/random.hpp"
#include "../../rt/detail/core.hpp"
#include "file_state.hpp"

namespace rollcall {
inline namespace v0 {
namespace detail {

/// What a handle and its copies and operations hold; the state leaves when it goes.
class file_client {
 public:
  file_client(loop_core& core, std::string path, file_options const& o) : state_(std::make_shared<file_state>(core, std::move(path), o)) {}
  file_client(file_client const&) = delete;
  file_client& operator=(file_client const&) = delete;
  ~file_client() { state_->leave(std::uncaught_exceptions() > 0 ? "it was left by an exception" : ""); }

  [[nodiscard]] file_state& state() const noexcept { return *state_; }
  /// The state alone, which keeps nobody from leaving.
  [[nodiscard]] std::shared_ptr<file_state> const& shared_state() const noexcept { return state_; }
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  /// why     the run has failed; empty: it has not.
  void close(std::string_view why) const noexcept {
    state_->core().check_thread();
    const std::shared_ptr<file_state> s = state_;
    s->leave(why);
    s->close(errc::closed, "the store was closed");
  }

 private:
  std::shared_ptr<file_state> state_;
  std::uint64_t identity_ = random_bits();
};
using file_client_ptr = std::shared_ptr<file_client>;

}  // namespace detail
}  // namespace v0
}  // namespace rollcall
