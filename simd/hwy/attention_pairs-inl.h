// Attention on bf16 by instructions that multiply pairs: a lane of 32 bits holds two bf16, and both products of a lane are
// added to its f32 sum. Twice the products of a multiply-add, and the scheme of attention_f32-inl.h stays as it is, on pairs:
//
//   Q [row][d]     Q' [d / 2][row]     a word holds d and d + 1      the bits as they are, times a power of two
//   K [key][d]     [key][d / 2]        copied: rows of the caller's, but whole words where d is odd
//   S [key][row]   f32
//   P [key][row]   [key / 2][row]      a word holds keys s and s + 1, rounded to bf16, in place of S
//   V [key][e]     [key / 2][e]        likewise, interleaved
//
// Scale * log2(e) would round the queries, so only its power of two goes into them (and its sign); the rest, between 1 and 2,
// multiplies the scores where they become weights. A product is rounded before the shift is taken off it, as the maximum is
// that the shift comes from: a multiply-add would leave half a unit of a large score above it, and 2^x would overflow.
//
// The shift is the running maximum itself: the largest weight of a block that raises it is exactly 1 then and loses nothing by
// rounding, which counts where few weights make up a row. Rescaling is no longer rare, and costs 1 % at most.
//
// The denominator sums the weights before they are rounded: the lse is f32's, and rounding costs a result 2^-8 max|v| at most.
// A row that sees one key is that key's value.
#pragma once

#include <cmath>

#include "simd/contract/element.hpp"
#include "simd/hwy/attention_tile-inl.h"
#include "simd/hwy/compat.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/key_run-inl.h"
#include "simd/hwy/partial_vector-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/hwy/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// What a kernel's template is given for its element where products are taken in pairs. Products has, beside what tiles need
// (SingleProducts in attention_tile-inl.h),
//   static Floats Pairs(Floats low, Floats high)    both rounded to bf16, to nearest even; NaN stays NaN, -0 stays -0
//   static Floats Rounded(Floats a, Floats b)       a * b, rounded whatever comes next: gcc makes multiply-adds of products and
//   sums
template <class Products>
struct Bf16Pairs {};

template <class Products>
struct ProductsOf<Bf16Pairs<Products>> {
  using type = Products;
};
template <class Products>
struct StoredAs<Bf16Pairs<Products>> {
  using type = Bf16;
};

using WordTag = hn::RebindToUnsigned<FloatTag>;
using Words = hn::Vec<WordTag>;

// The numbers of a word's two halves as f32, and two such numbers that are bf16 as a word.
HWY_INLINE Floats LowOfPair(FloatTag df, Words words) {
  return hn::BitCast(df, hn::ShiftLeft<16>(words));
}
HWY_INLINE Floats HighOfPair(FloatTag df, Words words) {
  return hn::BitCast(df, hn::And(words, hn::Set(WordTag(), 0xFFFF0000u)));
}
HWY_INLINE Words PairOf(Floats low, Floats high) {
  const WordTag du;
  return hn::Or(hn::ShiftRight<16>(hn::BitCast(du, low)), hn::And(hn::BitCast(du, high), hn::Set(du, 0xFFFF0000u)));
}

// scale * log2(e) = power * factor: power a power of two of either sign, factor in [1, 2).
struct ScaleParts {
  float power = 0.0f, factor = 1.0f;
};
inline ScaleParts PartsOfScale(float scale) {
  ScaleParts parts;
  if (scale == 0.0f) return parts;
  int exponent = 0;
  const float mantissa = ::frexpf(scale, &exponent);  // of magnitude [0.5, 1)
  parts.factor = 2.0f * ::fabsf(mantissa);
  parts.power = ::ldexpf(scale < 0.0f ? -1.0f : 1.0f, exponent - 1);
  return parts;
}

// The last number of an odd row, whose pair is 0.
static inline void StoreLastOfRow(const Bf16* row, size_t columns, float* to) {
  const std::uint32_t word = row[columns - 1].bits;
  __builtin_memcpy(to, &word, sizeof word);
}

// to[d / 2][lane] = elements d and d + 1 of row(first + lane), as they are; lanes from `rows` on repeat the last row.
HWY_INLINE void WordsToLanes(const RowMap<const Bf16>& map, std::int64_t first, size_t rows, size_t width, size_t columns,
                             float* HWY_RESTRICT to, bool fetches_next = false) {
  const RowMap<const float> words = {reinterpret_cast<const float*>(map.base), map.stride, map.head_stride, map.group};
  RowsToLanes<false>(words, first, rows, width, columns / 2, 1.0f, to, fetches_next);
  if (columns % 2 == 0) return;
  for (size_t lane = 0; lane < width; ++lane) {
    StoreLastOfRow(map.At(first + static_cast<std::int64_t>(HWY_MIN(lane, rows - 1))), columns,
                   to + columns / 2 * width + lane);
  }
}

// The same times a power of two: exact, but for what leaves the range.
[[maybe_unused]] static HWY_NOINLINE void PairsToLanes(const RowMap<const Bf16>& map, std::int64_t first, size_t rows,
                                                       size_t width, size_t columns, float power, float* HWY_RESTRICT to,
                                                       bool fetches_next) {
  const FloatTag df;
  const WordTag du;
  WordsToLanes(map, first, rows, width, columns, to, fetches_next);
  const Floats scale = hn::Set(df, power);
  for (size_t i = 0; i < (columns + 1) / 2 * width; i += hn::Lanes(df)) {
    const Words bits = hn::BitCast(du, hn::Load(df, to + i));
    const Floats low = hn::Mul(scale, LowOfPair(df, bits)), high = hn::Mul(scale, HighOfPair(df, bits));
    hn::Store(hn::BitCast(df, PairOf(low, high)), df, to + i);
  }
}

// Rows of keys, whole vectors `pitch` words apart.
[[maybe_unused]] static HWY_NOINLINE void CopyKeyPairs(const Bf16* HWY_RESTRICT from, std::ptrdiff_t stride, size_t rows,
                                                       size_t columns, float* HWY_RESTRICT to, size_t pitch) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), words = columns / 2;
  for (size_t row = 0; row < rows; ++row, from = Offset(from, stride), to += pitch) {
    const float* HWY_RESTRICT pairs = reinterpret_cast<const float*>(from);
    size_t word = 0;
    for (; word + lanes <= words; word += lanes) hn::Store(hn::LoadU(df, pairs + word), df, to + word);
    if (word < words) hn::Store(LoadPartial(df, pairs + word, words - word), df, to + word);
    if (columns % 2 != 0) StoreLastOfRow(from, columns, to + words);
  }
}

// The values of two neighbouring keys, interleaved; odd = nullptr: 0.
[[maybe_unused]] static HWY_NOINLINE void PairValues(const Bf16* HWY_RESTRICT even, const Bf16* HWY_RESTRICT odd,
                                                     size_t columns, float* HWY_RESTRICT to) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  size_t column = 0;
  for (; column + lanes <= columns; column += lanes) {
    const Floats high = odd ? LoadElements(df, odd + column) : hn::Zero(df);
    hn::Store(hn::BitCast(df, PairOf(LoadElements(df, even + column), high)), df, to + column);
  }
  if (column < columns) {
    const size_t rest = columns - column;
    const Floats high = odd ? LoadPartial(df, odd + column, rest) : hn::Zero(df);
    hn::Store(hn::BitCast(df, PairOf(LoadPartial(df, even + column, rest), high)), df, to + column);
  }
}

// Scores in their full scale, for what is done to them before they become weights.
[[maybe_unused]] static HWY_NOINLINE void MultiplyScores(float* HWY_RESTRICT scores, size_t count, float factor) {
  const FloatTag df;
  const Floats f = hn::Set(df, factor);
  for (size_t i = 0; i < count; i += hn::Lanes(df)) hn::Store(hn::Mul(f, hn::Load(df, scores + i)), df, scores + i);
}

// P = 2^(factor * S - m) for keys [begin, end), pairs in place of scores; sum = the weights' sum a row before they are rounded,
// in groups of four keys as ComputeWeights has it. With kMarkExcluded, weights of scores of -inf are -0, and so is what a last
// pair lacks.
template <class Products, bool kMarkExcluded>
static HWY_NOINLINE void ComputeWeightPairs(float* HWY_RESTRICT scores, size_t width, size_t begin, size_t end,
                                            const float* HWY_RESTRICT shift, float factor, float* HWY_RESTRICT sum) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const Floats minus_infinity = hn::Set(df, kMinusInfinity), absent = hn::Set(df, kMarkExcluded ? -0.0f : 0.0f);
  const Floats f = hn::Set(df, factor);
  for (size_t column = 0; column < width; column += lanes) {
    const Floats m = hn::Load(df, shift + column);
    Floats total = hn::Zero(df);
    const auto mark = [&](Floats s, Floats p) POLYHEAD_INLINED HWY_ATTR {
      return kMarkExcluded ? hn::IfThenElse(hn::Eq(s, minus_infinity), absent, p) : p;
    };
    size_t key = begin;
    for (; key + 4 <= end; key += 4) {
      const float* HWY_RESTRICT at = scores + key * width + column;
      const Floats s0 = hn::Load(df, at), s1 = hn::Load(df, at + width);
      const Floats s2 = hn::Load(df, at + 2 * width), s3 = hn::Load(df, at + 3 * width);
      Floats p0 = hn::Sub(Products::Rounded(f, s0), m), p1 = hn::Sub(Products::Rounded(f, s1), m);
      Floats p2 = hn::Sub(Products::Rounded(f, s2), m), p3 = hn::Sub(Products::Rounded(f, s3), m);
      Exp2Of4(df, p0, p1, p2, p3);
      p0 = mark(s0, p0), p1 = mark(s1, p1), p2 = mark(s2, p2), p3 = mark(s3, p3);
      float* HWY_RESTRICT to = scores + key / 2 * width + column;
      hn::Store(Products::Pairs(p0, p1), df, to);
      hn::Store(Products::Pairs(p2, p3), df, to + width);
      total = hn::Add(total, hn::Add(hn::Add(p0, p1), hn::Add(p2, p3)));
    }
    if (key < end) {
      const auto weight = [&](size_t at) POLYHEAD_INLINED HWY_ATTR {
        if (at >= end) return absent;
        const Floats s = hn::Load(df, scores + at * width + column);
        return mark(s, Exp2Of(df, hn::Sub(Products::Rounded(f, s), m)));
      };
      const Floats p0 = weight(key), p1 = weight(key + 1), p2 = weight(key + 2);
      float* HWY_RESTRICT to = scores + key / 2 * width + column;
      hn::Store(Products::Pairs(p0, p1), df, to);
      if (key + 2 < end) hn::Store(Products::Pairs(p2, absent), df, to + width);
      total = hn::Add(total, hn::Add(hn::Add(p0, p1), p2));
    }
    hn::Store(total, df, sum + column);
  }
}

// The value step for a block of V that holds NaN or infinities, as AccumulateSelectedValues is it: where half a word of weights
// is -0, that half of the word of values is 0. For finite V the bits are those of ValueTile.
template <class Products>
static HWY_NOINLINE void AccumulateSelectedPairs(const float* HWY_RESTRICT value, std::ptrdiff_t value_stride,
                                                 const float* HWY_RESTRICT weights, size_t pairs, size_t width,
                                                 size_t value_dim, ValueMode mode, const float* HWY_RESTRICT alpha,
                                                 float* HWY_RESTRICT sums) {
  const FloatTag df;
  const hn::Repartition<std::uint16_t, FloatTag> dh;
  const size_t lanes = hn::Lanes(df);
  const auto marked = hn::Set(dh, std::uint16_t{0x8000});
  for (size_t e = 0; e < value_dim; ++e) {
    for (size_t column = 0; column < width; column += lanes) {
      float* at = sums + e * width + column;
      Floats sum = hn::Zero(df);
      if (mode == ValueMode::extend) sum = hn::Load(df, at);
      const float* HWY_RESTRICT v = value + e;
      for (size_t pair = 0; pair < pairs; ++pair, v = Offset(v, value_stride)) {
        const Floats p = hn::Load(df, weights + pair * width + column);
        const auto excluded = hn::Eq(hn::BitCast(dh, p), marked);
        const auto seen = hn::IfThenZeroElse(excluded, hn::BitCast(dh, hn::Set(df, *v)));
        sum = Products::Add(hn::BitCast(df, seen), p, sum);
      }
      hn::Store(JoinedSum(mode, at, alpha + column, sum), df, at);
    }
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
