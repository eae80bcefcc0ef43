// Operands with one number a query head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/tensor.hpp"

namespace polyhead::api {

// Checks an f32 [heads] operand: finite numbers, or -inf where that has a meaning. Returns it, and its stride in bytes.
const float* read_heads(const char* name, const TensorView& view, std::int64_t heads, bool minus_infinity,
                        std::ptrdiff_t* stride);

// The same for finite numbers, [heads] or [batch, heads] (a batch of 1 serves every item, with a stride of 0).
const float* read_heads_of_items(const char* name, const TensorView& view, std::int64_t batch, std::int64_t heads,
                                 std::ptrdiff_t* batch_stride, std::ptrdiff_t* stride);

}  // namespace polyhead::api
