#include "polyhead/multi_head_attention.hpp"

#include <string>
#include <utility>

#include "api/checks.hpp"
#include "api/layer_checks.hpp"
#include "api/runtime_state.hpp"
#include "layer/projected_attention.hpp"

namespace polyhead {
namespace {

layer::ProjectedAttentionShape shape_of(const MultiHeadAttentionSpec& spec) {
  layer::ProjectedAttentionShape shape;
  shape.d_model = spec.d_model;
  shape.heads = spec.heads;
  shape.kv_heads = spec.kv_heads;
  shape.head_dim = spec.head_dim;
  shape.value_dim = spec.value_dim;
  shape.scale = api::scale_of(spec);
  shape.mask = spec.mask;
  return shape;
}

layer::ProjectedAttentionWeights pack(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights,
                                      const simd::GemmKernel& gemm) {
  api::check_weights("MultiHeadAttentionWeights.", spec, weights);
  return {layer::Linear(gemm, {{weights.query, weights.query_bias}}), layer::Linear(gemm, {{weights.key, weights.key_bias}}),
          layer::Linear(gemm, {{weights.value, weights.value_bias}}),
          layer::Linear(gemm, {{weights.output, weights.output_bias}})};
}

layer::Tokens tokens_of(const TensorView& view) {
  layer::Tokens tokens;
  tokens.data = static_cast<float*>(view.data);
  std::ptrdiff_t strides[2];
  api::outer_byte_strides(view, strides);
  tokens.batch_stride = strides[0];
  tokens.row_stride = strides[1];
  tokens.element_stride = view.strides[2] * static_cast<std::ptrdiff_t>(sizeof(float));
  tokens.width = view.shape[2];
  return tokens;
}

bool same_view(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    const auto dimension = static_cast<std::size_t>(i);
    if (a.shape[dimension] != b.shape[dimension]) return false;
    if (a.shape[dimension] != 1 && a.strides[dimension] != b.strides[dimension]) return false;
  }
  return true;
}

}  // namespace

namespace detail {

class MultiHeadAttentionState {
 public:
  MultiHeadAttentionState(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights, const Runtime& runtime)
      : spec_(api::resolve("MultiHeadAttentionSpec", spec)),
        layer_(shape_of(spec_), pack(spec_, weights, *runtime.state()->kernels().gemm_f32), runtime.state()->kernels(),
               runtime.state()->scheduler()) {}

  const MultiHeadAttentionSpec& spec() const noexcept { return spec_; }

  void run(const MultiHeadAttentionInputs& inputs, const RunOptions& options) const {
    const TensorView& query = inputs.query;
    const TensorView& key = inputs.key.empty() ? query : inputs.key;
    const TensorView& value = inputs.value.empty() ? key : inputs.value;
    layer::ProjectedAttentionInputs operands;
    api::check_tensor("query", query, DType::f32, {-1, -1, spec_.d_model});
    operands.batch = query.shape[0];
    operands.query_length = query.shape[1];
    api::check_tensor(inputs.key.empty() ? "key (the query, since none is given)" : "key", key, DType::f32,
                      {operands.batch, -1, spec_.key_input_dim});
    operands.key_length = key.shape[1];
    api::check_tensor(inputs.value.empty() ? "value (the key, since none is given)" : "value", value, DType::f32,
                      {operands.batch, operands.key_length, spec_.value_input_dim});
    api::check_tensor("out", inputs.out, DType::f32, {operands.batch, operands.query_length, spec_.d_model});
    api::check_given("key_lengths", inputs.key_lengths, spec_.mask.has_key_lengths, "key lengths");
    api::check_given("offsets", inputs.offsets, spec_.mask.has_offsets, "offsets");
    api::check_given("boolean_mask", inputs.boolean_mask, spec_.mask.has_boolean, "boolean part");
    api::check_given("bias", inputs.bias, spec_.mask.has_bias, "bias");
    api::check_run_options(options);

    layer::ProjectedAttention::LeaseHandle lease(layer_.leases());
    if (spec_.mask.has_key_lengths) {
      lease->key_lengths.resize(static_cast<std::size_t>(operands.batch));
      api::read_integers("key_lengths", inputs.key_lengths, operands.batch, 0, operands.key_length, lease->key_lengths.data());
    }
    if (spec_.mask.has_offsets) {
      constexpr std::int64_t far = std::int64_t{1} << 60;
      lease->offsets.resize(static_cast<std::size_t>(operands.batch));
      api::read_integers("offsets", inputs.offsets, operands.batch, -far, far, lease->offsets.data());
    }
    const std::int64_t scores[4] = {operands.batch, spec_.heads, operands.query_length, operands.key_length};
    if (spec_.mask.has_boolean) {
      if (inputs.boolean_mask.dtype != DType::boolean && inputs.boolean_mask.dtype != DType::u8) {
        api::fail("boolean_mask", std::string("of dtype ") + name(inputs.boolean_mask.dtype), "bool or u8");
      }
      api::broadcast_strides("boolean_mask", inputs.boolean_mask, scores, operands.mask_strides);
      operands.boolean_mask = static_cast<const std::uint8_t*>(inputs.boolean_mask.data);
    }
    if (spec_.mask.has_bias) {
      if (inputs.bias.dtype != DType::f32) api::fail("bias", std::string("of dtype ") + name(inputs.bias.dtype), "f32");
      api::broadcast_strides("bias", inputs.bias, scores, operands.bias_strides);
      operands.bias = static_cast<const float*>(inputs.bias.data);
    }
    check_out(inputs);

    operands.query = tokens_of(query);
    operands.key = tokens_of(key);
    operands.value = tokens_of(value);
    operands.out = tokens_of(inputs.out);
    operands.is_self = same_view(query, key) && same_view(key, value);
    layer_.run(*lease, operands, options.cancel);
  }

 private:
  static void check_out(const MultiHeadAttentionInputs& inputs) {
    api::check_output("out", inputs.out);
    const std::pair<const char*, const TensorView*> read[] = {
        {"query", &inputs.query},     {"key", &inputs.key},
        {"value", &inputs.value},     {"key_lengths", &inputs.key_lengths},
        {"offsets", &inputs.offsets}, {"boolean_mask", &inputs.boolean_mask},
        {"bias", &inputs.bias}};
    for (const auto& [other_name, other] : read) {
      if (!other->empty()) api::check_no_overlap("out", inputs.out, other_name, *other);
    }
  }

  MultiHeadAttentionSpec spec_;
  layer::ProjectedAttention layer_;
};

}  // namespace detail

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights,
                                       const Runtime& runtime)
    : state_(std::make_shared<const detail::MultiHeadAttentionState>(spec, weights, runtime)) {}

void MultiHeadAttention::run(const MultiHeadAttentionInputs& inputs, const RunOptions& options) const {
  state_->run(inputs, options);
}

const MultiHeadAttentionSpec& MultiHeadAttention::spec() const noexcept {
  return state_->spec();
}

}  // namespace polyhead
