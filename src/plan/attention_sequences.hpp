// Which queries and keys of a run belong together, where that is more than "a batch item's": own query lengths, packed
// sequences, documents. Made for each run from its lengths; masks keep their closed form within a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "polyhead/mask.hpp"

namespace polyhead::plan {

// Queries and keys that see nothing outside. Queries and keys are counted from its first; lengths are its own.
struct Sequence {
  std::int64_t batch = 0;  // index of query, key, value, out and lse
  std::int64_t query_begin = 0, query_length = 0;
  std::int64_t key_begin = 0, key_length = 0;  // 0 keys: its rows are there, and empty; keys in pages begin at 0
  std::int64_t offset = 0;                     // of the causal diagonal: query t stands at key t + offset
  std::int64_t prefix = 0;                     // its keys before this one are seen whatever causal says
  std::int64_t kept = 0;                       // and these whatever the window's left side says
  // Where its first query and key lie in boolean mask, bias and block mask; mask_batch also says whose pages its keys lie in.
  std::int64_t mask_batch = 0, mask_query = 0, mask_key = 0;
  // Documents that lie in no order: where the numbers of its queries begin in SequenceTable::segment_numbers, followed by those
  // of its keys; queries see keys of their own number. -1: all of its keys.
  std::int64_t segments_at = -1;
};

// Whether runs with this mask go by sequences; all others go by batch items, whose work is known when the plan is made.
bool goes_by_sequences(const Mask& mask);

// One side's document numbers: [batch items or 1][length].
struct SegmentIds {
  const void* ids = nullptr;  // i32 or i64
  bool is_i64 = false;
  std::ptrdiff_t batch_stride = 0, stride = 0;  // in elements

  std::int64_t of(std::int64_t item, std::int64_t position) const {
    const std::ptrdiff_t index = item * batch_stride + position * stride;
    return is_i64 ? static_cast<const std::int64_t*>(ids)[index] : static_cast<const std::int32_t*>(ids)[index];
  }
};

// What a run says about its sequences, checked. Pointers are to [items] numbers, null where the mask has no such part.
struct SequenceInputs {
  std::int64_t items = 0;                         // batch items, or packed sequences
  std::int64_t query_length = 0, key_length = 0;  // of a batch item, padding included; of all sequences
  Causal causality = Causal::none;
  std::int64_t window_kept = 0;
  const std::int64_t* query_lengths = nullptr;
  const std::int64_t* key_lengths = nullptr;
  const std::int64_t* offsets = nullptr;
  const std::int64_t* prefix_lengths = nullptr;
  SegmentIds query_segments, key_segments;
  // [items + 1] where sequences are packed: 0, then where each ends. key_ends is null where keys lie in pages, and key_lengths
  // are given then.
  const std::int64_t* query_ends = nullptr;
  const std::int64_t* key_ends = nullptr;
};

// The sequences of a run, in memory that is kept from run to run.
class SequenceTable {
 public:
  // Numbers that the run's caller brings, for SequenceInputs to point to. key_ends is empty where keys lie in pages.
  std::vector<std::int64_t> query_lengths, query_ends, key_ends, prefix_lengths;

  void build(const SequenceInputs& inputs);
  const std::vector<Sequence>& sequences() const noexcept { return sequences_; }

  const std::vector<std::int32_t>& segment_numbers() const noexcept { return segment_numbers_; }

 private:
  // Positions that follow each other and have one document number.
  struct Stretch {
    std::int64_t id, begin, end;
  };

  void add_absent(std::int64_t batch, std::int64_t query_begin, std::int64_t query_end);
  void add_documents(const SequenceInputs& inputs, std::int64_t item, const Sequence& whole);
  void number_documents(Sequence whole);
  static void find_stretches(const SegmentIds& ids, std::int64_t item, std::int64_t length, std::vector<Stretch>& stretches);
  // Sorts them by id. False: an id has more than one.
  static bool sort_by_id(std::vector<Stretch>& stretches);

  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> segment_numbers_;
  std::vector<Stretch> query_stretches_, key_stretches_, sorted_;
};

}  // namespace polyhead::plan
