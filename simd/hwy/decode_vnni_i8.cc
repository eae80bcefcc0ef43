// vnni_decode_i8: decode_i8 for CPUs that have AVX512_VNNI beside AVX-512, with the same bits. Other targets have none.
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
#include "simd/hwy/decode_f32-inl.h"

#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {

extern const AttentionKernel vnni_decode_i8;
const AttentionKernel vnni_decode_i8 = DecodeKernel<I8, true>(POLYHEAD_KERNEL_NAME("vnni_decode_i8"));

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
