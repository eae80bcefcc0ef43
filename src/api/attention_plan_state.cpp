#include "api/attention_plan_state.hpp"

#include <algorithm>
#include <string>

#include "api/attention_spec.hpp"
#include "api/block_table.hpp"
#include "api/cached_attention.hpp"
#include "api/checks.hpp"
#include "api/head_operands.hpp"
#include "api/packed_copy.hpp"
#include "api/runtime_state.hpp"
#include "api/score_mod_run.hpp"
#include "plan/attention_weights.hpp"
#include "platform/rounding.hpp"

namespace polyhead::detail {

using api::byte_strides;
using api::check_dtype;
using api::check_no_overlap;
using api::check_output;
using api::check_tensor;
using api::copy_tensor;
using api::fail;
using api::key_dtype;
using api::last_is_contiguous;
using api::out_dtype;
using api::packed_bytes;
using api::read_heads;
using api::read_heads_of_items;
using api::scale_of;
using api::ScoreModRun;
using api::shape_of;
using api::stand_in;

namespace {

api::MaskInputs mask_inputs(const AttentionInputs& inputs) {
  return {inputs.key_lengths, inputs.offsets, inputs.boolean_mask, inputs.bias};
}

api::SequenceTensors sequence_tensors(const AttentionInputs& inputs) {
  return {inputs.query_lengths,  inputs.cumulative_query_lengths, inputs.cumulative_key_lengths,
          inputs.prefix_lengths, inputs.query_segments,           inputs.key_segments,
          inputs.block_mask};
}

// An output against itself and every input but value.
void check_apart_from_inputs(const char* name, const TensorView& output, const AttentionInputs& inputs) {
  check_output(name, output);
  check_no_overlap(name, output, "query", inputs.query);
  check_no_overlap(name, output, "key", inputs.key);
  api::check_no_overlap(name, output, mask_inputs(inputs));
  api::check_no_overlap(name, output, sequence_tensors(inputs));
  check_no_overlap(name, output, "alibi_slopes", inputs.alibi_slopes);
  check_no_overlap(name, output, "sink", inputs.sink);
  check_no_overlap(name, output, "relative_bias_table", inputs.relative_bias_table);
  check_no_overlap(name, output, "block_table", inputs.block_table);
}

void check_outputs(const AttentionInputs& inputs, const CachedAttentionInputs* cached) {
  if (cached) {
    check_no_overlap("out", inputs.out, "sequences", cached->sequences);
    check_no_overlap("lse", inputs.lse, "sequences", cached->sequences);
  }
  check_apart_from_inputs("out", inputs.out, inputs);
  check_no_overlap("out", inputs.out, "value", inputs.value);
  if (inputs.lse.empty()) return;
  check_apart_from_inputs("lse", inputs.lse, inputs);
  check_no_overlap("lse", inputs.lse, "value", inputs.value);
  check_no_overlap("lse", inputs.lse, "out", inputs.out);
}

plan::AttentionShape shape_of_plan(const AttentionSpec& spec, PlanUse use) {
  plan::AttentionShape shape = shape_of(spec);
  if (use == PlanUse::weights) shape.query_length = 0;
  return shape;
}

bool in_pages(const AttentionInputs& inputs, const CachedAttentionInputs* cached) {
  return cached || !inputs.block_table.empty();
}

// Of the pages that a run's keys lie in, as kernels find them.
std::size_t page_table_bytes(const AttentionInputs& inputs, const CachedAttentionInputs* cached, std::int64_t batch) {
  return cached ? whole_lines(static_cast<std::size_t>(batch) * sizeof(plan::KeyPages)) : api::block_table_bytes(inputs);
}

// Indices of a request, each in 0 .. count - 1; all of them where none are given.
std::vector<std::int64_t> read_choice(const char* name, const TensorView& view, std::int64_t count) {
  std::vector<std::int64_t> chosen;
  if (view.empty()) {
    for (std::int64_t i = 0; i < count; ++i) chosen.push_back(i);
    return chosen;
  }
  if (view.rank != 1) fail(name, view.describe(), "i32 or i64 of one dimension");
  chosen.resize(static_cast<std::size_t>(std::max<std::int64_t>(view.shape[0], 0)));
  api::read_integers(name, view, view.shape[0], 0, count - 1, chosen.data());
  return chosen;
}

}  // namespace

AttentionPlanState::AttentionPlanState(const AttentionSpec& spec, const Runtime& runtime, PlanUse use)
    : spec_(api::resolve(spec)),
      isa_(runtime.isa()),
      plan_(shape_of_plan(spec_, use), spec_.mask,
            {scale_of(spec_), spec_.softcap, spec_.has_alibi, spec_.has_sink, spec_.relative_bias,
             spec_.score_mod.empty() ? std::string() : spec_.score_mod.name, spec_.score_mod.classify != nullptr},
            spec_.length_invariant, spec_.precision, runtime.state()->kernels(), runtime.state()->scheduler()),
      relative_(spec_.relative_bias) {}

void AttentionPlanState::run(const AttentionInputs& inputs, const RunOptions& options, const CachedAttentionInputs* cached,
                             void* context) const {
  const plan::AttentionShape shape = check_shapes(inputs, cached);
  if (options.workspace) {
    if (reinterpret_cast<std::uintptr_t>(options.workspace) % 64 != 0) {
      fail("RunOptions.workspace", "not aligned", "an address that is a multiple of 64");
    }
    if (options.workspace_bytes < plan_.workspace_bytes()) {
      fail("RunOptions.workspace_bytes", std::to_string(options.workspace_bytes),
           std::to_string(plan_.workspace_bytes()) + " or more");
    }
  }
  const plan::AttentionPlan::LeaseHandle lease(plan_, options.workspace);
  plan::AttentionOperands operands = read_operands(inputs, shape, lease, cached);
  ScoreModRun score_mod(spec_.score_mod, inputs.score_mod_context ? inputs.score_mod_context : context, isa_);
  operands.scores.mod = score_mod.for_kernel();
  check_outputs(inputs, cached);
  if (options.cancel && options.cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::cancelled, "cancelled by the caller");
  if (inputs.out.element_count() == 0) return;

  TensorView query = inputs.query, key = inputs.key, value = inputs.value, out = inputs.out;
  const bool out_is_packed = !last_is_contiguous(out);
  const std::size_t table_bytes = page_table_bytes(inputs, cached, operands.shape.batch);
  const std::size_t bytes = packed_bytes(query) + packed_bytes(key) + packed_bytes(value) + packed_bytes(out);
  char* const side = bytes + table_bytes > 0 ? static_cast<char*>(lease.side_memory(table_bytes + bytes)) : nullptr;
  if (bytes > 0) {
    char* memory = side + table_bytes;
    for (TensorView* view : {&query, &key, &value}) {
      if (last_is_contiguous(*view)) continue;
      const TensorView packed = stand_in(*view, &memory);
      copy_tensor(plan_.scheduler(), *view, packed);
      *view = packed;
    }
    if (out_is_packed) out = stand_in(out, &memory);
  }
  operands.query = query.data;
  operands.key = key.data;
  operands.value = value.data;
  operands.out = out.data;
  byte_strides(query, operands.query_strides);
  byte_strides(key, operands.key_strides);
  byte_strides(value, operands.value_strides);
  byte_strides(out, operands.out_strides);
  if (cached) api::read_cache(*cached, reinterpret_cast<plan::KeyPages*>(side), &operands);
  if (!inputs.block_table.empty()) api::read_block_table(inputs, side, &operands);
  if (!inputs.lse.empty()) {
    operands.lse = static_cast<float*>(inputs.lse.data);
    byte_strides(inputs.lse, operands.lse_strides);
  }
  spread_relative_bias(inputs, lease, operands);
  plan_.run(lease, operands, options.cancel);
  score_mod.rethrow();
  if (out_is_packed) copy_tensor(plan_.scheduler(), out, inputs.out);
}

plan::Explanation AttentionPlanState::explanation() const {
  ScoreModRun score_mod(spec_.score_mod, nullptr, isa_);
  const bool asks = spec_.score_mod.classify && spec_.score_mod.context;
  const plan::Explanation told = plan_.explanation(asks ? score_mod.for_kernel() : nullptr);
  score_mod.rethrow();
  return told;
}

void AttentionPlanState::run_weights(const AttentionInputs& inputs, const AttentionWeightsRequest& request,
                                     const dispatch::KernelTable& kernels, const CachedAttentionInputs* cached,
                                     void* context) const {
  const bool modified = !spec_.score_mod.empty();
  if (spec_.mask.is_packed && (modified || in_pages(inputs, cached))) {
    throw Error(ErrorCode::unsupported, std::string("attention_weights: the mask is packed and ") +
                                            (modified ? "a score_mod is given" : "keys lie in pages") +
                                            "; expected a call for each sequence");
  }
  const plan::AttentionShape shape = check_query_and_key(inputs, cached);
  const plan::AttentionPlan::LeaseHandle lease(plan_, nullptr);
  plan::AttentionOperands operands = read_operands(inputs, shape, lease, cached);
  ScoreModRun score_mod(spec_.score_mod, inputs.score_mod_context ? inputs.score_mod_context : context, isa_);
  operands.scores.mod = score_mod.for_kernel();
  const std::vector<std::int64_t> heads = read_choice("heads", request.heads, shape.heads),
                                  rows = read_choice("rows", request.rows, shape.query_length);
  plan::WeightsOperands wanted;
  wanted.heads = heads.data();
  wanted.rows = rows.data();
  wanted.head_count = static_cast<std::int64_t>(heads.size());
  wanted.row_count = static_cast<std::int64_t>(rows.size());
  wanted.batch = shape.batch;
  wanted.key_count = shape.key_length;
  if (request.weights.empty() && request.received.empty()) {
    fail("weights", "not given, nor is received", "one of them at least");
  }
  const auto check = [&](const char* name, const TensorView& output) {
    check_apart_from_inputs(name, output, inputs);
    check_no_overlap(name, output, "heads", request.heads);
    check_no_overlap(name, output, "rows", request.rows);
    if (cached) check_no_overlap(name, output, "sequences", cached->sequences);
  };
  const auto set_strides = [](const TensorView& view, std::ptrdiff_t* strides) {
    for (int i = 0; i < view.rank; ++i) strides[i] = view.strides[i] * static_cast<std::ptrdiff_t>(sizeof(float));
  };
  if (!request.weights.empty()) {
    check_tensor("weights", request.weights, DType::f32, {shape.batch, wanted.head_count, wanted.row_count, shape.key_length});
    check("weights", request.weights);
    wanted.weights = static_cast<float*>(request.weights.data);
    set_strides(request.weights, wanted.weights_strides);
  }
  if (!request.received.empty()) {
    check_tensor("received", request.received, DType::f32, {shape.batch, wanted.head_count, shape.key_length});
    check("received", request.received);
    check_no_overlap("received", request.received, "weights", request.weights);
    wanted.received = static_cast<float*>(request.received.data);
    set_strides(request.received, wanted.received_strides);
  }
  if (shape.batch == 0 || wanted.head_count == 0 || shape.key_length == 0) return;

  TensorView query = inputs.query, key = inputs.key;
  const std::size_t table_bytes = page_table_bytes(inputs, cached, operands.shape.batch);
  const std::size_t bytes = table_bytes + packed_bytes(query) + packed_bytes(key);
  char* const side = bytes > 0 ? static_cast<char*>(lease.side_memory(bytes)) : nullptr;
  char* memory = side + table_bytes;
  for (TensorView* view : {&query, &key}) {
    if (last_is_contiguous(*view)) continue;
    const TensorView packed = stand_in(*view, &memory);
    copy_tensor(plan_.scheduler(), *view, packed);
    *view = packed;
  }
  operands.query = query.data;
  operands.key = key.data;
  byte_strides(query, operands.query_strides);
  byte_strides(key, operands.key_strides);
  if (cached) api::read_cache(*cached, reinterpret_cast<plan::KeyPages*>(side), &operands);
  if (!inputs.block_table.empty()) api::read_block_table(inputs, side, &operands);
  spread_relative_bias(inputs, lease, operands);
  plan::run_weights(operands, wanted, kernels, plan_.scheduler());
  score_mod.rethrow();
}

plan::AttentionShape AttentionPlanState::check_query_and_key(const AttentionInputs& inputs,
                                                             const CachedAttentionInputs* cached) const {
  check_tensor("query", inputs.query, spec_.dtype, {spec_.mask.is_packed ? 1 : -1, spec_.heads, -1, spec_.head_dim});
  plan::AttentionShape shape = shape_of(spec_);
  shape.batch = inputs.query.shape[0];
  shape.query_length = inputs.query.shape[2];
  if (!cached) check_dtype("AttentionSpec.key_dtype", key_dtype(spec_));  // i8 has scales, which only a cache has
  if (in_pages(inputs, cached)) {
    api::check_mask_over_pages(spec_.mask);
    api::check_sequences_given(spec_.mask, sequence_tensors(inputs), true);
    const std::int64_t items = spec_.mask.is_packed ? api::packed_sequences(inputs.cumulative_query_lengths) : shape.batch;
    shape.key_length = cached ? api::check_cache(spec_, *cached, items) : api::check_block_table(spec_, inputs, items);
  } else {
    check_tensor("key", inputs.key, key_dtype(spec_), {shape.batch, spec_.kv_heads, -1, spec_.head_dim});
    shape.key_length = inputs.key.shape[2];
  }
  api::check_mask_given(given_mask(cached), mask_inputs(inputs));
  if (!in_pages(inputs, cached)) api::check_sequences_given(spec_.mask, sequence_tensors(inputs), false);
  api::check_given("alibi_slopes", inputs.alibi_slopes, spec_.has_alibi, "ALiBi", "spec");
  api::check_given("sink", inputs.sink, spec_.has_sink, "sink", "spec");
  api::check_given("relative_bias_table", inputs.relative_bias_table, spec_.relative_bias.given(), "relative bias", "spec");
  if (spec_.relative_bias.given()) {
    check_tensor("relative_bias_table", inputs.relative_bias_table, DType::f32,
                 {spec_.relative_bias.table_rows(), spec_.heads});
  }
  if (inputs.score_mod_context && spec_.score_mod.empty()) {
    fail("score_mod_context", "given", "none, since the spec has no score_mod");
  }
  return shape;
}

plan::AttentionShape AttentionPlanState::check_shapes(const AttentionInputs& inputs,
                                                      const CachedAttentionInputs* cached) const {
  const plan::AttentionShape shape = check_query_and_key(inputs, cached);
  if (!inputs.block_table.empty()) {
    api::check_pages_of_values(spec_, inputs);
  } else if (!cached) {
    check_tensor("value", inputs.value, key_dtype(spec_), {shape.batch, spec_.kv_heads, shape.key_length, spec_.value_dim});
  }
  check_tensor("out", inputs.out, out_dtype(spec_), {shape.batch, spec_.heads, shape.query_length, spec_.value_dim});
  if (!inputs.lse.empty()) check_tensor("lse", inputs.lse, DType::f32, {shape.batch, spec_.heads, shape.query_length});
  return shape;
}

void AttentionPlanState::check_maxima(const plan::AttentionShape& shape, bool cached) const {
  const bool packed = spec_.mask.is_packed;
  const auto check = [](const char* name, std::int64_t size, std::int64_t most) {
    if (size > most) fail(name, std::to_string(size), "at most the plan's " + std::to_string(most));
  };
  check(packed ? "the number of sequences" : "query's batch", shape.batch, spec_.batch);
  check(packed ? "the longest sequence's number of queries" : "query's length", shape.query_length, spec_.query_length);
  if (!cached) check(packed ? "the longest sequence's number of keys" : "key's length", shape.key_length, spec_.key_length);
}

void AttentionPlanState::check_window(const plan::AttentionShape& shape) const {
  const RelativeBias& bias = spec_.relative_bias;
  if (bias.kind != RelativeBias::Kind::swin) return;
  const std::int64_t positions = bias.height * bias.width;
  const auto check = [&](const char* name, std::int64_t length) {
    if (length <= positions) return;
    fail(name, std::to_string(length),
         "at most " + std::to_string(positions) + ", the positions of a window of " + std::to_string(bias.height) + " x " +
             std::to_string(bias.width));
  };
  check(spec_.mask.is_packed ? "the longest sequence's number of queries" : "query's length", shape.query_length);
  check(spec_.mask.is_packed ? "the longest sequence's number of keys" : "key's length", shape.key_length);
}

plan::AttentionOperands AttentionPlanState::read_operands(const AttentionInputs& inputs, plan::AttentionShape shape,
                                                          const plan::AttentionPlan::LeaseHandle& lease,
                                                          const CachedAttentionInputs* cached) const {
  api::ScoreShape scores_shape = {shape.batch, shape.heads, shape.query_length, shape.key_length};
  const std::int64_t query_total = shape.query_length;
  if (spec_.mask.is_packed) {
    scores_shape = api::read_packed(sequence_tensors(inputs), in_pages(inputs, cached), shape.heads, query_total,
                                    shape.key_length, lease.sequences());
    shape.batch = scores_shape.batch;
    shape.query_length = scores_shape.query_length;
    shape.key_length = scores_shape.key_length;
  }
  check_maxima(shape, cached != nullptr);
  check_window(shape);

  plan::AttentionOperands operands;
  operands.shape = shape;
  operands.mask = spec_.mask;
  operands.scale = scale_of(spec_);
  operands.softcap = spec_.softcap;
  operands.scores =
      api::read_mask_inputs(given_mask(cached), mask_inputs(inputs), scores_shape, lease.key_lengths(), lease.offsets());
  if (cached) api::read_lengths(*cached, shape.batch, lease.key_lengths());
  if (spec_.mask.has_key_lengths) operands.key_lengths = lease.key_lengths();
  if (spec_.mask.has_offsets) operands.offsets = lease.offsets();
  if (plan::goes_by_sequences(spec_.mask)) {
    plan::SequenceTable& table = lease.sequences();
    api::read_sequences(spec_.mask, sequence_tensors(inputs), scores_shape, query_total, operands.key_lengths, operands.offsets,
                        table);
    operands.sequences = table.sequences().data();
    operands.sequence_count = static_cast<std::int64_t>(table.sequences().size());
    operands.segment_numbers = table.segment_numbers().data();
    operands.mask_room = plan_.mask_room();
    if (spec_.mask.block_queries) {
      operands.scores.block_mask = api::read_blocks(spec_.mask, inputs.block_mask, scores_shape);
    }
  }
  if (cached) {
    const plan::SequenceTable& table = lease.sequences();
    api::OwnQueries queries;
    queries.longest = shape.query_length;
    if (spec_.mask.has_query_lengths) queries.lengths = table.query_lengths.data();
    if (spec_.mask.is_packed) queries.ends = table.query_ends.data();
    api::check_windows(spec_, *cached, shape.batch, queries);
  }
  plan::ScoreOperands& scores = operands.scores;
  if (spec_.has_alibi) {
    scores.alibi_slopes = read_heads_of_items("alibi_slopes", inputs.alibi_slopes, shape.batch, spec_.heads,
                                              &scores.alibi_batch_stride, &scores.alibi_stride);
  }
  if (spec_.has_sink) scores.sink = read_heads("sink", inputs.sink, spec_.heads, true, &scores.sink_stride);
  return operands;
}

void AttentionPlanState::spread_relative_bias(const AttentionInputs& inputs, const plan::AttentionPlan::LeaseHandle& lease,
                                              plan::AttentionOperands& operands) const {
  if (!relative_.wanted()) return;
  const TensorView& table = inputs.relative_bias_table;
  const auto stride = [&](std::size_t i) {
    return table.shape[i] == 1 ? std::ptrdiff_t{0} : table.strides[i] * static_cast<std::ptrdiff_t>(sizeof(float));
  };
  const plan::RelativeSpread::Place place = relative_.place(operands);
  operands.scores.relative = relative_.spread(place, {static_cast<const float*>(table.data), stride(0), stride(1)},
                                              operands.shape.heads, lease.bias_memory(place.bytes));
}

Mask AttentionPlanState::given_mask(const CachedAttentionInputs* cached) const {
  Mask mask = spec_.mask;
  if (cached) mask.has_key_lengths = false;
  return mask;
}

}  // namespace polyhead::detail
