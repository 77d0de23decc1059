#include "includes_forward.hpp"

void const* address_seen_elsewhere();

// One definition: both translation units, which include the headers in opposite order, see the same object.
int main() { return &rollcall::error_category() == address_seen_elsewhere() ? 0 : 1; }
