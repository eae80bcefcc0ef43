// Memory with pages of a chosen size, for measuring what the size of pages costs.
#pragma once

#include <cstddef>

namespace polyhead::bench {

enum class PageSize { small_4k, huge_2m };

// Written once, so that every page is there. Where the system has no such advice (or has no huge pages left) both kinds are
// what it gives.
class PagedMemory {
 public:
  PagedMemory() = default;
  // Errors: std::bad_alloc.
  PagedMemory(std::size_t bytes, PageSize size);
  ~PagedMemory();
  PagedMemory(PagedMemory&& other) noexcept { swap(other); }
  PagedMemory& operator=(PagedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  const float* data() const { return static_cast<const float*>(data_); }
  std::size_t size() const { return bytes_; }  // bytes

 private:
  void swap(PagedMemory& other) noexcept;

  void* data_ = nullptr;  // aligned to 2 MB
  std::size_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
};

}  // namespace polyhead::bench
