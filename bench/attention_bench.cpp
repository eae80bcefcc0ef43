// Attention through the public interface: a plan made once, its runs timed.
#include "suite.hpp"
#include "support/attention_case.hpp"

namespace polyhead::bench {

void register_attention(const SuiteOptions& options) {
  static Prepared<AttentionCase> prepared;
  for (const AttentionWorkload& workload : attention_workloads()) {
    for (const Isa isa : options.isas) {
      for (const int threads : options.threads) {
        const std::string label = "attention/" + workload.name + "/" + name(isa) + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(label.c_str(),
                                     [&workload, isa, threads, label](benchmark::State& state) {
                                       AttentionCase& attention = prepared.get(label, [&] {
                                         return std::make_unique<AttentionCase>(workload, make_runtime(isa, threads));
                                       });
                                       if (refuse_if_wrong(state, prepared.check)) return;
                                       for (auto _ : state) attention.run();
                                       rate(state, "GFLOP/s", attention.flops());
                                       rate(state, "GB/s", attention.bytes());
                                     })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime()
            ->MeasureProcessCPUTime();
      }
    }
  }
}

}  // namespace polyhead::bench
