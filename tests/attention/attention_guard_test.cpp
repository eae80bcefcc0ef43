// Not one byte outside an operand is read or written: each operand lies against an inaccessible page, before and behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

class GuardTest : public EveryIsaAndDType {
 protected:
  // The same values with memory that begins, or ends, at an inaccessible page. Dimensions lie in memory in `order`.
  static Tensor guarded(const Tensor& from, Guard guard, const std::vector<int>& order) {
    const TensorView& view = from;
    std::vector<std::int64_t> shape;
    for (const int dimension : order) shape.push_back(view.shape[static_cast<std::size_t>(dimension)]);
    const Tensor memory(view.dtype, shape, guard);
    TensorView turned = memory;
    for (std::size_t i = 0; i < order.size(); ++i) {
      turned.shape[static_cast<std::size_t>(order[i])] = memory.view().shape[i];
      turned.strides[static_cast<std::size_t>(order[i])] = memory.view().strides[i];
    }
    copy(from, turned);
    return memory.viewed(turned);
  }

  void expect_no_byte_too_many(const AttentionCase& test) const {
    const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 1, 3, 2}};
    for (const Guard guard : {Guard::before, Guard::behind})
      for (const auto& order : orders) {
        AttentionCase moved = test;
        for (Tensor* tensor : {&moved.query, &moved.key, &moved.value, &moved.out}) *tensor = guarded(*tensor, guard, order);
        moved.lse = guarded(test.lse, guard, {0, 1, 2});
        if (test.spec.mask.has_boolean) moved.boolean_mask = guarded(test.boolean_mask, guard, order);
        if (test.spec.mask.has_bias) moved.bias = guarded(test.bias, guard, order);
        if (test.spec.mask.has_key_lengths) moved.key_lengths = guarded(test.key_lengths, guard, {0});
        if (test.spec.mask.has_offsets) moved.offsets = guarded(test.offsets, guard, {0});
        ASSERT_TRUE(run_and_compare(moved, runtime(1), guard == Guard::before ? "guard before" : "guard behind"));
      }
  }
};

TEST_P(GuardTest, OddSizes) {
  std::uint64_t seed = 0;
  const Mask masks[] = {Mask::none(), Mask::boolean() & Mask::bias(),
                        Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::boolean(),
                        Mask::causal(Causal::offset) & Mask::offsets() & Mask::bias(), Mask::window(3, 2)};
  for (const std::int64_t query_length : {1, 2, 3, 5, 7, 9, 15, 17, 31, 33})
    for (const std::int64_t key_length : {1, 2, 3, 7, 15, 17, 33, 63, 65}) {
      Random random(++seed);
      const std::int64_t head_dim = random.choice<std::int64_t>({1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31});
      const std::int64_t value_dim = random.choice<std::int64_t>({1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31});
      AttentionCase test =
          make_case(attention_spec(1, 2, 1, query_length, key_length, head_dim, value_dim, masks[seed % 5]), random);
      if (test.spec.mask.has_bias) test.bias = converted(test.bias, bias_dtypes[seed / 5 % 3]);
      ASSERT_NO_FATAL_FAILURE(expect_no_byte_too_many(test));
    }
}

TEST_P(GuardTest, EveryHeadSizeUpToThirtyThree) {
  for (std::int64_t dim = 1; dim <= 33; ++dim)
    for (const std::int64_t query_length : {1, 4, 18}) {
      Random random(static_cast<std::uint64_t>(dim));
      ASSERT_NO_FATAL_FAILURE(
          expect_no_byte_too_many(make_case(attention_spec(1, 1, 1, query_length, 11, dim, 34 - dim), random)));
    }
}

TEST_P(GuardTest, WholePages) {
  std::size_t turn = 0;
  for (const std::int64_t query_length : {1, 16, 64}) {
    Random random(3);
    AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, 128, 64, 64, Mask::boolean() & Mask::bias()), random);
    test.bias = converted(test.bias, bias_dtypes[turn++ % 3]);
    ASSERT_NO_FATAL_FAILURE(expect_no_byte_too_many(test));
  }
}

TEST_P(GuardTest, SharedMasks) {
  Random random(5);
  const std::vector<std::vector<std::int64_t>> shapes = {{1}, {9, 1}, {23}, {1, 23}, {4, 1, 23}, {2, 1, 1, 1}, {2, 1, 9, 23}};
  for (const auto& shape : shapes)
    for (const Guard guard : {Guard::before, Guard::behind})
      for (const DType bias_dtype : bias_dtypes) {
        AttentionCase test = make_case(attention_spec(2, 4, 2, 9, 23, 8, 8, Mask::boolean() & Mask::bias()), random);
        test.boolean_mask = Tensor(DType::boolean, shape, guard);
        fill(test.boolean_mask, [&] { return random.chance(0.7) ? 1.0 : 0.0; });
        test.bias = Tensor(bias_dtype, shape, guard);
        fill_normal(test.bias, random);
        EXPECT_TRUE(run_and_compare(test, runtime(1)));
      }
}

// Keys at and behind an item's length need not even be memory that can be read.
TEST_P(GuardTest, KeysBehindTheLengthAreNotRead) {
  for (const std::int64_t query_length : {1, 3, 20})
    for (const std::int64_t length : {0, 1, 5, 16, 33}) {
      Random random(7);
      AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, length, 8, 8), random);
      test.key = guarded(test.key, Guard::behind, {0, 1, 2, 3});
      test.value = guarded(test.value, Guard::behind, {0, 1, 2, 3});
      const Tensor right = run_fresh(test, runtime());
      // A view that claims more keys than there is memory; the length says how many are real.
      AttentionCase longer = test;
      longer.spec.mask = Mask::key_lengths();
      longer.spec.key_length = 100;
      TensorView key = test.key, value = test.value;
      key.shape[2] = value.shape[2] = 100;
      longer.key = test.key.viewed(key);
      longer.value = test.value.viewed(value);
      longer.key_lengths = integers(DType::i64, {length});
      const Tensor out = run_fresh(longer, runtime());
      EXPECT_TRUE(same_bits(right, out)) << longer.describe() << ": " << first_difference(right, out);
    }
}

TEST_P(GuardTest, ACallersWorkspace) {
  for (const int threads : {1, 2})
    for (const std::int64_t query_length : {1, 40}) {
      Random random(9);
      AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, 1500, 16, 16), random);
      const AttentionPlan plan(test.spec, runtime(threads));
      const Tensor right = run_fresh(test, runtime(threads));
      // Rounded up to whole cache lines, so that it is aligned and ends at the guard page; the rest is in front.
      const std::size_t bytes = (plan.workspace_bytes() + 63) / 64 * 64;
      const GuardedBuffer workspace(bytes, Guard::behind);
      RunOptions options;
      options.workspace = workspace.data();
      options.workspace_bytes = bytes;
      fill(test.out, 7.0);
      plan.run(test.inputs(), options);
      EXPECT_TRUE(same_bits(right, test.out)) << first_difference(right, test.out);
      std::fill(workspace.data(), workspace.data() + bytes, static_cast<unsigned char>(0xFF));  // NaN everywhere
      plan.run(test.inputs(), options);
      EXPECT_TRUE(same_bits(right, test.out)) << "the workspace's contents matter: " << first_difference(right, test.out);
    }
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(GuardTest);

}  // namespace
}  // namespace polyhead::testing
