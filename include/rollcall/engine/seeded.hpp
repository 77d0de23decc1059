#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../core/random.hpp"
#include "store.hpp"

namespace rollcall {
inline namespace v0 {
namespace engine {

/// The options with what must be random where it was not given: the instance id and the seed of the hash.
[[nodiscard]] inline store_options seeded(store_options o) {
  if (std::all_of(o.instance_id.begin(), o.instance_id.end(), [](char c) { return c == 0; })) {
    const std::uint64_t id[2] = {rollcall::detail::random_bits(), rollcall::detail::random_bits()};
    static_assert(sizeof id == wire::instance_id_bytes);
    std::memcpy(o.instance_id.data(), id, sizeof id);
  }
  if (o.hash_seed == 0) o.hash_seed = rollcall::detail::random_bits();
  return o;
}

}  // namespace engine
}  // namespace v0
}  // namespace rollcall
