// f32 operands as sums of bf16 pieces, in the layout that tiles multiply.
//
// Three pieces, 8 significant bits each: x = high + middle + low exactly, as long as no piece falls below 2^-126. High is
// truncated, so that no finite x becomes infinite; the rests are rounded. A product needs six of the nine products of pieces:
// what the other three add is below 2^-24 of it.
//
// Two pieces, for Precision::fast: both are rounded, which makes the second at most 2^-8 of x, either sign, and leaves a rest
// of at most 2^-17. A product needs three of four products of pieces: at most 2^-16 is missing, and 2^-15 of it with the rests.
// (Were the first one truncated, the second times the second would be four times as large, always of the product's sign.) Two
// pieces hold an f16, 11 bits and its denormals included, exactly; scores of f16 take all four products.
//
// One piece, where f32 is to be rounded to bf16: the nearest.
//
// The sum over pairs that TDPBF16PS makes may run in any order as long as A and B agree, so element i of a run of 32 is paired
// with element i + 16: two vectors become a vector of pairs without crossing lanes, whatever their width.
//
//   tile of A   [16 rows][16 pairs]      row m: element i and i + 16 of A's row m
//   tile of B   [16 pairs][16 columns]   row i: for each column n, elements i and i + 16 of B's column n
//   PieceTiles  the tiles of the first piece, the second and so on, one after the other
#pragma once

#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/partial_vector-inl.h"
#include "simd/x86/tiles_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

template <size_t kPieces>
constexpr size_t kPieceTileBytes = kPieces * kTileBytes;
constexpr size_t kDepth = 32;  // elements that a tile product sums over

// Large ones first, each in the upper half of its lane.
template <size_t kPieces>
struct Pieces {
  Ints piece[kPieces];
};

template <size_t kPieces>
HWY_INLINE Pieces<kPieces> SplitIntoPieces(FloatTag df, Floats x) {
  static_assert(kPieces >= 1 && kPieces <= 3, "what products of pieces are for");
  const IntTag di;
  if constexpr (kPieces == 1) return {{hn::BitCast(di, RoundedToBf16(df, x))}};
  const Ints upper = hn::Set(di, static_cast<std::int32_t>(0xFFFF0000u)), half = hn::Set(di, 0x8000);
  const auto rounded = [&](Floats rest) HWY_ATTR { return hn::And(hn::Add(hn::BitCast(di, rest), half), upper); };
  Pieces<kPieces> pieces;
  pieces.piece[0] = kPieces == 3 ? hn::And(hn::BitCast(di, x), upper) : rounded(x);
  Floats rest = x;
  for (size_t i = 1; i < kPieces; ++i) {
    rest = hn::Sub(rest, hn::BitCast(df, pieces.piece[i - 1]));
    pieces.piece[i] = rounded(rest);
  }
  return pieces;
}

template <size_t kPieces>
HWY_INLINE void StorePairs(const Pieces<kPieces>& first, const Pieces<kPieces>& second, unsigned char* to) {
  const IntTag di;
  const Ints upper = hn::Set(di, static_cast<std::int32_t>(0xFFFF0000u));
  const hn::RebindToUnsigned<IntTag> du;
  for (size_t i = 0; i < kPieces; ++i) {
    const Ints lower = hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, first.piece[i])));
    hn::Store(hn::Or(lower, hn::And(second.piece[i], upper)), di, reinterpret_cast<std::int32_t*>(to + i * kTileBytes));
  }
}

// Operands are judged by the bits of their largest magnitude. Factors above this limit, and what is not finite, are not for
// pieces: sums of products must stay finite, since infinities of pieces may cancel to NaN. Denormals are 0 here.
constexpr std::int32_t BitsOfPowerOfTwo(int exponent) {
  return (127 + exponent) << 23;
}
constexpr std::int32_t kLargestFactor = BitsOfPowerOfTwo(50);
constexpr std::int32_t kSmallestNormal = 0x00800000;

HWY_INLINE Ints MagnitudeBits(Floats x) {
  const IntTag di;
  return hn::And(hn::BitCast(di, x), hn::Set(di, 0x7FFFFFFF));
}

template <class T>
HWY_INLINE Floats LoadUpTo(FloatTag df, const T* from, std::ptrdiff_t left) {
  const std::ptrdiff_t lanes = static_cast<std::ptrdiff_t>(hn::Lanes(df));
  if (HWY_LIKELY(left >= lanes)) return LoadElements(df, from);
  return left <= 0 ? hn::Zero(df) : LoadPartial(df, from, static_cast<size_t>(left));
}

template <class T>
static inline std::int32_t LargestMagnitudeBits(const T* row, size_t columns) {
  const FloatTag df;
  const IntTag di;
  Ints largest = hn::Zero(di);
  for (size_t i = 0; i < columns; i += hn::Lanes(df)) {
    largest = hn::Max(largest, MagnitudeBits(LoadUpTo(df, row + i, static_cast<std::ptrdiff_t>(columns - i))));
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

// Rows [first, first + rows) of a matrix [row][columns] whose transpose [columns][32 lanes] is `lanes_of_rows`, as tiles of B,
// two column tiles of ceil(columns / 32) PieceTiles. Lanes where keep is 0 become 0.
template <size_t kPieces>
static HWY_NOINLINE void PackLanes(const float* lanes_of_rows, size_t columns, const std::int32_t* keep, unsigned char* to) {
  const FloatTag df;
  const IntTag di;
  const size_t lanes = hn::Lanes(df), depths = (columns + kDepth - 1) / kDepth;
  for (size_t depth = 0; depth < depths; ++depth) {
    for (size_t i = 0; i < kTileRows; ++i) {
      const size_t first = depth * kDepth + i, second = first + kTileRows;
      for (size_t j = 0; j < 2 * kTileRows; j += lanes) {
        const Floats kept = hn::BitCast(df, hn::Load(di, keep + j));
        const Floats a = first < columns ? hn::And(kept, hn::Load(df, lanes_of_rows + first * 32 + j)) : hn::Zero(df);
        const Floats b = second < columns ? hn::And(kept, hn::Load(df, lanes_of_rows + second * 32 + j)) : hn::Zero(df);
        unsigned char* tile = to + (j / kTileRows * depths + depth) * kPieceTileBytes<kPieces>;
        StorePairs(SplitIntoPieces<kPieces>(df, a), SplitIntoPieces<kPieces>(df, b),
                   tile + i * kTileRowBytes + j % kTileRows * 4);
      }
    }
  }
}

// Rows of `columns` elements, `stride` bytes apart, as tiles of A: two row tiles of ceil(columns / 32) PieceTiles. Rows from
// `count` (at most 32) on, and those where keep is 0, become 0 and are not read.
template <size_t kPieces, class T>
static HWY_NOINLINE void PackRows(const T* row, std::ptrdiff_t stride, size_t count, const std::int32_t* keep, size_t columns,
                                  unsigned char* to) {
  const FloatTag df;
  const size_t depths = (columns + kDepth - 1) / kDepth;
  for (size_t i = 0; i < 2 * kTileRows; ++i, row = Offset(row, stride)) {
    const std::ptrdiff_t kept = i < count && keep[i] != 0 ? static_cast<std::ptrdiff_t>(columns) : 0;
    for (size_t depth = 0; depth < depths; ++depth) {
      unsigned char* tile = to + (i / kTileRows * depths + depth) * kPieceTileBytes<kPieces> + i % kTileRows * kTileRowBytes;
      for (size_t j = 0; j < kTileRows; j += hn::Lanes(df)) {
        const size_t first = depth * kDepth + j, second = first + kTileRows;
        const Floats a = LoadUpTo(df, row + first, kept - static_cast<std::ptrdiff_t>(first));
        const Floats b = LoadUpTo(df, row + second, kept - static_cast<std::ptrdiff_t>(second));
        StorePairs(SplitIntoPieces<kPieces>(df, a), SplitIntoPieces<kPieces>(df, b), tile + j * 4);
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
