// The packed GEMM kernel: C = A W' + bias. With several threads the rows are shared out, and where there are few of them the
// columns.
#pragma once

#include <cstdint>
#include <memory>

#include "graph/task_graph.hpp"
#include "platform/aligned_memory.hpp"
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
  GemmWeights(const simd::GemmKernel& kernel, std::int64_t n, std::int64_t k);

  const AlignedArray& weight() const { return weight_; }
  const AlignedArray& bias() const { return bias_; }
  const float* packed() const { return packed_.as<float>(); }
  std::size_t packed_bytes() const { return packed_.size(); }

 private:
  AlignedArray weight_, bias_;
  platform::AlignedBuffer packed_;
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
