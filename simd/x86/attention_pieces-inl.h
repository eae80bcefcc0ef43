// Attention's operands of f32 and f16 in pieces (bf16_pieces-inl.h): Q' as B, K and V' as A, and which of them pieces cannot
// stand for.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/attention_pairs-inl.h"
#include "simd/hwy/key_run-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/hwy/transpose-inl.h"
#include "simd/x86/bf16_pieces-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// Queries and keys: up to kLargestFactor. What is lost of tiny elements is below 2^-126 times the other operand, nothing in a
// score. Values may be larger, since weights are at most 1; but a key whose largest value is tiny and not 0 would lose pieces
// that count.
constexpr std::int32_t kLargestValue = BitsOfPowerOfTwo(100);
constexpr std::int32_t kSmallestLargestValue = BitsOfPowerOfTwo(-60);

// 32 query rows, scaled, as tiles of B: S' = K Q'. apart[lane] = -1 for rows that pieces cannot stand for (they become 0), else
// 0.
template <size_t kPieces, class T>
static HWY_NOINLINE void PackQuery(const AttentionF32Args& args, std::int64_t first_row, size_t rows, float scale,
                                   float* lanes_of_rows, std::int32_t* keep, std::int32_t* apart, unsigned char* to) {
  const FloatTag df;
  const IntTag di;
  const size_t head_dim = static_cast<size_t>(args.head_dim);
  WithElement(element_beside<T>(args.query_element), [&](auto element) HWY_ATTR {
    using Query = decltype(element);
    const RowMap<const Query> query = {static_cast<const Query*>(args.query), args.query_stride, args.query_head_stride,
                                       args.group};
    RowsToLanes<true>(query, first_row, rows, 32, head_dim, scale, lanes_of_rows);
  });
  for (size_t j = 0; j < 32; j += hn::Lanes(df)) {
    Ints largest = hn::Zero(di);
    for (size_t d = 0; d < head_dim; ++d) largest = hn::Max(largest, MagnitudeBits(hn::Load(df, lanes_of_rows + d * 32 + j)));
    const Ints out_of_range = hn::VecFromMask(di, hn::Gt(largest, hn::Set(di, kLargestFactor)));
    hn::Store(out_of_range, di, apart + j);
    hn::Store(hn::Not(out_of_range), di, keep + j);
  }
  PackLanes<kPieces>(lanes_of_rows, head_dim, keep, to);
}

// The rows of `count` keys (at most 32) and their values one after another, where pages have them apart: `to` has room for 32
// of each.
template <class T>
static HWY_NOINLINE KeyRun<T> GatherKeys(const AttentionF32Args& args, std::int64_t first_key, size_t count, T* to) {
  const size_t head_dim = static_cast<size_t>(args.head_dim), value_dim = static_cast<size_t>(args.value_dim);
  T* const values = to + 32 * head_dim;
  for (size_t i = 0; i < count; ++i) {
    const std::int64_t key = first_key + static_cast<std::int64_t>(i);
    const auto row = RunOfKeys<T>(args, key, key + 1);
    __builtin_memcpy(to + i * head_dim, row.key, head_dim * sizeof(T));
    __builtin_memcpy(values + i * value_dim, row.value, value_dim * sizeof(T));
  }
  return {to, values, static_cast<std::int64_t>(count)};
}

// The same where they follow one another already, in place.
template <class T>
struct KeyRows {
  const T *key, *value;
  std::ptrdiff_t key_stride, value_stride;

  KeyRows(const AttentionF32Args& args, std::int64_t first_key, size_t count, T* gathered)
      : key_stride(args.key_stride), value_stride(args.value_stride) {
    auto run = RunOfKeys<T>(args, first_key, first_key + static_cast<std::int64_t>(count));
    if (HWY_UNLIKELY(run.count < static_cast<std::int64_t>(count))) {
      run = GatherKeys(args, first_key, count, gathered);
      key_stride = args.head_dim * static_cast<std::ptrdiff_t>(sizeof(T));
      value_stride = args.value_dim * static_cast<std::ptrdiff_t>(sizeof(T));
    }
    key = run.key;
    value = run.value;
  }
};

// A group of `count` keys (at most 32; the others become 0) as tiles of A: K [2 tiles of 16 keys][ceil(D / 32)] PieceTiles, and
// V' [tiles of 16 value columns] PieceTiles. `gathered` has room for 32 keys and values. Returns a bit for each key that pieces
// cannot stand for: both its rows become 0.
template <size_t kPieces, class T>
static HWY_NOINLINE std::uint32_t PackKeys(const AttentionF32Args& args, std::int64_t first_key, size_t count, T* gathered,
                                           float* lanes_of_rows, std::int32_t* keep, unsigned char* keys, unsigned char* values,
                                           size_t value_tiles) {
  const FloatTag df;
  const IntTag di;
  const size_t lanes = hn::Lanes(df), head_dim = static_cast<size_t>(args.head_dim);
  const size_t value_dim = static_cast<size_t>(args.value_dim);
  const KeyRows<T> keys_at(args, first_key, count, gathered);
  const RowMap<const T> value = {keys_at.value, keys_at.value_stride, 0, 1};
  RowsToLanes<!hwy::IsSame<T, float>()>(value, 0, count, 32, value_dim, 1.0f, lanes_of_rows);
  for (size_t j = 0; j < 32; j += lanes) {
    Ints largest = hn::Zero(di);
    for (size_t e = 0; e < value_dim; ++e) largest = hn::Max(largest, MagnitudeBits(hn::Load(df, lanes_of_rows + e * 32 + j)));
    const auto too_large = hn::Gt(largest, hn::Set(di, kLargestValue));
    const auto too_small =
        hn::And(hn::Gt(hn::Set(di, kSmallestLargestValue), largest), hn::Gt(largest, hn::Set(di, kSmallestNormal - 1)));
    hn::Store(hn::Not(hn::VecFromMask(di, hn::Or(too_large, too_small))), di, keep + j);
  }

  std::uint32_t out_of_range = 0;
  const T* row = keys_at.key;
  for (size_t i = 0; i < kDepth; ++i, row = Offset(row, keys_at.key_stride)) {
    if (i >= count) {
      keep[i] = 0;
    } else if (keep[i] == 0 || LargestMagnitudeBits(row, head_dim) > kLargestFactor) {
      keep[i] = 0;
      out_of_range |= std::uint32_t{1} << i;
    }
  }
  PackRows<kPieces>(keys_at.key, keys_at.key_stride, count, keep, head_dim, keys);

  for (size_t e = 0; e < value_tiles * kTileRows; ++e) {
    unsigned char* tile = values + e / kTileRows * kPieceTileBytes<kPieces> + e % kTileRows * kTileRowBytes;
    for (size_t j = 0; j < kTileRows; j += lanes) {
      const Floats kept_a = hn::BitCast(df, hn::Load(di, keep + j)), kept_b = hn::BitCast(df, hn::Load(di, keep + 16 + j));
      const Floats a = e < value_dim ? hn::And(kept_a, hn::Load(df, lanes_of_rows + e * 32 + j)) : hn::Zero(df);
      const Floats b = e < value_dim ? hn::And(kept_b, hn::Load(df, lanes_of_rows + e * 32 + 16 + j)) : hn::Zero(df);
      StorePairs(SplitIntoPieces<kPieces>(df, a), SplitIntoPieces<kPieces>(df, b), tile + j * 4);
    }
  }
  return out_of_range;
}

// What the kernels on tiles are templates over: an operand's element, and what it takes to make tiles of it.
template <size_t kPiecesOfOne>
struct F32Pieces {
  using T = float;
  static constexpr size_t kPieces = kPiecesOfOne;
  // Of K and V in pieces, at once: with 16 row blocks they stay in a second-level cache of 2 MB.
  static constexpr size_t kPackedBytes = 768 * 1024;
  // Whether the shift is estimated, not the maximum (attention_tiles-inl.h); then scores come without `Factor`.
  static constexpr bool kEstimatesShift = false;
  static constexpr bool kWholeScores = false;  // whether scores take all products of pieces

  static float Factor(float) { return 1.0f; }
  static void Query(const AttentionF32Args& args, std::int64_t first_row, size_t rows, float scale, float* lanes_of_rows,
                    std::int32_t* keep, std::int32_t* apart, unsigned char* to) {
    PackQuery<kPieces, T>(args, first_row, rows, scale, lanes_of_rows, keep, apart, to);
  }
  static std::uint32_t Keys(const AttentionF32Args& args, std::int64_t first_key, size_t count, T* gathered,
                            float* lanes_of_rows, std::int32_t* keep, unsigned char* keys, unsigned char* values,
                            size_t value_tiles) {
    return PackKeys<kPieces>(args, first_key, count, gathered, lanes_of_rows, keep, keys, values, value_tiles);
  }
};

// f16 is two pieces, exactly. Their products are exact in four, which scores take: 2^-16 of a product of theirs would be more
// than f16's bound allows once scores are large. Weights are two pieces as well, and times values three products. Nothing but
// infinity and NaN is out of range, and queries times a large scale.
struct F16Pieces {
  using T = F16;
  static constexpr size_t kPieces = 2;
  static constexpr size_t kPackedBytes = 512 * 1024;
  static constexpr bool kEstimatesShift = true;
  static constexpr bool kWholeScores = true;

  static float Factor(float scale) { return PartsOfScale(scale).factor; }
  static void Query(const AttentionF32Args& args, std::int64_t first_row, size_t rows, float scale, float* lanes_of_rows,
                    std::int32_t* keep, std::int32_t* apart, unsigned char* to) {
    PackQuery<kPieces, T>(args, first_row, rows, PartsOfScale(scale).power, lanes_of_rows, keep, apart, to);
  }
  static std::uint32_t Keys(const AttentionF32Args& args, std::int64_t first_key, size_t count, T* gathered,
                            float* lanes_of_rows, std::int32_t* keep, unsigned char* keys, unsigned char* values,
                            size_t value_tiles) {
    return PackKeys<kPieces>(args, first_key, count, gathered, lanes_of_rows, keep, keys, values, value_tiles);
  }
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
