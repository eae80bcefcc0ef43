// gemm_f32_f16 of one instruction set: f32 rows, f16 weights.
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_weights-inl.h"
#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const GemmKernel gemm_f32_f16;
const GemmKernel gemm_f32_f16 = WeightsKernel<F16Weights>(POLYHEAD_KERNEL_NAME("gemm_f32_f16"));

}  // namespace polyhead::simd::HWY_NAMESPACE
