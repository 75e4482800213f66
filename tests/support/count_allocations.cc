#include "tests/support/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> calls{0}, fails_at{0};

void* take(std::size_t bytes, std::size_t align) noexcept {
  const std::uint64_t call = calls.fetch_add(1) + 1;
  if (call == fails_at.load()) return nullptr;
  const std::size_t rounded = (bytes + align - 1) / align * align;
  return std::aligned_alloc(align, rounded ? rounded : align);
}
void* take_or_throw(std::size_t bytes, std::size_t align) {
  if (void* memory = take(bytes, align)) return memory;
  throw std::bad_alloc();
}
constexpr std::size_t kPlain = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

namespace headwise::test {

std::uint64_t allocations() noexcept { return calls.load(); }
void fail_allocation(std::uint64_t n) noexcept { fails_at.store(n ? calls.load() + n : 0); }

}  // namespace headwise::test

void* operator new(std::size_t bytes) { return take_or_throw(bytes, kPlain); }
void* operator new[](std::size_t bytes) { return take_or_throw(bytes, kPlain); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return take_or_throw(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return take_or_throw(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes, kPlain); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes, kPlain); }
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return take(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return take(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
