// gemm_bf16_bf16 for CPUs whose bf16 products are fast.
#include "simd/hwy/gemm_pairs-inl.h"
#include "simd/x86/avx512_bf16/pair_products-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::avx512_bf16 {

extern const GemmKernel gemm_bf16_bf16;
const GemmKernel gemm_bf16_bf16 = PairKernel<Avx512PairProducts>("gemm_bf16_bf16_avx512_bf16");

}  // namespace polyhead::simd::HWY_NAMESPACE::avx512_bf16
