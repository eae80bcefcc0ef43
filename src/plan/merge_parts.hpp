// Brings together attention that was computed over different keys by different calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch/kernel_table.hpp"
#include "graph/task_graph.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::plan {

// Strides in bytes: [0] batch, [1] head, [2] position, [3] (of out) element.
struct PartOperands {
  const void* out = nullptr;
  const float* lse = nullptr;
  std::ptrdiff_t out_strides[4] = {}, lse_strides[3] = {};
};

struct MergeOperands {
  std::int64_t batch = 0, heads = 0, length = 0, value_dim = 0;
  DType dtype = DType::f32;  // of all three outs: f32, bf16 or f16
  PartOperands parts[2];
  void* out = nullptr;
  float* lse = nullptr;  // may be null
  std::ptrdiff_t out_strides[4] = {}, lse_strides[3] = {};
  const float* sink = nullptr;  // [heads], may be null
  std::ptrdiff_t sink_stride = 0;
};

// out and lse may be those of a part: a row is read before it is written.
void merge_parts(const MergeOperands& operands, const dispatch::KernelTable& kernels, graph::Scheduler& scheduler);

}  // namespace polyhead::plan
