// attention, decode and merge kernels of bf16 and f16, of every instruction set.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "dispatch/select_isa.hpp"
#include "kernels/attention_kernel_suite.hpp"
#include "polyhead/runtime.hpp"
#include "support/environment.hpp"

namespace polyhead::test {
namespace {

// A kernel that serves several instruction sets is tested once. Kernels that multiply bf16 as it is round weights to bf16,
// those that multiply pieces of f16 to two.
std::vector<KernelCase> cases() {
  std::vector<KernelCase> all;
  std::set<const simd::AttentionKernel*> seen;
  for (const Isa isa : available_isas()) {
    for (const DType dtype : dispatch::attention_dtypes()) {
      if (dtype == DType::f32) continue;
      const dispatch::KernelTable& table = polyhead::testing::permitted_kernels(isa);
      const dispatch::AttentionKernels kernels = dispatch::attention_kernels(table, dtype);
      const std::string target = std::string(name(isa)) + "_" + name(dtype);
      const double of_bf16 = dispatch::multiplies_bf16_pairs(isa) || isa == Isa::amx ? 0x1p-8 : 0;
      const double weight_rounding = dtype == DType::bf16 ? of_bf16 : isa == Isa::amx ? 0x1p-15 : 0;
      if (seen.insert(kernels.transposed).second) {
        all.push_back({target + "_attention", kernels.transposed, kernels.merge, isa != Isa::reference, isa != Isa::amx,
                       Precision::strict, weight_rounding});
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
