// Brings the partial results of key ranges together. These are f32; the merged rows are of T.
//
//   m = max m_i,  w_i = 2^(m_i - m),  out = sum w_i O_i / sum w_i l_i     over the parts that saw a key (l_i != 0), ascending
//
// A sink joins the denominator once, here.
#pragma once

#include <cmath>

#include "simd/contract/attention.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/partial_vector-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/hwy/total-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// How many parts' weights are kept at a time; more parts cost further exponentials, nothing else.
constexpr std::int64_t kWeights = 64;

struct Row {
  const MergeF32Args& args;
  size_t at;  // of the row in each part, in floats
  float shift;

  const float* Part(std::int64_t split) const { return args.partials[split] + at; }
  float PartShift(std::int64_t split) const { return Part(split)[args.value_dim]; }
  float PartDenominator(std::int64_t split) const { return Part(split)[args.value_dim + 1]; }
  float Weight(std::int64_t split) const {
    if (PartDenominator(split) == 0.0f) return 0.0f;
    return static_cast<float>(::exp2(static_cast<double>(PartShift(split)) - static_cast<double>(shift)));
  }
};

template <class T>
static HWY_NOINLINE void MergeRow(const MergeF32Args& args, std::int64_t row_index, T* out, float* lse, const float* sink) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), value_dim = static_cast<size_t>(args.value_dim);
  Row row = {args, static_cast<size_t>(row_index - args.row_begin) * (value_dim + 2), kLowestFloat};
  for (std::int64_t split = 0; split < args.splits; ++split) {
    if (row.PartDenominator(split) != 0.0f) row.shift = HWY_MAX(row.shift, row.PartShift(split));
  }
  float weights[kWeights];
  double sum_of_denominators = 0.0;
  for (std::int64_t split = 0; split < args.splits; ++split) {
    const float weight = row.Weight(split);
    if (split < kWeights) weights[split] = weight;
    if (row.PartDenominator(split) != 0.0f) {
      sum_of_denominators += static_cast<double>(weight) * static_cast<double>(row.PartDenominator(split));
    }
  }
  const float denominator = static_cast<float>(sum_of_denominators);
  RowEnd end = {denominator == 0.0f ? 0.0f : 1.0f / denominator, 0.0f};
  if (sink) end = EndWithSink(row.shift, denominator, *sink);
  const Floats factor = hn::Set(df, end.factor);
  for (size_t e = 0; e < value_dim; e += lanes) {
    const bool whole = e + lanes <= value_dim;
    Floats total = hn::Zero(df), rest = hn::Zero(df);
    for (std::int64_t split = 0; split < args.splits; ++split) {
      if (row.PartDenominator(split) == 0.0f) continue;
      const float* part = row.Part(split) + e;
      const Floats v = whole ? hn::LoadU(df, part) : LoadPartial(df, part, value_dim - e);
      AddToTotal(hn::Mul(hn::Set(df, split < kWeights ? weights[split] : row.Weight(split)), v), total, rest);
    }
    const Floats sum = hn::MulAdd(TotalOf(total, rest), factor, hn::Zero(df));
    if (whole) {
      StoreElements(sum, df, out + e);
    } else {
      StorePartial(sum, df, out + e, value_dim - e);
    }
  }
  if (lse) *lse = sink ? end.lse : LogOfDenominator(row.shift, denominator);
}

template <class T>
static HWY_NOINLINE void MergeRows(const MergeF32Args& args) {
  const RowMap<T> out = {static_cast<T*>(args.out), args.out_stride, args.out_head_stride, args.group};
  const RowMap<float> lse = {args.lse, args.lse_stride, args.lse_head_stride, args.group};
  const RowMap<const float> sinks = {args.sink, 0, args.sink_stride, args.group};
  for (std::int64_t row = args.row_begin; row < args.row_end; ++row) {
    MergeRow(args, row, out.At(row), args.lse ? lse.At(row) : nullptr, args.sink ? sinks.At(row) : nullptr);
  }
}

template <class T>
static void Merge(const MergeF32Args& args) {
  const FlushDenormals flush;
  MergeRows<T>(args);
}

template <class T>
constexpr MergeKernel KernelOfMerge(const char* name) {
  return {name, &Merge<T>, ElementOf<T>::value};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
