// What a run of attention over a cache takes from the cache, checked: lengths and pages instead of key and value tensors.
#pragma once

#include <cstdint>

#include "plan/attention_work.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::api {

// The inputs without key and value; what is checked as in any other run.
AttentionInputs without_cache(const CachedAttentionInputs& inputs);

// Checks the cache against the spec and the run's number of batch items or packed sequences, `batch`. Returns the longest
// sequence's length.
std::int64_t check_cache(const AttentionSpec& spec, const CachedAttentionInputs& inputs, std::int64_t batch);

// The rest is for when check_cache has passed.

// How many queries each batch item or packed sequence has.
struct OwnQueries {
  std::int64_t longest = 0;
  const std::int64_t* lengths = nullptr;  // [batch] where they have lengths of their own
  const std::int64_t* ends = nullptr;     // [batch + 1] where they are packed: 0, then where each ends

  std::int64_t of(std::int64_t b) const { return lengths ? lengths[b] : ends ? ends[b + 1] - ends[b] : longest; }
};
// Over a ring: the window of every query is there.
void check_windows(const AttentionSpec& spec, const CachedAttentionInputs& inputs, std::int64_t batch,
                   const OwnQueries& queries);

// Writes the lengths of the run's sequences to key_lengths [batch].
void read_lengths(const CachedAttentionInputs& inputs, std::int64_t batch, std::int64_t* key_lengths);

// Fills in what operands need of the cache beside the lengths. `pages` has room for [operands->shape.batch].
void read_cache(const CachedAttentionInputs& inputs, plan::KeyPages* pages, plan::AttentionOperands* operands);

}  // namespace polyhead::api
