// attention_bf16, decode_bf16 and merge_bf16 in scalar arithmetic.
#include "simd/reference/attention.hpp"

namespace polyhead::simd::reference {

extern const AttentionKernel attention_bf16, decode_bf16;
extern const MergeKernel merge_bf16;
const AttentionKernel attention_bf16 = attention_kernel<Bf16>("attention_bf16_reference");
const AttentionKernel decode_bf16 = attention_kernel<Bf16>("decode_bf16_reference");
const MergeKernel merge_bf16 = merge_kernel<Bf16>("merge_bf16_reference");

}  // namespace polyhead::simd::reference
