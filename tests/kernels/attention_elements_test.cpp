// What attention, decode and merge kernels of each instruction set make of elements of 16 bits.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/attention_elements_suite.hpp"
#include "polyhead/runtime.hpp"
#include "support/environment.hpp"

namespace polyhead::test {
namespace {

std::vector<ElementCase> cases() {
  std::vector<ElementCase> all;
  std::set<const simd::AttentionKernel*> seen;  // one that serves several instruction sets is tested once
  for (const Isa isa : available_isas()) {
    for (const DType dtype : dispatch::attention_dtypes()) {
      if (dtype == DType::f32) continue;
      const dispatch::KernelTable& table = polyhead::testing::permitted_kernels(isa);
      const dispatch::AttentionKernels kernels = dispatch::attention_kernels(table, dtype);
      const std::string target = std::string(name(isa)) + "_" + name(dtype);
      if (seen.insert(kernels.transposed).second) {
        all.push_back({target + "_attention", dtype, kernels.transposed, kernels.merge});
      }
      if (seen.insert(kernels.decode).second) all.push_back({target + "_decode", dtype, kernels.decode, kernels.merge});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, AttentionElementsTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionElementsTest);

}  // namespace
}  // namespace polyhead::test
