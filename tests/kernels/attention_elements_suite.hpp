// What attention kernels make of elements of 16 bits: every one of them is widened exactly, wherever it stands, and results are
// rounded to nearest even, alone and through merging. A test file instantiates AttentionElementsTest with the kernels it is
// about.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/guarded.hpp"
#include "polyhead/tensor.hpp"
#include "simd/contract/attention.hpp"
#include "support/tensor.hpp"

namespace polyhead::test {

using simd::AttentionF32Args;

struct ElementCase {
  std::string name;
  DType dtype;
  const simd::AttentionKernel* kernel;
  const simd::MergeKernel* merge;
};

class AttentionElementsTest : public ::testing::TestWithParam<ElementCase> {
 protected:
  static constexpr std::size_t kPatterns = 65536;

  bool is_bf16() const { return GetParam().dtype == DType::bf16; }
  std::uint16_t one() const { return is_bf16() ? 0x3F80 : 0x3C00; }
  std::uint16_t infinity() const { return is_bf16() ? 0x7F80 : 0x7C00; }
  // By the formats' definitions, of the oracle's side.
  double number(std::uint16_t bits) const {
    const std::int64_t size = 1;
    return testing::load(TensorView(&bits, GetParam().dtype, 1, &size), 0);
  }
  bool is_nan(std::uint16_t bits) const { return (bits & 0x7FFF) > infinity(); }
  // Denormals of bf16 are those of f32, which kernels may flush.
  bool may_flush(std::uint16_t bits) const { return is_bf16() && (bits & 0x7F80) == 0; }

  // out of `rows` equal rows that see every row of `value` [keys][columns] with the same weight, directly and merged from one
  // part a key block.
  std::vector<std::uint16_t> mean_of(const std::vector<std::uint16_t>& value, std::int64_t keys, std::int64_t rows,
                                     bool merged) const {
    const std::int64_t columns = static_cast<std::int64_t>(value.size()) / keys;
    const simd::AttentionKernel& kernel = *GetParam().kernel;
    Guarded<std::uint16_t> query(static_cast<std::size_t>(rows)), key(static_cast<std::size_t>(keys)), values(value.size());
    Guarded<std::uint16_t> out(static_cast<std::size_t>(rows * columns));
    for (std::int64_t i = 0; i < rows; ++i) query[static_cast<std::size_t>(i)] = 0;
    for (std::int64_t i = 0; i < keys; ++i) key[static_cast<std::size_t>(i)] = one();
    for (std::size_t i = 0; i < value.size(); ++i) values[i] = value[i];
    Guarded<unsigned char> scratch(kernel.scratch_bytes(1, columns, keys), 64);
    std::vector<float> partial(static_cast<std::size_t>(rows * (columns + 2)));
    AttentionF32Args args;
    args.query = query.data();
    args.query_stride = 2;
    args.key = key.data();
    args.key_stride = 2;
    args.value = values.data();
    args.value_stride = columns * 2;
    args.row_end = rows;
    args.key_end = keys;
    args.head_dim = 1;
    args.value_dim = columns;
    args.scratch = scratch.data();
    if (merged) {
      args.partial = partial.data();
    } else {
      args.out = out.data();
      args.out_stride = columns * 2;
    }
    kernel.run(args);
    if (merged) {
      const float* const part = partial.data();
      simd::MergeF32Args merge;
      merge.partials = &part;
      merge.splits = 1;
      merge.row_end = rows;
      merge.value_dim = columns;
      merge.out = out.data();
      merge.out_stride = columns * 2;
      GetParam().merge->run(merge);
    }
    // The last row: one that is not alone where there are several.
    return {out.data() + (rows - 1) * columns, out.data() + rows * columns};
  }

  // lse of a row that sees one key is its score: the product of one query element and one key element.
  void expect_scores(const std::vector<std::uint16_t>& patterns, bool in_key, double scale) const {
    const std::size_t count = patterns.size();
    const simd::AttentionKernel& kernel = *GetParam().kernel;
    Guarded<std::uint16_t> query(count), key(count), value(count), out(count);
    Guarded<float> lse(count);
    for (std::size_t i = 0; i < count; ++i) {
      query[i] = in_key ? one() : patterns[i];
      key[i] = in_key ? patterns[i] : one();
      value[i] = one();
    }
    Guarded<unsigned char> scratch(kernel.scratch_bytes(1, 1, static_cast<std::int64_t>(count)), 64);
    AttentionF32Args args;
    args.query = query.data();
    args.key = key.data();
    args.value = value.data();
    args.out = out.data();
    args.lse = lse.data();
    args.query_stride = args.key_stride = args.value_stride = args.out_stride = 2;
    args.lse_stride = 4;
    args.row_end = args.key_end = static_cast<std::int64_t>(count);
    args.visible_begin = 0;  // query t sees key t alone
    args.visible_end = 1;
    args.head_dim = args.value_dim = 1;
    args.scale = scale;
    args.scratch = scratch.data();
    kernel.run(args);
    for (std::size_t i = 0; i < count; ++i) {
      const double right = scale * number(patterns[i]);
      ASSERT_LE(std::fabs(static_cast<double>(lse[i]) - right), 4e-6 + 0x1p-21 * std::fabs(right))
          << (in_key ? "key" : "query") << " element 0x" << std::hex << patterns[i];
      ASSERT_EQ(out[i], one()) << (in_key ? "key" : "query") << " element 0x" << std::hex << patterns[i];
    }
  }

  struct Way {
    std::int64_t rows;
    bool merged;
    std::string text() const { return "rows " + std::to_string(rows) + (merged ? ", merged" : ""); }
  };
  static std::vector<Way> ways() { return {{1, false}, {1, true}, {3, false}, {21, false}, {21, true}}; }
};

TEST_P(AttentionElementsTest, EveryValuePassesThroughUnchanged) {
  std::vector<std::uint16_t> value(kPatterns);
  for (std::size_t i = 0; i < kPatterns; ++i) value[i] = static_cast<std::uint16_t>(i);
  for (const Way& way : ways()) {
    const std::vector<std::uint16_t> out = mean_of(value, 1, way.rows, way.merged);
    for (std::size_t i = 0; i < kPatterns; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      if (is_nan(bits)) {
        ASSERT_TRUE(is_nan(out[i])) << way.text() << ", element 0x" << std::hex << i << " became 0x" << out[i];
      } else if (number(bits) == 0 || (may_flush(bits) && out[i] == 0)) {
        ASSERT_EQ(out[i], 0) << way.text() << ", element 0x" << std::hex << i;  // zero is positive, whatever it was
      } else {
        ASSERT_EQ(out[i], bits) << way.text() << ", element 0x" << std::hex << i << " became 0x" << out[i];
      }
    }
  }
}

// Means of neighbours lie between them at 1/2, 1/4 and 3/4 of a step: a tie goes to the even one.
TEST_P(AttentionElementsTest, ResultsAreRoundedToNearestEven) {
  // Of bf16, without denormals, which may be flushed, and without numbers of which four have a sum that is no f32.
  const std::size_t first = is_bf16() ? 0x0100 : 0, last = is_bf16() ? 0x7E00 : 0x7BFF, columns = last - first;
  for (const std::size_t sign : {std::size_t{0}, std::size_t{0x8000}}) {
    for (const auto& [lower, keys] : std::vector<std::pair<std::size_t, std::size_t>>{{1, 2}, {3, 4}, {1, 4}}) {
      std::vector<std::uint16_t> value;
      for (std::size_t key = 0; key < keys; ++key) {
        for (std::size_t i = 0; i < columns; ++i) {
          value.push_back(static_cast<std::uint16_t>(sign | (first + i + (key < lower ? 0 : 1))));
        }
      }
      for (const Way& way : ways()) {
        const std::vector<std::uint16_t> out = mean_of(value, static_cast<std::int64_t>(keys), way.rows, way.merged);
        for (std::size_t i = 0; i < columns; ++i) {
          const std::size_t below = first + i;
          const std::size_t nearest = keys == 2 ? below + below % 2 : lower == 3 ? below : below + 1;
          const std::size_t right = sign | nearest;
          ASSERT_EQ(out[i], right) << way.text() << ", " << lower << " of " << keys << " keys are 0x" << std::hex
                                   << (sign | below) << ", the others the next";
        }
      }
    }
  }
}

TEST_P(AttentionElementsTest, EveryQueryAndKeyIsWidenedExactly) {
  // Scores of f16's denormals come out of lse's own error by the scale; bf16's range leaves that of scores.
  const double scale = is_bf16() ? 1.0 : 0x1p20;
  std::vector<std::uint16_t> patterns;
  for (std::size_t i = 0; i < kPatterns; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    if (std::fabs(number(bits)) < 0x1p100) patterns.push_back(bits);  // not so for NaN and infinities
  }
  for (std::size_t i = 0; i < patterns.size(); i += 1000) {
    const auto begin = patterns.begin() + static_cast<std::ptrdiff_t>(i);
    const std::vector<std::uint16_t> some(begin, begin + std::min<std::ptrdiff_t>(1000, patterns.end() - begin));
    for (const bool in_key : {false, true}) ASSERT_NO_FATAL_FAILURE(expect_scores(some, in_key, scale));
  }
}

// However its weight is rounded.
TEST_P(AttentionElementsTest, ARowThatSeesOneKeyIsItsValue) {
  const simd::AttentionKernel& kernel = *GetParam().kernel;
  constexpr std::int64_t count = 500, columns = 5;
  Guarded<std::uint16_t> query(count), key(count), value(count * columns), out(count * columns);
  for (std::size_t i = 0; i < count; ++i) {
    query[i] = static_cast<std::uint16_t>(one() + i % 97);  // scores of many sizes
    key[i] = static_cast<std::uint16_t>(one() + i % 89);
  }
  const std::uint16_t least = is_bf16() ? 0x0100 : 0x0400, all = is_bf16() ? 0x7E00 : 0x7800;
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<std::uint16_t>(least + 977 * i % all);
  Guarded<unsigned char> scratch(kernel.scratch_bytes(1, columns, count), 64);
  AttentionF32Args args;
  args.query = query.data();
  args.key = key.data();
  args.value = value.data();
  args.out = out.data();
  args.query_stride = args.key_stride = 2;
  args.value_stride = args.out_stride = columns * 2;
  args.row_end = args.key_end = count;
  args.visible_begin = 0;
  args.visible_end = 1;
  args.head_dim = 1;
  args.value_dim = columns;
  args.scale = 0.7;
  args.scratch = scratch.data();
  kernel.run(args);
  for (std::size_t i = 0; i < value.size(); ++i) ASSERT_EQ(out[i], value[i]) << "row " << i / columns;
}

}  // namespace polyhead::test
