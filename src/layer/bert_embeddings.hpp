// BERT's input embeddings: word + position + token type 0, layer norm.
#pragma once

#include <cstdint>

#include "layer/encoder_stack.hpp"
#include "platform/aligned_memory.hpp"
#include "simd/contract/rowwise.hpp"

namespace polyhead::layer {

// Tables are row-major [count][hidden] f32.
class BertEmbeddings {
 public:
  BertEmbeddings() = default;
  BertEmbeddings(platform::AlignedBuffer words, platform::AlignedBuffer positions_and_type, platform::AlignedBuffer gamma,
                 platform::AlignedBuffer beta, std::int64_t hidden, double epsilon, const simd::LayerNormKernel& layer_norm);

  // One batch of token ids, checked, as a source of rows.
  class Tokens final : public RowSource {
   public:
    // ids: [batch, length] with strides in elements; narrow: i32, else i64.
    Tokens(const BertEmbeddings& embeddings, const void* ids, bool narrow, std::int64_t batch_stride,
           std::int64_t position_stride)
        : embeddings_(embeddings), ids_(ids), narrow_(narrow), batch_stride_(batch_stride), position_stride_(position_stride) {}
    std::int64_t id(std::int64_t b, std::int64_t position) const {
      const std::int64_t offset = b * batch_stride_ + position * position_stride_;
      return narrow_ ? static_cast<const std::int32_t*>(ids_)[offset] : static_cast<const std::int64_t*>(ids_)[offset];
    }
    void load(std::int64_t b, std::int64_t begin, std::int64_t end, float* rows, std::ptrdiff_t stride) const override;

   private:
    const BertEmbeddings& embeddings_;
    const void* ids_;
    bool narrow_;
    std::int64_t batch_stride_, position_stride_;
  };

 private:
  platform::AlignedBuffer words_, positions_and_type_, gamma_, beta_;
  std::int64_t hidden_ = 0;
  double epsilon_ = 0;
  const simd::LayerNormKernel* layer_norm_ = nullptr;
};

// out[0 .. hidden) = the mean of rows, divided by its Euclidean norm when normalise is set; zeros for no rows.
void mean_pool(const float* rows, std::ptrdiff_t stride, std::int64_t count, std::int64_t hidden, bool normalise, float* out,
               std::int64_t out_stride);

}  // namespace polyhead::layer
