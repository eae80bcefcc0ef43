// A stack of encoder blocks over a batch of sequences, as one task graph.
//
// Tokens. Real tokens are brought together without padding: sequence b owns the rows first_row[b] .. + lengths[b] of every
// buffer. Consecutive sequences form a chain of at most slices * slice_rows rows, and a chain's rows are cut into slices, the
// row blocks that nodes work on: a long sequence is a chain of several slices, many short ones share a slice. Rows of one chain
// never need those of another.
//
// Nodes, per slice: `load` (rows in, first QKV projection), then for each block `attend` (some heads) and `finish` (output
// projection, residual, norm, feed-forward, norm, the next block's QKV projection or the rows out). An attend node waits for
// the QKV rows of its chain that its mask can see, and for nothing else.
//
// Bits. Every product's chain and every attention row depend on the row's own sequence alone, so how sequences are brought
// together, cut and scheduled never shows in the result.
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

struct EncoderShape {
  std::int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, feed_forward = 0;
  simd::Activation activation = simd::Activation::none;
  bool norm_first = false;
  double norm_epsilon = 0, scale = 0;
  Mask mask;                                // causal and window parts, seen from each sequence alone
  Precision precision = Precision::strict;  // of attention

  std::int64_t query_columns() const { return heads * head_dim; }
  std::int64_t key_columns() const { return kv_heads * head_dim; }
  std::int64_t value_columns() const { return kv_heads * value_dim; }
  std::int64_t qkv_columns() const { return query_columns() + key_columns() + value_columns(); }
  std::int64_t joined_columns() const { return heads * value_dim; }
};

struct EncoderLayer {
  // The packed weights of all four: together they are large enough for huge pages, and few rows are bound by reading them.
  platform::AlignedBuffer packed;
  Linear qkv, attention_out, feed_forward_in, feed_forward_out;
  platform::AlignedBuffer attention_gamma, attention_beta, feed_forward_gamma, feed_forward_beta;  // [hidden] or nothing
};

// Where a run's tokens come from and go to: positions [begin, end) of sequence b, rows of [hidden] floats.
class RowSource {
 public:
  virtual void load(std::int64_t b, std::int64_t begin, std::int64_t end, float* rows, std::ptrdiff_t stride) const = 0;

 protected:
  ~RowSource() = default;
};
class RowSink {
 public:
  virtual void store(std::int64_t b, std::int64_t begin, std::int64_t end, const float* rows, std::ptrdiff_t stride) const = 0;

 protected:
  ~RowSink() = default;
};

// The graph for up to `chains` chains of up to `slices` slices; shared by all executions of that family.
struct EncoderGraph {
  enum class Kind : std::uint8_t { load, attend, finish, join };
  struct Node {
    Kind kind;
    std::int32_t layer, chain, slice;
    std::int32_t kv_head_begin, kv_head_end;  // of attend
  };
  std::int64_t chains = 0, slices = 0;
  std::vector<Node> nodes;
  std::shared_ptr<graph::TaskGraph> tasks;
};

class EncoderStack {
 public:
  EncoderStack(const EncoderShape& shape, std::vector<EncoderLayer> layers, const dispatch::KernelTable& kernels,
               std::shared_ptr<graph::Scheduler> scheduler);

  const EncoderShape& shape() const noexcept { return shape_; }
  std::int64_t layer_count() const noexcept { return static_cast<std::int64_t>(layers_.size()); }

  // What one run needs and leaves behind.
  struct Lease {
    std::vector<std::int64_t> lengths;      // [batch], to be filled by the caller
    std::vector<std::int64_t> first_row;    // [batch + 1]
    std::vector<std::int64_t> chain_begin;  // [chains + 1], in sequences
    platform::AlignedBuffer workspace;
    FamilyCache<std::unique_ptr<graph::Execution>> executions;
    const float* hidden = nullptr;  // the finished rows, compact
    std::ptrdiff_t hidden_stride = 0;
  };
  using LeaseHandle = LeasePool<Lease>::Handle;
  LeasePool<Lease>& leases() const noexcept { return leases_; }

  // lease.lengths says how many sequences there are and how long they are. sink may be null: lease.hidden has the rows.
  void run(Lease& lease, const RowSource& source, const RowSink* sink, const std::atomic<bool>* cancel) const;

 private:
  struct Run;
  struct SliceRows {
    std::int64_t begin, end;
  };

  std::shared_ptr<const EncoderGraph> graph_for(std::int64_t chains, std::int64_t slices) const;
  std::shared_ptr<const EncoderGraph> build_graph(std::int64_t chains, std::int64_t slices) const;
  SliceRows rows_of(const Run& run, std::int64_t chain, std::int64_t slice) const;
  template <typename Function>
  void for_each_segment(const Run& run, std::int64_t chain, const SliceRows& rows, const Function& function) const;

  static void run_node(void* context, graph::NodeId node, int slot);
  void load(const Run& run, const EncoderGraph::Node& node, int slot) const;
  void attend(const Run& run, const EncoderGraph::Node& node, int slot) const;
  void attend_sequence(const Run& run, std::int64_t layer, std::int64_t b, const SliceRows& rows, std::int64_t kv_head,
                       int slot) const;
  void finish(const Run& run, const EncoderGraph::Node& node, int slot) const;
  void norm(const float* x, float* y, std::ptrdiff_t y_stride, std::int64_t rows, const platform::AlignedBuffer& gamma,
            const platform::AlignedBuffer& beta) const;
  void project_qkv(const Run& run, std::int64_t layer, std::int64_t row, std::int64_t count, int slot) const;

  EncoderShape shape_;
  std::vector<EncoderLayer> layers_;
  const dispatch::KernelTable& kernels_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  std::ptrdiff_t hidden_stride_, qkv_stride_, joined_stride_, feed_forward_stride_;
  mutable LeasePool<Lease> leases_;
  mutable std::mutex graphs_mutex_;
  mutable FamilyCache<std::shared_ptr<const EncoderGraph>> graphs_;
};

}  // namespace polyhead::layer
