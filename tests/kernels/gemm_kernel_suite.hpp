// What every gemm_f32 is tested for: its results against float64, and the promises that its contract makes about bits and
// bytes. A test file instantiates GemmKernelTest with the kernels it is about.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/guarded.hpp"
#include "simd/contract/gemm.hpp"
#include "simd/contract/rowwise.hpp"

namespace polyhead::test {

using simd::Activation;
using simd::GemmF32Args;
using simd::GemmKernel;
using simd::PackF32Args;

constexpr std::int64_t kFloat = sizeof(float);

// Roundings of an element that sees few k, all one way: of a chain of multiply-adds, of a product in pieces and the bias.
constexpr double chain_roundings = 2, piece_roundings = 5;

struct GemmKernelCase {
  std::string name;
  const simd::GemmKernel* kernel;
  const simd::ActivationKernel* activation;
  bool sets_rounding;  // whatever the caller's is
  double few_roundings = chain_roundings;
};

class GemmKernelTest : public ::testing::TestWithParam<GemmKernelCase> {
 protected:
  const GemmKernel& kernel() const { return *GetParam().kernel; }
};

inline std::string describe(std::int64_t m, std::int64_t n, std::int64_t k) {
  return "M " + std::to_string(m) + " N " + std::to_string(n) + " K " + std::to_string(k);
}

// Operands of one product, in guarded memory, rows of A and C with `gap` floats between them.
struct Product {
  Product(const GemmKernel& kernel, std::int64_t m_, std::int64_t n_, std::int64_t k_, std::int64_t gap, std::uint32_t seed)
      : m(m_),
        n(n_),
        k(k_),
        a_width(k_ + gap),
        c_width(n_ + gap),
        a(extent(m_, k_, a_width)),
        weight(static_cast<std::size_t>(n_ * k_)),
        bias(static_cast<std::size_t>(n_)),
        residual(extent(m_, n_, c_width)),
        c(extent(m_, n_, c_width)),
        packed(kernel.packed_bytes(n_, k_) / sizeof(float), 64) {
    a.fill_random(seed);
    weight.fill_random(seed + 1);
    bias.fill_random(seed + 2);
    residual.fill_random(seed + 3);
    for (std::size_t i = 0; i < c.size(); ++i) c[i] = untouched;
    pack(kernel);
  }

  void pack(const GemmKernel& kernel) {
    PackF32Args args;
    args.weight = weight.data();
    args.n_stride = k * kFloat;
    args.k_stride = kFloat;
    args.n = n;
    args.k = k;
    args.packed = packed.data();
    kernel.pack(args);
  }

  static std::size_t extent(std::int64_t rows, std::int64_t columns, std::int64_t width) {
    return static_cast<std::size_t>(rows == 0 ? 0 : (rows - 1) * width + columns);
  }

  GemmF32Args args() {
    GemmF32Args args;
    args.a = a.data();
    args.a_stride = a_width * kFloat;
    args.packed = packed.data();
    args.bias = bias.data();
    args.c = c.data();
    args.c_stride = c_width * kFloat;
    args.m = m;
    args.n = n;
    args.k = k;
    args.n_end = n;
    return args;
  }

  // An element of A W' (+ bias) in float64, and the sum of its terms' magnitudes.
  struct Exact {
    double value, magnitude;
  };
  Exact exact(std::int64_t row, std::int64_t column, bool with_bias) const {
    Exact sum{with_bias ? static_cast<double>(bias[static_cast<std::size_t>(column)]) : 0.0, 0.0};
    sum.magnitude = std::fabs(sum.value);
    for (std::int64_t i = 0; i < k; ++i) {
      const double term = static_cast<double>(a[static_cast<std::size_t>(row * a_width + i)]) *
                          static_cast<double>(weight[static_cast<std::size_t>(column * k + i)]);
      sum.value += term;
      sum.magnitude += std::fabs(term);
    }
    return sum;
  }

  float& result(std::int64_t row, std::int64_t column) { return c[static_cast<std::size_t>(row * c_width + column)]; }

  static constexpr float untouched = 12345.0f;
  std::int64_t m, n, k, a_width, c_width;
  Guarded<float> a, weight, bias, residual, c, packed;
};

// The worst element of C = A W' (+ bias) in units of its bound: half an ulp of the sum of magnitudes for each of about sqrt(K)
// roundings that do not cancel, with room for a few that all go one way when K is small.
inline void expect_close(Product& product, bool with_bias, double few_roundings) {
  double worst = 0.0;
  std::string where;
  for (std::int64_t i = 0; i < product.m; ++i) {
    for (std::int64_t j = 0; j < product.n; ++j) {
      const auto [expected, magnitude] = product.exact(i, j, with_bias);
      const double bound = std::ldexp(magnitude, -24) * (few_roundings + std::sqrt(static_cast<double>(product.k)));
      const double ratio = std::fabs(static_cast<double>(product.result(i, j)) - expected) / bound;
      if (!(ratio <= worst)) {
        worst = ratio;
        where = "row " + std::to_string(i) + " column " + std::to_string(j) + ": " + std::to_string(product.result(i, j)) +
                " instead of " + std::to_string(expected);
      }
    }
    for (std::int64_t j = product.n; j < product.c_width && i + 1 < product.m; ++j) {
      ASSERT_EQ(product.c[static_cast<std::size_t>(i * product.c_width + j)], Product::untouched)
          << "between rows " << i << " and " << i + 1;
    }
  }
  EXPECT_LE(worst, 1.0) << describe(product.m, product.n, product.k) << ", " << where;
}

inline std::vector<std::int64_t> around(std::initializer_list<std::int64_t> edges) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t edge : edges) {
    for (std::int64_t size = edge - 1; size <= edge + 1; ++size) {
      if (size >= 1) sizes.push_back(size);
    }
  }
  return sizes;
}

TEST_P(GemmKernelTest, MatchesFloat64AroundEveryTileEdge) {
  const std::int64_t width = kernel().panel_width;
  const std::int64_t tile = kernel().row_tile;
  std::uint32_t seed = 1;
  const auto check = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool with_bias) {
    Product product(kernel(), m, n, k, static_cast<std::int64_t>(seed % 3) * 5, seed);
    ++seed;
    GemmF32Args args = product.args();
    if (!with_bias) args.bias = nullptr;
    kernel().run(args);
    expect_close(product, with_bias, GetParam().few_roundings);
  };
  // Every M up to two tiles and beyond (those of a narrow panel have up to 8 rows), with an N that has whole panels, groups of
  // panels and a remainder of one or more vectors.
  for (std::int64_t m = 0; m <= 2 * std::max<std::int64_t>(tile, 8) + 2; ++m) {
    for (const std::int64_t n : {std::int64_t{1}, width - width / 3, width, 7 * width + 3}) check(m, n, 19, m % 2 == 0);
  }
  // Every N up to two panels.
  for (std::int64_t n = 1; n <= 2 * width + 1; ++n) {
    for (const std::int64_t m : {std::int64_t{1}, std::int64_t{2}, tile + 1}) check(m, n, 7, n % 2 == 0);
  }
  for (const std::int64_t n : around({4 * width, 6 * width})) check(3, n, 33, true);
  // K around the blocks of k and the packing's steps, for few rows and for several tiles.
  for (const std::int64_t k : around({2, 5, 8, 16, 32, 256, 512, 768})) {
    for (const std::int64_t m : {std::int64_t{1}, tile, 2 * tile + 1}) check(m, width + 5, k, true);
  }
  // M around blocks of rows.
  for (const std::int64_t m : around({16 * tile, 32 * tile, 48 * tile})) check(m, width + 1, 300, true);
  check(5 * tile + 1, 2 * width, 3000, false);
}

TEST_P(GemmKernelTest, BitsDependNeitherOnRowsNorOnColumns) {
  const std::int64_t width = kernel().panel_width;
  const std::int64_t tile = kernel().row_tile;
  const std::int64_t m = 3 * tile + 2;
  const std::int64_t n = 7 * width + width / 2 + 1;
  for (const std::int64_t k : {std::int64_t{5}, std::int64_t{256}, std::int64_t{700}}) {
    Product product(kernel(), m, n, k, 0, 77);
    GemmF32Args args = product.args();
    args.activation = Activation::gelu_erf;
    args.residual = product.residual.data();
    args.residual_stride = product.c_width * kFloat;
    kernel().run(args);
    const std::vector<float> whole(product.c.data(), product.c.data() + product.c.size());

    // Rows [first, first + count) alone, in columns [begin, end) alone.
    const auto check = [&](std::int64_t first, std::int64_t count, std::int64_t begin, std::int64_t end) {
      for (std::size_t i = 0; i < product.c.size(); ++i) product.c[i] = Product::untouched;
      GemmF32Args part = args;
      part.a = product.a.data() + first * product.a_width;
      part.c = product.c.data() + first * product.c_width;
      part.residual = product.residual.data() + first * product.c_width;
      part.m = count;
      part.n_begin = begin;
      part.n_end = end;
      kernel().run(part);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          const bool inside = i >= first && i < first + count && j >= begin && j < end;
          const float expected = inside ? whole[static_cast<std::size_t>(i * n + j)] : Product::untouched;
          ASSERT_EQ(bits_of(product.result(i, j)), bits_of(expected))
              << describe(m, n, k) << " row " << i << " column " << j << ", rows [" << first << ", " << first + count
              << "), columns [" << begin << ", " << end << ")";
        }
      }
    };
    for (std::int64_t count = 1; count <= m; ++count) check((m - count) / 2, count, 0, n);
    for (std::int64_t begin = 0; begin < n; begin += width) {
      check(1, 1, begin, n);
      check(0, 2 * tile + 1, begin, std::min(begin + width, n));
      check(2, 3, begin, std::min(begin + 3 * width, n));
    }
    check(0, m, width, width);  // no columns
    check(0, 0, 0, n);
  }
}

TEST_P(GemmKernelTest, FusedEpilogueHasTheBitsOfSeparateSteps) {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
    for (const std::int64_t m : {1, 4, 29}) {
      for (const std::int64_t k : {3, 520}) {
        const std::int64_t n = 2 * kernel().panel_width + 3;
        Product product(kernel(), m, n, k, 2, 5);
        GemmF32Args plain = product.args();
        kernel().run(plain);
        std::vector<float> expected(static_cast<std::size_t>(m * n));
        for (std::int64_t i = 0; i < m; ++i) {
          float* row = expected.data() + i * n;
          simd::ActivationF32Args separate;
          separate.x = &product.result(i, 0);
          separate.y = row;
          separate.count = n;
          separate.activation = activation;
          GetParam().activation->run(separate);
          for (std::int64_t j = 0; j < n; ++j) row[j] += product.residual[static_cast<std::size_t>(i * product.c_width + j)];
        }
        const auto expect_equal = [&](const char* what) {
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
              ASSERT_EQ(bits_of(product.result(i, j)), bits_of(expected[static_cast<std::size_t>(i * n + j)]))
                  << what << ", activation " << static_cast<int>(activation) << ", " << describe(m, n, k) << " row " << i
                  << " column " << j;
            }
          }
        };
        GemmF32Args fused = product.args();
        fused.activation = activation;
        fused.residual = product.residual.data();
        fused.residual_stride = product.c_width * kFloat;
        kernel().run(fused);
        expect_equal("separate residual");

        for (std::size_t i = 0; i < product.c.size(); ++i) product.c[i] = product.residual[i];
        fused.residual = fused.c;
        kernel().run(fused);
        expect_equal("residual is C");
      }
    }
  }
}

TEST_P(GemmKernelTest, PacksFromAnyStrides) {
  for (const std::int64_t n : {1, 5, 23, 64, 97}) {
    for (const std::int64_t k : {1, 3, 4, 18, 67}) {
      Guarded<float> weight(static_cast<std::size_t>(n * k));
      weight.fill_random(3);
      const std::size_t floats = kernel().packed_bytes(n, k) / sizeof(float);
      Guarded<float> expected(floats, 64), transposed_packed(floats, 64), strided_packed(floats, 64);
      Guarded<float> transposed(static_cast<std::size_t>(n * k)), strided(static_cast<std::size_t>((n * k - 1) * 3 + 1));
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < k; ++j) {
          transposed[static_cast<std::size_t>(j * n + i)] = weight[static_cast<std::size_t>(i * k + j)];
          strided[static_cast<std::size_t>((i * k + j) * 3)] = weight[static_cast<std::size_t>(i * k + j)];
        }
      }
      const auto pack = [&](const float* from, std::int64_t n_stride, std::int64_t k_stride, float* packed) {
        PackF32Args args;
        args.weight = from;
        args.n_stride = n_stride * kFloat;
        args.k_stride = k_stride * kFloat;
        args.n = n;
        args.k = k;
        args.packed = packed;
        kernel().pack(args);
      };
      pack(weight.data(), k, 1, expected.data());
      pack(transposed.data(), 1, n, transposed_packed.data());
      pack(strided.data(), 3 * k, 3, strided_packed.data());
      ASSERT_EQ(std::memcmp(expected.data(), transposed_packed.data(), floats * sizeof(float)), 0) << describe(0, n, k);
      ASSERT_EQ(std::memcmp(expected.data(), strided_packed.data(), floats * sizeof(float)), 0) << describe(0, n, k);
    }
  }
}

TEST_P(GemmKernelTest, SumsOfOnesAreExact) {
  for (const std::int64_t k : {256, 257, 1024, 4096}) {
    for (const std::int64_t m : {1, 5, 20}) {
      Product product(kernel(), m, kernel().panel_width + 1, k, 0, 1);
      for (std::size_t i = 0; i < product.a.size(); ++i) product.a[i] = 1.0f;
      for (std::size_t i = 0; i < product.weight.size(); ++i) product.weight[i] = 1.0f;
      product.pack(kernel());
      GemmF32Args args = product.args();
      args.bias = nullptr;
      kernel().run(args);
      for (std::size_t i = 0; i < product.c.size(); ++i)
        ASSERT_EQ(product.c[i], static_cast<float>(k)) << "K " << k << " M " << m;
    }
  }
}

TEST_P(GemmKernelTest, RowsOfAnyStride) {
  const std::int64_t m = 9, n = 21, k = 40;
  Product product(kernel(), m, n, k, 0, 8);
  GemmF32Args args = product.args();
  kernel().run(args);
  const std::vector<float> expected(product.c.data(), product.c.data() + product.c.size());

  args.a = product.a.data() + (m - 1) * k;  // upside down
  args.a_stride = -k * kFloat;
  args.c = product.c.data() + (m - 1) * n;
  args.c_stride = -n * kFloat;
  kernel().run(args);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(bits_of(product.c[i]), bits_of(expected[i])) << i;

  args = product.args();
  args.a_stride = 0;  // one row for all
  kernel().run(args);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      ASSERT_EQ(bits_of(product.result(i, j)), bits_of(expected[static_cast<std::size_t>(j)])) << i << " " << j;
    }
  }
}

TEST_P(GemmKernelTest, NaNStaysInItsRow) {
  Product product(kernel(), 14, 40, 30, 0, 9);
  GemmF32Args args = product.args();
  kernel().run(args);
  const std::vector<float> expected(product.c.data(), product.c.data() + product.c.size());
  product.a[static_cast<std::size_t>(5 * product.a_width + 17)] = std::numeric_limits<float>::quiet_NaN();
  kernel().run(args);
  for (std::int64_t i = 0; i < product.m; ++i) {
    for (std::int64_t j = 0; j < product.n; ++j) {
      if (i == 5) {
        ASSERT_TRUE(std::isnan(product.result(i, j))) << j;
      } else {
        ASSERT_EQ(bits_of(product.result(i, j)), bits_of(expected[static_cast<std::size_t>(i * product.n + j)]))
            << i << " " << j;
      }
    }
  }
}

TEST_P(GemmKernelTest, CallersFloatingPointEnvironmentIsKept) {
  Product product(kernel(), 8, 32, 50, 0, 10);
  GemmF32Args args = product.args();
  kernel().run(args);
  const std::vector<float> expected(product.c.data(), product.c.data() + product.c.size());
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  std::feclearexcept(FE_ALL_EXCEPT);
  kernel().run(args);
  const int rounding = std::fegetround();
  volatile float smallest = std::numeric_limits<float>::min();
  const bool keeps_denormals = smallest / 2.0f > 0.0f;
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(rounding, FE_UPWARD);
  EXPECT_TRUE(keeps_denormals);
  if (GetParam().sets_rounding) {  // scalar code takes the caller's rounding
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(bits_of(product.c[i]), bits_of(expected[i])) << i;
  }
}

}  // namespace polyhead::test
