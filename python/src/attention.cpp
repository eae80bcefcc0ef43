// scaled_dot_product_attention.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "attention_geometry.hpp"
#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/attention.hpp"
#include "score_mod.hpp"

namespace polyhead::python {

namespace {

// The last three dimensions of an array as [batch, heads, rows, columns]; the batch is filled in by BatchWalk. A missing or
// single head that is spread over `heads` gets stride 0.
TensorView inner_view(const TensorView& view, std::int64_t heads) {
  TensorView result;
  result.data = view.data;
  result.dtype = view.dtype;
  result.rank = 4;
  result.shape[0] = 1;
  const bool has_heads = view.rank >= 3 && view.shape[view.rank - 3] != 1;
  result.shape[1] = heads;
  result.strides[1] = has_heads ? view.strides[view.rank - 3] : 0;
  for (int i = 2; i < 4; ++i) {
    const int source = view.rank - 4 + i;  // a mask may have fewer than two dimensions
    result.shape[i] = source >= 0 ? view.shape[source] : 1;
    result.strides[i] = source >= 0 ? view.strides[source] : 0;
  }
  return result;
}

TensorView mask_view(const AttentionGeometry& geometry, const TensorView& mask) {
  const std::int64_t expected[] = {geometry.heads, geometry.query_length, geometry.key_length};
  if (mask.rank > geometry.batch_rank + 3) {
    throw invalid("attn_mask: has " + std::to_string(mask.rank) + " dimensions, expected at most " +
                  std::to_string(geometry.batch_rank + 3) + ", as many as the inputs");
  }
  for (int i = 1; i <= 3 && i <= mask.rank; ++i) {
    const std::int64_t size = mask.shape[mask.rank - i];
    if (size == 1 || size == expected[3 - i]) continue;
    throw invalid("attn_mask: is " + describe_array(mask) + ", expected it to broadcast to [..., " +
                  std::to_string(expected[0]) + ", " + std::to_string(expected[1]) + ", " + std::to_string(expected[2]) +
                  "] (heads, query length, key length)");
  }
  return inner_view(mask, mask.rank >= 3 ? mask.shape[mask.rank - 3] : 1);
}

// Lengths and offsets have one number a batch item: the batch dimensions' shape, with or without a last dimension of 1.
TensorView lengths_view(const AttentionGeometry& geometry, const TensorView& lengths, const char* argument,
                        TensorView::Dims& strides) {
  TensorView outer = lengths;
  const bool extra = outer.rank > 0 && outer.rank == geometry.batch_rank + 1 && outer.shape[outer.rank - 1] == 1;
  if (extra) --outer.rank;
  strides = geometry.batch_strides(outer, 0, argument);
  TensorView result;
  result.data = lengths.data;
  result.dtype = lengths.dtype;
  result.rank = 1;
  return result;
}

// Document numbers [..., length], one for each query or key.
TensorView segments_view(const TensorView& segments, std::int64_t length, const char* argument) {
  if (segments.rank < 1 || segments.shape[segments.rank - 1] != length) {
    throw invalid(std::string(argument) + ": is " + describe_array(segments) + ", expected [..., " + std::to_string(length) +
                  "]");
  }
  TensorView result;
  result.data = segments.data;
  result.dtype = segments.dtype;
  result.rank = 2;
  result.shape[0] = 1;
  result.shape[1] = length;
  result.strides[1] = segments.strides[segments.rank - 1];
  return result;
}

void expect_shape(const TensorView& out, const AttentionGeometry& geometry) {
  const TensorView::Dims expected = geometry.output_shape();
  bool equal = out.rank == geometry.output_rank;
  for (int i = 0; i < geometry.output_rank && equal; ++i) equal = out.shape[i] == expected[i];
  if (equal) return;
  TensorView wanted;
  wanted.dtype = out.dtype;
  wanted.rank = geometry.output_rank;
  wanted.shape = expected;
  throw invalid("out: is " + describe_array(out) + ", expected " + describe_array(wanted));
}

nb::object scaled_dot_product_attention(
    nb::handle query_array, nb::handle key_array, nb::handle value_array, nb::handle attn_mask, double dropout_p,
    bool is_causal, std::optional<double> scale, bool enable_gqa, nb::handle key_lengths, nb::handle out_array, double softcap,
    nb::handle alibi_slopes, nb::handle sink, nb::handle precision, nb::handle query_lengths, bool return_lse,
    nb::handle prefix_lengths, nb::handle query_segments, nb::handle key_segments, nb::handle block_mask,
    std::optional<std::pair<std::int64_t, std::int64_t>> block_size, nb::handle relative_bias, nb::handle score_mod,
    std::pair<std::int64_t, std::int64_t> window_size, std::int64_t sink_token_length, nb::handle causal, nb::handle offsets) {
  if (dropout_p != 0) {
    throw Error(ErrorCode::unsupported,
                "dropout_p: is " + std::to_string(dropout_p) + ", expected 0 (Polyhead runs inference only)");
  }
  if (is_causal && !attn_mask.is_none()) {
    throw invalid(
        "attn_mask: is given together with is_causal=True, expected only one of them (causal='top_left' goes with it)");
  }
  const BorrowedArray query(query_array, "query"), key(key_array, "key"), value(value_array, "value");
  expect_attention_type(query, "query");
  expect_same_type(key, "key", query, "query");
  expect_same_type(value, "value", query, "query");
  const AttentionGeometry geometry(query.view(), key.view(), value.view(), enable_gqa);
  const std::optional<BorrowedArray> mask = borrow_mask(attn_mask);
  const std::optional<BorrowedArray> lengths = borrow_integers(key_lengths, "key_lengths"),
                                     rows = borrow_integers(query_lengths, "query_lengths"),
                                     prefixes = borrow_integers(prefix_lengths, "prefix_lengths"),
                                     diagonals = borrow_integers(offsets, "offsets"),
                                     query_ids = borrow_integers(query_segments, "query_segments"),
                                     key_ids = borrow_integers(key_segments, "key_segments");
  expect_both_or_neither(query_ids.has_value(), key_ids.has_value(), "query_segments and key_segments");
  AttentionOptions options;
  options.mask = to_causal(is_causal, causal, diagonals.has_value()) & to_window(window_size, sink_token_length);
  const std::optional<BorrowedArray> blocks = borrow_blocks(block_mask, block_size, options.mask);
  const std::optional<BorrowedArray> slopes = borrow_head_numbers(alibi_slopes, "alibi_slopes", geometry.heads),
                                     sinks = borrow_head_numbers(sink, "sink", geometry.heads);

  nb::object result = nb::borrow(out_array);
  if (out_array.is_none()) {
    const TensorView::Dims shape = geometry.output_shape();
    result = new_array_like(query_array, query, geometry.output_rank, shape.data());
  }
  const BorrowedArray out(result, "out", Access::write);
  expect_same_type(out, "out", query, "query");
  expect_shape(out.view(), geometry);

  options.scale = scale;
  options.softcap = softcap;
  options.has_alibi = slopes.has_value();
  options.has_sink = sinks.has_value();
  options.precision = to_precision(precision);
  const std::optional<BorrowedArray> table = borrow_relative_bias(relative_bias, options.relative_bias);
  AttentionInputs inputs;
  inputs.query = inner_view(query.view(), geometry.heads);
  inputs.key = inner_view(key.view(), geometry.kv_heads);
  inputs.value = inner_view(value.view(), geometry.kv_heads);
  inputs.out = inner_view(out.view(), geometry.heads);
  if (sinks) inputs.sink = sinks->view();
  if (table) inputs.relative_bias_table = table->view();
  BorrowedScoreMod mod(score_mod);
  options.score_mod = mod.view();
  BatchWalk walk(geometry.batch_rank, geometry.batch_shape);
  walk.add(&inputs.query, geometry.batch_strides(query.view(), 3, "query"));
  walk.add(&inputs.key, geometry.batch_strides(key.view(), 3, "key"));
  walk.add(&inputs.value, geometry.batch_strides(value.view(), 3, "value"));
  walk.add(&inputs.out, geometry.batch_strides(out.view(), 3, "out"));
  if (slopes) {
    const TensorView& view = slopes->view();
    if (view.rank >= 2) {
      inputs.alibi_slopes = TensorView(view.data, DType::f32, {1, geometry.heads});
      inputs.alibi_slopes.strides[1] = view.strides[view.rank - 1];
      walk.add(&inputs.alibi_slopes, geometry.batch_strides(view, 1, "alibi_slopes"));
    } else {
      inputs.alibi_slopes = view;
    }
  }
  TensorView* given_mask = nullptr;
  if (mask) {
    given_mask = &place_of_mask(*mask, options.mask, inputs);
    *given_mask = mask_view(geometry, mask->view());
    walk.add(given_mask, geometry.batch_strides(mask->view(), 3, "attn_mask"));
  }
  const auto add_numbers = [&](const std::optional<BorrowedArray>& given, const char* argument, TensorView& place) {
    if (!given) return false;
    TensorView::Dims strides;
    place = lengths_view(geometry, given->view(), argument, strides);
    walk.add(&place, strides);
    return true;
  };
  options.mask.has_key_lengths = add_numbers(lengths, "key_lengths", inputs.key_lengths);
  options.mask.has_query_lengths = add_numbers(rows, "query_lengths", inputs.query_lengths);
  options.mask.has_prefix = add_numbers(prefixes, "prefix_lengths", inputs.prefix_lengths);
  options.mask.has_offsets = add_numbers(diagonals, "offsets", inputs.offsets);
  if (query_ids) {
    options.mask.has_segments = true;
    inputs.query_segments = segments_view(query_ids->view(), geometry.query_length, "query_segments");
    inputs.key_segments = segments_view(key_ids->view(), geometry.key_length, "key_segments");
    walk.add(&inputs.query_segments, geometry.batch_strides(query_ids->view(), 1, "query_segments"));
    walk.add(&inputs.key_segments, geometry.batch_strides(key_ids->view(), 1, "key_segments"));
  }
  if (blocks) {
    const TensorView& view = blocks->view();
    inputs.block_mask = inner_view(view, view.rank >= 3 ? view.shape[view.rank - 3] : 1);
    walk.add(&inputs.block_mask, geometry.batch_strides(view, 3, "block_mask"));
  }
  nb::object lse_result;
  std::optional<BorrowedArray> lse;
  if (return_lse) {
    const TensorView::Dims shape = geometry.output_shape();
    lse_result = new_f32_array(query, geometry.output_rank - 1, shape.data());
    lse.emplace(lse_result, "lse", Access::write);
    inputs.lse = inner_view(lse->view(), geometry.heads);
    // [..., heads, length]: the dimensions that inner_view takes for rows and columns are heads and rows here.
    inputs.lse.rank = 3;
    inputs.lse.shape[2] = geometry.query_length;
    inputs.lse.strides[1] = geometry.output_rank >= 3 ? lse->view().strides[geometry.output_rank - 3] : 0;
    inputs.lse.strides[2] = lse->view().strides[geometry.output_rank - 2];
    walk.add(&inputs.lse, geometry.batch_strides(lse->view(), 2, "lse"));
  }
  // Batch items are numbered through all batch dimensions: a view of bytes whose addresses are their numbers.
  static char first_item = 0;
  TensorView item;
  if (mod.given()) {
    item.data = &first_item;
    item.dtype = DType::u8;
    item.rank = 1;
    TensorView::Dims strides{};
    std::int64_t stride = 1;
    for (int i = geometry.batch_rank - 1; i >= 0; stride *= geometry.batch_shape[i--]) strides[i] = stride;
    walk.add(&item, strides);
  }
  walk.begin();
  // One mask for all items is told as a batch of 1, which lets the library classify its tiles once.
  if (given_mask != nullptr && given_mask->strides[0] == 0 && given_mask->shape[0] > 1) given_mask->shape[0] = 1;

  const Runtime runtime = default_runtime();
  try {
    const nb::gil_scoped_release release;
    do {
      if (mod.given()) mod.set_first_item(static_cast<const char*>(item.data) - &first_item);
      attention(runtime, inputs, options);
    } while (walk.next());
  } catch (const Error&) {
    mod.raise();
    throw;
  }
  if (return_lse) return nb::make_tuple(result, lse_result);
  return result;
}

constexpr const char* documentation =
    R"(softmax(scale * query @ key^T + mask) @ value, as torch.nn.functional.scaled_dot_product_attention defines it.

query: [..., heads, L, D]; key: [..., heads, S, D]; value: [..., heads, S, E]. NumPy arrays or PyTorch tensors on the CPU, all
float32, all float16 or all bfloat16 (NumPy: ml_dtypes.bfloat16), with any strides and any number (0 included) of leading
dimensions, which broadcast. They are read in place; scores, softmax and sums are float32 whatever they are.
attn_mask: broadcastable to [..., heads, L, S]; bool (True = attend) or floating point (added to the scores). It is read in place,
float32, float16 or bfloat16 whatever query is; of float64 a float32 copy of the whole is made in each call, but for broadcast dimensions.
dropout_p: 0, nothing else. is_causal: query t sees keys s <= t; excludes attn_mask. scale: 1 / sqrt(D) unless given.
enable_gqa: key and value may have fewer heads, a divisor of query's; otherwise as many, or 1.

What a query sees is what all of the following, where given, let it see.
causal: None; "top_left", as is_causal, but attn_mask may be given too; "bottom_right", s <= t + S - L, each batch item's own S and
L where lengths are given: its last query sees its last key; or "offset", s <= t + offsets[b].
window_size: (left, right), keys t + o - left <= s <= t + o + right, -1 being no limit and o the causal alignment's offset: 0, S - L or
offsets[b]; without causal offsets[b], else 0. sink_token_length: so many first keys are seen whatever left says;
right and causal hide them still.
offsets: int32 or int64, one for each batch item or one for all, with causal="offset" or without a causal alignment.
key_lengths: int32 or int64, one for each batch item: keys from there on do not exist.
query_lengths: the same for queries: those from there on are not computed and give zeros.
prefix_lengths: the same again, with a causal alignment: keys before are seen by every query, whatever causal says.
query_segments, key_segments: int32 or int64 [..., L] and [..., S], the document of each query and key: only equal numbers see
each other. block_mask: bool or uint8, broadcastable to [..., heads, ceil(L / queries), ceil(S / keys)] with block_size=(queries,
keys): False hides a whole block.

softcap: scaled scores become softcap * tanh(score / softcap), before anything is added to or hides them; 0: they stay.
alibi_slopes: [heads] or [..., heads]; alibi_slopes[h] * |t + o - s| is taken off the score of query t and key s.
sink: [heads]; exp(sink[h]) is added to the softmax's denominator, as of a key whose value is 0. -inf: none.
Both may be float32, float16 or bfloat16, as relative_bias's table may.
relative_bias: polyhead.T5Bias or polyhead.SwinBias, a bias by relative position out of a table, instead of a floating-point
attn_mask. T5's distance is s - t - o, o being the causal offset as above.
out: [..., heads, L, E] of query's data type, written to and returned; must not overlap an input. Without it a new array is made, a
PyTorch tensor when query is one, else a NumPy array.
return_lse: returns (out, lse), lse float32 [..., heads, L] being the natural log of each softmax's denominator (polyhead.merge).

score_mod: a polyhead.ScoreMod, a function of the caller's own over scaled and capped scores, before attn_mask and what else adds
to or hides them.
precision: "strict", or "fast", which may use a faster kernel with a larger, stated error (docs/semantics.md).

A query that may attend to no key gives zeros. Raises TypeError for data types and objects that are not served, and
subclasses of polyhead.Error (InvalidArgumentError is a ValueError too), naming the argument.)";

}  // namespace

void register_attention(nb::module_& module) {
  module.def("scaled_dot_product_attention", &scaled_dot_product_attention,
             nb::sig("def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, "
                     "scale=None, enable_gqa=False, *, key_lengths=None, out=None, softcap=0.0, alibi_slopes=None, sink=None, "
                     "precision='strict', query_lengths=None, return_lse=False, prefix_lengths=None, query_segments=None, "
                     "key_segments=None, "
                     "block_mask=None, block_size=None, relative_bias=None, score_mod=None, window_size=(-1, -1), "
                     "sink_token_length=0, causal=None, offsets=None)"),
             nb::arg("query").none(), nb::arg("key").none(), nb::arg("value").none(), nb::arg("attn_mask") = nb::none(),
             nb::arg("dropout_p") = 0.0, nb::arg("is_causal") = false, nb::arg("scale") = nb::none(),
             nb::arg("enable_gqa") = false, nb::kw_only(), nb::arg("key_lengths") = nb::none(), nb::arg("out") = nb::none(),
             nb::arg("softcap") = 0.0, nb::arg("alibi_slopes") = nb::none(), nb::arg("sink") = nb::none(),
             nb::arg("precision").none() = "strict", nb::arg("query_lengths") = nb::none(), nb::arg("return_lse") = false,
             nb::arg("prefix_lengths") = nb::none(), nb::arg("query_segments") = nb::none(),
             nb::arg("key_segments") = nb::none(), nb::arg("block_mask") = nb::none(), nb::arg("block_size") = nb::none(),
             nb::arg("relative_bias") = nb::none(), nb::arg("score_mod") = nb::none(),
             nb::arg("window_size") = std::pair<std::int64_t, std::int64_t>(-1, -1), nb::arg("sink_token_length") = 0,
             nb::arg("causal") = nb::none(), nb::arg("offsets") = nb::none(), documentation);
}

}  // namespace polyhead::python
