// TensorView: a strided, non-owning view of the caller's memory.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "polyhead/export.hpp"

namespace polyhead {

// Values are part of the C ABI (polyhead_dtype): append, never renumber.
enum class DType : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2, i8 = 3, u8 = 4, i32 = 5, i64 = 6, f64 = 7, boolean = 8 };

POLYHEAD_EXPORT const char* name(DType dtype) noexcept;            // "f32", "bool", ...
POLYHEAD_EXPORT std::int64_t size_in_bytes(DType dtype) noexcept;  // of one element

// Strides count elements, may be zero (broadcast) or negative, and the stride of a dimension of size 1 is ignored. A view
// neither owns nor copies; the memory must outlive every call that uses it. Inputs are never written to, so a view of
// constant memory is made with of(const T*).
struct POLYHEAD_EXPORT TensorView {
  static constexpr int max_rank = 8;
  using Dims = std::array<std::int64_t, max_rank>;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  Dims shape{};
  Dims strides{};

  TensorView() = default;
  // Row-major (C order) strides. Errors: more than max_rank dimensions, a negative size, sizes whose product overflows.
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView(const void* data, DType dtype, int rank, const std::int64_t* shape, const std::int64_t* strides = nullptr);

  static TensorView of(const float* data, std::initializer_list<std::int64_t> shape) { return {data, DType::f32, shape}; }

  // Logical [batch, heads, length, dim] over memory laid out as [batch, length, heads, dim], which a projection writes.
  static TensorView blhd(const float* data, std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t dim);
  static TensorView blhd(const void* data, DType dtype, std::int64_t batch, std::int64_t length, std::int64_t heads,
                         std::int64_t dim);

  bool empty() const noexcept { return data == nullptr && rank == 0; }  // no tensor given, as opposed to one with a size of 0
  std::int64_t element_count() const noexcept;
  std::string describe() const;  // "f32[2, 12, 128, 64] strides [...]": for messages
};

}  // namespace polyhead
