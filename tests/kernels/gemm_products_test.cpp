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
    const GemmKernel* const serving = &dispatch::gemm_kernel(table, WeightType::int8_dynamic);
    if (serving != table.gemm_i8_i8) all.push_back({std::string(name(isa)) + "_vnni", serving, table.gemm_f32_i8});
  }
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GemmProductsTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmProductsTest);

#if defined(POLYHEAD_HAVE_I8)
// What serves in the place of an instruction set's own kernel is asked for by nobody, so it must not show: not in one bit.
TEST(GemmProducts, TheKernelThatServesHasTheBitsOfTheTables) {
  int compared = 0;
  for (const Isa isa : available_isas()) {
    const dispatch::KernelTable& table = dispatch::kernel_table(isa);
    const GemmKernel* const serving = &dispatch::gemm_kernel(table, WeightType::int8_dynamic);
    if (serving == table.gemm_i8_i8) continue;
    const WeightsKernelCase kernels{name(isa), WeightType::int8, serving, table.gemm_f32};
    for (const std::int64_t k : {1, 4, 63, 770, 65536}) {
      for (const std::int64_t m : {1, 3, 8, 17, 66}) {
        WeightsProduct product(kernels, m, serving->panel_width + 5, k, 3, static_cast<std::uint32_t>(k + m));
        GemmF32Args args = product.args();
        args.activation = Activation::gelu_tanh;
        serving->run(args);
        args.c = product.expected.data();
        table.gemm_i8_i8->run(args);  // reads what the other one has packed
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < product.n; ++j, ++compared) {
            const std::size_t index = count_of(i * product.c_width + j, 1);
            ASSERT_EQ(bits_of(product.c[index]), bits_of(product.expected[index]))
                << serving->name << ", M " << m << " K " << k << ", row " << i << " column " << j;
          }
        }
      }
    }
  }
  if (compared == 0) GTEST_SKIP() << "no kernel takes another one's place here";
}
#endif

}  // namespace
}  // namespace polyhead::test
