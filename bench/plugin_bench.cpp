// Other people's attention, each call in turn with one of ours on the same operands.
#include <algorithm>
#include <chrono>
#include <thread>

#include "suite.hpp"
#include "support/attention_case.hpp"
#include "support/plugin_case.hpp"

namespace polyhead::bench {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Ours and theirs, kept while Google Benchmark enters the function again for each guess of the number of iterations.
struct Pair {
  std::string name;
  std::unique_ptr<AttentionCase> ours;
  std::unique_ptr<PluginCase> theirs;
  PluginCase::Verdict verdict;
};

Pair& prepared(const std::string& name, const PluginEngine& engine, const AttentionWorkload& workload, Isa isa, int threads) {
  static Pair pair;
  if (pair.name == name) return pair;
  pair.theirs.reset();
  pair = Pair();
  pair.ours = std::make_unique<AttentionCase>(workload, make_runtime(isa, threads));
  pair.theirs = std::make_unique<PluginCase>(engine, workload, *pair.ours, threads);
  try {
    pair.theirs->prepare();
    pair.verdict = pair.theirs->check();
    if (pair.verdict.fault.empty()) pair.verdict.fault = pair.theirs->check_on_other_values().fault;
  } catch (const std::exception& error) {
    pair.verdict.fault = error.what();
  }
  pair.name = name;
  return pair;
}

// Not timed: brings code, operands and threads back into caches.
template <typename Call>
void warm_up(bool rest, Call call) {
  if (rest) std::this_thread::sleep_for(std::chrono::milliseconds(4));  // the other's workers stop spinning
  call();
}

template <typename Call>
double timed(Call call) {
  const Clock::time_point start = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void run_pair(benchmark::State& state, Pair& pair, int threads) {
  if (!pair.verdict.fault.empty()) return report_failure(state, pair.verdict.fault);
  state.counters["error"] = pair.verdict.error;
  const auto ours = [&] { pair.ours->run(); };
  const auto theirs = [&] { pair.theirs->run(); };
  // A rest after calls of a few microseconds would make a benchmark last for minutes.
  warm_up(false, ours);
  const bool rest = threads > 1 && timed(ours) > 1e-3;
  std::vector<double> ours_times, ratios;
  for (auto _ : state) {
    state.PauseTiming();  // of the processor time; the wall time is set below
    warm_up(rest, ours);
    ours_times.push_back(timed(ours));
    warm_up(rest, theirs);
    state.ResumeTiming();
    const double seconds = timed(theirs);
    state.SetIterationTime(seconds);
    ratios.push_back(seconds / ours_times.back());
  }
  const PluginCase::Verdict after = pair.theirs->check();
  if (!after.fault.empty()) return report_failure(state, "after it was timed: " + after.fault);
  state.counters["ours_ms"] = median(ours_times) * 1e3;
  state.counters["ratio"] = median(ratios);
  const auto rate = [](double amount) {
    return benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GFLOP/s"] = rate(pair.ours->flops());
  state.counters["GB/s"] = rate(pair.ours->bytes());
}

}  // namespace

void register_plugins(const SuiteOptions& options) {
  static const std::vector<PluginEngine> engines = load_plugins(options.plugins);
  const Isa isa = options.isas.front();
  for (const PluginEngine& engine : engines) {
    benchmark::AddCustomContext("plugin " + engine.name,
                                engine.description.empty() ? engine.library : engine.library + " (" + engine.description + ")");
    for (const AttentionWorkload& workload : attention_workloads()) {
      for (const int threads : options.threads) {
        if (!plugin_refusal(engine, workload, threads).empty()) continue;
        const std::string name = "attention/" + workload.name + "/" + engine.name + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [name, &engine, &workload, isa, threads](benchmark::State& state) {
                                       try {
                                         run_pair(state, prepared(name, engine, workload, isa, threads), threads);
                                       } catch (const std::exception& error) {
                                         report_failure(state, error.what());
                                       }
                                     })
            ->Unit(benchmark::kMillisecond)
            ->MeasureProcessCPUTime()
            ->UseManualTime();
      }
    }
  }
}

}  // namespace polyhead::bench
