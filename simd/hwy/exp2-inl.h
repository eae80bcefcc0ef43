// 2^x for softmax weights, and the constants of base-2 softmax.
#pragma once

#include <cmath>

#include "simd/hwy/compat.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;
constexpr float kLowestFloat = -3.40282347e+38f;
constexpr float kMinusInfinity = -__builtin_inff();

// 2^(score - shift), for score <= shift; 1.9 ULP.
//
// The magic number rounds to an integer and leaves it, biased as an exponent, in the low bits: one shift makes the power of
// two. The power is multiplied in, not added to the exponent's bits, for the sake of three cases:
//   NaN stays NaN whatever its payload is;
//   anything at or below -127 gives exactly 0, so that a weight of -inf is 0 and a row's sum is 0 only if it saw no key;
//   what would be denormal is flushed like any other product.
HWY_INLINE Floats Exp2OfDifference(FloatTag df, Floats score, Floats shift) {
  const IntTag di;
  const Floats magic = hn::Set(df, 12582912.0f + 127.0f);  // 1.5 * 2^23 + exponent bias
  const Floats x = MaxKeepingNaN(df, hn::Set(df, -127.0f), hn::Sub(score, shift));
  const Floats biased = hn::Add(x, magic);
  const Floats r = hn::Sub(x, hn::Sub(biased, magic));  // in [-0.5, 0.5]
  // Minimax polynomial of degree 5, rounded to f32 and searched for the best neighbours with c0 = 1 (2^0 is exactly 1).
  Floats p = hn::Set(df, 0.00132844888f);
  p = hn::MulAdd(p, r, hn::Set(df, 0.00967399217f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.0555078425f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.240221962f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.693146825f));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0f));
  return hn::Mul(p, hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, biased))));
}

// ln of the denominator l * 2^shift, -inf for an empty row.
inline float LogOfDenominator(float shift, float denominator) {
  if (denominator == 0.0f) return kMinusInfinity;
  return static_cast<float>(kLn2 * (static_cast<double>(shift) + ::log2(static_cast<double>(denominator))));
}

// scale * log2(e), rounded once and kept finite.
inline float ScaleInLog2Units(double scale) {
  const double product = scale * kLog2E;
  const double limit = -static_cast<double>(kLowestFloat);
  return static_cast<float>(product > limit ? limit : product < -limit ? -limit : product);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
