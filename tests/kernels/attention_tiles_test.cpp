// Transposed attention with every shape of register tile, on one instruction set: so the tiles of AVX-512 and of NEON are
// computed with on machines that have neither. The shape must not show in the result: the bits are those of the instruction
// set's own kernel.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#elif defined(__aarch64__)
#define HWY_BASELINE_TARGETS HWY_NEON
#endif

#if defined(HWY_BASELINE_TARGETS)
#define HWY_COMPILE_ONLY_STATIC
#include "simd/hwy/attention_f32-inl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/attention_problem.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

namespace tiles = simd::HWY_NAMESPACE;

#if defined(__x86_64__)
constexpr Isa kIsa = Isa::avx2;
#else
constexpr Isa kIsa = Isa::neon;
#endif

struct TileCase {
  simd::AttentionKernel kernel;
  int vectors;  // of query rows that a block holds
};

class AttentionTilesTest : public ::testing::TestWithParam<TileCase> {
 protected:
  void SetUp() override {
    const std::vector<Isa> isas = available_isas();
    if (std::find(isas.begin(), isas.end(), kIsa) == isas.end()) GTEST_SKIP() << "this machine lacks " << name(kIsa);
  }

  DType dtype() const {
    switch (GetParam().kernel.element) {
      case simd::Element::bf16:
        return DType::bf16;
      case simd::Element::f16:
        return DType::f16;
      default:
        return DType::f32;
    }
  }

  void check(AttentionProblem& problem) {
    const simd::AttentionKernel& shaped = GetParam().kernel;
    const simd::AttentionKernel& own = *dispatch::attention_kernels(dispatch::kernel_table(kIsa), dtype()).transposed;
    const std::string what = std::string(shaped.name) + ", " + problem.shape.text();
    const AttentionProblem::Result result = problem.run(shaped), expected = problem.run(own);
    problem.expect_right(result, what);
    expect_same_bits(result.out, expected.out, what);
    expect_same_bits(result.lse, expected.lse, what + ", lse");
  }
  void check(const AttentionShape& shape, std::uint32_t seed) {
    AttentionProblem problem(shape, seed, 2.0);
    check(problem);
  }

  // Rows that fill just `vectors` vectors, but one.
  std::int64_t rows_of(int vectors) const { return GetParam().kernel.row_block / GetParam().vectors * vectors - 1; }
};

TEST_P(AttentionTilesTest, EveryRemainderOfRows) {
  for (std::int64_t rows = 1; rows <= 2 * GetParam().kernel.row_block + 1; ++rows) check({rows, 1, 37, 9, 11}, 10);
  check({4 * GetParam().kernel.row_block + 3, 1, 300, 9, 11}, 11);  // more row blocks than share a pass over the keys
}

// How keys (value columns) are cut into tiles depends on how many vectors of rows there are.
TEST_P(AttentionTilesTest, EveryRemainderOfKeysForEveryWidth) {
  for (int vectors = 1; vectors <= GetParam().vectors; ++vectors) {
    for (std::int64_t keys = 1; keys <= 50; ++keys) check({rows_of(vectors), 1, keys, 8, 5}, 20);
    for (const std::int64_t keys : {127, 128, 129, 141, 300}) check({rows_of(vectors), 1, keys, 8, 5}, 21);
  }
}

TEST_P(AttentionTilesTest, EveryRemainderOfValueSizesForEveryWidth) {
  for (int vectors = 1; vectors <= GetParam().vectors; ++vectors) {
    for (std::int64_t value_dim = 1; value_dim <= 50; ++value_dim) check({rows_of(vectors), 1, 150, 5, value_dim}, 30);
    for (const std::int64_t dim : {64, 80, 128}) check({rows_of(vectors), 1, 150, dim, dim}, 31);
  }
}

TEST_P(AttentionTilesTest, MasksBiasAndGroups) {
  for (int vectors = 1; vectors <= GetParam().vectors; ++vectors) {
    for (const int kind : {0, 1, 2, 3, 4}) {
      AttentionShape shape{rows_of(vectors), 3, 290, 12, 10};
      if (kind == 0) shape.visible_end = 150;
      if (kind == 1) shape.visible_begin = -20, shape.visible_end = 21;
      AttentionProblem problem(shape, 40, 2.0);
      if (kind == 2) problem.mask.emplace(shape, true, true, true);
      if (kind == 3) problem.mask.emplace(shape, false, false, true);
      if (kind == 4) problem.bias.emplace(shape, true, false, true);
      for (std::size_t i = 0; problem.mask && i < problem.mask->values->size(); ++i)
        (*problem.mask->values)[i] = i * i % 7 != 2;
      for (std::size_t i = 0; problem.bias && i < problem.bias->values->size(); ++i) {
        (*problem.bias->values)[i] = i * i % 11 == 4 ? -kInfinity : static_cast<float>(i % 5);
      }
      check(problem);
    }
  }
}

// A NaN that only the last rows may see sends whole row blocks through the selecting value step.
TEST_P(AttentionTilesTest, PoisonReachesOnlyRowsThatSeeIt) {
  for (int vectors = 1; vectors <= GetParam().vectors; ++vectors) {
    const std::int64_t rows = rows_of(vectors);
    AttentionProblem problem({rows, 1, rows + 140, 6, 7, 0.3, simd::AttentionF32Args::unbounded_begin, 141}, 50);
    const AttentionProblem::Result clean = problem.run(GetParam().kernel);
    problem.value_at(rows + 138, 6) = kNaN;  // seen by the last two rows
    const AttentionProblem::Result poisoned = problem.run(GetParam().kernel);
    for (std::size_t i = 0; i < clean.out.size(); ++i) {
      if (static_cast<std::int64_t>(i) / 7 >= rows - 2 && i % 7 == 6) {
        ASSERT_TRUE(std::isnan(poisoned.out[i])) << GetParam().kernel.name << " element " << i;
      } else {
        ASSERT_EQ(bits_of(poisoned.out[i]), bits_of(clean.out[i])) << GetParam().kernel.name << " element " << i;
      }
    }
  }
}

template <class Shape, class T>
TileCase case_of(const char* name) {
  return {tiles::TransposedKernel<Shape, T>(name), Shape::kVectors};
}

std::vector<TileCase> cases() {
  std::vector<TileCase> all = {
      case_of<tiles::Tiles32Registers8x3, float>("f32_8x3"), case_of<tiles::Tiles32Registers6x4, float>("f32_6x4"),
      case_of<tiles::Tiles16Registers4x3, float>("f32_4x3"), case_of<tiles::Tiles16Registers4x2, float>("f32_4x2")};
  // Elements of 16 bits reach the same tiles by way of f32.
  for (const DType dtype : dispatch::attention_dtypes()) {
    if (dtype == DType::bf16) all.push_back(case_of<tiles::Tiles32Registers8x3, simd::Bf16>("bf16_8x3"));
    if (dtype == DType::f16) all.push_back(case_of<tiles::Tiles32Registers6x4, simd::F16>("f16_6x4"));
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryShape, AttentionTilesTest, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return std::string(instance.param.kernel.name); });

}  // namespace
}  // namespace polyhead::test
#endif
