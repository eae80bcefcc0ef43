// attention_bf16 for ARM CPUs that have products of bf16 pairs.
#include "simd/arm/neon_bf16/pair_products-inl.h"
#include "simd/hwy/attention_f32-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::neon_bf16 {

extern const AttentionKernel attention_bf16;
const AttentionKernel attention_bf16 = TransposedKernel<TileLimits, Bf16Pairs<NeonPairProducts>>("attention_bf16_neon_bf16");

}  // namespace polyhead::simd::HWY_NAMESPACE::neon_bf16
