// gemm_f32 on emulated tiles, with the vectors of one instruction set: all that a kernel is tested for, what is special about
// pieces, and the layers' use of it. A test file says which vectors by HWY_BASELINE_TARGETS.
#pragma once

#define HWY_COMPILE_ONLY_STATIC
#include "simd/x86/gemm_tiles-inl.h"
#include "simd/x86/tiles_emulated-inl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "graph/task_graph.hpp"
#include "kernels/gemm_kernel_suite.hpp"
#include "layer/linear.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

namespace target = simd::HWY_NAMESPACE;

const simd::GemmKernel emulated = target::TileGemmKernel<target::EmulatedTiles, 3>("gemm_f32_amx_emulated");

constexpr Isa vectors = HWY_TARGET == HWY_AVX2 ? Isa::avx2 : Isa::avx512;
constexpr float infinity = std::numeric_limits<float>::infinity(), huge = std::numeric_limits<float>::max();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

bool runs_here() {
  const std::vector<Isa> isas = available_isas();
  return std::find(isas.begin(), isas.end(), vectors) != isas.end();
}

std::vector<GemmKernelCase> cases() {
  if (!runs_here()) return {};
  return {{"emulated", &emulated, dispatch::kernel_table(vectors).activation_f32, true, piece_roundings}};
}
INSTANTIATE_TEST_SUITE_P(Tiles, GemmKernelTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmKernelTest);

// One chain of multiply-adds in ascending order, from the bias on: what elements that pieces cannot serve are.
const GemmKernel& plain() {
  return *dispatch::kernel_table(vectors).gemm_f32;
}

class GemmPiecesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runs_here()) GTEST_SKIP() << "this machine lacks " << name(vectors);
  }
  std::mt19937 generator{13};
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  }
};

using Change = std::function<void(Product&)>;

// A product by a kernel, with operands changed before W is packed.
std::vector<float> result_of(const GemmKernel& kernel, std::int64_t m, std::int64_t n, std::int64_t k, std::uint32_t seed,
                             const Change& change) {
  Product product(kernel, m, n, k, 0, seed);
  change(product);
  product.pack(kernel);
  kernel.run(product.args());
  return {product.c.data(), product.c.data() + product.c.size()};
}

TEST_F(GemmPiecesTest, SizesAroundTileEdges) {
  const std::vector<std::int64_t> edges = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129};
  const auto edge = [&] { return edges[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(edges.size()) - 1))]; };
  const auto check = [&](std::int64_t m, std::int64_t n, std::int64_t k, std::uint32_t seed) {
    Product product(emulated, m, n, k, static_cast<std::int64_t>(seed % 3), seed);
    GemmF32Args args = product.args();
    if (seed % 2) args.bias = nullptr;
    emulated.run(args);
    expect_close(product, seed % 2 == 0, piece_roundings);
  };
  std::uint32_t seed = 100;
  for (const std::int64_t size : edges) {
    check(size, 33, 40, ++seed);
    check(20, size, 40, ++seed);
    check(20, 33, size, ++seed);
  }
  for (int i = 0; i < 150; ++i) check(edge(), edge(), edge(), ++seed);
  // Around the groups of rows, columns and k that are taken at once.
  for (const std::int64_t n : around({256, 512})) check(3, n, 35, ++seed);
  for (const std::int64_t k : around({256, 512})) {
    check(70, 20, k, ++seed);
    check(20, 20, k, ++seed);  // one tile product after another with the same results
  }
  check(200, 600, 700, ++seed);
}

// Strict f32 may be served through pieces only where that is no less exact than plain multiply-adds.
TEST_F(GemmPiecesTest, ErrorIsAtMostThatOfPlainMultiplyAdds) {
  for (const std::int64_t k : {16, 64, 384, 1500}) {
    double ours = 0, of_plain = 0;
    for (std::uint32_t seed = 0; seed < 2; ++seed) {
      const std::int64_t m = 40, n = 70;
      Product product(emulated, m, n, k, 0, 200 + 10 * seed);
      const Change nothing = [](Product&) {};
      const std::vector<float> pieces = result_of(emulated, m, n, k, 200 + 10 * seed, nothing),
                               chains = result_of(plain(), m, n, k, 200 + 10 * seed, nothing);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          const double right = product.exact(i, j, true).value;
          const std::size_t at = static_cast<std::size_t>(i * n + j);
          ours += (pieces[at] - right) * (pieces[at] - right);
          of_plain += (chains[at] - right) * (chains[at] - right);
        }
      }
    }
    EXPECT_LE(ours, of_plain) << "K " << k;
    RecordProperty("rms_of_plain_at_k_" + std::to_string(k), std::to_string(std::sqrt(ours / of_plain)));
  }
}

// Numbers of all sizes within a row or column: what pieces below 2^-126 lack is nothing beside the largest product.
TEST_F(GemmPiecesTest, ExponentsOfAllSizes) {
  for (const int spread : {10, 40, 90}) {
    for (const int shift : {-30, 0, 40}) {
      const std::int64_t m = 35, n = 40, k = 70;
      Product product(emulated, m, n, k, 0, 300);
      const auto spread_out = [&](Guarded<float>& values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          // Exponents up to `shift`: one number in each row and column has it.
          const std::size_t row = i / static_cast<std::size_t>(k), column = i % static_cast<std::size_t>(k);
          const int below = row % static_cast<std::size_t>(k) == column ? 0 : static_cast<int>(pick(0, spread));
          values[i] = std::ldexp(0.5f + std::fabs(values[i]) / 2, shift - below) * (values[i] < 0 ? -1.0f : 1.0f);
        }
      };
      spread_out(product.a);
      spread_out(product.weight);
      product.pack(emulated);
      GemmF32Args args = product.args();
      args.bias = nullptr;
      emulated.run(args);
      const double largest_product = std::ldexp(1.0, 2 * shift);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          const Product::Exact right = product.exact(i, j, false);
          const double bound = std::ldexp(right.magnitude, -24) * (2 + std::sqrt(static_cast<double>(k))) +
                               std::ldexp(largest_product, -42) * static_cast<double>(k);
          ASSERT_LE(std::fabs(product.result(i, j) - right.value), bound)
              << "spread " << spread << ", shift " << shift << ", row " << i << ", column " << j;
        }
      }
    }
  }
}

// A row or column that pieces cannot stand for is one chain of multiply-adds each, its neighbours have the bits that they have
// without it.
TEST_F(GemmPiecesTest, RowsAndColumnsOutOfRangeArePlain) {
  struct Case {
    float value;
    bool apart;
  };
  const std::int64_t m = 70, n = 75, k = 300, row = 41, column = 66;
  const Change nothing = [](Product&) {};
  const std::vector<float> clean = result_of(emulated, m, n, k, 400, nothing);
  for (const Case& c : std::vector<Case>{{1e16f, true},
                                         {-huge, true},
                                         {not_a_number, true},
                                         {infinity, true},
                                         {-infinity, true},
                                         {1e14f, false},
                                         {1e-30f, false},
                                         {1e-42f, false}}) {
    for (const int kind : {0, 1, 2}) {  // in A, in W, in both
      const bool in_a = kind != 1, in_w = kind != 0;
      const Change change = [&](Product& product) {
        if (in_a) product.a[static_cast<std::size_t>(row * k + 277)] = c.value;
        if (in_w) product.weight[static_cast<std::size_t>(column * k + 130)] = c.value;
      };
      const std::vector<float> ours = result_of(emulated, m, n, k, 400, change),
                               chains = result_of(plain(), m, n, k, 400, change);
      std::int64_t differing = 0;
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          const std::size_t at = static_cast<std::size_t>(i * n + j);
          const bool reached = (in_a && i == row) || (in_w && j == column);
          const std::string where = std::to_string(c.value) + ", kind " + std::to_string(kind) + ", row " + std::to_string(i) +
                                    ", column " + std::to_string(j);
          if (!reached) {
            ASSERT_EQ(bits_of(ours[at]), bits_of(clean[at])) << where;
          } else if (c.apart && std::isnan(chains[at])) {
            ASSERT_TRUE(std::isnan(ours[at])) << where;
          } else if (c.apart) {
            ASSERT_EQ(bits_of(ours[at]), bits_of(chains[at])) << where;
          } else {
            differing += bits_of(ours[at]) != bits_of(chains[at]);
          }
        }
      }
      EXPECT_EQ(differing > 0, !c.apart) << c.value << ", kind " << kind << ": by multiply-adds or not";
    }
  }
}

// Whole rows and columns of tiny, huge and no numbers, many of them at once, whatever rows and columns are asked for.
TEST_F(GemmPiecesTest, ManyRowsAndColumnsOutOfRange) {
  const std::int64_t m = 70, n = 300, k = 65;
  const Change change = [&](Product& product) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t d = 0; d < k; ++d) {
        float& a = product.a[static_cast<std::size_t>(i * k + d)];
        if (i % 5 == 1) a = std::ldexp(a, -50);
        if (i % 5 == 2) a = std::ldexp(a, 60);
        if (i % 11 == 3) a = 0.0f;
      }
    }
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t d = 0; d < k; ++d) {
        float& w = product.weight[static_cast<std::size_t>(j * k + d)];
        if (j % 7 == 1) w = std::ldexp(w, -60);
        if (j % 7 == 2) w = std::ldexp(w, 55);
        if (j % 13 == 3) w = 0.0f;
      }
    }
  };
  Product product(emulated, m, n, k, 0, 500);
  change(product);
  product.pack(emulated);
  emulated.run(product.args());
  expect_close(product, true, piece_roundings);
  const std::vector<float> whole(product.c.data(), product.c.data() + product.c.size());
  const std::vector<float> chains = result_of(plain(), m, n, k, 500, change);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const bool row_apart = (i % 5 == 1 || i % 5 == 2) && i % 11 != 3,
                 column_apart = (j % 7 == 1 || j % 7 == 2) && j % 13 != 3;
      const std::size_t at = static_cast<std::size_t>(i * n + j);
      if (row_apart || column_apart) {
        ASSERT_EQ(bits_of(whole[at]), bits_of(chains[at])) << "row " << i << ", column " << j;
      }
    }
  }
  for (const std::int64_t rows : {1, 7, 33}) {
    for (const std::int64_t columns : {32, 96, 288}) {
      for (std::size_t i = 0; i < product.c.size(); ++i) product.c[i] = Product::untouched;
      for (std::int64_t i = 0; i < m; i += rows) {
        for (std::int64_t j = 0; j < n; j += columns) {
          GemmF32Args part = product.args();
          part.a += i * k;
          part.c += i * n;
          part.m = std::min(rows, m - i);
          part.n_begin = j;
          part.n_end = std::min(j + columns, n);
          emulated.run(part);
        }
      }
      for (std::size_t i = 0; i < whole.size(); ++i) {
        ASSERT_EQ(bits_of(product.c[i]), bits_of(whole[i])) << rows << " rows and " << columns << " columns at a time, " << i;
      }
    }
  }
}

// As the layers use it: several weights stacked, columns shared out to threads, the residual in place.
TEST_F(GemmPiecesTest, ServesLinear) {
  const std::int64_t m = 50, k = 130;
  const std::int64_t features[] = {40, 33, 290};
  std::int64_t n = 0;
  for (const std::int64_t count : features) n += count;
  Product whole(emulated, m, n, k, 0, 600);
  GemmF32Args args = whole.args();
  args.activation = Activation::gelu_erf;
  args.residual = whole.residual.data();
  args.residual_stride = n * kFloat;
  emulated.run(args);

  std::vector<layer::Linear::Part> parts;
  std::int64_t first = 0;
  for (const std::int64_t count : features) {
    const std::int64_t matrix[] = {count, k}, vector[] = {count};
    parts.push_back({TensorView(whole.weight.data() + first * k, DType::f32, 2, matrix),
                     TensorView(whole.bias.data() + first, DType::f32, 1, vector)});
    first += count;
  }
  layer::Linear linear;
  const platform::AlignedBuffer packed = layer::pack_together(emulated, {{&linear, parts}});
  RuntimeOptions options;
  options.threads = 3;
  const std::shared_ptr<graph::Scheduler> scheduler = graph::Scheduler::create(options);
  for (graph::Scheduler* const used : {static_cast<graph::Scheduler*>(nullptr), scheduler.get()}) {
    std::vector<float> y(whole.residual.data(), whole.residual.data() + whole.residual.size());
    layer::Linear::Rows rows;
    rows.x = whole.a.data();
    rows.x_stride = k * kFloat;
    rows.y = y.data();
    rows.y_stride = rows.residual_stride = n * kFloat;
    rows.residual = y.data();
    rows.count = m;
    linear.run(rows, Activation::gelu_erf, used);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(bits_of(y[i]), bits_of(whole.c[i])) << (used ? "shared, " : "") << i;
  }
}

}  // namespace
}  // namespace polyhead::test
