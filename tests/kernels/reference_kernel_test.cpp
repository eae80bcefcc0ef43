// The scalar attention, decode and merge kernels against the formula in float64, masks, bias and splits of keys included.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/guarded.hpp"
#include "simd/contract/attention.hpp"

namespace polyhead::test {
namespace {

using simd::AttentionF32Args;

constexpr std::int64_t kFloat = sizeof(float);
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct AttentionCase {
  std::int64_t queries, group, keys, head_dim, value_dim;
  double scale = 0.3;
  std::int64_t visible_begin = AttentionF32Args::unbounded_begin;
  std::int64_t visible_end = AttentionF32Args::unbounded_end;
  bool mask = false;
  bool bias = false;

  std::string describe() const {
    return "T " + std::to_string(queries) + " group " + std::to_string(group) + " S " + std::to_string(keys) + " D " +
           std::to_string(head_dim) + " E " + std::to_string(value_dim) + " visible [" + std::to_string(visible_begin) + ", " +
           std::to_string(visible_end) + ") mask " + std::to_string(mask) + " bias " + std::to_string(bias);
  }
};

// Operands of one case. Query, key, value and out have a gap of a few floats between rows.
struct Operands {
  static constexpr std::int64_t gap = 3;
  explicit Operands(const AttentionCase& c)
      : rows(c.queries * c.group),
        query(span(rows, c.head_dim)),
        key(span(c.keys, c.head_dim)),
        value(span(c.keys, c.value_dim)),
        bias(static_cast<std::size_t>(rows * c.keys)),
        out(span(rows, c.value_dim)),
        lse(static_cast<std::size_t>(rows)),
        mask(static_cast<std::size_t>(rows * c.keys)) {
    query.fill_random(1);
    key.fill_random(2);
    value.fill_random(3);
    bias.fill_random(4, -3.0, 3.0);
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 7 == 2 || i % 3 == 1 ? 0 : 1;
    for (std::size_t i = 0; i < bias.size(); ++i) {
      if (i % 5 == 3) bias[i] = -kInfinity;
    }
  }

  static std::size_t span(std::int64_t count, std::int64_t width) {
    return static_cast<std::size_t>(count == 0 ? 0 : (count - 1) * (width + gap) + width);
  }

  AttentionF32Args args(const AttentionCase& c) {
    AttentionF32Args args;
    args.query = query.data();
    args.query_head_stride = (c.head_dim + gap) * kFloat;
    args.query_stride = c.group * args.query_head_stride;
    args.key = key.data();
    args.key_stride = (c.head_dim + gap) * kFloat;
    args.value = value.data();
    args.value_stride = (c.value_dim + gap) * kFloat;
    args.group = c.group;
    args.row_end = rows;
    args.key_end = c.keys;
    args.head_dim = c.head_dim;
    args.value_dim = c.value_dim;
    args.scale = c.scale;
    args.visible_begin = c.visible_begin;
    args.visible_end = c.visible_end;
    if (c.mask) {
      args.boolean_mask = mask.data();
      args.mask_key_stride = 1;
      args.mask_head_stride = c.keys;
      args.mask_stride = c.keys * c.group;
    }
    if (c.bias) {
      args.bias = bias.data();
      args.bias_key_stride = kFloat;
      args.bias_head_stride = c.keys * kFloat;
      args.bias_stride = c.keys * c.group * kFloat;
    }
    args.out = out.data();
    args.out_head_stride = (c.value_dim + gap) * kFloat;
    args.out_stride = c.group * args.out_head_stride;
    args.lse = lse.data();
    args.lse_head_stride = kFloat;
    args.lse_stride = c.group * kFloat;
    return args;
  }

  bool allowed(const AttentionCase& c, std::int64_t row, std::int64_t s) const {
    const std::int64_t t = row / c.group;
    const std::size_t at = static_cast<std::size_t>(row * c.keys + s);
    return s >= t + c.visible_begin && s < t + c.visible_end && (!c.mask || mask[at] != 0) &&
           (!c.bias || bias[at] != -kInfinity);
  }

  std::int64_t rows;
  Guarded<float> query, key, value, bias, out, lse;
  Guarded<std::uint8_t> mask;
};

void expect_formula(const AttentionCase& c, Operands& operands, const char* what) {
  const std::int64_t d_width = c.head_dim + Operands::gap, e_width = c.value_dim + Operands::gap;
  for (std::int64_t row = 0; row < operands.rows; ++row) {
    double sum = 0.0;
    std::vector<double> expected(static_cast<std::size_t>(c.value_dim));
    for (std::int64_t s = 0; s < c.keys; ++s) {
      if (!operands.allowed(c, row, s)) continue;
      double score = 0.0;
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        score += static_cast<double>(operands.query[static_cast<std::size_t>(row * d_width + d)]) *
                 static_cast<double>(operands.key[static_cast<std::size_t>(s * d_width + d)]);
      }
      score *= c.scale;
      if (c.bias) score += static_cast<double>(operands.bias[static_cast<std::size_t>(row * c.keys + s)]);
      const double weight = std::exp(score);
      sum += weight;
      for (std::int64_t e = 0; e < c.value_dim; ++e) {
        expected[static_cast<std::size_t>(e)] +=
            weight * static_cast<double>(operands.value[static_cast<std::size_t>(s * e_width + e)]);
      }
    }
    for (std::int64_t e = 0; e < c.value_dim; ++e) {
      const float got = operands.out[static_cast<std::size_t>(row * e_width + e)];
      if (sum == 0.0) {
        ASSERT_EQ(bits_of(got), 0u) << what << ", empty row " << row << ", " << c.describe();
      } else {
        ASSERT_NEAR(got, expected[static_cast<std::size_t>(e)] / sum, 1e-6)
            << what << ", row " << row << " element " << e << ", " << c.describe();
      }
    }
    const float lse = operands.lse[static_cast<std::size_t>(row)];
    if (sum == 0.0) {
      ASSERT_EQ(lse, -kInfinity) << what << ", " << c.describe();
    } else {
      ASSERT_NEAR(lse, std::log(sum), 1e-5) << what << ", row " << row << ", " << c.describe();
    }
  }
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> list;
  for (const std::int64_t keys : {0, 1, 5, 64, 65, 130}) {
    for (int flags = 0; flags < 4; ++flags) {
      AttentionCase c{5, 2, keys, 8, 6};
      c.mask = (flags & 1) != 0;
      c.bias = (flags & 2) != 0;
      list.push_back(c);
      c.visible_end = 1;  // causal
      list.push_back(c);
      c.visible_end = keys - 4;        // causal, aligned bottom-right
      c.visible_begin = keys - 4 - 9;  // a window
      list.push_back(c);
      c.scale = -1.5;
      c.group = 1;
      list.push_back(c);
    }
  }
  list.push_back({1, 1, 3, 1, 1});
  return list;
}

const dispatch::KernelTable& reference() {
  return dispatch::kernel_table(Isa::reference);
}

TEST(ReferenceKernelTest, MatchesTheFormula) {
  for (const AttentionCase& c : cases()) {
    for (const simd::AttentionKernel* kernel : {reference().attention_f32, reference().decode_f32}) {
      Operands operands(c);
      AttentionF32Args args = operands.args(c);
      Guarded<unsigned char> scratch(kernel->scratch_bytes(c.head_dim, c.value_dim, c.keys), 64);
      args.scratch = scratch.data();
      kernel->run(args);
      expect_formula(c, operands, kernel->name);
    }
  }
}

TEST(ReferenceKernelTest, SplitKeysMergeToTheWhole) {
  const simd::AttentionKernel& kernel = *reference().decode_f32;
  for (const AttentionCase& c : cases()) {
    Operands operands(c);
    const std::int64_t block = kernel.key_block;
    const std::int64_t splits = std::max<std::int64_t>(1, (c.keys + block - 1) / block) + 1;  // the last one is empty
    const std::size_t floats = static_cast<std::size_t>(operands.rows * (c.value_dim + 2));
    Guarded<float> partials(floats * static_cast<std::size_t>(splits));
    std::vector<const float*> pointers;
    Guarded<unsigned char> scratch(kernel.scratch_bytes(c.head_dim, c.value_dim, block), 64);
    for (std::int64_t split = 0; split < splits; ++split) {
      AttentionF32Args args = operands.args(c);
      args.key_begin = split * block;
      args.key_end = std::min(c.keys, (split + 1) * block);
      args.partial = partials.data() + static_cast<std::size_t>(split) * floats;
      args.scratch = scratch.data();
      kernel.run(args);
      pointers.push_back(args.partial);
    }
    simd::MergeF32Args merge;
    merge.partials = pointers.data();
    merge.splits = splits;
    merge.row_end = operands.rows;
    merge.group = c.group;
    merge.value_dim = c.value_dim;
    const AttentionF32Args whole = operands.args(c);
    merge.out = whole.out;
    merge.out_stride = whole.out_stride;
    merge.out_head_stride = whole.out_head_stride;
    merge.lse = whole.lse;
    merge.lse_stride = whole.lse_stride;
    merge.lse_head_stride = whole.lse_head_stride;
    reference().merge_f32->run(merge);
    expect_formula(c, operands, "merged");
  }
}

TEST(ReferenceKernelTest, RowsHaveTheSameBitsAlone) {
  AttentionCase c{7, 3, 70, 9, 5};
  c.bias = true;
  Operands operands(c);
  const simd::AttentionKernel& kernel = *reference().attention_f32;
  Guarded<unsigned char> scratch(kernel.scratch_bytes(c.head_dim, c.value_dim, c.keys), 64);
  AttentionF32Args args = operands.args(c);
  args.scratch = scratch.data();
  kernel.run(args);
  const std::vector<float> expected(operands.out.data(), operands.out.data() + operands.out.size());
  for (std::int64_t row = 0; row < operands.rows; ++row) {
    args.row_begin = row;
    args.row_end = row + 1;
    const std::size_t first = static_cast<std::size_t>(row * (c.value_dim + Operands::gap));
    for (std::size_t e = 0; e < 5; ++e) operands.out[first + e] = 99.0f;
    kernel.run(args);
    for (std::size_t e = 0; e < 5; ++e)
      ASSERT_EQ(bits_of(operands.out[first + e]), bits_of(expected[first + e])) << row << " " << e;
  }
}

TEST(ReferenceKernelTest, ExcludedKeysAreNotReadAndNaNOfOthersPasses) {
  for (const bool by_bias : {false, true}) {
    AttentionCase c{4, 2, 40, 8, 6};
    c.mask = !by_bias;
    c.bias = by_bias;
    c.visible_end = 33;
    Operands operands(c);
    // Key 11 is excluded for all rows; key 36 is beyond what any row but the last sees.
    for (std::int64_t row = 0; row < operands.rows; ++row) {
      operands.mask[static_cast<std::size_t>(row * c.keys + 11)] = 0;
      operands.bias[static_cast<std::size_t>(row * c.keys + 11)] = -kInfinity;
    }
    operands.mask[static_cast<std::size_t>(3 * c.keys + 20)] = 0;  // key 20 is for some rows only
    operands.bias[static_cast<std::size_t>(3 * c.keys + 20)] = -kInfinity;
    const simd::AttentionKernel& kernel = *reference().attention_f32;
    Guarded<unsigned char> scratch(kernel.scratch_bytes(c.head_dim, c.value_dim, c.keys), 64);
    AttentionF32Args args = operands.args(c);
    args.scratch = scratch.data();
    kernel.run(args);
    const std::vector<float> expected(operands.out.data(), operands.out.data() + operands.out.size());
    const auto poison = [&](std::int64_t s) {
      for (std::int64_t d = 0; d < c.head_dim; ++d)
        operands.key[static_cast<std::size_t>(s * (c.head_dim + Operands::gap) + d)] = kNaN;
      for (std::int64_t e = 0; e < c.value_dim; ++e) {
        operands.value[static_cast<std::size_t>(s * (c.value_dim + Operands::gap) + e)] = kNaN;
      }
    };
    for (const std::int64_t s : {11, 36, 37, 38, 39}) poison(s);
    kernel.run(args);
    for (std::int64_t i = 0; i < operands.rows; ++i) {
      for (std::int64_t e = 0; e < c.value_dim; ++e) {
        const std::size_t at = static_cast<std::size_t>(i * (c.value_dim + Operands::gap) + e);
        ASSERT_EQ(bits_of(operands.out[at]), bits_of(expected[at]))
            << "row " << i << " element " << e << " by bias " << by_bias;
      }
    }
    // A visible key of some rows: just those rows are NaN.
    poison(20);
    kernel.run(args);
    std::int64_t poisoned = 0;
    for (std::int64_t i = 0; i < operands.rows; ++i) {
      const bool sees = operands.allowed(c, i, 20);
      poisoned += sees;
      for (std::int64_t e = 0; e < c.value_dim; ++e) {
        const std::size_t at = static_cast<std::size_t>(i * (c.value_dim + Operands::gap) + e);
        ASSERT_EQ(std::isnan(operands.out[at]), sees) << "row " << i << " element " << e;
      }
      ASSERT_EQ(std::isnan(operands.lse[static_cast<std::size_t>(i)]), sees) << "row " << i;
    }
    ASSERT_GT(poisoned, 0);
    ASSERT_LT(poisoned, operands.rows);
  }
}

TEST(ReferenceKernelTest, NaNInAQueryReachesItsRowThroughAMerge) {
  AttentionCase c{3, 1, 100, 8, 6};
  Operands operands(c);
  operands.query[static_cast<std::size_t>(1 * (c.head_dim + Operands::gap) + 4)] = kNaN;
  const simd::AttentionKernel& kernel = *reference().decode_f32;
  std::vector<float> partials(2 * static_cast<std::size_t>(3 * (c.value_dim + 2)));
  Guarded<unsigned char> scratch(kernel.scratch_bytes(c.head_dim, c.value_dim, 64), 64);
  AttentionF32Args args = operands.args(c);
  args.scratch = scratch.data();
  const float* pointers[2] = {partials.data(), partials.data() + 3 * (c.value_dim + 2)};
  args.key_end = 64;
  args.partial = partials.data();
  kernel.run(args);
  args.key_begin = 64;
  args.key_end = 100;
  args.partial = partials.data() + 3 * (c.value_dim + 2);
  kernel.run(args);
  simd::MergeF32Args merge;
  merge.partials = pointers;
  merge.splits = 2;
  merge.row_end = 3;
  merge.value_dim = c.value_dim;
  merge.out = args.out;
  merge.out_stride = args.out_stride;
  reference().merge_f32->run(merge);
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t e = 0; e < c.value_dim; ++e) {
      ASSERT_EQ(std::isnan(operands.out[static_cast<std::size_t>(row * (c.value_dim + Operands::gap) + e)]), row == 1)
          << row << " " << e;
    }
  }
}

}  // namespace
}  // namespace polyhead::test
