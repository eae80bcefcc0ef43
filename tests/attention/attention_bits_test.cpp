// The same bits however a row is computed: threads, repetition, its place in a batch, what is asked for beside it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

class BitsTest : public EveryIsaAndDType {
 protected:
  struct Shape {
    std::int64_t batch, heads, kv_heads, query_length, key_length, head_dim, value_dim;
    Mask mask;
    bool changes_scores = false;  // by softcap, ALiBi and sinks
  };
  std::vector<AttentionCase> cases() const {
    const Shape shapes[] = {
        {3, 4, 2, 1, 100, 16, 16, Mask::none()},
        {2, 8, 1, 3, 1100, 8, 8, Mask::causal(Causal::bottom_right)},
        {4, 2, 2, 33, 70, 17, 9, Mask::key_lengths()},
        {2, 6, 3, 130, 130, 32, 32, Mask::causal(Causal::top_left) & Mask::boolean()},
        {1, 2, 2, 260, 90, 64, 64, Mask::bias()},
        {2, 4, 4, 64, 64, 40, 40, Mask::causal(Causal::bottom_right) & Mask::window(20, 0) & Mask::key_lengths()},
        {3, 3, 1, 7, 4200, 8, 8, Mask::none()},
        {1, 32, 8, 1, 2049, 16, 16, Mask::none()},
        {1, 1, 1, 1, 5000, 8, 8, Mask::window(3000, 5)},
        {3, 4, 2, 1, 4200, 16, 16, Mask::causal(Causal::bottom_right) & Mask::key_lengths(), true},
        {2, 6, 3, 130, 130, 32, 32, Mask::causal(Causal::top_left) & Mask::boolean(), true},
        // A few rows behind the last whole vector.
        {2, 2, 2, 19, 3000, 24, 16, Mask::none()},
        {3, 4, 2, 26, 90, 16, 16, Mask::causal(Causal::bottom_right) & Mask::key_lengths()},
        {2, 2, 1, 25, 2300, 8, 8, Mask::boolean(), true},
    };
    std::vector<AttentionCase> all;
    Random random(2026);
    for (const Shape& s : shapes) {
      if (slow() && s.heads * s.query_length * s.key_length > 60000) continue;
      AttentionSpec spec =
          attention_spec(s.batch, s.heads, s.kv_heads, s.query_length, s.key_length, s.head_dim, s.value_dim, s.mask);
      spec.softcap = s.changes_scores ? 2.0 : 0.0;
      spec.has_alibi = spec.has_sink = s.changes_scores;
      all.push_back(make_case(spec, random));
    }
    return all;
  }
  void expect_same(const TensorView& a, const TensorView& b, const AttentionCase& test, const std::string& what) const {
    EXPECT_TRUE(same_bits(a, b)) << what << ": " << first_difference(a, b) << "; " << test.describe() << ", " << name(isa());
  }
};

// A case whose batch is item b alone.
AttentionCase item(const AttentionCase& test, std::int64_t b) {
  AttentionCase alone = test;
  alone.spec.batch = 1;
  const auto one = [&](const Tensor& tensor) { return tensor.viewed(slice(tensor, 0, b, b + 1)); };
  alone.query = one(test.query);
  alone.key = one(test.key);
  alone.value = one(test.value);
  alone.out = Tensor(test.spec.dtype, {1, test.spec.heads, test.spec.query_length, test.spec.value_dim});
  alone.lse = Tensor(DType::f32, {1, test.spec.heads, test.spec.query_length});
  if (test.spec.mask.has_key_lengths) alone.key_lengths = one(test.key_lengths);
  if (test.spec.mask.has_offsets) alone.offsets = one(test.offsets);
  if (test.spec.mask.has_boolean) alone.boolean_mask = one(test.boolean_mask);
  if (test.spec.mask.has_bias) alone.bias = one(test.bias);
  return alone;
}

TEST_P(BitsTest, AreTheSameForAnyNumberOfThreads) {
  for (const AttentionCase& test : cases()) {
    const Tensor one = run_fresh(test, runtime(1));
    for (const int threads : {2, 3, 5})
      expect_same(one, run_fresh(test, runtime(threads)), test, std::to_string(threads) + " threads");
  }
}

TEST_P(BitsTest, AreTheSameRunAfterRunAndPlanAfterPlan) {
  for (const AttentionCase& test : cases()) {
    const AttentionPlan plan(test.spec, runtime(2));
    plan.run(test.inputs());
    const Tensor first = test.out.clone();
    for (int repeat = 0; repeat < 3; ++repeat) {
      fill(test.out, 7.0);
      plan.run(test.inputs());
      expect_same(first, test.out, test, "run " + std::to_string(repeat));
    }
    expect_same(first, run_fresh(test, runtime(2)), test, "another plan");
  }
}

TEST_P(BitsTest, OfLseAreTheSameForAnyNumberOfThreadsAndOutDoesNotChangeWithIt) {
  for (const AttentionCase& test : cases()) {
    const Tensor without = run_fresh(test, runtime(1));
    AttentionPlan(test.spec, runtime(1)).run(test.inputs_with_lse());
    const Tensor lse = test.lse.clone();
    expect_same(without, test.out, test, "asking for lse");
    AttentionPlan(test.spec, runtime(2)).run(test.inputs_with_lse());
    expect_same(without, test.out, test, "asking for lse, 2 threads");
    expect_same(lse, test.lse, test, "lse");
  }
}

TEST_P(BitsTest, OfAnItemAreTheSameAloneAndInABatch) {
  for (const AttentionCase& test : cases()) {
    const Tensor together = run_fresh(test, runtime(2));
    for (std::int64_t b = 0; b < test.spec.batch; ++b)
      expect_same(slice(together, 0, b, b + 1), run_fresh(item(test, b), runtime()), test, "item " + std::to_string(b));
  }
}

TEST_P(BitsTest, OfAnItemDoNotDependOnItsPlaceInTheBatch) {
  Random random(31);
  const AttentionCase test = make_case(attention_spec(1, 2, 1, 9, 75, 16, 16), random);
  const Tensor alone = run_fresh(test, runtime());
  for (const std::int64_t batch : {2, 5, 13}) {
    AttentionCase many = make_case(attention_spec(batch, 2, 1, 9, 75, 16, 16), random);
    for (std::int64_t b = 0; b < batch; ++b) {
      copy(test.query, slice(many.query, 0, b, b + 1));
      copy(test.key, slice(many.key, 0, b, b + 1));
      copy(test.value, slice(many.value, 0, b, b + 1));
    }
    const Tensor out = run_fresh(many, runtime(2));
    for (std::int64_t b = 0; b < batch; ++b) expect_same(alone, slice(out, 0, b, b + 1), many, "place " + std::to_string(b));
  }
}

TEST_P(BitsTest, OfAHeadDoNotDependOnTheNumberOfHeads) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, {8, 4}, {12, 3}})
    for (const std::int64_t query_length : {1, 20}) {
      Random random(37);
      const std::int64_t group = heads / kv_heads;
      const AttentionCase test = make_case(attention_spec(2, heads, kv_heads, query_length, 300, 16, 16), random);
      const Tensor all = run_fresh(test, runtime(2));
      for (std::int64_t g = 0; g < kv_heads; ++g) {
        AttentionCase part = test;
        part.spec.heads = group;
        part.spec.kv_heads = 1;
        part.query = test.query.viewed(slice(test.query, 1, g * group, (g + 1) * group));
        part.key = test.key.viewed(slice(test.key, 1, g, g + 1));
        part.value = test.value.viewed(slice(test.value, 1, g, g + 1));
        part.out = Tensor(dtype(), {2, group, query_length, 16});
        expect_same(slice(all, 1, g * group, (g + 1) * group), run_fresh(part, runtime()), test,
                    "kv head " + std::to_string(g));
      }
    }
}

TEST_P(BitsTest, DoNotDependOnThePlansMaximum) {
  for (const AttentionCase& test : cases()) {
    const Tensor exact = run_fresh(test, runtime());
    AttentionSpec larger = test.spec;
    larger.batch += 2;
    larger.query_length += 150;
    larger.key_length += 1500;
    const AttentionPlan plan(larger, runtime(2));
    fill(test.out, 7.0);
    plan.run(test.inputs());
    expect_same(exact, test.out, test, "a plan for larger sizes");
  }
}

TEST_P(BitsTest, DoNotDependOnStridesOrAlignment) {
  for (const AttentionCase& test : cases()) {
    const AttentionSpec& spec = test.spec;
    const Tensor contiguous = run_fresh(test, runtime());
    AttentionCase moved = test;
    const std::vector<std::int64_t> query_shape = {spec.batch, spec.heads, spec.query_length, spec.head_dim};
    moved.query = Tensor::ordered(dtype(), query_shape, {0, 2, 1, 3}, 3);
    moved.key = Tensor::ordered(dtype(), {spec.batch, spec.kv_heads, spec.key_length, spec.head_dim}, {2, 0, 1, 3}, 1);
    moved.value = Tensor::ordered(dtype(), {spec.batch, spec.kv_heads, spec.key_length, spec.value_dim}, {0, 1, 3, 2}, 0, 2);
    copy(test.query, moved.query);
    copy(test.key, moved.key);
    copy(test.value, moved.value);
    moved.out = Tensor::ordered(dtype(), {spec.batch, spec.heads, spec.query_length, spec.value_dim}, {0, 2, 1, 3}, 5);
    expect_same(contiguous, run_fresh(moved, runtime()), test, "other strides");
  }
}

// A sequence alone and padded to the batch's longest: equal bits for its rows, given length_invariant.
TEST_P(BitsTest, OfASequenceAreTheSamePaddedAndAloneWhenLengthInvariant) {
  const std::int64_t longest = 90;
  for (const Causal causal : {Causal::none, Causal::top_left}) {
    Mask mask = Mask::key_lengths();
    if (causal != Causal::none) mask = mask & Mask::causal(causal);
    Random random(41);
    AttentionCase padded = make_case(attention_spec(8, 4, 2, longest, longest, 16, 16, mask), random);
    padded.spec.length_invariant = true;
    const std::vector<std::int64_t> lengths = {1, 2, 3, 8, 17, 64, 65, longest};
    padded.key_lengths = integers(DType::i64, lengths);
    ASSERT_TRUE(run_and_compare(padded, runtime()));
    const Tensor together = run_fresh(padded, runtime(2));
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto b = static_cast<std::int64_t>(i);
      const std::int64_t length = lengths[i];
      AttentionCase alone = item(padded, b);
      alone.spec.query_length = alone.spec.key_length = length;
      alone.query = alone.query.viewed(slice(alone.query, 2, 0, length));
      alone.key = alone.key.viewed(slice(alone.key, 2, 0, length));
      alone.value = alone.value.viewed(slice(alone.value, 2, 0, length));
      alone.out = Tensor(dtype(), {1, 4, length, 16});
      const TensorView rows = slice(slice(together, 0, b, b + 1), 2, 0, length);
      expect_same(rows, run_fresh(alone, runtime()), padded, "length " + std::to_string(length) + " alone");
      // Without the part of the mask that is idle when the sequence is alone.
      alone.spec.mask.has_key_lengths = false;
      expect_same(rows, run_fresh(alone, runtime()), padded, "length " + std::to_string(length) + " alone without lengths");
    }
  }
}

TEST_P(BitsTest, OfARowDoNotDependOnTheOtherQueriesWhenLengthInvariant) {
  Random random(43);
  AttentionCase test = make_case(attention_spec(1, 4, 2, 60, 700, 16, 16), random);
  test.spec.length_invariant = true;
  const Tensor all = run_fresh(test, runtime());
  for (const std::int64_t begin : {0, 1, 7, 31, 59})
    for (const std::int64_t count : {1, 2, 5, 29}) {
      if (begin + count > 60) continue;
      AttentionCase few = test;
      few.spec.query_length = count;
      few.query = test.query.viewed(slice(test.query, 2, begin, begin + count));
      few.out = Tensor(dtype(), {1, 4, count, 16});
      expect_same(slice(all, 2, begin, begin + count), run_fresh(few, runtime()), few, "rows from " + std::to_string(begin));
    }
}

// Keys that the mask's structure hides are as if the sequence ended before them.
TEST_P(BitsTest, DoNotDependOnKeysBehindTheLength) {
  for (const std::int64_t query_length : {1, 4, 40})
    for (const std::int64_t length : {1, 33, 64, 100}) {
      Random random(47);
      AttentionCase test = make_case(attention_spec(1, 4, 2, query_length, 1300, 16, 16, Mask::key_lengths()), random);
      test.key_lengths = integers(DType::i32, {length});
      const Tensor masked = run_fresh(test, runtime(2));
      AttentionCase exact = test;
      exact.spec.key_length = length;
      exact.key = test.key.viewed(slice(test.key, 2, 0, length));
      exact.value = test.value.viewed(slice(test.value, 2, 0, length));
      expect_same(masked, run_fresh(exact, runtime()), test, "keys cut at " + std::to_string(length));
    }
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(BitsTest);

}  // namespace
}  // namespace polyhead::testing
