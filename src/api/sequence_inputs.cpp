#include "api/sequence_inputs.hpp"

#include <algorithm>
#include <string>

#include "api/checks.hpp"

namespace polyhead::api {
namespace {

// Reads [items + 1] numbers that begin with 0 and never fall nor pass `total`. Returns the longest step.
std::int64_t read_ends(const char* name, const TensorView& view, std::int64_t items, std::int64_t total,
                       std::vector<std::int64_t>& ends) {
  ends.resize(static_cast<std::size_t>(items + 1));
  read_integers(name, view, items + 1, 0, total, ends.data());
  const auto fail_at = [&](std::size_t i, const std::string& expected) {
    fail((std::string(name) + "[" + std::to_string(i) + "]").c_str(), std::to_string(ends[i]), expected);
  };
  if (ends[0] != 0) fail_at(0, "0");
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] < ends[i - 1]) fail_at(i, "at least the one before, " + std::to_string(ends[i - 1]));
    longest = std::max(longest, ends[i] - ends[i - 1]);
  }
  return longest;
}

// Lengths inside packed sequences: each at most its sequence's.
void check_inside(const char* name, const std::int64_t* lengths, const std::vector<std::int64_t>& ends) {
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    const std::int64_t most = ends[i + 1] - ends[i];
    if (lengths[i] <= most) continue;
    fail((std::string(name) + "[" + std::to_string(i) + "]").c_str(), std::to_string(lengths[i]),
         "0 to " + std::to_string(most) + ", the length of its sequence");
  }
}

plan::SegmentIds read_segments(const char* name, const TensorView& view, std::int64_t batch, std::int64_t length) {
  const bool fits = view.rank == 2 && (view.shape[0] == batch || view.shape[0] == 1) && view.shape[1] == length &&
                    (view.dtype == DType::i32 || view.dtype == DType::i64);
  if (!fits) {
    fail(name, view.describe(), "i32 or i64 [" + std::to_string(batch) + " or 1, " + std::to_string(length) + "]");
  }
  check_memory(name, view);
  plan::SegmentIds ids;
  ids.ids = view.data;
  ids.is_i64 = view.dtype == DType::i64;
  ids.batch_stride = view.shape[0] == 1 ? 0 : view.strides[0];
  ids.stride = view.shape[1] == 1 ? 0 : view.strides[1];
  return ids;
}

}  // namespace

void check_mask_over_pages(const Mask& mask) {
  if (!mask.has_segments) return;
  fail("AttentionSpec.mask.has_segments", "true",
       "false for keys in pages, in the middle of which documents would begin: give each document as a sequence of its own");
}

void check_sequences_given(const Mask& mask, const SequenceTensors& tensors, bool in_pages) {
  check_given("query_lengths", tensors.query_lengths, mask.has_query_lengths, "query lengths");
  check_given("cumulative_query_lengths", tensors.cumulative_query_lengths, mask.is_packed, "packed sequences");
  if (in_pages && mask.is_packed && !tensors.cumulative_key_lengths.empty()) {
    fail("cumulative_key_lengths", "given", "none, since keys lie in pages and have lengths of their own");
  }
  check_given("cumulative_key_lengths", tensors.cumulative_key_lengths, mask.is_packed && !in_pages, "packed sequences");
  check_given("prefix_lengths", tensors.prefix_lengths, mask.has_prefix, "a prefix");
  check_given("query_segments", tensors.query_segments, mask.has_segments, "segments");
  check_given("key_segments", tensors.key_segments, mask.has_segments, "segments");
  check_given("block_mask", tensors.block_mask, mask.block_queries != 0, "blocks");
}

std::int64_t packed_sequences(const TensorView& cumulative_query_lengths) {
  if (cumulative_query_lengths.rank != 1 || cumulative_query_lengths.shape[0] < 1) {
    fail("cumulative_query_lengths", cumulative_query_lengths.describe(), "i32 or i64 [sequences + 1]");
  }
  return cumulative_query_lengths.shape[0] - 1;
}

ScoreShape read_packed(const SequenceTensors& tensors, bool in_pages, std::int64_t heads, std::int64_t query_total,
                       std::int64_t key_total, plan::SequenceTable& table) {
  ScoreShape longest{};
  longest.batch = packed_sequences(tensors.cumulative_query_lengths);
  longest.heads = heads;
  longest.query_length =
      read_ends("cumulative_query_lengths", tensors.cumulative_query_lengths, longest.batch, query_total, table.query_ends);
  if (in_pages) {
    table.key_ends.clear();
    longest.key_length = key_total;
  } else {
    longest.key_length =
        read_ends("cumulative_key_lengths", tensors.cumulative_key_lengths, longest.batch, key_total, table.key_ends);
  }
  longest.longer = true;
  return longest;
}

void read_sequences(const Mask& mask, const SequenceTensors& tensors, const ScoreShape& shape, std::int64_t query_total,
                    const std::int64_t* key_lengths, const std::int64_t* offsets, plan::SequenceTable& table) {
  plan::SequenceInputs inputs;
  inputs.window_kept = mask.window_kept;
  inputs.items = shape.batch;
  inputs.query_length = shape.query_length;
  inputs.key_length = shape.key_length;
  inputs.causality = mask.causality;
  if (mask.has_query_lengths) {
    table.query_lengths.resize(static_cast<std::size_t>(shape.batch));
    read_integers("query_lengths", tensors.query_lengths, shape.batch, 0, shape.query_length, table.query_lengths.data());
    inputs.query_lengths = table.query_lengths.data();
    if (mask.is_packed) check_inside("query_lengths", inputs.query_lengths, table.query_ends);
  }
  if (mask.has_key_lengths) {
    inputs.key_lengths = key_lengths;
    if (mask.is_packed && !table.key_ends.empty()) check_inside("key_lengths", key_lengths, table.key_ends);
  }
  if (mask.has_prefix) {
    table.prefix_lengths.resize(static_cast<std::size_t>(shape.batch));
    read_integers("prefix_lengths", tensors.prefix_lengths, shape.batch, 0, shape.key_length, table.prefix_lengths.data());
    inputs.prefix_lengths = table.prefix_lengths.data();
  }
  if (mask.has_segments) {
    inputs.query_segments = read_segments("query_segments", tensors.query_segments, shape.batch, shape.query_length);
    inputs.key_segments = read_segments("key_segments", tensors.key_segments, shape.batch, shape.key_length);
  }
  if (mask.is_packed) {
    inputs.query_length = query_total;
    inputs.query_ends = table.query_ends.data();
    if (!table.key_ends.empty()) inputs.key_ends = table.key_ends.data();
  }
  if (mask.has_offsets) inputs.offsets = offsets;
  table.build(inputs);
}

plan::BlockMask read_blocks(const Mask& mask, const TensorView& block_mask, const ScoreShape& shape) {
  plan::BlockMask blocks;
  if (block_mask.dtype != DType::boolean && block_mask.dtype != DType::u8) {
    fail("block_mask", std::string("of dtype ") + name(block_mask.dtype), "bool or u8");
  }
  const auto count = [](std::int64_t length, std::int64_t size) { return length / size + (length % size != 0 ? 1 : 0); };
  const std::int64_t counts[4] = {shape.batch, shape.heads, count(shape.query_length, mask.block_queries),
                                  count(shape.key_length, mask.block_keys)};
  broadcast_strides("block_mask", block_mask, counts, blocks.strides, shape.longer);
  blocks.blocks = static_cast<const std::uint8_t*>(block_mask.data);
  return blocks;
}

void check_no_overlap(const char* output_name, const TensorView& output, const SequenceTensors& tensors) {
  check_no_overlap(output_name, output, "query_lengths", tensors.query_lengths);
  check_no_overlap(output_name, output, "cumulative_query_lengths", tensors.cumulative_query_lengths);
  check_no_overlap(output_name, output, "cumulative_key_lengths", tensors.cumulative_key_lengths);
  check_no_overlap(output_name, output, "prefix_lengths", tensors.prefix_lengths);
  check_no_overlap(output_name, output, "query_segments", tensors.query_segments);
  check_no_overlap(output_name, output, "key_segments", tensors.key_segments);
  check_no_overlap(output_name, output, "block_mask", tensors.block_mask);
}

}  // namespace polyhead::api
