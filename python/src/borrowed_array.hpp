// BorrowedArray: a Python array (NumPy, PyTorch, anything with DLPack or the buffer protocol) seen as a TensorView.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/tensor.hpp"

namespace polyhead::python {

namespace nb = nanobind;

namespace dlpack {
struct ExchangeTable;
}

enum class Framework : std::uint8_t { none, numpy, torch };

enum class Access : std::uint8_t { read, write };

// An exported buffer, given back on destruction.
struct ExportedBuffer {
  Py_buffer buffer{};  // obj is null when nothing is exported

  ExportedBuffer() = default;
  ExportedBuffer(ExportedBuffer&& other) noexcept : buffer(std::exchange(other.buffer, Py_buffer{})) {}
  ExportedBuffer& operator=(ExportedBuffer&&) = delete;
  ~ExportedBuffer() { release(); }
  void release() {
    if (buffer.obj != nullptr) PyBuffer_Release(&buffer);
  }
};

// Holds what keeps the memory alive and in place (an exported buffer, a converted copy). Made and destroyed with the GIL
// held; the view may be used without it.
class BorrowedArray {
 public:
  BorrowedArray() = default;
  // argument names the array in error messages. Memory is copied only when its elements cannot be addressed as they lie:
  // foreign byte order, addresses or byte strides that are no multiple of the element's size. Access::write never copies.
  // Errors: TypeError for what is no array or has an element type that no argument takes; polyhead errors for memory that is
  // not on the CPU, read-only memory to be written, a tensor that records gradients.
  BorrowedArray(nb::handle object, const char* argument, Access access = Access::read);
  BorrowedArray(BorrowedArray&&) noexcept = default;
  BorrowedArray& operator=(BorrowedArray&&) = delete;

  const TensorView& view() const noexcept { return view_; }
  TensorView& view() noexcept { return view_; }
  Framework framework() const noexcept { return framework_; }
  // The C exchange table of the array's type, or null.
  const dlpack::ExchangeTable* exchange() const noexcept { return exchange_; }

  // Replaces f64, f16 and bf16 elements by f32 ones, each distinct element once: broadcast dimensions stay broadcast. A
  // finite f64 outside f32's range becomes the largest finite f32 of its sign, since only a true infinity may exclude a key.
  void convert_to_f32();

 private:
  void borrow_exchange(nb::handle object, const char* argument);
  void borrow_torch_attributes(nb::handle object, const char* argument);
  // is_bfloat16: the buffer's 16-bit integers are bfloat16 numbers.
  void borrow_buffer(nb::handle object, const char* argument, Access access, bool is_bfloat16 = false);

  TensorView view_;
  Framework framework_ = Framework::none;
  const dlpack::ExchangeTable* exchange_ = nullptr;
  nb::object owner_;  // a copy made in Python; outlives its buffer
  ExportedBuffer exported_;
  std::vector<float> converted_;
};

// A new row-major array of the same framework, its elements not set yet. `object` is what `like` was made of.
nb::object new_f32_array(const BorrowedArray& like, int rank, const std::int64_t* shape);
// Of the same element type too: f32, f16 or bf16.
nb::object new_array_like(nb::handle object, const BorrowedArray& like, int rank, const std::int64_t* shape);

// "float32[2, 12, 128, 64]", in NumPy's and PyTorch's words.
std::string describe_array(const TensorView& view);
const char* python_name(DType dtype);

}  // namespace polyhead::python
