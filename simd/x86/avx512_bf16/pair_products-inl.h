// The instructions of AVX512_BF16, for attention_pairs-inl.h. Inline assembly within regions of AVX-512, not intrinsics: those
// need a -m flag for the whole file, or Highway's target AVX3_ZEN4, which its older versions lack.
//
// vdpbf16ps adds both products of a lane's pairs to its sum with roundings to nearest even, whatever MXCSR says; denormals
// count as zero, NaN and infinities as they do anywhere.
#pragma once

#include "hwy/highway.h"
#include "simd/hwy/compat.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

struct Avx512PairProducts {
  static constexpr size_t kNumbersAWord = 2;

  static HWY_INLINE Floats Add(Floats a, Floats b, Floats sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }

  static HWY_INLINE Floats Rounded(Floats a, Floats b) {
    Floats product;
    asm("vmulps %2, %1, %0" : "=v"(product.raw) : "v"(a.raw), "v"(b.raw));
    return product;
  }

  // The conversion leaves the lower one's 16 numbers before the upper one's.
  static HWY_INLINE Floats Pairs(Floats low, Floats high) {
    alignas(64) static constexpr std::uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                             8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const hn::Repartition<std::uint16_t, FloatTag> dh;
    Floats apart, paired;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(apart.raw) : "v"(high.raw), "v"(low.raw));
    const auto order = hn::Load(dh, kOrder);
    asm("vpermw %2, %1, %0" : "=v"(paired.raw) : "v"(order.raw), "v"(apart.raw));
    return paired;
  }
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
