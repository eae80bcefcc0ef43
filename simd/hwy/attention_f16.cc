// attention_f16: the kernel for any number of query rows.
#include "simd/hwy/attention_f32-inl.h"

#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {

extern const AttentionKernel attention_f16;
const AttentionKernel attention_f16 = TransposedKernel<TileLimits, F16>(POLYHEAD_KERNEL_NAME("attention_f16"));

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
