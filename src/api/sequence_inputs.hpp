// The run-time tensors that say which queries and keys belong together: checked and read.
#pragma once

#include <cstdint>

#include "api/mask_inputs.hpp"
#include "plan/attention_sequences.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::api {

struct SequenceTensors {
  const TensorView& query_lengths;
  const TensorView& cumulative_query_lengths;
  const TensorView& cumulative_key_lengths;
  const TensorView& prefix_lengths;
  const TensorView& query_segments;
  const TensorView& key_segments;
  const TensorView& block_mask;
};

// Refuses what does not go with keys in pages, of a cache or of a block table.
void check_mask_over_pages(const Mask& mask);

// Each tensor is given exactly when the mask has its part. Keys in pages are not packed: they have no cumulative lengths.
void check_sequences_given(const Mask& mask, const SequenceTensors& tensors, bool in_pages);

// The number of packed sequences, by the shape of the tensor that says where their queries end.
std::int64_t packed_sequences(const TensorView& cumulative_query_lengths);

// Reads where packed sequences end into `table`; query_total and key_total are the tensors' lengths, in pages key_total is the
// room of a sequence. Returns the number of sequences, and the lengths of the longest.
ScoreShape read_packed(const SequenceTensors& tensors, bool in_pages, std::int64_t heads, std::int64_t query_total,
                       std::int64_t key_total, plan::SequenceTable& table);

// Checks and reads the others, and makes the run's sequences in `table`. shape is that of a batch item or of the longest packed
// sequence, query_total the length of the query tensor; key_lengths and offsets are what read_mask_inputs has read.
void read_sequences(const Mask& mask, const SequenceTensors& tensors, const ScoreShape& shape, std::int64_t query_total,
                    const std::int64_t* key_lengths, const std::int64_t* offsets, plan::SequenceTable& table);

// Checks the block mask, over blocks of shape's queries and keys.
plan::BlockMask read_blocks(const Mask& mask, const TensorView& block_mask, const ScoreShape& shape);

// Refuses an output that overlaps one of them.
void check_no_overlap(const char* output_name, const TensorView& output, const SequenceTensors& tensors);

}  // namespace polyhead::api
