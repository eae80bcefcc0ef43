// The optional operands that every attention-like function takes: the parts of a mask, key lengths, a precision.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "borrowed_array.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/relative_bias.hpp"
#include "polyhead/tensor.hpp"
#include "polyhead/weight_type.hpp"

namespace polyhead::python {

// attn_mask: bool (true = attend) or float (added to the scores; f64 is converted to f32). None: nothing.
// Errors: TypeError for another element type.
std::optional<BorrowedArray> borrow_mask(nb::handle attn_mask);

// Where such a mask goes among the inputs, as the boolean mask or the bias; says so in the call's Mask.
template <class Inputs>
TensorView& place_of_mask(const BorrowedArray& attn_mask, Mask& mask, Inputs& inputs) {
  const bool boolean = attn_mask.view().dtype == DType::boolean;
  (boolean ? mask.has_boolean : mask.has_bias) = true;
  return boolean ? inputs.boolean_mask : inputs.bias;
}

// Integers (int32 or int64), an array or a Python sequence. None: nothing. Errors: TypeError, naming the argument.
std::optional<BorrowedArray> borrow_integers(nb::handle integers, const char* argument);

// Numbers for the query heads, [..., heads]: f32, or f16 and bf16, which are converted. None: nothing. Errors: TypeError for
// another element type; invalid_argument for another last dimension.
std::optional<BorrowedArray> borrow_head_numbers(nb::handle numbers, const char* argument, std::int64_t heads);

// Errors: invalid_argument when one of two arguments is given without the other; `names`: "this and that".
void expect_both_or_neither(bool first, bool second, const char* names);

// What `causal` may be.
inline constexpr std::pair<const char*, Causal> causal_alignments[] = {
    {"top_left", Causal::top_left}, {"bottom_right", Causal::bottom_right}, {"offset", Causal::offset}};

// Where the causal diagonal lies. is_causal is torch's, top-left; causal is None, "top_left", "bottom_right" or "offset", which
// goes with offsets. Errors: invalid_argument for both of them, for another text, for offsets that lack or have no place;
// TypeError for what is no text.
Mask to_causal(bool is_causal, nb::handle causal, bool has_offsets);

// window_size (left, right), counted from that diagonal, and the first keys kept beside it. Errors: invalid_argument.
Mask to_window(std::pair<std::int64_t, std::int64_t> window_size, std::int64_t sink_token_length);

// block_mask (bool or uint8) with block_size (queries, keys), which go to `mask`. None: nothing. Errors: invalid_argument where
// one of the two is not given; TypeError for another element type.
std::optional<BorrowedArray> borrow_blocks(nb::handle block_mask,
                                           std::optional<std::pair<std::int64_t, std::int64_t>> block_size, Mask& mask);

// relative_bias: a polyhead.T5Bias or SwinBias, whose table is returned and whose other fields go to `bias`. None: nothing.
// Errors: TypeError for another object or element type.
std::optional<BorrowedArray> borrow_relative_bias(nb::handle relative_bias, RelativeBias& bias);

// precision: "strict" or "fast". Errors: invalid_argument for another text, TypeError for what is none.
Precision to_precision(nb::handle precision);
// weights: "f32", "bf16", "f16", "int8", "int4", "int8_dynamic" or "bf16_dynamic". Errors: as to_precision.
WeightType to_weight_type(nb::handle weights);

// TypeError unless the array is f32, f16 or bf16.
void expect_attention_type(const BorrowedArray& array, const char* argument);
// TypeError unless the array's elements are of the type of the other's.
void expect_same_type(const BorrowedArray& array, const char* argument, const BorrowedArray& other, const char* other_argument);
// TypeError unless the array is f32.
void expect_f32(const BorrowedArray& array, const char* argument);

}  // namespace polyhead::python
