// Biases that a table gives by relative position: T5's buckets and Swin's windows, against the oracle and against the same
// numbers as a bias tensor.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class RelativeTest : public EveryIsa {
 protected:
  static AttentionSpec with(AttentionSpec spec, const RelativeBias& bias) {
    spec.relative_bias = bias;
    return spec;
  }
  // Which row of the table query t's key s takes, read off the result: queries and keys of 0, values that say the key, and a
  // table that hides all rows but one.
  Tensor keys_of_row(const RelativeBias& bias, std::int64_t rows, std::int64_t keys, std::int64_t row, const Mask& mask = {}) {
    Random random(1);
    AttentionCase test = make_case(with(attention_spec(1, 1, 1, rows, keys, 1, keys, mask), bias), random);
    fill(test.query, 0.0);
    fill(test.key, 0.0);
    fill(test.value, 0.0);
    for (std::int64_t s = 0; s < keys; ++s) test.value.set({0, 0, s, s}, 1.0);
    fill(test.relative_bias_table, -infinity);
    test.relative_bias_table.set({row, 0}, 0.0);
    return run_fresh(test, runtime());
  }
};

// ---- T5

// Buckets of distances as T5's published code gives them: 32 buckets, half of them for keys behind the query.
TEST_P(RelativeTest, T5BucketsAreThePublishedOnes) {
  struct Step {
    std::int64_t bucket, from, to;  // of distances before the query
  };
  const Step steps[] = {{0, 0, 0},    {1, 1, 1},    {7, 7, 7},    {8, 8, 11},   {9, 12, 15},  {10, 16, 22},
                        {11, 23, 31}, {12, 32, 45}, {13, 46, 63}, {14, 64, 90}, {15, 91, 199}};
  const std::int64_t length = 200;
  for (const Step& step : steps) {
    if (slow() && step.bucket % 5 != 0) continue;
    const Tensor before = keys_of_row(RelativeBias::t5(), length, length, step.bucket);
    const Tensor behind = step.bucket == 0 ? Tensor() : keys_of_row(RelativeBias::t5(), length, length, 16 + step.bucket);
    for (const std::int64_t t : {0, 1, 50, 99, 199})
      for (std::int64_t s = 0; s < length; ++s) {
        ASSERT_EQ(before({0, 0, t, s}) > 0, t - s >= step.from && t - s <= step.to) << step.bucket << ' ' << t << ' ' << s;
        if (step.bucket == 0) continue;
        ASSERT_EQ(behind({0, 0, t, s}) > 0, s - t >= step.from && s - t <= step.to) << step.bucket << ' ' << t << ' ' << s;
      }
  }
  // 8 buckets of a decoder, 20 the largest distance: 4 of their own, then steps at 4 * 5^(k / 4) = 5.98, 8.94, 13.4.
  const Step own[] = {{3, 3, 3}, {4, 4, 5}, {5, 6, 8}, {6, 9, 13}, {7, 14, 29}};
  for (const Step& step : own) {
    const Tensor keys = keys_of_row(RelativeBias::t5(8, 20, false), 30, 30, step.bucket);
    for (std::int64_t t = 0; t < 30; ++t)
      for (std::int64_t s = 0; s < 30; ++s)
        ASSERT_EQ(keys({0, 0, t, s}) > 0, t - s >= step.from && t - s <= step.to) << step.bucket << ' ' << t << ' ' << s;
  }
  const Tensor ahead = keys_of_row(RelativeBias::t5(8, 20, false), 5, 5, 0);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t s = 0; s < 5; ++s) ASSERT_EQ(ahead({0, 0, t, s}) > 0, s >= t);
}

TEST_P(RelativeTest, T5CountsFromTheDiagonal) {
  // Bucket 0 is the query's own place.
  const auto place = [&](std::int64_t row, const Mask& mask) {
    const Tensor keys = keys_of_row(RelativeBias::t5(4, 100), 3, 9, 0, mask);
    for (std::int64_t s = 0; s < 9; ++s)
      if (keys({0, 0, row, s}) > 0) return s;
    return std::int64_t{-1};
  };
  EXPECT_EQ(place(1, Mask::none()), 1);
  EXPECT_EQ(place(1, Mask::causal(Causal::top_left)), 1);
  EXPECT_EQ(place(1, Mask::causal(Causal::bottom_right)), 7);
}

TEST_P(RelativeTest, T5MatchesTheOracleWithEveryMaskAndShape) {
  const Mask masks[] = {
      Mask::none(),
      Mask::causal(Causal::top_left),
      Mask::causal(Causal::bottom_right) & Mask::window(40, 0),
      Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::query_lengths(),
      Mask::causal(Causal::offset) & Mask::offsets() & Mask::boolean(),
      Mask::window(60, 30) & Mask::offsets() & Mask::key_lengths(),
      Mask::window(20, 30, 3) & Mask::offsets() & Mask::key_lengths(),
      Mask::causal(Causal::top_left) & Mask::prefix(),
      Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::key_lengths(),
      Mask::packed() & Mask::boolean(),
      Mask::segments(),
      Mask::blocks(16, 32) & Mask::causal(Causal::bottom_right),
      Mask::blocks(5, 7) & Mask::segments() & Mask::boolean(),
  };
  std::uint64_t seed = 100;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {1, 7, 150}) {
      Random random(++seed);
      if (slow() && query_length == 150 && seed % 2 == 0) continue;
      const std::int64_t head_dim = seed % 2 == 0 ? 24 : 72;
      const bool both = seed % 4 < 2;
      AttentionSpec spec = with(attention_spec(2, 4, seed % 3 == 0 ? 4 : 2, query_length, 310, head_dim, head_dim, mask),
                                RelativeBias::t5(both ? 32 : 16, 128, both));
      spec.scale = 1.0 / 4;
      if (seed % 5 == 0) spec.softcap = 2.0, spec.has_alibi = spec.has_sink = true;
      ASSERT_TRUE(run_and_compare(make_case(spec, random), runtime()));
    }
}

// The last queries' windows lie beyond the keys, and only kept keys are left to them.
TEST_P(RelativeTest, T5OfWindowsBeyondTheKeys) {
  Random random(151);
  for (const Mask& mask : {Mask::window(5, 9, 2), Mask::window(5, Mask::unbounded, 2), Mask::window(5, 9, 2) & Mask::packed(),
                           Mask::window(5, 9, 2) & Mask::offsets()}) {
    const AttentionSpec spec = with(attention_spec(2, 2, 2, 40, 20, 8, 8, mask), RelativeBias::t5());
    EXPECT_TRUE(run_and_compare(make_case(spec, random), runtime()));
  }
}

// More queries than keys: the first of them stand before every key.
TEST_P(RelativeTest, T5OfQueriesThatSeeNoKey) {
  Random random(150);
  for (const std::int64_t query_length : {2, 60})
    for (const Mask& mask : {Mask::causal(Causal::bottom_right), Mask::causal(Causal::bottom_right) & Mask::window(5, 0),
                             Mask::causal(Causal::bottom_right) & Mask::key_lengths()}) {
      const AttentionSpec spec =
          with(attention_spec(2, 4, 2, query_length, query_length / 2, 24, 24, mask), RelativeBias::t5());
      EXPECT_TRUE(run_and_compare(make_case(spec, random), runtime()));
    }
}

TEST_P(RelativeTest, T5OverSplitKeysAndFarOffsets) {
  for (const std::int64_t query_length : {1, 24}) {
    Random random(200);
    if (slow() && query_length > 1) continue;
    AttentionCase test =
        make_case(with(attention_spec(2, 2, 1, query_length, 6200, 8, 8, Mask::offsets()), RelativeBias::t5()), random);
    for (const std::int64_t far : {std::int64_t{0}, std::int64_t{3000}, std::int64_t{1} << 40, -(std::int64_t{1} << 59)}) {
      test.offsets = integers(DType::i64, {far, -far});
      for (const int threads : {1, 2}) EXPECT_TRUE(run_and_compare(test, runtime(threads), "offset " + std::to_string(far)));
    }
  }
}

TEST_P(RelativeTest, T5HasTheBitsOfItsNumbersAsABias) {
  Random random(300);
  for (const std::int64_t query_length : {1, 90}) {
    AttentionCase test = make_case(
        with(attention_spec(1, 4, 2, query_length, 260, 32, 32, Mask::causal(Causal::bottom_right)), RelativeBias::t5()),
        random);
    const Tensor result = run_fresh(test, runtime());
    AttentionCase plain = test;
    plain.spec.relative_bias = {};
    plain.spec.mask = test.spec.mask & Mask::bias();
    plain.bias = Tensor(DType::f32, {1, 4, query_length, 260});
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t t = 0; t < query_length; ++t)
        for (std::int64_t s = 0; s < 260; ++s) {
          const std::int64_t far = std::abs(s - t - (260 - query_length));
          std::int64_t bucket = far;
          for (const std::int64_t limit : {8, 12, 16, 23, 32, 46, 64, 91})
            if (far >= limit) bucket = limit == 8 ? 8 : bucket + 1;
          plain.bias.set({0, h, t, s}, test.relative_bias_table({s - t > 260 - query_length ? 16 + bucket : bucket, h}));
        }
    const Tensor expected = run_fresh(plain, runtime());
    EXPECT_TRUE(same_bits(expected, result)) << first_difference(expected, result);
  }
}

// ---- Swin

TEST_P(RelativeTest, SwinTakesRowsAndColumnsOfTheWindow) {
  const std::int64_t height = 3, width = 5;
  for (const std::int64_t down : {-2, 0, 1})
    for (const std::int64_t right : {-4, 0, 3}) {
      const std::int64_t row = (down + height - 1) * (2 * width - 1) + right + width - 1;
      const Tensor keys = keys_of_row(RelativeBias::swin(height, width), height * width, height * width, row);
      for (std::int64_t t = 0; t < height * width; ++t)
        for (std::int64_t s = 0; s < height * width; ++s) {
          const bool fits = t / width - s / width == down && t % width - s % width == right;
          ASSERT_EQ(keys({0, 0, t, s}) > 0, fits) << down << ' ' << right << ' ' << t << ' ' << s;
        }
    }
}

TEST_P(RelativeTest, SwinMatchesTheOracleWithEveryMaskAndShape) {
  const Mask masks[] = {
      Mask::none(),
      Mask::boolean(),
      Mask::key_lengths() & Mask::query_lengths(),
      Mask::packed(),
      Mask::packed() & Mask::boolean() & Mask::key_lengths(),
      Mask::segments(),
      Mask::segments() & Mask::boolean(),
      Mask::blocks(16, 32),
      Mask::blocks(5, 7) & Mask::key_lengths(),
  };
  struct Window {
    std::int64_t height, width;
  };
  std::uint64_t seed = 400;
  for (const Mask& mask : masks)
    for (const Window window : {Window{7, 7}, Window{1, 60}, Window{60, 1}, Window{12, 15}, Window{3, 19}}) {
      Random random(++seed);
      if (slow() && seed % 2 == 0) continue;
      const std::int64_t positions = window.height * window.width, group = seed % 2 + 1;
      const std::int64_t rows = seed % 3 == 0 ? 2 : seed % 3 == 1 ? positions : positions - 1;
      AttentionSpec spec =
          with(attention_spec(3, 2 * group, 2, rows, positions, 32, 32, mask), RelativeBias::swin(window.height, window.width));
      if (seed % 5 == 0) spec.softcap = 2.0;
      if (seed % 4 == 0) spec.has_sink = true;
      ASSERT_TRUE(run_and_compare(make_case(spec, random), runtime()));
    }
}

TEST_P(RelativeTest, SwinOverSplitKeys) {
  Random random(500);
  for (const std::int64_t rows : {1, 3, 40}) {
    if (slow() && rows == 40) continue;
    const AttentionCase test = make_case(with(attention_spec(1, 4, 2, rows, 4900, 8, 8), RelativeBias::swin(70, 70)), random);
    for (const int threads : {1, 2}) EXPECT_TRUE(run_and_compare(test, runtime(threads)));
  }
}

// ---- both

// What a row must not see is NaN: in keys and values that others see too, and in the table's rows that no visible key takes.
TEST_P(RelativeTest, WhatIsHiddenNeverCounts) {
  Random random(600);
  AttentionCase test = make_case(
      with(attention_spec(1, 2, 2, 60, 200, 16, 16, Mask::causal(Causal::bottom_right)), RelativeBias::t5(32, 128, true)),
      random);
  for (std::int64_t bucket = 17; bucket < 32; ++bucket)
    for (std::int64_t h = 0; h < 2; ++h) test.relative_bias_table.set({bucket, h}, not_a_number);
  for (const std::int64_t s : {150, 199}) {
    test.value.set({0, 0, s, 3}, not_a_number);
    test.key.set({0, 1, s, 2}, not_a_number);
  }
  EXPECT_TRUE(run_and_compare(test, runtime()));

  AttentionCase window =
      make_case(with(attention_spec(1, 2, 1, 49, 49, 16, 16, Mask::boolean()), RelativeBias::swin(7, 7)), random);
  for (std::int64_t t = 0; t < 49; ++t) window.boolean_mask.set({0, 1, t, 11}, t % 3 == 0 ? 1.0 : 0.0);
  window.value.set({0, 0, 11, 3}, not_a_number);
  EXPECT_TRUE(run_and_compare(window, runtime()));
  // A table's -inf hides keys.
  for (const auto& [row, head] : {std::pair<std::int64_t, std::int64_t>(84, 0), {90, 1}, {3, 1}}) {
    window.relative_bias_table.set({row, head}, -infinity);
  }
  EXPECT_TRUE(run_and_compare(window, runtime()));
}

TEST_P(RelativeTest, TablesOfAnyLayout) {
  Random random(700);
  AttentionCase test = make_case(with(attention_spec(2, 3, 3, 30, 80, 16, 16), RelativeBias::t5()), random);
  const Tensor turned = Tensor::ordered(DType::f32, {32, 3}, {1, 0}, 5, 1);
  copy(test.relative_bias_table, turned);
  const Tensor plain = run_fresh(test, runtime());
  test.relative_bias_table = turned;
  EXPECT_TRUE(same_bits(plain, run_fresh(test, runtime())));
  test.relative_bias_table = turned.viewed(reversed(turned, 0));
  EXPECT_TRUE(run_and_compare(test, runtime()));
}

TEST_P(RelativeTest, TheOneCallFunctionTellsThemApart) {
  Random random(800);
  const RelativeBias biases[] = {{},
                                 RelativeBias::t5(),
                                 RelativeBias::t5(32, 64),
                                 RelativeBias::t5(32, 128, false),
                                 RelativeBias::swin(4, 10),
                                 RelativeBias::swin(10, 4),
                                 RelativeBias::swin(5, 10)};
  for (int round = 0; round < 2; ++round)
    for (const RelativeBias& bias : biases) {
      const AttentionCase test = make_case(with(attention_spec(1, 4, 2, 40, 40, 16, 16), bias), random);
      attention(runtime(), test.inputs(), test.options());
      const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
      EXPECT_TRUE(attention_matches(expected, test.out, test.describe()));
    }
}

TEST_P(RelativeTest, WeightsKnowThem) {
  Random random(900);
  for (const RelativeBias& bias : {RelativeBias::t5(), RelativeBias::swin(6, 9)}) {
    const AttentionCase test = make_case(with(attention_spec(2, 4, 2, 54, 54, 16, 16), bias), random);
    const Tensor weights(DType::f32, {2, 4, 54, 54});
    AttentionWeightsRequest request;
    request.weights = weights;
    attention_weights(runtime(), test.inputs(), test.options(), request);
    const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), true);
    for (std::int64_t i = 0; i < weights.view().element_count(); ++i) {
      ASSERT_NEAR(weights.f32()[i], expected.weights.values[static_cast<std::size_t>(i)], 1e-5) << test.describe() << ' ' << i;
    }
  }
}

TEST_P(RelativeTest, ExplainTellsThem) {
  const auto explained = [&](const RelativeBias& bias) {
    return AttentionPlan(with(attention_spec(1, 2, 2, 100, 100, 64, 64), bias), runtime()).explain();
  };
  EXPECT_NE(explained(RelativeBias::t5()).find("T5, 32 buckets"), std::string::npos);
  EXPECT_NE(explained(RelativeBias::swin(10, 10)).find("Swin, windows of 10 x 10"), std::string::npos);
  EXPECT_EQ(explained({}).find("relative"), std::string::npos);
}

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(RelativeTest);

}  // namespace
}  // namespace polyhead::testing
