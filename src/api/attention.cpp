#include "polyhead/attention.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "api/attention_plan_state.hpp"
#include "api/attention_spec.hpp"
#include "api/cached_attention.hpp"
#include "api/checks.hpp"
#include "api/entry.hpp"
#include "api/runtime_state.hpp"
#include "polyhead/kv_cache.hpp"

namespace polyhead {

using api::check_size;
using api::fail;
using api::is_served;
using api::served_dtypes;

const char* name(Precision precision) noexcept {
  switch (precision) {
    case Precision::strict:
      return "strict";
    case Precision::fast:
      return "fast";
  }
  return "unknown";
}

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
  return api::entry([&] { return plan::to_text(state_->explanation()); });
}

std::string AttentionPlan::explain_json() const {
  return api::entry([&] { return plan::to_json(state_->explanation()); });
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

// The longest of packed sequences, rounded up as in `bucket`. Their tensors are checked when the plan runs; what fails here
// fails there with a better message.
std::int64_t longest_sequence(const TensorView& ends, std::int64_t total) {
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
  // No sequence is longer than all of them: a plan for a length that cannot be would ask for memory in vain.
  return bucket(std::min(most, total));
}

void measure_queries(const TensorView& query, const TensorView& ends, AttentionSpec& spec) {
  spec.query_length = longest_sequence(ends, query.shape[2]);
  spec.batch = bucket(ends.rank == 1 ? std::max<std::int64_t>(ends.shape[0] - 1, 0) : 0);
}

void measure_sequences(const AttentionInputs& inputs, AttentionSpec& spec) {
  measure_queries(inputs.query, inputs.cumulative_query_lengths, spec);
  spec.key_length = longest_sequence(inputs.cumulative_key_lengths, inputs.key.shape[2]);
}

// Keys that the pages of a block table's row have room for. A product that overflows is refused by the run.
std::int64_t room_of_pages(const AttentionInputs& inputs) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  std::int64_t room = 0;
  if (__builtin_mul_overflow(inputs.block_table.shape[1], inputs.key.shape[2], &room)) return inputs.key.shape[2];
  return std::clamp<std::int64_t>(room, 0, most);
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
      .add(spec.mask.window_kept)
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
  const std::uint64_t dtypes =
      static_cast<std::uint64_t>(api::key_dtype(spec)) << 8 | static_cast<std::uint64_t>(api::out_dtype(spec));
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
  if (inputs.block_table.rank == 2) spec.key_length = bucket(room_of_pages(inputs));
  api::entry([&] { find_plan(runtime, spec)->run(inputs, {}, nullptr, options.score_mod.context); });
}

namespace {

// What a call over a cache asks of a plan, but for out.
AttentionSpec spec_over_cache(const CachedAttentionInputs& inputs, const AttentionOptions& options) {
  if (inputs.cache == nullptr) fail("cache", "not given", "a KvCache");
  const KvCacheSpec& cache = inputs.cache->spec();
  if (inputs.query.rank != 4 || !is_served(inputs.query.dtype)) {
    fail("query", inputs.query.describe(), served_dtypes() + " [batch, heads, query_length, head_dim]");
  }
  AttentionSpec spec;
  spec.dtype = inputs.query.dtype;
  spec.key_dtype = cache.dtype;
  spec.batch = bucket(inputs.query.shape[0]);
  spec.heads = inputs.query.shape[1];
  spec.kv_heads = cache.kv_heads;
  spec.query_length = bucket(inputs.query.shape[2]);
  spec.head_dim = cache.head_dim;
  spec.value_dim = cache.value_dim;
  check_size("query's heads", spec.heads, 1);
  fill_in_options(options, &spec);
  if (spec.mask.is_packed) measure_queries(inputs.query, inputs.cumulative_query_lengths, spec);
  spec.mask.has_key_lengths = true;
  if (cache.kind == CacheKind::ring) {
    spec.key_length = inputs.cache->plan_key_length();
  } else {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < cache.sequences; ++i) longest = std::max(longest, inputs.cache->length(i));
    spec.key_length = bucket(longest);
  }
  return spec;
}

}  // namespace

void attention(const Runtime& runtime, const CachedAttentionInputs& inputs, const AttentionOptions& options) {
  AttentionSpec spec = spec_over_cache(inputs, options);
  if (inputs.out.rank != 4 || !is_served(inputs.out.dtype)) {
    fail("out", inputs.out.describe(), served_dtypes() + " [batch, heads, query_length, value_dim]");
  }
  spec.out_dtype = inputs.out.dtype;
  api::entry([&] { find_plan(runtime, spec)->run(api::without_cache(inputs), {}, &inputs, options.score_mod.context); });
}

void attention_weights(const Runtime& runtime, const AttentionInputs& inputs, const AttentionOptions& options,
                       const AttentionWeightsRequest& request) {
  if (inputs.query.rank != 4 || !is_served(inputs.query.dtype)) {
    fail("query", inputs.query.describe(), served_dtypes() + " [batch, heads, query_length, head_dim]");
  }
  if (inputs.key.rank != 4 || !is_served(inputs.key.dtype)) {
    fail("key", inputs.key.describe(), served_dtypes() + " [batch, kv_heads, key_length, head_dim]");
  }
  AttentionSpec spec;
  spec.dtype = inputs.query.dtype;
  spec.key_dtype = inputs.key.dtype;
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
  if (inputs.block_table.rank == 2) spec.key_length = room_of_pages(inputs);
  api::entry([&] {
    const detail::AttentionPlanState state(spec, runtime, detail::PlanUse::weights);
    state.run_weights(inputs, request, runtime.state()->kernels(), nullptr, options.score_mod.context);
  });
}

void attention_weights(const Runtime& runtime, const CachedAttentionInputs& inputs, const AttentionOptions& options,
                       const AttentionWeightsRequest& request) {
  const AttentionSpec spec = spec_over_cache(inputs, options);
  api::entry([&] {
    const detail::AttentionPlanState state(spec, runtime, detail::PlanUse::weights);
    state.run_weights(api::without_cache(inputs), request, runtime.state()->kernels(), &inputs, options.score_mod.context);
  });
}

}  // namespace polyhead
