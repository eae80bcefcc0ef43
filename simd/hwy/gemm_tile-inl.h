// The GEMM's register tile: rows of A times one or more packed panels, every element one chain of multiply-adds over k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "simd/hwy/compat.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kFloatBytes = sizeof(float);
constexpr std::int64_t kLineBytes = 64;  // of a cache
constexpr int kMostTileRows = 8;

// out[i][j] = start[i][j] + sum_k a[i][k] * b[k][j], k ascending. Strides of rows are in bytes.
struct GemmTile {
  const float* a;
  std::ptrdiff_t a_stride;
  const float* b;           // row k of the panel at b + k * b_stride
  std::ptrdiff_t b_stride;  // floats; the width of a panel in the tile
  std::ptrdiff_t b_panel;   // floats from one panel to the next, for tiles of several panels
  const char* prefetch;     // while row k is used, W around prefetch + k * prefetch_stride is brought in
  std::ptrdiff_t prefetch_stride;
  const float* start;  // the bias (stride 0) or the partial sums of earlier k
  std::ptrdiff_t start_stride;
  float* out;
  std::ptrdiff_t out_stride;
  std::int64_t k;
  std::int64_t columns;  // of a scalable panel: how many are wanted, a multiple of nothing
};
using GemmTileFunction = void (*)(const GemmTile& tile);

// How operands of 32 bits are multiplied and added up: as floats. Others take them for pairs of 16 bits (gemm_pairs-inl.h).
struct MultiplyAdds {
  template <class V>
  static HWY_INLINE V Add(V a, V b, V sum) {
    return MulAddInPlace(a, b, sum);
  }
  // b is used once, and may stay in memory.
  template <class V>
  static HWY_INLINE V AddOnce(V a, V b, V sum) {
    return hn::MulAdd(a, b, sum);
  }
};

template <class T>
HWY_INLINE T* RowOf(T* base, std::ptrdiff_t stride, std::int64_t row) {
  return Offset(base, stride * row);
}

#if HWY_HAVE_SCALABLE

// Vectors without a fixed size cannot stand in arrays, so the accumulators have names. A panel is 32 columns whatever the
// vector length (2 vectors of 512 bits, 8 of 128), taken two vectors at a time: 8 rows x 2 = 16 accumulators of 32 registers.
using GemmTag = hn::CappedTag<float, 16>;
constexpr int kRowTile = 8;
constexpr int kPanelWidth = 32;
constexpr int kPanelVectors = 1;
constexpr int kFewRows = 0;
constexpr bool kSixteenWithFma = false;
HWY_INLINE std::int64_t TileRows(std::int64_t) {
  return kRowTile;
}
HWY_INLINE std::int64_t PaddedColumns(std::int64_t) {
  return kPanelWidth;
}

template <int kRows, int kVectors, int kPanels, class Products = MultiplyAdds>
HWY_NOINLINE void ComputeTile(const GemmTile& tile) {
  static_assert(kRows <= 8 && kVectors == 1 && kPanels == 1, "one panel of two vectors a pass");
  using V = hn::Vec<GemmTag>;
  const GemmTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto start = [&](int row, std::int64_t column) HWY_ATTR {
    return hn::LoadU(d, RowOf(tile.start, tile.start_stride, row < kRows ? row : 0) + column);
  };
  for (std::int64_t column = 0; column < tile.columns; column += 2 * lanes) {
    V c00 = start(0, column), c01 = start(0, column + lanes);
    V c10 = start(1, column), c11 = start(1, column + lanes);
    V c20 = start(2, column), c21 = start(2, column + lanes);
    V c30 = start(3, column), c31 = start(3, column + lanes);
    V c40 = start(4, column), c41 = start(4, column + lanes);
    V c50 = start(5, column), c51 = start(5, column + lanes);
    V c60 = start(6, column), c61 = start(6, column + lanes);
    V c70 = start(7, column), c71 = start(7, column + lanes);
    const float* b = tile.b + column;
    const char* prefetch = tile.prefetch;
    for (std::int64_t k = 0; k < tile.k; ++k) {
      const V b0 = hn::Load(d, b);
      const V b1 = hn::Load(d, b + lanes);
      PrefetchLine(prefetch);
      b += tile.b_stride;
      prefetch += tile.prefetch_stride;
      const auto a = [&](int row) HWY_ATTR { return hn::Set(d, RowOf(tile.a, tile.a_stride, row)[k]); };
      const auto update = [&](int row, V& left, V& right) HWY_ATTR {
        const V a_row = a(row);
        left = hn::MulAdd(a_row, b0, left);
        right = hn::MulAdd(a_row, b1, right);
      };
      update(0, c00, c01);
      if constexpr (kRows > 1) update(1, c10, c11);
      if constexpr (kRows > 2) update(2, c20, c21);
      if constexpr (kRows > 3) update(3, c30, c31);
      if constexpr (kRows > 4) update(4, c40, c41);
      if constexpr (kRows > 5) update(5, c50, c51);
      if constexpr (kRows > 6) update(6, c60, c61);
      if constexpr (kRows > 7) update(7, c70, c71);
    }
    const auto store = [&](int row, V left, V right) HWY_ATTR {
      float* out = RowOf(tile.out, tile.out_stride, row) + column;
      hn::StoreU(left, d, out);
      hn::StoreU(right, d, out + lanes);
    };
    store(0, c00, c01);
    if constexpr (kRows > 1) store(1, c10, c11);
    if constexpr (kRows > 2) store(2, c20, c21);
    if constexpr (kRows > 3) store(3, c30, c31);
    if constexpr (kRows > 4) store(4, c40, c41);
    if constexpr (kRows > 5) store(5, c50, c51);
    if constexpr (kRows > 6) store(6, c60, c61);
    if constexpr (kRows > 7) store(7, c70, c71);
  }
}

#else  // vectors of a fixed size

using GemmTag = hn::ScalableTag<float>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(GemmTag()));
// 32 registers: 8 rows x 3 vectors = 24 accumulators, 3 of B, 1 of A. 16 registers: 4 x 3 = 12 accumulators, 3 of B, 1 of A,
// which loads less for its 12 multiply-adds than 6 x 2 does; where a product needs a register of its own, 6 x 2.
constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;
constexpr bool kSixteenWithFma = HWY_TARGET == HWY_AVX2;
constexpr int kRowTile = kManyRegisters ? 8 : kSixteenWithFma ? 4 : 6;
constexpr int kPanelVectors = kManyRegisters || kSixteenWithFma ? 3 : 2;
constexpr int kPanelWidth = kPanelVectors * kLanes;
// Up to so many rows in all, a tile spans several panels: a chain of multiply-adds takes one step in 4 cycles, so one row of
// one panel would leave the multipliers idle, and summing in several streams over k would change the bits.
constexpr int kFewRows = kManyRegisters || kSixteenWithFma ? 4 : 3;
// Steps of k in one turn of the loop. AVX2: 25 instructions for 12 multiply-adds become 20, which shows where a core's issue
// slots are shared with another hardware thread's. AVX-512: the pointers to eight rows do not fit the general registers, and
// loading them anew in every step cost 15 %. Tiles of several panels are bound by memory.
template <int kPanels>
constexpr int kUnroll = kSixteenWithFma                          ? (kPanels > 1 ? 2 : 4)
                        : HWY_TARGET == HWY_AVX3 && kPanels == 1 ? 4
                                                                 : 1;
// The most rows of a tile of so many vectors: 8 x 1, 6 x 2, 4 x 3 with 16 registers.
HWY_INLINE std::int64_t TileRows(std::int64_t vectors) {
  return kSixteenWithFma ? (vectors == 1 ? 8 : vectors == 2 ? 6 : 4) : kRowTile;
}
HWY_INLINE std::int64_t PaddedColumns(std::int64_t columns) {
  return (columns + kLanes - 1) / kLanes * kLanes;
}

// c[i][j] += a[i][k] * load(j). The fewer of both operands are held in registers, the others pass through one.
template <class Products = MultiplyAdds, int kRows, int kColumns, class V, class Load>
HWY_INLINE void MultiplyStep(const float* const (&a)[kRows], std::int64_t k, const Load& load, V (&c)[kRows][kColumns]) {
  const GemmTag d;
  if constexpr (kRows < kColumns) {
    V a_row[kRows];
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) a_row[i] = hn::Set(d, a[i][k]);
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) {
      const V b_column = load(j);
      HWY_UNROLL(8)
      for (int i = 0; i < kRows; ++i) {
        c[i][j] = kRows == 1 ? Products::AddOnce(a_row[i], b_column, c[i][j]) : Products::Add(a_row[i], b_column, c[i][j]);
      }
    }
  } else {
    V b_column[kColumns];
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) b_column[j] = load(j);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V a_row = hn::Set(d, a[i][k]);
      HWY_UNROLL(24)
      for (int j = 0; j < kColumns; ++j) c[i][j] = Products::Add(a_row, b_column[j], c[i][j]);
    }
  }
}

template <int kRows, int kVectors, int kPanels, class Products = MultiplyAdds>
HWY_NOINLINE void ComputeTile(const GemmTile& tile) {
  using V = hn::Vec<GemmTag>;
  constexpr int kColumns = kVectors * kPanels;
  const GemmTag d;
  V c[kRows][kColumns];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    const float* start = RowOf(tile.start, tile.start_stride, i);
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) c[i][j] = hn::LoadU(d, start + j * kLanes);
  }
  const float* a[kRows];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) a[i] = RowOf(tile.a, tile.a_stride, i);
  const float* b = tile.b;
  const std::ptrdiff_t b_panel = tile.b_panel;
  const char* prefetch = tile.prefetch;
  constexpr int kTurn = kUnroll<kPanels>;
  const std::ptrdiff_t prefetch_step = kTurn * tile.prefetch_stride;
  const std::int64_t k_end = tile.k;
  constexpr int kWidth = kVectors * kLanes;
  std::int64_t k = 0;
  const auto multiply = [&](auto steps) POLYHEAD_INLINED HWY_ATTR {
    constexpr int kSteps = decltype(steps)::value;
    HWY_UNROLL(8)
    for (int s = 0; s < kSteps; ++s) {
      const auto load = [&](int j) POLYHEAD_INLINED HWY_ATTR {
        return hn::Load(d, b + s * kWidth + j / kVectors * b_panel + j % kVectors * kLanes);
      };
      MultiplyStep<Products>(a, k + s, load, c);
    }
    b += kSteps * kWidth;
    k += kSteps;
  };
  using Turn = std::integral_constant<int, kTurn>;
  if (kPanels == 1 && prefetch_step <= kLineBytes) {
    while (k + kTurn <= k_end) {
      PrefetchLine(prefetch);
      prefetch += prefetch_step;
      multiply(Turn());
    }
  } else {
    while (k + kTurn <= k_end) {
      HWY_UNROLL(8)
      for (int p = 0; p < kPanels; ++p) {
        HWY_UNROLL(8)
        for (std::int64_t j = 0; j < kTurn * kWidth * kFloatBytes; j += kLineBytes) {
          PrefetchLine(prefetch + p * b_panel * kFloatBytes + j);
        }
      }
      prefetch += prefetch_step;
      multiply(Turn());
    }
  }
  while (k < k_end) multiply(std::integral_constant<int, 1>());
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    float* out = RowOf(tile.out, tile.out_stride, i);
    HWY_UNROLL(24)
    for (int j = 0; j < kColumns; ++j) hn::StoreU(c[i][j], d, out + j * kLanes);
  }
}

#endif

// Of all panels, with the last one's padding.
HWY_INLINE std::int64_t PackedColumns(std::int64_t n) {
  const std::int64_t whole = n / kPanelWidth * kPanelWidth;
  return whole + (n > whole ? PaddedColumns(n - whole) : 0);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
