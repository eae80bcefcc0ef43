// Weights as a layer keeps them, by the formulas of docs/semantics.md, sharing nothing with the library.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/weight_type.hpp"

namespace polyhead::testing {

// W [n][k] row-major -> what each weight is rounded to.
std::vector<float> rounded_weights(WeightType type, const std::vector<float>& weights, std::int64_t n, std::int64_t k);

// W [n][k] -> how far each may be from what it is rounded to. Finite weights, and for f16 none beyond its range.
std::vector<double> weight_error_bounds(WeightType type, const std::vector<float>& weights, std::int64_t n, std::int64_t k);

}  // namespace polyhead::testing
