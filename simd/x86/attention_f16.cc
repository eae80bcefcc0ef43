// attention_f16 for CPUs with AMX.
#include "simd/x86/attention_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {

extern const AttentionKernel attention_f16;
const AttentionKernel attention_f16 = TileKernel<HardwareTiles, F16Pieces>("attention_f16_amx");

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
