// How the work of one attention call is cut into pieces for threads, and the leased executions that run it.
//
// Pieces are cut by the plan's shape alone, never by the number of threads; only how many pieces make a node looks at it. A
// row's bits depend on neither (see simd/contract/attention.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "graph/task_graph.hpp"
#include "plan/attention_work.hpp"
#include "plan/explanation.hpp"
#include "platform/aligned_memory.hpp"

namespace polyhead::plan {

// Pieces are numbered ((batch * kv_heads + kv_head) * row_pieces + row_piece) * splits + split; a graph node is a run of
// consecutive pieces that is worth scheduling.
struct AttentionCut {
  std::int64_t rows_per_piece = 0;
  std::int64_t row_pieces = 0;  // of one kv head
  std::int64_t splits = 1;      // above 1: key splits of a row piece are pieces of their own
  std::int64_t pieces_per_node = 1;
  std::int64_t pieces = 0;
  std::int64_t nodes = 0;
  double total_cost_ns = 0;
};

// What happens to scores beside the mask, as AttentionSpec has it.
struct ScoreChanges {
  double scale = 1.0;
  double softcap = 0.0;
  bool alibi = false, sink = false;
  RelativeBias relative_bias{};
  std::string mod;  // the caller's own function's name; empty: none
  bool mod_classifies = false;
};

class AttentionPlan {
 public:
  AttentionPlan(const AttentionShape& maximum, const Mask& mask, const ScoreChanges& changes, bool length_invariant,
                Precision precision, const dispatch::KernelTable& kernels, std::shared_ptr<graph::Scheduler> scheduler);
  ~AttentionPlan();

  // Memory and threads of one run. Leases are kept and reused, so that steady state allocates nothing.
  struct Lease;
  class LeaseHandle {
   public:
    LeaseHandle(const AttentionPlan& plan, void* workspace);
    ~LeaseHandle();
    LeaseHandle(const LeaseHandle&) = delete;
    LeaseHandle& operator=(const LeaseHandle&) = delete;
    std::int64_t* key_lengths() const;  // [maximum batch], for the caller to fill
    std::int64_t* offsets() const;
    SequenceTable& sequences() const;
    // Memory beyond the workspace, kept with the lease: for packing operands whose last dimension is not contiguous.
    void* side_memory(std::size_t bytes) const;
    // Likewise for a bias by relative position.
    float* bias_memory(std::size_t bytes) const;
    Lease& lease() const { return *lease_; }

   private:
    const AttentionPlan& plan_;
    std::unique_ptr<Lease> lease_;
  };

  // Sizes in operands.shape are at most the plan's, and operands.sequences are given exactly when goes_by_sequences(mask).
  // Throws Error(cancelled), or what the host's executor lets through.
  void run(const LeaseHandle& handle, const AttentionOperands& operands, const std::atomic<bool>* cancel) const;

  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  const MaskRoom& mask_room() const noexcept { return mask_room_; }  // of a run's operands
  graph::Scheduler& scheduler() const noexcept { return *scheduler_; }
  // `mod`: the caller's own function with a classifier to ask; null: none, or it cannot be asked before a run.
  Explanation explanation(const simd::ScoreMod* mod) const;

 private:
  struct Run;
  void run_piece(const Run& run, std::int64_t piece, char* scratch) const;
  double estimate_ns(const AttentionOperands& operands) const;
  void count_tiles(Explanation& told) const;
  void ask_classifier(const simd::ScoreMod* mod, Explanation& told) const;
  std::vector<std::string> changes_of_every_score() const;
  std::vector<std::string> why_not_faster(const Explanation& told) const;

  AttentionShape maximum_;
  Mask mask_;
  bool length_invariant_;
  Precision precision_;
  ScoreChanges changes_;
  bool by_sequences_;  // work is cut at run time, from the sequences' lengths
  const dispatch::KernelTable& kernels_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  // Has the operands of a run of its own point at marks of their boolean mask, where it is shared.
  const AttentionOperands& summarised(const AttentionOperands& operands, char* workspace, const std::atomic<bool>* cancel,
                                      std::optional<AttentionOperands>& own) const;

  AttentionChoice choice_;  // for the maximum shape
  AttentionCut cut_;
  std::shared_ptr<const graph::TaskGraph> graph_;
  MaskRoom mask_room_;
  std::size_t slot_bytes_ = 0;  // scratch of one thread
  std::size_t partials_offset_ = 0, counters_offset_ = 0, slots_offset_ = 0, marks_offset_ = 0, workspace_bytes_ = 0;
  std::size_t marks_bytes_ = 0;     // of a boolean mask
  std::size_t partial_stride_ = 0;  // floats of one split's partial result
  mutable std::mutex free_mutex_;
  mutable std::unique_ptr<Lease> free_;  // a list through Lease::next, so that giving one back cannot fail
};

}  // namespace polyhead::plan
