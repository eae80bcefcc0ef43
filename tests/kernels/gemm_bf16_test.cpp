// gemm_bf16_bf16 of every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/gemm_bf16_suite.hpp"
#include "polyhead/runtime.hpp"
#include "support/environment.hpp"

namespace polyhead::test {
namespace {

std::vector<Bf16KernelCase> cases() {
  std::vector<Bf16KernelCase> all;
#if defined(POLYHEAD_HAVE_BF16)
  for (const Isa isa : available_isas()) {
    if (emulated && isa == Isa::reference) continue;  // the scalar kernels are many times slower still
    const dispatch::KernelTable& table = polyhead::testing::permitted_kernels(isa);
    const GemmKernel* const kernel = &dispatch::gemm_kernel(table, WeightType::bf16_dynamic);
    // A target without a kernel of its own has a plainer one's.
    const auto is_same = [&](const Bf16KernelCase& other) { return other.kernel == kernel; };
    if (std::any_of(all.begin(), all.end(), is_same)) continue;
    // Scalar code sums in double; on tiles products of even and of odd k are summed apart; bfdot rounds sums to odd.
    const bool is_another = isa == Isa::reference || isa == Isa::amx || isa == Isa::neon_bf16;
    const Sums sums = is_another ? Sums::another : isa == Isa::avx512_bf16 ? Sums::by_pair : Sums::by_number;
    all.push_back({name(isa), kernel, isa == Isa::amx ? nullptr : table.gemm_f32_bf16, table.activation_f32, sums,
                   isa == Isa::neon_bf16 ? 0x1p-23 : 0x1p-24});
  }
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GemmBf16Test, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmBf16Test);

}  // namespace
}  // namespace polyhead::test
