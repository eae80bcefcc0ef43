// gemm_i8_i8 of one instruction set: rows rounded to int8 as they come, int8 weights.
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_products-inl.h"
#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const GemmKernel gemm_i8_i8;
const GemmKernel gemm_i8_i8 = ProductsKernel<PairProducts>(POLYHEAD_KERNEL_NAME("gemm_i8_i8"));

}  // namespace polyhead::simd::HWY_NAMESPACE
