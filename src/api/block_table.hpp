// Keys and values that lie in pages of the caller's own arrays, found by a block table.
#pragma once

#include <cstdint>

#include "plan/attention_work.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::api {

// Checks all but values and the table's numbers: those of the pages that are read are checked as they are. `batch` is the
// number of batch items or packed sequences. Returns the number of keys that a row of the table has room for.
std::int64_t check_block_table(const AttentionSpec& spec, const AttentionInputs& inputs, std::int64_t batch);
// The values, once check_block_table has passed: a run of weights alone has none.
void check_pages_of_values(const AttentionSpec& spec, const AttentionInputs& inputs);

// Bytes of memory that read_block_table wants.
std::size_t block_table_bytes(const AttentionInputs& inputs);

// Fills in the operands' pages, in `memory`. Their key_lengths, keys, values (where a run has any) and strides are there.
void read_block_table(const AttentionInputs& inputs, void* memory, plan::AttentionOperands* operands);

}  // namespace polyhead::api
