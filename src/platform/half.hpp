// Elements of 16 bits as floats, exactly, whatever the caller's floating-point environment is. Without branches, for loops.
#pragma once

#include <cstdint>
#include <cstring>

namespace polyhead::platform {

inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float widen_bf16(std::uint16_t bits) {
  return float_of_bits(std::uint32_t{bits} << 16);
}

inline float widen_f16(std::uint16_t bits) {
  constexpr std::uint32_t bias_difference = 112u << 23;
  const std::uint32_t magnitude = bits & 0x7fffu, sign = std::uint32_t{bits & 0x8000u} << 16;
  // Infinities and NaN: the greatest exponent stays the greatest.
  const std::uint32_t wide = (magnitude << 13) + bias_difference + (magnitude >= 0x7c00u ? bias_difference : 0u);
  const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;  // zero and denormals
  std::uint32_t small_bits;
  std::memcpy(&small_bits, &small, sizeof small_bits);
  return float_of_bits(sign | (magnitude < 0x400u ? small_bits : wide));
}

}  // namespace polyhead::platform
