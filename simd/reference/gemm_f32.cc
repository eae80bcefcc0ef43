// gemm_f32 in scalar arithmetic.
#include "simd/reference/gemm.hpp"

namespace polyhead::simd::reference {

extern const GemmKernel gemm_f32;
const GemmKernel gemm_f32 = kernel<F32Weights>("gemm_f32_reference");

}  // namespace polyhead::simd::reference
