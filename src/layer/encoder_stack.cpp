#include "layer/encoder_stack.hpp"

#include <algorithm>

#include "layer/encoder_tuning.hpp"
#include "layer/geometry.hpp"

namespace polyhead::layer {

namespace {

// Stages of about equal size, in whole GEMM tiles of every target: 128 rows are 72 + 56, not 96 + 32.
std::int64_t stage_size(std::int64_t rows) {
  return std::min(stage_rows, round_up(divide_up(rows, divide_up(rows, stage_rows)), 24));
}

}  // namespace

// One run's facts, on the caller's stack.
struct EncoderStack::Run {
  const EncoderStack* stack = nullptr;
  const EncoderGraph* graph = nullptr;
  const Lease* lease = nullptr;
  const RowSource* source = nullptr;
  const RowSink* sink = nullptr;
  graph::Scheduler* inside = nullptr;  // shares out the work inside a node; null where there are row blocks enough
  std::int64_t chains = 0, longest = 0;
  plan::AttentionChoice choice;
  float* hidden = nullptr;  // [rows][hidden]: the residual stream
  float* joined = nullptr;  // [rows][heads * value_dim]: what attention writes
  float* qkv[2] = {};       // [rows][qkv columns], for even and odd blocks
  char* slots = nullptr;
  std::size_t slot_bytes = 0, staged_offset = 0, feed_forward_offset = 0;

  char* slot(int index) const { return slots + static_cast<std::size_t>(index) * slot_bytes; }
};

EncoderStack::EncoderStack(const EncoderShape& shape, std::vector<EncoderLayer> layers, const dispatch::KernelTable& kernels,
                           std::shared_ptr<graph::Scheduler> scheduler)
    : shape_(shape),
      layers_(std::move(layers)),
      kernels_(kernels),
      scheduler_(std::move(scheduler)),
      hidden_stride_(padded_row_bytes(shape.hidden)),
      qkv_stride_(padded_row_bytes(shape.qkv_columns())),
      joined_stride_(padded_row_bytes(shape.joined_columns())),
      feed_forward_stride_(padded_row_bytes(shape.feed_forward)) {
  // Lengths are known per sequence; the kernels see each sequence by itself, with as many keys as queries.
  shape_.mask.has_key_lengths = false;
}

EncoderStack::SliceRows EncoderStack::rows_of(const Run& run, std::int64_t chain, std::int64_t slice) const {
  if (chain >= run.chains) return {0, 0};
  const Lease& lease = *run.lease;
  const std::int64_t begin = lease.first_row[static_cast<std::size_t>(lease.chain_begin[static_cast<std::size_t>(chain)])];
  const std::int64_t end = lease.first_row[static_cast<std::size_t>(lease.chain_begin[static_cast<std::size_t>(chain + 1)])];
  // Slices of about equal size: 200 rows are 112 + 88, not 192 + 8.
  const std::int64_t used = divide_up(end - begin, slice_rows);
  if (slice >= used) return {0, 0};
  const std::int64_t size = round_up(divide_up(end - begin, used), 16);
  return {std::min(begin + slice * size, end), std::min(begin + (slice + 1) * size, end)};
}

// function(b, begin, end, row) for every sequence that has positions in these rows.
template <typename Function>
void EncoderStack::for_each_segment(const Run& run, std::int64_t chain, const SliceRows& rows, const Function& function) const {
  const Lease& lease = *run.lease;
  const std::int64_t last = lease.chain_begin[static_cast<std::size_t>(chain + 1)];
  for (std::int64_t b = lease.chain_begin[static_cast<std::size_t>(chain)]; b < last; ++b) {
    const std::int64_t first = lease.first_row[static_cast<std::size_t>(b)],
                       end = lease.first_row[static_cast<std::size_t>(b + 1)];
    const std::int64_t from = std::max(first, rows.begin), to = std::min(end, rows.end);
    if (from < to) function(b, from - first, to - first, from);
  }
}

void EncoderStack::run(Lease& lease, const RowSource& source, const RowSink* sink, const std::atomic<bool>* cancel) const {
  const std::size_t batch = lease.lengths.size();
  std::int64_t longest = 0;
  lease.first_row.resize(batch + 1);
  lease.first_row[0] = 0;
  for (std::size_t b = 0; b < batch; ++b) {
    longest = std::max(longest, lease.lengths[b]);
    lease.first_row[b + 1] = lease.first_row[b] + lease.lengths[b];
  }
  const std::int64_t rows = lease.first_row[batch];
  lease.hidden_stride = hidden_stride_;
  if (rows == 0) return;

  const std::int64_t slices = divide_up(longest, slice_rows), capacity = slices * slice_rows;
  lease.chain_begin.clear();
  lease.chain_begin.reserve(batch + 1);
  lease.chain_begin.push_back(0);
  std::int64_t chain_rows = 0, used_slices = 0, blocks = 0;
  const auto close_chain = [&] {
    used_slices = std::max(used_slices, divide_up(chain_rows, slice_rows));
    blocks += divide_up(chain_rows, slice_rows);
    chain_rows = 0;
  };
  for (std::size_t b = 0; b < batch; ++b) {
    if (chain_rows > 0 && chain_rows + lease.lengths[b] > capacity) {
      close_chain();
      lease.chain_begin.push_back(static_cast<std::int64_t>(b));
    }
    chain_rows += lease.lengths[b];
  }
  close_chain();
  lease.chain_begin.push_back(static_cast<std::int64_t>(batch));

  Run run;
  run.stack = this;
  run.lease = &lease;
  run.source = &source;
  run.sink = sink;
  run.longest = longest;
  run.chains = static_cast<std::int64_t>(lease.chain_begin.size()) - 1;
  const std::shared_ptr<const EncoderGraph> graph = graph_for(run.chains, used_slices);
  run.graph = graph.get();

  const plan::AttentionShape attention = {1,       shape_.heads,    shape_.kv_heads, longest,
                                          longest, shape_.head_dim, shape_.value_dim};
  run.choice = plan::choose_attention(attention, shape_.mask, true, shape_.precision, kernels_);

  const std::int64_t threads = scheduler_->threads();
  if (threads > 1 && blocks < 2 * threads) run.inside = scheduler_.get();

  WorkspaceLayout layout;
  const auto rows_bytes = [&](std::ptrdiff_t stride) { return layout.add(static_cast<std::size_t>(rows * stride)); };
  const std::size_t hidden = rows_bytes(hidden_stride_), joined = rows_bytes(joined_stride_);
  const std::size_t qkv_even = rows_bytes(qkv_stride_);
  // Where every sequence lies in one slice, nobody else reads a slice's rows when they are replaced.
  const std::size_t qkv_odd = used_slices > 1 ? rows_bytes(qkv_stride_) : qkv_even;
  WorkspaceLayout slot;
  slot.add(plan::scratch_bytes(run.choice, attention, slice_rows * (shape_.heads / shape_.kv_heads)));
  run.staged_offset = slot.add(static_cast<std::size_t>(stage_rows * hidden_stride_));
  run.feed_forward_offset = slot.add(static_cast<std::size_t>(stage_rows * feed_forward_stride_));
  run.slot_bytes = slot.bytes();
  const std::size_t slots = layout.add(run.slot_bytes * static_cast<std::size_t>(scheduler_->slots()));
  lease.workspace.reserve(layout.bytes());
  char* const memory = lease.workspace.as<char>();
  run.hidden = reinterpret_cast<float*>(memory + hidden);
  run.joined = reinterpret_cast<float*>(memory + joined);
  run.qkv[0] = reinterpret_cast<float*>(memory + qkv_even);
  run.qkv[1] = reinterpret_cast<float*>(memory + qkv_odd);
  run.slots = memory + slots;
  lease.hidden = run.hidden;

  if (threads == 1 || blocks == 1) {
    run_nodes_in_order(graph->nodes.size(), &EncoderStack::run_node, &run, cancel);
    return;
  }
  const FamilyKey key = {graph->chains, graph->slices, 0, 0};
  std::unique_ptr<graph::Execution>* execution = lease.executions.find(key);
  if (execution == nullptr) {
    execution = &lease.executions.insert(key, std::make_unique<graph::Execution>(graph->tasks, scheduler_, false));
  }
  (*execution)->run(&EncoderStack::run_node, &run, cancel);
}

void EncoderStack::run_node(void* context, graph::NodeId id, int slot) {
  const Run& run = *static_cast<const Run*>(context);
  const EncoderGraph::Node& node = run.graph->nodes[id];
  switch (node.kind) {
    case EncoderGraph::Kind::load:
      return run.stack->load(run, node, slot);
    case EncoderGraph::Kind::attend:
      return run.stack->attend(run, node, slot);
    case EncoderGraph::Kind::finish:
      run.stack->attend(run, node, slot);  // the heads that have no node of their own: all or none
      return run.stack->finish(run, node, slot);
    case EncoderGraph::Kind::join:
      return;
  }
}

void EncoderStack::norm(const float* x, float* y, std::ptrdiff_t y_stride, std::int64_t rows,
                        const platform::AlignedBuffer& gamma, const platform::AlignedBuffer& beta) const {
  simd::LayerNormF32Args args;
  args.x = x;
  args.x_stride = hidden_stride_;
  args.y = y;
  args.y_stride = y_stride;
  args.gamma = gamma.as<float>();
  args.beta = beta.as<float>();
  args.rows = rows;
  args.dim = shape_.hidden;
  args.epsilon = shape_.norm_epsilon;
  kernels_.layer_norm_f32->run(args);
}

// QKV of `count` <= stage_rows rows for a block, from the residual stream or, with norms first, from its norm.
void EncoderStack::project_qkv(const Run& run, std::int64_t layer, std::int64_t row, std::int64_t count, int slot) const {
  const EncoderLayer& weights = layers_[static_cast<std::size_t>(layer)];
  Linear::Rows rows;
  rows.x = row_at(run.hidden, hidden_stride_, row);
  rows.x_stride = hidden_stride_;
  rows.y = row_at(run.qkv[layer % 2], qkv_stride_, row);
  rows.y_stride = qkv_stride_;
  rows.count = count;
  if (shape_.norm_first) {
    auto* staged = reinterpret_cast<float*>(run.slot(slot) + run.staged_offset);
    norm(rows.x, staged, hidden_stride_, count, weights.attention_gamma, weights.attention_beta);
    rows.x = staged;
  }
  weights.qkv.run(rows, simd::Activation::none, run.inside);
}

void EncoderStack::load(const Run& run, const EncoderGraph::Node& node, int slot) const {
  const SliceRows rows = rows_of(run, node.chain, node.slice);
  if (rows.begin >= rows.end) return;
  for_each_segment(run, node.chain, rows, [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t row) {
    run.source->load(b, begin, end, row_at(run.hidden, hidden_stride_, row), hidden_stride_);
  });
  for (std::int64_t row = rows.begin; row < rows.end; row += stage_rows) {
    project_qkv(run, 0, row, std::min(stage_rows, rows.end - row), slot);
  }
}

void EncoderStack::attend_sequence(const Run& run, std::int64_t layer, std::int64_t b, const SliceRows& rows,
                                   std::int64_t kv_head, int slot) const {
  const std::int64_t first = run.lease->first_row[static_cast<std::size_t>(b)];
  const std::int64_t length = run.lease->lengths[static_cast<std::size_t>(b)];
  const std::int64_t begin = std::max(first, rows.begin) - first, end = std::min(first + length, rows.end) - first;
  if (begin >= end) return;
  const auto bytes = [](std::int64_t floats) { return floats * static_cast<std::ptrdiff_t>(sizeof(float)); };
  plan::AttentionOperands operands;
  operands.shape = {1, shape_.heads, shape_.kv_heads, length, length, shape_.head_dim, shape_.value_dim};
  operands.mask = shape_.mask;
  operands.scale = shape_.scale;
  const float* const query = row_at(run.qkv[layer % 2], qkv_stride_, first);
  operands.query = query;
  operands.key = query + shape_.query_columns();
  operands.value = query + shape_.query_columns() + shape_.key_columns();
  operands.out = row_at(run.joined, joined_stride_, first);
  operands.query_strides[1] = operands.key_strides[1] = bytes(shape_.head_dim);
  operands.value_strides[1] = operands.out_strides[1] = bytes(shape_.value_dim);
  operands.query_strides[2] = operands.key_strides[2] = operands.value_strides[2] = qkv_stride_;
  operands.out_strides[2] = joined_stride_;
  const std::int64_t group = operands.shape.group();
  plan::run_rows(run.choice, operands, 0, kv_head, begin * group, end * group, run.slot(slot));
}

void EncoderStack::attend(const Run& run, const EncoderGraph::Node& node, int slot) const {
  const SliceRows rows = rows_of(run, node.chain, node.slice);
  if (rows.begin >= rows.end || node.kv_head_begin >= node.kv_head_end) return;
  const double cost_ns = 2.0 * static_cast<double>((rows.end - rows.begin) * run.longest) *
                         static_cast<double>((node.kv_head_end - node.kv_head_begin) * (shape_.head_dim + shape_.value_dim)) /
                         run.choice.gigaflops;
  if (run.inside == nullptr || cost_ns < share_attention_from_ns) {
    for_each_segment(run, node.chain, rows, [&](std::int64_t b, std::int64_t, std::int64_t, std::int64_t) {
      for (std::int64_t head = node.kv_head_begin; head < node.kv_head_end; ++head) {
        attend_sequence(run, node.layer, b, rows, head, slot);
      }
    });
    return;
  }
  struct Share {
    const Run* run;
    const EncoderGraph::Node* node;
    SliceRows rows;
    std::int64_t first_sequence, heads;
  } share{&run, &node, rows, run.lease->chain_begin[static_cast<std::size_t>(node.chain)],
          node.kv_head_end - node.kv_head_begin};
  const std::int64_t sequences = run.lease->chain_begin[static_cast<std::size_t>(node.chain + 1)] - share.first_sequence;
  run.inside->parallel_for(
      static_cast<std::size_t>(sequences * share.heads),
      [](void* context, std::size_t index, int item_slot) {
        const Share& all = *static_cast<const Share*>(context);
        const auto item = static_cast<std::int64_t>(index);
        all.run->stack->attend_sequence(*all.run, all.node->layer, all.first_sequence + item / all.heads, all.rows,
                                        all.node->kv_head_begin + item % all.heads, item_slot);
      },
      &share);
}

void EncoderStack::finish(const Run& run, const EncoderGraph::Node& node, int slot) const {
  const SliceRows rows = rows_of(run, node.chain, node.slice);
  if (rows.begin >= rows.end) return;
  const EncoderLayer& weights = layers_[static_cast<std::size_t>(node.layer)];
  const bool is_last = node.layer + 1 == layer_count();
  auto* staged = reinterpret_cast<float*>(run.slot(slot) + run.staged_offset);
  auto* between = reinterpret_cast<float*>(run.slot(slot) + run.feed_forward_offset);
  const std::int64_t stage = stage_size(rows.end - rows.begin);
  for (std::int64_t row = rows.begin; row < rows.end; row += stage) {
    const std::int64_t count = std::min(stage, rows.end - row);
    float* const hidden = row_at(run.hidden, hidden_stride_, row);

    Linear::Rows out;
    out.x = row_at(run.joined, joined_stride_, row);
    out.x_stride = joined_stride_;
    out.y = hidden;
    out.y_stride = hidden_stride_;
    out.count = count;
    out.residual = hidden;
    out.residual_stride = hidden_stride_;
    weights.attention_out.run(out, simd::Activation::none, run.inside);

    Linear::Rows in;
    in.x = hidden;
    in.x_stride = hidden_stride_;
    in.y = between;
    in.y_stride = feed_forward_stride_;
    in.count = count;
    if (shape_.norm_first) {
      norm(hidden, staged, hidden_stride_, count, weights.feed_forward_gamma, weights.feed_forward_beta);
      in.x = staged;
    } else {
      norm(hidden, hidden, hidden_stride_, count, weights.attention_gamma, weights.attention_beta);
    }
    weights.feed_forward_in.run(in, shape_.activation, run.inside);

    out.x = between;
    out.x_stride = feed_forward_stride_;
    weights.feed_forward_out.run(out, simd::Activation::none, run.inside);
    if (!shape_.norm_first) norm(hidden, hidden, hidden_stride_, count, weights.feed_forward_gamma, weights.feed_forward_beta);
    if (!is_last) project_qkv(run, node.layer + 1, row, count, slot);
  }
  if (!is_last || run.sink == nullptr) return;
  for_each_segment(run, node.chain, rows, [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t row) {
    run.sink->store(b, begin, end, row_at(run.hidden, hidden_stride_, row), hidden_stride_);
  });
}

}  // namespace polyhead::layer
