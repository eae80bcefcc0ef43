// What a plan says about itself, for polyhead.explain.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention_operands.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/attention.hpp"
#include "score_mod.hpp"

namespace polyhead::python {

namespace {

// The value of the name that was given. Errors: invalid_argument with all names.
template <class Value, std::size_t count>
Value one_of(const std::string& given, const char* argument, const std::pair<const char*, Value> (&known)[count]) {
  std::string expected;
  for (const auto& [name, value] : known) {
    if (given == name) return value;
    expected += std::string(expected.empty() ? "'" : ", '") + name + "'";
  }
  throw invalid(std::string(argument) + ": is '" + given + "', expected one of " + expected);
}

std::string explain(std::int64_t batch, std::int64_t heads, std::optional<std::int64_t> kv_heads, std::int64_t query_length,
                    std::int64_t key_length, std::int64_t head_dim, std::optional<std::int64_t> value_dim,
                    const std::string& dtype, const std::optional<std::string>& key_dtype,
                    const std::optional<std::string>& out_dtype, const std::optional<std::string>& causal,
                    std::pair<std::int64_t, std::int64_t> window, std::int64_t sink_token_length,
                    const std::vector<std::string>& masks, std::optional<std::pair<std::int64_t, std::int64_t>> block_size,
                    std::optional<double> scale, double softcap, bool alibi, bool sink, nb::handle relative_bias,
                    bool length_invariant, nb::handle precision, nb::handle score_mod, bool text) {
  static constexpr std::pair<const char*, DType> types[] = {
      {"float32", DType::f32}, {"float16", DType::f16}, {"bfloat16", DType::bf16}};
  static constexpr std::pair<const char*, DType> key_types[] = {// a KvCache's
                                                                {"float32", DType::f32},
                                                                {"float16", DType::f16},
                                                                {"bfloat16", DType::bf16},
                                                                {"int8", DType::i8}};
  static constexpr std::pair<const char*, Mask (*)()> parts[] = {
      {"key_lengths", &Mask::key_lengths}, {"query_lengths", &Mask::query_lengths},
      {"offsets", &Mask::offsets},         {"packed", &Mask::packed},
      {"prefix", &Mask::prefix},           {"segments", &Mask::segments},
      {"boolean", &Mask::boolean},         {"bias", &Mask::bias}};
  AttentionSpec spec;
  spec.batch = batch;
  spec.heads = heads;
  spec.kv_heads = kv_heads.value_or(0);
  spec.query_length = query_length;
  spec.key_length = key_length;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim.value_or(0);
  spec.dtype = one_of(dtype, "dtype", types);
  if (key_dtype) spec.key_dtype = one_of(*key_dtype, "key_dtype", key_types);
  if (out_dtype) spec.out_dtype = one_of(*out_dtype, "out_dtype", types);
  if (causal) {
    spec.mask = Mask::causal(one_of(*causal, "causal", causal_alignments));
    if (spec.mask.causality == Causal::offset) spec.mask = spec.mask & Mask::offsets();
  }
  spec.mask = spec.mask & Mask::window(window.first, window.second, sink_token_length);
  for (const std::string& part : masks) spec.mask = spec.mask & one_of(part, "masks", parts)();
  if (block_size) spec.mask = spec.mask & Mask::blocks(block_size->first, block_size->second);
  spec.scale = scale;
  spec.softcap = softcap;
  spec.has_alibi = alibi;
  spec.has_sink = sink;
  spec.length_invariant = length_invariant;
  spec.precision = to_precision(precision);
  borrow_relative_bias(relative_bias, spec.relative_bias);
  BorrowedScoreMod mod(score_mod);
  spec.score_mod = mod.view();
  try {
    const AttentionPlan plan(spec, default_runtime());
    return text ? plan.explain() : plan.explain_json();
  } catch (const Error&) {
    mod.raise();
    throw;
  }
}

}  // namespace

void register_explain(nb::module_& module) {
  module.def("_explain", &explain, nb::arg("batch"), nb::arg("heads"), nb::arg("kv_heads").none(), nb::arg("query_length"),
             nb::arg("key_length"), nb::arg("head_dim"), nb::arg("value_dim").none(), nb::arg("dtype"),
             nb::arg("key_dtype").none(), nb::arg("out_dtype").none(), nb::arg("causal").none(), nb::arg("window"),
             nb::arg("sink_token_length"), nb::arg("masks"), nb::arg("block_size").none(), nb::arg("scale").none(),
             nb::arg("softcap"), nb::arg("alibi"), nb::arg("sink"), nb::arg("relative_bias").none(),
             nb::arg("length_invariant"), nb::arg("precision").none(), nb::arg("score_mod").none(), nb::arg("text"));
}

}  // namespace polyhead::python
