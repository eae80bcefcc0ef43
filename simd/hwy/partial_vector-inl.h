// Loads and stores of the last, incomplete vector of a row, touching no byte beyond it.
#pragma once

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Where the instruction set has no masked access (its vectors have 4 lanes then), Highway's MaskedLoad and BlendedStore touch
// whole vectors.
constexpr bool kHasMaskedAccess = HWY_HAVE_SCALABLE || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2);

// The first `count` lanes from memory (0 < count < lanes), zero in the others.
template <class D>
HWY_INLINE hn::Vec<D> LoadPartial(D d, const float* HWY_RESTRICT from, size_t count) {
  if constexpr (kHasMaskedAccess) {
    return hn::MaskedLoad(hn::FirstN(d, count), d, from);
  } else {
    HWY_ALIGN float lanes[4] = {};
    for (size_t i = 0; i < count; ++i) lanes[i] = from[i];
    return hn::Load(d, lanes);
  }
}

template <class D>
HWY_INLINE void StorePartial(hn::Vec<D> v, D d, float* HWY_RESTRICT to, size_t count) {
  if constexpr (kHasMaskedAccess) {
    hn::BlendedStore(v, hn::FirstN(d, count), d, to);
  } else {
    HWY_ALIGN float lanes[4] = {};
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
