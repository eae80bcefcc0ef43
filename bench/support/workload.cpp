#include "support/workload.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "polyhead/error.hpp"

namespace polyhead::bench {

extern const char* const workloads_json;

namespace {

[[noreturn]] void bad_shape(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              "shape '" + text + "': " + why + "; expected for example b=1,h=32,g=8,t=1,s=8192,d=128");
}

const nlohmann::json& document() {
  static const nlohmann::json parsed = nlohmann::json::parse(workloads_json);
  return parsed;
}

}  // namespace

AttentionWorkload AttentionWorkload::of_dtype(DType other) const {
  AttentionWorkload workload = *this;
  workload.dtype = other;
  if (other != DType::f32) workload.name += std::string("-") + polyhead::name(other);
  return workload;
}

Mask AttentionWorkload::mask() const {
  Mask result = Mask::none();
  if (causal != Causal::none) result = result & Mask::causal(causal);
  if (window_left != Mask::unbounded || window_right != Mask::unbounded)
    result = result & Mask::window(window_left, window_right);
  if (padded) result = result & Mask::key_lengths();
  return result;
}

std::vector<std::int64_t> AttentionWorkload::key_lengths() const {
  std::vector<std::int64_t> lengths;
  const std::int64_t period = key_length / 2 > 0 ? key_length / 2 : 1;
  if (padded) {
    for (std::int64_t item = 0; item < batch; ++item) lengths.push_back(key_length - (item * 7) % period);
  }
  return lengths;
}

double AttentionWorkload::flops() const {
  return 2.0 * static_cast<double>(batch * heads * query_length) * static_cast<double>(key_length * (head_dim + value_dim));
}

std::string AttentionWorkload::describe() const {
  std::ostringstream text;
  text << "b=" << batch << " h=" << heads;
  if (kv_heads != heads) text << " g=" << kv_heads;
  text << " t=" << query_length << " s=" << key_length << " d=" << head_dim;
  if (value_dim != head_dim) text << " e=" << value_dim;
  if (causal == Causal::top_left) text << " causal";
  if (causal == Causal::bottom_right) text << " causal bottom-right";
  if (window_left != Mask::unbounded || window_right != Mask::unbounded)
    text << " window " << window_left << "," << window_right;
  if (padded) text << " padded";
  if (dtype != DType::f32) text << ' ' << polyhead::name(dtype);
  return text.str();
}

const std::vector<AttentionWorkload>& attention_workloads() {
  static const std::vector<AttentionWorkload> all = [] {
    std::vector<AttentionWorkload> list;
    for (const auto& entry : document().at("attention")) {
      AttentionWorkload workload;
      workload.name = entry.at("name");
      workload.batch = entry.at("batch");
      workload.heads = entry.at("heads");
      workload.kv_heads = entry.at("kv_heads");
      workload.query_length = entry.at("query_length");
      workload.key_length = entry.at("key_length");
      workload.head_dim = entry.at("head_dim");
      workload.value_dim = entry.at("value_dim");
      workload.causal = entry.value("causal", false) ? Causal::top_left : Causal::none;
      workload.padded = entry.value("padded", false);
      list.push_back(workload);
    }
    return list;
  }();
  return all;
}

const std::vector<LayerWorkload>& layer_workloads() {
  static const std::vector<LayerWorkload> all = [] {
    std::vector<LayerWorkload> list;
    for (const auto& entry : document().at("layers")) {
      list.push_back({entry.at("name"), entry.at("batch"), entry.at("length"), entry.at("d_model"), entry.at("heads")});
    }
    return list;
  }();
  return all;
}

const AttentionWorkload* find_attention_workload(const std::string& name) {
  for (const AttentionWorkload& workload : attention_workloads()) {
    if (workload.name == name) return &workload;
  }
  return nullptr;
}

AttentionWorkload parse_shape(const std::string& text) {
  std::map<std::string, std::int64_t> sizes;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) bad_shape(text, "'" + part + "' is not KEY=SIZE");
    const std::string key = part.substr(0, equals);
    if (std::string("bhgtsde").find(key) == std::string::npos || key.size() != 1) bad_shape(text, "unknown key '" + key + "'");
    std::int64_t size = 0;
    const char* const last = part.data() + part.size();
    const auto [end, error] = std::from_chars(part.data() + equals + 1, last, size);
    if (error != std::errc() || end != last || size < 1) bad_shape(text, "'" + part + "' has no positive size");
    if (!sizes.emplace(key, size).second) bad_shape(text, "'" + key + "' is given twice");
  }
  for (const char* required : {"t", "d"}) {
    if (sizes.count(required) == 0) bad_shape(text, std::string("'") + required + "' is missing");
  }
  const auto size_or = [&](const char* key, std::int64_t otherwise) {
    const auto found = sizes.find(key);
    return found == sizes.end() ? otherwise : found->second;
  };
  AttentionWorkload workload;
  workload.name = text;
  workload.batch = size_or("b", 1);
  workload.heads = size_or("h", 1);
  workload.kv_heads = size_or("g", workload.heads);
  workload.query_length = sizes.at("t");
  workload.key_length = size_or("s", workload.query_length);
  workload.head_dim = sizes.at("d");
  workload.value_dim = size_or("e", workload.head_dim);
  if (workload.heads % workload.kv_heads != 0) bad_shape(text, "g must divide h");
  // Whoever multiplies these sizes may then do so in 64 bits.
  constexpr double most_elements = 1e15;
  const auto elements = [&](std::int64_t heads, std::int64_t length) {
    return static_cast<double>(workload.batch) * static_cast<double>(heads) * static_cast<double>(length) *
           static_cast<double>(std::max(workload.head_dim, workload.value_dim));
  };
  if (elements(workload.heads, workload.query_length) > most_elements ||
      elements(workload.kv_heads, workload.key_length) > most_elements) {
    bad_shape(text, "an operand would have more than 10^15 elements");
  }
  return workload;
}

}  // namespace polyhead::bench
