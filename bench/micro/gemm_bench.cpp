// The GEMM kernels' parts that the suite of record does not single out: packing, few rows, epilogues. Checked before timing.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "polyhead/runtime.hpp"
#include "support/aligned_array.hpp"
#include "support/check.hpp"

namespace polyhead::bench {
namespace {

struct Shape {
  std::int64_t m, n, k;
};

void gemm(benchmark::State& state, const simd::GemmKernel& kernel, Shape shape, simd::Activation activation, bool pack_only) {
  const std::int64_t m = shape.m, n = shape.n, k = shape.k;
  AlignedArray a(static_cast<std::size_t>(m * k)), weight(static_cast<std::size_t>(n * k)), c(static_cast<std::size_t>(m * n));
  AlignedArray packed(kernel.packed_bytes(n, k) / sizeof(float));
  a.fill_random(1);
  weight.fill_random(2, 1.0 / std::sqrt(static_cast<double>(k)));
  simd::PackF32Args pack;
  pack.weight = weight.data();
  pack.n_stride = k * 4;
  pack.k_stride = 4;
  pack.n = n;
  pack.k = k;
  pack.packed = packed.data();
  kernel.pack(pack);
  simd::GemmF32Args args;
  args.a = a.data();
  args.a_stride = k * 4;
  args.packed = packed.data();
  args.c = c.data();
  args.c_stride = n * 4;
  args.m = m;
  args.n = args.n_end = n;
  args.k = k;
  args.activation = activation;
  kernel.run(args);
  Check check;
  for (std::int64_t row = 0; row < m; row += std::max<std::int64_t>(1, m / 4)) {
    for (std::int64_t column = 0; column < n; ++column) {
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        const double term =
            static_cast<double>(a[static_cast<std::size_t>(row * k + i)]) * weight[static_cast<std::size_t>(column * k + i)];
        sum += term;
        magnitude += std::fabs(term);
      }
      if (activation == simd::Activation::gelu_erf) sum *= 0.5 * std::erfc(-sum / std::sqrt(2.0));
      check.take(c[static_cast<std::size_t>(row * n + column)], sum,
                 2e-7 + std::ldexp(magnitude * static_cast<double>(k + 1), -23));
    }
  }
  if (!check.passed()) return state.SkipWithError(("wrong result: " + check.describe()).c_str());
  for (auto _ : state) {
    if (pack_only) {
      kernel.pack(pack);
    } else {
      kernel.run(args);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * n * k * 4);
  if (!pack_only) state.SetItemsProcessed(state.iterations() * 2 * m * n * k);
}

const bool registered = [] {
  for (const Isa isa : available_isas()) {
    if (isa == Isa::reference) continue;  // slow by intent
    if (isa == Isa::amx && !dispatch::request_tile_permission()) continue;
    const simd::GemmKernel* kernel = dispatch::kernel_table(isa).gemm_f32;
    const auto add = [&](const char* label, Shape shape, simd::Activation activation, bool pack_only) {
      const std::string size = std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k);
      benchmark::RegisterBenchmark((std::string(label) + "/" + size + "/" + name(isa)).c_str(),
                                   [=](benchmark::State& state) { gemm(state, *kernel, shape, activation, pack_only); });
    };
    for (const std::int64_t m : {1, 2, 3, 4, 6, 12, 13}) add("gemm_few_rows", {m, 768, 768}, simd::Activation::none, false);
    for (const std::int64_t m : {128, 1024}) add("gemm", {m, 384, 1536}, simd::Activation::none, false);
    add("gemm_gelu", {128, 1536, 384}, simd::Activation::gelu_erf, false);
    add("gemm_pack", {1, 768, 768}, simd::Activation::none, true);
  }
  return true;
}();

}  // namespace
}  // namespace polyhead::bench
