// Memory of caches: steady state allocates nothing but pages and takes time by the length, and an allocation that fails leaves
// the cache as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cache/cache_model.hpp"
#include "dispatch/kernel_table.hpp"
#include "polyhead/attention.hpp"
#include "polyhead/error.hpp"
#include "support/attention_case.hpp"
#include "support/environment.hpp"
#include "support/malloc_count.hpp"

namespace polyhead::testing {
namespace {

std::uint64_t allocations_of(const std::function<void()>& call) {
  const std::uint64_t before = allocations.load();
  call();
  return allocations.load() - before;
}

// One decoding step: a token for each of two sequences, its queries turned, attention over everything so far.
class Decoder {
 public:
  Decoder(const KvCacheSpec& spec, std::int64_t plan_key_length)
      : cache(spec),
        key_(DType::f32, {2, spec.kv_heads, 1, spec.head_dim}),
        value_(DType::f32, {2, spec.kv_heads, 1, spec.value_dim}),
        query_(DType::f32, {2, 2 * spec.kv_heads, 1, spec.head_dim}),
        turned_(DType::f32, {2, 2 * spec.kv_heads, 1, spec.head_dim}),
        out(DType::f32, {2, 2 * spec.kv_heads, 1, spec.value_dim}),
        plan_(plan_spec(spec, plan_key_length), runtime_on(default_isa(), 1)) {
    Random random(41);
    fill_normal(key_, random), fill_normal(value_, random), fill_normal(query_, random);
    tokens_.key = key_;
    tokens_.value = value_;
    inputs_.cache = &cache;
    inputs_.query = turned_;
    inputs_.out = out;
  }

  void append() { cache.append(tokens_); }
  void attend() {
    cache.rotate_queries(query_, turned_);
    plan_.run(inputs_);
  }

  KvCache cache;

 private:
  static AttentionSpec plan_spec(const KvCacheSpec& cache, std::int64_t key_length) {
    AttentionSpec spec;
    spec.batch = 2;
    spec.heads = 2 * cache.kv_heads;
    spec.kv_heads = cache.kv_heads;
    spec.query_length = 1;
    spec.key_length = key_length;
    spec.head_dim = cache.head_dim;
    spec.value_dim = cache.value_dim;
    spec.key_dtype = cache.dtype;
    spec.mask = Mask::causal(Causal::bottom_right) & Mask::key_lengths();
    return spec;
  }
  Tensor key_, value_, query_, turned_;

 public:
  Tensor out;

 private:
  AttentionPlan plan_;
  CacheAppend tokens_;
  CachedAttentionInputs inputs_;
};

class KvCacheMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!malloc_counting) GTEST_SKIP() << "allocations cannot be counted under a sanitizer or without glibc";
  }
};

constexpr std::int64_t steps = emulated ? 3000 : 10000;

// Over caches of every type.
class KvCacheSteps : public KvCacheMemory, public ::testing::WithParamInterface<DType> {};

constexpr std::int64_t page_tokens = 64;

KvCacheSpec stepping_spec(DType dtype) {
  KvCacheSpec spec = cache_spec(CacheKind::paged, 2, 1, 64, 64, 0, page_tokens);
  spec.rotary.style = Rotary::half_split;
  spec.dtype = dtype;
  return spec;
}

// The slope of the line through 0 that fits time by length best, of the steps from `begin` on: the shortest time of every
// fifty, since others may have the CPU in between.
double slope_of(const std::vector<double>& seconds, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t together = 50;
  double products = 0, squares = 0;
  for (std::int64_t i = begin; i + together <= end; i += together) {
    const double length = static_cast<double>(i) + 0.5 * static_cast<double>(together);
    products += length * *std::min_element(seconds.begin() + i, seconds.begin() + i + together);
    squares += length * length;
  }
  return products / squares;
}

TEST_P(KvCacheSteps, TenThousandAllocateOnlyWherePagesGrowAndTakeTimeByTheLength) {
  Decoder decoder(stepping_spec(GetParam()), steps);
  decoder.append(), decoder.attend();
  std::vector<double> seconds(static_cast<std::size_t>(steps));  // of the step that finds so many tokens
  std::uint64_t outside = 0, growths = 0;
  for (std::int64_t step = 1; step < steps; ++step) {
    const std::int64_t pages = decoder.cache.pages_in_use();
    const auto before = std::chrono::steady_clock::now();
    const std::uint64_t of_append = allocations_of([&] { decoder.append(); });
    outside += allocations_of([&] { decoder.attend(); });
    seconds[static_cast<std::size_t>(step)] = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    if (decoder.cache.pages_in_use() == pages) {
      outside += of_append;
    } else {
      growths += of_append > 0;
    }
  }
  EXPECT_EQ(outside, 0u);
  EXPECT_GT(growths, 0u) << "the test saw no growth at all";
  // As planned: one page for 64 tokens, in pieces of two megabytes. A token is 64 + 64 elements, of integers with two scales.
  EXPECT_EQ(decoder.cache.pages_in_use(), 2 * ((steps + page_tokens - 1) / page_tokens));
  const std::int64_t token_bytes = 128 * size_in_bytes(GetParam()) + (GetParam() == DType::i8 ? 8 : 0);
  const std::int64_t piece = (2 << 20) / (page_tokens * token_bytes);
  EXPECT_LT(decoder.cache.pages_allocated(), decoder.cache.pages_in_use() + piece);
  if (emulated) return;  // an emulator's time says nothing
  // A step reads the cache once, and no more: the last thousand take as long by their length as the first, or, where these
  // found all of it in a nearer cache of the CPU, a few times that. Time by the square would be 13 times as much.
  const double first = slope_of(seconds, 50, 1000), last = slope_of(seconds, steps - 1000, steps);
  std::printf("    %s: %.2f ns a token in the first thousand steps, %.2f in the last\n", name(GetParam()), 1e9 * first,
              1e9 * last);
  EXPECT_LT(last, 8 * first);
}

INSTANTIATE_TEST_SUITE_P(DType, KvCacheSteps, ::testing::ValuesIn(dispatch::cache_dtypes()),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

TEST_F(KvCacheMemory, ReservedPagesAndOtherKindsAllocateNothing) {
  std::vector<KvCacheSpec> specs = {cache_spec(CacheKind::paged, 2, 1, 20, 20, 2000, 16),
                                    cache_spec(CacheKind::contiguous, 2, 1, 20, 20, 2000),
                                    cache_spec(CacheKind::ring, 2, 1, 20, 20, 300)};
  for (KvCacheSpec& spec : specs) {
    spec.rotary.style = Rotary::interleaved;
    Decoder decoder(spec, spec.kind == CacheKind::ring ? KvCache(spec).plan_key_length() : 2000);
    if (spec.kind == CacheKind::paged) decoder.cache.reserve_pages(250);
    decoder.append(), decoder.attend();
    EXPECT_EQ(allocations_of([&] {
                for (int step = 1; step < 2000; ++step) decoder.append(), decoder.attend();
              }),
              0u)
        << describe(spec);
    EXPECT_EQ(decoder.cache.length(1), 2000);
  }
}

TEST_F(KvCacheMemory, PackedQueriesAllocateNothing) {
  Random random(44);
  for (const bool ring : {false, true}) {
    const KvCacheSpec spec = cache_spec(ring ? CacheKind::ring : CacheKind::paged, 3, 1, 20, 20, ring ? 40 : 0, ring ? 0 : 8);
    KvCache cache(spec);
    cache.append(new_tokens(spec, {0, 2}, {37, 20}, random).append());
    AttentionSpec attention = attention_spec(3, 2, 1, 4, ring ? cache.plan_key_length() : 100, 20, 20,
                                             Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::key_lengths());
    attention.dtype = DType::f32;
    const AttentionPlan plan(attention, runtime_on(default_isa(), 1));
    const Tensor query(DType::f32, {1, 2, 8, 20}), out(DType::f32, {1, 2, 8, 20}), ends = integers(DType::i32, {0, 4, 5, 8});
    fill_normal(query, random);
    CachedAttentionInputs inputs;
    inputs.cache = &cache, inputs.query = query, inputs.out = out, inputs.cumulative_query_lengths = ends;
    plan.run(inputs);
    EXPECT_EQ(allocations_of([&] {
                for (int step = 0; step < 100; ++step) plan.run(inputs);
              }),
              0u)
        << describe(spec);
  }
}

TEST_F(KvCacheMemory, ForkAndTrimAllocateNothingOnceTablesAreLongEnough) {
  Random random(42);
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 4, 1, 8, 8, 400, 8);
  KvCache cache(spec);
  cache.reserve_pages(200);
  cache.append(new_tokens(spec, {0}, {300}, random).append());
  EXPECT_EQ(allocations_of([&] {
              for (int round = 0; round < 50; ++round) {
                for (std::int64_t beam = 1; beam < 4; ++beam) cache.fork(0, beam, 300 - beam);
                for (std::int64_t beam = 1; beam < 4; ++beam) cache.trim(beam, 10 * beam);
              }
            }),
            0u);
}

// Each allocation of an append fails in turn.
TEST_F(KvCacheMemory, AFailedAppendLeavesTheCacheAsItWas) {
  Random random(43);
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 3, 2, 64, 64, 0, 64);
  KvCache cache(spec);
  CacheModel model(spec);
  const auto append = [&](const NewTokens& fresh) {
    cache.append(fresh.append());
    model.append(fresh);
  };
  append(new_tokens(spec, {0, 1}, {70, 100}, random));
  cache.fork(1, 2), model.fork(1, 2, -1);
  int failures = 0;
  for (int nth = 1; nth < 100; ++nth) {
    // More than is free, so that the pool grows each time.
    const NewTokens fresh = new_tokens(spec, {0, 1, 2}, {3000, 1, 2000}, random);
    const std::int64_t in_use = cache.pages_in_use();
    const CacheAppend tokens = fresh.append();
    bool failed = false;
    fail_allocation_in = nth;
    try {
      cache.append(tokens);
    } catch (const Error& error) {
      fail_allocation_in = 0;
      failed = true;
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
    }
    fail_allocation_in = 0;
    failures += failed;
    if (!failed) {
      model.append(fresh);
      EXPECT_TRUE(model.matches(cache));
      break;
    }
    ASSERT_EQ(cache.pages_in_use(), in_use) << "allocation " << nth;
    ASSERT_TRUE(model.matches(cache)) << "allocation " << nth;
  }
  EXPECT_GT(failures, 0);
  append(new_tokens(spec, {2, 0}, {65, 1}, random));
  EXPECT_TRUE(model.matches(cache));
}

TEST_F(KvCacheMemory, AFailedForkLeavesTheCacheAsItWas) {
  Random random(44);
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 2, 1, 4, 4, 0, 1);
  KvCache cache(spec);
  CacheModel model(spec);
  const NewTokens fresh = new_tokens(spec, {0, 1}, {500, 3}, random);
  cache.append(fresh.append()), model.append(fresh);
  int failures = 0;
  for (int nth = 1;; ++nth) {
    ASSERT_LT(nth, 10);
    fail_allocation_in = nth;
    try {
      cache.fork(0, 1);
      fail_allocation_in = 0;
      break;
    } catch (const Error& error) {
      fail_allocation_in = 0;
      ++failures;
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_TRUE(model.matches(cache));
    }
  }
  EXPECT_GT(failures, 0);
  model.fork(0, 1, -1);
  EXPECT_TRUE(model.matches(cache));
}

}  // namespace
}  // namespace polyhead::testing
