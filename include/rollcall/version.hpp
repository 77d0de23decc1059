#pragma once
/// The single source of the version number, and the floor of what we build on.

#define ROLLCALL_VERSION_MAJOR 0
#define ROLLCALL_VERSION_MINOR 1
#define ROLLCALL_VERSION_PATCH 0

#if !defined(__linux__)
#error "rollcall runs on Linux only"
#elif __cplusplus < 202002L
#error "rollcall needs C++20 (-std=c++20)"
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "rollcall needs g++ 12 or newer: older releases miscompile coroutines"
#elif !defined(__cpp_exceptions)
#error "rollcall needs exceptions (do not pass -fno-exceptions)"
#endif

/// g++ 12 miscompiles temporaries of aggregate types in co_await expressions; see docs/design/await-safety.md.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ == 12
#define ROLLCALL_GCC12 1
#else
#define ROLLCALL_GCC12 0
#endif

/// Checks an invariant of the library itself in builds without NDEBUG. Never used for input.
#if !defined(ROLLCALL_ASSERT)
#include <cassert>
#define ROLLCALL_ASSERT(condition) assert(condition)
#endif
