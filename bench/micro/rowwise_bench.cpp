// Layer norm and activations of every instruction set that the machine has: GB/s read and written, results checked first.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "dispatch/kernel_table.hpp"
#include "polyhead/runtime.hpp"
#include "support/aligned_array.hpp"
#include "support/check.hpp"

namespace polyhead::bench {
namespace {

void finish(benchmark::State& state, std::int64_t elements) {
  state.SetItemsProcessed(state.iterations() * elements);
  state.SetBytesProcessed(state.iterations() * elements * 8);
}

void layer_norm(benchmark::State& state, const simd::LayerNormKernel& kernel, std::int64_t rows, std::int64_t dim) {
  AlignedArray x(static_cast<std::size_t>(rows * dim)), y(x.size()), gamma(static_cast<std::size_t>(dim));
  x.fill_random(1, 2.0);
  gamma.fill(0.75f);
  simd::LayerNormF32Args args;
  args.x = x.data();
  args.y = y.data();
  args.x_stride = args.y_stride = dim * 4;
  args.gamma = gamma.data();
  args.rows = rows;
  args.dim = dim;
  kernel.run(args);
  Check check;
  double mean = 0, variance = 0;
  for (std::int64_t i = 0; i < dim; ++i) mean += x[static_cast<std::size_t>(i)];
  mean /= static_cast<double>(dim);
  for (std::int64_t i = 0; i < dim; ++i) variance += std::pow(x[static_cast<std::size_t>(i)] - mean, 2);
  variance /= static_cast<double>(dim);
  for (std::size_t i = 0; i < gamma.size(); ++i) {
    check.take(y[i], (x[i] - mean) / std::sqrt(variance + args.epsilon) * 0.75, 8e-6);
  }
  if (!check.passed()) return state.SkipWithError(("wrong result: " + check.describe()).c_str());
  for (auto _ : state) {
    kernel.run(args);
    benchmark::ClobberMemory();
  }
  finish(state, rows * dim);
}

void activate(benchmark::State& state, const simd::ActivationKernel& kernel, simd::Activation activation) {
  constexpr std::int64_t count = 4096;
  AlignedArray x(count), y(count);
  x.fill_random(1, 2.0);
  simd::ActivationF32Args args;
  args.x = x.data();
  args.y = y.data();
  args.count = count;
  args.activation = activation;
  kernel.run(args);
  Check check;
  for (std::size_t i = 0; i < count; ++i) {
    const double v = x[i];
    const double expected = activation == simd::Activation::relu ? std::max(v, 0.0)
                            : activation == simd::Activation::gelu_erf
                                ? 0.5 * v * std::erfc(-v / std::sqrt(2.0))
                                : v / (1.0 + std::exp(-2.0 * 0.79788456080286536 * (v + 0.044715 * v * v * v)));
    check.take(y[i], expected, 2e-7 * std::max(1.0, std::fabs(expected)));
  }
  if (!check.passed()) return state.SkipWithError(("wrong result: " + check.describe()).c_str());
  for (auto _ : state) {
    kernel.run(args);
    benchmark::ClobberMemory();
  }
  finish(state, count);
}

const bool registered = [] {
  for (const Isa isa : available_isas()) {
    const dispatch::KernelTable& table = dispatch::kernel_table(isa);
    const std::string target = name(isa);
    for (const std::int64_t dim : {384, 768, 4096}) {
      const simd::LayerNormKernel* kernel = table.layer_norm_f32;
      benchmark::RegisterBenchmark(("layer_norm/16x" + std::to_string(dim) + "/" + target).c_str(),
                                   [kernel, dim](benchmark::State& state) { layer_norm(state, *kernel, 16, dim); });
    }
    const simd::ActivationKernel* kernel = table.activation_f32;
    const auto add = [&](const char* label, simd::Activation activation) {
      benchmark::RegisterBenchmark((std::string(label) + "/4096/" + target).c_str(),
                                   [kernel, activation](benchmark::State& state) { activate(state, *kernel, activation); });
    };
    add("relu", simd::Activation::relu);
    add("gelu_erf", simd::Activation::gelu_erf);
    add("gelu_tanh", simd::Activation::gelu_tanh);
  }
  return true;
}();

}  // namespace
}  // namespace polyhead::bench
