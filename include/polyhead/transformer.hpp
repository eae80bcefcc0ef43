// Transformer building blocks: layer norm, feed-forward, encoder blocks and stacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/multi_head_attention.hpp"

namespace polyhead {

// gelu_erf is x * Phi(x); gelu_tanh is the tanh approximation, up to 4.73e-4 away from it: two functions, two names.
enum class ActivationKind : std::uint8_t { none = 0, relu = 1, gelu_erf = 2, gelu_tanh = 3 };

POLYHEAD_EXPORT const char* name(ActivationKind activation) noexcept;
// Maps a model configuration's name: "relu", "gelu" (the erf form), "gelu_new" and "gelu_pytorch_tanh" and "gelu_fast" (the
// tanh form). Errors: invalid_argument for any other name.
POLYHEAD_EXPORT ActivationKind activation_from_name(const std::string& name);

// y = (x - mean) / sqrt(var + epsilon) * gamma + beta over the last dimension, f32, x and y [..., dim]; gamma and beta [dim]
// or empty. y may be x itself (same memory, same strides).
POLYHEAD_EXPORT void layer_norm(const Runtime& runtime, const TensorView& x, const TensorView& gamma, const TensorView& beta,
                                double epsilon, const TensorView& y);

enum class NormPlacement : std::uint8_t {
  post = 0,  // x = norm(x + sublayer(x)): BERT, the original Transformer
  pre = 1,   // x = x + sublayer(norm(x)): GPT-2, ViT
};

struct EncoderBlockSpec {
  MultiHeadAttentionSpec attention;  // self-attention; the mask may hold key lengths, causal and window parts; weights: the
                                     // feed-forward network's are kept alike
  std::int64_t feed_forward_dim = 0;
  ActivationKind activation = ActivationKind::gelu_erf;
  NormPlacement norm = NormPlacement::post;
  double norm_epsilon = 1e-12;
};

struct EncoderBlockWeights {
  MultiHeadAttentionWeights attention;
  TensorView attention_norm_gamma{}, attention_norm_beta{};  // [d_model]
  TensorView feed_forward_in{};                              // [feed_forward_dim, d_model], f32, bf16 or f16
  TensorView feed_forward_in_bias{};                         // [feed_forward_dim] or empty
  TensorView feed_forward_out{};                             // [d_model, feed_forward_dim], likewise
  TensorView feed_forward_out_bias{};                        // [d_model] or empty
  TensorView feed_forward_norm_gamma{}, feed_forward_norm_beta{};
};

namespace detail {
class EncoderState;
}

// A stack of encoder blocks that runs as one task graph over a batch of sequences.
class POLYHEAD_EXPORT Encoder {
 public:
  // Errors: invalid_argument, naming the block and the field. All blocks share one spec.
  Encoder(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, const Runtime& runtime);

  // x, out: f32 [B, L, d_model]; lengths: i32 or i64 [B], each in 0 .. L, or empty (all L). Positions at or beyond a
  // sequence's length are not computed: they are not read, and are zero in out. A sequence gives the same bits alone and in
  // any batch with any padding.
  void run(const TensorView& x, const TensorView& lengths, const TensorView& out, const RunOptions& options = {}) const;

  const EncoderBlockSpec& spec() const noexcept;
  std::int64_t block_count() const noexcept;

 private:
  friend class BertEncoder;
  std::shared_ptr<const detail::EncoderState> state_;
};

}  // namespace polyhead
