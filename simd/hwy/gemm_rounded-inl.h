// The GEMM of bf16 weights with rows that are rounded to bf16 as well, by multiply-adds: rows are rounded a block at a time,
// and the loops of gemm_weights-inl.h do the rest.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/element.hpp"
#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/gemm_weights-inl.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// One row's numbers, as f32 that are bf16.
HWY_INLINE void RoundNumbers(const float* HWY_RESTRICT from, std::int64_t count, float* HWY_RESTRICT to) {
  const GemmTag df;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(RoundedToBf16(df, hn::LoadU(df, from + i)), df, to + i);
  if (i == count) return;
  const std::size_t rest = static_cast<std::size_t>(count - i);
  StorePartial(RoundedToBf16(df, LoadPartial(df, from + i, rest)), df, to + i, rest);
}

struct RoundedF32Rows : MadeRows {
  using Products = MultiplyAdds;

  RowsOfA Take(const GemmF32Args& args, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t k_end) {
    return MakeRows(rows, k_end - k, [&](std::int64_t i, float* to) HWY_ATTR {
      RoundNumbers(RowOf(args.a, args.a_stride, row + i) + k, k_end - k, to);
    });
  }
};

HWY_NOINLINE void RunOnRoundedRows(const GemmF32Args& args) {
  static_assert(RoundedF32Rows::MostRows(kWidenedK) >= kWidenedBufferedRows, "blocks fit");
  RoundedF32Rows source;
  RunWeightsGemm<Bf16Weights>(args, source);
}

void RoundedGemm(const GemmF32Args& args) {
  if (args.m <= 0 || args.n_begin >= args.n_end) return;
  const FlushDenormals environment;
  RunOnRoundedRows(args);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
