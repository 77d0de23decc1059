#pragma once
#include <string_view>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// What nobody stores: COMPARE_SET(key, this, this) changes nothing, and answers this only where the key is missing (protocol 4.1).
inline constexpr std::string_view absent_key("\0rollcall:none\0\0", 16);
/// The two values of that request, as they are sent.
inline constexpr std::string_view absent_twice(
    "\x10\0\0\0\0\0\0\0\0rollcall:none\0\0"
    "\x10\0\0\0\0\0\0\0\0rollcall:none\0\0",
    48);

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
