// Loads and stores of the last, incomplete vector of a row, touching no byte beyond it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Where the instruction set has no masked access to elements of `size` bytes, Highway's MaskedLoad and BlendedStore touch whole
// vectors. No vector has more than 8 lanes there.
template <size_t size>
constexpr bool kHasMaskedAccess = HWY_HAVE_SCALABLE || (HWY_ARCH_X86 && HWY_TARGET <= (size <= 2 ? HWY_AVX3 : HWY_AVX2));

// The first `count` lanes from memory (0 < count < lanes), zero in the others.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadPartialLanes(D d, const T* HWY_RESTRICT from, size_t count) {
  if constexpr (kHasMaskedAccess<sizeof(T)>) {
    return hn::MaskedLoad(hn::FirstN(d, count), d, from);
  } else {
    HWY_ALIGN T lanes[16 / sizeof(T)] = {};
    for (size_t i = 0; i < count; ++i) lanes[i] = from[i];
    return hn::Load(d, lanes);
  }
}

template <class D, class T>
HWY_INLINE void StorePartialLanes(hn::Vec<D> v, D d, T* HWY_RESTRICT to, size_t count) {
  if constexpr (kHasMaskedAccess<sizeof(T)>) {
    hn::BlendedStore(v, hn::FirstN(d, count), d, to);
  } else {
    HWY_ALIGN T lanes[16 / sizeof(T)] = {};
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
}

template <class D>
HWY_INLINE hn::Vec<D> LoadPartial(D d, const float* HWY_RESTRICT from, size_t count) {
  return LoadPartialLanes(d, from, count);
}
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadPartial(D d, const T* HWY_RESTRICT from, size_t count) {
  return Widen(d, LoadPartialLanes(Tag16<D>(), &from->bits, count), T());
}

template <class D>
HWY_INLINE hn::Vec<D> LoadPartial(D d, const I8* HWY_RESTRICT from, size_t count) {
  return WidenIntegers(d, LoadPartialLanes(hn::Rebind<std::int8_t, D>(), &from->value, count));
}

template <class D>
HWY_INLINE void StorePartial(hn::Vec<D> v, D d, float* HWY_RESTRICT to, size_t count) {
  StorePartialLanes(v, d, to, count);
}
template <class D, class T>
HWY_INLINE void StorePartial(hn::Vec<D> v, D d, T* HWY_RESTRICT to, size_t count) {
  StorePartialLanes(Narrow(d, v, T()), Tag16<D>(), &to->bits, count);
}

#if HWY_HAVE_SCALABLE
// The first min(count, lanes) lanes, zero in the others.
HWY_INLINE Floats LoadFirst(FloatTag d, const float* from, size_t count) {
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
}
HWY_INLINE Floats LoadFirst(FloatTag d, const I8* from, size_t count) {
  const hn::Rebind<std::int8_t, FloatTag> d8;
  return WidenIntegers(d, hn::MaskedLoad(hn::FirstN(d8, count), d8, &from->value));
}
template <class T>
HWY_INLINE Floats LoadFirst(FloatTag d, const T* from, size_t count) {
  const Tag16<FloatTag> d16;
  return Widen(d, hn::MaskedLoad(hn::FirstN(d16, count), d16, &from->bits), T());
}
#endif

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
