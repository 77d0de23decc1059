#include <cstdlib>
#include <new>

#include "support.hpp"

namespace {

allocation_count counted;
std::size_t fails_in = 0;

void* allocate(std::size_t n) {
  if (fails_in != 0 && --fails_in == 0) throw std::bad_alloc();
  ++counted.calls;
  counted.bytes += n;
  if (void* p = std::malloc(n != 0 ? n : 1)) return p;
  throw std::bad_alloc();
}

}  // namespace

allocation_count allocations() noexcept { return counted; }
void fail_allocation(std::size_t n) noexcept { fails_in = n; }

void* operator new(std::size_t n) { return allocate(n); }
void* operator new[](std::size_t n) { return allocate(n); }
// The address sanitizer has forms of its own of those that do not throw, which would not fit the release below.
void* operator new(std::size_t n, std::nothrow_t const&) noexcept {
  try {
    return allocate(n);
  } catch (...) {
    return nullptr;
  }
}
void* operator new[](std::size_t n, std::nothrow_t const& t) noexcept { return operator new(n, t); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
