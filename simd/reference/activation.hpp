// Activations of one value, shared by the GEMM's epilogue and activation_f32, so that both give the same bits.
#pragma once

#include <math.h>

#include "simd/contract/gemm.hpp"

namespace polyhead::simd::reference {

static inline float activate(Activation activation, float value) {
  const double x = static_cast<double>(value);
  switch (activation) {
    case Activation::none:
      return value;
    case Activation::relu:
      return value < 0.0f ? 0.0f : value;  // NaN is not below 0
    case Activation::gelu_erf:
      if (x == -__builtin_inf()) return 0.0f;  // not inf * 0
      return static_cast<float>(0.5 * x * erfc(-x * 0.70710678118654752440));
    case Activation::gelu_tanh: {
      if (x == -__builtin_inf()) return 0.0f;
      const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
      return static_cast<float>(x / (1.0 + exp(-2.0 * u)));  // 0.5 (1 + tanh u) without cancellation
    }
  }
  return value;
}

}  // namespace polyhead::simd::reference
