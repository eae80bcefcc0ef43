// One multi-head attention layer or encoder block with random weights, and a check of sampled rows against float64.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "polyhead/multi_head_attention.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/transformer.hpp"
#include "support/aligned_array.hpp"
#include "support/bench_case.hpp"
#include "support/workload.hpp"

namespace polyhead::bench {

enum class LayerKind {
  attention,  // projections, attention, output projection
  encoder,    // the block around it: residuals, layer norms after them, feed-forward of four times the width with erf GELU
};

class LayerCase final : public BenchCase {
 public:
  LayerCase(const LayerWorkload& workload, LayerKind kind, const Runtime& runtime);

  void run() const override;
  Check check() override;
  void evict() const override;

  double flops() const override;  // multiply-adds of the projections and of attention, times two
  double bytes() const override;  // weights, and the activations that go in and come out

 private:
  AlignedArray& array(std::size_t count, std::uint64_t seed, double deviation);
  std::vector<double> attention_row(std::int64_t item, std::int64_t position) const;
  std::vector<double> encoder_row(std::int64_t item, std::int64_t position) const;

  LayerWorkload workload_;
  LayerKind kind_;
  std::int64_t feed_forward_dim_;
  std::vector<std::unique_ptr<AlignedArray>> arrays_;
  AlignedArray x_, out_;
  EncoderBlockWeights weights_;
  std::unique_ptr<MultiHeadAttention> attention_;
  std::unique_ptr<Encoder> encoder_;
};

}  // namespace polyhead::bench
