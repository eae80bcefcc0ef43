// Rows into lanes and back. Rows lie at the addresses that a RowMap gives; the transposed side is [column][lane].
#pragma once

#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/row_map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// Rows are moved eight at a time where vectors have 256 bits, else four: a vector holds four columns of row i and, in its upper
// half, of row i + 4, so that Highway's interleaves, which stay within 128 bits, transpose both quarters at once.
#if HWY_HAVE_SCALABLE
using BlockTag = hn::CappedTag<float, 4>;
constexpr size_t kRowsAtOnce = 4;
#else
using BlockTag = hn::CappedTag<float, 8>;
constexpr size_t kRowsAtOnce = hn::MaxLanes(BlockTag());
#endif
using Block = hn::Vec<BlockTag>;
using QuarterTag = hn::CappedTag<float, 4>;

template <class Tag, class T>
HWY_INLINE hn::Vec<Tag> LoadRows(Tag tag, const T* const* row, size_t i, size_t column) {
  const QuarterTag quarter;
  const auto lower = LoadElements(quarter, row[i] + column);
  if constexpr (kRowsAtOnce == 8) {
    return hn::Combine(tag, LoadElements(quarter, row[i + 4] + column), lower);
  } else {
    (void)tag;
    return lower;
  }
}

// Stores rows i and i + 4, as far as they are among the `valid` ones.
template <class Tag>
HWY_INLINE void StoreRows(Tag, hn::Vec<Tag> v, float* const* row, size_t i, size_t valid, size_t column) {
  const QuarterTag quarter;
  if constexpr (kRowsAtOnce == 8) {
    if (i < valid) hn::StoreU(hn::LowerHalf(quarter, v), quarter, row[i] + column);
    if (i + 4 < valid) hn::StoreU(hn::UpperHalf(quarter, v), quarter, row[i + 4] + column);
  } else {
    if (i < valid) hn::StoreU(v, quarter, row[i] + column);
  }
}
template <class Tag, class T>
HWY_INLINE void StoreRows(Tag tag, hn::Vec<Tag> v, T* const* row, size_t i, size_t valid, size_t column) {
  const Tag16<QuarterTag> quarter;
  const Bits16<Tag> bits = Narrow(tag, v, T());
  if constexpr (kRowsAtOnce == 8) {
    if (i < valid) hn::StoreU(hn::LowerHalf(quarter, bits), quarter, &row[i][column].bits);
    if (i + 4 < valid) hn::StoreU(hn::UpperHalf(quarter, bits), quarter, &row[i + 4][column].bits);
  } else {
    if (i < valid) hn::StoreU(bits, quarter, &row[i][column].bits);
  }
}

HWY_INLINE void TransposeQuarters(BlockTag tag, Block& a, Block& b, Block& c, Block& d) {
  const Block ac_lower = hn::InterleaveLower(tag, a, c);
  const Block bd_lower = hn::InterleaveLower(tag, b, d);
  const Block ac_upper = hn::InterleaveUpper(tag, a, c);
  const Block bd_upper = hn::InterleaveUpper(tag, b, d);
  a = hn::InterleaveLower(tag, ac_lower, bd_lower);
  b = hn::InterleaveUpper(tag, ac_lower, bd_lower);
  c = hn::InterleaveLower(tag, ac_upper, bd_upper);
  d = hn::InterleaveUpper(tag, ac_upper, bd_upper);
}

// to[column * width + lane] = factor * row(first + lane)[column] for `width` lanes (whole vectors); lanes from `rows` on repeat
// the last row, which costs nothing and keeps padding from ever being special. With kScale false the factor is none: rows of 16
// bits are but widened, and the bits of f32 rows are moved as they are, so that any 4-byte payload goes through.
template <bool kScale, class T>
static HWY_NOINLINE void RowsToLanes(const RowMap<const T>& map, std::int64_t first, size_t rows, size_t width, size_t columns,
                                     float factor, float* HWY_RESTRICT to, bool fetches_next = false) {
  const BlockTag tag;
  const Block scale = hn::Set(tag, factor);
  const std::int64_t last = first + static_cast<std::int64_t>(rows) - 1;
  for (size_t lane = 0; lane < width; lane += kRowsAtOnce) {
    const T* row[kRowsAtOnce];
    for (size_t i = 0; i < kRowsAtOnce; ++i) row[i] = map.At(HWY_MIN(first + static_cast<std::int64_t>(lane + i), last));
    float* HWY_RESTRICT out = to + lane;
    if (fetches_next && lane + kRowsAtOnce < rows) {  // the next rows: no hardware follows so many short streams
      for (size_t i = 0; i < kRowsAtOnce; ++i) {
        const T* next = map.At(HWY_MIN(first + static_cast<std::int64_t>(lane + kRowsAtOnce + i), last));
        for (size_t d = 0; d < columns; d += 64 / sizeof(T)) __builtin_prefetch(next + d, 0, 3);
      }
    }
    size_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      Block a = LoadRows(tag, row, 0, column);
      Block b = LoadRows(tag, row, 1, column);
      Block c = LoadRows(tag, row, 2, column);
      Block d = LoadRows(tag, row, 3, column);
      if (kScale) {
        a = hn::Mul(scale, a);
        b = hn::Mul(scale, b);
        c = hn::Mul(scale, c);
        d = hn::Mul(scale, d);
      }
      TransposeQuarters(tag, a, b, c, d);
      hn::Store(a, tag, out + column * width);
      hn::Store(b, tag, out + (column + 1) * width);
      hn::Store(c, tag, out + (column + 2) * width);
      hn::Store(d, tag, out + (column + 3) * width);
    }
    for (; column < columns; ++column) {
      for (size_t i = 0; i < kRowsAtOnce; ++i) {
        if constexpr (kScale) {
          out[column * width + i] = factor * ToFloat(row[i][column]);
        } else if constexpr (hwy::IsSame<T, float>()) {
          __builtin_memcpy(&out[column * width + i], row[i] + column, sizeof(float));
        } else {
          out[column * width + i] = ToFloat(row[i][column]);
        }
      }
    }
  }
}

// row(first + lane)[column] = factor[lane] * from[column * width + lane] for the first `rows` lanes. Adding 0 makes a zero
// positive: its sign would tell which masked keys were visited. Returns true when some result is NaN: NaN stays in a sum of
// products, which takes half an operation a vector. Results that are infinite, or of which products are, may pass for NaN.
template <class T>
static HWY_NOINLINE bool LanesToRows(const float* HWY_RESTRICT from, size_t width, const float* HWY_RESTRICT factor,
                                     size_t rows, size_t columns, const RowMap<T>& map, std::int64_t first) {
  const BlockTag tag;
  const Block zero = hn::Zero(tag);
  Block product = zero;
  bool nan_in_rest = false;
  for (size_t lane = 0; lane < rows; lane += kRowsAtOnce) {
    const size_t valid = HWY_MIN(rows - lane, kRowsAtOnce);
    T* row[kRowsAtOnce];
    for (size_t i = 0; i < kRowsAtOnce; ++i) row[i] = map.At(first + static_cast<std::int64_t>(lane + HWY_MIN(i, valid - 1)));
    const Block scale = hn::Load(tag, factor + lane);
    size_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      const float* HWY_RESTRICT in = from + column * width + lane;
      Block a = hn::MulAdd(scale, hn::Load(tag, in), zero);
      Block b = hn::MulAdd(scale, hn::Load(tag, in + width), zero);
      Block c = hn::MulAdd(scale, hn::Load(tag, in + 2 * width), zero);
      Block d = hn::MulAdd(scale, hn::Load(tag, in + 3 * width), zero);
      product = hn::MulAdd(a, b, hn::MulAdd(c, d, product));
      TransposeQuarters(tag, a, b, c, d);
      if (HWY_LIKELY(valid == kRowsAtOnce)) {
        StoreRows(tag, a, row, 0, kRowsAtOnce, column);
        StoreRows(tag, b, row, 1, kRowsAtOnce, column);
        StoreRows(tag, c, row, 2, kRowsAtOnce, column);
        StoreRows(tag, d, row, 3, kRowsAtOnce, column);
      } else {
        StoreRows(tag, a, row, 0, valid, column);
        StoreRows(tag, b, row, 1, valid, column);
        StoreRows(tag, c, row, 2, valid, column);
        StoreRows(tag, d, row, 3, valid, column);
      }
    }
    for (; column < columns; ++column) {
      for (size_t i = 0; i < valid; ++i) {
        const float result = factor[lane + i] * from[column * width + lane + i] + 0.0f;
        row[i][column] = FromFloat<T>(result);
        nan_in_rest |= result != result;
      }
    }
  }
  return nan_in_rest || !hn::AllFalse(tag, hn::IsNaN(product));
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
