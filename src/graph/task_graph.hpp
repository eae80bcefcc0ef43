// Task graphs and the threads that run them. This folder, and nothing else, sees oneTBB.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "polyhead/runtime.hpp"

namespace polyhead::graph {

using NodeId = std::uint32_t;

// A description: which pieces of work there are, what each costs, which must come first. Built once by a plan and then
// immutable; holds no oneTBB object, so that any number of executions can share it.
class TaskGraph {
 public:
  // cost in nanoseconds, an estimate. Nodes are numbered 0, 1, 2 ... in the order they are added; a node may only depend on
  // nodes added before it, so the numbering is a topological order.
  NodeId add(double cost_ns);
  void depend(NodeId before, NodeId after);

  std::size_t size() const noexcept { return costs_.size(); }
  bool has_edges() const noexcept { return !edges_.empty(); }
  double cost(NodeId node) const { return costs_[node]; }
  double total_cost() const noexcept { return total_cost_; }
  const std::vector<std::pair<NodeId, NodeId>>& edges() const noexcept { return edges_; }

 private:
  std::vector<double> costs_;
  std::vector<std::pair<NodeId, NodeId>> edges_;
  double total_cost_ = 0;
};

// Those that cost the same stay in the order they were added.
void sort_heaviest_first(const TaskGraph& graph, std::vector<NodeId>& nodes);

// The body of all nodes of a run. slot < Scheduler::slots() is the working thread's own: two bodies that run at the same time
// in one run never have the same slot, so scratch memory can be indexed by it. A body may throw; the first exception reaches
// the caller of run and the remaining bodies are not started.
using NodeBody = void (*)(void* context, NodeId node, int slot);

class Scheduler;

// What one run of a graph needs, leased by a plan from its free list: reusable after success, error and cancel alike.
class Execution {
 public:
  // inline_execution: run all nodes in order on the calling thread (also what a scheduler with one thread does).
  Execution(std::shared_ptr<const TaskGraph> graph, std::shared_ptr<Scheduler> scheduler, bool inline_execution);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Returns when all nodes are done. The calling thread works too. Throws what a body threw, or Error(cancelled).
  void run(NodeBody body, void* context, const std::atomic<bool>* cancel);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The threads of a Runtime: an arena of our own, the calling thread's arena, or the host's Executor.
class Scheduler {
 public:
  static std::shared_ptr<Scheduler> create(const RuntimeOptions& options);
  virtual ~Scheduler() = default;

  virtual int threads() const noexcept = 0;
  virtual int slots() const noexcept = 0;

  // For fine items inside a node: body(context, i, slot) for each i < count, isolated (a thread that waits takes no other
  // work), items handed out in ascending order, so put the heaviest first. Callable inside a node body and outside.
  virtual void parallel_for(std::size_t count, void (*body)(void* context, std::size_t index, int slot), void* context) = 0;
};

}  // namespace polyhead::graph
