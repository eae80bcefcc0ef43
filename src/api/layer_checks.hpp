// Checks that the layers' entries share.
#pragma once

#include <cstdint>
#include <string>

#include "polyhead/multi_head_attention.hpp"

namespace polyhead::api {

// Fills in what a spec leaves open, and checks it. `name` is the spec's name in messages.
MultiHeadAttentionSpec resolve(const char* name, MultiHeadAttentionSpec spec);
double scale_of(const MultiHeadAttentionSpec& spec);
// spec is resolved. `prefix` comes before the fields' names in messages, as in "blocks[3].attention.".
void check_weights(const std::string& prefix, const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights);

// f32, bf16 or f16 [rows, columns].
void check_matrix(const std::string& name, const TensorView& view, std::int64_t rows, std::int64_t columns);
void check_weight_type(const std::string& name, WeightType weights);

// f32 [size], or not given.
void check_vector(const std::string& name, const TensorView& view, std::int64_t size);
void check_size(const std::string& name, std::int64_t value, std::int64_t least);
// What layers allow of RunOptions. Errors: unsupported for a workspace: layers keep their own.
void check_run_options(const RunOptions& options);

// Byte strides of the first rank - 1 dimensions of an f32 tensor; 0 where the size is 1.
void outer_byte_strides(const TensorView& view, std::ptrdiff_t* strides);

}  // namespace polyhead::api
