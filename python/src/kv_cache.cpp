// KvCache: keys and values of past tokens, and attention over them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/attention.hpp"
#include "polyhead/kv_cache.hpp"
#include "score_mod.hpp"

namespace polyhead::python {

namespace {

// Calls run without the GIL, so a cache guards itself: those that change it wait for those that read it. Locks are taken after
// the GIL has been given up, never the other way round.
class Cache {
 public:
  explicit Cache(KvCache cache) : cache_(std::move(cache)) {}

  template <class Function>
  decltype(auto) read(const Function& function) const {
    const nb::gil_scoped_release release;
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    return function(cache_);
  }
  template <class Function>
  decltype(auto) change(const Function& function) {
    const nb::gil_scoped_release release;
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    return function(cache_);
  }
  const KvCacheSpec& spec() const { return cache_.spec(); }

 private:
  mutable std::shared_mutex mutex_;
  KvCache cache_;
};

template <class Value, std::size_t count>
Value one_of(nb::handle given, const char* argument, const std::pair<const char*, Value> (&known)[count]) {
  std::string expected;
  for (const auto& [text, value] : known) {
    if (PyUnicode_Check(given.ptr()) && PyUnicode_CompareWithASCIIString(given.ptr(), text) == 0) return value;
    expected += std::string(expected.empty() ? "'" : ", '") + text + "'";
  }
  const std::string message = std::string(argument) + ": is " + nb::repr(given).c_str() + ", expected one of " + expected;
  if (!PyUnicode_Check(given.ptr())) throw_type_error(message);
  throw invalid(message);
}

void make(Cache* self, nb::handle kind, std::int64_t sequences, std::int64_t kv_heads, std::int64_t head_dim,
          std::optional<std::int64_t> value_dim, std::int64_t capacity, std::int64_t window, std::int64_t page_tokens,
          std::int64_t max_pages, nb::handle rotary, std::int64_t rotary_dims, double rotary_base,
          const std::optional<std::vector<double>>& rotary_frequencies, nb::handle dtype) {
  static constexpr std::pair<const char*, CacheKind> kinds[] = {
      {"contiguous", CacheKind::contiguous}, {"ring", CacheKind::ring}, {"paged", CacheKind::paged}};
  static constexpr std::pair<const char*, Rotary> styles[] = {{"interleaved", Rotary::interleaved},
                                                              {"half_split", Rotary::half_split}};
  static constexpr std::pair<const char*, DType> types[] = {
      {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}, {"int8", DType::i8}};
  KvCacheSpec spec;
  spec.kind = one_of(kind, "kind", kinds);
  spec.sequences = sequences;
  spec.kv_heads = kv_heads;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim.value_or(0);
  spec.capacity = capacity;
  spec.window = window;
  spec.page_tokens = page_tokens;
  spec.max_pages = max_pages;
  if (!rotary.is_none()) spec.rotary.style = one_of(rotary, "rotary", styles);
  spec.rotary.dims = rotary_dims;
  spec.rotary.base = rotary_base;
  if (rotary_frequencies) spec.rotary.frequencies = *rotary_frequencies;
  spec.dtype = one_of(dtype, "dtype", types);
  new (self) Cache(KvCache(spec));
}

TensorView view_of(const std::optional<BorrowedArray>& array) {
  return array ? array->view() : TensorView();
}

BorrowedArray borrow_rows(nb::handle array, const char* argument) {
  BorrowedArray rows(array, argument);
  expect_attention_type(rows, argument);
  if (rows.view().rank != 4) {
    throw invalid(std::string(argument) + ": is " + describe_array(rows.view()) + ", expected [batch, heads, length, dim]");
  }
  return rows;
}

void append(Cache& cache, nb::handle key, nb::handle value, nb::handle sequences, nb::handle lengths, nb::handle positions) {
  const BorrowedArray keys = borrow_rows(key, "key"), values = borrow_rows(value, "value");
  const std::optional<BorrowedArray> which = borrow_integers(sequences, "sequences"),
                                     counts = borrow_integers(lengths, "lengths"),
                                     where = borrow_integers(positions, "positions");
  CacheAppend tokens;
  tokens.key = keys.view();
  tokens.value = values.view();
  tokens.sequences = view_of(which);
  tokens.lengths = view_of(counts);
  tokens.positions = view_of(where);
  cache.change([&](KvCache& held) { held.append(tokens); });
}

// What is given, or an array of query's own type.
nb::object output(nb::handle given, nb::handle query_array, const BorrowedArray& query, std::int64_t last) {
  if (!given.is_none()) return nb::borrow(given);
  const TensorView& view = query.view();
  const std::int64_t shape[] = {view.shape[0], view.shape[1], view.shape[2], last};
  return new_array_like(query_array, query, 4, shape);
}

// What attention over a cache and its weights are both called with, but for the query.
struct Scores {
  nb::handle sequences, attn_mask;
  bool is_causal;
  std::optional<std::int64_t> window;
  std::optional<double> scale;
  double softcap;
  nb::handle alibi_slopes, sink, relative_bias, score_mod;
  std::int64_t sink_token_length;
  nb::handle offsets;
  // Of attention alone.
  nb::handle cu_seqlens_q = nb::none(), query_lengths = nb::none(), prefix_lengths = nb::none(), block_mask = nb::none();
  std::optional<std::pair<std::int64_t, std::int64_t>> block_size{};
};

// The same as a call takes it, and what keeps its memory in place.
class ScoreOperands {
 public:
  ScoreOperands(const BorrowedArray& queries, const Scores& given)
      : which_(borrow_integers(given.sequences, "sequences")),
        mask_(borrow_mask(given.attn_mask)),
        diagonals_(borrow_integers(given.offsets, "offsets")),
        query_ends_(borrow_integers(given.cu_seqlens_q, "cu_seqlens_q")),
        query_counts_(borrow_integers(given.query_lengths, "query_lengths")),
        prefixes_(borrow_integers(given.prefix_lengths, "prefix_lengths")),
        slopes_(borrow_head_numbers(given.alibi_slopes, "alibi_slopes", queries.view().shape[1])),
        sinks_(borrow_head_numbers(given.sink, "sink", queries.view().shape[1])),
        table_(borrow_relative_bias(given.relative_bias, options.relative_bias)),
        blocks_(borrow_blocks(given.block_mask, given.block_size, options.mask)),
        mod_(given.score_mod) {
    options.mask.causality = given.is_causal ? Causal::bottom_right : Causal::none;
    options.mask.has_offsets = diagonals_.has_value();
    if (given.is_causal && diagonals_) {
      throw invalid("offsets: is given together with is_causal=True, expected it with is_causal=False");
    }
    if (given.window && *given.window < 1) {
      throw invalid("window: is " + std::to_string(*given.window) + ", expected 1 key or more, or None");
    }
    options.mask = options.mask & to_window({given.window.value_or(0) - 1, -1}, given.sink_token_length);
    options.mask.is_packed = query_ends_.has_value();
    options.mask.has_query_lengths = query_counts_.has_value();
    options.mask.has_prefix = prefixes_.has_value();
    if (query_ends_ && queries.view().shape[0] != 1) {
      throw invalid("query: has a batch of " + std::to_string(queries.view().shape[0]) + ", expected 1 with cu_seqlens_q");
    }
    options.scale = given.scale;
    options.softcap = given.softcap;
    options.has_alibi = slopes_.has_value();
    options.has_sink = sinks_.has_value();
    options.score_mod = mod_.view();
    inputs.query = queries.view();
    inputs.sequences = view_of(which_);
    inputs.offsets = view_of(diagonals_);
    inputs.cumulative_query_lengths = view_of(query_ends_);
    inputs.query_lengths = view_of(query_counts_);
    inputs.prefix_lengths = view_of(prefixes_);
    inputs.block_mask = view_of(blocks_);
    inputs.alibi_slopes = view_of(slopes_);
    inputs.sink = view_of(sinks_);
    inputs.relative_bias_table = view_of(table_);
    if (mask_) place_of_mask(*mask_, options.mask, inputs) = mask_->view();
  }

  // Calls function() with the cache among the inputs. What a score modification's Python function raised is raised.
  template <class Function>
  void over(const Cache& cache, const Function& function) {
    try {
      cache.read([&](const KvCache& held) {
        inputs.cache = &held;
        function();
      });
    } catch (const Error&) {
      mod_.raise();
      throw;
    }
  }

  AttentionOptions options;
  CachedAttentionInputs inputs;

 private:
  std::optional<BorrowedArray> which_, mask_, diagonals_, query_ends_, query_counts_, prefixes_, slopes_, sinks_, table_,
      blocks_;
  BorrowedScoreMod mod_;
};

nb::object attend(const Cache& cache, nb::handle query, nb::handle sequences, nb::handle attn_mask, bool is_causal,
                  std::optional<std::int64_t> window, std::optional<double> scale, double softcap, nb::handle alibi_slopes,
                  nb::handle sink, nb::handle precision, nb::handle out, nb::handle relative_bias, nb::handle score_mod,
                  std::int64_t sink_token_length, bool return_lse, nb::handle offsets, nb::handle cu_seqlens_q,
                  nb::handle query_lengths, nb::handle prefix_lengths, nb::handle block_mask,
                  std::optional<std::pair<std::int64_t, std::int64_t>> block_size) {
  const BorrowedArray queries = borrow_rows(query, "query");
  ScoreOperands scores(queries,
                       {sequences, attn_mask, is_causal, window, scale, softcap, alibi_slopes, sink, relative_bias, score_mod,
                        sink_token_length, offsets, cu_seqlens_q, query_lengths, prefix_lengths, block_mask, block_size});
  const nb::object result = output(out, query, queries, cache.spec().value_dim);
  const BorrowedArray target(result, "out", Access::write);
  expect_attention_type(target, "out");
  scores.options.precision = to_precision(precision);
  scores.inputs.out = target.view();
  nb::object lse_result;
  std::optional<BorrowedArray> lse;
  if (return_lse) {
    lse_result = new_f32_array(queries, 3, queries.view().shape.data());
    scores.inputs.lse = lse.emplace(lse_result, "lse", Access::write).view();
  }
  const Runtime runtime = default_runtime();
  scores.over(cache, [&] { attention(runtime, scores.inputs, scores.options); });
  if (return_lse) return nb::make_tuple(result, lse_result);
  return result;
}

// The longest of the sequences that rows belong to. Numbers that are no sequence's are left to the call to refuse.
std::int64_t longest_length(const Cache& cache, const TensorView& sequences, std::int64_t batch) {
  return cache.read([&](const KvCache& held) {
    std::int64_t longest = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      std::int64_t index = b;
      if (!sequences.empty()) {
        if (sequences.rank == 0 || b >= sequences.shape[0]) break;
        const std::int64_t at = b * sequences.strides[0];
        index = sequences.dtype == DType::i32 ? static_cast<const std::int32_t*>(sequences.data)[at]
                                              : static_cast<const std::int64_t*>(sequences.data)[at];
      }
      if (index >= 0 && index < held.spec().sequences) longest = std::max(longest, held.length(index));
    }
    return longest;
  });
}

nb::object weights_of(const Cache& cache, nb::handle query, nb::handle sequences, nb::handle attn_mask, bool is_causal,
                      std::optional<std::int64_t> window, std::optional<double> scale, nb::handle heads, nb::handle rows,
                      bool received, double softcap, nb::handle alibi_slopes, nb::handle sink, nb::handle relative_bias,
                      nb::handle score_mod, std::int64_t sink_token_length, nb::handle offsets) {
  const BorrowedArray queries = borrow_rows(query, "query");
  ScoreOperands scores(queries, {sequences, attn_mask, is_causal, window, scale, softcap, alibi_slopes, sink, relative_bias,
                                 score_mod, sink_token_length, offsets});
  const std::optional<BorrowedArray> chosen_heads = borrow_integers(heads, "heads"),
                                     chosen_rows = borrow_integers(rows, "rows");
  const auto count = [](const std::optional<BorrowedArray>& chosen, std::int64_t all) {
    return chosen && chosen->view().rank == 1 ? chosen->view().shape[0] : all;
  };
  const TensorView& view = queries.view();
  const std::int64_t keys = longest_length(cache, scores.inputs.sequences, view.shape[0]);
  const std::int64_t head_count = count(chosen_heads, view.shape[1]);
  const std::int64_t shape[] = {view.shape[0], head_count, count(chosen_rows, view.shape[2]), keys};
  const std::int64_t received_shape[] = {view.shape[0], head_count, keys};
  nb::object result = received ? new_f32_array(queries, 3, received_shape) : new_f32_array(queries, 4, shape);
  const BorrowedArray out(result, "out", Access::write);
  AttentionWeightsRequest request;
  request.heads = view_of(chosen_heads);
  request.rows = view_of(chosen_rows);
  (received ? request.received : request.weights) = out.view();
  const Runtime runtime = default_runtime();
  scores.over(cache, [&] { attention_weights(runtime, scores.inputs, scores.options, request); });
  return result;
}

nb::object rotate_queries(const Cache& cache, nb::handle query, nb::handle sequences, nb::handle positions, nb::handle out) {
  const BorrowedArray queries = borrow_rows(query, "query");
  const std::optional<BorrowedArray> which = borrow_integers(sequences, "sequences"),
                                     where = borrow_integers(positions, "positions");
  const nb::object result = output(out, query, queries, queries.view().shape[3]);
  const BorrowedArray target(result, "out", Access::write);
  expect_attention_type(target, "out");
  cache.read([&](const KvCache& held) { held.rotate_queries(queries.view(), target.view(), view_of(which), view_of(where)); });
  return result;
}

std::int64_t length_of(const Cache& cache, std::int64_t sequence) {
  return cache.read([&](const KvCache& held) { return held.length(sequence); });
}

nb::tuple read(const Cache& cache, std::int64_t sequence, std::optional<std::int64_t> first,
               std::optional<std::int64_t> count) {
  const KvCacheSpec& spec = cache.spec();
  const auto [from, length] =
      cache.read([&](const KvCache& held) { return std::pair(held.first_token(sequence), held.length(sequence)); });
  const std::int64_t begin = first.value_or(from), tokens = count.value_or(length - begin);
  if (tokens < 0) throw invalid("count: is " + std::to_string(tokens) + ", expected 0 tokens or more");
  const nb::object empty = nb::module_::import_("numpy").attr("empty");
  const nb::object key = empty(nb::make_tuple(spec.kv_heads, tokens, spec.head_dim), "float32");
  const nb::object value = empty(nb::make_tuple(spec.kv_heads, tokens, spec.value_dim), "float32");
  const BorrowedArray keys(key, "key", Access::write), values(value, "value", Access::write);
  cache.read([&](const KvCache& held) { held.read(sequence, begin, keys.view(), values.view()); });
  return nb::make_tuple(key, value);
}

std::string to_path(nb::handle path) {
  return nb::cast<std::string>(nb::module_::import_("os").attr("fspath")(path));
}

void save(const Cache& cache, nb::handle path) {
  const std::string file = to_path(path);
  cache.read([&](const KvCache& held) { held.save(file); });
}

std::unique_ptr<Cache> load(nb::handle path) {
  const std::string file = to_path(path);
  const nb::gil_scoped_release release;
  return std::make_unique<Cache>(KvCache::load(file));
}

constexpr const char* attention_documentation =
    R"(query: float32, float16 or bfloat16 [batch, heads, T, head_dim], whatever the cache stores, for the last T tokens when is_causal
is set (its diagonal ends at the sequence's last token). window: how many keys a query may see, its own included;
sink_token_length: so many first keys beside them (not over a ring). offsets: int32 or int64 [batch], where the first query stands
for window, alibi_slopes and relative_bias without is_causal (None: at the first token). attn_mask broadcasts to
[batch, heads, T, S], S being the longest sequence: bool, or float32, float16 or bfloat16 whatever query is, read in place (float64 is
converted).
query_lengths: [batch], queries from there on are not computed and give zeros. prefix_lengths: [batch], with is_causal, keys before are seen by
every query; block_mask: bool or uint8, broadcastable to [batch, heads, ceil(T / queries), ceil(S / keys)] with
block_size=(queries, keys), False hides the block (these two not over a ring).
cu_seqlens_q: packed queries, int32 or int64 [n + 1], 0 and then where the queries of each of n sequences end: query, out and lse are
then [1, heads, total queries, ...], "batch" is n, and T the longest of them.
Returns [batch, heads, T, value_dim] of query's type, or out, which may be of another one of these; with return_lse that and lse,
float32 [batch, heads, T], the natural log of each softmax's denominator.)";

constexpr const char* weights_documentation =
    R"(The softmax's weights that attention over the cache gives its values, for chosen heads and queries: float32
[batch, heads, queries, S], S being the longest sequence, weights of keys that a ring has lost 0.

query: as attention takes it, and all arguments that it shares with that. heads, rows: integers, which query heads and which
queries, in any order; None: all. received=True returns what each key receives instead, the sum of the weights over the chosen
queries: float32 [batch, heads, S].)";

}  // namespace

void register_kv_cache(nb::module_& module) {
  nb::class_<Cache>(
      module, "KvCache",
      "Keys and values of past tokens, kept as attention reads them.\n\n"
      "kind: 'contiguous' (room for `capacity` tokens of every sequence), 'ring' (the last `capacity` tokens, for attention "
      "over\n"
      "`window` keys) or 'paged' (pages of `page_tokens` tokens, allocated as sequences grow, shared by forked sequences "
      "until\n"
      "one of them writes; `max_pages` and `capacity` may limit them, 0 does not).\n"
      "rotary: None, 'interleaved' (elements 0 and 1, 2 and 3, ...) or 'half_split' (0 and n/2, 1 and n/2 + 1, ...); keys are\n"
      "rotated as they are appended, at exact angles for positions up to 2**32. rotary_dims: 0 for the whole head.\n"
      "dtype: what is stored, 'float32', 'bfloat16' or 'float16' (half the memory, and decoding takes half the time), or "
      "'int8'\n"
      "(a quarter; integers with a scale for each token and head).\n\n"
      "Attention over a cache gives the bits that it gives over the same keys in one array. Any number of threads may use one\n"
      "cache; calls that change it wait for those that read it.")
      .def("__init__", &make, nb::arg("kind"), nb::kw_only(), nb::arg("sequences") = 1, nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("value_dim") = nb::none(), nb::arg("capacity") = 0, nb::arg("window") = 0,
           nb::arg("page_tokens") = 0, nb::arg("max_pages") = 0, nb::arg("rotary") = nb::none(), nb::arg("rotary_dims") = 0,
           nb::arg("rotary_base") = 10000.0, nb::arg("rotary_frequencies") = nb::none(), nb::arg("dtype") = "float32")
      .def("append", &append, nb::arg("key"), nb::arg("value"), nb::kw_only(), nb::arg("sequences") = nb::none(),
           nb::arg("lengths") = nb::none(), nb::arg("positions") = nb::none(),
           "key: float32, float16 or bfloat16 [batch, kv_heads, tokens, head_dim], value likewise, whatever the cache stores:\n"
           "keys are rotated in float32, and both are rounded once. sequences: which ones, none twice (None: the "
           "first\n"
           "`batch`); lengths: how many of the tokens are real (None: all); positions: of each one's first token, for the "
           "rotation\n"
           "(None: the length so far). An error leaves the cache as it was.")
      .def("attention", &attend, nb::arg("query"), nb::kw_only(), nb::arg("sequences") = nb::none(),
           nb::arg("attn_mask") = nb::none(), nb::arg("is_causal") = true, nb::arg("window") = nb::none(),
           nb::arg("scale") = nb::none(), nb::arg("softcap") = 0.0, nb::arg("alibi_slopes") = nb::none(),
           nb::arg("sink") = nb::none(), nb::arg("precision") = "strict", nb::arg("out") = nb::none(),
           nb::arg("relative_bias") = nb::none(), nb::arg("score_mod") = nb::none(), nb::arg("sink_token_length") = 0,
           nb::arg("return_lse") = false, nb::arg("offsets") = nb::none(), nb::arg("cu_seqlens_q") = nb::none(),
           nb::arg("query_lengths") = nb::none(), nb::arg("prefix_lengths") = nb::none(), nb::arg("block_mask") = nb::none(),
           nb::arg("block_size") = nb::none(), attention_documentation)
      .def("attention_weights", &weights_of, nb::arg("query"), nb::kw_only(), nb::arg("sequences") = nb::none(),
           nb::arg("attn_mask") = nb::none(), nb::arg("is_causal") = true, nb::arg("window") = nb::none(),
           nb::arg("scale") = nb::none(), nb::arg("heads") = nb::none(), nb::arg("rows") = nb::none(),
           nb::arg("received") = false, nb::arg("softcap") = 0.0, nb::arg("alibi_slopes") = nb::none(),
           nb::arg("sink") = nb::none(), nb::arg("relative_bias") = nb::none(), nb::arg("score_mod") = nb::none(),
           nb::arg("sink_token_length") = 0, nb::arg("offsets") = nb::none(), weights_documentation)
      .def("rotate_queries", &rotate_queries, nb::arg("query"), nb::kw_only(), nb::arg("sequences") = nb::none(),
           nb::arg("positions") = nb::none(), nb::arg("out") = nb::none(),
           "The rotation of keys for queries [batch, heads, T, head_dim], at positions[b] + t; None: at the last T tokens.\n"
           "out may be query itself.")
      .def(
          "trim",
          [](Cache& cache, std::int64_t sequence, std::int64_t length) {
            cache.change([&](KvCache& held) { held.trim(sequence, length); });
          },
          nb::arg("sequence"), nb::arg("length"), "Forgets the sequence's tokens from `length` on.")
      .def(
          "fork",
          [](Cache& cache, std::int64_t from, std::int64_t to, std::optional<std::int64_t> length) {
            if (length && *length < 0) throw invalid("length: is " + std::to_string(*length) + ", expected 0 or more, or None");
            cache.change([&](KvCache& held) { held.fork(from, to, length.value_or(-1)); });
          },
          nb::arg("source"), nb::arg("target"), nb::arg("length") = nb::none(),
          "Makes `target` a copy of the first `length` tokens of `source` (None: all); pages are shared until one writes.")
      .def("length", &length_of, nb::arg("sequence"), "Tokens of a sequence so far.")
      .def_prop_ro("lengths",
                   [](const Cache& cache) {
                     return cache.read([](const KvCache& held) {
                       std::vector<std::int64_t> all;
                       for (std::int64_t i = 0; i < held.spec().sequences; ++i) all.push_back(held.length(i));
                       return all;
                     });
                   })
      .def(
          "first_token",
          [](const Cache& cache, std::int64_t sequence) {
            return cache.read([&](const KvCache& held) { return held.first_token(sequence); });
          },
          nb::arg("sequence"), "The oldest token that is still there: 0 but in a ring.")
      .def("read", &read, nb::arg("sequence"), nb::arg("first") = nb::none(), nb::arg("count") = nb::none(),
           "Keys (as rotated) and values of tokens from `first` on: float32 [kv_heads, count, dim] each.")
      .def(
          "reserve_pages",
          [](Cache& cache, std::int64_t pages) { cache.change([&](KvCache& held) { held.reserve_pages(pages); }); },
          nb::arg("pages"), "Allocates pages now, so that so many can be in use without growing.")
      .def_prop_ro("pages_in_use",
                   [](const Cache& cache) { return cache.read([](const KvCache& c) { return c.pages_in_use(); }); })
      .def_prop_ro("pages_allocated",
                   [](const Cache& cache) { return cache.read([](const KvCache& c) { return c.pages_allocated(); }); })
      .def_prop_ro("memory_bytes",
                   [](const Cache& cache) { return cache.read([](const KvCache& c) { return c.memory_bytes(); }); })
      .def_prop_ro("sequences", [](const Cache& cache) { return cache.spec().sequences; })
      .def_prop_ro("kv_heads", [](const Cache& cache) { return cache.spec().kv_heads; })
      .def_prop_ro("head_dim", [](const Cache& cache) { return cache.spec().head_dim; })
      .def_prop_ro("rotary",
                   [](const Cache& cache) -> const char* {
                     switch (cache.spec().rotary.style) {
                       case Rotary::interleaved:
                         return "interleaved";
                       case Rotary::half_split:
                         return "half_split";
                       default:
                         return nullptr;  // None
                     }
                   })
      .def_prop_ro("value_dim", [](const Cache& cache) { return cache.spec().value_dim; })
      .def_prop_ro("dtype", [](const Cache& cache) { return python_name(cache.spec().dtype); })
      .def("save", &save, nb::arg("path"), "Writes everything to a file; it is there only when it is complete.")
      .def_static("load", &load, nb::arg("path"),
                  "A cache from a file that save has written; polyhead.FileError for any other.");
}

}  // namespace polyhead::python
