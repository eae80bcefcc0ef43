// Memory: steady state allocates nothing, a caller's workspace is enough, and running out of memory is an error like others.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/kv_cache.hpp"
#include "polyhead/merge.hpp"
#include "support/attention_case.hpp"
#include "support/malloc_count.hpp"

namespace polyhead::testing {
namespace {

class MemoryTest : public EveryIsa {
 protected:
  void SetUp() override {
    if (!malloc_counting) GTEST_SKIP() << "allocations cannot be counted under a sanitizer or without glibc";
  }
  std::vector<AttentionCase> cases() const {
    Random random(3);
    std::vector<AttentionCase> all;
    for (const std::int64_t query_length : {1, 3, 40, slow() ? 41 : 150})
      for (const Mask& mask :
           {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::key_lengths(), Mask::boolean() & Mask::bias(),
            Mask::causal(Causal::offset) & Mask::offsets() & Mask::window(30, 4)})
        all.push_back(make_case(attention_spec(2, 4, 2, query_length, slow() ? 70 : 333, 20, 12, mask), random));
    all.push_back(make_case(attention_spec(1, 4, 1, 1, 9000, 16, 16), random));
    for (const Mask& mask :
         {Mask::query_lengths() & Mask::key_lengths() & Mask::causal(Causal::bottom_right),
          Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::bias(), Mask::causal(Causal::top_left) & Mask::prefix(),
          Mask::segments(), Mask::blocks(32, 64), Mask::blocks(3, 50) & Mask::segments() & Mask::boolean()})
      for (const std::int64_t query_length : {1, 90})
        all.push_back(make_case(attention_spec(5, 4, 2, query_length, slow() ? 70 : 5000, 20, 12, mask), random));
    for (const std::int64_t query_length : {1, 40}) {
      AttentionSpec spec = attention_spec(2, 4, 2, query_length, 333, 20, 12);
      spec.softcap = 2.0;
      spec.has_alibi = spec.has_sink = true;
      all.push_back(make_case(spec, random));
    }
    for (const std::int64_t query_length : {1, 40}) {
      AttentionSpec spec = attention_spec(2, 4, 2, query_length, 64, 20, 12, Mask::key_lengths());
      spec.relative_bias = RelativeBias::swin(8, 8);
      all.push_back(make_case(spec, random));
      spec.mask = spec.mask & Mask::causal(Causal::bottom_right);
      spec.relative_bias = RelativeBias::t5();
      all.push_back(make_case(spec, random));
    }
    // Boolean masks that heads share are summarised.
    for (const Mask& mask : {Mask::boolean(), Mask::boolean() & Mask::key_lengths(), Mask::packed() & Mask::boolean()})
      for (const std::int64_t query_length : {1, slow() ? 20 : 700}) {
        AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, slow() ? 300 : 700, 20, 12, mask), random);
        const TensorView& own = test.boolean_mask;
        test.boolean_mask = test.boolean_mask.viewed(slice(own, 1, 0, 1));
        all.push_back(test);
      }
    // Last dimensions that are not contiguous are packed, but not into memory of their own each time.
    AttentionCase packed = make_case(attention_spec(2, 4, 2, 9, 50, 16, 16), random);
    const Tensor* const contiguous[] = {&packed.query, &packed.key, &packed.value, &packed.out};
    Tensor apart[4];
    for (int i = 0; i < 4; ++i) {
      const TensorView& view = *contiguous[i];
      apart[i] = Tensor::ordered(DType::f32, {view.shape.begin(), view.shape.begin() + 4}, {0, 1, 3, 2});
      copy(view, apart[i]);
    }
    packed.query = apart[0], packed.key = apart[1], packed.value = apart[2], packed.out = apart[3];
    all.push_back(packed);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].spec.mask.has_bias) all[i].bias = converted(all[i].bias, bias_dtypes[i % 3]);
    return all;
  }
};

std::uint64_t allocations_of(const std::function<void()>& call, int times) {
  const std::uint64_t before = allocations.load();
  for (int i = 0; i < times; ++i) call();
  return allocations.load() - before;
}

std::uint64_t bytes_of(const std::function<void()>& call) {
  const std::uint64_t before = allocated_bytes.load();
  call();
  return allocated_bytes.load() - before;
}

TEST(MallocCount, SeesEveryKindOfAllocation) {
  if (!malloc_counting) GTEST_SKIP();
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(10)); }, 5), 5u);
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(64, std::align_val_t{64}), std::align_val_t{64}); }, 5), 5u);
  EXPECT_EQ(allocations_of([] { std::free(std::calloc(3, 4)); }, 5), 5u);
  EXPECT_EQ(allocations_of([] { std::free(std::aligned_alloc(64, 64)); }, 5), 5u);
  EXPECT_EQ(bytes_of([] { ::operator delete(::operator new(1000)); }), 1000u);
  EXPECT_EQ(bytes_of([] { std::free(std::calloc(30, 40)); }), 1200u);
  EXPECT_EQ(bytes_of([] { std::free(std::aligned_alloc(64, 640)); }), 640u);
  fail_allocation_in = 1;
  void* const failed = std::malloc(1);
  void* const made = std::malloc(1);
  EXPECT_EQ(failed, nullptr);
  EXPECT_NE(made, nullptr);
  std::free(made);
}

TEST_P(MemoryTest, SteadyStateAllocatesNothingWithOneThread) {
  for (const AttentionCase& test : cases()) {
    const AttentionPlan plan(test.spec, runtime(1));
    const AttentionInputs inputs = test.inputs_with_lse();
    plan.run(inputs);
    EXPECT_EQ(allocations_of([&] { plan.run(inputs); }, 10), 0u) << test.describe();
  }
}

TEST_P(MemoryTest, SteadyStateAllocatesNothingWithTwoThreads) {
  for (const AttentionCase& test : cases()) {
    const AttentionPlan plan(test.spec, runtime(2));
    const AttentionInputs inputs = test.inputs_with_lse();
    // A worker that joins for the first time sets itself up: the warm-up is long enough that all have.
    std::uint64_t left = 0;
    for (int attempt = 0; attempt < 20; ++attempt) {
      left = allocations_of([&] { plan.run(inputs); }, 20);
      if (left == 0) break;
    }
    EXPECT_EQ(left, 0u) << "twenty rounds of twenty runs, and each allocated; " << test.describe();
  }
}

TEST_P(MemoryTest, SmallerShapesOfAPlanAllocateNothing) {
  Random random(5);
  const AttentionPlan plan(attention_spec(4, 4, 2, 50, 400, 16, 16, Mask::key_lengths()), runtime(1));
  std::vector<AttentionCase> shapes;
  for (const std::int64_t batch : {0, 1, 4})
    for (const std::int64_t query_length : {0, 1, 17, 50})
      for (const std::int64_t key_length : {0, 1, 65, 400})
        shapes.push_back(make_case(attention_spec(batch, 4, 2, query_length, key_length, 16, 16, Mask::key_lengths()), random));
  std::vector<AttentionInputs> inputs;
  for (const AttentionCase& test : shapes) inputs.push_back(test.inputs());
  plan.run(inputs.back());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    EXPECT_EQ(allocations_of([&] { plan.run(inputs[i]); }, 2), 0u) << shapes[i].describe();
}

TEST_P(MemoryTest, ACallersWorkspaceIsAllThatARunNeeds) {
  for (const AttentionCase& test : cases()) {
    const AttentionPlan plan(test.spec, runtime(1));
    const Tensor right = run_fresh(test, runtime(1));
    const std::size_t bytes = (plan.workspace_bytes() + 63) / 64 * 64;
    void* const workspace = std::aligned_alloc(64, bytes + 64);
    RunOptions options;
    options.workspace = workspace;
    options.workspace_bytes = bytes;
    const AttentionInputs inputs = test.inputs();
    plan.run(inputs, options);
    EXPECT_EQ(allocations_of([&] { plan.run(inputs, options); }, 5), 0u) << test.describe();
    EXPECT_TRUE(same_bits(right, test.out)) << test.describe();
    std::free(workspace);
  }
}

TEST_P(MemoryTest, TheOneCallFunctionAllocatesNothingOnceItKnowsTheShape) {
  Random random(7);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 20, 60, 16, 16, Mask::causal(Causal::bottom_right)), random);
  const AttentionInputs inputs = test.inputs();
  const AttentionOptions options = test.options();
  for (int i = 0; i < 3; ++i) attention(runtime(1), inputs, options);
  EXPECT_EQ(allocations_of([&] { attention(runtime(1), inputs, options); }, 10), 0u);
}

// Each allocation that a call makes on its thread fails in turn: an error comes out, nothing is left behind, the next call is
// right.
TEST_P(MemoryTest, RunningOutOfMemoryIsAnErrorAndLeavesEverythingUsable) {
  Random random(9);
  for (const int threads : {1, 2}) {
    const AttentionCase test = make_case(attention_spec(2, 4, 2, 40, 300, 16, 16, Mask::key_lengths()), random);
    const Tensor right = run_fresh(test, runtime(threads));
    const AttentionInputs inputs = test.inputs();
    int failures = 0;
    for (int nth = 1; nth < 2000; ++nth) {
      bool failed = false;
      fail_allocation_in = nth;
      try {
        const AttentionPlan plan(test.spec, runtime(threads));
        plan.run(inputs);
      } catch (const Error& error) {
        failed = true;
        fail_allocation_in = 0;
        EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
      } catch (const std::bad_alloc&) {
        failed = true;
        fail_allocation_in = 0;
        ADD_FAILURE() << "allocation " << nth << ": std::bad_alloc instead of Error";
      }
      const bool reached = fail_allocation_in == 0;
      fail_allocation_in = 0;
      failures += failed;
      if (!reached) break;  // the call needs fewer allocations than this
      EXPECT_TRUE(same_bits(right, run_fresh(test, runtime(threads)))) << "after failing allocation " << nth;
    }
    EXPECT_GT(failures, 0);
  }
}

TEST_P(MemoryTest, RunningOutOfMemoryInARunLeavesThePlanUsable) {
  Random random(11);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 40, 300, 16, 16), random);
  const Tensor right = run_fresh(test, runtime(1));
  const AttentionInputs inputs = test.inputs();
  for (int nth = 1; nth < 200; ++nth) {
    const AttentionPlan plan(test.spec, runtime(1));
    fail_allocation_in = nth;
    try {
      plan.run(inputs);
    } catch (const Error& error) {
      fail_allocation_in = 0;
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
    }
    const bool reached = fail_allocation_in == 0;
    fail_allocation_in = 0;
    fill(test.out, 7.0);
    plan.run(inputs);
    EXPECT_TRUE(same_bits(right, test.out)) << "after failing allocation " << nth;
    if (!reached) break;
  }
}

// The same of the other entries: the one-call function, packed sequences, weights, merging, attention over a cache.
TEST_P(MemoryTest, RunningOutOfMemoryInAnyEntryIsAnErrorAndLeavesTheRuntimeUsable) {
  Random random(13);
  for (const int threads : {1, 2}) {
    RuntimeOptions options;
    options.isa = isa();
    options.threads = threads;
    // Strided, so that a call has packing to do as well.
    AttentionCase test = make_case(attention_spec(3, 4, 2, 17, 90, 16, 16, Mask::causal(Causal::bottom_right)), random);
    const Tensor apart = Tensor::ordered(DType::f32, {3, 2, 90, 16}, {0, 1, 3, 2});
    copy(test.key, apart);
    test.key = apart;
    AttentionCase packed = make_case(attention_spec(4, 4, 2, 9, 60, 16, 16, Mask::packed()), random);
    const Tensor weights(DType::f32, {3, 4, 17, 90}), merged(DType::f32, {3, 4, 17, 16}), merged_lse(DType::f32, {3, 4, 17});
    const Tensor packed_ends = integers(DType::i64, {0, 3, 9, 17}), packed_out(DType::f32, {1, 4, 17, 16});
    KvCacheSpec cache_spec;
    cache_spec.kind = CacheKind::paged;
    cache_spec.sequences = 3, cache_spec.kv_heads = 2, cache_spec.head_dim = 16, cache_spec.page_tokens = 8;
    KvCache cache(cache_spec);
    CacheAppend tokens;
    tokens.key = test.key, tokens.value = test.value;
    cache.append(tokens);
    struct Entry {
      const char* name;
      std::function<void(const Runtime&)> call;
      const Tensor* result;
    };
    const Entry entries[] = {
        {"attention", [&](const Runtime& runtime) { attention(runtime, test.inputs_with_lse(), test.options()); }, &test.out},
        {"packed attention", [&](const Runtime& runtime) { attention(runtime, packed.inputs(), packed.options()); },
         &packed.out},
        {"attention_weights",
         [&](const Runtime& runtime) {
           AttentionWeightsRequest request;
           request.weights = weights;
           attention_weights(runtime, test.inputs(), test.options(), request);
         },
         &weights},
        {"attention_weights over a cache",
         [&](const Runtime& runtime) {
           CachedAttentionInputs inputs;
           inputs.cache = &cache, inputs.query = test.query;
           AttentionWeightsRequest request;
           request.weights = weights;
           attention_weights(runtime, inputs, cached_attention_options(), request);
         },
         &weights},
        {"merge",
         [&](const Runtime& runtime) {
           MergeInputs inputs;
           inputs.out1 = inputs.out2 = test.out, inputs.lse1 = inputs.lse2 = test.lse;
           inputs.out = merged, inputs.lse = merged_lse;
           merge(runtime, inputs);
         },
         &merged},
        {"packed attention over a cache",
         [&](const Runtime& runtime) {
           CachedAttentionInputs inputs;
           inputs.cache = &cache, inputs.query = slice(test.query, 0, 0, 1), inputs.out = packed_out;
           inputs.cumulative_query_lengths = packed_ends;
           AttentionOptions causal = cached_attention_options();
           causal.mask.is_packed = true;
           attention(runtime, inputs, causal);
         },
         &packed_out},
        {"attention over a cache",
         [&](const Runtime& runtime) {
           CachedAttentionInputs inputs;
           inputs.cache = &cache, inputs.query = test.query, inputs.out = test.out;
           attention(runtime, inputs);
         },
         &test.out},
    };
    for (const Entry& entry : entries) {
      entry.call(runtime(threads));
      const Tensor right = entry.result->clone();
      int failures = 0;
      for (int nth = 1; nth < 500; ++nth) {
        const Runtime fresh(options);  // one that knows no plan yet
        bool failed = false;
        fail_allocation_in = nth;
        try {
          entry.call(fresh);
        } catch (const Error& error) {
          fail_allocation_in = 0;
          failed = true;
          EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << entry.name << ": " << error.what();
        } catch (const std::exception& error) {
          fail_allocation_in = 0;
          failed = true;
          ADD_FAILURE() << entry.name << ", allocation " << nth << ": " << error.what() << " instead of Error";
        }
        const bool reached = fail_allocation_in == 0;
        fail_allocation_in = 0;
        failures += failed;
        fill(*entry.result, 7.0);
        entry.call(fresh);
        ASSERT_TRUE(same_bits(right, *entry.result)) << entry.name << " after failing allocation " << nth;
        if (!reached) break;  // the call needs fewer allocations than this
      }
      // Merging needs no memory where one thread does it.
      if (entry.result != &merged) {
        EXPECT_GT(failures, 0) << entry.name;
      }
    }
  }
}

// Nor is it anything but an Error where a text or a list is asked for.
TEST_P(MemoryTest, RunningOutOfMemoryInAQuestionIsAnError) {
  const Runtime& asked = runtime(1);
  const AttentionPlan plan(attention_spec(2, 4, 2, 40, 300, 16, 16), asked);
  const TensorView view(nullptr, DType::f32, {2, 4, 0, 16});
  const std::pair<const char*, std::function<void()>> questions[] = {
      {"available_isas", [] { (void)available_isas(); }},       {"default_isa", [] { (void)default_isa(); }},
      {"Runtime::describe", [&] { (void)asked.describe(); }},   {"AttentionPlan::explain", [&] { (void)plan.explain(); }},
      {"TensorView::describe", [&] { (void)view.describe(); }},
  };
  for (const auto& [what, question] : questions) {
    int failures = 0;
    for (int nth = 1;; ++nth) {
      ASSERT_LT(nth, 1000) << what;
      fail_allocation_in = nth;
      try {
        question();
      } catch (const Error& error) {
        fail_allocation_in = 0;
        EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << what << ": " << error.what();
        ++failures;
        continue;
      } catch (const std::exception& error) {
        fail_allocation_in = 0;
        ADD_FAILURE() << what << ", allocation " << nth << ": " << error.what() << " instead of Error";
        ++failures;
        continue;
      }
      const bool reached = fail_allocation_in == 0;
      fail_allocation_in = 0;
      if (!reached) break;
    }
    EXPECT_GT(failures, 0) << what << " allocates nothing, and this test shows nothing";
  }
}

// Weights take memory for what is asked for and, for each thread, a megabyte or a row of weights. All bytes of a call are
// counted, those of its plan among them, so that no more of them are ever there at once.
TEST_P(MemoryTest, WeightsTakeNoMoreMemoryThanARequestSays) {
  if (!malloc_counting) GTEST_SKIP();
  constexpr std::uint64_t row_or_megabyte = 1 << 20, identity = 256 * 256 * sizeof(float);
  // A thread's scratch of the kernel, a block of unnormalised weights, lists that say what is chosen, texts.
  constexpr std::uint64_t small = 1 << 20;
  Random random(17);
  const auto bytes_for = [&](std::int64_t heads, std::int64_t queries, std::int64_t keys, DType dtype, int threads,
                             const std::vector<std::int64_t>& rows) {
    AttentionSpec spec = attention_spec(1, heads, 1, 1, 1, 8, 8, Mask::causal(Causal::bottom_right));
    spec.dtype = dtype;
    AttentionCase test = make_case(spec, random);
    // One row of numbers stands for every query and every key: no test needs the memory that the library must not take.
    AttentionInputs inputs = test.inputs();
    const Tensor key(dtype, {1, 1, keys, 8});
    fill_normal(key, random);
    inputs.query = expanded(inputs.query, 2, queries), inputs.key = key;
    const Tensor head = integers(DType::i32, {heads - 1}), chosen = integers(DType::i64, rows);
    const Tensor weights(DType::f32, {1, 1, static_cast<std::int64_t>(rows.size()), keys}), received(DType::f32, {1, 1, keys});
    AttentionWeightsRequest request;
    request.heads = head, request.rows = chosen, request.weights = weights;
    const Runtime& used = runtime(threads);
    attention_weights(used, inputs, test.options(), request);  // threads that come for the first time
    const std::uint64_t bytes = bytes_of([&] { attention_weights(used, inputs, test.options(), request); });
    double sum = 0;
    for (std::int64_t s = 0; s < keys; ++s) sum += weights({0, 0, 0, s});
    EXPECT_NEAR(sum, 1, 1e-4);
    // What keys receive costs a row of doubles more.
    request.weights = TensorView(), request.received = received;
    const std::uint64_t more = bytes_of([&] { attention_weights(used, inputs, test.options(), request); });
    EXPECT_LE(more, bytes + static_cast<std::uint64_t>(threads) * static_cast<std::uint64_t>(keys) * sizeof(double) + 4096);
    return bytes;
  };
  const std::int64_t longest = slow() ? 20000 : 100000;
  for (const DType dtype : attention_dtypes()) {
    for (const int threads : {1, 2}) {
      const std::uint64_t most = identity + static_cast<std::uint64_t>(threads) * (row_or_megabyte + small);
      // Neither the number of queries nor that of heads counts, when one row of one head is wanted.
      const std::uint64_t few = bytes_for(2, 10, 300, dtype, threads, {7});
      const std::uint64_t spare = threads == 1 ? 0 : 65536;  // of the scheduler's own
      EXPECT_LE(bytes_for(2, 1000000, 300, dtype, threads, {999999}), few + spare);
      EXPECT_LE(bytes_for(64, 1000000, 300, dtype, threads, {999999}), few + spare);
      EXPECT_LE(few, most);
      EXPECT_LE(bytes_for(64, 1000000, longest, dtype, threads, {999999}), most);
      if (threads == 1) {
        EXPECT_LE(bytes_for(64, 1000000, longest, dtype, threads, {999999, 5, 6, 7, 123456}), most);
      }
    }
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA(MemoryTest);

}  // namespace
}  // namespace polyhead::testing
