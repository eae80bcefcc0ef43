// One attention workload with operands, a plan, and a check against float64: what the command's bench and the suite time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/attention.hpp"
#include "polyhead/runtime.hpp"
#include "support/aligned_array.hpp"
#include "support/check.hpp"
#include "support/workload.hpp"

namespace polyhead::bench {

class AttentionCase {
 public:
  // Operands are [batch, heads, length, dim], random, the same for the same workload.
  AttentionCase(const AttentionWorkload& workload, const Runtime& runtime);

  void run() const { plan_->run(inputs_); }
  // Runs once into a poisoned output and compares it.
  Check check();
  // Compares rows of the first, middle and last heads and of up to eight queries, computed in float64 from the operands as they
  // are now. out is [batch, heads, query_length, value_dim], contiguous: this case's own output or another implementation's.
  Check compare(const float* out) const;

  const AttentionWorkload& workload() const { return workload_; }
  const AttentionPlan& plan() const { return *plan_; }
  // The operands, contiguous, for whatever else is to run on the same memory.
  const AttentionInputs& inputs() const { return inputs_; }
  // 2 (head_dim + value_dim) for each pair of query and key that the mask allows.
  double flops() const;
  // Query, key and value read once and out written once.
  double bytes() const;

 private:
  AttentionWorkload workload_;
  AlignedArray query_, key_, value_, out_;
  std::vector<std::int64_t> key_lengths_;
  std::unique_ptr<AttentionPlan> plan_;
  AttentionInputs inputs_;
};

}  // namespace polyhead::bench
