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
    for (const WeightType type : dispatch::weight_types()) {
      const simd::GemmKernel* const kernel = &dispatch::gemm_kernel(dispatch::kernel_table(isa), type);
      const std::string group = type == WeightType::f32 ? "gemm/" : std::string("gemm_weights/") + name(type) + "-";
      for (const GemmShape shape : shapes) {
        const std::string size = std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k);
        if (too_slow(isa, 2.0 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k))) continue;
        for (const int threads : options.threads) {
          register_case(options, {group + size, isa, threads, [kernel, shape, threads, type] {
                                    return std::make_unique<GemmCase>(
                                        *kernel, shape, threads,
                                        std::make_shared<GemmWeights>(*kernel, shape.n, shape.k, type));
                                  }});
        }
      }
    }
  }
}

}  // namespace polyhead::bench
