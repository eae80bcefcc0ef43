// MultiHeadAttention: projections, attention and output projection as one operator with weights packed once.
//
//     y = concat_h(softmax(x W_Q[h]' (x_k W_K[g]')' scale) x_v W_V[g]') W_O' + b_O
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "polyhead/attention.hpp"
#include "polyhead/export.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"
#include "polyhead/weight_type.hpp"

namespace polyhead {

struct MultiHeadAttentionSpec {
  std::int64_t d_model = 0;  // width of the query input and of the output
  std::int64_t heads = 1;
  std::int64_t kv_heads = 0;         // 0: heads
  std::int64_t head_dim = 0;         // 0: d_model / heads, which must then divide
  std::int64_t value_dim = 0;        // 0: head_dim; heads * value_dim need not be d_model
  std::int64_t key_input_dim = 0;    // width of the key source, 0: d_model ("kdim")
  std::int64_t value_input_dim = 0;  // width of the value source, 0: d_model ("vdim")
  std::optional<double> scale;       // unset: 1 / sqrt(head_dim)
  Mask mask{};
  Precision precision = Precision::strict;  // of the attention inside
  WeightType weights = WeightType::f32;     // what the projections' weights are kept as; in an encoder block all products'
};

// Rows are output features (torch's Linear layout); matrices are f32, bf16 or f16, each as it comes, and biases f32, any
// strides. Biases may be empty. Copied and packed as MultiHeadAttentionSpec::weights says; the caller's memory is free again
// when the constructor returns.
struct MultiHeadAttentionWeights {
  TensorView query{};       // [heads * head_dim, d_model]
  TensorView key{};         // [kv_heads * head_dim, key_input_dim]
  TensorView value{};       // [kv_heads * value_dim, value_input_dim]
  TensorView output{};      // [d_model, heads * value_dim]
  TensorView query_bias{};  // [heads * head_dim]
  TensorView key_bias{};
  TensorView value_bias{};
  TensorView output_bias{};  // [d_model]
};

// x: [batch, length, width], any strides with a contiguous last dimension or without (then it is packed).
struct MultiHeadAttentionInputs {
  TensorView query{};        // [B, T, d_model]
  TensorView key{};          // [B, S, key_input_dim]; empty: the query input (self-attention)
  TensorView value{};        // [B, S, value_input_dim]; empty: the key input
  TensorView out{};          // [B, T, d_model]
  TensorView key_lengths{};  // as in AttentionInputs, each given exactly when the mask has it
  TensorView offsets{};
  TensorView boolean_mask{};
  TensorView bias{};
};

namespace detail {
class MultiHeadAttentionState;
}

// Immutable; any number of threads may run one operator at the same time. A cheap copy is a shared handle.
class POLYHEAD_EXPORT MultiHeadAttention {
 public:
  // Errors: invalid_argument, naming the field.
  MultiHeadAttention(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights, const Runtime& runtime);

  // One task graph: a row block of a projection releases the attention it feeds, which releases the output rows. Graph and
  // workspace are kept for shapes seen before, so steady state allocates nothing. Errors: invalid_argument; cancelled.
  void run(const MultiHeadAttentionInputs& inputs, const RunOptions& options = {}) const;

  const MultiHeadAttentionSpec& spec() const noexcept;

 private:
  std::shared_ptr<const detail::MultiHeadAttentionState> state_;
};

}  // namespace polyhead
