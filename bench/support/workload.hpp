// Shapes that are measured: the named ones of bench/workloads.json, compiled in, or one that a user wrote down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/mask.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::bench {

struct AttentionWorkload {
  std::string name;
  std::int64_t batch = 1, heads = 1, kv_heads = 1, query_length = 1, key_length = 1, head_dim = 64, value_dim = 64;
  Causal causal = Causal::none;
  std::int64_t window_left = Mask::unbounded, window_right = Mask::unbounded;
  bool padded = false;  // key lengths differ over the batch
  DType dtype = DType::f32;

  // The same on operands of another data type, which its name then ends in unless it is f32: "bert-128-bf16".
  AttentionWorkload of_dtype(DType dtype) const;

  Mask mask() const;
  std::vector<std::int64_t> key_lengths() const;  // [batch]: key_length - (7 i mod key_length / 2), or empty when not padded
  std::string describe() const;                   // "b=8 h=12 t=128 s=128 d=64"
  double flops() const;                           // of all pairs of query and key, whatever the mask
};

struct LayerWorkload {
  std::string name;
  std::int64_t batch = 1, length = 1, d_model = 1, heads = 1;
};

const std::vector<AttentionWorkload>& attention_workloads();
const std::vector<LayerWorkload>& layer_workloads();

// Null when there is none of this name.
const AttentionWorkload* find_attention_workload(const std::string& name);

// "b=1,h=32,g=8,t=1,s=8192,d=128,e=64": batch (1), heads (1), kv heads (h), query length, key length (t), head size, value
// size (d); in brackets what a missing key means. Errors: Error(invalid_argument) that names the part it could not take.
AttentionWorkload parse_shape(const std::string& text);

}  // namespace polyhead::bench
