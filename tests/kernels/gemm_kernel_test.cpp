// gemm_f32 of every instruction set.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/gemm_kernel_suite.hpp"
#include "polyhead/runtime.hpp"
#include "support/environment.hpp"

namespace polyhead::test {
namespace {

// A kernel that serves several instruction sets is tested once.
std::vector<GemmKernelCase> cases() {
  std::vector<GemmKernelCase> all;
  std::set<const simd::GemmKernel*> seen;
  for (const Isa isa : available_isas()) {
    const dispatch::KernelTable& table = polyhead::testing::permitted_kernels(isa);
    if (!seen.insert(table.gemm_f32).second) continue;
    all.push_back({name(isa), table.gemm_f32, table.activation_f32,
                   isa != Isa::reference,  // scalar code takes the caller's
                   isa == Isa::amx ? piece_roundings : chain_roundings});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GemmKernelTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace polyhead::test
