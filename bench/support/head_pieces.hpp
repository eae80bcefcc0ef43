// bert-128 as its 96 kv heads, one piece of work each, run by a task graph and by plain loops: what scheduling costs is what
// they differ by.
#pragma once

#include <memory>

#include "graph/task_graph.hpp"
#include "plan/attention_work.hpp"
#include "platform/aligned_memory.hpp"
#include "support/attention_case.hpp"

namespace polyhead::bench {

class HeadPieces {
 public:
  HeadPieces(Isa isa, int threads);
  ~HeadPieces();

  void run_graph() const;
  // oneTBB's parallel_for over the pieces, one a task, in an arena of the same size; a plain loop for one thread or in a build
  // without oneTBB.
  void run_plain() const;

  int pieces() const;
  // Number of threads that were to be had.
  int threads() const { return scheduler_->threads(); }

  AttentionCase& attention() { return *attention_; }
  const AttentionCase& attention() const { return *attention_; }

 private:
  struct Arena;

  void run_piece(std::int64_t piece, int slot) const;

  std::unique_ptr<AttentionCase> attention_;
  plan::AttentionOperands operands_;
  plan::AttentionChoice choice_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  std::unique_ptr<graph::Execution> execution_;
  std::unique_ptr<Arena> arena_;
  std::size_t scratch_bytes_ = 0;
  platform::AlignedBuffer scratch_;
};

}  // namespace polyhead::bench
