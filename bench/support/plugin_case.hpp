// A plugin's engine on the operands of an AttentionCase: what is timed beside ours.
#pragma once

#include <cstdint>
#include <string>

#include "support/aligned_array.hpp"
#include "support/attention_case.hpp"
#include "support/plugin.hpp"

namespace polyhead::bench {

// Empty when the engine serves this workload, otherwise its reason. Errors: Error when it throws.
std::string plugin_refusal(const PluginEngine& engine, const AttentionWorkload& workload, int threads);

class PluginCase {
 public:
  // The engine reads the operands of `attention`, a case of this workload that must outlive this, and writes to an output of
  // its own.
  PluginCase(const PluginEngine& engine, const AttentionWorkload& workload, const AttentionCase& attention, int threads);
  ~PluginCase();
  PluginCase(const PluginCase&) = delete;
  PluginCase& operator=(const PluginCase&) = delete;

  // The engine's preparation, done while the operands hold other values than later. Errors: Error with the engine's message.
  void prepare();
  // Errors: Error with the engine's message.
  void run();

  struct Verdict {
    double error = 0;   // the largest |got - expected| of the sampled rows
    std::string fault;  // what is wrong; empty when nothing is
  };
  // Runs once, into a poisoned output. Right is: sampled rows are as near to float64 as ours have to be, every element is near
  // ours, and neither an operand nor memory around the output was written to. After a fault nothing else may rely on the
  // operands. `attention` has its own result in its output afterwards, or the faulty one.
  Verdict check();
  // The same on other values, after which the operands are as before: shows a result that is kept from one run to the next.
  Verdict check_on_other_values();

  const PluginEngine& engine() const { return engine_; }

 private:
  float* out() { return out_.data() + margin; }
  void negate_operands() const;
  Verdict judge(std::uint64_t operands_before);

  static constexpr std::size_t margin = 1024;  // floats before and after the output: a page

  PluginEngine engine_;
  const AttentionCase& attention_;
  AlignedArray out_;
  std::size_t out_count_;
  polyhead_bench_problem problem_{};
  void* handle_ = nullptr;
  std::string preparing_, running_, destroying_;  // what a crash is reported with
};

}  // namespace polyhead::bench
