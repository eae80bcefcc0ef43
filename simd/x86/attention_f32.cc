// attention_f32 and fast_attention_f32 for CPUs with AMX.
#include "simd/x86/attention_tiles-inl.h"

namespace polyhead::simd::HWY_NAMESPACE::amx {
namespace {

template <size_t kPieces>
constexpr AttentionKernel Kernel(const char* name) {
  return {name, static_cast<std::int32_t>(kBlockRows), static_cast<std::int32_t>(kKeyBlock),
          &TileAttentionScratchBytes<kPieces>, &RunAttentionOnTiles<HardwareTiles, kPieces>};
}

}  // namespace

extern const AttentionKernel attention_f32, fast_attention_f32;
const AttentionKernel attention_f32 = Kernel<3>("attention_f32_amx");
const AttentionKernel fast_attention_f32 = Kernel<2>("fast_attention_f32_amx");

}  // namespace polyhead::simd::HWY_NAMESPACE::amx
