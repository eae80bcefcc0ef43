// Running on oneTBB: in an arena of our own, or in the one that the calling thread is in.
#if defined(POLYHEAD_TBB)

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>
#include <oneapi/tbb/task_scheduler_observer.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "graph/scheduler.hpp"
#include "graph/shutdown.hpp"
#include "graph/thread_sanitizer.hpp"
#include "platform/cpu_limits.hpp"

namespace polyhead::graph {
namespace {

namespace tbb = oneapi::tbb;

// Not bound to the caller's context: when a host cancels its own group, our tasks must not vanish from the middle of a result.
// The caller's floating-point settings go to the workers, so that the bits don't depend on who does the work.
constexpr auto context_kind = tbb::task_group_context::isolated;
constexpr auto context_traits = tbb::task_group_context::default_traits | tbb::task_group_context::fp_settings;

// The process in which we have used oneTBB, 0 before: a forked child has none of its parent's workers, and oneTBB's state there
// may have been copied while another thread was changing it.
std::atomic<long> process_with_workers{0};

bool workers_usable() noexcept {
  const long process = platform::process_id();
  long known = process_with_workers.load(std::memory_order_relaxed);
  if (known == 0 && process_with_workers.compare_exchange_strong(known, process)) known = process;
  return known == process;
}

bool in_forked_child() noexcept {
  const long known = process_with_workers.load(std::memory_order_relaxed);
  return known != 0 && known != platform::process_id();
}

// In a forked child calls go on with one thread; that is worth one message.
class ForkGuard {
 public:
  explicit ForkGuard(Log log) : log_(std::move(log)) {}

  bool workers_lost() {
    if (workers_usable()) return false;
    if (log_ && !warned_.exchange(true)) {
      log_(LogLevel::warning, "this process was forked after oneTBB was used: calls run on the calling thread alone");
    }
    return true;
  }

 private:
  Log log_;
  std::atomic<bool> warned_{false};
};

// One task per runner, each takes items until there are none left. max_slots: threads beyond it take nothing.
struct Runners {
  ItemQueue& queue;
  int count;
  int max_slots;
  CallEdges edges;

  void take_items() const {
    edges.enter_body();
    const int slot = tbb::this_task_arena::current_thread_index();
    if (slot < max_slots) queue.run(slot);
    edges.leave_body();
  }

  void run_in_current_arena(tbb::task_group_context& context) const {
    edges.before_work();
    tbb::parallel_for(
        tbb::blocked_range<int>(0, count, 1), [this](const tbb::blocked_range<int>&) { take_items(); },
        tbb::simple_partitioner(), context);
    edges.after_work();
  }
};

// ---- an arena of our own

// When all places of the arena are taken the function runs on one of its threads, while the caller sleeps.
template <typename Function>
void execute_in(tbb::task_arena& arena, const Function& function) {
  CallEdges edges;
  edges.before_work();
  arena.execute([&edges, &function] {
    edges.enter_body();
    function();
    edges.leave_body();
  });
  edges.after_work();
}

// Workers come and go between all arenas of the process, so each is pinned when it enters ours and set free when it leaves.
class PinningObserver final : public tbb::task_scheduler_observer {
 public:
  PinningObserver(tbb::task_arena& arena, const std::vector<int>& cpus, const Log& log)
      : tbb::task_scheduler_observer(arena), cpus_(cpus), before_(platform::allowed_cpus()), log_(log) {
    edges_.before_work();
    observe(true);
  }
  ~PinningObserver() override {
    observe(false);  // waits for callbacks
    edges_.after_work();
  }

  void on_scheduler_entry(bool is_worker) override {
    if (!is_worker) return;
    edges_.enter_body();
    pin();
    edges_.leave_body();
  }
  void on_scheduler_exit(bool is_worker) override {
    if (!is_worker) return;
    edges_.enter_body();
    platform::set_current_thread_cpus(before_);
    edges_.leave_body();
  }

 private:
  void pin() {
    const int cpu = cpus_[static_cast<std::size_t>(tbb::this_task_arena::current_thread_index()) % cpus_.size()];
    if (platform::pin_current_thread(cpu) || !log_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!warned_.insert(cpu).second) return;
    log_(LogLevel::warning, ("cannot pin a worker thread to CPU " + std::to_string(cpu) + "; it runs unpinned").c_str());
  }

  const std::vector<int>& cpus_;
  const std::vector<int> before_;
  const Log& log_;
  std::mutex mutex_;
  std::set<int> warned_;
  CallEdges edges_;
};

struct Arena {
  explicit Arena(int threads) : arena(threads) {}
  tbb::task_arena arena;
  std::unique_ptr<PinningObserver> observer;  // dies first
};

class ArenaScheduler;
class FlowGraphRunner;

// Everything that holds on to oneTBB, so that shutdown() can let go of it. Changed when arenas and flow graphs are made, not in
// steady state.
struct Registry {
  std::mutex mutex;
  std::set<ArenaScheduler*> schedulers;
  std::set<FlowGraphRunner*> runners;
};
Registry& registry() {
  static Registry* const instance = new Registry;  // never destroyed: a host's static Runtime may outlive our statics
  return *instance;
}

class ArenaScheduler final : public SchedulerBase {
 public:
  ArenaScheduler(int threads, const RuntimeOptions& options)
      : threads_(threads), cpu_set_(options.cpu_set), log_(options.log), fork_guard_(options.log) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().schedulers.insert(this);
  }
  ~ArenaScheduler() override {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().schedulers.erase(this);
    release();
  }

  int threads() const noexcept override { return threads_; }
  int slots() const noexcept override { return threads_; }
  bool serial() override { return fork_guard_.workers_lost(); }

  void run_items(std::size_t count, ItemFunction function, void* argument) override {
    ItemQueue queue;
    queue.count = count;
    queue.function = function;
    queue.argument = argument;
    const Runners runners{queue, static_cast<int>(std::min(count, static_cast<std::size_t>(threads_))), threads_, {}};
    // Inside a body the wait is isolated: it must start no other body, whose slot would be this one's. Outside it is not, so
    // that a caller whose own items are done helps with what the workers' bodies have opened.
    const bool nested = current_body().scheduler == this;
    tbb::task_group_context context(context_kind, context_traits);
    execute_in(arena(), [&] {
      if (nested) {
        tbb::this_task_arena::isolate([&] { runners.run_in_current_arena(context); });
      } else {
        runners.run_in_current_arena(context);
      }
    });
  }

  std::unique_ptr<GraphRunner> make_graph_runner(const TaskGraph& graph) override;

  // Made at the first use: until then no thread is started.
  tbb::task_arena& arena() {
    Arena* made = arena_.load(std::memory_order_acquire);
    if (made == nullptr) made = make_arena();
    return made->arena;
  }

  // With the registry's lock held and no call running.
  void release() {
    Arena* const made = arena_.exchange(nullptr);
    // In a forked child the arena's locks may be held by threads that don't exist there: it is left alone.
    if (!in_forked_child()) delete made;
  }

 private:
  Arena* make_arena() {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    if (Arena* const made = arena_.load(std::memory_order_acquire)) return made;
    auto made = std::make_unique<Arena>(threads_);
    if (!cpu_set_.empty()) made->observer = std::make_unique<PinningObserver>(made->arena, cpu_set_, log_);
    arena_.store(made.get(), std::memory_order_release);
    return made.release();
  }

  const int threads_;
  const std::vector<int> cpu_set_;
  const Log log_;
  ForkGuard fork_guard_;
  std::atomic<Arena*> arena_{nullptr};
};

// A graph with edges as a oneTBB flow graph, one continue_node per node. Every node fires exactly once in each run, after an
// exception or a cancel too (its body then returns at once), so that the graph is always ready for the next run without a
// reset.
class FlowGraphRunner final : public GraphRunner {
 public:
  FlowGraphRunner(const TaskGraph& graph, ArenaScheduler& scheduler)
      : scheduler_(scheduler), edges_(graph.edges()), size_(graph.size()) {
    std::vector<bool> has_predecessor(size_, false);
    for (const auto& edge : edges_) has_predecessor[edge.second] = true;
    for (NodeId node = 0; node < size_; ++node) {
      if (!has_predecessor[node]) sources_.push_back(node);
    }
    sort_heaviest_first(graph, sources_);
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().runners.insert(this);
  }
  ~FlowGraphRunner() override {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().runners.erase(this);
    release();
  }

  void run(ItemFunction function, void* argument) override {
    function_ = function;
    argument_ = argument;
    tbb::task_arena& arena = scheduler_.arena();
    if (flow_ == nullptr) execute_in(arena, [this] { build(); });  // a flow graph belongs to the arena it is made in
    flow_->context.capture_fp_settings();
    execute_in(arena, [this] {
      call_edges_.before_work();
      for (NodeId source : sources_) flow_->nodes[source].try_put(tbb::flow::continue_msg());
      flow_->graph.wait_for_all();
      call_edges_.after_work();
    });
  }

  // With the registry's lock held and no call running.
  void release() {
    std::unique_ptr<Flow> flow = std::move(flow_);
    if (in_forked_child()) static_cast<void>(flow.release());  // its destructor would wait in an arena without workers
  }

 private:
  struct Flow {
    tbb::task_group_context context{context_kind, context_traits};
    tbb::flow::graph graph{context};
    std::deque<tbb::flow::continue_node<tbb::flow::continue_msg>> nodes;
  };

  void run_node(NodeId node) {
    call_edges_.enter_body();
    if constexpr (thread_sanitizer) {
      for (std::size_t edge = 0; edge < edges_.size(); ++edge) {
        if (edges_[edge].second == node) happens_after(&edges_[edge]);
      }
    }
    function_(argument_, node, tbb::this_task_arena::current_thread_index());
    if constexpr (thread_sanitizer) {
      for (std::size_t edge = 0; edge < edges_.size(); ++edge) {
        if (edges_[edge].first == node) happened_before(&edges_[edge]);
      }
    }
    call_edges_.leave_body();
  }

  void build() {
    auto flow = std::make_unique<Flow>();
    for (NodeId node = 0; node < size_; ++node) {
      flow->nodes.emplace_back(flow->graph, [this, node](const tbb::flow::continue_msg&) {
        run_node(node);
        return tbb::flow::continue_msg();
      });
    }
    for (const auto& [before, after] : edges_) tbb::flow::make_edge(flow->nodes[before], flow->nodes[after]);
    flow_ = std::move(flow);
  }

  ArenaScheduler& scheduler_;  // kept alive by the Execution that owns this
  const std::vector<std::pair<NodeId, NodeId>> edges_;
  const std::size_t size_;
  std::vector<NodeId> sources_;  // heaviest first
  ItemFunction function_ = nullptr;
  void* argument_ = nullptr;
  CallEdges call_edges_;
  std::unique_ptr<Flow> flow_;
};

std::unique_ptr<GraphRunner> ArenaScheduler::make_graph_runner(const TaskGraph& graph) {
  return std::make_unique<FlowGraphRunner>(graph, *this);
}

// ---- the calling thread's arena

// Graphs run in waves of isolated loops here, not as flow graphs: a flow graph belongs to one arena, while the caller may come
// from another one each time; and its wait can't be isolated, so that the caller, who may hold a lock, could take up the host's
// other tasks, which may want that lock.
class CallingArenaScheduler final : public SchedulerBase {
 public:
  explicit CallingArenaScheduler(const RuntimeOptions& options)
      : slots_(std::max(tbb::this_task_arena::max_concurrency(), tbb::info::default_concurrency())),
        threads_(std::min(options.threads > 0 ? options.threads : slots_, tbb::this_task_arena::max_concurrency())),
        fork_guard_(options.log) {}

  int threads() const noexcept override { return threads_; }
  int slots() const noexcept override { return slots_; }

  // In an arena larger than any that we know of, a thread may have an index that there is no slot for.
  bool serial() override {
    return threads_ == 1 || fork_guard_.workers_lost() || tbb::this_task_arena::current_thread_index() >= slots_;
  }

  void run_items(std::size_t count, ItemFunction function, void* argument) override {
    ItemQueue queue;
    queue.count = count;
    queue.function = function;
    queue.argument = argument;
    const Runners runners{queue, static_cast<int>(std::min(count, static_cast<std::size_t>(threads_))), slots_, {}};
    tbb::task_group_context context(context_kind, context_traits);
    tbb::this_task_arena::isolate([&] { runners.run_in_current_arena(context); });
  }

 private:
  const int slots_;
  const int threads_;
  ForkGuard fork_guard_;
};

}  // namespace

int max_arena_threads() {
  const std::size_t limit = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  return static_cast<int>(std::clamp<std::size_t>(limit, 1, 1 << 16));
}

std::shared_ptr<Scheduler> make_arena_scheduler(int threads, const RuntimeOptions& options) {
  return std::make_shared<ArenaScheduler>(threads, options);
}

std::shared_ptr<Scheduler> make_calling_arena_scheduler(const RuntimeOptions& options) {
  return std::make_shared<CallingArenaScheduler>(options);
}

bool built_with_tbb() noexcept {
  return true;
}

bool shutdown_workers() noexcept {
  try {
    const long known = process_with_workers.load();
    if (known == 0 || known != platform::process_id()) return true;  // no workers that we have had started
    const std::lock_guard<std::mutex> lock(registry().mutex);
    for (FlowGraphRunner* runner : registry().runners) runner->release();
    for (ArenaScheduler* scheduler : registry().schedulers) scheduler->release();
    tbb::task_scheduler_handle handle{tbb::attach{}};
    if (!tbb::finalize(handle, std::nothrow)) return false;
    process_with_workers.store(0);
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace polyhead::graph

#endif
