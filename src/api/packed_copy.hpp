// Contiguous copies of views whose last dimension is not: kernels read rows whose elements follow one another.
#pragma once

#include <cstddef>

#include "graph/scheduler.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::api {

bool last_is_contiguous(const TensorView& view);  // of a view of four dimensions

// Bytes of a copy, in whole cache lines; 0 for a view that needs none.
std::size_t packed_bytes(const TensorView& view);

// A contiguous stand-in at *memory for a view whose last dimension is not contiguous; advances *memory.
TensorView stand_in(const TensorView& view, char** memory);

// Copies a [batch, heads, length, dim] view to another of the same shape and type.
void copy_tensor(graph::Scheduler& scheduler, const TensorView& from, const TensorView& to);

// Bytes between neighbours in the first three dimensions; 0 where there is one.
void byte_strides(const TensorView& view, std::ptrdiff_t strides[3]);

}  // namespace polyhead::api
