// What a Runtime handle shares: the threads, the kernels, the log, and the plans of one-shot calls.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/call_cache.hpp"
#include "dispatch/kernel_table.hpp"
#include "graph/task_graph.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::detail {

class RuntimeState {
 public:
  // Errors: as Runtime's constructor.
  explicit RuntimeState(const RuntimeOptions& options);

  const std::shared_ptr<graph::Scheduler>& scheduler() const noexcept { return scheduler_; }
  Isa isa() const noexcept { return kernels_->isa; }
  const dispatch::KernelTable& kernels() const noexcept { return *kernels_; }

  // A plan must not hold the RuntimeState in a cycle: what is put here may keep scheduler() alive, not this object.
  CallCache& call_cache() noexcept { return call_cache_; }

  // Nothing when the host gave no function.
  void log(LogLevel level, const std::string& message) const {
    if (log_) log_(level, message.c_str());
  }
  bool logs() const noexcept { return static_cast<bool>(log_); }

  std::string describe() const;

 private:
  const dispatch::KernelTable* kernels_;
  bool isa_was_forced_;
  std::string threads_description_;
  std::function<void(LogLevel, const char*)> log_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  CallCache call_cache_;
};

}  // namespace polyhead::detail
