// gemm_i8_i8 of every instruction set.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "kernels/gemm_products_suite.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

std::vector<ProductsKernelCase> cases() {
  std::vector<ProductsKernelCase> all;
#if defined(POLYHEAD_HAVE_I8)
  for (const Isa isa : available_isas()) {
    const dispatch::KernelTable& table = dispatch::kernel_table(isa);
    all.push_back({name(isa), table.gemm_i8_i8, table.gemm_f32_i8});
  }
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GemmProductsTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmProductsTest);

}  // namespace
}  // namespace polyhead::test
