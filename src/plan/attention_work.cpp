#include "plan/attention_work.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "platform/rounding.hpp"

namespace polyhead::plan {
namespace {

// Rows a kv head up to which row-major scores win: few rows leave most lanes of the transposed kernel idle, and reading K and
// V once is then all that counts. With more rows that is so only where K and V come from memory. With 16 lanes, long rows of K
// help too: a row-major score pays for adding up its lanes once, whatever the row's length.
std::int64_t decode_rows(Isa isa, const AttentionShape& shape) {
  const bool from_memory = shape.key_length >= long_keys;
  if (isa != Isa::avx512 && isa != Isa::amx) return from_memory ? 8 : 4;
  if (from_memory || shape.head_dim >= 128) return 16;
  return shape.head_dim >= 80 ? 12 : 8;
}

// Up to this many rows a kv head, a long key sequence is the only thing to cut, so keys are split at fixed multiples.
constexpr std::int64_t split_rows = 64;
constexpr std::int64_t keys_per_split = 2048;

template <typename T>
T* at(T* base, std::ptrdiff_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
}

// The part of the kernel's arguments that all pieces of a (batch item, kv head) share.
simd::AttentionF32Args arguments(const AttentionOperands& o, std::int64_t batch, std::int64_t kv_head, const KeyRange& keys) {
  const std::int64_t group = o.shape.group(), head = kv_head * group;
  simd::AttentionF32Args args;
  args.query = at(o.query, batch * o.query_strides[0] + head * o.query_strides[1]);
  args.query_stride = o.query_strides[2];
  args.query_head_stride = o.query_strides[1];
  args.key = at(o.key, batch * o.key_strides[0] + kv_head * o.key_strides[1]);
  args.key_stride = o.key_strides[2];
  args.value = at(o.value, batch * o.value_strides[0] + kv_head * o.value_strides[1]);
  args.value_stride = o.value_strides[2];
  args.group = group;
  args.head_dim = o.shape.head_dim;
  args.value_dim = o.shape.value_dim;
  args.scale = o.scale;
  args.softcap = o.softcap;
  args.visible_begin = keys.visible_begin;
  args.visible_end = keys.visible_end;
  const ScoreOperands& scores = o.scores;
  if (scores.boolean_mask) {
    args.boolean_mask = at(scores.boolean_mask, batch * scores.mask_strides[0] + head * scores.mask_strides[1]);
    args.mask_head_stride = scores.mask_strides[1];
    args.mask_stride = scores.mask_strides[2];
    args.mask_key_stride = scores.mask_strides[3];
  }
  if (scores.bias) {
    args.bias = at(scores.bias, batch * scores.bias_strides[0] + head * scores.bias_strides[1]);
    args.bias_head_stride = scores.bias_strides[1];
    args.bias_stride = scores.bias_strides[2];
    args.bias_key_stride = scores.bias_strides[3];
  }
  if (scores.alibi_slopes) {
    args.alibi_slopes = at(scores.alibi_slopes, head * scores.alibi_stride);
    args.alibi_stride = scores.alibi_stride;
    args.alibi_offset = keys.offset;
  }
  if (scores.sink) {
    args.sink = at(scores.sink, head * scores.sink_stride);
    args.sink_stride = scores.sink_stride;
  }
  args.out = at(o.out, batch * o.out_strides[0] + head * o.out_strides[1]);
  args.out_stride = o.out_strides[2];
  args.out_head_stride = o.out_strides[1];
  if (o.lse) {
    args.lse = at(o.lse, batch * o.lse_strides[0] + head * o.lse_strides[1]);
    args.lse_stride = o.lse_strides[2];
    args.lse_head_stride = o.lse_strides[1];
  }
  return args;
}

std::int64_t sum_of_clamped(std::int64_t first, std::int64_t last, std::int64_t offset, std::int64_t low, std::int64_t high) {
  // sum over t in [first, last] of clamp(t + offset, low, high)
  const std::int64_t rising_from = std::clamp(low - offset, first, last + 1);
  const std::int64_t rising_to = std::clamp(high - offset, rising_from, last + 1);
  const std::int64_t count = rising_to - rising_from;
  return (rising_from - first) * low + count * offset + (rising_from + rising_to - 1) * count / 2 +
         (last + 1 - rising_to) * high;
}

double gigaflops(Isa isa) {
  switch (isa) {
    case Isa::reference:
      return 0.3;
    case Isa::sse4:
      return 20;
    case Isa::neon:
      return 20;
    case Isa::sve:
      return 40;
    case Isa::avx2:
      return 75;
    case Isa::avx512:
      return 140;
    case Isa::amx:
      return 200;
  }
  return 1;
}

}  // namespace

AttentionChoice choose_attention(const AttentionShape& shape, const Mask&, bool length_invariant, Precision precision,
                                 const dispatch::KernelTable& kernels) {
  AttentionChoice choice;
  const dispatch::AttentionKernels attention = dispatch::attention_kernels(kernels, shape.dtype);
  choice.merge = attention.merge;
  choice.gigaflops = gigaflops(kernels.isa);
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
  }
  if (shape.rows() <= split_rows) choice.key_split = round_up(keys_per_split, choice.kernel->key_block);
  return choice;
}

AttentionShape own_shape(const AttentionOperands& o, std::int64_t batch) {
  AttentionShape shape = o.shape;
  if (o.mask.has_key_lengths) shape.key_length = o.key_lengths[batch];
  return shape;
}

KeyRange key_range(const AttentionOperands& o, std::int64_t batch, std::int64_t row_begin, std::int64_t row_end) {
  const std::int64_t keys = own_shape(o, batch).key_length;
  std::int64_t offset = 0;
  if (o.mask.causality == Causal::bottom_right) offset = keys - o.shape.query_length;
  if (o.mask.has_offsets) offset = o.offsets[batch];
  KeyRange range;
  range.offset = offset;
  range.visible_begin = simd::AttentionF32Args::unbounded_begin;
  range.visible_end = simd::AttentionF32Args::unbounded_end;
  if (o.mask.causality != Causal::none) range.visible_end = offset + 1;
  // Limits that reach beyond any key are the same as none; clamping keeps the sums below far from overflow.
  const std::int64_t far = std::int64_t{1} << 61;
  if (o.mask.window_right != Mask::unbounded) {
    range.visible_end = std::min(range.visible_end, offset + std::min(o.mask.window_right, far) + 1);
  }
  if (o.mask.window_left != Mask::unbounded) range.visible_begin = offset - std::min(o.mask.window_left, far);
  if (row_begin >= row_end) return range;
  const std::int64_t group = o.shape.group();
  range.begin = std::clamp<std::int64_t>(row_begin / group + range.visible_begin, 0, keys);
  range.end = std::clamp<std::int64_t>((row_end - 1) / group + range.visible_end, 0, keys);
  return range;
}

std::int64_t split_count(const AttentionChoice& choice, std::int64_t key_length) {
  if (choice.key_split == 0 || key_length <= choice.key_split) return 1;
  return divide_up(key_length, choice.key_split);
}

std::size_t partial_floats(const AttentionShape& shape, std::int64_t rows) {
  return static_cast<std::size_t>(round_up(rows * (shape.value_dim + 2), 16));
}

std::size_t scratch_bytes(const AttentionChoice& choice, const AttentionShape& maximum, std::int64_t max_rows) {
  const std::int64_t splits = split_count(choice, maximum.key_length);
  const std::int64_t keys = splits > 1 ? choice.key_split : maximum.key_length;
  std::size_t bytes = choice.kernel->scratch_bytes(maximum.head_dim, maximum.value_dim, keys);
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
      const AttentionChoice choice = choose_attention(shape, mask, length_invariant, precision, kernels);
      most = std::max(most, scratch_bytes(choice, shape, shape.rows()));
    }
  }
  return most;
}

double piece_cost_ns(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t batch, std::int64_t row_begin,
                     std::int64_t row_end) {
  const KeyRange keys = key_range(o, batch, row_begin, row_end);
  if (keys.begin >= keys.end) return 50.0 + static_cast<double>((row_end - row_begin) * o.shape.value_dim) * 0.1;
  const std::int64_t group = o.shape.group(), first = row_begin / group, last = (row_end - 1) / group;
  const double spans = static_cast<double>(sum_of_clamped(first, last, keys.visible_end, keys.begin, keys.end) -
                                           sum_of_clamped(first, last, keys.visible_begin, keys.begin, keys.end));
  const double rows = static_cast<double>(row_end - row_begin), queries = static_cast<double>(last - first + 1);
  // Lanes are computed whole, whether a row fills them or not.
  const double padded = static_cast<double>(round_up(row_end - row_begin, choice.kernel->row_block));
  const double width = static_cast<double>(o.shape.head_dim + o.shape.value_dim);
  const double arithmetic = 2.0 * std::max(spans, 0.0) / queries * padded * width / choice.gigaflops;
  const double reading =
      static_cast<double>(keys.end - keys.begin) * width * static_cast<double>(size_in_bytes(o.shape.dtype)) / 12.0;  // 12 GB/s
  return 200.0 + rows * width * 0.1 + std::max(arithmetic, reading);
}

void run_rows_of_split(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t batch, std::int64_t kv_head,
                       std::int64_t row_begin, std::int64_t row_end, std::int64_t split, float* partial, void* scratch) {
  const KeyRange keys = key_range(o, batch, row_begin, row_end);
  const std::int64_t block = choice.kernel->key_block;
  const std::int64_t begin = std::max(keys.begin / block * block, split * choice.key_split);
  const std::int64_t end = std::min(keys.end, (split + 1) * choice.key_split);
  if (begin >= end) {
    const std::int64_t width = o.shape.value_dim;
    for (std::int64_t r = 0; r < row_end - row_begin; ++r) {
      float* row = partial + r * (width + 2);
      std::memset(row, 0, static_cast<std::size_t>(width + 2) * sizeof(float));
      row[width] = std::numeric_limits<float>::lowest();
    }
    return;
  }
  simd::AttentionF32Args args = arguments(o, batch, kv_head, keys);
  args.row_begin = row_begin;
  args.row_end = row_end;
  args.key_begin = begin;
  args.key_end = end;
  args.partial = partial;
  args.scratch = scratch;
  choice.kernel->run(args);
}

void merge_rows(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t batch, std::int64_t kv_head,
                std::int64_t row_begin, std::int64_t row_end, const float* const* partials, std::int64_t splits) {
  const simd::AttentionF32Args whole = arguments(o, batch, kv_head, KeyRange{});
  simd::MergeF32Args args;
  args.partials = partials;
  args.splits = splits;
  args.row_begin = row_begin;
  args.row_end = row_end;
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
}

void run_rows(const AttentionChoice& choice, const AttentionOperands& o, std::int64_t batch, std::int64_t kv_head,
              std::int64_t row_begin, std::int64_t row_end, void* scratch) {
  if (row_begin >= row_end) return;
  // The number of splits comes from the row's own key length, so that a row has the same bits in any batch.
  const std::int64_t splits = split_count(choice, own_shape(o, batch).key_length);
  if (splits > 1) {
    const std::size_t stride = partial_floats(o.shape, row_end - row_begin);
    char* memory = static_cast<char*>(scratch);
    auto* partials = reinterpret_cast<float**>(memory);
    auto* sums = reinterpret_cast<float*>(memory + round_up(splits * static_cast<std::int64_t>(sizeof(float*)), 64));
    void* kernel_scratch = sums + static_cast<std::size_t>(splits) * stride;
    for (std::int64_t split = 0; split < splits; ++split) {
      partials[split] = sums + static_cast<std::size_t>(split) * stride;
      run_rows_of_split(choice, o, batch, kv_head, row_begin, row_end, split, partials[split], kernel_scratch);
    }
    merge_rows(choice, o, batch, kv_head, row_begin, row_end, partials, splits);
    return;
  }
  const KeyRange keys = key_range(o, batch, row_begin, row_end);
  simd::AttentionF32Args args = arguments(o, batch, kv_head, keys);
  const std::int64_t block = choice.kernel->key_block;
  args.row_begin = row_begin;
  args.row_end = row_end;
  args.key_begin = std::min(keys.begin, keys.end) / block * block;
  args.key_end = std::max(keys.end, args.key_begin);
  args.scratch = scratch;
  choice.kernel->run(args);
}

}  // namespace polyhead::plan
