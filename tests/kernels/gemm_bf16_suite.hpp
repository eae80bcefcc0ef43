// What every gemm_bf16_bf16 is tested for: sums of rows and weights that are rounded to bf16, against float64 and bit by bit,
// by the formula of contract/gemm.hpp; and that nothing shows in an element but its row and its column. A test file
// instantiates GemmBf16Test with the kernels it is about.
#pragma once

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/gemm_weights_product.hpp"
#include "simd/contract/rowwise.hpp"

namespace polyhead::test {

// How a kernel comes to an element's sum: k by k; by pairs, one product of a pair after the other; or in another way, of which
// only the error is known.
enum class Sums { by_number, by_pair, another };

struct Bf16KernelCase {
  std::string name;
  const GemmKernel* kernel;
  const GemmKernel* widening;  // gemm_f32_bf16 of the same instruction set; nullptr where panels are not packed like its
  const simd::ActivationKernel* activation;
  Sums sums;
  double rounding = 0x1p-24;  // what one addition may be off by, as a part of its result
};

// What the contract leaves open: which number of a pair comes first, and whether the sum begins with the bias or ends with it.
struct SumOrder {
  bool odd_first, bias_last;
};

inline float sum_in_order(const float* row, const float* weight, std::int64_t k, float bias, SumOrder order) {
  // A product of two bf16 has 16 bits and is exact in f32: a multiply-add and two operations give the same.
  float sum = order.bias_last ? 0.0f : bias;
  for (std::int64_t l = 0; l < k; l += 2) {
    const bool is_pair = l + 1 < k;
    if (order.odd_first && is_pair) sum = sum + row[l + 1] * weight[l + 1];
    sum = sum + row[l] * weight[l];
    if (!order.odd_first && is_pair) sum = sum + row[l + 1] * weight[l + 1];
  }
  return order.bias_last ? sum + bias : sum;
}

class GemmBf16Test : public ::testing::TestWithParam<Bf16KernelCase> {
 protected:
  void SetUp() override {
    if (GetParam().sums == Sums::another) return;
    for (const bool odd_first : {false, true}) {
      if (odd_first && GetParam().sums == Sums::by_number) continue;
      for (const bool bias_last : {false, true}) orders_.push_back({odd_first, bias_last});
    }
  }

  const GemmKernel& kernel() const { return *GetParam().kernel; }
  WeightsKernelCase kernels() const {
    return {GetParam().name, WeightType::bf16_dynamic, GetParam().kernel, GetParam().kernel};
  }

  // Operands in guarded memory; what lies between rows of A is NaN, so that whoever counts it shows it.
  std::unique_ptr<WeightsProduct> product(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t gap,
                                          std::uint32_t seed) const {
    auto made = std::make_unique<WeightsProduct>(kernels(), m, n, k, gap, seed);
    for (std::int64_t i = 0; i + 1 < m; ++i) {
      for (std::int64_t l = k; l < made->a_width; ++l) {
        made->a[count_of(i * made->a_width + l, 1)] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    return made;
  }

  // Runs a product of finite numbers over C that holds the residual, and compares every element of C twice: with float64 sums
  // of the rounded operands, within a bound, and with f32 sums in each order that is still possible, bit by bit. A kernel must
  // have one order for all its elements.
  void run_and_compare(WeightsProduct& product, const GemmF32Args& args) {
    for (std::size_t i = 0; i < product.c.size(); ++i) product.c[i] = product.residual[i];
    kernel().run(args);
    const double unit = GetParam().rounding;
    for (std::int64_t i = 0; i < product.m; ++i) {
      const std::vector<float> row = polyhead::testing::nearest_bf16(product.a.data() + i * product.a_width, product.k);
      for (std::int64_t j = 0; j < product.c_width; ++j) {
        const std::size_t index = count_of(i * product.c_width + j, 1);
        if (j >= product.n) {                           // between two rows of C
          const bool is_last_row = i + 1 == product.m;  // nothing lies behind it
          ASSERT_TRUE(is_last_row || bits_of(product.c[index]) == bits_of(product.residual[index])) << what(product, i, j);
          continue;
        }
        const float* weight = product.rounded.data() + j * product.k;
        const float bias = args.bias == nullptr ? 0.0f : args.bias[j];
        const float residual = args.residual == nullptr ? 0.0f : product.residual[index];
        const auto finish = [&](auto sum) {
          if (args.activation == Activation::relu && sum < 0) sum = 0;
          return sum + static_cast<decltype(sum)>(residual);
        };

        double sum = static_cast<double>(bias), magnitude = std::fabs(sum);
        for (std::int64_t l = 0; l < product.k; ++l) {
          const double term = static_cast<double>(row[count_of(l, 1)]) * static_cast<double>(weight[l]);
          sum += term;
          magnitude += std::fabs(term);
        }
        const double expected = finish(sum);
        const double roundings = 2 + std::sqrt(static_cast<double>(product.k));
        ASSERT_NEAR(static_cast<double>(product.c[index]), expected,
                    unit * (magnitude * roundings + std::fabs(expected)) + 1e-37)
            << what(product, i, j);
        if (GetParam().sums == Sums::another) continue;

        std::ostringstream sums;
        const auto differs = [&](SumOrder order) {
          const float in_order = finish(sum_in_order(row.data(), weight, product.k, bias, order));
          sums << (order.odd_first ? " odd first" : "") << (order.bias_last ? " bias last" : "") << " " << in_order;
          return in_order != product.c[index];
        };
        orders_.erase(std::remove_if(orders_.begin(), orders_.end(), differs), orders_.end());
        ASSERT_FALSE(orders_.empty()) << what(product, i, j) << " has the bits of no order that other elements have: is "
                                      << product.c[index] << ", sums:" << sums.str();
      }
    }
  }

  static std::vector<float> weights(std::int64_t n, std::int64_t k) {
    std::vector<float> values(count_of(n, k));
    polyhead::testing::Random random(3);
    for (float& value : values) value = static_cast<float>(random.normal());
    return values;
  }

  static std::string what(const WeightsProduct& product, std::int64_t row, std::int64_t column) {
    std::ostringstream text;
    text << "M " << product.m << " N " << product.n << " K " << product.k << ", row " << row << " column " << column;
    return text.str();
  }

  static std::vector<float> result(const WeightsProduct& product) {
    return {product.c.data(), product.c.data() + product.c.size()};
  }

  std::vector<SumOrder> orders_;
};

TEST_P(GemmBf16Test, SumsAreThoseOfRoundedOperands) {
  const std::int64_t width = kernel().panel_width, tile = kernel().row_tile;
  std::uint32_t seed = 1, cases = 0;
  const auto check = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    if (HasFatalFailure() || (emulated && ++cases % 5 != 0)) return;
    const std::unique_ptr<WeightsProduct> made = product(m, n, k, seed % 3 * 5, seed);
    GemmF32Args args = made->args();
    if (seed % 2 == 0) args.bias = nullptr;
    if (seed % 5 == 1) args.activation = Activation::relu;
    if (seed % 7 >= 4) {
      args.residual = seed % 7 == 4 ? made->residual.data() : args.c;
      args.residual_stride = args.c_stride;
    }
    run_and_compare(*made, args);
    ++seed;
  };
  // Every M beyond two tiles, with whole panels, groups of panels and narrow ones.
  for (std::int64_t m = 0; m <= std::max<std::int64_t>(20, 2 * tile + 2); ++m) {
    for (const std::int64_t n : {std::int64_t{1}, width - 1, width, width + width / 3 + 1, 2 * width, 3 * width + 3}) {
      if (n > 0) check(m, n, 21 + m % 2);
    }
  }
  // Every N up to two panels.
  for (std::int64_t n = 1; n <= 2 * width + 1; ++n) {
    for (const std::int64_t m : {std::int64_t{1}, tile + 1}) check(m, n, 9 + n % 2);
  }
  // Every K up to more than two vectors of pairs, and around what may be a block of k.
  for (std::int64_t k = 1; k <= 70; ++k) {
    for (const std::int64_t m : {std::int64_t{1}, std::int64_t{3}, tile, 2 * tile + 1}) check(m, width + 5, k);
  }
  for (const std::int64_t middle : {384, 512, 768, 1030, 1152}) {
    for (std::int64_t k = middle - 1; k <= middle + 1; ++k) {
      for (const std::int64_t m : {std::int64_t{1}, std::int64_t{2}, std::int64_t{20}, 2 * tile + 3}) check(m, width + 3, k);
    }
  }
  // M around what may be a block of rows.
  for (const std::int64_t m : {31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 100, 127, 128, 129, 191, 192, 193, 260}) {
    check(m, width + 1, 70);
  }
  check(100, 2 * width + 3, 801);
  // Rows of any length are rounded.
  for (const std::int64_t k : {32767, 32768, 32769}) check(2, 3, k);
  for (const std::int64_t m : {std::int64_t{1}, tile + 1}) check(m, 3, 70001);
  check(3, width + 1, 40000);
}

// Small integers, whose sums are exact in f32 in any order: no instruction set may be off by anything.
TEST_P(GemmBf16Test, SumsOfIntegersAreExact) {
  const std::int64_t width = kernel().panel_width, tile = kernel().row_tile;
  std::mt19937 generator(7);
  const auto check = [&](std::int64_t m, std::int64_t n, std::int64_t k, int most_of_a, int most_of_w) {
    const std::unique_ptr<WeightsProduct> made = product(m, n, k, 3, 1);
    std::uniform_int_distribution<int> of_a(-most_of_a, most_of_a), of_w(-most_of_w, most_of_w);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t l = 0; l < k; ++l) made->a[count_of(i * made->a_width + l, 1)] = static_cast<float>(of_a(generator));
    }
    for (float& weight : made->weight) weight = static_cast<float>(of_w(generator));
    for (std::size_t j = 0; j < made->bias.size(); ++j) made->bias[j] = static_cast<float>(of_a(generator));
    made->pack(kernels());
    kernel().run(made->args());
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        auto sum = static_cast<std::int64_t>(made->bias[count_of(j, 1)]);
        for (std::int64_t l = 0; l < k; ++l) {
          sum += static_cast<std::int64_t>(made->a[count_of(i * made->a_width + l, 1)]) *
                 static_cast<std::int64_t>(made->weight[count_of(j * k + l, 1)]);
        }
        ASSERT_EQ(static_cast<double>(made->c[count_of(i * made->c_width + j, 1)]), static_cast<double>(sum))
            << what(*made, i, j);
      }
    }
  };
  for (const std::int64_t k : {1, 2, 3, 31, 32, 33, 512, 768, 1030}) {
    for (const std::int64_t m : {std::int64_t{1}, std::int64_t{5}, 2 * tile + 1}) {
      check(m, width + 7, k, 8, 8);
      check(m, width + 7, k, 255, 32);  // all eight bits of a bf16
    }
  }
  for (const std::int64_t k : {32768, 32769, 100001}) check(3, 5, k, 8, 8);
}

// One number a row and one weight, 1: C is the row's number as it was rounded.
TEST_P(GemmBf16Test, NumbersAreRoundedToTheNearestBf16) {
  const float infinity = std::numeric_limits<float>::infinity(), smallest = std::numeric_limits<float>::min();
  std::vector<std::uint32_t> patterns;
  for (const std::uint32_t high : {0x0080u, 0x0081u, 0x3F80u, 0x3F81u, 0x3FFFu, 0x4049u, 0x7F7Eu, 0x7F7Fu}) {
    // Below, at and above the middle of two bf16, next to them, and carries into the exponent.
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) patterns.push_back(high << 16 | low);
  }
  patterns.insert(patterns.end(), {0x00000000u, 0x00000001u, 0x007FFFFFu, 0x00400000u, 0x7F800000u});
  patterns.insert(patterns.end(), {0x7F800001u, 0x7F80FFFFu, 0x7FC00000u, 0x7FFFFFFFu, 0x7F810000u});  // NaN of any payload
  std::mt19937 generator(11);
  for (int i = 0; i < 2000; ++i) patterns.push_back(static_cast<std::uint32_t>(generator()) & 0x7FFFFFFFu);
  std::vector<float> numbers;
  for (const std::uint32_t pattern : patterns) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const std::uint32_t bits = pattern | sign;
      numbers.push_back(0.0f);
      std::memcpy(&numbers.back(), &bits, sizeof bits);
    }
  }
  const std::vector<float> rounded = polyhead::testing::nearest_bf16(numbers.data(), static_cast<std::int64_t>(numbers.size()));
  ASSERT_EQ(rounded[count_of(2 * (7 * 6 + 2), 1)], 0x1.FEp127f);  // just below the middle of the largest bf16 and 2^128
  ASSERT_EQ(rounded[count_of(2 * (7 * 6 + 3), 1)], infinity);
  // As many rows as there are numbers, all at once and three at a time: kernels may round few rows in another way.
  for (const std::int64_t together : {static_cast<std::int64_t>(numbers.size()), std::int64_t{3}}) {
    for (const std::int64_t k : {1, 2, 35}) {
      for (const std::int64_t place : {std::int64_t{0}, k / 2, k - 1}) {
        const auto m = static_cast<std::int64_t>(numbers.size());
        const std::unique_ptr<WeightsProduct> made = product(m, 2, k, 0, 1);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t l = 0; l < k; ++l) {
            made->a[count_of(i * k + l, 1)] = l == place ? numbers[count_of(i, 1)] : 0.0f;
          }
        }
        std::fill(made->weight.begin(), made->weight.end(), 1.0f);
        made->pack(kernels());
        for (std::int64_t begin = 0; begin < m; begin += together) {
          GemmF32Args args = made->args();
          args.bias = nullptr;
          args.a += begin * k;
          args.c += begin * 2;
          args.m = std::min(together, m - begin);
          kernel().run(args);
        }
        for (std::int64_t i = 0; i < m; ++i) {
          const float number = numbers[count_of(i, 1)], expected = rounded[count_of(i, 1)];
          for (std::int64_t j = 0; j < 2; ++j) {
            const float got = made->c[count_of(2 * i + j, 1)];
            const bool may_be_zero = std::fabs(number) < smallest || std::fabs(expected) < smallest;  // denormals
            ASSERT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected || (may_be_zero && got == 0))
                << std::hexfloat << number << " became " << got << " instead of " << expected << ", K " << k << " place "
                << place;
          }
        }
      }
    }
  }
}

TEST_P(GemmBf16Test, PacksFromAnyStrides) {
  for (const std::int64_t n : {1, 5, 23, 97}) {
    for (const std::int64_t k : {1, 3, 8, 18, 67}) {
      const std::vector<float> weight = weights(n, k);
      std::vector<float> transposed(count_of(n, k)), apart(count_of(n * k, 3));
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < k; ++j) {
          transposed[count_of(j * n + i, 1)] = apart[count_of(i * k + j, 3)] = weight[count_of(i * k + j, 1)];
        }
      }
      const Packed expected(kernel(), weight.data(), n, k), from_columns(kernel(), transposed.data(), n, k, 1, n),
          from_apart(kernel(), apart.data(), n, k, 3 * k, 3);
      ASSERT_EQ(std::memcmp(expected.data(), from_columns.data(), expected.bytes()), 0) << "N " << n << " K " << k;
      ASSERT_EQ(std::memcmp(expected.data(), from_apart.data(), expected.bytes()), 0) << "N " << n << " K " << k;
    }
  }
}

// gemm_f32_bf16 is held to rounding weights rightly, in a suite of its own.
TEST_P(GemmBf16Test, PackedWeightsAreThoseOfTheWideningKernel) {
  if (GetParam().widening == nullptr) GTEST_SKIP() << "packs in a way of its own";
  ASSERT_EQ(kernel().panel_width, GetParam().widening->panel_width);
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{5}, std::int64_t{kernel().panel_width}, std::int64_t{97}}) {
    for (const std::int64_t k : {1, 2, 3, 18, 67, 801}) {
      const std::vector<float> weight = weights(n, k);
      const Packed expected(*GetParam().widening, weight.data(), n, k), packed(kernel(), weight.data(), n, k);
      ASSERT_EQ(packed.bytes(), expected.bytes()) << "N " << n << " K " << k;
      ASSERT_EQ(std::memcmp(packed.data(), expected.data(), packed.bytes()), 0) << "N " << n << " K " << k;
    }
  }
}

// |error| <= sum |x| e + sum r (|W| + e) + 2^-24 (2 + sqrt K) sum (|x| + r) (|W| + e), as docs/semantics.md states it: e and r
// bound the rounding of a weight and of a row's number.
TEST_P(GemmBf16Test, ErrorAgainstFloat64IsWithinTheStatedBound) {
  const double unit = GetParam().rounding;
  for (const std::int64_t k : {1, 31, 32, 100, 768, 3000, 32768}) {
    for (const std::int64_t m : {1, 30}) {
      if (k > 3000 && m > 1) continue;
      const std::int64_t n = kernel().panel_width + 7;
      const std::unique_ptr<WeightsProduct> made = product(m, n, k, 0, static_cast<std::uint32_t>(1000 + k + m));
      const std::vector<double> bounds = polyhead::testing::weight_error_bounds(WeightType::bf16_dynamic, made->weight, n, k);
      kernel().run(made->args());
      double worst = 0, squares = 0, magnitudes = 0;
      std::string where = "nowhere";
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = static_cast<double>(made->bias[count_of(j, 1)]), magnitude = std::fabs(sum), bound = 0;
          for (std::int64_t l = 0; l < k; ++l) {
            const double number = static_cast<double>(made->a[count_of(i * made->a_width + l, 1)]);
            const double weight = static_cast<double>(made->weight[count_of(j * k + l, 1)]);
            const double of_row = std::ldexp(std::fabs(number), -8), of_weight = bounds[count_of(j * k + l, 1)];
            sum += number * weight;
            bound += std::fabs(number) * of_weight + of_row * (std::fabs(weight) + of_weight);
            magnitude += (std::fabs(number) + of_row) * (std::fabs(weight) + of_weight);
          }
          const double limit = bound + unit * magnitude * (2 + std::sqrt(static_cast<double>(k)));
          const double error = std::fabs(static_cast<double>(made->c[count_of(i * made->c_width + j, 1)]) - sum);
          squares += error * error;
          magnitudes += sum * sum;
          if (!(error / limit <= worst)) {
            worst = error / limit;
            where = what(*made, i, j);
          }
        }
      }
      EXPECT_LE(worst, 1.0) << where;
      if (m == 1 || k < 100) continue;
      // Of random numbers: that of rounded weights, 0.11 %, times the root of two.
      const double share = std::sqrt(squares / magnitudes);
      EXPECT_LE(share, 0.0021) << "rms, K " << k;
      RecordProperty("rms_share_k" + std::to_string(k), std::to_string(share));
    }
  }
}

TEST_P(GemmBf16Test, BitsDependNeitherOnRowsNorOnColumns) {
  const std::int64_t width = kernel().panel_width, m = 100, n = 3 * width + width / 2 + 1;
  for (const std::int64_t k : {5, 300, 1030}) {
    const std::unique_ptr<WeightsProduct> made = product(m, n, k, 0, 8);
    GemmF32Args args = made->args();
    args.activation = Activation::gelu_erf;
    args.residual = made->residual.data();
    args.residual_stride = args.c_stride;
    kernel().run(args);
    const std::vector<float> whole = result(*made);
    // Rows [first, first + count) alone, in columns [begin, end) alone.
    const auto check = [&](std::int64_t first, std::int64_t count, std::int64_t begin, std::int64_t end) {
      for (std::size_t i = 0; i < made->c.size(); ++i) made->c[i] = WeightsProduct::untouched;
      GemmF32Args part = args;
      part.a += first * made->a_width;
      part.c += first * made->c_width;
      part.residual += first * made->c_width;
      part.m = count;
      part.n_begin = begin;
      part.n_end = end;
      kernel().run(part);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          const bool inside = i >= first && i < first + count && j >= begin && j < end;
          const std::size_t index = count_of(i * made->c_width + j, 1);
          ASSERT_EQ(bits_of(made->c[index]), bits_of(inside ? whole[index] : WeightsProduct::untouched))
              << what(*made, i, j) << ", rows [" << first << ", " << first + count << "), columns [" << begin << ", " << end
              << ")";
        }
      }
    };
    for (std::int64_t count = 0; count <= (emulated ? 5 : 20); ++count) check((m - count) / 2, count, 0, n);
    for (std::int64_t begin = 0; begin < n; begin += width) {
      check(1, 1, begin, n);
      check(7, 3, begin, std::min(begin + width, n));
      check(2, 66, begin, std::min(begin + 2 * width, n));
    }
    check(0, m, width, width);  // no columns
  }
}

TEST_P(GemmBf16Test, FusedEpilogueHasTheBitsOfSeparateSteps) {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
    for (const std::int64_t m : {1, 4, 29}) {
      for (const std::int64_t k : {3, 801}) {
        const std::int64_t n = 2 * kernel().panel_width + 3;
        const std::unique_ptr<WeightsProduct> made = product(m, n, k, 2, 5);
        kernel().run(made->args());
        std::vector<float> expected(count_of(m, n));
        for (std::int64_t i = 0; i < m; ++i) {
          simd::ActivationF32Args separate;
          separate.x = made->c.data() + i * made->c_width;
          separate.y = expected.data() + i * n;
          separate.count = n;
          separate.activation = activation;
          GetParam().activation->run(separate);
          for (std::int64_t j = 0; j < n; ++j) {
            expected[count_of(i * n + j, 1)] += made->residual[count_of(i * made->c_width + j, 1)];
          }
        }
        for (const bool in_place : {false, true}) {
          GemmF32Args fused = made->args();
          fused.activation = activation;
          fused.residual = in_place ? fused.c : made->residual.data();
          fused.residual_stride = fused.c_stride;
          for (std::size_t i = 0; in_place && i < made->c.size(); ++i) made->c[i] = made->residual[i];
          kernel().run(fused);
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
              ASSERT_EQ(bits_of(made->c[count_of(i * made->c_width + j, 1)]), bits_of(expected[count_of(i * n + j, 1)]))
                  << what(*made, i, j) << ", activation " << static_cast<int>(activation)
                  << (in_place ? ", residual is C" : "");
            }
          }
        }
      }
    }
  }
}

TEST_P(GemmBf16Test, RowsOfAnyStride) {
  for (const std::int64_t m : {3, 29}) {
    const std::int64_t n = 21, k = 41;
    const std::unique_ptr<WeightsProduct> made = product(m, n, k, 0, 8);
    GemmF32Args args = made->args();
    kernel().run(args);
    const std::vector<float> expected = result(*made);

    args.a = made->a.data() + (m - 1) * k;  // upside down
    args.a_stride = -k * float_bytes;
    args.c = made->c.data() + (m - 1) * n;
    args.c_stride = -n * float_bytes;
    kernel().run(args);
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(bits_of(made->c[i]), bits_of(expected[i])) << i;

    args = made->args();
    args.a_stride = 0;  // one row for all
    kernel().run(args);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(bits_of(made->c[count_of(i * n + j, 1)]), bits_of(expected[count_of(j, 1)])) << what(*made, i, j);
      }
    }
  }
}

// A NaN, an infinity, or a number whose bf16 is one, in A or W: its own row or column has what arithmetic says, and every other
// element its bits as before.
TEST_P(GemmBf16Test, WhatIsNotFiniteStaysInItsRowAndColumn) {
  const std::int64_t n = 2 * kernel().panel_width + 3;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float too_large = std::numeric_limits<float>::max();
  for (const float bad : {nan, infinity, -infinity, too_large, -too_large}) {
    const float seen = std::fabs(bad) == too_large ? std::copysign(infinity, bad) : bad;
    for (const std::int64_t m : {1, 2, 9, 70}) {
      for (const std::int64_t k : {1, 100, 101}) {
        for (const bool in_row : {true, false}) {
          const std::int64_t bad_row = m / 2, bad_column = kernel().panel_width + 1, place = k - 1;
          const std::unique_ptr<WeightsProduct> made = product(m, n, k, 1, 12);
          for (float& weight : made->weight) weight += std::copysign(0x1p-20f, weight);  // none is 0 as a bf16
          made->pack(kernels());
          kernel().run(made->args());
          const std::vector<float> before = result(*made);
          if (in_row) {
            made->a[count_of(bad_row * made->a_width + place, 1)] = bad;
          } else {
            made->weight[count_of(bad_column * k + place, 1)] = bad;
            made->pack(kernels());
          }
          kernel().run(made->args());
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
              const std::size_t index = count_of(i * made->c_width + j, 1);
              if (in_row ? i != bad_row : j != bad_column) {
                ASSERT_EQ(bits_of(made->c[index]), bits_of(before[index])) << what(*made, i, j) << ", " << bad;
                continue;
              }
              const float other =
                  in_row ? made->weight[count_of(j * k + place, 1)] : made->a[count_of(i * made->a_width + place, 1)];
              const float expected = seen * other;
              ASSERT_TRUE(std::isnan(expected) ? std::isnan(made->c[index]) : made->c[index] == expected)
                  << what(*made, i, j) << ", " << bad << ": is " << made->c[index] << " instead of " << expected;
            }
          }
        }
      }
    }
  }
}

// Rows and weights at the ends of f32's range: denormals count or are zero, large ones are rounded like others.
TEST_P(GemmBf16Test, NumbersOfEverySize) {
  const std::int64_t n = kernel().panel_width + 1, k = 75;
  for (const double size : {0.0, 1e-42, 1e-39, 1e-30, 1e-3, 1e20, 1e30}) {
    for (const std::int64_t m : {1, 40}) {
      const std::unique_ptr<WeightsProduct> made = product(m, n, k, 2, 11);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t l = 0; l < k; ++l) {
          float& number = made->a[count_of(i * made->a_width + l, 1)];
          number = static_cast<float>(static_cast<double>(number) * size);
        }
      }
      GemmF32Args args = made->args();
      args.bias = nullptr;  // it would hide them
      if (size < 1e-36) {
        kernel().run(args);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            ASSERT_NEAR(made->c[count_of(i * made->c_width + j, 1)], 0.0f, 1e-36) << size;
          }
        }
      } else {
        run_and_compare(*made, args);
      }
    }
  }
}

TEST_P(GemmBf16Test, CallersFloatingPointEnvironmentIsKept) {
  for (const std::int64_t m : {1, 9, 70}) {
    const std::unique_ptr<WeightsProduct> made = product(m, kernel().panel_width + 5, 71, 0, 13);
    const auto run = [&] {
      for (std::size_t i = 0; i < made->c.size(); ++i) made->c[i] = WeightsProduct::untouched;
      kernel().run(made->args());
    };
    const auto expect_bits = [&](const std::vector<float>& expected, const char* setting) {
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(bits_of(made->c[i]), bits_of(expected[i])) << setting << " " << i;
    };
    run();
    const std::vector<float> expected = result(*made);
    for (const int wanted : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      ASSERT_EQ(std::fesetround(wanted), 0);
      run();
      const int rounding = std::fegetround();
      volatile float smallest = std::numeric_limits<float>::min();
      const bool keeps_denormals = smallest / 2.0f > 0.0f;
      std::fesetround(FE_TONEAREST);
      EXPECT_EQ(rounding, wanted);
      EXPECT_TRUE(keeps_denormals);
      expect_bits(expected, "rounding");
    }
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr(), flushing = before | 0x8040u;  // results to zero, operands too
    _mm_setcsr(flushing);
    run();
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & ~0x3Fu, flushing & ~0x3Fu) << "all but the flags of what happened";
    expect_bits(expected, "denormals flushed");
#endif
  }
}

}  // namespace polyhead::test
