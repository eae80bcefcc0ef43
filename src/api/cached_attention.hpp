// What a run of attention over a cache takes from the cache, checked: lengths and pages instead of key and value tensors.
#pragma once

#include <cstdint>

#include "plan/attention_work.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::api {

// The inputs without key and value; what is checked as in any other run.
AttentionInputs without_cache(const CachedAttentionInputs& inputs);

// Checks the cache against the spec and the run's batch and query length. Returns the longest sequence's length.
std::int64_t check_cache(const AttentionSpec& spec, const CachedAttentionInputs& inputs, std::int64_t batch,
                         std::int64_t query_length);

// Fills in what operands need of the cache. key_lengths and pages have room for [batch]. check_cache has passed.
void read_cache(const CachedAttentionInputs& inputs, std::int64_t* key_lengths, plan::KeyPages* pages,
                plan::AttentionOperands* operands);

}  // namespace polyhead::api
