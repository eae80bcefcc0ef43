// gemm_f32_i4 in scalar arithmetic.
#include "simd/reference/gemm.hpp"

namespace polyhead::simd::reference {

extern const GemmKernel gemm_f32_i4;
const GemmKernel gemm_f32_i4 = kernel<Int4Weights>("gemm_f32_i4_reference");

}  // namespace polyhead::simd::reference
