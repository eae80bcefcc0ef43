// Scaled dot-product attention: AttentionSpec -> AttentionPlan -> run.
//
//     out[b,h,t,:] = sum_s softmax_s(scale * dot(query[b,h,t,:], key[b,g,s,:]) + bias[b,h,t,s]) * value[b,g,s,:],  g = h /
//     (heads / kv_heads)
//
// over the keys s that the mask allows; a row with no allowed key is 0 and its lse is -inf. On request scores are capped
// (softcap), fall with distance (ALiBi), and share the softmax with a sink.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "polyhead/error.hpp"
#include "polyhead/export.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead {

// Sizes are maxima: a plan serves every run whose batch, query_length and key_length are at most these. heads, kv_heads,
// head_dim and value_dim are exact. batch and lengths may be 0.
struct AttentionSpec {
  std::int64_t batch = 1;
  std::int64_t heads = 1;     // query heads
  std::int64_t kv_heads = 0;  // 0: as many as heads; must divide heads
  std::int64_t query_length = 0;
  std::int64_t key_length = 0;
  std::int64_t head_dim = 0;    // of query and key
  std::int64_t value_dim = 0;   // 0: head_dim
  DType dtype = DType::f32;     // of query, key, value and out: f32, bf16 or f16; computed in f32 whichever it is
  std::optional<double> scale;  // unset: 1 / sqrt(head_dim); any finite number
  Mask mask{};
  // A row's bits never depend on batch, heads or threads. With this set they do not depend on query_length either (a
  // sequence in a padded batch gives the bits it gives alone), at the price of the faster kernel for very short queries.
  bool length_invariant = false;
  // Scaled scores become softcap * tanh(score / softcap), before bias and mask. 0: they stay; else a positive finite number.
  double softcap = 0.0;
  // alibi_slopes are given: alibi_slopes[h] * |t + o - s| is taken off the score, o being the causal offset (without causal
  // offsets[b] where given, else 0).
  bool has_alibi = false;
  // sink is given: exp(sink[h]) is added to the softmax's denominator, as of a key whose value is 0.
  bool has_sink = false;
  Precision precision = Precision::strict;
};

// All views are logical [batch, heads, length, dim] with any strides. Inputs may alias each other; an output that overlaps
// an input or another output is refused.
struct AttentionInputs {
  // Of the spec's dtype, all four.
  TensorView query{};  // [B, heads, T, head_dim]
  TensorView key{};    // [B, kv_heads, S, head_dim]
  TensorView value{};  // [B, kv_heads, S, value_dim]
  TensorView out{};    // [B, heads, T, value_dim]; rounded to nearest even, infinite where too large for the dtype

  TensorView lse{};           // optional f32 [B, heads, T]: natural log of the softmax denominator; never changes out
  TensorView key_lengths{};   // i32 or i64 [B] or [B, 1], each in 0 .. S; given exactly when the mask has key lengths
  TensorView offsets{};       // i32 or i64 [B] or [B, 1]; given exactly when the mask has offsets
  TensorView boolean_mask{};  // bool or u8, broadcastable to [B, heads, T, S] (lower ranks align right); true = attend
  TensorView bias{};          // f32, broadcastable to [B, heads, T, S]
  TensorView alibi_slopes{};  // f32 [heads], finite; given exactly when the spec has ALiBi
  TensorView sink{};          // f32 [heads], logits; -inf is none; given exactly when the spec has a sink
};

struct RunOptions {
  // Memory for this run, 64-byte aligned, at least AttentionPlan::workspace_bytes(); null: the plan keeps its own.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  // When it becomes true the run ends early with ErrorCode::cancelled.
  const std::atomic<bool>* cancel = nullptr;
};

namespace detail {
class AttentionPlanState;
}

// Immutable; any number of threads may run one plan at the same time. Cheap to copy (a shared handle).
class POLYHEAD_EXPORT AttentionPlan {
 public:
  // Errors: invalid_argument, naming the field; unsupported for a dtype that no kernel of this build serves.
  AttentionPlan(const AttentionSpec& spec, const Runtime& runtime);

  // Steady state allocates nothing. Errors: invalid_argument, naming the input; cancelled.
  void run(const AttentionInputs& inputs, const RunOptions& options = {}) const;

  std::size_t workspace_bytes() const noexcept;
  const AttentionSpec& spec() const noexcept;
  // For people: the kernel and why it was chosen, blocks, key splits, tiles skipped / full / partial, work items, workspace.
  std::string explain() const;

 private:
  std::shared_ptr<const detail::AttentionPlanState> state_;
};

// One call: makes a plan for the inputs' shapes and query's dtype, or takes it from the runtime's cache, and runs it.
struct AttentionOptions {
  std::optional<double> scale;
  Mask mask{};
  bool length_invariant = false;
  double softcap = 0.0;
  bool has_alibi = false;
  bool has_sink = false;
  Precision precision = Precision::strict;
};
POLYHEAD_EXPORT void attention(const Runtime& runtime, const AttentionInputs& inputs, const AttentionOptions& options = {});

}  // namespace polyhead
