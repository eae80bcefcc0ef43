#include "api/cached_attention.hpp"

#include <algorithm>
#include <string>

#include "api/checks.hpp"
#include "api/integer_list.hpp"
#include "api/kv_cache_state.hpp"
#include "polyhead/kv_cache.hpp"

namespace polyhead::api {
namespace {

const cache::Store& store_of(const CachedAttentionInputs& inputs) {
  if (inputs.cache == nullptr) fail("cache", "not given", "a KvCache");
  return inputs.cache->state().store();
}

std::int64_t sequence_of(const IntegerList& sequences, const cache::Store& store, std::int64_t b) {
  return sequences.given() ? sequences.at(b, 0, store.spec().sequences - 1) : b;
}

void check_same(const char* name, std::int64_t value, const char* of_cache, std::int64_t expected) {
  if (value == expected) return;
  fail(name, std::to_string(value), std::to_string(expected) + ", the cache's " + of_cache);
}

}  // namespace

AttentionInputs without_cache(const CachedAttentionInputs& inputs) {
  AttentionInputs rest;
  rest.query = inputs.query;
  rest.out = inputs.out;
  rest.lse = inputs.lse;
  rest.query_lengths = inputs.query_lengths;
  rest.cumulative_query_lengths = inputs.cumulative_query_lengths;
  rest.prefix_lengths = inputs.prefix_lengths;
  rest.block_mask = inputs.block_mask;
  rest.offsets = inputs.offsets;
  rest.boolean_mask = inputs.boolean_mask;
  rest.bias = inputs.bias;
  rest.alibi_slopes = inputs.alibi_slopes;
  rest.sink = inputs.sink;
  rest.relative_bias_table = inputs.relative_bias_table;
  rest.score_mod_context = inputs.score_mod_context;
  return rest;
}

std::int64_t check_cache(const AttentionSpec& spec, const CachedAttentionInputs& inputs, std::int64_t batch) {
  const cache::Store& store = store_of(inputs);
  const KvCacheSpec& cache_spec = store.spec();
  if (!spec.mask.has_key_lengths) {
    fail("AttentionSpec.mask.has_key_lengths", "false", "true, since a cache's sequences have lengths of their own");
  }
  if (spec.relative_bias.kind == RelativeBias::Kind::swin) {
    fail("AttentionSpec.relative_bias", "Swin's", "none or T5's over a cache, whose tokens are no window of an image");
  }
  if (const DType of_keys = spec.key_dtype.value_or(spec.dtype); of_keys != cache_spec.dtype) {
    fail(spec.key_dtype ? "AttentionSpec.key_dtype" : "AttentionSpec.dtype", name(of_keys),
         std::string(name(cache_spec.dtype)) + ", the cache's dtype" + (spec.key_dtype ? "" : ", or key_dtype set to it"));
  }
  check_same("AttentionSpec.kv_heads", spec.kv_heads, "kv_heads", cache_spec.kv_heads);
  check_same("AttentionSpec.head_dim", spec.head_dim, "head_dim", cache_spec.head_dim);
  check_same("AttentionSpec.value_dim", spec.value_dim, "value_dim", cache_spec.value_dim);
  const IntegerList sequences("sequences", inputs.sequences, batch);
  if (!sequences.given() && batch > cache_spec.sequences) {
    fail(spec.mask.is_packed ? "the number of sequences" : "query's batch", std::to_string(batch),
         "at most the cache's sequences (" + std::to_string(cache_spec.sequences) + "), since no list of sequences is given");
  }
  const bool ring = cache_spec.kind == CacheKind::ring;
  if (ring) {
    if (spec.mask.causality != Causal::bottom_right) {
      fail("AttentionSpec.mask.causality", "another one",
           "Causal::bottom_right over a ring, whose window follows the last token");
    }
    if (spec.mask.window_kept != 0) {
      fail("AttentionSpec.mask.window_kept", std::to_string(spec.mask.window_kept),
           "0 over a ring, whose first tokens are gone");
    }
    if (spec.mask.has_prefix) {
      fail("AttentionSpec.mask.has_prefix", "true", "false over a ring, whose first tokens are gone");
    }
    if (spec.mask.block_queries != 0) {
      fail("AttentionSpec.mask.block_queries", std::to_string(spec.mask.block_queries),
           "0 over a ring, whose first tokens are gone");
    }
    const std::int64_t wanted = inputs.cache->plan_key_length();
    if (spec.key_length < wanted) {
      fail("AttentionSpec.key_length", std::to_string(spec.key_length),
           "the ring's plan_key_length() or more (" + std::to_string(wanted) + ")");
    }
  }
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t index = sequence_of(sequences, store, b), length = store.sequence(index).length;
    most = std::max(most, length);
    if (!ring && length > spec.key_length) {
      fail("AttentionSpec.key_length", std::to_string(spec.key_length),
           "at least the length of sequence " + std::to_string(index) + " (" + std::to_string(length) + ")");
    }
  }
  return most;
}

void check_windows(const AttentionSpec& spec, const CachedAttentionInputs& inputs, std::int64_t batch,
                   const OwnQueries& queries) {
  const cache::Store& store = store_of(inputs);
  if (store.spec().kind != CacheKind::ring) return;
  // Windows are counted from the diagonal, and every row's must lie among the tokens that the ring still has.
  std::int64_t left = store.spec().window - 1;
  if (spec.mask.window_left != Mask::unbounded) left = std::min(left, spec.mask.window_left);
  const IntegerList sequences("sequences", inputs.sequences, batch);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t index = sequence_of(sequences, store, b), count = queries.of(b);
    const cache::Sequence& sequence = store.sequence(index);
    const std::int64_t oldest = std::max<std::int64_t>(sequence.length - count - left, 0);
    if (count == 0 || oldest >= sequence.first) continue;
    const std::string place = "[" + std::to_string(b) + "]";
    const std::string what = queries.lengths ? "query_lengths" + place
                             : queries.ends  ? "the number of queries of packed sequence " + std::to_string(b)
                                             : "query's length";
    fail(what.c_str(), std::to_string(count),
         "at most " + std::to_string(std::max<std::int64_t>(sequence.length - left - sequence.first, 0)) + ": sequence " +
             std::to_string(index) + " has " + std::to_string(sequence.length) +
             " tokens, of which the ring keeps those from " + std::to_string(sequence.first) + " on, and each query sees " +
             std::to_string(left) + " before its own");
  }
}

void read_lengths(const CachedAttentionInputs& inputs, std::int64_t batch, std::int64_t* key_lengths) {
  const cache::Store& store = store_of(inputs);
  const IntegerList sequences("sequences", inputs.sequences, batch);
  for (std::int64_t b = 0; b < batch; ++b) key_lengths[b] = store.sequence(sequence_of(sequences, store, b)).length;
}

void read_cache(const CachedAttentionInputs& inputs, plan::KeyPages* pages, plan::AttentionOperands* operands) {
  const cache::Store& store = store_of(inputs);
  const cache::PageShape& shape = store.shape();
  const std::int64_t batch = operands->shape.batch;
  const IntegerList sequences("sequences", inputs.sequences, batch);
  for (std::int64_t b = 0; b < batch; ++b) {
    const cache::SequenceView view = store.view(sequence_of(sequences, store, b));
    pages[b] = {view.table, view.first_page, view.first_token, view.channels};
  }
  operands->pages = pages;
  operands->page_keys = shape.tokens;
  operands->value_in_page = shape.value_in_page();
  operands->key_scale_in_page = shape.key_scale_in_page();
  operands->value_scale_in_page = shape.value_scale_in_page();
  operands->key_strides[1] = operands->value_strides[1] = shape.head_stride();
  operands->key_strides[2] = shape.key_stride();
  operands->value_strides[2] = shape.value_stride();
  if (store.spec().kind != CacheKind::ring) return;
  std::int64_t& left = operands->mask.window_left;
  left = left == Mask::unbounded ? store.spec().window - 1 : std::min(left, store.spec().window - 1);
}

}  // namespace polyhead::api
