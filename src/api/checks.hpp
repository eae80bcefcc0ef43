// Checks that the public entries share. Each throws Error(invalid_argument) with a message that names the argument, what it
// was and what was expected. The passing path is a few comparisons: messages are only built when a check fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "polyhead/error.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::api {

[[noreturn]] void fail(const std::string& message);  // Error(invalid_argument)
// "name is X, expected Y"
[[noreturn]] void fail(const char* name, const std::string& was, const std::string& expected);

// A tensor of exactly this dtype and shape; a size of -1 matches any. Its data may be null only when it has no elements, must
// be aligned to its element, and its extent must be addressable in 64 bits.
void check_tensor(const char* name, const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape);
void check_memory(const char* name, const TensorView& view);  // the part about data alone

// Checks a mask's own consistency: windows, alignments, and which of them take offsets.
void check_mask(const char* name, const Mask& mask);

// Checks that it is one of the enumeration's values.
void check_precision(const char* name, Precision precision);

// Checks that `view` is given exactly when `wanted`, naming the mask part that decides it.
void check_given(const char* name, const TensorView& view, bool wanted, const char* part, const char* owner = "mask");

// Byte strides of a tensor broadcast to `shape` (rank 4; lower ranks align right, sizes 1 broadcast). `longer`: its last two
// dimensions may be larger.
void broadcast_strides(const char* name, const TensorView& view, const std::int64_t shape[4], std::ptrdiff_t strides[4],
                       bool longer = false);

// Reads an i32 or i64 tensor [batch] or [batch, 1] into out[batch]; each value must lie in [low, high].
void read_integers(const char* name, const TensorView& view, std::int64_t batch, std::int64_t low, std::int64_t high,
                   std::int64_t* out);

// Refuses an output that writes an element twice, or that overlaps `other`. Views that interleave in one buffer (the slices of
// a packed QKV projection, say) are told apart.
void check_output(const char* name, const TensorView& view);
void check_no_overlap(const char* output_name, const TensorView& output, const char* other_name, const TensorView& other);

}  // namespace polyhead::api
