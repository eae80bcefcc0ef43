// The loops of the GEMM whose rows and weights are multiplied as they are stored: which panel, which block of k, which rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_finish-inl.h"
#include "simd/hwy/gemm_panel-inl.h"
#include "simd/hwy/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kBufferedRows = 32;
// How far few rows prefetch W: in each of the panels that they pass over side by side, in a panel alone.
constexpr std::int64_t kPrefetchBytes = 256, kPrefetchAloneBytes = kSixteenWithFma ? 1024 : 256;
// The same where one tile has all rows. The next panel would be too far: beside this one it has no room in the second-level
// cache.
constexpr std::int64_t kPrefetchOneTileBytes = 8192;

struct FewRowsTile {
  GemmTileFunction compute;
  std::int64_t panels;
};

// For a whole product of few rows: as many of the panels that are left at once as registers allow.
template <class P>
HWY_INLINE FewRowsTile FewRowsTileFor(std::int64_t rows, [[maybe_unused]] std::int64_t panels) {
#if !HWY_HAVE_SCALABLE
  constexpr int kV = kPanelVectors;
  if (rows == 1 && panels >= 4) return {ComputeTile<1, kV, 4, P>, 4};
  if constexpr (kSixteenWithFma) {
    if (rows == 2 && panels >= 2) return {ComputeTile<2, kV, 2, P>, 2};
  } else {
    if (rows == 2 && panels >= 3) return {ComputeTile<2, kV, 3, P>, 3};
    if (rows == 2 && panels >= 2) return {ComputeTile<2, kV, 2, P>, 2};
    if (rows == 3 && panels >= 2) return {ComputeTile<3, kV, 2, P>, 2};
  }
  if constexpr (kManyRegisters) {
    if (rows == 4 && panels >= 2) return {ComputeTile<4, kV, 2, P>, 2};
  }
  if (rows == 1 && panels >= 2) return {ComputeTile<1, kV, 2, P>, 2};
#endif
  return {TileFor<P>(kPanelVectors, rows), 1};
}

HWY_INLINE const float* PanelWeights(const GemmF32Args& args, std::int64_t column) {
  return static_cast<const float*>(args.packed) + column * args.k;
}

// All of k for one panel and few enough rows, with the sums in a buffer: for a narrow panel, which C has no room for, and where
// the residual is C itself, which is not to be overwritten before the end.
template <class Rows>
void ComputePanelBuffered(const GemmF32Args& args, Rows& source, const Panel& panel, std::int64_t row, std::int64_t rows) {
  constexpr std::int64_t kBlockK = Rows::kBlockK;
  alignas(64) float sums[kBufferedRows * kPanelWidth];
  const float* weights = PanelWeights(args, panel.column);
  for (std::int64_t i = 0; i < rows; i += kBufferedRows) {
    const std::int64_t count = Smaller(rows - i, kBufferedRows);
    for (std::int64_t k = 0; k < args.k; k += kBlockK) {
      const std::int64_t k_end = Smaller(args.k, k + kBlockK);
      const float* next = weights + (k_end == args.k && i + count < rows ? 0 : k_end * panel.padded);
      ComputePanel<typename Rows::Products>(args, panel, weights + k * panel.padded,
                                            source.Take(args, row + i, count, k, k_end), row + i, count, k, k_end,
                                            {sums, kPanelWidth * kFloatBytes}, {next, panel.padded * kFloatBytes});
    }
  }
}

// Few rows in all: W is read once at the speed of memory, several panels side by side.
template <class Rows>
void ComputeFewRows(const GemmF32Args& args, Rows& source) {
  const RowsOfA a = source.Take(args, 0, args.m, 0, args.k);
  alignas(64) float sums[kRowTile * kMaxPanels * kPanelWidth];
  const bool finish = args.activation != Activation::none || args.residual != nullptr;
  const std::int64_t whole_end = args.n_end / kPanelWidth * kPanelWidth;
  std::int64_t column = args.n_begin;
  while (column < whole_end) {
    const FewRowsTile few = FewRowsTileFor<typename Rows::Products>(args.m, (whole_end - column) / kPanelWidth);
    const std::int64_t columns = few.panels * kPanelWidth;
    GemmTile tile;
    tile.a = a.first;
    tile.a_stride = a.stride;
    tile.b = PanelWeights(args, column);
    tile.b_stride = kPanelWidth;
    tile.b_panel = kPanelWidth * args.k;
    tile.prefetch = reinterpret_cast<const char*>(tile.b) + (few.panels == 1 ? kPrefetchAloneBytes : kPrefetchBytes);
    tile.prefetch_stride = kPanelWidth * kFloatBytes;
    tile.start = args.bias ? args.bias + column : kZeros;
    tile.start_stride = 0;
    tile.out = finish ? sums : args.c + column;
    tile.out_stride = finish ? columns * kFloatBytes : args.c_stride;
    tile.k = args.k;
    tile.columns = columns;
    few.compute(tile);
    if (finish) FinishAny(args, sums, columns, 0, args.m, column, columns);
    column += columns;
  }
  if (column < args.n_end) ComputePanelBuffered(args, source, PanelAt(args, column), 0, args.m);
}

template <class Rows>
HWY_NOINLINE void RunGemm(const GemmF32Args& args, Rows& source) {
  const std::int64_t most_whole_rows = Rows::MostRows(args.k);
  if (args.m <= kFewRows && args.m <= most_whole_rows) return ComputeFewRows(args, source);
  // One tile passes over a panel once: then blocks of k would only store and load its sums. And with sums in a buffer rows
  // would be made for each panel anew.
  const bool whole_rows = most_whole_rows >= kRowTile && (args.m <= kRowTile || (Rows::kMakesRows && args.residual == args.c));
  const std::int64_t block_k = whole_rows ? args.k : EvenShare(args.k, Rows::kBlockK, 16);
  const bool one_tile = args.m <= kRowTile && block_k == args.k;
  const bool buffered = args.residual == args.c && block_k < args.k;
  std::int64_t block_rows = kBlockABytes / (Smaller(block_k, Rows::kBlockK) * kFloatBytes) / kRowTile * kRowTile;
  block_rows = Smaller(block_rows, Smaller(kMaxBlockRows, Rows::MostRows(block_k) / kRowTile * kRowTile));
  block_rows = EvenShare(args.m, buffered ? kBufferedRows : block_rows, kRowTile);
  const std::int64_t whole_end = buffered ? args.n_begin : args.n_end / kPanelWidth * kPanelWidth;

  for (std::int64_t row = 0; row < args.m; row += block_rows) {
    const std::int64_t rows = Smaller(block_rows, args.m - row);
    for (std::int64_t k = 0; k < args.k; k += block_k) {
      const std::int64_t k_end = Smaller(args.k, k + block_k);
      if (args.n_begin == whole_end) break;
      const RowsOfA a = source.Take(args, row, rows, k, k_end);
      for (std::int64_t column = args.n_begin; column < whole_end; column += kPanelWidth) {
        const Panel panel = PanelAt(args, column);
        const std::int64_t next_column = column + kPanelWidth < whole_end ? column + kPanelWidth : args.n_begin;
        const std::int64_t next_k = column + kPanelWidth < whole_end ? k : k_end == args.k ? 0 : k_end;
        const float* weights = PanelWeights(args, column) + k * panel.padded;
        const float* next =
            one_tile ? weights + kPrefetchOneTileBytes / kFloatBytes : PanelWeights(args, next_column) + next_k * kPanelWidth;
        float* c = RowOf(args.c, args.c_stride, row) + column;
        ComputePanel<typename Rows::Products>(args, panel, weights, a, row, rows, k, k_end, {c, args.c_stride},
                                              {next, panel.padded * kFloatBytes});
      }
    }
    for (std::int64_t column = whole_end; column < args.n_end; column += kPanelWidth) {
      ComputePanelBuffered(args, source, PanelAt(args, column), row, rows);
    }
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
