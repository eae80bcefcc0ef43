#include "attention_geometry.hpp"

#include <algorithm>
#include <string>

#include "borrowed_array.hpp"
#include "errors.hpp"

namespace polyhead::python {

namespace {

std::int64_t heads_of(const TensorView& view) {
  return view.rank >= 3 ? view.shape[view.rank - 3] : 1;
}

std::string text(std::int64_t value) {
  return std::to_string(value);
}

void expect_rank(const TensorView& view, const char* argument) {
  if (view.rank >= 2) return;
  throw invalid(std::string(argument) + ": is " + describe_array(view) +
                ", expected [..., heads, length, dim] (at least 2 dimensions)");
}

void expect_size(std::int64_t size, std::int64_t expected, const char* argument, const char* meaning, const char* other) {
  if (size == expected) return;
  throw invalid(std::string(argument) + ": " + meaning + " is " + text(size) + ", expected " + text(expected) + " as in " +
                other);
}

}  // namespace

AttentionGeometry::AttentionGeometry(const TensorView& query, const TensorView& key, const TensorView& value, bool grouped) {
  expect_rank(query, "query");
  expect_rank(key, "key");
  expect_rank(value, "value");
  query_length = query.shape[query.rank - 2];
  head_dim = query.shape[query.rank - 1];
  key_length = key.shape[key.rank - 2];
  value_dim = value.shape[value.rank - 1];
  expect_size(key.shape[key.rank - 1], head_dim, "key", "the head size (last dimension)", "query");
  expect_size(value.shape[value.rank - 2], key_length, "value", "the length (second to last dimension)", "key");

  const std::int64_t query_heads = heads_of(query), key_heads = heads_of(key), value_heads = heads_of(value);
  if (grouped) {
    expect_size(value_heads, key_heads, "value", "the number of heads", "key");
    if (key_heads < 1 || query_heads % key_heads != 0) {
      throw invalid("key: has " + text(key_heads) + " heads, expected a divisor of query's " + text(query_heads) +
                    " heads with enable_gqa=True");
    }
    heads = query_heads;
    kv_heads = key_heads;
  } else {
    heads = query_heads != 1 ? query_heads : key_heads != 1 ? key_heads : value_heads;
    if (key_heads != heads && key_heads != 1) {
      throw invalid("key: has " + text(key_heads) + " heads, expected query's " + text(heads) +
                    " or 1; with enable_gqa=True a divisor of query's heads");
    }
    if (value_heads != heads && value_heads != 1) {
      throw invalid("value: has " + text(value_heads) + " heads, expected " + text(heads) +
                    " or 1; with enable_gqa=True as many as key, a divisor of query's heads");
    }
    kv_heads = key_heads == value_heads ? key_heads : heads;
  }

  output_rank = std::max({query.rank, key.rank, value.rank});
  batch_rank = std::max(0, output_rank - 3);
  std::fill_n(batch_shape.begin(), batch_rank, 1);
  for (const TensorView* view : {&query, &key, &value}) {
    const int leading = std::max(0, view->rank - 3);
    for (int i = 0; i < leading; ++i) {
      std::int64_t& size = batch_shape[batch_rank - leading + i];
      if (size == 1) size = view->shape[i];
    }
  }
}

TensorView::Dims AttentionGeometry::output_shape() const {
  TensorView::Dims shape = batch_shape;
  const std::int64_t inner[] = {heads, query_length, value_dim};
  const int kept = std::min(3, output_rank);
  std::copy(inner + 3 - kept, inner + 3, shape.begin() + batch_rank);
  return shape;
}

TensorView::Dims AttentionGeometry::batch_strides(const TensorView& view, int inner, const char* argument) const {
  TensorView::Dims strides{};
  const int leading = std::max(0, view.rank - inner);
  for (int i = 0; i < leading; ++i) {
    const int target = batch_rank - leading + i;
    const std::int64_t expected = target >= 0 ? batch_shape[target] : 1;
    if (view.shape[i] != expected && view.shape[i] != 1) {
      throw invalid(std::string(argument) + ": is " + describe_array(view) + ", expected dimension " + text(i) + " to be " +
                    text(expected) + " (a batch dimension) or 1");
    }
    if (target >= 0 && view.shape[i] != 1) strides[target] = view.strides[i];
  }
  return strides;
}

BatchWalk::BatchWalk(int rank, const TensorView::Dims& shape) : rank_(rank), shape_(shape) {}

void BatchWalk::add(TensorView* view, const TensorView::Dims& strides) {
  views_[count_] = view;
  strides_[count_] = strides;
  bases_[count_] = static_cast<char*>(view->data);
  ++count_;
}

void BatchWalk::begin() {
  const bool no_items = std::find(shape_.begin(), shape_.begin() + rank_, 0) != shape_.begin() + rank_;
  if (rank_ == 0 || no_items) {
    rank_ = 1;
    shape_[0] = no_items ? 0 : 1;
    for (int array = 0; array < count_; ++array) strides_[array][0] = 0;
  }
  // Merge dimension i with i + 1, from the right, where a step of i is shape[i + 1] steps of i + 1 in every array.
  for (int i = rank_ - 2; i >= 0; --i) {
    bool even = true;
    for (int array = 0; array < count_ && even; ++array) {
      even = shape_[i] == 1 || strides_[array][i] == shape_[i + 1] * strides_[array][i + 1];
    }
    const bool trivial = shape_[i + 1] == 1;
    if (!even && !trivial) continue;
    for (int array = 0; array < count_; ++array) {
      if (trivial) strides_[array][i + 1] = strides_[array][i];
      for (int j = i; j + 1 < rank_; ++j) strides_[array][j] = strides_[array][j + 1];
    }
    shape_[i + 1] *= shape_[i];
    for (int j = i; j + 1 < rank_; ++j) shape_[j] = shape_[j + 1];
    --rank_;
  }
  for (int array = 0; array < count_; ++array) {
    views_[array]->shape[0] = shape_[rank_ - 1];
    views_[array]->strides[0] = strides_[array][rank_ - 1];
  }
}

bool BatchWalk::next() {
  for (int i = rank_ - 2; i >= 0; --i) {
    if (++index_[i] < shape_[i]) {
      for (int array = 0; array < count_; ++array) {
        std::int64_t offset = 0;
        for (int j = 0; j + 1 < rank_; ++j) offset += index_[j] * strides_[array][j];
        views_[array]->data = bases_[array] + offset * size_in_bytes(views_[array]->dtype);
      }
      return true;
    }
    index_[i] = 0;
  }
  return false;
}

}  // namespace polyhead::python
