// merge_f32: brings key splits together.
#include "simd/hwy/merge-inl.h"

#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {

extern const MergeKernel merge_f32;
const MergeKernel merge_f32 = KernelOfMerge<float>(POLYHEAD_KERNEL_NAME("merge_f32"));

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
