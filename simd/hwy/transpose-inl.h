// Rows into lanes and back. Rows lie at the addresses that a RowMap gives; the transposed side is [column][lane].
#pragma once

#include "simd/hwy/compat.h"
#include "simd/hwy/row_map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

using Tag4 = hn::CappedTag<float, 4>;
using Floats4 = hn::Vec<Tag4>;

HWY_INLINE void Transpose4x4(Tag4 d4, Floats4& a, Floats4& b, Floats4& c, Floats4& d) {
  const Floats4 ac_lower = hn::InterleaveLower(d4, a, c);
  const Floats4 bd_lower = hn::InterleaveLower(d4, b, d);
  const Floats4 ac_upper = hn::InterleaveUpper(d4, a, c);
  const Floats4 bd_upper = hn::InterleaveUpper(d4, b, d);
  a = hn::InterleaveLower(d4, ac_lower, bd_lower);
  b = hn::InterleaveUpper(d4, ac_lower, bd_lower);
  c = hn::InterleaveLower(d4, ac_upper, bd_upper);
  d = hn::InterleaveUpper(d4, ac_upper, bd_upper);
}

// to[column * width + lane] = factor * row(first + lane)[column] for `width` lanes (a multiple of 4); lanes from `rows` on
// repeat the last row, which costs nothing and keeps padding from ever being special. With kScale false the bits are moved
// as they are, so that any 4-byte payload goes through.
template <bool kScale>
static HWY_NOINLINE void RowsToLanes(const RowMap<const float>& map, std::int64_t first, size_t rows, size_t width,
                                     size_t columns, float factor, float* HWY_RESTRICT to) {
  const Tag4 d4;
  const Floats4 scale = hn::Set(d4, factor);
  const std::int64_t last = first + static_cast<std::int64_t>(rows) - 1;
  for (size_t lane = 0; lane < width; lane += 4) {
    const float* HWY_RESTRICT row[4];
    for (size_t i = 0; i < 4; ++i) row[i] = map.At(HWY_MIN(first + static_cast<std::int64_t>(lane + i), last));
    float* HWY_RESTRICT out = to + lane;
    size_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      Floats4 a = hn::LoadU(d4, row[0] + column);
      Floats4 b = hn::LoadU(d4, row[1] + column);
      Floats4 c = hn::LoadU(d4, row[2] + column);
      Floats4 d = hn::LoadU(d4, row[3] + column);
      if (kScale) {
        a = hn::Mul(scale, a);
        b = hn::Mul(scale, b);
        c = hn::Mul(scale, c);
        d = hn::Mul(scale, d);
      }
      Transpose4x4(d4, a, b, c, d);
      hn::Store(a, d4, out + column * width);
      hn::Store(b, d4, out + (column + 1) * width);
      hn::Store(c, d4, out + (column + 2) * width);
      hn::Store(d, d4, out + (column + 3) * width);
    }
    for (; column < columns; ++column) {
      for (size_t i = 0; i < 4; ++i) {
        if (kScale) {
          out[column * width + i] = factor * row[i][column];
        } else {
          __builtin_memcpy(&out[column * width + i], row[i] + column, sizeof(float));
        }
      }
    }
  }
}

// row(first + lane)[column] = factor[lane] * from[column * width + lane] for the first `rows` lanes. Adding 0 makes a zero
// positive: its sign would tell which masked keys were visited.
static HWY_NOINLINE void LanesToRows(const float* HWY_RESTRICT from, size_t width, const float* HWY_RESTRICT factor, size_t rows,
                                     size_t columns, const RowMap<float>& map, std::int64_t first) {
  const Tag4 d4;
  const Floats4 zero = hn::Zero(d4);
  for (size_t lane = 0; lane < rows; lane += 4) {
    const size_t valid = HWY_MIN(rows - lane, size_t{4});
    float* HWY_RESTRICT row[4];
    for (size_t i = 0; i < 4; ++i) row[i] = map.At(first + static_cast<std::int64_t>(lane + HWY_MIN(i, valid - 1)));
    const Floats4 scale = hn::Load(d4, factor + lane);
    size_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      const float* HWY_RESTRICT in = from + column * width + lane;
      Floats4 a = hn::MulAdd(scale, hn::Load(d4, in), zero);
      Floats4 b = hn::MulAdd(scale, hn::Load(d4, in + width), zero);
      Floats4 c = hn::MulAdd(scale, hn::Load(d4, in + 2 * width), zero);
      Floats4 d = hn::MulAdd(scale, hn::Load(d4, in + 3 * width), zero);
      Transpose4x4(d4, a, b, c, d);
      hn::StoreU(a, d4, row[0] + column);
      if (valid > 1) hn::StoreU(b, d4, row[1] + column);
      if (valid > 2) hn::StoreU(c, d4, row[2] + column);
      if (valid > 3) hn::StoreU(d, d4, row[3] + column);
    }
    for (; column < columns; ++column) {
      for (size_t i = 0; i < valid; ++i) row[i][column] = factor[lane + i] * from[column * width + lane + i] + 0.0f;
    }
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
