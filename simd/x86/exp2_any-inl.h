// 2^x for weights whose shift need not be their maximum.
#pragma once

#include "simd/hwy/compat.h"
#include "simd/hwy/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// Whatever x is: infinite where the result exceeds f32's range (with vectors of 256 bits from 127.5 on), 0 at -inf and where it
// falls below; NaN stays NaN. 2^0 is exactly 1.
#if HWY_TARGET <= HWY_AVX3
// One instruction takes the whole number off, rounded down, and one multiplies with its power of two, both at any size: no
// clamp, no rounding by a magic number. 8 operations instead of 12 (and a clamp at the upper end). In assembly, since Highway
// has no name for either.
//
// A minimax polynomial of degree 5 for [0, 1], rounded to f32 and searched for the best neighbours with c0 = 1; 1.3 * 2^-23.
constexpr float kExp2Upward[] = {1.0f, 0.693151176f, 0.240164667f, 0.0558012985f, 0.00901406445f, 0.00186858128f};

HWY_INLINE Floats Exp2OfAny(FloatTag df, Floats x) {
  Floats fraction, result;
  asm("vreduceps $9, %1, %0" : "=v"(fraction.raw) : "v"(x.raw));  // x - floor(x), no exception; 0 of infinities
  Floats p = hn::Set(df, kExp2Upward[5]);
  POLYHEAD_UNROLL for (int i = 4; i >= 0; --i) p = hn::MulAdd(p, fraction, hn::Set(df, kExp2Upward[i]));
  asm("vscalefps %2, %1, %0" : "=v"(result.raw) : "v"(p.raw), "v"(x.raw));  // p * 2^floor(x)
  return result;
}
#else
HWY_INLINE Floats Exp2OfAny(FloatTag df, Floats x) {
  const Floats highest = hn::Set(df, 128.0f);
  return Exp2Of(df, hn::IfThenElse(hn::Gt(x, highest), highest, x));
}
#endif

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
