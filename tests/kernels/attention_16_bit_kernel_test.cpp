// attention, decode and merge kernels of bf16 and f16, of every instruction set.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "dispatch/select_isa.hpp"
#include "kernels/attention_kernel_suite.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

// A kernel that serves several instruction sets is tested once. Kernels that multiply pairs of bf16 round weights to bf16.
std::vector<KernelCase> cases() {
  std::vector<KernelCase> all;
  std::set<const simd::AttentionKernel*> seen;
  for (const Isa isa : available_isas()) {
    for (const DType dtype : dispatch::attention_dtypes()) {
      if (dtype == DType::f32) continue;
      const dispatch::AttentionKernels kernels = dispatch::attention_kernels(dispatch::kernel_table(isa), dtype);
      const std::string target = std::string(name(isa)) + "_" + name(dtype);
      const double weight_rounding = dispatch::multiplies_bf16_pairs(isa) && dtype == DType::bf16 ? 0x1p-8 : 0;
      if (seen.insert(kernels.transposed).second) {
        all.push_back({target + "_attention", kernels.transposed, kernels.merge, isa != Isa::reference, true, Precision::strict,
                       weight_rounding});
      }
      if (seen.insert(kernels.decode).second) {
        all.push_back({target + "_decode", kernels.decode, kernels.merge, isa != Isa::reference, true});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, AttentionKernelTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionKernelTest);

}  // namespace
}  // namespace polyhead::test
