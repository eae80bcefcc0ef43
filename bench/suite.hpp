// What the files of the suite share. Each registers its benchmarks for every chosen instruction set and number of threads.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "polyhead/runtime.hpp"
#include "support/check.hpp"

namespace polyhead::bench {

struct SuiteOptions {
  std::vector<Isa> isas;     // default: the one that a Runtime takes
  std::vector<int> threads;  // default: 1, and all that the process may use
};

void register_peaks(const SuiteOptions& options);
void register_gemm(const SuiteOptions& options);
void register_softmax(const SuiteOptions& options);
void register_attention(const SuiteOptions& options);
void register_layers(const SuiteOptions& options);

inline Runtime make_runtime(Isa isa, int threads) {
  RuntimeOptions options;
  options.isa = isa;
  options.threads = threads;
  return Runtime(options);
}

// A wrong result is reported as an error and not timed.
inline bool refuse_if_wrong(benchmark::State& state, const Check& check) {
  state.counters["error"] = check.passed() ? check.error : 0.0;  // counters stay finite, as JSON wants it
  if (check.passed()) return false;
  state.SkipWithError(("wrong result: " + check.describe()).c_str());
  return true;
}

inline void rate(benchmark::State& state, const char* name, double amount) {
  state.counters[name] = benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

// Google Benchmark enters a function again for each guess of the number of iterations. The operands of the last case, which
// may be a gigabyte, are kept from one entry to the next, and dropped when another case begins.
template <typename Case>
struct Prepared {
  std::string name;
  std::unique_ptr<Case> operands;
  Check check;

  template <typename Make>
  Case& get(const std::string& wanted, Make make) {
    if (name != wanted) {
      operands.reset();
      operands = make();
      check = operands->check();
      name = wanted;
    }
    return *operands;
  }
};

}  // namespace polyhead::bench
