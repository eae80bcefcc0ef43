// layer_norm_f32, softmax_f32 and activation_f32 in scalar arithmetic.
#include "simd/contract/rowwise.hpp"

#include <math.h>

#include "simd/floating_point.hpp"
#include "simd/reference/activation.hpp"
#include "simd/reference/reference.hpp"

namespace polyhead::simd::reference {
namespace {

POLYHEAD_NOINLINE void normalize_rows(const LayerNormF32Args& args) {
  const double count = static_cast<double>(args.dim);
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* x = at(args.x, args.x_stride * row);
    const float* residual = args.residual ? at(args.residual, args.residual_stride * row) : nullptr;
    float* y = at(args.y, args.y_stride * row);
    const auto input = [&](std::int64_t i) {
      return static_cast<double>(x[i]) + (residual ? static_cast<double>(residual[i]) : 0.0);
    };
    double mean = 0.0;
    for (std::int64_t i = 0; i < args.dim; ++i) mean += input(i);
    mean /= count;
    double variance = 0.0;
    for (std::int64_t i = 0; i < args.dim; ++i) variance += (input(i) - mean) * (input(i) - mean);
    variance /= count;
    const double inverse = 1.0 / sqrt(variance + args.epsilon);
    for (std::int64_t i = 0; i < args.dim; ++i) {
      const double gamma = args.gamma ? static_cast<double>(args.gamma[i]) : 1.0;
      const double beta = args.beta ? static_cast<double>(args.beta[i]) : 0.0;
      y[i] = static_cast<float>((input(i) - mean) * inverse * gamma + beta);
    }
  }
}

POLYHEAD_NOINLINE void softmax_rows(const SoftmaxF32Args& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* x = at(args.x, args.x_stride * row);
    float* y = at(args.y, args.y_stride * row);
    double largest = -kInfinity;
    for (std::int64_t i = 0; i < args.dim; ++i) {
      const double scaled = args.scale * static_cast<double>(x[i]);
      if (scaled > largest) largest = scaled;
    }
    if (largest == -kInfinity) largest = 0.0;  // -inf gives weights of 0, NaN stays NaN
    double sum = 0.0;
    for (std::int64_t i = 0; i < args.dim; ++i) sum += exp(args.scale * static_cast<double>(x[i]) - largest);
    for (std::int64_t i = 0; i < args.dim; ++i) {
      const double weight = exp(args.scale * static_cast<double>(x[i]) - largest);
      y[i] = sum == 0.0 ? 0.0f : static_cast<float>(weight / sum);
    }
  }
}

POLYHEAD_NOINLINE void activate_values(const ActivationF32Args& args) {
  for (std::int64_t i = 0; i < args.count; ++i) args.y[i] = activate(args.activation, args.x[i]);
}

void layer_norm(const LayerNormF32Args& args) {
  const KeepDenormals environment;
  normalize_rows(args);
}

void softmax(const SoftmaxF32Args& args) {
  const KeepDenormals environment;
  softmax_rows(args);
}

void activation(const ActivationF32Args& args) {
  const KeepDenormals environment;
  activate_values(args);
}

}  // namespace

extern const LayerNormKernel layer_norm_f32;
extern const SoftmaxKernel softmax_f32;
extern const ActivationKernel activation_f32;
const LayerNormKernel layer_norm_f32 = {"layer_norm_f32_reference", layer_norm};
const SoftmaxKernel softmax_f32 = {"softmax_f32_reference", softmax};
const ActivationKernel activation_f32 = {"activation_f32_reference", activation};

}  // namespace polyhead::simd::reference
