// The loops of the GEMM with weights in fewer bits. Few rows widen them in registers, as they are read: reading them is what
// takes the time there. For more rows a block of a panel is widened once and multiplied by the tiles of the f32 kernel. Both
// are the same chains of multiply-adds with the same weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/gemm_panel-inl.h"
#include "simd/hwy/weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// A panel's part of a block of k is widened on the stack: 72 KB on avx512, 36 on avx2. A multiple of every kScaleSteps.
constexpr std::int64_t kWidenedK = 384;
constexpr std::int64_t kWidenedBufferedRows = 48;
// How far ahead few rows ask for W.
constexpr std::int64_t kPrefetchPackedBytes = 512;

// function(step) for step = 0 .. count - 1, each a constant.
template <class Function, int... steps>
HWY_INLINE void ForEachStepOf(const Function& function, std::integer_sequence<int, steps...>) {
  (function(std::integral_constant<int, steps>()), ...);
}
template <int count, class Function>
HWY_INLINE void ForEachStep(const Function& function) {
  ForEachStepOf(function, std::make_integer_sequence<int, count>());
}

// k in [k_begin, k_end) of a panel as f32 [k][padded]; rows of words are widened whole. k_begin: a multiple of kSteps and of
// kScaleSteps.
template <class W>
HWY_NOINLINE void WidenBlock(const unsigned char* panel, const unsigned char* scales, std::int64_t padded, std::int64_t k_begin,
                             std::int64_t k_end, float* HWY_RESTRICT to) {
  const GemmTag df;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const unsigned char* row = panel + k_begin / W::kSteps * padded * kWordBytes;
  for (std::int64_t k = k_begin; k < k_end; k += W::kSteps) {
    for (std::int64_t column = 0; column < padded; column += lanes) {
      const auto scale = W::LoadScale(df, scales, k, padded, column);
      const auto store = [&](auto step) POLYHEAD_INLINED HWY_ATTR {
        constexpr int kStep = decltype(step)::value;
        hn::Store(W::template Load<kStep>(df, row, padded, column, scale), df, to + kStep * padded + column);
      };
      ForEachStep<W::kSteps>(store);
    }
    row += padded * kWordBytes;
    to += W::kSteps * padded;
  }
}

#if HWY_HAVE_SCALABLE

// Vectors without a fixed size cannot stand in arrays: a block is widened for any number of rows.
template <class W>
constexpr std::int64_t kRowsInRegisters = 0;

#else

// So many rows are cheaper widened anew for each tile of rows than by the block. On avx512 elements of 16 bits always are: Zen
// 4 shifts beside its multiply-adds, and 8 rows run at their peak.
template <class W>
constexpr std::int64_t kRowsInRegisters = HWY_TARGET == HWY_AVX3 && !W::kHasScale ? std::int64_t{1} << 40 : 3 * kRowTile;

// out[i][j] = start[j] + sum_k a[i][k] * b[k][j] for whole panels, k ascending.
struct WeightsTile {
  const float* a;
  std::ptrdiff_t a_stride;
  const unsigned char* panel;   // the first one
  std::ptrdiff_t scales;        // bytes from a panel to its scales
  std::ptrdiff_t panel_stride;  // bytes from one panel to the next
  std::ptrdiff_t prefetch;      // how far ahead of its use W is asked for
  const float* start;
  float* out;
  std::ptrdiff_t out_stride;
  std::int64_t k;
};
using WeightsTileFunction = void (*)(const WeightsTile& tile);

template <class W, int kRows, int kPanels>
HWY_NOINLINE void ComputeWeightsTile(const WeightsTile& tile) {
  using V = hn::Vec<GemmTag>;
  constexpr int kColumns = kPanelVectors * kPanels;
  // Rows of words in one turn of the loop: enough steps that its own instructions do not count.
  constexpr int kTurn = W::kSteps == 2 ? 2 : 1;
  constexpr std::int64_t kRowBytes = kPanelWidth * kWordBytes;
  const GemmTag d;
  V c[kRows][kColumns];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) c[i][j] = hn::LoadU(d, tile.start + j * kLanes);
  }
  const float* a[kRows];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) a[i] = RowOf(tile.a, tile.a_stride, i);
  V scale[kColumns];
  const auto load_scales = [&](std::int64_t k) POLYHEAD_INLINED HWY_ATTR {
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) {
      const unsigned char* scales = tile.panel + j / kPanelVectors * tile.panel_stride + tile.scales;
      scale[j] = W::LoadScale(d, scales, k, kPanelWidth, j % kPanelVectors * kLanes);
    }
  };
  const unsigned char* row = tile.panel;
  const std::ptrdiff_t panel_stride = tile.panel_stride;
  std::int64_t k = 0;
  const auto multiply = [&](auto step) POLYHEAD_INLINED HWY_ATTR {
    constexpr int kStep = decltype(step)::value;
    const auto load = [&](int j) POLYHEAD_INLINED HWY_ATTR {
      return W::template Load<kStep>(d, row + j / kPanelVectors * panel_stride, kPanelWidth, j % kPanelVectors * kLanes,
                                     scale[j]);
    };
    MultiplyStep(a, k + kStep, load, c);
  };
  const auto multiply_row = [&]() POLYHEAD_INLINED HWY_ATTR {
    HWY_UNROLL(8)
    for (int p = 0; p < kPanels; ++p) {
      HWY_UNROLL(8)
      for (std::int64_t j = 0; j < kRowBytes; j += kLineBytes) PrefetchLine(row + p * panel_stride + tile.prefetch + j);
    }
    ForEachStep<W::kSteps>(multiply);
    k += W::kSteps;
    row += kRowBytes;
  };
  if constexpr (W::kScaleSteps == 0) {
    load_scales(0);
  } else {
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) scale[j] = hn::Zero(d);  // for compilers that do not see that k begins with a block
  }
  const auto next_scales = [&]() POLYHEAD_INLINED HWY_ATTR {
    if constexpr (W::kScaleSteps > 0) {
      if (k % W::kScaleSteps == 0) load_scales(k);
    }
  };
  const std::int64_t k_end = tile.k;
  while (k + kTurn * W::kSteps <= k_end) {
    next_scales();
    HWY_UNROLL(2)
    for (int turn = 0; turn < kTurn; ++turn) multiply_row();
  }
  if constexpr (kTurn > 1) {
    static_assert(kTurn == 2, "one row of words is left at most");
    if (k + W::kSteps <= k_end) {
      next_scales();
      multiply_row();
    }
  }
  if (k < k_end) {
    next_scales();
    ForEachStep<W::kSteps - 1>([&](auto step) POLYHEAD_INLINED HWY_ATTR {
      if (k + decltype(step)::value < k_end) multiply(step);
    });
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    float* out = RowOf(tile.out, tile.out_stride, i);
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) hn::StoreU(c[i][j], d, out + j * kLanes);
  }
}

template <class W, std::size_t... rows>
HWY_INLINE WeightsTileFunction WeightsTileFor(std::int64_t count, std::index_sequence<rows...>) {
  static constexpr WeightsTileFunction kTiles[] = {ComputeWeightsTile<W, static_cast<int>(rows) + 1, 1>...};
  return kTiles[count - 1];
}

// Rows [row_begin, row_end) of columns [args.n_begin, column_end), whole panels: two panels side by side while a tile of one
// would leave the multipliers waiting for each other.
template <class W>
HWY_INLINE void MultiplyInRegisters(const GemmF32Args& args, std::int64_t row_begin, std::int64_t row_end,
                                    std::int64_t column_end) {
  alignas(64) float sums[kRowTile * 2 * kPanelWidth];
  const bool finish = args.activation != Activation::none || args.residual != nullptr;
  WeightsTile tile;
  tile.a_stride = args.a_stride;
  tile.scales = WordRows<W>(args.k) * kPanelWidth * kWordBytes;
  tile.panel_stride = kPanelWidth * BytesOfColumn<W>(args.k);
  tile.prefetch = kPrefetchPackedBytes;
  tile.k = args.k;
  const std::int64_t tile_rows = EvenShare(row_end - row_begin, kRowTile, 1);
  for (std::int64_t column = args.n_begin; column < column_end;) {
    const std::int64_t panels = row_end - row_begin <= 2 && column_end - column >= 2 * kPanelWidth ? 2 : 1;
    const std::int64_t columns = panels * kPanelWidth;
    tile.panel = PackedPanel<W>(args, column);
    tile.start = args.bias ? args.bias + column : kZeros;
    for (std::int64_t row = row_begin; row < row_end; row += tile_rows) {
      const std::int64_t rows = Smaller(tile_rows, row_end - row);
      tile.a = RowOf(args.a, args.a_stride, row);
      tile.out = finish ? sums : RowOf(args.c, args.c_stride, row) + column;
      tile.out_stride = finish ? columns * kFloatBytes : args.c_stride;
      if (panels == 2) {
        (rows == 1 ? ComputeWeightsTile<W, 1, 2> : ComputeWeightsTile<W, 2, 2>)(tile);
      } else {
        WeightsTileFor<W>(rows, std::make_index_sequence<kRowTile>())(tile);
      }
      if (finish) FinishAny(args, sums, columns, row, rows, column, columns);
    }
    column += columns;
  }
}

#endif

// What is wanted next, seen from a block of k that ends at k_end.
template <class W>
HWY_INLINE Ahead AheadOf(const unsigned char* panel, std::int64_t k, std::int64_t padded) {
  const std::ptrdiff_t row_bytes = padded * kWordBytes;
  return {panel + k / W::kSteps * row_bytes, row_bytes / W::kSteps};
}

// All of k for one panel, with the sums in a buffer: see ComputePanelBuffered.
template <class W, class Rows>
void ComputeWeightsBuffered(const GemmF32Args& args, Rows& source, const Panel& panel, std::int64_t row, std::int64_t rows,
                            float* block) {
  alignas(64) float sums[kWidenedBufferedRows * kPanelWidth];
  const unsigned char* words = PackedPanel<W>(args, panel.column);
  const unsigned char* scales = words + WordRows<W>(args.k) * panel.padded * kWordBytes;
  const std::int64_t block_rows = EvenShare(rows, kWidenedBufferedRows, 1);  // at most 48
  for (std::int64_t i = 0; i < rows; i += block_rows) {
    const std::int64_t count = Smaller(rows - i, block_rows);
    for (std::int64_t k = 0; k < args.k; k += kWidenedK) {
      const std::int64_t k_end = Smaller(args.k, k + kWidenedK);
      WidenBlock<W>(words, scales, panel.padded, k, k_end, block);
      const std::int64_t next = k_end == args.k && i + count < rows ? 0 : k_end;
      ComputePanel(args, panel, block, source.Take(args, row + i, count, k, k_end), row + i, count, k, k_end,
                   {sums, kPanelWidth * kFloatBytes}, AheadOf<W>(words, next, panel.padded));
    }
  }
}

template <class W, class Rows>
HWY_NOINLINE void RunWeightsGemm(const GemmF32Args& args, Rows& source) {
  static_assert(W::kScaleSteps == 0 || kWidenedK % W::kScaleSteps == 0, "a block of k has whole scales");
  alignas(64) float block[kWidenedK * kPanelWidth];
  const std::int64_t whole_end = args.n_end / kPanelWidth * kPanelWidth;
#if !HWY_HAVE_SCALABLE
  if constexpr (Rows::kMakesRows) {
    if (args.m <= Smaller(3 * kRowTile, Rows::MostRows(args.k))) {
      const RowsOfA made = source.Take(args, 0, args.m, 0, args.k);
      GemmF32Args of_made = args;
      of_made.a = made.first;
      of_made.a_stride = made.stride;
      PlainRows plain;
      return RunWeightsGemm<W>(of_made, plain);
    }
  } else if (args.m <= kRowsInRegisters<W>) {
    // A's rows stay in the second-level cache while they pass over the panels.
    std::int64_t most = kBlockABytes / (args.k * kFloatBytes);
    most = Smaller(most < 3 * kRowTile ? 3 * kRowTile : most / kRowTile * kRowTile, kMaxBlockRows);
    const std::int64_t share = EvenShare(args.m, most, kRowTile);
    for (std::int64_t row = 0; row < args.m; row += share) {
      const std::int64_t end = Smaller(args.m, row + share);
      MultiplyInRegisters<W>(args, row, end, whole_end);
      if (whole_end < args.n_end) ComputeWeightsBuffered<W>(args, source, PanelAt(args, whole_end), row, end - row, block);
    }
    return;
  }
#endif
  const std::int64_t block_k = EvenShare(args.k, kWidenedK, 32);
  const bool buffered = args.residual == args.c && block_k < args.k;
  std::int64_t block_rows = kBlockABytes / (Smaller(block_k, args.k) * kFloatBytes) / kRowTile * kRowTile;
  block_rows = Smaller(block_rows, Smaller(kMaxBlockRows, Rows::MostRows(block_k) / kRowTile * kRowTile));
  block_rows = buffered ? kWidenedBufferedRows : EvenShare(args.m, block_rows, kRowTile);
  const std::int64_t direct_end = buffered ? args.n_begin : whole_end;

  for (std::int64_t row = 0; row < args.m; row += block_rows) {
    const std::int64_t rows = Smaller(block_rows, args.m - row);
    for (std::int64_t k = 0; k < args.k; k += block_k) {
      const std::int64_t k_end = Smaller(args.k, k + block_k);
      if (args.n_begin == direct_end) break;
      const RowsOfA a = source.Take(args, row, rows, k, k_end);
      for (std::int64_t column = args.n_begin; column < direct_end; column += kPanelWidth) {
        const Panel panel = PanelAt(args, column);
        const unsigned char* words = PackedPanel<W>(args, column);
        WidenBlock<W>(words, words + WordRows<W>(args.k) * kPanelWidth * kWordBytes, kPanelWidth, k, k_end, block);
        const bool is_last = column + kPanelWidth >= direct_end;
        const std::int64_t next_column = is_last ? args.n_begin : column + kPanelWidth;
        const std::int64_t next_k = !is_last ? k : k_end == args.k ? 0 : k_end;
        float* c = RowOf(args.c, args.c_stride, row) + column;
        ComputePanel(args, panel, block, a, row, rows, k, k_end, {c, args.c_stride},
                     AheadOf<W>(PackedPanel<W>(args, next_column), next_k, kPanelWidth));
      }
    }
    for (std::int64_t column = direct_end; column < args.n_end; column += kPanelWidth) {
      ComputeWeightsBuffered<W>(args, source, PanelAt(args, column), row, rows, block);
    }
  }
}

template <class W>
void WeightsGemm(const GemmF32Args& args) {
  if (args.m <= 0 || args.n_begin >= args.n_end) return;
  const FlushDenormals environment;
  PlainRows source;
  RunWeightsGemm<W>(args, source);
}

// A kernel of these weights.
template <class W>
constexpr GemmKernel WeightsKernel(const char* name) {
  return {name, kPanelWidth, kRowTile, WeightsPackedBytes<W>, PackWeights<W>, WeightsGemm<W>};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
