// gemm_f32_f16 in scalar arithmetic.
#include "simd/reference/gemm.hpp"

namespace polyhead::simd::reference {

extern const GemmKernel gemm_f32_f16;
const GemmKernel gemm_f32_f16 = kernel<F16Weights>("gemm_f32_f16_reference");

}  // namespace polyhead::simd::reference
