// attention_f32 and fast_attention_f32 for CPUs with AMX.
#include "simd/x86/attention_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {

extern const AttentionKernel attention_f32, fast_attention_f32;
const AttentionKernel attention_f32 = TileKernel<HardwareTiles, F32Pieces<3>>("attention_f32_amx");
const AttentionKernel fast_attention_f32 = TileKernel<HardwareTiles, F32Pieces<2>>("fast_attention_f32_amx");

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
