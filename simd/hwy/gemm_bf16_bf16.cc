// gemm_bf16_bf16 of one instruction set: rows rounded to bf16 as they come, bf16 weights.
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_rounded-inl.h"
#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const GemmKernel gemm_bf16_bf16;
const GemmKernel gemm_bf16_bf16 = {POLYHEAD_KERNEL_NAME("gemm_bf16_bf16"),
                                   kPanelWidth,
                                   kRowTile,
                                   WeightsPackedBytes<Bf16Weights>,
                                   PackWeights<Bf16Weights>,
                                   RoundedGemm};

}  // namespace polyhead::simd::HWY_NAMESPACE
