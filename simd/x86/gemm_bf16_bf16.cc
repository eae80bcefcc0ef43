// gemm_bf16_bf16 for CPUs with AMX.
#include "simd/x86/gemm_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {

extern const GemmKernel gemm_bf16_bf16;
const GemmKernel gemm_bf16_bf16 = TileGemmKernel<HardwareTiles, 1>("gemm_bf16_bf16_amx");

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
