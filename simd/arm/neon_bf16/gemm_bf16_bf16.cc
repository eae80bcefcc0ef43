// gemm_bf16_bf16 for CPUs with BFDOT.
#include "simd/arm/neon_bf16/pair_products-inl.h"
#include "simd/hwy/gemm_pairs-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::neon_bf16 {

extern const GemmKernel gemm_bf16_bf16;
const GemmKernel gemm_bf16_bf16 = PairKernel<NeonPairProducts>("gemm_bf16_bf16_neon_bf16");

}  // namespace polyhead::simd::HWY_NAMESPACE::neon_bf16
