// What the functions with flash-attn's argument names share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "borrowed_array.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::python {

// What they all take beside the sequences.
struct FlashOptions {
  double dropout_p;
  std::optional<double> softmax_scale;
  bool causal;
  std::pair<std::int64_t, std::int64_t> window_size;
  std::int64_t sink_token_length;
  double softcap;
  nb::handle alibi_slopes;
  nb::handle sink;
  bool return_attn_probs;
  nb::handle out;
  nb::handle precision;
};

// [..., positions, heads, dim] with `batch_rank` (0 or 1) leading dimensions as [batch, heads, positions, dim].
TensorView heads_first(const TensorView& array, int batch_rank);

// An operand of that form, of one of the data types that attention takes.
BorrowedArray borrow_flash_operand(nb::handle array, const char* argument, int batch_rank, Access access = Access::read);

void expect_equal(std::int64_t size, std::int64_t expected, const char* argument, const char* meaning, const char* other);

// Integers of any integer type the library takes, as 64-bit ones.
std::vector<std::int64_t> read_integers(nb::handle array, const char* argument);

TensorView view_of(const std::vector<std::int64_t>& numbers);

// Fills in what is the same for all, runs, and returns what flash-attn returns: out, or (out, softmax_lse, None). inputs and
// mask know the sequences; diagonals: offsets of the bottom-right diagonal, for windows and slopes without causal. `q`: what
// `query` was made of; inputs.query may be another array of its shape and type.
nb::object run_flash(nb::handle q, const BorrowedArray& query, int batch_rank, AttentionInputs inputs, Mask mask,
                     const FlashOptions& given, const std::vector<std::int64_t>& diagonals);

}  // namespace polyhead::python
