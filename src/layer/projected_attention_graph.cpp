// Which nodes the graph of a multi-head attention has, and which must come first.
#include <algorithm>
#include <cmath>

#include "layer/geometry.hpp"
#include "layer/projected_attention.hpp"

namespace polyhead::layer {
namespace {

using Kind = ProjectedAttentionGraph::Kind;

// Rows of a block: the unit of scheduling of projections, a multiple of every target's query block.
constexpr std::int64_t block_rows = 192;
// Attention of a block is cut by heads into nodes of about this cost.
constexpr double attend_node_ns = 150e3;

BlockCut cut_rows(std::int64_t batch, std::int64_t length) {
  BlockCut cut;
  cut.length = length;
  if (batch == 0 || length == 0) return cut;
  if (length > block_rows) {
    cut.per_item = divide_up(length, block_rows);
    cut.rows = round_up(divide_up(length, cut.per_item), 16);
    cut.items = 1;
    cut.blocks = batch * cut.per_item;
  } else {
    cut.per_item = 1;
    cut.rows = length;
    cut.items = std::max<std::int64_t>(1, block_rows / length);
    cut.blocks = divide_up(batch, cut.items);
  }
  return cut;
}

class Builder {
 public:
  Builder(ProjectedAttentionGraph* result, bool is_self, std::int64_t batch)
      : result_(result), is_self_(is_self), batch_(batch) {}

  graph::NodeId add(Kind kind, std::int64_t block, double cost, std::int64_t kv_head_begin = 0, std::int64_t kv_head_end = 0) {
    const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
    result_->nodes.push_back({kind, narrow(block), narrow(kv_head_begin), narrow(kv_head_end)});
    return result_->tasks->add(cost);
  }
  void depend(graph::NodeId before, graph::NodeId after) { result_->tasks->depend(before, after); }

  // Adds the projections of the key blocks up to those of `item`, and for each the node after which it and all earlier blocks
  // of its batch item are done: edges stay linear in the blocks.
  void add_keys_through(std::int64_t item, double cost) {
    const BlockCut& keys = result_->keys;
    const std::int64_t wanted = keys.blocks == 0 ? 0 : std::min(keys.blocks, (item / keys.items + 1) * keys.per_item);
    for (auto block = static_cast<std::int64_t>(projected_.size()); block < wanted; ++block) {
      projected_.push_back(add(is_self_ ? Kind::project_all : Kind::project_key_value, block, cost));
    }
    for (auto block = static_cast<std::int64_t>(through_.size()); block < wanted; ++block) {
      if (block % keys.per_item == 0) {
        through_.push_back(projected_[static_cast<std::size_t>(block)]);
        continue;
      }
      const graph::NodeId join = add(Kind::join, 0, 0);
      depend(through_.back(), join);
      depend(projected_[static_cast<std::size_t>(block)], join);
      through_.push_back(join);
    }
  }
  graph::NodeId projected(std::int64_t block) const { return projected_[static_cast<std::size_t>(block)]; }
  graph::NodeId through(std::int64_t block) const { return through_[static_cast<std::size_t>(block)]; }
  std::int64_t batch() const { return batch_; }

 private:
  ProjectedAttentionGraph* result_;
  bool is_self_;
  std::int64_t batch_;
  std::vector<graph::NodeId> projected_, through_;
};

}  // namespace

// key: batch, query length, key length (all rounded up), whether it is self-attention.
std::shared_ptr<const ProjectedAttentionGraph> ProjectedAttention::build_graph(const FamilyKey& key) const {
  const std::int64_t batch = key[0], query_length = key[1], key_length = key[2];
  const bool is_self = key[3] != 0;
  auto result = std::make_shared<ProjectedAttentionGraph>();
  result->tasks = std::make_shared<graph::TaskGraph>();
  result->queries = cut_rows(batch, query_length);
  result->keys = is_self ? result->queries : cut_rows(batch, key_length);
  const BlockCut &queries = result->queries, &keys = result->keys;
  Builder builder(result.get(), is_self, batch);

  plan::AttentionOperands longest;
  longest.shape = {1, shape_.heads, shape_.kv_heads, query_length, key_length, shape_.head_dim, shape_.value_dim};
  longest.mask = shape_.mask;
  longest.mask.has_key_lengths = longest.mask.has_offsets = false;
  const plan::AttentionChoice choice = plan::choose_attention(longest.shape, shape_.mask, false, shape_.precision, kernels_);
  const auto product_cost = [&](std::int64_t rows, const Linear& linear) {
    return 2.0 * static_cast<double>(rows * linear.in_features()) * static_cast<double>(linear.out_features()) /
           choice.gigaflops;
  };
  const std::int64_t query_rows = queries.rows * queries.items, key_rows = keys.rows * keys.items;
  const double query_cost = product_cost(query_rows, weights_.query), output_cost = product_cost(query_rows, weights_.output);
  const double key_cost = product_cost(key_rows, weights_.key) + product_cost(key_rows, weights_.value);
  const double attend_cost =
      plan::piece_cost_ns(choice, longest, 0, 0, std::max<std::int64_t>(queries.rows, 1) * longest.shape.group()) *
      static_cast<double>(queries.items * shape_.kv_heads);
  std::int64_t parts = 1;
  const std::int64_t threads = scheduler_->threads();
  if (threads > 1 && queries.blocks > 1 && queries.blocks < 4 * threads) {
    parts = std::clamp<std::int64_t>(std::llround(attend_cost / attend_node_ns), 1, shape_.kv_heads);
  }
  // Self-attention under a causal mask: rows and keys are the same positions, and offsets never reach forward.
  const bool sees_back_only =
      is_self && (shape_.mask.causality == Causal::top_left || shape_.mask.causality == Causal::bottom_right);

  for (std::int64_t block = 0; block < queries.blocks; ++block) {
    const std::int64_t first_item = block / queries.per_item * queries.items;
    const std::int64_t last_item = std::min(first_item + queries.items, batch) - 1;
    builder.add_keys_through(last_item, key_cost + (is_self ? query_cost : 0));
    const graph::NodeId query = is_self ? builder.projected(block) : builder.add(Kind::project_query, block, query_cost);
    const auto wait_for_keys = [&](graph::NodeId node) {
      if (sees_back_only) {
        builder.depend(builder.through(block), node);
        return;
      }
      if (keys.blocks == 0) return;
      for (std::int64_t key_item = first_item / keys.items; key_item <= last_item / keys.items; ++key_item) {
        builder.depend(builder.through((key_item + 1) * keys.per_item - 1), node);
      }
    };
    if (parts == 1) {
      // Attention and output projection in one node, see run_node.
      const graph::NodeId node = builder.add(Kind::output, block, attend_cost + output_cost, 0, shape_.kv_heads);
      if (!is_self) builder.depend(query, node);
      wait_for_keys(node);
      continue;
    }
    std::vector<graph::NodeId> attended;
    for (std::int64_t part = 0; part < parts; ++part) {
      attended.push_back(builder.add(Kind::attend, block, attend_cost / static_cast<double>(parts),
                                     part * shape_.kv_heads / parts, (part + 1) * shape_.kv_heads / parts));
      if (!is_self) builder.depend(query, attended.back());
      wait_for_keys(attended.back());
    }
    const graph::NodeId output = builder.add(Kind::output, block, output_cost);
    for (const graph::NodeId node : attended) builder.depend(node, output);
  }
  return result;
}

std::shared_ptr<const ProjectedAttentionGraph> ProjectedAttention::graph_for(const FamilyKey& key) const {
  const std::lock_guard<std::mutex> lock(graphs_mutex_);
  if (const auto* found = graphs_.find(key)) return *found;
  return graphs_.insert(key, build_graph(key));
}

}  // namespace polyhead::layer
