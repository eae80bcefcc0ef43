// decode kernels around the edges of its key streams and of the head sizes that take another way through a block: the result is
// right, and a row has the bits it has alone, whatever its neighbours let the kernel see.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/attention_problem.hpp"
#include "polyhead/runtime.hpp"

namespace polyhead::test {
namespace {

class DecodeStreamsTest : public ::testing::TestWithParam<const simd::AttentionKernel*> {
 protected:
  const simd::AttentionKernel& kernel() const { return *GetParam(); }

  void check_rows_alone(AttentionProblem& problem) {
    const AttentionShape& shape = problem.shape;
    const AttentionProblem::Result together = problem.run(kernel(), 0, shape.rows());
    problem.expect_right(together, shape.text());
    for (std::int64_t row = 0; row < shape.rows(); ++row) {
      const AttentionProblem::Result alone = problem.run(kernel(), row, row + 1);
      const auto first = together.out.begin() + row * shape.value_dim;
      const std::vector<float> out(first, first + shape.value_dim);
      expect_same_bits(alone.out, out, shape.text() + ", row " + std::to_string(row));
    }
  }
};

TEST_P(DecodeStreamsTest, KeyCountsAroundStreamEdges) {
  for (const std::int64_t keys : {1, 2, 3, 63, 64, 65, 66, 127, 128, 129, 191, 193, 255, 256, 257, 321, 512, 515}) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 9}) {
      AttentionProblem problem({1, rows, keys, 52, 50}, 60, 2.0);
      check_rows_alone(problem);
    }
  }
}

TEST_P(DecodeStreamsTest, HeadSizesAroundShortRows) {
  for (const std::int64_t head_dim : {47, 48, 49, 56}) {
    for (const std::int64_t value_dim : {1, 47, 48, 49, 64}) {
      AttentionProblem problem({1, 4, 300, head_dim, value_dim}, 61, 2.0);
      check_rows_alone(problem);
    }
  }
}

// Rows of one call see different keys of a block: windows that begin and end in any of its streams.
TEST_P(DecodeStreamsTest, WindowsThroughStreams) {
  for (const std::int64_t head_dim : {16, 56}) {
    for (const std::int64_t width : {1, 5, 70, 200}) {
      for (const std::int64_t end : {4, 62, 66, 130, 258, 310, 500}) {
        AttentionShape shape{5, 2, 520, head_dim, head_dim};
        shape.visible_begin = end - width;
        shape.visible_end = end;
        for (const std::int64_t kept : {0, 3, 68, 300}) {
          shape.kept_end = kept;
          AttentionProblem problem(shape, 62, 2.0);
          check_rows_alone(problem);
        }
      }
    }
  }
}

// What only the last row may see neither reaches the others nor changes the order in which they add up.
TEST_P(DecodeStreamsTest, PoisonReachesOnlyTheRowThatSeesIt) {
  for (const std::int64_t head_dim : {16, 56}) {
    for (const std::int64_t end : {3, 64, 140, 256, 300}) {
      AttentionShape shape{6, 1, end + 5, head_dim, head_dim};
      shape.visible_end = end;
      AttentionProblem problem(shape, 63, 2.0);
      const AttentionProblem::Result clean = problem.run(kernel(), 0, shape.rows());
      problem.value_at(end + 4, 3) = kNaN;
      const AttentionProblem::Result poisoned = problem.run(kernel(), 0, shape.rows());
      for (std::size_t i = 0; i < clean.out.size(); ++i) {
        const bool seen = static_cast<std::int64_t>(i) == 5 * head_dim + 3;
        ASSERT_EQ(std::isnan(poisoned.out[i]), seen) << shape.text() << " element " << i;
        if (seen) continue;
        ASSERT_EQ(bits_of(poisoned.out[i]), bits_of(clean.out[i])) << shape.text() << " element " << i;
      }
    }
  }
}

std::vector<const simd::AttentionKernel*> kernels() {
  std::vector<const simd::AttentionKernel*> all;
  for (const Isa isa : available_isas()) {
    for (const DType dtype : dispatch::attention_dtypes()) {
      const auto* kernel = dispatch::attention_kernels(dispatch::kernel_table(isa), dtype).decode;
      if (std::find(all.begin(), all.end(), kernel) == all.end()) all.push_back(kernel);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, DecodeStreamsTest, ::testing::ValuesIn(kernels()),
                         [](const auto& instance) { return std::string(instance.param->name); });

}  // namespace
}  // namespace polyhead::test
