// Tiles of decode_f32 for short rows of K and V: keys follow one another, sums stay in registers over all keys of a block, and
// what comes next is asked for while the block is computed with. Handling single keys, as decode_tile-inl.h does, would cost
// more there than its streams win.
#pragma once

#include "simd/hwy/decode_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kShortRow = 48;  // elements
constexpr size_t kShortRowBlock = 64;
constexpr size_t kPrefetchRows = 4;

// Four keys that follow one another; K is of T.
template <class T>
struct ScoreQuad {
  const T* key[4];
  const float* query;  // rows of query_floats floats, scaled, padded with zeros to whole vectors
  size_t query_floats;
  size_t head_dim;
  float* scores;  // rows of kDecodeKeyBlock floats
};

#if HWY_HAVE_SCALABLE

struct ShortRowLimits {
  static constexpr size_t kScoreRows = 1;
  static constexpr size_t kValueRows = 1;
  static constexpr size_t ValueVectors(size_t) { return 4; }
};

template <size_t kRows, class T>
static HWY_NOINLINE void ScoresOfNeighbours(const ScoreQuad<T>& quad) {
  static_assert(kRows == 1, "vectors without a size can't be array elements");
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  Floats a = hn::Zero(df), b = a, c = a, e = a;
  for (size_t d = 0; d < quad.head_dim; d += lanes) {
    const size_t left = quad.head_dim - d;
    const Floats q = hn::Load(df, quad.query + d);
    a = hn::MulAdd(LoadFirst(df, quad.key[0] + d, left), q, a);
    b = hn::MulAdd(LoadFirst(df, quad.key[1] + d, left), q, b);
    c = hn::MulAdd(LoadFirst(df, quad.key[2] + d, left), q, c);
    e = hn::MulAdd(LoadFirst(df, quad.key[3] + d, left), q, e);
  }
  StoreFourSums(df, a, b, c, e, quad.scores);
}

#else  // vectors with a size

// Registers: scores kRows * 4 sums + 4 keys + 1 query; values kRows * kVectors sums + kVectors values + 1 weight.
struct ShortRowLimits {
  static constexpr bool kManyRegisters = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM;
  static constexpr size_t kScoreRows = kManyRegisters ? 4 : 2;
  static constexpr size_t kValueRows = 4;
  static constexpr size_t ValueVectors(size_t rows) {
    return rows == 1 ? 8 : kManyRegisters ? (rows == 2 ? 8 : 4) : rows == 2 ? 4 : rows == 3 ? 3 : 2;
  }
};

template <size_t kRows, class T>
static HWY_NOINLINE void ScoresOfNeighbours(const ScoreQuad<T>& quad) {
  const FloatTag df;
  Floats sum[kRows][4];
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) sum[row][i] =
      hn::Zero(df);
  const float* HWY_RESTRICT query = quad.query;
  size_t d = 0;
  for (; d + kFloatLanes <= quad.head_dim; d += kFloatLanes) {
    Floats k[4];
    POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) k[i] = LoadElements(df, quad.key[i] + d);
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

template <size_t kRows = ShortRowLimits::kScoreRows, class T>
HWY_INLINE void ScoresOfShortRows(ScoreQuad<T> quad, size_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    ScoresOfNeighbours<kRows>(quad);
    quad.query += kRows * quad.query_floats;
    quad.scores += kRows * kDecodeKeyBlock;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) ScoresOfShortRows<kRows - 1>(quad, rows);
  }
}

// Sums of a few rows over a few vectors of value columns; K and V are of T. kJoins: sums = alpha * sums + a chain of their own;
// else the sums are a chain, which goes on.
template <class T>
struct ValueStrip {
  const T* value;
  std::ptrdiff_t value_stride;
  size_t keys;
  const float* weights;  // rows of kDecodeKeyBlock floats
  const float* alpha;    // [row]
  float* sums;           // rows of sum_floats floats
  size_t sum_floats;
  const T* next_key;  // nullptr: nothing to fetch
  std::ptrdiff_t key_stride;
  size_t head_dim;
};

#if HWY_HAVE_SCALABLE

template <bool kJoins, size_t kRows, size_t kVectors, class T>
static HWY_NOINLINE void AddStrip(const ValueStrip<T>& strip, size_t columns) {
  static_assert(kRows == 1, "vectors without a size can't be array elements");
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const size_t left1 = columns > lanes ? columns - lanes : 0;
  const size_t left2 = columns > 2 * lanes ? columns - 2 * lanes : 0;
  const size_t left3 = columns > 3 * lanes ? columns - 3 * lanes : 0;
  const size_t at1 = kVectors > 1 ? lanes : 0, at2 = kVectors > 2 ? 2 * lanes : 0, at3 = kVectors > 3 ? 3 * lanes : 0;
  const auto start = [&](size_t at) HWY_ATTR { return kJoins ? hn::Zero(df) : hn::Load(df, strip.sums + at); };
  Floats c0 = start(0), c1 = start(at1), c2 = start(at2), c3 = start(at3);
  const T* HWY_RESTRICT value = strip.value;
  for (size_t key = 0; key < strip.keys; ++key, value = Offset(value, strip.value_stride)) {
    const Floats p = hn::Set(df, strip.weights[key]);
    c0 = hn::MulAdd(p, LoadFirst(df, value, columns), c0);
    if (kVectors > 1) c1 = hn::MulAdd(p, LoadFirst(df, value + at1, left1), c1);
    if (kVectors > 2) c2 = hn::MulAdd(p, LoadFirst(df, value + at2, left2), c2);
    if (kVectors > 3) c3 = hn::MulAdd(p, LoadFirst(df, value + at3, left3), c3);
  }
  const auto finish = [&](size_t at, Floats c) HWY_ATTR {
    if (kJoins) c = hn::MulAdd(hn::Set(df, strip.alpha[0]), hn::Load(df, strip.sums + at), c);
    hn::Store(c, df, strip.sums + at);
  };
  finish(0, c0);
  if (kVectors > 1) finish(at1, c1);
  if (kVectors > 2) finish(at2, c2);
  if (kVectors > 3) finish(at3, c3);
}

#else  // vectors with a size

// `columns` value columns; only the last vector may be incomplete.
template <bool kJoins, size_t kRows, size_t kVectors, class T>
static HWY_NOINLINE void AddStrip(const ValueStrip<T>& strip, size_t columns) {
  const FloatTag df;
  Floats sum[kRows][kVectors];
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j) {
    sum[row][j] = kJoins ? hn::Zero(df) : hn::Load(df, strip.sums + row * strip.sum_floats + j * kFloatLanes);
  }
  const T* HWY_RESTRICT value = strip.value;
  const float* HWY_RESTRICT weights = strip.weights;
  const size_t rest = columns % kFloatLanes;
  for (size_t key = 0; key < strip.keys; ++key, value = Offset(value, strip.value_stride)) {
    if (strip.next_key && key % kPrefetchRows == 0) {
      PrefetchRows(Offset(strip.next_key, static_cast<std::ptrdiff_t>(key) * strip.key_stride), strip.key_stride, kPrefetchRows,
                   strip.head_dim);
    }
    Floats v[kVectors];
    POLYHEAD_UNROLL for (size_t j = 0; j + 1 < kVectors; ++j) v[j] = LoadElements(df, value + j * kFloatLanes);
    const T* last = value + (kVectors - 1) * kFloatLanes;
    v[kVectors - 1] = HWY_LIKELY(rest == 0) ? LoadElements(df, last) : LoadPartial(df, last, rest);
    POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
      const Floats p = hn::Set(df, weights[row * kDecodeKeyBlock + key]);
      POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j) sum[row][j] = hn::MulAdd(p, v[j], sum[row][j]);
    }
  }
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j) {
    float* const to = strip.sums + row * strip.sum_floats + j * kFloatLanes;
    if (kJoins) sum[row][j] = hn::MulAdd(hn::Set(df, strip.alpha[row]), hn::Load(df, to), sum[row][j]);
    hn::Store(sum[row][j], df, to);
  }
}

#endif  // HWY_HAVE_SCALABLE

template <bool kJoins, size_t kRows, size_t kVectors = ShortRowLimits::ValueVectors(kRows), class T>
HWY_INLINE void AddColumnsOfStrip(ValueStrip<T> strip, size_t columns) {
  const size_t whole = kVectors * hn::Lanes(FloatTag());
  while (columns + hn::Lanes(FloatTag()) > whole) {
    const size_t taken = HWY_MIN(columns, whole);
    AddStrip<kJoins, kRows, kVectors>(strip, taken);
    strip.value += taken;
    strip.sums += taken;
    strip.next_key = nullptr;
    columns -= taken;
    if (columns == 0) return;
  }
  if constexpr (kVectors > 1) AddColumnsOfStrip<kJoins, kRows, kVectors - 1>(strip, columns);
}

template <bool kJoins, size_t kRows = ShortRowLimits::kValueRows, class T>
HWY_INLINE void AddShortValues(ValueStrip<T> strip, size_t rows, size_t columns) {
  for (; rows >= kRows; rows -= kRows) {
    AddColumnsOfStrip<kJoins, kRows>(strip, columns);
    strip.weights += kRows * kDecodeKeyBlock;
    strip.alpha += kRows;
    strip.sums += kRows * strip.sum_floats;
    strip.next_key = nullptr;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) AddShortValues<kJoins, kRows - 1>(strip, rows, columns);
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
