// attention_f16, decode_f16 and merge_f16 in scalar arithmetic.
#include "simd/reference/attention.hpp"

namespace polyhead::simd::reference {

extern const AttentionKernel attention_f16, decode_f16;
extern const MergeKernel merge_f16;
const AttentionKernel attention_f16 = attention_kernel<F16>("attention_f16_reference");
const AttentionKernel decode_f16 = attention_kernel<F16>("decode_f16_reference");
const MergeKernel merge_f16 = merge_kernel<F16>("merge_f16_reference");

}  // namespace polyhead::simd::reference
