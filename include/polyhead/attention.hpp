// Scaled dot-product attention: AttentionSpec -> AttentionPlan -> run.
//
//     out[b,h,t,:] = sum_s softmax_s(scale * dot(query[b,h,t,:], key[b,g,s,:]) + bias[b,h,t,s]) * value[b,g,s,:],  g = h /
//     (heads / kv_heads)
//
// over the keys s that the mask allows; a row with no allowed key is 0 and its lse is -inf. On request scores are capped
// (softcap), fall with distance (ALiBi) or follow a table of relative positions (RelativeBias), and share the softmax with a
// sink.
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
#include "polyhead/relative_bias.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/score_tile.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead {

// Sizes are maxima: a plan serves every run whose batch, query_length and key_length are at most these. heads, kv_heads,
// head_dim and value_dim are exact. batch and lengths may be 0. With a packed mask batch is the number of sequences, and
// lengths are those of the longest sequence.
struct AttentionSpec {
  std::int64_t batch = 1;
  std::int64_t heads = 1;     // query heads
  std::int64_t kv_heads = 0;  // 0: as many as heads; must divide heads
  std::int64_t query_length = 0;
  std::int64_t key_length = 0;
  std::int64_t head_dim = 0;    // of query and key
  std::int64_t value_dim = 0;   // 0: head_dim
  DType dtype = DType::f32;     // of query: f32, bf16 or f16; computed in f32 whichever it is
  std::optional<double> scale;  // unset: 1 / sqrt(head_dim); any finite number
  Mask mask{};
  // A row's bits never depend on batch, heads or threads. With this set they do not depend on query_length either (a
  // sequence in a padded batch gives the bits it gives alone), at the price of the faster kernel for very short queries.
  bool length_invariant = false;
  // Scaled scores become softcap * tanh(score / softcap), before bias and mask. 0: they stay; else a positive finite number.
  double softcap = 0.0;
  // alibi_slopes are given: alibi_slopes[h] (or [b, h]) * |t + o - s| is taken off the score, o being the causal offset
  // (without causal offsets[b] where given, else 0).
  bool has_alibi = false;
  // sink is given: exp(sink[h]) is added to the softmax's denominator, as of a key whose value is 0.
  bool has_sink = false;
  Precision precision = Precision::strict;
  // relative_bias_table is given and says what is added to scores; in the place of a bias tensor. Swin's goes with what has no
  // order: without causal, window, offsets and ALiBi, over lengths of at most height * width, and not over a cache.
  RelativeBias relative_bias{};
  // The caller's own function of scores, after softcap and before bias, ALiBi and mask. Its context may be given anew in each
  // run.
  ScoreMod score_mod{};
  std::optional<DType> key_dtype{};  // of key and value, where it is another one than dtype: f32, bf16, f16, of a cache also i8
  std::optional<DType> out_dtype{};  // of out, likewise
};

// All views are logical [batch, heads, length, dim] with any strides. Inputs may alias each other; an output that overlaps
// an input or another output is refused.
//
// With a packed mask query, key, value, out and lse have a batch of 1 and as length the sum over the sequences, or more (what
// is behind the last sequence is no key, and empty rows in out and lse); elsewhere B is the number of sequences, and T and S
// are the lengths of the longest, or more.
struct AttentionInputs {
  // Of the spec's dtype, all four, unless it names others for key and value, and for out.
  TensorView query{};  // [B, heads, T, head_dim]
  TensorView key{};    // [B, kv_heads, S, head_dim]
  TensorView value{};  // [B, kv_heads, S, value_dim]
  TensorView out{};    // [B, heads, T, value_dim]; rounded to nearest even, infinite where too large for the dtype

  TensorView lse{};            // optional f32 [B, heads, T]: natural log of the softmax denominator; never changes out
  TensorView key_lengths{};    // i32 or i64 [B] or [B, 1], each in 0 .. S; given exactly when the mask has key lengths
  TensorView offsets{};        // i32 or i64 [B] or [B, 1]; given exactly when the mask has offsets
  TensorView boolean_mask{};   // bool or u8, broadcastable to [B, heads, T, S] (lower ranks align right); true = attend
  TensorView bias{};           // f32, bf16 or f16 whatever query is, read in place; broadcastable to [B, heads, T, S]
  TensorView alibi_slopes{};   // f32 [heads], [B, heads] or [1, heads], finite; given exactly when the spec has ALiBi
  TensorView sink{};           // f32 [heads], logits; -inf is none; given exactly when the spec has a sink
  TensorView query_lengths{};  // i32 or i64 [B] or [B, 1], each in 0 .. T; given exactly when the mask has query lengths
  // i32 or i64 [B + 1], given exactly when the mask is packed: 0, then the sum of the first i lengths. With a block table
  // queries alone are packed, and cumulative_key_lengths is not given.
  TensorView cumulative_query_lengths{};
  TensorView cumulative_key_lengths{};
  TensorView prefix_lengths{};  // i32 or i64 [B] or [B, 1], each in 0 .. S; given exactly when the mask has a prefix
  TensorView query_segments{};  // i32 or i64 [B, T] or [1, T], any numbers; given exactly when the mask has segments
  TensorView key_segments{};    // the same [B, S] or [1, S]
  // bool or u8, broadcastable to [B, heads, ceil(T / block_queries), ceil(S / block_keys)]; true = attend; given exactly when
  // the mask has blocks. The blocks of a packed sequence begin with its own first query and key.
  TensorView block_mask{};
  // f32 [relative_bias.table_rows(), heads], given exactly when the spec has a relative bias. -inf excludes, as in a bias.
  TensorView relative_bias_table{};
  // i32 or i64 [B, pages of an item], optional: key and value are then pages [pages, kv_heads, tokens of a page, dim], and key
  // s of batch item b is token s % tokens of page block_table[b, s / tokens], its value likewise. Both have pages equally far
  // apart, and heads in one piece (last stride 1). The mask has key lengths; numbers beyond an item's length are not looked at.
  // S is the room that a row of the table has. Not with segments. With a packed mask sequence i has row i of the table and
  // key_lengths[i] keys.
  TensorView block_table{};
  void* score_mod_context = nullptr;  // for the spec's score_mod, instead of its own context; null: that
};

class KvCache;

// The same over a cache, whose keys, values and lengths are read where they lie. Row b of the tensors, or with a packed mask
// the queries of packed sequence b, belong to sequence sequences[b]; S below is the longest of these sequences' lengths.
// Positions of keys are counted from the first token of their sequence, in a ring too. A ring's own window joins the mask's.
struct CachedAttentionInputs {
  const KvCache* cache = nullptr;
  // Of the spec's dtypes; its key_dtype is the cache's. In one call f32, bf16 or f16, whatever the cache stores.
  TensorView query{};  // [B, heads, T, head_dim]
  TensorView out{};    // [B, heads, T, value_dim]

  TensorView lse{};        // optional f32 [B, heads, T]
  TensorView sequences{};  // i32 or i64 [B], any of the cache's, also several times; not given: 0 .. B - 1
  TensorView offsets{};    // these and the following as in AttentionInputs
  TensorView boolean_mask{};
  TensorView bias{};
  TensorView alibi_slopes{};
  TensorView sink{};
  TensorView relative_bias_table{};
  void* score_mod_context = nullptr;
  TensorView query_lengths{};
  TensorView cumulative_query_lengths{};  // with a packed mask query, out and lse have a batch of 1
  TensorView prefix_lengths{};            // not over a ring
  TensorView block_mask{};                // likewise
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

  // Steady state allocates nothing. Errors: invalid_argument, naming the input; cancelled; whatever a score_mod throws.
  void run(const AttentionInputs& inputs, const RunOptions& options = {}) const;
  // The spec's mask has key lengths, which are the cache's; its key_length is at least the longest sequence's, over a ring
  // KvCache::plan_key_length(). Over a ring the mask is causal, bottom-right, and T such that every query's window is there.
  void run(const CachedAttentionInputs& inputs, const RunOptions& options = {}) const;

  std::size_t workspace_bytes() const noexcept;
  const AttentionSpec& spec() const noexcept;
  // For people: the kernel and why it was chosen, the mask's parts, blocks, key splits, tiles skipped / full / partial, work
  // items, the time expected, what keeps it from something faster, workspace. The classifier of the spec's score_mod counts in
  // the time: where the score_mod has a context, which must be there, it is asked about at most 65,536 tiles of the largest
  // run. What it throws is thrown.
  std::string explain() const;
  // The same facts as one JSON object; docs/architecture.md lists its members. Members may be added.
  std::string explain_json() const;

 private:
  std::shared_ptr<const detail::AttentionPlanState> state_;
};

// One call: makes a plan for the inputs' shapes and dtypes (of plain attention all four are query's), or takes it from the
// runtime's cache, and runs it.
struct AttentionOptions {
  std::optional<double> scale;
  Mask mask{};
  bool length_invariant = false;
  double softcap = 0.0;
  bool has_alibi = false;
  bool has_sink = false;
  Precision precision = Precision::strict;
  RelativeBias relative_bias{};
  ScoreMod score_mod{};
};
POLYHEAD_EXPORT void attention(const Runtime& runtime, const AttentionInputs& inputs, const AttentionOptions& options = {});

// Causal, aligned bottom-right: the last query stands at its sequence's last token.
inline AttentionOptions cached_attention_options() {
  AttentionOptions options;
  options.mask = Mask::causal(Causal::bottom_right);
  return options;
}
// options.mask gets key lengths by itself.
POLYHEAD_EXPORT void attention(const Runtime& runtime, const CachedAttentionInputs& inputs,
                               const AttentionOptions& options = cached_attention_options());

// What attention_weights is asked for. Memory is that of the request, a megabyte or a row of weights for each thread and, with
// T5's bias, T + S numbers a head.
struct AttentionWeightsRequest {
  TensorView heads{};  // i32 or i64 [n], query heads in any order; not given: all
  TensorView rows{};   // i32 or i64 [m], queries in any order; not given: all
  // Optional f32 [B, n, m, S]: the softmax's weights, 0 where a key is not allowed. Packed sequences: [1, n, m, all keys], rows
  // and keys numbered through all of them.
  TensorView weights{};
  TensorView received{};  // optional f32 [B, n, S]: their sum over the chosen rows
};

// The weights that attention with these inputs and options gives its values, for chosen heads and queries. inputs.value, out
// and lse are not looked at. query and key are f32, bf16 or f16, not necessarily alike; weights are computed in f32 and never
// rounded to fewer bits, also where attention rounds them on the way to its values. A row's weights and, with a sink, the
// sink's share add up to 1; a row without an allowed key has weights of 0. At the cost of attention whose values are 256
// numbers long. Bits do not depend on threads. Errors: as attention, and unsupported for packed sequences with a score_mod
// or keys in pages.
POLYHEAD_EXPORT void attention_weights(const Runtime& runtime, const AttentionInputs& inputs, const AttentionOptions& options,
                                       const AttentionWeightsRequest& request);
// The same over a cache: S is the longest length of the call's sequences, and weights of keys that a ring has lost are 0. Keys
// of i8 are the numbers that KvCache::read gives.
POLYHEAD_EXPORT void attention_weights(const Runtime& runtime, const CachedAttentionInputs& inputs,
                                       const AttentionOptions& options, const AttentionWeightsRequest& request);

}  // namespace polyhead
