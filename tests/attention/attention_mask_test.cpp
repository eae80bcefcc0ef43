// What each mask means: corners, windows, lengths, booleans, biases, empty rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class MaskTest : public EveryIsa {
 protected:
  // Query 0, so that every visible key weighs the same; value[s] = s: a row's output is the mean index of what it sees.
  static AttentionCase mean_index(std::int64_t query_length, std::int64_t key_length, const Mask& mask,
                                  std::int64_t batch = 1) {
    Random random(7);
    AttentionCase test = make_case(attention_spec(batch, 1, 1, query_length, key_length, 8, 1, mask), random);
    fill(test.query, 0.0);
    std::int64_t next = 0;
    if (key_length > 0) fill(test.value, [&] { return static_cast<double>(next++ % key_length); });
    return test;
  }
  std::vector<float> out_of(const AttentionCase& test) const {
    const Tensor out = run_fresh(test, runtime());
    return std::vector<float>(out.f32(), out.f32() + out.view().element_count());
  }
  static void expect_near(const std::vector<float>& actual, const std::vector<float>& right) {
    ASSERT_EQ(actual.size(), right.size());
    for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(actual[i], right[i], 4e-6 * (1 + right[i])) << "row " << i;
  }
  static bool all_zero(const TensorView& view) {
    bool zero = true;
    for_each_offset(view, [&](std::int64_t offset) { zero = zero && load(view, offset) == 0; });
    return zero;
  }
};

// ---- the causal corner

TEST_P(MaskTest, TopLeftCausalCountsFromTheFirstKey) {
  expect_near(out_of(mean_index(2, 5, Mask::causal(Causal::top_left))), {0, 0.5});
  expect_near(out_of(mean_index(3, 3, Mask::causal(Causal::top_left))), {0, 0.5, 1});
  expect_near(out_of(mean_index(5, 2, Mask::causal(Causal::top_left))), {0, 0.5, 0.5, 0.5, 0.5});
}

TEST_P(MaskTest, BottomRightCausalLetsTheLastQuerySeeTheLastKey) {
  expect_near(out_of(mean_index(2, 5, Mask::causal(Causal::bottom_right))), {1.5, 2});
  expect_near(out_of(mean_index(3, 3, Mask::causal(Causal::bottom_right))), {0, 0.5, 1});
  expect_near(out_of(mean_index(1, 5, Mask::causal(Causal::bottom_right))), {2});
}

TEST_P(MaskTest, BottomRightCausalLeavesTheFirstQueriesEmptyWhenKeysAreFewer) {
  const AttentionCase test = mean_index(5, 2, Mask::causal(Causal::bottom_right));
  EXPECT_EQ(out_of(test), (std::vector<float>{0, 0, 0, 0, 0.5}));
  EXPECT_TRUE(run_and_compare(test, runtime()));
}

TEST_P(MaskTest, BottomRightCausalFollowsEachItemsKeyLength) {
  AttentionCase test = mean_index(2, 6, Mask::causal(Causal::bottom_right) & Mask::key_lengths(), 4);
  test.key_lengths = integers(DType::i64, {6, 3, 1, 0});
  expect_near(out_of(test), {2, 2.5, 0.5, 1, 0, 0, 0, 0});
}

TEST_P(MaskTest, AnOffsetIsGivenPerItem) {
  AttentionCase test = mean_index(2, 6, Mask::causal(Causal::offset) & Mask::offsets(), 5);
  test.offsets = integers(DType::i32, {0, 3, -1, 100, -100});
  expect_near(out_of(test), {0, 0.5, 1.5, 2, 0, 0, 2.5, 2.5, 0, 0});
}

TEST_P(MaskTest, HugeOffsetsDoNotOverflow) {
  const std::int64_t most = std::int64_t{1} << 60;  // beyond it an offset is refused
  AttentionCase test = mean_index(2, 6, Mask::causal(Causal::offset) & Mask::offsets() & Mask::window(3, Mask::unbounded), 4);
  test.offsets = integers(DType::i64, {std::int64_t{1} << 40, -(std::int64_t{1} << 40), most, -most});
  EXPECT_EQ(out_of(test), (std::vector<float>(8, 0)));  // far right of the window, or left of the first key
  AttentionCase causal = mean_index(2, 6, Mask::causal(Causal::offset) & Mask::offsets(), 2);
  causal.offsets = integers(DType::i64, {most, -most});
  expect_near(out_of(causal), {2.5, 2.5, 0, 0});
  causal.offsets = integers(DType::i64, {0, std::numeric_limits<std::int64_t>::max()});
  try {
    out_of(causal);
    ADD_FAILURE() << "an offset of 2^63 - 1 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("offsets[1]"), std::string::npos) << error.what();
  }
}

TEST_P(MaskTest, PrefillThenSingleStepsEqualOnePass) {
  const std::int64_t length = 37, prompt = 20;
  Random random(11);
  const AttentionCase whole =
      make_case(attention_spec(1, 4, 2, length, length, 16, 16, Mask::causal(Causal::bottom_right)), random);
  ASSERT_TRUE(run_and_compare(whole, runtime()));
  const oracle::AttentionResult expected = oracle::attention(whole.inputs(), whole.options());
  for (std::int64_t begin = 0, end = prompt; end <= length; begin = end, ++end) {
    AttentionCase step = whole;
    step.spec.query_length = end - begin;
    step.spec.key_length = end;
    step.query = whole.query.viewed(slice(whole.query, 2, begin, end));
    step.key = whole.key.viewed(slice(whole.key, 2, 0, end));
    step.value = whole.value.viewed(slice(whole.value, 2, 0, end));
    step.out = Tensor(DType::f32, {1, 4, end - begin, 16});
    step.lse = Tensor(DType::f32, {1, 4, end - begin});
    ASSERT_TRUE(run_and_compare(step, runtime()));
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t e = 0; e < 16; ++e)
          ASSERT_NEAR(step.out({0, h, t - begin, e}), expected.out.row(h * length + t)[e], 1e-5);
  }
}

// ---- windows

TEST_P(MaskTest, WindowsAreInclusive) {
  const auto row_nine = [&](std::int64_t left) {
    return out_of(mean_index(10, 10, Mask::causal(Causal::top_left) & Mask::window(left, 0)))[9];
  };
  EXPECT_NEAR(row_nine(3), 7.5, 1e-5);
  EXPECT_NEAR(row_nine(4), 7.0, 1e-5);
}

TEST_P(MaskTest, AWindowOfZeroSeesTheDiagonalAlone) {
  expect_near(out_of(mean_index(4, 4, Mask::window(0, 0))), {0, 1, 2, 3});
  expect_near(out_of(mean_index(1, 9, Mask::causal(Causal::bottom_right) & Mask::window(0, 0))), {8});
}

TEST_P(MaskTest, AWindowAsWideAsTheKeysIsNoWindow) {
  Random random(13);
  AttentionCase narrow = make_case(attention_spec(1, 2, 2, 33, 33, 16, 16, Mask::causal(Causal::top_left)), random);
  const Tensor without = run_fresh(narrow, runtime());
  for (const std::int64_t left : {std::int64_t{33}, std::int64_t{1000}, std::numeric_limits<std::int64_t>::max()}) {
    narrow.spec.mask = Mask::causal(Causal::top_left) & Mask::window(left, 0);
    EXPECT_TRUE(run_and_compare(narrow, runtime()));
    EXPECT_TRUE(
        array_matches(oracle::to_array(without), run_fresh(narrow, runtime()), 1e-6, 1e-6, "left " + std::to_string(left)));
  }
}

TEST_P(MaskTest, WindowsWithoutCausalLookBothWays) {
  expect_near(out_of(mean_index(5, 5, Mask::window(1, 2))), {1, 1.5, 2.5, 3, 3.5});
  expect_near(out_of(mean_index(3, 5, Mask::window(Mask::unbounded, 1))), {0.5, 1, 1.5});
  expect_near(out_of(mean_index(3, 5, Mask::window(1, Mask::unbounded))), {2, 2, 2.5});
}

TEST_P(MaskTest, AWindowWithoutCausalTakesItsDiagonalFromTheOffsets) {
  AttentionCase test = mean_index(2, 8, Mask::window(1, 1) & Mask::offsets(), 3);
  test.offsets = integers(DType::i64, {0, 4, 20});
  expect_near(out_of(test), {0.5, 1, 4, 5, 0, 0});
}

TEST_P(MaskTest, KeptKeysStayInSightBesideAWindow) {
  expect_near(out_of(mean_index(6, 6, Mask::causal(Causal::top_left) & Mask::window(1, 0, 1))),
              {0, 0.5, 1, 5.0f / 3, 7.0f / 3, 3});
  expect_near(out_of(mean_index(1, 9, Mask::causal(Causal::bottom_right) & Mask::window(1, 0, 1))), {5});
  // Causal, the window's right side and lengths hide them still.
  expect_near(out_of(mean_index(3, 6, Mask::causal(Causal::top_left) & Mask::window(0, 0, 5))), {0, 0.5, 1});
  expect_near(out_of(mean_index(3, 6, Mask::window(0, 1, 6))), {0.5, 1, 1.5});
  AttentionCase test = mean_index(2, 8, Mask::window(1, 1, 2) & Mask::offsets() & Mask::key_lengths(), 3);
  test.offsets = integers(DType::i64, {0, 4, 20});
  test.key_lengths = integers(DType::i64, {8, 8, 2});
  expect_near(out_of(test), {0.5, 1, 2.6f, 3.2f, 0.5, 0.5});
  // Without a left side there is nothing for them to stay in sight of; as many as there are keys are no window.
  expect_near(out_of(mean_index(3, 5, Mask::window(Mask::unbounded, 1, 3))), {0.5, 1, 1.5});
  expect_near(out_of(mean_index(3, 5, Mask::window(0, Mask::unbounded, std::numeric_limits<std::int64_t>::max()))), {2, 2, 2});
}

// Of keys and values between the kept and the visible ones nothing is seen.
TEST_P(MaskTest, KeptKeysOfEveryNumberWithPrefillAndDecode) {
  Random random(18);
  for (const std::int64_t kept : {1, 4, 127, 128, 129, 300})
    for (const std::int64_t query_length : {1, 2, 17, 70}) {
      const Mask mask = Mask::causal(Causal::bottom_right) & Mask::window(20, 0, kept);
      AttentionCase test = make_case(attention_spec(1, 4, 2, query_length, 700, 16, 16, mask), random);
      for (std::int64_t s = kept; s < 700 - query_length - 20; ++s) test.value.set({0, s % 2, s, s % 16}, not_a_number);
      for (const int threads : {1, 2}) ASSERT_TRUE(run_and_compare(test, runtime(threads)));
    }
}

// Keys are split: the kept ones and the window lie in different splits, and there are splits between them.
TEST_P(MaskTest, KeptKeysAndSplitKeys) {
  for (const std::int64_t rows : {1, 2, 24}) {
    Random random(19);
    const Mask mask = Mask::causal(Causal::bottom_right) & Mask::window(100, 0, 5);
    const AttentionCase test = make_case(attention_spec(2, 2, 1, rows, 9000, 8, 8, mask), random);
    for (const int threads : {1, 2}) EXPECT_TRUE(run_and_compare(test, runtime(threads)));
  }
}

TEST_P(MaskTest, SlidingWindowsMatchWithPrefillAndDecode) {
  Random random(17);
  for (const std::int64_t left : {0, 1, 15, 16, 17, 63, 64, 65, 200})
    for (const std::int64_t query_length : {1, 2, 17, 130}) {
      const Mask mask = Mask::causal(Causal::bottom_right) & Mask::window(left, 0);
      ASSERT_TRUE(run_and_compare(make_case(attention_spec(1, 2, 1, query_length, 200, 16, 16, mask), random), runtime()));
    }
}

// ---- empty rows

TEST_P(MaskTest, ABooleanRowOfFalseGivesExactZeros) {
  Random random(19);
  AttentionCase test = make_case(attention_spec(1, 2, 2, 6, 10, 8, 8, Mask::boolean()), random);
  test.spec.scale = 0.125;
  test.boolean_mask = Tensor(DType::boolean, {1, 1, 6, 10});
  for (std::int64_t t = 0; t < 6; ++t)
    for (std::int64_t s = 0; s < 10; ++s) test.boolean_mask.set({0, 0, t, s}, t < 5 && s <= t);
  EXPECT_TRUE(run_and_compare(test, runtime()));
  EXPECT_TRUE(all_zero(slice(run_fresh(test, runtime()), 2, 5, 6)));
}

TEST_P(MaskTest, EveryWayToHideEveryKeyGivesZerosAndLseMinusInfinity) {
  const auto expect_empty = [&](AttentionCase test) {
    fill(test.out, 1.0);
    fill(test.lse, 1.0);
    AttentionPlan(test.spec, runtime()).run(test.inputs_with_lse());
    EXPECT_TRUE(all_zero(test.out)) << test.describe();
    for_each_offset(test.lse, [&](std::int64_t offset) { EXPECT_EQ(load(test.lse, offset), -infinity) << test.describe(); });
  };
  std::size_t turn = 0;
  for (const std::int64_t query_length : {1, 3, 20})
    for (const std::int64_t key_length : {4, 70, 4200}) {  // the last in several splits, each of which is empty
      Random random(23);
      const std::vector<DType> dtypes = attention_dtypes();
      const auto with = [&](const Mask& mask) {
        AttentionSpec spec = attention_spec(1, 4, 2, query_length, key_length, 8, 8, mask);
        spec.dtype = dtypes[turn++ % dtypes.size()];
        return make_case(spec, random);
      };
      AttentionCase boolean = with(Mask::boolean());
      fill(boolean.boolean_mask, 0.0);
      expect_empty(boolean);
      AttentionCase bias = with(Mask::bias());
      fill(bias.bias, -static_cast<double>(infinity));
      expect_empty(bias);
      AttentionCase lengths = with(Mask::key_lengths());
      lengths.key_lengths = integers(DType::i32, {0});
      expect_empty(lengths);
      AttentionCase offsets = with(Mask::causal(Causal::offset) & Mask::offsets());
      offsets.offsets = integers(DType::i32, {-1000});
      expect_empty(offsets);
      // Each part alone leaves something: together nothing.
      AttentionCase crossed = with(Mask::key_lengths() & Mask::boolean());
      crossed.key_lengths = integers(DType::i32, {2});
      fill(crossed.boolean_mask, 1.0);
      fill(slice(crossed.boolean_mask, 3, 0, 2), 0.0);
      expect_empty(crossed);
      AttentionCase halves = with(Mask::bias() & Mask::boolean());
      fill(halves.bias, 0.0);
      fill(slice(halves.bias, 3, 0, 3), -static_cast<double>(infinity));
      fill(halves.boolean_mask, 0.0);
      fill(slice(halves.boolean_mask, 3, 0, 3), 1.0);
      expect_empty(halves);
    }
}

// A batch that is padded on the left: under causal the first rows see padding alone. Whichever part of a mask says so, these
// rows are empty and the others see what they see.
TEST_P(MaskTest, LeftPaddingUnderCausalEmptiesTheFirstRowsAlone) {
  for (const DType dtype : attention_dtypes())
    for (const std::pair<std::int64_t, std::int64_t>& sizes :
         {std::pair<std::int64_t, std::int64_t>{6, 2}, {40, 17}, {150, 129}}) {
      const auto length = sizes.first, padding = sizes.second;
      Random random(27);
      const auto check = [&](const Mask& part, const auto& hide) {
        AttentionSpec spec = attention_spec(2, 4, 2, length, length, 16, 16, Mask::causal(Causal::top_left) & part);
        spec.dtype = dtype;
        AttentionCase test = make_case(spec, random);
        hide(test);
        ASSERT_TRUE(run_and_compare(test, runtime(2)));
        EXPECT_TRUE(all_zero(slice(test.out, 2, 0, padding))) << test.describe();
        const TensorView lse = slice(test.lse, 2, 0, padding);
        AttentionPlan(test.spec, runtime()).run(test.inputs_with_lse());
        for_each_offset(lse, [&](std::int64_t offset) { ASSERT_EQ(load(lse, offset), -infinity) << test.describe(); });
        const TensorView first_seen = slice(test.lse, 2, padding, padding + 1);
        for_each_offset(first_seen, [&](std::int64_t offset) { ASSERT_TRUE(std::isfinite(load(first_seen, offset))); });
      };
      check(Mask::boolean(), [padding](const AttentionCase& test) {
        fill(test.boolean_mask, 1.0);
        fill(slice(test.boolean_mask, 3, 0, padding), 0.0);
      });
      check(Mask::bias(), [padding](const AttentionCase& test) {
        fill(test.bias, 0.5);
        fill(slice(test.bias, 3, 0, padding), -static_cast<double>(infinity));
      });
      check(Mask::segments(), [length, padding](AttentionCase& test) {
        test.query_segments = Tensor(DType::i32, {1, length});
        test.key_segments = Tensor(DType::i64, {1, length});
        fill(test.query_segments, 1.0);
        fill(test.key_segments, 1.0);
        fill(slice(test.key_segments, 1, 0, padding), 0.0);
      });
    }
}

TEST_P(MaskTest, OneEmptyHeadLeavesTheOthersAlone) {
  Random random(29);
  AttentionCase test = make_case(attention_spec(2, 3, 3, 5, 9, 8, 8, Mask::boolean()), random);
  test.boolean_mask = Tensor(DType::boolean, {1, 3, 1, 1});
  fill(test.boolean_mask, 1.0);
  test.boolean_mask.set({0, 1, 0, 0}, 0);
  EXPECT_TRUE(run_and_compare(test, runtime()));
  EXPECT_TRUE(all_zero(slice(run_fresh(test, runtime()), 1, 1, 2)));
}

TEST_P(MaskTest, AFiniteBiasIsArithmeticHoweverNegative) {
  for (const double everywhere : {-1e4, -1e9}) {
    AttentionCase test = mean_index(3, 5, Mask::bias());
    fill(test.bias, everywhere);
    expect_near(out_of(test), {2, 2, 2});
  }
  // The lowest float on every key: all scores equal it, whatever is added to it in f32.
  Random random(31);
  AttentionCase lowest = make_case(attention_spec(1, 1, 1, 3, 40, 8, 1, Mask::bias()), random);
  fill(lowest.query, 0.0);
  fill(lowest.value, 3.0);
  fill(lowest.bias, std::numeric_limits<float>::lowest());
  expect_near(out_of(lowest), {3, 3, 3});
  // On all but one, it leaves that one.
  AttentionCase one = mean_index(2, 9, Mask::bias());
  fill(one.bias, std::numeric_limits<float>::lowest());
  fill(slice(one.bias, 3, 4, 5), 1.0);
  expect_near(out_of(one), {4, 4});
  EXPECT_TRUE(run_and_compare(one, runtime()));
}

// ---- booleans and biases

TEST_P(MaskTest, TrueMeansAttendAndEqualsABiasOfZeroOrMinusInfinity) {
  Random random(37);
  for (const std::int64_t query_length : {1, 6, 33}) {
    AttentionCase boolean = make_case(attention_spec(2, 4, 2, query_length, 50, 16, 16, Mask::boolean()), random);
    AttentionCase bias = boolean;
    bias.spec.mask = Mask::bias();
    bias.bias = Tensor(DType::f32, {2, 4, query_length, 50});
    AttentionCase inverted = boolean;
    inverted.boolean_mask = boolean.boolean_mask.clone();
    fill(inverted.boolean_mask, 0.0);
    for (std::int64_t i = 0; i < 8 * query_length * 50; ++i) {
      const bool keep = load(boolean.boolean_mask, i) != 0;
      bias.bias.f32()[i] = keep ? 0 : -infinity;
      store(inverted.boolean_mask, i, keep ? 0 : 1);
    }
    EXPECT_TRUE(run_and_compare(boolean, runtime()));
    EXPECT_TRUE(run_and_compare(bias, runtime()));
    EXPECT_TRUE(array_matches(oracle::to_array(run_fresh(boolean, runtime())), run_fresh(bias, runtime()), 2e-6, 2e-6, "bias"));
    EXPECT_FALSE(same_bits(run_fresh(boolean, runtime()), run_fresh(inverted, runtime())));
  }
}

TEST_P(MaskTest, AnyNonZeroByteIsTrue) {
  Random random(41);
  AttentionCase test = make_case(attention_spec(1, 2, 1, 9, 40, 16, 16, Mask::boolean()), random);
  test.boolean_mask = Tensor(DType::u8, {1, 2, 9, 40});
  fill(test.boolean_mask, [&] { return random.chance(0.3) ? 0.0 : static_cast<double>(random.integer(1, 255)); });
  EXPECT_TRUE(run_and_compare(test, runtime()));
}

TEST_P(MaskTest, ARandomFloatBiasIsAddedNeverReadAsABoolean) {
  Random random(43);
  AttentionCase test = make_case(attention_spec(2, 2, 2, 21, 45, 16, 16, Mask::bias()), random);
  fill_normal(test.bias, random, 3);
  EXPECT_TRUE(run_and_compare(test, runtime()));
  AttentionCase zero = test;
  zero.bias = Tensor(DType::f32, {1});
  fill(zero.bias, 0.0);
  AttentionCase none = test;
  none.spec.mask = Mask::none();
  EXPECT_TRUE(array_matches(oracle::to_array(run_fresh(none, runtime())), run_fresh(zero, runtime()), 2e-6, 2e-6,
                            "a bias of 0 changes nothing"));
}

TEST_P(MaskTest, BroadcastsInAllSixteenPatternsWithJunkStridesOnSizeOne) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 3, 5, 19}, {2, 3, 1, 2100}})
    for (int turn = 0; turn < 32; ++turn) {
      const int pattern = turn / 2;
      const bool junk = turn % 2 != 0;
      std::vector<std::int64_t> shape(4), strides(4);
      std::int64_t stride = 1;
      for (int i = 3; i >= 0; --i) {
        const auto dimension = static_cast<std::size_t>(i);
        shape[dimension] = (pattern >> i & 1) != 0 ? 1 : sizes[dimension];
        strides[dimension] = shape[dimension] == 1 && junk ? (i % 2 == 0 ? std::int64_t{1} << 60 : -77777) : stride;
        stride *= shape[dimension];
      }
      Random random(static_cast<std::uint64_t>(47 + pattern));
      AttentionCase test = make_case(attention_spec(2, 3, 1, sizes[2], sizes[3], 8, 8, Mask::boolean() & Mask::bias()), random);
      test.boolean_mask = Tensor(DType::boolean, shape, strides);
      fill(test.boolean_mask, [&] { return random.chance(0.6) ? 1.0 : 0.0; });
      const DType bias_dtype = bias_dtypes[(pattern + turn) % 3];
      test.bias = Tensor(bias_dtype, shape, strides);
      fill_normal(test.bias, random);
      ASSERT_TRUE(run_and_compare(test, runtime(), "mask " + test.bias.view().describe()));

      // The same bits as with the mask written out.
      AttentionCase full = test;
      full.boolean_mask = Tensor(DType::boolean, sizes);
      full.bias = Tensor(bias_dtype, sizes);
      for (int i = 0; i < 4; ++i) {
        const auto dimension = static_cast<std::size_t>(i);
        if (shape[dimension] != 1) continue;
        test.boolean_mask = test.boolean_mask.viewed(expanded(test.boolean_mask, i, sizes[dimension]));
        test.bias = test.bias.viewed(expanded(test.bias, i, sizes[dimension]));
      }
      copy(test.boolean_mask, full.boolean_mask);
      copy(test.bias, full.bias);
      const Tensor written_out = run_fresh(full, runtime());
      ASSERT_TRUE(same_bits(run_fresh(test, runtime()), written_out))
          << pattern << first_difference(run_fresh(test, runtime()), written_out);
    }
}

TEST_P(MaskTest, MasksOfLowerRankAlignAtTheRight) {
  const std::vector<std::vector<std::int64_t>> shapes = {{},      {1},        {19},      {5, 1},    {5, 19},
                                                         {1, 19}, {3, 5, 19}, {3, 1, 1}, {1, 5, 19}};
  std::size_t turn = 0;
  for (const auto& shape : shapes)
    for (const std::int64_t query_length : {1, 5}) {
      std::vector<std::int64_t> actual = shape;
      if (actual.size() > 1 && actual[actual.size() - 2] == 5) actual[actual.size() - 2] = query_length;
      Random random(53);
      AttentionCase test = make_case(attention_spec(2, 3, 3, query_length, 19, 8, 8, Mask::boolean() & Mask::bias()), random);
      test.boolean_mask = Tensor(DType::u8, actual);
      fill(test.boolean_mask, [&] { return random.chance(0.8) ? 1.0 : 0.0; });
      test.bias = Tensor(bias_dtypes[turn++ % 3], actual);
      fill_normal(test.bias, random);
      EXPECT_TRUE(run_and_compare(test, runtime(), "mask " + test.bias.view().describe()));
    }
}

TEST_P(MaskTest, MasksOfAnyStrides) {
  Random random(59);
  std::size_t turn = 0;
  for (const std::int64_t query_length : {1, 6, 18}) {
    AttentionCase test = make_case(attention_spec(2, 2, 1, query_length, 37, 8, 8, Mask::boolean() & Mask::bias()), random);
    const std::vector<std::vector<int>> orders = {{3, 2, 1, 0}, {0, 1, 3, 2}, {1, 0, 2, 3}, {2, 3, 0, 1}};
    for (const auto& order : orders)
      for (const std::int64_t element_stride : {1, 2, 3}) {
        const Tensor mask = Tensor::ordered(DType::boolean, {2, 2, query_length, 37}, order, 3, element_stride);
        const DType bias_dtype = bias_dtypes[turn++ % 3];
        const Tensor bias = Tensor::ordered(bias_dtype, {2, 2, query_length, 37}, order, 3, element_stride);
        fill(mask, [&] { return random.chance(0.6) ? 1.0 : 0.0; });
        fill(bias, [&] { return random.chance(0.1) ? -HUGE_VAL : random.normal(); });
        test.boolean_mask = mask;
        test.bias = bias;
        ASSERT_TRUE(run_and_compare(test, runtime(), "mask " + test.bias.view().describe()));
        test.boolean_mask = mask.viewed(reversed(mask, 3));
        test.bias = bias.viewed(reversed(reversed(bias, 2), 3));
        ASSERT_TRUE(run_and_compare(test, runtime(), "mask " + test.bias.view().describe()));
      }
  }
}

// Whatever query is stored as, and wherever the bias's numbers lie: the bits are those of the same numbers in f32. -inf
// excludes in either type, the most negative number is arithmetic, and a NaN at a key that something else hides is nothing.
TEST_P(MaskTest, ABiasOf16BitsGivesTheBitsOfItsNumbersInF32) {
  std::size_t turn = 0;
  for (const DType bias_dtype : {DType::bf16, DType::f16})
    for (const DType dtype : attention_dtypes())
      for (const std::int64_t query_length : {1, 3, 40})
        for (const std::int64_t key_length : {7, 70, 2100}) {
          if (slow() && query_length * key_length > 8000) continue;
          Random random(57);
          const Mask others[] = {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::key_lengths(), Mask::boolean(),
                                 Mask::window(30, 4)};
          AttentionSpec spec =
              attention_spec(2, 4, 2, query_length, key_length, 16, 16, Mask::bias() & others[turn++ % std::size(others)]);
          spec.dtype = dtype;
          AttentionCase test = make_case(spec, random);
          const double lowest = turn % 3 != 0 ? -20.0 : bias_dtype == DType::bf16 ? -0x1.FEp127 : -65504.0;
          fill(test.bias, [&] { return random.chance(0.1) ? -HUGE_VAL : random.chance(0.1) ? lowest : 3 * random.normal(); });
          const AttentionInputs inputs = test.inputs();
          for (std::int64_t b = 0; b < 2; ++b)
            for (std::int64_t t = 0; t < query_length; ++t)
              for (std::int64_t s = 0; s < key_length; ++s)
                if (!oracle::allowed(inputs, spec.mask, b, 1, t, s)) test.bias.set({b, 1, t, s}, not_a_number);
          const Tensor narrow = converted(test.bias, bias_dtype);
          test.bias = converted(narrow, DType::f32);
          const Tensor right = run_fresh(test, runtime());
          test.bias = narrow;
          ASSERT_TRUE(run_and_compare(test, runtime()));
          ASSERT_TRUE(same_bits(right, run_fresh(test, runtime())))
              << test.describe() << ": " << first_difference(right, run_fresh(test, runtime()));
          // One row of keys for all queries and heads, counted backwards.
          const TensorView row = reversed(slice(slice(slice(narrow, 0, 1, 2), 1, 0, 1), 2, 0, 1), 3);
          test.bias = converted(row, DType::f32);
          const Tensor right_of_row = run_fresh(test, runtime());
          test.bias = narrow.viewed(row);
          ASSERT_TRUE(run_and_compare(test, runtime(), "one row"));
          ASSERT_TRUE(same_bits(right_of_row, run_fresh(test, runtime()))) << test.describe() << ", one row";
        }
}

// ---- lengths

TEST_P(MaskTest, KeyLengthsOfEveryKindIncludingZero) {
  Random random(61);
  for (const DType dtype : {DType::i32, DType::i64})
    for (const std::int64_t query_length : {1, 4, 40}) {
      AttentionCase test = make_case(attention_spec(6, 4, 2, query_length, 70, 8, 8, Mask::key_lengths()), random);
      test.key_lengths = integers(dtype, {0, 1, 69, 70, 64, 33});
      EXPECT_TRUE(run_and_compare(test, runtime()));
      EXPECT_TRUE(all_zero(slice(run_fresh(test, runtime()), 0, 0, 1)));
      TensorView column = test.key_lengths;  // [B, 1] is accepted as well
      column.rank = 2;
      column.shape[1] = 1;
      column.strides[1] = 12345;
      const Tensor flat = run_fresh(test, runtime());
      test.key_lengths = test.key_lengths.viewed(column);
      EXPECT_TRUE(same_bits(flat, run_fresh(test, runtime())));
    }
}

TEST_P(MaskTest, KeyLengthsAndOffsetsOfAnyStride) {
  Random random(67);
  AttentionCase test = make_case(
      attention_spec(3, 1, 1, 4, 30, 8, 8, Mask::key_lengths() & Mask::causal(Causal::offset) & Mask::offsets()), random);
  const Tensor lengths(DType::i64, {3}, {-2}), offsets(DType::i32, {3}, {3});
  for (std::int64_t b = 0; b < 3; ++b) {
    lengths.set({b}, static_cast<double>(10 * b + 5));
    offsets.set({b}, static_cast<double>(20 - 7 * b));
  }
  test.key_lengths = lengths;
  test.offsets = offsets;
  EXPECT_TRUE(run_and_compare(test, runtime()));
  const Tensor same(DType::i64, {3}, {0});  // one length for all, by a stride of 0
  same.i64()[0] = 17;
  test.key_lengths = same;
  EXPECT_TRUE(run_and_compare(test, runtime()));
}

TEST_P(MaskTest, EveryCombinationOfParts) {
  const Mask causals[] = {Mask::none(), Mask::causal(Causal::top_left), Mask::causal(Causal::bottom_right),
                          Mask::causal(Causal::offset) & Mask::offsets()};
  std::uint64_t seed = 0;
  for (const Mask& causal : causals)
    for (int parts = 0; parts < 16; ++parts)
      for (const std::int64_t query_length : {1, 7, 35}) {
        Mask mask = causal;
        if ((parts & 1) != 0) mask = mask & Mask::window(9, 4, parts / 4);
        if ((parts & 2) != 0) mask = mask & Mask::key_lengths();
        if ((parts & 4) != 0) mask = mask & Mask::boolean();
        if ((parts & 8) != 0) mask = mask & Mask::bias();
        Random random(++seed);
        ASSERT_TRUE(run_and_compare(make_case(attention_spec(2, 4, 2, query_length, 41, 8, 8, mask), random), runtime(2)));
      }
}

TEST(MaskAlgebra, PartsComposeByAnd) {
  const Mask both = Mask::window(5, 2) & Mask::window(3, Mask::unbounded);
  EXPECT_EQ(both.window_left, 3);
  EXPECT_EQ(both.window_right, 2);
  EXPECT_EQ((Mask::window(5, 2, 4) & Mask::window(Mask::unbounded, 1)).window_kept, 4);
  EXPECT_EQ((Mask::window(Mask::unbounded, 1) & Mask::window(5, 2, 4)).window_kept, 4);
  EXPECT_EQ((Mask::causal(Causal::top_left) & Mask::window(5, 2, 4)).window_kept, 4);
  EXPECT_EQ((Mask::window(7, 0, 4) & Mask::window(5, 2, 4)).window_kept, 4);
  EXPECT_THROW(Mask::window(7, 0, 4) & Mask::window(5, 2, 3), Error);
  const Mask all = Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::boolean() & Mask::bias() & Mask::offsets();
  EXPECT_EQ(all.causality, Causal::bottom_right);
  EXPECT_TRUE(all.has_key_lengths && all.has_boolean && all.has_bias && all.has_offsets);
  EXPECT_EQ((Mask::causal(Causal::top_left) & Mask::causal(Causal::top_left)).causality, Causal::top_left);
  EXPECT_THROW(Mask::causal(Causal::top_left) & Mask::causal(Causal::bottom_right), Error);
}

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(MaskTest);

}  // namespace
}  // namespace polyhead::testing
