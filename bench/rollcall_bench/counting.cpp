#include "counting.hpp"

#include <malloc.h>
#include <uv.h>

#include <cstdlib>
#include <new>

namespace {

bench::allocation_counts counts;

void* allocate(std::size_t n) noexcept {
  void* const p = std::malloc(n != 0 ? n : 1);
  if (!p) return nullptr;
  ++counts.calls;
  ++counts.live_blocks;
  counts.live_bytes += malloc_usable_size(p);
  return p;
}
void* allocate_or_throw(std::size_t n) {
  if (void* const p = allocate(n)) return p;
  throw std::bad_alloc();
}
void release(void* p) noexcept {
  if (!p) return;
  --counts.live_blocks;
  counts.live_bytes -= malloc_usable_size(p);
  std::free(p);
}

void* uv_counted(void* p) noexcept {
  if (p) counts.libuv_bytes += malloc_usable_size(p);
  return p;
}
void uv_forget(void* p) noexcept {
  if (p) counts.libuv_bytes -= malloc_usable_size(p);
}

}  // namespace

namespace bench {

allocation_counts allocations() noexcept { return counts; }

void count_libuv() noexcept {
  uv_replace_allocator([](std::size_t n) { return uv_counted(std::malloc(n)); },
                       [](void* p, std::size_t n) {
                         uv_forget(p);
                         void* const q = std::realloc(p, n);
                         if (!q && n != 0) uv_counted(p);
                         return uv_counted(q);
                       },
                       [](std::size_t n, std::size_t size) { return uv_counted(std::calloc(n, size)); },
                       [](void* p) {
                         uv_forget(p);
                         std::free(p);
                       });
}

}  // namespace bench

void* operator new(std::size_t n) { return allocate_or_throw(n); }
void* operator new[](std::size_t n) { return allocate_or_throw(n); }
void* operator new(std::size_t n, std::nothrow_t const&) noexcept { return allocate(n); }
void* operator new[](std::size_t n, std::nothrow_t const&) noexcept { return allocate(n); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
