#include "sweep/families.hpp"

#include <algorithm>
#include <set>

#include "dispatch/kernel_table.hpp"
#include "support/attention_case.hpp"
#include "support/gemm_case.hpp"

namespace polyhead::bench {
namespace {

std::vector<std::int64_t> every(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = first; size <= last; ++size) sizes.push_back(size);
  return sizes;
}

// Every size up to `dense`, then around each multiple of `step` up to `last`: where kernels' tiles and blocks end.
std::vector<std::int64_t> around_multiples(std::int64_t dense, std::int64_t step, std::int64_t last) {
  std::set<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= dense; ++size) sizes.insert(size);
  for (std::int64_t multiple = dense / step * step; multiple <= last; multiple += step) {
    for (const std::int64_t size : {multiple - 1, multiple, multiple + 1}) {
      if (size > dense) sizes.insert(size);
    }
  }
  return {sizes.begin(), sizes.end()};
}

using Edit = void (*)(AttentionWorkload& workload, std::int64_t size);

SweepFamily attention_family(const std::string& name, const std::string& unit, const std::string& shape, Edit edit,
                             std::vector<std::int64_t> sizes) {
  SweepFamily family;
  family.name = name;
  family.description = shape;
  family.unit = unit;
  family.sizes = std::move(sizes);
  const AttentionWorkload fixed = parse_shape(shape);
  family.make = [fixed, edit](std::int64_t size, const Runtime& runtime) {
    AttentionWorkload workload = fixed;
    edit(workload, size);
    return std::make_unique<AttentionCase>(workload, runtime);
  };
  return family;
}

// Rows through one packed square matrix.
SweepFamily gemm_family(const std::string& name, std::int64_t width, std::vector<std::int64_t> sizes) {
  SweepFamily family;
  family.name = name;
  family.description = "gemm, n=" + std::to_string(width) + ",k=" + std::to_string(width);
  family.unit = "rows";
  family.sizes = std::move(sizes);
  auto weights = std::make_shared<std::shared_ptr<const GemmWeights>>();  // made by the first size
  family.make = [width, weights](std::int64_t size, const Runtime& runtime) {
    const simd::GemmKernel& kernel = *dispatch::kernel_table(runtime.isa()).gemm_f32;
    if (*weights == nullptr) *weights = std::make_shared<GemmWeights>(kernel, width, width);
    return std::make_unique<GemmCase>(kernel, GemmShape{size, width, width}, runtime.threads(), *weights);
  };
  return family;
}

void set_queries(AttentionWorkload& workload, std::int64_t size) {
  workload.query_length = size;
}
void set_keys(AttentionWorkload& workload, std::int64_t size) {
  workload.key_length = size;
}
void set_both_lengths(AttentionWorkload& workload, std::int64_t size) {
  workload.query_length = workload.key_length = size;
}
void set_causal_lengths(AttentionWorkload& workload, std::int64_t size) {
  workload.query_length = workload.key_length = size;
  workload.causal = Causal::top_left;
}
void set_head_dim(AttentionWorkload& workload, std::int64_t size) {
  workload.head_dim = workload.value_dim = size;
}
void set_heads(AttentionWorkload& workload, std::int64_t size) {
  workload.heads = workload.kv_heads = size;
}
void set_batch(AttentionWorkload& workload, std::int64_t size) {
  workload.batch = size;
}

}  // namespace

std::vector<SweepFamily> sweep_families() {
  return {
      attention_family("queries", "queries", "h=4,t=1,s=512,d=64", set_queries, around_multiples(136, 16, 528)),
      attention_family("queries-grouped", "queries", "h=8,g=2,t=1,s=1024,d=128", set_queries, every(1, 72)),
      attention_family("queries-long-keys", "queries", "h=2,t=1,s=8192,d=64", set_queries, every(1, 72)),
      attention_family("keys", "keys", "h=4,t=64,s=1,d=64", set_keys, around_multiples(136, 64, 1100)),
      attention_family("keys-decode", "keys", "h=8,t=1,s=1,d=128", set_keys, around_multiples(136, 64, 1100)),
      attention_family("keys-decode-long", "keys", "h=8,g=2,t=1,s=1,d=128", set_keys, around_multiples(0, 512, 9216)),
      attention_family("lengths", "tokens", "h=4,t=1,d=64", set_both_lengths, around_multiples(136, 16, 400)),
      attention_family("lengths-causal", "tokens", "h=4,t=1,d=64", set_causal_lengths, around_multiples(136, 16, 400)),
      attention_family("head-size", "channels", "h=4,t=128,s=256,d=1", set_head_dim, every(1, 256)),
      attention_family("head-size-decode", "channels", "h=8,t=1,s=512,d=1", set_head_dim, every(1, 256)),
      attention_family("heads", "heads", "h=1,t=64,s=128,d=64", set_heads, every(1, 96)),
      attention_family("batch", "sequences", "b=1,h=1,t=16,s=16,d=64", set_batch, every(1, 96)),
      gemm_family("gemm-rows", 768, every(1, 200)),
      gemm_family("gemm-rows-large", 4096, around_multiples(16, 48, 200)),
  };
}

}  // namespace polyhead::bench
