// Layer norm, activations and masks' marks of every instruction set that the machine has: GB/s read and written, results
// checked first.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "polyhead/runtime.hpp"
#include "simd/contract/attention.hpp"
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

// All visible, or one byte in three hidden.
void mark_mask(benchmark::State& state, const simd::MaskMarksKernel& kernel, bool mixed) {
  constexpr std::int64_t queries = 1024, keys = 1024, rows = queries / simd::AttentionArgs::queries_per_mark;
  constexpr std::int64_t columns = keys / simd::AttentionArgs::keys_per_mark;
  std::vector<std::uint8_t> mask(queries * keys, 1), marks(rows * columns);
  for (std::size_t i = 0; mixed && i < mask.size(); i += 3) mask[i] = 0;
  const auto run = [&] {
    std::fill(marks.begin(), marks.end(), simd::keys_all);
    simd::MaskMarksArgs args;
    args.mask = mask.data();
    args.stride = keys;
    args.key_stride = 1;
    args.key_end = keys;
    for (std::int64_t row = 0; row < rows; ++row) {
      args.query_begin = row * simd::AttentionArgs::queries_per_mark;
      args.query_end = args.query_begin + simd::AttentionArgs::queries_per_mark;
      args.marks = marks.data() + row * columns;
      kernel.run(args);
    }
  };
  run();
  const int right = mixed ? simd::keys_seen : simd::keys_seen | simd::keys_all;
  if (std::any_of(marks.begin(), marks.end(), [right](std::uint8_t mark) { return mark != right; })) {
    return state.SkipWithError("wrong result: a mark is not what its bytes are");
  }
  for (auto _ : state) {
    run();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * queries * keys);
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
    const simd::MaskMarksKernel* const marks = table.mask_marks;
    for (const bool mixed : {false, true}) {
      benchmark::RegisterBenchmark((std::string(mixed ? "mask_marks_mixed" : "mask_marks") + "/1024x1024/" + target).c_str(),
                                   [marks, mixed](benchmark::State& state) { mark_mask(state, *marks, mixed); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace polyhead::bench
