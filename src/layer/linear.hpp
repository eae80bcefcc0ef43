// Linear: y = activation(x W' + b) + residual with W packed once for the chosen instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/task_graph.hpp"
#include "platform/aligned_memory.hpp"
#include "polyhead/tensor.hpp"
#include "simd/contract/gemm.hpp"

namespace polyhead::layer {

class Linear {
 public:
  struct Part {
    TensorView weight;  // f32, bf16 or f16 [out features, in features], any strides
    TensorView bias;    // f32 [out features] or empty
  };
  // One product's operands: rows are bytes apart, columns contiguous.
  struct Rows {
    const float* x = nullptr;
    std::ptrdiff_t x_stride = 0;
    float* y = nullptr;
    std::ptrdiff_t y_stride = 0;
    std::int64_t count = 0;
    const float* residual = nullptr;  // may be y
    std::ptrdiff_t residual_stride = 0;
  };

  Linear() = default;
  // Several parts are stacked: their output features follow each other. packed: packed_bytes(kernel, parts) bytes, 64-byte
  // aligned, that outlive the object.
  Linear(const simd::GemmKernel& kernel, const std::vector<Part>& parts, void* packed);

  static std::size_t packed_bytes(const simd::GemmKernel& kernel, const std::vector<Part>& parts);

  std::int64_t in_features() const noexcept { return k_; }
  std::int64_t out_features() const noexcept { return n_; }

  // With a scheduler the columns are shared out to its threads; the bits are the same. Callable inside a node.
  void run(const Rows& rows, simd::Activation activation = simd::Activation::none, graph::Scheduler* scheduler = nullptr) const;

 private:
  simd::GemmF32Args arguments(const Rows& rows, simd::Activation activation) const;

  const simd::GemmKernel* kernel_ = nullptr;
  std::int64_t n_ = 0, k_ = 0;
  const void* packed_ = nullptr;
  platform::AlignedBuffer bias_;
  bool has_bias_ = false;
};

// Packs several products into one piece of memory, which must outlive them: one of a layer's weights may be too small for huge
// pages, all of them together are not.
struct LinearParts {
  Linear* linear;
  std::vector<Linear::Part> parts;
};
platform::AlignedBuffer pack_together(const simd::GemmKernel& kernel, const std::vector<LinearParts>& products);

// The elements of an f32 vector [count], or nothing for an empty view.
platform::AlignedBuffer copy_vector(const TensorView& view);

}  // namespace polyhead::layer
