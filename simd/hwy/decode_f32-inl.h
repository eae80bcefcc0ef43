// Attention for few query rows: scores are row-major (lane = key), every key block of K and V is read once for all rows, and
// the speed is that of reading them. Elements of bf16 and f16 are widened as they are loaded: half the bytes are read. Of I8
// the integers are: what turns them into numbers is taken out of the sums, the keys' channels and mean to the query, scales to
// scores and weights, the values' channels and mean to the results.
//
// For each key block:  S[row][key] = Q K'          a few keys x a few rows a tile, lane sums brought together by transposing
// adds
//                      softcap, ALiBi, masks,
//                      bias; P = 2^(S - m)         vectors along the keys
//                      O[row][e] += P V            a few keys x a few rows, whole rows of V
//
// Rows whose result holds a NaN are computed again with blocks of V looked at first, as attention_f32 does.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/decode_integers-inl.h"
#include "simd/hwy/decode_short-inl.h"
#include "simd/hwy/decode_tile-inl.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/key_block-inl.h"
#include "simd/hwy/partial_vector-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/hwy/score_change-inl.h"
#include "simd/hwy/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// The same for one row and a block of V that holds NaN or infinities: keys whose weight is marked as -0 are passed over.
template <class T>
static HWY_NOINLINE void AddSelectedValues(const ValueRun<T>& run, const KeyOrder& order, size_t row) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  float* HWY_RESTRICT sums = run.sums + row * run.sum_floats;
  for (size_t e = 0; e < run.columns; e += lanes) {
    Floats sum = hn::Load(df, sums + e);
    for (size_t i = 0; i < order.count; ++i) {
      const float* weight = run.weights + row * kDecodeKeyBlock + order.keys[i];
      std::uint32_t bits;
      __builtin_memcpy(&bits, weight, sizeof(bits));
      if (bits == 0x80000000u) continue;
      const T* value = run.value.Row(order.keys[i]) + e;
      const Floats v = e + lanes <= run.columns ? LoadElements(df, value) : LoadPartial(df, value, run.columns - e);
      sum = hn::MulAdd(hn::Set(df, *weight), v, sum);
    }
    hn::Store(sum, df, sums + e);
  }
}

// The keys of a block that rows may see. What lies between them and the ends of whole vectors is to be excluded.
struct KeySpan {
  size_t begin, end;
  size_t first_vector, end_vector;  // in keys, multiples of a vector
};

// What a row may see of a key block, and what is added to its scores.
struct RowMask {
  std::int32_t begin, end;       // keys of the block
  const std::int32_t* excluded;  // [key]: -1 excluded, 0 allowed, or nullptr
  const float* bias;             // [key] or nullptr
};

// Applies the mask to a row's scores [kDecodeKeyBlock] and returns their maximum, or `shift` where that is greater.
template <bool kShortRows>
static HWY_NOINLINE float MaskRow(const KeySpan& span, const RowMask& mask, float* HWY_RESTRICT scores, float shift) {
  const FloatTag df;
  const IntTag di;
  const size_t lanes = hn::Lanes(df);
  const Floats minus_infinity = hn::Set(df, kMinusInfinity);
  const Ints begin = hn::Set(di, mask.begin), end = hn::Set(di, mask.end);
  const Ints first = hn::Iota(di, 0);  // of a number that is not constant, Highway writes its lanes one by one
  Floats max = hn::Set(df, shift);
  const size_t end_vector = kShortRows ? kShortRowBlock : span.end_vector;
  for (size_t i = kShortRows ? 0 : span.first_vector; i < end_vector; i += lanes) {
    Floats s = hn::Load(df, scores + i);
    if (mask.bias) {
      s = AddBias(df, s, hn::Load(df, mask.bias + i));
    }
    if (mask.excluded) {
      const Floats excluded = hn::BitCast(df, hn::Load(di, mask.excluded + i));
      s = hn::IfThenElse(hn::MaskFromVec(excluded), minus_infinity, s);
    }
    const Ints position = hn::Add(first, hn::Set(di, static_cast<std::int32_t>(i)));
    s = hn::IfThenElse(hn::RebindMask(df, hn::Gt(end, position)), s, minus_infinity);
    s = hn::IfThenElse(hn::RebindMask(df, hn::Gt(begin, position)), minus_infinity, s);
    hn::Store(s, df, scores + i);
    max = MaxDroppingNaN(df, s, max);
  }
  return hn::GetLane(hn::Ceil(hn::MaxOfLanes(df, max)));
}

// Weights in place; denominator[lane] = alpha * denominator[lane] + their sum over the keys of that lane.
template <bool kShortRows, bool kMarkExcluded>
static HWY_NOINLINE void WeightRow(const KeySpan& span, float* HWY_RESTRICT scores, float shift, float alpha,
                                   float* HWY_RESTRICT denominator) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const Floats m = hn::Set(df, shift), minus_infinity = hn::Set(df, kMinusInfinity), minus_zero = hn::Set(df, -0.0f);
  Floats sum = hn::Zero(df);
  const size_t end = kShortRows ? kShortRowBlock : span.end_vector;
  for (size_t i = kShortRows ? 0 : span.first_vector; i < end; i += lanes) {
    const Floats s = hn::Load(df, scores + i);
    Floats p = Exp2OfDifference(df, s, m);
    if (kMarkExcluded) p = hn::IfThenElse(hn::Eq(s, minus_infinity), minus_zero, p);
    hn::Store(p, df, scores + i);
    sum = hn::Add(sum, p);
  }
  hn::Store(hn::MulAdd(hn::Set(df, alpha), hn::Load(df, denominator), sum), df, denominator);
}

// Scores of keys of I8: what was summed up over their integers becomes the score of the numbers that these stand for. `mean` is
// the query's product with the keys' mean, `step` what the query's own integers count in, where it has any.
template <bool kShortRows>
static HWY_NOINLINE void ScaleScores(const KeySpan& span, const float* HWY_RESTRICT scales, float step, float mean,
                                     float* HWY_RESTRICT scores) {
  const FloatTag df;
  const Floats offset = hn::Set(df, mean), factor = hn::Set(df, step);
  const size_t end = kShortRows ? kShortRowBlock : span.end_vector;
  for (size_t i = kShortRows ? 0 : span.first_vector; i < end; i += hn::Lanes(df)) {
    const Floats scale = hn::Mul(factor, hn::Load(df, scales + i));
    hn::Store(hn::MulAdd(hn::Load(df, scores + i), scale, offset), df, scores + i);
  }
}

// Weights of values of I8, marked as WeightRow marks them: multiplied by the values' scales, 0 where a key is excluded,
// whatever its value's scale is.
template <bool kShortRows>
static HWY_NOINLINE void ScaleWeights(const KeySpan& span, const float* HWY_RESTRICT scales, float* HWY_RESTRICT weights) {
  const FloatTag df;
  const IntTag di;
  const Ints marked = hn::BitCast(di, hn::Set(df, -0.0f));
  const size_t end = kShortRows ? kShortRowBlock : span.end_vector;
  for (size_t i = kShortRows ? 0 : span.first_vector; i < end; i += hn::Lanes(df)) {
    const Floats p = hn::Load(df, weights + i);
    const auto excluded = hn::RebindMask(df, hn::Eq(hn::BitCast(di, p), marked));
    hn::Store(hn::IfThenElse(excluded, hn::Zero(df), hn::Mul(p, hn::Load(df, scales + i))), df, weights + i);
  }
}

// The sums over integers of T become those over the numbers that these stand for; `denominator` is the weights' sum.
template <class T>
static HWY_NOINLINE void ScaleColumns(const float* HWY_RESTRICT channel, const float* HWY_RESTRICT mean, size_t columns,
                                      float denominator, float* HWY_RESTRICT sums) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const Floats l = hn::Set(df, denominator);
  for (size_t e = 0; e < columns; e += lanes) {
    const bool whole = e + lanes <= columns;
    const Floats m = whole ? hn::LoadU(df, mean + e) : LoadPartial(df, mean + e, columns - e);
    const Floats c = whole ? hn::LoadU(df, channel + e) : LoadPartial(df, channel + e, columns - e);
    hn::Store(hn::MulAdd(hn::Load(df, sums + e), c, hn::Mul(l, m)), df, sums + e);
  }
}

// out[e] = factor * sums[e] of one row; returns where a result is NaN. Adding 0 makes a zero positive: its sign would tell
// which masked keys were visited.
template <class T>
HWY_INLINE hn::Mask<FloatTag> StoreRow(const float* HWY_RESTRICT sums, size_t columns, float factor, T* HWY_RESTRICT out) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const Floats scale = hn::Set(df, factor);
  auto nan = hn::MaskFromVec(hn::Zero(df));
  for (size_t e = 0; e < columns; e += lanes) {
    const Floats v = hn::MulAdd(hn::Load(df, sums + e), scale, hn::Zero(df));
    nan = hn::Or(nan, hn::IsNaN(v));
    if (e + lanes <= columns) {
      StoreElements(v, df, out + e);
    } else {
      StorePartial(v, df, out + e, columns - e);
    }
  }
  return nan;
}

// Up to kRows rows on their way through the keys, which are of T. More rows of a call go in further rounds.
template <bool kShortRows, class T, bool kAccumulates>
class DecodeRun {
 public:
  static constexpr size_t kRows = 16;
  static constexpr size_t kBlock = kShortRows ? kShortRowBlock : kDecodeKeyBlock;
  static constexpr bool kIntegers = !kShortRows && kMultipliesIntegers<T>;
  using Tiles = IntegerTiles<T, kAccumulates>;

  // Places everything in `memory` and returns the bytes it takes.
  size_t Place(void* memory, std::int64_t head_dim, std::int64_t value_dim) {
    const size_t lanes = hn::Lanes(FloatTag());
    query_floats_ = (static_cast<size_t>(head_dim) + lanes - 1) / lanes * lanes;
    sum_floats_ = (static_cast<size_t>(value_dim) + lanes - 1) / lanes * lanes;
    Carver carver(memory);
    query_ = carver.Take<float>(kRows * query_floats_);
    sums_ = carver.Take<float>(kRows * sum_floats_);
    chains_ = carver.Take<float>(kRows * sum_floats_);
    denominator_ = carver.Take<float>(kRows * lanes);
    scores_ = carver.Take<float>(kRows * kDecodeKeyBlock);
    bias_ = carver.Take<float>(kDecodeKeyBlock);
    excluded_ = carver.Take<std::int32_t>(kDecodeKeyBlock);
    mod_keys_ = carver.Take<std::int32_t>(kDecodeKeyBlock);
    order_ = carver.Take<std::uint16_t>(kDecodeKeyBlock + kSpareKeys);
    key_rows_ = carver.Take<const T*>(kDecodeKeyBlock);
    value_rows_ = carver.Take<const T*>(kDecodeKeyBlock);
    if constexpr (kScaled<T>) {
      key_scales_ = carver.Take<float>(kDecodeKeyBlock);
      value_scales_ = carver.Take<float>(kDecodeKeyBlock);
    }
    if constexpr (kIntegers) {
      integers_ = head_dim <= kMostIntegerElements;
      query_words_ = Tiles::WordsOfRow(static_cast<size_t>(head_dim));
      sum_words_ = Tiles::WordsOfRow(static_cast<size_t>(value_dim));
      query_integers_ = carver.Take<std::int16_t>(kRows * query_words_);
      weight_pairs_.first = carver.Take<std::int32_t>(kRows * kStreamKeys);
      weight_pairs_.second = carver.Take<std::int32_t>(kRows * kStreamKeys);
      sum_integers_ = carver.Take<std::int32_t>(kRows * sum_words_);
      next_rows_ = carver.Take<const T*>(kDecodeKeyBlock);
    }
    return carver.used();
  }

  void Rows(const AttentionF32Args& args) {
    for (std::int64_t row = args.row_begin; row < args.row_end; row += static_cast<std::int64_t>(kRows)) {
      rows_ = static_cast<size_t>(HWY_MIN(args.row_end - row, static_cast<std::int64_t>(kRows)));
      bool again = false;
      do {
        looks_at_values_ |= again;  // for the call's other rows too
        Start(args, row);
        Keys(args);
        // Of values of I8 what is excluded never counts, see ScaleWeights.
        again = Finish(args, row) && !looks_at_values_ && !kScaled<T>;
      } while (HWY_UNLIKELY(again));
    }
  }

 private:
  void Start(const AttentionF32Args& args, std::int64_t first_row) {
    WithElement(element_beside<T>(args.query_element),
                [&](auto element) HWY_ATTR { StartRows<decltype(element)>(args, first_row); });
  }

  template <class Query>
  HWY_NOINLINE void StartRows(const AttentionF32Args& args, std::int64_t first_row) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    const Floats scale = hn::Set(df, ScaleOfScores(args));
    const size_t head_dim = static_cast<size_t>(args.head_dim);
    const RowMap<const Query> query = {static_cast<const Query*>(args.query), args.query_stride, args.query_head_stride,
                                       args.group};
    has_sums_ = has_chains_ = false;
    for (size_t i = 0; i < rows_; ++i) {
      const std::int64_t row = first_row + static_cast<std::int64_t>(i);
      query_of_row_[i] = args.group == 1 ? row : row / args.group;
      head_of_row_[i] = row - query_of_row_[i] * args.group;
      const Query* HWY_RESTRICT from = query.At(row);
      float* HWY_RESTRICT to = query_ + i * query_floats_;
      size_t d = 0;
      for (; d + lanes <= head_dim; d += lanes) hn::Store(hn::Mul(LoadElements(df, from + d), scale), df, to + d);
      if (d < head_dim) hn::Store(hn::Mul(LoadPartial(df, from + d, head_dim - d), scale), df, to + d);
      if constexpr (kScaled<T>) mean_scores_[i] = TakeChannels(args, to);
      if constexpr (kIntegers) {
        if (integers_) StartIntegers(i);
      }
      shift_[i] = kLowestFloat;
      for (size_t e = 0; e < sum_floats_; e += lanes) hn::Store(hn::Zero(df), df, sums_ + i * sum_floats_ + e);
      hn::Store(hn::Zero(df), df, denominator_ + i * lanes);
    }
  }

  // Multiplies a query by the keys' channels, and returns its product with their mean.
  static HWY_NOINLINE float TakeChannels(const AttentionF32Args& args, float* HWY_RESTRICT query) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df), head_dim = static_cast<size_t>(args.head_dim);
    Floats sum = hn::Zero(df);
    for (size_t d = 0; d < head_dim; d += lanes) {
      const bool whole = d + lanes <= head_dim;
      const Floats m = whole ? hn::LoadU(df, args.key_mean + d) : LoadPartial(df, args.key_mean + d, head_dim - d);
      const Floats c = whole ? hn::LoadU(df, args.key_channel + d) : LoadPartial(df, args.key_channel + d, head_dim - d);
      const Floats q = hn::Load(df, query + d);
      sum = hn::MulAdd(q, m, sum);
      hn::Store(hn::Mul(q, c), df, query + d);
    }
    return hn::GetLane(hn::SumOfLanes(df, sum));
  }

  // The row's query as integers. One that is not finite has scores of NaN.
  void StartIntegers(size_t i) {
    bool nan = false;
    query_steps_[i] =
        Tiles::WriteQuery(query_ + i * query_floats_, query_floats_, query_words_, query_integers_ + i * query_words_, &nan);
    if (nan) mean_scores_[i] = __builtin_nanf("");
    __builtin_memset(sum_integers_ + i * sum_words_, 0, sum_words_ * sizeof(std::int32_t));
  }

  // The scales of the first `keys` keys of a block.
  HWY_NOINLINE void FindScales(const AttentionF32Args& args, std::int64_t first_key, size_t keys) {
    for (size_t i = 0; i < keys;) {
      const std::int64_t first = first_key + static_cast<std::int64_t>(i);
      const auto run = RunOfKeys<T>(args, first, first_key + static_cast<std::int64_t>(keys));
      const ScaleRun scales = ScalesOfKeys<T>(args, first);
      const size_t count = static_cast<size_t>(run.count);
      __builtin_memcpy(key_scales_ + i, scales.key, count * sizeof(float));
      __builtin_memcpy(value_scales_ + i, scales.value, count * sizeof(float));
      i += count;
    }
  }

  // Asks for the scales of the next block: a few lines apart from the rows, which nothing else would bring in ahead.
  static HWY_NOINLINE void FetchScales(const AttentionF32Args& args, std::int64_t first, std::int64_t key_end) {
    constexpr std::int64_t kOfLine = 64 / sizeof(float);
    const std::int64_t end = HWY_MIN(key_end, first + static_cast<std::int64_t>(kBlock));
    while (first < end) {
      const auto run = RunOfKeys<T>(args, first, end);
      const ScaleRun scales = ScalesOfKeys<T>(args, first);
      for (std::int64_t i = 0; i < run.count; i += kOfLine) {
        PrefetchLine(scales.key + i);
        PrefetchLine(scales.value + i);
      }
      first += run.count;
    }
  }

  void Keys(const AttentionF32Args& args) {
    const std::int64_t block = static_cast<std::int64_t>(kBlock);
    const std::int64_t key_end = HWY_MIN(args.key_end, query_of_row_[rows_ - 1] + args.visible_end);
    for (std::int64_t key = NextBlock(args, args.key_begin - block); key < key_end; key = NextBlock(args, key)) {
      KeyBlock(args, key, key_end);
    }
  }

  void KeyBlock(const AttentionF32Args& args, std::int64_t first_key, std::int64_t key_end) {
    const SeenKeys seen = SeenOf(args, query_of_row_[0], query_of_row_[rows_ - 1], first_key,
                                 HWY_MIN(key_end, first_key + static_cast<std::int64_t>(kBlock)));
    if (seen.begin >= seen.end) return;
    const size_t first_of_block = static_cast<size_t>(seen.begin - first_key), end = static_cast<size_t>(seen.end - first_key);
    bool marks_hide = false;  // all of what some mark stands for
    std::uint8_t marks[kDecodeKeyBlock / kStreamKeys];
    boolean_shows_all_ = false;
    if (args.key_marks) {
      const MarksOfRows of_rows(args, query_of_row_[0], query_of_row_[rows_ - 1]);
      std::uint8_t any = 0, all = keys_all;
      for (size_t i = first_of_block / kStreamKeys; i * kStreamKeys < end; ++i) {
        marks[i] = of_rows.At(first_key / AttentionF32Args::keys_per_mark + static_cast<std::int64_t>(i));
        any |= marks[i];
        all &= marks[i];
        marks_hide = marks_hide || !(marks[i] & keys_seen);
      }
      if (!(any & keys_seen)) {
        has_sums_ = true;  // to which nothing is added
        return;
      }
      boolean_shows_all_ = (all & keys_all) != 0;
    }
    bool mod_is_full = false;
    if (HWY_UNLIKELY(args.score_mod != nullptr) && !ClassifyByCaller(args, first_key, first_of_block, end, mod_is_full)) return;
    const size_t lanes = hn::Lanes(FloatTag()), begin = kShortRows ? 0 : first_of_block;
    const KeySpan span = {begin, end, begin / lanes * lanes, (end + lanes - 1) / lanes * lanes};
    KeyOrder order = {kOrderOfWholeBlock.keys, kDecodeKeyBlock};
    if (!kShortRows && (marks_hide || end - begin < kDecodeKeyBlock)) order = {order_, OrderKeys(begin, end, order_)};
    static_assert(kStreamKeys == static_cast<size_t>(AttentionF32Args::keys_per_mark), "a mark is a stream's");
    if (!kShortRows && marks_hide) order.count = KeepMarked(marks, order.count, order_);
    if (order.count == 0) return;
    const auto first_run = RunOfKeys<T>(args, first_key, first_key + static_cast<std::int64_t>(end));
    BlockRows<T> key = {first_run.key, args.key_stride, nullptr}, value = {first_run.value, args.value_stride, nullptr};
    if (HWY_UNLIKELY(first_run.count < static_cast<std::int64_t>(end))) FindRows(args, first_key, end, key, value);
    if constexpr (kShortRows) {
      ComputeShortScores(args, key, value, end);
    } else {
      ComputeScores(args, key, value, order);
    }
    if constexpr (kScaled<T>) {
      FindScales(args, first_key, end);
      FetchScales(args, NextBlock(args, first_key), key_end);
      for (size_t i = 0; i < rows_; ++i) {
        const float step = kIntegers && integers_ ? query_steps_[i] : 1.0f;
        ScaleScores<kShortRows>(span, key_scales_, step, mean_scores_[i], scores_ + i * kDecodeKeyBlock);
      }
    }

    if (HWY_UNLIKELY(args.score_mod != nullptr)) ChangeByCaller(args, first_key, span, mod_is_full);
    float old_shift[kRows];
    for (size_t i = 0; i < rows_; ++i) ApplyRowMask(args, i, first_key, span, old_shift);
    const size_t columns = static_cast<size_t>(args.value_dim);
    const bool selects =
        HWY_UNLIKELY(looks_at_values_) && !kScaled<T> &&
        HoldsNonFinite<T>(args, first_key + static_cast<std::int64_t>(begin), first_key + static_cast<std::int64_t>(end));
    float alpha[kRows];
    ComputeAlpha(old_shift, alpha);
    for (size_t i = 0; i < rows_; ++i) {
      float* row = scores_ + i * kDecodeKeyBlock;
      if (kScaled<T> || HWY_UNLIKELY(selects)) {
        WeightRow<kShortRows, true>(span, row, shift_[i], alpha[i], denominator_ + i * lanes);
        if constexpr (kScaled<T>) ScaleWeights<kShortRows>(span, value_scales_, row);
      } else {
        WeightRow<kShortRows, false>(span, row, shift_[i], alpha[i], denominator_ + i * lanes);
      }
    }
    if constexpr (kShortRows) {
      if (HWY_LIKELY(!selects)) return AddValuesOfShortRows(args, key, first_key, end, alpha);
      order = {order_, OrderKeys(begin, end, order_)};
    }
    if constexpr (kIntegers) {
      if (integers_) {
        for (size_t i = 0; i < rows_; ++i) {
          if (alpha[i] != 1.0f) ScaleSums(alpha[i], sums_ + i * sum_floats_);
        }
        return AddIntegerValues(value, order, columns, NextKeys(args, first_key, key_end));
      }
    }
    AddBlock({value, scores_, chains_, sum_floats_, columns, FetchDistance(args, order, value, columns)}, order, selects,
             alpha);
  }

  // How many rows of some columns ahead of its use a stream asks for. Where pages put the rows of a block, only those of a
  // whole one are all known.
  static size_t FetchDistance(const AttentionF32Args& args, const KeyOrder& order, const BlockRows<T>& rows, size_t columns) {
    if (args.fetch_ahead == 0 || columns == 0 || (rows.apart && order.count < kDecodeKeyBlock)) return 0;
    return HWY_MIN(HWY_MAX(static_cast<size_t>(args.fetch_ahead) / (columns * sizeof(T)), size_t{1}), kStreamKeys - 1);
  }

  // A block's values, a chain of their own: one over all keys would be as long as they are many, and so would its error where
  // its terms are alike. The call's first one is the sums, which are 0 before it.
  HWY_INLINE void AddBlock(ValueRun<T> run, const KeyOrder& order, bool selects, const float* alpha) {
    run.sums = has_sums_ ? Chains() : sums_;
    if (HWY_LIKELY(!selects)) {
      AddValuesOfOrder(run, order, rows_);
    } else {
      for (size_t i = 0; i < rows_; ++i) AddSelectedValues(run, order, i);
    }
    if (has_sums_) JoinChains(alpha);
    has_sums_ = true;
  }

  // Where chains begin, at 0.
  float* Chains() {
    if (HWY_UNLIKELY(!has_chains_)) ClearChains();
    return chains_;
  }
  HWY_NOINLINE void ClearChains() {
    const FloatTag df;
    for (size_t i = 0; i < rows_ * sum_floats_; i += hn::Lanes(df)) hn::Store(hn::Zero(df), df, chains_ + i);
    has_chains_ = true;
  }

  // sums = alpha * sums + chains, which become 0 again.
  HWY_INLINE void JoinChains(const float* alpha) {
    const FloatTag df;
    for (size_t i = 0; i < rows_; ++i) {
      const Floats factor = hn::Set(df, alpha[i]);
      float* HWY_RESTRICT sums = sums_ + i * sum_floats_;
      float* HWY_RESTRICT chain = chains_ + i * sum_floats_;
      for (size_t e = 0; e < sum_floats_; e += hn::Lanes(df)) {
        hn::Store(hn::MulAdd(factor, hn::Load(df, sums + e), hn::Load(df, chain + e)), df, sums + e);
        hn::Store(hn::Zero(df), df, chain + e);
      }
    }
  }

  // Of a block whose keys lie in several pages: where each of them is.
  HWY_NOINLINE void FindRows(const AttentionF32Args& args, std::int64_t first_key, size_t keys, BlockRows<T>& key,
                             BlockRows<T>& value) {
    for (size_t i = 0; i < keys;) {
      const auto run =
          RunOfKeys<T>(args, first_key + static_cast<std::int64_t>(i), first_key + static_cast<std::int64_t>(keys));
      const T *key_row = run.key, *value_row = run.value;
      for (const size_t run_end = i + static_cast<size_t>(run.count); i < run_end; ++i) {
        key_rows_[i] = key_row;
        value_rows_[i] = value_row;
        key_row = Offset(key_row, args.key_stride);
        value_row = Offset(value_row, args.value_stride);
      }
    }
    key.apart = key_rows_;
    value.apart = value_rows_;
  }

  void ComputeScores(const AttentionF32Args& args, const BlockRows<T>& key, const BlockRows<T>& value, const KeyOrder& order) {
    if constexpr (kIntegers) {
      if (integers_) {
        const typename Tiles::Scores run = {key, query_integers_, query_words_, static_cast<size_t>(args.head_dim), scores_};
        return Tiles::ScoresOfOrder(run, order, rows_, {value, static_cast<size_t>(args.value_dim)});
      }
    }
    const size_t head_dim = static_cast<size_t>(args.head_dim);
    const ScoreRun<T> run = {key, query_, query_floats_, head_dim, scores_, FetchDistance(args, order, key, head_dim)};
    if (rows_ >= DecodeLimits::kRows) {
      ScoresOfOrder<DecodeLimits::ScoreKeys(DecodeLimits::kRows)>(run, order, rows_);
    } else {
      ScoresOfOrder<4>(run, order, rows_);
    }
  }

  void ComputeShortScores(const AttentionF32Args& args, const BlockRows<T>& key, const BlockRows<T>& value, size_t keys) {
    const size_t fetched = keys == kShortRowBlock ? static_cast<size_t>(args.value_dim) : 0;
    const ShortScoreRun<T> run = {key,     keys,  query_, query_floats_, static_cast<size_t>(args.head_dim),
                                  scores_, value, fetched};
    ScoresOfShortRows(run, 0, rows_);
  }

  // A block's keys are one chain.
  void AddValuesOfShortRows(const AttentionF32Args& args, const BlockRows<T>& key, std::int64_t first_key, size_t keys,
                            const float* alpha) {
    has_sums_ = true;
    const auto run_from = [&](size_t done) {
      return RunOfKeys<T>(args, first_key + static_cast<std::int64_t>(done), first_key + static_cast<std::int64_t>(keys));
    };
    const auto first = run_from(0);
    ValueStrip<T> strip = {};
    strip.value = first.value;
    strip.value_stride = args.value_stride;
    strip.keys = keys;
    strip.columns = static_cast<size_t>(args.value_dim);
    strip.weights = scores_;
    strip.alpha = alpha;
    strip.sums = sums_;
    strip.sum_floats = sum_floats_;
    strip.key_stride = args.key_stride;
    strip.head_dim = static_cast<size_t>(args.head_dim);
    if (HWY_LIKELY(static_cast<size_t>(first.count) == keys)) {
      if (keys == kShortRowBlock) {
        strip.next_key = Offset(key.first, static_cast<std::ptrdiff_t>(kShortRowBlock) * args.key_stride);
      }
      return AddShortValues<true>(strip, 0, rows_);
    }
    strip.sums = Chains();
    for (size_t done = 0; done < keys; done += strip.keys) {
      const auto run = run_from(done);
      strip.value = run.value;
      strip.keys = static_cast<size_t>(run.count);
      strip.weights = scores_ + done;
      AddShortValues<false>(strip, 0, rows_);
    }
    JoinChains(alpha);
  }

  void ScaleSums(float alpha, float* HWY_RESTRICT sums) {
    const FloatTag df;
    const Floats factor = hn::Set(df, alpha);
    for (size_t e = 0; e < sum_floats_; e += hn::Lanes(df)) hn::Store(hn::Mul(factor, hn::Load(df, sums + e)), df, sums + e);
  }

  // The first key of the block after first_key's that some row sees.
  std::int64_t NextBlock(const AttentionF32Args& args, std::int64_t first_key) const {
    constexpr std::int64_t block = kBlock;
    return NextSeenBlock(args, query_of_row_[0], first_key + block, block);
  }

  // The keys of the next block, where it is a whole one.
  HWY_NOINLINE RowsAhead<T> NextKeys(const AttentionF32Args& args, std::int64_t first_key, std::int64_t key_end) const {
    const std::int64_t first = NextBlock(args, first_key), end = first + static_cast<std::int64_t>(kBlock);
    if (end > key_end) return {};
    if (args.key_marks && !(MarksOfRows(args, query_of_row_[0], query_of_row_[rows_ - 1]).Of(first, end) & keys_seen))
      return {};
    const size_t columns = static_cast<size_t>(args.head_dim);
    const auto first_run = RunOfKeys<T>(args, first, end);
    if (HWY_LIKELY(first + first_run.count == end)) return {{first_run.key, args.key_stride, nullptr}, columns};
    for (size_t i = 0; i < kBlock;) {
      const auto run = RunOfKeys<T>(args, first + static_cast<std::int64_t>(i), end);
      const T* row = run.key;
      for (const size_t run_end = i + static_cast<size_t>(run.count); i < run_end; ++i) {
        next_rows_[i] = row;
        row = Offset(row, args.key_stride);
      }
    }
    return {{nullptr, 0, next_rows_}, columns};
  }

  void AddIntegerValues(const BlockRows<T>& value, const KeyOrder& order, size_t columns, const RowsAhead<T>& next_keys) {
    float steps[kRows];
    for (size_t i = 0; i < rows_; ++i) {
      const WeightPairs pairs = {weight_pairs_.first + i * kStreamKeys, weight_pairs_.second + i * kStreamKeys};
      steps[i] = Tiles::WriteWeights(scores_ + i * kDecodeKeyBlock, order.keys, order.count, pairs);
    }
    const typename Tiles::Values run = {value,   order.keys, (order.count + 3) / 4, weight_pairs_, sum_integers_, sum_words_,
                                        columns, next_keys};
    Tiles::AddValuesOfOrder(run, rows_);
    for (size_t i = 0; i < rows_; ++i) {
      Tiles::AddSums(sum_integers_ + i * sum_words_, sum_words_, steps[i], sums_ + i * sum_floats_, sum_floats_);
    }
  }

  // False: the caller's function would exclude every key of the block from every row.
  HWY_NOINLINE bool ClassifyByCaller(const AttentionF32Args& args, std::int64_t first_key, size_t begin, size_t end,
                                     bool& is_full) const {
    const ScoreMod& mod = *args.score_mod;
    if (!mod.classify) return true;
    const bool one_query = query_of_row_[0] == query_of_row_[rows_ - 1];
    ScoreModRange range;
    range.batch = args.mod_batch;
    range.head_begin = args.mod_head + (one_query ? head_of_row_[0] : 0);
    range.head_end = args.mod_head + (one_query ? head_of_row_[rows_ - 1] + 1 : args.group);
    range.query_begin = args.mod_query + query_of_row_[0];
    range.query_end = args.mod_query + query_of_row_[rows_ - 1] + 1;
    range.key_begin = args.mod_key + first_key + static_cast<std::int64_t>(begin);
    range.key_end = args.mod_key + first_key + static_cast<std::int64_t>(end);
    const TileClass kind = mod.classify(mod.context, range);
    is_full = kind == TileClass::full;
    return kind != TileClass::skip;
  }

  // The softcap, and the caller's function, of all rows: scores come in natural-log units and leave in log2 units.
  HWY_NOINLINE void ChangeByCaller(const AttentionF32Args& args, std::int64_t first_key, const KeySpan& span, bool is_full) {
    static_assert(kMostLinesOrLanes >= kRows, "rows");
    const size_t first = kShortRows ? 0 : span.first_vector, end = kShortRows ? kShortRowBlock : span.end_vector;
    if (args.softcap > 0.0) {
      const RowChange change = {Softcap(args.softcap, 1.0), false, 0.0f, 0.0f};
      for (size_t i = 0; i < rows_; ++i) ChangeRow(change, scores_ + i * kDecodeKeyBlock, first, end);
    }
    std::int32_t queries[kRows], heads[kRows];
    for (size_t i = 0; i < rows_; ++i) {
      queries[i] = static_cast<std::int32_t>(query_of_row_[i] - query_of_row_[0]);
      heads[i] = static_cast<std::int32_t>(head_of_row_[i]);
    }
    for (size_t i = first; i < end; ++i) mod_keys_[i] = static_cast<std::int32_t>(HWY_MIN(i, span.end - 1));
    ScoreModTile tile;
    tile.scores = scores_ + first;
    tile.lines = static_cast<std::int64_t>(rows_);
    tile.lanes = static_cast<std::int64_t>(end - first);
    tile.line_stride = static_cast<std::int64_t>(kDecodeKeyBlock);
    tile.batch = args.mod_batch;
    tile.head = {args.mod_head, heads, kAllZero.offsets};
    tile.query = {args.mod_query + query_of_row_[0], queries, kAllZero.offsets};
    tile.key = {args.mod_key + first_key, kAllZero.offsets, mod_keys_ + first};
    tile.lanes_are_keys = true;
    tile.is_full = is_full;
    args.score_mod->change(args.score_mod->context, tile);
    for (size_t i = 0; i < rows_; ++i) {
      ChangeRowAs<false, false, true>(RowChange(), scores_ + i * kDecodeKeyBlock, first, end);
    }
  }

  // Of a block with kept keys: what begins with them, and hides those between them and the visible ones.
  HWY_NOINLINE void ShowKept(size_t kept_end, const KeySpan& span, RowMask& mask) {
    const size_t begin = HWY_MIN(static_cast<size_t>(HWY_MAX(mask.begin, 0)), span.end);
    mask.begin = 0;
    if (begin <= kept_end) return;
    if (!mask.excluded) {
      for (size_t k = 0; k < span.end; ++k) excluded_[k] = 0;
    }
    for (size_t k = kept_end; k < begin; ++k) excluded_[k] = -1;
    mask.excluded = excluded_;
  }

  // Masks the row's scores and raises its shift to them; old_shift[i] is what that was.
  void ApplyRowMask(const AttentionF32Args& args, size_t i, std::int64_t first_key, const KeySpan& span, float* old_shift) {
    const std::int64_t t = query_of_row_[i], g = head_of_row_[i];
    const std::int32_t begin = ClampLimit(t + args.visible_begin - first_key);
    const std::int32_t end = ClampLimit(t + args.visible_end - first_key);
    RowMask mask = {begin, HWY_MIN(end, static_cast<std::int32_t>(span.end)), nullptr, nullptr};
    const std::int64_t first = first_key + static_cast<std::int64_t>(span.begin);
    if (args.boolean_mask && !boolean_shows_all_) {
      const std::uint8_t* from = Offset(args.boolean_mask, t * args.mask_stride + g * args.mask_head_stride +
                                                               static_cast<std::ptrdiff_t>(first) * args.mask_key_stride);
      const Allowed allowed = ReadKeyMask(from, args.mask_key_stride, span.end - span.begin, excluded_ + span.begin);
      if (allowed != Allowed::all) mask.excluded = excluded_;
    }
    if (args.bias) {
      const void* const bias = Offset(args.bias, t * args.bias_stride + g * args.bias_head_stride +
                                                     static_cast<std::ptrdiff_t>(first) * args.bias_key_stride);
      WithElement(args.bias_element, [&](auto element) HWY_ATTR {
        using Bias = decltype(element);
        const Bias* from = static_cast<const Bias*>(bias);
        if constexpr (hwy::IsSame<Bias, float>()) {
          for (size_t k = span.begin; k < span.end; ++k, from = Offset(from, args.bias_key_stride)) bias_[k] = *from;
        } else {
          WidenKeyBias(from, args.bias_key_stride, span.end - span.begin, bias_ + span.begin);
        }
      });
      mask.bias = bias_;
    }
    if (HWY_UNLIKELY(first_key < args.kept_end)) ShowKept(static_cast<size_t>(args.kept_end - first_key), span, mask);
    float* row = scores_ + i * kDecodeKeyBlock;
    const bool caps = args.softcap > 0.0 && args.score_mod == nullptr;  // else ChangeByCaller has done it
    if (HWY_UNLIKELY(caps || args.alibi_slopes != nullptr)) {
      RowChange change = {caps ? Softcap(args.softcap, kLog2E) : Softcap(), args.alibi_slopes != nullptr, 0.0f, 0.0f};
      if (change.alibi) {
        change.slope = ScaleInLog2Units(static_cast<double>(*Offset(args.alibi_slopes, g * args.alibi_stride)));
        change.position = PositionOf(args, t, first_key);
      }
      ChangeRow(change, row, kShortRows ? 0 : span.first_vector, kShortRows ? kShortRowBlock : span.end_vector);
    }
    old_shift[i] = shift_[i];
    shift_[i] = MaskRow<kShortRows>(span, mask, row, shift_[i]);
  }

  // alpha = 2^(old - new) for all rows.
  void ComputeAlpha(const float* old_shift, float* alpha) {
    const FloatTag df;
    for (size_t i = 0; i < rows_; ++i) {
      alpha[i] = old_shift[i] == shift_[i]
                     ? 1.0f
                     : hn::GetLane(Exp2OfDifference(df, hn::Set(df, old_shift[i]), hn::Set(df, shift_[i])));
    }
  }

  // Writes the rows' results and returns true when there is a NaN among the sums.
  bool Finish(const AttentionF32Args& args, std::int64_t first_row) {
    bool nan = false;
    WithElement(element_beside<T>(args.out_element),
                [&](auto element) HWY_ATTR { nan = FinishRows<decltype(element)>(args, first_row); });
    return nan;
  }

  template <class Out>
  HWY_NOINLINE bool FinishRows(const AttentionF32Args& args, std::int64_t first_row) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df), value_dim = static_cast<size_t>(args.value_dim);
    const RowMap<Out> out = {static_cast<Out*>(args.out), args.out_stride, args.out_head_stride, args.group};
    const RowMap<float> lse = {args.lse, args.lse_stride, args.lse_head_stride, args.group};
    const RowMap<const float> sinks = {args.sink, 0, args.sink_stride, args.group};
    auto nan = hn::MaskFromVec(hn::Zero(df));
    for (size_t i = 0; i < rows_; ++i) {
      const std::int64_t row = first_row + static_cast<std::int64_t>(i);
      const float l = hn::GetLane(hn::SumOfLanes(df, hn::Load(df, denominator_ + i * lanes)));
      RowEnd end = {args.partial ? 1.0f : l == 0.0f ? 0.0f : 1.0f / l, 0.0f};
      const bool with_sink = args.sink != nullptr && !args.partial;
      if (with_sink) end = EndWithSink(shift_[i], l, *sinks.At(row));
      const float* sums = sums_ + i * sum_floats_;
      if constexpr (kScaled<T>) ScaleColumns<T>(args.value_channel, args.value_mean, value_dim, l, sums_ + i * sum_floats_);
      if (args.partial) {
        float* to = args.partial + static_cast<size_t>(row - args.row_begin) * (value_dim + 2);
        nan = hn::Or(nan, StoreRow(sums, value_dim, end.factor, to));
        to[value_dim] = shift_[i];
        to[value_dim + 1] = l;
        continue;
      }
      nan = hn::Or(nan, StoreRow(sums, value_dim, end.factor, out.At(row)));
      if (args.lse) *lse.At(row) = with_sink ? end.lse : LogOfDenominator(shift_[i], l);
    }
    return !hn::AllFalse(df, nan);
  }

  bool looks_at_values_ = false;
  size_t rows_ = 0;
  size_t query_floats_ = 0, sum_floats_ = 0;
  float* query_ = nullptr;            // [row][query_floats_], scaled, padded with zeros
  float* sums_ = nullptr;             // [row][sum_floats_]
  float* chains_ = nullptr;           // likewise: of the keys at hand
  bool has_sums_ = false;             // whether anything was added to sums_
  bool boolean_shows_all_ = false;    // of the keys of the block at hand, by its marks
  bool has_chains_ = false;           // whether chains_ are 0
  float* denominator_ = nullptr;      // [row][lanes]
  float* scores_ = nullptr;           // [row][kDecodeKeyBlock]
  float* bias_ = nullptr;             // [kDecodeKeyBlock]
  std::int32_t* excluded_ = nullptr;  // [kDecodeKeyBlock]
  std::int32_t* mod_keys_ = nullptr;  // [kDecodeKeyBlock]
  std::uint16_t* order_ = nullptr;    // [kDecodeKeyBlock + kSpareKeys]
  // [kDecodeKeyBlock], of a block whose keys lie in several pages.
  const T** key_rows_ = nullptr;
  const T** value_rows_ = nullptr;
  float* key_scales_ = nullptr;  // [kDecodeKeyBlock]; these and the following of keys of I8
  float* value_scales_ = nullptr;
  float mean_scores_[kRows] = {};
  bool integers_ = false;  // queries and weights are integers too: these and the following
  size_t query_words_ = 0, sum_words_ = 0;
  std::int16_t* query_integers_ = nullptr;  // [row][query_words_]
  WeightPairs weight_pairs_ = {};           // [row][kStreamKeys]
  std::int32_t* sum_integers_ = nullptr;    // [row][sum_words_], 0 between key blocks
  const T** next_rows_ = nullptr;           // of each key of the next block, see NextKeys
  float query_steps_[kRows] = {};
  float shift_[kRows] = {};
  std::int64_t query_of_row_[kRows] = {}, head_of_row_[kRows] = {};
};

template <bool kShortRows, class T, bool kAccumulates>
static HWY_NOINLINE void DecodeRows(const AttentionF32Args& args) {
  DecodeRun<kShortRows, T, kAccumulates> run;
  run.Place(args.scratch, args.head_dim, args.value_dim);
  run.Rows(args);
}

static bool HasShortRows(std::int64_t head_dim, std::int64_t value_dim) {
  return HWY_MAX(head_dim, value_dim) <= static_cast<std::int64_t>(kShortRow);
}

static std::int32_t DecodeTileKeys(std::int64_t head_dim, std::int64_t value_dim) {
  return static_cast<std::int32_t>(HasShortRows(head_dim, value_dim) ? kShortRowBlock : kDecodeKeyBlock);
}

template <class T, bool kAccumulates>
static void RunDecode(const AttentionF32Args& args) {
  const FlushDenormals flush;
  if (HasShortRows(args.head_dim, args.value_dim)) {
    DecodeRows<true, T, kAccumulates>(args);
  } else {
    DecodeRows<false, T, kAccumulates>(args);
  }
}

template <class T>
static size_t DecodeScratchBytes(std::int64_t head_dim, std::int64_t value_dim, std::int64_t) {
  return DecodeRun<false, T, false>().Place(nullptr, head_dim, value_dim);
}

// kAccumulates: for CPUs with AVX512_VNNI, see IntegerTiles.
template <class T, bool kAccumulates = false>
constexpr AttentionKernel DecodeKernel(const char* name) {
  return {name,
          static_cast<std::int32_t>(DecodeRun<false, T, false>::kRows),
          static_cast<std::int32_t>(kDecodeKeyBlock),
          &DecodeScratchBytes<T>,
          &RunDecode<T, kAccumulates>,
          ElementOf<T>::value,
          &DecodeTileKeys};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
