// Softmax of a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/rowwise.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/activation-inl.h"
#include "simd/hwy/compat.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// The largest scale * x of the row; NaN does not count.
HWY_INLINE float LargestScaled(FloatTag d, const float* x, std::int64_t dim, Floats scale) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Floats lowest = hn::Set(d, -__builtin_inff());
  Floats max0 = lowest, max1 = lowest;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    max0 = MaxDroppingNaN(d, hn::Mul(hn::LoadU(d, x + i), scale), max0);
    max1 = MaxDroppingNaN(d, hn::Mul(hn::LoadU(d, x + i + lanes), scale), max1);
  }
  if (i + lanes <= dim) {
    max0 = MaxDroppingNaN(d, hn::Mul(hn::LoadU(d, x + i), scale), max0);
    i += lanes;
  }
  if (i < dim) {
    const std::size_t left = static_cast<std::size_t>(dim - i);
    const Floats v = hn::Mul(LoadPartial(d, x + i, left), scale);
    max1 = MaxDroppingNaN(d, hn::IfThenElse(hn::FirstN(d, left), v, lowest), max1);
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
}

HWY_NOINLINE void SoftmaxRows(const SoftmaxF32Args& args) {
  const FloatTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t block = 256 * lanes;  // lanes' sums go into a double: long rows keep f32's accuracy
  const std::int64_t whole = args.dim / lanes * lanes;
  const Floats scale = hn::Set(d, static_cast<float>(args.scale));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* x = Offset(args.x, args.x_stride * row);
    float* y = Offset(args.y, args.y_stride * row);
    // Without a finite score nothing is subtracted: -inf gives weight 0, NaN stays NaN.
    const float largest = LargestScaled(d, x, args.dim, scale);
    const Floats shift = hn::Set(d, largest == -__builtin_inff() ? 0.0f : largest);
    double total = 0.0;
    for (std::int64_t i = 0; i < whole;) {
      const std::int64_t block_end = whole - i > block ? i + block : whole;
      Floats sum = hn::Zero(d);
      for (; i < block_end; i += lanes) {
        const Floats weight = Exp(d, hn::Sub(hn::Mul(hn::LoadU(d, x + i), scale), shift));
        hn::StoreU(weight, d, y + i);
        sum = hn::Add(sum, weight);
      }
      total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    }
    const std::size_t left = static_cast<std::size_t>(args.dim - whole);
    if (left > 0) {
      const Floats weight = Exp(d, hn::Sub(hn::Mul(LoadPartial(d, x + whole, left), scale), shift));
      StorePartial(weight, d, y + whole, left);
      total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::IfThenElseZero(hn::FirstN(d, left), weight))));
    }
    // A row of -inf alone has weights of 0 already.
    const Floats inverse = hn::Set(d, total == 0.0 ? 0.0f : static_cast<float>(1.0 / total));
    for (std::int64_t i = 0; i < whole; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, y + i), inverse), d, y + i);
    if (left > 0) StorePartial(hn::Mul(LoadPartial(d, y + whole, left), inverse), d, y + whole, left);
  }
}

void Softmax(const SoftmaxF32Args& args) {
  if (args.rows <= 0 || args.dim <= 0) return;
  const FlushDenormals environment;
  SoftmaxRows(args);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
