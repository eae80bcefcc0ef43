// Lambdas over xsimd's batches: compiled for every instruction set, and in this source for its own; against float64.
#include "polyhead/score_mod.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "score_mod/lambdas.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

class LambdaTest : public EveryIsaAndDType {
 protected:
  void expect_right(const AttentionSpec& spec, std::uint64_t seed, const ScoreMod& mod, const oracle::ScoreFunction& function) {
    Random random(seed);
    AttentionCase test = make_case(spec, random);
    test.spec.score_mod = mod;
    test.score_function = function;
    for (const int threads : {1, 2}) EXPECT_TRUE(run_and_compare(test, runtime(threads), "seed " + std::to_string(seed)));
  }
};

TEST_P(LambdaTest, IsToldWhichScoreItChanges) {
  const Places places = {0.75f};
  const auto function = [](double score, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) {
    if ((b + h + t + 2 * s) % 7 == 0) return -infinity;
    return 0.75 * score + 0.25 * static_cast<double>((7 * b + 5 * h + 3 * t + 11 * s) % 13 - 6);
  };
  std::uint64_t seed = 1;
  for (const std::int64_t query_length : {1, 2, 5, 17, 60})
    for (const std::int64_t group : {1, 3})
      for (const std::int64_t key_length : {1, 37, 300}) {
        if (slow() && key_length == 300) continue;
        const AttentionSpec spec = attention_spec(2, 2 * group, 2, query_length, key_length, 24, 24);
        expect_right(spec, seed++, places_mod(places), function);
      }
  const Mask masks[] = {Mask::causal(Causal::bottom_right) & Mask::key_lengths(), Mask::packed(),
                        Mask::boolean() & Mask::bias()};
  for (const Mask& mask : masks) {
    AttentionSpec spec = attention_spec(3, 4, 2, 21, 50, 16, 16, mask);
    spec.softcap = 2.0;
    expect_right(spec, seed++, places_mod(places), function);
  }
}

TEST_P(LambdaTest, AMaskWithAClassifierHidesAndScores) {
  for (const std::int32_t size : {16, 40}) {
    const BlockRule rule = {size, 0.5f};
    for (const std::int64_t length : {1, 16, 90, 300}) {
      if (slow() && length == 300) continue;
      expect_right(attention_spec(1, 4, 2, length, length, 16, 16), 40, block_rule_mod(rule),
                   [&](double score, std::int64_t, std::int64_t, std::int64_t t, std::int64_t s) {
                     return t / size == s / size ? 0.5 * score : -infinity;
                   });
    }
  }
}

TEST_P(LambdaTest, TakesItsArgumentsInTwoSteps) {
  const std::vector<float> by_head = {0.01f, -0.02f, 0.03f, 0.0f, 0.05f, -0.06f};
  std::vector<std::int32_t> last;
  for (std::int32_t t = 0; t < 70; ++t) last.push_back(t * 7 % 90 - 3);  // some see no key
  const TwoSteps two_steps = {by_head.data(), last.data()};
  for (const std::int64_t query_length : {1, 3, 20, 70})
    expect_right(attention_spec(2, 6, 2, query_length, 85, 16, 16), 50, two_steps_mod(two_steps),
                 [&](double score, std::int64_t, std::int64_t h, std::int64_t t, std::int64_t s) {
                   if (s > last[static_cast<std::size_t>(t)]) return -infinity;
                   return score + static_cast<double>(by_head[static_cast<std::size_t>(h)]) * static_cast<double>(t - s);
                 });
}

// In this source, with what they capture.
TEST_P(LambdaTest, WorksInOneSource) {
  const float slope = 0.05f;
  const auto near = make_score_mod("near", [&](auto score, std::int64_t, auto, auto query, auto key) {
    return score - slope * xsimd::to_float(xsimd::abs(query - key));
  });
  const auto even = make_mask_mod(
      "even", [](std::int64_t, auto, auto, auto key) { return (key & decltype(key)(1)) == decltype(key)(0); },
      [](const ScoreRange&) { return TileClass::partial; });
  for (const std::int64_t query_length : {1, 5, 50}) {
    const AttentionSpec spec = attention_spec(1, 4, 2, query_length, 77, 16, 16);
    expect_right(spec, 60, near, [&](double score, std::int64_t, std::int64_t, std::int64_t t, std::int64_t s) {
      return score - static_cast<double>(slope) * std::fabs(static_cast<double>(t - s));
    });
    expect_right(spec, 61, even, [](double score, std::int64_t, std::int64_t, std::int64_t, std::int64_t s) {
      return s % 2 == 0 ? score : -infinity;
    });
  }
}

TEST_P(LambdaTest, WhatItThrowsReachesTheCaller) {
  Random random(70);
  const Thrower at = {55}, beyond = {500};
  for (const std::int64_t query_length : {1, 60}) {
    AttentionCase test = make_case(attention_spec(2, 4, 4, query_length, 100, 16, 16), random);
    test.spec.score_mod = thrower_mod(at);
    for (const int threads : {1, 2}) {
      EXPECT_THROW(AttentionPlan(test.spec, runtime(threads)).run(test.inputs()), int);
    }
    test.spec.score_mod = thrower_mod(beyond);
    EXPECT_TRUE(run_and_compare(test, runtime(2)));
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(LambdaTest);

// Tiles whose lanes are no whole batch, and places that 32 bits do not hold.
TEST(LambdaTiles, TakesAnyNumberOfLanes) {
  const auto number = make_score_mod("number", [](auto score, std::int64_t batch, auto head, auto query, auto key) {
    return score + xsimd::to_float(head) * 1000.0f + xsimd::to_float(query) * 100.0f + xsimd::to_float(key) +
           static_cast<float>(batch) * 10000.0f;
  });
  const ScoreMod mod = number;
  std::int32_t ascending[40], zero[40] = {};
  for (int i = 0; i < 40; ++i) ascending[i] = i;
  for (std::int64_t lanes = 1; lanes <= 40; ++lanes)
    for (const std::int64_t lines : {1, 3, 4, 9})
      for (const bool lanes_are_keys : {false, true}) {
        std::vector<float> scores(static_cast<std::size_t>(lines * 48), 0.5f);
        ScoreTile tile;
        tile.scores = scores.data();
        tile.lines = lines, tile.lanes = lanes, tile.line_stride = 48;
        tile.batch = 1;
        tile.head = {2, zero, zero};
        tile.query = {3, lanes_are_keys ? ascending : zero, lanes_are_keys ? zero : ascending};
        tile.key = {5, lanes_are_keys ? zero : ascending, lanes_are_keys ? ascending : zero};
        tile.lanes_are_keys = lanes_are_keys;
        mod.functions.baseline(tile, mod.context);
        for (std::int64_t line = 0; line < lines; ++line)
          for (std::int64_t lane = 0; lane < 48; ++lane) {
            const std::int64_t t = lanes_are_keys ? line : lane, s = lanes_are_keys ? lane : line;
            const float expected = lane < lanes ? 0.5f + 10000 + 2000 + static_cast<float>(100 * (3 + t) + 5 + s) : 0.5f;
            ASSERT_EQ(scores[static_cast<std::size_t>(line * 48 + lane)], expected) << lanes << " lanes, " << lines << " lines";
          }
        tile.key.first = std::int64_t{1} << 40;
        try {
          mod.functions.baseline(tile, mod.context);
          ADD_FAILURE() << "no error for a place beyond 32 bits";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::unsupported);
          EXPECT_NE(std::string(error.what()).find("a key's place is 1099511627776"), std::string::npos) << error.what();
        }
      }
}

TEST(LambdaTiles, QuickTanhIsATangent) {
  using Floats = xsimd::batch<float>;
  double worst = 0;
  const auto check = [&](float x) {
    alignas(64) float values[Floats::size];
    for (std::size_t i = 0; i < Floats::size; ++i) values[i] = i == 0 ? x : 0.5f;  // beside a near one
    quick_tanh(Floats::load_aligned(values)).store_aligned(values);
    const double expected = std::tanh(static_cast<double>(x));
    worst = std::max(worst, std::fabs(static_cast<double>(values[0]) - expected) / std::fabs(expected));
  };
  for (float x = 1e-6f; x < 60; x *= 1.0007f) check(x), check(-x);
  for (const float x : {0.999999f, 1.0f, 1.000001f, 100.0f, 1e30f, std::numeric_limits<float>::max()}) check(x), check(-x);
  EXPECT_LE(worst, 3 * 0x1p-24);
  const float unbounded = std::numeric_limits<float>::infinity();
  EXPECT_EQ(quick_tanh(Floats(unbounded)).get(0), 1.0f);
  EXPECT_EQ(quick_tanh(Floats(-unbounded)).get(0), -1.0f);
  EXPECT_TRUE(std::isnan(quick_tanh(Floats(std::numeric_limits<float>::quiet_NaN())).get(0)));
}

// The table has what this build compiled.
TEST(LambdaTiles, HasAFunctionForEachInstructionSet) {
  const Places places = {1.0f};
  const ScoreMod mod = places_mod(places);
  EXPECT_STREQ(mod.name, "places_mod");
  EXPECT_FALSE(mod.empty());
  EXPECT_EQ(mod.classify, nullptr);
  const BlockRule rule = {1, 1.0f};
  EXPECT_NE(block_rule_mod(rule).classify, nullptr);
#if defined(__x86_64__)
  EXPECT_NE(mod.functions.sse4, nullptr);
  EXPECT_NE(mod.functions.avx2, nullptr);
  EXPECT_NE(mod.functions.avx512, nullptr);
  EXPECT_NE(mod.functions.avx512, mod.functions.avx2);
#endif
}

}  // namespace
}  // namespace polyhead::testing
