#include "support/pages.hpp"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace polyhead::bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

}  // namespace

PagedMemory::PagedMemory(std::size_t bytes, PageSize size) : bytes_((bytes + huge_page - 1) / huge_page * huge_page) {
#if defined(__linux__)
  mapping_bytes_ = bytes_ + huge_page;
  mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(mapping_) + huge_page - 1) / huge_page * huge_page);
  madvise(data_, bytes_, size == PageSize::huge_2m ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // advice: a refusal is no error
#else
  (void)size;
  data_ = mapping_ = std::aligned_alloc(huge_page, bytes_);
  if (mapping_ == nullptr) throw std::bad_alloc();
#endif
  // Values that differ: a memory that compresses or merges equal pages would not be a memory any more.
  auto* const floats = static_cast<float*>(data_);
  for (std::size_t i = 0; i < bytes_ / sizeof(float); ++i) floats[i] = static_cast<float>(i & 0xffffff);
}

PagedMemory::~PagedMemory() {
#if defined(__linux__)
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
#else
  std::free(mapping_);
#endif
}

void PagedMemory::swap(PagedMemory& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
}

}  // namespace polyhead::bench
