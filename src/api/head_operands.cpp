#include "api/head_operands.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "api/checks.hpp"

namespace polyhead::api {
namespace {

// Refuses what is not finite, but for -inf where that has a meaning; `place`: the name and indices before the head's.
void check_numbers(const std::string& place, const float* values, std::int64_t heads, std::int64_t step, bool minus_infinity) {
  for (std::int64_t h = 0; h < heads; ++h) {
    const float value = values[h * step];
    if (std::isfinite(value) || (minus_infinity && value == -std::numeric_limits<float>::infinity())) continue;
    fail((place + std::to_string(h) + "]").c_str(), std::to_string(value),
         minus_infinity ? "a finite number, or -inf for no sink" : "a finite number");
  }
}

}  // namespace

const float* read_heads(const char* name, const TensorView& view, std::int64_t heads, bool minus_infinity,
                        std::ptrdiff_t* stride) {
  check_tensor(name, view, DType::f32, {heads});
  const std::int64_t step = heads == 1 ? 0 : view.strides[0];
  const auto* values = static_cast<const float*>(view.data);
  *stride = step * static_cast<std::ptrdiff_t>(sizeof(float));
  check_numbers(std::string(name) + "[", values, heads, step, minus_infinity);
  return values;
}

const float* read_heads_of_items(const char* name, const TensorView& view, std::int64_t batch, std::int64_t heads,
                                 std::ptrdiff_t* batch_stride, std::ptrdiff_t* stride) {
  *batch_stride = 0;
  if (view.rank != 2) {
    if (view.rank == 1 && view.shape[0] == heads) return read_heads(name, view, heads, false, stride);
    fail(name, view.describe(),
         "f32 [" + std::to_string(heads) + "] or [" + std::to_string(batch) + ", " + std::to_string(heads) + "]");
  }
  const bool one = view.shape[0] == 1;
  check_tensor(name, view, DType::f32, {one ? 1 : batch, heads});
  const std::int64_t batch_step = one ? 0 : view.strides[0], step = heads == 1 ? 0 : view.strides[1];
  const auto* values = static_cast<const float*>(view.data);
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    check_numbers(std::string(name) + "[" + std::to_string(b) + ", ", values + b * batch_step, heads, step, false);
  }
  *batch_stride = batch_step * static_cast<std::ptrdiff_t>(sizeof(float));
  *stride = step * static_cast<std::ptrdiff_t>(sizeof(float));
  return values;
}

}  // namespace polyhead::api
