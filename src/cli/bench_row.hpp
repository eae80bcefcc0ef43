// One result of `polyhead bench`, on its way to table and JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench_measure.hpp"
#include "support/roofline.hpp"

namespace polyhead::cli {

struct BenchRow {
  enum class State { timed, wrong, not_served };

  std::string name;    // of the benchmark: "attention/tiny/avx2/threads:1/process_time/real_time"
  std::string label;   // of the workload
  std::string engine;  // an instruction set, or a plugin's name
  int threads = 1;
  std::string shape;

  State state = State::timed;
  std::string message;  // what is wrong, or why it is not served

  double flops = 0, bytes = 0;  // of a call; 0: not counted
  double error = 0;
  bool first = true;  // the contender that others' ratios are to
  Timing timing;
  std::optional<bench::Bound> bound;  // with --roofline
  bench::Work work;

  double gflops() const { return flops * 1e-9 / timing.median; }
  double gigabytes() const { return bytes * 1e-9 / timing.median; }
  bool has_bound() const { return bound && bound->exists(); }
  double roof_share() const { return bound->share(work, timing.median); }
};

}  // namespace polyhead::cli
