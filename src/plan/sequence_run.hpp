// How a run over sequences is cut and shared out. Their lengths are known at run time only and may differ by any factor, so
// each sequence is cut by its own cost, and pieces are handed out heaviest sequence first. Memory is kept from run to run.
//
// A row's bits depend on none of this (see attention_work.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/task_graph.hpp"
#include "plan/attention_work.hpp"
#include "platform/aligned_memory.hpp"

namespace polyhead::plan {

// The pieces of a run on threads; a piece is about this long.
constexpr double sequence_piece_ns = 100e3;

class SequenceRun {
 public:
  // Computes operands.sequences: with one thread, or when all of it takes less than `inline_below_ns`, on the calling thread.
  // `slots` is the scratch of all threads, slot_bytes each: most_scratch_bytes of shapes that no sequence exceeds. Throws
  // Error(cancelled).
  void run(const AttentionOperands& operands, bool length_invariant, Precision precision, const dispatch::KernelTable& kernels,
           graph::Scheduler& scheduler, double inline_below_ns, char* slots, std::size_t slot_bytes,
           const std::atomic<bool>* cancel);

 private:
  // A sequence's pieces: item first_item + (kv_head * row_pieces + row_piece) * splits + split - first_split.
  struct Work {
    AttentionChoice choice;
    std::int64_t sequence = 0, rows = 0, rows_per_piece = 0, row_pieces = 0;
    std::int64_t splits = 1;  // above 1: key splits of a row piece, from first_split on, are pieces of their own
    std::int64_t first_split = 0;
    std::int64_t first_item = 0;
    double piece_cost_ns = 0;
    std::size_t first_partial = 0, partial_floats = 0, first_counter = 0;
  };

  void cut(const AttentionOperands& operands, bool length_invariant, Precision precision, const dispatch::KernelTable& kernels);
  void split_heavy_pieces(const AttentionOperands& operands);
  void run_item(const AttentionOperands& operands, std::int64_t item, char* scratch) const;
  std::atomic<std::int32_t>& counter(std::size_t index) const { return counters_.as<std::atomic<std::int32_t>>()[index]; }

  std::vector<Work> works_;
  std::int64_t items_ = 0;
  double total_cost_ns_ = 0;
  platform::AlignedBuffer partials_, counters_;
};

}  // namespace polyhead::plan
