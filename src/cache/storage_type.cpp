#include "cache/storage_type.hpp"

#include <cstring>

#include "io/array.hpp"

namespace polyhead::cache {
namespace {

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// How one element is stored. Rounding is done on the bits: whatever the caller's floating-point environment, it is to nearest
// even, and no denormal is lost.
struct Float32 {
  using Element = float;
  static constexpr DType dtype = DType::f32;
  static float to_element(float value) { return value; }
  static float to_float(float element) { return element; }
};

struct Bfloat16 {
  using Element = std::uint16_t;
  static constexpr DType dtype = DType::bf16;
  static std::uint16_t to_element(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
    const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    return static_cast<std::uint16_t>((nan ? bits | 0x400000 : rounded) >> 16);
  }
  static float to_float(std::uint16_t element) { return io::bf16_to_f32(element); }
};

struct Float16 {
  using Element = std::uint16_t;
  static constexpr DType dtype = DType::f16;
  static std::uint16_t to_element(float value) {
    const std::uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFF;
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
    const auto with_sign = [sign](std::uint32_t rest) { return static_cast<std::uint16_t>(sign | rest); };
    if (magnitude > 0x7F800000) return with_sign(0x7E00);
    if (magnitude >= 0x47800000) return with_sign(0x7C00);  // 65,536 and more; what rounds to that carries into it below
    if (magnitude >= 0x38800000) {                          // 2^-14: normal numbers, whose exponent's bias is 112 less
      return with_sign((magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13);
    }
    if (magnitude < 0x33000000) return sign;  // below half of the smallest one
    const std::uint32_t shift = 126 - (magnitude >> 23), mantissa = (magnitude & 0x7FFFFF) | 0x800000;
    const std::uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    return with_sign(kept + (rest > half || (rest == half && kept % 2 == 1) ? 1 : 0));
  }
  static float to_float(std::uint16_t element) { return io::f16_to_f32(element); }
};

template <class Type>
void widen(const void* from, std::ptrdiff_t step, std::int64_t count, float* to, std::ptrdiff_t to_step) {
  const auto* const elements = static_cast<const typename Type::Element*>(from);
  for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = Type::to_float(elements[i * step]);
}

template <class Type>
void narrow(const float* from, std::ptrdiff_t step, std::int64_t count, void* to, std::ptrdiff_t to_step) {
  auto* const elements = static_cast<typename Type::Element*>(to);
  for (std::int64_t i = 0; i < count; ++i) elements[i * to_step] = Type::to_element(from[i * step]);
}

template <class Type>
constexpr ElementType element_type = {Type::dtype, sizeof(typename Type::Element), &widen<Type>, &narrow<Type>};

}  // namespace

const ElementType* find_element_type(DType dtype) noexcept {
  static constexpr const ElementType* all[] = {&element_type<Float32>, &element_type<Bfloat16>, &element_type<Float16>};
  for (const ElementType* type : all) {
    if (type->dtype == dtype) return type;
  }
  return nullptr;
}

}  // namespace polyhead::cache
