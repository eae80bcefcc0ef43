// Masks that have no closed form, written out for a kernel: a byte for each row and key, few rows at a time, and a mark for
// each 64 keys that some row sees. What is written is the AND of all that hides single keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/mask.hpp"
#include "simd/contract/attention.hpp"

namespace polyhead::plan {

// Memory for written masks of one thread.
struct MaskRoom {
  std::int64_t rows = 0, row_bytes = 0;  // rows of bytes
  std::int64_t marks_bytes = 0;
  std::size_t bytes() const { return static_cast<std::size_t>(rows * row_bytes + marks_bytes); }
};
// Enough for every run of a plan; empty where nothing is ever written out. `group`: query heads of a kv head.
MaskRoom mask_room(std::int64_t key_length, std::int64_t group, const Mask& mask);

// What hides keys from the rows of one sequence, seen from its first query, its first key and a query head. Absent parts are
// null; strides in bytes.
struct HiddenKeys {
  const std::uint8_t* blocks =
      nullptr;  // of the block mask; 0 hides. Query t and key s are in block ((first_query + t) / block_queries,
  std::ptrdiff_t block_strides[2] = {};  // (first_key + s) / block_keys)
  std::int64_t block_queries = 1, block_keys = 1, first_query = 0, first_key = 0;
  const std::int32_t* query_segments = nullptr;  // numbers of queries and keys; other than the query's own are hidden
  const std::int32_t* key_segments = nullptr;
  const std::uint8_t* boolean_mask = nullptr;  // at + t * strides[0] + g * strides[1] + s * strides[2]
  std::ptrdiff_t boolean_strides[3] = {};

  bool any() const { return blocks || query_segments; }  // beside the boolean mask, which kernels read as it is
};

// Keys [begin, end) within a call's that none of its rows sees.
struct KeyGap {
  std::int64_t begin = 0, end = 0;
};

// Writes rows for queries [query_begin, query_end) x `heads` heads of a group and keys [args.key_begin, args.key_end) into
// `memory`, and makes that the call's boolean mask: query_end - query_begin rows where heads is 1 (all heads see alike). With
// `one_row` all queries see alike too, and one row serves them. Narrows the call's keys to those that some row sees; key_begin
// stays a multiple of key_block. args.key_begin is one on entry.
void write_mask(const HiddenKeys& hidden, const MaskRoom& room, void* memory, std::int64_t query_begin, std::int64_t query_end,
                std::int64_t heads, bool one_row, std::int64_t key_block, KeyGap gap, simd::AttentionF32Args& args);

// The share of keys [key_begin, key_end) whose blocks query t sees: 1 without a block mask.
double visible_share(const HiddenKeys& hidden, std::int64_t query, std::int64_t key_begin, std::int64_t key_end);

}  // namespace polyhead::plan
