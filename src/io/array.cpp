#include "io/array.hpp"

#include <cmath>
#include <cstring>

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
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in f32
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
  const std::uint32_t wide = sign | (wide_exponent << 23) | (mantissa << 13);
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

}  // namespace polyhead::io
