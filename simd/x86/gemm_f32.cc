// gemm_f32 for CPUs with AMX.
#include "simd/x86/gemm_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {

extern const GemmKernel gemm_f32;
const GemmKernel gemm_f32 = {"gemm_f32_amx",
                             static_cast<std::int32_t>(kPanelColumns),
                             static_cast<std::int32_t>(kProductColumns),
                             &TilePackedBytes,
                             &PackOnTiles,
                             &RunGemmOnTiles<HardwareTiles>};

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
