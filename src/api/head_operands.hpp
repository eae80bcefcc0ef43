// Operands with one number a query head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/tensor.hpp"

namespace polyhead::api {

// Checks an f32 [heads] operand: finite numbers, or -inf where that has a meaning. Returns it, and its stride in bytes.
const float* read_heads(const char* name, const TensorView& view, std::int64_t heads, bool minus_infinity,
                        std::ptrdiff_t* stride);

}  // namespace polyhead::api
