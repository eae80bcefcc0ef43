// Products of four bytes a lane, for gemm_products-inl.h, on CPUs with AVX512_VNNI. Inline assembly within regions of AVX-512:
// Highway's own comes with a target that has more than that.
//
// vpdpbusd multiplies unsigned by signed bytes: weights are raised by 128 to be the unsigned ones, and a row's sums start at
// -128 times the sum of its numbers. Nothing saturates: sums are exact modulo 2^32, and what comes out fits.
#pragma once

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "simd/hwy/gemm_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

struct FourProducts {
  using Number = std::int8_t;
  using Operand = hn::Vec<WordTag>;
  static constexpr int kParts = 1;
  static constexpr std::int32_t kStartOfSum = -128;

  template <int part, class W>
  static HWY_INLINE Operand Weights(W words) {
    const WordTag di;
    return hn::Xor(hn::BitCast(di, words), hn::Set(di, static_cast<std::int32_t>(0x80808080u)));
  }
  static HWY_INLINE Operand Row(const Number* word) {
    std::int32_t four;
    std::memcpy(&four, word, sizeof four);
    return hn::Set(WordTag(), four);
  }
  static HWY_INLINE Operand Add(Operand row, Operand weights, Operand sum, Operand&) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(weights.raw), "v"(row.raw));
    return sum;
  }
  static HWY_INLINE Operand Sum(Operand sum, Operand) { return sum; }

  // As bytes lie in a word of W.
  static constexpr std::int64_t Place(std::int64_t k) { return k / 4 * 4 + Int8Weights::kPlace[k % 4]; }
  static HWY_INLINE void Store(Operand integers, Number* to) {
    alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    const hn::Rebind<Number, GemmTag> d8;
    const hn::RebindToUnsigned<decltype(d8)> du8;
    const auto bytes = hn::BitCast(du8, hn::DemoteTo(d8, integers));
    hn::StoreU(hn::BitCast(d8, hn::TableLookupBytes(bytes, hn::Load(du8, kOrder))), d8, to);
  }
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
