// gemm_f32 on tiles that multiply bf16: f32 operands are sums of three pieces, and six products of pieces make an f32 product
// (bf16_pieces-inl.h). And gemm_bf16_bf16, whose operands are rounded to bf16: one piece, one product.
//
//   W, packed once       [panel of 32 columns][32 of k][2 column tiles] PieceTiles of B, and a line that says which columns
//                        pieces cannot stand for
//   A, 64 rows x 256 k   [pair of row tiles][2][32 of k] PieceTiles of A, made anew for every 256 columns
//   sums                 64 rows x 256 columns, [panel][pair] of 32 x 32; the bias comes last
//
// An element's sum runs over k in ascending order, 32 at a time, whatever rows and columns it is computed beside. Beginning at
// the bias would round it six times for each 32.
//
// Rows of A and columns of W that pieces cannot stand for are computed by multiply-adds, from the very bits of W: a column of
// that kind is packed as the halves of its numbers, which makes nonsense of its own column of tile products and of nothing
// else. Which way an element goes depends on its row and its column alone.
#pragma once

#include <cstring>

#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/gemm_finish-inl.h"
#include "simd/x86/bf16_pieces-inl.h"
#include "simd/x86/tile_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// Whether pieces cannot stand for some operands.
template <size_t kPieces>
constexpr bool kSetsApart = kPieces > 1;
constexpr size_t kPanelColumns = 32;  // two tiles
constexpr size_t kRowsAtOnceOnTiles = 64;
constexpr size_t kPairsAtOnce = kRowsAtOnceOnTiles / 32;
constexpr size_t kPanelsAtOnce = 8;
constexpr size_t kDepthsAtOnce = 8;  // of 32 k
constexpr size_t kFlagBytes = 64;    // at a panel's end

// Of a row of A or a column of W. The upper limit keeps sums of products finite, as for attention. The lower one keeps the
// smallest products of pieces that count above 2^-126, where tiles have zero.
constexpr std::int32_t kSmallestLargestFactor = BitsOfPowerOfTwo(-40);

HWY_INLINE bool SuitsPieces(std::int32_t largest_magnitude) {
  return largest_magnitude < kSmallestNormal ||
         (largest_magnitude >= kSmallestLargestFactor && largest_magnitude <= kLargestFactor);
}

HWY_INLINE size_t DepthsOf(std::int64_t k) {
  return (static_cast<size_t>(k) + kDepth - 1) / kDepth;
}
template <size_t kPieces>
HWY_INLINE size_t PanelBytes(std::int64_t k) {
  return DepthsOf(k) * 2 * kPieceTileBytes<kPieces> + kFlagBytes;
}

template <size_t kPieces>
static size_t TilePackedBytes(std::int64_t n, std::int64_t k) {
  return (static_cast<size_t>(n) + kPanelColumns - 1) / kPanelColumns * PanelBytes<kPieces>(k);
}

static float WeightAt(const PackF32Args& args, std::int64_t n, std::int64_t k) {
  return *Offset(args.weight, n * args.n_stride + k * args.k_stride);
}

// The bits of 32 k of a column, in place of its first two pieces: upper halves in the first, lower halves in the second.
static void StoreHalves(const float* column_of_lanes, size_t column, unsigned char* tiles) {
  unsigned char* tile = tiles + column / kTileRows * kPieceTileBytes<3> + column % kTileRows * 4;
  for (size_t i = 0; i < kDepth; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, column_of_lanes + i * kPanelColumns, sizeof bits);
    unsigned char* at = tile + i % kTileRows * kTileRowBytes + i / kTileRows * 2;
    const std::uint16_t upper = static_cast<std::uint16_t>(bits >> 16), lower = static_cast<std::uint16_t>(bits);
    std::memcpy(at, &upper, sizeof upper);
    std::memcpy(at + kTileBytes, &lower, sizeof lower);
  }
}

template <size_t kPieces>
static HWY_NOINLINE void PackTilePanel(const PackF32Args& args, std::int64_t first, unsigned char* panel) {
  alignas(64) float lanes[kDepth * kPanelColumns];
  alignas(64) std::int32_t keep[kPanelColumns];
  const std::int64_t columns = HWY_MIN(args.n - first, static_cast<std::int64_t>(kPanelColumns));
  std::uint32_t apart = 0;
  for (size_t j = 0; j < kPanelColumns; ++j) {
    std::int32_t largest = 0;
    for (std::int64_t k = 0; static_cast<std::int64_t>(j) < columns && k < args.k; ++k) {
      const float weight = WeightAt(args, first + static_cast<std::int64_t>(j), k);
      std::int32_t bits;
      std::memcpy(&bits, &weight, sizeof bits);
      largest = HWY_MAX(largest, bits & 0x7FFFFFFF);
    }
    keep[j] = !kSetsApart<kPieces> || SuitsPieces(largest) ? -1 : 0;
    if (keep[j] == 0) apart |= std::uint32_t{1} << j;
  }
  for (std::int64_t k = 0; k < args.k; k += static_cast<std::int64_t>(kDepth), panel += 2 * kPieceTileBytes<kPieces>) {
    for (size_t j = 0; j < kPanelColumns; ++j) {
      const std::int64_t n = first + static_cast<std::int64_t>(j);
      for (size_t i = 0; i < kDepth; ++i) {
        const std::int64_t at = k + static_cast<std::int64_t>(i);
        lanes[i * kPanelColumns + j] = n < args.n && at < args.k ? WeightAt(args, n, at) : 0.0f;
      }
    }
    PackLanes<kPieces>(lanes, kDepth, keep, panel);
    for (size_t j = 0; j < kPanelColumns; ++j) {
      if (keep[j] == 0) StoreHalves(lanes + j, j, panel);
    }
  }
  std::memset(panel, 0, kFlagBytes);
  std::memcpy(panel, &apart, sizeof apart);
}

template <size_t kPieces>
static void PackOnTiles(const PackF32Args& args) {
  const FlushDenormals flush;
  unsigned char* panel = reinterpret_cast<unsigned char*>(args.packed);
  for (std::int64_t n = 0; n < args.n; n += static_cast<std::int64_t>(kPanelColumns), panel += PanelBytes<kPieces>(args.k)) {
    PackTilePanel<kPieces>(args, n, panel);
  }
}

// sums[j] += sum over k of a[k] W[k][j] for one column tile, a multiply-add for each k in ascending order. apart: a bit for
// each column that is packed as halves.
[[maybe_unused]] static HWY_NOINLINE void AddPlainProducts(const float* a, std::int64_t k_count, const unsigned char* tile,
                                                           std::uint32_t apart, float* sums) {
  const FloatTag df;
  const IntTag di;
  const hn::RebindToUnsigned<IntTag> du;
  const Ints upper = hn::Set(di, static_cast<std::int32_t>(0xFFFF0000u)), lower = hn::Set(di, 0xFFFF);
  alignas(64) std::int32_t is_halves[kTileRows];
  for (size_t j = 0; j < kTileRows; ++j) is_halves[j] = (apart >> j & 1) != 0 ? -1 : 0;
  for (size_t j = 0; j < kTileRows; j += hn::Lanes(df)) {
    const auto halves = hn::MaskFromVec(hn::BitCast(df, hn::Load(di, is_halves + j)));
    Floats sum = hn::Load(df, sums + j);
    for (std::int64_t k = 0; k < k_count; ++k) {
      const size_t depth = static_cast<size_t>(k) / kDepth, i = static_cast<size_t>(k) % kDepth;
      const unsigned char* at = tile + depth * 2 * kPieceTileBytes<3> + i % kTileRows * kTileRowBytes + j * 4;
      const auto pairs = [&](size_t piece)
                             HWY_ATTR { return hn::Load(di, reinterpret_cast<const std::int32_t*>(at + piece * kTileBytes)); };
      const Ints first = pairs(0), second = pairs(1), third = pairs(2);
      Ints high, middle, low, low_half;
      if (i < kTileRows) {
        high = hn::ShiftLeft<16>(first), middle = hn::ShiftLeft<16>(second), low = hn::ShiftLeft<16>(third);
        low_half = hn::And(second, lower);
      } else {
        high = hn::And(first, upper), middle = hn::And(second, upper), low = hn::And(third, upper);
        low_half = hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, second)));
      }
      const Floats of_pieces = hn::Add(hn::Add(hn::BitCast(df, high), hn::BitCast(df, middle)), hn::BitCast(df, low));
      const Floats of_halves = hn::BitCast(df, hn::Or(high, low_half));
      sum = hn::MulAdd(hn::Set(df, a[k]), hn::IfThenElse(halves, of_halves, of_pieces), sum);
    }
    hn::Store(sum, df, sums + j);
  }
}

// One call. Rows and columns here count from the block's and the group's first.
template <class Tiles, size_t kPieces>
class TileGemmRun {
  static constexpr size_t kPieceTile = kPieceTileBytes<kPieces>;

 public:
  explicit TileGemmRun(const GemmF32Args& args) : args_(args), panel_bytes_(PanelBytes<kPieces>(args.k)) {}

  void Run() {
    constexpr std::int64_t columns_at_once = kPanelsAtOnce * kPanelColumns, rows_at_once = kRowsAtOnceOnTiles;
    tiles_.Configure();
    for (column_ = args_.n_begin; column_ < args_.n_end; column_ += columns_at_once) {
      columns_ = static_cast<size_t>(HWY_MIN(args_.n_end - column_, columns_at_once));
      panels_ = (columns_ + kPanelColumns - 1) / kPanelColumns;
      for (size_t j = 0; j < panels_ * kPanelColumns; ++j)
        bias_[j] = args_.bias && j < columns_ ? args_.bias[column_ + static_cast<std::int64_t>(j)] : 0.0f;
      for (row_ = 0; row_ < args_.m; row_ += rows_at_once) {
        rows_ = static_cast<size_t>(HWY_MIN(args_.m - row_, rows_at_once));
        pairs_ = (rows_ + 31) / 32;
        Block();
      }
    }
    tiles_.Release();
  }

 private:
  const float* A(size_t row) const { return Offset(args_.a, (row_ + static_cast<std::int64_t>(row)) * args_.a_stride); }
  const unsigned char* Panel(size_t panel) const {
    const size_t index = static_cast<size_t>(column_) / kPanelColumns + panel;
    return reinterpret_cast<const unsigned char*>(args_.packed) + index * panel_bytes_;
  }
  std::uint32_t ColumnsApart(size_t panel) const {
    std::uint32_t apart;
    std::memcpy(&apart, Panel(panel) + panel_bytes_ - kFlagBytes, sizeof apart);
    return apart;
  }
  float* Sums(size_t panel, size_t row) { return sums_[panel][row / 32] + row % 32 * kPanelColumns; }

  bool Suits(const float* row) const {
    return !kSetsApart<kPieces> || SuitsPieces(LargestMagnitudeBits(row, static_cast<size_t>(args_.k)));
  }

  void Block() {
    for (size_t i = 0; i < pairs_ * 32; ++i) {
      keep_[i] = i < rows_ && Suits(A(i)) ? -1 : 0;
    }
    Multiply();
    for (size_t panel = 0; panel < panels_; ++panel) {
      [[maybe_unused]] const std::uint32_t apart = ColumnsApart(panel);
      for (size_t i = 0; i < rows_; ++i) {
        if constexpr (kSetsApart<kPieces>) {
          if (HWY_UNLIKELY(keep_[i] == 0)) {
            PlainRow(panel, i, apart, Sums(panel, i));
            continue;
          }
        }
        AddBias(panel, i);
        if constexpr (kSetsApart<kPieces>) {
          if (HWY_UNLIKELY(apart != 0)) PlainColumns(panel, i, apart);
        }
      }
      const size_t columns = HWY_MIN(columns_ - panel * kPanelColumns, kPanelColumns);
      for (size_t pair = 0; pair < pairs_; ++pair) {
        FinishAny(args_, sums_[panel][pair], static_cast<std::int64_t>(kPanelColumns),
                  row_ + static_cast<std::int64_t>(pair * 32),
                  static_cast<std::int64_t>(HWY_MIN(rows_ - pair * 32, size_t{32})),
                  column_ + static_cast<std::int64_t>(panel * kPanelColumns), static_cast<std::int64_t>(columns));
      }
    }
  }

  HWY_INLINE void AddBias(size_t panel, size_t row) {
    const FloatTag df;
    float* sums = Sums(panel, row);
    for (size_t j = 0; j < kPanelColumns; j += hn::Lanes(df)) {
      hn::Store(hn::Add(hn::Load(df, sums + j), hn::Load(df, bias_ + panel * kPanelColumns + j)), df, sums + j);
    }
  }

  HWY_NOINLINE void Multiply() {
    NothingBeside nothing;
    float* unstored = nowhere_;
    const size_t depths = DepthsOf(args_.k);
    for (size_t depth = 0; depth < depths; depth += kDepthsAtOnce) {
      const size_t count = HWY_MIN(depths - depth, kDepthsAtOnce), k = depth * kDepth;
      const size_t columns = HWY_MIN(static_cast<size_t>(args_.k) - k, count * kDepth);
      for (size_t pair = 0; pair < pairs_; ++pair) {
        const size_t rows = HWY_MIN(rows_ - pair * 32, size_t{32});
        PackRows<kPieces>(A(pair * 32) + k, args_.a_stride, rows, keep_ + pair * 32, columns, a_[pair]);
      }
      for (size_t panel = 0; panel < panels_; ++panel) {
        for (size_t pair = 0; pair < pairs_; ++pair) {
          const Product product = {a_[pair],
                                   Panel(panel) + depth * 2 * kPieceTile,
                                   count * kPieceTile,
                                   kPieceTile,
                                   kPieceTile,
                                   2 * kPieceTile,
                                   count,
                                   sums_[panel][pair],
                                   depth > 0};
          MultiplyPieces<kPieces>(tiles_, product, unstored, nothing);
          unstored = product.results;
        }
      }
    }
    StoreTiles(tiles_, unstored);
  }

  void PlainRow(size_t panel, size_t row, std::uint32_t apart, float* sums) const {
    std::memcpy(sums, bias_ + panel * kPanelColumns, kPanelColumns * sizeof(float));
    AddPlainProducts(A(row), args_.k, Panel(panel), apart, sums);
    AddPlainProducts(A(row), args_.k, Panel(panel) + kPieceTile, apart >> kTileRows, sums + kTileRows);
  }

  void PlainColumns(size_t panel, size_t row, std::uint32_t apart) {
    alignas(64) float sums[kPanelColumns];
    PlainRow(panel, row, apart, sums);
    for (size_t j = 0; j < kPanelColumns; ++j) {
      if ((apart >> j & 1) != 0) Sums(panel, row)[j] = sums[j];
    }
  }

  const GemmF32Args& args_;
  const size_t panel_bytes_;
  std::int64_t row_ = 0, column_ = 0;
  size_t rows_ = 0, pairs_ = 0, columns_ = 0, panels_ = 0;
  Tiles tiles_;
  alignas(64) std::int32_t keep_[kRowsAtOnceOnTiles];
  alignas(64) float bias_[kPanelsAtOnce * kPanelColumns];
  alignas(64) float nowhere_[32 * kPanelColumns];  // takes a store that has nothing to store
  alignas(64) float sums_[kPanelsAtOnce][kPairsAtOnce][32 * kPanelColumns];
  alignas(64) unsigned char a_[kPairsAtOnce][2 * kDepthsAtOnce * kPieceTile];
};

template <class Tiles, size_t kPieces>
static HWY_NOINLINE void ComputeGemmOnTiles(const GemmF32Args& args) {
  TileGemmRun<Tiles, kPieces>(args).Run();
}

template <class Tiles, size_t kPieces>
static void RunGemmOnTiles(const GemmF32Args& args) {
  if (args.m <= 0 || args.n_begin >= args.n_end) return;
  const FlushDenormals flush;
  ComputeGemmOnTiles<Tiles, kPieces>(args);
}

template <class Tiles, size_t kPieces>
constexpr GemmKernel TileGemmKernel(const char* name) {
  return {name,
          static_cast<std::int32_t>(kPanelColumns),
          static_cast<std::int32_t>(kProductColumns),
          &TilePackedBytes<kPieces>,
          &PackOnTiles<kPieces>,
          &RunGemmOnTiles<Tiles, kPieces>};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
