// vnni_gemm_i8_i8: gemm_i8_i8 for CPUs that have AVX512_VNNI beside AVX-512, with the same bits. Other targets have none.
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
#include "simd/hwy/gemm_fours-inl.h"

#include "simd/hwy/gemm_products-inl.h"
#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const GemmKernel vnni_gemm_i8_i8;
const GemmKernel vnni_gemm_i8_i8 = ProductsKernel<FourProducts>(POLYHEAD_KERNEL_NAME("vnni_gemm_i8_i8"));

}  // namespace polyhead::simd::HWY_NAMESPACE
#endif
