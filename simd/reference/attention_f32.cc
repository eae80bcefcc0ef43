// attention_f32, decode_f32 and merge_f32 in scalar arithmetic.
#include "simd/reference/attention.hpp"

namespace polyhead::simd::reference {

extern const AttentionKernel attention_f32, decode_f32;
extern const MergeKernel merge_f32;
const AttentionKernel attention_f32 = attention_kernel<float>("attention_f32_reference");
const AttentionKernel decode_f32 = attention_kernel<float>("decode_f32_reference");
const MergeKernel merge_f32 = merge_kernel<float>("merge_f32_reference");

}  // namespace polyhead::simd::reference
