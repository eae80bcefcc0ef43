// gemm_bf16_bf16 on emulated tiles, with the vectors of one instruction set. A test file says which by HWY_BASELINE_TARGETS.
#pragma once

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

namespace target = simd::HWY_NAMESPACE;

const GemmKernel on_tiles = target::TileGemmKernel<target::EmulatedTiles, 1>("gemm_bf16_bf16_amx_emulated");

constexpr Isa vectors = HWY_TARGET == HWY_AVX2 ? Isa::avx2 : Isa::avx512;

std::vector<Bf16KernelCase> cases() {
  const std::vector<Isa> isas = available_isas();
  if (std::find(isas.begin(), isas.end(), vectors) == isas.end()) return {};
  return {{"emulated", &on_tiles, nullptr, dispatch::kernel_table(vectors).activation_f32, Sums::another}};
}
INSTANTIATE_TEST_SUITE_P(Tiles, GemmBf16Test, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmBf16Test);

}  // namespace
}  // namespace polyhead::test
