#include "bench_selection.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "command.hpp"
#include "polyhead/error.hpp"

namespace polyhead::cli {
namespace {

constexpr const char* attention_prefix = "attention/";

BenchWorkload of_attention(const bench::AttentionWorkload& attention) {
  BenchWorkload workload;
  workload.name = attention_prefix + attention.name;
  workload.label = attention.name;
  workload.attention = attention;
  return workload;
}

BenchWorkload of_layer(const bench::LayerWorkload& layer, bench::LayerKind kind) {
  BenchWorkload workload;
  workload.name = (kind == bench::LayerKind::attention ? "layer/" : "encoder/") + layer.name;
  workload.label = workload.name;
  workload.is_attention = false;
  workload.layer_kind = kind;
  workload.layer = layer;
  return workload;
}

// Insertions, deletions and replacements that turn one text into the other.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

[[noreturn]] void unknown(const std::string& pattern, const std::vector<BenchWorkload>& all) {
  std::vector<std::string> near;
  for (const BenchWorkload& workload : all) {
    const bool inside = workload.name.find(pattern) != std::string::npos;
    if (inside || edit_distance(pattern, workload.label) <= 2) near.push_back(workload.label);
  }
  const std::string hint =
      near.empty() || near.size() > 6 ? "polyhead bench --list names them" : fmt::format("there is {}", fmt::join(near, ", "));
  throw UsageError(fmt::format("no workload is called '{}'; {}", pattern, hint));
}

}  // namespace

BenchWorkload BenchWorkload::of_dtype(DType dtype) const {
  BenchWorkload workload = *this;
  workload.attention = attention.of_dtype(dtype);
  workload.name = attention_prefix + workload.attention.name;
  workload.label += std::string("-") + polyhead::name(dtype);
  return workload;
}

std::string BenchWorkload::describe() const {
  if (is_attention) return attention.describe();
  return fmt::format("b={} t={} width={} h={}", layer.batch, layer.length, layer.d_model, layer.heads);
}

std::vector<BenchWorkload> named_workloads() {
  std::vector<BenchWorkload> all;
  for (const bench::AttentionWorkload& attention : bench::attention_workloads()) all.push_back(of_attention(attention));
  for (const bench::LayerKind kind : {bench::LayerKind::attention, bench::LayerKind::encoder}) {
    for (const bench::LayerWorkload& layer : bench::layer_workloads()) all.push_back(of_layer(layer, kind));
  }
  return all;
}

std::vector<BenchWorkload> select_workloads(const std::vector<std::string>& patterns) {
  const std::vector<BenchWorkload> all = named_workloads();
  std::vector<BenchWorkload> chosen;
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (const BenchWorkload& workload : all) {
      const bool fits = pattern == "all" || fits_pattern(pattern, workload.name) ||
                        (workload.is_attention && fits_pattern(pattern, workload.label));
      if (!fits) continue;
      found = true;
      const auto same = [&](const BenchWorkload& other) { return other.name == workload.name; };
      if (std::none_of(chosen.begin(), chosen.end(), same)) chosen.push_back(workload);
    }
    if (!found) unknown(pattern, all);
  }
  return chosen;
}

BenchWorkload workload_of_shape(const std::string& shape, Causal causal, const Mask& window, bool key_lengths) {
  bench::AttentionWorkload attention;
  try {
    attention = bench::parse_shape(shape);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  attention.causal = causal;
  attention.window_left = window.window_left;
  attention.window_right = window.window_right;
  attention.padded = key_lengths;
  // The name tells the mask too: two masks on one shape are two benchmarks.
  if (causal == Causal::bottom_right) attention.name += ",causal";
  if (causal == Causal::top_left) attention.name += ",causal=top-left";
  if (window.window_left != Mask::unbounded || window.window_right != Mask::unbounded)
    attention.name += fmt::format(",window={}:{}", window.window_left, window.window_right);
  if (key_lengths) attention.name += ",key-lengths";
  BenchWorkload workload = of_attention(attention);
  workload.label = "shape";
  return workload;
}

nlohmann::ordered_json describe_workloads(const std::vector<BenchWorkload>& workloads) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BenchWorkload& workload : workloads) {
    nlohmann::ordered_json entry;
    entry["name"] = workload.name;
    if (workload.is_attention) {
      const bench::AttentionWorkload& w = workload.attention;
      entry["kind"] = "attention";
      entry["batch"] = w.batch;
      entry["heads"] = w.heads;
      entry["kv_heads"] = w.kv_heads;
      entry["query_length"] = w.query_length;
      entry["key_length"] = w.key_length;
      entry["head_dim"] = w.head_dim;
      entry["value_dim"] = w.value_dim;
      entry["causal"] = w.causal == Causal::top_left ? "top-left" : w.causal == Causal::bottom_right ? "bottom-right" : "none";
      entry["window"] = {w.window_left, w.window_right};
      entry["key_lengths"] = w.key_lengths();
    } else {
      entry["kind"] = workload.layer_kind == bench::LayerKind::attention ? "layer" : "encoder";
      entry["batch"] = workload.layer.batch;
      entry["length"] = workload.layer.length;
      entry["d_model"] = workload.layer.d_model;
      entry["heads"] = workload.layer.heads;
    }
    entry["shape"] = workload.describe();
    list.push_back(std::move(entry));
  }
  return list;
}

bool fits_pattern(const std::string& pattern, const std::string& text) {
  // After a star: where it stands, and how much of the text it has taken so far. A mismatch lets the last star take one more.
  std::size_t p = 0, t = 0, star = std::string::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace polyhead::cli
