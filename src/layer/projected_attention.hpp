// Multi-head attention with its projections, as one task graph.
//
// Queries are cut into blocks: a slice of one batch item's rows, or several whole batch items where they are short; keys and
// values likewise. Nodes: `project` (a block's Q, or K and V, or all three where keys and values come from the query's input),
// `attend` (a query block, some kv heads), `output` (a query block). An attend node waits for the K and V blocks that its mask
// can see, and for nothing else. Projections are written to [batch][length][heads * dim], which attention reads by its strides.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "graph/task_graph.hpp"
#include "layer/lease_pool.hpp"
#include "layer/linear.hpp"
#include "plan/attention_work.hpp"
#include "platform/aligned_memory.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/precision.hpp"

namespace polyhead::layer {

struct ProjectedAttentionShape {
  std::int64_t d_model = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  double scale = 0;
  Mask mask;
  Precision precision = Precision::strict;  // of attention
};

struct ProjectedAttentionWeights {
  platform::AlignedBuffer packed;  // what the four read
  Linear query, key, value, output;
};

// [batch][length][width] f32; strides in bytes, the last dimension's included.
struct Tokens {
  float* data = nullptr;
  std::ptrdiff_t batch_stride = 0, row_stride = 0, element_stride = 0;
  std::int64_t width = 0;
  bool is_contiguous() const { return element_stride == static_cast<std::ptrdiff_t>(sizeof(float)) || width <= 1; }
};

// Checked operands of a run. What the mask does not have is null.
struct ProjectedAttentionInputs {
  std::int64_t batch = 0, query_length = 0, key_length = 0;
  Tokens query, key, value, out;
  bool is_self = false;  // key and value are the query's input
  plan::ScoreOperands scores;
};

// How one side's rows are cut: `per_item` slices of `rows` for each batch item, or (per_item 1) `items` batch items a block.
struct BlockCut {
  std::int64_t length = 0, rows = 0, per_item = 0, items = 0, blocks = 0;
};

struct ProjectedAttentionGraph {
  enum class Kind : std::uint8_t { project_query, project_key_value, project_all, attend, output, join };
  struct Node {
    Kind kind;
    std::int32_t block;
    std::int32_t kv_head_begin, kv_head_end;  // of attend, and of output where it attends first
  };
  BlockCut queries, keys;
  std::vector<Node> nodes;
  std::shared_ptr<graph::TaskGraph> tasks;
};

class ProjectedAttention {
 public:
  ProjectedAttention(const ProjectedAttentionShape& shape, ProjectedAttentionWeights weights,
                     const dispatch::KernelTable& kernels, std::shared_ptr<graph::Scheduler> scheduler);

  struct Lease {
    std::vector<std::int64_t> key_lengths, offsets;  // [batch] where the mask has them, to be filled by the caller
    platform::AlignedBuffer workspace;
    FamilyCache<std::unique_ptr<graph::Execution>> executions;
  };
  using LeaseHandle = LeasePool<Lease>::Handle;
  LeasePool<Lease>& leases() const noexcept { return leases_; }

  void run(Lease& lease, const ProjectedAttentionInputs& inputs, const std::atomic<bool>* cancel) const;

 private:
  struct Run;
  std::shared_ptr<const ProjectedAttentionGraph> graph_for(const FamilyKey& key) const;
  std::shared_ptr<const ProjectedAttentionGraph> build_graph(const FamilyKey& key) const;

  static void run_node(void* context, graph::NodeId node, int slot);
  void project(const Run& run, const Linear& linear, const Tokens& from, const BlockCut& cut, std::int64_t block, float* to,
               std::ptrdiff_t to_stride, std::int64_t length, bool to_key_length, int slot) const;
  void attend(const Run& run, const ProjectedAttentionGraph::Node& node, int slot) const;
  void project_output(const Run& run, std::int64_t block, int slot) const;

  ProjectedAttentionShape shape_;
  ProjectedAttentionWeights weights_;
  const dispatch::KernelTable& kernels_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  std::ptrdiff_t query_stride_, key_stride_, value_stride_, joined_stride_;
  mutable LeasePool<Lease> leases_;
  mutable std::mutex graphs_mutex_;
  mutable FamilyCache<std::shared_ptr<const ProjectedAttentionGraph>> graphs_;
};

}  // namespace polyhead::layer
