#include "io/array.hpp"

#include "platform/half.hpp"

namespace polyhead::io {

Array::Array(DType dtype, const std::vector<std::int64_t>& shape, bool fortran_order) {
  const int rank = static_cast<int>(shape.size());
  TensorView plain(nullptr, dtype, rank, shape.data());  // checks the rank and the product of the sizes
  bytes_ = static_cast<std::size_t>(plain.element_count()) * static_cast<std::size_t>(polyhead::size_in_bytes(dtype));
  memory_.reset(new std::byte[bytes_ == 0 ? 1 : bytes_]);  // one byte: the view of an empty array still has an address
  plain.data = memory_.get();
  if (fortran_order) {
    std::int64_t stride = 1;
    for (int i = 0; i < rank; ++i) {
      plain.strides[static_cast<std::size_t>(i)] = stride;
      stride *= shape[static_cast<std::size_t>(i)];
    }
  }
  view_ = plain;
}

float bf16_to_f32(std::uint16_t bits) {
  return platform::widen_bf16(bits);
}

float f16_to_f32(std::uint16_t bits) {
  return platform::widen_f16(bits);
}

}  // namespace polyhead::io
