// What task_graph.cpp needs of a scheduler, beyond the interface that plans see.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "graph/task_graph.hpp"
#include "graph/work.hpp"

namespace polyhead::graph {

// A graph with edges in the scheduler's own form; reused from run to run.
class GraphRunner {
 public:
  virtual ~GraphRunner() = default;
  // function(argument, node, slot) once for every node, each after those it depends on.
  virtual void run(ItemFunction function, void* argument) = 0;
};

class SchedulerBase : public Scheduler {
 public:
  void parallel_for(std::size_t count, void (*body)(void* context, std::size_t index, int slot), void* context) final;

  // Runs function(argument, i, slot) for each i < count, in ascending order of start; returns when all have returned.
  virtual void run_items(std::size_t count, ItemFunction function, void* argument) = 0;

  // Null where graphs are run as waves of run_items.
  virtual std::unique_ptr<GraphRunner> make_graph_runner(const TaskGraph&) { return nullptr; }

  // Whether only the calling thread can work, now: fixed for most, but a forked child has lost its workers.
  virtual bool serial() { return threads() == 1; }

  // Whether run_items may be called inside a body.
  virtual bool nests() const noexcept { return true; }

  // Whether a call made now has to do all of its work on this thread.
  bool must_stay_on_this_thread();
};

// The body that the current thread is in, for calls from inside it.
struct CurrentBody {
  const Scheduler* scheduler = nullptr;
  int slot = 0;
  bool alone = false;  // in an inline run: further work stays on this thread
};
const CurrentBody& current_body() noexcept;

class EnterBody {
 public:
  EnterBody(const Scheduler* scheduler, int slot, bool alone) noexcept;
  ~EnterBody();
  EnterBody(const EnterBody&) = delete;
  EnterBody& operator=(const EnterBody&) = delete;

 private:
  CurrentBody previous_;
};

using Log = std::function<void(LogLevel, const char*)>;

// Here threads is resolved: at least 1.
std::shared_ptr<Scheduler> make_serial_scheduler();
std::shared_ptr<Scheduler> make_executor_scheduler(const Executor& executor, int threads);
// More threads than this never work at once in an arena, whatever size it is given: oneTBB has one worker fewer than the
// process has CPUs, unless the host has set another limit.
int max_arena_threads();
std::shared_ptr<Scheduler> make_arena_scheduler(int threads, const RuntimeOptions& options);
std::shared_ptr<Scheduler> make_calling_arena_scheduler(const RuntimeOptions& options);

}  // namespace polyhead::graph
