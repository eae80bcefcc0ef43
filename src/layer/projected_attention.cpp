#include "layer/projected_attention.hpp"

#include <algorithm>
#include <utility>

#include "layer/geometry.hpp"

namespace polyhead::layer {
namespace {

// Rows that are copied together, into contiguous memory, where an input's or output's last dimension has a stride.
constexpr std::int64_t packed_rows = 48;

struct RowRange {
  std::int64_t item_begin, item_end, begin, end;  // batch items, positions of each
};

RowRange range_of(const BlockCut& cut, std::int64_t block, std::int64_t batch, std::int64_t length) {
  RowRange range;
  range.item_begin = std::min(block / cut.per_item * cut.items, batch);
  range.item_end = std::min(range.item_begin + cut.items, batch);
  range.begin = std::min(block % cut.per_item * cut.rows, length);
  range.end = std::min(range.begin + cut.rows, length);
  return range;
}

void gather(const Tokens& tokens, std::int64_t item, std::int64_t row, std::int64_t count, float* to,
            std::ptrdiff_t to_stride) {
  const auto* from = reinterpret_cast<const char*>(tokens.data) + item * tokens.batch_stride + row * tokens.row_stride;
  for (std::int64_t r = 0; r < count; ++r, from += tokens.row_stride) {
    float* out = row_at(to, to_stride, r);
    for (std::int64_t i = 0; i < tokens.width; ++i) out[i] = *reinterpret_cast<const float*>(from + i * tokens.element_stride);
  }
}

void scatter(const float* from, std::ptrdiff_t from_stride, const Tokens& tokens, std::int64_t item, std::int64_t row,
             std::int64_t count) {
  auto* to = reinterpret_cast<char*>(tokens.data) + item * tokens.batch_stride + row * tokens.row_stride;
  for (std::int64_t r = 0; r < count; ++r, to += tokens.row_stride) {
    const float* in = row_at(from, from_stride, r);
    for (std::int64_t i = 0; i < tokens.width; ++i) *reinterpret_cast<float*>(to + i * tokens.element_stride) = in[i];
  }
}

float* row_of(const Tokens& tokens, std::int64_t item, std::int64_t row) {
  return row_at(row_at(tokens.data, tokens.batch_stride, item), tokens.row_stride, row);
}

}  // namespace

// One run's facts, on the caller's stack.
struct ProjectedAttention::Run {
  const ProjectedAttention* layer = nullptr;
  const ProjectedAttentionGraph* graph = nullptr;
  const ProjectedAttentionInputs* inputs = nullptr;
  graph::Scheduler* inside = nullptr;  // shares out the work inside a node; null where there are blocks enough
  plan::AttentionOperands operands;
  const std::int64_t* key_lengths = nullptr;
  float *query = nullptr, *key = nullptr, *value = nullptr, *joined = nullptr;
  char* slots = nullptr;
  std::size_t slot_bytes = 0, packed_offset = 0;

  char* slot(int index) const { return slots + static_cast<std::size_t>(index) * slot_bytes; }
};

ProjectedAttention::ProjectedAttention(const ProjectedAttentionShape& shape, ProjectedAttentionWeights weights,
                                       const dispatch::KernelTable& kernels, std::shared_ptr<graph::Scheduler> scheduler)
    : shape_(shape),
      weights_(std::move(weights)),
      kernels_(kernels),
      scheduler_(std::move(scheduler)),
      query_stride_(padded_row_bytes(weights_.query.out_features())),
      key_stride_(padded_row_bytes(weights_.key.out_features())),
      value_stride_(padded_row_bytes(weights_.value.out_features())),
      joined_stride_(padded_row_bytes(shape.heads * shape.value_dim)) {}

void ProjectedAttention::run(Lease& lease, const ProjectedAttentionInputs& inputs, const std::atomic<bool>* cancel) const {
  if (inputs.batch == 0 || inputs.query_length == 0) return;
  const plan::AttentionShape attention = {inputs.batch,      shape_.heads,    shape_.kv_heads, inputs.query_length,
                                          inputs.key_length, shape_.head_dim, shape_.value_dim};
  const FamilyKey key = {bucket(inputs.batch), bucket(inputs.query_length), bucket(inputs.key_length), inputs.is_self ? 1 : 0};
  const std::shared_ptr<const ProjectedAttentionGraph> graph = graph_for(key);

  Run run;
  run.layer = this;
  run.graph = graph.get();
  run.inputs = &inputs;
  run.key_lengths = shape_.mask.has_key_lengths ? lease.key_lengths.data() : nullptr;
  const BlockCut &queries = graph->queries, &keys = graph->keys;
  const std::int64_t threads = scheduler_->threads(), blocks = std::max(queries.blocks, keys.blocks);
  if (threads > 1 && blocks < 2 * threads) run.inside = scheduler_.get();

  WorkspaceLayout layout;
  const auto rows_bytes = [&](std::int64_t length, std::ptrdiff_t stride) {
    return layout.add(static_cast<std::size_t>(inputs.batch * length * stride));
  };
  const std::size_t query = rows_bytes(inputs.query_length, query_stride_),
                    joined = rows_bytes(inputs.query_length, joined_stride_);
  const std::size_t keys_at = rows_bytes(inputs.key_length, key_stride_),
                    values_at = rows_bytes(inputs.key_length, value_stride_);
  WorkspaceLayout slot;
  slot.add(plan::most_scratch_bytes(attention, shape_.mask, false, shape_.precision, kernels_));
  std::int64_t widest = 0;
  for (const Tokens* tokens : {&inputs.query, &inputs.key, &inputs.value, &inputs.out}) {
    if (!tokens->is_contiguous()) widest = std::max(widest, tokens->width);
  }
  run.packed_offset = slot.add(widest == 0 ? 0 : static_cast<std::size_t>(packed_rows * padded_row_bytes(widest)));
  run.slot_bytes = slot.bytes();
  const std::size_t slots = layout.add(run.slot_bytes * static_cast<std::size_t>(scheduler_->slots()));
  lease.workspace.reserve(layout.bytes());
  char* const memory = lease.workspace.as<char>();
  run.query = reinterpret_cast<float*>(memory + query);
  run.joined = reinterpret_cast<float*>(memory + joined);
  run.key = reinterpret_cast<float*>(memory + keys_at);
  run.value = reinterpret_cast<float*>(memory + values_at);
  run.slots = memory + slots;

  plan::AttentionOperands& operands = run.operands;
  operands.shape = attention;
  operands.mask = shape_.mask;
  operands.scale = shape_.scale;
  operands.query = run.query;
  operands.key = run.key;
  operands.value = run.value;
  operands.out = run.joined;
  const auto set = [](std::ptrdiff_t* strides, std::int64_t length, std::int64_t dim, std::ptrdiff_t row) {
    strides[0] = length * row;
    strides[1] = dim * static_cast<std::ptrdiff_t>(sizeof(float));
    strides[2] = row;
  };
  set(operands.query_strides, inputs.query_length, shape_.head_dim, query_stride_);
  set(operands.key_strides, inputs.key_length, shape_.head_dim, key_stride_);
  set(operands.value_strides, inputs.key_length, shape_.value_dim, value_stride_);
  set(operands.out_strides, inputs.query_length, shape_.value_dim, joined_stride_);
  operands.key_lengths = run.key_lengths;
  operands.offsets = shape_.mask.has_offsets ? lease.offsets.data() : nullptr;
  operands.scores = inputs.scores;

  if (threads == 1 || blocks == 1) {
    run_nodes_in_order(graph->nodes.size(), &ProjectedAttention::run_node, &run, cancel);
    return;
  }
  std::unique_ptr<graph::Execution>* execution = lease.executions.find(key);
  if (execution == nullptr) {
    execution = &lease.executions.insert(key, std::make_unique<graph::Execution>(graph->tasks, scheduler_, false));
  }
  (*execution)->run(&ProjectedAttention::run_node, &run, cancel);
}

void ProjectedAttention::run_node(void* context, graph::NodeId id, int slot) {
  const Run& run = *static_cast<const Run*>(context);
  const ProjectedAttention& layer = *run.layer;
  const ProjectedAttentionWeights& weights = layer.weights_;
  const ProjectedAttentionInputs& inputs = *run.inputs;
  const ProjectedAttentionGraph::Node& node = run.graph->nodes[id];
  const BlockCut &queries = run.graph->queries, &keys = run.graph->keys;
  using Kind = ProjectedAttentionGraph::Kind;
  if (node.kind == Kind::project_query || node.kind == Kind::project_all) {
    layer.project(run, weights.query, inputs.query, queries, node.block, run.query, layer.query_stride_, inputs.query_length,
                  false, slot);
  }
  if (node.kind == Kind::project_key_value || node.kind == Kind::project_all) {
    layer.project(run, weights.key, inputs.key, keys, node.block, run.key, layer.key_stride_, inputs.key_length, true, slot);
    layer.project(run, weights.value, inputs.value, keys, node.block, run.value, layer.value_stride_, inputs.key_length, true,
                  slot);
  }
  if (node.kind == Kind::attend || node.kind == Kind::output) layer.attend(run, node, slot);
  if (node.kind == Kind::output) layer.project_output(run, node.block, slot);
}

// Rows of a block through a projection. Keys and values beyond their length are neither read nor computed.
void ProjectedAttention::project(const Run& run, const Linear& linear, const Tokens& from, const BlockCut& cut,
                                 std::int64_t block, float* to, std::ptrdiff_t to_stride, std::int64_t length,
                                 bool to_key_length, int slot) const {
  const RowRange range = range_of(cut, block, run.inputs->batch, length);
  const std::int64_t* lengths = to_key_length ? run.key_lengths : nullptr;
  // Whole items that follow each other in memory are one product.
  const bool is_uniform = from.is_contiguous() && lengths == nullptr && range.end - range.begin == length &&
                          (from.batch_stride == length * from.row_stride || range.item_end - range.item_begin == 1);
  Linear::Rows rows;
  rows.x_stride = from.row_stride;
  rows.y_stride = to_stride;
  if (is_uniform) {
    rows.x = row_of(from, range.item_begin, 0);
    rows.y = row_at(to, to_stride, range.item_begin * length);
    rows.count = (range.item_end - range.item_begin) * length;
    linear.run(rows, simd::Activation::none, run.inside);
    return;
  }
  for (std::int64_t item = range.item_begin; item < range.item_end; ++item) {
    const std::int64_t end = lengths == nullptr ? range.end : std::min(range.end, lengths[item]);
    const std::int64_t step = from.is_contiguous() ? std::max<std::int64_t>(end - range.begin, 1) : packed_rows;
    for (std::int64_t row = range.begin; row < end; row += step) {
      rows.count = std::min(step, end - row);
      rows.x = row_of(from, item, row);
      rows.y = row_at(to, to_stride, item * length + row);
      if (!from.is_contiguous()) {
        auto* packed = reinterpret_cast<float*>(run.slot(slot) + run.packed_offset);
        rows.x_stride = padded_row_bytes(from.width);
        gather(from, item, row, rows.count, packed, rows.x_stride);
        rows.x = packed;
      }
      linear.run(rows, simd::Activation::none, run.inside);
    }
  }
}

void ProjectedAttention::attend(const Run& run, const ProjectedAttentionGraph::Node& node, int slot) const {
  const RowRange range = range_of(run.graph->queries, node.block, run.inputs->batch, run.inputs->query_length);
  const std::int64_t heads = node.kv_head_end - node.kv_head_begin, items = range.item_end - range.item_begin;
  if (heads <= 0 || items <= 0 || range.begin >= range.end) return;
  struct Share {
    const Run* run;
    RowRange range;
    std::int64_t kv_head_begin, heads;

    plan::AttentionChoice choice(std::int64_t item) const {
      return plan::choose_attention(plan::own_shape(run->operands, item), run->operands.mask, false,
                                    run->layer->shape_.precision, run->layer->kernels_);
    }
    void run_item(std::int64_t index, int item_slot) const {
      const std::int64_t group = run->operands.shape.group(), item = range.item_begin + index / heads;
      plan::run_rows(choice(item), run->operands, item, kv_head_begin + index % heads, range.begin * group, range.end * group,
                     run->slot(item_slot));
    }
  } share{&run, range, node.kv_head_begin, heads};
  constexpr double share_from_ns = 40e3;
  double cost = 0;
  if (run.inside != nullptr) {
    const std::int64_t group = run.operands.shape.group();
    cost = plan::piece_cost_ns(share.choice(range.item_begin), run.operands, range.item_begin, range.begin * group,
                               range.end * group) *
           static_cast<double>(items * heads);
  }
  if (cost < share_from_ns) {
    for (std::int64_t index = 0; index < items * heads; ++index) share.run_item(index, slot);
    return;
  }
  run.inside->parallel_for(
      static_cast<std::size_t>(items * heads),
      [](void* context, std::size_t index, int item_slot) {
        static_cast<const Share*>(context)->run_item(static_cast<std::int64_t>(index), item_slot);
      },
      &share);
}

void ProjectedAttention::project_output(const Run& run, std::int64_t block, int slot) const {
  const Tokens& out = run.inputs->out;
  const std::int64_t length = run.inputs->query_length;
  const RowRange range = range_of(run.graph->queries, block, run.inputs->batch, length);
  Linear::Rows rows;
  rows.x_stride = joined_stride_;
  rows.y_stride = out.row_stride;
  if (out.is_contiguous() && range.end - range.begin == length &&
      (out.batch_stride == length * out.row_stride || range.item_end - range.item_begin == 1)) {
    rows.x = row_at(run.joined, joined_stride_, range.item_begin * length);
    rows.y = row_of(out, range.item_begin, 0);
    rows.count = (range.item_end - range.item_begin) * length;
    weights_.output.run(rows, simd::Activation::none, run.inside);
    return;
  }
  for (std::int64_t item = range.item_begin; item < range.item_end; ++item) {
    const std::int64_t step = out.is_contiguous() ? std::max<std::int64_t>(range.end - range.begin, 1) : packed_rows;
    for (std::int64_t row = range.begin; row < range.end; row += step) {
      rows.count = std::min(step, range.end - row);
      rows.x = row_at(run.joined, joined_stride_, item * length + row);
      rows.y = row_of(out, item, row);
      if (!out.is_contiguous()) {
        rows.y = reinterpret_cast<float*>(run.slot(slot) + run.packed_offset);
        rows.y_stride = padded_row_bytes(out.width);
      }
      weights_.output.run(rows, simd::Activation::none, run.inside);
      if (!out.is_contiguous()) scatter(rows.y, rows.y_stride, out, item, row, rows.count);
    }
  }
}

}  // namespace polyhead::layer
