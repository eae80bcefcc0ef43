// gemm_f32 of one instruction set.
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_f32-inl.h"
#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const GemmKernel gemm_f32;
const GemmKernel gemm_f32 = {POLYHEAD_KERNEL_NAME("gemm_f32"), kPanelWidth, kRowTile, PackedBytes, Pack, Gemm};

}  // namespace polyhead::simd::HWY_NAMESPACE
