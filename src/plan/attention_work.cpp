#include "plan/attention_work.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "dispatch/select_isa.hpp"
#include "platform/rounding.hpp"

namespace polyhead::plan {
namespace {

// Whether the transposed kernel multiplies pairs of 16 bits, and does twice the products of the row-major one.
bool multiplies_pairs(Isa isa, DType dtype) {
  return dispatch::multiplies_bf16_pairs(isa) && dtype == DType::bf16;
}

// Whether the transposed kernel multiplies bf16 as it is on tiles, once where f32 takes six products.
bool takes_bf16_tiles(Isa isa, const AttentionShape& shape) {
  return isa == Isa::amx && shape.of_keys() == DType::bf16 && !shape.mixes();
}

// Up to this many rows a kv head, a long key sequence is the only thing to cut, so keys are split at fixed multiples.
constexpr std::int64_t split_rows = 64;
constexpr std::int64_t keys_per_split = 2048;

// Rows a kv head up to which row-major scores win: few rows leave most lanes of the transposed kernel idle. Long rows of K help
// them: a row-major score pays for adding up its lanes once, whatever the row's length.
std::int64_t decode_rows(Isa isa, const AttentionShape& shape) {
  const bool from_memory = shape.key_length >= long_keys;
  switch (isa) {
    case Isa::avx512:
    case Isa::avx512_bf16:
      if (multiplies_pairs(isa, shape.dtype)) return 8;
      return shape.head_dim >= 128 ? 12 : shape.head_dim >= 80 ? 10 : 8;
    case Isa::avx2:
      return shape.head_dim >= 128 ? 6 : 4;
    case Isa::amx:
      // By count of operations: tiles of bf16 take a block of 32 rows in the time of four rows, packing its keys included, but
      // do not fetch ahead as row-major scores do.
      if (takes_bf16_tiles(isa, shape)) return from_memory ? 8 : 4;
      if (from_memory || shape.head_dim >= 128) return 16;
      return shape.head_dim >= 80 ? 12 : 8;
    default:
      return from_memory ? 8 : 4;
  }
}

// Rows behind the last whole vector of the transposed kernel, up to this many, that row-major scores take in less time than a
// vector whose other lanes are idle. They read K and V once more: long ones are read from the cache where a split of the keys
// is all that comes between.
std::int64_t most_rest_rows(Isa isa, const AttentionShape& shape) {
  const bool is_long = shape.key_length >= long_keys;
  if (is_long && shape.rows() > split_rows) return 0;
  if (isa == Isa::avx2) return shape.head_dim >= 128 ? 4 : 3;
  if (isa != Isa::avx512 && isa != Isa::avx512_bf16) return 0;
  if (multiplies_pairs(isa, shape.dtype)) return is_long ? 2 : shape.head_dim >= 128 ? 5 : 4;
  if (shape.head_dim < 80) return 4;
  return shape.head_dim >= 128 && !is_long ? 8 : 6;
}

std::int64_t rows_a_vector(Isa isa) {
  return isa == Isa::avx2 ? 8 : 16;
}

template <typename T>
T* at(T* base, std::ptrdiff_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
}

// The same for what need not lie in the array that it is counted in.
const float* at_address(const float* base, std::ptrdiff_t bytes, std::int64_t floats) {
  return reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(bytes) +
                                        static_cast<std::uintptr_t>(floats) * sizeof(float));
}

// A batch item as a sequence.
Sequence whole_item(const AttentionOperands& o, std::int64_t item) {
  Sequence sequence;
  sequence.batch = sequence.mask_batch = item;
  sequence.query_length = o.shape.query_length;
  sequence.key_length = o.mask.has_key_lengths ? o.key_lengths[item] : o.shape.key_length;
  if (o.mask.causality == Causal::bottom_right) sequence.offset = sequence.key_length - sequence.query_length;
  if (o.mask.has_offsets) sequence.offset = o.offsets[item];
  sequence.kept = std::min(o.mask.window_kept, sequence.key_length);
  return sequence;
}

// A thread computes the pieces of a head in ascending order, then the next head's, then the next item's.
void hint_next_rows(const AttentionOperands& o, std::int64_t item, std::int64_t kv_head, simd::AttentionF32Args& args) {
  const std::int64_t group = o.shape.group(), rows = args.row_end - args.row_begin;
  if (args.group != group) return;  // heads one by one: the next is this one's neighbour
  std::int64_t all = sequence_of(o, item).query_length * group;
  if (args.row_end < all) {
    args.next_query = args.query;
    args.next_row_begin = args.row_end;
  } else {
    if (++kv_head == o.shape.kv_heads) ++item, kv_head = 0;
    if (item >= (o.sequences ? o.sequence_count : o.shape.batch)) return;
    const Sequence next = sequence_of(o, item);
    all = next.query_length * group;
    args.next_query = at(o.query, next.batch * o.query_strides[0] + kv_head * group * o.query_strides[1] +
                                      next.query_begin * o.query_strides[2]);
  }
  args.next_row_end = std::min(args.next_row_begin + rows, all);
}

// Rows that see keys by one rule: what one call of a kernel takes.
struct Region {
  std::int64_t head = 0, group = 1;         // query heads [head, head + group)
  std::int64_t row_begin = 0, row_end = 0;  // numbered t * group + g
  KeyRange keys;

  std::int64_t rows() const { return row_end - row_begin; }
};

// The arguments of a call for a region, but for the key range and what comes of it.
// Of rows in the cache asking costs up to 12 % of the time: K and V of the call are to be more than what a core has of it.
std::int64_t fetch_ahead(const AttentionShape& shape) {
  static const std::int64_t bytes = dispatch::cpu_features().fetch_ahead_bytes();
  if (bytes == 0) return 0;
  constexpr double cached_bytes = 16e6;
  const double elements = static_cast<double>(shape.batch * shape.kv_heads) * static_cast<double>(shape.key_length) *
                          static_cast<double>(shape.head_dim + shape.value_dim);
  return elements * static_cast<double>(size_in_bytes(shape.of_keys())) > cached_bytes ? bytes : 0;
}

simd::AttentionF32Args arguments(const AttentionOperands& o, const Sequence& sequence, const Region& region) {
  const std::int64_t group = region.group, head = region.head, kv_head = quotient(head, o.shape.group());
  const std::int64_t batch = sequence.batch, mask_batch = sequence.mask_batch;
  simd::AttentionF32Args args;
  args.query_element = dispatch::element_of(o.shape.dtype);
  args.out_element = dispatch::element_of(o.shape.of_out());
  args.query = at(o.query, batch * o.query_strides[0] + head * o.query_strides[1] + sequence.query_begin * o.query_strides[2]);
  args.query_stride = o.query_strides[2];
  args.query_head_stride = o.query_strides[1];
  if (sequence.key_length == 0) {  // its rows are empty: nothing is read
  } else if (o.pages) {
    const KeyPages& pages = o.pages[mask_batch];
    args.pages = pages.table;
    args.first_page = pages.first_page;
    args.page_keys = o.page_keys;
    args.key_in_page = kv_head * o.key_strides[1];
    args.value_in_page = o.value_in_page + kv_head * o.value_strides[1];
    if (const float* channels = pages.channels) {
      channels += kv_head * 2 * (o.shape.head_dim + o.shape.value_dim);
      args.key_mean = channels;
      args.key_channel = channels + o.shape.head_dim;
      args.value_mean = channels + 2 * o.shape.head_dim;
      args.value_channel = args.value_mean + o.shape.value_dim;
      args.key_scale_in_page = o.key_scale_in_page + kv_head * o.key_strides[1];
      args.value_scale_in_page = o.value_scale_in_page + kv_head * o.value_strides[1];
    }
  } else {
    args.key = at(o.key, batch * o.key_strides[0] + kv_head * o.key_strides[1] + sequence.key_begin * o.key_strides[2]);
    args.value =
        at(o.value, batch * o.value_strides[0] + kv_head * o.value_strides[1] + sequence.key_begin * o.value_strides[2]);
  }
  args.key_stride = o.key_strides[2];
  args.value_stride = o.value_strides[2];
  args.fetch_ahead = fetch_ahead(o.shape);
  args.group = group;
  args.head_dim = o.shape.head_dim;
  args.value_dim = o.shape.value_dim;
  args.scale = o.scale;
  args.softcap = o.softcap;
  args.row_begin = region.row_begin;
  args.row_end = region.row_end;
  args.visible_begin = region.keys.visible_begin;
  args.visible_end = region.keys.visible_end;
  args.kept_end = region.keys.kept_end;
  const ScoreOperands& scores = o.scores;
  if (scores.boolean_mask) {
    args.boolean_mask =
        at(scores.boolean_mask, mask_batch * scores.mask_strides[0] + head * scores.mask_strides[1] +
                                    sequence.mask_query * scores.mask_strides[2] + sequence.mask_key * scores.mask_strides[3]);
    args.mask_head_stride = scores.mask_strides[1];
    args.mask_stride = scores.mask_strides[2];
    args.mask_key_stride = scores.mask_strides[3];
  }
  if (scores.marks.marks) {
    args.key_marks = scores.marks.marks + mask_batch * scores.marks.strides[0] + kv_head * scores.marks.strides[1];
    args.mark_stride = scores.marks.strides[2];
  }
  if (scores.bias) {
    args.bias_element = dispatch::element_of(scores.bias_dtype);
    args.bias = at(scores.bias, mask_batch * scores.bias_strides[0] + head * scores.bias_strides[1] +
                                    sequence.mask_query * scores.bias_strides[2] + sequence.mask_key * scores.bias_strides[3]);
    args.bias_head_stride = scores.bias_strides[1];
    args.bias_stride = scores.bias_strides[2];
    args.bias_key_stride = scores.bias_strides[3];
  }
  if (scores.relative.rows && scores.relative.width == 0) {
    const RelativeRows& relative = scores.relative;
    const std::int64_t offset = relative.near_offset(region.keys.offset, sequence.query_length, sequence.key_length);
    args.bias = at_address(relative.rows, head * relative.head_stride, -(offset + relative.first));
    args.bias_head_stride = relative.head_stride;
    args.bias_stride = -static_cast<std::ptrdiff_t>(sizeof(float));
    args.bias_key_stride = sizeof(float);
  }
  if (scores.alibi_slopes) {
    args.alibi_slopes = at(scores.alibi_slopes, mask_batch * scores.alibi_batch_stride + head * scores.alibi_stride);
    args.alibi_stride = scores.alibi_stride;
    args.alibi_offset = region.keys.offset;
  }
  if (scores.mod) {
    args.score_mod = scores.mod;
    args.mod_batch = mask_batch;
    args.mod_head = scores.first_head + head;
    args.mod_query = sequence.mask_query;
    args.mod_key = sequence.mask_key;
  }
  if (scores.sink) {
    args.sink = at(scores.sink, head * scores.sink_stride);
    args.sink_stride = scores.sink_stride;
  }
  args.out = at(o.out, batch * o.out_strides[0] + head * o.out_strides[1] + sequence.query_begin * o.out_strides[2]);
  args.out_stride = o.out_strides[2];
  args.out_head_stride = o.out_strides[1];
  if (o.lse) {
    args.lse = at(o.lse, batch * o.lse_strides[0] + head * o.lse_strides[1] + sequence.query_begin * o.lse_strides[2]);
    args.lse_stride = o.lse_strides[2];
    args.lse_head_stride = o.lse_strides[1];
  }
  return args;
}

// Runs a call that is set up. Where the bias is one of a window of an image, its head's queries are renumbered first: as groups
// of `width`, since a step along a window row and one to the next row are two strides of that bias. Rows stay what they are,
// and so do their bits. The first query of a document may lie in the middle of a window row: counting begins where that does.
void run_kernel(const simd::AttentionKernel& kernel, const AttentionOperands& o, const Sequence& sequence, const Region& region,
                simd::AttentionF32Args& args) {
  const RelativeRows& relative = o.scores.relative;
  if (relative.width > 0) {
    const std::int64_t width = relative.width, window_row = sequence.mask_query / width;
    const std::int64_t skipped = sequence.mask_query - window_row * width;
    const auto renumber = [&](auto& base, std::ptrdiff_t& stride, std::ptrdiff_t& head_stride) {
      using Pointer = std::remove_reference_t<decltype(base)>;
      if (base)
        base =
            reinterpret_cast<Pointer>(reinterpret_cast<std::uintptr_t>(base) - static_cast<std::uintptr_t>(skipped * stride));
      head_stride = stride;
      stride *= width;
    };
    renumber(args.query, args.query_stride, args.query_head_stride);
    renumber(args.out, args.out_stride, args.out_head_stride);
    renumber(args.lse, args.lse_stride, args.lse_head_stride);
    renumber(args.boolean_mask, args.mask_stride, args.mask_head_stride);
    args.sink_stride = 0;
    args.group = width;
    args.row_begin += skipped;
    args.row_end += skipped;
    args.next_query = nullptr;
    args.bias = at_address(relative.rows, region.head * relative.head_stride,
                           (relative.height - 1 - window_row) * width + sequence.mask_key);
    args.bias_stride = -width * static_cast<std::ptrdiff_t>(sizeof(float));
    args.bias_head_stride = (2 * relative.height - 1) * width * static_cast<std::ptrdiff_t>(sizeof(float));
    args.bias_key_stride = sizeof(float);
  }
  kernel.run(args);
}

// Whether query t sees keys by the prefix, beyond the causal diagonal. Without a prefix none does, also where the diagonal lies
// before the first key.
bool sees_prefix(const AttentionOperands& o, const Sequence& sequence, std::int64_t t) {
  return sequence.prefix > 0 && o.mask.causality != Causal::none && t + sequence.offset + 1 < sequence.prefix;
}

// The keys that queries [first, last] of a sequence may see by structure; all of them or none see the prefix.
KeyRange key_range_of_queries(const AttentionOperands& o, const Sequence& sequence, std::int64_t first, std::int64_t last) {
  const std::int64_t offset = sequence.offset;
  std::int64_t keys = sequence.key_length;
  KeyRange range;
  range.offset = offset;
  range.visible_begin = simd::AttentionF32Args::unbounded_begin;
  range.visible_end = simd::AttentionF32Args::unbounded_end;
  if (sees_prefix(o, sequence, first)) {
    keys = std::min(keys, sequence.prefix);
  } else if (o.mask.causality != Causal::none) {
    range.visible_end = offset + 1;
  }
  // Limits that reach beyond any key are the same as none; clamping keeps the sums below far from overflow.
  const std::int64_t far = std::int64_t{1} << 61;
  if (o.mask.window_right != Mask::unbounded) {
    range.visible_end = std::min(range.visible_end, offset + std::min(o.mask.window_right, far) + 1);
  }
  if (o.mask.window_left != Mask::unbounded) {
    range.visible_begin = offset - std::min(o.mask.window_left, far);
    range.kept_end = std::min(sequence.kept, keys);
  }
  if (first > last) return range;
  const simd::SeenKeys seen = simd::seen_keys(first, last, 0, keys, range.visible_begin, range.visible_end, range.kept_end);
  range.begin = std::min(seen.begin, keys);
  range.end = std::max<std::int64_t>(seen.end, 0);
  return range;
}

// What hides single keys from a query head's rows of a sequence.
HiddenKeys hidden_keys(const AttentionOperands& o, const Sequence& sequence, std::int64_t head) {
  HiddenKeys hidden;
  if (sequence.key_length == 0) return hidden;
  const ScoreOperands& scores = o.scores;
  if (scores.block_mask.blocks) {
    const std::ptrdiff_t* strides = scores.block_mask.strides;
    hidden.blocks = at(scores.block_mask.blocks, sequence.mask_batch * strides[0] + head * strides[1]);
    hidden.block_strides[0] = strides[2];
    hidden.block_strides[1] = strides[3];
    hidden.block_queries = o.mask.block_queries;
    hidden.block_keys = o.mask.block_keys;
    hidden.first_query = sequence.mask_query;
    hidden.first_key = sequence.mask_key;
  }
  if (sequence.segments_at >= 0) {
    hidden.query_segments = o.segment_numbers + sequence.segments_at;
    hidden.key_segments = hidden.query_segments + sequence.query_length;
  }
  if (scores.boolean_mask) {
    const std::ptrdiff_t* strides = scores.mask_strides;
    hidden.boolean_mask = at(scores.boolean_mask, sequence.mask_batch * strides[0] + head * strides[1] +
                                                      sequence.mask_query * strides[2] + sequence.mask_key * strides[3]);
    hidden.boolean_strides[0] = strides[2];
    hidden.boolean_strides[1] = strides[1];
    hidden.boolean_strides[2] = strides[3];
  }
  return hidden;
}

// How rows of hidden keys are written: one for all rows of a region, or one for each query, or for each query and head.
struct WrittenRows {
  bool one_row;
  std::int64_t heads;
};
WrittenRows written_rows(const HiddenKeys& hidden, std::int64_t group) {
  // Fewer rows than this leave so many lanes empty that they had better be computed with the rows of the next blocks.
  constexpr std::int64_t enough_rows = 16;
  const bool by_blocks_alone = hidden.blocks && !hidden.query_segments && !hidden.boolean_mask;
  if (by_blocks_alone && hidden.block_queries * group >= enough_rows) return {true, 1};
  return {false, hidden.boolean_mask && hidden.boolean_strides[1] != 0 ? group : 1};
}

// The same, with what is written out for kernels.
std::int64_t next_rule(const AttentionOperands& o, const Sequence& sequence, const HiddenKeys& hidden, std::int64_t group,
                       std::int64_t t) {
  const std::int64_t next = next_rule(o, sequence, t);
  if (!hidden.any()) return next;
  const WrittenRows written = written_rows(hidden, group);
  if (!written.one_row) return std::min(next, t + std::max<std::int64_t>(1, o.mask_room.rows / written.heads));
  const std::int64_t block_rest = hidden.block_queries - (hidden.first_query + t) % hidden.block_queries;
  return std::min(next, t + block_rest);
}

// Calls function(region, hidden keys) for the regions of rows [row_begin, row_end) of a (sequence, kv head), in an order that
// depends on nothing else. Where query heads of a group have block masks of their own, they are computed one by one: what one
// of them sees would else cost all of them. So are they where the bias is a window's (run_kernel).
template <typename Function>
void for_each_region(const AttentionOperands& o, const Sequence& sequence, std::int64_t kv_head, std::int64_t row_begin,
                     std::int64_t row_end, const Function& function) {
  const std::int64_t group = o.shape.group();
  const bool own_blocks = o.scores.block_mask.blocks && o.scores.block_mask.strides[1] != 0;
  const bool heads_apart = group > 1 && (own_blocks || o.scores.relative.width > 0);
  for (std::int64_t g = 0; g < (heads_apart ? group : 1); ++g) {
    Region region;
    region.group = heads_apart ? 1 : group;
    region.head = kv_head * group + g;
    const HiddenKeys hidden = hidden_keys(o, sequence, region.head);
    const std::int64_t begin = heads_apart ? divide_up(row_begin - g, group) : row_begin;
    const std::int64_t end = heads_apart ? divide_up(row_end - g, group) : row_end;
    for (std::int64_t row = begin; row < end; row = region.row_end) {
      const std::int64_t first = row / region.group;
      region.row_begin = row;
      region.row_end = std::min(end, next_rule(o, sequence, hidden, region.group, first) * region.group);
      region.keys = key_range_of_queries(o, sequence, first, (region.row_end - 1) / region.group);
      function(region, hidden);
    }
  }
}

// Calls function(kernel, first, end) for the parts of rows [row_begin, row_end) that a kernel each serves.
template <typename Function>
void for_each_kernel(const AttentionChoice& choice, std::int64_t row_begin, std::int64_t row_end, const Function& function) {
  const std::int64_t cut = choice.rest_kernel ? std::clamp(choice.rest_begin, row_begin, row_end) : row_end;
  if (row_begin < cut) function(*choice.kernel, row_begin, cut);
  if (cut < row_end) function(*choice.rest_kernel, cut, row_end);
}

// Sets a region's call up for keys [begin, end), from the beginning of begin's key block on. False: no row sees any.
bool aim(const simd::AttentionKernel& kernel, const AttentionOperands& o, const Region& region, const HiddenKeys& hidden,
         std::int64_t begin, std::int64_t end, char* scratch, simd::AttentionF32Args& args) {
  args.key_begin = begin / kernel.key_block * kernel.key_block;
  args.key_end = end;
  args.scratch = scratch + o.mask_room.bytes();
  if (begin >= end) return false;
  if (!hidden.any()) return true;
  const WrittenRows written = written_rows(hidden, region.group);
  const std::int64_t first = region.row_begin / region.group;
  write_mask(hidden, o.mask_room, scratch, first, (region.row_end - 1) / region.group + 1, written.heads, written.one_row,
             kernel.key_block, region.keys.gap(first), args);
  return args.key_begin < args.key_end;
}

// What rows come to that no key is left for.
void write_empty_rows(const simd::AttentionF32Args& args, DType dtype) {
  for (std::int64_t row = args.row_begin; row < args.row_end; ++row) {
    const std::int64_t t = row / args.group, g = row % args.group;
    std::memset(at(args.out, t * args.out_stride + g * args.out_head_stride), 0,
                static_cast<std::size_t>(args.value_dim * size_in_bytes(dtype)));
    if (!args.lse) continue;
    *at(args.lse, t * args.lse_stride + g * args.lse_head_stride) =
        args.sink ? *at(args.sink, g * args.sink_stride) : -std::numeric_limits<float>::infinity();
  }
}

void write_empty_partial(const simd::AttentionF32Args& args) {
  const std::int64_t width = args.value_dim + 2, rows = args.row_end - args.row_begin;
  std::memset(args.partial, 0, static_cast<std::size_t>(rows * width) * sizeof(float));
  for (std::int64_t r = 0; r < rows; ++r) args.partial[r * width + args.value_dim] = std::numeric_limits<float>::lowest();
}

std::int64_t sum_of_clamped(std::int64_t first, std::int64_t last, std::int64_t offset, std::int64_t low, std::int64_t high) {
  // sum over t in [first, last] of clamp(t + offset, low, high)
  const std::int64_t rising_from = std::clamp(low - offset, first, last + 1);
  const std::int64_t rising_to = std::clamp(high - offset, rising_from, last + 1);
  const std::int64_t count = rising_to - rising_from;
  return (rising_from - first) * low + count * offset + (rising_from + rising_to - 1) * count / 2 +
         (last + 1 - rising_to) * high;
}

double gigaflops(Isa isa, DType dtype) {
  switch (isa) {
    case Isa::reference:
      return 0.3;
    case Isa::sse4:
      return 20;
    case Isa::neon:
      return 20;
    case Isa::neon_bf16:
      return multiplies_pairs(isa, dtype) ? 30 : 20;
    case Isa::sve:
      return 40;
    case Isa::avx2:
      return 75;
    case Isa::avx512:
      return 140;
    case Isa::avx512_bf16:
      return multiplies_pairs(isa, dtype) ? 200 : 140;
    case Isa::amx:  // a guess: nothing has been measured
      return dtype == DType::bf16 ? 600 : dtype == DType::f16 ? 250 : 200;
  }
  return 1;
}

}  // namespace

Sequence sequence_of(const AttentionOperands& o, std::int64_t item) {
  return o.sequences ? o.sequences[item] : whole_item(o, item);  // made where it is wanted: a copy would cost as much again
}

std::int64_t next_rule(const AttentionOperands& o, const Sequence& sequence, std::int64_t t) {
  return sees_prefix(o, sequence, t) ? std::min(sequence.query_length, sequence.prefix - sequence.offset - 1)
                                     : sequence.query_length;
}

AttentionChoice choose_attention(const AttentionShape& shape, const Mask&, bool length_invariant, Precision precision,
                                 const dispatch::KernelTable& kernels) {
  AttentionChoice choice;
  const dispatch::KernelTable& able = shape.mixes() ? dispatch::mixing_table(kernels, shape.of_keys()) : kernels;
  const dispatch::AttentionKernels attention = dispatch::attention_kernels(able, shape.of_keys());
  choice.merge = dispatch::attention_kernels(kernels, shape.of_out()).merge;
  choice.gigaflops = gigaflops(able.isa, shape.of_keys());
  const auto choose_transposed = [&] {
    choice.kernel = precision == Precision::fast ? attention.fast : attention.transposed;
    if (choice.kernel != attention.transposed) choice.precision = Precision::fast;
  };
  if (length_invariant) {
    choose_transposed();
    choice.reason = "transposed scores: bits must not depend on the query length";
    return choice;
  }
  if (shape.rows() <= decode_rows(kernels.isa, shape)) {
    choice.kernel = attention.decode;
    choice.reason = "row-major scores: few query rows a kv head";
  } else {
    choose_transposed();
    choice.reason = "transposed scores: query rows fill the lanes";
    const std::int64_t rest = shape.rows() % rows_a_vector(kernels.isa);
    if (rest > 0 && rest <= most_rest_rows(kernels.isa, shape)) {
      choice.rest_kernel = attention.decode;
      choice.rest_begin = shape.rows() - rest;
    }
  }
  if (shape.rows() <= split_rows) {
    choice.key_split = round_up(keys_per_split, choice.kernel->key_block);
    if (choice.rest_kernel) choice.key_split = round_up(choice.key_split, choice.rest_kernel->key_block);
  }
  return choice;
}

std::int64_t tile_keys(const simd::AttentionKernel& kernel, const AttentionShape& shape) {
  return kernel.tile_keys ? kernel.tile_keys(shape.head_dim, shape.value_dim) : kernel.key_block;
}

std::int64_t lasting_key_length(std::int64_t kept) {
  // Keys are counted from the start of the split in which the first one lies; and the choice is that for long sequences.
  return std::max(round_up(kept, keys_per_split) + keys_per_split, long_keys);
}

AttentionShape own_shape(const AttentionOperands& o, std::int64_t item) {
  const Sequence sequence = sequence_of(o, item);
  AttentionShape shape = o.shape;
  shape.query_length = sequence.query_length;
  shape.key_length = sequence.key_length;
  return shape;
}

KeyRange key_range(const AttentionOperands& o, std::int64_t item, std::int64_t row_begin, std::int64_t row_end) {
  const std::int64_t group = o.shape.group();
  const std::int64_t last = row_begin < row_end ? (row_end - 1) / group : -1;
  return key_range_of_queries(o, sequence_of(o, item), row_begin / group, last);
}

std::int64_t split_count(const AttentionChoice& choice, std::int64_t key_length) {
  if (choice.key_split == 0 || key_length <= choice.key_split) return 1;
  return divide_up(key_length, choice.key_split);
}

SplitRange split_range(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t item, std::int64_t key_length) {
  // The number of splits comes from the row's own key length, so that a row has the same bits in any batch.
  SplitRange range;
  const std::int64_t all = split_count(choice, key_length);
  if (all == 1) return range;
  range.apart = true;
  if (o.pages) {
    const KeyPages& pages = o.pages[o.sequences ? o.sequences[item].mask_batch : item];
    range.first = std::min(pages.first_key / choice.key_split, all - 1);
  }
  range.count = all - range.first;
  return range;
}

std::size_t partial_floats(const AttentionShape& shape, std::int64_t rows) {
  return static_cast<std::size_t>(round_up(rows * (shape.value_dim + 2), 16));
}

std::size_t scratch_bytes(const AttentionChoice& choice, const AttentionShape& maximum, std::int64_t max_rows) {
  const std::int64_t splits = split_count(choice, maximum.key_length);
  const std::int64_t keys = splits > 1 ? choice.key_split : maximum.key_length;
  std::size_t bytes = choice.kernel->scratch_bytes(maximum.head_dim, maximum.value_dim, keys);
  if (choice.rest_kernel) {
    bytes = std::max(bytes, choice.rest_kernel->scratch_bytes(maximum.head_dim, maximum.value_dim, keys));
  }
  bytes = whole_lines(bytes);
  if (splits > 1) {
    bytes += static_cast<std::size_t>(splits) * (partial_floats(maximum, max_rows) * sizeof(float) + sizeof(float*)) + 64;
    bytes = whole_lines(bytes);
  }
  return bytes;
}

std::size_t most_scratch_bytes(const AttentionShape& maximum, const Mask& mask, bool length_invariant, Precision precision,
                               const dispatch::KernelTable& kernels) {
  // A smaller run may be served by another kernel, or split where the largest is not: the sizes at which choices change.
  const std::int64_t group = maximum.group();
  std::size_t most = 0;
  for (const std::int64_t keys : {maximum.key_length, long_keys - 1}) {
    AttentionShape shape = maximum;
    shape.key_length = std::min(keys, maximum.key_length);
    for (const std::int64_t queries :
         {maximum.query_length, split_rows / group, decode_rows(kernels.isa, shape) / group, std::int64_t{1}}) {
      shape.query_length = std::min(queries, maximum.query_length);
      if (shape.query_length == 0) continue;
      AttentionChoice choice = choose_attention(shape, mask, length_invariant, precision, kernels);
      choice.rest_kernel = dispatch::attention_kernels(kernels, shape.of_keys()).decode;  // some query lengths have a rest
      most = std::max(most, scratch_bytes(choice, shape, shape.rows()));
    }
  }
  return most;
}

double piece_cost_ns(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t item, std::int64_t row_begin,
                     std::int64_t row_end) {
  double cost = 0;
  const Sequence sequence = sequence_of(o, item);
  for_each_kernel(choice, row_begin, row_end, [&](const simd::AttentionKernel& kernel, std::int64_t begin, std::int64_t end) {
    for_each_region(o, sequence, 0, begin, end, [&](const Region& region, const HiddenKeys& hidden) {
      const KeyRange& keys = region.keys;
      if (keys.begin >= keys.end) {
        cost += 50.0 + static_cast<double>(region.rows() * o.shape.value_dim) * 0.1;
        return;
      }
      const std::int64_t first = region.row_begin / region.group, last = (region.row_end - 1) / region.group;
      // Each query sees the keys up to its end but those between the kept ones and its begin.
      const std::int64_t count = last - first + 1;
      const KeyGap gap = keys.gap(first);
      const std::int64_t between = sum_of_clamped(first, last, keys.visible_begin, gap.begin, keys.end) - count * gap.begin;
      const double spans = static_cast<double>(sum_of_clamped(first, last, keys.visible_end, keys.begin, keys.end) -
                                               count * keys.begin - between);
      const double rows = static_cast<double>(region.rows()), queries = static_cast<double>(count);
      const double before = static_cast<double>(gap.begin - keys.begin), behind = static_cast<double>(keys.end - gap.end);
      const double share = (before * visible_share(hidden, first, keys.begin, gap.begin) +
                            behind * visible_share(hidden, first, gap.end, keys.end)) /
                           std::max(before + behind, 1.0);
      // Lanes are computed whole, whether a row fills them or not.
      const double padded = static_cast<double>(round_up(region.rows(), kernel.row_block));
      const double width = static_cast<double>(o.shape.head_dim + o.shape.value_dim);
      const double arithmetic = 2.0 * std::max(spans, 0.0) / queries * padded * width / choice.gigaflops;
      const double bytes = (before + behind) * width * static_cast<double>(size_in_bytes(o.shape.of_keys()));
      const double reading = bytes / 12.0;  // 12 GB/s
      cost += 200.0 + rows * width * 0.1 + share * std::max(arithmetic, reading);
    });
  });
  return cost;
}

void run_rows_of_split(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t item, std::int64_t kv_head,
                       std::int64_t row_begin, std::int64_t row_end, std::int64_t split, float* partial, void* scratch) {
  const Sequence sequence = sequence_of(o, item);
  for_each_kernel(choice, row_begin, row_end, [&](const simd::AttentionKernel& kernel, std::int64_t first, std::int64_t last) {
    for_each_region(o, sequence, kv_head, first, last, [&](const Region& region, const HiddenKeys& hidden) {
      const simd::SeenKeys seen = region.keys.seen_by(region.row_begin / region.group, (region.row_end - 1) / region.group,
                                                      split * choice.key_split, (split + 1) * choice.key_split);
      simd::AttentionF32Args args = arguments(o, sequence, region);
      args.partial = partial;
      if (aim(kernel, o, region, hidden, seen.begin, seen.end, static_cast<char*>(scratch), args)) {
        run_kernel(kernel, o, sequence, region, args);
      } else {
        write_empty_partial(args);
      }
      partial += region.rows() * (o.shape.value_dim + 2);
    });
  });
}

void merge_rows(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t item, std::int64_t kv_head,
                std::int64_t row_begin, std::int64_t row_end, const float** partials, std::int64_t splits) {
  const Sequence sequence = sequence_of(o, item);
  // The parts of rows that were computed apart, in their order: the partial results lie one behind another.
  const auto merge_region = [&](const Region& region, const HiddenKeys&) {
    const simd::AttentionF32Args whole = arguments(o, sequence, region);
    simd::MergeF32Args args;
    args.partials = partials;
    args.splits = splits;
    args.row_begin = whole.row_begin;
    args.row_end = whole.row_end;
    args.group = whole.group;
    args.value_dim = whole.value_dim;
    args.out = whole.out;
    args.out_stride = whole.out_stride;
    args.out_head_stride = whole.out_head_stride;
    args.lse = whole.lse;
    args.lse_stride = whole.lse_stride;
    args.lse_head_stride = whole.lse_head_stride;
    args.sink = whole.sink;
    args.sink_stride = whole.sink_stride;
    choice.merge->run(args);
    for (std::int64_t split = 0; split < splits; ++split) partials[split] += region.rows() * (o.shape.value_dim + 2);
  };
  for_each_kernel(choice, row_begin, row_end, [&](const simd::AttentionKernel&, std::int64_t first, std::int64_t last) {
    for_each_region(o, sequence, kv_head, first, last, merge_region);
  });
}

void run_rows(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t item, std::int64_t kv_head,
              std::int64_t row_begin, std::int64_t row_end, void* scratch) {
  if (row_begin >= row_end) return;
  const Sequence sequence = sequence_of(o, item);
  const SplitRange range = split_range(choice, o, item, sequence.key_length);
  if (range.apart) {
    const std::int64_t splits = range.count;
    const std::size_t stride = partial_floats(o.shape, row_end - row_begin);
    char* memory = static_cast<char*>(scratch);
    auto* partials = reinterpret_cast<const float**>(memory);
    auto* sums = reinterpret_cast<float*>(memory + round_up(splits * static_cast<std::int64_t>(sizeof(float*)), 64));
    float* const sums_end = sums + static_cast<std::size_t>(splits) * stride;
    for (std::int64_t split = 0; split < splits; ++split) {
      float* const partial = sums + static_cast<std::size_t>(split) * stride;
      partials[split] = partial;
      run_rows_of_split(choice, o, item, kv_head, row_begin, row_end, range.first + split, partial, sums_end);
    }
    merge_rows(choice, o, item, kv_head, row_begin, row_end, partials, splits);
    return;
  }
  for_each_kernel(choice, row_begin, row_end, [&](const simd::AttentionKernel& kernel, std::int64_t first, std::int64_t last) {
    for_each_region(o, sequence, kv_head, first, last, [&](const Region& region, const HiddenKeys& hidden) {
      simd::AttentionF32Args args = arguments(o, sequence, region);
      if (aim(kernel, o, region, hidden, region.keys.begin, region.keys.end, static_cast<char*>(scratch), args)) {
        // A single block's rows are as soon there without.
        if (region.rows() > kernel.row_block) hint_next_rows(o, item, kv_head, args);
        run_kernel(kernel, o, sequence, region, args);
      } else {
        write_empty_rows(args, o.shape.of_out());
      }
    });
  });
}

}  // namespace polyhead::plan
