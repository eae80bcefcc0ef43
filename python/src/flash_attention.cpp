// flash_attn_func and flash_attn_varlen_func: attention by the argument names of the flash-attn package.
//
// Its conventions: heads come after positions; causal is bottom-right; windows and ALiBi count from that diagonal, causal or
// not.
#include "flash_attention.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::python {

TensorView heads_first(const TensorView& array, int batch_rank) {
  TensorView view = array;
  view.rank = 4;
  view.shape[0] = batch_rank ? array.shape[0] : 1;
  view.strides[0] = batch_rank ? array.strides[0] : 0;
  const int from = batch_rank;
  view.shape[1] = array.shape[from + 1], view.strides[1] = array.strides[from + 1];
  view.shape[2] = array.shape[from], view.strides[2] = array.strides[from];
  view.shape[3] = array.shape[from + 2], view.strides[3] = array.strides[from + 2];
  return view;
}

BorrowedArray borrow_flash_operand(nb::handle array, const char* argument, int batch_rank, Access access) {
  BorrowedArray operand(array, argument, access);
  expect_attention_type(operand, argument);
  if (operand.view().rank == batch_rank + 3) return operand;
  throw invalid(std::string(argument) + ": is " + describe_array(operand.view()) + ", expected " +
                (batch_rank ? "[batch, length, heads, dim]" : "[total length, heads, dim]"));
}

void expect_equal(std::int64_t size, std::int64_t expected, const char* argument, const char* meaning, const char* other) {
  if (size == expected) return;
  throw invalid(std::string(argument) + ": " + meaning + " is " + std::to_string(size) + ", expected " +
                std::to_string(expected) + " as in " + other);
}

std::vector<std::int64_t> read_integers(nb::handle array, const char* argument) {
  const std::optional<BorrowedArray> borrowed = borrow_integers(array, argument);
  if (!borrowed) throw_type_error(std::string(argument) + ": is None, expected int32 or int64 numbers");
  const TensorView& view = borrowed->view();
  if (view.rank != 1) throw invalid(std::string(argument) + ": is " + describe_array(view) + ", expected one dimension");
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(view.shape[0]));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * view.strides[0];
    numbers[i] = view.dtype == DType::i32 ? static_cast<const std::int32_t*>(view.data)[at]
                                          : static_cast<const std::int64_t*>(view.data)[at];
  }
  return numbers;
}

namespace {

// cu_seqlens: 0, then where each sequence ends; the last at most `total`. `longest` is what the caller says of them.
std::vector<std::int64_t> read_ends(nb::handle array, const char* argument, std::int64_t total, std::int64_t longest,
                                    const char* longest_argument) {
  std::vector<std::int64_t> ends = read_integers(array, argument);
  const auto wrong = [&](std::size_t i, const std::string& expected) {
    return invalid(std::string(argument) + "[" + std::to_string(i) + "]: is " + std::to_string(ends[i]) + ", expected " +
                   expected);
  };
  if (ends.empty()) throw invalid(std::string(argument) + ": is empty, expected 0 and the end of each sequence");
  if (ends[0] != 0) throw wrong(0, "0");
  std::int64_t most = 0;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] < ends[i - 1] || ends[i] > total) throw wrong(i, std::to_string(ends[i - 1]) + " to " + std::to_string(total));
    most = std::max(most, ends[i] - ends[i - 1]);
  }
  if (longest < most) {
    throw invalid(std::string(longest_argument) + ": is " + std::to_string(longest) + ", expected at least " +
                  std::to_string(most) + ", the longest sequence of " + argument);
  }
  return ends;
}

}  // namespace

TensorView view_of(const std::vector<std::int64_t>& numbers) {
  return TensorView(numbers.data(), DType::i64, {static_cast<std::int64_t>(numbers.size())});
}

nb::object run_flash(nb::handle q, const BorrowedArray& query, int batch_rank, AttentionInputs inputs, Mask mask,
                     const FlashOptions& given, const std::vector<std::int64_t>& diagonals) {
  if (given.dropout_p != 0) {
    throw Error(ErrorCode::unsupported,
                "dropout_p: is " + std::to_string(given.dropout_p) + ", expected 0 (Polyhead runs inference only)");
  }
  const auto [left, right] = given.window_size;
  mask = mask & to_window(given.window_size, given.sink_token_length);
  AttentionOptions options;
  options.scale = given.softmax_scale;
  options.softcap = given.softcap;
  options.precision = to_precision(given.precision);
  const std::optional<BorrowedArray> slopes = borrow_head_numbers(given.alibi_slopes, "alibi_slopes", inputs.query.shape[1]);
  if (slopes) {
    const TensorView& view = slopes->view();
    const std::int64_t batch = mask.is_packed ? static_cast<std::int64_t>(diagonals.size()) : inputs.query.shape[0];
    if (view.rank > 2 || (view.rank == 2 && view.shape[0] != batch)) {
      const std::string heads = std::to_string(inputs.query.shape[1]);
      throw invalid("alibi_slopes: is " + describe_array(view) + ", expected float32[" + heads + "] or float32[" +
                    std::to_string(batch) + ", " + heads + "], a number for each query head");
    }
    options.has_alibi = true;
    inputs.alibi_slopes = slopes->view();
  }
  const std::optional<BorrowedArray> sinks = borrow_head_numbers(given.sink, "sink", inputs.query.shape[1]);
  if (sinks) {
    options.has_sink = true;
    inputs.sink = sinks->view();
  }
  if (given.causal) {
    mask = mask & Mask::causal(Causal::bottom_right);
  } else if (left != -1 || right != -1 || slopes) {
    mask = mask & Mask::offsets();
    inputs.offsets = view_of(diagonals);
  }
  options.mask = mask;

  const TensorView& q_view = query.view();
  TensorView::Dims shape = q_view.shape;
  shape[batch_rank + 2] = inputs.value.shape[3];
  nb::object result = given.out.is_none() ? new_array_like(q, query, batch_rank + 3, shape.data()) : nb::borrow(given.out);
  const BorrowedArray out(result, "out", Access::write);
  expect_same_type(out, "out", query, "q");
  if (out.view().rank != batch_rank + 3 ||
      !std::equal(shape.begin(), shape.begin() + batch_rank + 3, out.view().shape.begin())) {
    TensorView wanted;
    wanted.dtype = q_view.dtype;
    wanted.rank = batch_rank + 3;
    wanted.shape = shape;
    throw invalid("out: is " + describe_array(out.view()) + ", expected " + describe_array(wanted));
  }
  inputs.out = heads_first(out.view(), batch_rank);
  nb::object lse_result;
  std::optional<BorrowedArray> lse;
  if (given.return_attn_probs) {
    const std::int64_t lse_shape[] = {inputs.query.shape[0], inputs.query.shape[1], inputs.query.shape[2]};
    lse_result = new_f32_array(query, batch_rank + 2, lse_shape + 1 - batch_rank);
    lse.emplace(lse_result, "softmax_lse", Access::write);
    inputs.lse = TensorView(lse->view().data, DType::f32, 3, lse_shape);
  }
  const Runtime runtime = default_runtime();
  {
    const nb::gil_scoped_release release;
    attention(runtime, inputs, options);
  }
  if (!given.return_attn_probs) return result;
  return nb::make_tuple(result, lse_result, nb::none());
}

namespace {

// Heads and head sizes, which are the last two dimensions, and that keys have values.
void expect_heads(const BorrowedArray& query, const BorrowedArray& key, const BorrowedArray& value) {
  const TensorView &q = query.view(), &k = key.view(), &v = value.view();
  expect_same_type(key, "k", query, "q");
  expect_same_type(value, "v", query, "q");
  expect_equal(k.shape[k.rank - 1], q.shape[q.rank - 1], "k", "the head size (last dimension)", "q");
  expect_equal(v.shape[v.rank - 3], k.shape[k.rank - 3], "v", "the length", "k");
  expect_equal(v.shape[v.rank - 2], k.shape[k.rank - 2], "v", "the number of heads", "k");
  const std::int64_t heads = q.shape[q.rank - 2], kv_heads = k.shape[k.rank - 2];
  if (kv_heads < 1 || heads % kv_heads != 0) {
    throw invalid("k: has " + std::to_string(kv_heads) + " heads, expected a divisor of q's " + std::to_string(heads));
  }
}

nb::object flash_attn_func(nb::handle q, nb::handle k, nb::handle v, double dropout_p, std::optional<double> softmax_scale,
                           bool causal, std::pair<std::int64_t, std::int64_t> window_size, double softcap,
                           nb::handle alibi_slopes, bool, bool return_attn_probs, nb::handle out, nb::handle precision,
                           std::int64_t sink_token_length, nb::handle sink) {
  const BorrowedArray query = borrow_flash_operand(q, "q", 1), key = borrow_flash_operand(k, "k", 1),
                      value = borrow_flash_operand(v, "v", 1);
  expect_heads(query, key, value);
  expect_equal(key.view().shape[0], query.view().shape[0], "k", "the batch size", "q");
  expect_equal(value.view().shape[0], query.view().shape[0], "v", "the batch size", "q");
  AttentionInputs inputs;
  inputs.query = heads_first(query.view(), 1);
  inputs.key = heads_first(key.view(), 1);
  inputs.value = heads_first(value.view(), 1);
  const std::vector<std::int64_t> diagonals(static_cast<std::size_t>(inputs.query.shape[0]),
                                            inputs.key.shape[2] - inputs.query.shape[2]);
  return run_flash(q, query, 1, inputs, Mask::none(),
                   {dropout_p, softmax_scale, causal, window_size, sink_token_length, softcap, alibi_slopes, sink,
                    return_attn_probs, out, precision},
                   diagonals);
}

// Pages [pages, page size, kv heads, dim].
BorrowedArray borrow_pages(nb::handle array, const char* argument) {
  BorrowedArray pages(array, argument);
  expect_attention_type(pages, argument);
  const TensorView& view = pages.view();
  if (view.rank == 4 && view.shape[3] > 1 && view.strides[3] != 1) {
    throw invalid(std::string(argument) + ": has a stride of " + std::to_string(view.strides[3]) +
                  " in its last dimension, expected 1 with block_table");
  }
  if (view.rank == 4) return pages;
  throw invalid(std::string(argument) + ": is " + describe_array(pages.view()) +
                ", expected [pages, page size, heads, dim] with block_table");
}

// [sequences, pages of a sequence].
const TensorView& check_table(const std::optional<BorrowedArray>& table, std::size_t sequences) {
  const TensorView& view = table->view();
  if (view.rank == 2 && view.shape[0] == static_cast<std::int64_t>(sequences)) return view;
  throw invalid("block_table: is " + describe_array(view) + ", expected [" + std::to_string(sequences) +
                ", pages of a sequence]");
}

nb::object flash_attn_varlen_func(nb::handle q, nb::handle k, nb::handle v, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k,
                                  std::int64_t max_seqlen_q, std::int64_t max_seqlen_k, double dropout_p,
                                  std::optional<double> softmax_scale, bool causal,
                                  std::pair<std::int64_t, std::int64_t> window_size, double softcap, nb::handle alibi_slopes,
                                  bool, bool return_attn_probs, nb::handle block_table, nb::handle seqused_q,
                                  nb::handle seqused_k, nb::handle out, nb::handle precision, std::int64_t sink_token_length,
                                  nb::handle sink) {
  const std::optional<BorrowedArray> table = borrow_integers(block_table, "block_table");
  const BorrowedArray query = borrow_flash_operand(q, "q", 0);
  const BorrowedArray key = table ? borrow_pages(k, "k") : borrow_flash_operand(k, "k", 0);
  const BorrowedArray value = table ? borrow_pages(v, "v") : borrow_flash_operand(v, "v", 0);
  expect_heads(query, key, value);
  if (table) {
    expect_equal(value.view().shape[0], key.view().shape[0], "v", "the number of pages", "k");
    if (key.view().shape[0] > 1) {
      expect_equal(value.view().strides[0], key.view().strides[0], "v", "the distance of pages, in elements,", "k");
    }
  }
  AttentionInputs inputs;
  inputs.query = heads_first(query.view(), 0);
  inputs.key = heads_first(key.view(), table ? 1 : 0);
  inputs.value = heads_first(value.view(), table ? 1 : 0);
  const std::vector<std::int64_t> query_ends =
      read_ends(cu_seqlens_q, "cu_seqlens_q", query.view().shape[0], max_seqlen_q, "max_seqlen_q");
  const std::size_t count = query_ends.size() - 1;
  // What a sequence has room for in its pages; where keys are packed they are in one array.
  std::int64_t room = key.view().shape[0], all_keys = room;
  if (table) {
    inputs.block_table = check_table(table, count);
    if (__builtin_mul_overflow(inputs.block_table.shape[1], key.view().shape[1], &room) ||
        __builtin_mul_overflow(room, static_cast<std::int64_t>(count), &all_keys)) {
      throw invalid("block_table: is " + describe_array(inputs.block_table) + " of pages of " +
                    std::to_string(key.view().shape[1]) + " keys, expected one whose keys can be counted");
    }
  }
  std::vector<std::int64_t> key_ends;
  if (table && !seqused_k.is_none()) {  // whatever cu_seqlens_k says, which callers leave unset then
    for (std::size_t i = 0; i <= count; ++i) key_ends.push_back(static_cast<std::int64_t>(i) * room);
  } else {
    key_ends = read_ends(cu_seqlens_k, "cu_seqlens_k", all_keys, max_seqlen_k, "max_seqlen_k");
    expect_equal(static_cast<std::int64_t>(key_ends.size()), static_cast<std::int64_t>(count + 1), "cu_seqlens_k", "the size",
                 "cu_seqlens_q");
  }
  for (std::size_t i = 0; table && i < count; ++i) {
    const std::int64_t length = key_ends[i + 1] - key_ends[i];
    if (length <= room) continue;
    throw invalid("cu_seqlens_k: sequence " + std::to_string(i) + " has " + std::to_string(length) +
                  " keys, expected at most " + std::to_string(room) + ", the room of its row of block_table");
  }
  Mask mask = Mask::packed();
  inputs.cumulative_query_lengths = view_of(query_ends);
  if (!table) inputs.cumulative_key_lengths = view_of(key_ends);
  const auto lengths_of = [&](nb::handle used, const char* argument, const std::vector<std::int64_t>& ends) {
    std::vector<std::int64_t> lengths;
    if (!used.is_none()) lengths = read_integers(used, argument);
    if (!used.is_none()) {
      expect_equal(static_cast<std::int64_t>(lengths.size()), static_cast<std::int64_t>(count), argument, "the size",
                   "the number of sequences");
    }
    lengths.resize(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t whole = ends[i + 1] - ends[i];
      if (used.is_none()) lengths[i] = whole;
      if (lengths[i] < 0 || lengths[i] > whole) {
        throw invalid(std::string(argument) + "[" + std::to_string(i) + "]: is " + std::to_string(lengths[i]) +
                      ", expected 0 to " + std::to_string(whole));
      }
    }
    return lengths;
  };
  const std::vector<std::int64_t> query_lengths = lengths_of(seqused_q, "seqused_q", query_ends);
  const std::vector<std::int64_t> key_lengths = lengths_of(seqused_k, "seqused_k", key_ends);
  if (table && !key_lengths.empty()) {
    const std::int64_t longest = *std::max_element(key_lengths.begin(), key_lengths.end());
    if (max_seqlen_k < longest) {
      throw invalid("max_seqlen_k: is " + std::to_string(max_seqlen_k) + ", expected at least " + std::to_string(longest) +
                    ", the longest of seqused_k");
    }
  }
  if (!seqused_q.is_none()) {
    mask = mask & Mask::query_lengths();
    inputs.query_lengths = view_of(query_lengths);
  }
  if (table || !seqused_k.is_none()) {
    mask = mask & Mask::key_lengths();
    inputs.key_lengths = view_of(key_lengths);
  }
  std::vector<std::int64_t> diagonals(count);
  for (std::size_t i = 0; i < count; ++i) diagonals[i] = key_lengths[i] - query_lengths[i];
  return run_flash(q, query, 0, inputs, mask,
                   {dropout_p, softmax_scale, causal, window_size, sink_token_length, softcap, alibi_slopes, sink,
                    return_attn_probs, out, precision},
                   diagonals);
}

constexpr const char* documentation =
    R"(Attention by the argument names and conventions of flash-attn's flash_attn_func, on the CPU.

q: float32, float16 or bfloat16 [batch, length, heads, dim]; k and v, of the same data type: [batch, key length, kv heads, ...],
kv heads a divisor of heads. NumPy arrays or PyTorch tensors of any strides, read in place; v's head size may be another than k's.
Returns out [batch, length, heads, v's dim] of q's data type, and with return_attn_probs=True (out, float32 softmax_lse
[batch, heads, length], None).
causal is bottom-right: the last query sees the last key. window_size (left, right) is inclusive, -1 is no limit, and counts from
the same diagonal, as alibi_slopes ([heads] or [batch, heads], float32, float16 or bfloat16) does. sink_token_length: so many first keys of each batch
item are seen whatever the window's left side says. sink: [heads] of these types; exp(sink[h]) is added to the
softmax's denominator, softmax_lse included, as of a key whose value is 0. A query that sees no key gives zeros. deterministic
changes nothing: results always are. dropout_p: 0, nothing else. out: written to and returned. precision: "strict" or "fast".)";

constexpr const char* varlen_documentation =
    R"(Attention over sequences of different lengths that lie one after another, by the argument names and conventions of
flash-attn's flash_attn_varlen_func, on the CPU. Nothing is padded, and the work is that of the lengths' products.

q: [total queries, heads, dim]; k and v: [total keys, kv heads, ...]. cu_seqlens_q, cu_seqlens_k: int32 or int64
[sequences + 1], 0 and then where each sequence ends. max_seqlen_q, max_seqlen_k: at least the longest. seqused_q, seqused_k
(optional, [sequences]): how many rows of each sequence are there; queries beyond give zeros. Returns out [total queries, heads,
v's dim], and with return_attn_probs=True (out, softmax_lse [heads, total queries], None).
block_table (optional, int32 or int64 [sequences, pages of a sequence]): k and v are pages [pages, page size, kv heads, ...], equally far
apart, and key s of sequence i is in page block_table[i, s // page size], at s % page size; cu_seqlens_k then says lengths alone, and
beside seqused_k, which says them too, nothing. Data types and the others as in flash_attn_func.)";

}  // namespace

void register_flash_attention(nb::module_& module) {
  module.def("flash_attn_func", &flash_attn_func,
             nb::sig("def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), "
                     "softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, *, out=None, "
                     "precision='strict', sink_token_length=0, sink=None)"),
             nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("dropout_p") = 0.0,
             nb::arg("softmax_scale") = nb::none(), nb::arg("causal") = false,
             nb::arg("window_size") = std::pair<std::int64_t, std::int64_t>(-1, -1), nb::arg("softcap") = 0.0,
             nb::arg("alibi_slopes") = nb::none(), nb::arg("deterministic") = false, nb::arg("return_attn_probs") = false,
             nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("precision").none() = "strict",
             nb::arg("sink_token_length") = 0, nb::arg("sink") = nb::none(), documentation);
  module.def(
      "flash_attn_varlen_func", &flash_attn_varlen_func,
      nb::sig("def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
              "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, "
              "return_attn_probs=False, block_table=None, *, seqused_q=None, seqused_k=None, out=None, precision='strict', "
              "sink_token_length=0, sink=None)"),
      nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("cu_seqlens_q").none(),
      nb::arg("cu_seqlens_k").none(), nb::arg("max_seqlen_q"), nb::arg("max_seqlen_k"), nb::arg("dropout_p") = 0.0,
      nb::arg("softmax_scale") = nb::none(), nb::arg("causal") = false,
      nb::arg("window_size") = std::pair<std::int64_t, std::int64_t>(-1, -1), nb::arg("softcap") = 0.0,
      nb::arg("alibi_slopes") = nb::none(), nb::arg("deterministic") = false, nb::arg("return_attn_probs") = false,
      nb::arg("block_table") = nb::none(), nb::kw_only(), nb::arg("seqused_q") = nb::none(), nb::arg("seqused_k") = nb::none(),
      nb::arg("out") = nb::none(), nb::arg("precision").none() = "strict", nb::arg("sink_token_length") = 0,
      nb::arg("sink") = nb::none(), varlen_documentation);
}

}  // namespace polyhead::python
