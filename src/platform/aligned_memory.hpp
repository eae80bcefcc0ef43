// Memory for workspaces and packed weights.
#pragma once

#include <cstddef>
#include <utility>

namespace polyhead::platform {

constexpr std::size_t cache_line_bytes = 64;
// From one huge page on memory is aligned to it and the kernel is advised to use huge pages: with 4 KB pages a sweep over
// packed weights is bound by the TLB.
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

// At least 64-byte aligned, contents arbitrary; nullptr for 0 bytes. Errors: Error(out_of_memory), naming the size.
void* aligned_allocate(std::size_t bytes);
void aligned_free(void* memory) noexcept;

// Owns such memory.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes) : memory_(aligned_allocate(bytes)), bytes_(bytes) {}
  ~AlignedBuffer() { aligned_free(memory_); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  // Makes it at least this large; contents are lost when it grows.
  void reserve(std::size_t bytes) {
    if (bytes > bytes_) *this = AlignedBuffer(bytes);
  }

  void* data() const noexcept { return memory_; }
  std::size_t size() const noexcept { return bytes_; }
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace polyhead::platform
