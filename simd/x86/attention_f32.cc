// attention_f32 for CPUs with AMX.
#include "simd/x86/attention_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {

extern const AttentionKernel attention_f32;
const AttentionKernel attention_f32 = {"attention_f32_amx", static_cast<std::int32_t>(kBlockRows),
                                       static_cast<std::int32_t>(kKeyBlock), &TileAttentionScratchBytes,
                                       &RunAttentionOnTiles<HardwareTiles>};

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
