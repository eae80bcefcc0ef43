// Where a row of one kv head lies in an operand.
#pragma once

#include "simd/hwy/compat.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// Row r = t * group + g lies at base + t * stride + g * head_stride.
template <class T>
struct RowMap {
  T* base;
  std::ptrdiff_t stride;
  std::ptrdiff_t head_stride;
  std::int64_t group;

  HWY_INLINE T* At(std::int64_t row) const {
    if (HWY_LIKELY(group == 1)) return Offset(base, row * stride);
    const std::int64_t t = row / group;
    return Offset(base, t * stride + (row - t * group) * head_stride);
  }
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
