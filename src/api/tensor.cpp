#include "polyhead/tensor.hpp"

#include <limits>

#include "api/entry.hpp"
#include "polyhead/error.hpp"

namespace polyhead {
namespace {

std::string list(const TensorView::Dims& values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

}  // namespace

const char* name(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i8:
      return "i8";
    case DType::u8:
      return "u8";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::f64:
      return "f64";
    case DType::boolean:
      return "bool";
  }
  return "unknown";
}

std::int64_t size_in_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::i8:
    case DType::u8:
    case DType::boolean:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::i64:
    case DType::f64:
      return 8;
  }
  return 0;
}

TensorView::TensorView(const void* data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in)
    : TensorView(data_in, dtype_in, static_cast<int>(shape_in.size()), shape_in.begin()) {}

TensorView::TensorView(const void* data_in, DType dtype_in, int rank_in, const std::int64_t* shape_in,
                       const std::int64_t* strides_in)
    : data(const_cast<void*>(data_in)), dtype(dtype_in), rank(rank_in) {
  if (rank < 0 || rank > max_rank) {
    throw Error(ErrorCode::invalid_argument,
                "TensorView: rank is " + std::to_string(rank) + ", expected 0 to " + std::to_string(max_rank));
  }
  // A product that ignores sizes of 0 bounds every offset that a view of the same strides could form.
  std::int64_t bytes = size_in_bytes(dtype);
  for (int i = rank - 1; i >= 0; --i) {
    const std::int64_t size = shape_in[i];
    if (size < 0) {
      throw Error(ErrorCode::invalid_argument,
                  "TensorView: shape[" + std::to_string(i) + "] is " + std::to_string(size) + ", expected 0 or more");
    }
    shape[i] = size;
    if (!strides_in) strides[i] = bytes / size_in_bytes(dtype);
    if (size > 1 && __builtin_mul_overflow(bytes, size, &bytes)) {
      throw Error(ErrorCode::invalid_argument, "TensorView: the sizes " + list(shape, rank) + " overflow 64 bits");
    }
  }
  if (strides_in) {
    for (int i = 0; i < rank; ++i) strides[i] = strides_in[i];
  }
}

TensorView TensorView::blhd(const float* memory_start, std::int64_t batch, std::int64_t length, std::int64_t heads,
                            std::int64_t dim) {
  return blhd(memory_start, DType::f32, batch, length, heads, dim);
}

TensorView TensorView::blhd(const void* memory_start, DType dtype, std::int64_t batch, std::int64_t length, std::int64_t heads,
                            std::int64_t dim) {
  TensorView memory(memory_start, dtype, {batch, length, heads, dim});  // checks sizes and overflow
  TensorView view = memory;
  view.shape[1] = heads;
  view.shape[2] = length;
  view.strides[1] = memory.strides[2];
  view.strides[2] = memory.strides[1];
  return view;
}

std::int64_t TensorView::element_count() const noexcept {
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= shape[i];
  return count;
}

std::string TensorView::describe() const {
  if (empty()) return "no tensor";
  return api::entry([&] { return std::string(name(dtype)) + list(shape, rank) + " strides " + list(strides, rank); });
}

}  // namespace polyhead
