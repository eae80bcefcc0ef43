// The schedulers that need no oneTBB, and the choice between all of them.
#include "graph/scheduler.hpp"

#include <algorithm>
#include <string>

#include "graph/shutdown.hpp"
#include "platform/cpu_limits.hpp"

namespace polyhead::graph {
namespace {

thread_local CurrentBody body_of_this_thread;

class SerialScheduler final : public SchedulerBase {
 public:
  int threads() const noexcept override { return 1; }
  int slots() const noexcept override { return 1; }
  void run_items(std::size_t count, ItemFunction function, void* argument) override {
    for (std::size_t i = 0; i < count; ++i) function(argument, i, 0);
  }
};

// On the host's threads. The host is asked for one call per runner, not per item: it may hand out calls in any order, and a
// runner's index is a slot that no other running body has.
class ExecutorScheduler final : public SchedulerBase {
 public:
  ExecutorScheduler(const Executor& executor, int threads) : executor_(executor), threads_(threads) {}

  int threads() const noexcept override { return threads_; }
  int slots() const noexcept override { return threads_; }
  // A host's parallel_for need not bear being called from inside one of its own calls.
  bool nests() const noexcept override { return false; }

  void run_items(std::size_t count, ItemFunction function, void* argument) override {
    ItemQueue queue;
    queue.count = count;
    queue.function = function;
    queue.argument = argument;
    const std::size_t runners = std::min(count, static_cast<std::size_t>(threads_));
    executor_.parallel_for(
        executor_.context, runners,
        [](void* shared, std::size_t runner) { static_cast<ItemQueue*>(shared)->run(static_cast<int>(runner)); }, &queue);
  }

 private:
  Executor executor_;
  int threads_;
};

struct ParallelFor {
  void (*body)(void* context, std::size_t index, int slot);
  void* context;
  const Scheduler* scheduler;
  Outcome outcome{nullptr};

  static void item(void* argument, std::size_t index, int slot) noexcept {
    ParallelFor& self = *static_cast<ParallelFor*>(argument);
    if (self.outcome.stopped()) return;
    try {
      const EnterBody enter(self.scheduler, slot, false);
      self.body(self.context, index, slot);
    } catch (...) {
      self.outcome.keep_current_exception();
    }
  }
};

}  // namespace

const CurrentBody& current_body() noexcept {
  return body_of_this_thread;
}

EnterBody::EnterBody(const Scheduler* scheduler, int slot, bool alone) noexcept : previous_(body_of_this_thread) {
  body_of_this_thread = {scheduler, slot, alone};
}
EnterBody::~EnterBody() {
  body_of_this_thread = previous_;
}

bool SchedulerBase::must_stay_on_this_thread() {
  const CurrentBody& current = current_body();
  return (current.scheduler == this && (current.alone || !nests())) || serial();
}

void SchedulerBase::parallel_for(std::size_t count, void (*body)(void* context, std::size_t index, int slot), void* context) {
  if (count == 0) return;
  if (must_stay_on_this_thread()) {
    const int slot = current_body().scheduler == this ? current_body().slot : 0;
    const EnterBody enter(this, slot, true);
    for (std::size_t i = 0; i < count; ++i) body(context, i, slot);
    return;
  }
  ParallelFor work{body, context, this};
  run_items(count, &ParallelFor::item, &work);
  work.outcome.rethrow();
}

std::shared_ptr<Scheduler> make_serial_scheduler() {
  return std::make_shared<SerialScheduler>();
}

std::shared_ptr<Scheduler> make_executor_scheduler(const Executor& executor, int threads) {
  if (threads == 1) return make_serial_scheduler();
  return std::make_shared<ExecutorScheduler>(executor, threads);
}

std::shared_ptr<Scheduler> Scheduler::create(const RuntimeOptions& options) {
  if (options.executor) {
    const int concurrency = options.executor->concurrency;
    return make_executor_scheduler(*options.executor,
                                   options.threads > 0 ? std::min(options.threads, concurrency) : concurrency);
  }
  if (!built_with_tbb() || options.threads == 1) return make_serial_scheduler();
  if (options.use_calling_arena) return make_calling_arena_scheduler(options);
  int threads = options.threads;
  if (threads == 0) {
    threads = platform::default_thread_count();
    if (!options.cpu_set.empty()) threads = std::min(threads, static_cast<int>(options.cpu_set.size()));
  }
  const int available = std::min(threads, max_arena_threads());
  if (available < threads && options.log) {
    const std::string message = "threads: " + std::to_string(threads) + " asked for, oneTBB has " + std::to_string(available);
    options.log(LogLevel::info, message.c_str());
  }
  if (available == 1) return make_serial_scheduler();
  return make_arena_scheduler(available, options);
}

}  // namespace polyhead::graph
