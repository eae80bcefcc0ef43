// Streaming-softmax attention in f32 with transposed scores: a lane is a query row, so that maximum, sum and rescaling are
// vertical, K and V are read row-major by broadcast and never packed, and no size has a tail but the number of rows.
//
// K and V in bf16 or f16 are widened a key block at a time, once for all row blocks that share a pass over the keys: the tiles
// see f32. Widening within the tiles would repeat it for every row block, and broadcast single elements of 16 bits, for which
// x86 has no instruction that widens. Where pairs of bf16 are multiplied as they are, attention_pairs-inl.h says what the
// operands, scores and weights below are then.
//
// For up to kQueryBlocks blocks of rows at a time (so that a key block is read from memory once for all of them):
//   Q' = scale * log2(e) * Q, transposed to [d][row]
//   for each key block, for each row block:   S = K Q'        [key][row]     ScoreTile
//                                             mask and bias   in place       ApplyMask, only in tiles that need it
//                                             P = 2^(S - m)   in place       ComputeWeights
//                                             O' += V' P      [e][row]       ValueTile
//   out = O' / l, transposed back
//
// An excluded key has weight 0, which leaves NaN where its value is NaN or infinite. So a row block whose result holds a NaN is
// computed again, looking at each block of V first and selecting by weight where one is not finite. Whatever the NaN's cause,
// both ways give the same bits to all rows that are finite.
//
// The shift m is the running maximum rounded up to an integer in log2 units, which makes the rescale factor an exact power of
// two and rare: a row whose shift stays is multiplied by exactly 1, so its bits do not depend on its neighbours. (Of pairs it
// is the maximum itself.)
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/attention_block-inl.h"
#include "simd/hwy/attention_mask-inl.h"
#include "simd/hwy/attention_pairs-inl.h"
#include "simd/hwy/attention_tile-inl.h"
#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/key_run-inl.h"
#include "simd/hwy/partial_vector-inl.h"
#include "simd/hwy/scratch.h"
#include "simd/hwy/total-inl.h"
#include "simd/hwy/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kKeyBlock = 128;
constexpr size_t kQueryBlocks = 4;
constexpr size_t kMostKeysOfWideRows = 32;         // rows of more than one vector are left to WriteRowValues up to so many keys
constexpr std::int64_t kCachedBytes = 256 * 1024;  // K and V up to this size stay in the second-level cache from pass to pass

// P = 2^(S - m) in place for keys [begin, end); sum = their sum a row, in groups of four keys counted from the block's start
// (begin is a multiple of 4), so that weights of 0 outside change nothing. With kMarkExcluded a weight that comes from a score
// of -inf is written as -0, which tells it from a visible key's weight that underflowed.
template <bool kMarkExcluded>
static HWY_NOINLINE void ComputeWeights(float* HWY_RESTRICT scores, size_t width, size_t begin, size_t end,
                                        const float* HWY_RESTRICT shift, float* HWY_RESTRICT sum) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const Floats minus_infinity = hn::Set(df, kMinusInfinity);
  const Floats minus_zero = hn::Set(df, -0.0f);
  for (size_t column = 0; column < width; column += lanes) {
    const Floats m = hn::Load(df, shift + column);
    Floats total = hn::Zero(df);
    const auto weight = [&](size_t key) HWY_ATTR {
      float* HWY_RESTRICT at = scores + key * width + column;
      const Floats s = hn::Load(df, at);
      Floats p = Exp2OfDifference(df, s, m);
      if (kMarkExcluded) p = hn::IfThenElse(hn::Eq(s, minus_infinity), minus_zero, p);
      hn::Store(p, df, at);
      return p;
    };
    size_t key = begin;
    for (; key + 4 <= end; key += 4) {
      float* HWY_RESTRICT at = scores + key * width + column;
      const Floats s0 = hn::Load(df, at), s1 = hn::Load(df, at + width);
      const Floats s2 = hn::Load(df, at + 2 * width), s3 = hn::Load(df, at + 3 * width);
      Floats p0 = s0, p1 = s1, p2 = s2, p3 = s3;
      Exp2OfDifference4(df, p0, p1, p2, p3, m);
      if (kMarkExcluded) {
        p0 = hn::IfThenElse(hn::Eq(s0, minus_infinity), minus_zero, p0);
        p1 = hn::IfThenElse(hn::Eq(s1, minus_infinity), minus_zero, p1);
        p2 = hn::IfThenElse(hn::Eq(s2, minus_infinity), minus_zero, p2);
        p3 = hn::IfThenElse(hn::Eq(s3, minus_infinity), minus_zero, p3);
      }
      hn::Store(p0, df, at);
      hn::Store(p1, df, at + width);
      hn::Store(p2, df, at + 2 * width);
      hn::Store(p3, df, at + 3 * width);
      total = hn::Add(total, hn::Add(hn::Add(p0, p1), hn::Add(p2, p3)));
    }
    if (key < end) {
      const Floats p0 = weight(key);
      const Floats p1 = key + 1 < end ? weight(key + 1) : hn::Zero(df);
      const Floats p2 = key + 2 < end ? weight(key + 2) : hn::Zero(df);
      total = hn::Add(total, hn::Add(hn::Add(p0, p1), p2));
    }
    hn::Store(total, df, sum + column);
  }
}

// The value step for a block of V that holds NaN or infinities: a weight of -0 leaves the chain as it is. For finite V the bits
// are those of ValueTile. Four value columns at a time, for four independent chains; a rest repeats its last column.
[[maybe_unused]] static HWY_NOINLINE void AccumulateSelectedValues(const float* HWY_RESTRICT value, std::ptrdiff_t value_stride,
                                                                   const float* HWY_RESTRICT weights, size_t keys, size_t width,
                                                                   size_t value_dim, ValueMode mode,
                                                                   const float* HWY_RESTRICT alpha, float* HWY_RESTRICT sums) {
  const FloatTag df;
  const IntTag di;
  const size_t lanes = hn::Lanes(df);
  const Ints marked = hn::BitCast(di, hn::Set(df, -0.0f));
  for (size_t e0 = 0; e0 < value_dim; e0 += 4) {
    const size_t e1 = HWY_MIN(e0 + 1, value_dim - 1), e2 = HWY_MIN(e0 + 2, value_dim - 1), e3 = HWY_MIN(e0 + 3, value_dim - 1);
    for (size_t column = 0; column < width; column += lanes) {
      float* at = sums + column;
      Floats s0 = hn::Zero(df), s1 = s0, s2 = s0, s3 = s0;
      if (mode == ValueMode::extend) {
        s0 = hn::Load(df, at + e0 * width), s1 = hn::Load(df, at + e1 * width);
        s2 = hn::Load(df, at + e2 * width), s3 = hn::Load(df, at + e3 * width);
      }
      const float* HWY_RESTRICT v = value;
      for (size_t key = 0; key < keys; ++key, v = Offset(v, value_stride)) {
        const Floats p = hn::Load(df, weights + key * width + column);
        const auto excluded = hn::RebindMask(df, hn::Eq(hn::BitCast(di, p), marked));
        s0 = hn::IfThenElse(excluded, s0, hn::MulAdd(hn::Set(df, v[e0]), p, s0));
        s1 = hn::IfThenElse(excluded, s1, hn::MulAdd(hn::Set(df, v[e1]), p, s1));
        s2 = hn::IfThenElse(excluded, s2, hn::MulAdd(hn::Set(df, v[e2]), p, s2));
        s3 = hn::IfThenElse(excluded, s3, hn::MulAdd(hn::Set(df, v[e3]), p, s3));
      }
      // A column that is there more than once is read before it is written.
      s0 = JoinedSum(mode, at + e0 * width, alpha + column, s0), s1 = JoinedSum(mode, at + e1 * width, alpha + column, s1);
      s2 = JoinedSum(mode, at + e2 * width, alpha + column, s2), s3 = JoinedSum(mode, at + e3 * width, alpha + column, s3);
      hn::Store(s0, df, at + e0 * width);
      hn::Store(s1, df, at + e1 * width);
      hn::Store(s2, df, at + e2 * width);
      hn::Store(s3, df, at + e3 * width);
    }
  }
}

// Rows of elements to rows of floats, `pitch` floats apart: whole vectors, zero beyond the last column.
template <class T>
static HWY_NOINLINE void WidenRows(const T* HWY_RESTRICT from, std::ptrdiff_t stride, size_t rows, size_t columns,
                                   float* HWY_RESTRICT to, size_t pitch) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  for (size_t row = 0; row < rows; ++row, from = Offset(from, stride), to += pitch) {
    size_t column = 0;
    for (; column + lanes <= columns; column += lanes) hn::Store(LoadElements(df, from + column), df, to + column);
    if (column < columns) hn::Store(LoadPartial(df, from + column, columns - column), df, to + column);
  }
}

// Rows of T to the numbers that they stand for; scales are a row's, channel and mean a column's.
template <class T>
static HWY_NOINLINE void WidenScaledRows(const T* HWY_RESTRICT from, std::ptrdiff_t stride, size_t rows, size_t columns,
                                         const float* HWY_RESTRICT scales, const float* HWY_RESTRICT channel,
                                         const float* HWY_RESTRICT mean, float* HWY_RESTRICT to, size_t pitch) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  for (size_t row = 0; row < rows; ++row, from = Offset(from, stride), to += pitch) {
    const Floats scale = hn::Set(df, scales[row]);
    size_t column = 0;
    for (; column + lanes <= columns; column += lanes) {
      const Floats v = hn::Mul(LoadElements(df, from + column), scale);
      hn::Store(hn::MulAdd(v, hn::LoadU(df, channel + column), hn::LoadU(df, mean + column)), df, to + column);
    }
    if (column < columns) {
      const size_t left = columns - column;
      const Floats v = hn::Mul(LoadPartial(df, from + column, left), scale);
      hn::Store(hn::MulAdd(v, LoadPartial(df, channel + column, left), LoadPartial(df, mean + column, left)), df, to + column);
    }
  }
}

// Floats a row of `columns` widened elements takes.
static inline size_t WidenedPitch(size_t columns) {
  const size_t lanes = hn::Lanes(FloatTag());
  return (columns + lanes - 1) / lanes * lanes;
}

// Steps that tiles take along `count` numbers of d, or keys.
template <class T>
constexpr size_t StepsOf(size_t count) {
  return (count + kNumbersAWord<T> - 1) / kNumbersAWord<T>;
}

// One tile of work: a row block and the keys [begin, end) of a key block, of which K and V are read in place, widened or
// packed.
template <class T>
struct Tile {
  const float* key;
  const float* value;
  std::ptrdiff_t key_stride, value_stride;
  size_t head_steps, value_dim;  // head_dim / kNumbersAWord<T>, rounded up
  size_t begin, end;
  float factor;           // of pairs: what scores have to be multiplied by
  const TileMask* mask;   // nullptr: every row sees every key, with the score as it is
  bool selects;           // V holds non-finite values, which must not reach rows that exclude their keys
  bool is_only;           // no other tile comes before the block is written
  Prefetch<T>* prefetch;  // nullptr: nothing to fetch
  float* scores;          // [kKeyBlock][width]
  float* statistics;      // 3 * width floats: new maximum, sum, alpha
  float* chain;           // [value_dim][width]: where products are summed up that come in several parts
  // Where the tile's keys are read in place and lie in several pages: the call whose keys they are, and the block's first. key
  // and value then count for nothing.
  const AttentionF32Args* apart;
  std::int64_t first_key;
};

// A tile whose keys lie in several pages, a run of keys at a time: every score and every sum is one chain over the same numbers
// in the same order.
template <int kRows, int kVectors, class T>
static HWY_NOINLINE void ScoresOfRuns(const RowBlock& block, const Tile<T>& tile, float* max) {
  Prefetch<T>* const nothing = nullptr;
  const size_t width = kVectors * hn::Lanes(FloatTag());
  const std::int64_t end = tile.first_key + static_cast<std::int64_t>(tile.end);
  for (size_t key = tile.begin; key < tile.end;) {
    const auto run = RunOfKeys<float>(*tile.apart, tile.first_key + static_cast<std::int64_t>(key), end);
    const size_t keys = static_cast<size_t>(run.count);
    ComputeScores<kRows, kVectors>({run.key, tile.key_stride, block.query, tile.head_steps, tile.scores + key * width, max},
                                   keys, tile.value_dim, nothing);
    key += keys;
  }
}

template <int kRows, int kVectors, class T>
static HWY_NOINLINE void ValuesOfRuns(const RowBlock& block, const Tile<T>& tile, ValueMode mode, const float* alpha) {
  const size_t width = kVectors * hn::Lanes(FloatTag());
  const std::int64_t end = tile.first_key + static_cast<std::int64_t>(tile.end);
  float* const chain = mode == ValueMode::overwrite ? block.sums : tile.chain;
  for (size_t key = tile.begin; key < tile.end;) {
    const bool first = key == tile.begin;
    const auto run = RunOfKeys<float>(*tile.apart, tile.first_key + static_cast<std::int64_t>(key), end);
    const size_t keys = static_cast<size_t>(run.count);
    const float* weights = tile.scores + key * width;
    if (HWY_UNLIKELY(tile.selects)) {
      AccumulateSelectedValues(run.value, tile.value_stride, weights, keys, width, tile.value_dim,
                               first ? ValueMode::overwrite : ValueMode::extend, alpha, chain);
    } else if (first) {
      AccumulateValues<kRows, kVectors, ValueMode::overwrite>({run.value, tile.value_stride, weights, keys, chain, alpha},
                                                              tile.value_dim);
    } else {
      AccumulateValues<kRows, kVectors, ValueMode::extend>({run.value, tile.value_stride, weights, keys, chain, alpha},
                                                           tile.value_dim);
    }
    key += keys;
  }
  if (mode != ValueMode::overwrite) JoinChain(mode, chain, alpha, width, tile.value_dim, block.sums);
}

// Which vectors of a block's rows the keys of a tile are computed for: keys [start[j], start[j + 1]) for vectors j and up. On a
// causal diagonal the earlier ones do not see the tile's last keys. What is left out keeps no trace: ApplyMask writes its
// scores, and a weight of 0 adds nothing.
template <int kVectors>
struct Stairs {
  size_t start[kVectors + 1];
};

// Stairs pay where a vector is a good part of a tile's keys.
#if !HWY_HAVE_SCALABLE && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr bool kClimbsStairs = true;
#else
constexpr bool kClimbsStairs = false;
#endif
constexpr size_t kStairKeys = 8;  // a step is a multiple of this

template <int kVectors, class T>
static Stairs<kVectors> FindStairs(const RowBlock& block, const Tile<T>& tile) {
  Stairs<kVectors> stairs;
  stairs.start[0] = tile.begin;
  for (int j = 1; j <= kVectors; ++j) stairs.start[j] = tile.end;
  if (!kClimbsStairs || !tile.mask || !tile.mask->structural || tile.selects || tile.apart) return stairs;
  if (tile.end % kNumbersAWord<T> != 0) return stairs;  // steps that begin within a pair
  const size_t lanes = hn::Lanes(FloatTag());
  for (int j = kVectors - 1; j >= 1; --j) {
    // The keys that vectors before j see end where those of their last row do.
    const std::int64_t limit = std::int64_t{tile.mask->first_end} + block.query_offset[static_cast<size_t>(j) * lanes - 1];
    const size_t after = stairs.start[j + 1];
    const size_t seen =
        limit <= static_cast<std::int64_t>(tile.begin) ? tile.begin : HWY_MIN(static_cast<size_t>(limit), after);
    stairs.start[j] = after - (after - seen) / kStairKeys * kStairKeys;
  }
  // All vectors take part in the first keys, which begin or rescale the sums.
  if (stairs.start[1] == tile.begin) stairs.start[1] += kStairKeys;
  for (int j = 2; j < kVectors; ++j) stairs.start[j] = HWY_MAX(stairs.start[j], stairs.start[1]);
  return stairs;
}

#if !HWY_HAVE_SCALABLE

// The steps of a tile above the first: scores into `max` as ComputeScores does, and their share of the values, which goes on
// with the chain of the first.
template <int kVectors, int kFirst = 1, class T>
HWY_INLINE void ScoresOfStairs(const Stairs<kVectors>& stairs, const RowBlock& block, const Tile<T>& tile, float* max) {
  if constexpr (kFirst < kVectors) {
    constexpr size_t column = kFirst * kFloatLanes, width = kVectors * kFloatLanes;
    for (size_t key = stairs.start[kFirst]; key < stairs.start[kFirst + 1]; key += kStairKeys) {
      ScoreTile<kStairKeys, kVectors - kFirst, kVectors, typename ProductsOf<T>::type>(
          Offset(tile.key, static_cast<std::ptrdiff_t>(key) * tile.key_stride), tile.key_stride, block.query + column,
          tile.head_steps, tile.scores + key * width + column, max + column, nullptr);
    }
    ScoresOfStairs<kVectors, kFirst + 1>(stairs, block, tile, max);
  }
}

template <int kVectors, int kFirst = 1, class T>
HWY_INLINE void ValuesOfStairs(const Stairs<kVectors>& stairs, const Tile<T>& tile, float* chain) {
  if constexpr (kFirst < kVectors) {
    constexpr size_t column = kFirst * kFloatLanes, width = kVectors * kFloatLanes;
    const size_t step = stairs.start[kFirst] / kNumbersAWord<T>, steps = stairs.start[kFirst + 1] / kNumbersAWord<T> - step;
    if (steps > 0) {
      AccumulateValues<kStairKeys, kVectors - kFirst, ValueMode::extend, kVectors, typename ProductsOf<T>::type>(
          {Offset(tile.value, static_cast<std::ptrdiff_t>(step) * tile.value_stride), tile.value_stride,
           tile.scores + step * width + column, steps, chain + column, nullptr},
          tile.value_dim);
    }
    ValuesOfStairs<kVectors, kFirst + 1>(stairs, tile, chain);
  }
}

#else

template <int kVectors, class T>
HWY_INLINE void ScoresOfStairs(const Stairs<kVectors>&, const RowBlock&, const Tile<T>&, float*) {}
template <int kVectors, class T>
HWY_INLINE void ValuesOfStairs(const Stairs<kVectors>&, const Tile<T>&, float*) {}

#endif

template <bool kMarkExcluded, class T>
HWY_INLINE void ComputeTileWeights(const RowBlock& block, const Tile<T>& tile, float factor, float* sum) {
  if constexpr (kNumbersAWord<T> == 1) {
    (void)factor;
    ComputeWeights<kMarkExcluded>(tile.scores, block.width, tile.begin, tile.end, block.shift, sum);
  } else {
    ComputeWeightPairs<typename ProductsOf<T>::type, kMarkExcluded>(tile.scores, block.width, tile.begin, tile.end, block.shift,
                                                                    factor, sum);
  }
}

template <class Shape, int kVectors, class T>
static HWY_NOINLINE void ComputeTile(RowBlock& block, const Tile<T>& tile) {
  using Products = typename ProductsOf<T>::type;
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), width = kVectors * lanes;
  constexpr int kRows = Shape::Rows(kVectors);
  float* HWY_RESTRICT max = tile.statistics;
  float* HWY_RESTRICT sum = max + width;
  float* HWY_RESTRICT alpha = sum + width;
  float* scores = tile.scores + tile.begin * width;
  const Stairs<kVectors> stairs = FindStairs<kVectors>(block, tile);
  const size_t keys = stairs.start[1] - tile.begin;
  const float* key = Offset(tile.key, static_cast<std::ptrdiff_t>(tile.begin) * tile.key_stride);
  // The value step counts pairs where the kernel takes them.
  const size_t first_step = tile.begin / kNumbersAWord<T>, steps = StepsOf<T>(keys);
  const float* value = Offset(tile.value, static_cast<std::ptrdiff_t>(first_step) * tile.value_stride);
  const float* weights = tile.scores + first_step * width;

  // With a mask the tiles' maximum counts for nothing: `sum` takes it, ApplyMask finds the right one.
  for (size_t j = 0; j < width; j += lanes) {
    const Floats least = kNumbersAWord<T> == 1 ? hn::Load(df, block.shift + j) : hn::Set(df, kLowestFloat);
    hn::Store(least, df, max + j);
    hn::Store(least, df, sum + j);
  }
  const bool apart = kReadsInPlace<T> && HWY_UNLIKELY(tile.apart != nullptr);
  if (apart) {
    if constexpr (kReadsInPlace<T>) ScoresOfRuns<kRows, kVectors>(block, tile, tile.mask ? sum : max);
  } else {
    ComputeScores<kRows, kVectors>({key, tile.key_stride, block.query, tile.head_steps, scores, tile.mask ? sum : max}, keys,
                                   tile.value_dim, tile.prefetch);
  }
  if constexpr (kClimbsStairs) ScoresOfStairs<kVectors>(stairs, block, tile, sum);
  float factor = tile.factor;
  if (tile.mask) {
    if constexpr (kNumbersAWord<T> > 1) {
      if (tile.mask->WantsScaledScores()) {
        MultiplyScores(scores, (tile.end - tile.begin) * width, factor);
        factor = 1.0f;
      }
    }
    ApplyMask(*tile.mask, tile.scores, width, tile.begin, tile.end, max);
  }

  bool same = true;
  for (size_t j = 0; j < width; j += lanes) {
    const Floats old_shift = hn::Load(df, block.shift + j);
    Floats shift = hn::Load(df, max + j);
    if constexpr (kNumbersAWord<T> == 1) {
      shift = hn::Ceil(shift);
    } else {
      shift = hn::Max(hn::Mul(hn::Set(df, factor), shift), old_shift);
    }
    same = same && hn::AllTrue(df, hn::Eq(shift, old_shift));
    hn::Store(Exp2OfDifference(df, old_shift, shift), df, alpha + j);
    hn::Store(shift, df, block.shift + j);
  }
  if (HWY_UNLIKELY(tile.selects)) {
    ComputeTileWeights<true>(block, tile, factor, sum);
  } else {
    ComputeTileWeights<false>(block, tile, factor, sum);
  }
  for (size_t j = 0; j < width; j += lanes) {
    Floats l = hn::Load(df, sum + j);
    if (block.started) l = hn::MulAdd(hn::Load(df, alpha + j), hn::Load(df, block.denominator + j), l);
    hn::Store(l, df, block.denominator + j);
  }

  const ValueMode mode = !block.started ? ValueMode::overwrite : same ? ValueMode::add : ValueMode::scale;
  block.started = true;
  if constexpr (kReadsInPlace<T>) {
    if (apart) return ValuesOfRuns<kRows, kVectors>(block, tile, mode, alpha);
  }
  if (HWY_UNLIKELY(tile.selects)) {
    if constexpr (kNumbersAWord<T> == 1) {
      return AccumulateSelectedValues(value, tile.value_stride, weights, steps, width, tile.value_dim, mode, alpha, block.sums);
    } else {
      return AccumulateSelectedPairs<Products>(value, tile.value_stride, weights, steps, width, tile.value_dim, mode, alpha,
                                               block.sums);
    }
  }
  if constexpr (kHasRowValues && kNumbersAWord<T> == 1) {
    const bool few = kVectors == 1 || (tile.end - tile.begin <= kMostKeysOfWideRows && stairs.start[1] == tile.end);
    if (tile.is_only && few && tile.value_dim % lanes == 0) {
      block.row_values = {weights, value, tile.value_stride, width, tile.end - tile.begin};
      return;
    }
  }
  FetchWalk* const walk = tile.prefetch ? &tile.prefetch->keys : nullptr;
  const bool climbs = kClimbsStairs && stairs.start[1] < tile.end;
  float* const chain = climbs && mode != ValueMode::overwrite ? tile.chain : block.sums;
  switch (climbs ? ValueMode::overwrite : mode) {
    case ValueMode::overwrite:
    case ValueMode::extend:
      AccumulateValues<kRows, kVectors, ValueMode::overwrite, kVectors, Products>(
          {value, tile.value_stride, weights, steps, chain, alpha, walk}, tile.value_dim);
      break;
    case ValueMode::add:
      AccumulateValues<kRows, kVectors, ValueMode::add, kVectors, Products>(
          {value, tile.value_stride, weights, steps, block.sums, alpha, walk}, tile.value_dim);
      break;
    case ValueMode::scale:
      AccumulateValues<kRows, kVectors, ValueMode::scale, kVectors, Products>(
          {value, tile.value_stride, weights, steps, block.sums, alpha, walk}, tile.value_dim);
      break;
  }
  if (!climbs) return;
  if constexpr (kClimbsStairs) ValuesOfStairs<kVectors>(stairs, tile, chain);
  if (mode != ValueMode::overwrite) JoinChain(mode, chain, alpha, width, tile.value_dim, block.sums);
}

template <class Shape, int kVectors = Shape::kVectors, class T>
HWY_INLINE void ComputeTileOfWidth(RowBlock& block, const Tile<T>& tile) {
  if constexpr (kVectors > 1) {
    if (block.width != kVectors * hn::Lanes(FloatTag())) return ComputeTileOfWidth<Shape, kVectors - 1>(block, tile);
  }
  ComputeTile<Shape, kVectors>(block, tile);
}

enum class ValueState : std::uint8_t { unknown, finite, not_finite };

struct Workspace {
  RowBlock blocks[kQueryBlocks];
  float* scores;
  float* statistics;
  float* chain;
  MaskTables mask;
  ValueState* value_states;  // [key blocks]: what V holds, once it has been looked at
  float *keys, *values;      // [kKeyBlock][WidenedPitch]: of one key block, unless they are read in place; or of pairs

  template <class Shape, class T>
  size_t Place(void* memory, std::int64_t head_dim, std::int64_t value_dim, std::int64_t key_count) {
    const size_t width = static_cast<size_t>(Shape::kVectors) * hn::Lanes(FloatTag());
    Carver carver(memory);
    for (RowBlock& block : blocks) {
      block.query = carver.Take<float>(StepsOf<T>(static_cast<size_t>(head_dim)) * width);
      block.sums = carver.Take<float>(static_cast<size_t>(value_dim) * width);
      block.shift = carver.Take<float>(width);
      block.denominator = carver.Take<float>(width);
      if (key_count > static_cast<std::int64_t>(kKeyBlock)) block.PlaceTotals(carver, static_cast<size_t>(value_dim), width);
      block.query_offset = carver.Take<std::int32_t>(width);
    }
    scores = carver.Take<float>(kKeyBlock * width);
    statistics = carver.Take<float>(3 * width);
    chain = carver.Take<float>(static_cast<size_t>(value_dim) * width);
    mask.Place(carver, kKeyBlock, width);
    value_states = carver.Take<ValueState>(static_cast<size_t>(key_count) / kKeyBlock + 2);
    if constexpr (!kReadsInPlace<T>) {
      keys = carver.Take<float>(kKeyBlock * WidenedPitch(StepsOf<T>(static_cast<size_t>(head_dim))));
      values = carver.Take<float>(StepsOf<T>(kKeyBlock) * WidenedPitch(static_cast<size_t>(value_dim)));
    }
    return carver.used();
  }
};

// Rows of the next block when `left` are left. A block of one vector is bound by loads, so where one would remain after a whole
// block, the last two share what there is.
template <class Shape>
static size_t NextBlockRows(std::int64_t left, size_t lanes) {
  const size_t vectors = static_cast<size_t>(left + static_cast<std::int64_t>(lanes) - 1) / lanes;
  constexpr size_t full = Shape::kVectors;
  const size_t taken = full > 2 && vectors == full + 1 ? full / 2 + 1 : full;
  return static_cast<size_t>(HWY_MIN(left, static_cast<std::int64_t>(taken * lanes)));
}

template <class Shape, class T>
static void StartBlock(const AttentionF32Args& args, std::int64_t first_row, float scale, bool fetches_rows, RowBlock& block) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  block.first_row = first_row;
  block.rows = NextBlockRows<Shape>(args.row_end - first_row, lanes);
  block.width = (block.rows + lanes - 1) / lanes * lanes;
  if constexpr (kNumbersAWord<T> == 1) {
    WithElement(element_beside<T>(args.query_element), [&](auto element) HWY_ATTR {
      using Query = decltype(element);
      const RowMap<const Query> query = {static_cast<const Query*>(args.query), args.query_stride, args.query_head_stride,
                                         args.group};
      RowsToLanes<true>(query, first_row, block.rows, block.width, static_cast<size_t>(args.head_dim), scale, block.query,
                        fetches_rows);
    });
  } else {  // of calls whose query and out are of the keys' element alone
    using Stored = typename StoredAs<T>::type;
    const RowMap<const Stored> query = {static_cast<const Stored*>(args.query), args.query_stride, args.query_head_stride,
                                        args.group};
    PairsToLanes(query, first_row, block.rows, block.width, static_cast<size_t>(args.head_dim), PartsOfScale(scale).power,
                 block.query, fetches_rows);
  }
  PlaceRows(args, block);
  ForgetKeys(block);
}

// One call: its operands, which T stands for, and what stays the same from tile to tile.
template <class Shape, class T>
class AttentionRun {
  using Stored = typename StoredAs<T>::type;

 public:
  explicit AttentionRun(const AttentionF32Args& args) : args_(args), mask_(args) {
    const std::int64_t key_count = HWY_MAX(args.key_end - args.key_begin, std::int64_t{0});
    space_.Place<Shape, T>(args.scratch, args.head_dim, args.value_dim, key_count);
  }

  void Rows() {
    const float scale = ScaleOfScores(args_);
    factor_ = kNumbersAWord<T> == 1 ? 1.0f : PartsOfScale(scale).factor;
    const std::int64_t bytes =
        (args_.key_end - args_.key_begin) * (args_.head_dim + args_.value_dim) * static_cast<std::int64_t>(sizeof(Stored));
    fetches_rows_ = args_.row_end - args_.row_begin > static_cast<std::int64_t>(Shape::kVectors * hn::Lanes(FloatTag())) &&
                    element_beside<Stored>(args_.query_element) == element_beside<Stored>(args_.out_element) &&
                    element_beside<Stored>(args_.query_element) == ElementOf<Stored>::value;
    for (std::int64_t row = args_.row_begin; row < args_.row_end;) {
      fetch_ = row == args_.row_begin || bytes > kCachedBytes;
      size_t count = 0;
      for (; count < kQueryBlocks && row < args_.row_end; ++count) {
        StartBlock<Shape, T>(args_, row, scale, fetches_rows_, space_.blocks[count]);
        row += static_cast<std::int64_t>(space_.blocks[count].rows);
      }
      rows_ahead_ = row - space_.blocks[0].first_row;
      const bool redo = !looks_at_values_;
      Keys(space_.blocks, count);
      for (size_t i = 0; i < count; ++i) {
        RowBlock& block = space_.blocks[i];
        if (HWY_LIKELY(!FinishBlock<Stored>(args_, block, space_.statistics)) || !redo) continue;
        LookAtValues();
        ForgetKeys(block);
        Keys(&block, 1);
        FinishBlock<Stored>(args_, block, space_.statistics);
      }
    }
  }

 private:
  // From the first NaN on the call's blocks of V are looked at: it rarely comes alone, and then nothing is computed twice.
  void LookAtValues() {
    if (looks_at_values_) return;
    looks_at_values_ = true;
    static_assert(static_cast<int>(ValueState::unknown) == 0, "memset makes all states unknown");
    __builtin_memset(space_.value_states, 0, static_cast<size_t>(args_.key_end - args_.key_begin) / kKeyBlock + 1);
  }

  // The keys of `count` row blocks. Only key blocks that one of them can see are visited.
  void Keys(RowBlock* blocks, size_t count) {
    const std::int64_t t_first = blocks[0].t_first, t_last = blocks[count - 1].t_last;
    last_query_ = t_last;
    one_block_ = count == 1;
    const std::int64_t block = static_cast<std::int64_t>(kKeyBlock);
    static_assert(kFoldKeys % static_cast<std::int64_t>(kKeyBlock) == 0, "folds lie between blocks");
    std::int64_t fold = 0;
    const std::int64_t key_end = HWY_MIN(args_.key_end, t_last + args_.visible_end);
    for (std::int64_t key = NextSeenBlock(args_, t_first, args_.key_begin, block); key < key_end;
         key = NextSeenBlock(args_, t_first, key + block, block)) {
      if (key / kFoldKeys != fold) {
        fold = key / kFoldKeys;
        for (size_t i = 0; i < count; ++i) {
          if (blocks[i].started) FoldSums(blocks[i], static_cast<size_t>(args_.value_dim));
        }
      }
      const std::int64_t end = HWY_MIN(key + block, args_.key_end);
      if (!mask_.ReadKeys(t_first, t_last, key, end, space_.mask)) continue;
      if constexpr (!kReadsInPlace<T>) SeenInBlock(t_first, t_last, key, end, seen_begin_, seen_end_);
      bool first = true;
      for (size_t i = 0; i < count; ++i) {
        if (OneTile(blocks[i], key, end, first)) first = false;
      }
    }
  }

  // Keys of the block [key, end) that one of the queries can see, counted from key: from a multiple of 4 on (ComputeWeights
  // sums in fours).
  void SeenInBlock(std::int64_t t_first, std::int64_t t_last, std::int64_t key, std::int64_t end, std::int64_t& seen_begin,
                   std::int64_t& seen_end) const {
    const SeenKeys seen = SeenOf(args_, t_first, t_last, key, end);
    seen_begin = (seen.begin - key) & ~std::int64_t{3};
    seen_end = seen.end - key;
    if (mask_.MarksHide()) MarksOfRows(args_, t_first, t_last).Narrow(key, seen_begin, seen_end);
  }

  bool OneTile(RowBlock& block, std::int64_t key, std::int64_t end, bool first) {
    std::int64_t seen_begin, seen_end;
    SeenInBlock(block.t_first, block.t_last, key, end, seen_begin, seen_end);
    if (seen_begin >= seen_end) return false;
    Tile<T> tile;
    tile.begin = static_cast<size_t>(seen_begin);
    tile.end = static_cast<size_t>(seen_end);

    TileMask mask;
    if (!mask_.ReadTile(block, key, tile.begin, tile.end, space_.mask, mask)) return false;

    tile.head_steps = StepsOf<T>(static_cast<size_t>(args_.head_dim));
    tile.value_dim = static_cast<size_t>(args_.value_dim);
    tile.factor = factor_;
    Prefetch<T> prefetch;
    tile.first_key = key;
    if constexpr (kReadsInPlace<T>) {
      const KeyRun<Stored> run = RunOfKeys<Stored>(args_, key + seen_begin, key + seen_end);
      tile.key = Offset(run.key, -static_cast<std::ptrdiff_t>(seen_begin) * args_.key_stride);
      tile.value = Offset(run.value, -static_cast<std::ptrdiff_t>(seen_begin) * args_.value_stride);
      tile.apart = run.count < seen_end - seen_begin ? &args_ : nullptr;
      tile.key_stride = args_.key_stride;
      tile.value_stride = args_.value_stride;
      if (first && fetch_ && !tile.apart) {
        prefetch.values.Start(static_cast<const T*>(run.value), args_.value_stride, tile.end - tile.begin, tile.value_dim);
      }
    } else {
      if (first) BringBlock(key);
      tile.key = space_.keys;
      tile.value = space_.values;
      tile.apart = nullptr;
      tile.key_stride = static_cast<std::ptrdiff_t>(WidenedPitch(tile.head_steps) * sizeof(float));
      tile.value_stride = static_cast<std::ptrdiff_t>(WidenedPitch(tile.value_dim) * sizeof(float));
    }
    const std::int64_t next = BlockAfter(block.t_first, key);
    tile.is_only =
        one_block_ && !block.started && !block.folded && next >= HWY_MIN(args_.key_end, block.t_last + args_.visible_end);
    if (first && fetch_) SetBlockToFetch(next, prefetch);
    const bool fetches_rows = fetches_rows_ && !block.started && !block.folded;
    tile.prefetch = (first && fetch_) || fetches_rows ? &prefetch : nullptr;
    if (fetches_rows) SetRowsToFetch(block, prefetch);
    tile.mask = mask.Changes() ? &mask : nullptr;
    tile.selects = HWY_UNLIKELY(looks_at_values_) && ValuesNotFinite(key, end);
    tile.scores = space_.scores;
    tile.statistics = space_.statistics;
    tile.chain = space_.chain;
    ComputeTileOfWidth<Shape>(block, tile);
    return true;
  }

  // The key block after the one that begins at `key` that this pass comes to, seen from its first row block.
  std::int64_t BlockAfter(std::int64_t t_first, std::int64_t key) const {
    constexpr std::int64_t kBlock = kKeyBlock;
    key = NextSeenBlock(args_, t_first, key + kBlock, kBlock);
    while (HWY_UNLIKELY(args_.key_marks != nullptr) && key < args_.key_end &&
           !mask_.MaySee(t_first, last_query_, key, HWY_MIN(key + kBlock, args_.key_end))) {
      key = NextSeenBlock(args_, t_first, key + kBlock, kBlock);
    }
    return key;
  }

  // The memory that a block's end and its successor's start will touch, asked for in the block's first tile.
  void SetRowsToFetch(const RowBlock& block, Prefetch<T>& prefetch) const {
    const std::int64_t rows = static_cast<std::int64_t>(block.rows);
    const std::int64_t ahead = block.first_row + rows_ahead_;
    const bool in_this_call = ahead < args_.row_end;
    prefetch.query = {static_cast<const Stored*>(in_this_call ? args_.query : args_.next_query), args_.query_stride,
                      args_.query_head_stride, args_.group};
    prefetch.query_row = in_this_call ? ahead : args_.next_row_begin + (ahead - args_.row_end);
    prefetch.query_end = HWY_MIN(prefetch.query_row + rows, in_this_call ? args_.row_end : args_.next_row_end);
    if (args_.partial) return;
    prefetch.out = {static_cast<Stored*>(args_.out), args_.out_stride, args_.out_head_stride, args_.group};
    prefetch.out_row = block.first_row;
    prefetch.out_end = block.first_row + rows;
  }

  // Of the key block that begins at `key`, the keys that some row of this pass can see.
  void BringBlock(std::int64_t key) {
    if constexpr (kNumbersAWord<T> == 1) {
      WidenBlock(key);
    } else {
      PackBlock(key);
    }
  }

  void WidenBlock(std::int64_t key) {
    const size_t head_dim = static_cast<size_t>(args_.head_dim), value_dim = static_cast<size_t>(args_.value_dim);
    const size_t key_pitch = WidenedPitch(head_dim), value_pitch = WidenedPitch(value_dim);
    for (std::int64_t first = seen_begin_; first < seen_end_;) {
      const KeyRun<Stored> run = RunOfKeys<Stored>(args_, key + first, key + seen_end_);
      const size_t at = static_cast<size_t>(first), rows = static_cast<size_t>(run.count);
      if constexpr (kScaled<T>) {
        const ScaleRun scales = ScalesOfKeys<T>(args_, key + first);
        WidenScaledRows(run.key, args_.key_stride, rows, head_dim, scales.key, args_.key_channel, args_.key_mean,
                        space_.keys + at * key_pitch, key_pitch);
        WidenScaledRows(run.value, args_.value_stride, rows, value_dim, scales.value, args_.value_channel, args_.value_mean,
                        space_.values + at * value_pitch, value_pitch);
      } else {
        WidenRows(run.key, args_.key_stride, rows, head_dim, space_.keys + at * key_pitch, key_pitch);
        WidenRows(run.value, args_.value_stride, rows, value_dim, space_.values + at * value_pitch, value_pitch);
      }
      first += run.count;
    }
  }

  // A pair's keys may lie in two pages.
  void PackBlock(std::int64_t key) {
    const size_t head_dim = static_cast<size_t>(args_.head_dim), value_dim = static_cast<size_t>(args_.value_dim);
    const size_t key_pitch = WidenedPitch(StepsOf<T>(head_dim)), value_pitch = WidenedPitch(value_dim);
    const Stored* last_value = nullptr;  // of an even key that waits for the next run
    for (std::int64_t first = seen_begin_; first < seen_end_;) {
      const KeyRun<Stored> run = RunOfKeys<Stored>(args_, key + first, key + seen_end_);
      const size_t at = static_cast<size_t>(first), end = at + static_cast<size_t>(run.count);
      CopyKeyPairs(run.key, args_.key_stride, end - at, head_dim, space_.keys + at * key_pitch, key_pitch);
      const Stored* value = run.value;
      for (size_t i = at; i < end; ++i, value = Offset(value, args_.value_stride)) {
        if (i % 2 != 0) {
          PairValues(last_value, value, value_dim, space_.values + i / 2 * value_pitch);
        } else {
          last_value = value;
        }
      }
      first += run.count;
    }
    if (seen_end_ % 2 != 0) {
      PairValues(last_value, nullptr, value_dim, space_.values + static_cast<size_t>(seen_end_) / 2 * value_pitch);
    }
  }

  // The rows of the key block that begins at `key`, as they are stored, if they lie in one piece.
  void SetBlockToFetch(std::int64_t key, Prefetch<T>& prefetch) const {
    const std::int64_t end = HWY_MIN(key + static_cast<std::int64_t>(kKeyBlock), args_.key_end);
    if (key >= end) return;
    const KeyRun<Stored> run = RunOfKeys<Stored>(args_, key, end);
    if (run.count < end - key) return;
    const size_t rows = static_cast<size_t>(run.count);
    prefetch.keys.Start(run.key, args_.key_stride, rows, static_cast<size_t>(args_.head_dim));
    if (kReadsInPlace<T>) return;
    prefetch.values.Start(run.value, args_.value_stride, rows, static_cast<size_t>(args_.value_dim));
  }

  bool ValuesNotFinite(std::int64_t key, std::int64_t end) {
    ValueState& state = space_.value_states[(key - args_.key_begin) / static_cast<std::int64_t>(kKeyBlock)];
    if (state == ValueState::unknown) {
      state = HoldsNonFinite<Stored>(args_, key, end) ? ValueState::not_finite : ValueState::finite;
    }
    return state == ValueState::not_finite;
  }

  const AttentionF32Args& args_;
  MaskReader mask_;
  bool fetch_ = true;
  bool fetches_rows_ = false;  // a single block's rows are as soon there without
  bool looks_at_values_ = false;
  bool one_block_ = false;  // in this pass through the keys
  float factor_ = 1.0f;
  std::int64_t rows_ahead_ = 0;
  std::int64_t last_query_ = 0;                 // of the pass at hand
  std::int64_t seen_begin_ = 0, seen_end_ = 0;  // keys of the key block at hand that some row of the pass can see
  Workspace space_;
};

template <class Shape, class T>
static HWY_NOINLINE void ComputeRows(const AttentionF32Args& args) {
  AttentionRun<Shape, T>(args).Rows();
}

template <class Shape, class T>
static void RunAttention(const AttentionF32Args& args) {
  const FlushDenormals flush;
  ComputeRows<Shape, T>(args);
}

template <class Shape, class T>
static size_t AttentionScratchBytes(std::int64_t head_dim, std::int64_t value_dim, std::int64_t key_count) {
  Workspace space;
  return space.Place<Shape, T>(nullptr, head_dim, value_dim, key_count);
}

template <class Shape, class T>
constexpr AttentionKernel TransposedKernel(const char* name) {
  return {name,
          static_cast<std::int32_t>(Shape::kRowBlock),
          static_cast<std::int32_t>(kKeyBlock),
          &AttentionScratchBytes<Shape, T>,
          &RunAttention<Shape, T>,
          ElementOf<typename StoredAs<T>::type>::value};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
