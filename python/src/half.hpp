// Elements of 16 bits as floats and back, to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace polyhead::python {

inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widen_bf16(std::uint16_t bits) {
  return float_of_bits(std::uint32_t{bits} << 16);
}

inline std::uint16_t round_to_bf16(float value) {
  const std::uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float widen_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // The exponent's bias differs by 112; multiplying makes denormals right too.
  return float_of_bits(sign | rest << 13) * 0x1p112f;
}

inline std::uint16_t round_to_f16(float value) {
  const std::uint32_t bits = bits_of_float(value), size = bits & 0x7fffffffu;
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  if (size > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (size >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65,520 and up
  if (size < 0x38800000u) {                                                    // below 2^-14: steps of 2^-24, which 0.5 has
    const float stepped = float_of_bits(size) + 0.5f;
    return static_cast<std::uint16_t>(sign | (bits_of_float(stepped) - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13);
}

}  // namespace polyhead::python
