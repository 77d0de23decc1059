#pragma once
#include <functional>
#include <string_view>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {

enum class log_level : unsigned char { debug, info, warning, error };

/// Where log lines go; called on the loop's thread with one line without a newline. Must not throw. Empty: silent, the default.
using log_sink = std::function<void(log_level, std::string_view)>;

}  // namespace v0
}  // namespace rollcall
