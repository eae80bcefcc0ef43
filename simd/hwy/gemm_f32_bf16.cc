// gemm_f32_bf16 of one instruction set: f32 rows, bf16 weights.
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_weights-inl.h"
#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const GemmKernel gemm_f32_bf16;
const GemmKernel gemm_f32_bf16 = WeightsKernel<Bf16Weights>(POLYHEAD_KERNEL_NAME("gemm_f32_bf16"));

}  // namespace polyhead::simd::HWY_NAMESPACE
