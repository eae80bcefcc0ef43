// attention_bf16 for CPUs with AMX.
#include "simd/x86/attention_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {

extern const AttentionKernel attention_bf16;
const AttentionKernel attention_bf16 = TileKernel<HardwareTiles, Bf16Words>("attention_bf16_amx");

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
