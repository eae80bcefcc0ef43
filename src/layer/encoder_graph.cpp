// Which nodes an encoder's graph has, and which must come first.
#include <algorithm>
#include <cmath>

#include "layer/encoder_stack.hpp"
#include "layer/encoder_tuning.hpp"
#include "layer/geometry.hpp"

namespace polyhead::layer {
namespace {

using Kind = EncoderGraph::Kind;

class Builder {
 public:
  explicit Builder(EncoderGraph* graph) : graph_(graph) {}

  graph::NodeId add(Kind kind, std::int64_t layer, std::int64_t chain, std::int64_t slice, double cost,
                    std::int64_t kv_head_begin = 0, std::int64_t kv_head_end = 0) {
    const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
    graph_->nodes.push_back({kind, narrow(layer), narrow(chain), narrow(slice), narrow(kv_head_begin), narrow(kv_head_end)});
    return graph_->tasks->add(cost);
  }
  void depend(graph::NodeId before, graph::NodeId after) { graph_->tasks->depend(before, after); }

 private:
  EncoderGraph* graph_;
};

}  // namespace

std::shared_ptr<const EncoderGraph> EncoderStack::build_graph(std::int64_t chains, std::int64_t slices) const {
  auto result = std::make_shared<EncoderGraph>();
  result->chains = chains;
  result->slices = slices;
  result->tasks = std::make_shared<graph::TaskGraph>();
  Builder builder(result.get());

  plan::AttentionOperands longest;
  longest.shape = {
      1, shape_.heads, shape_.kv_heads, slices * slice_rows, slices * slice_rows, shape_.head_dim, shape_.value_dim};
  longest.mask = shape_.mask;
  const plan::AttentionChoice choice = plan::choose_attention(longest.shape, shape_.mask, true, shape_.precision, kernels_);
  const std::int64_t group = shape_.heads / shape_.kv_heads;
  const double head_cost =
      plan::piece_cost_ns(choice, longest, 0, (slices - 1) * slice_rows * group, slices * slice_rows * group);
  const double attend_cost = head_cost * static_cast<double>(shape_.kv_heads);
  const auto product_cost = [&](std::int64_t in, std::int64_t out) {
    return 2.0 * static_cast<double>(slice_rows * in) * static_cast<double>(out) / choice.gigaflops;
  };
  const double qkv_cost = product_cost(shape_.hidden, shape_.qkv_columns());
  const double finish_cost =
      qkv_cost + product_cost(shape_.joined_columns(), shape_.hidden) + 2 * product_cost(shape_.hidden, shape_.feed_forward);

  // Heads are cut apart where there are not row blocks enough for the threads.
  std::int64_t parts = 1;
  const std::int64_t threads = scheduler_->threads(), blocks = chains * slices;
  if (threads > 1 && blocks > 1 && blocks < 4 * threads) {
    parts = std::clamp<std::int64_t>(std::llround(attend_cost / attend_node_ns), 1, shape_.kv_heads);
  }
  // With a causal mask a slice sees only the slices before it (each sequence's rows are in order, too).
  const bool is_causal = shape_.mask.causality != Causal::none;
  // In one part, attention and what follows it are one node (see run_node), except where later slices wait for attention alone.
  const bool is_fused = parts == 1 && !(is_causal && slices > 1);

  std::vector<graph::NodeId> projected(static_cast<std::size_t>(slices)), attended;
  for (std::int64_t chain = 0; chain < chains; ++chain) {
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      projected[static_cast<std::size_t>(slice)] = builder.add(Kind::load, 0, chain, slice, qkv_cost);
    }
    graph::NodeId all_attended_before = 0;
    for (std::int64_t layer = 0; layer < layer_count(); ++layer) {
      // seen[i]: done when the QKV rows of slices 0 .. i are. Join nodes keep the number of edges linear in the slices.
      std::vector<graph::NodeId> seen = projected;
      for (std::size_t i = 1; i < seen.size(); ++i) {
        seen[i] = builder.add(Kind::join, layer, chain, static_cast<std::int64_t>(i), 0);
        builder.depend(seen[i - 1], seen[i]);
        builder.depend(projected[i], seen[i]);
      }
      attended.clear();
      std::vector<graph::NodeId> finished;
      for (std::int64_t slice = 0; slice < slices; ++slice) {
        const graph::NodeId needed = is_causal ? seen[static_cast<std::size_t>(slice)] : seen.back();
        const std::size_t first_attend = attended.size();
        for (std::int64_t part = 0; part < parts && !is_fused; ++part) {
          const std::int64_t begin = part * shape_.kv_heads / parts, end = (part + 1) * shape_.kv_heads / parts;
          attended.push_back(
              builder.add(Kind::attend, layer, chain, slice, attend_cost / static_cast<double>(parts), begin, end));
          builder.depend(needed, attended.back());
        }
        const graph::NodeId node = builder.add(Kind::finish, layer, chain, slice, finish_cost + (is_fused ? attend_cost : 0), 0,
                                               is_fused ? shape_.kv_heads : 0);
        if (is_fused) {
          builder.depend(needed, node);
          attended.push_back(node);
        }
        for (std::size_t i = first_attend; i < attended.size() && !is_fused; ++i) builder.depend(attended[i], node);
        // QKV rows alternate between two buffers. Without a causal mask whoever writes one knows that its readers are done;
        // with one, a slice may be so far ahead that later slices still read what it would overwrite.
        if (is_causal && slices > 1 && layer > 0) builder.depend(all_attended_before, node);
        finished.push_back(node);
      }
      if (is_causal && slices > 1) {
        all_attended_before = builder.add(Kind::join, layer, chain, 0, 0);
        for (const graph::NodeId node : attended) builder.depend(node, all_attended_before);
      }
      projected = finished;
    }
  }
  return result;
}

std::shared_ptr<const EncoderGraph> EncoderStack::graph_for(std::int64_t chains, std::int64_t slices) const {
  const FamilyKey key = {bucket(chains), bucket(slices), 0, 0};
  const std::lock_guard<std::mutex> lock(graphs_mutex_);
  if (const auto* found = graphs_.find(key)) return *found;
  return graphs_.insert(key, build_graph(key[0], key[1]));
}

}  // namespace polyhead::layer
