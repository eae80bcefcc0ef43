// What the GEMM's loops have in common, however W is stored: which tile serves how many rows, and how a panel's rows pass
// through them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_finish-inl.h"
#include "simd/hwy/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// A block of rows passes over all panels, one block of k at a time: its part of A stays in the second-level cache meanwhile,
// beside one panel's part of W, which is read from there once for each tile of rows. Between blocks of k the sums wait in C.
constexpr std::int64_t kBlockABytes = (kSixteenWithFma ? 208 : 320) * 1024;
constexpr std::int64_t kMaxBlockRows = 192;
constexpr std::int64_t kMaxPanels = 4;

alignas(64) constexpr float kZeros[kMaxPanels * kPanelWidth] = {};

#define POLYHEAD_TILE_ROWS_4(vectors)                                                                               \
  ComputeTile<1, vectors, 1, Products>, ComputeTile<2, vectors, 1, Products>, ComputeTile<3, vectors, 1, Products>, \
      ComputeTile<4, vectors, 1, Products>
#define POLYHEAD_TILE_ROWS_6(vectors) \
  POLYHEAD_TILE_ROWS_4(vectors), ComputeTile<5, vectors, 1, Products>, ComputeTile<6, vectors, 1, Products>
#define POLYHEAD_TILE_ROWS_8(vectors) \
  POLYHEAD_TILE_ROWS_6(vectors), ComputeTile<7, vectors, 1, Products>, ComputeTile<8, vectors, 1, Products>

// The tile of so many vectors and rows, for panels one at a time.
template <class Products = MultiplyAdds>
HWY_INLINE GemmTileFunction TileFor(std::int64_t vectors, std::int64_t rows) {
#if HWY_HAVE_SCALABLE
  static constexpr GemmTileFunction kTiles[1][8] = {{POLYHEAD_TILE_ROWS_8(1)}};
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  static constexpr GemmTileFunction kTiles[3][8] = {
      {POLYHEAD_TILE_ROWS_8(1)}, {POLYHEAD_TILE_ROWS_8(2)}, {POLYHEAD_TILE_ROWS_8(3)}};
#elif HWY_TARGET == HWY_AVX2
  static constexpr GemmTileFunction kTiles[3][8] = {
      {POLYHEAD_TILE_ROWS_8(1)}, {POLYHEAD_TILE_ROWS_6(2)}, {POLYHEAD_TILE_ROWS_4(3)}};
#else
  static constexpr GemmTileFunction kTiles[2][6] = {{POLYHEAD_TILE_ROWS_6(1)}, {POLYHEAD_TILE_ROWS_6(2)}};
#endif
  return kTiles[vectors - 1][rows - 1];
}
#undef POLYHEAD_TILE_ROWS_4
#undef POLYHEAD_TILE_ROWS_6
#undef POLYHEAD_TILE_ROWS_8

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
  std::int64_t padded;   // packed, and columns from one k to the next
};

HWY_INLINE Panel PanelAt(const GemmF32Args& args, std::int64_t column) {
  const std::int64_t columns = args.n - column < kPanelWidth ? args.n - column : kPanelWidth;
  return {column, columns, PaddedColumns(columns)};
}

HWY_INLINE bool NeedsFinish(const GemmF32Args& args, const Panel& panel) {
  return args.activation != Activation::none || args.residual != nullptr || panel.columns != panel.padded;
}

HWY_INLINE std::int64_t Smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// The smallest number of about equal parts that are at most `limit`, in whole `unit`s: the size of a part.
HWY_INLINE std::int64_t EvenShare(std::int64_t size, std::int64_t limit, std::int64_t unit) {
  const std::int64_t parts = (size + limit - 1) / limit;
  const std::int64_t share = (size + parts - 1) / parts;
  return (share + unit - 1) / unit * unit;
}

// Where the sums of a panel's rows wait between blocks of k.
struct Partial {
  float* first;           // of the block's first row and the panel's first column
  std::ptrdiff_t stride;  // bytes
};

// What is wanted of W after this.
struct Ahead {
  const void* first;
  std::ptrdiff_t stride;  // bytes for each k of what is computed meanwhile
};

// Asks for rows of C, of the width of a panel: the next tile's, whose misses would otherwise wait for one another.
HWY_INLINE void FetchRows(const float* c, std::ptrdiff_t stride, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* row = RowOf(c, stride, i);
    for (std::int64_t j = 0; j < kPanelWidth; j += kLineBytes / kFloatBytes) PrefetchLine(row + j);
    PrefetchLine(row + kPanelWidth - 1);
  }
}

// Rows of A, from their first k of a block on.
struct RowsOfA {
  const float* first;
  std::ptrdiff_t stride;  // bytes
};

// Where the loops of a GEMM take rows from, one of these:
//   using Products                      how operands are multiplied, as ComputeTile has it
//   static constexpr kBlockK            of a block of k, where W is read as it is stored
//   static constexpr kMakesRows         whether Take makes rows, rather than point at them
//   static constexpr MostRows(k)        for how many rows of k Take has room
//   RowsOfA Take(args, row, rows, k, k_end)    rows [row, row + rows) for k in [k, k_end), valid until it is called again

// f32, where it lies.
struct PlainRows {
  using Products = MultiplyAdds;
  // A smaller block of k, with a panel's part in the first-level cache, was no faster: its stores and loads of sums cost what
  // it won.
  static constexpr std::int64_t kBlockK = 768;
  static constexpr bool kMakesRows = false;
  static constexpr std::int64_t MostRows(std::int64_t) { return kMaxBlockRows; }
  static HWY_INLINE RowsOfA Take(const GemmF32Args& args, std::int64_t row, std::int64_t, std::int64_t k, std::int64_t) {
    return {RowOf(args.a, args.a_stride, row) + k, args.a_stride};
  }
};

// Room for rows that are made a block at a time, in words of 32 bits.
struct MadeRows {
  static constexpr bool kMakesRows = true;
  // Rows lie a cache line apart, so that their words of one k do not meet in one place of the cache.
  static constexpr std::int64_t kGap = kLineBytes / kFloatBytes;
  static constexpr std::int64_t kWords = 32768;
  static constexpr std::int64_t MostRows(std::int64_t k) { return kWords / (k + kGap); }

  // make(i, to) writes row i, `k` words.
  template <class Make>
  HWY_INLINE RowsOfA MakeRows(std::int64_t rows, std::int64_t k, const Make& make) {
    const std::int64_t pitch = k + kGap;
    for (std::int64_t i = 0; i < rows; ++i) make(i, words + i * pitch);
    return {words, pitch * kFloatBytes};
  }

  alignas(64) float words[kWords];
};

// Rows [row, row + rows) of one panel, k in [k_begin, k_end), whose weights are `weights`; k_end == args.k completes them.
template <class Products = MultiplyAdds>
void ComputePanel(const GemmF32Args& args, const Panel& panel, const float* weights, RowsOfA a, std::int64_t row,
                  std::int64_t rows, std::int64_t k_begin, std::int64_t k_end, Partial partial, Ahead ahead) {
  alignas(64) float sums[kMostTileRows * kPanelWidth];
  alignas(64) float bias_buffer[kPanelWidth];
  const bool first = k_begin == 0;
  const bool last = k_end == args.k;
  const bool finish = last && NeedsFinish(args, panel);
  const std::ptrdiff_t sums_stride = kPanelWidth * kFloatBytes;
  const std::int64_t vectors = HWY_HAVE_SCALABLE ? 1 : panel.padded * kPanelVectors / kPanelWidth;
  const std::int64_t most_rows = TileRows(vectors);
  const std::int64_t tiles = (rows + most_rows - 1) / most_rows;

  GemmTile tile;
  tile.b = weights;
  tile.b_stride = panel.padded;
  tile.b_panel = 0;
  tile.k = k_end - k_begin;
  tile.columns = panel.columns;
  tile.a_stride = a.stride;
  tile.start_stride = first ? 0 : partial.stride;
  tile.out_stride = finish ? sums_stride : last ? args.c_stride : partial.stride;
  // Each tile fetches its share of what comes next, so that memory is busy all the time and not just for the first tile.
  tile.prefetch_stride = ahead.stride / tiles;
  tile.prefetch = static_cast<const char*>(ahead.first);
  const float* bias = first ? PaddedBias(args, panel.column, panel.columns, panel.padded, bias_buffer) : nullptr;
  for (std::int64_t i = 0; i < rows;) {
    // Full tiles, and the last two share what is left: 9 rows are 4 + 3 + 2, since a tile of one row runs at a third.
    const std::int64_t left = rows - i;
    const std::int64_t tile_rows = left >= 2 * most_rows || left == most_rows ? most_rows
                                   : left > most_rows                         ? (left + 1) / 2
                                                                              : left;
    float* const waiting = RowOf(partial.first, partial.stride, i);
    tile.a = RowOf(a.first, a.stride, i);
    tile.start = first ? bias : waiting;
    tile.out = finish ? sums : last ? RowOf(args.c, args.c_stride, row + i) + panel.column : waiting;
    FetchRows(RowOf(args.c, args.c_stride, row + i + tile_rows) + panel.column, args.c_stride, kRowTile);
    TileFor<Products>(vectors, tile_rows)(tile);
    if (finish) FinishAny(args, sums, kPanelWidth, row + i, tile_rows, panel.column, panel.columns);
    tile.prefetch += tile.k * tile.prefetch_stride;
    i += tile_rows;
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
