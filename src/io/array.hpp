// Array: a tensor that owns its memory, which files are read into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "polyhead/tensor.hpp"

namespace polyhead::io {

class Array {
 public:
  Array() = default;
  // Memory of the shape's size with arbitrary contents. fortran_order: the first dimension is the contiguous one.
  Array(DType dtype, const std::vector<std::int64_t>& shape, bool fortran_order = false);

  const TensorView& view() const noexcept { return view_; }
  std::byte* data() noexcept { return memory_.get(); }
  const std::byte* data() const noexcept { return memory_.get(); }
  std::size_t size_in_bytes() const noexcept { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
  TensorView view_;
};

// IEEE half and bfloat16 bit patterns, exactly.
float f16_to_f32(std::uint16_t bits);
float bf16_to_f32(std::uint16_t bits);

}  // namespace polyhead::io
