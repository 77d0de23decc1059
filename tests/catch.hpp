#pragma once
/// The one place that includes Catch2, version 2 or 3. The same settings everywhere: they change the reporters' layout.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#define CATCH_CONFIG_ENABLE_BENCHMARKING
#include <catch2/catch.hpp>
#endif
