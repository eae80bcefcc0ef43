// Random weights and inputs for layer tests.
#pragma once

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "polyhead/transformer.hpp"
#include "support/environment.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"

namespace polyhead::testing {

// Owns what the views of weights show.
class WeightStore {
 public:
  explicit WeightStore(std::uint64_t seed) : random_(seed) {}

  TensorView matrix(std::int64_t out, std::int64_t in) {
    return keep(Tensor(DType::f32, {out, in}), 1 / std::sqrt(static_cast<double>(in)), 0);
  }
  TensorView vector(std::int64_t size, double scale = 0.2, double around = 0) {
    return keep(Tensor(DType::f32, {size}), scale, around);
  }
  Random& random() { return random_; }

 private:
  TensorView keep(Tensor tensor, double scale, double around) {
    fill(tensor, [&] { return around + scale * random_.normal(); });
    tensors_.push_back(std::move(tensor));
    return tensors_.back().view();
  }

  Random random_;
  std::deque<Tensor> tensors_;
};

inline MultiHeadAttentionSpec attention_layer_spec(std::int64_t d_model, std::int64_t heads, const Mask& mask = {}) {
  MultiHeadAttentionSpec spec;
  spec.d_model = d_model;
  spec.heads = heads;
  spec.mask = mask;
  return spec;
}

// Weights for a spec that may leave fields at 0.
inline MultiHeadAttentionWeights attention_layer_weights(const MultiHeadAttentionSpec& spec, WeightStore& store,
                                                         bool with_biases = true) {
  const std::int64_t kv_heads = spec.kv_heads ? spec.kv_heads : spec.heads;
  const std::int64_t head_dim = spec.head_dim ? spec.head_dim : spec.d_model / spec.heads;
  const std::int64_t value_dim = spec.value_dim ? spec.value_dim : head_dim;
  MultiHeadAttentionWeights weights;
  weights.query = store.matrix(spec.heads * head_dim, spec.d_model);
  weights.key = store.matrix(kv_heads * head_dim, spec.key_input_dim ? spec.key_input_dim : spec.d_model);
  weights.value = store.matrix(kv_heads * value_dim, spec.value_input_dim ? spec.value_input_dim : spec.d_model);
  weights.output = store.matrix(spec.d_model, spec.heads * value_dim);
  if (!with_biases) return weights;
  weights.query_bias = store.vector(spec.heads * head_dim);
  weights.key_bias = store.vector(kv_heads * head_dim);
  weights.value_bias = store.vector(kv_heads * value_dim);
  weights.output_bias = store.vector(spec.d_model);
  return weights;
}

inline EncoderBlockSpec encoder_spec(std::int64_t d_model, std::int64_t heads, std::int64_t feed_forward,
                                     NormPlacement norm = NormPlacement::post, const Mask& mask = {}) {
  EncoderBlockSpec spec;
  spec.attention = attention_layer_spec(d_model, heads, mask);
  spec.feed_forward_dim = feed_forward;
  spec.norm = norm;
  spec.norm_epsilon = 1e-5;
  return spec;
}

inline EncoderBlockWeights encoder_weights(const EncoderBlockSpec& spec, WeightStore& store, bool with_biases = true) {
  const std::int64_t hidden = spec.attention.d_model;
  EncoderBlockWeights weights;
  weights.attention = attention_layer_weights(spec.attention, store, with_biases);
  weights.feed_forward_in = store.matrix(spec.feed_forward_dim, hidden);
  weights.feed_forward_out = store.matrix(hidden, spec.feed_forward_dim);
  if (with_biases) {
    weights.feed_forward_in_bias = store.vector(spec.feed_forward_dim);
    weights.feed_forward_out_bias = store.vector(hidden);
  }
  weights.attention_norm_gamma = store.vector(hidden, 0.2, 1);
  weights.attention_norm_beta = store.vector(hidden);
  weights.feed_forward_norm_gamma = store.vector(hidden, 0.2, 1);
  weights.feed_forward_norm_beta = store.vector(hidden);
  return weights;
}

inline std::vector<EncoderBlockWeights> encoder_blocks(const EncoderBlockSpec& spec, int count, WeightStore& store) {
  std::vector<EncoderBlockWeights> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(encoder_weights(spec, store));
  return blocks;
}

inline Tensor random_tensor(const Tensor::Sizes& shape, Random& random) {
  Tensor tensor(DType::f32, shape);
  fill_normal(tensor, random);
  return tensor;
}

// The message of the Error that call() throws, which must have this code; a failure when there is none.
template <typename Call>
std::string error_of(ErrorCode code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

#define POLYHEAD_EXPECT_ERROR(code, part, statement)                                                  \
  do {                                                                                                \
    const std::string message = ::polyhead::testing::error_of(code, [&] { statement; });              \
    EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'"; \
  } while (false)

}  // namespace polyhead::testing
