// How attention work is cut and computed, below the public plan and below the layers: which kernel serves a shape, what one
// piece of it costs, and running one piece. Everything here is shape arithmetic and one kernel call; no threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dispatch/kernel_table.hpp"
#include "plan/attention_sequences.hpp"
#include "plan/relative_bias.hpp"
#include "plan/written_mask.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/tensor.hpp"
#include "simd/contract/attention.hpp"

namespace polyhead::plan {

struct AttentionShape {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, query_length = 0, key_length = 0, head_dim = 0, value_dim = 0;
  DType dtype = DType::f32;          // of query
  std::optional<DType> key_dtype{};  // of key and value; unset: as query
  std::optional<DType> out_dtype{};  // likewise
  DType of_keys() const { return key_dtype.value_or(dtype); }
  DType of_out() const { return out_dtype.value_or(dtype); }
  bool mixes() const { return of_keys() != dtype || of_out() != dtype; }
  // Asked for in every piece of work, and most often 1, which takes no division.
  std::int64_t group() const { return heads == kv_heads ? 1 : heads / kv_heads; }
  std::int64_t rows() const { return query_length * group(); }  // of one kv head
};

// Which kernel, and at which multiples keys are split. A function of the row's own shape (head sizes, query length, group, its
// item's key length, dtype, kind of mask, precision) and of the target, never of batch, the number of heads or threads: the
// bits depend on it. `shape.key_length` must therefore be the batch item's own length where lengths are given (own_shape
// below).
struct AttentionChoice {
  const simd::AttentionKernel* kernel = nullptr;
  // Where it is not null, it serves the rows from rest_begin on: few rows that would leave most of a vector's lanes idle.
  const simd::AttentionKernel* rest_kernel = nullptr;
  std::int64_t rest_begin = 0;
  const simd::MergeKernel* merge = nullptr;
  std::int64_t key_split = 0;  // keys a split, a multiple of the kernels' key_block; 0: keys are never split
  double gigaflops = 1;        // the target's rate, for estimates only
  const char* reason = "";
  Precision precision = Precision::strict;  // which bound the kernel is held to: strict's where fast has no kernel of its own
};

// From this many keys on, K and V of a head come from memory rather than from a cache.
constexpr std::int64_t long_keys = 4096;

AttentionChoice choose_attention(const AttentionShape& shape, const Mask& mask, bool length_invariant, Precision precision,
                                 const dispatch::KernelTable& kernels);

// Keys of a tile of the kernel's at these head sizes.
std::int64_t tile_keys(const simd::AttentionKernel& kernel, const AttentionShape& shape);

// The key length of a plan that serves a sequence without end of which the last `kept` keys are there.
std::int64_t lasting_key_length(std::int64_t kept);

// A byte for each block of queries x keys, 0 hides. Strides in bytes over [batch, head, row of blocks, column of blocks], 0
// where broadcast; null where there is no block mask.
struct BlockMask {
  const std::uint8_t* blocks = nullptr;
  std::ptrdiff_t strides[4] = {};
};

// Marks of a boolean mask (simd::AttentionArgs::key_marks), or null: strides in bytes over [batch, kv head, row of marks], 0
// where shared.
struct MaskMarks {
  const std::uint8_t* marks = nullptr;
  std::ptrdiff_t strides[3] = {};
};

// What is added to or hides single scores: strides in bytes over [batch, head, query, key], 0 where broadcast; null where there
// is no such part.
struct ScoreOperands {
  const std::uint8_t* boolean_mask = nullptr;
  DType bias_dtype = DType::f32;  // f32, bf16 or f16
  const void* bias = nullptr;
  std::ptrdiff_t mask_strides[4] = {}, bias_strides[4] = {};
  const float* alibi_slopes = nullptr;  // [batch, heads]
  const float* sink = nullptr;          // [heads]
  std::ptrdiff_t alibi_batch_stride = 0, alibi_stride = 0, sink_stride = 0;
  MaskMarks marks;        // of the boolean mask
  RelativeRows relative;  // instead of a bias
  BlockMask block_mask;   // of the mask's block sizes
  // The caller's own function, or null, and the number that it knows operands' head 0 by.
  const simd::ScoreMod* mod = nullptr;
  std::int64_t first_head = 0;
};

// The keys of one batch item, or packed sequence, where they lie in pages, as a cache keeps them; see simd::AttentionF32Args.
struct KeyPages {
  const void* const* table = nullptr;  // [pages], from first_page on
  std::int64_t first_page = 0;
  std::int64_t first_key = 0;  // keys before it are gone; no row may see one
  // Keys of i8: [kv_heads][key mean [head_dim] | key channel [head_dim] | value mean [value_dim] | value channel [value_dim]].
  const float* channels = nullptr;
};

// One run's operands, resolved and checked: strides in bytes, [0] batch, [1] head, [2] position; the last dimension is
// contiguous. shape holds the sizes of this run. lse may be null.
struct AttentionOperands {
  AttentionShape shape;
  Mask mask;
  double scale = 1.0;
  double softcap = 0.0;  // 0: none
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  std::ptrdiff_t query_strides[3] = {}, key_strides[3] = {}, value_strides[3] = {}, out_strides[3] = {}, lse_strides[3] = {};
  const std::int64_t* key_lengths = nullptr;  // [batch], exactly when mask.has_key_lengths
  const std::int64_t* offsets = nullptr;      // [batch], exactly when mask.has_offsets
  // [batch] (Sequence::mask_batch) where keys and values lie in pages of page_keys keys, else null. Then key and value are
  // null, a head's first key in a page is at head * key_strides[1], its first value at value_in_page + head * value_strides[1],
  // and [0] has no meaning.
  const KeyPages* pages = nullptr;
  std::int64_t page_keys = 0;
  std::ptrdiff_t value_in_page = 0;
  std::ptrdiff_t key_scale_in_page = 0, value_scale_in_page = 0;  // keys of i8: of the first head, likewise
  // Where given, the items of the functions below are these, else batch items; lengths and offsets are then theirs.
  const Sequence* sequences = nullptr;
  std::int64_t sequence_count = 0;
  const std::int32_t* segment_numbers = nullptr;  // where Sequence::segments_at points
  MaskRoom mask_room;                             // the first part of every thread's scratch
  ScoreOperands scores;
};

// The run's shape as item `item` sees it: with its own lengths.
AttentionShape own_shape(const AttentionOperands& operands, std::int64_t item);

// An item of a run as a sequence: where runs go by batch items, the whole of one.
Sequence sequence_of(const AttentionOperands& operands, std::int64_t item);
// The first query after t to which structure shows keys by another rule than to t.
std::int64_t next_rule(const AttentionOperands& operands, const Sequence& sequence, std::int64_t t);

// The keys that rows [row_begin, row_end) of an item may see by structure, and the visibility limits for the kernel.
struct KeyRange {
  std::int64_t begin = 0, end = 0;                  // begin is not yet rounded to a key block; empty when begin >= end
  std::int64_t visible_begin = 0, visible_end = 0;  // as in simd::AttentionArgs
  std::int64_t kept_end = 0;                        // likewise; only where visible_begin is a limit
  std::int64_t offset = 0;                          // of the causal diagonal: query t stands at key t + offset

  // Keys of them that no query from `first` on sees: between the kept ones and the window.
  KeyGap gap(std::int64_t first) const {
    const std::int64_t last = std::max(begin, end), from = std::clamp(kept_end, begin, last);
    return {from, std::clamp(first + visible_begin, from, last)};
  }
  // Of these keys, those of [from, to) that queries [first, last] see.
  simd::SeenKeys seen_by(std::int64_t first, std::int64_t last, std::int64_t from, std::int64_t to) const {
    return simd::seen_keys(first, last, std::max(from, begin), std::min(to, end), visible_begin, visible_end, kept_end);
  }
};
KeyRange key_range(const AttentionOperands& operands, std::int64_t item, std::int64_t row_begin, std::int64_t row_end);

// Floats of one split's partial result of `rows` rows, rounded to whole cache lines.
std::size_t partial_floats(const AttentionShape& shape, std::int64_t rows);

// Scratch for one thread: enough for run_rows and run_rows_of_split on any piece of at most `max_rows` rows.
std::size_t scratch_bytes(const AttentionChoice& choice, const AttentionShape& maximum, std::int64_t max_rows);
// The most that any choice asks for, over all runs whose lengths are at most the maximum's, without
// AttentionOperands::mask_room.
std::size_t most_scratch_bytes(const AttentionShape& maximum, const Mask& mask, bool length_invariant, Precision precision,
                               const dispatch::KernelTable& kernels);

// An estimate, for balance and for the inline path, in nanoseconds.
double piece_cost_ns(const AttentionChoice& choice, const AttentionOperands& operands, std::int64_t item,
                     std::int64_t row_begin, std::int64_t row_end);

// Computes rows [row_begin, row_end) of one (item, kv head) completely: all key splits in order, merged, written to out
// (and lse). Rows are numbered as in simd::AttentionF32Args.
void run_rows(const AttentionChoice& choice, const AttentionOperands& operands, std::int64_t item, std::int64_t kv_head,
              std::int64_t row_begin, std::int64_t row_end, void* scratch);

// The number of key splits of a run: the same for every row, so empty ones are possible.
std::int64_t split_count(const AttentionChoice& choice, std::int64_t key_length);

// The splits that the rows of an item, of `key_length` keys, are computed in: all of them but those whose keys are gone. A
// merge passes over empty parts, so that leaving them out changes no bit.
struct SplitRange {
  std::int64_t first = 0, count = 1;
  bool apart = false;  // whether keys are split at all; even a single split is then merged, as it would be among others
};
SplitRange split_range(const AttentionChoice& choice, const AttentionOperands& operands, std::int64_t item,
                       std::int64_t key_length);

// One split's share of run_rows: leaves it at `partial` ([row_end - row_begin][value_dim + 2] floats).
void run_rows_of_split(const AttentionChoice& choice, const AttentionOperands& operands, std::int64_t item,
                       std::int64_t kv_head, std::int64_t row_begin, std::int64_t row_end, std::int64_t split, float* partial,
                       void* scratch);
// Merges the partial results of all splits, `partials[split]`, into out (and lse). Changes the pointers.
void merge_rows(const AttentionChoice& choice, const AttentionOperands& operands, std::int64_t item, std::int64_t kv_head,
                std::int64_t row_begin, std::int64_t row_end, const float** partials, std::int64_t splits);

}  // namespace polyhead::plan
