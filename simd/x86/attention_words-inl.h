// Attention's operands where they are bf16 already: one piece each, the number as it is. A word holds two.
//
//   Q'  B  [16 words of d][16 rows]         d and d + 1 of a row, times a power of two (attention_pairs-inl.h)
//   K   A  [16 keys][16 words of d]         the caller's rows, copied
//   V'  A  [16 columns][16 words of keys]   keys i and i + 16 of a run of 32, as weights are paired (bf16_pieces-inl.h)
//
// K is copied although tiles could read the caller's rows where D is a multiple of 32: it is looked at once anyway, for what is
// out of range, copies serve pages and all sizes, and rows a power of two apart do not displace one another in the caches.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/attention_pairs-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/x86/attention_pieces-inl.h"
#include "simd/x86/bf16_pieces-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

using HalfTag = hn::Repartition<std::uint16_t, FloatTag>;
using Halves = hn::Vec<HalfTag>;

// The upper halves of the limits in bf16_pieces-inl.h. Weights are up to 2^40 (kLargestSum), so that values have less room than
// beside weights of at most 1.
constexpr std::uint16_t kLargestFactorBits = static_cast<std::uint16_t>(kLargestFactor >> 16);
constexpr std::uint16_t kLargestValueBits = static_cast<std::uint16_t>(BitsOfPowerOfTwo(60) >> 16);

// Each half's largest magnitude so far.
HWY_INLINE Halves LargerMagnitudes(Halves largest, Words words) {
  const HalfTag dh;
  return hn::Max(largest, hn::And(hn::BitCast(dh, words), hn::Set(dh, std::uint16_t{0x7FFF})));
}
HWY_INLINE bool NoneAbove(Halves largest, std::uint16_t limit) {
  const HalfTag dh;
  const Halves limits = hn::Set(dh, limit);
  return hn::AllTrue(dh, hn::Eq(hn::Max(largest, limits), limits));
}
static inline bool AnyAbove(const Bf16* row, size_t columns, std::uint16_t limit) {
  for (size_t i = 0; i < columns; ++i) {
    if ((row[i].bits & 0x7FFF) > limit) return true;
  }
  return false;
}

// 32 query rows as tiles of B. apart[lane] = -1 for rows that are out of range (they become 0), else 0.
[[maybe_unused]] static HWY_NOINLINE void PackQueryWords(const AttentionF32Args& args, std::int64_t first_row, size_t rows,
                                                         float power, float* lanes_of_rows, std::int32_t* apart,
                                                         unsigned char* to) {
  const FloatTag df;
  const IntTag di;
  const WordTag du;
  const HalfTag dh;
  const size_t lanes = hn::Lanes(df), head_dim = static_cast<size_t>(args.head_dim);
  const size_t words = (head_dim + 1) / 2, depths = (head_dim + kDepth - 1) / kDepth;
  const RowMap<const Bf16> query = {static_cast<const Bf16*>(args.query), args.query_stride, args.query_head_stride,
                                    args.group};
  PairsToLanes(query, first_row, rows, 32, head_dim, power, lanes_of_rows, false);
  for (size_t j = 0; j < 32; j += lanes) {
    Halves largest = hn::Zero(dh);
    for (size_t i = 0; i < words; ++i) {
      largest = LargerMagnitudes(largest, hn::BitCast(du, hn::Load(df, lanes_of_rows + i * 32 + j)));
    }
    const Ints both = hn::BitCast(di, largest);
    const Ints upper = hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, both)));
    const Ints larger = hn::Max(hn::And(both, hn::Set(di, 0xFFFF)), upper);
    const Ints out_of_range = hn::VecFromMask(di, hn::Gt(larger, hn::Set(di, std::int32_t{kLargestFactorBits})));
    hn::Store(out_of_range, di, apart + j);
    for (size_t i = 0; i < depths * kTileRows; ++i) {
      const Ints word =
          i < words ? hn::Load(di, reinterpret_cast<const std::int32_t*>(lanes_of_rows) + i * 32 + j) : hn::Zero(di);
      unsigned char* tile = to + (j / kTileRows * depths + i / kTileRows) * kTileBytes + i % kTileRows * kTileRowBytes;
      hn::Store(hn::AndNot(out_of_range, word), di, reinterpret_cast<std::int32_t*>(tile + j % kTileRows * 4));
    }
  }
}

// Rows of keys as tiles of A, two row tiles of ceil(columns / 32); rows from `count` on become 0. Returns the magnitudes met.
static HWY_NOINLINE Halves CopyKeyWords(const Bf16* row, std::ptrdiff_t stride, size_t count, size_t columns,
                                        unsigned char* to) {
  const FloatTag df;
  const WordTag du;
  const size_t lanes = hn::Lanes(df), depths = (columns + kDepth - 1) / kDepth;
  const std::ptrdiff_t words = static_cast<std::ptrdiff_t>(columns / 2);
  Halves largest = hn::Zero(HalfTag());
  for (size_t i = 0; i < 2 * kTileRows; ++i, row = Offset(row, stride)) {
    unsigned char* const tiles = to + i / kTileRows * depths * kTileBytes + i % kTileRows * kTileRowBytes;
    const float* const pairs = reinterpret_cast<const float*>(row);
    for (size_t word = 0; word < depths * kTileRows; word += lanes) {
      const std::ptrdiff_t left = i < count ? words - static_cast<std::ptrdiff_t>(word) : 0;
      const Floats pair = LoadUpTo(df, pairs + word, left);
      largest = LargerMagnitudes(largest, hn::BitCast(du, pair));
      hn::Store(pair, df, reinterpret_cast<float*>(tiles + word / kTileRows * kTileBytes + word % kTileRows * 4));
    }
    if (columns % 2 != 0 && i < count) {
      const size_t word = columns / 2;
      StoreLastOfRow(row, columns, reinterpret_cast<float*>(tiles + word / kTileRows * kTileBytes + word % kTileRows * 4));
      largest = LargerMagnitudes(largest, hn::Set(du, std::uint32_t{row[columns - 1].bits}));
    }
  }
  return largest;
}

// Values of 32 keys, which lie transposed in words [columns / 2][key], as tiles of A; columns that there are not become 0.
static HWY_NOINLINE Halves PairValueWords(const float* lanes_of_rows, size_t columns, size_t value_tiles, unsigned char* to) {
  const FloatTag df;
  const WordTag du;
  const size_t lanes = hn::Lanes(df), words = (columns + 1) / 2;
  const Words lower = hn::Set(du, 0xFFFFu), upper = hn::Set(du, 0xFFFF0000u);
  Halves largest = hn::Zero(HalfTag());
  for (size_t word = 0; word < value_tiles * kTileRows / 2; ++word) {
    unsigned char* const rows = to + word / 8 * kTileBytes + word % 8 * 2 * kTileRowBytes;  // a tile has 16 columns
    for (size_t j = 0; j < kTileRows; j += lanes) {
      Words first = hn::Zero(du), second = hn::Zero(du);
      if (word < words) {
        first = hn::BitCast(du, hn::Load(df, lanes_of_rows + word * 32 + j));
        second = hn::BitCast(du, hn::Load(df, lanes_of_rows + word * 32 + kTileRows + j));
      }
      largest = LargerMagnitudes(LargerMagnitudes(largest, first), second);
      const Words even = hn::Or(hn::And(first, lower), hn::ShiftLeft<16>(second));
      const Words odd = hn::Or(hn::ShiftRight<16>(first), hn::And(second, upper));
      hn::Store(even, du, reinterpret_cast<std::uint32_t*>(rows + j * 4));
      hn::Store(odd, du, reinterpret_cast<std::uint32_t*>(rows + kTileRowBytes + j * 4));
    }
  }
  return largest;
}

// Takes the keys that are out of range out of packed tiles, and all from `count` on, which repeat the last one's value. Returns
// a bit for each of the former.
static HWY_NOINLINE std::uint32_t TakeOutKeys(const KeyRows<Bf16>& from, size_t count, size_t head_dim, size_t value_dim,
                                              unsigned char* keys, unsigned char* values, size_t value_tiles) {
  const size_t depths = (head_dim + kDepth - 1) / kDepth;
  const Bf16 *key = from.key, *value = from.value;
  std::uint32_t out_of_range = 0;
  for (size_t i = 0; i < kDepth; ++i, key = Offset(key, from.key_stride), value = Offset(value, from.value_stride)) {
    if (i < count) {
      if (!AnyAbove(key, head_dim, kLargestFactorBits) && !AnyAbove(value, value_dim, kLargestValueBits)) continue;
      out_of_range |= std::uint32_t{1} << i;
    }
    for (size_t depth = 0; depth < depths; ++depth) {
      __builtin_memset(keys + (i / kTileRows * depths + depth) * kTileBytes + i % kTileRows * kTileRowBytes, 0, kTileRowBytes);
    }
    for (size_t e = 0; e < value_tiles * kTileRows; ++e) {
      unsigned char* row = values + e / kTileRows * kTileBytes + e % kTileRows * kTileRowBytes;
      __builtin_memset(row + i % kTileRows * 4 + i / kTileRows * 2, 0, sizeof(Bf16));
    }
  }
  return out_of_range;
}

// PackKeys (attention_pieces-inl.h) of bf16.
[[maybe_unused]] static HWY_NOINLINE std::uint32_t PackKeyWords(const AttentionF32Args& args, std::int64_t first_key,
                                                                size_t count, Bf16* gathered, float* lanes_of_rows,
                                                                unsigned char* keys, unsigned char* values,
                                                                size_t value_tiles) {
  const size_t head_dim = static_cast<size_t>(args.head_dim), value_dim = static_cast<size_t>(args.value_dim);
  const KeyRows<Bf16> from(args, first_key, count, gathered);
  const Halves largest_key = CopyKeyWords(from.key, from.key_stride, count, head_dim, keys);
  WordsToLanes({from.value, from.value_stride, 0, 1}, 0, count, 32, value_dim, lanes_of_rows);
  const Halves largest_value = PairValueWords(lanes_of_rows, value_dim, value_tiles, values);
  if (HWY_LIKELY(NoneAbove(largest_key, kLargestFactorBits) && NoneAbove(largest_value, kLargestValueBits))) return 0;
  return TakeOutKeys(from, count, head_dim, value_dim, keys, values, value_tiles);
}

// As F32Pieces.
struct Bf16Words {
  using T = Bf16;
  static constexpr size_t kPieces = 1;
  static constexpr size_t kPackedBytes = 256 * 1024;  // 1,024 keys of 64 columns
  static constexpr bool kEstimatesShift = true;
  static constexpr bool kWholeScores = false;

  static float Factor(float scale) { return PartsOfScale(scale).factor; }
  static void Query(const AttentionF32Args& args, std::int64_t first_row, size_t rows, float scale, float* lanes_of_rows,
                    std::int32_t*, std::int32_t* apart, unsigned char* to) {
    PackQueryWords(args, first_row, rows, PartsOfScale(scale).power, lanes_of_rows, apart, to);
  }
  static std::uint32_t Keys(const AttentionF32Args& args, std::int64_t first_key, size_t count, T* gathered,
                            float* lanes_of_rows, std::int32_t*, unsigned char* keys, unsigned char* values,
                            size_t value_tiles) {
    return PackKeyWords(args, first_key, count, gathered, lanes_of_rows, keys, values, value_tiles);
  }
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
