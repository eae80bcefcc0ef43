// merge: one attention out of two that were computed over different keys, by their lse.
#pragma once

#include "polyhead/export.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead {

// All views may have any strides. out may be exactly out1 or out2 and lse exactly lse1 or lse2 (a sum over parts needs no third
// tensor); any other overlap of an output is refused.
struct MergeInputs {
  TensorView out1{};  // f32, bf16 or f16 [B, heads, T, value_dim]: attention over some keys,
  TensorView lse1{};  // f32 [B, heads, T]: and the natural log of its softmax's denominator
  TensorView out2{};  // the same over other keys, out2 of out1's type
  TensorView lse2{};
  TensorView out{};   // [B, heads, T, value_dim], of out1's type: computed in f32 and rounded once, to nearest even
  TensorView lse{};   // optional f32 [B, heads, T]
  TensorView sink{};  // optional f32 [heads], logits, -inf is none: joins the denominator. Parts are computed without a sink,
                      // and the last merge adds it
};

//     lse = ln(exp(lse1) + exp(lse2) + exp(sink))      out = exp(lse1 - lse) * out1 + exp(lse2 - lse) * out2
//
// A part whose lse is -inf saw no key and counts for nothing, whatever its out holds. Where both are so, out is 0 and lse -inf
// (with a sink: the sink). A NaN in a part that counts reaches the result. The error is three roundings to f32 of out's size,
// and one to its own type, beside those of the parts. Steady state allocates nothing. Errors: invalid_argument, naming the
// tensor.
POLYHEAD_EXPORT void merge(const Runtime& runtime, const MergeInputs& inputs);

}  // namespace polyhead
