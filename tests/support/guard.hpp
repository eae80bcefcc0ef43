// Memory that ends, or begins, at an inaccessible page: one byte too far is a fault, not a silent read.
#pragma once

#include <cstddef>
#include <memory>

namespace polyhead::testing {

enum class Guard { before, behind };

// `bytes` bytes whose first byte follows an inaccessible page (before) or whose last byte precedes one (behind); pages on the
// other side are inaccessible too, up to what rounding to whole pages leaves. At least one page is always mapped.
class GuardedBuffer {
 public:
  GuardedBuffer(std::size_t bytes, Guard guard);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  unsigned char* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  // The accessible bytes, of which data() .. data() + size() are a part.
  unsigned char* accessible() const { return accessible_; }
  std::size_t accessible_bytes() const { return accessible_bytes_; }

 private:
  unsigned char* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  unsigned char* accessible_ = nullptr;
  std::size_t accessible_bytes_ = 0;
  unsigned char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace polyhead::testing
