// What the operands of a kernel are stored as. Whatever it is, kernels compute in f32.
#pragma once

#include <cstdint>

namespace polyhead::simd {

// of_keys: that of the call's keys and values, which is the kernel's own.
enum class Element : std::uint8_t { f32, bf16, f16, i8, of_keys };

// The types of 16 bits, plain storage: not every compiler has them, and none computes with them on every target.
struct Bf16 {  // the upper half of an f32
  std::uint16_t bits;
};
struct F16 {  // IEEE 754 binary16
  std::uint16_t bits;
};

// Keys and values alone: an integer that stands for mean + channel * scale * value, with a scale of the token's and head's own,
// and mean and channel of the place in the row. See AttentionArgs.
struct I8 {
  std::int8_t value;
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

template <>
struct ElementOf<I8> {
  static constexpr Element value = Element::i8;
};

// What a call's query or out is stored as, where its keys are elements of T; beside I8 it is f32 unless the call says
// otherwise.
template <class T>
static constexpr Element element_beside(Element given) {
  return given == Element::of_keys ? ElementOf<T>::value : given;
}

}  // namespace polyhead::simd
