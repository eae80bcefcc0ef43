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

// 2^difference and 2^(score - shift), for differences up to 0; 1.9 ULP.
//
// The magic number rounds to an integer and leaves it, biased as an exponent, in the low bits: one shift makes the power of
// two. The power is multiplied in, not added to the exponent's bits, for the sake of three cases:
//   NaN stays NaN whatever its payload is;
//   anything at or below -127 gives exactly 0, so that a weight of -inf is 0 and a row's sum is 0 only if it saw no key;
//   what would be denormal is flushed like any other product.
// A minimax polynomial of degree 5, rounded to f32 and searched for the best neighbours with c0 = 1 (2^0 is exactly 1).
constexpr float kExp2Coefficients[] = {1.0f, 0.693146825f, 0.240221962f, 0.0555078425f, 0.00967399217f, 0.00132844888f};
constexpr float kExp2Magic = 12582912.0f + 127.0f;  // 1.5 * 2^23 + exponent bias
constexpr float kExp2Lowest = -127.0f;

HWY_INLINE Floats Exp2Of(FloatTag df, Floats difference) {
  const IntTag di;
  const Floats magic = hn::Set(df, kExp2Magic);
  const Floats x = MaxKeepingNaN(df, hn::Set(df, kExp2Lowest), difference);
  const Floats biased = hn::Add(x, magic);
  const Floats r = hn::Sub(x, hn::Sub(biased, magic));  // in [-0.5, 0.5]
  Floats p = hn::Set(df, kExp2Coefficients[5]);
  POLYHEAD_UNROLL for (int i = 4; i >= 0; --i) p = hn::MulAdd(p, r, hn::Set(df, kExp2Coefficients[i]));
  return hn::Mul(p, hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, biased))));
}
HWY_INLINE Floats Exp2OfDifference(FloatTag df, Floats score, Floats shift) {
  return Exp2Of(df, hn::Sub(score, shift));
}

// The same for four vectors in step, a to d in place: four independent chains keep the multiply-adders busy.
HWY_INLINE void Exp2Of4(FloatTag df, Floats& a, Floats& b, Floats& c, Floats& d) {
  const IntTag di;
  const Floats magic = hn::Set(df, kExp2Magic), lowest = hn::Set(df, kExp2Lowest);
  a = MaxKeepingNaN(df, lowest, a);
  b = MaxKeepingNaN(df, lowest, b);
  c = MaxKeepingNaN(df, lowest, c);
  d = MaxKeepingNaN(df, lowest, d);
  const Floats biased_a = hn::Add(a, magic), biased_b = hn::Add(b, magic), biased_c = hn::Add(c, magic),
               biased_d = hn::Add(d, magic);
  a = hn::Sub(a, hn::Sub(biased_a, magic));
  b = hn::Sub(b, hn::Sub(biased_b, magic));
  c = hn::Sub(c, hn::Sub(biased_c, magic));
  d = hn::Sub(d, hn::Sub(biased_d, magic));
  Floats pa = hn::Set(df, kExp2Coefficients[5]), pb = pa, pc = pa, pd = pa;
  POLYHEAD_UNROLL for (int i = 4; i >= 0; --i) {
    const Floats coefficient = hn::Set(df, kExp2Coefficients[i]);
    pa = hn::MulAdd(pa, a, coefficient);
    pb = hn::MulAdd(pb, b, coefficient);
    pc = hn::MulAdd(pc, c, coefficient);
    pd = hn::MulAdd(pd, d, coefficient);
  }
  a = hn::Mul(pa, hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, biased_a))));
  b = hn::Mul(pb, hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, biased_b))));
  c = hn::Mul(pc, hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, biased_c))));
  d = hn::Mul(pd, hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, biased_d))));
}
HWY_INLINE void Exp2OfDifference4(FloatTag df, Floats& a, Floats& b, Floats& c, Floats& d, Floats shift) {
  a = hn::Sub(a, shift), b = hn::Sub(b, shift), c = hn::Sub(c, shift), d = hn::Sub(d, shift);
  Exp2Of4(df, a, b, c, d);
}

// ln of the denominator l * 2^shift, -inf for an empty row.
inline float LogOfDenominator(float shift, float denominator) {
  if (denominator == 0.0f) return kMinusInfinity;
  return static_cast<float>(kLn2 * (static_cast<double>(shift) + ::log2(static_cast<double>(denominator))));
}

// How a row ends: out = factor * sums; lse = ln of its denominator.
struct RowEnd {
  float factor, lse;
};

// Of sums and a denominator in units of 2^shift that a sink, a logit below infinity, has joined. The larger of both sets the
// scale, since either may be out of the other's range.
inline RowEnd EndWithSink(float shift, float denominator, float sink) {
  if (denominator == 0.0f) return {0.0f, sink};
  if (sink == kMinusInfinity) return {1.0f / denominator, LogOfDenominator(shift, denominator)};
  const double row = static_cast<double>(shift), joining = static_cast<double>(sink) * kLog2E;
  const double raised = joining > row ? joining : row;
  const double scale = ::exp2(row - raised);
  const double total = scale * static_cast<double>(denominator) + ::exp2(joining - raised);
  return {static_cast<float>(scale / total), static_cast<float>(kLn2 * (raised + ::log2(total)))};
}

// scale * unit, rounded once and kept finite.
inline float ScaleInUnits(double scale, double unit) {
  const double product = scale * unit;
  const double limit = -static_cast<double>(kLowestFloat);
  return static_cast<float>(product > limit ? limit : product < -limit ? -limit : product);
}
inline float ScaleInLog2Units(double scale) {
  return ScaleInUnits(scale, kLog2E);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
