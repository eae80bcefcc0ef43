#include "plan/attention_sequences.hpp"

namespace polyhead::plan {

bool goes_by_sequences(const Mask& mask) {
  return mask.has_query_lengths || mask.is_packed;
}

// Rows that belong to nothing: they see no key.
void SequenceTable::add_absent(std::int64_t batch, std::int64_t query_begin, std::int64_t query_end) {
  if (query_begin >= query_end) return;
  Sequence absent;
  absent.batch = batch;
  absent.query_begin = query_begin;
  absent.query_length = query_end - query_begin;
  sequences_.push_back(absent);
}

void SequenceTable::build(const SequenceInputs& inputs) {
  sequences_.clear();
  const bool packed = inputs.query_ends != nullptr;
  for (std::int64_t item = 0; item < inputs.items; ++item) {
    Sequence sequence;
    sequence.mask_batch = item;
    std::int64_t query_end = inputs.query_length, key_end = inputs.key_length;
    if (packed) {
      sequence.query_begin = inputs.query_ends[item];
      sequence.key_begin = inputs.key_ends[item];
      query_end = inputs.query_ends[item + 1];
      key_end = inputs.key_ends[item + 1];
    } else {
      sequence.batch = item;
    }
    sequence.query_length = inputs.query_lengths ? inputs.query_lengths[item] : query_end - sequence.query_begin;
    sequence.key_length = inputs.key_lengths ? inputs.key_lengths[item] : key_end - sequence.key_begin;
    if (inputs.causality == Causal::bottom_right) sequence.offset = sequence.key_length - sequence.query_length;
    if (inputs.offsets) sequence.offset = inputs.offsets[item];
    if (sequence.query_length > 0) sequences_.push_back(sequence);
    add_absent(sequence.batch, sequence.query_begin + sequence.query_length, query_end);
  }
  if (packed) add_absent(0, inputs.query_ends[inputs.items], inputs.query_length);
}

}  // namespace polyhead::plan
