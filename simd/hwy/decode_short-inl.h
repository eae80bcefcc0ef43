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

// Scores of a block's keys, which follow one another, four at a time; K and V are of T.
template <class T>
struct ShortScoreRun {
  BlockRows<T> key;
  size_t keys;
  const float* query;  // rows of query_floats floats, scaled, padded with zeros to whole vectors
  size_t query_floats;
  size_t head_dim;
  float* scores;        // rows of kDecodeKeyBlock floats
  BlockRows<T> values;  // what to ask for meanwhile
  size_t value_dim;     // 0: nothing

  // The rows of four keys from `first` on. The last keys of a block that isn't whole are a four as well, so that a key's score
  // has the same bits in any block.
  HWY_INLINE void Find(size_t first, const T* (&rows)[4]) const {
    POLYHEAD_UNROLL for (size_t i = 0; i < 4; ++i) rows[i] = key.Row(HWY_MIN(first + i, keys - 1));
  }
  HWY_INLINE void FetchValues(size_t first) const {
    if (value_dim != 0) PrefetchRows(values.Row(first), values.stride, 4, value_dim);
  }
};

#if HWY_HAVE_SCALABLE

struct ShortRowLimits {
  static constexpr size_t kScoreRows = 1;
  static constexpr size_t kValueRows = 1;
  static constexpr size_t ValueVectors(size_t) { return 4; }
};

template <size_t kRows, class T>
static HWY_NOINLINE void ScoresOfNeighbours(const ShortScoreRun<T>& run, size_t row) {
  static_assert(kRows == 1, "vectors without a size can't be array elements");
  const float* HWY_RESTRICT query = run.query + row * run.query_floats;
  for (size_t first = 0; first < run.keys; first += 4) {
    if (row == 0) run.FetchValues(first);
    const T* key[4];
    run.Find(first, key);
    StoreFourScores(key, query, run.head_dim, run.scores + row * kDecodeKeyBlock + first);
  }
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
static HWY_NOINLINE void ScoresOfNeighbours(const ShortScoreRun<T>& run, size_t row) {
  const FloatTag df;
  const size_t query_floats = run.query_floats, head_dim = run.head_dim;
  const float* HWY_RESTRICT query = run.query + row * query_floats;
  float* HWY_RESTRICT scores = run.scores + row * kDecodeKeyBlock;
  for (size_t first = 0; first < run.keys; first += 4) {
    if (row == 0) run.FetchValues(first);
    const T* key[4];
    run.Find(first, key);
    Floats sum[kRows][4];
    POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) sum[j][i] = hn::Zero(df);
    size_t d = 0;
    for (; d + kFloatLanes <= head_dim; d += kFloatLanes) {
      Floats k[4];
      POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) k[i] = LoadElements(df, key[i] + d);
      POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) {
        const Floats q = hn::Load(df, query + j * query_floats + d);
        POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) sum[j][i] = hn::MulAdd(k[i], q, sum[j][i]);
      }
    }
    if (d < head_dim) {
      Floats k[4];
      POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) k[i] = LoadPartial(df, key[i] + d, head_dim - d);
      POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) {
        const Floats q = hn::Load(df, query + j * query_floats + d);
        POLYHEAD_UNROLL for (int i = 0; i < 4; ++i) sum[j][i] = hn::MulAdd(k[i], q, sum[j][i]);
      }
    }
    POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) {
      StoreFourSums(df, sum[j][0], sum[j][1], sum[j][2], sum[j][3], scores + j * kDecodeKeyBlock + first);
    }
  }
}

#endif  // HWY_HAVE_SCALABLE

template <size_t kRows = ShortRowLimits::kScoreRows, class T>
HWY_INLINE void ScoresOfShortRows(const ShortScoreRun<T>& run, size_t row, size_t rows) {
  for (; row + kRows <= rows; row += kRows) ScoresOfNeighbours<kRows>(run, row);
  if constexpr (kRows > 1) {
    if (row < rows) ScoresOfShortRows<kRows - 1>(run, row, rows);
  }
}

// Sums of rows over value columns; K and V are of T. kJoins: sums = alpha * sums + a chain of their own; else the sums are a
// chain, which goes on.
template <class T>
struct ValueStrip {
  const T* value;
  std::ptrdiff_t value_stride;
  size_t keys;
  size_t columns;
  const float* weights;  // rows of kDecodeKeyBlock floats
  const float* alpha;    // [row]
  float* sums;           // rows of sum_floats floats
  size_t sum_floats;
  const T* next_key;  // what to ask for meanwhile; nullptr: nothing
  std::ptrdiff_t key_stride;
  size_t head_dim;
};

#if HWY_HAVE_SCALABLE

// kVectors vectors of columns from `column` on.
template <bool kJoins, size_t kRows, size_t kVectors, class T>
static HWY_NOINLINE void AddStrip(const ValueStrip<T>& strip, size_t row, size_t column) {
  static_assert(kRows == 1, "vectors without a size can't be array elements");
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), columns = strip.columns - column;
  const size_t left1 = columns > lanes ? columns - lanes : 0;
  const size_t left2 = columns > 2 * lanes ? columns - 2 * lanes : 0;
  const size_t left3 = columns > 3 * lanes ? columns - 3 * lanes : 0;
  const size_t at1 = kVectors > 1 ? lanes : 0, at2 = kVectors > 2 ? 2 * lanes : 0, at3 = kVectors > 3 ? 3 * lanes : 0;
  float* HWY_RESTRICT sums = strip.sums + row * strip.sum_floats + column;
  const float* HWY_RESTRICT weights = strip.weights + row * kDecodeKeyBlock;
  const auto start = [&](size_t at) HWY_ATTR { return kJoins ? hn::Zero(df) : hn::Load(df, sums + at); };
  Floats c0 = start(0), c1 = start(at1), c2 = start(at2), c3 = start(at3);
  const T* HWY_RESTRICT value = strip.value + column;
  for (size_t key = 0; key < strip.keys; ++key, value = Offset(value, strip.value_stride)) {
    const Floats p = hn::Set(df, weights[key]);
    c0 = hn::MulAdd(p, LoadFirst(df, value, columns), c0);
    if (kVectors > 1) c1 = hn::MulAdd(p, LoadFirst(df, value + at1, left1), c1);
    if (kVectors > 2) c2 = hn::MulAdd(p, LoadFirst(df, value + at2, left2), c2);
    if (kVectors > 3) c3 = hn::MulAdd(p, LoadFirst(df, value + at3, left3), c3);
  }
  const auto finish = [&](size_t at, Floats c) HWY_ATTR {
    if (kJoins) c = hn::MulAdd(hn::Set(df, strip.alpha[row]), hn::Load(df, sums + at), c);
    hn::Store(c, df, sums + at);
  };
  finish(0, c0);
  if (kVectors > 1) finish(at1, c1);
  if (kVectors > 2) finish(at2, c2);
  if (kVectors > 3) finish(at3, c3);
}

#else  // vectors with a size

// kVectors vectors of columns from `column` on; only the last vector may be incomplete.
template <bool kJoins, size_t kRows, size_t kVectors, class T>
static HWY_NOINLINE void AddStrip(const ValueStrip<T>& strip, size_t first_row, size_t column) {
  const FloatTag df;
  const size_t keys = strip.keys, sum_floats = strip.sum_floats;
  float* HWY_RESTRICT sums = strip.sums + first_row * sum_floats + column;
  const float* HWY_RESTRICT weights = strip.weights + first_row * kDecodeKeyBlock;
  Floats sum[kRows][kVectors];
  POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j) {
    sum[row][j] = kJoins ? hn::Zero(df) : hn::Load(df, sums + row * sum_floats + j * kFloatLanes);
  }
  const T* HWY_RESTRICT value = strip.value + column;
  const std::ptrdiff_t value_stride = strip.value_stride;
  const bool fetches = strip.next_key != nullptr && first_row == 0 && column == 0;
  const size_t columns = HWY_MIN(strip.columns - column, kVectors * kFloatLanes), rest = columns % kFloatLanes;
  for (size_t key = 0; key < keys; ++key, value = Offset(value, value_stride)) {
    if (fetches && key % kPrefetchRows == 0) {
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
    float* const to = sums + row * sum_floats + j * kFloatLanes;
    if (kJoins) sum[row][j] = hn::MulAdd(hn::Set(df, strip.alpha[first_row + row]), hn::Load(df, to), sum[row][j]);
    hn::Store(sum[row][j], df, to);
  }
}

#endif  // HWY_HAVE_SCALABLE

// kRows rows and all columns from `column` on, of which there are some.
template <bool kJoins, size_t kRows, size_t kVectors = ShortRowLimits::ValueVectors(kRows), class T>
HWY_INLINE void AddColumnsOfStrip(const ValueStrip<T>& strip, size_t row, size_t column) {
  const size_t lanes = hn::Lanes(FloatTag()), taken = kVectors * lanes;
  for (; column + taken < strip.columns + lanes; column += taken) {
    AddStrip<kJoins, kRows, kVectors>(strip, row, column);
    if (column + taken >= strip.columns) return;
  }
  if constexpr (kVectors > 1) AddColumnsOfStrip<kJoins, kRows, kVectors - 1>(strip, row, column);
}

template <bool kJoins, size_t kRows = ShortRowLimits::kValueRows, class T>
HWY_INLINE void AddShortValues(const ValueStrip<T>& strip, size_t row, size_t rows) {
  for (; row + kRows <= rows; row += kRows) AddColumnsOfStrip<kJoins, kRows>(strip, row, 0);
  if constexpr (kRows > 1) {
    if (row < rows) AddShortValues<kJoins, kRows - 1>(strip, row, rows);
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
