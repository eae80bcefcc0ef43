// Attention weights of chosen heads and rows, and the attention that keys receive: on request, apart from attention itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/task_graph.hpp"
#include "plan/attention_work.hpp"

namespace polyhead::plan {

// Strides in bytes.
struct WeightsOperands {
  const std::int64_t* heads = nullptr;  // [head_count] query heads
  const std::int64_t* rows = nullptr;   // [row_count] positions of queries
  std::int64_t head_count = 0, row_count = 0;
  // The tensors' own: where sequences are packed, 1 and the number of all keys.
  std::int64_t batch = 0, key_count = 0;
  float* weights = nullptr;  // [batch][head_count][row_count][key_count], or null
  std::ptrdiff_t weights_strides[4] = {};
  float* received = nullptr;  // [batch][head_count][key_count]: their sum over the chosen rows, or null
  std::ptrdiff_t received_strides[3] = {};
};

// operands.value, out and lse are not looked at. Query and keys may be of any types that attention takes, and keys may lie in
// pages. Memory is allocated: for each thread a few rows of weights, and the keys of one call where they lie in pages.
void run_weights(const AttentionOperands& operands, const WeightsOperands& wanted, const dispatch::KernelTable& kernels,
                 graph::Scheduler& scheduler);

}  // namespace polyhead::plan
