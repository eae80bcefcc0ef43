#include "plan/attention_plan.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <utility>

#include "dispatch/cpu_features.hpp"
#include "dispatch/select_isa.hpp"
#include "plan/mask_summary.hpp"
#include "plan/sequence_run.hpp"
#include "plan/tile_counts.hpp"
#include "platform/rounding.hpp"
#include "polyhead/error.hpp"

namespace polyhead::plan {
namespace {

// A piece this large hides what scheduling it costs, and is small enough to balance a few threads.
constexpr double piece_target_ns = 100e3;
constexpr double node_target_ns = 50e3;
// Below this, waking another thread costs more than it saves.
constexpr double inline_below_ns = 40e3;
// A mask is read ahead of all pieces, and other threads may be awake already.
constexpr double inline_summary_below_ns = 10e3;
// Key blocks are read once for this many query blocks of a piece (the kernel groups them).
constexpr std::int64_t query_blocks_per_piece = 4;
// With this many row pieces there is enough to share out; key splits then stay inside a piece and need no extra memory.
constexpr std::int64_t enough_pieces = 64;
// With so many heads a thread, the last of them leaves little for others to wait for.
constexpr std::int64_t heads_per_thread = 16;
// A caller's classifier is asked about so many tiles for an explanation: about a millisecond of a compiled one.
constexpr std::int64_t most_questions = 65536;

AttentionOperands structure_only(const AttentionShape& shape, const Mask& mask) {
  // For estimates before there are operands: every sequence at its longest, offsets at 0.
  AttentionOperands operands;
  operands.shape = shape;
  operands.mask = mask;
  operands.mask.has_key_lengths = false;
  operands.mask.has_offsets = false;
  operands.mask.has_query_lengths = false;
  operands.mask.has_prefix = false;
  return operands;
}

AttentionCut cut_work(const AttentionShape& shape, const Mask& mask, const AttentionChoice& choice, int threads) {
  AttentionCut cut;
  const std::int64_t heads = shape.batch * shape.kv_heads, rows = shape.rows();
  if (heads == 0 || rows == 0) return cut;
  const AttentionOperands operands = structure_only(shape, mask);
  const double head_cost = piece_cost_ns(choice, operands, 0, 0, rows);
  const std::int64_t unit = choice.kernel->row_block * query_blocks_per_piece;
  const auto wanted = static_cast<std::int64_t>(std::max(1.0, std::round(head_cost / piece_target_ns)));
  cut.rows_per_piece = std::min(rows, round_up(divide_up(rows, wanted), unit));
  cut.row_pieces = divide_up(rows, cut.rows_per_piece);
  if (heads * cut.row_pieces < enough_pieces) cut.splits = split_count(choice, shape.key_length);
  cut.pieces = heads * cut.row_pieces * cut.splits;
  cut.total_cost_ns = head_cost * static_cast<double>(heads);
  const double piece_cost = cut.total_cost_ns / static_cast<double>(cut.pieces);
  cut.pieces_per_node = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(node_target_ns / piece_cost)));
  // Heads enough for every thread: each takes whole ones, whose K and V its own cache then keeps from piece to piece.
  if (cut.splits == 1 && heads >= heads_per_thread * threads) {
    cut.pieces_per_node = round_up(cut.pieces_per_node, cut.row_pieces);
  }
  cut.nodes = divide_up(cut.pieces, cut.pieces_per_node);
  return cut;
}

}  // namespace

struct AttentionPlan::Lease {
  std::unique_ptr<Lease> next;
  std::unique_ptr<graph::Execution> execution;  // made by the first run that needs threads
  platform::AlignedBuffer own_workspace;        // made by the first run that brings none
  platform::AlignedBuffer side, bias;
  SequenceTable sequences;
  SequenceRun sequence_run;
  char* workspace = nullptr;  // of the run that holds the lease
};

// One run's facts, on the caller's stack.
struct AttentionPlan::Run {
  const AttentionPlan* plan = nullptr;
  const AttentionOperands* operands = nullptr;
  char* workspace = nullptr;
};

AttentionPlan::AttentionPlan(const AttentionShape& maximum, const Mask& mask, const ScoreChanges& changes,
                             bool length_invariant, Precision precision, const dispatch::KernelTable& kernels,
                             std::shared_ptr<graph::Scheduler> scheduler)
    : maximum_(maximum),
      mask_(mask),
      length_invariant_(length_invariant),
      precision_(precision),
      changes_(changes),
      by_sequences_(goes_by_sequences(mask)),
      kernels_(kernels),
      scheduler_(std::move(scheduler)) {
  choice_ = choose_attention(maximum_, mask_, length_invariant_, precision_, kernels_);
  cut_ = cut_work(maximum_, mask_, choice_, scheduler_->threads());
  auto description = std::make_shared<graph::TaskGraph>();
  if (cut_.nodes > 0 && !by_sequences_) {
    const AttentionOperands operands = structure_only(maximum_, mask_);
    for (std::int64_t node = 0; node < cut_.nodes; ++node) {
      double cost = 0;
      const std::int64_t first = node * cut_.pieces_per_node, last = std::min(first + cut_.pieces_per_node, cut_.pieces);
      for (std::int64_t piece = first; piece < last; ++piece) {
        const std::int64_t row_piece = piece / cut_.splits % cut_.row_pieces;
        const std::int64_t begin = row_piece * cut_.rows_per_piece,
                           end = std::min(begin + cut_.rows_per_piece, maximum_.rows());
        cost += piece_cost_ns(choice_, operands, 0, begin, end) / static_cast<double>(cut_.splits);
      }
      description->add(cost);
    }
  }
  graph_ = std::move(description);

  mask_room_ = plan::mask_room(maximum_.key_length, maximum_.group(), mask_);
  slot_bytes_ = whole_lines(most_scratch_bytes(maximum_, mask_, length_invariant_, precision_, kernels_) + mask_room_.bytes());
  std::size_t bytes = 2 * whole_lines(static_cast<std::size_t>(maximum_.batch) * sizeof(std::int64_t));
  slots_offset_ = bytes;
  bytes += slot_bytes_ * static_cast<std::size_t>(scheduler_->slots());
  if (cut_.splits > 1 && !by_sequences_) {
    const auto row_pieces = static_cast<std::size_t>(cut_.pieces / cut_.splits);
    partial_stride_ = partial_floats(maximum_, cut_.rows_per_piece);
    partials_offset_ = bytes;
    bytes += whole_lines(row_pieces * static_cast<std::size_t>(cut_.splits) * partial_stride_ * sizeof(float));
    counters_offset_ = bytes;
    bytes += whole_lines(row_pieces * sizeof(std::atomic<std::int32_t>));
  }
  marks_offset_ = bytes;
  marks_bytes_ = summary_bytes(maximum_, mask_, changes_.relative_bias);
  bytes += whole_lines(marks_bytes_);
  workspace_bytes_ = bytes;
}

AttentionPlan::~AttentionPlan() = default;

AttentionPlan::LeaseHandle::LeaseHandle(const AttentionPlan& plan, void* workspace) : plan_(plan) {
  {
    const std::lock_guard<std::mutex> lock(plan.free_mutex_);
    if (plan.free_) {
      lease_ = std::move(plan.free_);
      plan.free_ = std::move(lease_->next);
    }
  }
  if (!lease_) lease_ = std::make_unique<Lease>();
  lease_->workspace = nullptr;
  if (!workspace) {
    lease_->own_workspace.reserve(plan.workspace_bytes_);
    workspace = lease_->own_workspace.data();
  }
  lease_->workspace = static_cast<char*>(workspace);
}

AttentionPlan::LeaseHandle::~LeaseHandle() {
  const std::lock_guard<std::mutex> lock(plan_.free_mutex_);
  lease_->next = std::move(plan_.free_);
  plan_.free_ = std::move(lease_);
}

std::int64_t* AttentionPlan::LeaseHandle::key_lengths() const {
  return reinterpret_cast<std::int64_t*>(lease_->workspace);
}

std::int64_t* AttentionPlan::LeaseHandle::offsets() const {
  return reinterpret_cast<std::int64_t*>(lease_->workspace +
                                         whole_lines(static_cast<std::size_t>(plan_.maximum_.batch) * sizeof(std::int64_t)));
}

SequenceTable& AttentionPlan::LeaseHandle::sequences() const {
  return lease_->sequences;
}

void* AttentionPlan::LeaseHandle::side_memory(std::size_t bytes) const {
  lease_->side.reserve(bytes);
  return lease_->side.data();
}

float* AttentionPlan::LeaseHandle::bias_memory(std::size_t bytes) const {
  // A little more each time, so that lengths that grow step by step do not cost an allocation each.
  if (bytes > lease_->bias.size()) lease_->bias.reserve(bytes + bytes / 4);
  return lease_->bias.as<float>();
}

double AttentionPlan::estimate_ns(const AttentionOperands& operands) const {
  const AttentionChoice choice = choose_attention(operands.shape, operands.mask, length_invariant_, precision_, kernels_);
  const AttentionOperands shape_only = structure_only(operands.shape, operands.mask);
  return piece_cost_ns(choice, shape_only, 0, 0, operands.shape.rows()) *
         static_cast<double>(operands.shape.batch * operands.shape.kv_heads);
}

void AttentionPlan::run_piece(const Run& run, std::int64_t piece, char* scratch) const {
  const AttentionOperands& operands = *run.operands;
  const AttentionShape& shape = operands.shape;
  // Divisions would be a twentieth of a tiny piece's time.
  const std::int64_t row_piece_index = quotient(piece, cut_.splits), split = piece - row_piece_index * cut_.splits;
  const std::int64_t head_index = quotient(row_piece_index, cut_.row_pieces);
  const std::int64_t row_piece = row_piece_index - head_index * cut_.row_pieces;
  const std::int64_t batch = head_index / shape.kv_heads, kv_head = head_index - batch * shape.kv_heads;
  const std::int64_t begin = row_piece * cut_.rows_per_piece, end = std::min(begin + cut_.rows_per_piece, shape.rows());
  if (batch >= shape.batch || begin >= end) return;

  // The plan's own choice serves rows of its largest lengths.
  const std::int64_t key_length = operands.mask.has_key_lengths ? operands.key_lengths[batch] : shape.key_length;
  AttentionChoice own;
  const bool is_largest = shape.query_length == maximum_.query_length && key_length == maximum_.key_length;
  if (!is_largest) {
    own = choose_attention(own_shape(operands, batch), operands.mask, length_invariant_, precision_, kernels_);
  }
  const AttentionChoice& choice = is_largest ? choice_ : own;
  const SplitRange range = split_range(choice, operands, batch, key_length);
  const std::int64_t splits = range.count;
  if (!range.apart || cut_.splits == 1 || splits > cut_.splits) {
    if (split == 0) run_rows(choice, operands, batch, kv_head, begin, end, scratch);
    return;
  }
  if (split >= splits) return;
  auto* partials = reinterpret_cast<float*>(run.workspace + partials_offset_);
  const auto first = static_cast<std::size_t>(row_piece_index * cut_.splits);
  run_rows_of_split(choice, operands, batch, kv_head, begin, end, range.first + split,
                    partials + (first + static_cast<std::size_t>(split)) * partial_stride_, scratch);
  // Whoever finishes a row piece's last split merges them all, in ascending order of keys: no node of its own, no waiting.
  auto* counters = reinterpret_cast<std::atomic<std::int32_t>*>(run.workspace + counters_offset_);
  if (counters[row_piece_index].fetch_add(1, std::memory_order_acq_rel) + 1 < splits) return;
  auto** pointers = reinterpret_cast<const float**>(scratch);
  for (std::int64_t i = 0; i < splits; ++i) pointers[i] = partials + (first + static_cast<std::size_t>(i)) * partial_stride_;
  merge_rows(choice, operands, batch, kv_head, begin, end, pointers, splits);
}

const AttentionOperands& AttentionPlan::summarised(const AttentionOperands& operands, char* workspace,
                                                   const std::atomic<bool>* cancel,
                                                   std::optional<AttentionOperands>& own) const {
  if (marks_bytes_ == 0) return operands;
  const MaskSummary summary = summary_of(operands);
  // A cache may have more keys than the plan knows of.
  if (summary.bytes() == 0 || summary.bytes() > marks_bytes_) return operands;
  own = operands;
  graph::Scheduler* const scheduler =
      scheduler_->threads() > 1 && summary.cost_ns >= inline_summary_below_ns ? scheduler_.get() : nullptr;
  summarise_mask(summary, *kernels_.mask_marks, scheduler, cancel, reinterpret_cast<std::uint8_t*>(workspace + marks_offset_),
                 *own);
  return *own;
}

void AttentionPlan::run(const LeaseHandle& handle, const AttentionOperands& given, const std::atomic<bool>* cancel) const {
  std::optional<AttentionOperands> own;  // made where it is wanted
  const AttentionOperands& operands = summarised(given, handle.lease().workspace, cancel, own);
  if (by_sequences_) {
    Lease& lease = handle.lease();
    lease.sequence_run.run(operands, length_invariant_, precision_, kernels_, *scheduler_, inline_below_ns,
                           lease.workspace + slots_offset_, slot_bytes_, cancel);
    return;
  }
  const AttentionShape& shape = operands.shape;
  if (shape.batch == 0 || shape.rows() == 0) return;
  Run run;
  run.plan = this;
  run.operands = &operands;
  run.workspace = handle.lease().workspace;
  char* slots = run.workspace + slots_offset_;
  if (cut_.splits > 1) {
    char* counters = run.workspace + counters_offset_;
    for (std::int64_t i = 0; i < cut_.pieces / cut_.splits; ++i) {
      new (counters + static_cast<std::size_t>(i) * sizeof(std::atomic<std::int32_t>)) std::atomic<std::int32_t>(0);
    }
  }

  if (scheduler_->threads() == 1 || cut_.nodes == 1 || estimate_ns(operands) < inline_below_ns) {
    const std::int64_t pieces_of_head = cut_.row_pieces * cut_.splits;
    const std::int64_t used = divide_up(shape.rows(), cut_.rows_per_piece) * cut_.splits;
    for (std::int64_t head = 0; head < shape.batch * shape.kv_heads; ++head) {
      for (std::int64_t piece = 0; piece < used; ++piece) {
        if (cancel && cancel->load(std::memory_order_relaxed)) throw Error(ErrorCode::cancelled, "cancelled by the caller");
        run_piece(run, head * pieces_of_head + piece, slots);
      }
    }
    return;
  }
  std::unique_ptr<graph::Execution>& execution = handle.lease().execution;
  if (!execution) execution = std::make_unique<graph::Execution>(graph_, scheduler_, false);
  execution->run(
      [](void* context, graph::NodeId node, int slot) {
        const Run& current = *static_cast<const Run*>(context);
        const AttentionPlan& plan = *current.plan;
        char* scratch = current.workspace + plan.slots_offset_ + static_cast<std::size_t>(slot) * plan.slot_bytes_;
        const std::int64_t first = node * plan.cut_.pieces_per_node;
        const std::int64_t last = std::min(first + plan.cut_.pieces_per_node, plan.cut_.pieces);
        for (std::int64_t piece = first; piece < last; ++piece) plan.run_piece(current, piece, scratch);
      },
      &run, cancel);
}

// Tiles of the largest shape, by structure.
void AttentionPlan::count_tiles(Explanation& told) const {
  TileCounts counts = plan::count_tiles(choice_, structure_only(maximum_, mask_));
  if (!changes_of_every_score().empty()) counts = {counts.skipped, 0, counts.computed()};
  told.tiles_skipped = counts.skipped;
  told.tiles_full = counts.full;
  told.tiles_partial = counts.partial;
  if (by_sequences_) {
    told.tiles_at_run_time = "what a run brings skips more";
  } else if (mask_.has_key_lengths) {
    told.tiles_at_run_time = "key lengths skip more at run time";
  } else if (mask_.has_offsets) {
    told.tiles_at_run_time = "offsets, here 0, are a run's";
  }
}

// What the caller's classifier skips takes no time, as far as it can be known before a run.
void AttentionPlan::ask_classifier(const simd::ScoreMod* mod, Explanation& told) const {
  if (!changes_.mod_classifies) return;
  if (by_sequences_) {
    told.mod_not_asked = "tiles are cut at run time";
    return;
  }
  if (!mod) {
    told.mod_not_asked = "its context is a run's";
    return;
  }
  const auto counts = plan::ask_classifier(choice_, structure_only(maximum_, mask_), *mod, most_questions);
  if (!counts) {
    told.mod_not_asked = "more than " + std::to_string(most_questions) + " tiles";
    return;
  }
  told.mod_tiles_skipped = counts->skipped;
  told.mod_tiles_full = counts->full;
  told.mod_tiles_partial = counts->partial;
  const std::int64_t asked = counts->skipped + counts->computed();
  if (asked == 0) return;
  const double share = static_cast<double>(counts->computed()) / static_cast<double>(asked);
  told.one_thread_ms *= share;
  told.expected_ms *= share;
}

// What takes a pass over the scores of every tile that is computed.
std::vector<std::string> AttentionPlan::changes_of_every_score() const {
  std::vector<std::string> changes;
  for (const auto& [wanted, what] :
       {std::pair(mask_.has_boolean, "a boolean mask"), std::pair(mask_.has_bias, "a bias"),
        std::pair(mask_.block_queries != 0, "a block mask"), std::pair(changes_.softcap > 0, "softcap"),
        std::pair(changes_.alibi, "ALiBi"), std::pair(changes_.relative_bias.given(), "a relative bias"),
        std::pair(!changes_.mod.empty(), "score_mod")}) {
    if (wanted) changes.emplace_back(what);
  }
  return changes;
}

std::vector<std::string> AttentionPlan::why_not_faster(const Explanation& told) const {
  std::vector<std::string> why;
  const dispatch::AttentionKernels served = dispatch::attention_kernels(kernels_, maximum_.dtype);
  bool better = false;
  const dispatch::CpuFeatures& features = dispatch::cpu_features();
  for (const Isa isa : dispatch::runnable(features, dispatch::built_isas())) {
    const dispatch::AttentionKernels others = dispatch::attention_kernels(dispatch::kernel_table(isa), maximum_.dtype);
    if (better && (others.transposed != served.transposed || others.decode != served.decode)) {
      why.push_back(std::string(dispatch::isa_name(isa)) + " runs here: " +
                    (dispatch::chosen_unasked(isa, features)
                         ? "the runtime was made for a plainer instruction set"
                         : "it is taken only where POLYHEAD_ISA or RuntimeOptions::isa asks for it"));
    }
    better = better || isa == kernels_.isa;
  }
  if (precision_ == Precision::strict && choice_.kernel == served.transposed && served.fast != served.transposed) {
    why.push_back(std::string("precision is strict: fast would take ") + served.fast->name);
  }
  const AttentionChoice without = choose_attention(maximum_, mask_, false, precision_, kernels_);
  if (length_invariant_ && without.kernel != choice_.kernel) {
    why.push_back(std::string("length_invariant: ") + without.kernel->name + " would serve so few rows");
  }
  std::string changes;
  for (const std::string& change : changes_of_every_score()) changes += (changes.empty() ? "" : ", ") + change;
  if (!changes.empty() && told.tiles_partial > 0) why.push_back("every tile takes a pass over its scores, for " + changes);
  // Smaller rows of blocks are written out with all that else hides keys, as written_mask.hpp says.
  if (mask_.block_queries != 0 && mask_.block_queries * maximum_.group() < 16) {
    why.emplace_back("rows of blocks are so low that hidden blocks are passed over 64 keys at a time only");
  }
  if (mask_.has_segments)
    why.emplace_back("segments in no order are passed over 64 keys at a time only; stretches are skipped");
  if (changes_.relative_bias.kind == RelativeBias::Kind::swin && maximum_.group() > 1) {
    why.emplace_back("with a Swin bias query heads that share a kv head are computed one by one");
  }
  if (told.threads > 1 && told.runs_inline) why.emplace_back("there is too little work for a second thread");
  return why;
}

Explanation AttentionPlan::explanation(const simd::ScoreMod* mod) const {
  Explanation told;
  told.kernel = choice_.kernel->name;
  told.reason = choice_.reason;
  if (choice_.rest_kernel) {
    told.rest_kernel = choice_.rest_kernel->name;
    told.rest_rows = maximum_.rows() - choice_.rest_begin;
  }
  told.isa = dispatch::isa_name(kernels_.isa);
  told.dtype = name(maximum_.dtype);
  if (maximum_.of_keys() != maximum_.dtype) told.dtype += std::string(", keys and values ") + name(maximum_.of_keys());
  if (maximum_.of_out() != maximum_.dtype) told.dtype += std::string(", out ") + name(maximum_.of_out());
  told.key_dtype = name(maximum_.of_keys());
  told.out_dtype = name(maximum_.of_out());
  told.mask = mask_;
  told.precision_asked = precision_ == Precision::strict ? "strict" : "fast";
  told.precision = choice_.precision == Precision::strict ? "strict" : "fast";
  told.batch = maximum_.batch;
  told.heads = maximum_.heads;
  told.kv_heads = maximum_.kv_heads;
  told.query_length = maximum_.query_length;
  told.key_length = maximum_.key_length;
  told.head_dim = maximum_.head_dim;
  told.value_dim = maximum_.value_dim;
  told.row_block = choice_.kernel->row_block;
  told.key_block = tile_keys(*choice_.kernel, maximum_);
  told.rows = maximum_.rows();
  told.group = maximum_.group();
  if (choice_.key_split && split_count(choice_, maximum_.key_length) > 1) {
    told.key_split = choice_.key_split;
    told.splits_run = by_sequences_     ? "in parallel where a piece would keep others waiting"
                      : cut_.splits > 1 ? "in parallel"
                                        : "inside a piece (there are enough pieces without)";
  }
  count_tiles(told);
  told.by_sequences = by_sequences_;
  told.pieces = cut_.pieces;
  told.rows_per_piece = cut_.rows_per_piece;
  told.nodes = cut_.nodes;
  told.threads = scheduler_->threads();
  told.runs_inline = told.threads == 1 || (cut_.nodes <= 1 && !by_sequences_) || cut_.total_cost_ns < inline_below_ns;
  told.one_thread_ms = cut_.total_cost_ns * 1e-6;
  told.expected_ms = told.one_thread_ms;
  if (!told.runs_inline) {
    // Nodes are of about one size; the last round of them may leave threads idle.
    const std::int64_t rounds = divide_up(std::max<std::int64_t>(cut_.nodes, 1), told.threads);
    told.expected_ms = by_sequences_ ? told.one_thread_ms / told.threads
                                     : told.one_thread_ms * static_cast<double>(rounds) / static_cast<double>(cut_.nodes);
  }
  told.scale = changes_.scale;
  told.softcap = changes_.softcap;
  told.score_mod = changes_.mod;
  told.score_mod_classifies = changes_.mod_classifies;
  ask_classifier(mod, told);
  told.alibi = changes_.alibi;
  told.sink = changes_.sink;
  told.relative_bias = changes_.relative_bias;
  told.summary_bytes = marks_bytes_;
  told.workspace_bytes = workspace_bytes_;
  told.not_faster = why_not_faster(told);
  return told;
}

}  // namespace polyhead::plan
