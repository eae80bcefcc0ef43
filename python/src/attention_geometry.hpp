// From arrays of any rank, with torch's broadcasting, to the [batch, heads, length, dim] views of the C++ interface.
#pragma once

#include <cstdint>

#include "polyhead/attention.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::python {

// Sizes of one call, and the batch dimensions (all but the last three) that query, key and value broadcast to.
struct AttentionGeometry {
  int batch_rank = 0;
  TensorView::Dims batch_shape{};
  int output_rank = 0;  // the largest rank of query, key and value
  std::int64_t heads = 1, kv_heads = 1, query_length = 0, key_length = 0, head_dim = 0, value_dim = 0;

  // Errors: invalid_argument, naming the argument, for ranks below 2 and sizes that do not fit together.
  AttentionGeometry(const TensorView& query, const TensorView& key, const TensorView& value, bool grouped);

  // [batch..., heads, query_length, value_dim], cut to output_rank dimensions from the right.
  TensorView::Dims output_shape() const;

  // Strides of an array's leading dimensions, all but the last `inner` ones, over batch_shape. Errors: invalid_argument.
  TensorView::Dims batch_strides(const TensorView& view, int inner, const char* argument) const;
};

// Walks the batch dimensions. Those that lie evenly in memory for every array are merged into the batch of one native call;
// over the others the calls are repeated.
class BatchWalk {
 public:
  static constexpr int most_arrays = 16;

  BatchWalk(int rank, const TensorView::Dims& shape);

  // Adds an array whose view's first dimension will be the batch. The view is changed by every step.
  void add(TensorView* view, const TensorView::Dims& strides);

  // Merges dimensions and sets the views' batch size and stride for the first group; call once, after the last add.
  void begin();
  // Moves the views to the next group; false when all have been visited.
  bool next();

 private:
  int rank_;
  TensorView::Dims shape_;
  int count_ = 0;
  TensorView* views_[most_arrays]{};
  TensorView::Dims strides_[most_arrays]{};
  char* bases_[most_arrays]{};
  TensorView::Dims index_{};
};

}  // namespace polyhead::python
