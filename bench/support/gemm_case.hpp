// The packed GEMM kernel: C = A W' + bias. With several threads the rows are shared out, and where there are few of them the
// columns.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/task_graph.hpp"
#include "platform/aligned_memory.hpp"
#include "polyhead/weight_type.hpp"
#include "simd/contract/gemm.hpp"
#include "support/aligned_array.hpp"
#include "support/bench_case.hpp"

namespace polyhead::bench {

struct GemmShape {
  std::int64_t m, n, k;
};

// W [n][k], packed into memory like the layers'. Products of many sizes may share it.
class GemmWeights {
 public:
  // `type` is what the kernel keeps weights as.
  GemmWeights(const simd::GemmKernel& kernel, std::int64_t n, std::int64_t k, WeightType type = WeightType::f32);

  const AlignedArray& weight() const { return weight_; }
  const AlignedArray& bias() const { return bias_; }
  const void* packed() const { return packed_.as<void>(); }
  std::size_t packed_bytes() const { return packed_.size(); }
  // By how much W[n][k] may have been rounded (docs/semantics.md).
  double rounding(std::int64_t n, std::int64_t k) const;
  // By how much a number of a row of A may be rounded as it comes, `largest` being the row's largest without its sign.
  double row_rounding(double number, double largest) const;

 private:
  std::int64_t k_;
  AlignedArray weight_, bias_;
  platform::AlignedBuffer packed_;
  WeightType type_;
  double factor_ = 0;  // of the largest of `block_` weights along k, for what one of them is rounded by
  std::int64_t block_ = 1;
  std::vector<float> largest_;  // [n][blocks of k]
};

class GemmCase final : public BenchCase {
 public:
  // `weights` were made by this kernel for this n and k.
  GemmCase(const simd::GemmKernel& kernel, GemmShape shape, int threads, std::shared_ptr<const GemmWeights> weights);

  void run() const override;
  // Up to 16 rows, every column: 1,024 rows of 4,096 x 4,096 in double precision would take longer than all the timing.
  Check check() override;
  void evict() const override;

  double flops() const override;
  double bytes() const override;

 private:
  // Into at most `wanted` pieces of whole row tiles, or of whole panels where there are fewer tiles than pieces.
  void cut(std::int64_t wanted);
  void run_piece(std::int64_t piece) const;

  const simd::GemmKernel& kernel_;
  std::shared_ptr<const GemmWeights> weights_;
  AlignedArray a_, c_;
  simd::GemmF32Args args_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  bool by_rows_ = true;
  std::int64_t step_ = 0, pieces_ = 1;
};

}  // namespace polyhead::bench
