// decode_f32: the kernel for few query rows a kv head, bound by reading K and V.
#include "simd/hwy/decode_f32-inl.h"

#include "simd/hwy/kernel_name.h"

namespace polyhead::simd::HWY_NAMESPACE {

extern const AttentionKernel decode_f32;
const AttentionKernel decode_f32 = {POLYHEAD_KERNEL_NAME("decode_f32"), DecodeRun<false>::kRows, kDecodeKeyBlock,
                                    &DecodeScratchBytes, &RunDecode};

}  // namespace polyhead::simd::HWY_NAMESPACE
