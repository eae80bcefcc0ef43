// Carves a kernel's scratch memory into aligned pieces.
#pragma once

#include <cstddef>

namespace polyhead::simd {
namespace {

// Hands out pieces in order, each at a cache line. With a null pointer it only counts.
class Carver {
 public:
  explicit Carver(void* memory) : at_(static_cast<char*>(memory)) {}
  template <class T>
  T* Take(size_t count) {
    T* taken = at_ ? reinterpret_cast<T*>(at_ + used_) : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return taken;
  }
  size_t used() const { return used_; }

 private:
  char* at_;
  size_t used_ = 0;
};

}  // namespace
}  // namespace polyhead::simd
