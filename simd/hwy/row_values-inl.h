// The value step of a block whose rows meet all their keys in one tile, done as results are written:
//
//   O[row][e] = factor[row] * sum_key P[key][row] V[key][e]    4 rows x `vectors` vectors of value columns
//
// Every element is the chain that ValueTile has, so its bits are the same; there is no way back from lanes to rows, and V is
// read in vectors, where a ValueTile of one vector of rows is bound by its loads.
#pragma once

#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/row_map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// What is left to do: `keys` weights [key][width] and the first of their values. No keys: nothing.
struct RowValues {
  const float* weights = nullptr;
  const float* value = nullptr;
  std::ptrdiff_t value_stride = 0;
  size_t width = 0, keys = 0;
};

#if HWY_HAVE_SCALABLE

constexpr bool kHasRowValues = false;
template <class T>
HWY_INLINE bool WriteRowValues(const RowValues&, const float*, size_t, size_t, const RowMap<T>&, std::int64_t) {
  return false;
}

#else

constexpr bool kHasRowValues = true;
constexpr int kRowsOfRowValues = 4;  // lanes are a multiple of it

// Writes to the first `valid` of row[0 .. 4); `nan` becomes NaN where one of all four has one.
template <int kVectors, class T>
static HWY_NOINLINE void RowValueTile(const RowValues& from, size_t first_row, size_t column, const float* HWY_RESTRICT factor,
                                      T* const* row, size_t valid, float* HWY_RESTRICT nan) {
  const FloatTag df;
  constexpr int kRows = kRowsOfRowValues;
  Floats sum[kRows][kVectors];
  POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::Zero(df);
  const float* HWY_RESTRICT value = from.value + column;
  const float* HWY_RESTRICT weights = from.weights + first_row;
  for (size_t key = 0; key < from.keys; ++key, weights += from.width, value = Offset(value, from.value_stride)) {
    Floats v[kVectors];
    POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) v[j] = hn::LoadU(df, value + j * kFloatLanes);
    POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) {
      const Floats p = hn::Set(df, weights[i]);
      POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] = MulAddInPlace(v[j], p, sum[i][j]);
    }
  }
  // Adding 0 makes a zero positive, as LanesToRows has it; 0 times what is infinite may pass for NaN there too.
  const Floats zero = hn::Zero(df);
  Floats product = hn::Load(df, nan);
  POLYHEAD_UNROLL for (int i = 0; i < kRows; ++i) {
    const Floats scale = hn::Set(df, factor[first_row + static_cast<size_t>(i)]);
    Floats of_row = zero;
    POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = hn::MulAdd(scale, sum[i][j], zero);
      of_row = hn::MulAdd(sum[i][j], zero, of_row);
    }
    product = hn::Add(product, of_row);
    if (static_cast<size_t>(i) >= valid) continue;
    POLYHEAD_UNROLL for (int j = 0; j < kVectors; ++j) {
      T* const to = row[i] + column + static_cast<size_t>(j) * kFloatLanes;
      if constexpr (hwy::IsSame<T, float>()) {
        hn::StoreU(sum[i][j], df, to);
      } else {
        hn::StoreU(Narrow(df, sum[i][j], T()), Tag16<FloatTag>(), &to->bits);
      }
    }
  }
  hn::Store(product, df, nan);
}

template <int kVectors, class T>
HWY_INLINE void RowValueTileOf(size_t vectors, const RowValues& from, size_t first_row, size_t column, const float* factor,
                               T* const* row, size_t valid, float* nan) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return RowValueTileOf<kVectors - 1>(vectors, from, first_row, column, factor, row, valid, nan);
    }
  }
  RowValueTile<kVectors>(from, first_row, column, factor, row, valid, nan);
}

// row(first + i)[e] of the first `rows` rows; value_dim is a number of whole vectors. Returns true when some result is NaN;
// infinite ones may pass for it.
template <class T>
static HWY_NOINLINE bool WriteRowValues(const RowValues& from, const float* factor, size_t rows, size_t value_dim,
                                        const RowMap<T>& map, std::int64_t first) {
  constexpr int kVectors = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3 ? 2 : 4;  // of 16 registers, or of 32
  constexpr size_t kRows = kRowsOfRowValues;
  const FloatTag df;
  HWY_ALIGN float nan[kFloatLanes] = {};
  for (size_t i = 0; i < rows; i += kRows) {
    const size_t valid = HWY_MIN(rows - i, kRows);
    T* row[kRows];
    for (size_t r = 0; r < kRows; ++r) row[r] = map.At(first + static_cast<std::int64_t>(i + HWY_MIN(r, valid - 1)));
    for (size_t e = 0; e < value_dim; e += kVectors * kFloatLanes) {
      RowValueTileOf<kVectors>((value_dim - e) / kFloatLanes, from, i, e, factor, row, valid, nan);
    }
  }
  return !hn::AllFalse(df, hn::IsNaN(hn::Load(df, nan)));
}

#endif  // HWY_HAVE_SCALABLE

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
