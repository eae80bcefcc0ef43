// Tensors of tokens, [batch, length, width] with any strides, as sources and sinks of a layer's rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layer/encoder_stack.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::api {

class StridedSource final : public layer::RowSource {
 public:
  explicit StridedSource(const TensorView& view) : view_(view) {}
  void load(std::int64_t b, std::int64_t begin, std::int64_t end, float* rows, std::ptrdiff_t stride) const override;

 private:
  const TensorView& view_;
};

class StridedSink final : public layer::RowSink {
 public:
  explicit StridedSink(const TensorView& view) : view_(view) {}
  void store(std::int64_t b, std::int64_t begin, std::int64_t end, const float* rows, std::ptrdiff_t stride) const override;

 private:
  const TensorView& view_;
};

// [batch] lengths in 0 .. length; all of them `length` when the view is empty.
void read_lengths(const TensorView& view, std::int64_t batch, std::int64_t length, std::vector<std::int64_t>* lengths);

// Zeros in every sequence's positions from its length on.
void zero_padding(const TensorView& view, const std::vector<std::int64_t>& lengths);

}  // namespace polyhead::api
