// The two register tiles of transposed attention, where lane = query row:
//
//   ScoreTile   S[key][row] = sum_d K[key][d] Q'[d][row]      `rows` keys x `vectors` vectors of query rows
//   ValueTile   O[e][row]  (+)= sum_key V[key][e] P[key][row]  `rows` value columns x `vectors` vectors of query rows
//
// Both read K and V row-major in f32, one broadcast an element, so nothing is packed and no head size has a tail. A tile keeps
// rows * vectors accumulators, `vectors` operands and one broadcast in registers:
//   32 registers: 8 x 3 (24 + 3 + 1), 12 x 2, 16 x 1, 6 x 4    16 registers: 4 x 3 (12 + 3 + 1), 6 x 2, 8 x 1
// One-vector tiles are bound by loads (about 3/4 of peak). Every element is one chain over d, or over keys in ascending order,
// so the tile it falls in does not change its bits.
//
// The tiles stay out of line: gcc 12 spills accumulators when they are inlined into their loops.
#pragma once

#include "simd/hwy/compat.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/row_map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// How a step's products join the sums. They are a chain of their own, which begins at zero, and the chain is added: O = PV, O
// += (PV), O = alpha O + (PV). `extend`: O is the chain so far, and goes on.
enum class ValueMode { overwrite, extend, add, scale };

// What the sums become at the end of a chain.
template <ValueMode kMode>
HWY_INLINE Floats JoinedSum(const float* HWY_RESTRICT old, const float* HWY_RESTRICT alpha, Floats chain) {
  const FloatTag df;
  if constexpr (kMode == ValueMode::add) return hn::Add(hn::Load(df, old), chain);
  if constexpr (kMode == ValueMode::scale) return hn::MulAdd(hn::Load(df, alpha), hn::Load(df, old), chain);
  return chain;
}

HWY_INLINE Floats JoinedSum(ValueMode mode, const float* old, const float* alpha, Floats chain) {
  if (mode == ValueMode::add) return JoinedSum<ValueMode::add>(old, alpha, chain);
  return mode == ValueMode::scale ? JoinedSum<ValueMode::scale>(old, alpha, chain) : chain;
}

template <ValueMode kMode>
static HWY_NOINLINE void JoinChainAs(const float* HWY_RESTRICT chain, const float* HWY_RESTRICT alpha, size_t width,
                                     size_t value_dim, float* HWY_RESTRICT sums) {
  const FloatTag df;
  for (size_t e = 0; e < value_dim; ++e, chain += width, sums += width) {
    for (size_t j = 0; j < width; j += hn::Lanes(df)) {
      hn::Store(JoinedSum<kMode>(sums + j, alpha + j, hn::Load(df, chain + j)), df, sums + j);
    }
  }
}
// The same of a chain [value_dim][width] in memory; mode: add or scale.
HWY_INLINE void JoinChain(ValueMode mode, const float* chain, const float* alpha, size_t width, size_t value_dim, float* sums) {
  if (mode == ValueMode::add) return JoinChainAs<ValueMode::add>(chain, alpha, width, value_dim, sums);
  JoinChainAs<ValueMode::scale>(chain, alpha, width, value_dim, sums);
}

// What a lane of a tile's step does: sum + a * b. kNumbersAWord: how many numbers of d, or keys, a step takes.
struct SingleProducts {
  static constexpr size_t kNumbersAWord = 1;
  static HWY_INLINE Floats Add(Floats a, Floats b, Floats sum) { return MulAddInPlace(a, b, sum); }
};

// A kernel's template is given its element, or a type that says more: which products it takes.
template <class T>
struct ProductsOf {
  using type = SingleProducts;
};
template <class T>
struct StoredAs {
  using type = T;
};
template <class T>
constexpr size_t kNumbersAWord = ProductsOf<T>::type::kNumbersAWord;

// Whether kernels with transposed scores read K and V of T where they lie, rather than widened or packed a key block at a time.
template <class T>
constexpr bool kReadsInPlace = hwy::IsSame<T, float>();

// Rows that will be needed soon, asked for line by line while tiles compute. Never many at once: hundreds would fill the core's
// queue of misses, and the tiles' own loads would wait behind them.
struct FetchWalk {
  const char* line = nullptr;
  std::ptrdiff_t stride = 0;
  size_t column = 0, columns = 0;  // in bytes
  size_t left = 0;                 // lines

  template <class T>
  HWY_INLINE void Start(const T* first, std::ptrdiff_t row_stride, size_t rows, size_t row_length) {
    line = reinterpret_cast<const char*>(first);
    stride = row_stride;
    column = 0;
    columns = row_length * sizeof(T);
    left = rows * ((columns + 63) / 64);
  }
  HWY_INLINE void Next() {
    __builtin_prefetch(line + column, 0, 3);
    column += 64;
    if (column >= columns) {
      column = 0;
      line = Offset(line, stride);
    }
  }
  // What goes with four steps of a tile of kRows: head size and value size being equal, all tiles together see to a whole
  // block.
  template <int kRows>
  HWY_INLINE void Turn() {
    constexpr size_t kLines = (kRows + 3) / 4;
    if (left == 0) return;
    POLYHEAD_UNROLL for (size_t i = 0; i < kLines; ++i) Next();
    left -= HWY_MIN(left, kLines);
  }
  // All that goes with a tile of `steps` steps at once.
  template <int kRows>
  HWY_INLINE void WholeTile(size_t steps) {
    for (size_t step = 0; step < steps && left > 0; step += 4) Turn<kRows>();
  }
};

// What is worth fetching while a tile of keys is computed. Operands are of T.
template <class T>
struct Prefetch {
  using Stored = typename StoredAs<T>::type;
  static constexpr size_t kLine = 64 / sizeof(Stored);

  // Values, which go with scores, and keys of the next block, which go with values. The values are of the block at hand where
  // they are read in place, else of the next one too.
  FetchWalk values, keys;
  // Rows of queries for a later row block, and rows of results for this one: those transposes would wait for them row by row.
  RowMap<const Stored> query;
  RowMap<Stored> out;
  std::int64_t query_row = 0, query_end = 0, out_row = 0, out_end = 0;

  // The share of `count` keys.
  HWY_INLINE void FetchRows(size_t head_dim, size_t value_dim, size_t count) {
    const std::int64_t rows = static_cast<std::int64_t>(count + 1) / 2;
    for (const std::int64_t end = HWY_MIN(query_end, query_row + rows); query_row < end; ++query_row) {
      const Stored* row = query.At(query_row);
      for (size_t d = 0; d < head_dim; d += kLine) __builtin_prefetch(row + d, 0, 2);
    }
    for (const std::int64_t end = HWY_MIN(out_end, out_row + rows); out_row < end; ++out_row) {
      const Stored* row = out.At(out_row);
      for (size_t e = 0; e < value_dim; e += kLine) __builtin_prefetch(row + e, 1, 2);
    }
  }
};

#if HWY_HAVE_SCALABLE

// Vectors without a size can't be array elements: 4 x 2 named accumulators, 1 to 4 rows, 1 or 2 vectors.
struct TileLimits {
  static constexpr int kVectors = 2;
  static constexpr int kRowBlock = 32;  // whole tiles at 128, 256 and 512 bits; a constant, as the table needs
  static constexpr int Rows(int) { return 4; }
};

template <int kRows, int kVectors>
static HWY_NOINLINE void ScoreTile(const float* HWY_RESTRICT key, std::ptrdiff_t key_stride, const float* HWY_RESTRICT query,
                                   size_t head_dim, float* HWY_RESTRICT scores, float* HWY_RESTRICT max) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), width = kVectors * lanes;
  const float* HWY_RESTRICT k0 = key;
  const float* HWY_RESTRICT k1 = Offset(key, key_stride * (kRows > 1 ? 1 : 0));
  const float* HWY_RESTRICT k2 = Offset(key, key_stride * (kRows > 2 ? 2 : 0));
  const float* HWY_RESTRICT k3 = Offset(key, key_stride * (kRows > 3 ? 3 : 0));
  Floats c00 = hn::Zero(df), c10 = c00, c20 = c00, c30 = c00, c01 = c00, c11 = c00, c21 = c00, c31 = c00;
  for (size_t d = 0; d < head_dim; ++d) {
    const Floats q0 = hn::Load(df, query + d * width);
    const Floats q1 = kVectors > 1 ? hn::Load(df, query + d * width + lanes) : q0;
    const Floats a0 = hn::Set(df, k0[d]), a1 = hn::Set(df, k1[d]), a2 = hn::Set(df, k2[d]), a3 = hn::Set(df, k3[d]);
    c00 = hn::MulAdd(a0, q0, c00);
    if (kRows > 1) c10 = hn::MulAdd(a1, q0, c10);
    if (kRows > 2) c20 = hn::MulAdd(a2, q0, c20);
    if (kRows > 3) c30 = hn::MulAdd(a3, q0, c30);
    if (kVectors > 1) {
      c01 = hn::MulAdd(a0, q1, c01);
      if (kRows > 1) c11 = hn::MulAdd(a1, q1, c11);
      if (kRows > 2) c21 = hn::MulAdd(a2, q1, c21);
      if (kRows > 3) c31 = hn::MulAdd(a3, q1, c31);
    }
  }
  const auto finish = [&](size_t column, Floats r0, Floats r1, Floats r2, Floats r3) HWY_ATTR {
    float* HWY_RESTRICT out = scores + column;
    Floats m = MaxDroppingNaN(df, r0, hn::Load(df, max + column));
    hn::Store(r0, df, out);
    if (kRows > 1) m = MaxDroppingNaN(df, r1, m), hn::Store(r1, df, out + width);
    if (kRows > 2) m = MaxDroppingNaN(df, r2, m), hn::Store(r2, df, out + 2 * width);
    if (kRows > 3) m = MaxDroppingNaN(df, r3, m), hn::Store(r3, df, out + 3 * width);
    hn::Store(m, df, max + column);
  };
  finish(0, c00, c10, c20, c30);
  if (kVectors > 1) finish(lanes, c01, c11, c21, c31);
}

template <int kRows, int kVectors, ValueMode kMode>
static HWY_NOINLINE void ValueTile(const float* HWY_RESTRICT value, std::ptrdiff_t value_stride,
                                   const float* HWY_RESTRICT weights, size_t keys, float* HWY_RESTRICT sums,
                                   const float* HWY_RESTRICT alpha) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), width = kVectors * lanes;
  const auto start = [&](size_t row, size_t column) HWY_ATTR {
    return kMode == ValueMode::extend ? hn::Load(df, sums + row * width + column) : hn::Zero(df);
  };
  const size_t second = kVectors > 1 ? lanes : 0;
  constexpr size_t r1 = kRows > 1 ? 1 : 0, r2 = kRows > 2 ? 2 : 0, r3 = kRows > 3 ? 3 : 0;
  Floats c00 = start(0, 0), c10 = start(r1, 0), c20 = start(r2, 0), c30 = start(r3, 0);
  Floats c01 = start(0, second), c11 = start(r1, second), c21 = start(r2, second), c31 = start(r3, second);
  for (size_t key = 0; key < keys; ++key, value = Offset(value, value_stride)) {
    const Floats p0 = hn::Load(df, weights + key * width);
    const Floats p1 = kVectors > 1 ? hn::Load(df, weights + key * width + lanes) : p0;
    const Floats a0 = hn::Set(df, value[0]), a1 = hn::Set(df, value[r1]);
    const Floats a2 = hn::Set(df, value[r2]), a3 = hn::Set(df, value[r3]);
    c00 = hn::MulAdd(a0, p0, c00);
    if (kRows > 1) c10 = hn::MulAdd(a1, p0, c10);
    if (kRows > 2) c20 = hn::MulAdd(a2, p0, c20);
    if (kRows > 3) c30 = hn::MulAdd(a3, p0, c30);
    if (kVectors > 1) {
      c01 = hn::MulAdd(a0, p1, c01);
      if (kRows > 1) c11 = hn::MulAdd(a1, p1, c11);
      if (kRows > 2) c21 = hn::MulAdd(a2, p1, c21);
      if (kRows > 3) c31 = hn::MulAdd(a3, p1, c31);
    }
  }
  const auto finish = [&](float* out, const float* factor, Floats v0, Floats v1, Floats v2, Floats v3) HWY_ATTR {
    hn::Store(JoinedSum<kMode>(out, factor, v0), df, out);
    if (kRows > 1) hn::Store(JoinedSum<kMode>(out + width, factor, v1), df, out + width);
    if (kRows > 2) hn::Store(JoinedSum<kMode>(out + 2 * width, factor, v2), df, out + 2 * width);
    if (kRows > 3) hn::Store(JoinedSum<kMode>(out + 3 * width, factor, v3), df, out + 3 * width);
  };
  finish(sums, alpha, c00, c10, c20, c30);
  if (kVectors > 1) finish(sums + lanes, alpha + lanes, c01, c11, c21, c31);
}

#else  // vectors with a size

// Which tile serves 1, 2, ... vectors of query rows. A shape is a type so that tests can run one target's shape on another.
struct Tiles32Registers8x3 {
  static constexpr int kVectors = 3;
  static constexpr int kRowBlock = kVectors * kFloatLanes;
  static constexpr int Rows(int vectors) { return vectors == 1 ? 16 : vectors == 2 ? 12 : 8; }
};
struct Tiles32Registers6x4 {
  static constexpr int kVectors = 4;
  static constexpr int kRowBlock = kVectors * kFloatLanes;
  static constexpr int Rows(int vectors) { return vectors == 1 ? 16 : vectors == 2 ? 12 : vectors == 3 ? 8 : 6; }
};
struct Tiles16Registers4x3 {
  static constexpr int kVectors = 3;
  static constexpr int kRowBlock = kVectors * kFloatLanes;
  static constexpr int Rows(int vectors) { return vectors == 1 ? 8 : vectors == 2 ? 6 : 4; }
};
// Without a fused multiply-add the product needs a register of its own.
struct Tiles16Registers4x2 {
  static constexpr int kVectors = 2;
  static constexpr int kRowBlock = kVectors * kFloatLanes;
  static constexpr int Rows(int vectors) { return vectors == 1 ? 8 : 4; }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
using TileLimits = Tiles32Registers8x3;
#elif HWY_ARCH_ARM
using TileLimits = Tiles32Registers6x4;
#elif HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
using TileLimits = Tiles16Registers4x2;
#else
using TileLimits = Tiles16Registers4x3;
#endif

// Calls step() `count` times, for whole tiles on AVX2 and AVX-512 four times a turn: fewer instructions beside the
// multiply-adds, which shows where a core's issue slots are shared with another hardware thread's. With each turn goes its
// share of `walk`, elsewhere with the tile's start.
template <int kRows, int kAccumulators, class Step>
HWY_INLINE void InTurns(size_t count, FetchWalk* walk, const Step& step) {
  constexpr int kWholeTile = HWY_TARGET == HWY_AVX2 ? 12 : HWY_TARGET == HWY_AVX3 ? 16 : 1000;
  if constexpr (kAccumulators >= kWholeTile) {
    FetchWalk ahead;
    if (walk) ahead = *walk;
    for (; count >= 4; count -= 4) {
      ahead.Turn<kRows>();
      step();
      step();
      step();
      step();
    }
    if (walk) *walk = ahead;
  } else if (walk) {
    walk->WholeTile<kRows>(count);
  }
  for (; count > 0; --count) step();
}

// kBlockVectors above kVectors: the tile covers the last vectors of a wider block. With Products of a depth, a `float` is that
// many numbers of 16 bits, and head_dim and keys count such words.
template <int kRows, int kVectors, int kBlockVectors = kVectors, class Products = SingleProducts>
static HWY_NOINLINE void ScoreTile(const float* HWY_RESTRICT key, std::ptrdiff_t key_stride, const float* HWY_RESTRICT query,
                                   size_t head_dim, float* HWY_RESTRICT scores, float* HWY_RESTRICT max, FetchWalk* walk) {
  const FloatTag df;
  constexpr size_t width = kBlockVectors * kFloatLanes;
  Floats sum[kRows][kVectors];
  POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::Zero(df);
  size_t d = 0;
  InTurns<kRows, kRows * kVectors>(head_dim, walk, [&]() POLYHEAD_INLINED HWY_ATTR {
    Floats q[kVectors];
    POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) q[j] = hn::Load(df, query + d * width + j * kFloatLanes);
    POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) {
      const Floats k = hn::Set(df, Offset(key, i * key_stride)[d]);
      POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] = Products::Add(k, q[j], sum[i][j]);
    }
    ++d;
  });
  POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) {
    // The maximum in several chains, since one over all rows is as long as many of their multiply-adds.
    constexpr int kChains = kVectors == 1 && kRows >= 8 ? 4 : 1;
    Floats m[kChains];
    POLYHEAD_UNROLL for (int i = 0; i < kChains; ++i) m[i] = hn::Load(df, max + j * kFloatLanes);
    POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) {
      m[i % kChains] = MaxDroppingNaN(df, sum[i][j], m[i % kChains]);
      hn::Store(sum[i][j], df, scores + i * width + j * kFloatLanes);
    }
    POLYHEAD_UNROLL for (int i = 1; i < kChains; ++i) m[0] = hn::Max(m[0], m[i]);
    hn::Store(m[0], df, max + j * kFloatLanes);
  }
}

template <int kRows, int kVectors, ValueMode kMode, int kBlockVectors = kVectors, class Products = SingleProducts>
static HWY_NOINLINE void ValueTile(const float* HWY_RESTRICT value, std::ptrdiff_t value_stride,
                                   const float* HWY_RESTRICT weights, size_t keys, float* HWY_RESTRICT sums,
                                   const float* HWY_RESTRICT alpha, FetchWalk* walk) {
  const FloatTag df;
  constexpr size_t width = kBlockVectors * kFloatLanes;
  Floats sum[kRows][kVectors];
  POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) {
    sum[i][j] = kMode == ValueMode::extend ? hn::Load(df, sums + i * width + j * kFloatLanes) : hn::Zero(df);
  }
  InTurns<kRows, kRows * kVectors>(keys, walk, [&]() POLYHEAD_INLINED HWY_ATTR {
    Floats p[kVectors];
    POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) p[j] = hn::Load(df, weights + j * kFloatLanes);
    POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) {
      const Floats v = hn::Set(df, value[i]);
      POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] = Products::Add(v, p[j], sum[i][j]);
    }
    weights += width;
    value = Offset(value, value_stride);
  });
  POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) {
    float* const to = sums + i * width + j * kFloatLanes;
    hn::Store(JoinedSum<kMode>(to, alpha + j * kFloatLanes, sum[i][j]), df, to);
  }
}

#endif  // HWY_HAVE_SCALABLE

// How many of `left` rows the next tile takes. Whole tiles first; a rest that would leave a tile too small to hide the latency
// of its multiply-adds is cut in two halves.
template <int kRows>
HWY_INLINE size_t NextRows(size_t left) {
  if (left >= 2 * kRows || left == kRows) return kRows;
  if (left > kRows) return left - kRows >= (kRows + 1) / 2 ? kRows : (left + 1) / 2;
  return left;
}

// Calls function.template operator()<n>() for the n in [1, kRows] that equals `rows`.
template <int kRows, class Function>
HWY_INLINE void WithRows(size_t rows, const Function& function) {
  if constexpr (kRows > 1) {
    if (rows != kRows) return WithRows<kRows - 1>(rows, function);
  }
  function.template Run<kRows>();
}

template <int kVectors, class Products = SingleProducts>
struct ScoreRows {
  const float* key;
  std::ptrdiff_t key_stride;
  const float* query;
  size_t head_dim;
  float* scores;
  float* max;
  FetchWalk* walk = nullptr;
  template <int kRows>
  HWY_INLINE void Run() const {
#if HWY_HAVE_SCALABLE
    if (walk) walk->WholeTile<kRows>(head_dim);
    ScoreTile<kRows, kVectors>(key, key_stride, query, head_dim, scores, max);
#else
    ScoreTile<kRows, kVectors, kVectors, Products>(key, key_stride, query, head_dim, scores, max, walk);
#endif
  }
};

// The scores of `keys` keys, and the rows' maximum in `max` (which starts at what it held, and never is NaN).
template <int kRows, int kVectors, class T>
HWY_INLINE void ComputeScores(ScoreRows<kVectors, typename ProductsOf<T>::type> tile, size_t keys, size_t value_dim,
                              Prefetch<T>* prefetch) {
  const size_t width = kVectors * hn::Lanes(FloatTag());
  if (prefetch) tile.walk = &prefetch->values;
  while (keys > 0) {
    const size_t rows = NextRows<kRows>(keys);
    if (prefetch) prefetch->FetchRows(tile.head_dim * kNumbersAWord<T>, value_dim, rows);
    WithRows<kRows>(rows, tile);
    tile.key = Offset(tile.key, static_cast<std::ptrdiff_t>(rows) * tile.key_stride);
    tile.scores += rows * width;
    keys -= rows;
  }
}

template <int kVectors, ValueMode kMode, int kBlockVectors = kVectors, class Products = SingleProducts>
struct ValueRows {
  const float* value;
  std::ptrdiff_t value_stride;
  const float* weights;
  size_t keys;
  float* sums;
  const float* alpha;
  FetchWalk* walk = nullptr;
  template <int kRows>
  HWY_INLINE void Run() const {
#if HWY_HAVE_SCALABLE
    if (walk) walk->WholeTile<kRows>(keys);
    ValueTile<kRows, kVectors, kMode>(value, value_stride, weights, keys, sums, alpha);
#else
    ValueTile<kRows, kVectors, kMode, kBlockVectors, Products>(value, value_stride, weights, keys, sums, alpha, walk);
#endif
  }
};

template <int kRows, int kVectors, ValueMode kMode, int kBlockVectors = kVectors, class Products = SingleProducts>
HWY_INLINE void AccumulateValues(ValueRows<kVectors, kMode, kBlockVectors, Products> tile, size_t value_dim) {
  const size_t width = kBlockVectors * hn::Lanes(FloatTag());
  while (value_dim > 0) {
    const size_t rows = NextRows<kRows>(value_dim);
    WithRows<kRows>(rows, tile);
    tile.value += rows;
    tile.sums += rows * width;
    value_dim -= rows;
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
