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

Mask Mask::window(std::int64_t left, std::int64_t right) {
  check_window("left", left);
  check_window("right", right);
  Mask mask;
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

Mask operator&(const Mask& a, const Mask& b) {
  if (a.causality != Causal::none && b.causality != Causal::none && a.causality != b.causality) {
    throw Error(ErrorCode::invalid_argument, "mask: two causal alignments that differ cannot be combined");
  }
  Mask both;
  both.causality = std::max(a.causality, b.causality);
  both.window_left = intersect(a.window_left, b.window_left);
  both.window_right = intersect(a.window_right, b.window_right);
  both.has_key_lengths = a.has_key_lengths || b.has_key_lengths;
  both.has_offsets = a.has_offsets || b.has_offsets;
  both.has_boolean = a.has_boolean || b.has_boolean;
  both.has_bias = a.has_bias || b.has_bias;
  both.has_query_lengths = a.has_query_lengths || b.has_query_lengths;
  both.is_packed = a.is_packed || b.is_packed;
  return both;
}

}  // namespace polyhead
