// What the row-wise kernels promise: layer norm, softmax and activations over rows. See attention.hpp for the rules that every
// kernel keeps. A row's bits depend on the row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/contract/gemm.hpp"

namespace polyhead::simd {

// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over the last dimension; variance is the biased one. With
// residual: x is replaced by x + residual first. y may be x.
struct LayerNormF32Args {
  const float* x = nullptr;
  std::ptrdiff_t x_stride = 0;      // bytes between rows
  const float* residual = nullptr;  // or nullptr
  std::ptrdiff_t residual_stride = 0;
  float* y = nullptr;
  std::ptrdiff_t y_stride = 0;
  const float* gamma = nullptr;  // [dim] or nullptr for 1
  const float* beta = nullptr;   // [dim] or nullptr for 0
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  double epsilon = 1e-5;
};

// y = softmax(scale * x) over the last dimension; an all -inf row gives zeros. y may be x.
struct SoftmaxF32Args {
  const float* x = nullptr;
  std::ptrdiff_t x_stride = 0;
  float* y = nullptr;
  std::ptrdiff_t y_stride = 0;
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  double scale = 1.0;
};

// y[i] = activation(x[i]). y may be x.
struct ActivationF32Args {
  const float* x = nullptr;
  float* y = nullptr;
  std::int64_t count = 0;
  Activation activation = Activation::none;
};

struct LayerNormKernel {
  const char* name;
  void (*run)(const LayerNormF32Args& args);
};
struct SoftmaxKernel {
  const char* name;
  void (*run)(const SoftmaxF32Args& args);
};
struct ActivationKernel {
  const char* name;
  void (*run)(const ActivationF32Args& args);
};

}  // namespace polyhead::simd
