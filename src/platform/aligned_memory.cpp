#include "platform/aligned_memory.hpp"

#include <cstdlib>
#include <string>

#include "polyhead/error.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(_WIN32)
#include <malloc.h>
#endif

namespace polyhead::platform {

void* aligned_allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::size_t alignment = bytes >= huge_page_bytes ? huge_page_bytes : cache_line_bytes;
  const std::size_t rounded = (bytes + cache_line_bytes - 1) / cache_line_bytes * cache_line_bytes;
  void* memory = nullptr;
  if (rounded >= bytes) {  // did not wrap around
#if defined(_WIN32)
    memory = _aligned_malloc(rounded, alignment);
#else
    if (posix_memalign(&memory, alignment, rounded) != 0) memory = nullptr;
#endif
  }
  if (memory == nullptr) throw Error(ErrorCode::out_of_memory, "cannot allocate " + std::to_string(bytes) + " bytes");
#if defined(__linux__)
  // Advice only: where it is refused the memory is as good, just slower. Whole huge pages alone, so that no neighbour of the
  // heap is drawn in.
  if (bytes >= huge_page_bytes) madvise(memory, rounded / huge_page_bytes * huge_page_bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

void aligned_free(void* memory) noexcept {
#if defined(_WIN32)
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

}  // namespace polyhead::platform
