// The GEMM of int8 weights with rows that are rounded to int8 as well. Products of integers are summed exactly, two at a time,
// in 32 bits; scales and bias come at the end, in one multiply-add.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/gemm_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using WordTag = hn::RebindToSigned<GemmTag>;
using PairTag = hn::Repartition<std::int16_t, WordTag>;

// Rounded rows lie on the stack. So many numbers fit in one row, and the sum of their products into 31 bits.
constexpr std::int64_t kRoundedNumbers = 65536;
static_assert(kRoundedNumbers * kInt8Most * kInt8Most < std::int64_t{1} << 31, "sums are exact");
constexpr std::int64_t kMostRoundedRows = 64;
constexpr std::int64_t kPrefetchProductsBytes = 1024;
// A row without anything above this counts as zeros: its reciprocal might be infinite.
constexpr std::uint32_t kLeastRowBits = (127u - 100u) << 23;

// How products are summed. Numbers of a row are stored as Number, those of a word of W in one word or two (kParts):
// Weights<part> makes of a word what Add multiplies by the part's Row.
struct PairProducts {
  using Number = std::int16_t;
  using Operand = hn::Vec<PairTag>;
  static constexpr int kParts = 2;
  static constexpr std::int32_t kStartOfSum = 0;

  // Even bytes are k and k + 1, odd ones k + 2 and k + 3.
  template <int part, class W>
  static HWY_INLINE Operand Weights(W words) {
    const PairTag d16;
    const auto bytes = hn::BitCast(d16, words);
    return hn::ShiftRight<8>(part == 1 ? bytes : hn::ShiftLeft<8>(bytes));
  }
  static HWY_INLINE Operand Row(const Number* word) {
    std::int32_t pair;
    std::memcpy(&pair, word, sizeof pair);
    return hn::BitCast(PairTag(), hn::Set(WordTag(), pair));
  }
  // ARM sums the products of a vector's halves apart, in `other`.
  template <class V>
  static HWY_INLINE V Add(Operand row, Operand weights, V sum, V& other) {
    return hn::ReorderWidenMulAccumulate(WordTag(), row, weights, sum, other);
  }
  template <class V>
  static HWY_INLINE V Sum(V sum, V other) {
    return hn::RearrangeToOddPlusEven(sum, other);
  }

  static constexpr std::int64_t Place(std::int64_t k) { return k; }
  template <class V>
  static HWY_INLINE void Store(V integers, Number* to) {
    const hn::Rebind<Number, GemmTag> d16;
    hn::StoreU(hn::DemoteTo(d16, integers), d16, to);
  }
};

template <class P>
struct RoundedRows {
  typename P::Number numbers[kRoundedNumbers];  // [row][k], k in whole words, zeros at the end
  float scale[kMostRoundedRows];                // NaN for a row that has something not finite
  std::int32_t start[kMostRoundedRows];         // of the row's sums
};

// One row: q = the nearest integers to a * (127 / largest), the scale largest / 127.
template <class P>
HWY_NOINLINE void RoundRow(const float* HWY_RESTRICT a, std::int64_t k, typename P::Number* HWY_RESTRICT to, float* scale,
                           std::int32_t* start) {
  using Number = typename P::Number;
  const GemmTag df;
  const WordTag di;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(df));
  // As integers, magnitudes have the order of their values, and infinity and NaN come last.
  auto largest = hn::Zero(di);
  std::int64_t i = 0;
  for (; i + lanes <= k; i += lanes) largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(df, a + i))));
  if (i < k) {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(LoadPartial(df, a + i, static_cast<std::size_t>(k - i)))));
  }
  const auto bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  const std::int64_t k_end = WordRows<Int8Weights>(k) * Int8Weights::kSteps;
  const bool is_finite = bits < 0x7F800000u;
  *start = 0;
  if (bits < kLeastRowBits || !is_finite) {
    for (i = 0; i < k_end; ++i) to[i] = 0;
    *scale = is_finite ? 0.0f : NoScale();
    return;
  }
  const float magnitude = FloatOfBits(bits);
  const auto factor = hn::Set(df, static_cast<float>(kInt8Most) / magnitude);
  auto sum = hn::Zero(di);
  for (i = 0; i + lanes <= k; i += lanes) {
    const auto integers = hn::NearestInt(hn::Mul(hn::LoadU(df, a + i), factor));
    sum = hn::Add(sum, integers);
    P::Store(integers, to + i);
  }
  std::int32_t total = hn::GetLane(hn::SumOfLanes(di, sum));
  for (; i < k_end; ++i) {
    const std::int32_t integer = i < k ? hn::GetLane(hn::NearestInt(hn::Mul(hn::Set(df, a[i]), factor))) : 0;
    total += integer;
    to[P::Place(i)] = static_cast<Number>(integer);
  }
  *start = P::kStartOfSum * total;
  *scale = magnitude / static_cast<float>(kInt8Most);
}

// out[i][j] = sum of products * (row_scale[i] * column_scale[j]) + start[j], for some rows and whole vectors of one panel.
template <class P>
struct ProductTile {
  const typename P::Number* a;  // rows a_stride numbers apart
  std::int64_t a_stride;
  const float* row_scale;
  const std::int32_t* row_start;
  const unsigned char* panel;
  std::int64_t padded;  // columns of the panel
  std::int64_t word_rows;
  const float* column_scale;
  const float* bias;
  float* out;
  std::ptrdiff_t out_stride;
};
template <class P>
using ProductTileFunction = void (*)(const ProductTile<P>& tile);

template <class P, class V>
HWY_INLINE void StoreProducts(const ProductTile<P>& tile, std::int64_t row, std::int64_t column, V sum, V other) {
  const GemmTag df;
  const auto products = hn::ConvertTo(df, P::Sum(sum, other));
  const auto scale = hn::Mul(hn::Set(df, tile.row_scale[row]), hn::Load(df, tile.column_scale + column));
  hn::StoreU(hn::MulAdd(products, scale, hn::LoadU(df, tile.bias + column)), df,
             RowOf(tile.out, tile.out_stride, row) + column);
}

#if HWY_HAVE_SCALABLE

constexpr std::int64_t kProductRows = 4;

template <class P, int kRows>
HWY_NOINLINE void ComputeProducts(const ProductTile<P>& tile) {
  const WordTag di;
  const hn::RebindToUnsigned<WordTag> du;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(di));
  for (std::int64_t column = 0; column < tile.padded; column += lanes) {
    auto s0 = hn::Zero(di), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
    const unsigned char* row = tile.panel + column * kWordBytes;
    const typename P::Number* a = tile.a;
    for (std::int64_t i = 0; i < tile.word_rows; ++i, row += tile.padded * kWordBytes, a += Int8Weights::kSteps) {
      const auto words = hn::Load(du, reinterpret_cast<const std::uint32_t*>(row));
      PrefetchLine(row + kPrefetchProductsBytes);
      const auto even = P::template Weights<0>(words), odd = P::template Weights<1>(words);
      const auto add = [&](int r, auto& sum, auto& other) HWY_ATTR {
        sum = P::Add(P::Row(a + r * tile.a_stride), even, sum, other);
        sum = P::Add(P::Row(a + r * tile.a_stride + 2), odd, sum, other);
      };
      add(0, s0, t0);
      if constexpr (kRows > 1) add(1, s1, t1);
      if constexpr (kRows > 2) add(2, s2, t2);
      if constexpr (kRows > 3) add(3, s3, t3);
    }
    StoreProducts(tile, 0, column, s0, t0);
    if constexpr (kRows > 1) StoreProducts(tile, 1, column, s1, t1);
    if constexpr (kRows > 2) StoreProducts(tile, 2, column, s2, t2);
    if constexpr (kRows > 3) StoreProducts(tile, 3, column, s3, t3);
  }
}

template <class P>
HWY_INLINE ProductTileFunction<P> ProductTileFor(std::int64_t, std::int64_t rows) {
  static_assert(P::kParts == 2 && P::kStartOfSum == 0, "pairs");
  static constexpr ProductTileFunction<P> kTiles[] = {ComputeProducts<P, 1>, ComputeProducts<P, 2>, ComputeProducts<P, 3>,
                                                      ComputeProducts<P, 4>};
  return kTiles[rows - 1];
}

#else

// Registers: rows x vectors of sums (twice on ARM), the vectors of W, a pair of A, a product.
constexpr std::int64_t kProductRows = HWY_TARGET == HWY_AVX3 ? 8 : HWY_ARCH_X86 && !kSixteenWithFma ? 5 : HWY_ARCH_ARM ? 4 : 3;

template <class P, int kRows, int kVectors>
HWY_NOINLINE void ComputeProducts(const ProductTile<P>& tile) {
  const WordTag di;
  const hn::RebindToUnsigned<WordTag> du;
  using V = hn::Vec<WordTag>;
  V sum[kRows][kVectors], other[kRows][kVectors];
  const typename P::Number* a[kRows];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    a[i] = tile.a + i * tile.a_stride;
    HWY_UNROLL(3)
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = P::kStartOfSum == 0 ? hn::Zero(di) : hn::Set(di, tile.row_start[i]);
      other[i][j] = hn::Zero(di);
    }
  }
  const unsigned char* row = tile.panel;
  const auto add = [&](auto part, std::int64_t k) POLYHEAD_INLINED HWY_ATTR {
    constexpr int kPart = decltype(part)::value;
    typename P::Operand w[kVectors];
    HWY_UNROLL(3)
    for (int j = 0; j < kVectors; ++j) {
      w[j] = P::template Weights<kPart>(hn::Load(du, reinterpret_cast<const std::uint32_t*>(row) + j * kLanes));
    }
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const auto numbers = P::Row(a[i] + k + kPart * Int8Weights::kSteps / P::kParts);
      HWY_UNROLL(3)
      for (int j = 0; j < kVectors; ++j) sum[i][j] = P::Add(numbers, w[j], sum[i][j], other[i][j]);
    }
  };
  const std::int64_t k_end = tile.word_rows * Int8Weights::kSteps;
  for (std::int64_t k = 0; k < k_end; k += Int8Weights::kSteps) {
    HWY_UNROLL(4)
    for (std::int64_t j = 0; j < kVectors * kLanes * kWordBytes; j += kLineBytes)
      PrefetchLine(row + kPrefetchProductsBytes + j);
    ForEachStep<P::kParts>([&](auto part) POLYHEAD_INLINED HWY_ATTR { add(part, k); });
    row += tile.padded * kWordBytes;
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(3)
    for (int j = 0; j < kVectors; ++j) StoreProducts(tile, i, j * kLanes, sum[i][j], other[i][j]);
  }
}

template <class P, int kVectors, std::size_t... rows>
HWY_INLINE ProductTileFunction<P> ProductTileOf(std::int64_t count, std::index_sequence<rows...>) {
  static constexpr ProductTileFunction<P> kTiles[] = {ComputeProducts<P, static_cast<int>(rows) + 1, kVectors>...};
  return kTiles[count - 1];
}

template <class P>
HWY_INLINE ProductTileFunction<P> ProductTileFor(std::int64_t vectors, std::int64_t rows) {
  constexpr auto kEach = std::make_index_sequence<kProductRows>();
  if (vectors == 1) return ProductTileOf<P, 1>(rows, kEach);
  if (vectors == 2 || kPanelVectors == 2) return ProductTileOf<P, 2>(rows, kEach);
  return ProductTileOf<P, kPanelVectors>(rows, kEach);
}

#endif

template <class P>
HWY_NOINLINE void RunProductGemm(const GemmF32Args& args) {
  alignas(64) RoundedRows<P> rounded;
  alignas(64) float sums[kProductRows * kPanelWidth];
  alignas(64) float bias_buffer[kPanelWidth];
  const std::int64_t word_rows = WordRows<Int8Weights>(args.k), a_stride = word_rows * Int8Weights::kSteps;
  // Whole tiles, where so many rows have room.
  const std::int64_t room = Smaller(kRoundedNumbers / a_stride, kMostRoundedRows),
                     unit = room < kProductRows ? 1 : kProductRows;
  const std::int64_t block_rows = EvenShare(args.m, room / unit * unit, unit);
  for (std::int64_t row = 0; row < args.m; row += block_rows) {
    const std::int64_t rows = Smaller(block_rows, args.m - row);
    for (std::int64_t i = 0; i < rows; ++i) {
      RoundRow<P>(RowOf(args.a, args.a_stride, row + i), args.k, rounded.numbers + i * a_stride, &rounded.scale[i],
                  &rounded.start[i]);
    }
    for (std::int64_t column = args.n_begin; column < args.n_end; column += kPanelWidth) {
      const Panel panel = PanelAt(args, column);
      const bool finish = NeedsFinish(args, panel);
      const std::int64_t vectors = HWY_HAVE_SCALABLE ? 1 : panel.padded * kPanelVectors / kPanelWidth;
      ProductTile<P> tile;
      tile.a_stride = a_stride;
      tile.panel = PackedPanel<Int8Weights>(args, column);
      tile.padded = panel.padded;
      tile.word_rows = word_rows;
      tile.column_scale = reinterpret_cast<const float*>(tile.panel + word_rows * panel.padded * kWordBytes);
      tile.bias = PaddedBias(args, column, panel.columns, panel.padded, bias_buffer);
      for (std::int64_t i = 0; i < rows;) {
        const std::int64_t left = rows - i;
        const std::int64_t tile_rows = left >= 2 * kProductRows || left == kProductRows ? kProductRows
                                       : left > kProductRows                            ? (left + 1) / 2
                                                                                        : left;
        tile.a = rounded.numbers + i * a_stride;
        tile.row_scale = rounded.scale + i;
        tile.row_start = rounded.start + i;
        tile.out = finish ? sums : RowOf(args.c, args.c_stride, row + i) + column;
        tile.out_stride = finish ? kPanelWidth * kFloatBytes : args.c_stride;
        ProductTileFor<P>(vectors, tile_rows)(tile);
        if (finish) FinishAny(args, sums, kPanelWidth, row + i, tile_rows, column, panel.columns);
        i += tile_rows;
      }
    }
  }
}

// Rows of more numbers stay f32.
template <class P>
void ProductGemm(const GemmF32Args& args) {
  if (args.k > kRoundedNumbers) return WeightsGemm<Int8Weights>(args);
  if (args.m <= 0 || args.n_begin >= args.n_end) return;
  const FlushDenormals environment;
  RunProductGemm<P>(args);
}

template <class P>
constexpr GemmKernel ProductsKernel(const char* name) {
  return {name, kPanelWidth, kProductRows, WeightsPackedBytes<Int8Weights>, PackWeights<Int8Weights>, ProductGemm<P>};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
