// gemm_f32_bf16 in scalar arithmetic.
#include "simd/reference/gemm.hpp"

namespace polyhead::simd::reference {

extern const GemmKernel gemm_f32_bf16;
const GemmKernel gemm_f32_bf16 = kernel<Bf16Weights>("gemm_f32_bf16_reference");

}  // namespace polyhead::simd::reference
