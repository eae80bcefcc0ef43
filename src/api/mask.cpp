#include "polyhead/mask.hpp"

#include <algorithm>
#include <string>

#include "polyhead/error.hpp"

namespace polyhead {
namespace {

std::int64_t intersect(std::int64_t a, std::int64_t b) {
  if (a == Mask::unbounded) return b;
  if (b == Mask::unbounded) return a;
  return std::min(a, b);
}

void check_window(const char* side, std::int64_t value) {
  if (value < Mask::unbounded) {
    throw Error(ErrorCode::invalid_argument, std::string("window: ") + side + " is " + std::to_string(value) +
                                                 ", expected 0 or more keys, or -1 for no limit");
  }
}

}  // namespace

Mask Mask::causal(Causal alignment) {
  Mask mask;
  mask.causality = alignment;
  mask.has_offsets = alignment == Causal::offset;
  return mask;
}

Mask Mask::window(std::int64_t left, std::int64_t right, std::int64_t kept) {
  check_window("left", left);
  check_window("right", right);
  if (kept < 0) {
    throw Error(ErrorCode::invalid_argument, "window: kept is " + std::to_string(kept) + ", expected 0 or more keys");
  }
  Mask mask;
  mask.window_kept = kept;
  mask.window_left = left;
  mask.window_right = right;
  return mask;
}

Mask Mask::key_lengths() {
  Mask mask;
  mask.has_key_lengths = true;
  return mask;
}

Mask Mask::offsets() {
  Mask mask;
  mask.has_offsets = true;
  return mask;
}

Mask Mask::boolean() {
  Mask mask;
  mask.has_boolean = true;
  return mask;
}

Mask Mask::bias() {
  Mask mask;
  mask.has_bias = true;
  return mask;
}

Mask Mask::query_lengths() {
  Mask mask;
  mask.has_query_lengths = true;
  return mask;
}

Mask Mask::packed() {
  Mask mask;
  mask.is_packed = true;
  return mask;
}

Mask Mask::prefix() {
  Mask mask;
  mask.has_prefix = true;
  return mask;
}

Mask Mask::segments() {
  Mask mask;
  mask.has_segments = true;
  return mask;
}

Mask Mask::blocks(std::int64_t queries, std::int64_t keys) {
  if (queries < 1 || keys < 1) {
    throw Error(ErrorCode::invalid_argument, "blocks: sizes are " + std::to_string(queries) + " queries x " +
                                                 std::to_string(keys) + " keys, expected 1 or more of each");
  }
  Mask mask;
  mask.block_queries = queries;
  mask.block_keys = keys;
  return mask;
}

Mask operator&(const Mask& a, const Mask& b) {
  if (a.causality != Causal::none && b.causality != Causal::none && a.causality != b.causality) {
    throw Error(ErrorCode::invalid_argument, "mask: two causal alignments that differ cannot be combined");
  }
  if (a.block_queries && b.block_queries && (a.block_queries != b.block_queries || a.block_keys != b.block_keys)) {
    throw Error(ErrorCode::invalid_argument, "mask: two block sizes that differ cannot be combined");
  }
  if (a.window_left != Mask::unbounded && b.window_left != Mask::unbounded && a.window_kept != b.window_kept) {
    throw Error(ErrorCode::invalid_argument, "mask: two windows that keep different numbers of first keys cannot be combined");
  }
  Mask both;
  both.window_kept = a.window_left != Mask::unbounded ? a.window_kept : b.window_kept;
  both.causality = std::max(a.causality, b.causality);
  both.window_left = intersect(a.window_left, b.window_left);
  both.window_right = intersect(a.window_right, b.window_right);
  both.has_key_lengths = a.has_key_lengths || b.has_key_lengths;
  both.has_offsets = a.has_offsets || b.has_offsets;
  both.has_boolean = a.has_boolean || b.has_boolean;
  both.has_bias = a.has_bias || b.has_bias;
  both.has_query_lengths = a.has_query_lengths || b.has_query_lengths;
  both.is_packed = a.is_packed || b.is_packed;
  both.has_prefix = a.has_prefix || b.has_prefix;
  both.has_segments = a.has_segments || b.has_segments;
  both.block_queries = std::max(a.block_queries, b.block_queries);
  both.block_keys = std::max(a.block_keys, b.block_keys);
  return both;
}

}  // namespace polyhead
