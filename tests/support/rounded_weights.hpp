// Weights as a layer keeps them, by the formulas of docs/semantics.md, sharing nothing with the library.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/weight_type.hpp"

namespace polyhead::testing {

// W [n][k] row-major -> what each weight is rounded to.
std::vector<float> rounded_weights(WeightType type, const std::vector<float>& weights, std::int64_t n, std::int64_t k);

// Whether a row of a product's input is rounded as well.
bool rounds_rows(WeightType type);

// The nearest bf16 of each number, to even of two as near; what is too large becomes infinite.
std::vector<float> nearest_bf16(const float* numbers, std::int64_t count);

// W [n][k] -> how far each may be from what it is rounded to. Finite weights, and for f16 none beyond its range.
std::vector<double> weight_error_bounds(WeightType type, const std::vector<float>& weights, std::int64_t n, std::int64_t k);

}  // namespace polyhead::testing
