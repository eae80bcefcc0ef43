#include "graph/task_graph.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "graph/scheduler.hpp"
#include "graph/work.hpp"

namespace polyhead::graph {

void sort_heaviest_first(const TaskGraph& graph, std::vector<NodeId>& nodes) {
  std::sort(nodes.begin(), nodes.end(),
            [&graph](NodeId a, NodeId b) { return graph.cost(a) != graph.cost(b) ? graph.cost(a) > graph.cost(b) : a < b; });
}

namespace {

// Nodes that may run at the same time: a node's wave is one after the latest of those it depends on.
std::vector<std::vector<NodeId>> waves_of(const TaskGraph& graph) {
  std::vector<std::vector<NodeId>> successors(graph.size());
  for (const auto& [before, after] : graph.edges()) successors[before].push_back(after);
  std::vector<std::size_t> wave(graph.size(), 0);
  std::vector<std::vector<NodeId>> waves;
  for (NodeId node = 0; node < graph.size(); ++node) {  // the numbering is a topological order
    for (NodeId after : successors[node]) wave[after] = std::max(wave[after], wave[node] + 1);
    if (wave[node] >= waves.size()) waves.resize(wave[node] + 1);
    waves[wave[node]].push_back(node);
  }
  for (std::vector<NodeId>& nodes : waves) sort_heaviest_first(graph, nodes);
  return waves;
}

// One run of a graph, seen from its items.
struct GraphRun {
  NodeBody body;
  void* context;
  const Scheduler* scheduler;
  const NodeId* order;  // item -> node, null where they are the same
  Outcome outcome;

  static void item(void* argument, std::size_t index, int slot) noexcept {
    GraphRun& run = *static_cast<GraphRun*>(argument);
    if (run.outcome.stopped()) return;
    const NodeId node = run.order != nullptr ? run.order[index] : static_cast<NodeId>(index);
    try {
      const EnterBody enter(run.scheduler, slot, false);
      run.body(run.context, node, slot);
    } catch (...) {
      run.outcome.keep_current_exception();
    }
  }
};

}  // namespace

NodeId TaskGraph::add(double cost_ns) {
  costs_.push_back(cost_ns);
  total_cost_ += cost_ns;
  return static_cast<NodeId>(costs_.size() - 1);
}

void TaskGraph::depend(NodeId before, NodeId after) {
  assert(before < after && after < costs_.size());
  edges_.emplace_back(before, after);
}

struct Execution::Impl {
  std::shared_ptr<const TaskGraph> graph;
  std::shared_ptr<SchedulerBase> scheduler;
  bool inline_execution;
  std::vector<std::vector<NodeId>> waves;  // made when first needed
  std::unique_ptr<GraphRunner> runner;     // likewise; null where this scheduler has none. Dies before the scheduler.
  bool looked_for_runner = false;

  void run_inline(NodeBody body, void* context, const std::atomic<bool>* cancel) {
    Outcome outcome(cancel);
    const EnterBody enter(scheduler.get(), 0, true);
    for (NodeId node = 0; node < graph->size() && !outcome.stopped(); ++node) body(context, node, 0);
    outcome.rethrow();
  }

  void run_parallel(NodeBody body, void* context, const std::atomic<bool>* cancel) {
    GraphRun run{body, context, scheduler.get(), nullptr, Outcome(cancel)};
    // A run inside a body goes in waves too: these are isolated, a flow graph's wait could start other bodies of the outer run.
    const bool nested = current_body().scheduler == scheduler.get();
    GraphRunner* const flow = graph->has_edges() && !nested ? find_runner() : nullptr;
    if (flow != nullptr) {
      flow->run(&GraphRun::item, &run);
    } else {
      if (waves.empty()) waves = waves_of(*graph);
      for (const std::vector<NodeId>& wave : waves) {
        if (run.outcome.stopped()) break;
        run.order = wave.data();
        scheduler->run_items(wave.size(), &GraphRun::item, &run);
      }
    }
    run.outcome.rethrow();
  }

  GraphRunner* find_runner() {
    if (!looked_for_runner) {
      runner = scheduler->make_graph_runner(*graph);
      looked_for_runner = true;
    }
    return runner.get();
  }
};

Execution::Execution(std::shared_ptr<const TaskGraph> graph, std::shared_ptr<Scheduler> scheduler, bool inline_execution)
    : impl_(new Impl{
          std::move(graph), std::static_pointer_cast<SchedulerBase>(std::move(scheduler)), inline_execution, {}, {}}) {}

Execution::~Execution() = default;

void Execution::run(NodeBody body, void* context, const std::atomic<bool>* cancel) {
  if (impl_->inline_execution || impl_->scheduler->must_stay_on_this_thread()) {
    impl_->run_inline(body, context, cancel);
  } else {
    impl_->run_parallel(body, context, cancel);
  }
}

}  // namespace polyhead::graph
