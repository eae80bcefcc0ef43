// attention_i8: the kernel for any number of query rows over keys of I8, of which a key block is widened at a time.
#include "simd/hwy/attention_f32-inl.h"

#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {

extern const AttentionKernel attention_i8;
const AttentionKernel attention_i8 = TransposedKernel<TileLimits, I8>(POLYHEAD_KERNEL_NAME("attention_i8"));

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
