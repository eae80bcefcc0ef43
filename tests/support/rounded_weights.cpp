#include "support/rounded_weights.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "polyhead/tensor.hpp"
#include "support/tensor.hpp"

namespace polyhead::testing {
namespace {

constexpr std::int64_t int4_block = 32;

float nearest(DType dtype, float value) {
  std::uint16_t element = 0;
  const TensorView view = TensorView(&element, dtype, 1, std::vector<std::int64_t>{1}.data());
  store(view, 0, static_cast<double>(value));
  return static_cast<float>(load(view, 0));
}

bool all_finite(const float* weights, std::int64_t count) {
  return std::all_of(weights, weights + count, [](float weight) { return std::isfinite(weight); });
}

// The weight that is largest without its sign, the first of several.
float largest(const float* weights, std::int64_t count) {
  return *std::max_element(weights, weights + count, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

float nearest_multiple(float weight, float scale, double least, double most) {
  if (scale == 0) return 0;
  const double multiple = std::nearbyint(static_cast<double>(weight) / static_cast<double>(scale));
  return static_cast<float>(std::clamp(multiple, least, most));
}

// The bf16 next to an f32 on the side of zero.
float truncated_bf16(float value) {
  if (value == 0) return 0;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return static_cast<float>(std::trunc(static_cast<double>(value) / unit) * unit);
}

void round_to_int8(const float* from, std::int64_t k, float* to) {
  if (!all_finite(from, k)) return std::fill(to, to + k, std::numeric_limits<float>::quiet_NaN());
  float scale = std::fabs(largest(from, k)) / 127.0f;
  while (!std::isfinite(scale * 127.0f)) scale = std::nextafter(scale, 0.0f);
  for (std::int64_t i = 0; i < k; ++i) to[i] = nearest_multiple(from[i], scale, -127, 127) * scale;
}

double round_block(const float* from, std::int64_t count, float scale, float* to) {
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = nearest_multiple(from[i], scale, -8, 7) * scale;
    const float error = static_cast<float>(static_cast<double>(from[i]) - static_cast<double>(to[i]));
    squares += static_cast<double>(error) * static_cast<double>(error);
  }
  return squares;
}

void round_to_int4(const float* from, std::int64_t count, float* to) {
  if (!all_finite(from, count)) return std::fill(to, to + count, std::numeric_limits<float>::quiet_NaN());
  const float extreme = largest(from, count);
  float other[int4_block];
  const double even = round_block(from, count, truncated_bf16(std::fabs(extreme) / 7.0f), to);
  const double wide = round_block(from, count, truncated_bf16(extreme / -8.0f), other);
  if (wide < even) std::copy(other, other + count, to);
}

}  // namespace

std::vector<float> rounded_weights(WeightType type, const std::vector<float>& weights, std::int64_t n, std::int64_t k) {
  std::vector<float> rounded = weights;
  for (std::int64_t row = 0; row < n; ++row) {
    const float* from = weights.data() + row * k;
    float* to = rounded.data() + row * k;
    switch (type) {
      case WeightType::f32:
        break;
      case WeightType::bf16:
      case WeightType::bf16_dynamic:
        std::transform(from, from + k, to, [](float weight) { return nearest(DType::bf16, weight); });
        break;
      case WeightType::f16:
        std::transform(from, from + k, to, [](float weight) { return nearest(DType::f16, weight); });
        break;
      case WeightType::int8:
      case WeightType::int8_dynamic:
        if (k > 0) round_to_int8(from, k, to);
        break;
      case WeightType::int4:
        for (std::int64_t i = 0; i < k; i += int4_block) round_to_int4(from + i, std::min(int4_block, k - i), to + i);
        break;
    }
  }
  return rounded;
}

bool rounds_rows(WeightType type) {
  return type == WeightType::int8_dynamic || type == WeightType::bf16_dynamic;
}

std::vector<float> nearest_bf16(const float* numbers, std::int64_t count) {
  std::vector<float> rounded(static_cast<std::size_t>(count));
  std::transform(numbers, numbers + count, rounded.begin(), [](float number) { return nearest(DType::bf16, number); });
  return rounded;
}

std::vector<double> weight_error_bounds(WeightType type, const std::vector<float>& weights, std::int64_t n, std::int64_t k) {
  // What shares a scale is off by at most a part of the largest; else by a part of its own size.
  const bool is_int8 = type == WeightType::int8 || type == WeightType::int8_dynamic;
  const std::int64_t together = is_int8 ? k : type == WeightType::int4 ? int4_block : 1;
  const bool is_bf16 = type == WeightType::bf16 || type == WeightType::bf16_dynamic;
  const double part = is_bf16                    ? 0x1p-8
                      : type == WeightType::f16  ? 0x1p-11
                      : is_int8                  ? (1 + 0x1p-20) / 254
                      : type == WeightType::int4 ? 2.0 / 15
                                                 : 0.0;
  const double least = type == WeightType::f16 ? 0x1p-25 : 0.0;
  std::vector<double> bounds;
  bounds.reserve(weights.size());
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t begin = 0; begin < k; begin += together) {
      const std::int64_t count = std::min(together, k - begin);
      const double size = std::fabs(static_cast<double>(largest(weights.data() + row * k + begin, count)));
      bounds.insert(bounds.end(), static_cast<std::size_t>(count), std::max(part * size, least));
    }
  }
  return bounds;
}

}  // namespace polyhead::testing
