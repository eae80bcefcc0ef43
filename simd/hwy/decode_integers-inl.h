// Tiles of decode_i8 that multiply integers: with several rows widening the integers of K and V to f32, and multiplying them
// there, would take longer than reading them. Integers of 16 bits are multiplied in pairs, twice as many to a vector.
//
//   scores   q is written as q_step * integers of 16 bits, a row at a time:       S = q_step * (K8 . q16), added up exactly
//   values   weights, scales included, as w_step * integers of 16 bits, a row     O += w_step * (w16 . V8), exact for a key
//   block
//            and key block at a time
//
// An integer of 16 bits is within 2^-16 of the row's largest: far less than what K and V have lost. Sums of a key block are
// exact whatever their order, so pages and tiles change no bit.
//
// Half the bytes of bf16 are read in the time in which integers are multiplied, if they are asked for early enough: while a
// block's scores are computed its values are brought into the second-level cache, and while its values are added up the next
// block's keys. Left to the processor's own fetching ahead, which serves each loop by itself, a key takes 17 ns instead of 11.5
// (Zen 4, four rows, heads of 128, from memory); brought into the first-level cache, where a block has no room, 14.
//
// Only where instructions add neighbouring products: on others lanes would have to be sorted.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/decode_tile-inl.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/key_block-inl.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// A sum of a pair of products of 127 * 32,767 each, over this many elements, fits 31 bits.
constexpr std::int64_t kMostIntegerElements = 512;
static_assert(kDecodeKeyBlock <= 512, "a key block's sums fit as well");
constexpr float kLargestWord = 32767.0f;
// Of numbers smaller than this no step can be formed.
constexpr float kSmallestLargest = 0x1p-110f;

// The integers that weights of a key block have become, in the order in which keys are taken: of tile i, which is four keys,
// the first two in first[i], the others in second[i]. 16 bits each, the earlier key in the lower half.
struct WeightPairs {
  std::int32_t* first;
  std::int32_t* second;
};

// What is brought into the second-level cache meanwhile: rows of the keys that are computed with. No columns: nothing.
template <class T>
struct RowsAhead {
  BlockRows<T> rows;
  size_t columns;
};

#if HWY_ARCH_X86

// Whether rows of T are multiplied as integers.
template <class T>
constexpr bool kMultipliesIntegers = kScaled<T>;

using ShortTag = hn::Repartition<std::int16_t, FloatTag>;
using Shorts = hn::Vec<ShortTag>;

// Everything here is of one type of element, for headers that have nothing to do with it. kAccumulates: for CPUs that add pairs
// of products to a sum in one instruction (AVX512_VNNI). The sums are the same.
template <class T, bool kAccumulates>
struct IntegerTiles {
  static constexpr size_t kWordLanes = 2 * static_cast<size_t>(kFloatLanes);
  static constexpr size_t kMostRows = 4;
  static constexpr size_t kTileKeys = 4;
  static constexpr size_t WordsOfRow(size_t columns) { return (columns + kWordLanes - 1) / kWordLanes * kWordLanes; }
  // Registers: rows * keys sums, keys, a query and a product.
  static constexpr size_t ScoreKeys(size_t rows) { return DecodeLimits::kManyRegisters || rows <= 2 ? 4 : 2; }

  static HWY_INLINE Shorts Load(const T* from) {
    const ShortTag dw;
    return hn::PromoteTo(dw, hn::LoadU(hn::Rebind<std::int8_t, ShortTag>(), &from->value));
  }
  static HWY_INLINE Shorts LoadSome(const T* from, size_t count) {
    const ShortTag dw;
    return hn::PromoteTo(dw, LoadPartialLanes(hn::Rebind<std::int8_t, ShortTag>(), &from->value, count));
  }

  // sum[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1]: what "reorder" comes to on x86.
  static HWY_INLINE Ints AddPairs(Shorts a, Shorts b, Ints sum) {
    if constexpr (kAccumulates) {
      __asm__("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
      return sum;
    } else {
      const IntTag di;
      Ints unused = sum;
      return hn::ReorderWidenMulAccumulate(di, a, b, sum, unused);
    }
  }

  // The sum of a vector's groups of four lanes.
  template <class D>
  static HWY_INLINE hn::Vec<hn::CappedTag<std::int32_t, 4>> AddQuartersOf(D, hn::Vec<D> v) {
    if constexpr (hn::MaxLanes(D()) == 4) {
      return v;
    } else {
      const hn::Half<D> half;
      return AddQuartersOf(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
    }
  }

  // The lane sums of four vectors, as StoreFourSums has them of floats.
  static HWY_INLINE void StoreFourLaneSums(Ints a, Ints b, Ints c, Ints d, float* HWY_RESTRICT sums) {
    const IntTag di;
    const Ints ac = hn::Add(hn::InterleaveLower(di, a, c), hn::InterleaveUpper(di, a, c));
    const Ints bd = hn::Add(hn::InterleaveLower(di, b, d), hn::InterleaveUpper(di, b, d));
    const Ints abcd = hn::Add(hn::InterleaveLower(di, ac, bd), hn::InterleaveUpper(di, ac, bd));
    const hn::CappedTag<float, 4> d4;
    hn::StoreU(hn::ConvertTo(d4, AddQuartersOf(di, abcd)), d4, sums);
  }

  // A query, whole vectors of floats, as integers; whole vectors of words, zero beyond. Returns the step, and in *nan whether
  // the query holds something that is not finite: its integers are then 0.
  static HWY_NOINLINE float WriteQuery(const float* HWY_RESTRICT query, size_t floats, size_t words, std::int16_t* to,
                                       bool* nan) {
    const FloatTag df;
    const hn::Rebind<std::int16_t, IntTag> half;
    const size_t lanes = hn::Lanes(df);
    Floats most = hn::Zero(df);
    for (size_t d = 0; d < floats; d += lanes) most = hn::Max(most, hn::Abs(hn::Load(df, query + d)));
    *nan = HoldsNonFinite(query, 0, 1, floats);
    const float largest = *nan ? 0.0f : hn::GetLane(hn::MaxOfLanes(df, most));
    const Floats factor = hn::Set(df, largest < kSmallestLargest ? 0.0f : kLargestWord / largest);
    for (size_t d = 0; d < words; d += lanes) {
      const Floats q = d < floats && !*nan ? hn::Load(df, query + d) : hn::Zero(df);
      hn::StoreU(hn::DemoteTo(half, hn::NearestInt(hn::Mul(q, factor))), half, to + d);
    }
    return largest / kLargestWord;
  }

  // Columns [begin, end) of four of its rows.
  static HWY_INLINE void Fetch(const RowsAhead<T>& ahead, const std::uint16_t* keys, size_t begin, size_t end) {
    end = HWY_MIN(end, ahead.columns);
    if (begin >= end) return;
    const T* row[kTileKeys];
    ahead.rows.Find(keys, row);
    for (; begin < end; begin += 64 / sizeof(T)) {
      POLYHEAD_UNROLL for (size_t i = 0; i < kTileKeys; ++i) PrefetchLineFar(row[i] + begin);
    }
  }

  // Scores of a block's keys, in steps of the queries'.
  struct Scores {
    BlockRows<T> key;
    const std::int16_t* query;  // rows of query_words words
    size_t query_words;
    size_t head_dim;
    float* scores;  // rows of kDecodeKeyBlock floats
  };

  template <size_t kRows, size_t kKeys>
  static HWY_NOINLINE void ScoresOfKeys(const Scores& run, const std::uint16_t* HWY_RESTRICT keys, size_t first_row) {
    const ShortTag dw;
    Ints sum[kRows][kKeys];
    POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) sum[row][i] =
        hn::Zero(IntTag());
    const T* key[kKeys];
    run.key.Find(keys, key);
    const size_t query_words = run.query_words, head_dim = run.head_dim;
    const std::int16_t* HWY_RESTRICT query = run.query + first_row * query_words;
    float* HWY_RESTRICT scores = run.scores + first_row * kDecodeKeyBlock;
    size_t d = 0;
    for (; d + kWordLanes <= head_dim; d += kWordLanes) {
      Shorts k[kKeys];
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) k[i] = Load(key[i] + d);
      POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
        const Shorts q = hn::LoadU(dw, query + row * query_words + d);
        POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) sum[row][i] = AddPairs(k[i], q, sum[row][i]);
      }
    }
    if (d < head_dim) {
      Shorts k[kKeys];
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) k[i] = LoadSome(key[i] + d, head_dim - d);
      POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
        const Shorts q = hn::LoadU(dw, query + row * query_words + d);
        POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) sum[row][i] = AddPairs(k[i], q, sum[row][i]);
      }
    }
    HWY_ALIGN float sums[4];
    if constexpr (kRows == 4 && kKeys < 4) {
      POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) {
        StoreFourLaneSums(sum[0][i], sum[1][i], sum[2][i], sum[3][i], sums);
        float* HWY_RESTRICT to = scores + keys[i];
        POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) to[row * kDecodeKeyBlock] = sums[row];
      }
    } else {
      POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
        const Ints* s = sum[row];
        StoreFourLaneSums(s[0], s[1 % kKeys], s[2 % kKeys], s[3 % kKeys], sums);
        float* HWY_RESTRICT to = scores + row * kDecodeKeyBlock;
        POLYHEAD_UNROLL for (size_t i = 0; i < kKeys; ++i) to[keys[i]] = sums[i];
      }
    }
  }

  template <size_t kKeys, size_t kRows = kMostRows>
  static HWY_INLINE void ScoresOfRows(const Scores& run, const std::uint16_t* keys, size_t row, size_t rows) {
    for (; row + kRows <= rows; row += kRows) ScoresOfKeys<kRows, kKeys>(run, keys, row);
    if constexpr (kRows > 1) {
      if (row < rows) ScoresOfRows<kKeys, kRows - 1>(run, keys, row, rows);
    }
  }

  template <size_t kKeys>
  static HWY_INLINE void ScoresOfOrderBy(const Scores& run, const KeyOrder& order, size_t rows, const RowsAhead<T>& values) {
    for (size_t i = 0; i < order.count; i += kKeys) {
      if (i % kTileKeys == 0) Fetch(values, order.keys + i, 0, values.columns);
      ScoresOfRows<kKeys>(run, order.keys + i, 0, rows);
    }
  }
  static void ScoresOfOrder(const Scores& run, const KeyOrder& order, size_t rows, const RowsAhead<T>& values) {
    if (rows > 2) return ScoresOfOrderBy<ScoreKeys(kMostRows)>(run, order, rows, values);
    ScoresOfOrderBy<4>(run, order, rows, values);
  }

  // A row's weights, scales included, of the keys of an order, as integers. Returns their step. A weight that is NaN makes the
  // step NaN and all integers 0.
  static HWY_NOINLINE float WriteWeights(const float* HWY_RESTRICT weights, const std::uint16_t* HWY_RESTRICT keys,
                                         size_t count, const WeightPairs& pairs) {
    const FloatTag df;
    const IntTag di;
    const size_t lanes = hn::Lanes(df);
    Floats most = hn::Zero(df);
    float largest = 0.0f;
    bool nan = false;
    const bool whole = count == kDecodeKeyBlock;
    if (whole) {
      auto not_a_number = hn::MaskFromVec(most);
      for (size_t i = 0; i < kDecodeKeyBlock; i += lanes) {
        const Floats w = hn::Abs(hn::Load(df, weights + i));
        not_a_number = hn::Or(not_a_number, hn::IsNaN(w));
        most = MaxDroppingNaN(df, w, most);
      }
      nan = !hn::AllFalse(df, not_a_number);
      largest = hn::GetLane(hn::MaxOfLanes(df, most));
    } else {
      for (size_t i = 0; i < count; ++i) {
        const float w = weights[keys[i]] < 0.0f ? -weights[keys[i]] : weights[keys[i]];
        nan |= w != w;
        largest = largest < w ? w : largest;
      }
    }
    const float step = nan ? __builtin_nanf("") : largest / kLargestWord;
    const float factor = nan || largest < kSmallestLargest ? 0.0f : kLargestWord / largest;
    const Floats scale = hn::Set(df, factor);
    if (HWY_LIKELY(whole && !nan)) {
      const Ints lower = hn::Set(di, 0xFFFF);
      for (size_t i = 0; i < kStreamKeys; i += lanes) {
        const auto word = [&](size_t stream) HWY_ATTR {
          return hn::NearestInt(hn::Mul(scale, hn::Load(df, weights + stream * kStreamKeys + i)));
        };
        hn::Store(hn::Or(hn::And(word(0), lower), hn::ShiftLeft<16>(word(1))), di, pairs.first + i);
        hn::Store(hn::Or(hn::And(word(2), lower), hn::ShiftLeft<16>(word(3))), di, pairs.second + i);
      }
      return step;
    }
    const auto word = [&](size_t i) -> std::uint32_t {
      if (i >= count || nan) return 0;
      const hn::CappedTag<float, 4> d4;
      return static_cast<std::uint32_t>(hn::GetLane(hn::NearestInt(hn::Set(d4, factor * weights[keys[i]])))) & 0xFFFF;
    };
    for (size_t tile = 0; tile * kTileKeys < count; ++tile) {
      const size_t i = tile * kTileKeys;
      pairs.first[tile] = static_cast<std::int32_t>(word(i) | word(i + 1) << 16);
      pairs.second[tile] = static_cast<std::int32_t>(word(i + 2) | word(i + 3) << 16);
    }
    return step;
  }

  // Some keys' weighted values.
  struct Values {
    BlockRows<T> value;
    const std::uint16_t* keys;  // spare ones behind the last, up to a whole tile
    size_t tiles;
    WeightPairs weights;  // rows of kStreamKeys
    std::int32_t* sums;   // rows of sum_words; of each kWordLanes columns two vectors, see AddSums
    size_t sum_words;
    size_t columns;
    RowsAhead<T> next_keys;
  };

  // The columns [e, e + kStripWords * kWordLanes) with the sums in registers: rows * 2 kStripWords of them, four of values, and
  // a weight. Going through memory for each four keys, sums take 2.6 times as long. kWhole: no column is missing.
  template <size_t kRows, size_t kStripWords, bool kWhole>
  static HWY_NOINLINE void AddStrip(const Values& run, size_t e) {
    const IntTag di;
    const ShortTag dw;
    constexpr size_t lanes = static_cast<size_t>(kFloatLanes), kVectors = 2 * kStripWords;
    Ints sum[kRows][kVectors];
    POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j) sum[row][j] =
        hn::Load(di, run.sums + row * run.sum_words + e + j * lanes);
    const std::uint16_t* HWY_RESTRICT keys = run.keys;
    const size_t strip_end = e + kStripWords * kWordLanes;
    const size_t fetched_end = strip_end < run.columns ? strip_end : run.next_keys.columns;
    for (size_t tile = 0; tile < run.tiles; ++tile, keys += kTileKeys) {
      const T* value[kTileKeys];
      run.value.Find(keys, value);
      Fetch(run.next_keys, keys, e, fetched_end);
      POLYHEAD_UNROLL for (size_t j = 0; j < kStripWords; ++j) {
        Shorts v[kTileKeys];
        POLYHEAD_UNROLL for (size_t i = 0; i < kTileKeys; ++i) {
          const T* const from = value[i] + e + j * kWordLanes;
          v[i] = kWhole ? Load(from) : LoadSome(from, run.columns - e);
        }
        const Shorts lower01 = hn::InterleaveLower(dw, v[0], v[1]), upper01 = hn::InterleaveUpper(dw, v[0], v[1]);
        const Shorts lower23 = hn::InterleaveLower(dw, v[2], v[3]), upper23 = hn::InterleaveUpper(dw, v[2], v[3]);
        POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
          const Shorts first = hn::BitCast(dw, hn::Set(di, run.weights.first[row * kStreamKeys + tile]));
          const Shorts second = hn::BitCast(dw, hn::Set(di, run.weights.second[row * kStreamKeys + tile]));
          Ints &lower = sum[row][2 * j], &upper = sum[row][2 * j + 1];
          lower = AddPairs(lower23, second, AddPairs(lower01, first, lower));
          upper = AddPairs(upper23, second, AddPairs(upper01, first, upper));
        }
      }
    }
    POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) POLYHEAD_UNROLL for (size_t j = 0; j < kVectors; ++j)
        hn::Store(sum[row][j], di, run.sums + row * run.sum_words + e + j * lanes);
  }

  template <size_t kRows>
  static HWY_INLINE void AddStrips(const Values& run) {
    size_t e = 0;
    for (; e + 2 * kWordLanes <= run.columns; e += 2 * kWordLanes) AddStrip<kRows, 2, true>(run, e);
    for (; e + kWordLanes <= run.columns; e += kWordLanes) AddStrip<kRows, 1, true>(run, e);
    if (e < run.columns) AddStrip<kRows, 1, false>(run, e);
  }

  // The same with few registers: whole rows of values, sums in the first-level cache.
  template <size_t kRows>
  static HWY_NOINLINE void AddWholeRows(const Values& run) {
    const IntTag di;
    const ShortTag dw;
    constexpr size_t lanes = static_cast<size_t>(kFloatLanes);
    const size_t columns = run.columns, sum_words = run.sum_words;
    const std::uint16_t* HWY_RESTRICT keys = run.keys;
    for (size_t tile = 0; tile < run.tiles; ++tile, keys += kTileKeys) {
      const T* value[kTileKeys];
      run.value.Find(keys, value);
      Fetch(run.next_keys, keys, 0, run.next_keys.columns);
      Shorts first[kRows], second[kRows];
      POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
        first[row] = hn::BitCast(dw, hn::Set(di, run.weights.first[row * kStreamKeys + tile]));
        second[row] = hn::BitCast(dw, hn::Set(di, run.weights.second[row * kStreamKeys + tile]));
      }
      for (size_t e = 0; e < columns; e += kWordLanes) {
        const bool whole = e + kWordLanes <= columns;
        Shorts v[kTileKeys];
        if (HWY_LIKELY(whole)) {
          POLYHEAD_UNROLL for (size_t i = 0; i < kTileKeys; ++i) v[i] = Load(value[i] + e);
        } else {
          POLYHEAD_UNROLL for (size_t i = 0; i < kTileKeys; ++i) v[i] = LoadSome(value[i] + e, columns - e);
        }
        const Shorts lower01 = hn::InterleaveLower(dw, v[0], v[1]), upper01 = hn::InterleaveUpper(dw, v[0], v[1]);
        const Shorts lower23 = hn::InterleaveLower(dw, v[2], v[3]), upper23 = hn::InterleaveUpper(dw, v[2], v[3]);
        POLYHEAD_UNROLL for (size_t row = 0; row < kRows; ++row) {
          std::int32_t* HWY_RESTRICT sums = run.sums + row * sum_words + e;
          const Ints lower = AddPairs(lower01, first[row], hn::Load(di, sums));
          const Ints upper = AddPairs(upper01, first[row], hn::Load(di, sums + lanes));
          hn::Store(AddPairs(lower23, second[row], lower), di, sums);
          hn::Store(AddPairs(upper23, second[row], upper), di, sums + lanes);
        }
      }
    }
  }

  template <size_t kRows = kMostRows>
  static HWY_INLINE void AddValuesOfRows(Values run, size_t rows) {
    for (; rows >= kRows; rows -= kRows) {
      if constexpr (DecodeLimits::kManyRegisters) {
        AddStrips<kRows>(run);
      } else {
        AddWholeRows<kRows>(run);
      }
      run.weights.first += kRows * kStreamKeys;
      run.weights.second += kRows * kStreamKeys;
      run.sums += kRows * run.sum_words;
      run.next_keys.columns = 0;
    }
    if constexpr (kRows > 1) {
      if (rows > 0) AddValuesOfRows<kRows - 1>(run, rows);
    }
  }

  static void AddValuesOfOrder(Values run, size_t rows) {
    if (rows <= kMostRows) return AddValuesOfRows(run, rows);
    // Rows that come later find their keys' values in the first-level cache.
    constexpr size_t kTiles = DecodeLimits::kManyRegisters ? 16 : 4;
    const size_t tiles = run.tiles;
    for (size_t i = 0; i < tiles; i += kTiles) {
      run.tiles = HWY_MIN(kTiles, tiles - i);
      AddValuesOfRows(run, rows);
      run.keys += kTiles * kTileKeys;
      run.weights.first += kTiles;
      run.weights.second += kTiles;
    }
  }

  // sums[column] += step * integers, whose columns lie as interleaving leaves them: of every eight the first four in the first
  // vector, the others in the second, each in the eight's own 128 bits. Clears the integers.
  static HWY_NOINLINE void AddSums(std::int32_t* HWY_RESTRICT integers, size_t words, float step, float* HWY_RESTRICT sums,
                                   size_t sum_floats) {
    const hn::CappedTag<std::int32_t, 4> d4;
    const hn::CappedTag<float, 4> df;
    constexpr size_t lanes = static_cast<size_t>(kFloatLanes);
    const auto s = hn::Set(df, step);
    for (size_t e = 0; e < words; e += kWordLanes, integers += kWordLanes) {
      for (size_t j = 0; j < kWordLanes && e + j < sum_floats; j += 4) {
        std::int32_t* from = integers + j / 8 * 4 + j / 4 % 2 * lanes;
        hn::Store(hn::MulAdd(s, hn::ConvertTo(df, hn::Load(d4, from)), hn::Load(df, sums + e + j)), df, sums + e + j);
        hn::Store(hn::Zero(d4), d4, from);
      }
    }
  }
};

#else

template <class T>
constexpr bool kMultipliesIntegers = false;

template <class T, bool kAccumulates>
struct IntegerTiles;

#endif

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
