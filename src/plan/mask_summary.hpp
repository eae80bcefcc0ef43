// A boolean mask that several heads or batch items share, read once a run: a mark for each few queries and 64 keys says whether
// the mask hides all of them, or none (simd/contract/mask_marks.hpp). Kernels then pass over what is hidden before they read
// anything of it, and read the mask only where it is neither.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dispatch/kernel_table.hpp"
#include "graph/task_graph.hpp"
#include "plan/attention_work.hpp"

namespace polyhead::plan {

// Memory of one run's marks: enough for lengths up to the maximum's, whatever its mask shares; 0 where no run has one. Whether
// one does is up to its mask's strides.
std::size_t summary_bytes(const AttentionShape& maximum, const Mask& mask, const RelativeBias& bias);

// How a run's marks lie; no bytes: the run has none, since its mask is not shared, or is read as fast as it would be
// summarised.
struct MaskSummary {
  std::int64_t items = 0, heads = 0;   // each has marks of its own; 1: all share them
  std::int64_t rows = 0, columns = 0;  // of marks
  std::int64_t planes = 1;             // of the mask, query heads, that come into a mark
  double cost_ns = 0;                  // an estimate

  std::size_t bytes() const { return static_cast<std::size_t>(items * heads * rows * columns); }
};
MaskSummary summary_of(const AttentionOperands& operands);

// Makes the marks at `memory`, summary.bytes() bytes, on the scheduler's threads or on this one alone, and has the operands
// point at them. Reads no byte of the mask that the run would not: nothing beyond lengths, nor what structure hides. Throws
// Error(cancelled).
void summarise_mask(const MaskSummary& summary, const simd::MaskMarksKernel& kernel, graph::Scheduler* scheduler,
                    const std::atomic<bool>* cancel, std::uint8_t* memory, AttentionOperands& operands);

}  // namespace polyhead::plan
