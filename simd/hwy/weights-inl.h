// Weights in fewer bits than f32: how a panel stores them, and how they become f32 again.
//
// A panel is rows of one word of 32 bits for each column. A word holds consecutive k of its column, lowest bits first:
//
//   bf16   2 of 16 bits
//   int8   4 of 8 bits in the order k, k + 2, k + 1, k + 3, so that even and odd bytes are neighbouring pairs
//   int4   8 of 4 bits
//   f16    two rows of 16 bits, k and k + 1, instead of a row of words: conversions take their operands side by side
//
// A word stays in its lane: lanes never meet, whatever the length of a vector. The last row's missing k are zeros. Scales
// follow at the panel's end: int8 [column] f32, int4 [k / 32][column] bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "simd/contract/element.hpp"
#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/gemm_tile-inl.h"
#include "simd/quantise.hpp"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kWordBytes = 4;

// One column of W, and where it goes.
struct ColumnToPack {
  const float* weight;  // of k = 0
  std::ptrdiff_t k_stride;
  std::int64_t k;
  unsigned char* panel;
  unsigned char* scales;
  std::int64_t padded;  // columns of the panel
  std::int64_t column;  // in the panel

  float At(std::int64_t index) const { return *RowOf(weight, k_stride, index); }
  unsigned char* Word(std::int64_t row) const { return panel + (row * padded + column) * kWordBytes; }
};

template <class T>
HWY_INLINE void StoreBytes(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Loads of words, as lanes of D.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> LoadWords(D, const unsigned char* row, std::int64_t column) {
  const hn::RebindToUnsigned<D> du;
  return hn::Load(du, reinterpret_cast<const std::uint32_t*>(row + column * kWordBytes));
}

// Field `index` of words, of `bits` bits, as a signed number.
template <int bits, int index, class D, class W>
HWY_INLINE hn::Vec<D> SignedField(D df, W words) {
  const hn::RebindToSigned<D> di;
  auto field = hn::BitCast(di, words);
  if constexpr (bits * (index + 1) < 32) field = hn::ShiftLeft<32 - bits*(index + 1)>(field);
  return hn::ConvertTo(df, hn::ShiftRight<32 - bits>(field));
}

// The same for fields of four bits. A permutation of 16 lanes looks at four bits of each, whatever the others are.
#if HWY_TARGET == HWY_AVX3
alignas(64) constexpr float kFourBits[] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
template <int index, class D, class W>
HWY_INLINE hn::Vec<D> SignedFourBits(D df, W words) {
  return hn::TableLookupLanes(hn::Load(df, kFourBits), hn::Indices512<float>{hn::ShiftRight<4 * index>(words).raw});
}
#else
template <int index, class D, class W>
HWY_INLINE hn::Vec<D> SignedFourBits(D df, W words) {
  return SignedField<4, index>(df, words);
}
#endif

// Each of these: kSteps, k in a row of the panel; kHasScale; kScaleSteps, k that share a scale, 0 for all of them;
// Load<step>, k = step of a row for the lanes from `column` on.

struct Bf16Weights {
  static constexpr int kSteps = 2;
  static constexpr bool kHasScale = false;
  static constexpr std::int64_t kScaleSteps = 0;
  static constexpr std::int64_t ScaleBytes(std::int64_t) { return 0; }

  static void Pack(const ColumnToPack& to) {
    for (std::int64_t k = 0; k < to.k; ++k) StoreBytes(to.Word(k / 2) + k % 2 * 2, NearestBf16(to.At(k)));
  }
  template <int step, class D>
  static HWY_INLINE hn::Vec<D> Load(D df, const unsigned char* row, std::int64_t, std::int64_t column, hn::Vec<D>) {
    const hn::RebindToUnsigned<D> du;
    const auto words = LoadWords(df, row, column);
    return hn::BitCast(df, step == 0 ? hn::ShiftLeft<16>(words) : hn::And(words, hn::Set(du, 0xFFFF0000u)));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadScale(D df, const unsigned char*, std::int64_t, std::int64_t, std::int64_t) {
    return hn::Zero(df);
  }
};

struct F16Weights {
  static constexpr int kSteps = 2;
  static constexpr bool kHasScale = false;
  static constexpr std::int64_t kScaleSteps = 0;
  static constexpr std::int64_t ScaleBytes(std::int64_t) { return 0; }

  static void Pack(const ColumnToPack& to) {
    for (std::int64_t k = 0; k < to.k; ++k) {
      StoreBytes(to.panel + (k * to.padded + to.column) * 2, FromFloat<F16>(to.At(k)).bits);
    }
  }
  template <int step, class D>
  static HWY_INLINE hn::Vec<D> Load(D df, const unsigned char* row, std::int64_t padded, std::int64_t column, hn::Vec<D>) {
    return LoadElements(df, reinterpret_cast<const F16*>(row + (step * padded + column) * 2));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadScale(D df, const unsigned char*, std::int64_t, std::int64_t, std::int64_t) {
    return hn::Zero(df);
  }
};

struct Int8Weights {
  static constexpr int kSteps = 4;
  static constexpr bool kHasScale = true;
  static constexpr std::int64_t kScaleSteps = 0;
  static constexpr int kPlace[] = {0, 2, 1, 3};  // of a step in its word
  static constexpr std::int64_t ScaleBytes(std::int64_t) { return sizeof(float); }

  static void Pack(const ColumnToPack& to) {
    LargestWeight largest;
    for (std::int64_t k = 0; k < to.k; ++k) largest.Take(to.At(k));
    const float scale = largest.Int8Scale();
    StoreBytes(to.scales + to.column * static_cast<std::int64_t>(sizeof scale), scale);
    for (std::int64_t k = 0; k < to.k; ++k) {
      StoreBytes(to.Word(k / 4) + kPlace[k % 4],
                 static_cast<std::int8_t>(NearestMultiple(to.At(k), scale, -kInt8Most, kInt8Most)));
    }
  }
  template <int step, class D>
  static HWY_INLINE hn::Vec<D> Load(D df, const unsigned char* row, std::int64_t, std::int64_t column, hn::Vec<D> scale) {
    return hn::Mul(SignedField<8, kPlace[step]>(df, LoadWords(df, row, column)), scale);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadScale(D df, const unsigned char* scales, std::int64_t, std::int64_t, std::int64_t column) {
    return hn::Load(df, reinterpret_cast<const float*>(scales) + column);
  }
};

struct Int4Weights {
  static constexpr int kSteps = 8;
  static constexpr bool kHasScale = true;
  static constexpr std::int64_t kScaleSteps = kInt4Block;
  static constexpr std::int64_t ScaleBytes(std::int64_t k) { return (k + kInt4Block - 1) / kInt4Block * 2; }

  static void Pack(const ColumnToPack& to) {
    for (std::int64_t begin = 0; begin < to.k; begin += kInt4Block) {
      const std::int64_t count = to.k - begin < kInt4Block ? to.k - begin : kInt4Block;
      float weights[kInt4Block];
      for (std::int64_t i = 0; i < count; ++i) weights[i] = to.At(begin + i);
      Int4Block block;
      RoundToInt4(weights, count, &block);
      StoreBytes(to.scales + (begin / kInt4Block * to.padded + to.column) * 2, block.scale);
      for (std::int64_t i = 0; i < count; i += kSteps) {
        std::uint32_t word = 0;
        for (std::int64_t j = 0; j < kSteps && i + j < count; ++j) {
          word |= (static_cast<std::uint32_t>(block.multiple[i + j]) & 15u) << (4 * j);
        }
        StoreBytes(to.Word((begin + i) / kSteps), word);
      }
    }
  }
  template <int step, class D>
  static HWY_INLINE hn::Vec<D> Load(D df, const unsigned char* row, std::int64_t, std::int64_t column, hn::Vec<D> scale) {
    return hn::Mul(SignedFourBits<step>(df, LoadWords(df, row, column)), scale);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadScale(D df, const unsigned char* scales, std::int64_t k, std::int64_t padded,
                                         std::int64_t column) {
    return LoadElements(df, reinterpret_cast<const Bf16*>(scales + (k / kInt4Block * padded + column) * 2));
  }
};

// ---- where things lie

template <class W>
HWY_INLINE std::int64_t WordRows(std::int64_t k) {
  return (k + W::kSteps - 1) / W::kSteps;
}

// Of a panel, in whole words, so that every panel begins where a vector may: a panel's columns are whole vectors.
template <class W>
HWY_INLINE std::int64_t BytesOfColumn(std::int64_t k) {
  return (WordRows<W>(k) * kWordBytes + W::ScaleBytes(k) + kWordBytes - 1) / kWordBytes * kWordBytes;
}

template <class W>
HWY_INLINE const unsigned char* PackedPanel(const GemmF32Args& args, std::int64_t column) {
  return static_cast<const unsigned char*>(args.packed) + column * BytesOfColumn<W>(args.k);
}

template <class W>
std::size_t WeightsPackedBytes(std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>(PackedColumns(n) * BytesOfColumn<W>(k));
}

template <class W>
HWY_NOINLINE void PackColumns(const PackF32Args& args) {
  auto* const packed = static_cast<unsigned char*>(args.packed);
  std::memset(packed, 0, WeightsPackedBytes<W>(args.n, args.k));
  for (std::int64_t first = 0; first < args.n; first += kPanelWidth) {
    ColumnToPack to;
    const std::int64_t columns = args.n - first < kPanelWidth ? args.n - first : kPanelWidth;
    to.k_stride = args.k_stride;
    to.k = args.k;
    to.padded = PaddedColumns(columns);
    to.panel = packed + first * BytesOfColumn<W>(args.k);
    to.scales = to.panel + WordRows<W>(args.k) * to.padded * kWordBytes;
    for (to.column = 0; to.column < columns; ++to.column) {
      to.weight = RowOf(args.weight, args.n_stride, first + to.column);
      W::Pack(to);
    }
  }
}

// Rounding is to nearest whatever the caller's is.
template <class W>
void PackWeights(const PackF32Args& args) {
  const KeepDenormals environment;
  PackColumns<W>(args);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
