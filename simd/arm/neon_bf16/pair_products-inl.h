// ARM's instructions for bf16 (FEAT_BF16), for attention_pairs-inl.h. Inline assembly within NEON's regions, not intrinsics:
// those need a -march flag for the whole file.
//
// bfdot adds both products of a lane's pairs to its sum; each of the two additions rounds to odd (to the neighbour whose last
// bit is 1), whatever FPCR says: one unit in the last place at most, where rounding to nearest is half of one. Denormals count
// as zero, NaN and infinities as they do anywhere.
#pragma once

#include "hwy/highway.h"
#include "simd/hwy/compat.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

struct NeonPairProducts {
  static constexpr size_t kNumbersAWord = 2;

  static HWY_INLINE Floats Add(Floats a, Floats b, Floats sum) {
    asm(".arch_extension bf16\n\tbfdot %0.4s, %1.8h, %2.8h" : "+w"(sum.raw) : "w"(a.raw), "w"(b.raw));
    return sum;
  }

  static HWY_INLINE Floats Rounded(Floats a, Floats b) {
    Floats product;
    asm("fmul %0.4s, %1.4s, %2.4s" : "=w"(product.raw) : "w"(a.raw), "w"(b.raw));
    return product;
  }

  static HWY_INLINE Floats Pairs(Floats low, Floats high) {
    Floats pairs, upper;
    asm(".arch_extension bf16\n\tbfcvtn %0.4h, %1.4s" : "=w"(pairs.raw) : "w"(low.raw));
    asm(".arch_extension bf16\n\tbfcvtn %0.4h, %1.4s" : "=w"(upper.raw) : "w"(high.raw));
    asm("zip1 %0.8h, %0.8h, %1.8h" : "+w"(pairs.raw) : "w"(upper.raw));
    return pairs;
  }
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
