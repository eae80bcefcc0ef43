#include "api/head_operands.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "api/checks.hpp"

namespace polyhead::api {

const float* read_heads(const char* name, const TensorView& view, std::int64_t heads, bool minus_infinity,
                        std::ptrdiff_t* stride) {
  check_tensor(name, view, DType::f32, {heads});
  const std::int64_t step = heads == 1 ? 0 : view.strides[0];
  const auto* values = static_cast<const float*>(view.data);
  *stride = step * static_cast<std::ptrdiff_t>(sizeof(float));
  for (std::int64_t h = 0; h < heads; ++h) {
    const float value = values[h * step];
    if (std::isfinite(value) || (minus_infinity && value == -std::numeric_limits<float>::infinity())) continue;
    fail((std::string(name) + "[" + std::to_string(h) + "]").c_str(), std::to_string(value),
         minus_infinity ? "a finite number, or -inf for no sink" : "a finite number");
  }
  return values;
}

}  // namespace polyhead::api
