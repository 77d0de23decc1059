#pragma once
#include <functional>
#include <string_view>

#include "../version.hpp"

namespace rollcall {
inline namespace v0 {

enum class log_level : unsigned char { debug, info, warning, error };

/// Where log lines go: called with one line without a newline, on the thread of whoever logs it. That is the loop's for all that lives on a
/// loop (what a blocking back end of tcp_store::create() says is passed on to it), a legacy_server's own, and for a blocking_store the
/// thread that calls it, so then it may be called by several at once. Must not throw. Empty: silent, the default.
using log_sink = std::function<void(log_level, std::string_view)>;

}  // namespace v0
}  // namespace rollcall
