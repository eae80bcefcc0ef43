// Task graphs on every kind of scheduler: order, slots, exceptions, cancellation, nesting, isolation, and what is left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "graph/shutdown.hpp"
#include "graph/task_graph.hpp"
#include "graph/thread_sanitizer.hpp"
#include "platform/cpu_limits.hpp"
#include "polyhead/error.hpp"
#include "polyhead/runtime.hpp"

#if defined(POLYHEAD_TBB)
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>
#endif
#if defined(__linux__)
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
// After oneTBB, whose headers declare some of what this defines.
#include "support/environment.hpp"
#include "support/malloc_count.hpp"

namespace polyhead {
namespace {

using graph::Execution;
using graph::NodeId;
using graph::Scheduler;
using graph::TaskGraph;

// A host's executor that starts its calls in the reverse order, each on a thread of its own, `concurrency` at a time.
void backwards_on_threads(void* context, std::size_t count, void (*function)(void*, std::size_t), void* argument) {
  const int concurrency = *static_cast<int*>(context);
  std::atomic<std::size_t> next{count};
  std::vector<std::thread> threads;
  for (int i = 0; i < concurrency; ++i) {
    threads.emplace_back([&] {
      for (std::size_t left = next.load(); left > 0;) {
        if (next.compare_exchange_weak(left, left - 1)) {
          function(argument, left - 1);
          left = next.load();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}
int executor_concurrency = 3;

void one_after_another(void*, std::size_t count, void (*function)(void*, std::size_t), void* argument) {
  for (std::size_t i = 0; i < count; ++i) function(argument, i);
}

struct Kind {
  std::string name;
  RuntimeOptions options;
};

std::vector<Kind> kinds() {
  std::vector<Kind> all(6);
  all[0].name = "one_thread";
  all[0].options.threads = 1;
  all[1].name = "own_arena_of_2";
  all[1].options.threads = 2;
  all[2].name = "own_arena_of_5";
  all[2].options.threads = 5;
  all[3].name = "calling_arena";
  all[3].options.use_calling_arena = true;
  all[4].name = "executor_on_threads";
  all[4].options.executor = Executor{&executor_concurrency, backwards_on_threads, executor_concurrency};
  all[5].name = "executor_one_after_another";
  all[5].options.executor = Executor{nullptr, one_after_another, 4};
  return all;
}

class EveryScheduler : public ::testing::TestWithParam<Kind> {
 protected:
  std::shared_ptr<Scheduler> scheduler = Scheduler::create(GetParam().options);
};
INSTANTIATE_TEST_SUITE_P(Graph, EveryScheduler, ::testing::ValuesIn(kinds()),
                         [](const auto& parameter) { return parameter.param.name; });

using Body = std::function<void(NodeId, int)>;
void run(Execution& execution, const Body& body, const std::atomic<bool>* cancel = nullptr) {
  execution.run([](void* context, NodeId node, int slot) { (*static_cast<const Body*>(context))(node, slot); },
                const_cast<Body*>(&body), cancel);
}
using Item = std::function<void(std::size_t, int)>;
void parallel_for(Scheduler& scheduler, std::size_t count, const Item& item) {
  scheduler.parallel_for(
      count, [](void* context, std::size_t index, int slot) { (*static_cast<const Item*>(context))(index, slot); },
      const_cast<Item*>(&item));
}

// Layers of nodes with random edges from earlier ones, as a transformer layer has.
std::shared_ptr<TaskGraph> random_graph(std::uint32_t seed, int size, double edges_per_node) {
  std::mt19937 random(seed);
  auto made = std::make_shared<TaskGraph>();
  for (int i = 0; i < size; ++i) {
    const NodeId node = made->add(std::uniform_real_distribution<double>(1, 1000)(random));
    std::set<NodeId> before;
    for (double wanted = edges_per_node; node > 0 && wanted > 0; wanted -= 1) {
      if (wanted < 1 && std::bernoulli_distribution(1 - wanted)(random)) break;
      before.insert(static_cast<NodeId>(random() % node));
    }
    for (NodeId earlier : before) made->depend(earlier, node);
  }
  return made;
}

// Checks what each body may rely on.
class Witness {
 public:
  Witness(const TaskGraph& graph, int slots)
      : done_(graph.size()), busy_(static_cast<std::size_t>(slots)), before_(graph.size()) {
    for (const auto& [before, after] : graph.edges()) before_[after].push_back(before);
  }
  void enter(NodeId node, int slot) {
    if (slot < 0 || static_cast<std::size_t>(slot) >= busy_.size()) {
      ++bad_slots;
      return;
    }
    if (busy_[static_cast<std::size_t>(slot)].exchange(true)) ++shared_slots;
    for (NodeId earlier : before_[node]) too_early += done_[earlier].load() == 1 ? 0 : 1;
  }
  void leave(NodeId node, int slot) {
    ++done_[node];
    busy_[static_cast<std::size_t>(slot)] = false;
  }
  void expect_right(const std::string& what) const {
    EXPECT_EQ(bad_slots, 0) << what;
    EXPECT_EQ(shared_slots, 0) << what;
    EXPECT_EQ(too_early, 0) << what;
    for (std::size_t node = 0; node < done_.size(); ++node) ASSERT_EQ(done_[node], 1) << what << ", node " << node;
  }

 private:
  std::vector<std::atomic<int>> done_;
  std::vector<std::atomic<bool>> busy_;
  std::vector<std::vector<NodeId>> before_;
  std::atomic<int> bad_slots{0}, shared_slots{0}, too_early{0};
};

void work_a_little(int rounds = 300) {
  for (volatile int i = 0; i < rounds; i = i + 1) {
  }
}

TEST(TaskGraph, Description) {
  TaskGraph graph;
  EXPECT_EQ(graph.add(10), 0u);
  EXPECT_EQ(graph.add(32), 1u);
  EXPECT_FALSE(graph.has_edges());
  graph.depend(0, 1);
  EXPECT_TRUE(graph.has_edges());
  EXPECT_EQ(graph.size(), 2u);
  EXPECT_EQ(graph.total_cost(), 42);
}

TEST_P(EveryScheduler, RunsEveryNodeOnceAfterItsPredecessors) {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    const int size = seed == 0 ? 0 : static_cast<int>(1 + seed * seed * 2);
    const auto made = random_graph(seed, size, seed % 3 == 0 ? 0 : 1.7);
    for (bool inline_execution : {false, true}) {
      Execution execution(made, scheduler, inline_execution);
      for (int repeat = 0; repeat < 20; ++repeat) {
        Witness witness(*made, scheduler->slots());
        run(execution, [&](NodeId node, int slot) {
          witness.enter(node, slot);
          work_a_little();
          witness.leave(node, slot);
        });
        witness.expect_right("seed " + std::to_string(seed));
      }
    }
  }
}

TEST_P(EveryScheduler, InlineRunsStayOnTheCallingThreadInOrder) {
  const auto made = random_graph(5, 40, 1);
  Execution execution(made, scheduler, true);
  std::vector<NodeId> order;
  std::set<std::thread::id> threads;
  run(execution, [&](NodeId node, int slot) {
    EXPECT_EQ(slot, 0);
    order.push_back(node);
    parallel_for(*scheduler, 10, [&](std::size_t, int inner) {
      EXPECT_EQ(inner, 0);
      threads.insert(std::this_thread::get_id());
    });
  });
  ASSERT_EQ(order.size(), 40u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(threads, std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST_P(EveryScheduler, TheFirstExceptionReachesTheCaller) {
  for (double edges : {0.0, 1.5}) {
    const auto made = random_graph(7, 200, edges);
    Execution execution(made, scheduler, false);
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::atomic<bool> thrown{false};
      std::atomic<int> started_after{0};
      try {
        run(execution, [&](NodeId node, int) {
          if (thrown) {
            ++started_after;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
          work_a_little();
          if (node == 17) {
            thrown = true;
            throw std::runtime_error("node 17");
          }
        });
        FAIL() << "nothing reached the caller";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "node 17");
      }
      // Between the throw and the moment when it is noted down the other threads may start some more, slowed down here so that
      // a throwing thread that loses its CPU in between does not make this test fail.
      EXPECT_LT(started_after, 100);

      Witness witness(*made, scheduler->slots());  // the execution is as good as new
      run(execution, [&](NodeId node, int slot) {
        witness.enter(node, slot);
        witness.leave(node, slot);
      });
      witness.expect_right("after an exception");
    }
  }
}

ErrorCode code_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

TEST_P(EveryScheduler, Cancellation) {
  for (double edges : {0.0, 1.5}) {
    const auto made = random_graph(9, 100, edges);
    Execution execution(made, scheduler, false);
    std::atomic<bool> cancel{true};
    std::atomic<int> started{0};
    EXPECT_EQ(code_of([&] { run(execution, [&](NodeId, int) { ++started; }, &cancel); }), ErrorCode::cancelled);
    EXPECT_EQ(started, 0);

    cancel = false;
    EXPECT_EQ(code_of([&] {
                run(
                    execution,
                    [&](NodeId, int) {
                      if (++started == 10) cancel = true;
                      work_a_little();
                    },
                    &cancel);
              }),
              ErrorCode::cancelled);
    EXPECT_GE(started, 10);
    EXPECT_LT(started, 100);

    cancel = false;
    started = 0;
    EXPECT_EQ(code_of([&] { run(execution, [&](NodeId, int) { ++started; }, &cancel); }), ErrorCode::ok);
    EXPECT_EQ(started, 100);
  }
}

TEST_P(EveryScheduler, ParallelForOnItsOwn) {
  for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{1000}}) {
    std::vector<std::atomic<int>> calls(count);
    std::vector<std::atomic<bool>> busy(static_cast<std::size_t>(scheduler->slots()));
    std::atomic<int> shared{0};
    parallel_for(*scheduler, count, [&](std::size_t index, int slot) {
      if (busy.at(static_cast<std::size_t>(slot)).exchange(true)) ++shared;
      ++calls[index];
      work_a_little();
      busy[static_cast<std::size_t>(slot)] = false;
    });
    EXPECT_EQ(shared, 0);
    for (const auto& call : calls) EXPECT_EQ(call, 1);
  }
  EXPECT_THROW(parallel_for(*scheduler, 50,
                            [](std::size_t index, int) {
                              if (index == 33) throw std::logic_error("33");
                            }),
               std::logic_error);
}

// A body waits for its inner items without taking up another body: no slot may be entered twice, and inner items on other
// threads must not have the slot of a body that is running.
TEST_P(EveryScheduler, NestedParallelForIsIsolated) {
  for (double edges : {0.0, 1.2}) {
    const auto made = random_graph(11, 60, edges);
    Execution execution(made, scheduler, false);
    for (int repeat = 0; repeat < 10; ++repeat) {
      Witness witness(*made, scheduler->slots());
      std::atomic<int> inner_calls{0}, foreign_slots{0};
      std::vector<std::atomic<std::thread::id>> owner(static_cast<std::size_t>(scheduler->slots()));
      run(execution, [&](NodeId node, int slot) {
        witness.enter(node, slot);
        owner[static_cast<std::size_t>(slot)] = std::this_thread::get_id();
        parallel_for(*scheduler, 8, [&](std::size_t, int inner_slot) {
          const std::thread::id holder = owner.at(static_cast<std::size_t>(inner_slot)).load();
          if (holder != std::thread::id() && holder != std::this_thread::get_id()) ++foreign_slots;
          work_a_little();
          ++inner_calls;
        });
        owner[static_cast<std::size_t>(slot)] = std::thread::id();
        witness.leave(node, slot);
      });
      witness.expect_right("nested");
      EXPECT_EQ(inner_calls, 60 * 8);
      EXPECT_EQ(foreign_slots, 0);
    }
  }
}

TEST_P(EveryScheduler, ExceptionInsideANestedParallelFor) {
  const auto made = random_graph(13, 20, 1);
  Execution execution(made, scheduler, false);
  for (int repeat = 0; repeat < 10; ++repeat) {
    EXPECT_THROW(run(execution,
                     [&](NodeId node, int) {
                       parallel_for(*scheduler, 6, [&](std::size_t index, int) {
                         if (node == 8 && index == 4) throw std::domain_error("deep");
                       });
                     }),
                 std::domain_error);
  }
}

TEST_P(EveryScheduler, ARunInsideABody) {
  const auto outer = random_graph(15, 12, 1);
  const auto inner = random_graph(16, 30, 1.4);
  Execution outer_execution(outer, scheduler, false);
  std::vector<std::unique_ptr<Execution>> inner_executions;
  for (int i = 0; i < 12; ++i) inner_executions.push_back(std::make_unique<Execution>(inner, scheduler, false));
  Witness outer_witness(*outer, scheduler->slots());
  run(outer_execution, [&](NodeId node, int slot) {
    outer_witness.enter(node, slot);
    Witness witness(*inner, scheduler->slots());
    run(*inner_executions[node], [&](NodeId inner_node, int inner_slot) {
      witness.enter(inner_node, inner_slot);
      work_a_little();
      witness.leave(inner_node, inner_slot);
    });
    witness.expect_right("inner run");
    outer_witness.leave(node, slot);
  });
  outer_witness.expect_right("outer run");
}

TEST_P(EveryScheduler, ManyRunsAtOnceOnOneScheduler) {
  const auto with_edges = random_graph(17, 40, 1.5);
  const auto without = random_graph(18, 40, 0);
  std::vector<std::thread> hosts;
  std::atomic<int> wrong{0};
  for (int host = 0; host < 8; ++host) {
    hosts.emplace_back([&, host] {
      const auto& made = host % 2 == 0 ? with_edges : without;
      Execution execution(made, scheduler, false);
      for (int repeat = 0; repeat < 25; ++repeat) {
        std::vector<std::atomic<int>> calls(made->size());
        std::vector<std::atomic<bool>> busy(static_cast<std::size_t>(scheduler->slots()));
        run(execution, [&](NodeId node, int slot) {
          if (busy.at(static_cast<std::size_t>(slot)).exchange(true)) ++wrong;
          work_a_little();
          ++calls[node];
          busy[static_cast<std::size_t>(slot)] = false;
        });
        for (const auto& call : calls) wrong += call == 1 ? 0 : 1;
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(EveryScheduler, BodiesHaveTheCallersRounding) {
  if (GetParam().options.executor) GTEST_SKIP() << "the host's threads are the host's affair";
  for (double edges : {0.0, 1.5}) {
    const auto made = random_graph(19, 60, edges);
    Execution execution(made, scheduler, false);
    for (int rounding : {FE_DOWNWARD, FE_TONEAREST}) {
      std::atomic<int> other{0};
      std::fesetround(rounding);
      run(execution, [&](NodeId, int) {
        work_a_little(20000);
        if (std::fegetround() != rounding) ++other;
      });
      EXPECT_EQ(std::fegetround(), rounding);
      std::fesetround(FE_TONEAREST);
      EXPECT_EQ(other, 0);
    }
  }
}

TEST_P(EveryScheduler, SteadyStateAllocatesNothing) {
  if (!testing::malloc_counting) GTEST_SKIP() << "allocations are not counted in this build";
  if (GetParam().name == "executor_on_threads") GTEST_SKIP() << "this test's executor starts threads";
  for (double edges : {0.0, 1.5}) {
    const auto made = random_graph(21, 96, edges);
    Execution execution(made, scheduler, false);
    const Body body = [&](NodeId node, int) {
      work_a_little(2000);
      if (node % 8 == 0) {
        int nothing = 0;
        scheduler->parallel_for(4, [](void*, std::size_t, int) { work_a_little(); }, &nothing);
      }
    };
    // oneTBB keeps pools of small objects per thread, which fill while work wanders between the threads.
    for (int repeat = 0; repeat < 200; ++repeat) run(execution, body);
    const std::uint64_t before = testing::allocations.load();
    for (int repeat = 0; repeat < 100; ++repeat) run(execution, body);
    EXPECT_EQ(testing::allocations.load() - before, 0u) << "edges per node: " << edges;
  }
}

TEST(Graph, HeaviestNodesStartFirst) {
  RuntimeOptions options;
  options.executor = Executor{nullptr, one_after_another, 2};
  const auto scheduler = Scheduler::create(options);
  auto made = std::make_shared<TaskGraph>();
  for (double cost : {3.0, 9.0, 1.0, 9.0, 5.0}) made->add(cost);
  Execution execution(made, scheduler, false);
  std::vector<NodeId> order;
  run(execution, [&](NodeId node, int) { order.push_back(node); });
  EXPECT_EQ(order, (std::vector<NodeId>{1, 3, 4, 0, 2}));
}

TEST(Graph, ThreadsAndSlots) {
  RuntimeOptions options;
  options.threads = 1;
  EXPECT_EQ(Scheduler::create(options)->threads(), 1);
  options.executor = Executor{nullptr, one_after_another, 6};
  options.threads = 0;
  EXPECT_EQ(Scheduler::create(options)->threads(), 6);
  options.threads = 4;
  EXPECT_EQ(Scheduler::create(options)->threads(), 4);
  EXPECT_EQ(Scheduler::create(options)->slots(), 4);
  EXPECT_EQ(Scheduler::create(RuntimeOptions())->threads(), graph::built_with_tbb() ? platform::default_thread_count() : 1);
}

// oneTBB has no more workers than the process has CPUs, says so on stderr when asked for more, and is not to be talked into
// more: that would be a setting of the whole process.
TEST(Graph, MoreThreadsThanThereAreAreNotPromised) {
  std::string message;
  RuntimeOptions options;
  options.threads = 5000;
  options.log = [&](LogLevel, const char* text) { message = text; };
  ::testing::internal::CaptureStderr();
  const auto scheduler = Scheduler::create(options);
  std::atomic<int> items{0};
  parallel_for(*scheduler, 100, [&](std::size_t, int) { ++items; });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(items, 100);
  EXPECT_GE(scheduler->threads(), 1);
  EXPECT_LT(scheduler->threads(), 5000);
  EXPECT_EQ(message.find("5000") != std::string::npos, graph::built_with_tbb()) << message;
}

#if defined(__linux__)

int thread_count() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] == '.' ? 0 : 1;
  closedir(folder);
  return count;
}

// Runs in a process of its own (gtest starts this program again for it), which has not used oneTBB yet.
class FreshProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::emulated) GTEST_SKIP() << "a program for another machine cannot start itself again without its emulator";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

int add_up(const std::shared_ptr<Scheduler>& scheduler, double edges) {
  const auto made = random_graph(23, 64, edges);
  Execution execution(made, scheduler, false);
  std::atomic<int> sum{0};
  run(execution, [&](NodeId node, int) {
    work_a_little(20000);
    sum += static_cast<int>(node);
  });
  return sum;
}
constexpr int right_sum = 64 * 63 / 2;

std::shared_ptr<Scheduler> two_threads(std::function<void(LogLevel, const char*)> log = nullptr) {
  RuntimeOptions options;
  options.threads = 2;
  options.log = std::move(log);
  return Scheduler::create(options);
}

// The child's result: 0 for the right sum. A child that hangs is killed.
template <typename Function>
int exit_code_of_child(Function function) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(function());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_F(FreshProcess, NoThreadIsStartedBeforeItIsNeeded) {
  EXPECT_EXIT(
      {
        const int before = thread_count();
        const auto scheduler = two_threads();
        const auto made = random_graph(1, 30, 1);
        Execution execution(made, scheduler, true);
        run(execution, [](NodeId, int) {});
        RuntimeOptions one;
        one.threads = 1;
        if (add_up(Scheduler::create(one), 1) != right_sum) std::exit(1);
        if (thread_count() != before) std::exit(2);
        if (add_up(scheduler, 1) != right_sum) std::exit(3);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FreshProcess, ForkBeforeTheFirstUse) {
  EXPECT_EXIT(
      {
        const auto scheduler = two_threads();
        for (double edges : {0.0, 1.5}) {
          const int code =
              exit_code_of_child([&] { return add_up(scheduler, edges) == right_sum && thread_count() >= 1 ? 0 : 1; });
          if (code != 0) std::exit(code);
        }
        std::exit(add_up(scheduler, 1.5) == right_sum ? 0 : 3);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FreshProcess, ForkAfterUseGoesOnWithOneThread) {
  EXPECT_EXIT(
      {
        static std::atomic<int> warnings{0};
        auto scheduler = two_threads([](LogLevel level, const char*) { warnings += level == LogLevel::warning ? 1 : 0; });
        auto used = std::make_unique<Execution>(random_graph(2, 40, 1.5), scheduler, false);
        run(*used, [](NodeId, int) { work_a_little(); });
        if (add_up(scheduler, 0) != right_sum) std::exit(1);
        const int code = exit_code_of_child([&] {
          for (double edges : {0.0, 1.5}) {
            if (add_up(scheduler, edges) != right_sum) return 2;
          }
          run(*used, [](NodeId, int) { work_a_little(); });
          std::atomic<int> items{0};
          parallel_for(*scheduler, 100, [&](std::size_t, int) { ++items; });
          if (items != 100) return 3;
          if (warnings != (scheduler->threads() > 1 ? 1 : 0)) return 4;
          used.reset();  // destroying what holds on to oneTBB must not hang either
          scheduler.reset();
          if (!shutdown()) return 5;
          return 0;
        });
        if (code != 0) std::exit(code);
        std::exit(add_up(scheduler, 1.5) == right_sum ? 0 : 6);  // the parent is as before
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FreshProcess, ShutdownEndsTheWorkersAndRuntimesStayUsable) {
  EXPECT_EXIT(
      {
        const int before = thread_count();
        if (!shutdown()) std::exit(1);  // before any use
        const auto scheduler = two_threads();
        Execution execution(random_graph(3, 40, 1.5), scheduler, false);
        for (int round = 0; round < 3; ++round) {
          run(execution, [](NodeId, int) { work_a_little(); });
          if (add_up(scheduler, 0) != right_sum) std::exit(2);
          if (!shutdown()) std::exit(3);
          // ThreadSanitizer starts a thread of its own beside the first one of ours.
          if (!graph::thread_sanitizer && thread_count() != before) std::exit(4);
        }
        if (add_up(scheduler, 1.5) != right_sum) std::exit(5);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

double process_cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

TEST(Graph, WorkersDoNotSpinAfterTheCall) {
  const auto scheduler = two_threads();
  for (double edges : {0.0, 1.5}) {
    ASSERT_EQ(add_up(scheduler, edges), right_sum);
    const double before = process_cpu_ms();
    std::this_thread::sleep_for(std::chrono::seconds(1));
#if defined(POLYHEAD_TEST_SANITIZED)
    EXPECT_LT(process_cpu_ms() - before, 200);  // the sanitizer's own thread counts too
#else
    EXPECT_LT(process_cpu_ms() - before, 20);  // a busy machine makes going to sleep dear, spinning takes hundreds
#endif
  }
}

#if defined(POLYHEAD_TBB)
TEST(Graph, WorkersArePinnedAndSetFreeAgain) {
  const std::vector<int> allowed = platform::allowed_cpus();
  RuntimeOptions options;
  options.threads = 3;
  options.cpu_set = {allowed.back()};
  const auto scheduler = Scheduler::create(options);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> unpinned{0};
  for (int repeat = 0; repeat < 20; ++repeat) {
    parallel_for(*scheduler, 64, [&](std::size_t, int) {
      work_a_little(20000);
      if (std::this_thread::get_id() != caller && platform::allowed_cpus() != options.cpu_set) ++unpinned;
    });
  }
  EXPECT_EQ(unpinned, 0);
  EXPECT_EQ(platform::allowed_cpus(), allowed);
  const auto other = two_threads();
  std::atomic<int> still_pinned{0};
  for (int repeat = 0; repeat < 20; ++repeat) {
    parallel_for(*other, 64, [&](std::size_t, int) {
      work_a_little(20000);
      if (platform::allowed_cpus() != allowed) ++still_pinned;
    });
  }
  EXPECT_EQ(still_pinned, 0);
}

TEST(Graph, ACpuThatCannotBeHadIsAWarning) {
  std::mutex mutex;
  std::set<std::string> messages;
  RuntimeOptions options;
  options.threads = 2;
  options.cpu_set = {60000};
  options.log = [&](LogLevel level, const char* message) {
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(level, LogLevel::warning);
    EXPECT_TRUE(messages.insert(message).second) << "said twice: " << message;
  };
  const auto scheduler = Scheduler::create(options);
  std::set<std::thread::id> threads;
  for (int repeat = 0; repeat < 200 && threads.size() < 2; ++repeat) {
    parallel_for(*scheduler, 64, [&](std::size_t, int) {
      work_a_little(20000);
      const std::lock_guard<std::mutex> lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
  }
  if (threads.size() < 2) GTEST_SKIP() << "no worker came";
  const std::lock_guard<std::mutex> lock(mutex);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages.begin()->find("60000"), std::string::npos);
}
#endif
#endif  // __linux__

// ---- inside a host that uses oneTBB itself

#if defined(POLYHEAD_TBB)

namespace tbb = oneapi::tbb;

// ThreadSanitizer can't see how oneTBB hands work over (tests/support/tsan.supp); in these tests the host's work is handed over
// too.
class HostWithTbb : public ::testing::Test {
 protected:
  void SetUp() override {
    if (graph::thread_sanitizer) GTEST_SKIP() << "the host's oneTBB is opaque to ThreadSanitizer";
  }
};

// An outer loop of 64 calls, each with 64 inner items, with a lock of the host held around the call: if a waiting thread took
// up another outer iteration, it would want a lock that it holds itself.
TEST_F(HostWithTbb, OuterLoopOfAHostThatHoldsALock) {
  for (bool calling_arena : {false, true}) {
    for (int host_threads : {1, 2, 6}) {
      RuntimeOptions options;
      options.threads = calling_arena ? 0 : 2;
      options.use_calling_arena = calling_arena;
      std::mutex host_lock;
      std::atomic<int> sum{0};
      tbb::task_arena host(host_threads);
      host.execute([&] {
        const auto scheduler = Scheduler::create(options);
        std::vector<std::unique_ptr<Execution>> executions;
        for (int i = 0; i < 64; ++i) {
          executions.push_back(std::make_unique<Execution>(random_graph(i, 64, i % 2 == 0 ? 0 : 1.3), scheduler, false));
        }
        tbb::parallel_for(0, 64, [&](int call) {
          const std::lock_guard<std::mutex> lock(host_lock);
          run(*executions[static_cast<std::size_t>(call)], [&](NodeId, int) {
            work_a_little();
            ++sum;
          });
        });
      });
      EXPECT_EQ(sum, 64 * 64) << "calling arena: " << calling_arena << ", host threads: " << host_threads;
    }
  }
}

TEST_F(HostWithTbb, CallingArenaOfAnySize) {
  RuntimeOptions options;
  options.use_calling_arena = true;
  const auto scheduler = Scheduler::create(options);
  const auto made = random_graph(29, 100, 1.3);
  Execution execution(made, scheduler, false);
  for (int size : {1, 2, 3, 64}) {
    tbb::task_arena host(size);
    Witness witness(*made, scheduler->slots());
    host.execute([&] {
      run(execution, [&](NodeId node, int slot) {
        witness.enter(node, slot);
        work_a_little();
        witness.leave(node, slot);
      });
    });
    witness.expect_right("arena of " + std::to_string(size));
  }
}

// A host that cancels its own group gets our call's whole result or none, never a silent half.
TEST_F(HostWithTbb, TheHostsCancellationIsNotOurs) {
  RuntimeOptions options;
  options.use_calling_arena = true;
  const auto scheduler = Scheduler::create(options);
  Execution execution(random_graph(31, 50, 1.3), scheduler, false);
  std::atomic<int> bodies{0};
  tbb::task_group_context context;
  tbb::task_group group(context);
  group.run([&] {
    context.cancel_group_execution();
    run(execution, [&](NodeId, int) { ++bodies; });
  });
  group.wait();
  EXPECT_EQ(bodies, 50);
}

#endif

}  // namespace
}  // namespace polyhead
