// The implementations of one workload that are measured in turn: ours on each instruction set, and plugins' engines, all on the
// same operands.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench_row.hpp"
#include "bench_selection.hpp"
#include "polyhead/attention.hpp"
#include "polyhead/runtime.hpp"
#include "support/attention_case.hpp"
#include "support/layer_case.hpp"
#include "support/plugin_case.hpp"

namespace polyhead::cli {

// The name that a result has, as Google Benchmark names what is timed by the wall and has the processor time of all threads in
// cpu_time: the same as the suite's.
std::string row_name(const BenchWorkload& workload, const std::string& engine, int threads);

class BenchGroup {
 public:
  // Makes operands and plans, and checks every contender against float64. Plugins serve attention alone.
  BenchGroup(const BenchWorkload& workload, int threads, const std::vector<Isa>& isas,
             const std::vector<bench::PluginEngine>& plugins);

  // A row for each contender, ours first, in a fixed order; what cannot be timed says why.
  std::vector<BenchRow>& rows() { return rows_; }
  // Times those that can be, each against the first, and fills their rows. A plugin that fails while it is timed, or whose
  // result is wrong afterwards, gets the state `wrong` and is not called again. False when `options.stop` said so.
  bool measure(const MeasureOptions& options, bench::Roofline* roofline);

 private:
  struct Contender {
    std::function<void()> call;           // empty: not to be timed
    bench::PluginCase* plugin = nullptr;  // null for ours
  };

  void add_attention(int threads, const std::vector<Isa>& isas);
  void add_layers(int threads, const std::vector<Isa>& isas);
  // False when one failed: the operands may no longer be what they were. `faults` gets engine -> what is wrong.
  bool add_plugins(int threads, const std::vector<bench::PluginEngine>& plugins, std::map<std::string, std::string>& faults);
  BenchRow& add_row(const std::string& engine, Isa isa, std::function<void()> call, double flops, double bytes);
  void refuse(std::size_t index, BenchRow::State state, const std::string& message);
  void take(BenchRow& row, const bench::Check& check);

  BenchWorkload workload_;
  BenchRow pattern_;  // what all rows share
  std::vector<BenchRow> rows_;
  std::vector<Contender> contenders_;  // one for each row
  std::unique_ptr<bench::AttentionCase> attention_;
  std::vector<AttentionPlan> plans_;  // of further instruction sets
  std::vector<std::unique_ptr<bench::LayerCase>> layers_;
  std::vector<std::unique_ptr<bench::PluginCase>> plugin_cases_;
};

}  // namespace polyhead::cli
