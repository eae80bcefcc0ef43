// What the files of the suite share. Each registers its cases for every chosen instruction set and number of threads; how a
// case is checked, timed and held against its bound is the same for all and stands in suite.cpp.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"
#include "support/bench_case.hpp"
#include "support/roofline.hpp"

namespace polyhead::bench {

struct SuiteOptions {
  std::vector<Isa> isas;                     // default: the one that a Runtime takes
  std::vector<int> threads;                  // default: 1, and all that the process may use
  std::vector<DType> dtypes = {DType::f32};  // of attention's operands
  bool warm = true, cold = true;             // operands in the caches from the call before, or in none
  bool roofline = false;                     // measure each case's bound right before and after it
  double slow_down = 0;              // busy wait after each timed call, as a share of its time: for tests of comparisons
  std::string wrong_result;          // cases with this in their name find a wrong result: for tests of what happens then
  std::vector<std::string> plugins;  // shared libraries with other people's attention
  std::string real_operands;         // a folder written by bench/real_operands.py; empty: none
};

// A case of the suite: "<group>/<case>" on an instruction set and a number of threads.
struct SuiteCase {
  std::string name;
  Isa isa = Isa::reference;
  int threads = 1;
  std::function<std::unique_ptr<BenchCase>()> make;
  bool warm_only = false;
};

// Registers "<name>/<isa>/threads:<n>" and "<name>/<isa>/threads:<n>/cold", as far as they are wanted. Times are wall time; a
// cold call's is measured by itself, with its operands taken out of the caches before. Counters: GFLOP/s and GB/s (where the
// case counts them), error (the largest one that the check found), and with --roofline roof and roof_share, with the bound's
// name as the label. A wrong result is an error and has no time.
void register_case(const SuiteOptions& options, SuiteCase suite_case);

// Whether a benchmark has reported an error; the program's exit status then is 1.
bool any_failed();
void report_failure(benchmark::State& state, const std::string& message);

void register_peaks(const SuiteOptions& options);
void register_gemm(const SuiteOptions& options);
void register_softmax(const SuiteOptions& options);
void register_attention(const SuiteOptions& options);
void register_decode(const SuiteOptions& options);
void register_caches(const SuiteOptions& options);
void register_masks(const SuiteOptions& options);
void register_score_changes(const SuiteOptions& options);
void register_layers(const SuiteOptions& options);
void register_task_graph(const SuiteOptions& options);
// Plugins' engines on the attention workloads that they serve, warm, each call in turn with one of ours on the first
// instruction set. Besides the usual counters: ours_ms, the median of ours, and ratio, the median of theirs over ours. Errors:
// Error for a library that cannot be used.
void register_plugins(const SuiteOptions& options);
// Returns what the context says about them: the folder, or why there are none.
std::string register_real_attention(const SuiteOptions& options);

inline Runtime make_runtime(Isa isa, int threads) {
  RuntimeOptions options;
  options.isa = isa;
  options.threads = threads;
  return Runtime(options);
}

// The scalar reference kernels would take minutes for a call of the larger cases.
inline bool too_slow(Isa isa, double flops) {
  return isa == Isa::reference && flops > 4e9;
}

}  // namespace polyhead::bench
