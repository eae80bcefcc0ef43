// A plan behind the public interface: the spec, and in each run every tensor checked against it before any work is done.
#pragma once

#include <cstdint>
#include <vector>

#include "api/mask_inputs.hpp"
#include "api/sequence_inputs.hpp"
#include "dispatch/kernel_table.hpp"
#include "plan/attention_plan.hpp"
#include "plan/relative_bias.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::detail {

// What a plan is made for: run, or run_weights alone, which needs no room for a run.
enum class PlanUse { runs, weights };

class AttentionPlanState {
 public:
  AttentionPlanState(const AttentionSpec& spec, const Runtime& runtime, PlanUse use = PlanUse::runs);

  // With a cache, keys, values and lengths are its, and `inputs` has the rest. `context`: the score_mod's where inputs have
  // none.
  void run(const AttentionInputs& inputs, const RunOptions& options, const CachedAttentionInputs* cached = nullptr,
           void* context = nullptr) const;

  // value, out and lse are not looked at. cached and context as in run.
  void run_weights(const AttentionInputs& inputs, const AttentionWeightsRequest& request, const dispatch::KernelTable& kernels,
                   const CachedAttentionInputs* cached, void* context) const;

  const AttentionSpec& spec() const noexcept { return spec_; }
  const plan::AttentionPlan& plan() const noexcept { return plan_; }
  // A classifier without a context may be one whose context comes with a run, and is not asked.
  plan::Explanation explanation() const;

 private:
  // Shapes against the spec and each other; returns the tensors' shape.
  plan::AttentionShape check_query_and_key(const AttentionInputs& inputs, const CachedAttentionInputs* cached = nullptr) const;
  plan::AttentionShape check_shapes(const AttentionInputs& inputs, const CachedAttentionInputs* cached) const;

  // A run's batch items, or packed sequences, against the spec's maxima. A cache's lengths have been checked with it.
  void check_maxima(const plan::AttentionShape& shape, bool cached) const;

  // A window of an image has so many positions, in each batch item or sequence.
  void check_window(const plan::AttentionShape& shape) const;

  // What mask and score changes need, read and checked; shape is that of the tensors.
  plan::AttentionOperands read_operands(const AttentionInputs& inputs, plan::AttentionShape shape,
                                        const plan::AttentionPlan::LeaseHandle& lease,
                                        const CachedAttentionInputs* cached = nullptr) const;

  // The last of the operands: how much of it there is depends on all others.
  void spread_relative_bias(const AttentionInputs& inputs, const plan::AttentionPlan::LeaseHandle& lease,
                            plan::AttentionOperands& operands) const;

  // The parts whose tensors the caller gives.
  Mask given_mask(const CachedAttentionInputs* cached) const;

  AttentionSpec spec_;
  Isa isa_;
  plan::AttentionPlan plan_;
  plan::RelativeSpread relative_;
};

}  // namespace polyhead::detail
