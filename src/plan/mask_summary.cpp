#include "plan/mask_summary.hpp"

#include <algorithm>
#include <cstring>

#include "platform/rounding.hpp"
#include "polyhead/error.hpp"

namespace polyhead::plan {
namespace {

constexpr std::int64_t queries_per_mark = simd::AttentionArgs::queries_per_mark;
constexpr std::int64_t keys_per_mark = simd::AttentionArgs::keys_per_mark;
// Fewer keys are read with the few blocks that they come in as fast as they are summarised.
constexpr std::int64_t fewest_keys = 256;
// Of few queries, as in decoding, two heads take so little time that a summary shows (0.7 % over 1,024 keys), four do not.
constexpr std::int64_t few_queries = queries_per_mark, fewest_heads_of_few = 4;
// Bytes of the mask that a thread takes at a time, and how fast it reads them.
constexpr std::int64_t bytes_at_once = 128 * 1024;
constexpr double bytes_per_ns = 20;

// Whether batch items see keys each by lengths or offsets of its own.
bool items_differ(const AttentionOperands& o) {
  return o.sequences || o.mask.has_key_lengths || o.mask.has_offsets;
}

// Whether runs with such a mask may have one.
bool may_summarise(const Mask& mask, const RelativeBias& bias) {
  // Blocks and documents are written out for kernels, with marks of their own; a bias of windows has queries renumbered.
  return mask.has_boolean && !mask.has_segments && mask.block_queries == 0 && bias.kind != RelativeBias::Kind::swin;
}

// The marks of one row.
void mark_row(const MaskSummary& summary, const simd::MaskMarksKernel& kernel, const AttentionOperands& o, std::int64_t item,
              std::int64_t head, std::int64_t row, std::uint8_t* memory) {
  const Sequence sequence = sequence_of(o, item);
  if (sequence.key_length == 0) return;  // no row looks at its marks
  const std::ptrdiff_t* strides = o.scores.mask_strides;
  const std::int64_t place = summary.items > 1 ? sequence.mask_batch : 0, group = o.shape.group();
  simd::MaskMarksArgs args;
  args.mask = o.scores.boolean_mask + sequence.mask_batch * strides[0] + head * group * strides[1] +
              sequence.mask_query * strides[2] + sequence.mask_key * strides[3];
  args.head_stride = strides[1];
  args.stride = strides[2];
  args.key_stride = strides[3];
  args.heads = summary.planes;
  args.marks = memory + ((place * summary.heads + head) * summary.rows + row) * summary.columns;
  std::memset(args.marks, simd::keys_all, static_cast<std::size_t>(summary.columns));
  const bool alike = strides[2] == 0;  // one row of the mask is every query's
  const std::int64_t first = alike ? 0 : row * queries_per_mark;
  const std::int64_t end = alike ? sequence.query_length : std::min(first + queries_per_mark, sequence.query_length);
  for (std::int64_t t = first; t < end; t = args.query_end) {
    args.query_begin = t;
    args.query_end = std::min(end, next_rule(o, sequence, t));
    const KeyRange keys = key_range(o, item, t * group, args.query_end * group);
    const KeyGap gap = keys.gap(t);
    const auto mark = [&](std::int64_t key_begin, std::int64_t key_end) {
      simd::MaskMarksArgs part = args;
      part.key_begin = key_begin;
      part.key_end = key_end;
      if (alike) part.query_end = t + 1;
      if (key_begin < key_end) kernel.run(part);
    };
    mark(keys.begin, std::min(gap.begin, keys.end));
    mark(gap.end, keys.end);
  }
}

}  // namespace

std::size_t summary_bytes(const AttentionShape& maximum, const Mask& mask, const RelativeBias& bias) {
  if (!may_summarise(mask, bias) || maximum.batch * maximum.heads < 2 || maximum.key_length < fewest_keys) return 0;
  // Either items have marks of their own or heads do: a mask with both is not shared.
  return static_cast<std::size_t>(std::max(maximum.batch, maximum.kv_heads) *
                                  divide_up(maximum.query_length, queries_per_mark) *
                                  divide_up(maximum.key_length, keys_per_mark));
}

MaskSummary summary_of(const AttentionOperands& o) {
  MaskSummary none, summary;
  const AttentionShape& shape = o.shape;
  const std::ptrdiff_t* strides = o.scores.mask_strides;
  if (!o.scores.boolean_mask || shape.key_length < fewest_keys || shape.query_length == 0) return none;
  if (o.scores.relative.width > 0 || o.scores.block_mask.blocks || o.mask.has_segments) return none;
  if (strides[3] != 0 && strides[3] != 1) return none;  // read byte by byte: for two heads no faster than tile by tile
  const bool own_items = shape.batch > 1 && (strides[0] != 0 || items_differ(o));
  const bool own_heads = shape.heads > 1 && strides[1] != 0;
  const std::int64_t times_read = (own_items ? 1 : shape.batch) * (own_heads ? 1 : shape.heads);
  if (times_read < (shape.query_length < few_queries ? fewest_heads_of_few : 2)) return none;
  summary.items = own_items ? shape.batch : 1;
  summary.heads = own_heads ? shape.kv_heads : 1;
  summary.planes = own_heads ? shape.group() : 1;
  summary.rows = strides[2] == 0 ? 1 : divide_up(shape.query_length, queries_per_mark);
  summary.columns = divide_up(shape.key_length, keys_per_mark);
  const std::int64_t queries = strides[2] == 0 ? 1 : shape.query_length;
  summary.cost_ns =
      static_cast<double>(summary.items * summary.heads * summary.planes * queries * shape.key_length) / bytes_per_ns;
  return summary;
}

void summarise_mask(const MaskSummary& summary, const simd::MaskMarksKernel& kernel, graph::Scheduler* scheduler,
                    const std::atomic<bool>* cancel, std::uint8_t* memory, AttentionOperands& operands) {
  struct Shared {
    const MaskSummary& summary;
    const simd::MaskMarksKernel& kernel;
    const AttentionOperands& operands;
    const std::atomic<bool>* cancel;
    std::uint8_t* memory;
    std::int64_t rows_at_once, parts;  // of one item's head
  };
  const std::int64_t row_bytes = summary.planes * queries_per_mark * operands.shape.key_length;
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, bytes_at_once / std::max<std::int64_t>(row_bytes, 1));
  Shared shared{summary, kernel, operands, cancel, memory, rows_at_once, divide_up(summary.rows, rows_at_once)};
  const auto body = [](void* context, std::size_t index, int) {
    const Shared& run = *static_cast<const Shared*>(context);
    if (run.cancel && run.cancel->load(std::memory_order_relaxed)) throw Error(ErrorCode::cancelled, "cancelled by the caller");
    const auto at = static_cast<std::int64_t>(index);
    const std::int64_t part = at % run.parts, head = at / run.parts % run.summary.heads;
    const std::int64_t item = at / run.parts / run.summary.heads;
    const std::int64_t end = std::min(run.summary.rows, (part + 1) * run.rows_at_once);
    for (std::int64_t row = part * run.rows_at_once; row < end; ++row) {
      mark_row(run.summary, run.kernel, run.operands, item, head, row, run.memory);
    }
  };
  // Sequences are more than items where some have queries and no keys.
  const std::int64_t items = summary.items > 1 && operands.sequences ? operands.sequence_count : summary.items;
  const auto count = static_cast<std::size_t>(items * summary.heads * shared.parts);
  if (scheduler && count > 1) {
    scheduler->parallel_for(count, body, &shared);
  } else {
    for (std::size_t index = 0; index < count; ++index) body(&shared, index, 0);
  }
  MaskMarks& marks = operands.scores.marks;
  marks.marks = memory;
  marks.strides[2] = summary.rows > 1 ? summary.columns : 0;
  marks.strides[1] = summary.heads > 1 ? summary.rows * summary.columns : 0;
  marks.strides[0] = summary.items > 1 ? summary.heads * summary.rows * summary.columns : 0;
}

}  // namespace polyhead::plan
