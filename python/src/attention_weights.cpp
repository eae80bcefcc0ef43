// attention_weights: the softmax's weights of chosen heads and queries.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <string>

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
  expect_f32(operand, argument);
  if (operand.view().rank == 4) return operand;
  throw invalid(std::string(argument) + ": is " + describe_array(operand.view()) + ", expected [batch, heads, length, dim]");
}

// One number for each query head.
std::optional<BorrowedArray> borrow_heads(nb::handle array, const char* argument) {
  if (array.is_none()) return std::nullopt;
  std::optional<BorrowedArray> numbers(std::in_place, array, argument);
  expect_f32(*numbers, argument);
  return numbers;
}

TensorView view_of(const std::optional<BorrowedArray>& array) {
  return array ? array->view() : TensorView();
}

nb::object weights_of(nb::handle query_array, nb::handle key_array, nb::handle attn_mask, bool is_causal,
                      std::optional<double> scale, nb::handle heads, nb::handle rows, bool received, nb::handle key_lengths,
                      double softcap, nb::handle alibi_slopes, nb::handle sink, nb::handle relative_bias,
                      nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle score_mod) {
  const BorrowedArray query = borrow_operand(query_array, "query"), key = borrow_operand(key_array, "key");
  const std::optional<BorrowedArray> mask = borrow_mask(attn_mask), lengths = borrow_integers(key_lengths, "key_lengths"),
                                     chosen_heads = borrow_integers(heads, "heads"),
                                     chosen_rows = borrow_integers(rows, "rows"),
                                     query_ends = borrow_integers(cu_seqlens_q, "cu_seqlens_q"),
                                     key_ends = borrow_integers(cu_seqlens_k, "cu_seqlens_k"),
                                     slopes = borrow_heads(alibi_slopes, "alibi_slopes"), sinks = borrow_heads(sink, "sink");
  AttentionOptions options;
  options.scale = scale;
  options.softcap = softcap;
  options.has_alibi = slopes.has_value();
  options.has_sink = sinks.has_value();
  const std::optional<BorrowedArray> table = borrow_relative_bias(relative_bias, options.relative_bias);
  if (is_causal) options.mask.causality = Causal::top_left;
  options.mask.has_key_lengths = lengths.has_value();
  if (query_ends.has_value() != key_ends.has_value()) {
    throw invalid("cu_seqlens_q and cu_seqlens_k: one of them is given, expected both or neither");
  }
  options.mask.is_packed = query_ends.has_value();
  AttentionInputs inputs;
  inputs.query = query.view();
  inputs.key = key.view();
  inputs.key_lengths = view_of(lengths);
  inputs.cumulative_query_lengths = view_of(query_ends);
  inputs.cumulative_key_lengths = view_of(key_ends);
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

query: float32 [batch, heads, L, D]; key: float32 [batch, kv heads, S, D], kv heads a divisor of heads. heads, rows: integers,
which query heads and which queries, in any order; None: all. received=True returns what each key receives instead, the sum of
the weights over the chosen queries: float32 [batch, heads, S]. No more memory is taken than the result and a megabyte or a row
of weights for each thread. cu_seqlens_q, cu_seqlens_k: integers [sequences + 1], 0 and then where each of the sequences ends that
lie one after another in query and key, of batch 1; rows and keys are numbered through all of them, and a row's weights are 0
outside of its own. The other arguments are those of scaled_dot_product_attention.)";

}  // namespace

void register_attention_weights(nb::module_& module) {
  module.def("attention_weights", &weights_of,
             nb::sig("def attention_weights(query, key, attn_mask=None, is_causal=False, scale=None, *, heads=None, rows=None, "
                     "received=False, key_lengths=None, softcap=0.0, alibi_slopes=None, sink=None, relative_bias=None, "
                     "cu_seqlens_q=None, cu_seqlens_k=None, score_mod=None)"),
             nb::arg("query").none(), nb::arg("key").none(), nb::arg("attn_mask") = nb::none(), nb::arg("is_causal") = false,
             nb::arg("scale") = nb::none(), nb::kw_only(), nb::arg("heads") = nb::none(), nb::arg("rows") = nb::none(),
             nb::arg("received") = false, nb::arg("key_lengths") = nb::none(), nb::arg("softcap") = 0.0,
             nb::arg("alibi_slopes") = nb::none(), nb::arg("sink") = nb::none(), nb::arg("relative_bias") = nb::none(),
             nb::arg("cu_seqlens_q") = nb::none(), nb::arg("cu_seqlens_k") = nb::none(), nb::arg("score_mod") = nb::none(),
             documentation);
}

}  // namespace polyhead::python
