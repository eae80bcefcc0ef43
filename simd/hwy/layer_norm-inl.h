// Layer norm of a row, with or without a residual added first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/rowwise.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Lanes add up at most so many values before their sum goes into a double: rows of any length keep f32's accuracy.
constexpr std::int64_t kSumBlockVectors = 256;

template <bool kResidual>
HWY_INLINE Floats LoadInput(FloatTag d, const float* x, const float* residual, std::int64_t i) {
  const Floats v = hn::LoadU(d, x + i);
  return kResidual ? hn::Add(v, hn::LoadU(d, residual + i)) : v;
}
template <bool kResidual>
HWY_INLINE Floats LoadInputPartial(FloatTag d, const float* x, const float* residual, std::int64_t i, std::size_t count) {
  const Floats v = LoadPartial(d, x + i, count);
  return kResidual ? hn::Add(v, LoadPartial(d, residual + i, count)) : v;
}

struct Sums {
  double of_values;
  double of_squares;
};

// Sums of x - shift and, if wanted, of its square over the row.
template <bool kResidual, bool kSquares>
HWY_INLINE Sums SumCentred(FloatTag d, const float* x, const float* residual, std::int64_t dim, float shift_scalar) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Floats shift = hn::Set(d, shift_scalar);
  Sums sums = {0.0, 0.0};
  std::int64_t i = 0;
  while (i < dim) {
    const std::int64_t block_end = dim - i > kSumBlockVectors * lanes ? i + kSumBlockVectors * lanes : dim;
    Floats sum0 = hn::Zero(d), sum1 = hn::Zero(d), square0 = hn::Zero(d), square1 = hn::Zero(d);
    for (; i + 2 * lanes <= block_end; i += 2 * lanes) {
      const Floats v0 = hn::Sub(LoadInput<kResidual>(d, x, residual, i), shift);
      const Floats v1 = hn::Sub(LoadInput<kResidual>(d, x, residual, i + lanes), shift);
      sum0 = hn::Add(sum0, v0);
      sum1 = hn::Add(sum1, v1);
      if (kSquares) square0 = hn::MulAdd(v0, v0, square0);
      if (kSquares) square1 = hn::MulAdd(v1, v1, square1);
    }
    if (i + lanes <= block_end) {
      const Floats v = hn::Sub(LoadInput<kResidual>(d, x, residual, i), shift);
      sum0 = hn::Add(sum0, v);
      if (kSquares) square0 = hn::MulAdd(v, v, square0);
      i += lanes;
    }
    if (i < block_end) {
      const std::size_t count = static_cast<std::size_t>(block_end - i);
      const Floats loaded = hn::Sub(LoadInputPartial<kResidual>(d, x, residual, i, count), shift);
      const Floats v = hn::IfThenElseZero(hn::FirstN(d, count), loaded);
      sum1 = hn::Add(sum1, v);
      if (kSquares) square1 = hn::MulAdd(v, v, square1);
      i = block_end;
    }
    sums.of_values += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1))));
    if (kSquares) sums.of_squares += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(square0, square1))));
  }
  return sums;
}

HWY_INLINE Floats ScaleAndShift(FloatTag d, Floats normalised, const float* gamma, const float* beta, std::int64_t i) {
  const Floats scaled = gamma ? hn::Mul(normalised, hn::LoadU(d, gamma + i)) : normalised;
  if (beta == nullptr) return scaled;
  return gamma ? hn::MulAdd(normalised, hn::LoadU(d, gamma + i), hn::LoadU(d, beta + i))
               : hn::Add(scaled, hn::LoadU(d, beta + i));
}

template <bool kResidual>
HWY_NOINLINE void LayerNormRows(const LayerNormF32Args& args) {
  const FloatTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const double count = static_cast<double>(args.dim);
  const std::int64_t whole = args.dim / lanes * lanes;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* x = Offset(args.x, args.x_stride * row);
    const float* residual = kResidual ? Offset(args.residual, args.residual_stride * row) : nullptr;
    float* y = Offset(args.y, args.y_stride * row);

    // The mean in f32 may be off by its own rounding, which is much where the mean is large against the deviation. So the
    // sums about it are taken once more: the first corrects the mean, both together give the variance.
    const double sum = SumCentred<kResidual, false>(d, x, residual, args.dim, 0.0f).of_values;
    const float rough_mean = static_cast<float>(sum / count);
    const Sums centred = SumCentred<kResidual, true>(d, x, residual, args.dim, rough_mean);
    const double correction = centred.of_values / count;
    double variance = centred.of_squares / count - correction * correction;
    if (variance < 0.0) variance = 0.0;
    const Floats inverse = hn::Set(d, static_cast<float>(1.0 / __builtin_sqrt(variance + args.epsilon)));
    const Floats mean = hn::Set(d, rough_mean);
    const Floats rest = hn::Set(d, static_cast<float>(correction));

    for (std::int64_t i = 0; i < whole; i += lanes) {
      const Floats v = hn::Sub(hn::Sub(LoadInput<kResidual>(d, x, residual, i), mean), rest);
      hn::StoreU(ScaleAndShift(d, hn::Mul(v, inverse), args.gamma, args.beta, i), d, y + i);
    }
    if (whole < args.dim) {
      const std::size_t left = static_cast<std::size_t>(args.dim - whole);
      const Floats v = hn::Sub(hn::Sub(LoadInputPartial<kResidual>(d, x, residual, whole, left), mean), rest);
      const Floats gamma = args.gamma ? LoadPartial(d, args.gamma + whole, left) : hn::Set(d, 1.0f);
      const Floats beta = args.beta ? LoadPartial(d, args.beta + whole, left) : hn::Zero(d);
      StorePartial(hn::MulAdd(hn::Mul(v, inverse), gamma, beta), d, y + whole, left);
    }
  }
}

void LayerNorm(const LayerNormF32Args& args) {
  if (args.rows <= 0 || args.dim <= 0) return;
  const FlushDenormals environment;
  args.residual ? LayerNormRows<true>(args) : LayerNormRows<false>(args);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
