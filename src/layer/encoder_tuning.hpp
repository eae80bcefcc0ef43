// How an encoder's rows are cut. Bits do not depend on any of these.
#pragma once

#include <cstdint>

namespace polyhead::layer {

// Rows of a slice, the unit of scheduling: a multiple of every target's query block and of most GEMM tiles.
constexpr std::int64_t slice_rows = 192;
// Rows that pass through a whole block together inside a node. Their feed-forward intermediate should stay in the second-level
// cache, and there should be enough of them to pay for reading the weights from the third.
constexpr std::int64_t stage_rows = 96;
// Attention of a slice is cut by heads into nodes of about this cost where slices are few.
constexpr double attend_node_ns = 150e3;
// Inside a node, attention below this cost is not worth another thread.
constexpr double share_attention_from_ns = 40e3;

}  // namespace polyhead::layer
