// NumPy's .npy files: one array each.
#pragma once

#include <string>

#include "io/array.hpp"

namespace polyhead::io {

// Reads format versions 1, 2 and 3, little-endian f2, f4, f8, i1, i4, i8, u1 and b1, in C or Fortran order (kept: the view's
// strides say which). Errors: io_error (not an .npy file, cut short, bytes left over), unsupported (big-endian, structured or
// other data types, more than TensorView::max_rank dimensions); all name the file.
Array read_npy(const std::string& path);

// Writes a C-order array of the view's elements, whatever its strides. Errors: io_error (the file cannot be written),
// unsupported (bf16, which the format has no name for).
void write_npy(const std::string& path, const TensorView& tensor);

}  // namespace polyhead::io
