// What the operands of a kernel are stored as. Whatever it is, kernels compute in f32.
#pragma once

#include <cstdint>

namespace polyhead::simd {

enum class Element : std::uint8_t { f32, bf16, f16 };

// The types of 16 bits, plain storage: not every compiler has them, and none computes with them on every target.
struct Bf16 {  // the upper half of an f32
  std::uint16_t bits;
};
struct F16 {  // IEEE 754 binary16
  std::uint16_t bits;
};

template <class T>
struct ElementOf;
template <>
struct ElementOf<float> {
  static constexpr Element value = Element::f32;
};
template <>
struct ElementOf<Bf16> {
  static constexpr Element value = Element::bf16;
};
template <>
struct ElementOf<F16> {
  static constexpr Element value = Element::f16;
};

}  // namespace polyhead::simd
