// Caches of integers: attention over them against the oracle, on the numbers that the integers stand for (kernels) and on those
// that were appended (how much 8 bits lose); the same bits for every kind of cache; what is masked, forked, saved.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "cache/cache_model.hpp"
#include "dispatch/kernel_table.hpp"
#include "polyhead/attention.hpp"
#include "polyhead/error.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

KvCacheSpec int8_spec(CacheKind kind, std::int64_t sequences, std::int64_t kv_heads, std::int64_t head_dim,
                      std::int64_t value_dim, std::int64_t size) {
  KvCacheSpec spec = kind == CacheKind::paged ? cache_spec(kind, sequences, kv_heads, head_dim, value_dim, 0, size)
                                              : cache_spec(kind, sequences, kv_heads, head_dim, value_dim, size);
  spec.dtype = DType::i8;
  return spec;
}

CacheAppend rows(const TensorView& key, const TensorView& value) {
  CacheAppend tokens;
  tokens.key = key, tokens.value = value;
  return tokens;
}

CachedAttentionInputs over(const KvCache& cache, const AttentionCase& test) {
  CachedAttentionInputs inputs;
  inputs.cache = &cache;
  inputs.query = test.query, inputs.out = test.out, inputs.lse = test.lse;
  if (test.spec.mask.has_boolean) inputs.boolean_mask = test.boolean_mask;
  if (test.spec.mask.has_bias) inputs.bias = test.bias;
  if (test.spec.has_alibi) inputs.alibi_slopes = test.alibi_slopes;
  if (test.spec.has_sink) inputs.sink = test.sink;
  return inputs;
}

// The case with what the cache holds in place of its keys and values.
AttentionCase as_stored(const AttentionCase& test, const KvCache& cache) {
  AttentionCase stored = test;
  stored.key = test.key.clone(), stored.value = test.value.clone();
  for (std::int64_t b = 0; b < test.spec.batch; ++b) cache.read(b, 0, select(stored.key, b), select(stored.value, b));
  return stored;
}

double rms(const oracle::Array& expected, const TensorView& actual) {
  double error = 0, size = 0;
  std::size_t next = 0;
  for_each_offset(actual, [&](std::int64_t offset) {
    const double right = expected.values[next++], wrong = load(actual, offset) - right;
    error += wrong * wrong;
    size += right * right;
  });
  return std::sqrt(error / size);
}

class Int8CacheTest : public EveryIsa {
 protected:
  void SetUp() override {
    if (dispatch::cache_dtypes().back() != DType::i8) GTEST_SKIP() << "a build without i8";
  }

  // Attention over the cache is attention over the numbers that it holds, but for f32's rounding of these and of the sums that
  // their means are taken out of, and for queries and weights that some kernels round to integers of 16 bits.
  void expect_of_stored(const AttentionCase& test, const KvCache& cache, const std::string& what) {
    const AttentionCase stored = as_stored(test, cache);
    const oracle::AttentionResult expected = oracle::attention(stored.inputs(), stored.options());
    ASSERT_TRUE(attention_matches(expected, test.out, what, Precision::strict, true));
    ASSERT_TRUE(lse_matches(expected, test.lse, what, Precision::strict, true));
  }
};

TEST_P(Int8CacheTest, AttendsToWhatTheIntegersStandFor) {
  Random random(81);
  for (const std::int64_t query_length : {1, 3, 40}) {
    for (const std::int64_t group : {1, 4}) {
      for (const std::int64_t dim : {5, 32, 48, 64, 72, 131, 520}) {
        if (slow() && (dim > 64 || query_length == 40)) continue;
        if (dim == 520 && (query_length != 1 || group != 1)) continue;
        for (const DType of_query : attention_dtypes()) {
          if (dim != 64 && of_query != DType::f32) continue;
          AttentionSpec spec =
              attention_spec(2, 2 * group, 2, query_length, 300, dim, dim + 3, Mask::causal(Causal::bottom_right));
          spec.dtype = of_query;
          spec.has_sink = dim == 72, spec.has_alibi = dim == 64, spec.softcap = dim == 64 ? 3.0 : 0.0;
          AttentionCase test = make_case(spec, random);
          test.key = Tensor(DType::f32, {2, 2, 300, dim}), test.value = Tensor(DType::f32, {2, 2, 300, dim + 3});
          test.out = Tensor(DType::f32, {2, 2 * group, query_length, dim + 3});
          fill_normal(test.key, random), fill_normal(test.value, random);
          // Means that are far from 0, which the integers do not hold.
          for (std::int64_t s = 0; s < 300; ++s) {
            for (std::int64_t b = 0; b < 2; ++b) {
              test.key.set({b, 1, s, 3}, 6 + 0.5 * test.key({b, 1, s, 3}));
              test.value.set({b, 0, s, 2}, -4 + test.value({b, 0, s, 2}));
            }
          }
          test.spec.key_dtype = DType::i8;
          test.spec.out_dtype = DType::f32;
          KvCache cache(int8_spec(CacheKind::paged, 2, 2, dim, dim + 3, 24));
          cache.append(rows(slice(test.key, 2, 0, 50), slice(test.value, 2, 0, 50)));
          cache.append(rows(slice(test.key, 2, 50, 300), slice(test.value, 2, 50, 300)));
          attention(runtime(2), over(cache, test), test.options());
          ASSERT_NO_FATAL_FAILURE(expect_of_stored(test, cache, std::string(name(of_query)) + ", " + test.describe()));
        }
      }
    }
  }
}

TEST_P(Int8CacheTest, MasksMeanWhatTheyMeanElsewhere) {
  Random random(82);
  for (const std::int64_t query_length : {1, 5, 40}) {
    for (const Mask& mask : {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::window(30, 0),
                             Mask::boolean() & Mask::bias(), Mask::causal(Causal::bottom_right) & Mask::boolean()}) {
      for (const std::int64_t dim : {16, 64}) {
        const AttentionCase test = make_case(attention_spec(1, 4, 2, query_length, 290, dim, dim, mask), random);
        KvCache cache(int8_spec(CacheKind::paged, 1, 2, dim, dim, 16));
        cache.append(rows(test.key, test.value));
        attention(runtime(), over(cache, test), test.options());
        ASSERT_NO_FATAL_FAILURE(expect_of_stored(test, cache, test.describe()));
      }
    }
  }
}

// Weights over integers are those over the numbers that they stand for, to f32's bound.
TEST_P(Int8CacheTest, WeightsAreThoseOfWhatTheIntegersStandFor) {
  Random random(91);
  for (const DType of_query : attention_dtypes())
    for (const std::int64_t query_length : {1, 9}) {
      const std::int64_t dim = 40;
      AttentionSpec spec = attention_spec(2, 4, 2, query_length, 300, dim, 24, Mask::causal(Causal::bottom_right));
      AttentionCase test = make_case(spec, random);
      for (std::int64_t s = 0; s < 300; ++s) test.key.set({1, 1, s, 3}, 6 + 0.5 * test.key({1, 1, s, 3}));
      KvCache cache(int8_spec(CacheKind::paged, 2, 2, dim, 24, 24));
      cache.append(rows(slice(test.key, 2, 0, 50), slice(test.value, 2, 0, 50)));
      cache.append(rows(slice(test.key, 2, 50, 300), slice(test.value, 2, 50, 300)));
      const Tensor query(of_query, {2, 4, query_length, dim}), weights(DType::f32, {2, 4, query_length, 300});
      copy(test.query, query);
      test.query = query;
      AttentionWeightsRequest request;
      request.weights = weights;
      attention_weights(runtime(2), over(cache, test), test.options(), request);
      const AttentionCase stored = as_stored(test, cache);
      const oracle::AttentionResult expected = oracle::attention(stored.inputs(), stored.options(), true);
      double scores = 0;
      for (const double s : expected.score_magnitude.values) scores = std::max(scores, std::isfinite(s) ? s : 0.0);
      EXPECT_TRUE(
          array_matches(expected.weights, weights, 2e-6 + 0x1p-21 * scores, 0, std::string(name(of_query)) + " queries"));
    }
}

// The same tokens in the same steps: the same bits in every kind of cache, with any number of threads, and split keys alike.
TEST_P(Int8CacheTest, EveryKindGivesTheSameBits) {
  Random random(83);
  for (const std::int64_t length : {std::int64_t{70}, slow() ? std::int64_t{200} : std::int64_t{2200}}) {
    for (const std::int64_t query_length : {1, 7}) {
      for (const std::int64_t dim : {32, 64}) {
        const AttentionCase test =
            make_case(attention_spec(2, 4, 2, query_length, length, dim, dim, Mask::causal(Causal::bottom_right)), random);
        Tensor out, lse;
        for (const KvCacheSpec& spec :
             {int8_spec(CacheKind::contiguous, 2, 2, dim, dim, length), int8_spec(CacheKind::ring, 2, 2, dim, dim, length + 3),
              int8_spec(CacheKind::paged, 2, 2, dim, dim, 1), int8_spec(CacheKind::paged, 2, 2, dim, dim, 7),
              int8_spec(CacheKind::paged, 2, 2, dim, dim, 128)}) {
          KvCache cache(spec);
          cache.append(rows(slice(test.key, 2, 0, 40), slice(test.value, 2, 0, 40)));
          cache.append(rows(slice(test.key, 2, 40, length), slice(test.value, 2, 40, length)));
          for (const int threads : {1, 2}) {
            fill(test.out, 9), fill(test.lse, 9);
            attention(runtime(threads), over(cache, test), test.options());
            const std::string where = describe(spec) + ", " + test.describe();
            if (spec.kind == CacheKind::contiguous && threads == 1) {
              out = test.out.clone(), lse = test.lse.clone();
              ASSERT_NO_FATAL_FAILURE(expect_of_stored(test, cache, where));
            }
            ASSERT_TRUE(same_bits(out, test.out)) << where << ": " << first_difference(out, test.out);
            ASSERT_TRUE(same_bits(lse, test.lse)) << where;
          }
        }
      }
    }
  }
}

// A ring that has gone round sees the window that a whole sequence sees.
TEST_P(Int8CacheTest, ARingGivesTheBitsOfAWindow) {
  Random random(84);
  for (const std::int64_t query_length : {1, 4}) {
    AttentionCase test = make_case(
        attention_spec(1, 4, 2, query_length, 400, 64, 64, Mask::causal(Causal::bottom_right) & Mask::window(49, 0)), random);
    KvCacheSpec round = int8_spec(CacheKind::ring, 1, 2, 64, 64, 50 + query_length);
    round.window = 50;
    KvCache ring(round), whole(int8_spec(CacheKind::contiguous, 1, 2, 64, 64, 400));
    for (const auto& [begin, end] : {std::pair(0, 30), std::pair(30, 390), std::pair(390, 400)}) {
      ring.append(rows(slice(test.key, 2, begin, end), slice(test.value, 2, begin, end)));
      whole.append(rows(slice(test.key, 2, begin, end), slice(test.value, 2, begin, end)));
    }
    attention(runtime(), over(whole, test), test.options());
    const Tensor out = test.out.clone();
    attention(runtime(), over(ring, test), test.options());
    EXPECT_TRUE(same_bits(out, test.out)) << first_difference(out, test.out);
  }
}

// A NaN or an infinity makes a whole key, or value, one of NaN: rows that see it are NaN, and rows that do not have the bits
// that they have without it.
TEST_P(Int8CacheTest, WhatIsMaskedHasNoInfluence) {
  Random random(85);
  for (const std::int64_t query_length : {1, 6, 40}) {
    for (const std::int64_t dim : {32, 64}) {
      AttentionCase test = make_case(
          attention_spec(1, 2, 2, query_length, 300, dim, dim, Mask::causal(Causal::bottom_right) & Mask::window(50, 0)),
          random);
      const auto run = [&](const TensorView& key, const TensorView& value) {
        KvCache cache(int8_spec(CacheKind::paged, 1, 2, dim, dim, 16));
        cache.append(rows(slice(key, 2, 0, 20), slice(value, 2, 0, 20)));
        cache.append(rows(slice(key, 2, 20, 300), slice(value, 2, 20, 300)));
        attention(runtime(2), over(cache, test), test.options());
        return test.out.clone();
      };
      const Tensor clean = run(test.key, test.value);
      Tensor key = test.key.clone(), value = test.value.clone();
      const std::int64_t seen_from = 300 - query_length - 50;  // by the first query
      for (const std::int64_t s : {std::int64_t{30}, seen_from - 1}) {
        key.set({0, 0, s, 3}, std::numeric_limits<double>::quiet_NaN());
        value.set({0, 0, s, 5}, -std::numeric_limits<double>::infinity());
      }
      const Tensor poisoned = run(key, value);
      EXPECT_TRUE(same_bits(clean, poisoned)) << query_length << " queries, " << first_difference(clean, poisoned);
      // The first query sees it, the last one of many does not.
      value.set({0, 0, seen_from, 5}, std::numeric_limits<double>::infinity());
      const Tensor seen = run(key, value);
      EXPECT_TRUE(std::isnan(seen({0, 0, 0, 0})));
      for (std::int64_t e = 0; e < dim; ++e) {
        for (std::int64_t t = 1; t < query_length; ++t) ASSERT_EQ(seen({0, 0, t, e}), clean({0, 0, t, e})) << t;
        ASSERT_EQ(seen({0, 1, 0, e}), clean({0, 1, 0, e}));
      }
    }
  }
}

// How much 8 bits lose, as a share of the result's rms.
TEST_P(Int8CacheTest, ErrorAgainstTheTokensThatWereAppended) {
  Random random(86);
  struct Data {
    const char* what;
    double bound;
    double key_mean, key_size, value_mean, value_size;  // of a few places in each row
  };
  for (const Data& data :
       {Data{"random", 0.01, 0, 1, 0, 1}, Data{"keys with large means", 0.01, 25, 1, 0, 1},
        Data{"keys and values with large numbers", 0.04, 0, 10, 0, 10}, Data{"all of it", 0.04, -20, 5, 10, 8}}) {
    for (const std::int64_t query_length : {1, 40}) {
      const std::int64_t dim = 128, length = slow() ? 300 : 1500;
      AttentionCase test = make_case(attention_spec(1, 4, 1, query_length, length, dim, dim), random);
      for (std::int64_t s = 0; s < length; ++s) {
        for (const std::int64_t d : {3, 40, 77, 100}) {
          test.key.set({0, 0, s, d}, data.key_mean + data.key_size * test.key({0, 0, s, d}));
          test.value.set({0, 0, s, d}, data.value_mean + data.value_size * test.value({0, 0, s, d}));
        }
      }
      KvCache cache(int8_spec(CacheKind::paged, 1, 1, dim, dim, 128));
      cache.append(rows(slice(test.key, 2, 0, 200), slice(test.value, 2, 0, 200)));
      cache.append(rows(slice(test.key, 2, 200, length), slice(test.value, 2, 200, length)));
      attention(runtime(), over(cache, test), test.options());
      const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
      const double error = rms(expected.out, test.out);
      std::printf("int8, %s, %d queries: rms error %.4f\n", data.what, static_cast<int>(query_length), error);
      EXPECT_LT(error, data.bound) << data.what << ", " << query_length << " queries";
      EXPECT_GT(error, 1e-4) << "the integers hold more than 8 bits can";
    }
  }
}

// Sequences that begin with a token or a few have no means: nothing but the scale of each token.
TEST_P(Int8CacheTest, TokenByTokenFromTheFirst) {
  Random random(87);
  const AttentionCase test = make_case(attention_spec(1, 2, 1, 1, 60, 64, 64), random);
  KvCache cache(int8_spec(CacheKind::contiguous, 1, 1, 64, 64, 60));
  for (std::int64_t t = 0; t < 60; ++t) cache.append(rows(slice(test.key, 2, t, t + 1), slice(test.value, 2, t, t + 1)));
  attention(runtime(), over(cache, test), test.options());
  ASSERT_NO_FATAL_FAILURE(expect_of_stored(test, cache, test.describe()));
  EXPECT_LT(rms(oracle::attention(test.inputs(), test.options()).out, test.out), 0.02);
}

TEST_P(Int8CacheTest, ForksTrimsAndFilesKeepEveryBit) {
  Random random(88);
  for (const CacheKind kind : {CacheKind::contiguous, CacheKind::paged}) {
    const AttentionCase test = make_case(attention_spec(1, 4, 2, 2, 90, 40, 40, Mask::causal(Causal::bottom_right)), random);
    KvCacheSpec spec = int8_spec(kind, 3, 2, 40, 40, kind == CacheKind::paged ? 8 : 100);
    spec.rotary.style = Rotary::half_split;
    KvCache cache(spec);
    cache.append(rows(slice(test.key, 2, 0, 61), slice(test.value, 2, 0, 61)));
    cache.fork(0, 2);
    // Other tokens go to the fork's source, and what the fork holds stays.
    cache.append(rows(slice(test.value, 2, 0, 20), slice(test.key, 2, 0, 20)));
    CacheAppend rest = rows(slice(test.key, 2, 61, 90), slice(test.value, 2, 61, 90));
    const Tensor two = integers(DType::i64, {2});
    rest.sequences = two;
    cache.append(rest);
    cache.trim(0, 61);
    rest.sequences = {};
    cache.append(rest);
    const auto run = [&](const KvCache& held, std::int64_t sequence) {
      const Tensor which = integers(DType::i64, {sequence});
      CachedAttentionInputs inputs = over(held, test);
      inputs.sequences = which;
      attention(runtime(), inputs, test.options());
      return test.out.clone();
    };
    const Tensor source = run(cache, 0), fork = run(cache, 2);
    EXPECT_TRUE(same_bits(source, fork)) << first_difference(source, fork);
    const auto path = std::filesystem::temp_directory_path() / (std::string("polyhead_int8_cache_") + name(isa()));
    cache.save(path.string());
    KvCache loaded = KvCache::load(path.string());
    std::filesystem::remove(path);
    EXPECT_EQ(loaded.spec().dtype, DType::i8);
    EXPECT_TRUE(same_bits(source, run(loaded, 2)));
    // An empty sequence begins anew, with means of its own.
    loaded.trim(2, 0);
    KvCache fresh(spec);
    CacheAppend all = rows(test.key, test.value);
    all.sequences = two;
    loaded.append(all), fresh.append(all);
    EXPECT_TRUE(same_bits(run(fresh, 2), run(loaded, 2)));
    EXPECT_FALSE(same_bits(source, run(fresh, 2))) << "means of other first tokens change nothing";
  }
}

TEST(Int8Cache, WhatIsReadBackIsNearWhatWasAppended) {
  if (dispatch::cache_dtypes().back() != DType::i8) GTEST_SKIP() << "a build without i8";
  Random random(89);
  for (const std::int64_t first : {1, 100}) {
    const Tensor key(DType::f32, {1, 2, 200, 24}), value(DType::f32, {1, 2, 200, 8});
    fill_normal(key, random), fill_normal(value, random);
    for (std::int64_t d = 0; d < 24; ++d) key.set({0, 1, 150, d}, 0);
    key.set({0, 0, 160, 5}, 500);  // a token apart costs its own accuracy, and nobody else's
    KvCache cache(int8_spec(CacheKind::paged, 1, 2, 24, 8, 16));
    cache.append(rows(slice(key, 2, 0, first), slice(value, 2, 0, first)));
    cache.append(rows(slice(key, 2, first, 200), slice(value, 2, first, 200)));
    EXPECT_LT(cache.memory_bytes() / static_cast<std::size_t>(cache.pages_allocated()), 16u * 2 * (32 + 8) + 64);
    const Tensor read(DType::f32, {2, 200, 24}), of_values(DType::f32, {2, 200, 8});
    cache.read(0, 0, read, of_values);
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t s = 0; s < 200; ++s) {
        double largest = 0, wrong = 0;
        for (std::int64_t d = 0; d < 24; ++d) {
          largest = std::max(largest, std::fabs(key({0, h, s, d})));
          wrong = std::max(wrong, std::fabs(key({0, h, s, d}) - read({h, s, d})));
        }
        // Half a step, in channels that are at most twice each other here.
        const double bound = first == 1 ? largest / 254 * 1.001 : (largest + 1) * 2 / 254;
        ASSERT_LE(wrong, bound + 1e-6) << "token " << s << " of head " << h << ", largest " << largest;
      }
    }
  }
}

TEST(Int8Cache, ARefusedAppendLeavesItAsItWas) {
  if (dispatch::cache_dtypes().back() != DType::i8) GTEST_SKIP() << "a build without i8";
  Random random(90);
  KvCacheSpec spec = int8_spec(CacheKind::paged, 2, 1, 8, 8, 4);
  spec.max_pages = 3;
  KvCache cache(spec);
  const NewTokens some = new_tokens(spec, {0}, {7}, random), many = new_tokens(spec, {1, 0}, {6, 1}, random);
  cache.append(some.append());
  const Tensor key(DType::f32, {1, 7, 8}), value(DType::f32, {1, 7, 8}), again = key.clone(), values_again = value.clone();
  cache.read(0, 0, key, value);
  EXPECT_THROW(cache.append(many.append()), Error);
  EXPECT_EQ(cache.length(0), 7);
  EXPECT_EQ(cache.length(1), 0);
  cache.read(0, 0, again, values_again);
  EXPECT_TRUE(same_bits(key, again));
  EXPECT_TRUE(same_bits(value, values_again));
}

TEST(Int8Cache, PlainKeysCannotBeIntegers) {
  AttentionSpec spec = attention_spec(1, 1, 1, 1, 4, 8, 8);
  spec.key_dtype = DType::i8;
  const Tensor query(DType::f32, {1, 1, 1, 8}), key(DType::i8, {1, 1, 4, 8}), out(DType::f32, {1, 1, 1, 8});
  AttentionInputs inputs;
  inputs.query = query, inputs.key = key, inputs.value = key, inputs.out = out;
  try {
    AttentionPlan(spec, Runtime()).run(inputs);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("AttentionSpec.key_dtype is i8"), std::string::npos) << error.what();
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA(Int8CacheTest);

}  // namespace
}  // namespace polyhead::testing
