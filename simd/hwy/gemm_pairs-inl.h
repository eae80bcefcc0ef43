// The GEMM of bf16 weights with rows that are rounded to bf16 as well, by instructions that multiply pairs of bf16 and add both
// products to an f32 sum. A panel's words are pairs already (weights-inl.h), so the loops of gemm_loops-inl.h serve as they
// are: to them a word is a number, and k counts words.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/element.hpp"
#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/gemm_loops-inl.h"
#include "simd/hwy/gemm_weights-inl.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// One row's numbers as bf16, an odd one out beside a zero.
HWY_INLINE void RoundToPairs(const float* HWY_RESTRICT from, std::int64_t count, Bf16* HWY_RESTRICT to) {
  const GemmTag df;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) StoreElements(hn::LoadU(df, from + i), df, to + i);
  if (i < count) {
    const std::size_t rest = static_cast<std::size_t>(count - i);
    StorePartial(LoadPartial(df, from + i, rest), df, to + i, rest);
  }
  if (count % 2 != 0) to[count] = Bf16{0};
}

template <class PairProducts>
struct RowsOfPairs : MadeRows {
  struct Products {
    template <class V>
    static HWY_INLINE V Add(V a, V b, V sum) {
      return PairProducts::Add(a, b, sum);
    }
    template <class V>
    static HWY_INLINE V AddOnce(V a, V b, V sum) {
      return PairProducts::Add(a, b, sum);
    }
  };
  static constexpr std::int64_t kBlockK = 384;

  RowsOfA Take(const GemmF32Args& args, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t k_end) {
    const std::int64_t count = Smaller(2 * k_end, numbers) - 2 * k;
    return MakeRows(rows, k_end - k, [&](std::int64_t i, float* to) HWY_ATTR {
      RoundToPairs(RowOf(args.a, args.a_stride, row + i) + 2 * k, count, reinterpret_cast<Bf16*>(to));
    });
  }

  std::int64_t numbers = 0;  // of a row
};

template <class PairProducts>
HWY_NOINLINE void RunPairGemm(const GemmF32Args& args) {
  using Rows = RowsOfPairs<PairProducts>;
  static_assert(Rows::MostRows(Rows::kBlockK) >= kBufferedRows && Rows::MostRows(Rows::kBlockK) >= kRowTile, "blocks fit");
  Rows source;
  source.numbers = args.k;
  GemmF32Args of_words = args;
  of_words.k = WordRows<Bf16Weights>(args.k);
  RunGemm(of_words, source);
}

template <class PairProducts>
void PairGemm(const GemmF32Args& args) {
  if (args.m <= 0 || args.n_begin >= args.n_end) return;
  const FlushDenormals environment;
  RunPairGemm<PairProducts>(args);
}

template <class PairProducts>
constexpr GemmKernel PairKernel(const char* name) {
  return {name, kPanelWidth, kRowTile, WeightsPackedBytes<Bf16Weights>, PackWeights<Bf16Weights>, PairGemm<PairProducts>};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
