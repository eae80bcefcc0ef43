// The yardsticks by themselves: what --roofline measures around each case, see support/roofline.hpp. The time of one iteration
// is that of 10^9 operations or bytes at the rate of the best burst.
#include "suite.hpp"

namespace polyhead::bench {
namespace {

PeakMeter& meter() {
  static const std::unique_ptr<PeakMeter> instance = make_peak_meter();
  return *instance;
}

void register_rate(const std::string& name, const char* unit, std::function<double()> measure,
                   std::function<std::string()> label = nullptr) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [unit, measure, label](benchmark::State& state) {
                                 try {
                                   for (auto _ : state) state.SetIterationTime(1.0 / measure());
                                   state.counters[unit] =
                                       benchmark::Counter(1.0, benchmark::Counter::kIsIterationInvariantRate);
                                   if (label) state.SetLabel(label());
                                 } catch (const std::exception& error) {
                                   report_failure(state, error.what());
                                 }
                               })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

// What a level's reading is measured on: half of it for each thread, so that it fits beside what else there is.
double working_set(const std::string& level, int threads) {
  for (const Cache& cache : machine_caches()) {
    if (cache.type == "Instruction" || level != "L" + std::to_string(cache.level)) continue;
    return static_cast<double>(cache.bytes) / 2 * ((threads + cache.shared_by - 1) / cache.shared_by);
  }
  return 0;
}

}  // namespace

void register_peaks(const SuiteOptions& options) {
  std::vector<std::string> levels;
  for (const Cache& cache : machine_caches()) {
    if (cache.type != "Instruction") levels.push_back("L" + std::to_string(cache.level));
  }
  levels.push_back("DRAM");
  constexpr std::pair<Arithmetic, const char*> loops[] = {{Arithmetic::fma_f32, "multiply_add"},
                                                          {Arithmetic::dot_int8, "dot_int8"},
                                                          {Arithmetic::tile_bf16, "tile_bf16"},
                                                          {Arithmetic::tile_int8, "tile_int8"}};
  for (const Isa isa : options.isas) {
    for (const int threads : options.threads) {
      const std::string suffix = std::string("/") + name(isa) + "/threads:" + std::to_string(threads);
      for (const auto& [kind, label] : loops) {
        const bool tiles = kind == Arithmetic::tile_bf16 || kind == Arithmetic::tile_int8;
        if (!meter().available(kind, isa) || (tiles && isa != Isa::avx512)) continue;
        register_rate(std::string("peak/") + label + suffix, "GFLOP/s",
                      [arithmetic = kind, isa, threads] { return meter().arithmetic(arithmetic, isa, threads); });
      }
      if (isa == Isa::reference) continue;
      for (const std::string& level : levels) {
        register_rate(
            "peak/read/" + level + suffix, "GB/s",
            [level, isa, threads] { return meter().read(level, working_set(level, threads), isa, threads); },
            [level, isa, threads] { return meter().best_way(level, isa, threads); });
      }
    }
  }
}

}  // namespace polyhead::bench
