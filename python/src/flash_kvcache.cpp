// flash_attn_with_kvcache: attention over caches that are the caller's own arrays, by flash-attn's argument names. New keys and
// values are written into the caches, rotated on their way where cosines and sines are given; pages and chosen batch items are
// read where they lie.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "errors.hpp"
#include "flash_attention.hpp"
#include "half.hpp"
#include "modules.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::python {

namespace {

float load(const void* at, DType dtype) {
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::f16 ? widen_f16(bits) : widen_bf16(bits);
}

void store(void* at, DType dtype, float value) {
  if (dtype == DType::f32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::f16 ? round_to_f16(value) : round_to_bf16(value);
  std::memcpy(at, &bits, sizeof bits);
}

// cos and sin [positions, pairs] as float32.
struct RotaryTables {
  TensorView cos, sin;
  bool interleaved = true;

  std::int64_t pairs() const { return cos.shape[1]; }
};

// One row of `dim` elements; position < 0: as it is.
void copy_row(const char* from, std::ptrdiff_t from_stride, char* to, std::ptrdiff_t to_stride, std::int64_t dim, DType dtype,
              const RotaryTables* rotary, std::int64_t position) {
  const auto item = static_cast<std::size_t>(size_in_bytes(dtype));
  std::int64_t first = 0;  // elements before it are pairs
  if (rotary) {
    const std::int64_t pairs = rotary->pairs();
    first = 2 * pairs;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const std::int64_t a = rotary->interleaved ? 2 * i : i, b = rotary->interleaved ? 2 * i + 1 : i + pairs;
      const float cos =
          static_cast<const float*>(rotary->cos.data)[position * rotary->cos.strides[0] + i * rotary->cos.strides[1]];
      const float sin =
          static_cast<const float*>(rotary->sin.data)[position * rotary->sin.strides[0] + i * rotary->sin.strides[1]];
      const float x = load(from + a * from_stride, dtype), y = load(from + b * from_stride, dtype);
      store(to + a * to_stride, dtype, x * cos - y * sin);
      store(to + b * to_stride, dtype, x * sin + y * cos);
    }
  }
  for (std::int64_t i = first; i < dim; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, item);
}

std::ptrdiff_t byte_stride(const TensorView& view, int dimension) {
  return view.strides[dimension] * static_cast<std::ptrdiff_t>(size_in_bytes(view.dtype));
}

// Where the cache has an item's positions: pages of page_tokens positions, row b of the table naming those of item b.
struct CachePages {
  std::vector<std::int64_t> table;  // [batch][columns]
  std::int64_t columns = 1, page_tokens = 0;

  std::int64_t page(std::int64_t b, std::int64_t position) const {
    return table[static_cast<std::size_t>(b * columns + position / page_tokens)];
  }
};

// Writes `tokens` [batch, new, heads, dim] at positions lengths[b] and following of a cache [pages, page_tokens, heads, dim].
void append(const TensorView& tokens, const TensorView& cache, const CachePages& pages,
            const std::vector<std::int64_t>& lengths, const RotaryTables* rotary) {
  for (std::int64_t b = 0; b < tokens.shape[0]; ++b) {
    for (std::int64_t t = 0; t < tokens.shape[1]; ++t) {
      const std::int64_t position = lengths[static_cast<std::size_t>(b)] + t;
      const char* from = static_cast<const char*>(tokens.data) + b * byte_stride(tokens, 0) + t * byte_stride(tokens, 1);
      char* to = static_cast<char*>(cache.data) + pages.page(b, position) * byte_stride(cache, 0) +
                 position % pages.page_tokens * byte_stride(cache, 1);
      for (std::int64_t h = 0; h < tokens.shape[2]; ++h) {
        copy_row(from + h * byte_stride(tokens, 2), byte_stride(tokens, 3), to + h * byte_stride(cache, 2),
                 byte_stride(cache, 3), tokens.shape[3], tokens.dtype, rotary, position);
      }
    }
  }
}

[[noreturn]] void unsupported(const std::string& message) {
  throw Error(ErrorCode::unsupported, message);
}

std::optional<RotaryTables> read_rotary(nb::handle cos, nb::handle sin, bool interleaved, const TensorView& query, bool appends,
                                        std::optional<BorrowedArray> (&arrays)[2]) {
  if (cos.is_none() != sin.is_none())
    throw invalid("rotary_cos and rotary_sin: one of them is given, expected both or neither");
  if (cos.is_none()) return std::nullopt;
  if (!appends)
    throw invalid("rotary_cos: is given without k and v, expected them too: keys are rotated on their way into the cache");
  const char* const names[] = {"rotary_cos", "rotary_sin"};
  const nb::handle given[] = {cos, sin};
  for (int i = 0; i < 2; ++i) {
    arrays[i].emplace(given[i], names[i]);
    expect_attention_type(*arrays[i], names[i]);
    const TensorView& view = arrays[i]->view();
    if (view.rank != 2 || 2 * view.shape[1] > query.shape[3] ||
        (i == 1 && (view.shape[0] != arrays[0]->view().shape[0] || view.shape[1] != arrays[0]->view().shape[1]))) {
      throw invalid(std::string(names[i]) + ": is " + describe_array(view) +
                    ", expected [positions, half of the rotated part], of at most " + std::to_string(query.shape[3]) +
                    " elements, the same for both");
    }
    arrays[i]->convert_to_f32();
  }
  return RotaryTables{arrays[0]->view(), arrays[1]->view(), interleaved};
}

nb::object flash_attn_with_kvcache(nb::handle q, nb::handle k_cache, nb::handle v_cache, nb::handle k, nb::handle v,
                                   nb::handle rotary_cos, nb::handle rotary_sin, nb::handle cache_seqlens,
                                   nb::handle cache_batch_idx, nb::handle cache_leftpad, nb::handle block_table,
                                   std::optional<double> softmax_scale, bool causal,
                                   std::pair<std::int64_t, std::int64_t> window_size, double softcap, bool rotary_interleaved,
                                   nb::handle alibi_slopes, std::int64_t, bool return_softmax_lse, nb::handle out,
                                   nb::handle precision, std::int64_t sink_token_length, nb::handle sink) {
  if (!cache_leftpad.is_none()) unsupported("cache_leftpad: is given, expected None (caches begin with their first key)");
  const bool appends = !k.is_none();
  if (appends != !v.is_none()) throw invalid("k and v: one of them is given, expected both or neither");
  const Access access = appends ? Access::write : Access::read;
  const BorrowedArray query = borrow_flash_operand(q, "q", 1), keys = borrow_flash_operand(k_cache, "k_cache", 1, access),
                      values = borrow_flash_operand(v_cache, "v_cache", 1, access);
  expect_same_type(keys, "k_cache", query, "q");
  expect_same_type(values, "v_cache", query, "q");
  const TensorView &q_view = query.view(), &key = keys.view(), &value = values.view();
  const std::int64_t batch = q_view.shape[0], rows = q_view.shape[1], heads = q_view.shape[2], kv_heads = key.shape[2];
  for (int i = 0; i < 3; ++i) {
    const char* const meanings[] = {"the number of batch items or pages", "the length", "the number of heads"};
    expect_equal(value.shape[i], key.shape[i], "v_cache", meanings[i], "k_cache");
  }
  expect_equal(key.shape[3], q_view.shape[3], "k_cache", "the head size (last dimension)", "q");
  if (kv_heads < 1 || heads % kv_heads != 0) {
    throw invalid("k_cache: has " + std::to_string(kv_heads) + " heads, expected a divisor of q's " + std::to_string(heads));
  }

  // Where items lie: in pages, in chosen batch items, which are pages as long as the cache, or one after another.
  CachePages pages;
  pages.page_tokens = key.shape[1];
  const auto check_page = [&](const char* argument, const std::string& place, std::int64_t page) {
    if (page >= 0 && page < key.shape[0]) return;
    throw invalid(std::string(argument) + place + ": is " + std::to_string(page) + ", expected 0 to " +
                  std::to_string(key.shape[0] - 1));
  };
  const bool in_order = block_table.is_none() && cache_batch_idx.is_none();
  const std::optional<BorrowedArray> table = borrow_integers(block_table, "block_table");
  if (table) {
    if (!cache_batch_idx.is_none())
      throw invalid("cache_batch_idx: is given together with block_table, expected only one of them");
    const TensorView& view = table->view();
    if (view.rank != 2 || view.shape[0] != batch) {
      throw invalid("block_table: is " + describe_array(view) + ", expected [" + std::to_string(batch) + ", pages of an item]");
    }
    pages.columns = view.shape[1];
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t i = 0; i < pages.columns; ++i) {
        const std::int64_t at = b * view.strides[0] + i * view.strides[1];
        pages.table.push_back(view.dtype == DType::i32 ? static_cast<const std::int32_t*>(view.data)[at]
                                                       : static_cast<const std::int64_t*>(view.data)[at]);
      }
    }
  } else if (!cache_batch_idx.is_none()) {
    pages.table = read_integers(cache_batch_idx, "cache_batch_idx");
    expect_equal(static_cast<std::int64_t>(pages.table.size()), batch, "cache_batch_idx", "the size", "q's batch");
    for (std::int64_t b = 0; b < batch; ++b) {
      check_page("cache_batch_idx", "[" + std::to_string(b) + "]", pages.table[static_cast<std::size_t>(b)]);
    }
  } else {
    if (key.shape[0] < batch) {
      throw invalid("k_cache: has " + std::to_string(key.shape[0]) + " batch items, expected q's " + std::to_string(batch) +
                    " or more");
    }
    for (std::int64_t b = 0; b < batch; ++b) pages.table.push_back(b);
  }
  const std::int64_t room = pages.columns * pages.page_tokens;

  std::vector<std::int64_t> lengths;
  if (cache_seqlens.is_none()) {
    if (appends) throw invalid("cache_seqlens: is None together with k and v, expected the lengths before them");
    lengths.assign(static_cast<std::size_t>(batch), room);
  } else if (PyLong_Check(cache_seqlens.ptr())) {
    lengths.assign(static_cast<std::size_t>(batch), nb::cast<std::int64_t>(cache_seqlens));
  } else {
    lengths = read_integers(cache_seqlens, "cache_seqlens");
    expect_equal(static_cast<std::int64_t>(lengths.size()), batch, "cache_seqlens", "the size", "q's batch");
  }

  std::optional<BorrowedArray> new_keys, new_values;
  std::int64_t added = 0;
  if (appends) {
    new_keys.emplace(borrow_flash_operand(k, "k", 1));
    new_values.emplace(borrow_flash_operand(v, "v", 1));
    expect_same_type(*new_keys, "k", query, "q");
    expect_same_type(*new_values, "v", query, "q");
    added = new_keys->view().shape[1];
    expect_equal(new_values->view().shape[1], added, "v", "the length", "k");
    for (const auto& [array, argument, cache] : {std::tuple(&*new_keys, "k", &key), std::tuple(&*new_values, "v", &value)}) {
      expect_equal(array->view().shape[0], batch, argument, "the batch size", "q");
      expect_equal(array->view().shape[2], kv_heads, argument, "the number of heads", "the caches");
      expect_equal(array->view().shape[3], cache->shape[3], argument, "the head size (last dimension)", "its cache");
    }
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    if (length < 0 || length > room - added) {
      throw invalid("cache_seqlens[" + std::to_string(b) + "]: is " + std::to_string(length) + ", expected 0 to " +
                    std::to_string(room - added) + (added ? ", which leaves room for k" : ""));
    }
    for (std::int64_t i = 0; table && i * pages.page_tokens < length + added; ++i) {
      check_page("block_table", "[" + std::to_string(b) + ", " + std::to_string(i) + "]",
                 pages.table[static_cast<std::size_t>(b * pages.columns + i)]);
    }
  }
  std::optional<BorrowedArray> rotary_arrays[2];
  const std::optional<RotaryTables> rotary =
      read_rotary(rotary_cos, rotary_sin, rotary_interleaved, q_view, appends, rotary_arrays);
  const bool rows_advance = causal || window_size.first != -1 || window_size.second != -1;
  if (rotary) {
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t most = lengths[static_cast<std::size_t>(b)] + std::max(added, rows_advance ? rows : std::int64_t{1});
      if (most <= rotary->cos.shape[0]) continue;
      throw invalid("rotary_cos: has " + std::to_string(rotary->cos.shape[0]) + " positions, expected " + std::to_string(most) +
                    " or more for batch item " + std::to_string(b));
    }
  }

  AttentionInputs inputs;
  inputs.query = heads_first(q_view, 1);
  inputs.key = heads_first(key, 1);
  inputs.value = heads_first(value, 1);
  std::vector<char> rotated;
  if (rotary) {
    rotated.resize(static_cast<std::size_t>(batch * rows * heads * q_view.shape[3] * size_in_bytes(q_view.dtype)));
    TensorView turned(rotated.data(), q_view.dtype, 4, q_view.shape.data());
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t < rows; ++t) {
        const std::int64_t position = lengths[static_cast<std::size_t>(b)] + (rows_advance ? t : 0);
        for (std::int64_t h = 0; h < heads; ++h) {
          const auto row = [&](const TensorView& view) {
            return static_cast<char*>(view.data) + b * byte_stride(view, 0) + t * byte_stride(view, 1) +
                   h * byte_stride(view, 2);
          };
          copy_row(row(q_view), byte_stride(q_view, 3), row(turned), byte_stride(turned, 3), q_view.shape[3], q_view.dtype,
                   &*rotary, position);
        }
      }
    }
    inputs.query = heads_first(turned, 1);
  }
  if (appends) {
    append(new_keys->view(), key, pages, lengths, rotary ? &*rotary : nullptr);
    append(new_values->view(), value, pages, lengths, nullptr);
  }
  for (std::int64_t& length : lengths) length += added;

  if (in_order) {
    inputs.key.shape[0] = inputs.value.shape[0] = batch;
  } else {
    inputs.block_table = TensorView(pages.table.data(), DType::i64, {batch, pages.columns});
  }
  inputs.key_lengths = view_of(lengths);
  std::vector<std::int64_t> diagonals(lengths);
  for (std::int64_t& diagonal : diagonals) diagonal -= rows;
  nb::object result = run_flash(q, query, 1, inputs, Mask::key_lengths(),
                                {0.0, softmax_scale, causal, window_size, sink_token_length, softcap, alibi_slopes, sink,
                                 return_softmax_lse, out, precision},
                                diagonals);
  if (!return_softmax_lse) return result;
  return nb::make_tuple(result[0], result[1]);
}

constexpr const char* documentation =
    R"(Attention over caches of keys and values, by the argument names and conventions of flash-attn's flash_attn_with_kvcache.

q: float32, float16 or bfloat16 [batch, length, heads, dim]. k_cache, v_cache, of the same data type: [batch or more, room, kv heads,
...], or with block_table (int32 or int64 [batch, pages of an item]) pages [pages, tokens of a page, kv heads, ...]; NumPy arrays or
PyTorch tensors, read where they lie. cache_seqlens: how many positions of each item there are, one integer or [batch]; None: all.
cache_batch_idx: [batch], which items of the caches (None: the first; not with block_table). Both need caches whose items or pages
lie equally far apart.
k, v: [batch, new, kv heads, ...], written into the caches behind cache_seqlens and seen by q. rotary_cos, rotary_sin: [positions,
half of the rotated part]: k on its way into the cache and q are rotated, element pairs being neighbours (rotary_interleaved=True)
or halves of the rotated part; q's rows stand at cache_seqlens and following, or all at cache_seqlens without causal and window.
causal is bottom-right: the last query sees the last key, and window_size and alibi_slopes count from there. num_splits changes
nothing. Returns out [batch, length, heads, v's dim], and with return_softmax_lse=True (out, float32 softmax_lse [batch, heads,
length]). cache_leftpad: None. The others as in flash_attn_func. A polyhead.KvCache as k_cache (and None as v_cache) serves too: see
polyhead.flash_attn_with_kvcache.)";

}  // namespace

void register_flash_kvcache(nb::module_& module) {
  module.def(
      "flash_attn_with_kvcache", &flash_attn_with_kvcache,
      nb::sig(
          "def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
          "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
          "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
          "return_softmax_lse=False, *, out=None, precision='strict', sink_token_length=0, sink=None)"),
      nb::arg("q").none(), nb::arg("k_cache").none(), nb::arg("v_cache").none(), nb::arg("k") = nb::none(),
      nb::arg("v") = nb::none(), nb::arg("rotary_cos") = nb::none(), nb::arg("rotary_sin") = nb::none(),
      nb::arg("cache_seqlens") = nb::none(), nb::arg("cache_batch_idx") = nb::none(), nb::arg("cache_leftpad") = nb::none(),
      nb::arg("block_table") = nb::none(), nb::arg("softmax_scale") = nb::none(), nb::arg("causal") = false,
      nb::arg("window_size") = std::pair<std::int64_t, std::int64_t>(-1, -1), nb::arg("softcap") = 0.0,
      nb::arg("rotary_interleaved") = true, nb::arg("alibi_slopes") = nb::none(), nb::arg("num_splits") = 0,
      nb::arg("return_softmax_lse") = false, nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("precision").none() = "strict",
      nb::arg("sink_token_length") = 0, nb::arg("sink") = nb::none(), documentation);
}

}  // namespace polyhead::python
