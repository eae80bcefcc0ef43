#include "support/cached_keys.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace polyhead::testing {

namespace {

// Tokens [first, end) of batch item or packed sequence b: [1, kv_heads, tokens, dim].
TensorView tokens_of(const AttentionCase& test, const TensorView& from, std::int64_t b, std::int64_t first, std::int64_t end) {
  if (!test.spec.mask.is_packed) return slice(slice(from, 0, b, b + 1), 2, first, end);
  const auto begin = static_cast<std::int64_t>(test.cumulative_key_lengths({b}));
  return slice(from, 2, begin + first, begin + end);
}

}  // namespace

CachedAttentionInputs cached_inputs(const AttentionInputs& plain, const KvCache& cache, const TensorView& sequences) {
  CachedAttentionInputs inputs;
  inputs.cache = &cache;
  inputs.query = plain.query;
  inputs.out = plain.out;
  inputs.lse = plain.lse;
  inputs.sequences = sequences;
  inputs.offsets = plain.offsets;
  inputs.boolean_mask = plain.boolean_mask;
  inputs.bias = plain.bias;
  inputs.alibi_slopes = plain.alibi_slopes;
  inputs.sink = plain.sink;
  inputs.relative_bias_table = plain.relative_bias_table;
  inputs.score_mod_context = plain.score_mod_context;
  inputs.query_lengths = plain.query_lengths;
  inputs.cumulative_query_lengths = plain.cumulative_query_lengths;
  inputs.prefix_lengths = plain.prefix_lengths;
  inputs.block_mask = plain.block_mask;
  return inputs;
}

KvCacheSpec cache_layout(const AttentionSpec& spec, CacheKind kind, std::int64_t page_tokens) {
  KvCacheSpec layout;
  layout.kind = kind;
  layout.sequences = 2 * spec.batch + 1;
  layout.kv_heads = spec.kv_heads == 0 ? spec.heads : spec.kv_heads;
  layout.head_dim = spec.head_dim;
  layout.value_dim = spec.value_dim == 0 ? spec.head_dim : spec.value_dim;
  layout.dtype = spec.key_dtype.value_or(spec.dtype);
  if (kind == CacheKind::paged) {
    layout.page_tokens = page_tokens;
    return layout;
  }
  layout.capacity = std::max<std::int64_t>(spec.key_length, 1);
  if (kind == CacheKind::ring) layout.window = layout.capacity += spec.query_length;
  return layout;
}

CachedKeys::CachedKeys(const AttentionCase& test, const KvCacheSpec& layout, Random& random)
    : cache(layout), block_keys_(test.spec.mask.block_keys) {
  const std::int64_t batch = test.spec.batch;
  std::vector<std::int64_t> which, done(static_cast<std::size_t>(batch), 0);
  for (std::int64_t b = 0; b < batch; ++b) which.push_back(2 * b + 1);
  sequences = integers(random.choice({DType::i32, DType::i64}), which);
  const auto append = [&](std::int64_t sequence, const TensorView& key, const TensorView& value) {
    const Tensor list = integers(DType::i64, {sequence});
    CacheAppend tokens;
    tokens.key = key;
    tokens.value = value;
    tokens.sequences = list;
    cache.append(tokens);
  };
  const auto append_nobodys = [&](std::int64_t sequence, std::int64_t count) {
    const Tensor key(DType::f32, {1, layout.kv_heads, count, layout.head_dim}),
        value(DType::f32, {1, layout.kv_heads, count, layout.value_dim});
    fill(key, std::numeric_limits<double>::quiet_NaN());
    fill(value, std::numeric_limits<double>::quiet_NaN());
    append(sequence, key, value);
  };
  for (bool more = true; more;) {
    more = false;
    for (std::int64_t b = 0; b < batch; ++b) {
      std::int64_t& at = done[static_cast<std::size_t>(b)];
      const auto length = static_cast<std::int64_t>(test.key_lengths({b}));
      longest_ = std::max(longest_, length);
      if (at == length) continue;
      const std::int64_t end = std::min(length, at + random.integer(1, 60));
      append(2 * b + 1, tokens_of(test, test.key, b, at, end), tokens_of(test, test.value, b, at, end));
      at = end;
      more = more || at < length;
      if (cache.length(2 * b) == 0) append_nobodys(2 * b, random.integer(1, std::max<std::int64_t>(length, 1)));
    }
  }
}

CachedAttentionInputs CachedKeys::inputs(const AttentionInputs& plain) const {
  CachedAttentionInputs inputs = cached_inputs(plain, cache, sequences);
  for (TensorView* mask : {&inputs.boolean_mask, &inputs.bias})
    if (!mask->empty()) *mask = slice(*mask, 3, 0, longest_);
  if (!inputs.block_mask.empty())
    inputs.block_mask = slice(inputs.block_mask, 3, 0, (longest_ + block_keys_ - 1) / block_keys_);
  return inputs;
}

void CachedKeys::read_back(const AttentionCase& test) const {
  for (std::int64_t b = 0; b < test.spec.batch; ++b) {
    const std::int64_t length = cache.length(2 * b + 1);
    if (length == 0) continue;
    cache.read(2 * b + 1, 0, select(tokens_of(test, test.key, b, 0, length), 0),
               select(tokens_of(test, test.value, b, 0, length), 0));
  }
}

}  // namespace polyhead::testing
