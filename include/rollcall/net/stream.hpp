#pragma once
#include <memory>

#include "../wire/stream.hpp"

namespace rollcall {
inline namespace v0 {
namespace net {

using wire::stream;
using wire::stream_closer;
using wire::stream_ptr;
using wire::stream_sink;

/// Makes connections to one peer, for those who do not dial sockets: streams in memory, adapters.
class dialler {
 public:
  /// An attempt under way; destroying it gives up.
  class attempt {
   public:
    attempt() noexcept = default;
    attempt(attempt const&) = delete;
    attempt& operator=(attempt const&) = delete;
    virtual ~attempt() = default;
  };
  /// `s` where `status` is 0, else a negative errno value. May destroy the attempt.
  using done_fn = void (*)(void* owner, int status, stream_ptr s) noexcept;
  /// Calls `done` once, never from within this call, unless the attempt is destroyed before.
  [[nodiscard]] virtual std::unique_ptr<attempt> dial(void* owner, done_fn done) = 0;

 protected:
  ~dialler() = default;
};

}  // namespace net
}  // namespace v0
}  // namespace rollcall
