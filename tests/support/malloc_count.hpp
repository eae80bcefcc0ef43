// Counts every allocation of the process. Include from exactly one source file of an executable: it defines malloc and its
// kin, on top of glibc's. Under a sanitizer, and elsewhere than on glibc, it defines nothing and malloc_counting is false.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define POLYHEAD_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define POLYHEAD_TEST_SANITIZED 1
#endif
#endif

#include <cstdlib>  // also defines __GLIBC__

namespace polyhead::testing {

// Calls of malloc, calloc, realloc, aligned_alloc, memalign, posix_memalign (and so of operator new) since the program began.
inline std::atomic<std::uint64_t> allocations{0};
inline std::atomic<std::uint64_t> allocated_bytes{0};  // what they asked for, whether it has been given back since or not
// Of these, the ones that will fail: while positive, counts down at each allocation of the calling thread, which fails at 1.
inline thread_local int fail_allocation_in = 0;

inline bool count_allocation(std::size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return fail_allocation_in == 0 || --fail_allocation_in != 0;
}

#if defined(__GLIBC__) && !defined(POLYHEAD_TEST_SANITIZED)
inline constexpr bool malloc_counting = true;
#else
inline constexpr bool malloc_counting = false;
#endif

}  // namespace polyhead::testing

#if defined(__GLIBC__) && !defined(POLYHEAD_TEST_SANITIZED)
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

__attribute__((visibility("default"))) void* malloc(std::size_t bytes) {
  return polyhead::testing::count_allocation(bytes) ? __libc_malloc(bytes) : nullptr;
}
__attribute__((visibility("default"))) void* calloc(std::size_t count, std::size_t bytes) {
  return polyhead::testing::count_allocation(count * bytes) ? __libc_calloc(count, bytes) : nullptr;
}
__attribute__((visibility("default"))) void* realloc(void* memory, std::size_t bytes) {
  return polyhead::testing::count_allocation(bytes) ? __libc_realloc(memory, bytes) : nullptr;
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return polyhead::testing::count_allocation(bytes) ? __libc_memalign(alignment, bytes) : nullptr;
}
__attribute__((visibility("default"))) void* memalign(std::size_t alignment, std::size_t bytes) {
  return polyhead::testing::count_allocation(bytes) ? __libc_memalign(alignment, bytes) : nullptr;
}
__attribute__((visibility("default"))) int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = polyhead::testing::count_allocation(bytes) ? __libc_memalign(alignment, bytes) : nullptr;
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif
