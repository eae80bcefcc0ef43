// What a task graph costs over oneTBB's plain parallel_for on the same bodies. The bodies spin for a fixed time, so that what
// is left is scheduling alone; both sides count their bodies. Compare rows with the same number of nodes and microseconds: a
// graph without edges may cost 3 % more than parallel_for on 96 nodes of 50 us.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "graph/task_graph.hpp"

#if defined(POLYHEAD_TBB)
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace polyhead::graph {
namespace {

void spin(double microseconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double, std::micro>(microseconds);
  while (Clock::now() < end) {
  }
}

struct Work {
  double microseconds;
  std::atomic<std::int64_t> bodies{0};
  void operator()() {
    spin(microseconds);
    bodies.fetch_add(1, std::memory_order_relaxed);
  }
};

std::shared_ptr<Scheduler> scheduler_with(int threads) {
  RuntimeOptions options;
  options.threads = threads;
  return Scheduler::create(options);
}

void check_and_report(benchmark::State& state, const Work& work, int nodes, int threads) {
  if (work.bodies != state.iterations() * nodes) state.SkipWithError("not every body ran once");
  if (work.microseconds == 0) return;
  const double ideal = static_cast<double>(state.iterations()) * nodes * work.microseconds * 1e-6 / threads;
  state.counters["over_ideal"] =
      benchmark::Counter(ideal, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);  // time / ideal time
}

void run_graph(benchmark::State& state, const std::shared_ptr<TaskGraph>& graph, Execution& execution, int threads) {
  Work work{static_cast<double>(state.range(1))};
  for (auto _ : state) {
    execution.run([](void* context, NodeId, int) { (*static_cast<Work*>(context))(); }, &work, nullptr);
  }
  check_and_report(state, work, static_cast<int>(graph->size()), threads);
}

// Nodes without edges: the usual attention call.
void graph_without_edges(benchmark::State& state) {
  const auto scheduler = scheduler_with(static_cast<int>(state.range(2)));
  const auto graph = std::make_shared<TaskGraph>();
  for (int i = 0; i < state.range(0); ++i) graph->add(static_cast<double>(state.range(1)) * 1e3);
  Execution execution(graph, scheduler, false);
  run_graph(state, graph, execution, scheduler->threads());
}

// Three stages, each node after its two neighbours of the stage before: a layer.
void graph_of_a_layer(benchmark::State& state) {
  const auto scheduler = scheduler_with(static_cast<int>(state.range(2)));
  const auto graph = std::make_shared<TaskGraph>();
  const NodeId stage = static_cast<NodeId>(state.range(0) / 3);
  for (NodeId node = 0; node < 3 * stage; ++node) {
    graph->add(static_cast<double>(state.range(1)) * 1e3);
    if (node < stage) continue;
    graph->depend(node - stage, node);
    if (node % stage != 0) graph->depend(node - stage - 1, node);
  }
  Execution execution(graph, scheduler, false);
  run_graph(state, graph, execution, scheduler->threads());
}

#if defined(POLYHEAD_TBB)
void plain_parallel_for(benchmark::State& state) {
  const int nodes = static_cast<int>(state.range(0));
  const int threads = scheduler_with(static_cast<int>(state.range(2)))->threads();
  oneapi::tbb::task_arena arena(threads);
  Work work{static_cast<double>(state.range(1))};
  for (auto _ : state) {
    arena.execute([&] { oneapi::tbb::parallel_for(0, nodes, [&](int) { work(); }, oneapi::tbb::simple_partitioner()); });
  }
  check_and_report(state, work, nodes, threads);
}
#endif

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"nodes", "us", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (int threads : {1, 2}) {
    for (int microseconds : {0, 5, 50, 100}) benchmark->Args({96, microseconds, threads});
  }
}

#if defined(POLYHEAD_TBB)
BENCHMARK(plain_parallel_for)->Apply(shapes);
#endif
BENCHMARK(graph_without_edges)->Apply(shapes);
BENCHMARK(graph_of_a_layer)->Apply(shapes);

// The fine items inside a node.
void parallel_for_of_items(benchmark::State& state) {
  const auto scheduler = scheduler_with(2);
  Work work{static_cast<double>(state.range(1))};
  for (auto _ : state) {
    scheduler->parallel_for(
        static_cast<std::size_t>(state.range(0)), [](void* context, std::size_t, int) { (*static_cast<Work*>(context))(); },
        &work);
  }
  check_and_report(state, work, static_cast<int>(state.range(0)), scheduler->threads());
}
BENCHMARK(parallel_for_of_items)
    ->ArgNames({"items", "us"})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->Args({2, 0})
    ->Args({16, 5});

}  // namespace
}  // namespace polyhead::graph
