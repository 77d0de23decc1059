#pragma once
/// The blocking side, for programs without a loop: needs neither libuv nor coroutines (Meson: rollcall_legacy_dep).
#include "core/use_libuv.hpp"
#include "legacy/server.hpp"
#include "legacy/store.hpp"
