// The caller's own function of scores: indices, order, masks, classifier, exceptions, bits, over every kernel and data type. By
// functions of whole tiles; lambdas over xsimd are tests/score_mod's.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "polyhead/kv_cache.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

template <class Function>
void for_each_score(const ScoreTile& tile, const Function& function) {
  for (std::int64_t line = 0; line < tile.lines; ++line)
    for (std::int64_t lane = 0; lane < tile.lanes; ++lane) {
      float& score = tile.scores[line * tile.line_stride + lane];
      score = static_cast<float>(function(static_cast<double>(score), tile.batch, tile.head.at(line, lane),
                                          tile.query.at(line, lane), tile.key.at(line, lane)));
    }
}

// What a function was told, for all calls of a run together.
struct Seen {
  std::atomic<std::int64_t> tiles{0}, scores{0}, outside{0}, misplaced{0}, full{0};
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0;

  void look(const ScoreTile& tile) {
    ++tiles;
    scores += tile.lines * tile.lanes;
    full += tile.is_full;
    for (std::int64_t line = 0; line < tile.lines; ++line)
      for (std::int64_t lane = 0; lane < tile.lanes; ++lane) {
        const std::int64_t h = tile.head.at(line, lane), t = tile.query.at(line, lane), s = tile.key.at(line, lane);
        const bool inside =
            tile.batch >= 0 && tile.batch < batch && h >= 0 && h < heads && t >= 0 && t < queries && s >= 0 && s < keys;
        if (!inside) ++outside;
        const ScoreIndex& of_lane_alone = tile.key;
        const bool placed =
            tile.lanes_are_keys
                ? of_lane_alone.of_line[line] == 0 && tile.query.of_lane[lane] == 0 && tile.head.of_lane[lane] == 0
                : tile.key.of_lane[lane] == 0 && tile.query.of_line[line] == 0 && tile.head.of_line[line] == 0;
        if (!placed) ++misplaced;
      }
  }
};

ScoreMod plain_mod(Seen* seen) {
  ScoreMod mod;
  mod.name = "pattern";
  mod.functions.baseline = [](const ScoreTile& tile, void* context) {
    if (context) static_cast<Seen*>(context)->look(tile);
    for_each_score(tile, score_at_place);
  };
  mod.context = seen;
  return mod;
}

class ScoreModTest : public EveryIsaAndDType {
 protected:
  // Runs with one thread and two, and looks at what the function was told.
  void expect_right(AttentionCase test, const std::string& what = {}) const {
    Seen seen;
    seen.batch = test.spec.batch;
    seen.heads = test.spec.heads;
    seen.queries = test.spec.query_length;
    seen.keys = test.spec.key_length;
    test.spec.score_mod = plain_mod(&seen);
    test.score_function = score_at_place;
    for (const int threads : {1, 2}) ASSERT_TRUE(run_and_compare(test, runtime(threads), what));
    EXPECT_EQ(seen.outside, 0) << test.describe();
    EXPECT_EQ(seen.misplaced, 0) << test.describe();
  }
  void expect_right(const AttentionSpec& spec, std::uint64_t seed) const {
    Random random(seed);
    expect_right(make_case(spec, random), "seed " + std::to_string(seed));
  }
};

TEST_P(ScoreModTest, IsToldWhichScoreItChanges) {
  for (const std::int64_t query_length : {1, 2, 5, 17, 49, 100})
    for (const std::int64_t group : {1, 3, 8}) expect_right(attention_spec(2, 2 * group, 2, query_length, 131, 24, 20), 1);
  for (const std::int64_t key_length : {1, 3, 63, 64, 65, 257, 600})
    for (const std::int64_t query_length : {1, 3, 33}) {
      expect_right(attention_spec(2, 4, 2, query_length, key_length, 64, 64), 2);
    }
}

TEST_P(ScoreModTest, KeysThatAreSplitKeepTheirNumbers) {
  if (slow()) return;
  for (const std::int64_t query_length : {1, 4, 40}) expect_right(attention_spec(1, 2, 1, query_length, 6200, 16, 16), 3);
}

TEST_P(ScoreModTest, ComesAfterTheSoftcapAndBeforeBiasAndMask) {
  for (const std::int64_t query_length : {1, 4, 40}) {
    AttentionSpec spec = attention_spec(2, 4, 2, query_length, 150, 40, 40, Mask::bias() & Mask::boolean());
    expect_right(spec, 4);
    spec.softcap = 1.5;
    expect_right(spec, 5);
    spec.has_alibi = spec.has_sink = true;
    expect_right(spec, 6);
    spec.mask = Mask::causal(Causal::bottom_right);
    expect_right(spec, 7);
    spec.scale = -0.3;
    expect_right(spec, 8);
  }
}

TEST_P(ScoreModTest, WorksWithEveryMask) {
  const Mask bottom_right = Mask::causal(Causal::bottom_right);
  const Mask masks[] = {bottom_right & Mask::key_lengths(),
                        Mask::window(20, 5) & Mask::offsets(),
                        Mask::query_lengths() & Mask::key_lengths(),
                        Mask::packed() & bottom_right,
                        Mask::packed() & Mask::bias(),
                        bottom_right & Mask::prefix(),
                        Mask::segments(),
                        Mask::segments() & bottom_right & Mask::boolean(),
                        Mask::blocks(16, 32),
                        Mask::blocks(3, 70) & Mask::key_lengths()};
  std::uint64_t seed = 10;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {2, 50}) {
      for (int repeat = slow() ? 2 : 0; repeat < 3; ++repeat) {
        expect_right(attention_spec(3, 4, 2, query_length, 90, 16, 16, mask), seed++);
      }
    }
}

TEST_P(ScoreModTest, OneCallTakesItWithAllElse) {
  // Such a call finds its plan by everything that is asked of it.
  AttentionSpec spec = attention_spec(2, 4, 2, 20, 90, 16, 24,
                                      Mask::causal(Causal::bottom_right) & Mask::window(30, 5, 3) & Mask::key_lengths() &
                                          Mask::boolean() & Mask::blocks(16, 32));
  spec.scale = 0.3;
  spec.softcap = 2.0;
  spec.has_alibi = spec.has_sink = true;
  spec.relative_bias = RelativeBias::t5();
  spec.score_mod = plain_mod(nullptr);
  Random random(77);
  const AttentionCase test = make_case(spec, random);
  const Tensor planned = run_fresh(test, runtime());
  attention(runtime(), test.inputs(), test.options());
  EXPECT_TRUE(same_bits(planned, test.out)) << first_difference(planned, test.out);
}

TEST_P(ScoreModTest, ItsMinusInfinityExcludes) {
  Random random(20);
  for (const std::int64_t query_length : {1, 30}) {
    AttentionCase test = make_case(attention_spec(1, 2, 1, query_length, 200, 16, 16), random);
    test.spec.score_mod.functions.baseline = [](const ScoreTile& tile, void*) {
      for_each_score(tile, [](double, std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return -infinity; });
    };
    test.score_function = [](double, std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return -infinity; };
    ASSERT_TRUE(run_and_compare(test, runtime()));  // empty rows
    // Excluded values may hold anything.
    test.spec.score_mod.functions.baseline = [](const ScoreTile& tile, void*) {
      for_each_score(tile, [](double score, std::int64_t, std::int64_t h, std::int64_t t, std::int64_t s) {
        return (s + t + h) % 3 == 0 ? score : -infinity;
      });
    };
    const Tensor before = run_fresh(test, runtime());
    for (std::int64_t s = 0; s < 200; ++s)
      for (std::int64_t e = 0; e < 16; ++e)
        if (s % 3 == 1) test.value.set({0, 0, s, e}, not_a_number);
    const Tensor after = run_fresh(test, runtime());
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t t = 0; t < query_length; ++t)
        for (std::int64_t e = 0; e < 16; ++e) {
          if ((t + h) % 3 == 2) {
            ASSERT_TRUE(std::isnan(after({0, h, t, e})));  // sees s = 1, 4, 7 ..
          } else {
            ASSERT_EQ(before({0, h, t, e}), after({0, h, t, e})) << "head " << h << ", query " << t;
          }
        }
  }
}

// A NaN that it makes of a masked key's score counts for nothing; one of a visible key's reaches that row and no other.
TEST_P(ScoreModTest, NaNCountsWhereItIsSeen) {
  struct Poison {
    bool everywhere_hidden = false;
    std::int64_t query = -1;
  };
  const auto function = [](const ScoreTile& tile, void* context) {
    const Poison& poison = *static_cast<const Poison*>(context);
    for_each_score(tile, [&](double score, std::int64_t, std::int64_t, std::int64_t t, std::int64_t s) {
      if (poison.everywhere_hidden && s > t + 110) return not_a_number;
      if (t == poison.query && s == 7) return not_a_number;
      return score;
    });
  };
  for (const std::int64_t query_length : {1, 4, 60}) {
    Random random(21);
    AttentionCase test = make_case(
        attention_spec(1, 2, 2, query_length, query_length + 110, 32, 32, Mask::causal(Causal::bottom_right)), random);
    Poison none, hidden{true, -1}, visible{false, query_length - 1};
    test.spec.score_mod.functions.baseline = function;
    test.spec.score_mod.context = &none;
    const Tensor clean = run_fresh(test, runtime());
    test.spec.score_mod.context = &hidden;
    const Tensor with_hidden = run_fresh(test, runtime());
    EXPECT_TRUE(same_bits(clean, with_hidden)) << first_difference(clean, with_hidden);
    test.spec.score_mod.context = &visible;
    const Tensor with_visible = run_fresh(test, runtime());
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t t = 0; t < query_length; ++t)
        for (std::int64_t e = 0; e < 32; ++e) {
          if (t == query_length - 1) {
            ASSERT_TRUE(std::isnan(with_visible({0, h, t, e})));
          } else {
            ASSERT_EQ(with_visible({0, h, t, e}), clean({0, h, t, e}));
          }
        }
  }
}

TEST_P(ScoreModTest, ExtremeScoresStayWhatTheyAre) {
  Random random(22);
  for (const std::int64_t query_length : {1, 30}) {
    AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 70, 8, 8), random);
    // The largest finite score wins alone, the lowest is no exclusion.
    test.spec.score_mod.functions.baseline = [](const ScoreTile& tile, void*) {
      for_each_score(tile, [](double, std::int64_t, std::int64_t, std::int64_t, std::int64_t s) {
        return s == 5 ? 3.4e38 : s < 5 ? -3.4e38 : -infinity;
      });
    };
    const Tensor out = run_fresh(test, runtime());
    for (std::int64_t t = 0; t < query_length; ++t)
      for (std::int64_t e = 0; e < 8; ++e) ASSERT_EQ(out({0, 0, t, e}), test.value({0, 0, 5, e}));
    test.spec.score_mod.functions.baseline = [](const ScoreTile& tile, void*) {
      for_each_score(
          tile, [](double, std::int64_t, std::int64_t, std::int64_t, std::int64_t s) { return s == 3 ? -3.4e38 : -infinity; });
    };
    const Tensor alone = run_fresh(test, runtime());
    for (std::int64_t t = 0; t < query_length; ++t)
      for (std::int64_t e = 0; e < 8; ++e) ASSERT_EQ(alone({0, 0, t, e}), test.value({0, 0, 3, e}));
  }
}

// Blocks of 40 queries see blocks of 40 keys: a mask with a classifier.
struct Blocks {
  static constexpr std::int64_t size = 40;
  std::atomic<std::int64_t> asked{0}, changed_scores{0}, full{0}, in_skipped{0}, hidden_in_full{0};
};
void blocks_function(const ScoreTile& tile, void* context) {
  auto& blocks = *static_cast<Blocks*>(context);
  blocks.changed_scores += tile.lines * tile.lanes;
  blocks.full += tile.is_full;
  bool any = false;
  for_each_score(tile, [&](double score, std::int64_t, std::int64_t, std::int64_t t, std::int64_t s) {
    const bool visible = t / Blocks::size == s / Blocks::size;
    any = any || visible;
    if (tile.is_full && !visible) ++blocks.hidden_in_full;
    return visible ? score : -infinity;
  });
  if (!any) ++blocks.in_skipped;
}
TileClass blocks_class(const ScoreRange& range, void* context) {
  ++static_cast<Blocks*>(context)->asked;
  const std::int64_t size = Blocks::size;
  const std::int64_t first_query = range.query_begin / size, last_query = (range.query_end - 1) / size;
  const std::int64_t first_key = range.key_begin / size, last_key = (range.key_end - 1) / size;
  if (last_query < first_key || first_query > last_key) return TileClass::skip;
  const bool one = first_query == last_query && first_key == last_key && first_query == first_key;
  return one ? TileClass::full : TileClass::partial;
}

TEST_P(ScoreModTest, TheClassifierSavesWorkAndChangesNoBit) {
  for (const std::int64_t group : {1, 4})
    for (const std::int64_t length : {3, 40, 90, 800}) {
      if (slow() && length > 100) continue;
      Random random(30);
      AttentionCase test = make_case(attention_spec(1, group, 1, length, length, 16, 16, Mask::key_lengths()), random);
      test.key_lengths = integers(DType::i32, {length});
      Blocks asked_all, classed;
      test.spec.score_mod.functions.baseline = blocks_function;
      test.spec.score_mod.context = &asked_all;
      test.score_function = [](double score, std::int64_t, std::int64_t, std::int64_t t, std::int64_t s) {
        return t / Blocks::size == s / Blocks::size ? score : -infinity;
      };
      ASSERT_TRUE(run_and_compare(test, runtime(2)));
      const Tensor all = run_fresh(test, runtime());
      test.spec.score_mod.classify = blocks_class;
      test.spec.score_mod.context = &classed;
      ASSERT_TRUE(run_and_compare(test, runtime(2)));
      const Tensor some = run_fresh(test, runtime());
      EXPECT_TRUE(same_bits(all, some)) << first_difference(all, some);
      EXPECT_GT(classed.asked, 0);
      EXPECT_EQ(classed.in_skipped, 0);
      EXPECT_EQ(classed.hidden_in_full, 0);
      EXPECT_EQ(asked_all.full, 0);
      if (length == 40) {
        EXPECT_GT(classed.full, 0);
      }
      if (length == 800) {
        EXPECT_LT(classed.changed_scores, asked_all.changed_scores / 2);
      }
    }
}

TEST_P(ScoreModTest, HasTheSameBitsForAnyThreadsAndBatch) {
  Random random(31);
  for (const std::int64_t query_length : {1, 5, 90}) {
    AttentionCase test = make_case(attention_spec(3, 4, 2, query_length, 300, 32, 32), random);
    test.spec.score_mod.functions.baseline = [](const ScoreTile& tile, void*) {
      for_each_score(tile, [](double score, std::int64_t, std::int64_t h, std::int64_t t, std::int64_t s) {
        return score_at_place(score, 0, h, t, s);
      });
    };
    const Tensor one = run_fresh(test, runtime(1)), two = run_fresh(test, runtime(2));
    EXPECT_TRUE(same_bits(one, two)) << first_difference(one, two);
    AttentionCase last = test;
    last.spec.batch = 1;
    for (Tensor* tensor : {&last.query, &last.key, &last.value, &last.out, &last.lse})
      *tensor = tensor->viewed(slice(*tensor, 0, 2, 3));
    const Tensor alone = run_fresh(last, runtime());
    EXPECT_TRUE(same_bits(slice(one, 0, 2, 3), alone)) << first_difference(slice(one, 0, 2, 3), alone);
  }
}

struct OwnException {
  std::int64_t key;
};

TEST_P(ScoreModTest, WhatItThrowsReachesTheCaller) {
  Random random(32);
  for (const std::int64_t query_length : {1, 120})
    for (const int threads : {1, 2}) {
      AttentionCase test = make_case(attention_spec(2, 8, 8, query_length, 400, 16, 16), random);
      const AttentionPlan reference(test.spec, runtime(threads));
      test.spec.score_mod.functions.baseline = [](const ScoreTile& tile, void* context) {
        if (*static_cast<bool*>(context) && tile.key.at(tile.lines - 1, tile.lanes - 1) > 200)
          throw OwnException{tile.key.first};
      };
      bool throws = true;
      test.spec.score_mod.context = &throws;
      const AttentionPlan plan(test.spec, runtime(threads));
      EXPECT_THROW(plan.run(test.inputs()), OwnException);
      EXPECT_THROW(plan.run(test.inputs()), OwnException);
      throws = false;  // a run after it is as good as any
      plan.run(test.inputs());
      const Tensor out = test.out.clone();
      reference.run(test.inputs());
      EXPECT_TRUE(array_matches(oracle::to_array(test.out), out, 1e-5, dtype() == DType::f32 ? 1e-5 : 1e-2, test.describe()));
      test.spec.score_mod.classify = [](const ScoreRange&, void*) -> TileClass { throw std::domain_error("no class"); };
      EXPECT_THROW(AttentionPlan(test.spec, runtime(threads)).run(test.inputs()), std::domain_error);
      EXPECT_THROW(attention(runtime(threads), test.inputs(), test.options()), std::domain_error);
    }
}

TEST_P(ScoreModTest, ARunMayBringAContextOfItsOwn) {
  Random random(33);
  AttentionCase test = make_case(attention_spec(1, 2, 1, 20, 60, 8, 8), random);
  const auto function = [](const ScoreTile& tile, void* context) {
    const double factor = *static_cast<const double*>(context);
    for_each_score(tile, [&](double score, std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return factor * score; });
  };
  double one = 1.0, half = 0.5, none = 0.0;
  test.spec.score_mod.functions.baseline = function;
  test.spec.score_mod.context = &one;
  const AttentionPlan plan(test.spec, runtime());
  for (double* factor : {&one, &half, &none}) {
    AttentionInputs inputs = test.inputs();
    inputs.score_mod_context = factor;
    AttentionOptions options = test.options();
    options.score_mod = {};
    options.scale = *factor / std::sqrt(8.0);
    const oracle::AttentionResult expected = oracle::attention(test.inputs(), options);
    plan.run(inputs);
    EXPECT_TRUE(attention_matches(expected, test.out, "plan"));
    // One-shot calls that differ in the context alone share a plan, and keep contexts apart.
    fill(test.out, not_a_number);
    AttentionOptions own = test.options();
    own.score_mod.context = factor;
    attention(runtime(), test.inputs(), own);
    EXPECT_TRUE(attention_matches(expected, test.out, "one-shot"));
  }
}

TEST_P(ScoreModTest, ServesCachesToo) {
  Random random(34);
  for (const std::int64_t query_length : {1, 12}) {
    AttentionCase test =
        make_case(attention_spec(2, 4, 2, query_length, 150, 16, 16, Mask::causal(Causal::bottom_right)), random);
    if (dtype() != DType::f32) return;  // what a cache stores is its own tests' matter
    KvCacheSpec cache_spec;
    cache_spec.kind = CacheKind::paged;
    cache_spec.sequences = 2;
    cache_spec.kv_heads = 2;
    cache_spec.head_dim = 16;
    cache_spec.page_tokens = 16;
    KvCache cache(cache_spec);
    CacheAppend tokens;
    tokens.key = test.key;
    tokens.value = test.value;
    cache.append(tokens);
    Seen seen;
    seen.batch = 2, seen.heads = 4, seen.queries = query_length, seen.keys = 150;
    AttentionOptions options = test.options();
    options.score_mod = plain_mod(&seen);
    CachedAttentionInputs inputs;
    inputs.cache = &cache;
    inputs.query = test.query;
    inputs.out = test.out;
    attention(runtime(2), inputs, options);
    EXPECT_TRUE(
        attention_matches(oracle::attention(test.inputs(), test.options(), false, score_at_place), test.out, test.describe()));
    EXPECT_GT(seen.tiles, 0);
    EXPECT_EQ(seen.outside, 0);
  }
}

TEST_P(ScoreModTest, ShowsInAttentionWeights) {
  if (dtype() != DType::f32) return;
  Random random(35);
  AttentionCase test = make_case(attention_spec(2, 6, 2, 9, 300, 16, 16, Mask::causal(Causal::bottom_right)), random);
  Seen seen;
  seen.batch = 2, seen.heads = 6, seen.queries = 9, seen.keys = 300;
  test.spec.score_mod = plain_mod(&seen);
  const Tensor weights(DType::f32, {2, 6, 9, 300});
  AttentionWeightsRequest request;
  request.weights = weights;
  attention_weights(runtime(), test.inputs(), test.options(), request);
  const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), true, score_at_place);
  EXPECT_TRUE(array_matches(expected.weights, weights, 4e-6, 4e-6, test.describe()));
  EXPECT_EQ(seen.outside, 0);
}

TEST_P(ScoreModTest, IsNamedByThePlan) {
  AttentionSpec spec = attention_spec(1, 2, 1, 20, 60, 8, 8);
  EXPECT_EQ(AttentionPlan(spec, runtime()).explain().find("score_mod"), std::string::npos);
  spec.score_mod = plain_mod(nullptr);
  EXPECT_NE(AttentionPlan(spec, runtime()).explain().find("score_mod    pattern"), std::string::npos);
  spec.score_mod.classify = blocks_class;
  EXPECT_NE(AttentionPlan(spec, runtime()).explain().find("its classifier"), std::string::npos);
}

TEST_P(ScoreModTest, FaultsAreNamed) {
  Random random(36);
  AttentionCase test = make_case(attention_spec(1, 2, 1, 20, 60, 8, 8), random);
  const auto message = [&](const AttentionInputs& inputs) -> std::string {
    try {
      AttentionPlan(test.spec, runtime()).run(inputs);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "nothing";
  };
  AttentionInputs inputs = test.inputs();
  int context = 0;
  inputs.score_mod_context = &context;
  EXPECT_NE(message(inputs).find("score_mod_context is given"), std::string::npos) << message(inputs);
  test.spec.score_mod.functions.avx2 = [](const ScoreTile&, void*) {};
  EXPECT_NE(message(test.inputs()).find("score_mod.functions.baseline is null"), std::string::npos) << message(test.inputs());
  test.spec.score_mod.functions.baseline = [](const ScoreTile&, void*) {};
  test.spec.score_mod.name = nullptr;
  EXPECT_NE(message(test.inputs()).find("score_mod.name is null"), std::string::npos) << message(test.inputs());
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(ScoreModTest);

// Each instruction set takes the best function that it includes, and no wider one.
TEST(ScoreModFunctions, AreChosenByTheInstructionSet) {
  static thread_local std::string called;
  ScoreMod mod;
  mod.functions.baseline = [](const ScoreTile&, void*) { called = "baseline"; };
  mod.functions.sse4 = [](const ScoreTile&, void*) { called = "sse4"; };
  mod.functions.avx2 = [](const ScoreTile&, void*) { called = "avx2"; };
  mod.functions.avx512 = [](const ScoreTile&, void*) { called = "avx512"; };
  Random random(37);
  for (const Isa isa : available_isas()) {
    AttentionCase test = make_case(attention_spec(1, 1, 1, 20, 60, 8, 8), random);
    test.spec.score_mod = mod;
    AttentionPlan(test.spec, runtime_on(isa)).run(test.inputs());
    const std::string wanted = isa == Isa::sse4 || isa == Isa::avx2 || isa == Isa::avx512 ? name(isa)
                               : isa == Isa::amx || isa == Isa::avx512_bf16               ? "avx512"
                                                                                          : "baseline";
    EXPECT_EQ(called, wanted) << name(isa);
    test.spec.score_mod.functions.avx512 = nullptr;
    AttentionPlan(test.spec, runtime_on(isa)).run(test.inputs());
    EXPECT_EQ(called, wanted == "avx512" ? "avx2" : wanted) << name(isa);
  }
}

}  // namespace
}  // namespace polyhead::testing
