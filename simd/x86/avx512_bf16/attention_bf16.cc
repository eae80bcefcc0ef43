// attention_bf16 for CPUs whose bf16 products are fast.
#include "simd/hwy/attention_f32-inl.h"
#include "simd/x86/avx512_bf16/pair_products-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::avx512_bf16 {

extern const AttentionKernel attention_bf16;
const AttentionKernel attention_bf16 =
    TransposedKernel<TileLimits, Bf16Pairs<Avx512PairProducts>>("attention_bf16_avx512_bf16");

}  // namespace polyhead::simd::HWY_NAMESPACE::avx512_bf16
