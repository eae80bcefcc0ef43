// A bias by relative position, spread out just so far that kernels read it as the strided bias they know.
//
// T5: the bias depends on s - t alone, so a row of distances a head is a bias whose query stride is -1 and key stride 1:
//
//     row    [ b(-3) b(-2) b(-1) b(0) b(1) b(2) ]        query 0 begins at b(0), query 1 at b(-1), query 2 at b(-2) ...
//
// Swin: for a query in column x the biases of all window rows that a key can be above or below it, [x][2 * height - 1][width];
// query (y, x) finds its keys, which lie row by row, in a stretch of height * width numbers. A step to the next column is one
// stride, a step to the next row another: kernels are told that a head's queries are groups of `width`.
//
// The alternative, kernels that look tables up, would cost each a gather for every score and the contract two more layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "polyhead/relative_bias.hpp"

namespace polyhead::plan {

struct AttentionOperands;
struct Sequence;

// The spread bias of a run; null: none.
struct RelativeRows {
  const float* rows = nullptr;     // of head 0
  std::ptrdiff_t head_stride = 0;  // in bytes
  std::int64_t first = 0;          // T5: the distance that a row begins with
  std::int64_t reach = 0;          // T5: what is further away than this has the bias of this
  std::int64_t height = 0;         // Swin's window; a width of 0: T5
  std::int64_t width = 0;

  // T5: the offset that a sequence's distances are taken with. It is the sequence's own but where every key is out of reach
  // with it: then so near that rows stay short.
  std::int64_t near_offset(std::int64_t offset, std::int64_t query_length, std::int64_t key_length) const;
};

// f32 [RelativeBias::table_rows(), heads]; strides in bytes.
struct RelativeTable {
  const float* values = nullptr;
  std::ptrdiff_t row_stride = 0, head_stride = 0;
};

// Made once for a plan.
class RelativeSpread {
 public:
  explicit RelativeSpread(const RelativeBias& bias);

  bool wanted() const noexcept { return bias_.given(); }
  // Where the bias of a run goes, whose operands are all there but for this: all but the memory is filled in.
  struct Place {
    RelativeRows rows;
    std::int64_t floats = 0;  // of a head
    std::size_t bytes = 0;    // of all heads
  };
  Place place(const AttentionOperands& operands) const;
  // Writes it to `memory`, of place.bytes.
  RelativeRows spread(const Place& place, const RelativeTable& table, std::int64_t heads, float* memory) const;

 private:
  RelativeBias bias_;
  std::vector<std::int32_t> buckets_;  // [2 * max_distance + 1] of the distances from -max_distance on
};

}  // namespace polyhead::plan
