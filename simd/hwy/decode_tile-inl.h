// Tiles of decode_f32: a few keys x a few rows.
//
// A block's keys are taken in four streams: key 0, 64, 128, 192, then 1, 65, 129, 193 and so on. The processor fetches ahead by
// itself along each as long as the rows that are read together lie in different pages; rows of one page, read side by side,
// stop it, and a single stream waits at the start of every page. Whether lines are asked for on top of that is a matter of the
// CPU (AttentionArgs::fetch_ahead).
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kDecodeKeyBlock = 256;
constexpr size_t kKeyStreams = 4;
constexpr size_t kStreamKeys = kDecodeKeyBlock / kKeyStreams;

// Tiles of scores may take the last keys of an order more than once.
constexpr size_t kSpareKeys = 3;

// The keys [begin, end) of a block, begin < end, in the order in which their values are added up. Leaving out keys that no row
// sees keeps the order of the others. Returns their number.
constexpr size_t OrderKeys(size_t begin, size_t end, std::uint16_t* to) {
  const size_t first = begin / kStreamKeys * kStreamKeys;
  size_t count = 0;
  if (end - first <= kStreamKeys) {
    for (; begin + count < end; ++count) to[count] = static_cast<std::uint16_t>(begin + count);
  } else {
    for (size_t i = 0; i < kStreamKeys; ++i) {
      size_t key = first + i;
      if (key < begin) key += kStreamKeys;
      for (; key < end; key += kStreamKeys) to[count++] = static_cast<std::uint16_t>(key);
    }
  }
  for (size_t i = 0; i < kSpareKeys; ++i) to[count + i] = to[count - 1];
  return count;
}

// Leaves those keys out of an order that no row sees by its stream's mark (marks[i] is that of keys [64 i, 64 i + 64) of the
// block).
inline size_t KeepMarked(const std::uint8_t* marks, size_t count, std::uint16_t* keys) {
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    if (marks[keys[i] / kStreamKeys] & keys_seen) keys[kept++] = keys[i];
  }
  for (size_t i = 0; kept != 0 && i < kSpareKeys; ++i) keys[kept + i] = keys[kept - 1];
  return kept;
}

struct OrderOfWholeBlock {
  constexpr OrderOfWholeBlock() { OrderKeys(0, kDecodeKeyBlock, keys); }
  std::uint16_t keys[kDecodeKeyBlock + kSpareKeys] = {};
};
constexpr OrderOfWholeBlock kOrderOfWholeBlock;

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

// The lane sums of four vectors, each to its place: lanes four apart first, then neighbours, whichever of the four it is.
HWY_INLINE void StoreFourSums(FloatTag df, Floats a, Floats b, Floats c, Floats d, float* HWY_RESTRICT sums) {
#if HWY_HAVE_SCALABLE
  sums[0] = hn::GetLane(hn::SumOfLanes(df, a));
  sums[1] = hn::GetLane(hn::SumOfLanes(df, b));
  sums[2] = hn::GetLane(hn::SumOfLanes(df, c));
  sums[3] = hn::GetLane(hn::SumOfLanes(df, d));
#else
  const Floats ac = hn::Add(hn::InterleaveLower(df, a, c), hn::InterleaveUpper(df, a, c));
  const Floats bd = hn::Add(hn::InterleaveLower(df, b, d), hn::InterleaveUpper(df, b, d));
  const Floats abcd = hn::Add(hn::InterleaveLower(df, ac, bd), hn::InterleaveUpper(df, ac, bd));  // in every 128 bits
  hn::StoreU(AddQuarters(df, abcd), hn::CappedTag<float, 4>(), sums);
#endif
}

// Whether a whole vector of T is a line long as it lies in memory.
template <class T>
constexpr bool kVectorsFillLines = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 && std::is_same_v<T, float>;

// As many elements as a vector has lanes.
template <bool kHalves, class T>
HWY_INLINE Floats LoadOfRow(FloatTag df, const T* from) {
  if constexpr (kHalves && kVectorsFillLines<T>) return LoadHalves(df, from);
  return LoadElements(df, from);
}

// Rows of a block of keys, or of their values: `stride` apart, or where pages put them. They are of T.
template <class T>
struct BlockRows {
  const T* first;  // of key 0 of the block
  std::ptrdiff_t stride;
  const T* const* apart;  // of each key of the block; nullptr: one stride serves them

  // The rows of the keys keys[0] .. keys[kKeys - 1].
  template <size_t kKeys>
  HWY_INLINE void Find(const std::uint16_t* HWY_RESTRICT keys, const T* (&rows)[kKeys]) const {
    if (HWY_LIKELY(apart == nullptr)) {
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) rows[i] = Offset(first, static_cast<std::ptrdiff_t>(keys[i]) * stride);
    } else {
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) rows[i] = apart[keys[i]];
    }
  }
  const T* Row(size_t key) const { return apart ? apart[key] : Offset(first, static_cast<std::ptrdiff_t>(key) * stride); }

  // Asks for the row `ahead` places on in a key's stream, which goes on in the next block. Of rows that pages put somewhere
  // that block's are not known.
  HWY_INLINE void Fetch(size_t key, size_t ahead, size_t columns) const {
    constexpr size_t kToNextBlock = kDecodeKeyBlock - kStreamKeys;
    const size_t there = key + ahead + (key % kStreamKeys + ahead < kStreamKeys ? 0 : kToNextBlock);
    if (HWY_LIKELY(apart == nullptr)) {
      PrefetchRows(Offset(first, static_cast<std::ptrdiff_t>(there) * stride), 0, 1, columns);
    } else if (there < kDecodeKeyBlock) {
      PrefetchRows(apart[there], 0, 1, columns);
    }
  }

  // Whether whole vectors of these rows lie in two lines each, which reading them in halves mends.
  HWY_INLINE bool LieAcrossLines() const {
    if constexpr (kVectorsFillLines<T>) {
      return ((reinterpret_cast<std::uintptr_t>(Row(0)) | static_cast<std::uintptr_t>(stride)) & 63) != 0;
    }
    return false;
  }
};

// What tiles take part in is handed to them by reference, and what differs from tile to tile beside it: a copy with another
// pointer in it is read back in whole vectors right after the pointer was written, and each time waits until that has reached
// the cache, for longer than a tile of short rows takes.

// Scores of a block's keys; K is of T.
template <class T>
struct ScoreRun {
  BlockRows<T> key;
  const float* query;  // rows of query_floats floats, scaled, padded with zeros to whole vectors
  size_t query_floats;
  size_t head_dim;
  float* scores;      // rows of kDecodeKeyBlock floats
  size_t fetch_rows;  // how far ahead rows are asked for; 0: they are not
};

// Some keys of a block, in the order in which they are taken.
struct KeyOrder {
  const std::uint16_t* keys;
  size_t count;
};

// Weighted values of a block's keys; V is of T.
template <class T>
struct ValueRun {
  BlockRows<T> value;
  const float* weights;  // rows of kDecodeKeyBlock floats
  float* sums;           // rows of sum_floats floats
  size_t sum_floats;
  size_t columns;
  size_t fetch_rows;
};

#if HWY_HAVE_SCALABLE

struct DecodeLimits {
  static constexpr size_t kRows = 1;
  static constexpr size_t ScoreKeys(size_t) { return 4; }
  static constexpr size_t ValueKeys(size_t) { return 4; }
};

// One query row times four keys.
template <class T>
HWY_INLINE void StoreFourScores(const T* const (&key)[4], const float* HWY_RESTRICT query, size_t head_dim,
                                float* HWY_RESTRICT scores) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  Floats a = hn::Zero(df), b = a, c = a, e = a;
  for (size_t d = 0; d < head_dim; d += lanes) {
    const size_t left = head_dim - d;
    const Floats q = hn::Load(df, query + d);
    a = hn::MulAdd(LoadFirst(df, key[0] + d, left), q, a);
    b = hn::MulAdd(LoadFirst(df, key[1] + d, left), q, b);
    c = hn::MulAdd(LoadFirst(df, key[2] + d, left), q, c);
    e = hn::MulAdd(LoadFirst(df, key[3] + d, left), q, e);
  }
  StoreFourSums(df, a, b, c, e, scores);
}

template <size_t kRows, size_t kKeys, bool, class T>
static HWY_NOINLINE void ScoresOfKeys(const ScoreRun<T>& run, KeyOrder order, size_t row) {
  static_assert(kRows == 1 && kKeys == 4, "vectors without a size can't be array elements");
  const float* HWY_RESTRICT query = run.query + row * run.query_floats;
  float* HWY_RESTRICT scores = run.scores + row * kDecodeKeyBlock;
  for (size_t first = 0; first < order.count; first += kKeys, order.keys += kKeys) {
    const T* key[4];
    run.key.Find(order.keys, key);
    float sums[4];
    StoreFourScores(key, query, run.head_dim, sums);
    for (size_t i = 0; i < 4; ++i) scores[order.keys[i]] = sums[i];
  }
}

template <size_t kRows, size_t kKeys, bool, class T>
static HWY_NOINLINE void AddValues(const ValueRun<T>& run, const KeyOrder& order, size_t row) {
  static_assert(kRows == 1 && (kKeys == 1 || kKeys == 4), "vectors without a size can't be array elements");
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const float* HWY_RESTRICT weights = run.weights + row * kDecodeKeyBlock;
  float* HWY_RESTRICT sums = run.sums + row * run.sum_floats;
  const std::uint16_t* HWY_RESTRICT keys = order.keys;
  for (size_t i = 0; i + kKeys <= order.count; i += kKeys, keys += kKeys) {
    const T* value[kKeys];
    Floats weight0 = hn::Set(df, weights[keys[0]]), weight1 = weight0, weight2 = weight0, weight3 = weight0;
    run.value.Find(keys, value);
    if (kKeys == 4) {
      weight1 = hn::Set(df, weights[keys[1]]);
      weight2 = hn::Set(df, weights[keys[2]]);
      weight3 = hn::Set(df, weights[keys[3]]);
    }
    for (size_t e = 0; e < run.columns; e += lanes) {
      const size_t left = run.columns - e;
      Floats sum = hn::Load(df, sums + e);
      sum = hn::MulAdd(weight0, LoadFirst(df, value[0] + e, left), sum);
      if constexpr (kKeys == 4) {
        sum = hn::MulAdd(weight1, LoadFirst(df, value[1] + e, left), sum);
        sum = hn::MulAdd(weight2, LoadFirst(df, value[2] + e, left), sum);
        sum = hn::MulAdd(weight3, LoadFirst(df, value[3] + e, left), sum);
      }
      hn::Store(sum, df, sums + e);
    }
  }
}

#else  // vectors with a size

// Registers: scores rows * keys sums + keys + 1 query (or rows queries + 1 key), and a product where there is no fused
// multiply-add; values rows * keys weights + keys + 1 sum, and a mask.
struct DecodeLimits {
  static constexpr bool kManyRegisters = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM;
  static constexpr bool kFused = HWY_ARCH_ARM || HWY_TARGET <= HWY_AVX2;
  static constexpr size_t kRows = 4;
  static constexpr size_t ScoreKeys(size_t rows) {
    return kManyRegisters || rows <= 2 ? 4 : rows == 3 ? (kFused ? 4 : 2) : kFused ? 3 : 2;
  }
  static constexpr size_t ValueKeys(size_t rows) { return kManyRegisters || rows <= 2 ? 4 : 2; }
};

// Tiles of kKeys keys and kRows rows from `row` on, for all keys of an order.
template <size_t kRows, size_t kKeys, bool kHalves, class T>
static HWY_NOINLINE void ScoresOfKeys(const ScoreRun<T>& run, KeyOrder order, size_t row) {
  const FloatTag df;
  const size_t query_floats = run.query_floats, head_dim = run.head_dim;
  const float* HWY_RESTRICT query = run.query + row * query_floats;
  float* HWY_RESTRICT scores = run.scores + row * kDecodeKeyBlock;
  for (size_t first = 0; first < order.count; first += kKeys, order.keys += kKeys) {
    Floats sum[kRows][kKeys];
    POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) sum[j][i] =
        hn::Zero(df);
    const T* key[kKeys];
    run.key.Find(order.keys, key);
    if (run.fetch_rows != 0 && row == 0) {
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) run.key.Fetch(order.keys[i], run.fetch_rows, head_dim);
    }
    size_t d = 0;
    for (; d + kFloatLanes <= head_dim; d += kFloatLanes) {
      Floats k[kKeys];
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) k[i] = LoadOfRow<kHalves>(df, key[i] + d);
      POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) {
        const Floats q = hn::Load(df, query + j * query_floats + d);
        POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) sum[j][i] = hn::MulAdd(k[i], q, sum[j][i]);
      }
    }
    if (d < head_dim) {
      Floats k[kKeys];
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) k[i] = LoadPartial(df, key[i] + d, head_dim - d);
      POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) {
        const Floats q = hn::Load(df, query + j * query_floats + d);
        POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) sum[j][i] = hn::MulAdd(k[i], q, sum[j][i]);
      }
    }
    HWY_ALIGN float sums[4];
    if constexpr (kRows == 4 && kKeys < 4) {
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) {
        StoreFourSums(df, sum[0][i], sum[1][i], sum[2][i], sum[3][i], sums);
        float* HWY_RESTRICT to = scores + order.keys[i];
        POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) to[j * kDecodeKeyBlock] = sums[j];
      }
    } else {
      POLYHEAD_UNROLL for (size_t j = 0; j < kRows; ++j) {
        const Floats* s = sum[j];
        StoreFourSums(df, s[0], s[1 % kKeys], s[2 % kKeys], s[3 % kKeys], sums);
        float* HWY_RESTRICT to = scores + j * kDecodeKeyBlock;
        POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) to[order.keys[i]] = sums[i];
      }
    }
  }
}

// Sums stay in the first-level cache: as many as there are would not fit the registers, and V is read best in whole rows.
template <size_t kRows, size_t kKeys, bool kHalves, class T>
static HWY_NOINLINE void AddValues(const ValueRun<T>& run, const KeyOrder& order, size_t first_row) {
  const FloatTag df;
  const size_t columns = run.columns, sum_floats = run.sum_floats, rest = columns % kFloatLanes;
  const float* HWY_RESTRICT weights = run.weights + first_row * kDecodeKeyBlock;
  float* HWY_RESTRICT sums = run.sums + first_row * sum_floats;
  const std::uint16_t* HWY_RESTRICT keys = order.keys;
  for (size_t i = 0; i + kKeys <= order.count; i += kKeys, keys += kKeys) {
    const T* value[kKeys];
    Floats weight[kRows][kKeys];
    run.value.Find(keys, value);
    if (run.fetch_rows != 0 && first_row == 0) {
      POLYHEAD_UNROLL for (size_t k = 0; k < kKeys; ++k) run.value.Fetch(keys[k], run.fetch_rows, columns);
    }
    POLYHEAD_UNROLL for (size_t k = 0; k < kKeys; ++k) {
      const float* HWY_RESTRICT from = weights + keys[k];
      POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) weight[row][k] = hn::Set(df, from[row * kDecodeKeyBlock]);
    }
    size_t e = 0;
    for (; e + kFloatLanes <= columns; e += kFloatLanes) {
      Floats v[kKeys];
      POLYHEAD_UNROLL for (size_t k = 0; k < kKeys; ++k) v[k] = LoadOfRow<kHalves>(df, value[k] + e);
      POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
        Floats sum = hn::Load(df, sums + row * sum_floats + e);
        POLYHEAD_UNROLL for (size_t k = 0; k < kKeys; ++k) sum = hn::MulAdd(weight[row][k], v[k], sum);
        hn::Store(sum, df, sums + row * sum_floats + e);
      }
    }
    if (rest) {
      Floats v[kKeys];
      POLYHEAD_UNROLL for (size_t k = 0; k < kKeys; ++k) v[k] = LoadPartial(df, value[k] + e, rest);
      POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
        Floats sum = hn::Load(df, sums + row * sum_floats + e);
        POLYHEAD_UNROLL for (size_t k = 0; k < kKeys; ++k) sum = hn::MulAdd(weight[row][k], v[k], sum);
        hn::Store(sum, df, sums + row * sum_floats + e);
      }
    }
  }
}

#endif  // HWY_HAVE_SCALABLE

// The keys of an order and rows `row` to `rows`. kHalves: whole vectors are read in halves, with the same bits.
template <size_t kKeys, bool kHalves, size_t kRows = DecodeLimits::kRows, class T>
HWY_INLINE void ScoresOfRows(const ScoreRun<T>& run, const KeyOrder& order, size_t row, size_t rows) {
  for (; row + kRows <= rows; row += kRows) ScoresOfKeys<kRows, kKeys, kHalves>(run, order, row);
  if constexpr (kRows > 1) {
    if (row < rows) ScoresOfRows<kKeys, kHalves, kRows - 1>(run, order, row, rows);
  }
}

template <size_t kRows, bool kHalves, class T>
HWY_INLINE void AddValuesOfTiles(const ValueRun<T>& run, const KeyOrder& order, size_t row) {
  constexpr size_t kKeys = DecodeLimits::ValueKeys(kRows);
  AddValues<kRows, kKeys, kHalves>(run, order, row);
  const size_t rest = order.count % kKeys;
  if (HWY_UNLIKELY(rest != 0)) AddValues<kRows, 1, false>(run, {order.keys + (order.count - rest), rest}, row);
}

template <bool kHalves, size_t kRows = DecodeLimits::kRows, class T>
HWY_INLINE void AddValuesOfRows(const ValueRun<T>& run, const KeyOrder& order, size_t row, size_t rows) {
  for (; row + kRows <= rows; row += kRows) AddValuesOfTiles<kRows, kHalves>(run, order, row);
  if constexpr (kRows > 1) {
    if (row < rows) AddValuesOfRows<kHalves, kRows - 1>(run, order, row, rows);
  }
}

// Calls add(order) for all of an order's keys: at once where one tile has room for all rows, else a few at a time, so that rows
// that come later find what these keys have in the first-level cache.
template <size_t kKeys, class Add>
HWY_INLINE void ForKeys(KeyOrder order, size_t rows, const Add& add) {
  if (rows <= DecodeLimits::kRows) return add(order);
  for (; order.count > kKeys; order.keys += kKeys, order.count -= kKeys) add({order.keys, kKeys});
  add(order);
}

template <size_t kKeys, class T>
HWY_INLINE void ScoresOfOrder(const ScoreRun<T>& run, const KeyOrder& order, size_t rows) {
  const bool halves = run.key.LieAcrossLines();
  ForKeys<16 / kKeys * kKeys>(order, rows, [&](const KeyOrder& some) HWY_ATTR {
    if (halves) return ScoresOfRows<kKeys, true>(run, some, 0, rows);
    ScoresOfRows<kKeys, false>(run, some, 0, rows);
  });
}

template <class T>
HWY_INLINE void AddValuesOfOrder(const ValueRun<T>& run, const KeyOrder& order, size_t rows) {
  const bool halves = run.value.LieAcrossLines();
  ForKeys<16>(order, rows, [&](const KeyOrder& some) HWY_ATTR {
    if (halves) return AddValuesOfRows<true>(run, some, 0, rows);
    AddValuesOfRows<false>(run, some, 0, rows);
  });
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
