// gemm_bf16_bf16 on emulated tiles, with vectors of 256 bits.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_COMPILE_ONLY_STATIC
#include "simd/x86/gemm_tiles-inl.h"
#include "simd/x86/tiles_emulated-inl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/gemm_bf16_suite.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

const GemmKernel on_tiles =
    simd::HWY_NAMESPACE::TileGemmKernel<simd::HWY_NAMESPACE::EmulatedTiles, 1>("gemm_bf16_bf16_amx_emulated");

std::vector<Bf16KernelCase> cases() {
  const std::vector<Isa> isas = available_isas();
  if (std::find(isas.begin(), isas.end(), Isa::avx2) == isas.end()) return {};
  return {{"emulated", &on_tiles, nullptr, dispatch::kernel_table(Isa::avx2).activation_f32, Sums::another, true}};
}
INSTANTIATE_TEST_SUITE_P(Tiles, GemmBf16Test, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmBf16Test);

}  // namespace
}  // namespace polyhead::test
#endif
