#include "suite.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>

namespace polyhead::bench {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> failed{false};

// Google Benchmark enters a function again for each guess of the number of iterations, and warm and cold are functions of their
// own. The operands of the last case, which may be a gigabyte, are kept from one entry to the next, and dropped when another
// case begins.
class Prepared {
 public:
  BenchCase& get(const std::string& name, const SuiteCase& suite_case, const SuiteOptions& options) {
    if (name != name_) {
      name_.clear();
      operands_.reset();
      operands_ = suite_case.make();
      if (!options.wrong_result.empty() && name.find(options.wrong_result) != std::string::npos) operands_->disturb_results();
      check_ = operands_->check();
      name_ = name;
    }
    return *operands_;
  }
  const Check& check() const { return check_; }

 private:
  std::string name_;
  std::unique_ptr<BenchCase> operands_;
  Check check_;
};

Prepared prepared;

// One for the whole run, so that a level of memory is explored once.
Roofline& roofline() {
  static Roofline instance;
  return instance;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Busy until `share` of the time since start has passed again; returns the seconds of all.
double slow_down_since(Clock::time_point start, double share) {
  const double end = seconds_since(start) * (1 + share);
  double now = 0;
  do now = seconds_since(start);
  while (now < end);
  return now;
}

// Short calls are followed by one wait for several of them: reading the clock would be a slow-down of its own.
constexpr double seconds_between_waits = 200e-6;

void time_warm(benchmark::State& state, const BenchCase& operands, double slow_down) {
  Clock::time_point start = Clock::now();
  operands.run();  // whatever was measured before has taken the caches
  if (slow_down <= 0) {
    for (auto _ : state) operands.run();
    return;
  }
  const auto calls_between_waits =
      static_cast<benchmark::IterationCount>(std::max(1.0, seconds_between_waits / seconds_since(start)));
  benchmark::IterationCount done = 0;
  for (auto _ : state) {
    if (done % calls_between_waits == 0) start = Clock::now();
    operands.run();
    ++done;
    if (done % calls_between_waits == 0 || done == state.max_iterations) slow_down_since(start, slow_down);
  }
}

void time_cold(benchmark::State& state, const BenchCase& operands, double slow_down) {
  for (auto _ : state) {
    state.PauseTiming();  // of the processor time; the wall time is set below
    operands.evict();
    state.ResumeTiming();
    const Clock::time_point start = Clock::now();
    operands.run();
    state.SetIterationTime(slow_down > 0 ? slow_down_since(start, slow_down) : seconds_since(start));
  }
}

benchmark::Counter rate(double amount) {
  return {amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate};
}

void run_case(benchmark::State& state, const SuiteCase& suite_case, const std::string& name, const SuiteOptions& options,
              bool cold) {
  const BenchCase& operands = prepared.get(name, suite_case, options);
  const Check& check = prepared.check();
  state.counters["error"] = check.passed() ? check.error : 0.0;  // counters stay finite, as JSON wants it
  if (!check.passed()) return report_failure(state, "wrong result: " + check.describe());
  Work work;
  work.operations = operands.flops();
  work.bytes = operands.bytes();
  work.isa = suite_case.isa;
  work.threads = suite_case.threads;
  work.cold = cold;
  Bound bound;
  if (options.roofline) bound = roofline().bound(work);
  if (cold) {
    time_cold(state, operands, options.slow_down);
  } else {
    time_warm(state, operands, options.slow_down);
  }
  if (work.operations > 0) state.counters["GFLOP/s"] = rate(work.operations);
  if (work.bytes > 0) state.counters["GB/s"] = rate(work.bytes);
  if (bound.exists()) {
    bound = roofline().bound_after(work, bound);
    state.counters["roof"] = bound.rate;
    state.counters["roof_share"] = rate(bound.amount(work) / bound.rate);
    state.SetLabel(bound.label());
  }
}

}  // namespace

bool any_failed() {
  return failed;
}

void report_failure(benchmark::State& state, const std::string& message) {
  failed = true;
  state.SkipWithError(message.c_str());
}

void register_case(const SuiteOptions& options, SuiteCase suite_case) {
  const std::string name =
      suite_case.name + "/" + polyhead::name(suite_case.isa) + "/threads:" + std::to_string(suite_case.threads);
  const auto shared = std::make_shared<const SuiteCase>(std::move(suite_case));
  for (const bool cold : {false, true}) {
    if (!(cold ? options.cold && !shared->warm_only : options.warm)) continue;
    const std::string full_name = name + (cold ? "/cold" : "");
    auto* const registered =
        benchmark::RegisterBenchmark(full_name.c_str(), [shared, name, options, cold](benchmark::State& state) {
          try {
            run_case(state, *shared, name, options, cold);
          } catch (const std::exception& error) {  // memory that isn't there, say: the other cases go on
            report_failure(state, error.what());
          }
        });
    registered->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
    if (cold) {
      registered->UseManualTime();
    } else {
      registered->UseRealTime();
    }
  }
}

}  // namespace polyhead::bench
