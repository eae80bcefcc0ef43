// The tile policy of tiles_amx-inl.h in vector instructions, for machines without tiles: what the instructions give, bit for
// bit.
//
// TDPBF16PS as Intel's Software Developer's Manual, volume 2, defines it: for each row m of A
//
//   even[n] = odd[n] = 0
//   for k = 0 .. 15:   even[n] = fma(A[m][2k], B[k][2n], even[n]),  odd[n] = fma(A[m][2k + 1], B[k][2n + 1], odd[n])
//   C[m][n] = C[m][n] + (even[n] + odd[n])
//
// where every operation is in f32, rounds to nearest even, takes denormal operands for zero and flushes denormal results,
// whatever MXCSR says. (The Intrinsics Guide's shorter text adds both products to one sum; the manual's order is the one
// written here. Which one a CPU follows is what the test that runs both policies on a machine with tiles is for.) The caller
// has denormals flushed and rounding to nearest set (FlushDenormals).
//
// Not reproduced: which NaN comes out where several meet.
#pragma once

#include <cstring>

#include "simd/hwy/compat.h"
#include "simd/x86/tiles_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

class EmulatedTiles {
 public:
  void Configure() { std::memset(tiles_, 0, sizeof tiles_); }
  void Release() {}

  template <int kTile>
  void Zero() {
    std::memset(tiles_[kTile], 0, kTileBytes);
  }
  template <int kTile>
  void Load(const void* from, std::ptrdiff_t stride) {
    for (size_t row = 0; row < kTileRows; ++row) {
      std::memcpy(tiles_[kTile] + row * kTileRowBytes, Row(from, stride, row), kTileRowBytes);
    }
  }
  template <int kTile>
  void LoadPassing(const void* from, std::ptrdiff_t stride) {
    Load<kTile>(from, stride);
  }
  template <int kTile>
  void Store(void* to, std::ptrdiff_t stride) {
    for (size_t row = 0; row < kTileRows; ++row) {
      std::memcpy(const_cast<char*>(Row(to, stride, row)), tiles_[kTile] + row * kTileRowBytes, kTileRowBytes);
    }
  }
  template <int kSum, int kA, int kB>
  void Dot() {
    MultiplyAdd(tiles_[kSum], tiles_[kA], tiles_[kB]);
  }

 private:
  static const char* Row(const void* base, std::ptrdiff_t stride, size_t row) {
    return static_cast<const char*>(base) + static_cast<std::ptrdiff_t>(row) * stride;
  }

  static HWY_NOINLINE void MultiplyAdd(unsigned char* sum, const unsigned char* a, const unsigned char* b) {
    const FloatTag df;
    const IntTag di;
    const size_t lanes = hn::Lanes(df);
    const Ints upper = hn::Set(di, static_cast<std::int32_t>(0xFFFF0000u));
    float* sums = reinterpret_cast<float*>(sum);
    const std::int32_t* pairs_of_a = reinterpret_cast<const std::int32_t*>(a);
    const std::int32_t* pairs_of_b = reinterpret_cast<const std::int32_t*>(b);
    for (size_t m = 0; m < kTileRows; ++m) {
      for (size_t n = 0; n < 16; n += lanes) {
        Floats even = hn::Zero(df), odd = hn::Zero(df);
        for (size_t k = 0; k < kTileRows; ++k) {
          const Ints pair_a = hn::Set(di, pairs_of_a[m * 16 + k]);
          const Ints pair_b = hn::Load(di, pairs_of_b + k * 16 + n);
          even = hn::MulAdd(hn::BitCast(df, hn::ShiftLeft<16>(pair_a)), hn::BitCast(df, hn::ShiftLeft<16>(pair_b)), even);
          odd = hn::MulAdd(hn::BitCast(df, hn::And(pair_a, upper)), hn::BitCast(df, hn::And(pair_b, upper)), odd);
        }
        float* to = sums + m * 16 + n;
        hn::Store(hn::Add(hn::Load(df, to), hn::Add(even, odd)), df, to);
      }
    }
  }

  alignas(64) unsigned char tiles_[8][kTileBytes];
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
