// attention_f32, fast_attention_f32, decode_f32 and merge_f32 of every instruction set.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/attention_kernel_suite.hpp"
#include "polyhead/runtime.hpp"
#include "support/environment.hpp"

namespace polyhead::test {
namespace {

// A kernel that serves several instruction sets is tested once.
std::vector<KernelCase> cases() {
  std::vector<KernelCase> all;
  std::set<const simd::AttentionKernel*> seen;
  for (const Isa isa : available_isas()) {
    const dispatch::KernelTable& table = polyhead::testing::permitted_kernels(isa);
    const std::string target = name(isa);
    if (seen.insert(table.attention_f32).second) {
      all.push_back({target + "_attention", table.attention_f32, table.merge_f32, isa != Isa::reference, isa != Isa::amx});
    }
    if (table.fast_attention_f32 != table.attention_f32) {
      all.push_back({target + "_fast_attention", table.fast_attention_f32, table.merge_f32, true, false, Precision::fast});
    }
    if (seen.insert(table.decode_f32).second) {
      all.push_back({target + "_decode", table.decode_f32, table.merge_f32, isa != Isa::reference, true});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, AttentionKernelTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace polyhead::test
