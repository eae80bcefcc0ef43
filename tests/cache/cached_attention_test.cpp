// Attention over caches: the bits of plain attention over the same keys, whatever the kind of cache, the pages' size and the
// number of threads; within the bound of the float64 oracle; and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/cache_model.hpp"
#include "polyhead/error.hpp"
#include "support/attention_case.hpp"
#include "support/cached_keys.hpp"

namespace polyhead::testing {
namespace {

struct Layout {
  CacheKind kind;
  std::int64_t page_tokens;
};
const std::vector<Layout> layouts = {{CacheKind::contiguous, 0}, {CacheKind::paged, 1},   {CacheKind::paged, 5},
                                     {CacheKind::paged, 16},     {CacheKind::paged, 100}, {CacheKind::paged, 128},
                                     {CacheKind::paged, 4096}};

std::int64_t length_of(const AttentionCase& test, std::int64_t b) {
  return test.spec.mask.has_key_lengths ? static_cast<std::int64_t>(test.key_lengths({b})) : test.spec.key_length;
}

// Keys or values [1, G, count, dim] of batch item or packed sequence b, from its key `at` on.
TensorView rows_of(const AttentionCase& test, const Tensor& tensor, std::int64_t b, std::int64_t at, std::int64_t count) {
  if (!test.spec.mask.is_packed) return slice(slice(tensor, 0, b, b + 1), 2, at, at + count);
  const std::int64_t begin = static_cast<std::int64_t>(test.cumulative_key_lengths({b})) + at;
  return slice(tensor, 2, begin, begin + count);
}

// A cache that holds the case's keys: sequence 2 b + 1 belongs to batch item b, others hold something else. Chunks of several
// sequences at a time, so that pages of different ones lie between each other.
KvCache fill_cache(const AttentionCase& test, KvCacheSpec spec, Random& random) {
  spec.sequences = 2 * test.spec.batch + 1;
  spec.dtype = test.spec.dtype;
  KvCache cache(spec);
  std::vector<std::int64_t> done(static_cast<std::size_t>(test.spec.batch), 0);
  for (bool more = true; more;) {
    more = false;
    for (std::int64_t b = 0; b < test.spec.batch; ++b) {
      std::int64_t& at = done[static_cast<std::size_t>(b)];
      const std::int64_t count = std::min(length_of(test, b) - at, random.chance(0.3) ? 1 : random.integer(1, 700));
      CacheAppend tokens;
      tokens.key = rows_of(test, test.key, b, at, count);
      tokens.value = rows_of(test, test.value, b, at, count);
      const Tensor which = integers(DType::i64, {2 * b + 1});
      tokens.sequences = which;
      cache.append(tokens);
      at += count;
      more = more || at < length_of(test, b);
      if (random.chance(0.5) && spec.kind == CacheKind::paged) cache.append(new_tokens(spec, {2 * b}, {3}, random).append());
    }
  }
  return cache;
}

CachedAttentionInputs cached_inputs(const AttentionCase& test, const KvCache& cache, const TensorView& sequences) {
  return testing::cached_inputs(test.inputs_with_lse(), cache, sequences);
}

class CachedAttentionTest : public EveryIsa {
 protected:
  // The case with the lengths given, and the longest of them as key_length: masks and biases are that wide.
  AttentionCase with_lengths(AttentionSpec spec, const std::vector<std::int64_t>& lengths, Random& random) const {
    spec.mask = spec.mask & Mask::key_lengths();
    spec.batch = static_cast<std::int64_t>(lengths.size());
    spec.key_length = 0;
    for (const std::int64_t length : lengths) spec.key_length = std::max(spec.key_length, length);
    AttentionCase test = make_case(spec, random);
    test.key_lengths = integers(DType::i64, lengths);
    if (!spec.mask.is_packed) return test;
    std::vector<std::int64_t> ends = {0};
    for (const std::int64_t length : lengths) ends.push_back(ends.back() + length);
    test.cumulative_key_lengths = integers(DType::i32, ends);
    test.key = Tensor(spec.dtype, {1, test.spec.kv_heads, ends.back(), test.spec.head_dim});
    test.value = Tensor(spec.dtype, {1, test.spec.kv_heads, ends.back(), test.spec.value_dim});
    fill_normal(test.key, random), fill_normal(test.value, random);
    return test;
  }

  // Plain attention, then every layout with one thread and with two.
  void check(const AttentionCase& test, Random& random, bool compare_with_oracle = true) {
    ASSERT_NO_FATAL_FAILURE(run_plain(test, compare_with_oracle));
    const Tensor out = test.out.clone(), lse = test.lse.clone();
    for (const Layout& layout : layouts) {
      KvCacheSpec spec =
          cache_spec(layout.kind, 1, test.spec.kv_heads, test.spec.head_dim, test.spec.value_dim, 0, layout.page_tokens);
      if (layout.kind == CacheKind::contiguous) spec.capacity = std::max<std::int64_t>(test.spec.key_length, 1);
      const KvCache cache = fill_cache(test, spec, random);
      compare(test, cache, out, lse, describe(spec));
    }
  }

  void run_plain(const AttentionCase& test, bool compare_with_oracle) {
    const AttentionPlan plan(test.spec, runtime(1));
    plan.run(test.inputs_with_lse());
    if (!compare_with_oracle) return;
    const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), false, test.score_function);
    ASSERT_TRUE(attention_matches(expected, test.out, test.describe()));
    ASSERT_TRUE(lse_matches(expected, test.lse, test.describe()));
  }

  void compare(const AttentionCase& test, const KvCache& cache, const Tensor& out, const Tensor& lse, const std::string& what) {
    std::vector<std::int64_t> which;
    for (std::int64_t b = 0; b < test.spec.batch; ++b) which.push_back(2 * b + 1);
    const Tensor sequences = integers(DType::i32, which);
    const CachedAttentionInputs inputs = cached_inputs(test, cache, sequences);
    AttentionSpec spec = test.spec;
    spec.mask = spec.mask & Mask::key_lengths();
    if (cache.spec().kind == CacheKind::ring) spec.key_length = cache.plan_key_length();
    for (const int threads : {1, 2}) {
      const std::string where = what + ", " + test.describe() + ", threads " + std::to_string(threads);
      const double nan = std::numeric_limits<double>::quiet_NaN();
      fill(test.out, nan), fill(test.lse, nan);
      const AttentionPlan plan(spec, runtime(threads));
      plan.run(inputs);
      ASSERT_TRUE(same_bits(out, test.out)) << where << ": " << first_difference(out, test.out);
      ASSERT_TRUE(same_bits(lse, test.lse)) << where << ", lse: " << first_difference(lse, test.lse);
      fill(test.out, nan), fill(test.lse, nan);
      AttentionOptions options = test.options();
      attention(runtime(threads), inputs, options);
      ASSERT_TRUE(same_bits(out, test.out)) << where << ", one call: " << first_difference(out, test.out);
    }
    EXPECT_TRUE(test.out.surroundings_intact());
  }
};

TEST_P(CachedAttentionTest, GivesTheBitsOfPlainAttention) {
  Random random(31);
  for (const std::int64_t query_length : {1, 2, 5, 16, 70}) {
    for (const std::int64_t group : {1, 4}) {
      for (const std::int64_t dim : {20, 64}) {
        if (slow() && (dim == 64 || query_length == 70)) continue;
        for (const DType dtype : attention_dtypes()) {
          AttentionSpec spec =
              attention_spec(1, 2 * group, 2, query_length, 0, dim, dim + 4, Mask::causal(Causal::bottom_right));
          spec.dtype = dtype;
          check(with_lengths(spec, {0, 1, 77, 300, query_length}, random), random);
        }
      }
    }
  }
}

TEST_P(CachedAttentionTest, MasksAndScoreChangesMeanWhatTheyMeanElsewhere) {
  Random random(32);
  for (const std::int64_t query_length : {1, 3, 40}) {
    for (const Mask& mask :
         {Mask::none(), Mask::causal(Causal::top_left), Mask::causal(Causal::bottom_right) & Mask::window(40, 0),
          Mask::causal(Causal::bottom_right) & Mask::window(40, 0, 4), Mask::causal(Causal::offset) & Mask::offsets(),
          Mask::window(30, 4) & Mask::offsets(), Mask::causal(Causal::bottom_right) & Mask::boolean() & Mask::bias()}) {
      check(with_lengths(attention_spec(1, 4, 2, query_length, 0, 16, 16, mask), {130, 0, 299}, random), random);
    }
    AttentionSpec spec =
        attention_spec(1, 4, 2, query_length, 0, 52, 52, Mask::causal(Causal::bottom_right) & Mask::window(90, 0));
    spec.softcap = 3.0;
    spec.has_alibi = spec.has_sink = true;
    spec.scale = 0.3;
    check(with_lengths(spec, {200, 333}, random), random);
    spec.relative_bias = RelativeBias::t5(32, 100, false);
    check(with_lengths(spec, {200, 333}, random), random);
    spec.mask = Mask::none();
    spec.relative_bias = RelativeBias::t5();
    check(with_lengths(spec, {1, 200}, random), random);
  }
}

// What goes by sequences: queries of many sequences packed, or lengths of their own in a padded batch; keys of each are where
// its sequence of the cache has them.
TEST_P(CachedAttentionTest, SequencesGiveTheBitsOfPlainAttention) {
  Random random(48);
  const Mask causal = Mask::causal(Causal::bottom_right);
  int round = 0;
  for (const std::int64_t query_length : {1, 6, 70}) {
    for (const Mask& mask :
         {Mask::packed(), Mask::packed() & causal, Mask::packed() & causal & Mask::window(40, 0, 4),
          Mask::packed() & Mask::query_lengths() & Mask::window(30, 4) & Mask::offsets(),
          Mask::packed() & causal & Mask::prefix() & Mask::boolean() & Mask::bias(),
          Mask::packed() & causal & Mask::blocks(16, 32), Mask::packed() & Mask::blocks(3, 20), Mask::query_lengths() & causal,
          Mask::query_lengths() & causal & Mask::prefix() & Mask::blocks(4, 24)}) {
      ++round;
      if (slow() && query_length == 70 && round % 3 != 0) continue;
      AttentionSpec spec = attention_spec(1, 4, 2, query_length, 0, 24, 20, mask);
      if (round % 2 == 0) spec.has_alibi = spec.has_sink = true;
      if (round % 3 == 0) spec.softcap = 2.0;
      if (round % 4 == 0 && !mask.has_bias) spec.relative_bias = RelativeBias::t5(32, 100, false);
      spec.dtype = attention_dtypes()[static_cast<std::size_t>(round) % attention_dtypes().size()];
      AttentionCase test = with_lengths(spec, {77, 0, 299, 1, 130}, random);
      if (round % 5 == 0) {
        test.spec.score_mod = places_score_mod();
        test.score_function = score_at_place;
      }
      check(test, random);
    }
  }
}

// Long keys of few queries are split, and where there are threads the splits of a heavy sequence are shared out; of a ring,
// those that it still has.
TEST_P(CachedAttentionTest, LongPackedSequencesAreSplitAlike) {
  Random random(49);
  if (slow()) GTEST_SKIP() << "minutes with the scalar kernels";
  for (const std::int64_t query_length : {1, 20}) {
    AttentionSpec spec = attention_spec(1, 4, 2, query_length, 0, 48, 48, Mask::packed() & Mask::causal(Causal::bottom_right));
    check(with_lengths(spec, {9000, 2049, 0, 6000}, random), random, false);
    for (const std::int64_t window : {100, 5000}) {
      spec.mask = Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::window(window - 1, 0);
      const AttentionCase test = with_lengths(spec, {20000, 8193, 40, 12345}, random);
      ASSERT_NO_FATAL_FAILURE(run_plain(test, false));
      const Tensor out = test.out.clone(), lse = test.lse.clone();
      KvCacheSpec ring = cache_spec(CacheKind::ring, 1, 2, 48, 48, window + query_length - 1);
      ring.window = window;
      compare(test, fill_cache(test, ring, random), out, lse, describe(ring));
    }
  }
}

// In a ring every sequence's own queries count: of a padded batch too.
TEST_P(CachedAttentionTest, SequencesOverARing) {
  Random random(50);
  constexpr std::int64_t window = 64, capacity = 80;  // chunks of up to 17 queries
  for (const Mask& part : {Mask::packed(), Mask::query_lengths()}) {
    const Mask mask = part & Mask::causal(Causal::bottom_right) & Mask::window(window - 1, 0);
    AttentionCase test = with_lengths(attention_spec(1, 4, 2, 40, 0, 24, 20, mask), {40, 81, 17, 300}, random);
    const std::vector<std::int64_t> queries = {40, 3, 0, 17};  // 40: all that its sequence has
    if (part.is_packed) {
      test.cumulative_query_lengths = integers(DType::i64, {0, 40, 43, 43, 60});
      test.query = Tensor(test.spec.dtype, {1, 4, 62, 24}), test.out = Tensor(test.spec.dtype, {1, 4, 62, 20});
      test.lse = Tensor(DType::f32, {1, 4, 62});
      fill_normal(test.query, random);
    } else {
      test.query_lengths = integers(DType::i32, queries);
    }
    ASSERT_NO_FATAL_FAILURE(run_plain(test, true));
    const Tensor out = test.out.clone(), lse = test.lse.clone();
    KvCacheSpec ring = cache_spec(CacheKind::ring, 1, 2, 24, 20, capacity);
    ring.window = window;
    compare(test, fill_cache(test, ring, random), out, lse, describe(ring));
  }
}

// Above 2,048 keys few rows have their keys split, above 4,096 another kernel may serve.
TEST_P(CachedAttentionTest, LongSequencesAreSplitAlike) {
  Random random(33);
  for (const std::int64_t query_length : {1, 12, 80}) {
    if (slow() && query_length > 1) continue;
    const AttentionSpec spec = attention_spec(1, 2, 1, query_length, 0, 16, 16, Mask::causal(Causal::bottom_right));
    check(with_lengths(spec, {2047, 2049, slow() ? 2100 : 9000}, random), random, !slow());
  }
}

// What lies in pages that a row does not see, and behind a sequence's end, does not reach it.
TEST_P(CachedAttentionTest, WhatIsMaskedHasNoInfluence) {
  Random random(34);
  for (const std::int64_t query_length : {1, 6, 40}) {
    AttentionCase test =
        with_lengths(attention_spec(1, 2, 2, query_length, 0, 56, 56, Mask::causal(Causal::bottom_right) & Mask::window(50, 0)),
                     {300, 90}, random);
    for (const std::int64_t s : {0, 17, 30}) {
      test.key.set({0, 1, s, 3}, std::numeric_limits<double>::quiet_NaN());
      test.value.set({0, 1, s, 5}, std::numeric_limits<double>::infinity());
    }
    check(test, random);
    for (std::int64_t t = 0; t < query_length; ++t) EXPECT_TRUE(std::isfinite(test.out({0, 1, t, 5})));
  }
}

// Pages and rows that were used before hold what they held: a sequence that is shorter now reads none of it.
TEST_P(CachedAttentionTest, WhatMemoryHeldBeforeIsAbsent) {
  Random random(41);
  std::vector<Layout> all = layouts;
  all.push_back({CacheKind::ring, 0});
  for (const std::int64_t query_length : {1, 6, 40}) {
    const AttentionCase test = with_lengths(
        attention_spec(1, 4, 2, query_length, 0, 20, 24, Mask::causal(Causal::bottom_right)), {75, 1, 131}, random);
    ASSERT_NO_FATAL_FAILURE(run_plain(test, true));
    const Tensor out = test.out.clone(), lse = test.lse.clone();
    for (const Layout& layout : all) {
      KvCacheSpec spec = cache_spec(layout.kind, 7, 2, 20, 24, 0, layout.page_tokens);
      if (layout.kind != CacheKind::paged) spec.capacity = 300;
      if (layout.kind == CacheKind::ring) spec.window = 200;
      if (layout.kind == CacheKind::paged) spec.max_pages = 7 * ((300 + layout.page_tokens - 1) / layout.page_tokens);
      for (const double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -3.4e38}) {
        KvCache cache(spec);
        const Tensor key(DType::f32, {7, 2, 300, 20}), value(DType::f32, {7, 2, 300, 24});
        fill(key, poison), fill(value, poison);
        CacheAppend tokens;
        tokens.key = key, tokens.value = value;
        cache.append(tokens);
        for (std::int64_t sequence = 0; sequence < 7; ++sequence) cache.trim(sequence, 0);
        for (std::int64_t b = 0; b < 3; ++b) {
          const Tensor which = integers(DType::i64, {2 * b + 1});
          tokens.key = slice(slice(test.key, 0, b, b + 1), 2, 0, length_of(test, b));
          tokens.value = slice(slice(test.value, 0, b, b + 1), 2, 0, length_of(test, b));
          tokens.sequences = which;
          cache.append(tokens);
        }
        ASSERT_NO_FATAL_FAILURE(compare(test, cache, out, lse, describe(spec) + " held " + std::to_string(poison)));
      }
    }
  }
}

TEST_P(CachedAttentionTest, TensorsOfAnyStridesAndMasksThatBroadcast) {
  Random random(42);
  for (const std::int64_t query_length : {1, 5, 40}) {
    const AttentionCase test = with_lengths(
        attention_spec(1, 4, 2, query_length, 0, 16, 24, Mask::causal(Causal::bottom_right) & Mask::boolean() & Mask::bias()),
        {75, 140}, random);
    for (int pattern = 0; pattern < 16; ++pattern) {
      AttentionCase moved = test;
      std::vector<std::int64_t> shape = {2, 4, query_length, 140}, strides(4);
      std::int64_t stride = 2;
      for (std::size_t i = 4; i-- > 0;) {
        if ((pattern >> i & 1) != 0) shape[i] = 1;
        strides[i] = shape[i] == 1 ? -(std::int64_t{1} << 58) : stride;
        stride *= shape[i];
      }
      moved.boolean_mask = Tensor(DType::boolean, shape, strides);
      moved.bias = Tensor(bias_dtypes[pattern % 3], shape, strides);
      fill(moved.boolean_mask, [&] { return random.chance(0.8) ? 1.0 : 0.0; });
      fill_normal(moved.bias, random);
      moved.query = Tensor::ordered(DType::f32, {2, 4, query_length, 16}, {0, 2, 1, 3}, 3, 1 + pattern % 2);
      copy(test.query, moved.query);
      ASSERT_NO_FATAL_FAILURE(run_plain(moved, true));
      const Tensor out = moved.out.clone(), lse = moved.lse.clone();
      moved.out = Tensor::ordered(DType::f32, {2, 4, query_length, 24}, {3, 0, 2, 1}, 1, 1 + pattern % 3);
      moved.lse = Tensor::ordered(DType::f32, {2, 4, query_length}, {2, 0, 1}, 2);
      const KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 2, 16, 24, 0, 16);
      ASSERT_NO_FATAL_FAILURE(compare(moved, fill_cache(moved, spec, random), out, lse, describe(spec)));
      EXPECT_TRUE(moved.lse.surroundings_intact());
    }
  }
}

TEST_P(CachedAttentionTest, SizesOfZeroAreLegal) {
  Random random(43);
  for (const CacheKind kind : {CacheKind::contiguous, CacheKind::ring, CacheKind::paged}) {
    KvCache cache(cache_spec(kind, 3, 2, 8, 8, kind == CacheKind::paged ? 0 : 20, kind == CacheKind::paged ? 4 : 0));
    const auto attend = [&](std::int64_t batch, std::int64_t query_length) {
      const Tensor query(DType::f32, {batch, 4, query_length, 8}), out(DType::f32, {batch, 4, query_length, 8}),
          lse(DType::f32, {batch, 4, query_length});
      fill_normal(query, random);
      fill(out, 7.0), fill(lse, 7.0);
      CachedAttentionInputs inputs;
      inputs.cache = &cache, inputs.query = query, inputs.out = out, inputs.lse = lse;
      attention(runtime(2), inputs);
      return std::pair(out, lse);
    };
    const auto expect_empty = [&](const std::pair<Tensor, Tensor>& result) {
      for_each_offset(result.first, [&](std::int64_t i) { ASSERT_EQ(load(result.first, i), 0); });
      for_each_offset(result.second,
                      [&](std::int64_t i) { ASSERT_EQ(load(result.second, i), -std::numeric_limits<double>::infinity()); });
    };
    // Before the first token.
    expect_empty(attend(3, 1));
    expect_empty(attend(2, 0));
    expect_empty(attend(0, 4));
    // A batch of none, no tokens, and tokens of which none is real, change nothing.
    const CacheModel model(cache.spec());
    for (const auto& [batch, count] : {std::pair{0, 3}, {3, 0}, {0, 0}}) {
      const Tensor key(DType::f32, {batch, 2, count, 8}), value(DType::f32, {batch, 2, count, 8});
      CacheAppend tokens;
      tokens.key = key, tokens.value = value;
      cache.append(tokens);
    }
    cache.append(new_tokens(cache.spec(), {2, 0}, {0, 0}, random).append());
    EXPECT_TRUE(model.matches(cache));
    expect_empty(attend(3, 5));
    // The first step fills the cache: the queries behind the keys' number see nothing.
    cache.append(new_tokens(cache.spec(), {1}, {2}, random).append());
    const auto [out, lse] = attend(2, 3);
    expect_empty({out.viewed(slice(out, 0, 0, 1)), lse.viewed(slice(lse, 0, 0, 1))});
    expect_empty({out.viewed(slice(slice(out, 0, 1, 2), 2, 0, 1)), lse.viewed(slice(slice(lse, 0, 1, 2), 2, 0, 1))});
    EXPECT_TRUE(std::isfinite(lse({1, 0, 1})) && std::isfinite(lse({1, 0, 2})));
  }
}

// Sequences more than 2^32 bytes from one another, and values as far from their keys: address space of which little is touched.
TEST_P(CachedAttentionTest, PagesBeyond32Bits) {
  Random random(44);
  constexpr std::int64_t dim = 32, capacity = (std::int64_t{1} << 32) / (4 * dim) + 77;
  for (const std::int64_t query_length : {1, 20}) {
    const AttentionCase test =
        with_lengths(attention_spec(1, 2, 1, query_length, 0, dim, 2, Mask::causal(Causal::bottom_right)), {140}, random);
    ASSERT_NO_FATAL_FAILURE(run_plain(test, true));
    const Tensor out = test.out.clone(), lse = test.lse.clone();
    try {
      const KvCacheSpec spec = cache_spec(CacheKind::contiguous, 1, 1, dim, 2, capacity);
      compare(test, fill_cache(test, spec, random), out, lse, describe(spec));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory) throw;
      GTEST_SKIP() << "no address space: " << error.what();
    }
  }
}

// One layer's projections with the rows of each head in one order or the other, as formats of weights store them: with the
// pairing that belongs to it each gives the same attention, with the other's another one.
TEST_P(CachedAttentionTest, RowOrdersOfRotaryGoWithTheirPairings) {
  Random random(45);
  for (const std::int64_t group : {1, 3}) {
    constexpr std::int64_t dim = 24, length = 21;
    const Tensor query(DType::f32, {1, 2 * group, length, dim}), key(DType::f32, {1, 2, length, dim}),
        value(DType::f32, {1, 2, length, dim});
    fill_normal(query, random), fill_normal(key, random), fill_normal(value, random);
    // Element i of the first half and of the second become elements 2 i and 2 i + 1.
    const auto interleaved = [&](const Tensor& from) {
      const Tensor to = from.clone();
      for (std::int64_t i = 0; i < dim / 2; ++i)
        for (std::int64_t half = 0; half < 2; ++half)
          copy(slice(from, 3, i + half * dim / 2, i + half * dim / 2 + 1), slice(to, 3, 2 * i + half, 2 * i + half + 1));
      return to;
    };
    const auto attend = [&](Rotary style, const Tensor& queries, const Tensor& keys) {
      KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 2, dim, dim, 0, 8);
      spec.rotary.style = style;
      KvCache cache(spec);
      CacheAppend tokens;
      tokens.key = keys, tokens.value = value;
      cache.append(tokens);
      const Tensor turned(DType::f32, {1, 2 * group, length, dim}), out(DType::f32, {1, 2 * group, length, dim});
      cache.rotate_queries(queries, turned);
      CachedAttentionInputs inputs;
      inputs.cache = &cache, inputs.query = turned, inputs.out = out;
      attention(runtime(), inputs);
      return out;
    };
    const Tensor expected = attend(Rotary::half_split, query, key);
    const Tensor other_order = attend(Rotary::interleaved, interleaved(query), interleaved(key));
    EXPECT_TRUE(array_matches(oracle::to_array(expected), other_order, 1e-5, 1e-5, "the other order with its pairing"));
    const Tensor wrong = attend(Rotary::interleaved, query, key);
    for (std::int64_t t = 0; t < length; ++t) {
      double difference = 0;
      for (std::int64_t e = 0; e < dim; ++e)
        difference = std::max(difference, std::fabs(wrong({0, 0, t, e}) - expected({0, 0, t, e})));
      if (t == 0) {
        EXPECT_LT(difference, 1e-5) << "position 0 is not turned";
      } else {
        EXPECT_GT(difference, 1e-3) << "position " << t;
      }
    }
  }
}

// A length for each head: every kv head of every item is a sequence of its own, seen through views of the same tensors. Heads
// forget tokens apart, as where each keeps those that it attends to.
TEST_P(CachedAttentionTest, KvHeadsMayHaveLengthsOfTheirOwn) {
  Random random(47);
  constexpr std::int64_t batch = 2, kv_heads = 3, group = 2, length = 150, dim = 24, value_dim = 20;
  for (const std::int64_t query_length : {1, 5}) {
    const auto made = [&](const Tensor::Sizes& shape) {
      const Tensor tensor(DType::f32, shape);
      fill_normal(tensor, random);
      return tensor;
    };
    const Tensor query = made({batch, kv_heads * group, query_length, dim}), key = made({batch, kv_heads, length, dim}),
                 value = made({batch, kv_heads, length, value_dim}),
                 out = made({batch, kv_heads * group, query_length, value_dim}),
                 lse = made({batch, kv_heads * group, query_length});
    // [B, G * n, ...] as [B * G, n, ...]
    const auto by_head = [&](const Tensor& tensor, std::int64_t heads) {
      TensorView view = tensor;
      view.shape[0] = batch * kv_heads, view.shape[1] = heads;
      view.strides[0] = heads * view.strides[1];
      return view;
    };
    KvCache cache(cache_spec(CacheKind::paged, batch * kv_heads, 1, dim, value_dim, 0, 16));
    CacheAppend tokens;
    tokens.key = by_head(key, 1), tokens.value = by_head(value, 1);
    const std::vector<std::int64_t> appended = {150, 7, 64, 30, 129, 8};
    const Tensor lengths = integers(DType::i64, appended);
    tokens.lengths = lengths;
    cache.append(tokens);
    cache.trim(2, 33);
    CachedAttentionInputs inputs;
    inputs.cache = &cache, inputs.query = by_head(query, group), inputs.out = by_head(out, group);
    inputs.lse = by_head(lse, group);
    attention(runtime(2), inputs);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t g = 0; g < kv_heads; ++g) {
        const std::int64_t left = cache.length(b * kv_heads + g);
        ASSERT_EQ(left, b == 0 && g == 2 ? 33 : appended[static_cast<std::size_t>(b * kv_heads + g)]);
        const auto head = [&](const TensorView& view, std::int64_t heads) {
          return slice(slice(view, 0, b, b + 1), 1, g * heads, (g + 1) * heads);
        };
        AttentionInputs alone;
        alone.query = head(query, group);
        alone.key = slice(head(key, 1), 2, 0, left), alone.value = slice(head(value, 1), 2, 0, left);
        AttentionOptions options;
        options.mask = Mask::causal(Causal::bottom_right);
        options.scale = 1 / std::sqrt(static_cast<double>(dim));
        const oracle::AttentionResult expected = oracle::attention(alone, options);
        const std::string where = "item " + std::to_string(b) + ", kv head " + std::to_string(g);
        EXPECT_TRUE(attention_matches(expected, head(out, group), where));
        EXPECT_TRUE(lse_matches(expected, head(lse, group), where));
      }
  }
}

TEST_P(CachedAttentionTest, ARingGivesTheBitsOfAWindow) {
  Random random(35);
  for (const std::int64_t query_length : {1, 4, 33}) {
    for (const std::int64_t window : {1, 7, 64, 300}) {
      for (const std::int64_t spare : {0, 1, 50}) {
        if (slow() && (window == 300 || spare == 1)) continue;
        const std::int64_t capacity = window + query_length - 1 + spare;
        AttentionSpec spec =
            attention_spec(1, 4, 2, query_length, 0, 24, 20, Mask::causal(Causal::bottom_right) & Mask::window(window - 1, 0));
        spec.has_alibi = query_length == 4;
        spec.has_sink = query_length == 4;
        if (query_length == 33 || window == 64) spec.relative_bias = RelativeBias::t5(16, 100, false);
        if (spare == 50) spec.dtype = attention_dtypes().back();
        const AttentionCase test = with_lengths(spec, {query_length, capacity, capacity + 1, 3 * capacity + 11, 777}, random);
        ASSERT_NO_FATAL_FAILURE(run_plain(test, spare == 0));
        const Tensor out = test.out.clone(), lse = test.lse.clone();
        KvCacheSpec ring = cache_spec(CacheKind::ring, 1, 2, 24, 20, capacity);
        ring.window = window;
        const KvCache cache = fill_cache(test, ring, random);
        compare(test, cache, out, lse, describe(ring));
        // The ring's window is there without being asked for; a narrower one joins it.
        AttentionCase bare = test;
        bare.spec.mask = Mask::causal(Causal::bottom_right);
        compare(bare, cache, out, lse, "no window asked for, " + describe(ring));
      }
    }
  }
}

// A ring that has gone round many times, far behind the keys where splits begin: splits that hold nothing are left out.
TEST_P(CachedAttentionTest, ARingRunsOn) {
  Random random(36);
  if (slow()) GTEST_SKIP() << "minutes with the scalar kernels";
  for (const std::int64_t window : {100, 3000}) {
    for (const std::int64_t query_length : {1, 9}) {
      const std::int64_t capacity = window + query_length - 1;
      const AttentionCase test = with_lengths(
          attention_spec(1, 2, 1, query_length, 0, 16, 16, Mask::causal(Causal::bottom_right) & Mask::window(window - 1, 0)),
          {20000, 8193, 4096, 2050}, random);
      ASSERT_NO_FATAL_FAILURE(run_plain(test, false));
      const Tensor out = test.out.clone(), lse = test.lse.clone();
      KvCacheSpec ring = cache_spec(CacheKind::ring, 1, 1, 16, 16, capacity);
      ring.window = window;
      compare(test, fill_cache(test, ring, random), out, lse, describe(ring));
    }
  }
}

// Weights over any cache are those over the same keys in one tensor, bit for bit.
TEST_P(CachedAttentionTest, WeightsAreThoseOfPlainAttention) {
  Random random(41);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto check_weights = [&](const AttentionCase& test, const KvCache& cache, const Tensor& expected,
                                 const std::string& what) {
    const auto& shape = expected.view().shape;
    std::vector<std::int64_t> which;
    for (std::int64_t b = 0; b < shape[0]; ++b) which.push_back(2 * b + 1);
    const Tensor sequences = integers(DType::i64, which), weights(DType::f32, {shape[0], shape[1], shape[2], shape[3]});
    const Tensor received(DType::f32, {shape[0], 1, shape[3]}), head = integers(DType::i32, {shape[1] - 1});
    CachedAttentionInputs inputs = cached_inputs(test, cache, sequences);
    inputs.out = inputs.lse = TensorView();  // not looked at
    for (const int threads : {1, 2}) {
      fill(weights, nan), fill(received, nan);
      AttentionWeightsRequest request;
      request.weights = weights;
      attention_weights(runtime(threads), inputs, test.options(), request);
      ASSERT_TRUE(same_bits(expected, weights)) << what << ": " << first_difference(expected, weights);
      EXPECT_TRUE(weights.surroundings_intact());
      request = {};
      request.heads = head, request.received = received;
      attention_weights(runtime(threads), inputs, test.options(), request);
      for (std::int64_t b = 0; b < shape[0]; ++b)
        for (std::int64_t s = 0; s < shape[3]; ++s) {
          double sum = 0;
          for (std::int64_t t = 0; t < shape[2]; ++t) sum += expected({b, shape[1] - 1, t, s});
          ASSERT_NEAR(received({b, 0, s}), sum, 1e-6 * (1 + sum)) << what;
        }
    }
  };
  const auto plain_weights = [&](const AttentionCase& test) {
    const AttentionSpec& spec = test.spec;
    const Tensor weights(DType::f32, {spec.batch, spec.heads, spec.query_length, spec.key_length});
    AttentionWeightsRequest request;
    request.weights = weights;
    attention_weights(runtime(), test.inputs(), test.options(), request);
    // By the formula, to f32's bound whatever is stored.
    const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), true);
    double largest = 0;
    for (const double score : expected.score_magnitude.values) largest = std::max(largest, std::isfinite(score) ? score : 0.0);
    EXPECT_TRUE(array_matches(expected.weights, weights, 2e-6 + 0x1p-22 * largest, 0, test.describe()));
    return weights;
  };
  for (const DType dtype : attention_dtypes())
    for (const std::int64_t query_length : {1, 5, 40})
      for (const Mask& mask : {Mask::causal(Causal::bottom_right), Mask::none(),
                               Mask::causal(Causal::bottom_right) & Mask::window(40, 0, 4), Mask::boolean() & Mask::bias()}) {
        if (slow() && query_length == 40) continue;
        AttentionSpec spec = attention_spec(1, 4, 2, query_length, 0, 20, 16, mask);
        spec.dtype = dtype;
        spec.has_sink = spec.has_alibi = query_length == 5;
        if (query_length == 1 && !mask.has_bias) spec.relative_bias = RelativeBias::t5();
        const AttentionCase test = with_lengths(spec, {130, 0, 599, query_length}, random);
        const Tensor expected = plain_weights(test);
        for (const Layout& layout : layouts) {
          KvCacheSpec kept = cache_spec(layout.kind, 1, 2, 20, 16, 0, layout.page_tokens);
          if (layout.kind == CacheKind::contiguous) kept.capacity = 600;
          check_weights(test, fill_cache(test, kept, random), expected, test.describe() + ", " + describe(kept));
        }
      }
  // Rings, that have lost keys or not: what is gone weighs nothing.
  for (const DType dtype : attention_dtypes())
    for (const std::int64_t query_length : {1, 9})
      for (const std::int64_t window : {1, 64, 300}) {
        AttentionSpec spec =
            attention_spec(1, 4, 2, query_length, 0, 24, 20, Mask::causal(Causal::bottom_right) & Mask::window(window - 1, 0));
        spec.dtype = dtype;
        const std::int64_t capacity = window + query_length + 2;
        const AttentionCase test = with_lengths(spec, {query_length, capacity + 1, 3 * capacity + 11, 777}, random);
        KvCacheSpec ring = cache_spec(CacheKind::ring, 1, 2, 24, 20, capacity);
        ring.window = window;
        const KvCache cache = fill_cache(test, ring, random);
        const Tensor expected = plain_weights(test);
        check_weights(test, cache, expected, test.describe() + ", " + describe(ring));
        AttentionCase bare = test;
        bare.spec.mask = Mask::causal(Causal::bottom_right);
        check_weights(bare, cache, expected, "no window asked for, " + describe(ring));
      }
}

// Queries of another type than the cache's, and what is refused.
TEST_P(CachedAttentionTest, WeightsOfQueriesOfAnyType) {
  Random random(42);
  for (const DType stored : attention_dtypes())
    for (const DType of_query : attention_dtypes()) {
      AttentionSpec spec = attention_spec(1, 4, 2, 6, 0, 16, 16, Mask::causal(Causal::bottom_right));
      spec.dtype = stored;
      AttentionCase test = with_lengths(spec, {300, 41}, random);
      const KvCache cache = fill_cache(test, cache_spec(CacheKind::paged, 1, 2, 16, 16, 0, 7), random);
      const Tensor query(of_query, {2, 4, 6, 16});
      fill_normal(query, random);
      test.query = query;
      const Tensor sequences = integers(DType::i64, {1, 3}), weights(DType::f32, {2, 4, 6, 300});
      CachedAttentionInputs inputs = cached_inputs(test, cache, sequences);
      AttentionWeightsRequest request;
      request.weights = weights;
      attention_weights(runtime(), inputs, test.options(), request);
      const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), true);
      EXPECT_TRUE(array_matches(expected.weights, weights, 1e-5, 0, std::string(name(of_query)) + " over " + name(stored)));
      const auto message = [&](const CachedAttentionInputs& changed, const AttentionWeightsRequest& asked) {
        try {
          attention_weights(runtime(), changed, test.options(), asked);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
          return std::string(error.what());
        }
        return std::string("was accepted");
      };
      const auto has = [](const std::string& text, const char* part) {
        EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
      };
      request.weights = slice(weights, 3, 0, 299);
      has(message(inputs, request), "weights is f32[2, 4, 6, 299], expected f32[2, 4, 6, 300]");
      request.weights = TensorView();
      has(message(inputs, request), "weights is not given, nor is received");
      request.weights = weights;
      const Tensor missing = integers(DType::i64, {1, 5});
      inputs.sequences = missing;
      has(message(inputs, request), "sequences[1] is 5");
      inputs.sequences = sequences;
      inputs.cache = nullptr;
      has(message(inputs, request), "cache is not given");
    }
}

TEST_P(CachedAttentionTest, ForkedSequencesAnswerAlikeAndThenApart) {
  Random random(37);
  const AttentionCase test =
      with_lengths(attention_spec(1, 4, 2, 3, 0, 16, 16, Mask::causal(Causal::bottom_right)), {61}, random);
  run_plain(test, true);
  const Tensor out = test.out.clone();
  const KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 2, 16, 16, 0, 8);
  KvCache cache = fill_cache(test, spec, random);
  cache.fork(1, 2);
  cache.fork(1, 0);
  cache.append(new_tokens(spec, {1, 0}, {5, 9}, random).append());
  const Tensor second = integers(DType::i64, {2});
  attention(runtime(), cached_inputs(test, cache, second), test.options());
  EXPECT_TRUE(same_bits(out, test.out)) << first_difference(out, test.out);
  const Tensor first = integers(DType::i64, {1});
  attention(runtime(), cached_inputs(test, cache, first), test.options());
  EXPECT_FALSE(same_bits(out, test.out)) << "the tokens that were appended to the other sequence are not seen";
  // One sequence several times, for several queries: each batch item is answered for itself.
  cache.trim(1, 61);
  AttentionCase three =
      with_lengths(attention_spec(1, 4, 2, 3, 0, 16, 16, Mask::causal(Causal::bottom_right)), {61, 61, 61}, random);
  for (std::int64_t b = 0; b < 3; ++b) copy(test.query, slice(three.query, 0, b, b + 1));
  const Tensor same = integers(DType::i64, {2, 1, 2});
  attention(runtime(2), cached_inputs(three, cache, same), three.options());
  for (std::int64_t b = 0; b < 3; ++b) {
    EXPECT_TRUE(same_bits(out, slice(three.out, 0, b, b + 1))) << "batch item " << b;
  }
}

// Rotated keys and queries against the oracle, by the difference of their positions alone: one decode step after another.
TEST_P(CachedAttentionTest, DecodingStepByStepIsThePrefillInChunks) {
  Random random(38);
  for (const CacheKind kind : {CacheKind::contiguous, CacheKind::paged}) {
    KvCacheSpec spec =
        cache_spec(kind, 2, 2, 32, 32, kind == CacheKind::contiguous ? 64 : 0, kind == CacheKind::paged ? 16 : 0);
    spec.rotary.style = Rotary::half_split;
    KvCache steps(spec), chunks(spec);
    const NewTokens fresh = new_tokens(spec, {0, 1}, {40, 40}, random);
    const Tensor query(DType::f32, {2, 4, 40, 32}), by_step(DType::f32, {2, 4, 40, 32}), by_chunk(DType::f32, {2, 4, 40, 32});
    fill_normal(query, random);
    const auto run = [&](KvCache& cache, std::int64_t begin, std::int64_t end, const Tensor& out) {
      CacheAppend tokens;
      tokens.key = slice(fresh.key, 2, begin, end);
      tokens.value = slice(fresh.value, 2, begin, end);
      cache.append(tokens);
      const Tensor rotated = Tensor(DType::f32, {2, 4, end - begin, 32});
      cache.rotate_queries(slice(query, 2, begin, end), rotated);
      CachedAttentionInputs inputs;
      inputs.cache = &cache;
      inputs.query = rotated;
      inputs.out = slice(out, 2, begin, end);
      AttentionOptions options = cached_attention_options();
      options.length_invariant = true;
      attention(runtime(), inputs, options);
    };
    for (std::int64_t t = 0; t < 40; ++t) run(steps, t, t + 1, by_step);
    for (std::int64_t t = 0; t < 40; t += 13) run(chunks, t, std::min<std::int64_t>(t + 13, 40), by_chunk);
    EXPECT_TRUE(same_bits(by_step, by_chunk)) << first_difference(by_step, by_chunk);
    // And both are attention over the rotated keys.
    const Tensor key(DType::f32, {2, 2, 40, 32}), rotated(DType::f32, {2, 4, 40, 32});
    for (std::int64_t b = 0; b < 2; ++b) steps.read(b, 0, select(key, b), {});
    steps.rotate_queries(query, rotated);
    AttentionInputs inputs;
    inputs.query = rotated;
    inputs.key = key;
    inputs.value = slice(fresh.value, 2, 0, 40);
    inputs.out = by_chunk;
    const oracle::AttentionResult expected = oracle::attention(inputs, cached_attention_options());
    EXPECT_TRUE(attention_matches(expected, by_step, "decoded step by step"));
  }
}

TEST_P(CachedAttentionTest, ManyThreadsReadOneCache) {
  Random random(39);
  const AttentionCase test =
      with_lengths(attention_spec(1, 4, 2, 2, 0, 32, 32, Mask::causal(Causal::bottom_right)), {500, 33}, random);
  run_plain(test, false);
  const Tensor out = test.out.clone();
  KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 2, 32, 32, 0, 16);
  spec.rotary.style = Rotary::interleaved;
  const KvCache cache = fill_cache(test, spec, random);
  const Tensor sequences = integers(DType::i64, {1, 3});
  const AttentionPlan plan(test.spec, runtime(2));
  Tensor first = test.out.clone();
  CachedAttentionInputs inputs = cached_inputs(test, cache, sequences);
  inputs.lse = {};
  inputs.out = first;
  plan.run(inputs);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      const Tensor own(DType::f32, {2, 4, 2, 32}), turned(DType::f32, {2, 4, 2, 32});
      CachedAttentionInputs mine = inputs;
      mine.out = own;
      for (int round = 0; round < (slow() ? 3 : 30); ++round) {
        plan.run(mine);
        cache.rotate_queries(test.query, turned, sequences);
        wrong[i] += !same_bits(own, first);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST_P(CachedAttentionTest, WhatDoesNotFitIsNamed) {
  Random random(40);
  const AttentionCase test =
      with_lengths(attention_spec(1, 4, 2, 3, 0, 16, 16, Mask::causal(Causal::bottom_right)), {50, 20}, random);
  const KvCache cache = fill_cache(test, cache_spec(CacheKind::paged, 1, 2, 16, 16, 0, 8), random);
  const Tensor sequences = integers(DType::i64, {1, 3});
  const CachedAttentionInputs right = cached_inputs(test, cache, sequences);
  const auto message = [&](const std::function<void(CachedAttentionInputs&, AttentionSpec&)>& change) {
    CachedAttentionInputs inputs = right;
    AttentionSpec spec = test.spec;
    change(inputs, spec);
    try {
      AttentionPlan(spec, runtime()).run(inputs);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  using Inputs = CachedAttentionInputs;
  using Spec = AttentionSpec;
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  };
  has(message([](Inputs&, Spec&) {}), "not refused");
  has(message([](Inputs& i, Spec&) { i.cache = nullptr; }), "cache is not given");
  has(message([](Inputs&, Spec& s) { s.mask.has_key_lengths = false; }), "AttentionSpec.mask.has_key_lengths is false");
  has(message([](Inputs&, Spec& s) { s.mask.has_segments = true; }),
      "AttentionSpec.mask.has_segments is true, expected false for keys in pages");
  has(message([](Inputs&, Spec& s) { s.mask.has_query_lengths = true; }), "query_lengths is not given");
  has(message([&](Inputs& i, Spec&) { i.query_lengths = sequences; }), "query_lengths is i64[2], expected no tensor");
  const Tensor ends = integers(DType::i64, {0, 2, 3}), packed_query(DType::f32, {1, 4, 3, 16}),
               packed_out(DType::f32, {1, 4, 3, 16});
  const auto packed = [&](const std::function<void(Inputs&, Spec&)>& change) {
    return message([&](Inputs& i, Spec& s) {
      s.mask.is_packed = true;
      i.query = packed_query, i.out = packed_out, i.lse = {}, i.cumulative_query_lengths = ends;
      change(i, s);
    });
  };
  has(packed([](Inputs&, Spec&) {}), "not refused");
  has(packed([](Inputs& i, Spec&) { i.cumulative_query_lengths = {}; }), "cumulative_query_lengths is not given");
  has(packed([&](Inputs& i, Spec&) { i.query = test.query; }), "query is");
  has(packed([&](Inputs& i, Spec&) { i.sequences = slice(i.sequences, 0, 0, 1); }), "sequences is i64[1]");
  has(packed([](Inputs&, Spec& s) { s.batch = 1; }), "the number of sequences is 2, expected at most the plan's 1");
  has(packed([](Inputs&, Spec& s) { s.query_length = 1; }), "the longest sequence's number of queries is 2");
  has(message([](Inputs&, Spec& s) { s.mask.causality = Causal::none, s.relative_bias = RelativeBias::swin(10, 10); }),
      "relative_bias");
  has(message([](Inputs&, Spec& s) { s.key_length = 49; }),
      "AttentionSpec.key_length is 49, expected at least the length of sequence 1 (50)");
  has(message([](Inputs&, Spec& s) { s.kv_heads = 4; }), "AttentionSpec.kv_heads is 4, expected 2, the cache's kv_heads");
  has(message([](Inputs&, Spec& s) { s.value_dim = 8; }), "AttentionSpec.value_dim is 8");
  const std::vector<DType> dtypes = attention_dtypes();
  if (const DType other = dtypes.back(); other != DType::f32) {
    const Tensor query(other, {2, 4, 1, 16}), out(other, {2, 4, 1, 16});
    const std::string refused = message([&](Inputs& i, Spec& s) {
      s.dtype = other;
      i.query = query, i.out = out;
    });
    has(refused, (std::string("AttentionSpec.dtype is ") + name(other) + ", expected f32, the cache's dtype").c_str());
  }
  has(message([](Inputs& i, Spec&) { i.query = {}; }), "query is not given");
  has(message([](Inputs& i, Spec&) { i.out = i.query; }), "out overlaps query");
  const Tensor bad = integers(DType::i64, {1, 5}), one = integers(DType::i64, {1});
  has(message([&](Inputs& i, Spec&) { i.sequences = bad; }), "sequences[1] is 5, expected 0 to 4");
  has(message([&](Inputs& i, Spec&) { i.sequences = one; }), "sequences is i64[1]");
  has(message([&](Inputs& i, Spec&) { i.offsets = bad; }), "offsets is i64[2], expected no tensor");

  const Tensor many(DType::f32, {6, 4, 1, 16}), many_out(DType::f32, {6, 4, 1, 16});
  has(message([&](Inputs& i, Spec& s) {
        i.sequences = {}, i.lse = {}, i.query = many, i.out = many_out;
        s.batch = 6;
      }),
      "query's batch is 6, expected at most the cache's sequences (5)");

  KvCacheSpec ring = cache_spec(CacheKind::ring, 1, 2, 16, 16, 12);
  ring.window = 10;  // chunks of up to three queries
  const KvCache round = fill_cache(test, ring, random);
  const auto of_ring = [&](const std::function<void(Inputs&, Spec&)>& change) {
    return message([&](Inputs& i, Spec& s) {
      i.cache = &round;
      s.key_length = round.plan_key_length();
      change(i, s);
    });
  };
  has(of_ring([](Inputs&, Spec&) {}), "not refused");
  has(of_ring([](Inputs&, Spec& s) { s.key_length = 100; }),
      "AttentionSpec.key_length is 100, expected the ring's plan_key_length()");
  has(of_ring([](Inputs&, Spec& s) { s.mask.causality = Causal::none; }), "AttentionSpec.mask.causality is");
  has(of_ring([](Inputs&, Spec& s) { s.mask.window_kept = 4; }),
      "AttentionSpec.mask.window_kept is 4, expected 0 over a ring, whose first tokens are gone");
  const Tensor four(DType::f32, {2, 4, 4, 16}), four_out(DType::f32, {2, 4, 4, 16});
  has(of_ring([&](Inputs& i, Spec& s) {
        i.query = four, i.out = four_out, i.lse = {};
        s.query_length = 4;
      }),
      "query's length is 4, expected at most 3: sequence 1 has 50 tokens, of which the ring keeps those from 38 on");
  const Tensor rows = integers(DType::i64, {2, 4}), four_ends = integers(DType::i64, {0, 4, 4});
  has(of_ring([&](Inputs& i, Spec& s) {
        i.query = four, i.out = four_out, i.lse = {}, i.query_lengths = rows;
        s.query_length = 4, s.mask.has_query_lengths = true;
      }),
      "query_lengths[1] is 4, expected at most 3: sequence 3 has 20 tokens");
  has(of_ring([&](Inputs& i, Spec& s) {
        i.query = slice(four, 0, 0, 1), i.out = slice(four_out, 0, 0, 1), i.lse = {}, i.cumulative_query_lengths = four_ends;
        s.query_length = 4, s.mask.is_packed = true;
      }),
      "the number of queries of packed sequence 0 is 4, expected at most 3: sequence 1 has 50 tokens");
  has(of_ring([&](Inputs& i, Spec& s) { s.mask.has_prefix = true, i.prefix_lengths = rows; }),
      "AttentionSpec.mask.has_prefix is true, expected false over a ring");
  const Tensor blocks(DType::boolean, {1, 1, 1, 1});
  has(of_ring([&](Inputs& i, Spec& s) { s.mask = s.mask & Mask::blocks(8, 8), i.block_mask = blocks; }),
      "AttentionSpec.mask.block_queries is 8, expected 0 over a ring");
}

POLYHEAD_INSTANTIATE_EVERY_ISA(CachedAttentionTest);

}  // namespace
}  // namespace polyhead::testing
