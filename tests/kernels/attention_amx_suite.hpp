// attention_f32 (three pieces), fast_attention_f32 (two), attention_bf16 (one) and attention_f16 (two) on emulated tiles, with
// the vectors of one instruction set: all that a kernel is tested for, and what is special about pieces. Where the machine has
// tiles, the emulation is compared with them bit for bit. A test file says which vectors by HWY_BASELINE_TARGETS.
#pragma once

#define HWY_COMPILE_ONLY_STATIC
#include "simd/x86/attention_tiles-inl.h"
#include "simd/x86/tiles_emulated-inl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "kernels/attention_elements_suite.hpp"
#include "kernels/attention_kernel_suite.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

namespace target = simd::HWY_NAMESPACE;
using simd::AttentionF32Args;

template <class Operands>
constexpr simd::AttentionKernel emulated_kernel(const char* name) {
  return target::TileKernel<target::EmulatedTiles, Operands>(name);
}
const simd::AttentionKernel emulated_strict = emulated_kernel<target::F32Pieces<3>>("attention_f32_amx_emulated");
const simd::AttentionKernel emulated_fast = emulated_kernel<target::F32Pieces<2>>("fast_attention_f32_amx_emulated");
[[maybe_unused]] const simd::AttentionKernel emulated_bf16 = emulated_kernel<target::Bf16Words>("attention_bf16_amx_emulated");
[[maybe_unused]] const simd::AttentionKernel emulated_f16 = emulated_kernel<target::F16Pieces>("attention_f16_amx_emulated");

constexpr Isa vectors = HWY_TARGET == HWY_AVX2 ? Isa::avx2 : Isa::avx512;

bool runs_here() {
  const std::vector<Isa> isas = available_isas();
  return std::find(isas.begin(), isas.end(), vectors) != isas.end();
}
// The kernel that serves the rows that pieces cannot.
const simd::AttentionKernel& plain() {
  return *dispatch::kernel_table(vectors).attention_f32;
}

std::vector<KernelCase> cases() {
  if (!runs_here()) return {};
  const simd::MergeKernel* const merge = dispatch::kernel_table(vectors).merge_f32;
  std::vector<KernelCase> all = {{"emulated", &emulated_strict, merge, true, false},
                                 {"emulated_fast", &emulated_fast, merge, true, false, Precision::fast}};
#if defined(POLYHEAD_HAVE_BF16)
  all.push_back(
      {"emulated_bf16", &emulated_bf16, dispatch::kernel_table(vectors).merge_bf16, true, false, Precision::strict, 0x1p-8});
#endif
#if defined(POLYHEAD_HAVE_F16)
  all.push_back(
      {"emulated_f16", &emulated_f16, dispatch::kernel_table(vectors).merge_f16, true, false, Precision::strict, 0x1p-15});
#endif
  return all;
}
INSTANTIATE_TEST_SUITE_P(Tiles, AttentionKernelTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionKernelTest);

std::vector<ElementCase> element_cases() {
  std::vector<ElementCase> all;
  for (const KernelCase& c : cases()) {
    if (c.kernel->element == simd::Element::f32) continue;
    all.push_back({c.name, c.kernel->element == simd::Element::bf16 ? DType::bf16 : DType::f16, c.kernel, c.merge});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Tiles, AttentionElementsTest, ::testing::ValuesIn(element_cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionElementsTest);

class PiecesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runs_here()) GTEST_SKIP() << "this machine lacks " << name(vectors);
  }
  std::mt19937 generator{11};
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  }
};

// Runs with each number of pieces.
class PieceAttentionTest : public PiecesTest, public ::testing::WithParamInterface<KernelCase> {
 protected:
  const simd::AttentionKernel& emulated = *GetParam().kernel;

  bool is_bf16() const { return emulated.element == simd::Element::bf16; }
  bool is_f16() const { return emulated.element == simd::Element::f16; }
  const simd::AttentionKernel& plain() const {
#if defined(POLYHEAD_HAVE_BF16)
    if (is_bf16()) return *dispatch::kernel_table(vectors).attention_bf16;
#endif
#if defined(POLYHEAD_HAVE_F16)
    if (is_f16()) return *dispatch::kernel_table(vectors).attention_f16;
#endif
    return test::plain();
  }
  const simd::MergeKernel& merge() const { return *GetParam().merge; }
  void expect_right(AttentionProblem& problem, const AttentionProblem::Result& result, const std::string& what) const {
    problem.expect_right(result, what, GetParam().precision, GetParam().weight_rounding);
  }
};
INSTANTIATE_TEST_SUITE_P(Tiles, PieceAttentionTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PieceAttentionTest);

// ---- tile products

struct TileBytes {
  alignas(64) std::uint16_t a[16][32], b[16][32];
  alignas(64) float c[16][16];
};

float from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
float flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// The manual's text, one number at a time, in the test's own floating-point environment.
void multiply_by_the_manual(TileBytes& tiles) {
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0;
      for (int k = 0; k < 16; ++k) {
        even = flushed(std::fma(flushed(from_bf16(tiles.a[m][2 * k])), flushed(from_bf16(tiles.b[k][2 * n])), even));
        odd = flushed(std::fma(flushed(from_bf16(tiles.a[m][2 * k + 1])), flushed(from_bf16(tiles.b[k][2 * n + 1])), odd));
      }
      tiles.c[m][n] = flushed(flushed(tiles.c[m][n]) + flushed(even + odd));
    }
  }
}

template <class Tiles>
HWY_NOINLINE HWY_ATTR void multiply_unguarded(TileBytes& tiles) {
  Tiles policy;
  policy.Configure();
  policy.template Load<1>(tiles.c, 64);
  policy.template Load<4>(tiles.a, 64);
  policy.template LoadPassing<7>(tiles.b, 64);
  policy.template Dot<1, 4, 7>();
  policy.template Store<1>(tiles.c, 64);
  policy.Release();
}
template <class Tiles>
void multiply(TileBytes& tiles) {
  const simd::FlushDenormals flush;
  multiply_unguarded<Tiles>(tiles);
}

// Exponents within `spread` of 0 (so that sums round at every step), and one number in eight near the edge of the denormals.
TileBytes random_tiles(std::mt19937& generator, int spread, bool tiny) {
  TileBytes tiles;
  const auto bf16 = [&] {
    int exponent = 127 + static_cast<int>(generator() % static_cast<unsigned>(2 * spread + 1)) - spread;
    if (tiny && generator() % 8 == 0) exponent = static_cast<int>(generator() % 3);
    return static_cast<std::uint16_t>((generator() & 0x807F) | static_cast<unsigned>(exponent) << 7);
  };
  for (auto* tile : {tiles.a, tiles.b}) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 32; ++j) tile[i][j] = bf16();
    }
  }
  for (auto& row : tiles.c) {
    for (float& x : row) x = from_bf16(bf16()) * 1.2345f;
  }
  return tiles;
}

template <class Function, class Other>
void expect_same_products(Function one, Other other, const char* what) {
  std::mt19937 generator(5);
  for (int round = 0; round < 200; ++round) {
    TileBytes x = random_tiles(generator, round % 2 ? 3 : 60, round % 4 > 1), y = x;
    one(x);
    other(y);
    for (int i = 0; i < 256; ++i) {
      ASSERT_EQ(bits_of(x.c[i / 16][i % 16]), bits_of(y.c[i / 16][i % 16])) << what << ", round " << round << ", element " << i;
    }
  }
}

TEST_F(PiecesTest, EmulatedProductsAreThoseOfTheManual) {
  expect_same_products(multiply<target::EmulatedTiles>, multiply_by_the_manual, "emulated and by the manual");
}

TEST_F(PiecesTest, EmulatedProductsAreThoseOfTheMachine) {
  if (!dispatch::cpu_features().amx_bf16 || !dispatch::request_tile_permission()) GTEST_SKIP() << "this machine lacks AMX";
  expect_same_products(multiply<target::EmulatedTiles>, multiply<target::HardwareTiles>, "emulated and by the machine");
}

// ---- pieces

// to[i]: piece i of a vector of numbers.
template <std::size_t kPieces>
HWY_NOINLINE HWY_ATTR void split(const float* from, float (*to)[16]) {
  const target::FloatTag df;
  const target::Pieces<kPieces> pieces = target::SplitIntoPieces<kPieces>(df, target::hn::LoadU(df, from));
  for (std::size_t i = 0; i < kPieces; ++i) target::hn::StoreU(target::hn::BitCast(df, pieces.piece[i]), df, to[i]);
}

TEST_F(PiecesTest, ThreePiecesAddUpExactly) {
  for (int round = 0; round < 20000; ++round) {
    float x[16] = {}, piece[3][16];  // of which a vector uses what it holds
    for (int i = 0; i < target::kFloatLanes; ++i) {
      float& value = x[i];
      const std::uint32_t bits = (static_cast<std::uint32_t>(generator()) & 0x807FFFFFu) |
                                 static_cast<std::uint32_t>(pick(27, 254)) << 23;  // 2^-100 to the largest
      std::memcpy(&value, &bits, sizeof value);
    }
    if (round == 0) x[0] = std::numeric_limits<float>::max(), x[1] = std::numeric_limits<float>::lowest(), x[2] = 0.0f;
    split<3>(x, piece);
    for (int i = 0; i < target::kFloatLanes; ++i) {
      ASSERT_EQ(static_cast<double>(piece[0][i]) + piece[1][i] + piece[2][i], static_cast<double>(x[i])) << x[i];
      for (const auto& of : piece) ASSERT_EQ(bits_of(of[i]) & 0xFFFFu, 0u) << x[i];
    }
  }
}

// The two facts that the bound of Precision::fast is made of.
TEST_F(PiecesTest, TwoPiecesLackLittle) {
  double largest_second = 0, largest_rest = 0;
  for (int round = 0; round < 20000; ++round) {
    float x[16] = {}, piece[2][16];
    for (int i = 0; i < target::kFloatLanes; ++i) {
      const std::uint32_t bits = (static_cast<std::uint32_t>(generator()) & 0x807FFFFFu) |
                                 static_cast<std::uint32_t>(pick(27, 227)) << 23;  // 2^-100 to 2^100
      std::memcpy(&x[i], &bits, sizeof bits);
    }
    if (round == 0) x[0] = 0.0f, x[1] = 1.0f + 0x1p-8f - 0x1p-17f, x[2] = 1.0f + 0x1p-8f;
    split<2>(x, piece);
    for (int i = 0; i < target::kFloatLanes; ++i) {
      const double size = std::fabs(static_cast<double>(x[i]));
      const double rest = std::fabs(static_cast<double>(x[i]) - piece[0][i] - piece[1][i]);
      ASSERT_LE(std::fabs(piece[1][i]), 0x1p-8 * size) << x[i];
      ASSERT_LE(rest, 0x1p-17 * size) << x[i];
      for (const auto& of : piece) ASSERT_EQ(bits_of(of[i]) & 0xFFFFu, 0u) << x[i];
      if (size == 0) continue;
      largest_second = std::max(largest_second, std::fabs(piece[1][i]) / size);
      largest_rest = std::max(largest_rest, rest / size);
    }
  }
  EXPECT_GT(largest_second, 0.98 * 0x1p-8);
  EXPECT_GT(largest_rest, 0.95 * 0x1p-17);
}

// ---- attention

TEST_P(PieceAttentionTest, SizesAroundTileEdges) {
  const std::vector<std::int64_t> edges = {1,  2,  7,  15, 16, 17, 31, 32,  33,  47,  48, 49,
                                           63, 64, 65, 80, 95, 96, 97, 127, 128, 129, 130};
  const auto edge = [&] { return edges[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(edges.size()) - 1))]; };
  for (std::uint32_t i = 0; i < 150; ++i) {
    AttentionShape shape{edge(), pick(1, 3), edge(), edge(), edge()};
    shape.gap = pick(0, 2);
    shape.heads_outside = pick(0, 1) != 0;
    if (i % 3 == 1) shape.visible_end = shape.keys - shape.queries + 1;
    if (i % 3 == 2) shape.visible_begin = -pick(0, 70), shape.visible_end = shape.visible_begin + pick(1, 140);
    if (i % 6 == 5) shape.kept_end = pick(1, 80);
    AttentionProblem problem(shape, 3000 + i, i % 2 ? 1.0 : 4.0);
    expect_right(problem, problem.run(emulated), emulated.name);
  }
  for (const std::int64_t size : edges) {
    AttentionProblem heads({40, 1, 70, size, 131 - size}, 3200);
    expect_right(heads, heads.run(emulated), emulated.name);
    AttentionProblem keys({5, 1, size, 64, 64}, 3201);
    expect_right(keys, keys.run(emulated), emulated.name);
  }
}

// More row blocks than share a pass over the keys, more keys than are packed at once; whatever the range of rows, the same
// bits.
TEST_P(PieceAttentionTest, ManyRowsAndKeys) {
  for (const bool causal : {false, true}) {
    AttentionShape shape{150, 4, 4500, 4, 6};
    if (causal) shape.visible_end = 4351;
    AttentionProblem problem(shape, 3300, 3.0);
    const AttentionProblem::Result all = problem.run(emulated);
    expect_right(problem, all, emulated.name);
    for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 5}, {31, 98}, {500, 600}}) {
      const AttentionProblem::Result some = problem.run(emulated, begin, end);
      expect_same_bits(some.out, {all.out.begin() + begin * 6, all.out.begin() + end * 6}, "some rows");
      expect_same_bits(some.lse, {all.lse.begin() + begin, all.lse.begin() + end}, "some rows' lse");
    }
  }
  AttentionShape apart{300, 1, 900, 64, 64};  // one chunk with kept keys, hidden ones and windows of several passes
  apart.visible_begin = 540, apart.visible_end = 601, apart.kept_end = 5;
  AttentionProblem beside(apart, 3302);
  const AttentionProblem::Result all = beside.run(emulated);
  expect_right(beside, all, emulated.name);
  for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {31, 98}, {250, 300}}) {
    const AttentionProblem::Result some = beside.run(emulated, begin, end);
    expect_same_bits(some.out, {all.out.begin() + begin * 64, all.out.begin() + end * 64}, "some rows beside kept keys");
  }
  AttentionShape window{400, 1, 4500, 300, 260};  // big heads: few keys are packed at once
  window.visible_begin = 3000, window.visible_end = 3300;
  for (const std::int64_t kept : {0, 5, 700}) {  // first keys in sight too, chunks before the window
    window.kept_end = kept;
    AttentionProblem problem(window, 3301);
    expect_right(problem, problem.run(emulated), emulated.name);
  }
}

struct Error {
  double squares = 0, worst_share = 0, worst = 0;
};

// Against float64: the sum of squares, the largest error as a share of the bound, and to max|v| * (1 + the largest score).
Error error_of(AttentionProblem& problem, const simd::AttentionKernel& kernel, Precision precision = Precision::strict) {
  const AttentionProblem::Result result = problem.run(kernel);
  Error error;
  for (std::int64_t row = 0; row < problem.shape.rows(); ++row) {
    const AttentionProblem::Row want = problem.expected(row / problem.shape.group, row % problem.shape.group);
    for (std::int64_t e = 0; e < problem.shape.value_dim; ++e) {
      const double off = std::fabs(result.out[static_cast<std::size_t>(row * problem.shape.value_dim + e)] -
                                   want.out[static_cast<std::size_t>(e)]);
      error.squares += off * off;
      error.worst_share = std::max(error.worst_share, off / want.tolerance(precision));
      error.worst = std::max(error.worst, off / (want.largest_value * (1 + want.largest_score)));
    }
  }
  return error;
}

// Strict f32 may be served through pieces only where that is no less exact than plain multiply-adds. Large queries leave a row
// with one or two keys that count, so that few rows make the whole error: many are summed up.
TEST_F(PiecesTest, ErrorIsAtMostThatOfPlainMultiplyAdds) {
  for (const double query_size : {1.0, 8.0, 64.0}) {
    double ours = 0, plain_kernel = 0;
    for (const std::int64_t dim : {32, 64, 80, 128}) {
      for (std::uint32_t seed = 0; seed < (query_size > 1 ? 4u : 1u); ++seed) {
        AttentionProblem problem({96, 1, 320, dim, dim, 1 / std::sqrt(static_cast<double>(dim))}, 3400 + 10 * seed, query_size);
        const Error error = error_of(problem, emulated_strict);
        EXPECT_LE(error.worst_share, 1.0) << "D " << dim << ", q x " << query_size;
        ours += error.squares;
        plain_kernel += error_of(problem, plain()).squares;
      }
    }
    EXPECT_LE(ours, plain_kernel) << "q x " << query_size;
    RecordProperty("rms_of_plain_at_q_x_" + std::to_string(static_cast<int>(query_size)),
                   std::to_string(std::sqrt(ours / plain_kernel)));
  }
}

// What fast is good for on numbers that are not made to be hard, and that it is another kernel.
TEST_F(PiecesTest, FastErrsLittleOnRandomNumbers) {
  double worst = 0;
  for (const double query_size : {1.0, 8.0}) {
    for (const std::int64_t dim : {32, 64, 80, 128}) {
      AttentionProblem problem({96, 1, 320, dim, dim, 1 / std::sqrt(static_cast<double>(dim))}, 3450, query_size);
      const Error fast = error_of(problem, emulated_fast, Precision::fast), strict = error_of(problem, emulated_strict);
      EXPECT_GT(fast.squares, 4 * strict.squares) << "D " << dim << ", q x " << query_size;
      worst = std::max(worst, fast.worst);
    }
  }
  EXPECT_LE(worst, 2e-6);
  RecordProperty("worst", std::to_string(worst * 1e6) + "e-6");
}

// Numbers whose second piece and rest are as large as can be, so that what products lack adds up: the queries' with the same
// sign as one half of the keys', whose values are positive, and with the other sign as the other half's, whose values are
// negative. The bound holds, and cannot be much smaller.
TEST_F(PiecesTest, FastBoundHoldsForTheWorstNumbers) {
  const float up = 1.0f + 0x1p-8f - 0x1p-16f + 0x1p-17f - 0x1p-23f, down = 1.0f + 0x1p-7f - (up - 1.0f);
  double worst_share = 0;
  for (const int exponent : {-30, 0, 20}) {
    for (const std::int64_t dim : {16, 64, 200}) {
      AttentionProblem problem({40, 1, 256, dim, 20, 8.0 / static_cast<double>(dim)}, 3460);
      for (std::int64_t t = 0; t < 40; ++t) {
        for (std::int64_t d = 0; d < dim; ++d) problem.query_at(t, 0, d) = std::ldexp(up, -exponent);
      }
      for (std::int64_t s = 0; s < 256; ++s) {
        for (std::int64_t d = 0; d < dim; ++d) problem.key_at(s, d) = std::ldexp(s % 2 ? up : down, exponent);
        for (std::int64_t e = 0; e < 20; ++e) problem.value_at(s, e) = s % 2 ? up : -up;
      }
      const Error error = error_of(problem, emulated_fast, Precision::fast);
      EXPECT_LE(error.worst_share, 1.0) << "D " << dim << ", 2^" << exponent;
      worst_share = std::max(worst_share, error.worst_share);
    }
  }
  EXPECT_GE(worst_share, 0.25);
  RecordProperty("share_of_the_bound", std::to_string(worst_share));
}

// Scores that grow from key to key, cancel, or lie far apart: the shift moves in every step, up to the ends of the range.
TEST_P(PieceAttentionTest, HardScores) {
  for (const int kind : {0, 1, 2, 3, 4}) {
    for (const std::int64_t keys : {64, 300}) {
      AttentionProblem problem({37, 1, keys, 33, 17, 1.0}, 3500 + static_cast<std::uint32_t>(kind));
      for (std::int64_t s = 0; s < keys; ++s) {
        for (std::int64_t d = 0; d < 33; ++d) {
          float& k = problem.key_at(s, d);
          if (kind == 0) k = d == 0 ? 0.5f * static_cast<float>(s) : 0.01f * k;          // growing
          if (kind == 1) k = d == 0 ? -0.5f * static_cast<float>(s) : 0.01f * k;         // falling
          if (kind == 2) k = d % 2 ? -problem.key_at(s, d - 1) * 1.0000001f : k * 1e3f;  // pairs that cancel
          if (kind == 3) k *= s % 67 == 5 ? 1e4f : 1e-3f;                                // few keys far above all others
          if (kind == 4) {                                                               // exponents of all sizes
            const int exponent = static_cast<int>((s * 7 + d * 3) % 80) - 60;
            k = std::ldexp(k, is_f16() ? std::min(exponent, 14) : exponent);
          }
        }
      }
      for (std::int64_t t = 0; t < 37; ++t) {
        if (kind < 2) problem.query_at(t, 0, 0) = 1.0f;
        for (std::int64_t d = 1; kind == 2 && d < 32; d += 2) problem.query_at(t, 0, d) = problem.query_at(t, 0, d - 1);
      }
      expect_right(problem, problem.run(emulated), "kind " + std::to_string(kind));
      expect_right(problem, problem.run_split(emulated, merge(), emulated.key_block),
                   "kind " + std::to_string(kind) + ", split");
    }
  }
}

// Rows whose operands pieces cannot stand for have the plain kernel's bits, and their neighbours the bits they have without
// them.
TEST_P(PieceAttentionTest, RowsOutOfRangeAreThePlainKernels) {
  struct Case {
    char operand;
    float value;
    bool apart;  // whether pieces cannot stand for it
  };
  const float huge = std::numeric_limits<float>::max();
  for (const Case& c : std::vector<Case>{{'q', 1e16f, true},
                                         {'q', -huge, true},
                                         {'q', kNaN, true},
                                         {'q', kInfinity, true},
                                         {'q', 1e-36f, false},

                                         {'k', 1e16f, true},
                                         {'k', -huge, true},
                                         {'k', 1e-42f, false},
                                         {'k', 1e14f, false},
                                         {'k', kNaN, true},
                                         {'v', 1e31f, true},
                                         {'v', 1e29f, is_bf16()},  // beside weights that may be large
                                         {'v', 1e17f, false},
                                         {'v', huge, true},
                                         {'v', -kInfinity, true},
                                         {'v', 1e-42f, false}}) {
    // f16 holds nothing that is out of range but infinity and NaN, which larger numbers become.
    const bool apart = is_f16() ? !(std::fabs(c.value) < 65504.0f) : c.apart;
    AttentionShape shape{70, 2, 290, 40, 21, 0.125, AttentionF32Args::unbounded_begin, 221};
    AttentionProblem problem(shape, 3600);
    const AttentionProblem::Result clean = problem.run(emulated);
    const std::int64_t first_seen = c.operand == 'q' ? 2 * 29 : 2 * (260 - 220);  // the first row that it reaches
    if (c.operand == 'q') problem.query_at(29, 0, 7) = c.value;
    if (c.operand == 'k') problem.key_at(260, 11) = c.value;
    if (c.operand == 'v') problem.value_at(260, 20) = c.value;
    const AttentionProblem::Result ours = problem.run(emulated), fallback = problem.run(plain());
    const std::string what = std::string(1, c.operand) + " = " + std::to_string(c.value);
    std::int64_t differing = 0;
    for (std::int64_t row = 0; row < shape.rows(); ++row) {
      const bool reached = c.operand == 'q' ? row == first_seen : row >= first_seen;
      const auto row_of = [&](const AttentionProblem::Result& result) {
        std::vector<float> values(result.out.begin() + row * 21, result.out.begin() + (row + 1) * 21);
        values.push_back(result.lse[static_cast<std::size_t>(row)]);
        return values;
      };
      if (!reached) {
        expect_same_bits(row_of(ours), row_of(clean), what + ", row " + std::to_string(row));
      } else if (apart) {
        expect_same_bits(row_of(ours), row_of(fallback), what + ", row " + std::to_string(row));
      } else {
        for (std::size_t i = 0; i < 22; ++i) differing += bits_of(row_of(ours)[i]) != bits_of(row_of(fallback)[i]);
      }
    }
    if (apart || !is_f16() || c.operand != 'q') {  // a single row of f16 may well come out the same
      EXPECT_EQ(differing > 0, !apart) << what << ": by the plain kernel or not";
    }
    if (std::isfinite(c.value) && std::fabs(c.value) < 1e20f && !(is_f16() && apart)) expect_right(problem, ours, what);
    // The same rows in another company.
    for (const std::int64_t size : {1, 13, 40}) {
      std::vector<float> out;
      for (std::int64_t row = 0; row < shape.rows(); row += size) {
        const AttentionProblem::Result some = problem.run(emulated, row, std::min(row + size, shape.rows()));
        out.insert(out.end(), some.out.begin(), some.out.end());
      }
      expect_same_bits(out, ours.out, what + ", in ranges of " + std::to_string(size));
    }
  }
}

// A key is judged by its largest value: tiny ones beside it lose nothing that counts, a key of tiny values alone would (not so
// of bf16, which has one piece to lose).
TEST_P(PieceAttentionTest, TinyValues) {
  for (const int exponent : {-40, -58, -62, -90, -110, -125, -140}) {
    for (const bool all : {false, true}) {
      AttentionProblem problem({35, 1, 100, 16, 18}, 3700);
      for (std::int64_t s = 0; s < 100; ++s) {
        for (std::int64_t e = all ? 0 : 9; e < 18; ++e) problem.value_at(s, e) = std::ldexp(problem.value_at(s, e), exponent);
      }
      const AttentionProblem::Result result = problem.run(emulated);
      // Below 2^-126 results may be flushed.
      if (exponent > -100 || !all) expect_right(problem, result, "values of 2^" + std::to_string(exponent));
      if (!is_bf16() && all && exponent <= -62 && exponent > -125)
        expect_same_bits(result.out, problem.run(plain()).out, "tiny values");
    }
  }
}

// Keys at which a row's mask or bias excludes what is out of range; every kind of mask at once, and split.
TEST_P(PieceAttentionTest, ExcludedKeysMayHoldAnything) {
  for (std::uint32_t round = 0; round < 12; ++round) {
    AttentionShape shape{pick(20, 60), pick(1, 3), 200, 20, 19};
    if (round % 2) shape.visible_end = 200 - shape.queries + 1;
    AttentionProblem problem(shape, 3800 + round, 2.0);
    if (round % 3 != 1) problem.mask.emplace(shape, round % 4 != 0, true, true);
    if (round % 3 != 0) problem.bias.emplace(shape, true, round % 4 != 1, true);
    for (std::size_t i = 0; problem.mask && i < problem.mask->values->size(); ++i) (*problem.mask->values)[i] = pick(0, 3) != 0;
    for (std::size_t i = 0; problem.bias && i < problem.bias->values->size(); ++i) {
      (*problem.bias->values)[i] = pick(0, 3) ? static_cast<float>(pick(-2, 2)) : -kInfinity;
    }
    problem.bias_element = bias_elements[round / 2 % 3];
    const AttentionProblem::Result clean = problem.run(emulated);
    const std::vector<std::int64_t> bad = {0, 31, 64, 127, 190, 199};
    for (const std::int64_t s : bad) {
      problem.key_at(s, s % 20) = s % 2 ? kNaN : std::numeric_limits<float>::max();
      problem.value_at(s, s % 19) = s % 3 ? kInfinity : 1e-30f;
    }
    const AttentionProblem::Result ours = problem.run(emulated), fallback = problem.run(plain());
    for (std::int64_t row = 0; row < shape.rows(); ++row) {
      bool sees = false;
      for (const std::int64_t s : bad) sees |= problem.allowed(row / shape.group, row % shape.group, s);
      for (std::int64_t i = row * 19; i < (row + 1) * 19; ++i) {
        const std::size_t at = static_cast<std::size_t>(i);
        const float want = sees ? fallback.out[at] : clean.out[at];
        ASSERT_TRUE(bits_of(ours.out[at]) == bits_of(want) || (std::isnan(ours.out[at]) && std::isnan(want)))
            << shape.text() << ", round " << round << ", row " << row << " sees " << sees;
      }
    }
  }
}

// ---- bf16 and f16: an estimated shift

// Of a vector of numbers.
HWY_NOINLINE HWY_ATTR void exponentials(const float* from, float* to) {
  const target::FloatTag df;
  target::hn::StoreU(target::Exp2OfAny(df, target::hn::LoadU(df, from)), df, to);
}

TEST_F(PiecesTest, ExponentialOfAnyNumber) {
  const auto of = [](float x) {
    float from[16], to[16];
    for (float& same : from) same = x;
    exponentials(from, to);
    return to[0];
  };
  for (int i = -126; i < 127; ++i) EXPECT_NEAR(of(static_cast<float>(i)) / std::ldexp(1.0f, i), 1.0f, 0x1p-22f) << i;
  EXPECT_EQ(of(0.0f), 1.0f);
  double worst = 0;
  std::uniform_real_distribution<float> any(-126.0f, 127.0f);
  for (int i = 0; i < 200000; ++i) {
    const float x = i % 2 ? any(generator) : any(generator) * 0x1p-6f;
    worst = std::max(worst, std::fabs(static_cast<double>(of(x)) / std::exp2(static_cast<double>(x)) - 1));
  }
  EXPECT_LE(worst, 2.1 * 0x1p-23);
  for (const float x : {128.0f, 129.0f, 200.5f, 1e9f, 3.4e38f, kInfinity}) EXPECT_EQ(of(x), kInfinity) << x;
  for (const float x : {-150.0f, -151.5f, -1e9f, -3.4e38f, -kInfinity}) EXPECT_EQ(bits_of(of(x)), 0u) << x;
  for (const float x : {-0x1p-30f, 0x1p-30f, -1e-38f, -0.0f}) EXPECT_NEAR(of(x), 1.0f, 0x1p-22f) << x;
  EXPECT_TRUE(std::isnan(of(kNaN)));
}

// Scores far above those that a row's shift was taken from, in one row of a block, at every place of a step. By less than
// 2^40, by more, and by so much that without weights anew they would be infinite; and where the row has seen nothing before.
TEST_P(PieceAttentionTest, ScoresAboveAnEstimatedShift) {
  if (!is_bf16() && !is_f16()) GTEST_SKIP() << "estimates no shift";
  for (const float jump : {5.0f, 25.0f, 30.0f, 60.0f, 100.0f, 500.0f, 4000.0f, 30000.0f}) {
    for (const std::int64_t at : {3, 63, 64, 100, 130, 299}) {
      for (const bool twice : {false, true}) {
        AttentionShape shape{70, 1, 300, 17, 9, 1.0};
        if (at == 100) shape.visible_end = 231;  // causal: a mask in some steps
        AttentionProblem problem(shape, 3900);
        for (std::int64_t s = 0; s < 300; ++s) problem.key_at(s, 0) = s == at ? 1.0f : twice && s == at / 2 ? 0.5f : 0.0f;
        for (std::int64_t t = 0; t < 70; ++t) problem.query_at(t, 0, 0) = 0.0f;
        const AttentionProblem::Result clean = problem.run(emulated);
        problem.query_at(33, 0, 0) = jump;
        const AttentionProblem::Result result = problem.run(emulated);
        const std::string what = "above by " + std::to_string(jump) + ", key " + std::to_string(at);
        expect_right(problem, result, what);
        expect_right(problem, problem.run_split(emulated, merge(), 128), what + ", split");
        for (std::int64_t row = 0; row < 70; ++row) {
          if (row == 33) continue;
          for (std::int64_t i = row * 9; i < row * 9 + 9; ++i) {
            const std::size_t e = static_cast<std::size_t>(i);
            ASSERT_EQ(bits_of(result.out[e]), bits_of(clean.out[e])) << what << ", row " << row;
          }
          ASSERT_EQ(bits_of(result.lse[static_cast<std::size_t>(row)]), bits_of(clean.lse[static_cast<std::size_t>(row)]));
        }
        for (const std::int64_t size : {7, 40}) {
          std::vector<float> out, lse;
          for (std::int64_t row = 0; row < 70; row += size) {
            const AttentionProblem::Result some = problem.run(emulated, row, std::min(row + size, std::int64_t{70}));
            out.insert(out.end(), some.out.begin(), some.out.end());
            lse.insert(lse.end(), some.lse.begin(), some.lse.end());
          }
          expect_same_bits(out, result.out, what + ", in ranges of " + std::to_string(size));
          expect_same_bits(lse, result.lse, what + ", in ranges of " + std::to_string(size));
        }
      }
    }
  }
}

#if defined(POLYHEAD_HAVE_BF16)

double rounded_to_bf16(double x) {
  std::uint16_t bits = 0;
  const std::int64_t size = 1;
  const TensorView view(&bits, DType::bf16, 1, &size);
  testing::store(view, 0, x);
  return testing::load(view, 0);
}

// Weights that are rounded below an estimated shift err hardly more than those below the maximum, of which the largest is
// exact: the error of libraries that round them so, in exact arithmetic otherwise, 1.1 times.
TEST_F(PiecesTest, AnEstimatedShiftHardlyAddsError) {
  for (const double query_size : {1.0, 8.0, 64.0}) {
    double ours = 0, others = 0;
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      AttentionProblem problem({64, 1, 512, 64, 64, 0.125}, 3950 + 10 * seed, query_size);
      const AttentionProblem::Result result = problem.run(emulated_bf16);
      for (std::int64_t row = 0; row < 64; ++row) {
        const AttentionProblem::Row want = problem.expected(row, 0);
        double max = -std::numeric_limits<double>::infinity();
        std::vector<double> score(512), sums(64);
        for (std::int64_t s = 0; s < 512; ++s) {
          double dot = 0;
          for (std::int64_t d = 0; d < 64; ++d) dot += static_cast<double>(problem.query_at(row, 0, d)) * problem.key_at(s, d);
          score[static_cast<std::size_t>(s)] = 0.125 * dot;
          max = std::max(max, 0.125 * dot);
        }
        double denominator = 0;
        for (std::int64_t s = 0; s < 512; ++s) {
          const double weight = std::exp(score[static_cast<std::size_t>(s)] - max), rounded = rounded_to_bf16(weight);
          denominator += weight;
          for (std::int64_t e = 0; e < 64; ++e) sums[static_cast<std::size_t>(e)] += rounded * problem.value_at(s, e);
        }
        for (std::int64_t e = 0; e < 64; ++e) {
          const std::size_t i = static_cast<std::size_t>(e);
          const double off = result.out[static_cast<std::size_t>(row * 64 + e)] - want.out[i];
          const double off_of_others = rounded_to_bf16(sums[i] / denominator) - want.out[i];
          ours += off * off;
          others += off_of_others * off_of_others;
        }
      }
    }
    const double ratio = std::sqrt(ours / others);
    EXPECT_LE(ratio, 1.1) << "q x " << query_size;
    RecordProperty("rms_of_others_at_q_x_" + std::to_string(static_cast<int>(query_size)), std::to_string(ratio));
  }
}

#endif

}  // namespace
}  // namespace polyhead::test
