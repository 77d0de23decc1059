#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "../wire/opcodes.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// Asks a server whose probe said READY who it is: a GET of the reserved key (protocol 17).
inline constexpr std::string_view introduce_request{"\x03\x04\0\0\0\0\0\0\0\0cap", 1 + 8 + 4};

/// What the probe in the handshake, and the answer to introduce_request, told about the server.
class server_info {
 public:
  server_info() noexcept = default;
  bool is_rollcall = false;
  std::uint32_t version = 0;
  std::uint64_t capabilities = 0;
  std::array<char, wire::instance_id_bytes> instance{};
  bool has_instance = false;

  /// The value of the reserved key; one that is too short tells nothing.
  void learn(std::string_view value) noexcept {
    if (value.size() < wire::capability_bytes) return;
    version = wire::load<std::uint32_t>(value.data());
    capabilities = wire::load<std::uint64_t>(value.data() + 4);
    value.copy(instance.data(), instance.size(), 12);
    has_instance = true;
  }
  /// Whether `now` answers where this one did and is not the same: what this one held is gone. Others than rollcall's cannot be told apart.
  [[nodiscard]] bool was_replaced_by(server_info const& now) const noexcept {
    return has_instance && (!now.has_instance || now.instance != instance);
  }
};

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
