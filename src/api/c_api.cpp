// The C border: turns C structures into the C++ ones, exceptions into a status and a message. Nothing else is decided here.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "api/c_score_mod.hpp"
#include "dispatch/select_isa.hpp"
#include "polyhead/polyhead.h"
#include "polyhead/polyhead.hpp"

struct polyhead_runtime {
  polyhead::Runtime value;
};
struct polyhead_cancellation {
  std::atomic<bool> requested{false};
};
struct polyhead_attention_plan {
  polyhead::AttentionPlan value;
  std::unique_ptr<polyhead::api::CScoreMod> score_mod{};  // what value's spec points to
};
struct polyhead_kv_cache {
  polyhead::KvCache value;
};
struct polyhead_multi_head_attention {
  polyhead::MultiHeadAttention value;
};
struct polyhead_bert_encoder {
  polyhead::BertEncoder value;
};

namespace {

using polyhead::Error;
using polyhead::ErrorCode;
using polyhead::TensorView;
using polyhead::api::CScoreMod;

static_assert(POLYHEAD_MAX_RANK == TensorView::max_rank);
static_assert(sizeof(polyhead_tensor) == 8 + 2 * sizeof(std::int32_t) + 2 * POLYHEAD_MAX_RANK * sizeof(std::int64_t));
static_assert(POLYHEAD_BOOL == static_cast<int>(polyhead::DType::boolean));
static_assert(POLYHEAD_INTERNAL == static_cast<int>(ErrorCode::internal));
static_assert(POLYHEAD_CAUSAL_OFFSET == static_cast<int>(polyhead::Causal::offset));
static_assert(POLYHEAD_FAST == static_cast<int>(polyhead::Precision::fast));
static_assert(POLYHEAD_WEIGHTS_INT8_DYNAMIC == static_cast<int>(polyhead::WeightType::int8_dynamic));
static_assert(POLYHEAD_WEIGHTS_BF16_DYNAMIC == static_cast<int>(polyhead::WeightType::bf16_dynamic));
static_assert(POLYHEAD_CACHE_PAGED == static_cast<int>(polyhead::CacheKind::paged));
static_assert(POLYHEAD_ROTARY_HALF_SPLIT == static_cast<int>(polyhead::Rotary::half_split));
static_assert(POLYHEAD_LOG_WARNING == static_cast<int>(polyhead::LogLevel::warning));

// A fixed buffer, so that reporting an error (out of memory among them) allocates nothing and cannot fail.
thread_local char last_message[1024] = "";

polyhead_status report(ErrorCode code, const char* message) noexcept {
  const std::size_t length = std::min(std::strlen(message), sizeof(last_message) - 1);
  std::memcpy(last_message, message, length);
  last_message[length] = '\0';
  return static_cast<polyhead_status>(code);
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// Runs a function's body; what it throws becomes a status and the thread's message.
template <class Body>
polyhead_status guarded(Body&& body) noexcept {
  try {
    body();
    return POLYHEAD_OK;
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ErrorCode::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return report(ErrorCode::internal, error.what());
  } catch (...) {
    return report(ErrorCode::internal, "an exception that is no std::exception");
  }
}

template <class Pointer>
Pointer required(Pointer pointer, const char* name) {
  if (pointer == nullptr) refuse(std::string(name) + " is NULL");
  return pointer;
}

// Copies a caller's structure by the rules of struct_size. What this library knows of it is returned, the rest of the
// caller's must be zero. A size beyond any structure of ours is an uninitialised struct_size, not a newer caller's.
template <class Struct>
Struct read_struct(const Struct* given, const char* name) {
  constexpr std::size_t largest = 4096;
  static_assert(sizeof(Struct) < largest);
  std::size_t size = 0;
  std::memcpy(&size, required(given, name), sizeof(size));
  if (size < sizeof(size) || size > largest || size % alignof(Struct) != 0) {
    refuse(std::string(name) + ".struct_size is " + std::to_string(size) + ", expected sizeof the structure (" +
           std::to_string(sizeof(Struct)) + " in this version): initialise it with POLYHEAD_INIT");
  }
  Struct known{};
  std::memcpy(&known, given, std::min(size, sizeof(Struct)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(Struct) &&
      std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    refuse(std::string(name) + ".struct_size is " + std::to_string(size) + ": a field beyond this version's " +
           std::to_string(sizeof(Struct)) + " bytes is set, and this library does not know it");
  }
  return known;
}

// The same for a structure that may be left out: NULL stands for all defaults.
template <class Struct>
Struct read_optional_struct(const Struct* given, const char* name) {
  return given == nullptr ? Struct{} : read_struct(given, name);
}

polyhead::DType to_dtype(polyhead_dtype dtype, const char* name, const char* field = "dtype") {
  if (dtype < POLYHEAD_F32 || dtype > POLYHEAD_BOOL) {
    refuse(std::string(name) + "." + field + " is " + std::to_string(dtype) + ", expected a polyhead_dtype (0 .. 8)");
  }
  return static_cast<polyhead::DType>(dtype);
}

TensorView to_view(const polyhead_tensor* tensor, const char* name) {
  if (tensor == nullptr) return {};
  const polyhead::DType dtype = to_dtype(tensor->dtype, name);
  if (tensor->rank < 0 || tensor->rank > POLYHEAD_MAX_RANK) {
    refuse(std::string(name) + ".rank is " + std::to_string(tensor->rank) + ", expected 0 .. 8");
  }
  try {
    return TensorView(tensor->data, dtype, tensor->rank, tensor->shape, tensor->strides);
  } catch (const Error& error) {
    throw Error(error.code(), std::string(name) + ": " + error.what());
  }
}

TensorView to_required_view(const polyhead_tensor* tensor, const char* name) {
  return to_view(required(tensor, name), name);
}

// mask is what a field of another structure points to: NULL for none.
polyhead::Mask to_mask(const polyhead_mask* given) {
  const polyhead_mask mask = read_optional_struct(given, "mask");
  if (mask.causal < POLYHEAD_CAUSAL_NONE || mask.causal > POLYHEAD_CAUSAL_OFFSET) {
    refuse("mask.causal is " + std::to_string(mask.causal) + ", expected a polyhead_causal (0 .. 3)");
  }
  polyhead::Mask result;
  if (mask.causal != POLYHEAD_CAUSAL_NONE) result = polyhead::Mask::causal(static_cast<polyhead::Causal>(mask.causal));
  if (mask.has_window != 0) result = result & polyhead::Mask::window(mask.window_left, mask.window_right, mask.window_kept);
  if (mask.has_key_lengths != 0) result = result & polyhead::Mask::key_lengths();
  if (mask.has_offsets != 0) result = result & polyhead::Mask::offsets();
  if (mask.has_boolean != 0) result = result & polyhead::Mask::boolean();
  if (mask.has_bias != 0) result = result & polyhead::Mask::bias();
  if (mask.has_query_lengths != 0) result = result & polyhead::Mask::query_lengths();
  if (mask.is_packed != 0) result = result & polyhead::Mask::packed();
  if (mask.has_prefix != 0) result = result & polyhead::Mask::prefix();
  if (mask.has_segments != 0) result = result & polyhead::Mask::segments();
  if (mask.block_queries != 0 || mask.block_keys != 0) {
    result = result & polyhead::Mask::blocks(mask.block_queries, mask.block_keys);
  }
  return result;
}

std::optional<double> to_scale(std::int32_t has_scale, double scale) {
  return has_scale != 0 ? std::optional<double>(scale) : std::nullopt;
}

polyhead::WeightType to_weight_type(polyhead_weight_type weights, const char* name) {
  if (weights < POLYHEAD_WEIGHTS_F32 || weights > POLYHEAD_WEIGHTS_BF16_DYNAMIC) {
    refuse(std::string(name) + ".weights is " + std::to_string(weights) + ", expected a polyhead_weight_type (0 .. 6)");
  }
  return static_cast<polyhead::WeightType>(weights);
}

polyhead::Precision to_precision(polyhead_precision precision, const char* name) {
  if (precision < POLYHEAD_STRICT || precision > POLYHEAD_FAST) {
    refuse(std::string(name) + ".precision is " + std::to_string(precision) + ", expected a polyhead_precision (0 .. 1)");
  }
  return static_cast<polyhead::Precision>(precision);
}

polyhead::RelativeBias to_relative_bias(const polyhead_relative_bias* given) {
  const polyhead_relative_bias bias = read_optional_struct(given, "relative_bias");
  switch (bias.kind) {
    case POLYHEAD_RELATIVE_NONE:
      return {};
    case POLYHEAD_RELATIVE_T5:
      return polyhead::RelativeBias::t5(bias.buckets, bias.max_distance, bias.bidirectional != 0);
    case POLYHEAD_RELATIVE_SWIN:
      return polyhead::RelativeBias::swin(bias.height, bias.width);
  }
  refuse("relative_bias.kind is " + std::to_string(bias.kind) + ", expected a polyhead_relative_bias_kind (0 .. 2)");
}

polyhead::Isa to_isa(const char* wanted) {
  for (const polyhead::Isa isa : polyhead::dispatch::all_isas()) {
    if (std::strcmp(wanted, polyhead::name(isa)) == 0) return isa;
  }
  refuse("options.isa is \"" + std::string(wanted) + "\", expected one of " +
         polyhead::dispatch::names_of(polyhead::dispatch::all_isas()));
}

polyhead::RuntimeOptions to_runtime_options(const polyhead_runtime_options* given) {
  const polyhead_runtime_options options = read_optional_struct(given, "options");
  polyhead::RuntimeOptions result;
  result.threads = options.threads;
  result.use_calling_arena = options.use_calling_arena != 0;
  constexpr std::size_t most_cpus = 1 << 20;  // beyond any machine: an uninitialised count, not a set
  if ((options.cpu_set == nullptr) != (options.cpu_set_count == 0) || options.cpu_set_count > most_cpus) {
    refuse("options.cpu_set_count is " + std::to_string(options.cpu_set_count) + " and cpu_set is " +
           (options.cpu_set == nullptr ? "NULL" : "given") + ", expected both or neither");
  }
  result.cpu_set.assign(options.cpu_set, options.cpu_set + options.cpu_set_count);
  if (options.executor != nullptr) {
    const polyhead_executor executor = read_struct(options.executor, "options.executor");
    result.executor =
        polyhead::Executor{executor.context, executor.parallel_for, executor.concurrency == 0 ? 1 : executor.concurrency};
  }
  if (options.isa != nullptr) result.isa = to_isa(options.isa);
  if (options.log != nullptr) {
    result.log = [log = options.log, context = options.log_context](polyhead::LogLevel level, const char* message) {
      log(context, static_cast<polyhead_log_level>(level), message);
    };
  }
  return result;
}

polyhead::RunOptions to_run_options(const polyhead_run_options* given) {
  const polyhead_run_options options = read_optional_struct(given, "options");
  polyhead::RunOptions result;
  result.workspace = options.workspace;
  result.workspace_bytes = options.workspace_bytes;
  if (options.cancellation != nullptr) result.cancel = &options.cancellation->requested;
  return result;
}

// weights_only: value and out may be left out.
polyhead::AttentionInputs to_attention_inputs(const polyhead_attention_inputs* given, bool weights_only = false) {
  const polyhead_attention_inputs inputs = read_struct(given, "inputs");
  polyhead::AttentionInputs result;
  result.query = to_required_view(inputs.query, "query");
  result.key = to_required_view(inputs.key, "key");
  if (!weights_only) {
    result.value = to_required_view(inputs.value, "value");
    result.out = to_required_view(inputs.out, "out");
    result.lse = to_view(inputs.lse, "lse");
  }
  result.key_lengths = to_view(inputs.key_lengths, "key_lengths");
  result.offsets = to_view(inputs.offsets, "offsets");
  result.boolean_mask = to_view(inputs.boolean_mask, "boolean_mask");
  result.bias = to_view(inputs.bias, "bias");
  result.alibi_slopes = to_view(inputs.alibi_slopes, "alibi_slopes");
  result.sink = to_view(inputs.sink, "sink");
  result.query_lengths = to_view(inputs.query_lengths, "query_lengths");
  result.cumulative_query_lengths = to_view(inputs.cumulative_query_lengths, "cumulative_query_lengths");
  result.cumulative_key_lengths = to_view(inputs.cumulative_key_lengths, "cumulative_key_lengths");
  result.prefix_lengths = to_view(inputs.prefix_lengths, "prefix_lengths");
  result.query_segments = to_view(inputs.query_segments, "query_segments");
  result.key_segments = to_view(inputs.key_segments, "key_segments");
  result.block_mask = to_view(inputs.block_mask, "block_mask");
  result.relative_bias_table = to_view(inputs.relative_bias_table, "relative_bias_table");
  result.block_table = to_view(inputs.block_table, "block_table");
  result.score_mod_context = inputs.score_mod_context;
  return result;
}

// What is to be pointed to while the result is in use.
polyhead::ScoreMod to_score_mod(const polyhead_score_mod* given, CScoreMod* storage) {
  if (given == nullptr) return {};
  const polyhead_score_mod mod = read_struct(given, "score_mod");
  if (mod.function == nullptr) refuse("score_mod.function is NULL");
  *storage = CScoreMod(mod);
  return storage->view();
}

// The context of a run: a score modification, the plan's or, with a context of the run's own, a copy of it.
void* to_score_mod_context(const polyhead_attention_plan& plan, void* context, CScoreMod* storage) {
  if (plan.score_mod == nullptr) return context;
  if (context == nullptr) return plan.score_mod.get();
  *storage = *plan.score_mod;
  storage->set_context(context);
  return storage;
}

// `score_mod` holds what the result's points to.
polyhead::AttentionOptions to_attention_options(const polyhead_attention_options* given, CScoreMod* score_mod) {
  const polyhead_attention_options options = read_optional_struct(given, "options");
  polyhead::AttentionOptions result;
  result.scale = to_scale(options.has_scale, options.scale);
  result.mask = to_mask(options.mask);
  result.length_invariant = options.length_invariant != 0;
  result.softcap = options.softcap;
  result.has_alibi = options.has_alibi != 0;
  result.has_sink = options.has_sink != 0;
  result.precision = to_precision(options.precision, "options");
  result.relative_bias = to_relative_bias(options.relative_bias);
  result.score_mod = to_score_mod(options.score_mod, score_mod);
  return result;
}

// A one-shot call's context may stand in its inputs, too.
template <class Inputs>
void take_context(const polyhead::AttentionOptions& options, CScoreMod* score_mod, Inputs* inputs) {
  if (inputs->score_mod_context == nullptr || options.score_mod.empty()) return;
  score_mod->set_context(inputs->score_mod_context);
  inputs->score_mod_context = nullptr;
}

polyhead::KvCacheSpec to_kv_cache_spec(const polyhead_kv_cache_spec* given) {
  const polyhead_kv_cache_spec spec = read_struct(given, "spec");
  if (spec.kind < POLYHEAD_CACHE_CONTIGUOUS || spec.kind > POLYHEAD_CACHE_PAGED) {
    refuse("spec.kind is " + std::to_string(spec.kind) + ", expected a polyhead_cache_kind (0 .. 2)");
  }
  if (spec.rotary < POLYHEAD_ROTARY_NONE || spec.rotary > POLYHEAD_ROTARY_HALF_SPLIT) {
    refuse("spec.rotary is " + std::to_string(spec.rotary) + ", expected a polyhead_rotary (0 .. 2)");
  }
  constexpr std::size_t most_frequencies = 1 << 20;  // beyond any head: an uninitialised count
  if ((spec.frequencies == nullptr) != (spec.frequency_count == 0) || spec.frequency_count > most_frequencies) {
    refuse("spec.frequency_count is " + std::to_string(spec.frequency_count) + " and frequencies is " +
           (spec.frequencies == nullptr ? "NULL" : "given") + ", expected both or neither");
  }
  polyhead::KvCacheSpec result;
  result.kind = static_cast<polyhead::CacheKind>(spec.kind);
  result.dtype = to_dtype(spec.dtype, "spec");
  result.sequences = spec.sequences;
  result.kv_heads = spec.kv_heads;
  result.head_dim = spec.head_dim;
  result.value_dim = spec.value_dim;
  result.capacity = spec.capacity;
  result.window = spec.window;
  result.page_tokens = spec.page_tokens;
  result.max_pages = spec.max_pages;
  result.rotary.style = static_cast<polyhead::Rotary>(spec.rotary);
  result.rotary.dims = spec.rotary_dims;
  if (spec.rotary_base != 0.0) result.rotary.base = spec.rotary_base;
  result.rotary.frequencies.assign(spec.frequencies, spec.frequencies + spec.frequency_count);
  return result;
}

// weights_only: out may be left out.
polyhead::CachedAttentionInputs to_cached_attention_inputs(const polyhead_cached_attention_inputs* given,
                                                           bool weights_only = false) {
  const polyhead_cached_attention_inputs inputs = read_struct(given, "inputs");
  polyhead::CachedAttentionInputs result;
  result.cache = &required(inputs.cache, "cache")->value;
  result.query = to_required_view(inputs.query, "query");
  if (!weights_only) {
    result.out = to_required_view(inputs.out, "out");
    result.lse = to_view(inputs.lse, "lse");
  }
  result.sequences = to_view(inputs.sequences, "sequences");
  result.offsets = to_view(inputs.offsets, "offsets");
  result.boolean_mask = to_view(inputs.boolean_mask, "boolean_mask");
  result.bias = to_view(inputs.bias, "bias");
  result.alibi_slopes = to_view(inputs.alibi_slopes, "alibi_slopes");
  result.sink = to_view(inputs.sink, "sink");
  result.relative_bias_table = to_view(inputs.relative_bias_table, "relative_bias_table");
  result.score_mod_context = inputs.score_mod_context;
  result.query_lengths = to_view(inputs.query_lengths, "query_lengths");
  result.cumulative_query_lengths = to_view(inputs.cumulative_query_lengths, "cumulative_query_lengths");
  result.prefix_lengths = to_view(inputs.prefix_lengths, "prefix_lengths");
  result.block_mask = to_view(inputs.block_mask, "block_mask");
  return result;
}

polyhead::AttentionWeightsRequest to_weights_request(const polyhead_attention_weights_request* given) {
  const polyhead_attention_weights_request request = read_struct(given, "request");
  polyhead::AttentionWeightsRequest result;
  result.heads = to_view(request.heads, "heads");
  result.rows = to_view(request.rows, "rows");
  result.weights = to_view(request.weights, "weights");
  result.received = to_view(request.received, "received");
  return result;
}

void write_text(const std::string& text, char* buffer, std::size_t capacity, std::size_t* length) {
  if (buffer != nullptr && capacity > 0) {
    const std::size_t copied = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = '\0';
  }
  if (length != nullptr) *length = text.size();
}

// Stores a new handle in *result, which stays untouched when making it throws.
template <class Handle, class Value>
void hand_out(Handle** result, Value&& value) {
  *result = new Handle{std::forward<Value>(value)};
}

}  // namespace

extern "C" {

const char* polyhead_status_name(polyhead_status status) {
  switch (status) {
    case POLYHEAD_OK:
      return "ok";
    case POLYHEAD_INVALID_ARGUMENT:
      return "invalid argument";
    case POLYHEAD_UNSUPPORTED:
      return "unsupported";
    case POLYHEAD_OUT_OF_MEMORY:
      return "out of memory";
    case POLYHEAD_CANCELLED:
      return "cancelled";
    case POLYHEAD_IO_ERROR:
      return "io error";
    case POLYHEAD_INTERNAL:
      return "internal error";
    default:
      return "unknown status";
  }
}

const char* polyhead_last_message(void) {
  return last_message;
}

const char* polyhead_version(void) {
  return POLYHEAD_VERSION_STRING;
}

polyhead_status polyhead_tensor_init(polyhead_tensor* tensor, const void* data, polyhead_dtype dtype, int32_t rank,
                                     const int64_t* shape, const int64_t* strides) {
  return guarded([&] {
    required(tensor, "tensor");
    const polyhead::DType checked_dtype = to_dtype(dtype, "tensor");
    if (rank > 0) required(shape, "shape");
    const TensorView view(data, checked_dtype, rank, shape, strides);
    *tensor = polyhead_tensor{view.data, dtype, rank, {}, {}};
    std::copy(view.shape.begin(), view.shape.end(), tensor->shape);
    std::copy(view.strides.begin(), view.strides.end(), tensor->strides);
  });
}

// ---- runtime

polyhead_status polyhead_runtime_create(const polyhead_runtime_options* options, polyhead_runtime** runtime) {
  return guarded([&] {
    required(runtime, "runtime");
    hand_out(runtime, polyhead::Runtime(to_runtime_options(options)));
  });
}

void polyhead_runtime_destroy(polyhead_runtime* runtime) {
  delete runtime;
}

polyhead_status polyhead_runtime_threads(const polyhead_runtime* runtime, int32_t* threads) {
  return guarded([&] { *required(threads, "threads") = required(runtime, "runtime")->value.threads(); });
}

polyhead_status polyhead_runtime_isa(const polyhead_runtime* runtime, const char** isa) {
  return guarded([&] { *required(isa, "isa") = polyhead::name(required(runtime, "runtime")->value.isa()); });
}

polyhead_status polyhead_runtime_describe(const polyhead_runtime* runtime, char* buffer, size_t capacity, size_t* length) {
  return guarded([&] { write_text(required(runtime, "runtime")->value.describe(), buffer, capacity, length); });
}

polyhead_status polyhead_available_isas(char* buffer, size_t capacity, size_t* length) {
  return guarded([&] {
    std::string names;
    for (polyhead::Isa isa : polyhead::available_isas()) names += std::string(names.empty() ? "" : " ") + polyhead::name(isa);
    write_text(names, buffer, capacity, length);
  });
}

polyhead_status polyhead_shutdown(int32_t* ended) {
  return guarded([&] {
    const bool all_ended = polyhead::shutdown();
    if (ended != nullptr) *ended = all_ended ? 1 : 0;
  });
}

polyhead_status polyhead_cancellation_create(polyhead_cancellation** cancellation) {
  return guarded([&] {
    required(cancellation, "cancellation");  // before there is something to lose
    *cancellation = new polyhead_cancellation;
  });
}

void polyhead_cancellation_destroy(polyhead_cancellation* cancellation) {
  delete cancellation;
}

polyhead_status polyhead_cancellation_request(polyhead_cancellation* cancellation) {
  return guarded([&] { required(cancellation, "cancellation")->requested = true; });
}

polyhead_status polyhead_cancellation_reset(polyhead_cancellation* cancellation) {
  return guarded([&] { required(cancellation, "cancellation")->requested = false; });
}

// ---- attention

polyhead_status polyhead_attention_plan_create(const polyhead_runtime* runtime, const polyhead_attention_spec* given,
                                               polyhead_attention_plan** plan) {
  return guarded([&] {
    required(plan, "plan");
    required(runtime, "runtime");
    const polyhead_attention_spec spec = read_struct(given, "spec");
    polyhead::AttentionSpec result;
    result.batch = spec.batch;
    result.heads = spec.heads;
    result.kv_heads = spec.kv_heads;
    result.query_length = spec.query_length;
    result.key_length = spec.key_length;
    result.head_dim = spec.head_dim;
    result.value_dim = spec.value_dim;
    result.dtype = to_dtype(spec.dtype, "spec");
    result.scale = to_scale(spec.has_scale, spec.scale);
    result.mask = to_mask(spec.mask);
    result.length_invariant = spec.length_invariant != 0;
    result.softcap = spec.softcap;
    result.has_alibi = spec.has_alibi != 0;
    result.has_sink = spec.has_sink != 0;
    result.precision = to_precision(spec.precision, "spec");
    result.relative_bias = to_relative_bias(spec.relative_bias);
    auto score_mod = std::make_unique<CScoreMod>();
    result.score_mod = to_score_mod(spec.score_mod, score_mod.get());
    // Known by the plan as what it is: one that may come with a run. Runs name the score modification themselves.
    if (!score_mod->has_context()) result.score_mod.context = nullptr;
    if (spec.has_key_dtype != 0) result.key_dtype = to_dtype(spec.key_dtype, "spec", "key_dtype");
    if (spec.has_out_dtype != 0) result.out_dtype = to_dtype(spec.out_dtype, "spec", "out_dtype");
    hand_out(plan, polyhead::AttentionPlan(result, runtime->value));
    if (spec.score_mod != nullptr) (*plan)->score_mod = std::move(score_mod);
  });
}

void polyhead_attention_plan_destroy(polyhead_attention_plan* plan) {
  delete plan;
}

polyhead_status polyhead_attention_plan_run(const polyhead_attention_plan* plan, const polyhead_attention_inputs* inputs,
                                            const polyhead_run_options* options) {
  return guarded([&] {
    required(plan, "plan");
    polyhead::AttentionInputs given = to_attention_inputs(inputs);
    CScoreMod score_mod;
    given.score_mod_context = to_score_mod_context(*plan, given.score_mod_context, &score_mod);
    plan->value.run(given, to_run_options(options));
  });
}

polyhead_status polyhead_attention_plan_workspace_bytes(const polyhead_attention_plan* plan, size_t* bytes) {
  return guarded([&] { *required(bytes, "bytes") = required(plan, "plan")->value.workspace_bytes(); });
}

polyhead_status polyhead_attention_plan_explain(const polyhead_attention_plan* plan, char* buffer, size_t capacity,
                                                size_t* length) {
  return guarded([&] { write_text(required(plan, "plan")->value.explain(), buffer, capacity, length); });
}

polyhead_status polyhead_attention_plan_explain_json(const polyhead_attention_plan* plan, char* buffer, size_t capacity,
                                                     size_t* length) {
  return guarded([&] { write_text(required(plan, "plan")->value.explain_json(), buffer, capacity, length); });
}

polyhead_status polyhead_attention(const polyhead_runtime* runtime, const polyhead_attention_inputs* inputs,
                                   const polyhead_attention_options* given) {
  return guarded([&] {
    required(runtime, "runtime");
    CScoreMod score_mod;
    const polyhead::AttentionOptions options = to_attention_options(given, &score_mod);
    polyhead::AttentionInputs views = to_attention_inputs(inputs);
    take_context(options, &score_mod, &views);
    polyhead::attention(runtime->value, views, options);
  });
}

polyhead_status polyhead_attention_weights(const polyhead_runtime* runtime, const polyhead_attention_inputs* inputs,
                                           const polyhead_attention_options* options,
                                           const polyhead_attention_weights_request* request) {
  return guarded([&] {
    required(runtime, "runtime");
    const polyhead::AttentionWeightsRequest views = to_weights_request(request);
    CScoreMod score_mod;
    const polyhead::AttentionOptions given_options = to_attention_options(options, &score_mod);
    polyhead::AttentionInputs given_inputs = to_attention_inputs(inputs, true);
    take_context(given_options, &score_mod, &given_inputs);
    polyhead::attention_weights(runtime->value, given_inputs, given_options, views);
  });
}

polyhead_status polyhead_cached_attention_weights(const polyhead_runtime* runtime,
                                                  const polyhead_cached_attention_inputs* inputs,
                                                  const polyhead_attention_options* options,
                                                  const polyhead_attention_weights_request* request) {
  return guarded([&] {
    required(runtime, "runtime");
    const polyhead::AttentionWeightsRequest views = to_weights_request(request);
    CScoreMod score_mod;
    const polyhead::AttentionOptions given =
        options == nullptr ? polyhead::cached_attention_options() : to_attention_options(options, &score_mod);
    polyhead::CachedAttentionInputs given_inputs = to_cached_attention_inputs(inputs, true);
    take_context(given, &score_mod, &given_inputs);
    polyhead::attention_weights(runtime->value, given_inputs, given, views);
  });
}

// ---- caches

polyhead_status polyhead_kv_cache_create(const polyhead_kv_cache_spec* spec, polyhead_kv_cache** cache) {
  return guarded([&] {
    required(cache, "cache");
    hand_out(cache, polyhead::KvCache(to_kv_cache_spec(spec)));
  });
}

void polyhead_kv_cache_destroy(polyhead_kv_cache* cache) {
  delete cache;
}

polyhead_status polyhead_kv_cache_append(polyhead_kv_cache* cache, const polyhead_kv_cache_tokens* given) {
  return guarded([&] {
    required(cache, "cache");
    const polyhead_kv_cache_tokens tokens = read_struct(given, "tokens");
    polyhead::CacheAppend views;
    views.key = to_required_view(tokens.key, "key");
    views.value = to_required_view(tokens.value, "value");
    views.sequences = to_view(tokens.sequences, "sequences");
    views.lengths = to_view(tokens.lengths, "lengths");
    views.positions = to_view(tokens.positions, "positions");
    cache->value.append(views);
  });
}

polyhead_status polyhead_kv_cache_trim(polyhead_kv_cache* cache, int64_t sequence, int64_t length) {
  return guarded([&] { required(cache, "cache")->value.trim(sequence, length); });
}

polyhead_status polyhead_kv_cache_fork(polyhead_kv_cache* cache, int64_t from, int64_t to, int64_t length) {
  return guarded([&] { required(cache, "cache")->value.fork(from, to, length); });
}

polyhead_status polyhead_kv_cache_rotate_queries(const polyhead_kv_cache* cache, const polyhead_tensor* query,
                                                 const polyhead_tensor* out, const polyhead_tensor* sequences,
                                                 const polyhead_tensor* positions) {
  return guarded([&] {
    required(cache, "cache")
        ->value.rotate_queries(to_required_view(query, "query"), to_required_view(out, "out"), to_view(sequences, "sequences"),
                               to_view(positions, "positions"));
  });
}

polyhead_status polyhead_kv_cache_length(const polyhead_kv_cache* cache, int64_t sequence, int64_t* length) {
  return guarded([&] { *required(length, "length") = required(cache, "cache")->value.length(sequence); });
}

polyhead_status polyhead_kv_cache_first_token(const polyhead_kv_cache* cache, int64_t sequence, int64_t* first_token) {
  return guarded([&] { *required(first_token, "first_token") = required(cache, "cache")->value.first_token(sequence); });
}

polyhead_status polyhead_kv_cache_read(const polyhead_kv_cache* cache, int64_t sequence, int64_t first,
                                       const polyhead_tensor* key, const polyhead_tensor* value) {
  return guarded([&] { required(cache, "cache")->value.read(sequence, first, to_view(key, "key"), to_view(value, "value")); });
}

polyhead_status polyhead_kv_cache_plan_key_length(const polyhead_kv_cache* cache, int64_t* key_length) {
  return guarded([&] { *required(key_length, "key_length") = required(cache, "cache")->value.plan_key_length(); });
}

polyhead_status polyhead_kv_cache_pages(const polyhead_kv_cache* cache, int64_t* in_use, int64_t* allocated) {
  return guarded([&] {
    const polyhead::KvCache& value = required(cache, "cache")->value;
    if (in_use != nullptr) *in_use = value.pages_in_use();
    if (allocated != nullptr) *allocated = value.pages_allocated();
  });
}

polyhead_status polyhead_kv_cache_reserve_pages(polyhead_kv_cache* cache, int64_t pages) {
  return guarded([&] { required(cache, "cache")->value.reserve_pages(pages); });
}

polyhead_status polyhead_kv_cache_memory_bytes(const polyhead_kv_cache* cache, size_t* bytes) {
  return guarded([&] { *required(bytes, "bytes") = required(cache, "cache")->value.memory_bytes(); });
}

polyhead_status polyhead_kv_cache_save(const polyhead_kv_cache* cache, const char* path) {
  return guarded([&] { required(cache, "cache")->value.save(required(path, "path")); });
}

polyhead_status polyhead_kv_cache_load(const char* path, polyhead_kv_cache** cache) {
  return guarded([&] {
    required(cache, "cache");
    hand_out(cache, polyhead::KvCache::load(required(path, "path")));
  });
}

polyhead_status polyhead_attention_plan_run_cached(const polyhead_attention_plan* plan,
                                                   const polyhead_cached_attention_inputs* inputs,
                                                   const polyhead_run_options* options) {
  return guarded([&] {
    required(plan, "plan");
    polyhead::CachedAttentionInputs given = to_cached_attention_inputs(inputs);
    CScoreMod score_mod;
    given.score_mod_context = to_score_mod_context(*plan, given.score_mod_context, &score_mod);
    plan->value.run(given, to_run_options(options));
  });
}

polyhead_status polyhead_cached_attention(const polyhead_runtime* runtime, const polyhead_cached_attention_inputs* inputs,
                                          const polyhead_attention_options* options) {
  return guarded([&] {
    CScoreMod score_mod;
    const polyhead::AttentionOptions given =
        options == nullptr ? polyhead::cached_attention_options() : to_attention_options(options, &score_mod);
    polyhead::CachedAttentionInputs views = to_cached_attention_inputs(inputs);
    take_context(given, &score_mod, &views);
    polyhead::attention(required(runtime, "runtime")->value, views, given);
  });
}

polyhead_status polyhead_merge(const polyhead_runtime* runtime, const polyhead_merge_inputs* given) {
  return guarded([&] {
    required(runtime, "runtime");
    const polyhead_merge_inputs inputs = read_struct(given, "inputs");
    polyhead::MergeInputs views;
    views.out1 = to_required_view(inputs.out1, "out1");
    views.lse1 = to_required_view(inputs.lse1, "lse1");
    views.out2 = to_required_view(inputs.out2, "out2");
    views.lse2 = to_required_view(inputs.lse2, "lse2");
    views.out = to_required_view(inputs.out, "out");
    views.lse = to_view(inputs.lse, "lse");
    views.sink = to_view(inputs.sink, "sink");
    polyhead::merge(runtime->value, views);
  });
}

// ---- multi-head attention

polyhead_status polyhead_multi_head_attention_create(const polyhead_runtime* runtime,
                                                     const polyhead_multi_head_attention_spec* given_spec,
                                                     const polyhead_multi_head_attention_weights* given_weights,
                                                     polyhead_multi_head_attention** layer) {
  return guarded([&] {
    required(layer, "layer");
    required(runtime, "runtime");
    const polyhead_multi_head_attention_spec spec = read_struct(given_spec, "spec");
    polyhead::MultiHeadAttentionSpec result;
    result.d_model = spec.d_model;
    result.heads = spec.heads;
    result.kv_heads = spec.kv_heads;
    result.head_dim = spec.head_dim;
    result.value_dim = spec.value_dim;
    result.key_input_dim = spec.key_input_dim;
    result.value_input_dim = spec.value_input_dim;
    result.scale = to_scale(spec.has_scale, spec.scale);
    result.mask = to_mask(spec.mask);
    result.precision = to_precision(spec.precision, "spec");
    result.weights = to_weight_type(spec.weights, "spec");

    const polyhead_multi_head_attention_weights weights = read_struct(given_weights, "weights");
    polyhead::MultiHeadAttentionWeights views;
    views.query = to_required_view(weights.query, "weights.query");
    views.key = to_required_view(weights.key, "weights.key");
    views.value = to_required_view(weights.value, "weights.value");
    views.output = to_required_view(weights.output, "weights.output");
    views.query_bias = to_view(weights.query_bias, "weights.query_bias");
    views.key_bias = to_view(weights.key_bias, "weights.key_bias");
    views.value_bias = to_view(weights.value_bias, "weights.value_bias");
    views.output_bias = to_view(weights.output_bias, "weights.output_bias");
    hand_out(layer, polyhead::MultiHeadAttention(result, views, runtime->value));
  });
}

void polyhead_multi_head_attention_destroy(polyhead_multi_head_attention* layer) {
  delete layer;
}

polyhead_status polyhead_multi_head_attention_run(const polyhead_multi_head_attention* layer,
                                                  const polyhead_multi_head_attention_inputs* given,
                                                  const polyhead_run_options* options) {
  return guarded([&] {
    required(layer, "layer");
    const polyhead_multi_head_attention_inputs inputs = read_struct(given, "inputs");
    polyhead::MultiHeadAttentionInputs views;
    views.query = to_required_view(inputs.query, "query");
    views.key = to_view(inputs.key, "key");
    views.value = to_view(inputs.value, "value");
    views.out = to_required_view(inputs.out, "out");
    views.key_lengths = to_view(inputs.key_lengths, "key_lengths");
    views.offsets = to_view(inputs.offsets, "offsets");
    views.boolean_mask = to_view(inputs.boolean_mask, "boolean_mask");
    views.bias = to_view(inputs.bias, "bias");
    layer->value.run(views, to_run_options(options));
  });
}

// ---- BERT-family encoders

polyhead_status polyhead_bert_encoder_load(const polyhead_runtime* runtime, const char* folder,
                                           polyhead_bert_encoder** encoder) {
  return guarded([&] {
    required(encoder, "encoder");
    hand_out(encoder, polyhead::BertEncoder::load(required(folder, "folder"), required(runtime, "runtime")->value));
  });
}

polyhead_status polyhead_bert_encoder_load_with(const polyhead_runtime* runtime, const char* folder,
                                                const polyhead_bert_options* given, polyhead_bert_encoder** encoder) {
  return guarded([&] {
    required(encoder, "encoder");
    polyhead::BertOptions options;
    if (given != nullptr) options.weights = to_weight_type(read_struct(given, "options").weights, "options");
    hand_out(encoder, polyhead::BertEncoder::load(required(folder, "folder"), required(runtime, "runtime")->value, options));
  });
}

void polyhead_bert_encoder_destroy(polyhead_bert_encoder* encoder) {
  delete encoder;
}

polyhead_status polyhead_bert_encoder_hidden_size(const polyhead_bert_encoder* encoder, int64_t* hidden_size) {
  return guarded([&] { *required(hidden_size, "hidden_size") = required(encoder, "encoder")->value.config().hidden_size; });
}

polyhead_status polyhead_bert_encoder_token_embeddings(const polyhead_bert_encoder* encoder, const polyhead_tensor* token_ids,
                                                       const polyhead_tensor* lengths, const polyhead_tensor* out,
                                                       const polyhead_run_options* options) {
  return guarded([&] {
    required(encoder, "encoder")
        ->value.token_embeddings(to_required_view(token_ids, "token_ids"), to_view(lengths, "lengths"),
                                 to_required_view(out, "out"), to_run_options(options));
  });
}

polyhead_status polyhead_bert_encoder_encode(const polyhead_bert_encoder* encoder, const polyhead_tensor* token_ids,
                                             const polyhead_tensor* lengths, const polyhead_tensor* out, int32_t normalise,
                                             const polyhead_run_options* options) {
  return guarded([&] {
    required(encoder, "encoder")
        ->value.encode(to_required_view(token_ids, "token_ids"), to_view(lengths, "lengths"), to_required_view(out, "out"),
                       normalise != 0, to_run_options(options));
  });
}

}  // extern "C"
