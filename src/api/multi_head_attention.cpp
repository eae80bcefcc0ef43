#include "polyhead/multi_head_attention.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "api/checks.hpp"
#include "api/entry.hpp"
#include "api/layer_checks.hpp"
#include "api/mask_inputs.hpp"
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
  shape.precision = spec.precision;
  return shape;
}

layer::ProjectedAttentionWeights pack(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights,
                                      const simd::GemmKernel& gemm) {
  api::check_weights("MultiHeadAttentionWeights.", spec, weights);
  layer::ProjectedAttentionWeights packed;
  packed.packed = layer::pack_together(gemm, {{&packed.query, {{weights.query, weights.query_bias}}},
                                              {&packed.key, {{weights.key, weights.key_bias}}},
                                              {&packed.value, {{weights.value, weights.value_bias}}},
                                              {&packed.output, {{weights.output, weights.output_bias}}}});
  return packed;
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
        layer_(shape_of(spec_), pack(spec_, weights, dispatch::gemm_kernel(runtime.state()->kernels(), spec_.weights)),
               runtime.state()->kernels(), runtime.state()->scheduler()) {}

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
    const api::MaskInputs mask_inputs = {inputs.key_lengths, inputs.offsets, inputs.boolean_mask, inputs.bias};
    api::check_mask_given(spec_.mask, mask_inputs);
    api::check_run_options(options);

    layer::ProjectedAttention::LeaseHandle lease(layer_.leases());
    const auto batch = static_cast<std::size_t>(operands.batch);
    if (spec_.mask.has_key_lengths) lease->key_lengths.resize(batch);
    if (spec_.mask.has_offsets) lease->offsets.resize(batch);
    operands.scores = api::read_mask_inputs(spec_.mask, mask_inputs,
                                            {operands.batch, spec_.heads, operands.query_length, operands.key_length},
                                            lease->key_lengths.data(), lease->offsets.data());
    api::check_output("out", inputs.out);
    api::check_no_overlap("out", inputs.out, "query", inputs.query);
    api::check_no_overlap("out", inputs.out, "key", inputs.key);
    api::check_no_overlap("out", inputs.out, "value", inputs.value);
    api::check_no_overlap("out", inputs.out, mask_inputs);

    operands.query = tokens_of(query);
    operands.key = tokens_of(key);
    operands.value = tokens_of(value);
    operands.out = tokens_of(inputs.out);
    operands.is_self = same_view(query, key) && same_view(key, value);
    layer_.run(*lease, operands, options.cancel);
  }

 private:
  MultiHeadAttentionSpec spec_;
  layer::ProjectedAttention layer_;
};

}  // namespace detail

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights,
                                       const Runtime& runtime)
    : state_(api::entry([&] { return std::make_shared<const detail::MultiHeadAttentionState>(spec, weights, runtime); })) {}

void MultiHeadAttention::run(const MultiHeadAttentionInputs& inputs, const RunOptions& options) const {
  api::entry([&] { state_->run(inputs, options); });
}

const MultiHeadAttentionSpec& MultiHeadAttention::spec() const noexcept {
  return state_->spec();
}

}  // namespace polyhead
