// Multi-head attention with its projections, and the encoder block around it.
#include "support/layer_case.hpp"

#include "suite.hpp"

namespace polyhead::bench {

void register_layers(const SuiteOptions& options) {
  static Prepared<LayerCase> prepared;
  for (const LayerKind kind : {LayerKind::attention, LayerKind::encoder}) {
    for (const LayerWorkload& workload : layer_workloads()) {
      for (const Isa isa : options.isas) {
        for (const int threads : options.threads) {
          const std::string label = std::string(kind == LayerKind::attention ? "layer/" : "encoder/") + workload.name + "/" +
                                    name(isa) + "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(label.c_str(),
                                       [&workload, kind, isa, threads, label](benchmark::State& state) {
                                         LayerCase& layer = prepared.get(label, [&] {
                                           return std::make_unique<LayerCase>(workload, kind, make_runtime(isa, threads));
                                         });
                                         if (refuse_if_wrong(state, prepared.check)) return;
                                         for (auto _ : state) layer.run();
                                         rate(state, "GFLOP/s", layer.flops());
                                       })
              ->Unit(benchmark::kMillisecond)
              ->UseRealTime()
              ->MeasureProcessCPUTime();
        }
      }
    }
  }
}

}  // namespace polyhead::bench
