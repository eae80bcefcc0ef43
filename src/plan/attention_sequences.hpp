// Which queries and keys of a run belong together, where that is more than "a batch item's": own query lengths, packed
// sequences. Made for each run from its lengths; masks keep their closed form within a sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/mask.hpp"

namespace polyhead::plan {

// Queries and keys that see nothing outside. Queries and keys are counted from its first; lengths are its own.
struct Sequence {
  std::int64_t batch = 0;  // index of query, key, value, out and lse
  std::int64_t query_begin = 0, query_length = 0;
  std::int64_t key_begin = 0, key_length = 0;  // 0 keys: its rows are there, and empty
  std::int64_t offset = 0;                     // of the causal diagonal: query t stands at key t + offset
  // Where its first query and key lie in boolean mask and bias.
  std::int64_t mask_batch = 0, mask_query = 0, mask_key = 0;
};

// Whether runs with this mask go by sequences; all others go by batch items, whose work is known when the plan is made.
bool goes_by_sequences(const Mask& mask);

// What a run says about its sequences, checked. Pointers are to [items] numbers, null where the mask has no such part.
struct SequenceInputs {
  std::int64_t items = 0;                         // batch items, or packed sequences
  std::int64_t query_length = 0, key_length = 0;  // of a batch item, padding included; of all sequences
  Causal causality = Causal::none;
  const std::int64_t* query_lengths = nullptr;
  const std::int64_t* key_lengths = nullptr;
  const std::int64_t* offsets = nullptr;
  // [items + 1] where sequences are packed: 0, then where each ends.
  const std::int64_t* query_ends = nullptr;
  const std::int64_t* key_ends = nullptr;
};

// The sequences of a run, in memory that is kept from run to run.
class SequenceTable {
 public:
  // Numbers that the run's caller brings, for SequenceInputs to point to.
  std::vector<std::int64_t> query_lengths, query_ends, key_ends;

  void build(const SequenceInputs& inputs);
  const std::vector<Sequence>& sequences() const noexcept { return sequences_; }

 private:
  void add_absent(std::int64_t batch, std::int64_t query_begin, std::int64_t query_end);

  std::vector<Sequence> sequences_;
};

}  // namespace polyhead::plan
