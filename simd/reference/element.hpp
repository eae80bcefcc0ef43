// Elements to double and back, by the formats' definitions.
#pragma once

#include <math.h>

#include <cstdint>

#include "simd/contract/element.hpp"

namespace polyhead::simd::reference {
namespace {

inline float float_of(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}
// Of exponents that f32's normal numbers have.
inline double power_of_two(int exponent) {
  return static_cast<double>(float_of(static_cast<std::uint32_t>(127 + exponent) << 23));
}

inline double to_double(float element) {
  return static_cast<double>(element);
}
inline double to_double(Bf16 element) {
  return static_cast<double>(float_of(std::uint32_t{element.bits} << 16));
}
inline double to_double(F16 element) {
  const int exponent = element.bits >> 10 & 31, fraction = element.bits & 1023;
  const double sign = element.bits >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == 31) return sign * (fraction == 0 ? __builtin_inf() : __builtin_nan(""));
  if (exponent == 0) return sign * static_cast<double>(fraction) * 0x1p-24;
  return sign * static_cast<double>(1024 + fraction) * power_of_two(exponent - 25);
}

inline double to_double(I8 element) {
  return static_cast<double>(element.value);
}

// To the nearest element, of two as near the even one.
template <class T>
T rounded(float value);
template <>
inline float rounded<float>(float value) {
  return value;
}
template <>
inline Bf16 rounded<Bf16>(float value) {
  const std::uint32_t bits = bits_of(value), upper = bits >> 16, lower = bits & 0xFFFF;
  if (value != value) return {static_cast<std::uint16_t>(upper | 0x40)};
  const bool up = lower > 0x8000 || (lower == 0x8000 && upper % 2 == 1);
  return {static_cast<std::uint16_t>(upper + (up ? 1 : 0))};
}
template <>
inline F16 rounded<F16>(float value) {
  const auto sign = static_cast<std::uint16_t>(bits_of(value) >> 31 << 15);
  const double magnitude = fabs(static_cast<double>(value));
  if (value != value) return {static_cast<std::uint16_t>(sign | 0x7E00)};
  if (magnitude >= 65520.0) return {static_cast<std::uint16_t>(sign | 0x7C00)};
  // Counted in steps of the last place: these run on from one exponent to the next, as the format's bits do.
  const int of_value = static_cast<int>(bits_of(value) >> 23 & 255) - 127, exponent = of_value < -14 ? -14 : of_value;
  const auto steps = static_cast<std::uint16_t>(nearbyint(magnitude * power_of_two(10 - exponent)));
  return {static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + steps))};
}

// The index-th element of a row of elements that a call names.
inline double load(const void* row, Element element, std::int64_t index) {
  if (element == Element::bf16) return to_double(static_cast<const Bf16*>(row)[index]);
  if (element == Element::f16) return to_double(static_cast<const F16*>(row)[index]);
  return to_double(static_cast<const float*>(row)[index]);
}
inline void store(float value, void* row, Element element, std::int64_t index) {
  if (element == Element::bf16) {
    static_cast<Bf16*>(row)[index] = rounded<Bf16>(value);
  } else if (element == Element::f16) {
    static_cast<F16*>(row)[index] = rounded<F16>(value);
  } else {
    static_cast<float*>(row)[index] = value;
  }
}

}  // namespace
}  // namespace polyhead::simd::reference
