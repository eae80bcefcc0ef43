// What a layer keeps the weights of its products as.
#pragma once

#include <cstdint>

#include "polyhead/export.hpp"

namespace polyhead {

// Weights are rounded once, when a layer is made, and widened as they are read; inputs, sums and outputs are f32 (int8_dynamic
// and bf16_dynamic: inputs are rounded as well). Fewer bits are less to keep and less to read, which is most of the time where
// rows are few. docs/semantics.md states what each rounds to and the error bounds. Biases, norms and embeddings stay f32.
enum class WeightType : std::uint8_t {
  f32 = 0,
  bf16 = 1,          // 2 bytes: the nearest bf16
  f16 = 2,           // 2 bytes: the nearest f16; beyond 65,504 infinite
  int8 = 3,          // 1 byte: multiples of a scale for each output feature
  int4 = 4,          // 0.56 bytes: multiples of a scale for each output feature and 32 input features
  int8_dynamic = 5,  // int8, and each row of a product's input rounded to multiples of its largest / 127: faster for many rows
  bf16_dynamic = 6,  // bf16, and each number of a product's input rounded to the nearest bf16: faster for many rows where the
                     // instruction set (Runtime::isa) multiplies pairs of bf16, elsewhere as fast as bf16 about
};

// "f32", "bf16", "f16", "int8", "int4", "int8_dynamic", "bf16_dynamic".
POLYHEAD_EXPORT const char* name(WeightType weights) noexcept;

}  // namespace polyhead
