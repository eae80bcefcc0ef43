// Caches that store other types than f32: what is stored is rounded once, after the rotation; and attention over it with query
// and out of types of their own, against the oracle and against plain attention over the same keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "cache/cache_model.hpp"
#include "polyhead/attention.hpp"
#include "polyhead/error.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

std::vector<KvCacheSpec> kinds(std::int64_t sequences, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim) {
  std::vector<KvCacheSpec> all = {cache_spec(CacheKind::contiguous, sequences, kv_heads, head_dim, value_dim, 700),
                                  cache_spec(CacheKind::ring, sequences, kv_heads, head_dim, value_dim, 700),
                                  cache_spec(CacheKind::paged, sequences, kv_heads, head_dim, value_dim, 0, 24)};
  return all;
}

// Keys and values of a type, their numbers those of `from`.
Tensor as_type(DType dtype, const Tensor& from) {
  const TensorView& view = from;
  Tensor result(dtype, {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
  copy(from, result);
  return result;
}

// Every type that rows may be brought in, into every type that is stored: the nearest number of the numbers brought.
TEST(CacheTypes, WhatIsStoredIsRoundedOnce) {
  Random random(71);
  for (const DType stored : attention_dtypes()) {
    for (const DType brought : {DType::f32, DType::bf16, DType::f16}) {
      for (KvCacheSpec spec : kinds(2, 2, 70, 5)) {
        spec.dtype = stored;
        KvCache cache(spec);
        CacheModel model(spec);
        NewTokens fresh = new_tokens(spec, {1, 0}, {9, 4}, random);
        // Numbers beyond f16, denormals of f16, ties, and what is not finite.
        const double infinity = std::numeric_limits<double>::infinity();
        const double odd[] = {65519.0,    65520.0, -7e4,   3e-8,      -2.9e-8, 5.9e-8, 6.1e-5, 1.00390625,
                              1.01171875, 2049.0,  2051.0, -infinity, 1e-9,    0.0,    3.3e38};
        for (std::size_t i = 0; i < std::size(odd); ++i) fresh.key.set({0, 1, 3, static_cast<std::int64_t>(i)}, odd[i]);
        fresh.key = as_type(brought, fresh.key);
        fresh.value = as_type(brought, fresh.value);
        cache.append(fresh.append());
        model.append(fresh);
        ASSERT_TRUE(model.matches(cache)) << name(brought) << " into " << describe(spec);
      }
    }
  }
}

TEST(CacheTypes, NaNStaysNaN) {
  Random random(72);
  for (const DType stored : attention_dtypes()) {
    KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 1, 4, 4, 0, 4);
    spec.dtype = stored;
    KvCache cache(spec);
    const NewTokens fresh = new_tokens(spec, {0}, {2}, random);
    fresh.key.set({0, 0, 1, 2}, std::numeric_limits<double>::quiet_NaN());
    cache.append(fresh.append());
    const Tensor key(DType::f32, {1, 2, 4});
    cache.read(0, 0, key, {});
    EXPECT_TRUE(std::isnan(key({0, 1, 2}))) << name(stored);
    EXPECT_FALSE(std::isnan(key({0, 1, 1}))) << name(stored);
  }
}

// Rotated in f32 and rounded then: what an f32 cache holds, rounded.
TEST(CacheTypes, RotationComesBeforeRounding) {
  Random random(73);
  for (const Rotary style : {Rotary::interleaved, Rotary::half_split}) {
    for (const DType stored : attention_dtypes()) {
      for (const DType brought : {DType::f32, DType::bf16, DType::f16}) {
        KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 2, 150, 6, 0, 8);
        spec.rotary.style = style;
        spec.rotary.dims = 140;
        KvCacheSpec other = spec;
        other.dtype = stored;
        KvCache exact(spec), cache(other);
        NewTokens fresh = new_tokens(spec, {0}, {11}, random);
        fresh.key = as_type(brought, fresh.key);
        exact.append(fresh.append());
        cache.append(fresh.append());
        const Tensor expected(DType::f32, {2, 11, 150}), key(DType::f32, {2, 11, 150}), own(stored, {2, 11, 150});
        exact.read(0, 0, expected, {});
        cache.read(0, 0, key, {});
        cache.read(0, 0, own, {});
        for_each_offset(expected, [&](std::int64_t offset) {
          ASSERT_EQ(load(key, offset), static_cast<double>(rounded_to(stored, load(expected, offset))))
              << name(brought) << " into " << name(stored) << ", element " << offset;
          ASSERT_EQ(load(own, offset), load(key, offset)) << "read back as " << name(stored);
        });
        // Queries likewise, in place too.
        const Tensor query = as_type(brought, fresh.key), turned(DType::f32, {1, 2, query.view().shape[2], 150});
        exact.rotate_queries(query, turned, {}, integers(DType::i64, {5}));
        cache.rotate_queries(query, query, {}, integers(DType::i64, {5}));
        for_each_offset(turned, [&](std::int64_t offset) {
          ASSERT_EQ(load(query, offset), static_cast<double>(rounded_to(brought, load(turned, offset)))) << name(brought);
        });
      }
    }
  }
}

TEST(CacheTypes, MemoryIsThatOfTheType) {
  for (const DType stored : attention_dtypes()) {
    KvCacheSpec spec = cache_spec(CacheKind::contiguous, 3, 2, 24, 16, 64);
    spec.dtype = stored;
    EXPECT_GE(KvCache(spec).memory_bytes(), static_cast<std::size_t>(3 * 64 * 2 * 40 * size_in_bytes(stored)));
    EXPECT_LT(KvCache(spec).memory_bytes(), static_cast<std::size_t>(3 * 64 * 2 * 40 * size_in_bytes(stored) + 3 * 4096));
  }
}

class MixedTypesTest : public EveryIsa {};

// Every type of query over every type of cache into every type of out: within the bound of out's type, and the bits of a plan
// over plain keys.
TEST_P(MixedTypesTest, EveryQueryOverEveryCacheIntoEveryOut) {
  Random random(74);
  const std::vector<DType> dtypes = attention_dtypes();
  for (const DType stored : dtypes) {
    for (const DType of_query : dtypes) {
      for (const DType of_out : dtypes) {
        for (const std::int64_t query_length : {1, 3, 40}) {
          for (const std::int64_t dim : {24, 72}) {
            if ((query_length == 3 && dim == 24) || (query_length == 40 && dim == 72)) continue;
            if (slow() && (query_length == 40 || (query_length == 1 && dim == 72))) continue;
            const std::int64_t key_length = slow() ? 60 : 200;
            AttentionSpec spec = attention_spec(2, 4, 2, query_length, key_length, dim, dim - 3,
                                                Mask::causal(Causal::bottom_right) & Mask::key_lengths());
            spec.has_sink = query_length == 3;
            spec.softcap = query_length == 3 ? 2.0 : 0.0;
            spec.dtype = of_query;
            AttentionCase test = make_case(spec, random);
            test.key_lengths = integers(DType::i64, {key_length, query_length + 7});
            test.key = as_type(stored, test.key);
            test.value = as_type(stored, test.value);
            test.out = Tensor(of_out, {2, 4, query_length, dim - 3});
            test.spec.key_dtype = stored;
            test.spec.out_dtype = of_out;
            const std::string what =
                std::string(name(of_query)) + " query, " + name(stored) + " keys, " + name(of_out) + " out, " + test.describe();
            const AttentionPlan plan(test.spec, runtime());
            plan.run(test.inputs_with_lse());
            const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
            ASSERT_TRUE(attention_matches(expected, test.out, what));
            ASSERT_TRUE(lse_matches(expected, test.lse, what));
            const Tensor out = test.out.clone(), lse = test.lse.clone();
            for (KvCacheSpec cache_layout : kinds(2, 2, dim, dim - 3)) {
              cache_layout.dtype = stored;
              KvCache cache(cache_layout);
              CacheAppend tokens;
              tokens.key = test.key, tokens.value = test.value;
              tokens.lengths = test.key_lengths;
              cache.append(tokens);
              CachedAttentionInputs inputs;
              inputs.cache = &cache;
              inputs.query = test.query, inputs.out = test.out, inputs.lse = test.lse;
              if (test.spec.has_sink) inputs.sink = test.sink;
              AttentionOptions options = test.options();
              for (const int threads : {1, 2}) {
                fill(test.out, 7), fill(test.lse, 7);
                attention(runtime(threads), inputs, options);
                ASSERT_TRUE(same_bits(out, test.out))
                    << what << ", " << describe(cache_layout) << ": " << first_difference(out, test.out);
                ASSERT_TRUE(same_bits(lse, test.lse)) << what << ", " << describe(cache_layout);
              }
              AttentionSpec planned = test.spec;
              planned.key_length = std::max(key_length, cache.plan_key_length());
              fill(test.out, 7);
              AttentionPlan(planned, runtime()).run(inputs);
              ASSERT_TRUE(same_bits(out, test.out)) << what << ", by a plan, " << describe(cache_layout);
            }
          }
        }
      }
    }
  }
}

// Long sequences, whose keys are split: parts are merged into out's type.
TEST_P(MixedTypesTest, SplitKeysAreMergedIntoTheTypeOfOut) {
  if (slow()) GTEST_SKIP() << "minutes with the scalar kernels";
  Random random(75);
  for (const DType stored : attention_dtypes()) {
    for (const DType of_out : attention_dtypes()) {
      AttentionSpec spec = attention_spec(1, 2, 1, 2, 5000, 64, 64, Mask::causal(Causal::bottom_right));
      AttentionCase test = make_case(spec, random);
      test.key = as_type(stored, test.key);
      test.value = as_type(stored, test.value);
      test.out = Tensor(of_out, {1, 2, 2, 64});
      test.spec.key_dtype = stored;
      test.spec.out_dtype = of_out;
      const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
      for (const int threads : {1, 2}) {
        AttentionPlan(test.spec, runtime(threads)).run(test.inputs_with_lse());
        ASSERT_TRUE(attention_matches(expected, test.out, test.describe()));
      }
    }
  }
}

TEST_P(MixedTypesTest, TypesThatDoNotFitAreNamed) {
  const DType other = attention_dtypes().back();
  if (other == DType::f32) GTEST_SKIP() << "a build of f32 alone";
  KvCacheSpec layout = cache_spec(CacheKind::contiguous, 1, 1, 8, 8, 16);
  layout.dtype = other;
  KvCache cache(layout);
  const Tensor query(DType::f32, {1, 1, 1, 8}), out(DType::f32, {1, 1, 1, 8}), wrong(DType::f64, {1, 1, 1, 8});
  CachedAttentionInputs inputs;
  inputs.cache = &cache, inputs.query = query, inputs.out = out;
  AttentionSpec spec = attention_spec(1, 1, 1, 1, 16, 8, 8, Mask::causal(Causal::bottom_right) & Mask::key_lengths());
  const auto message = [&] {
    try {
      AttentionPlan(spec, runtime()).run(inputs);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  };
  has(message(), "AttentionSpec.dtype is f32, expected " + std::string(name(other)) + ", the cache's dtype");
  spec.key_dtype = DType::f32;
  has(message(), "AttentionSpec.key_dtype is f32, expected " + std::string(name(other)));
  spec.key_dtype = other;
  has(message(), "not refused");
  spec.out_dtype = other;
  has(message(), "out is f32");
  spec.out_dtype = DType::f64;
  has(message(), "AttentionSpec.out_dtype is f64");
  spec.out_dtype.reset();
  spec.key_dtype = DType::i64;
  has(message(), "AttentionSpec.key_dtype is i64");
  inputs.out = wrong;
  EXPECT_THROW(attention(runtime(), inputs), Error);
  CacheAppend tokens;
  tokens.key = wrong, tokens.value = query;
  EXPECT_THROW(cache.append(tokens), Error);
  EXPECT_EQ(cache.length(0), 0);
}

POLYHEAD_INSTANTIATE_EVERY_ISA(MixedTypesTest);

}  // namespace
}  // namespace polyhead::testing
