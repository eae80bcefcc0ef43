// decode_i8: the kernel for few query rows a kv head over keys of I8, bound by reading K and V.
#include "simd/hwy/decode_f32-inl.h"

#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {

extern const AttentionKernel decode_i8;
const AttentionKernel decode_i8 = DecodeKernel<I8>(POLYHEAD_KERNEL_NAME("decode_i8"));

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
