// What every gemm_i8_i8 is tested for: sums of rounded rows and weights that are exact, by the formula of contract/gemm.hpp;
// the bound against float64; and that bits depend on nothing but the row and the column.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gemm_weights_product.hpp"

namespace polyhead::test {

struct ProductsKernelCase {
  std::string name;
  const GemmKernel* kernel;
  const GemmKernel* widening;  // gemm_f32_i8 of the same instruction set
};

class GemmProductsTest : public ::testing::TestWithParam<ProductsKernelCase> {
 protected:
  const GemmKernel& kernel() const { return *GetParam().kernel; }
  WeightsKernelCase kernels() const { return {GetParam().name, WeightType::int8, GetParam().kernel, GetParam().widening}; }
};

// Rows as the kernel rounds them: integers, and what they are multiples of.
struct RoundedRow {
  std::vector<double> numbers;
  float scale;
};

inline RoundedRow rounded_row(const float* a, std::int64_t k) {
  RoundedRow row{std::vector<double>(static_cast<std::size_t>(k)), 0};
  float largest = 0;
  for (std::int64_t i = 0; i < k; ++i) largest = std::max(largest, std::fabs(a[i]));
  if (largest < 0x1p-100f) return row;
  row.scale = largest / 127.0f;
  const float factor = 127.0f / largest;
  for (std::int64_t i = 0; i < k; ++i) {
    row.numbers[static_cast<std::size_t>(i)] = static_cast<double>(std::nearbyint(a[i] * factor));
  }
  return row;
}

// Compares with float64 arithmetic on the rounded numbers: what is left are the roundings of a sum, two scales' product and C.
inline void expect_exact_sums(WeightsProduct& product, const GemmF32Args& args) {
  for (std::int64_t i = 0; i < product.m; ++i) {
    const RoundedRow row = rounded_row(product.a.data() + i * product.a_width, product.k);
    for (std::int64_t j = args.n_begin; j < args.n_end; ++j) {
      const float* weight = product.weight.data() + j * product.k;
      float largest = 0;
      for (std::int64_t l = 0; l < product.k; ++l) largest = std::max(largest, std::fabs(weight[l]));
      const float scale = largest / 127.0f;
      double sum = 0;
      for (std::int64_t l = 0; l < product.k; ++l) {
        if (scale > 0)
          sum += row.numbers[count_of(l, 1)] * std::nearbyint(static_cast<double>(weight[l]) / static_cast<double>(scale));
      }
      const double bias = args.bias == nullptr ? 0.0 : static_cast<double>(args.bias[j]);
      double expected = sum * static_cast<double>(row.scale) * static_cast<double>(scale);
      const double bound = std::ldexp(std::fabs(expected), -22) + std::ldexp(std::fabs(expected + bias), -23) + 1e-30;
      expected += bias;
      if (args.activation == Activation::relu) expected = std::max(expected, 0.0);
      double residual = 0;
      if (args.residual != nullptr) residual = static_cast<double>(product.residual[count_of(i * product.c_width + j, 1)]);
      const double got = static_cast<double>(product.c[count_of(i * product.c_width + j, 1)]);
      ASSERT_NEAR(got, expected + residual, bound + std::ldexp(std::fabs(expected + residual), -23))
          << "M " << product.m << " N " << product.n << " K " << product.k << ", row " << i << " column " << j;
    }
  }
}

TEST_P(GemmProductsTest, SumsAreExact) {
  const std::int64_t width = kernel().panel_width, tile = kernel().row_tile;
  std::uint32_t seed = 1;
  const auto check = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    WeightsProduct product(kernels(), m, n, k, seed % 3 * 5, seed);
    GemmF32Args args = product.args();
    if (seed % 2 == 0) args.bias = nullptr;
    if (seed % 4 == 1) args.activation = Activation::relu;
    if (seed % 4 >= 2) {
      args.residual = seed % 4 == 2 ? product.residual.data() : args.c;
      args.residual_stride = args.c_stride;
    }
    for (std::size_t i = 0; i < product.c.size(); ++i) product.c[i] = product.residual[i];
    kernel().run(args);
    expect_exact_sums(product, args);
    ++seed;
  };
  for (std::int64_t m = 0; m <= 2 * tile + 2; ++m) {
    for (const std::int64_t n : {std::int64_t{1}, width, width + width / 3 + 1}) check(m, n, 21);
  }
  for (std::int64_t n = 1; n <= 2 * width + 1; ++n) check(tile + 1, n, 9);
  for (std::int64_t k = 1; k <= 40; ++k) check(3, width + 5, k);
  // Around the rows that are rounded at once, 64 of up to 1,024 numbers.
  for (const std::int64_t m : {63, 64, 65, 130}) check(m, width + 1, 70);
  check(70, 3, 1500);
  check(3, 2, 65536);  // the longest row that is rounded
}

TEST_P(GemmProductsTest, TheLargestSumsAreExact) {
  const std::int64_t k = 65536;
  WeightsProduct product(kernels(), 2, 3, k, 0, 5);
  std::fill(product.weight.begin(), product.weight.end(), -0.5f);
  for (std::int64_t i = 0; i < 2 * k; ++i) product.a[count_of(i, 1)] = i < k ? 3.0f : -3.0f;
  product.pack(kernels());
  GemmF32Args args = product.args();
  args.bias = nullptr;
  kernel().run(args);
  for (std::int64_t j = 0; j < 3; ++j) {
    EXPECT_NEAR(product.c[count_of(j, 1)], -1.5 * static_cast<double>(k), 0.05);
    EXPECT_NEAR(product.c[count_of(product.c_width + j, 1)], 1.5 * static_cast<double>(k), 0.05);
  }
}

TEST_P(GemmProductsTest, LongerRowsStayFloats) {
  WeightsProduct product(kernels(), 2, 3, 65537, 0, 6);
  GemmF32Args args = product.args();
  kernel().run(args);
  args.c = product.expected.data();
  GetParam().widening->run(args);  // both read the same packed weights
  for (std::size_t i = 0; i < product.c.size(); ++i) ASSERT_EQ(bits_of(product.c[i]), bits_of(product.expected[i])) << i;
}

// |error| <= sum |a| e + sum |W'| r + 2^-22 (|sum| + |bias|): e and r bound the rounding of a weight and of a row's number.
TEST_P(GemmProductsTest, ErrorAgainstFloat64IsWithinTheStatedBound) {
  for (const std::int64_t k : {1, 33, 768}) {
    const std::int64_t m = 5, n = kernel().panel_width + 7;
    WeightsProduct product(kernels(), m, n, k, 0, static_cast<std::uint32_t>(k));
    const std::vector<double> bounds = polyhead::testing::weight_error_bounds(WeightType::int8, product.weight, n, k);
    kernel().run(product.args());
    for (std::int64_t i = 0; i < m; ++i) {
      const float* row = product.a.data() + i * product.a_width;
      double largest = 0;
      for (std::int64_t l = 0; l < k; ++l) largest = std::max(largest, std::fabs(static_cast<double>(row[l])));
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = static_cast<double>(product.bias[count_of(j, 1)]), bound = 1e-6;
        for (std::int64_t l = 0; l < k; ++l) {
          const double weight = static_cast<double>(product.weight[count_of(j * k + l, 1)]),
                       error = bounds[count_of(j * k + l, 1)];
          sum += static_cast<double>(row[l]) * weight;
          bound += std::fabs(static_cast<double>(row[l])) * error + (std::fabs(weight) + error) * largest / 253;
        }
        ASSERT_NEAR(product.c[count_of(i * product.c_width + j, 1)], sum, bound)
            << "K " << k << " row " << i << " column " << j;
      }
    }
  }
}

TEST_P(GemmProductsTest, BitsDependNeitherOnRowsNorOnColumns) {
  const std::int64_t width = kernel().panel_width, m = 70, n = 3 * width + 2, k = 300;
  WeightsProduct product(kernels(), m, n, k, 0, 8);
  GemmF32Args args = product.args();
  args.activation = Activation::gelu_erf;
  kernel().run(args);
  const std::vector<float> whole(product.c.data(), product.c.data() + product.c.size());
  for (const std::int64_t count : {1, 2, 3, 7, 9, 65}) {
    for (std::int64_t begin = 0; begin < n; begin += width) {
      for (std::size_t i = 0; i < product.c.size(); ++i) product.c[i] = WeightsProduct::untouched;
      GemmF32Args part = args;
      part.a += 2 * product.a_width;
      part.c += 2 * product.c_width;
      part.m = count;
      part.n_begin = begin;
      part.n_end = std::min(begin + width, n);
      kernel().run(part);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          const bool inside = i >= 2 && i < 2 + count && j >= begin && j < part.n_end;
          const std::size_t index = count_of(i * product.c_width + j, 1);
          ASSERT_EQ(bits_of(product.c[index]), bits_of(inside ? whole[index] : WeightsProduct::untouched)) << i << " " << j;
        }
      }
    }
  }
}

TEST_P(GemmProductsTest, RowsOfEverySizeAndWhatIsNotFinite) {
  const std::int64_t m = 9, n = kernel().panel_width + 1, k = 50;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float size : {0.0f, 1e-42f, 1e-31f, 1e-29f, 1e30f, infinity, nan}) {
    WeightsProduct product(kernels(), m, n, k, 0, 9);
    const GemmF32Args args = product.args();
    kernel().run(args);
    const std::vector<float> before(product.c.data(), product.c.data() + product.c.size());
    for (std::int64_t l = 0; l < k; ++l) {
      float& number = product.a[count_of(4 * product.a_width + l, 1)];
      number = std::isfinite(size) ? number * size : l == k - 1 ? size : number;
    }
    kernel().run(args);
    double largest = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i) {
        const std::size_t index = count_of(i * product.c_width + j, 1);
        if (i != 4) {
          ASSERT_EQ(bits_of(product.c[index]), bits_of(before[index])) << size << " " << i << " " << j;
        } else if (!std::isfinite(size)) {
          ASSERT_TRUE(std::isnan(product.c[index])) << size << " " << j;
        } else {
          largest = std::max(largest, std::fabs(static_cast<double>(product.c[index] - product.bias[count_of(j, 1)])));
        }
      }
    }
    if (std::isfinite(size) && size < 1.0f) {
      ASSERT_NEAR(largest, 0.0, 1e-6) << size;
    } else if (std::isfinite(size)) {
      ASSERT_TRUE(largest > 1e28 && largest < 1e31) << largest;
    }
  }
}

}  // namespace polyhead::test
