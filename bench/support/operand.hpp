// One operand of a benchmark in the data type that is measured, with its numbers at hand for the check against float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "polyhead/tensor.hpp"
#include "support/aligned_array.hpp"

namespace polyhead::bench {

class Operand {
 public:
  Operand() = default;
  // Takes the numbers, rounded to the data type: f32, bf16 or f16.
  Operand(DType dtype, AlignedArray numbers);
  Operand(DType dtype, std::size_t count);  // contents arbitrary

  void* data() { return dtype_ == DType::f32 ? static_cast<void*>(floats_.data()) : halves_.get(); }
  const void* data() const { return const_cast<Operand*>(this)->data(); }
  std::size_t size() const { return count_; }  // elements
  std::size_t bytes() const { return count_ * static_cast<std::size_t>(size_in_bytes(dtype_)); }

  // `count` numbers from the `first` on: in place, or widened into `room`.
  const float* numbers(std::size_t first, std::size_t count, std::vector<float>& room) const;
  float get(std::size_t index) const;
  void set(std::size_t index, float value);
  void fill(float value);

 private:
  struct Free {
    void operator()(std::uint16_t* memory) const;
  };
  DType dtype_ = DType::f32;
  std::size_t count_ = 0;
  AlignedArray floats_;
  std::unique_ptr<std::uint16_t, Free> halves_;
};

// What rounding to the data type may add to the error of a result.
double rounding_error(DType dtype, double result);
// What rounding weights to the data type may add, as kernels that multiply pairs of bf16 do.
double weight_rounding_error(DType dtype, double largest_value);

}  // namespace polyhead::bench
