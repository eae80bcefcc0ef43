// gemm_f32_i4 of one instruction set: f32 rows, int4 weights.
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_weights-inl.h"
#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const GemmKernel gemm_f32_i4;
const GemmKernel gemm_f32_i4 = WeightsKernel<Int4Weights>(POLYHEAD_KERNEL_NAME("gemm_f32_i4"));

}  // namespace polyhead::simd::HWY_NAMESPACE
