// BertEncoder: a BERT-family encoder (BERT, MiniLM, ...) loaded from a model folder, from token ids to embeddings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"
#include "polyhead/transformer.hpp"
#include "polyhead/weight_type.hpp"

namespace polyhead {

struct BertConfig {
  std::int64_t vocabulary_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t max_positions = 0;
  std::int64_t token_types = 0;
  ActivationKind activation = ActivationKind::gelu_erf;
  double norm_epsilon = 1e-12;
};

struct BertOptions {
  WeightType weights = WeightType::f32;  // what the encoder blocks' products are kept as, whatever the file has
};

namespace detail {
class BertState;
}

class POLYHEAD_EXPORT BertEncoder {
 public:
  // folder holds config.json and model.safetensors with Hugging Face's names (with or without the prefix "bert."), tensors in
  // F32, BF16 or F16. Errors: io_error (a file is missing, or not what its format promises), unsupported (an architecture,
  // activation or position scheme we don't implement; weights that this build has no kernels for), naming the file and the
  // field; invalid_argument for options.
  static BertEncoder load(const std::string& folder, const Runtime& runtime, const BertOptions& options = {});

  const BertConfig& config() const noexcept;

  // token_ids: i32 or i64 [B, L]; lengths: i32 or i64 [B] or empty; out: f32 [B, L, hidden_size], zero at padded positions.
  // Errors: invalid_argument for an id outside the vocabulary, L above max_positions, a length outside 0 .. L.
  void token_embeddings(const TensorView& token_ids, const TensorView& lengths, const TensorView& out,
                        const RunOptions& options = {}) const;

  // Mean of the token embeddings over the real positions, divided by its Euclidean norm when normalise is set; a sequence of
  // length 0 gives zeros. out: f32 [B, hidden_size].
  void encode(const TensorView& token_ids, const TensorView& lengths, const TensorView& out, bool normalise = true,
              const RunOptions& options = {}) const;

 private:
  std::shared_ptr<const detail::BertState> state_;
};

}  // namespace polyhead
