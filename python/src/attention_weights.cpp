// attention_weights: the softmax's weights of chosen heads and queries.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/attention.hpp"
#include "score_mod.hpp"

namespace polyhead::python {

namespace {

BorrowedArray borrow_operand(nb::handle array, const char* argument) {
  BorrowedArray operand(array, argument);
  expect_attention_type(operand, argument);
  if (operand.view().rank == 4) return operand;
  throw invalid(std::string(argument) + ": is " + describe_array(operand.view()) + ", expected [batch, heads, length, dim]");
}

TensorView view_of(const std::optional<BorrowedArray>& array) {
  return array ? array->view() : TensorView();
}

nb::object weights_of(nb::handle query_array, nb::handle key_array, nb::handle attn_mask, bool is_causal,
                      std::optional<double> scale, nb::handle heads, nb::handle rows, bool received, nb::handle key_lengths,
                      double softcap, nb::handle alibi_slopes, nb::handle sink, nb::handle relative_bias,
                      nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle score_mod,
                      std::pair<std::int64_t, std::int64_t> window_size, std::int64_t sink_token_length, nb::handle causal,
                      nb::handle offsets, nb::handle query_lengths, nb::handle prefix_lengths, nb::handle query_segments,
                      nb::handle key_segments, nb::handle block_mask,
                      std::optional<std::pair<std::int64_t, std::int64_t>> block_size) {
  const BorrowedArray query = borrow_operand(query_array, "query"), key = borrow_operand(key_array, "key");
  const std::optional<BorrowedArray> mask = borrow_mask(attn_mask), lengths = borrow_integers(key_lengths, "key_lengths"),
                                     chosen_heads = borrow_integers(heads, "heads"),
                                     chosen_rows = borrow_integers(rows, "rows"),
                                     query_ends = borrow_integers(cu_seqlens_q, "cu_seqlens_q"),
                                     key_ends = borrow_integers(cu_seqlens_k, "cu_seqlens_k"),
                                     diagonals = borrow_integers(offsets, "offsets"),
                                     query_counts = borrow_integers(query_lengths, "query_lengths"),
                                     prefixes = borrow_integers(prefix_lengths, "prefix_lengths"),
                                     query_ids = borrow_integers(query_segments, "query_segments"),
                                     key_ids = borrow_integers(key_segments, "key_segments"),
                                     slopes = borrow_head_numbers(alibi_slopes, "alibi_slopes", query.view().shape[1]),
                                     sinks = borrow_head_numbers(sink, "sink", query.view().shape[1]);
  AttentionOptions options;
  options.scale = scale;
  options.softcap = softcap;
  options.has_alibi = slopes.has_value();
  options.has_sink = sinks.has_value();
  const std::optional<BorrowedArray> table = borrow_relative_bias(relative_bias, options.relative_bias);
  expect_both_or_neither(query_ends.has_value(), key_ends.has_value(), "cu_seqlens_q and cu_seqlens_k");
  expect_both_or_neither(query_ids.has_value(), key_ids.has_value(), "query_segments and key_segments");
  options.mask = to_causal(is_causal, causal, diagonals.has_value()) & to_window(window_size, sink_token_length);
  const std::optional<BorrowedArray> blocks = borrow_blocks(block_mask, block_size, options.mask);
  options.mask.has_key_lengths = lengths.has_value();
  options.mask.has_query_lengths = query_counts.has_value();
  options.mask.has_prefix = prefixes.has_value();
  options.mask.has_segments = query_ids.has_value();
  options.mask.is_packed = query_ends.has_value();
  AttentionInputs inputs;
  inputs.query = query.view();
  inputs.key = key.view();
  inputs.key_lengths = view_of(lengths);
  inputs.cumulative_query_lengths = view_of(query_ends);
  inputs.cumulative_key_lengths = view_of(key_ends);
  inputs.offsets = view_of(diagonals);
  inputs.query_lengths = view_of(query_counts);
  inputs.prefix_lengths = view_of(prefixes);
  inputs.query_segments = view_of(query_ids);
  inputs.key_segments = view_of(key_ids);
  inputs.block_mask = view_of(blocks);
  inputs.alibi_slopes = view_of(slopes);
  inputs.sink = view_of(sinks);
  inputs.relative_bias_table = view_of(table);
  if (mask) place_of_mask(*mask, options.mask, inputs) = mask->view();
  AttentionWeightsRequest request;
  request.heads = view_of(chosen_heads);
  request.rows = view_of(chosen_rows);
  const auto count = [](const std::optional<BorrowedArray>& chosen, std::int64_t all) {
    return chosen && chosen->view().rank == 1 ? chosen->view().shape[0] : all;
  };
  const std::int64_t batch = query.view().shape[0], head_count = count(chosen_heads, query.view().shape[1]);
  const std::int64_t shape[] = {batch, head_count, count(chosen_rows, query.view().shape[2]), key.view().shape[2]};
  const std::int64_t received_shape[] = {batch, head_count, key.view().shape[2]};
  nb::object result = received ? new_f32_array(query, 3, received_shape) : new_f32_array(query, 4, shape);
  const BorrowedArray out(result, "out", Access::write);
  (received ? request.received : request.weights) = out.view();
  BorrowedScoreMod mod(score_mod);
  options.score_mod = mod.view();
  const Runtime runtime = default_runtime();
  try {
    const nb::gil_scoped_release release;
    attention_weights(runtime, inputs, options, request);
  } catch (const Error&) {
    mod.raise();
    throw;
  }
  return result;
}

constexpr const char* documentation =
    R"(The softmax's weights that attention gives its values, for chosen heads and queries: float32 [batch, heads, queries, keys].

query: [batch, heads, L, D]; key: [batch, kv heads, S, D], kv heads a divisor of heads; float32, float16 or bfloat16, each of its own.
heads, rows: integers, which query heads and which queries, in any order; None: all. received=True returns what each key receives instead, the sum of
the weights over the chosen queries: float32 [batch, heads, S]. No more memory is taken than the result and a megabyte or a row
of weights for each thread. cu_seqlens_q, cu_seqlens_k: integers [sequences + 1], 0 and then where each of the sequences ends that
lie one after another in query and key, of batch 1; rows and keys are numbered through all of them, and a row's weights are 0
outside of its own. The other arguments are those of scaled_dot_product_attention, numbers of batch items being [batch] (packed:
[sequences]) and segments [batch, L] and [batch, S]; is_causal goes with attn_mask here.)";

}  // namespace

void register_attention_weights(nb::module_& module) {
  module.def("attention_weights", &weights_of,
             nb::sig("def attention_weights(query, key, attn_mask=None, is_causal=False, scale=None, *, heads=None, rows=None, "
                     "received=False, key_lengths=None, softcap=0.0, alibi_slopes=None, sink=None, relative_bias=None, "
                     "cu_seqlens_q=None, cu_seqlens_k=None, score_mod=None, window_size=(-1, -1), sink_token_length=0, "
                     "causal=None, offsets=None, query_lengths=None, prefix_lengths=None, query_segments=None, "
                     "key_segments=None, block_mask=None, block_size=None)"),
             nb::arg("query").none(), nb::arg("key").none(), nb::arg("attn_mask") = nb::none(), nb::arg("is_causal") = false,
             nb::arg("scale") = nb::none(), nb::kw_only(), nb::arg("heads") = nb::none(), nb::arg("rows") = nb::none(),
             nb::arg("received") = false, nb::arg("key_lengths") = nb::none(), nb::arg("softcap") = 0.0,
             nb::arg("alibi_slopes") = nb::none(), nb::arg("sink") = nb::none(), nb::arg("relative_bias") = nb::none(),
             nb::arg("cu_seqlens_q") = nb::none(), nb::arg("cu_seqlens_k") = nb::none(), nb::arg("score_mod") = nb::none(),
             nb::arg("window_size") = std::pair<std::int64_t, std::int64_t>(-1, -1), nb::arg("sink_token_length") = 0,
             nb::arg("causal") = nb::none(), nb::arg("offsets") = nb::none(), nb::arg("query_lengths") = nb::none(),
             nb::arg("prefix_lengths") = nb::none(), nb::arg("query_segments") = nb::none(),
             nb::arg("key_segments") = nb::none(), nb::arg("block_mask") = nb::none(), nb::arg("block_size") = nb::none(),
             documentation);
}

}  // namespace polyhead::python
