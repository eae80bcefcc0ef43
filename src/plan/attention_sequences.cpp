#include "plan/attention_sequences.hpp"

#include <algorithm>

namespace polyhead::plan {

bool goes_by_sequences(const Mask& mask) {
  return mask.has_query_lengths || mask.is_packed || mask.has_prefix || mask.has_segments || mask.block_queries != 0;
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

void SequenceTable::find_stretches(const SegmentIds& ids, std::int64_t item, std::int64_t length,
                                   std::vector<Stretch>& stretches) {
  stretches.clear();
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t id = ids.of(item, i);
    if (stretches.empty() || stretches.back().id != id) stretches.push_back({id, i, i});
    stretches.back().end = i + 1;
  }
}

bool SequenceTable::sort_by_id(std::vector<Stretch>& stretches) {
  const auto by_id = [](const Stretch& a, const Stretch& b) { return a.id < b.id; };
  if (!std::is_sorted(stretches.begin(), stretches.end(), by_id)) std::sort(stretches.begin(), stretches.end(), by_id);
  const auto same_id = [](const Stretch& a, const Stretch& b) { return a.id == b.id; };
  return std::adjacent_find(stretches.begin(), stretches.end(), same_id) == stretches.end();
}

// Each document a sequence of its own, where its queries are one stretch and its keys too; which is a question about this batch
// item alone, since bits depend on it.
void SequenceTable::add_documents(const SequenceInputs& inputs, std::int64_t item, const Sequence& whole) {
  find_stretches(inputs.query_segments, item, whole.query_length, query_stretches_);
  find_stretches(inputs.key_segments, item, whole.key_length, key_stretches_);
  sorted_ = query_stretches_;
  const bool queries_in_stretches = sort_by_id(sorted_);
  if (!sort_by_id(key_stretches_) || !queries_in_stretches) return number_documents(whole);
  for (const Stretch& queries : query_stretches_) {
    const auto keys = std::lower_bound(key_stretches_.begin(), key_stretches_.end(), queries.id,
                                       [](const Stretch& stretch, std::int64_t id) { return stretch.id < id; });
    Sequence document = whole;
    document.query_begin += queries.begin;
    document.query_length = queries.end - queries.begin;
    document.mask_query += queries.begin;
    document.key_length = 0;
    if (keys != key_stretches_.end() && keys->id == queries.id) {
      document.key_begin += keys->begin;
      document.key_length = keys->end - keys->begin;
      document.mask_key += keys->begin;
      document.offset += queries.begin - keys->begin;
      document.prefix = std::clamp<std::int64_t>(whole.prefix - keys->begin, 0, document.key_length);
      document.kept = std::clamp<std::int64_t>(whole.kept - keys->begin, 0, document.key_length);
    }
    sequences_.push_back(document);
  }
}

// One sequence, and a small number for each document: its place among the ids of keys. key_stretches_ is sorted by id.
void SequenceTable::number_documents(Sequence whole) {
  whole.segments_at = static_cast<std::int64_t>(segment_numbers_.size());
  segment_numbers_.resize(segment_numbers_.size() + static_cast<std::size_t>(whole.query_length + whole.key_length));
  std::int32_t* const of_queries = segment_numbers_.data() + whole.segments_at;
  std::int32_t* const of_keys = of_queries + whole.query_length;
  std::int32_t number = -1;
  for (std::size_t i = 0; i < key_stretches_.size(); ++i) {
    const Stretch& keys = key_stretches_[i];
    if (i == 0 || key_stretches_[i - 1].id != keys.id) ++number;
    std::fill(of_keys + keys.begin, of_keys + keys.end, number);
  }
  for (const Stretch& queries : query_stretches_) {
    const auto keys = std::lower_bound(key_stretches_.begin(), key_stretches_.end(), queries.id,
                                       [](const Stretch& stretch, std::int64_t id) { return stretch.id < id; });
    const bool has_keys = keys != key_stretches_.end() && keys->id == queries.id;
    std::fill(of_queries + queries.begin, of_queries + queries.end, has_keys ? of_keys[keys->begin] : -1);
  }
  sequences_.push_back(whole);
}

void SequenceTable::build(const SequenceInputs& inputs) {
  sequences_.clear();
  segment_numbers_.clear();
  const bool packed = inputs.query_ends != nullptr;
  for (std::int64_t item = 0; item < inputs.items; ++item) {
    Sequence sequence;
    sequence.mask_batch = item;
    std::int64_t query_end = inputs.query_length, key_end = inputs.key_length;
    if (packed) {
      sequence.query_begin = inputs.query_ends[item];
      query_end = inputs.query_ends[item + 1];
      if (inputs.key_ends) {
        sequence.key_begin = inputs.key_ends[item];
        key_end = inputs.key_ends[item + 1];
      }
    } else {
      sequence.batch = item;
    }
    sequence.query_length = inputs.query_lengths ? inputs.query_lengths[item] : query_end - sequence.query_begin;
    sequence.key_length = inputs.key_lengths ? inputs.key_lengths[item] : key_end - sequence.key_begin;
    if (inputs.causality == Causal::bottom_right) sequence.offset = sequence.key_length - sequence.query_length;
    if (inputs.offsets) sequence.offset = inputs.offsets[item];
    if (inputs.prefix_lengths) sequence.prefix = std::min(inputs.prefix_lengths[item], sequence.key_length);
    sequence.kept = std::min(inputs.window_kept, sequence.key_length);
    if (inputs.query_segments.ids) {
      add_documents(inputs, item, sequence);
    } else if (sequence.query_length > 0) {
      sequences_.push_back(sequence);
    }
    add_absent(sequence.batch, sequence.query_begin + sequence.query_length, query_end);
  }
  if (packed) add_absent(0, inputs.query_ends[inputs.items], inputs.query_length);
}

}  // namespace polyhead::plan
