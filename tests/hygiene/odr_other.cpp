#include "includes_reverse.hpp"

void const* address_seen_elsewhere();
void const* address_seen_elsewhere() { return &rollcall::error_category(); }
