// What `polyhead bench` is asked to measure: names and patterns of workloads, or shapes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/layer_case.hpp"
#include "support/workload.hpp"

namespace polyhead::cli {

// Attention when `attention` is true, otherwise a layer or an encoder block.
struct BenchWorkload {
  std::string name;   // in results: "attention/bert-128", "layer/bert-b8-l128", "attention/b=1,h=8,..."
  std::string label;  // in the table: without "attention/"; "shape" for a shape
  bool is_attention = true;
  bench::AttentionWorkload attention;
  bench::LayerKind layer_kind = bench::LayerKind::attention;
  bench::LayerWorkload layer;

  // Attention on operands of another data type than f32: its name and label end in it.
  BenchWorkload of_dtype(DType dtype) const;
  std::string describe() const;  // "b=8 h=12 t=128 s=128 d=64", "b=8 t=128 width 768 h=12"
};

// Every named workload: attention, layer, encoder.
std::vector<BenchWorkload> named_workloads();

// Those that the patterns name, each once, in the order of the patterns and of the list. A pattern is a name, in which * stands
// for any text and ? for any character; attention may be left out, and all means *. Errors: UsageError for a pattern that names
// nothing, with the names that come nearest.
std::vector<BenchWorkload> select_workloads(const std::vector<std::string>& patterns);

// A shape with the mask's options. Errors: UsageError.
BenchWorkload workload_of_shape(const std::string& shape, Causal causal, const Mask& window, bool key_lengths);

nlohmann::ordered_json describe_workloads(const std::vector<BenchWorkload>& workloads);

// Whether the whole of `text` fits the pattern.
bool fits_pattern(const std::string& pattern, const std::string& text);

}  // namespace polyhead::cli
