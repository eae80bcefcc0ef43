// Tensors that tests own: any dtype, any strides, memory that is poisoned around and between the elements.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/tensor.hpp"
#include "support/guard.hpp"
#include "support/random.hpp"

namespace polyhead::testing {

// Element at `offset` (in elements) from view.data, widened to double; and the nearest value of the view's dtype stored there.
double load(const TensorView& view, std::int64_t offset);
void store(const TensorView& view, std::int64_t offset, double value);

// Calls function(offset) for every element in row-major order of the indices.
template <typename Function>
void for_each_offset(const TensorView& view, Function&& function) {
  std::int64_t index[TensorView::max_rank] = {};
  const int rank = view.rank;
  for (int i = 0; i < rank; ++i)
    if (view.shape[static_cast<std::size_t>(i)] == 0) return;
  std::int64_t offset = 0;
  for (;;) {
    function(offset);
    int i = rank - 1;
    for (; i >= 0; --i) {
      const auto dimension = static_cast<std::size_t>(i);
      const std::int64_t stride = view.shape[dimension] == 1 ? 0 : view.strides[dimension];
      if (++index[i] < view.shape[dimension]) {
        offset += stride;
        break;
      }
      offset -= stride * (view.shape[dimension] - 1);
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

// Offset of one element, from view.data.
std::int64_t offset_of(const TensorView& view, std::initializer_list<std::int64_t> index);
// Sub-view of one index of dimension 0, and of a range of any dimension.
TensorView select(const TensorView& view, std::int64_t index);
TensorView slice(const TensorView& view, int dimension, std::int64_t begin, std::int64_t end);
// The same elements, in a view whose dimension a and b have changed places, or whose dimension counts backwards.
TensorView transposed(const TensorView& view, int a, int b);
TensorView reversed(const TensorView& view, int dimension);
// Dimension `dimension`, of size 1, repeated `size` times by a stride of 0.
TensorView expanded(const TensorView& view, int dimension, std::int64_t size);

void fill(const TensorView& view, double value);
void fill(const TensorView& view, const std::function<double()>& next);
void fill_normal(const TensorView& view, Random& random, double scale = 1.0);
// Element by element from a view of the same shape.
void copy(const TensorView& from, const TensorView& to);
// The same bits in every element (NaN equals the same NaN); shapes must be equal.
bool same_bits(const TensorView& a, const TensorView& b);
std::string first_difference(const TensorView& a, const TensorView& b);

// Memory and the view of it. Everything that belongs to no element holds poison: a quiet NaN in floating types, an absurd
// number in integers, so that reading it shows and writing it is seen by surroundings_intact().
class Tensor {
 public:
  using Sizes = std::vector<std::int64_t>;

  Tensor() = default;
  Tensor(DType dtype, const Sizes& shape);                                                       // row-major
  Tensor(DType dtype, const Sizes& shape, const Sizes& strides, std::int64_t misalignment = 0);  // in elements, 0 .. 63
  // Against an inaccessible page, before or behind.
  Tensor(DType dtype, const Sizes& shape, Guard guard);

  // The order of dimensions in memory, outermost first, with `padding` unused elements after each innermost row, and
  // element_stride elements from one to the next in the innermost dimension.
  static Tensor ordered(DType dtype, const Sizes& shape, const std::vector<int>& order, std::int64_t padding = 0,
                        std::int64_t element_stride = 1);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: a tensor is used where a view is asked for
  float* f32() const { return static_cast<float*>(view_.data); }
  std::int32_t* i32() const { return static_cast<std::int32_t*>(view_.data); }
  std::int64_t* i64() const { return static_cast<std::int64_t*>(view_.data); }
  double operator()(std::initializer_list<std::int64_t> index) const { return load(view_, offset_of(view_, index)); }
  void set(std::initializer_list<std::int64_t> index, double value) const { store(view_, offset_of(view_, index), value); }

  // Whether every byte that belongs to no element still holds the poison that was put there.
  bool surroundings_intact() const;
  // The same shape, strides and bits in memory of its own.
  Tensor clone() const;
  // The same memory through another view of it.
  Tensor viewed(const TensorView& view) const {
    Tensor other = *this;
    other.view_ = view;
    return other;
  }

 private:
  void poison();
  std::shared_ptr<void> owner_;
  unsigned char* begin_ = nullptr;  // all memory that is the tensor's to look at, elements and surroundings
  std::size_t bytes_ = 0;
  TensorView view_;
};

Tensor integers(DType dtype, const std::vector<std::int64_t>& values);  // [n]
// The same numbers, row-major, each the nearest of `dtype`.
Tensor converted(const TensorView& from, DType dtype);

}  // namespace polyhead::testing
