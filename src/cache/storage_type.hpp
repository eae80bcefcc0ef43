// What a cache keeps its elements as. A further type is one more entry here, and a kernel that reads it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/tensor.hpp"

namespace polyhead::cache {

struct StorageType {
  DType dtype;
  std::int64_t element_bytes;
  // `count` numbers that are `step` apart to neighbouring elements, and back.
  void (*store)(const float* from, std::ptrdiff_t step, std::int64_t count, void* to);
  void (*load)(const void* from, std::int64_t count, float* to, std::ptrdiff_t step);
};

// Null for a type that cannot be stored.
const StorageType* find_storage_type(DType dtype) noexcept;

}  // namespace polyhead::cache
