// decode_f32: the kernel for few query rows a kv head, bound by reading K and V.
#include "simd/hwy/decode_f32-inl.h"

#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {

extern const AttentionKernel decode_f32;
const AttentionKernel decode_f32 = DecodeKernel<float>(POLYHEAD_KERNEL_NAME("decode_f32"));

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
