// What happens to scores beside masks: softcap, ALiBi, sinks; alone, in order, and with everything else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

class ScoresTest : public EveryIsa {
 protected:
  // heads heads of size 1 over `keys` keys: the scaled score of key s is `scores[s]` for every query, value[s] is `values[s]`.
  static AttentionCase by_hand(std::int64_t heads, std::int64_t query_length, const std::vector<double>& scores,
                               const std::vector<double>& values, const Mask& mask = {}) {
    const auto keys = static_cast<std::int64_t>(scores.size());
    Random random(1);
    AttentionCase test = make_case(attention_spec(1, heads, heads, query_length, keys, 1, 1, mask), random);
    test.spec.scale = 1.0;
    fill(test.query, 1.0);
    std::size_t key = 0, value = 0;
    fill(test.key, [&] { return scores[key++ % scores.size()]; });
    fill(test.value, [&] { return values[value++ % values.size()]; });
    return test;
  }
  static Tensor numbers(const std::vector<double>& values) {
    const Tensor tensor(DType::f32, {static_cast<std::int64_t>(values.size())});
    std::size_t next = 0;
    fill(tensor, [&] { return values[next++]; });
    return tensor;
  }
  // Every row's out and lse, by the plan.
  struct Rows {
    std::vector<float> out, lse;
  };
  Rows rows_of(const AttentionCase& test) const {
    AttentionPlan(test.spec, runtime()).run(test.inputs_with_lse());
    const auto list = [](const Tensor& tensor) {
      return std::vector<float>(tensor.f32(), tensor.f32() + tensor.view().element_count());
    };
    return {list(test.out), list(test.lse)};
  }
  static AttentionSpec with(AttentionSpec spec, double softcap, bool alibi, bool sink) {
    spec.softcap = softcap;
    spec.has_alibi = alibi;
    spec.has_sink = sink;
    return spec;
  }
};

// ---- softcap

TEST_P(ScoresTest, SoftcapIsAHyperbolicTangentOfTheScaledScore) {
  for (const double cap : {0.25, 2.0, 30.0}) {
    AttentionCase test = by_hand(1, 1, {3.0, -1.0}, {1.0, 0.0});
    test.spec.softcap = cap;
    const double difference = cap * std::tanh(3.0 / cap) - cap * std::tanh(-1.0 / cap);
    EXPECT_NEAR(rows_of(test).out[0], 1 / (1 + std::exp(-difference)), 2e-6) << cap;
    EXPECT_TRUE(run_and_compare(test, runtime()));
  }
}

TEST_P(ScoresTest, SoftcapComesBeforeTheBiasAndTheMask) {
  AttentionCase test = by_hand(1, 3, {5.0, 5.0, 500.0, 2.0}, {1.0, 2.0, 3.0, 4.0}, Mask::bias() & Mask::boolean());
  test.spec.softcap = 1.0;
  fill(test.bias, 0.0);
  fill(slice(test.bias, 3, 1, 2), 40.0);  // a capped bias could not decide alone
  fill(test.boolean_mask, 1.0);
  for (const float out : rows_of(test).out) EXPECT_NEAR(out, 2.0, 1e-5);
  fill(slice(test.boolean_mask, 3, 1, 2), 0.0);
  EXPECT_TRUE(run_and_compare(test, runtime()));  // an excluded key stays out: its cap does not bring it back
}

TEST_P(ScoresTest, ALargeSoftcapChangesNothingToSpeakOf) {
  Random random(3);
  AttentionCase test = make_case(attention_spec(1, 4, 2, 20, 150, 32, 32), random);
  const Tensor plain = run_fresh(test, runtime());
  test.spec.softcap = 1e30;
  EXPECT_TRUE(array_matches(oracle::to_array(plain), run_fresh(test, runtime()), 2e-6, 2e-6, "softcap 1e30"));
}

// ---- ALiBi

TEST_P(ScoresTest, AlibiFallsWithTheDistanceFromTheDiagonal) {
  AttentionCase test = by_hand(1, 3, std::vector<double>(5, 0.0), {0.0, 1.0, 2.0, 3.0, 4.0});
  test.spec.has_alibi = true;
  test.alibi_slopes = numbers({1e4});  // so steep that a row sees its own place alone
  EXPECT_EQ(rows_of(test).out, (std::vector<float>{0, 1, 2}));
  test.spec.mask = Mask::causal(Causal::bottom_right);
  EXPECT_EQ(rows_of(test).out, (std::vector<float>{2, 3, 4}));
  test.spec.mask = Mask::causal(Causal::top_left);
  EXPECT_EQ(rows_of(test).out, (std::vector<float>{0, 1, 2}));
  test.spec.mask = Mask::offsets();
  for (const std::int64_t offset : {-1, 1, 4}) {
    test.offsets = integers(DType::i64, {offset});
    const auto place = [&](std::int64_t t) { return static_cast<float>(std::clamp<std::int64_t>(t + offset, 0, 4)); };
    EXPECT_EQ(rows_of(test).out, (std::vector<float>{place(0), place(1), place(2)})) << offset;
  }
}

TEST_P(ScoresTest, AlibiCountsFromEachItemsOwnLength) {
  Random random(5);
  AttentionCase test =
      make_case(attention_spec(3, 2, 1, 2, 40, 8, 8, Mask::causal(Causal::bottom_right) & Mask::key_lengths()), random);
  test.spec.has_alibi = true;
  test.alibi_slopes = numbers({0.5, 0.03});
  test.key_lengths = integers(DType::i32, {40, 7, 1});
  EXPECT_TRUE(run_and_compare(test, runtime()));
}

TEST_P(ScoresTest, AlibiSlopesBelongToQueryHeads) {
  AttentionCase test = by_hand(4, 1, std::vector<double>(3, 0.0), {0.0, 1.0, 2.0});
  test.spec.has_alibi = true;
  test.alibi_slopes = numbers({0.0, 1e4, -1e4, 0.0});
  const Rows rows = rows_of(test);
  EXPECT_NEAR(rows.out[0], 1.0, 1e-6);
  EXPECT_EQ(rows.out[1], 0.0f);
  EXPECT_NEAR(rows.out[2], 2.0, 1e-6);
  // Grouped heads, slopes read backwards and by a stride of 0.
  Random random(7);
  AttentionCase grouped = make_case(attention_spec(2, 6, 2, 5, 150, 16, 16), random);
  grouped.spec.has_alibi = true;
  grouped.alibi_slopes = numbers({0.3, 0.2, 0.1, 0.05, 0.02, 0.01});
  EXPECT_TRUE(run_and_compare(grouped, runtime()));
  grouped.alibi_slopes = grouped.alibi_slopes.viewed(reversed(grouped.alibi_slopes, 0));
  EXPECT_TRUE(run_and_compare(grouped, runtime()));
  grouped.alibi_slopes = numbers({0.25});
  grouped.alibi_slopes = grouped.alibi_slopes.viewed(expanded(grouped.alibi_slopes, 0, 6));
  EXPECT_TRUE(run_and_compare(grouped, runtime()));
}

TEST_P(ScoresTest, AlibiSlopesMayBelongToBatchItemsToo) {
  AttentionCase test = by_hand(2, 1, std::vector<double>(3, 0.0), {0.0, 1.0, 2.0});
  test.spec.has_alibi = true;
  test.alibi_slopes = Tensor(DType::f32, {1, 2});
  test.alibi_slopes.set({0, 0}, 1e4);
  test.alibi_slopes.set({0, 1}, -1e4);
  EXPECT_EQ(rows_of(test).out[0], 0.0f);
  EXPECT_NEAR(rows_of(test).out[1], 2.0, 1e-6);

  const Mask masks[] = {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::key_lengths(), Mask::packed(),
                        Mask::segments() & Mask::boolean()};
  std::uint64_t seed = 60;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {1, 5, 70})
      for (const std::int64_t rows : {1, 3}) {
        Random random(++seed);
        AttentionSpec spec = attention_spec(3, 6, 2, query_length, 290, 24, 24, mask);
        spec.has_alibi = true;
        AttentionCase many = make_case(spec, random);
        many.alibi_slopes = Tensor(DType::f32, {rows, 6});
        fill_normal(many.alibi_slopes, random, 0.1);
        EXPECT_TRUE(run_and_compare(many, runtime()));
        // Items last in memory, heads backwards.
        const Tensor turned = Tensor::ordered(DType::f32, {rows, 6}, {1, 0}, 3, 1);
        const Tensor view = turned.viewed(reversed(turned, 1));
        copy(many.alibi_slopes, view);
        many.alibi_slopes = view;
        EXPECT_TRUE(run_and_compare(many, runtime()));
      }
}

TEST_P(ScoresTest, AlibiEqualsItsDistancesAsABias) {
  Random random(9);
  for (const std::int64_t query_length : {1, 40}) {
    AttentionCase test = make_case(
        attention_spec(1, 4, 2, query_length, 150, 16, 16, Mask::causal(Causal::bottom_right) & Mask::bias()), random);
    const std::vector<double> slopes = {0.5, 0.25, 0.125, 0.0625};
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t t = 0; t < query_length; ++t)
        for (std::int64_t s = 0; s < 150; ++s)
          test.bias.set({0, h, t, s},
                        -slopes[static_cast<std::size_t>(h)] * std::fabs(static_cast<double>(t + 150 - query_length - s)));
    const Tensor as_bias = run_fresh(test, runtime());
    test.spec.mask = Mask::causal(Causal::bottom_right);
    test.spec.has_alibi = true;
    test.alibi_slopes = numbers(slopes);
    EXPECT_TRUE(array_matches(oracle::to_array(as_bias), run_fresh(test, runtime()), 4e-6, 4e-6, "ALiBi"));
  }
}

// ---- sinks

TEST_P(ScoresTest, ASinkTakesItsShareOfTheSoftmax) {
  AttentionCase test = by_hand(3, 1, {0.0, 0.0}, {1.0, 3.0});
  test.spec.has_sink = true;
  test.sink = numbers({0.0, std::log(2.0), -infinity});
  const Rows rows = rows_of(test);
  EXPECT_NEAR(rows.out[0], 4.0 / 3, 1e-6);
  EXPECT_NEAR(rows.out[1], 1.0, 1e-6);
  EXPECT_EQ(rows.out[2], 2.0f);
  EXPECT_NEAR(rows.lse[0], std::log(3.0), 1e-6);
  EXPECT_NEAR(rows.lse[1], std::log(4.0), 1e-6);
  EXPECT_NEAR(rows.lse[2], std::log(2.0), 1e-6);
}

TEST_P(ScoresTest, AnEmptyRowsLseIsItsSink) {
  for (const std::int64_t query_length : {1, 3, 20})
    for (const std::int64_t key_length : {0, 4, 70, 5000}) {
      Random random(11);
      AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, key_length, 8, 8, Mask::key_lengths()), random);
      test.spec.has_sink = true;
      test.key_lengths = integers(DType::i32, {0, key_length});
      test.sink = numbers({0.3, -7.5, 1e30, -infinity});
      const Rows rows = rows_of(test);
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t t = 0; t < query_length; ++t) {
          ASSERT_EQ(test.lse({0, h, t}), test.sink({h})) << test.describe();
          for (std::int64_t e = 0; e < 8; ++e) ASSERT_EQ(test.out({0, h, t, e}), 0.0) << test.describe();
        }
      EXPECT_TRUE(run_and_compare(test, runtime()));
    }
}

// Keys are split here; a sink that every part added would count twice and more.
TEST_P(ScoresTest, SplitKeysAddASinkOnce) {
  for (const std::int64_t query_length : {1, 2, 24}) {
    Random random(13);
    AttentionCase test = make_case(attention_spec(1, 2, 1, query_length, 6200, 8, 8), random);
    test.spec.has_sink = true;
    for (const double sink : {-2.0, 8.5, 40.0}) {
      test.sink = numbers({sink, sink + 1});
      for (const int threads : {1, 2}) EXPECT_TRUE(run_and_compare(test, runtime(threads)));
    }
  }
}

TEST_P(ScoresTest, ASinkOfMinusInfinityChangesNoBit) {
  Random random(15);
  for (const std::int64_t query_length : {1, 30})
    for (const std::int64_t key_length : {100, 4500}) {
      AttentionCase test = make_case(attention_spec(1, 2, 2, query_length, key_length, 8, 8), random);
      const Tensor plain = run_fresh(test, runtime());
      test.spec.has_sink = true;
      test.sink = numbers({-infinity, -infinity});
      const Tensor with_sink = run_fresh(test, runtime());
      EXPECT_TRUE(same_bits(plain, with_sink)) << first_difference(plain, with_sink);
    }
}

TEST_P(ScoresTest, ANaNReachesItsRowPastASink) {
  AttentionCase test = by_hand(1, 2, {1.0, 2.0}, {1.0, 1.0});
  test.spec.has_sink = true;
  test.sink = numbers({100.0});
  test.query.set({0, 0, 1, 0}, std::numeric_limits<double>::quiet_NaN());
  const Rows rows = rows_of(test);
  EXPECT_FALSE(std::isnan(rows.out[0]));
  EXPECT_TRUE(std::isnan(rows.out[1]) && std::isnan(rows.lse[1]));
}

// ---- all of it

TEST_P(ScoresTest, ComposeWithEveryMaskAndKernel) {
  const Mask masks[] = {
      Mask::none(),
      Mask::causal(Causal::top_left),
      Mask::causal(Causal::bottom_right) & Mask::window(20, 0),
      Mask::causal(Causal::offset) & Mask::offsets() & Mask::boolean(),
      Mask::window(3, 30) & Mask::offsets() & Mask::key_lengths(),
      Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::boolean() & Mask::bias(),
  };
  std::uint64_t seed = 20;
  for (const Mask& mask : masks)
    for (int kind = 1; kind < 8; ++kind)
      for (const std::int64_t query_length : {1, 2, 70}) {
        if (query_length == 70 && kind != 7) continue;
        Random random(++seed);
        const std::int64_t head_dim = seed % 2 == 0 ? 24 : 72;  // decoding has a path of its own for short heads
        AttentionSpec spec = attention_spec(2, 4, 2, query_length, 290, head_dim, head_dim, mask);
        spec = with(spec, (kind & 1) != 0 ? 1.5 : 0.0, (kind & 2) != 0, (kind & 4) != 0);
        ASSERT_TRUE(run_and_compare(make_case(spec, random), runtime()));
      }
}

TEST_P(ScoresTest, TheOneCallFunctionTellsThemApart) {
  Random random(17);
  AttentionSpec spec = attention_spec(1, 4, 2, 3, 40, 16, 16);
  for (int round = 0; round < 2; ++round)  // the second finds all plans in the cache
    for (int kind = 0; kind < 12; ++kind) {
      const double caps[] = {0.0, 0.5, 2.0};
      spec = with(spec, caps[kind % 3], (kind / 3 & 1) != 0, (kind / 6 & 1) != 0);
      const AttentionCase test = make_case(spec, random);
      attention(runtime(), test.inputs(), test.options());
      const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
      EXPECT_TRUE(attention_matches(expected, test.out, test.describe()));
    }
}

TEST_P(ScoresTest, ExplainTellsThem) {
  const auto explained = [&](const AttentionSpec& spec) { return AttentionPlan(spec, runtime()).explain(); };
  const AttentionSpec spec = attention_spec(1, 2, 2, 100, 100, 64, 64);
  const std::string none = explained(spec), all = explained(with(spec, 30.0, true, true));
  for (const char* word : {"softcap      30\n", "ALiBi", "sink"}) {
    EXPECT_EQ(none.find(word), std::string::npos) << none;
    EXPECT_NE(all.find(word), std::string::npos) << all;
  }
  EXPECT_NE(none.find(", 0 partial"), std::string::npos) << none;
  EXPECT_NE(all.find(" 0 full"), std::string::npos) << all;
  // A sink alone leaves tiles as they are.
  EXPECT_NE(explained(with(spec, 0.0, false, true)).find(", 0 partial"), std::string::npos);
}

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(ScoresTest);

}  // namespace
}  // namespace polyhead::testing
