#include "plan/sequence_run.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "platform/rounding.hpp"
#include "polyhead/error.hpp"

namespace polyhead::plan {
namespace {

// Key blocks are read once for this many row blocks of a piece (the kernel groups them).
constexpr std::int64_t row_blocks_per_piece = 4;
// A piece that is more than this share of all work would keep others waiting: its key splits become pieces.
constexpr double heavy_share = 1.0 / 64;

void check_cancelled(const std::atomic<bool>* cancel) {
  if (cancel && cancel->load(std::memory_order_relaxed)) throw Error(ErrorCode::cancelled, "cancelled by the caller");
}

}  // namespace

void SequenceRun::cut(const AttentionOperands& operands, bool length_invariant, Precision precision,
                      const dispatch::KernelTable& kernels) {
  works_.clear();
  items_ = 0;
  total_cost_ns_ = 0;
  for (std::int64_t sequence = 0; sequence < operands.sequence_count; ++sequence) {
    const AttentionShape shape = own_shape(operands, sequence);
    Work work;
    work.choice = choose_attention(shape, operands.mask, length_invariant, precision, kernels);
    work.sequence = sequence;
    work.rows = shape.rows();
    if (work.rows == 0) continue;
    const double cost = piece_cost_ns(work.choice, operands, sequence, 0, work.rows);
    const auto wanted = static_cast<std::int64_t>(std::max(1.0, std::round(cost / sequence_piece_ns)));
    std::int64_t unit = work.choice.kernel->row_block * row_blocks_per_piece;
    // Pieces that end with a row of blocks leave no rest of it to be computed by itself.
    const std::int64_t rows_of_block = operands.mask.block_queries * shape.group();
    if (rows_of_block > 0 && rows_of_block <= 4 * unit) unit = round_up(unit, rows_of_block);
    work.rows_per_piece = std::min(work.rows, round_up(divide_up(work.rows, wanted), unit));
    work.row_pieces = divide_up(work.rows, work.rows_per_piece);
    work.piece_cost_ns = cost / static_cast<double>(work.row_pieces);
    total_cost_ns_ += cost * static_cast<double>(shape.kv_heads);
    works_.push_back(work);
  }
}

void SequenceRun::split_heavy_pieces(const AttentionOperands& operands) {
  std::size_t partials = 0, counters = 0;
  const std::int64_t kv_heads = operands.shape.kv_heads;
  for (Work& work : works_) {
    const std::int64_t keys = own_shape(operands, work.sequence).key_length;
    const SplitRange range = split_range(work.choice, operands, work.sequence, keys);
    const std::int64_t splits = range.count;
    if (splits > 1 && work.piece_cost_ns > heavy_share * total_cost_ns_) {
      work.splits = splits;
      work.first_split = range.first;
      work.piece_cost_ns /= static_cast<double>(splits);
      const auto pieces = static_cast<std::size_t>(kv_heads * work.row_pieces);
      work.partial_floats = partial_floats(operands.shape, work.rows_per_piece);
      work.first_partial = partials;
      work.first_counter = counters;
      partials += pieces * static_cast<std::size_t>(splits) * work.partial_floats;
      counters += pieces;
    }
  }
  partials_.reserve(partials * sizeof(float));
  counters_.reserve(counters * sizeof(std::atomic<std::int32_t>));
  for (std::size_t i = 0; i < counters; ++i) new (&counter(i)) std::atomic<std::int32_t>(0);
  std::sort(works_.begin(), works_.end(), [](const Work& a, const Work& b) {
    return a.piece_cost_ns != b.piece_cost_ns ? a.piece_cost_ns > b.piece_cost_ns : a.sequence < b.sequence;
  });
}

void SequenceRun::run_item(const AttentionOperands& operands, std::int64_t item, char* scratch) const {
  const auto after = std::upper_bound(works_.begin(), works_.end(), item,
                                      [](std::int64_t wanted, const Work& work) { return wanted < work.first_item; });
  const Work& work = *(after - 1);
  const std::int64_t split = (item - work.first_item) % work.splits, piece = (item - work.first_item) / work.splits;
  // The last rows first: under a causal mask they see the most keys.
  const std::int64_t row_piece = work.row_pieces - 1 - piece % work.row_pieces, kv_head = piece / work.row_pieces;
  const std::int64_t begin = row_piece * work.rows_per_piece, end = std::min(begin + work.rows_per_piece, work.rows);
  if (work.splits == 1) {
    run_rows(work.choice, operands, work.sequence, kv_head, begin, end, scratch);
    return;
  }
  float* partials =
      partials_.as<float>() + work.first_partial + static_cast<std::size_t>(piece * work.splits) * work.partial_floats;
  run_rows_of_split(work.choice, operands, work.sequence, kv_head, begin, end, work.first_split + split,
                    partials + static_cast<std::size_t>(split) * work.partial_floats, scratch);
  // Whoever finishes a piece's last split merges them all, in ascending order of keys.
  std::atomic<std::int32_t>& done = counter(work.first_counter + static_cast<std::size_t>(piece));
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < work.splits) return;
  auto** pointers = reinterpret_cast<const float**>(scratch);
  for (std::int64_t i = 0; i < work.splits; ++i) pointers[i] = partials + static_cast<std::size_t>(i) * work.partial_floats;
  merge_rows(work.choice, operands, work.sequence, kv_head, begin, end, pointers, work.splits);
}

void SequenceRun::run(const AttentionOperands& operands, bool length_invariant, Precision precision,
                      const dispatch::KernelTable& kernels, graph::Scheduler& scheduler, double inline_below_ns, char* slots,
                      std::size_t slot_bytes, const std::atomic<bool>* cancel) {
  cut(operands, length_invariant, precision, kernels);
  const bool is_inline = scheduler.threads() == 1 || total_cost_ns_ < inline_below_ns;
  if (!is_inline) split_heavy_pieces(operands);
  for (Work& work : works_) {
    work.first_item = items_;
    items_ += operands.shape.kv_heads * work.row_pieces * work.splits;
  }
  if (is_inline) {
    for (std::int64_t item = 0; item < items_; ++item) {
      check_cancelled(cancel);
      run_item(operands, item, slots);
    }
    return;
  }
  struct Shared {
    const SequenceRun* run;
    const AttentionOperands* operands;
    char* slots;
    std::size_t slot_bytes;
    const std::atomic<bool>* cancel;
  } shared{this, &operands, slots, slot_bytes, cancel};
  scheduler.parallel_for(
      static_cast<std::size_t>(items_),
      [](void* context, std::size_t item, int slot) {
        const Shared& current = *static_cast<const Shared*>(context);
        check_cancelled(current.cancel);
        current.run->run_item(*current.operands, static_cast<std::int64_t>(item),
                              current.slots + static_cast<std::size_t>(slot) * current.slot_bytes);
      },
      &shared);
}

}  // namespace polyhead::plan
