// The GEMM's loops: which panel, which block of k, which rows; and the epilogue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/hwy/activation-inl.h"
#include "simd/hwy/floating_point-inl.h"
#include "simd/hwy/gemm_pack-inl.h"
#include "simd/hwy/gemm_tile-inl.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// A block of k of one panel stays in the first-level cache while the rows of a block pass over it; the rows' part of A stays
// in the second-level cache while all panels pass over it. Partial sums of a panel wait in a buffer, not in C: then a residual
// may be C itself, and the last, narrow panel needs no case of its own.
constexpr std::int64_t kBlockK = 256;
constexpr std::int64_t kMaxBlockRows = 16 * kRowTile;
constexpr std::int64_t kBlockABytes = 256 * 1024;
constexpr std::int64_t kPrefetchBytes = 4096;
constexpr std::int64_t kMaxPanels = 6;

alignas(64) constexpr float kZeros[kMaxPanels * kPanelWidth] = {};

// C = activation(sums) + residual for rows x columns; the sums' rows are sums_stride floats apart.
template <Activation kActivation>
HWY_NOINLINE void Finish(const GemmF32Args& args, const float* HWY_RESTRICT sums, std::int64_t sums_stride, std::int64_t row,
                         std::int64_t rows, std::int64_t column, std::int64_t columns) {
  const GemmTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* from = sums + i * sums_stride;
    float* c = RowOf(args.c, args.c_stride, row + i) + column;
    const float* residual = args.residual ? RowOf(args.residual, args.residual_stride, row + i) + column : nullptr;
    std::int64_t j = 0;
    for (; j + lanes <= columns; j += lanes) {
      auto v = Activate<kActivation>(d, hn::LoadU(d, from + j));
      if (residual) v = hn::Add(v, hn::LoadU(d, residual + j));
      hn::StoreU(v, d, c + j);
    }
    if (j < columns) {
      const std::size_t count = static_cast<std::size_t>(columns - j);
      auto v = Activate<kActivation>(d, LoadPartial(d, from + j, count));
      if (residual) v = hn::Add(v, LoadPartial(d, residual + j, count));
      StorePartial(v, d, c + j, count);
    }
  }
}

void FinishAny(const GemmF32Args& args, const float* sums, std::int64_t sums_stride, std::int64_t row, std::int64_t rows,
               std::int64_t column, std::int64_t columns) {
  switch (args.activation) {
    case Activation::none:
      return Finish<Activation::none>(args, sums, sums_stride, row, rows, column, columns);
    case Activation::relu:
      return Finish<Activation::relu>(args, sums, sums_stride, row, rows, column, columns);
    case Activation::gelu_erf:
      return Finish<Activation::gelu_erf>(args, sums, sums_stride, row, rows, column, columns);
    case Activation::gelu_tanh:
      return Finish<Activation::gelu_tanh>(args, sums, sums_stride, row, rows, column, columns);
  }
}

#define POLYHEAD_TILE_ROWS_6(vectors)                                                                             \
  ComputeTile<1, vectors, 1>, ComputeTile<2, vectors, 1>, ComputeTile<3, vectors, 1>, ComputeTile<4, vectors, 1>, \
      ComputeTile<5, vectors, 1>, ComputeTile<6, vectors, 1>
#define POLYHEAD_TILE_ROWS_8(vectors) POLYHEAD_TILE_ROWS_6(vectors), ComputeTile<7, vectors, 1>, ComputeTile<8, vectors, 1>

// The tile of so many vectors and rows, for panels one at a time.
HWY_INLINE GemmTileFunction TileFor(std::int64_t vectors, std::int64_t rows) {
#if HWY_HAVE_SCALABLE
  static constexpr GemmTileFunction kTiles[1][8] = {{POLYHEAD_TILE_ROWS_8(1)}};
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  static constexpr GemmTileFunction kTiles[3][8] = {
      {POLYHEAD_TILE_ROWS_8(1)}, {POLYHEAD_TILE_ROWS_8(2)}, {POLYHEAD_TILE_ROWS_8(3)}};
#else
  static constexpr GemmTileFunction kTiles[2][6] = {{POLYHEAD_TILE_ROWS_6(1)}, {POLYHEAD_TILE_ROWS_6(2)}};
#endif
  return kTiles[vectors - 1][rows - 1];
}
#undef POLYHEAD_TILE_ROWS_6
#undef POLYHEAD_TILE_ROWS_8

struct FewRowsTile {
  GemmTileFunction compute;
  std::int64_t panels;
};

// For a whole product of few rows: as many panels at once as registers allow.
HWY_INLINE FewRowsTile FewRowsTileFor(std::int64_t rows) {
#if HWY_HAVE_SCALABLE
  return {TileFor(1, rows), 1};
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  switch (rows) {
    case 1:
      return {ComputeTile<1, 3, 4>, 4};
    case 2:
      return {ComputeTile<2, 3, 3>, 3};
    default:
      return rows == 3 ? FewRowsTile{ComputeTile<3, 3, 2>, 2} : FewRowsTile{ComputeTile<4, 3, 2>, 2};
  }
#else
  switch (rows) {
    case 1:
      return {ComputeTile<1, 2, 6>, 6};
    case 2:
      return {ComputeTile<2, 2, 3>, 3};
    default:
      return {ComputeTile<3, 2, 2>, 2};
  }
#endif
}

// The bias of a panel group, padded to whole vectors; the arguments' own array where nothing is missing.
HWY_INLINE const float* PaddedBias(const GemmF32Args& args, std::int64_t column, std::int64_t columns, std::int64_t padded,
                                   float* HWY_RESTRICT buffer) {
  if (args.bias == nullptr) return kZeros;
  if (columns == padded) return args.bias + column;
  for (std::int64_t j = 0; j < padded; ++j) buffer[j] = j < columns ? args.bias[column + j] : 0.0f;
  return buffer;
}

// What a panel's tiles have in common.
struct Panel {
  std::int64_t column;
  std::int64_t columns;  // wanted
  std::int64_t padded;   // packed, and floats from one k to the next
  const float* packed;
};

HWY_INLINE Panel PanelAt(const GemmF32Args& args, std::int64_t column) {
  const std::int64_t columns = args.n - column < kPanelWidth ? args.n - column : kPanelWidth;
  return {column, columns, PaddedColumns(columns), args.packed + column * args.k};
}

HWY_INLINE bool NeedsFinish(const GemmF32Args& args, const Panel& panel) {
  return args.activation != Activation::none || args.residual != nullptr || panel.columns != panel.padded;
}

// Rows [row, row + rows) of one panel, all of k.
void ComputePanel(const GemmF32Args& args, const Panel& panel, std::int64_t row, std::int64_t rows) {
  alignas(64) float sums[kMaxBlockRows * kPanelWidth];
  alignas(64) float bias_buffer[kPanelWidth];
  const float* bias = PaddedBias(args, panel.column, panel.columns, panel.padded, bias_buffer);
  const std::int64_t vectors = HWY_HAVE_SCALABLE ? 1 : panel.padded * kPanelVectors / kPanelWidth;
  const bool finish = NeedsFinish(args, panel);
  const std::ptrdiff_t sums_stride = kPanelWidth * static_cast<std::ptrdiff_t>(sizeof(float));
  // One tile passes over a panel once: then blocks of k would only store and load its sums.
  const std::int64_t block_k = rows <= kRowTile ? args.k : kBlockK;

  for (std::int64_t k = 0; k < args.k; k += block_k) {
    const bool first = k == 0;
    const bool last = k + block_k >= args.k;
    GemmTile tile;
    tile.b = panel.packed + k * panel.padded;
    tile.b_stride = panel.padded;
    tile.b_panel = 0;
    tile.k = last ? args.k - k : block_k;
    tile.columns = panel.columns;
    tile.a_stride = args.a_stride;
    tile.start_stride = first ? 0 : sums_stride;
    tile.out_stride = last && !finish ? args.c_stride : sums_stride;
    for (std::int64_t i = 0; i < rows;) {
      // Full tiles, and the last two share what is left: 13 rows are 6 + 4 + 3, since a tile of one row runs at a sixth.
      const std::int64_t left = rows - i;
      const std::int64_t tile_rows = left >= 2 * kRowTile || left == kRowTile ? kRowTile
                                     : left > kRowTile                        ? (left + 1) / 2
                                                                              : left;
      tile.a = RowOf(args.a, args.a_stride, row + i) + k;
      tile.prefetch = i == 0 ? tile.b + kPrefetchBytes / static_cast<std::int64_t>(sizeof(float)) : tile.b;
      tile.start = first ? bias : sums + i * kPanelWidth;
      tile.out = last && !finish ? RowOf(args.c, args.c_stride, row + i) + panel.column : sums + i * kPanelWidth;
      TileFor(vectors, tile_rows)(tile);
      i += tile_rows;
    }
  }
  if (finish) FinishAny(args, sums, kPanelWidth, row, rows, panel.column, panel.columns);
}

// Few rows in all: W is read once at the speed of memory, several panels side by side.
void ComputeFewRows(const GemmF32Args& args) {
  alignas(64) float sums[kRowTile * kMaxPanels * kPanelWidth];
  const FewRowsTile few = FewRowsTileFor(args.m);
  const std::int64_t group = few.panels * kPanelWidth;
  std::int64_t column = args.n_begin;
  const bool finish = args.activation != Activation::none || args.residual != nullptr;
  for (; column + group <= args.n_end; column += group) {
    GemmTile tile;
    tile.a = args.a;
    tile.a_stride = args.a_stride;
    tile.b = args.packed + column * args.k;
    tile.b_stride = kPanelWidth;
    tile.b_panel = kPanelWidth * args.k;
    tile.prefetch = tile.b + kPrefetchBytes / static_cast<std::int64_t>(sizeof(float));
    tile.start = args.bias ? args.bias + column : kZeros;
    tile.start_stride = 0;
    tile.out = finish ? sums : args.c + column;
    tile.out_stride = finish ? group * static_cast<std::ptrdiff_t>(sizeof(float)) : args.c_stride;
    tile.k = args.k;
    tile.columns = group;
    few.compute(tile);
    if (finish) FinishAny(args, sums, group, 0, args.m, column, group);
  }
  for (; column < args.n_end; column += kPanelWidth) ComputePanel(args, PanelAt(args, column), 0, args.m);
}

HWY_NOINLINE void RunGemm(const GemmF32Args& args) {
  if (args.m <= kFewRows) return ComputeFewRows(args);
  // Blocks of rows of about equal size, whole tiles each.
  const std::int64_t row_bytes = args.k * static_cast<std::int64_t>(sizeof(float));
  std::int64_t block_rows = kBlockABytes / row_bytes / kRowTile * kRowTile;
  if (block_rows < 4 * kRowTile) block_rows = 4 * kRowTile;
  if (block_rows > kMaxBlockRows) block_rows = kMaxBlockRows;
  const std::int64_t blocks = (args.m + block_rows - 1) / block_rows;
  const std::int64_t share = (args.m + blocks - 1) / blocks;
  block_rows = (share + kRowTile - 1) / kRowTile * kRowTile;
  for (std::int64_t row = 0; row < args.m; row += block_rows) {
    const std::int64_t rows = args.m - row < block_rows ? args.m - row : block_rows;
    for (std::int64_t column = args.n_begin; column < args.n_end; column += kPanelWidth) {
      ComputePanel(args, PanelAt(args, column), row, rows);
    }
  }
}

void Gemm(const GemmF32Args& args) {
  if (args.m <= 0 || args.n_begin >= args.n_end) return;
  const FlushDenormals environment;
  RunGemm(args);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
