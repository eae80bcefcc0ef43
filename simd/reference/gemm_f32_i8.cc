// gemm_f32_i8 in scalar arithmetic.
#include "simd/reference/gemm.hpp"

namespace polyhead::simd::reference {

extern const GemmKernel gemm_f32_i8;
const GemmKernel gemm_f32_i8 = kernel<Int8Weights>("gemm_f32_i8_reference");

}  // namespace polyhead::simd::reference
