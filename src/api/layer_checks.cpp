#include "api/layer_checks.hpp"

#include <algorithm>
#include <cmath>

#include "api/checks.hpp"

namespace polyhead::api {
namespace {

// Parts that attention alone takes.
void check_layer_mask(const char* name, const Mask& mask) {
  const char* part = mask.has_query_lengths ? "query lengths"
                     : mask.is_packed       ? "packed sequences"
                     : mask.has_prefix      ? "a prefix"
                     : mask.has_segments    ? "segments"
                     : mask.block_queries   ? "blocks"
                                            : nullptr;
  if (part == nullptr) return;
  fail(name, std::string("one with ") + part,
       "causal, window, key lengths, offsets, boolean and bias only (a layer's inputs have nothing for the others)");
}

}  // namespace

void check_size(const std::string& name, std::int64_t value, std::int64_t least) {
  // The upper limit keeps every product of two sizes and a data type's size inside 64 bits.
  constexpr std::int64_t most = std::int64_t{1} << 28;
  if (value < least || value > most) {
    fail(name.c_str(), std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
  }
}

MultiHeadAttentionSpec resolve(const char* name, MultiHeadAttentionSpec spec) {
  const std::string prefix = std::string(name) + ".";
  check_size(prefix + "d_model", spec.d_model, 1);
  check_size(prefix + "heads", spec.heads, 1);
  check_size(prefix + "kv_heads", spec.kv_heads, 0);
  check_size(prefix + "head_dim", spec.head_dim, 0);
  check_size(prefix + "value_dim", spec.value_dim, 0);
  check_size(prefix + "key_input_dim", spec.key_input_dim, 0);
  check_size(prefix + "value_input_dim", spec.value_input_dim, 0);
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.heads % spec.kv_heads != 0) {
    fail((prefix + "kv_heads").c_str(), std::to_string(spec.kv_heads),
         "a divisor of heads (" + std::to_string(spec.heads) + ")");
  }
  if (spec.head_dim == 0) {
    if (spec.d_model % spec.heads != 0) {
      fail((prefix + "heads").c_str(), std::to_string(spec.heads),
           "a divisor of d_model (" + std::to_string(spec.d_model) + "), since head_dim is not given");
    }
    spec.head_dim = spec.d_model / spec.heads;
  }
  if (spec.value_dim == 0) spec.value_dim = spec.head_dim;
  if (spec.key_input_dim == 0) spec.key_input_dim = spec.d_model;
  if (spec.value_input_dim == 0) spec.value_input_dim = spec.d_model;
  check_size(prefix + "heads * head_dim", spec.heads * spec.head_dim, 1);
  check_size(prefix + "heads * value_dim", spec.heads * spec.value_dim, 1);
  if (spec.scale && !std::isfinite(*spec.scale))
    fail((prefix + "scale").c_str(), std::to_string(*spec.scale), "a finite number");
  check_mask((prefix + "mask").c_str(), spec.mask);
  check_layer_mask((prefix + "mask").c_str(), spec.mask);
  check_precision((prefix + "precision").c_str(), spec.precision);
  check_weight_type(prefix + "weights", spec.weights);
  return spec;
}

double scale_of(const MultiHeadAttentionSpec& spec) {
  return spec.scale ? *spec.scale : 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
}

void check_weight_type(const std::string& name, WeightType weights) {
  if (static_cast<int>(weights) > static_cast<int>(WeightType::bf16_dynamic)) {
    fail(name.c_str(), std::to_string(static_cast<int>(weights)),
         "a WeightType (f32, bf16, f16, int8, int4, int8_dynamic or bf16_dynamic)");
  }
}

void check_matrix(const std::string& name, const TensorView& view, std::int64_t rows, std::int64_t columns) {
  const bool is_half = !view.empty() && (view.dtype == DType::bf16 || view.dtype == DType::f16);
  check_tensor(name.c_str(), view, is_half ? view.dtype : DType::f32, {rows, columns});
}

void check_vector(const std::string& name, const TensorView& view, std::int64_t size) {
  if (!view.empty()) check_tensor(name.c_str(), view, DType::f32, {size});
}

void check_weights(const std::string& prefix, const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights) {
  const std::int64_t queries = spec.heads * spec.head_dim, keys = spec.kv_heads * spec.head_dim;
  const std::int64_t values = spec.kv_heads * spec.value_dim, joined = spec.heads * spec.value_dim;
  check_matrix(prefix + "query", weights.query, queries, spec.d_model);
  check_matrix(prefix + "key", weights.key, keys, spec.key_input_dim);
  check_matrix(prefix + "value", weights.value, values, spec.value_input_dim);
  check_matrix(prefix + "output", weights.output, spec.d_model, joined);
  check_vector(prefix + "query_bias", weights.query_bias, queries);
  check_vector(prefix + "key_bias", weights.key_bias, keys);
  check_vector(prefix + "value_bias", weights.value_bias, values);
  check_vector(prefix + "output_bias", weights.output_bias, spec.d_model);
}

void check_run_options(const RunOptions& options) {
  if (options.workspace != nullptr) {
    throw Error(ErrorCode::unsupported, "RunOptions.workspace is given, but layers keep their own workspace: expected null");
  }
}

void outer_byte_strides(const TensorView& view, std::ptrdiff_t* strides) {
  for (int i = 0; i + 1 < view.rank; ++i) {
    const auto dimension = static_cast<std::size_t>(i);
    strides[i] = view.shape[dimension] == 1 ? 0 : view.strides[dimension] * static_cast<std::ptrdiff_t>(sizeof(float));
  }
}

}  // namespace polyhead::api
