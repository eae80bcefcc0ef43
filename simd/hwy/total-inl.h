// Sums of sums in two floats, the nearest one and what is left of it: their error does not grow with the number of terms.
#pragma once

#include "simd/hwy/compat.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// Kernels put their sums away at multiples of this number of keys, counted from key 0: a chain over all keys would be as long
// as they are many.
constexpr std::int64_t kFoldKeys = 1024;

// Adds a term. One of 0 changes nothing.
HWY_INLINE void AddToTotal(Floats term, Floats& total, Floats& rest) {
  const Floats sum = hn::Add(total, term);
  const Floats taken = hn::Sub(sum, total);  // of the term
  rest = hn::Add(rest, hn::Add(hn::Sub(total, hn::Sub(sum, taken)), hn::Sub(term, taken)));
  total = sum;
}

// A total that is infinite or NaN leaves a rest of NaN, which does not count.
HWY_INLINE Floats TotalOf(Floats total, Floats rest) {
  const FloatTag df;
  return hn::Add(total, hn::IfThenElseZero(hn::Lt(hn::Abs(rest), hn::Set(df, __builtin_inff())), rest));
}

// The same in memory, where old terms have been in units of 1 / factor, a power of two.
HWY_INLINE void AddToTotalAt(Floats factor, const float* HWY_RESTRICT term, float* HWY_RESTRICT total,
                             float* HWY_RESTRICT rest) {
  const FloatTag df;
  Floats sum = hn::Mul(factor, hn::Load(df, total)), left = hn::Mul(factor, hn::Load(df, rest));
  AddToTotal(hn::Load(df, term), sum, left);
  hn::Store(sum, df, total);
  hn::Store(left, df, rest);
}

HWY_INLINE Floats TotalAt(const float* HWY_RESTRICT total, const float* HWY_RESTRICT rest) {
  const FloatTag df;
  return TotalOf(hn::Load(df, total), hn::Load(df, rest));
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
