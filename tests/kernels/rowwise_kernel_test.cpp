// layer_norm_f32, softmax_f32 and activation_f32 of every instruction set against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/guarded.hpp"
#include "polyhead/runtime.hpp"
#include "simd/contract/rowwise.hpp"

namespace polyhead::test {
namespace {

using simd::Activation;

constexpr std::int64_t kFloat = sizeof(float);
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class RowwiseKernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  const dispatch::KernelTable& table() const { return dispatch::kernel_table(GetParam()); }
};

// Row lengths around vectors of 4, 8 and 16 lanes, pairs of them, and the blocks that sums are taken in.
std::vector<std::int64_t> row_lengths() {
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = 1; length <= 67; ++length) lengths.push_back(length);
  for (const std::int64_t length : {127, 384, 768, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4097, 9001})
    lengths.push_back(length);
  return lengths;
}

struct LayerNormCase {
  std::int64_t rows, dim, gap;
  double mean, deviation, epsilon;
  bool residual, gamma, beta, in_place;
};

void check_layer_norm(const simd::LayerNormKernel& kernel, const LayerNormCase& c, std::uint32_t seed) {
  const std::int64_t width = c.dim + c.gap;
  const std::size_t extent = static_cast<std::size_t>((c.rows - 1) * width + c.dim);
  Guarded<float> x(extent), residual(extent), y(extent), gamma(static_cast<std::size_t>(c.dim)),
      beta(static_cast<std::size_t>(c.dim));
  x.fill_random(seed, c.mean - c.deviation, c.mean + c.deviation);
  residual.fill_random(seed + 1);
  gamma.fill_random(seed + 2, 0.5, 1.5);
  beta.fill_random(seed + 3);
  const std::vector<float> input(x.data(), x.data() + extent);
  simd::LayerNormF32Args args;
  args.x = x.data();
  args.x_stride = width * kFloat;
  args.residual = c.residual ? residual.data() : nullptr;
  args.residual_stride = width * kFloat;
  args.y = c.in_place ? x.data() : y.data();
  args.y_stride = width * kFloat;
  args.gamma = c.gamma ? gamma.data() : nullptr;
  args.beta = c.beta ? beta.data() : nullptr;
  args.rows = c.rows;
  args.dim = c.dim;
  args.epsilon = c.epsilon;
  kernel.run(args);

  double worst = 0.0;
  std::string where;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    std::vector<double> v(static_cast<std::size_t>(c.dim));
    double mean = 0.0, variance = 0.0;
    for (std::int64_t i = 0; i < c.dim; ++i) {
      const std::size_t at = static_cast<std::size_t>(row * width + i);
      // The sum with the residual is a float: its rounding belongs to the inputs.
      v[static_cast<std::size_t>(i)] = c.residual ? input[at] + residual[at] : input[at];
      mean += v[static_cast<std::size_t>(i)];
    }
    mean /= static_cast<double>(c.dim);
    for (const double value : v) variance += (value - mean) * (value - mean);
    variance /= static_cast<double>(c.dim);
    double scale = 0.0;
    std::vector<double> expected;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double scaled = (v[i] - mean) / std::sqrt(variance + c.epsilon) * (c.gamma ? gamma[i] : 1.0f);
      expected.push_back(scaled + (c.beta ? beta[i] : 0.0f));
      scale = std::max({scale, std::fabs(scaled), std::fabs(expected.back())});
    }
    for (std::int64_t i = 0; i < c.dim; ++i) {
      const double got = args.y[row * width + i];
      const double error = std::fabs(got - expected[static_cast<std::size_t>(i)]) / std::max(scale, 1e-30);
      if (!(error <= worst)) {
        worst = error;
        where = "row " + std::to_string(row) + " element " + std::to_string(i) + ": " + std::to_string(got) + " instead of " +
                std::to_string(expected[static_cast<std::size_t>(i)]);
      }
    }
  }
  // A sum with a residual that is not rounded to float first may differ by that rounding.
  const double bound = c.residual ? 2e-6 + std::fabs(c.mean) * 1.2e-7 / c.deviation : 2e-6;
  EXPECT_LE(worst, bound) << "dim " << c.dim << " mean " << c.mean << " deviation " << c.deviation << " residual " << c.residual
                          << " gamma " << c.gamma << " beta " << c.beta << " in place " << c.in_place << ", " << where;
}

TEST_P(RowwiseKernelTest, LayerNormMatchesFloat64) {
  const simd::LayerNormKernel& kernel = *table().layer_norm_f32;
  std::uint32_t seed = 1;
  for (const std::int64_t dim : row_lengths()) {
    for (int flags = 0; flags < 16; flags += dim < 70 ? 1 : 5) {
      const bool residual = flags & 1, gamma = flags & 2, beta = flags & 4, in_place = flags & 8;
      check_layer_norm(kernel, {3, dim, flags % 3, 0.25, 2.0, 1e-5, residual, gamma, beta, in_place}, seed++);
    }
  }
  for (const std::int64_t dim : {5, 16, 100, 768, 5000}) {
    for (const double mean : {1e3, -1e3, 1e4}) {
      check_layer_norm(kernel, {2, dim, 0, mean, 1.0, 1e-12, false, true, true, false}, seed++);
    }
    check_layer_norm(kernel, {2, dim, 0, 0.0, 1e-4, 1e-12, false, false, false, false}, seed++);
    check_layer_norm(kernel, {2, dim, 0, 0.0, 1e6, 1e-5, false, true, false, true}, seed++);
  }
}

TEST_P(RowwiseKernelTest, LayerNormOfConstantRowsIsBeta) {
  for (const std::int64_t dim : {1, 7, 384, 1000}) {
    Guarded<float> x(static_cast<std::size_t>(dim)), beta(static_cast<std::size_t>(dim));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.25f;
    beta.fill_random(2);
    simd::LayerNormF32Args args;
    args.x = x.data();
    args.y = x.data();
    args.beta = beta.data();
    args.rows = 1;
    args.dim = dim;
    args.epsilon = 1e-12;
    table().layer_norm_f32->run(args);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], beta[i], 1e-6) << "dim " << dim << " element " << i;
  }
}

TEST_P(RowwiseKernelTest, NoRowsOrNoElementsTouchNothing) {
  simd::LayerNormF32Args norm;
  simd::SoftmaxF32Args softmax;
  simd::ActivationF32Args activation;
  table().layer_norm_f32->run(norm);
  table().softmax_f32->run(softmax);
  table().activation_f32->run(activation);
  norm.rows = softmax.rows = 3;
  table().layer_norm_f32->run(norm);
  table().softmax_f32->run(softmax);
}

void check_softmax(const simd::SoftmaxKernel& kernel, std::int64_t dim, double scale, double range, bool in_place,
                   std::uint32_t seed) {
  const std::int64_t rows = 2, width = dim + 3;
  const std::size_t extent = static_cast<std::size_t>((rows - 1) * width + dim);
  Guarded<float> x(extent), y(extent);
  x.fill_random(seed, -range, range);
  if (dim > 4) x[static_cast<std::size_t>(dim / 2)] = -kInfinity;  // excluded, where scale > 0
  const std::vector<float> input(x.data(), x.data() + extent);
  simd::SoftmaxF32Args args;
  args.x = x.data();
  args.x_stride = width * kFloat;
  args.y = in_place ? x.data() : y.data();
  args.y_stride = width * kFloat;
  args.rows = rows;
  args.dim = dim;
  args.scale = scale;
  kernel.run(args);
  double worst = 0.0;
  std::string where;
  for (std::int64_t row = 0; row < rows; ++row) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
    const auto score = [&](std::int64_t i) {
      return scale * static_cast<double>(input[static_cast<std::size_t>(row * width + i)]);
    };
    for (std::int64_t i = 0; i < dim; ++i) largest = std::max(largest, score(i));
    for (std::int64_t i = 0; i < dim; ++i) sum += std::exp(score(i) - largest);
    for (std::int64_t i = 0; i < dim; ++i) {
      const double expected = std::exp(score(i) - largest) / sum;
      const double error = std::fabs(static_cast<double>(args.y[row * width + i]) - expected);
      // A score is rounded to half a unit of its size, an exponential costs a unit, flushed weights are below 2^-126.
      const double bound = expected * (4e-7 + std::ldexp(range * std::fabs(scale), -22)) + 2e-38;
      if (!(error / bound <= worst)) {
        worst = error / bound;
        where = "row " + std::to_string(row) + " element " + std::to_string(i);
      }
    }
  }
  EXPECT_LE(worst, 1.0) << "dim " << dim << " scale " << scale << " range " << range << " in place " << in_place << ", "
                        << where;
}

TEST_P(RowwiseKernelTest, SoftmaxMatchesFloat64) {
  std::uint32_t seed = 1;
  for (const std::int64_t dim : row_lengths()) {
    check_softmax(*table().softmax_f32, dim, 1.0, 4.0, dim % 2 == 0, seed++);
    check_softmax(*table().softmax_f32, dim, 0.125, 100.0, dim % 2 == 1, seed++);
  }
  check_softmax(*table().softmax_f32, 300, 1.0, 80.0, false, seed++);
  check_softmax(*table().softmax_f32, 300, 1.0, 1000.0, false, seed++);
  check_softmax(*table().softmax_f32, 3, -2.0, 5.0, false, seed++);
  check_softmax(*table().softmax_f32, 3, 0.0, 5.0, false, seed++);
  check_softmax(*table().softmax_f32, 131072, 1.0, 1.0, false, seed++);
}

TEST_P(RowwiseKernelTest, SoftmaxOfSpecialRows) {
  for (const std::int64_t dim : {1, 3, 4, 8, 13, 16, 40, 77}) {
    Guarded<float> x(static_cast<std::size_t>(dim)), y(static_cast<std::size_t>(dim));
    simd::SoftmaxF32Args args;
    args.x = x.data();
    args.y = y.data();
    args.rows = 1;
    args.dim = dim;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = -kInfinity;
    table().softmax_f32->run(args);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(bits_of(y[i]), 0u) << "dim " << dim << " element " << i;
    // NaN reaches every weight, wherever it stands and whatever surrounds it.
    for (const float other : {-kInfinity, 1.0f, kInfinity}) {
      for (std::int64_t at = 0; at < dim; ++at) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = other;
        x[static_cast<std::size_t>(at)] = kNaN;
        table().softmax_f32->run(args);
        for (std::size_t i = 0; i < y.size(); ++i) {
          ASSERT_TRUE(std::isnan(y[i])) << "dim " << dim << " NaN at " << at << " among " << other << ", element " << i;
        }
      }
    }
    // One key alone has the whole weight, whatever its score is.
    for (const float score : {-3e38f, -1e4f, 0.0f, 3e38f}) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = -kInfinity;
      x[static_cast<std::size_t>(dim - 1)] = score;
      table().softmax_f32->run(args);
      for (std::int64_t i = 0; i < dim; ++i) ASSERT_EQ(y[static_cast<std::size_t>(i)], i == dim - 1 ? 1.0f : 0.0f) << score;
    }
  }
}

double activation_in_double(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x > 0.0 ? x : 0.0;
    case Activation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh: {
      // tanh(u) = 1 - 2 / (1 + exp(2 u)), kept away from the difference that cancels.
      const double u = std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
      return x / (1.0 + std::exp(-2.0 * u));
    }
  }
  return x;
}

TEST_P(RowwiseKernelTest, ActivationsMatchFloat64) {
  std::vector<float> points;
  for (int i = -160000; i <= 160000; ++i) points.push_back(static_cast<float>(i) * 1e-4f);
  for (float x = 1e-30f; x < 1e30f; x *= 1.37f) {
    points.push_back(x);
    points.push_back(-x);
  }
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
    std::vector<float> y(points.size());
    simd::ActivationF32Args args;
    args.x = points.data();
    args.y = y.data();
    args.count = static_cast<std::int64_t>(points.size());
    args.activation = activation;
    table().activation_f32->run(args);
    double worst = 0.0, worst_tail = 0.0;
    float where = 0.0f, where_tail = 0.0f;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double expected = activation_in_double(activation, points[i]);
      const double error = std::fabs(y[i] - expected);
      const double mixed = error / std::max(1.0, std::fabs(expected));
      if (!(mixed <= worst)) {
        worst = mixed;
        where = points[i];
      }
      // Tails are not cut off: down to 1e-30 a result has its leading digits.
      if (std::fabs(expected) > 1e-30 && !(error / std::fabs(expected) <= worst_tail)) {
        worst_tail = error / std::fabs(expected);
        where_tail = points[i];
      }
    }
    EXPECT_LE(worst, 2e-7) << "activation " << static_cast<int>(activation) << " at " << where;
    EXPECT_LE(worst_tail, 1e-3) << "activation " << static_cast<int>(activation) << " at " << where_tail;
  }
}

TEST_P(RowwiseKernelTest, ActivationsOfSpecialValues) {
  const auto run = [&](Activation activation, float x) {
    float y = 99.0f;
    simd::ActivationF32Args args;
    args.x = &x;
    args.y = &y;
    args.count = 1;
    args.activation = activation;
    table().activation_f32->run(args);
    return y;
  };
  EXPECT_NEAR(run(Activation::gelu_erf, -2.6989f), -0.009388, 1e-6);
  EXPECT_NEAR(run(Activation::gelu_tanh, -2.6989f), -0.008915, 1e-6);
  for (const Activation activation : {Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
    EXPECT_EQ(run(activation, 0.0f), 0.0f);
    EXPECT_EQ(run(activation, kInfinity), kInfinity) << static_cast<int>(activation);
    EXPECT_EQ(run(activation, -kInfinity), 0.0f) << static_cast<int>(activation);
    EXPECT_EQ(run(activation, -1e30f), 0.0f) << static_cast<int>(activation);
    EXPECT_TRUE(std::isnan(run(activation, kNaN))) << static_cast<int>(activation);
  }
  EXPECT_TRUE(std::isnan(run(Activation::none, kNaN)));
}

TEST_P(RowwiseKernelTest, ActivationBitsDependOnTheValueAlone) {
  for (const Activation activation : {Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
    Guarded<float> x(70), y(70);
    x.fill_random(4, -5.0, 5.0);
    simd::ActivationF32Args args;
    args.activation = activation;
    args.x = x.data();
    args.y = y.data();
    args.count = 70;
    table().activation_f32->run(args);
    for (std::int64_t count = 1; count <= 40; ++count) {
      Guarded<float> from(static_cast<std::size_t>(count)), to(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = x[i + 7];
      args.x = from.data();
      args.y = count % 2 ? to.data() : from.data();
      args.count = count;
      table().activation_f32->run(args);
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(bits_of(args.y[i]), bits_of(y[static_cast<std::size_t>(i + 7)])) << "count " << count << " element " << i;
      }
    }
  }
}

TEST_P(RowwiseKernelTest, CallersFloatingPointEnvironmentIsKept) {
  Guarded<float> x(100), y(100);
  x.fill_random(1);
  ASSERT_EQ(std::fesetround(FE_DOWNWARD), 0);
  simd::SoftmaxF32Args softmax;
  softmax.x = x.data();
  softmax.y = y.data();
  softmax.rows = 1;
  softmax.dim = 100;
  table().softmax_f32->run(softmax);
  const int after_softmax = std::fegetround();
  simd::LayerNormF32Args norm;
  norm.x = x.data();
  norm.y = y.data();
  norm.rows = 1;
  norm.dim = 100;
  table().layer_norm_f32->run(norm);
  const int after_norm = std::fegetround();
  simd::ActivationF32Args activation;
  activation.x = x.data();
  activation.y = y.data();
  activation.count = 100;
  activation.activation = Activation::gelu_erf;
  table().activation_f32->run(activation);
  const int after_activation = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(after_softmax, FE_DOWNWARD);
  EXPECT_EQ(after_norm, FE_DOWNWARD);
  EXPECT_EQ(after_activation, FE_DOWNWARD);
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, RowwiseKernelTest, ::testing::ValuesIn(available_isas()),
                         [](const ::testing::TestParamInfo<Isa>& isa) { return std::string(name(isa.param)); });

}  // namespace
}  // namespace polyhead::test
