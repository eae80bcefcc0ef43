// Threads: concurrent runs, the host's executor and arena, cancellation, nesting, fork, the life of plans and runtimes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "graph/thread_sanitizer.hpp"
#include "support/attention_case.hpp"
#if POLYHEAD_TBB
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace polyhead::testing {
namespace {

// Ends the program when a deadlock would hold it.
class TimeLimit {
 public:
  explicit TimeLimit(unsigned seconds) { alarm(seconds); }
  ~TimeLimit() { alarm(0); }
};

// A host's pool: threads that are made for each call, or none.
struct HostPool {
  int threads = 1;
  std::atomic<int> calls{0};
  std::atomic<bool> fail{false};
  std::atomic<bool>* set_at_first_call = nullptr;

  static void parallel_for(void* context, std::size_t count, void (*function)(void*, std::size_t), void* argument) {
    auto* const self = static_cast<HostPool*>(context);
    ++self->calls;
    if (self->fail) throw std::runtime_error("the host's pool is closed");
    if (self->set_at_first_call != nullptr) *self->set_at_first_call = true;
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < count; i = next++) function(argument, i);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < self->threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }
  Executor executor() {
    Executor result;
    result.context = this;
    result.parallel_for = parallel_for;
    result.concurrency = threads;
    return result;
  }
};

class ThreadsTest : public EveryIsa {
 protected:
  Runtime runtime_with(HostPool& pool) const {
    RuntimeOptions options;
    options.executor = pool.executor();
    options.isa = isa();
    return Runtime(options);
  }
  static std::vector<AttentionCase> cases() {
    Random random(3);
    std::vector<AttentionCase> all;
    all.push_back(
        make_case(attention_spec(3, 4, 2, 70, 70, 16, 16, Mask::causal(Causal::bottom_right) & Mask::key_lengths()), random));
    all.push_back(make_case(attention_spec(1, 8, 2, 1, 3000, 16, 16), random));
    all.push_back(make_case(attention_spec(2, 2, 2, 5, 9, 8, 8, Mask::boolean()), random));
    all.push_back(make_case(attention_spec(1, 2, 1, 300, 150, 32, 32, Mask::bias()), random));
    return all;
  }
};

TEST_P(ThreadsTest, RunsOfOnePlanAtTheSameTime) {
  const TimeLimit limit(120);
  for (const int threads : {1, 2}) {
    const AttentionSpec most = attention_spec(3, 4, 2, 40, 500, 16, 16, Mask::key_lengths());
    const AttentionPlan plan(most, runtime(threads));
    constexpr int callers = 8, rounds = 25;
    struct Caller {
      std::vector<AttentionCase> tests;
      std::vector<Tensor> right;
      int wrong = 0;
      std::string error;
    };
    std::vector<Caller> all(callers);
    for (int i = 0; i < callers; ++i) {
      Random random(static_cast<std::uint64_t>(100 + i));
      for (int j = 0; j < 4; ++j) {
        const auto spec =
            attention_spec(random.integer(1, 3), 4, 2, random.integer(1, 40), random.integer(1, 500), 16, 16, most.mask);
        all[static_cast<std::size_t>(i)].tests.push_back(make_case(spec, random));
        all[static_cast<std::size_t>(i)].right.push_back(run_fresh(all[static_cast<std::size_t>(i)].tests.back(), runtime(1)));
      }
    }
    std::vector<std::thread> running;
    for (Caller& caller : all)
      running.emplace_back([&plan, &caller] {
        try {
          for (int round = 0; round < rounds; ++round)
            for (std::size_t j = 0; j < caller.tests.size(); ++j) {
              fill(caller.tests[j].out, 7.0);
              plan.run(caller.tests[j].inputs());
              caller.wrong += !same_bits(caller.right[j], caller.tests[j].out);
            }
        } catch (const std::exception& error) {
          caller.error = error.what();
        }
      });
    for (std::thread& thread : running) thread.join();
    for (const Caller& caller : all) {
      EXPECT_EQ(caller.error, "");
      EXPECT_EQ(caller.wrong, 0) << "threads " << threads;
    }
  }
}

TEST_P(ThreadsTest, OneCallsFromManyThreadsWithDifferentShapes) {
  const TimeLimit limit(120);
  std::vector<std::thread> running;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 8; ++i)
    running.emplace_back([this, i, &wrong] {
      Random random(static_cast<std::uint64_t>(i));
      for (int round = 0; round < 20; ++round) {
        AttentionCase test = make_case(attention_spec(1, 2, 1, random.integer(1, 9), random.integer(1, 60), 8, 8), random);
        attention(runtime(2), test.inputs(), test.options());
        if (!attention_matches(oracle::attention(test.inputs(), test.options()), test.out, "")) ++wrong;
      }
    });
  for (std::thread& thread : running) thread.join();
  EXPECT_EQ(wrong, 0);
}

// ---- the host's executor

TEST_P(ThreadsTest, AHostsExecutorGivesTheSameBits) {
  for (const AttentionCase& test : cases()) {
    const Tensor right = run_fresh(test, runtime(1));
    for (const int threads : {1, 2, 4}) {
      HostPool pool;
      pool.threads = threads;
      const Runtime host = runtime_with(pool);
      EXPECT_EQ(host.threads(), threads);
      const Tensor out = run_fresh(test, host);
      EXPECT_TRUE(same_bits(right, out)) << threads << " host threads, " << test.describe() << ": "
                                         << first_difference(right, out);
    }
  }
}

TEST_P(ThreadsTest, AHostsExecutorIsUsedForLargeWork) {
  Random random(5);
  const AttentionCase test = make_case(attention_spec(4, 8, 8, 256, 256, 64, 64), random);
  HostPool pool;
  pool.threads = 2;
  run_fresh(test, runtime_with(pool));
  EXPECT_GT(pool.calls, 0);
}

TEST_P(ThreadsTest, AnExceptionOfTheHostsExecutorReachesTheCallerAndThePlanStaysUsable) {
  Random random(7);
  const AttentionCase test = make_case(attention_spec(4, 8, 8, 256, 256, 64, 64), random);
  HostPool pool;
  pool.threads = 2;
  const Runtime host = runtime_with(pool);
  const AttentionPlan plan(test.spec, host);
  plan.run(test.inputs());
  const Tensor right = test.out.clone();
  pool.fail = true;
  EXPECT_THROW(plan.run(test.inputs()), std::exception);
  pool.fail = false;
  for (int repeat = 0; repeat < 3; ++repeat) {
    fill(test.out, 7.0);
    plan.run(test.inputs());
    EXPECT_TRUE(same_bits(right, test.out));
  }
}

TEST_P(ThreadsTest, ACancelInsideTheHostsExecutorReachesTheCaller) {
  Random random(9);
  const AttentionCase test = make_case(attention_spec(4, 8, 8, 256, 256, 64, 64), random);
  HostPool pool;
  pool.threads = 2;
  std::atomic<bool> cancel{false};
  pool.set_at_first_call = &cancel;
  const Runtime host = runtime_with(pool);
  const AttentionPlan plan(test.spec, host);
  RunOptions options;
  options.cancel = &cancel;
  try {
    plan.run(test.inputs(), options);
    ADD_FAILURE() << "not cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled) << error.what();
  }
  pool.set_at_first_call = nullptr;
  plan.run(test.inputs());
  EXPECT_TRUE(same_bits(run_fresh(test, runtime(1)), test.out));
}

// ---- arenas

TEST_P(ThreadsTest, TheCallingThreadsArenaGivesTheSameBits) {
  RuntimeOptions options;
  options.use_calling_arena = true;
  options.isa = isa();
  const Runtime calling(options);
  for (const AttentionCase& test : cases()) {
    const Tensor right = run_fresh(test, runtime(1));
    EXPECT_TRUE(same_bits(right, run_fresh(test, calling))) << test.describe();
#if POLYHEAD_TBB
    for (const int threads : {1, 2, 3}) {
      tbb::task_arena arena(threads);
      Tensor out;
      arena.execute([&] { out = run_fresh(test, calling); });
      EXPECT_TRUE(same_bits(right, out)) << threads << " threads in the arena, " << test.describe();
    }
#endif
  }
}

#if POLYHEAD_TBB
// A host that calls from inside its own parallel loop and holds a lock meanwhile: while a call waits, its thread must not take
// up another iteration of the host's loop, which wants the same lock.
TEST_P(ThreadsTest, CallsInsideAHostsLoopUnderAHostsLock) {
  if (graph::thread_sanitizer) GTEST_SKIP() << "the host's oneTBB is opaque to ThreadSanitizer";
  const TimeLimit limit(120);
  Random random(11);
  const AttentionCase test = make_case(attention_spec(1, 64, 64, 20, 40, 16, 16), random);
  const Tensor right = run_fresh(test, runtime(1));
  RuntimeOptions options;
  options.use_calling_arena = true;
  options.isa = isa();
  const Runtime calling(options);
  for (const int threads : {1, 2, 4}) {
    tbb::task_arena arena(threads);
    for (const Runtime& any : {calling, runtime(2)}) {
      const AttentionPlan plan(test.spec, any);
      std::mutex lock;
      std::atomic<int> wrong{0};
      arena.execute([&] {
        tbb::parallel_for(0, 64, [&](int) {
          const std::lock_guard<std::mutex> hold(lock);
          fill(test.out, 7.0);
          plan.run(test.inputs());
          wrong += !same_bits(right, test.out);
        });
      });
      EXPECT_EQ(wrong, 0);
    }
  }
}

TEST_P(ThreadsTest, CallsInsideAHostsLoopAtTheSameTime) {
  if (graph::thread_sanitizer) GTEST_SKIP() << "the host's oneTBB is opaque to ThreadSanitizer";
  const TimeLimit limit(120);
  RuntimeOptions options;
  options.use_calling_arena = true;
  options.isa = isa();
  const Runtime calling(options);
  const AttentionSpec spec = attention_spec(1, 16, 16, 20, 40, 16, 16);
  std::vector<AttentionCase> tests;
  std::vector<Tensor> right;
  for (std::uint64_t i = 0; i < 64; ++i) {
    Random random(i);
    tests.push_back(make_case(spec, random));
    right.push_back(run_fresh(tests.back(), runtime(1)));
  }
  for (const int threads : {1, 2, 4}) {
    tbb::task_arena arena(threads);
    const AttentionPlan plan(spec, calling);
    arena.execute(
        [&] { tbb::parallel_for(std::size_t{0}, tests.size(), [&](std::size_t i) { plan.run(tests[i].inputs()); }); });
    for (std::size_t i = 0; i < tests.size(); ++i) {
      ASSERT_TRUE(same_bits(right[i], tests[i].out)) << i;
      fill(tests[i].out, 7.0);
    }
  }
}
#endif

// ---- cancellation

TEST_P(ThreadsTest, ACancelledRunSaysSoAndThePlanStaysUsable) {
  for (const AttentionCase& test : cases())
    for (const int threads : {1, 2}) {
      const AttentionPlan plan(test.spec, runtime(threads));
      std::atomic<bool> cancel{true};
      RunOptions options;
      options.cancel = &cancel;
      try {
        plan.run(test.inputs(), options);
        ADD_FAILURE() << "not cancelled, " << test.describe();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::cancelled) << error.what();
      }
      cancel = false;
      plan.run(test.inputs(), options);
      EXPECT_TRUE(same_bits(run_fresh(test, runtime(1)), test.out)) << test.describe();
    }
}

TEST_P(ThreadsTest, CancellingFromAnotherThreadEndsALongRunEarly) {
  using Clock = std::chrono::steady_clock;
  Random random(13);
  const std::int64_t length = slow() ? 300 : 1500;
  const AttentionCase test = make_case(attention_spec(2, 4, 4, length, length, 64, 64), random);
  for (const int threads : {1, 2}) {
    const AttentionPlan plan(test.spec, runtime(threads));
    auto begin = Clock::now();
    plan.run(test.inputs());
    const auto whole = Clock::now() - begin;
    bool cancelled = false;
    auto shortest = whole;
    for (int attempt = 0; attempt < 5; ++attempt) {
      std::atomic<bool> cancel{false};
      RunOptions options;
      options.cancel = &cancel;
      begin = Clock::now();
      std::thread other([&] {
        std::this_thread::sleep_for(whole / 20);
        cancel = true;
      });
      try {
        plan.run(test.inputs(), options);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::cancelled) << error.what();
        cancelled = true;
        shortest = std::min(shortest, Clock::now() - begin);
      }
      other.join();
    }
    EXPECT_TRUE(cancelled) << "threads " << threads;
    EXPECT_LT(shortest, whole * 0.7) << "threads " << threads;
  }
}

// ---- lives

TEST_P(ThreadsTest, APlanOutlivesItsRuntimeAndItsCopies) {
  Random random(15);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 70, 90, 16, 16), random);
  const Tensor right = run_fresh(test, runtime(1));
  std::unique_ptr<AttentionPlan> kept;
  {
    RuntimeOptions options;
    options.isa = isa();
    options.threads = 2;
    const Runtime passing(options);
    const AttentionPlan first(test.spec, passing);
    kept = std::make_unique<AttentionPlan>(first);
  }
  kept->run(test.inputs());
  EXPECT_TRUE(same_bits(right, test.out));
}

TEST_P(ThreadsTest, RunsAfterShutdownStartWorkersAgain) {
  Random random(17);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 200, 200, 32, 32), random);
  const Tensor right = run_fresh(test, runtime(1));
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_TRUE(same_bits(right, run_fresh(test, runtime(2))));
    EXPECT_TRUE(shutdown());
  }
  EXPECT_TRUE(same_bits(right, run_fresh(test, runtime(2))));
}

std::size_t threads_of_this_process() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    (void)entry;
    ++count;
  }
  return count;
}

TEST_P(ThreadsTest, OneThreadStartsNone) {
  Random random(19);
  const AttentionCase test = make_case(attention_spec(2, 4, 4, 200, 200, 32, 32), random);
  shutdown();
  const std::size_t before = threads_of_this_process();
  RuntimeOptions options;
  options.isa = isa();
  options.threads = 1;
  run_fresh(test, Runtime(options));
  EXPECT_EQ(threads_of_this_process(), before);
  // Nor does making a runtime and a plan for more.
  options.threads = 2;
  const Runtime two(options);
  const AttentionPlan plan(test.spec, two);
  EXPECT_EQ(threads_of_this_process(), before);
}

#if !defined(__SANITIZE_THREAD__)
TEST_P(ThreadsTest, AChildAfterForkWorksOrSaysThatItCannot) {
  Random random(21);
  const AttentionCase test = make_case(attention_spec(2, 8, 8, 200, 200, 32, 32), random);
  const Tensor right = run_fresh(test, runtime(1));
  for (const int threads : {1, 2}) {
    EXPECT_TRUE(same_bits(right, run_fresh(test, runtime(threads))));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      int status = 1;
      try {
        status = same_bits(right, run_fresh(test, runtime(threads))) ? 0 : 2;
      } catch (const Error& error) {
        status = std::string(error.what()).find("fork") != std::string::npos ? 0 : 3;
      } catch (...) {
        status = 4;
      }
      _exit(status);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "threads " << threads << ", status " << status;
    EXPECT_TRUE(same_bits(right, run_fresh(test, runtime(threads))));
  }
}
#endif

// ---- runtimes

TEST(RuntimeTest, SaysWhatItIs) {
#if POLYHEAD_TBB
  constexpr int threads_of_two = 2;
#else
  constexpr int threads_of_two = 1;  // without oneTBB a runtime of its own has the caller's thread alone
#endif
  for (const Isa isa : available_isas()) {
    EXPECT_EQ(runtime_on(isa, 2).isa(), isa);
    EXPECT_EQ(runtime_on(isa, 2).threads(), threads_of_two);
    EXPECT_EQ(runtime_on(isa, 1).threads(), 1);
    EXPECT_NE(runtime_on(isa).describe().find(name(isa)), std::string::npos);
  }
  EXPECT_EQ(Runtime().isa(), default_isa());
  EXPECT_GE(Runtime().threads(), 1);
}

TEST(RuntimeTest, ExplainsItsPlans) {
  for (const Isa isa : available_isas()) {
    const AttentionPlan plan(attention_spec(2, 4, 2, 100, 200, 64, 64, Mask::causal(Causal::bottom_right)), runtime_on(isa, 2));
    const std::string text = plan.explain();
    EXPECT_NE(text.find(name(isa)), std::string::npos) << text;
    EXPECT_NE(text.find("skip"), std::string::npos) << text;
    EXPECT_NE(text.find("workspace"), std::string::npos) << text;
    EXPECT_EQ(plan.spec().query_length, 100);
    EXPECT_EQ(plan.spec().kv_heads, 2);
    EXPECT_EQ(plan.spec().value_dim, 64);
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(ThreadsTest);

}  // namespace
}  // namespace polyhead::testing
