// merge_bf16: brings key splits together.
#include "simd/hwy/merge-inl.h"

#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {

extern const MergeKernel merge_bf16;
const MergeKernel merge_bf16 = KernelOfMerge<Bf16>(POLYHEAD_KERNEL_NAME("merge_bf16"));

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
