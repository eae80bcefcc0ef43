// Attention for few query rows: scores are row-major (lane = key), every key block of K and V is read once for all rows, and
// the speed is that of reading them.
//
// For each key block:  S[row][key] = Q K'          4 keys x a few rows a tile, lane sums brought together by transposing adds
//                      masks, bias; P = 2^(S - m)  vectors along the keys
//                      O[row][e] += P V            a few rows x a few vectors of e
//
// Rows whose result holds a NaN are computed again with blocks of V looked at first, as attention_f32 does.
//
// While K is computed with, V of the same keys is fetched, and during V the next K: two streams in turn, each as long as a
// block.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/key_block-inl.h"
#include "simd/hwy/partial_vector-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/hwy/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kDecodeKeyBlock = 64;

#if !HWY_HAVE_SCALABLE
// The sum of a vector's groups of four lanes.
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> AddQuarters(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return AddQuarters(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

// The lane sums of four vectors, in a fixed order: lanes four apart first, then neighbours.
HWY_INLINE void StoreFourSums(FloatTag df, Floats a, Floats b, Floats c, Floats d, float* HWY_RESTRICT to) {
#if HWY_HAVE_SCALABLE
  to[0] = hn::GetLane(hn::SumOfLanes(df, a));
  to[1] = hn::GetLane(hn::SumOfLanes(df, b));
  to[2] = hn::GetLane(hn::SumOfLanes(df, c));
  to[3] = hn::GetLane(hn::SumOfLanes(df, d));
#else
  const Floats ac = hn::Add(hn::InterleaveLower(df, a, c), hn::InterleaveUpper(df, a, c));
  const Floats bd = hn::Add(hn::InterleaveLower(df, b, d), hn::InterleaveUpper(df, b, d));
  const Floats sums = hn::Add(hn::InterleaveLower(df, ac, bd), hn::InterleaveUpper(df, ac, bd));  // abcd in every 128 bits
  hn::StoreU(AddQuarters(df, sums), hn::CappedTag<float, 4>(), to);
#endif
}

struct ScoreQuad {
  const float* key[4];
  const float* query;  // rows of query_floats floats, scaled, padded with zeros to whole vectors
  size_t query_floats;
  size_t head_dim;
  float* scores;  // rows of kDecodeKeyBlock floats
};

#if HWY_HAVE_SCALABLE

struct DecodeLimits {
  static constexpr size_t kScoreRows = 1;
  static constexpr size_t kValueRows = 1;
  static constexpr size_t ValueVectors(size_t) { return 4; }
};

template <size_t kRows>
static HWY_NOINLINE void ScoresOfFourKeys(const ScoreQuad& quad) {
  static_assert(kRows == 1, "vectors without a size can't be array elements");
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  Floats a = hn::Zero(df), b = a, c = a, e = a;
  for (size_t d = 0; d < quad.head_dim; d += lanes) {
    const auto valid = hn::FirstN(df, quad.head_dim - d);
    const Floats q = hn::Load(df, quad.query + d);
    a = hn::MulAdd(hn::MaskedLoad(valid, df, quad.key[0] + d), q, a);
    b = hn::MulAdd(hn::MaskedLoad(valid, df, quad.key[1] + d), q, b);
    c = hn::MulAdd(hn::MaskedLoad(valid, df, quad.key[2] + d), q, c);
    e = hn::MulAdd(hn::MaskedLoad(valid, df, quad.key[3] + d), q, e);
  }
  StoreFourSums(df, a, b, c, e, quad.scores);
}

#else  // vectors with a size

// Registers: scores kRows * 4 sums + 4 keys + 1 query; values kRows * kVectors sums + kVectors values + 1 weight.
struct DecodeLimits {
  static constexpr bool kManyRegisters = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM;
  static constexpr size_t kScoreRows = kManyRegisters ? 4 : 2;
  static constexpr size_t kValueRows = 4;
  static constexpr size_t ValueVectors(size_t rows) {
    return rows == 1 ? 8 : kManyRegisters ? (rows == 2 ? 8 : 4) : rows == 2 ? 4 : rows == 3 ? 3 : 2;
  }
};

template <size_t kRows>
static HWY_NOINLINE void ScoresOfFourKeys(const ScoreQuad& quad) {
  const FloatTag df;
  Floats sum[kRows][4];
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) sum[row][i] =
      hn::Zero(df);
  const float* HWY_RESTRICT query = quad.query;
  size_t d = 0;
  for (; d + kFloatLanes <= quad.head_dim; d += kFloatLanes) {
    Floats k[4];
    POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) k[i] = hn::LoadU(df, quad.key[i] + d);
    POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
      const Floats q = hn::Load(df, query + row * quad.query_floats + d);
      POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) sum[row][i] = hn::MulAdd(k[i], q, sum[row][i]);
    }
  }
  if (d < quad.head_dim) {
    Floats k[4];
    POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) k[i] = LoadPartial(df, quad.key[i] + d, quad.head_dim - d);
    POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
      const Floats q = hn::Load(df, query + row * quad.query_floats + d);
      POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) sum[row][i] = hn::MulAdd(k[i], q, sum[row][i]);
    }
  }
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
    StoreFourSums(df, sum[row][0], sum[row][1], sum[row][2], sum[row][3], quad.scores + row * kDecodeKeyBlock);
  }
}

#endif  // HWY_HAVE_SCALABLE

template <size_t kRows = DecodeLimits::kScoreRows>
HWY_INLINE void ScoresOfRows(ScoreQuad quad, size_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    ScoresOfFourKeys<kRows>(quad);
    quad.query += kRows * quad.query_floats;
    quad.scores += kRows * kDecodeKeyBlock;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) ScoresOfRows<kRows - 1>(quad, rows);
  }
}

// Sums of a few rows over a few vectors of value columns.
struct ValueStrip {
  const float* value;
  std::ptrdiff_t value_stride;
  size_t keys;
  const float* weights;  // rows of kDecodeKeyBlock floats
  const float* alpha;    // [row]
  float* sums;           // rows of sum_floats floats
  size_t sum_floats;
  const float* next_key;  // nullptr: nothing to fetch
  std::ptrdiff_t key_stride;
  size_t head_dim;
};

constexpr size_t kPrefetchRows = 4;

#if HWY_HAVE_SCALABLE

template <size_t kRows, size_t kVectors>
static HWY_NOINLINE void AddValues(const ValueStrip& strip, size_t columns) {
  static_assert(kRows == 1, "vectors without a size can't be array elements");
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const auto valid0 = hn::FirstN(df, columns);
  const auto valid1 = hn::FirstN(df, columns > lanes ? columns - lanes : 0);
  const auto valid2 = hn::FirstN(df, columns > 2 * lanes ? columns - 2 * lanes : 0);
  const auto valid3 = hn::FirstN(df, columns > 3 * lanes ? columns - 3 * lanes : 0);
  const size_t at1 = kVectors > 1 ? lanes : 0, at2 = kVectors > 2 ? 2 * lanes : 0, at3 = kVectors > 3 ? 3 * lanes : 0;
  const Floats alpha = hn::Set(df, strip.alpha[0]);
  Floats c0 = hn::Mul(alpha, hn::Load(df, strip.sums)), c1 = hn::Mul(alpha, hn::Load(df, strip.sums + at1));
  Floats c2 = hn::Mul(alpha, hn::Load(df, strip.sums + at2)), c3 = hn::Mul(alpha, hn::Load(df, strip.sums + at3));
  const float* HWY_RESTRICT value = strip.value;
  for (size_t key = 0; key < strip.keys; ++key, value = Offset(value, strip.value_stride)) {
    const Floats p = hn::Set(df, strip.weights[key]);
    c0 = hn::MulAdd(p, hn::MaskedLoad(valid0, df, value), c0);
    if (kVectors > 1) c1 = hn::MulAdd(p, hn::MaskedLoad(valid1, df, value + at1), c1);
    if (kVectors > 2) c2 = hn::MulAdd(p, hn::MaskedLoad(valid2, df, value + at2), c2);
    if (kVectors > 3) c3 = hn::MulAdd(p, hn::MaskedLoad(valid3, df, value + at3), c3);
  }
  hn::Store(c0, df, strip.sums);
  if (kVectors > 1) hn::Store(c1, df, strip.sums + at1);
  if (kVectors > 2) hn::Store(c2, df, strip.sums + at2);
  if (kVectors > 3) hn::Store(c3, df, strip.sums + at3);
}

#else  // vectors with a size

// `columns` value columns; only the last vector may be incomplete.
template <size_t kRows, size_t kVectors>
static HWY_NOINLINE void AddValues(const ValueStrip& strip, size_t columns) {
  const FloatTag df;
  Floats sum[kRows][kVectors];
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
    const Floats alpha = hn::Set(df, strip.alpha[row]);
    POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j) {
      sum[row][j] = hn::Mul(alpha, hn::Load(df, strip.sums + row * strip.sum_floats + j * kFloatLanes));
    }
  }
  const float* HWY_RESTRICT value = strip.value;
  const float* HWY_RESTRICT weights = strip.weights;
  const size_t rest = columns % kFloatLanes;
  for (size_t key = 0; key < strip.keys; ++key, value = Offset(value, strip.value_stride)) {
    if (strip.next_key && key % kPrefetchRows == 0) {
      PrefetchRows(Offset(strip.next_key, static_cast<std::ptrdiff_t>(key) * strip.key_stride), strip.key_stride, kPrefetchRows,
                   strip.head_dim);
    }
    Floats v[kVectors];
    POLYHEAD_UNROLL for (size_t j = 0; j + 1 < kVectors; ++j) v[j] = hn::LoadU(df, value + j * kFloatLanes);
    const float* last = value + (kVectors - 1) * kFloatLanes;
    v[kVectors - 1] = HWY_LIKELY(rest == 0) ? hn::LoadU(df, last) : LoadPartial(df, last, rest);
    POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
      const Floats p = hn::Set(df, weights[row * kDecodeKeyBlock + key]);
      POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j) sum[row][j] = hn::MulAdd(p, v[j], sum[row][j]);
    }
  }
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j)
      hn::Store(sum[row][j], df, strip.sums + row * strip.sum_floats + j * kFloatLanes);
}

#endif  // HWY_HAVE_SCALABLE

template <size_t kRows, size_t kVectors = DecodeLimits::ValueVectors(kRows)>
HWY_INLINE void AddValuesOfColumns(ValueStrip strip, size_t columns) {
  const size_t whole = kVectors * hn::Lanes(FloatTag());
  while (columns + hn::Lanes(FloatTag()) > whole) {
    const size_t taken = HWY_MIN(columns, whole);
    AddValues<kRows, kVectors>(strip, taken);
    strip.value += taken;
    strip.sums += taken;
    strip.next_key = nullptr;
    columns -= taken;
    if (columns == 0) return;
  }
  if constexpr (kVectors > 1) AddValuesOfColumns<kRows, kVectors - 1>(strip, columns);
}

template <size_t kRows = DecodeLimits::kValueRows>
HWY_INLINE void AddValuesOfRows(ValueStrip strip, size_t rows, size_t columns) {
  for (; rows >= kRows; rows -= kRows) {
    AddValuesOfColumns<kRows>(strip, columns);
    strip.weights += kRows * kDecodeKeyBlock;
    strip.alpha += kRows;
    strip.sums += kRows * strip.sum_floats;
    strip.next_key = nullptr;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) AddValuesOfRows<kRows - 1>(strip, rows, columns);
  }
}

// The same for one row and a block of V that holds NaN or infinities: keys whose weight is marked as -0 are passed over.
static HWY_NOINLINE void AddSelectedValues(const ValueStrip& strip, size_t columns) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  for (size_t e = 0; e < columns; e += lanes) {
    Floats sum = hn::Mul(hn::Set(df, strip.alpha[0]), hn::Load(df, strip.sums + e));
    const float* HWY_RESTRICT value = strip.value + e;
    for (size_t key = 0; key < strip.keys; ++key, value = Offset(value, strip.value_stride)) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, strip.weights + key, sizeof(bits));
      if (bits == 0x80000000u) continue;
      const Floats v = e + lanes <= columns ? hn::LoadU(df, value) : LoadPartial(df, value, columns - e);
      sum = hn::MulAdd(hn::Set(df, strip.weights[key]), v, sum);
    }
    hn::Store(sum, df, strip.sums + e);
  }
}

// What a row may see of a key block, and what is added to its scores.
struct RowMask {
  std::int32_t begin, end;       // keys of the block
  const std::int32_t* excluded;  // [key]: -1 excluded, 0 allowed, or nullptr
  const float* bias;             // [key] or nullptr
};

// Applies the mask to a row's scores [kDecodeKeyBlock] and returns their maximum, or `shift` where that is greater.
static HWY_NOINLINE float MaskRow(const RowMask& mask, float* HWY_RESTRICT scores, float shift) {
  const FloatTag df;
  const IntTag di;
  const size_t lanes = hn::Lanes(df);
  const Floats minus_infinity = hn::Set(df, kMinusInfinity);
  const Floats lowest = hn::Set(df, kLowestFloat);
  const Floats log2e = hn::Set(df, static_cast<float>(kLog2E));
  const Ints begin = hn::Set(di, mask.begin), end = hn::Set(di, mask.end);
  Floats max = hn::Set(df, shift);
  for (size_t i = 0; i < kDecodeKeyBlock; i += lanes) {
    Floats s = hn::Load(df, scores + i);
    if (mask.bias) {
      const Floats bias = hn::Load(df, mask.bias + i);
      s = hn::IfThenElse(hn::Eq(bias, minus_infinity), minus_infinity, MaxKeepingNaN(df, lowest, hn::MulAdd(bias, log2e, s)));
    }
    if (mask.excluded) {
      const Floats excluded = hn::BitCast(df, hn::Load(di, mask.excluded + i));
      s = hn::IfThenElse(hn::MaskFromVec(excluded), minus_infinity, s);
    }
    const Ints position = hn::Iota(di, static_cast<std::int32_t>(i));
    s = hn::IfThenElse(hn::RebindMask(df, hn::Gt(end, position)), s, minus_infinity);
    s = hn::IfThenElse(hn::RebindMask(df, hn::Gt(begin, position)), minus_infinity, s);
    hn::Store(s, df, scores + i);
    max = MaxDroppingNaN(df, s, max);
  }
  return hn::GetLane(hn::Ceil(hn::MaxOfLanes(df, max)));
}

// Weights in place; denominator[lane] = alpha * denominator[lane] + their sum over the keys of that lane.
template <bool kMarkExcluded>
static HWY_NOINLINE void WeightRow(float* HWY_RESTRICT scores, float shift, float alpha, float* HWY_RESTRICT denominator) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const Floats m = hn::Set(df, shift), minus_infinity = hn::Set(df, kMinusInfinity), minus_zero = hn::Set(df, -0.0f);
  Floats sum = hn::Zero(df);
  for (size_t i = 0; i < kDecodeKeyBlock; i += lanes) {
    const Floats s = hn::Load(df, scores + i);
    Floats p = Exp2OfDifference(df, s, m);
    if (kMarkExcluded) p = hn::IfThenElse(hn::Eq(s, minus_infinity), minus_zero, p);
    hn::Store(p, df, scores + i);
    sum = hn::Add(sum, p);
  }
  hn::Store(hn::MulAdd(hn::Set(df, alpha), hn::Load(df, denominator), sum), df, denominator);
}

// Up to kRows rows on their way through the keys. More rows of a call go in further rounds.
class DecodeRun {
 public:
  static constexpr size_t kRows = 16;

  // Places everything in `memory` and returns the bytes it takes.
  size_t Place(void* memory, std::int64_t head_dim, std::int64_t value_dim) {
    const size_t lanes = hn::Lanes(FloatTag());
    query_floats_ = (static_cast<size_t>(head_dim) + lanes - 1) / lanes * lanes;
    sum_floats_ = (static_cast<size_t>(value_dim) + lanes - 1) / lanes * lanes;
    Carver carver(memory);
    query_ = carver.Take<float>(kRows * query_floats_);
    sums_ = carver.Take<float>(kRows * sum_floats_);
    denominator_ = carver.Take<float>(kRows * lanes);
    scores_ = carver.Take<float>(kRows * kDecodeKeyBlock);
    bias_ = carver.Take<float>(kDecodeKeyBlock);
    excluded_ = carver.Take<std::int32_t>(kDecodeKeyBlock);
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
        again = Finish(args, row) && !looks_at_values_;
      } while (HWY_UNLIKELY(again));
    }
  }

 private:
  void Start(const AttentionF32Args& args, std::int64_t first_row) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    const float scale = ScaleInLog2Units(args.scale);
    const RowMap<const float> query = {args.query, args.query_stride, args.query_head_stride, args.group};
    for (size_t i = 0; i < rows_; ++i) {
      const std::int64_t row = first_row + static_cast<std::int64_t>(i);
      query_of_row_[i] = args.group == 1 ? row : row / args.group;
      head_of_row_[i] = row - query_of_row_[i] * args.group;
      const float* HWY_RESTRICT from = query.At(row);
      float* HWY_RESTRICT to = query_ + i * query_floats_;
      for (size_t d = 0; d < static_cast<size_t>(args.head_dim); ++d) to[d] = from[d] * scale;
      for (size_t d = static_cast<size_t>(args.head_dim); d < query_floats_; ++d) to[d] = 0.0f;
      shift_[i] = kLowestFloat;
      for (size_t e = 0; e < sum_floats_; e += lanes) hn::Store(hn::Zero(df), df, sums_ + i * sum_floats_ + e);
      hn::Store(hn::Zero(df), df, denominator_ + i * lanes);
    }
  }

  void Keys(const AttentionF32Args& args) {
    const std::int64_t block = static_cast<std::int64_t>(kDecodeKeyBlock);
    const std::int64_t first_seen = query_of_row_[0] + args.visible_begin;
    const std::int64_t key_end = HWY_MIN(args.key_end, query_of_row_[rows_ - 1] + args.visible_end);
    std::int64_t key_begin = args.key_begin;
    if (first_seen > key_begin) key_begin += (first_seen - key_begin) / block * block;
    for (std::int64_t key = key_begin; key < key_end; key += block) KeyBlock(args, key, key_end);
  }

  void KeyBlock(const AttentionF32Args& args, std::int64_t first_key, std::int64_t key_end) {
    const size_t keys = static_cast<size_t>(HWY_MIN(key_end - first_key, static_cast<std::int64_t>(kDecodeKeyBlock)));
    const float* key = Offset(args.key, static_cast<std::ptrdiff_t>(first_key) * args.key_stride);
    const float* value = Offset(args.value, static_cast<std::ptrdiff_t>(first_key) * args.value_stride);
    ComputeScores(args, key, value, keys);

    float old_shift[kRows];
    for (size_t i = 0; i < rows_; ++i) ApplyRowMask(args, i, first_key, keys, old_shift);
    const bool selects =
        HWY_UNLIKELY(looks_at_values_) && HoldsNonFinite(value, args.value_stride, keys, static_cast<size_t>(args.value_dim));
    float alpha[kRows];
    ComputeAlpha(old_shift, alpha);
    const size_t lanes = hn::Lanes(FloatTag());
    for (size_t i = 0; i < rows_; ++i) {
      float* row = scores_ + i * kDecodeKeyBlock;
      if (HWY_UNLIKELY(selects)) {
        WeightRow<true>(row, shift_[i], alpha[i], denominator_ + i * lanes);
      } else {
        WeightRow<false>(row, shift_[i], alpha[i], denominator_ + i * lanes);
      }
    }
    ValueStrip strip = {value, args.value_stride, keys,    scores_,         alpha,
                        sums_, sum_floats_,       nullptr, args.key_stride, static_cast<size_t>(args.head_dim)};
    if (HWY_LIKELY(!selects)) {
      strip.next_key = Offset(key, static_cast<std::ptrdiff_t>(kDecodeKeyBlock) * args.key_stride);
      return AddValuesOfRows(strip, rows_, static_cast<size_t>(args.value_dim));
    }
    for (size_t i = 0; i < rows_; ++i) {
      AddSelectedValues(strip, static_cast<size_t>(args.value_dim));
      strip.weights += kDecodeKeyBlock;
      strip.alpha += 1;
      strip.sums += sum_floats_;
    }
  }

  void ComputeScores(const AttentionF32Args& args, const float* key, const float* value, size_t keys) {
    ScoreQuad quad;
    quad.query = query_;
    quad.query_floats = query_floats_;
    quad.head_dim = static_cast<size_t>(args.head_dim);
    for (size_t i = 0; i < keys; i += 4) {
      // The last keys of a block that isn't whole: the same four-key tile, so that a key's score has the same bits in any
      // block.
      for (size_t j = 0; j < 4; ++j) {
        quad.key[j] = Offset(key, static_cast<std::ptrdiff_t>(HWY_MIN(i + j, keys - 1)) * args.key_stride);
      }
      PrefetchRows(Offset(value, static_cast<std::ptrdiff_t>(i) * args.value_stride), args.value_stride, 4,
                   static_cast<size_t>(args.value_dim));
      quad.scores = scores_ + i;
      ScoresOfRows(quad, rows_);
    }
  }

  // Masks the row's scores and raises its shift to them; old_shift[i] is what that was.
  void ApplyRowMask(const AttentionF32Args& args, size_t i, std::int64_t first_key, size_t keys, float* old_shift) {
    const std::int64_t t = query_of_row_[i], g = head_of_row_[i];
    const std::int32_t begin = ClampLimit(t + args.visible_begin - first_key);
    const std::int32_t end = ClampLimit(t + args.visible_end - first_key);
    RowMask mask = {begin, HWY_MIN(end, static_cast<std::int32_t>(keys)), nullptr, nullptr};
    if (args.boolean_mask) {
      const std::uint8_t* from = Offset(args.boolean_mask, t * args.mask_stride + g * args.mask_head_stride +
                                                               static_cast<std::ptrdiff_t>(first_key) * args.mask_key_stride);
      if (ReadKeyMask(from, args.mask_key_stride, keys, excluded_) != Allowed::all) mask.excluded = excluded_;
    }
    if (args.bias) {
      const float* from = Offset(args.bias, t * args.bias_stride + g * args.bias_head_stride +
                                                static_cast<std::ptrdiff_t>(first_key) * args.bias_key_stride);
      for (size_t k = 0; k < keys; ++k) bias_[k] = *Offset(from, static_cast<std::ptrdiff_t>(k) * args.bias_key_stride);
      mask.bias = bias_;
    }
    old_shift[i] = shift_[i];
    shift_[i] = MaskRow(mask, scores_ + i * kDecodeKeyBlock, shift_[i]);
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
    const FloatTag df;
    const size_t lanes = hn::Lanes(df), value_dim = static_cast<size_t>(args.value_dim);
    const RowMap<float> out = {args.out, args.out_stride, args.out_head_stride, args.group};
    const RowMap<float> lse = {args.lse, args.lse_stride, args.lse_head_stride, args.group};
    auto nan = hn::MaskFromVec(hn::Zero(df));
    for (size_t i = 0; i < rows_; ++i) {
      const std::int64_t row = first_row + static_cast<std::int64_t>(i);
      const float l = hn::GetLane(hn::SumOfLanes(df, hn::Load(df, denominator_ + i * lanes)));
      float* to = args.partial ? args.partial + static_cast<size_t>(row - args.row_begin) * (value_dim + 2) : out.At(row);
      const Floats factor = hn::Set(df, args.partial ? 1.0f : l == 0.0f ? 0.0f : 1.0f / l);
      for (size_t e = 0; e < value_dim; e += lanes) {
        // Adding 0 makes a zero positive: its sign would tell which masked keys were visited.
        const Floats v = hn::MulAdd(hn::Load(df, sums_ + i * sum_floats_ + e), factor, hn::Zero(df));
        nan = hn::Or(nan, hn::IsNaN(v));
        if (e + lanes <= value_dim) {
          hn::StoreU(v, df, to + e);
        } else {
          StorePartial(v, df, to + e, value_dim - e);
        }
      }
      if (args.partial) {
        to[value_dim] = shift_[i];
        to[value_dim + 1] = l;
      } else if (args.lse) {
        *lse.At(row) = LogOfDenominator(shift_[i], l);
      }
    }
    return !hn::AllFalse(df, nan);
  }

  bool looks_at_values_ = false;
  size_t rows_ = 0;
  size_t query_floats_ = 0, sum_floats_ = 0;
  float* query_ = nullptr;            // [row][query_floats_], scaled, padded with zeros
  float* sums_ = nullptr;             // [row][sum_floats_]
  float* denominator_ = nullptr;      // [row][lanes]
  float* scores_ = nullptr;           // [row][kDecodeKeyBlock]
  float* bias_ = nullptr;             // [kDecodeKeyBlock]
  std::int32_t* excluded_ = nullptr;  // [kDecodeKeyBlock]
  float shift_[kRows] = {};
  std::int64_t query_of_row_[kRows] = {}, head_of_row_[kRows] = {};
};

static HWY_NOINLINE void DecodeRows(const AttentionF32Args& args) {
  DecodeRun run;
  run.Place(args.scratch, args.head_dim, args.value_dim);
  run.Rows(args);
}

static void RunDecode(const AttentionF32Args& args) {
  const FlushDenormals flush;
  DecodeRows(args);
}

static size_t DecodeScratchBytes(std::int64_t head_dim, std::int64_t value_dim, std::int64_t) {
  return DecodeRun().Place(nullptr, head_dim, value_dim);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
