// The float64 oracle: attention and the layers around it, written from their formulas and sharing nothing with the library but
// the public types that describe a call. Slow, and meant to be read.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "polyhead/attention.hpp"
#include "polyhead/bert.hpp"
#include "polyhead/multi_head_attention.hpp"
#include "polyhead/transformer.hpp"

namespace polyhead::oracle {

// A dense row-major tensor of doubles.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  Array() = default;
  explicit Array(std::vector<std::int64_t> sizes, double fill = 0.0);
  std::int64_t size(int dimension) const { return shape[static_cast<std::size_t>(dimension)]; }
  double* row(std::int64_t index) { return values.data() + index * shape.back(); }  // the index-th vector of the last dimension
  const double* row(std::int64_t index) const { return values.data() + index * shape.back(); }
};

// Reads a view of any dtype and strides. f16 and bf16 are widened exactly.
Array to_array(const TensorView& view);

// ---- attention

struct AttentionResult {
  Array out;      // [B, H, T, E]
  Array lse;      // [B, H, T], for a row that sees no key the sink, or -inf
  Array weights;  // [B, H, T, S], empty unless asked for
  // What the error bound of a row is made of: over the keys that the row sees, the largest
  // max(|scale| * sum_d |q_d k_d|, |score|), and the largest |v|.
  Array score_magnitude;  // [B, H, T]
  Array value_magnitude;  // [B, H, T]
};

// What becomes of a score of (b, h, t, s), -inf where the key is excluded; stands for options.score_mod, which is not looked
// at.
using ScoreFunction = std::function<double(double score, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s)>;

// By the formula, reading every input but out and lse, which are not looked at. options.length_invariant and precision have no
// meaning here. Packed sequences are computed each alone; their weights are
// [1, H, all queries, all keys].
AttentionResult attention(const AttentionInputs& inputs, const AttentionOptions& options, bool with_weights = false,
                          const ScoreFunction& score_function = {});

// Whether the mask lets query t of (b, h) see key s, by structure and boolean mask; a bias of -inf is the score's matter.
// Packed: t and s count through all sequences, b is 0.
bool allowed(const AttentionInputs& inputs, const Mask& mask, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s);

// ---- layers. x is [..., width]; results have the same leading dimensions.

double activation(ActivationKind kind, double x);

// y = x W' + bias; weight [out_features, in_features], bias [out_features] or empty.
Array linear(const Array& x, const TensorView& weight, const TensorView& bias);

// (x - mean) / sqrt(var + epsilon) * gamma + beta with the biased variance; gamma and beta [dim] or empty.
Array layer_norm(const Array& x, const TensorView& gamma, const TensorView& beta, double epsilon);

// activation(x W_in' + b_in) W_out' + b_out
Array feed_forward(const Array& x, const TensorView& in, const TensorView& in_bias, const TensorView& out,
                   const TensorView& out_bias, ActivationKind kind);

// [B, T, d_model]; inputs.out is not looked at.
Array multi_head_attention(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights,
                           const MultiHeadAttentionInputs& inputs);

// x [B, L, d_model] -> the same; each sequence is computed alone at its own length, so that padding cannot matter. lengths: i32
// or i64 [B], or empty (all L). Positions at or beyond the length are not read and are 0 in the result.
Array encoder(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, const TensorView& x,
              const TensorView& lengths);
Array encoder(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, const Array& x,
              const TensorView& lengths);

// One block over [B, L, d_model] without lengths.
Array encoder_block(const EncoderBlockSpec& spec, const EncoderBlockWeights& weights, const Array& x);

struct BertWeights {
  TensorView word_embeddings;        // [vocabulary_size, hidden_size]
  TensorView position_embeddings;    // [max_positions, hidden_size]
  TensorView token_type_embeddings;  // [token_types, hidden_size]; type 0 is used throughout
  TensorView norm_gamma, norm_beta;  // [hidden_size]
  std::vector<EncoderBlockWeights> blocks;
};

// layer_norm(word[token] + position[t] + token_type[0]) for token_ids [B, L]: [B, L, hidden_size].
Array bert_embeddings(const BertConfig& config, const BertWeights& weights, const TensorView& token_ids);

// The embeddings through all blocks; 0 at positions at or beyond the length.
Array bert_token_embeddings(const BertConfig& config, const BertWeights& weights, const TensorView& token_ids,
                            const TensorView& lengths);

// [B, width]: the mean of token embeddings [B, L, width] over the real positions, divided by its Euclidean norm when asked;
// zeros for a sequence of length 0.
Array mean_pool(const Array& token_embeddings, const TensorView& lengths, bool normalise);

Array bert_encode(const BertConfig& config, const BertWeights& weights, const TensorView& token_ids, const TensorView& lengths,
                  bool normalise);

}  // namespace polyhead::oracle
