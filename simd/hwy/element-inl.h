// Elements of operands to f32 and back. Widening is exact, but for denormals of bf16, which are denormals of f32 and as such
// may be flushed; narrowing rounds to nearest even, and what is too large becomes infinite. NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/element.hpp"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Of as many lanes as D has.
template <class D>
using Tag16 = hn::Rebind<std::uint16_t, D>;
template <class D>
using Bits16 = hn::Vec<Tag16<D>>;

// Whether there are instructions that convert f16. Highway's replacement has no infinities and truncates.
constexpr bool kConvertsF16 = HWY_ARCH_ARM || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2);

template <class D>
HWY_INLINE hn::Vec<D> Widen(D df, Bits16<D> bits, Bf16) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> Widen(D df, Bits16<D> bits, F16) {
  if constexpr (kConvertsF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(df, hn::BitCast(d16, bits));
  } else {
    // The exponent's bias grows by 112. Denormals are taken for normal numbers with the least exponent, of which the implied
    // one is then subtracted: no f32 denormal is met, which would be flushed.
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto word = hn::PromoteTo(du, bits);
    const auto sign = hn::ShiftLeft<16>(hn::And(word, hn::Set(du, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(word, hn::Set(du, 0x7FFFu)));
    const auto bias = hn::Set(du, 112u << 23), least = hn::Set(du, 113u << 23);
    const auto normal = hn::Add(magnitude, bias);
    const auto denormal = hn::BitCast(du, hn::Sub(hn::BitCast(df, hn::Add(magnitude, least)), hn::BitCast(df, least)));
    const auto is_special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, (31 << 23) - 1));
    const auto is_denormal = hn::Gt(hn::Set(di, 1 << 23), hn::BitCast(di, magnitude));
    auto wide = hn::IfThenElse(hn::RebindMask(du, is_special), hn::Add(normal, bias), normal);
    wide = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, wide);
    return hn::BitCast(df, hn::Or(wide, sign));
  }
}

// Words below 2^16 to half their size.
template <class D>
HWY_INLINE Bits16<D> LowerBits(D, hn::Vec<hn::RebindToUnsigned<D>> words) {
  return hn::DemoteTo(Tag16<D>(), hn::BitCast(hn::RebindToSigned<D>(), words));
}

// The nearest bf16 in the upper half of a word, whose lower half may be anything.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundUpperHalf(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
  const auto nan = hn::Or(bits, hn::Set(du, 1u << 22));  // or the upper half alone might be that of infinity
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, rounded);
}

template <class D>
HWY_INLINE Bits16<D> Narrow(D df, hn::Vec<D> v, Bf16) {
  return LowerBits(df, hn::ShiftRight<16>(RoundUpperHalf(df, v)));
}

// The nearest bf16, as an f32.
template <class D>
HWY_INLINE hn::Vec<D> RoundedToBf16(D df, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(df, hn::And(RoundUpperHalf(df, v), hn::Set(du, 0xFFFF0000u)));
}

template <class D>
HWY_INLINE Bits16<D> Narrow(D df, hn::Vec<D> v, F16) {
  if constexpr (kConvertsF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::BitCast(Tag16<D>(), hn::DemoteTo(d16, v));
  } else {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto sign = hn::And(bits, hn::Set(du, 1u << 31));
    const auto magnitude = hn::Xor(bits, sign);
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto rounded = hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xFFFu))), hn::Set(du, 112u << 23));
    const auto normal = hn::ShiftRight<13>(rounded);
    // Added to 1/2, whose last place is 2^-24, a number below 2^-14 is rounded as a denormal is.
    const auto half = hn::Set(df, 0.5f);
    const auto denormal = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(du, half));
    const auto is_denormal = hn::Gt(hn::Set(di, 113 << 23), hn::BitCast(di, magnitude));
    const auto is_large = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, (143 << 23) - 1));
    const auto special = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7E00u), hn::Set(du, 0x7C00u));
    auto narrow = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, normal);
    narrow = hn::IfThenElse(hn::RebindMask(du, is_large), special, narrow);
    return LowerBits(df, hn::Or(narrow, hn::ShiftRight<16>(sign)));
  }
}

// Whether elements stand for a number only together with the scale of their row.
template <class T>
constexpr bool kScaled = hwy::IsSame<T, I8>();

// The integers, which the scale of the row is still to be multiplied with.
template <class D>
HWY_INLINE hn::Vec<D> WidenIntegers(D df, hn::Vec<hn::Rebind<std::int8_t, D>> integers) {
  return hn::ConvertTo(df, hn::PromoteTo(hn::RebindToSigned<D>(), integers));
}

// function(T()) for the type of an element that a call names.
template <class Function>
HWY_INLINE void WithElement(Element element, const Function& function) {
  switch (element) {
    case Element::bf16:
      return function(Bf16());
    case Element::f16:
      return function(F16());
    default:
      return function(float());
  }
}

// As many elements as D has lanes, at any address.
template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D df, const float* from) {
  return hn::LoadU(df, from);
}
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadElements(D df, const T* from) {
  return Widen(df, hn::LoadU(Tag16<D>(), &from->bits), T());
}

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D df, const I8* from) {
  return WidenIntegers(df, hn::LoadU(hn::Rebind<std::int8_t, D>(), &from->value));
}

// The same in halves: of a vector of 64 bytes that lies in two lines, only one half does.
template <class D>
HWY_INLINE hn::Vec<D> LoadHalves(D df, const float* from) {
  const hn::Half<D> half;
  return hn::Combine(df, hn::LoadU(half, from + hn::Lanes(half)), hn::LoadU(half, from));
}

template <class D>
HWY_INLINE void StoreElements(hn::Vec<D> v, D df, float* to) {
  hn::StoreU(v, df, to);
}
template <class D, class T>
HWY_INLINE void StoreElements(hn::Vec<D> v, D df, T* to) {
  hn::StoreU(Narrow(df, v, T()), Tag16<D>(), &to->bits);
}

// One element.
HWY_INLINE float ToFloat(float element) {
  return element;
}
HWY_INLINE float ToFloat(I8 element) {
  return static_cast<float>(element.value);
}
template <class T>
HWY_INLINE float ToFloat(T element) {
  const hn::CappedTag<float, 4> df;
  return hn::GetLane(Widen(df, hn::Set(Tag16<hn::CappedTag<float, 4>>(), element.bits), T()));
}

template <class T>
HWY_INLINE T FromFloat(float value) {
  if constexpr (hwy::IsSame<T, float>()) {
    return value;
  } else {
    const hn::CappedTag<float, 4> df;
    return T{hn::GetLane(Narrow(df, hn::Set(df, value), T()))};
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
