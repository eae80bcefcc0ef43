#include "layer/encoder_weights.hpp"

namespace polyhead::layer {

simd::Activation activation_of(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::none:
      return simd::Activation::none;
    case ActivationKind::relu:
      return simd::Activation::relu;
    case ActivationKind::gelu_erf:
      return simd::Activation::gelu_erf;
    case ActivationKind::gelu_tanh:
      return simd::Activation::gelu_tanh;
  }
  return simd::Activation::none;
}

EncoderShape encoder_shape(const EncoderBlockSpec& spec, double scale) {
  EncoderShape shape;
  shape.hidden = spec.attention.d_model;
  shape.heads = spec.attention.heads;
  shape.kv_heads = spec.attention.kv_heads;
  shape.head_dim = spec.attention.head_dim;
  shape.value_dim = spec.attention.value_dim;
  shape.feed_forward = spec.feed_forward_dim;
  shape.activation = activation_of(spec.activation);
  shape.norm_first = spec.norm == NormPlacement::pre;
  shape.norm_epsilon = spec.norm_epsilon;
  shape.scale = scale;
  shape.mask = spec.attention.mask;
  shape.precision = spec.attention.precision;
  return shape;
}

EncoderLayer pack_encoder_layer(const EncoderBlockWeights& weights, const simd::GemmKernel& kernel) {
  const MultiHeadAttentionWeights& attention = weights.attention;
  EncoderLayer layer;
  layer.packed =
      pack_together(kernel, {{&layer.qkv,
                              {{attention.query, attention.query_bias},
                               {attention.key, attention.key_bias},
                               {attention.value, attention.value_bias}}},
                             {&layer.attention_out, {{attention.output, attention.output_bias}}},
                             {&layer.feed_forward_in, {{weights.feed_forward_in, weights.feed_forward_in_bias}}},
                             {&layer.feed_forward_out, {{weights.feed_forward_out, weights.feed_forward_out_bias}}}});
  layer.attention_gamma = copy_vector(weights.attention_norm_gamma);
  layer.attention_beta = copy_vector(weights.attention_norm_beta);
  layer.feed_forward_gamma = copy_vector(weights.feed_forward_norm_gamma);
  layer.feed_forward_beta = copy_vector(weights.feed_forward_norm_beta);
  return layer;
}

}  // namespace polyhead::layer
