// The packed GEMM kernel on the sizes of attention layers and feed-forward networks.
#include <memory>
#include <string>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "suite.hpp"
#include "support/gemm_case.hpp"

namespace polyhead::bench {

void register_gemm(const SuiteOptions& options) {
  constexpr GemmShape shapes[] = {{1, 768, 768},     {16, 768, 768},    {128, 768, 768},   {1024, 768, 768},
                                  {1024, 3072, 768}, {1024, 768, 3072}, {128, 384, 384},   {128, 4096, 4096},
                                  {1, 4096, 4096},   {16, 4096, 4096},  {1024, 4096, 4096}};
  for (const Isa isa : options.isas) {
    if (isa == Isa::amx && !dispatch::request_tile_permission()) continue;
    const simd::GemmKernel* const kernel = dispatch::kernel_table(isa).gemm_f32;
    for (const GemmShape shape : shapes) {
      const std::string name =
          "gemm/" + std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k);
      if (too_slow(isa, 2.0 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k))) continue;
      for (const int threads : options.threads) {
        register_case(options, {name, isa, threads, [kernel, shape, threads] {
                                  return std::make_unique<GemmCase>(*kernel, shape, threads,
                                                                    std::make_shared<GemmWeights>(*kernel, shape.n, shape.k));
                                }});
      }
    }
  }
}

}  // namespace polyhead::bench
