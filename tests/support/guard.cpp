#include "support/guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace polyhead::testing {

GuardedBuffer::GuardedBuffer(std::size_t bytes, Guard guard) : bytes_(bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  accessible_bytes_ = std::max<std::size_t>((bytes + page - 1) / page, 1) * page;
  mapping_bytes_ = accessible_bytes_ + 2 * page;
  void* mapping = mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<unsigned char*>(mapping);
  accessible_ = mapping_ + page;
  if (mprotect(accessible_, accessible_bytes_, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping_, mapping_bytes_);
    throw std::bad_alloc();
  }
  data_ = guard == Guard::before ? accessible_ : accessible_ + accessible_bytes_ - bytes;
}

GuardedBuffer::~GuardedBuffer() {
  munmap(mapping_, mapping_bytes_);
}

}  // namespace polyhead::testing
