#include "polyhead/attention.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "api/block_table.hpp"
#include "api/cached_attention.hpp"
#include "api/checks.hpp"
#include "api/entry.hpp"
#include "api/head_operands.hpp"
#include "api/mask_inputs.hpp"
#include "api/runtime_state.hpp"
#include "api/score_mod_run.hpp"
#include "api/sequence_inputs.hpp"
#include "dispatch/kernel_table.hpp"
#include "plan/attention_plan.hpp"
#include "plan/attention_weights.hpp"
#include "platform/rounding.hpp"
#include "polyhead/kv_cache.hpp"

namespace polyhead {

const char* name(Precision precision) noexcept {
  switch (precision) {
    case Precision::strict:
      return "strict";
    case Precision::fast:
      return "fast";
  }
  return "unknown";
}

namespace {

using api::check_mask;
using api::check_no_overlap;
using api::check_output;
using api::check_precision;
using api::check_tensor;
using api::fail;
using api::read_heads;
using api::read_heads_of_items;
using api::ScoreModRun;

bool is_served(DType dtype) {
  const std::vector<DType>& served = dispatch::attention_dtypes();
  return std::find(served.begin(), served.end(), dtype) != served.end();
}

// "f32, bf16 or f16"
std::string served_dtypes() {
  const std::vector<DType>& served = dispatch::attention_dtypes();
  std::string text;
  for (std::size_t i = 0; i < served.size(); ++i) {
    text += std::string(i == 0 ? "" : i + 1 < served.size() ? ", " : " or ") + name(served[i]);
  }
  return text;
}

void check_size(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) fail(name, std::to_string(value), std::to_string(least) + " or more");
}

void check_dtype(const char* field, DType dtype) {
  if (is_served(dtype)) return;
  throw Error(ErrorCode::unsupported, std::string(field) + " is " + name(dtype) + "; this build serves " + served_dtypes());
}

DType key_dtype(const AttentionSpec& spec) {
  return spec.key_dtype.value_or(spec.dtype);
}

DType out_dtype(const AttentionSpec& spec) {
  return spec.out_dtype.value_or(spec.dtype);
}

void check_relative_bias(const AttentionSpec& spec) {
  const RelativeBias& bias = spec.relative_bias;
  constexpr std::int64_t most_buckets = 1 << 20, most_distance = 1 << 20, most_side = 1 << 15;  // far above any model's
  const auto check = [](const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    fail((std::string("AttentionSpec.relative_bias.") + field).c_str(), std::to_string(value),
         std::to_string(least) + " to " + std::to_string(most));
  };
  switch (bias.kind) {
    case RelativeBias::Kind::none:
      return;
    case RelativeBias::Kind::t5: {
      check("buckets", bias.buckets, bias.bidirectional ? 4 : 2, most_buckets);
      if (bias.bidirectional && bias.buckets % 2 != 0) {
        fail("AttentionSpec.relative_bias.buckets", std::to_string(bias.buckets), "an even number, since it is bidirectional");
      }
      check("max_distance", bias.max_distance, bias.buckets / (bias.bidirectional ? 4 : 2) + 1, most_distance);
      break;
    }
    case RelativeBias::Kind::swin: {
      check("height", bias.height, 1, most_side);
      check("width", bias.width, 1, most_side);
      const Mask& mask = spec.mask;
      if (mask.causality != Causal::none || mask.has_offsets || mask.window_left != Mask::unbounded ||
          mask.window_right != Mask::unbounded || spec.has_alibi) {
        fail("AttentionSpec.relative_bias", "Swin's together with a causal alignment, a window, offsets or ALiBi",
             "one without these, since positions of an image have no order");
      }
      break;
    }
    default:
      fail("AttentionSpec.relative_bias.kind", std::to_string(static_cast<int>(bias.kind)), "a RelativeBias::Kind");
  }
  if (spec.mask.has_bias) {
    fail("AttentionSpec.mask.has_bias", "true", "false beside a relative bias, which is in the place of a bias");
  }
}

void check_score_mod(const AttentionSpec& spec) {
  const ScoreMod& mod = spec.score_mod;
  if (mod.empty()) {
    const ScoreFunctions& functions = mod.functions;
    if (mod.classify || functions.sse4 || functions.avx2 || functions.avx512) {
      fail("AttentionSpec.score_mod.functions.baseline", "null", "a function, where any part of a score_mod is given");
    }
    return;
  }
  if (mod.name == nullptr) fail("AttentionSpec.score_mod.name", "null", "a text");
  if (*mod.name == '\0') fail("AttentionSpec.score_mod.name", "empty", "a text");
  if (spec.relative_bias.kind == RelativeBias::Kind::swin) {
    fail("AttentionSpec.score_mod", "given together with Swin's relative bias",
         "one of the two: the function may add that bias");
  }
}

// Fills in what a spec leaves open, and checks it.
AttentionSpec resolve(AttentionSpec spec) {
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.value_dim == 0) spec.value_dim = spec.head_dim;
  check_size("AttentionSpec.batch", spec.batch, 0);
  check_size("AttentionSpec.heads", spec.heads, 1);
  check_size("AttentionSpec.kv_heads", spec.kv_heads, 1);
  check_size("AttentionSpec.query_length", spec.query_length, 0);
  check_size("AttentionSpec.key_length", spec.key_length, 0);
  check_size("AttentionSpec.head_dim", spec.head_dim, 1);
  check_size("AttentionSpec.value_dim", spec.value_dim, 1);
  if (spec.heads % spec.kv_heads != 0) {
    fail("AttentionSpec.kv_heads", std::to_string(spec.kv_heads), "a divisor of heads (" + std::to_string(spec.heads) + ")");
  }
  // Every count of elements that index arithmetic forms must fit in 64 bits.
  std::int64_t elements = static_cast<std::int64_t>(sizeof(float)) * 64;
  for (const std::int64_t size :
       {std::max<std::int64_t>(spec.batch, 1), spec.heads, std::max<std::int64_t>({spec.query_length, spec.key_length, 1}),
        std::max(spec.head_dim, spec.value_dim) + 2}) {
    if (__builtin_mul_overflow(elements, size, &elements)) fail("AttentionSpec: its sizes overflow 64-bit offsets");
  }
  if (spec.scale && !std::isfinite(*spec.scale)) fail("AttentionSpec.scale", std::to_string(*spec.scale), "a finite number");
  if (!(spec.softcap >= 0.0) || !std::isfinite(spec.softcap)) {
    fail("AttentionSpec.softcap", std::to_string(spec.softcap), "0 (none) or a positive finite number");
  }
  check_mask("AttentionSpec.mask", spec.mask);
  check_precision("AttentionSpec.precision", spec.precision);
  check_relative_bias(spec);
  check_score_mod(spec);
  check_dtype("AttentionSpec.dtype", spec.dtype);
  if (const std::vector<DType>& kept = dispatch::cache_dtypes();
      std::find(kept.begin(), kept.end(), key_dtype(spec)) == kept.end()) {
    check_dtype("AttentionSpec.key_dtype", key_dtype(spec));
  }
  check_dtype("AttentionSpec.out_dtype", out_dtype(spec));
  return spec;
}

plan::AttentionShape shape_of(const AttentionSpec& spec) {
  return {spec.batch,    spec.heads,     spec.kv_heads, spec.query_length, spec.key_length,
          spec.head_dim, spec.value_dim, spec.dtype,    key_dtype(spec),   out_dtype(spec)};
}

double scale_of(const AttentionSpec& spec) {
  return spec.scale ? *spec.scale : 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
}

void byte_strides(const TensorView& view, std::ptrdiff_t strides[3]) {
  const std::int64_t item = size_in_bytes(view.dtype);
  for (int i = 0; i < 3; ++i) strides[i] = view.shape[i] == 1 ? 0 : view.strides[i] * item;
}

bool last_is_contiguous(const TensorView& view) {
  return view.shape[3] <= 1 || view.strides[3] == 1;
}

std::size_t packed_bytes(const TensorView& view) {
  return last_is_contiguous(view) ? 0 : whole_lines(static_cast<std::size_t>(view.element_count() * size_in_bytes(view.dtype)));
}

// A [batch, heads, length, dim] copy job, cut over (batch, head) so that threads share it.
struct CopyJob {
  const TensorView* from;
  const TensorView* to;
};

// Element is any type of the dtype's size: bits are moved, whatever they mean.
template <class Element>
void copy_elements(graph::Scheduler& scheduler, const TensorView& from, const TensorView& to) {
  CopyJob job{&from, &to};
  scheduler.parallel_for(
      static_cast<std::size_t>(from.shape[0] * from.shape[1]),
      [](void* context, std::size_t index, int) {
        const CopyJob& copy = *static_cast<const CopyJob*>(context);
        const TensorView &source = *copy.from, &target = *copy.to;
        const std::int64_t batch = static_cast<std::int64_t>(index) / source.shape[1],
                           head = static_cast<std::int64_t>(index) % source.shape[1];
        const Element* read = static_cast<const Element*>(source.data) + batch * source.strides[0] + head * source.strides[1];
        Element* write = static_cast<Element*>(target.data) + batch * target.strides[0] + head * target.strides[1];
        for (std::int64_t t = 0; t < source.shape[2]; ++t) {
          for (std::int64_t d = 0; d < source.shape[3]; ++d) {
            write[t * target.strides[2] + d * target.strides[3]] = read[t * source.strides[2] + d * source.strides[3]];
          }
        }
      },
      &job);
}

void copy_tensor(graph::Scheduler& scheduler, const TensorView& from, const TensorView& to) {
  if (size_in_bytes(from.dtype) == sizeof(std::uint16_t)) return copy_elements<std::uint16_t>(scheduler, from, to);
  copy_elements<float>(scheduler, from, to);
}

// A contiguous stand-in at *memory for a view whose last dimension is not contiguous; advances *memory.
TensorView stand_in(const TensorView& view, char** memory) {
  TensorView packed(*memory, view.dtype, view.rank, view.shape.data());
  *memory += packed_bytes(view);
  return packed;
}

}  // namespace

namespace detail {

class AttentionPlanState {
 public:
  AttentionPlanState(const AttentionSpec& spec, const Runtime& runtime)
      : spec_(resolve(spec)),
        isa_(runtime.isa()),
        plan_(shape_of(spec_), spec_.mask,
              {scale_of(spec_), spec_.softcap, spec_.has_alibi, spec_.has_sink, spec_.relative_bias,
               spec_.score_mod.empty() ? std::string() : spec_.score_mod.name, spec_.score_mod.classify != nullptr},
              spec_.length_invariant, spec_.precision, runtime.state()->kernels(), runtime.state()->scheduler()),
        relative_(spec_.relative_bias) {}

  // With a cache, keys, values and lengths are its, and `inputs` has the rest. `context`: the score_mod's where inputs have
  // none.
  void run(const AttentionInputs& inputs, const RunOptions& options, const CachedAttentionInputs* cached = nullptr,
           void* context = nullptr) const {
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
    check_outputs(inputs);
    if (options.cancel && options.cancel->load(std::memory_order_relaxed))
      throw Error(ErrorCode::cancelled, "cancelled by the caller");
    if (inputs.out.element_count() == 0) return;

    TensorView query = inputs.query, key = inputs.key, value = inputs.value, out = inputs.out;
    const bool out_is_packed = !last_is_contiguous(out);
    const std::size_t table_bytes =
        cached ? whole_lines(static_cast<std::size_t>(shape.batch) * sizeof(plan::KeyPages)) : api::block_table_bytes(inputs);
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
    if (cached) api::read_cache(*cached, lease.key_lengths(), reinterpret_cast<plan::KeyPages*>(side), &operands);
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

  const AttentionSpec& spec() const noexcept { return spec_; }
  const plan::AttentionPlan& plan() const noexcept { return plan_; }

  // value, out and lse are not looked at.
  void run_weights(const AttentionInputs& inputs, const AttentionWeightsRequest& request, const dispatch::KernelTable& kernels,
                   void* context) const {
    if (!inputs.block_table.empty()) {
      throw Error(ErrorCode::unsupported, "attention_weights: block_table is given; expected keys that lie in key itself");
    }
    if (spec_.mask.is_packed && !spec_.score_mod.empty()) {
      throw Error(ErrorCode::unsupported,
                  "attention_weights: the mask is packed and a score_mod is given; expected a call for each sequence");
    }
    const plan::AttentionShape shape = check_query_and_key(inputs);
    const plan::AttentionPlan::LeaseHandle lease(plan_, nullptr);
    plan::AttentionOperands operands = read_operands(inputs, shape, lease);
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
    const auto check = [&](const char* output_name, const TensorView& output) {
      check_output(output_name, output);
      check_no_overlap(output_name, output, "query", inputs.query);
      check_no_overlap(output_name, output, "key", inputs.key);
      api::check_no_overlap(output_name, output, mask_inputs(inputs));
      api::check_no_overlap(output_name, output, sequence_tensors(inputs));
      check_no_overlap(output_name, output, "alibi_slopes", inputs.alibi_slopes);
      check_no_overlap(output_name, output, "sink", inputs.sink);
      check_no_overlap(output_name, output, "relative_bias_table", inputs.relative_bias_table);
      check_no_overlap(output_name, output, "heads", request.heads);
      check_no_overlap(output_name, output, "rows", request.rows);
    };
    const auto set_strides = [](const TensorView& view, std::ptrdiff_t* strides) {
      for (int i = 0; i < view.rank; ++i) strides[i] = view.strides[i] * static_cast<std::ptrdiff_t>(sizeof(float));
    };
    if (!request.weights.empty()) {
      check_tensor("weights", request.weights, DType::f32,
                   {shape.batch, wanted.head_count, wanted.row_count, shape.key_length});
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
    if (const std::size_t bytes = packed_bytes(query) + packed_bytes(key)) {
      auto* memory = static_cast<char*>(lease.side_memory(bytes + 2 * 64));
      for (TensorView* view : {&query, &key}) {
        if (last_is_contiguous(*view)) continue;
        const TensorView packed = stand_in(*view, &memory);
        copy_tensor(plan_.scheduler(), *view, packed);
        *view = packed;
      }
    }
    operands.query = query.data;
    operands.key = key.data;
    byte_strides(query, operands.query_strides);
    byte_strides(key, operands.key_strides);
    spread_relative_bias(inputs, lease, operands);
    plan::run_weights(operands, wanted, kernels, plan_.scheduler());
    score_mod.rethrow();
  }

 private:
  // Indices of a request, each in 0 .. count - 1; all of them where none are given.
  static std::vector<std::int64_t> read_choice(const char* name, const TensorView& view, std::int64_t count) {
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

  // What mask and score changes need, read and checked; shape is that of the tensors.
  plan::AttentionOperands read_operands(const AttentionInputs& inputs, plan::AttentionShape shape,
                                        const plan::AttentionPlan::LeaseHandle& lease,
                                        const CachedAttentionInputs* cached = nullptr) const {
    api::ScoreShape scores_shape = {shape.batch, shape.heads, shape.query_length, shape.key_length};
    const std::int64_t query_total = shape.query_length;
    if (spec_.mask.is_packed) {
      scores_shape = api::read_packed(sequence_tensors(inputs), shape.heads, query_total, shape.key_length, lease.sequences());
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
    if (spec_.mask.has_key_lengths) operands.key_lengths = lease.key_lengths();
    if (spec_.mask.has_offsets) operands.offsets = lease.offsets();
    if (plan::goes_by_sequences(spec_.mask)) {
      plan::SequenceTable& table = lease.sequences();
      api::read_sequences(spec_.mask, sequence_tensors(inputs), scores_shape, query_total, operands.key_lengths,
                          operands.offsets, table);
      operands.sequences = table.sequences().data();
      operands.sequence_count = static_cast<std::int64_t>(table.sequences().size());
      operands.segment_numbers = table.segment_numbers().data();
      operands.mask_room = plan_.mask_room();
      if (spec_.mask.block_queries) {
        operands.scores.block_mask = api::read_blocks(spec_.mask, inputs.block_mask, scores_shape);
      }
    }
    plan::ScoreOperands& scores = operands.scores;
    if (spec_.has_alibi) {
      scores.alibi_slopes = read_heads_of_items("alibi_slopes", inputs.alibi_slopes, shape.batch, spec_.heads,
                                                &scores.alibi_batch_stride, &scores.alibi_stride);
    }
    if (spec_.has_sink) scores.sink = read_heads("sink", inputs.sink, spec_.heads, true, &scores.sink_stride);
    return operands;
  }

  // The last of the operands: how much of it there is depends on all others.
  void spread_relative_bias(const AttentionInputs& inputs, const plan::AttentionPlan::LeaseHandle& lease,
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

  // A window of an image has so many positions, in each batch item or sequence.
  void check_window(const plan::AttentionShape& shape) const {
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

  // Shapes against the spec and each other; returns the tensors' shape.
  plan::AttentionShape check_query_and_key(const AttentionInputs& inputs, const CachedAttentionInputs* cached = nullptr) const {
    check_tensor("query", inputs.query, spec_.dtype, {spec_.mask.is_packed ? 1 : -1, spec_.heads, -1, spec_.head_dim});
    plan::AttentionShape shape = shape_of(spec_);
    shape.batch = inputs.query.shape[0];
    shape.query_length = inputs.query.shape[2];
    if (!cached) check_dtype("AttentionSpec.key_dtype", key_dtype(spec_));  // i8 has scales, which only a cache has
    if (cached) {
      shape.key_length = api::check_cache(spec_, *cached, shape.batch, shape.query_length);
    } else if (!inputs.block_table.empty()) {
      shape.key_length = api::check_block_table(spec_, inputs, shape.batch);
    } else {
      check_tensor("key", inputs.key, key_dtype(spec_), {shape.batch, spec_.kv_heads, -1, spec_.head_dim});
      shape.key_length = inputs.key.shape[2];
    }
    api::check_mask_given(given_mask(cached), mask_inputs(inputs));
    api::check_sequences_given(spec_.mask, sequence_tensors(inputs));
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

  plan::AttentionShape check_shapes(const AttentionInputs& inputs, const CachedAttentionInputs* cached) const {
    const plan::AttentionShape shape = check_query_and_key(inputs, cached);
    if (!cached && inputs.block_table.empty()) {
      check_tensor("value", inputs.value, key_dtype(spec_), {shape.batch, spec_.kv_heads, shape.key_length, spec_.value_dim});
    }
    check_tensor("out", inputs.out, out_dtype(spec_), {shape.batch, spec_.heads, shape.query_length, spec_.value_dim});
    if (!inputs.lse.empty()) check_tensor("lse", inputs.lse, DType::f32, {shape.batch, spec_.heads, shape.query_length});
    return shape;
  }

  // The parts whose tensors the caller gives.
  Mask given_mask(const CachedAttentionInputs* cached) const {
    Mask mask = spec_.mask;
    if (cached) mask.has_key_lengths = false;
    return mask;
  }

  // A run's batch items, or packed sequences, against the spec's maxima. A cache's lengths have been checked with it.
  void check_maxima(const plan::AttentionShape& shape, bool cached) const {
    const bool packed = spec_.mask.is_packed;
    const auto check = [](const char* name, std::int64_t size, std::int64_t most) {
      if (size > most) fail(name, std::to_string(size), "at most the plan's " + std::to_string(most));
    };
    check(packed ? "the number of sequences" : "query's batch", shape.batch, spec_.batch);
    check(packed ? "the longest sequence's number of queries" : "query's length", shape.query_length, spec_.query_length);
    if (!cached) check(packed ? "the longest sequence's number of keys" : "key's length", shape.key_length, spec_.key_length);
  }

  static api::MaskInputs mask_inputs(const AttentionInputs& inputs) {
    return {inputs.key_lengths, inputs.offsets, inputs.boolean_mask, inputs.bias};
  }

  static api::SequenceTensors sequence_tensors(const AttentionInputs& inputs) {
    return {inputs.query_lengths,  inputs.cumulative_query_lengths, inputs.cumulative_key_lengths,
            inputs.prefix_lengths, inputs.query_segments,           inputs.key_segments,
            inputs.block_mask};
  }

  static void check_outputs(const AttentionInputs& inputs) {
    const auto check = [&](const char* output_name, const TensorView& output) {
      check_output(output_name, output);
      check_no_overlap(output_name, output, "query", inputs.query);
      check_no_overlap(output_name, output, "key", inputs.key);
      check_no_overlap(output_name, output, "value", inputs.value);
      api::check_no_overlap(output_name, output, mask_inputs(inputs));
      api::check_no_overlap(output_name, output, sequence_tensors(inputs));
      check_no_overlap(output_name, output, "alibi_slopes", inputs.alibi_slopes);
      check_no_overlap(output_name, output, "sink", inputs.sink);
      check_no_overlap(output_name, output, "relative_bias_table", inputs.relative_bias_table);
      check_no_overlap(output_name, output, "block_table", inputs.block_table);
    };
    check("out", inputs.out);
    if (inputs.lse.empty()) return;
    check("lse", inputs.lse);
    check_no_overlap("lse", inputs.lse, "out", inputs.out);
  }

  AttentionSpec spec_;
  Isa isa_;
  plan::AttentionPlan plan_;
  plan::RelativeSpread relative_;
};

}  // namespace detail

AttentionPlan::AttentionPlan(const AttentionSpec& spec, const Runtime& runtime)
    : state_(api::entry([&] { return std::make_shared<const detail::AttentionPlanState>(spec, runtime); })) {}

void AttentionPlan::run(const AttentionInputs& inputs, const RunOptions& options) const {
  api::entry([&] { state_->run(inputs, options); });
}

void AttentionPlan::run(const CachedAttentionInputs& inputs, const RunOptions& options) const {
  api::entry([&] { state_->run(api::without_cache(inputs), options, &inputs); });
}

std::size_t AttentionPlan::workspace_bytes() const noexcept {
  return state_->plan().workspace_bytes();
}

const AttentionSpec& AttentionPlan::spec() const noexcept {
  return state_->spec();
}

std::string AttentionPlan::explain() const {
  return api::entry([&] { return plan::to_text(state_->plan().explanation()); });
}

std::string AttentionPlan::explain_json() const {
  return api::entry([&] { return plan::to_json(state_->plan().explanation()); });
}

namespace {

// Lengths and batches of one-shot calls are rounded up to at most a quarter more, so that a decoding loop, whose key length
// grows with every call, finds its plan again.
std::int64_t bucket(std::int64_t size) {
  constexpr std::int64_t exact_up_to = 32;
  if (size <= exact_up_to) return size;
  std::int64_t power = exact_up_to;
  while (power * 2 < size) power *= 2;
  const std::int64_t step = power / 4;
  return (size + step - 1) / step * step;
}

// The sizes of packed sequences. Their tensors are checked when the plan runs; what fails here fails there with a better
// message.
void measure_sequences(const AttentionInputs& inputs, AttentionSpec& spec) {
  const auto longest = [](const TensorView& ends) {
    std::int64_t most = 0;
    const bool fits = ends.rank == 1 && ends.data && (ends.dtype == DType::i32 || ends.dtype == DType::i64) &&
                      reinterpret_cast<std::uintptr_t>(ends.data) % static_cast<std::uintptr_t>(size_in_bytes(ends.dtype)) == 0;
    for (std::int64_t i = 1; fits && i < ends.shape[0]; ++i) {
      const auto at = [&](std::int64_t index) {
        return ends.dtype == DType::i32 ? std::int64_t{static_cast<const std::int32_t*>(ends.data)[index * ends.strides[0]]}
                                        : static_cast<const std::int64_t*>(ends.data)[index * ends.strides[0]];
      };
      std::int64_t length = 0;
      if (!__builtin_sub_overflow(at(i), at(i - 1), &length)) most = std::max(most, length);
    }
    return most;
  };
  // No sequence is longer than all of them: a plan for a length that cannot be would ask for memory in vain.
  spec.query_length = bucket(std::min(longest(inputs.cumulative_query_lengths), inputs.query.shape[2]));
  spec.key_length = bucket(std::min(longest(inputs.cumulative_key_lengths), inputs.key.shape[2]));
  const TensorView& ends = inputs.cumulative_query_lengths;
  spec.batch = bucket(ends.rank == 1 ? std::max<std::int64_t>(ends.shape[0] - 1, 0) : 0);
}

constexpr std::uint64_t attention_call = 1;  // the kind of call, first word of its keys in the runtime's cache

void fill_in_options(const AttentionOptions& options, AttentionSpec* spec) {
  spec->scale = options.scale;
  spec->mask = options.mask;
  spec->length_invariant = options.length_invariant;
  spec->softcap = options.softcap;
  spec->has_alibi = options.has_alibi;
  spec->has_sink = options.has_sink;
  spec->precision = options.precision;
  spec->relative_bias = options.relative_bias;
  spec->score_mod = options.score_mod;
  spec->score_mod.context = nullptr;  // handed over with each call, so that calls with contexts of their own share a plan
}

// From the runtime's cache, or made for it.
std::shared_ptr<const detail::AttentionPlanState> find_plan(const Runtime& runtime, const AttentionSpec& spec) {
  detail::CallKey key;
  key.add(attention_call).add(spec.batch).add(spec.heads).add(spec.kv_heads).add(spec.query_length).add(spec.key_length);
  key.add(spec.head_dim)
      .add(spec.value_dim)
      .add(spec.scale.value_or(0.0))
      .add(spec.softcap)
      .add(spec.mask.window_left)
      .add(spec.mask.window_right)
      .add(spec.mask.block_queries)
      .add(spec.mask.block_keys);
  const Mask& mask = spec.mask;
  std::uint64_t flags = static_cast<std::uint64_t>(mask.causality);
  for (const bool flag :
       {mask.has_key_lengths, mask.has_offsets, mask.has_boolean, mask.has_bias, mask.has_query_lengths, mask.is_packed,
        mask.has_prefix, mask.has_segments, spec.length_invariant, spec.scale.has_value(), spec.has_alibi, spec.has_sink}) {
    flags = flags << 1 | static_cast<std::uint64_t>(flag);
  }
  const RelativeBias& relative = spec.relative_bias;
  if (relative.given()) {
    key.add(static_cast<std::uint64_t>(relative.kind) << 1 | static_cast<std::uint64_t>(relative.bidirectional));
    key.add(relative.buckets).add(relative.max_distance).add(relative.height).add(relative.width);
  }
  if (const ScoreMod& mod = spec.score_mod; !mod.empty()) {
    const auto address = [](auto pointer) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer)); };
    key.add(address(mod.functions.baseline)).add(address(mod.functions.sse4)).add(address(mod.functions.avx2));
    key.add(address(mod.functions.avx512)).add(address(mod.classify));
  }
  const std::uint64_t dtypes = static_cast<std::uint64_t>(key_dtype(spec)) << 8 | static_cast<std::uint64_t>(out_dtype(spec));
  key.add(flags << 16 | static_cast<std::uint64_t>(spec.dtype) << 8 | static_cast<std::uint64_t>(spec.precision)).add(dtypes);
  return runtime.state()->call_cache().find_or_make<detail::AttentionPlanState>(
      key, [&] { return std::make_shared<const detail::AttentionPlanState>(spec, runtime); });
}

}  // namespace

void attention(const Runtime& runtime, const AttentionInputs& inputs, const AttentionOptions& options) {
  if (inputs.query.rank != 4 || !is_served(inputs.query.dtype)) {
    fail("query", inputs.query.describe(), served_dtypes() + " [batch, heads, query_length, head_dim]");
  }
  const std::string dtype = name(inputs.query.dtype);  // short enough to need no memory
  if (inputs.key.rank != 4) fail("key", inputs.key.describe(), dtype + " [batch, kv_heads, key_length, head_dim]");
  if (inputs.value.rank != 4) fail("value", inputs.value.describe(), dtype + " [batch, kv_heads, key_length, value_dim]");
  AttentionSpec spec;
  spec.dtype = inputs.query.dtype;
  spec.batch = bucket(inputs.query.shape[0]);
  spec.heads = inputs.query.shape[1];
  spec.kv_heads = inputs.key.shape[1];
  spec.query_length = bucket(inputs.query.shape[2]);
  spec.key_length = bucket(inputs.key.shape[2]);
  spec.head_dim = inputs.query.shape[3];
  spec.value_dim = inputs.value.shape[3];
  // 0 means "as the other" in a spec, but here it is a size that the caller gave.
  check_size("query's heads", spec.heads, 1);
  check_size("key's heads", spec.kv_heads, 1);
  check_size("query's head_dim", spec.head_dim, 1);
  check_size("value's value_dim", spec.value_dim, 1);
  fill_in_options(options, &spec);
  if (spec.mask.is_packed) measure_sequences(inputs, spec);
  if (inputs.block_table.rank == 2) {
    // A product that overflows is refused by the run.
    std::int64_t room = 0;
    constexpr std::int64_t most = std::int64_t{1} << 40;
    if (!__builtin_mul_overflow(inputs.block_table.shape[1], inputs.key.shape[2], &room)) {
      spec.key_length = bucket(std::clamp<std::int64_t>(room, 0, most));
    }
  }
  api::entry([&] { find_plan(runtime, spec)->run(inputs, {}, nullptr, options.score_mod.context); });
}

void attention(const Runtime& runtime, const CachedAttentionInputs& inputs, const AttentionOptions& options) {
  if (inputs.cache == nullptr) fail("cache", "not given", "a KvCache");
  const KvCacheSpec& cache = inputs.cache->spec();
  if (inputs.query.rank != 4 || !is_served(inputs.query.dtype)) {
    fail("query", inputs.query.describe(), served_dtypes() + " [batch, heads, query_length, head_dim]");
  }
  if (inputs.out.rank != 4 || !is_served(inputs.out.dtype)) {
    fail("out", inputs.out.describe(), served_dtypes() + " [batch, heads, query_length, value_dim]");
  }
  AttentionSpec spec;
  spec.dtype = inputs.query.dtype;
  spec.key_dtype = cache.dtype;
  spec.out_dtype = inputs.out.dtype;
  spec.batch = bucket(inputs.query.shape[0]);
  spec.heads = inputs.query.shape[1];
  spec.kv_heads = cache.kv_heads;
  spec.query_length = bucket(inputs.query.shape[2]);
  spec.head_dim = cache.head_dim;
  spec.value_dim = cache.value_dim;
  check_size("query's heads", spec.heads, 1);
  fill_in_options(options, &spec);
  spec.mask.has_key_lengths = true;
  if (cache.kind == CacheKind::ring) {
    spec.key_length = inputs.cache->plan_key_length();
  } else {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < cache.sequences; ++i) longest = std::max(longest, inputs.cache->length(i));
    spec.key_length = bucket(longest);
  }
  api::entry([&] { find_plan(runtime, spec)->run(api::without_cache(inputs), {}, &inputs, options.score_mod.context); });
}

void attention_weights(const Runtime& runtime, const AttentionInputs& inputs, const AttentionOptions& options,
                       const AttentionWeightsRequest& request) {
  if (inputs.query.rank != 4) fail("query", inputs.query.describe(), "f32 [batch, heads, query_length, head_dim]");
  if (inputs.key.rank != 4) fail("key", inputs.key.describe(), "f32 [batch, kv_heads, key_length, head_dim]");
  AttentionSpec spec;
  spec.batch = inputs.query.shape[0];
  spec.heads = inputs.query.shape[1];
  spec.kv_heads = inputs.key.shape[1];
  spec.query_length = inputs.query.shape[2];
  spec.key_length = inputs.key.shape[2];
  spec.head_dim = inputs.query.shape[3];
  check_size("query's heads", spec.heads, 1);
  check_size("key's heads", spec.kv_heads, 1);
  check_size("query's head_dim", spec.head_dim, 1);
  fill_in_options(options, &spec);
  if (spec.mask.is_packed) measure_sequences(inputs, spec);
  api::entry([&] {
    const detail::AttentionPlanState state(spec, runtime);
    state.run_weights(inputs, request, runtime.state()->kernels(), options.score_mod.context);
  });
}

}  // namespace polyhead
