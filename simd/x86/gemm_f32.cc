// gemm_f32 for CPUs with AMX.
#include "simd/x86/gemm_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {

extern const GemmKernel gemm_f32;
const GemmKernel gemm_f32 = TileGemmKernel<HardwareTiles, 3>("gemm_f32_amx");

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
