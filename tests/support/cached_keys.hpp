// A case's keys and values in a KvCache.
#pragma once

#include <cstdint>

#include "polyhead/kv_cache.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {

// The inputs over a cache: all but key, value and their lengths, which are the cache's.
CachedAttentionInputs cached_inputs(const AttentionInputs& plain, const KvCache& cache, const TensorView& sequences);

// A layout for the spec's keys: room for `page_tokens` keys a page where paged, else for what the spec says (a ring also for
// its queries, so that none of its windows has lost a key). Sequence 2 b + 1 is batch item b's, the others are nobody's.
KvCacheSpec cache_layout(const AttentionSpec& spec, CacheKind kind, std::int64_t page_tokens);

// The keys and values of each batch item or packed sequence, up to its key length, appended in chunks of any sizes; NaN in the
// sequences between, whose pages lie among the items'.
class CachedKeys {
 public:
  KvCache cache;
  Tensor sequences;

  CachedKeys(const AttentionCase& test, const KvCacheSpec& layout, Random& random);

  // A run's, instead of those with key and value in tensors. Masks and biases [B, H, T, S] are cut to the longest item's
  // length.
  CachedAttentionInputs inputs(const AttentionInputs& plain) const;

  // What the cache holds in place of the case's keys and values: the same, but where integers stand for them.
  void read_back(const AttentionCase& test) const;

 private:
  std::int64_t block_keys_ = 0, longest_ = 0;
};

}  // namespace polyhead::testing
