// The oracle itself, against values that were worked out by hand or known from elsewhere.
#include "support/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

// One head, head_dim 1, query 0 (so that every score is 0) and value[s] = s.
AttentionCase plain(std::int64_t query_length, std::int64_t key_length, const Mask& mask) {
  Random random(1);
  AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, key_length, 1, 1, mask), random);
  fill(test.query, 0.0);
  double next = 0;
  fill(test.value, [&] { return next++; });
  return test;
}

TEST(Oracle, AveragesTheValuesThatACausalRowSees) {
  const AttentionCase top_left = plain(2, 5, Mask::causal(Causal::top_left));
  EXPECT_EQ(oracle::attention(top_left.inputs(), top_left.options()).out.values, (std::vector<double>{0, 0.5}));
  const AttentionCase bottom_right = plain(2, 5, Mask::causal(Causal::bottom_right));
  EXPECT_EQ(oracle::attention(bottom_right.inputs(), bottom_right.options()).out.values, (std::vector<double>{1.5, 2}));
}

TEST(Oracle, GivesZeroAndMinusInfinityForARowThatSeesNothing) {
  const AttentionCase test = plain(3, 1, Mask::causal(Causal::bottom_right));
  const auto result = oracle::attention(test.inputs(), test.options(), true);
  EXPECT_EQ(result.out.values, (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(result.lse.values, (std::vector<double>{-HUGE_VAL, -HUGE_VAL, 0}));
  EXPECT_EQ(result.weights.values, (std::vector<double>{0, 0, 1}));
}

TEST(Oracle, CapsScoresAndTakesDistancesOffBeforeTheBias) {
  AttentionCase test = plain(2, 2, Mask::causal(Causal::offset) & Mask::offsets() & Mask::bias());
  test.spec.scale = 1.0;
  test.spec.softcap = 2.0;
  test.spec.has_alibi = true;
  fill(test.query, 3.0);
  fill(test.key, 1.0);
  test.key.set({0, 0, 1, 0}, -1.0);
  fill(test.bias, 0.0);
  test.bias.set({0, 0, 0, 1}, 5.0);
  test.offsets = integers(DType::i32, {1});
  test.alibi_slopes = Tensor(DType::f32, {1});
  fill(test.alibi_slopes, 0.25);
  const double capped = 2 * std::tanh(1.5);  // row 0 stands at key 1, row 1 behind it at 2
  const double first = std::exp(capped - 0.25), second = std::exp(-capped + 5), third = std::exp(capped - 0.5);
  const auto result = oracle::attention(test.inputs(), test.options(), true);
  EXPECT_NEAR(result.weights.values[0], first / (first + second), 1e-12);
  EXPECT_NEAR(result.weights.values[2], third / (third + std::exp(-capped - 0.25)), 1e-12);
}

TEST(Oracle, AddsASinkToTheDenominator) {
  AttentionCase test = plain(2, 1, Mask::causal(Causal::bottom_right));
  test.spec.has_sink = true;
  test.sink = Tensor(DType::f32, {1});
  fill(test.sink, 1.0);
  fill(test.value, 8.0);
  const auto result = oracle::attention(test.inputs(), test.options());
  EXPECT_EQ(result.out.values[0], 0);
  EXPECT_NEAR(result.out.values[1], 8 / (1 + std::exp(1.0)), 1e-12);
  EXPECT_EQ(result.lse.values[0], 1);
  EXPECT_NEAR(result.lse.values[1], std::log(1 + std::exp(1.0)), 1e-12);
}

TEST(Oracle, ComputesASoftmaxOfTwoScores) {
  Random random(2);
  AttentionCase test = make_case(attention_spec(1, 1, 1, 1, 2, 2, 1), random);
  test.query.set({0, 0, 0, 0}, 1), test.query.set({0, 0, 0, 1}, 2);
  test.key.set({0, 0, 0, 0}, 3), test.key.set({0, 0, 0, 1}, -1);  // score 1 * scale
  test.key.set({0, 0, 1, 0}, 0), test.key.set({0, 0, 1, 1}, 1);   // score 2 * scale
  test.value.set({0, 0, 0, 0}, 10), test.value.set({0, 0, 1, 0}, 20);
  test.spec.scale = 0.5;
  const auto result = oracle::attention(test.inputs(), test.options());
  const double a = std::exp(0.5), b = std::exp(1.0);
  EXPECT_NEAR(result.out.values[0], (10 * a + 20 * b) / (a + b), 1e-14);
  EXPECT_NEAR(result.lse.values[0], std::log(a + b), 1e-15);
  EXPECT_DOUBLE_EQ(result.score_magnitude.values[0], 2.5);  // 0.5 * (|1 * 3| + |2 * -1|)
  EXPECT_DOUBLE_EQ(result.value_magnitude.values[0], 20);
}

TEST(Oracle, AlignsABroadcastMaskAtTheRight) {
  Random random(3);
  AttentionCase test = make_case(attention_spec(2, 3, 1, 2, 4, 1, 1, Mask::boolean()), random);
  test.boolean_mask = Tensor(DType::boolean, {3, 1, 4});
  fill(test.boolean_mask, 0.0);
  test.boolean_mask.set({1, 0, 2}, 1);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 3; ++h)
      for (std::int64_t t = 0; t < 2; ++t)
        for (std::int64_t s = 0; s < 4; ++s)
          EXPECT_EQ(oracle::allowed(test.inputs(), test.spec.mask, b, h, t, s), h == 1 && s == 2) << b << h << t << s;
}

TEST(Oracle, CountsAWindowFromTheAlignedDiagonal) {
  const Mask mask = Mask::causal(Causal::bottom_right) & Mask::window(1, 0);
  const AttentionCase test = plain(2, 5, mask);  // diagonals at 3 and 4
  EXPECT_EQ(oracle::attention(test.inputs(), test.options()).out.values, (std::vector<double>{2.5, 3.5}));
}

TEST(Oracle, KnowsBothGelus) {
  EXPECT_NEAR(oracle::activation(ActivationKind::gelu_erf, -2.6989), -0.009388, 1e-6);
  EXPECT_NEAR(oracle::activation(ActivationKind::gelu_tanh, -2.6989), -0.008915, 1e-6);
  EXPECT_EQ(oracle::activation(ActivationKind::relu, -3), 0);
  EXPECT_EQ(oracle::activation(ActivationKind::relu, 3), 3);
  EXPECT_EQ(oracle::activation(ActivationKind::none, -3), -3);
}

TEST(Oracle, NormalisesWithTheBiasedVariance) {
  oracle::Array x({1, 4});
  x.values = {1, 2, 3, 6};  // mean 3, variance 3.5
  const Tensor gamma(DType::f32, {4}), beta(DType::f32, {4});
  fill(gamma, 2.0);
  fill(beta, 1.0);
  const oracle::Array y = oracle::layer_norm(x, gamma, beta, 0.5);
  EXPECT_DOUBLE_EQ(y.values[0], -2 / 2.0 * 2 + 1);
  EXPECT_DOUBLE_EQ(y.values[3], 3 / 2.0 * 2 + 1);
}

TEST(Oracle, MultiHeadAttentionWithIdentityWeightsIsAttentionOfTheSlices) {
  Random random(4);
  const std::int64_t length = 3, width = 4;
  const Tensor x(DType::f32, {1, length, width}), identity(DType::f32, {width, width});
  fill_normal(x, random);
  fill(identity, 0.0);
  for (std::int64_t i = 0; i < width; ++i) identity.set({i, i}, 1);
  MultiHeadAttentionSpec spec;
  spec.d_model = width;
  spec.heads = 2;
  MultiHeadAttentionWeights weights;
  weights.query = weights.key = weights.value = weights.output = identity;
  MultiHeadAttentionInputs inputs;
  inputs.query = x;
  const oracle::Array y = oracle::multi_head_attention(spec, weights, inputs);

  AttentionInputs heads;
  heads.query = heads.key = heads.value = TensorView::blhd(x.f32(), 1, length, 2, 2);
  const oracle::AttentionResult expected = oracle::attention(heads, {});
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t e = 0; e < 2; ++e)
        EXPECT_DOUBLE_EQ(y.values[static_cast<std::size_t>(t * width + h * 2 + e)],
                         expected.out.values[static_cast<std::size_t>((h * length + t) * 2 + e)]);
}

TEST(Oracle, NarrowFormatsRoundToNearestEven) {
  const Tensor half(DType::f16, {6}), brain(DType::bf16, {6});
  const double values[] = {1 + 0x1p-11, 1 + 3 * 0x1p-11, 65519, 65520, 0x1p-25, -0x1.8p-24};
  const double halves[] = {1, 1 + 0x1p-9, 65504, HUGE_VAL, 0, -0x1p-23};
  for (std::int64_t i = 0; i < 6; ++i) {
    half.set({i}, values[i]);
    EXPECT_EQ(half({i}), halves[i]) << values[i];
  }
  const double wide[] = {1 + 0x1p-8, 1 + 3 * 0x1p-8, 3.39e38, 3.4e39, 0x1p-133, -2};
  const double brains[] = {1, 1 + 0x1p-6, 0x1.fep127, HUGE_VAL, 0x1p-133, -2};
  for (std::int64_t i = 0; i < 6; ++i) {
    brain.set({i}, wide[i]);
    EXPECT_EQ(brain({i}), brains[i]) << wide[i];
  }
  EXPECT_TRUE(std::isnan(Tensor(DType::f16, {1})({0})));  // poison
  EXPECT_TRUE(std::isnan(Tensor(DType::bf16, {1})({0})));
  EXPECT_TRUE(std::isnan(Tensor(DType::f32, {1})({0})));
  EXPECT_TRUE(std::isnan(Tensor(DType::f64, {1})({0})));
}

TEST(Tensors, NoticeAWriteBetweenAndAroundTheirElements) {
  const Tensor tensor = Tensor::ordered(DType::f32, {2, 3}, {1, 0}, 1);  // a gap after each pair
  fill(tensor, 1.0);
  EXPECT_TRUE(tensor.surroundings_intact());
  const std::int64_t outside[] = {-1, 2, 8};
  for (const std::int64_t offset : outside) {
    const float before = tensor.f32()[offset];
    tensor.f32()[offset] = 0;
    EXPECT_FALSE(tensor.surroundings_intact()) << offset;
    tensor.f32()[offset] = before;
    EXPECT_TRUE(tensor.surroundings_intact());
  }
}

TEST(TensorsDeathTest, FaultWhenReadPastAGuardPage) {
  const Tensor behind(DType::f32, {5}, Guard::behind), before(DType::f32, {5}, Guard::before);
  fill(behind, 0.0);
  fill(before, 0.0);
  volatile float sink = 0;
  EXPECT_DEATH(sink = behind.f32()[5], "");
  EXPECT_DEATH(sink = before.f32()[-1], "");
  (void)sink;
}

}  // namespace
}  // namespace polyhead::testing
