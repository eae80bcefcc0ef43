// One attention workload with operands, a plan, and a check against float64: what the command's bench and the suite time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/attention.hpp"
#include "polyhead/runtime.hpp"
#include "support/aligned_array.hpp"
#include "support/bench_case.hpp"
#include "support/operand.hpp"
#include "support/workload.hpp"

namespace polyhead::bench {

class AttentionCase final : public BenchCase {
 public:
  // Operands are [batch, heads, length, dim] of the workload's data type, random, the same numbers for the same workload.
  AttentionCase(const AttentionWorkload& workload, const Runtime& runtime);

  // Operands that come from elsewhere. An empty array is filled with random values as above; key_lengths, when not empty, hold
  // one length for each batch item of a padded workload. Errors: Error(invalid_argument) for sizes that are not the workload's.
  struct Operands {
    AlignedArray query, key, value;
    std::vector<std::int64_t> key_lengths;
  };
  AttentionCase(const AttentionWorkload& workload, const Runtime& runtime, Operands operands);

  void run() const override { plan_->run(inputs_); }
  // Compares rows of the first, middle and last heads and of up to eight queries.
  Check check() override;
  void evict() const override;

  // The two halves of check(), for kernels that are run by other means on inputs(): NaN into the output, and the comparison
  // with float64 on the operands as they are now, of this case's own output or another implementation's (contiguous).
  void poison();
  Check compare() const;
  // With one element of the output changed before.
  Check compare_disturbed(const std::function<void(float&)>& change);
  Check compare(const float* out) const;

  // From now on results may be off by this share of the largest value more: keys and values are kept with fewer bits.
  void allow(double share) { allowed_share_ = share; }

  // All key lengths of a padded workload, from now on; at most the workload's key length.
  void set_key_length(std::int64_t length) { std::fill(key_lengths_.begin(), key_lengths_.end(), length); }

  const AttentionWorkload& workload() const { return workload_; }
  const AttentionPlan& plan() const { return *plan_; }
  // The operands, contiguous, for whatever else is to run on the same memory.
  const AttentionInputs& inputs() const { return inputs_; }
  // 2 (head_dim + value_dim) for each pair of query and key that the mask allows.
  double flops() const override;
  // Query, key and value read once and out written once; of padded keys and values only what is there.
  double bytes() const override;

 private:
  AttentionWorkload workload_;
  Operand query_, key_, value_, out_;
  std::vector<std::int64_t> key_lengths_;
  double allowed_share_ = 0;
  std::unique_ptr<AttentionPlan> plan_;
  AttentionInputs inputs_;
};

}  // namespace polyhead::bench
