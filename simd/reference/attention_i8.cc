// attention_i8 and decode_i8 in scalar arithmetic. Their out is f32 unless a call says otherwise, and so parts are merged by
// merge_f32 and its like.
#include "simd/reference/attention.hpp"

namespace polyhead::simd::reference {

extern const AttentionKernel attention_i8, decode_i8;
const AttentionKernel attention_i8 = attention_kernel<I8>("attention_i8_reference");
const AttentionKernel decode_i8 = attention_kernel<I8>("decode_i8_reference");

}  // namespace polyhead::simd::reference
