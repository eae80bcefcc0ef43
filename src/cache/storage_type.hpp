// What a cache keeps its elements as, and what callers may bring and take. A further type to keep is one more entry here, and a
// kernel that reads it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/tensor.hpp"

namespace polyhead::cache {

// Elements of rows: f32, bf16 or f16. Steps count elements.
struct ElementType {
  DType dtype;
  std::int64_t bytes;
  // `count` elements to f32, exactly; and f32 to elements, to nearest even: what is too large becomes infinite, NaN stays NaN.
  void (*widen)(const void* from, std::ptrdiff_t step, std::int64_t count, float* to, std::ptrdiff_t to_step);
  void (*narrow)(const float* from, std::ptrdiff_t step, std::int64_t count, void* to, std::ptrdiff_t to_step);
};

// Null for a type that is none of these.
const ElementType* find_element_type(DType dtype) noexcept;

// A row of elements.
struct ElementRow {
  const ElementType* type = nullptr;
  const void* data = nullptr;
  std::ptrdiff_t step = 1;

  const void* at(std::int64_t index) const {
    return static_cast<const char*>(data) +
           static_cast<std::ptrdiff_t>(index) * step * static_cast<std::ptrdiff_t>(type->bytes);
  }
  void widen(std::int64_t count, float* to) const { type->widen(data, step, count, to, 1); }
};
struct MutableRow {
  const ElementType* type = nullptr;
  void* data = nullptr;
  std::ptrdiff_t step = 1;

  void* at(std::int64_t index) const {
    return static_cast<char*>(data) + static_cast<std::ptrdiff_t>(index) * step * static_cast<std::ptrdiff_t>(type->bytes);
  }
  void narrow(const float* from, std::int64_t count) const { type->narrow(from, 1, count, data, step); }
};

}  // namespace polyhead::cache
