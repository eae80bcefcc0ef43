// The run-time tensors that a mask's parts need: checked and read in one place for attention and for layers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/attention_work.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::api {

struct MaskInputs {
  const TensorView& key_lengths;
  const TensorView& offsets;
  const TensorView& boolean_mask;
  const TensorView& bias;
};

struct ScoreShape {
  std::int64_t batch, heads, query_length, key_length;
  bool longer = false;  // boolean mask and bias may have more queries and keys than these
};

// Each tensor is given exactly when the mask has its part.
void check_mask_given(const Mask& mask, const MaskInputs& inputs);

// Checks and reads them. key_lengths and offsets have room for [batch] where the mask has that part, else they may be null.
plan::ScoreOperands read_mask_inputs(const Mask& mask, const MaskInputs& inputs, const ScoreShape& shape,
                                     std::int64_t* key_lengths, std::int64_t* offsets);

// Refuses an output that overlaps one of them.
void check_no_overlap(const char* output_name, const TensorView& output, const MaskInputs& inputs);

}  // namespace polyhead::api
