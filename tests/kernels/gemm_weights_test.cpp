// The GEMM with weights in fewer bits, of every instruction set.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "kernels/gemm_weights_suite.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

// A kernel that serves several instruction sets is tested once.
std::vector<WeightsKernelCase> cases() {
  std::vector<WeightsKernelCase> all;
  std::set<const GemmKernel*> seen;
  for (const Isa isa : available_isas()) {
    if (emulated && isa == Isa::reference) continue;  // the scalar kernels are many times slower still
    const dispatch::KernelTable& table = dispatch::kernel_table(isa);
    for (const WeightType type : dispatch::weight_types()) {
      if (type == WeightType::f32 || polyhead::testing::rounds_rows(type)) continue;
      const GemmKernel* const kernel = &dispatch::gemm_kernel(table, type);
      if (seen.insert(kernel).second) all.push_back({std::string(name(isa)) + "_" + name(type), type, kernel, table.gemm_f32});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GemmWeightsTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmWeightsTest);

}  // namespace
}  // namespace polyhead::test
