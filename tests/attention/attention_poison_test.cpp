// What is masked never reaches the output, whatever is stored there; what is visible always does, NaN included.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
const double poisons[] = {not_a_number, -not_a_number, infinity, -infinity, 3.4e38, -3.4e38};

class PoisonTest : public EveryIsaAndDType {
 protected:
  // For each key of (b, kv head): does any row see it?
  static std::vector<bool> seen_keys(const AttentionCase& test, std::int64_t b, std::int64_t g) {
    const AttentionSpec& spec = test.spec;
    const AttentionInputs inputs = test.inputs();
    const std::int64_t group = spec.heads / spec.kv_heads;
    std::vector<bool> seen(static_cast<std::size_t>(spec.key_length));
    for (std::int64_t h = g * group; h < (g + 1) * group; ++h)
      for (std::int64_t t = 0; t < spec.query_length; ++t)
        for (std::int64_t s = 0; s < spec.key_length; ++s)
          if (oracle::allowed(inputs, spec.mask, b, h, t, s) && !(spec.mask.has_bias && test.bias({b, h, t, s}) == -infinity))
            seen[static_cast<std::size_t>(s)] = true;
    return seen;
  }

  // Puts `poison` into every element of key and of value at each key that no row sees.
  static void poison_unseen(const AttentionCase& test, double poison) {
    for (std::int64_t b = 0; b < test.spec.batch; ++b)
      for (std::int64_t g = 0; g < test.spec.kv_heads; ++g) {
        const std::vector<bool> seen = seen_keys(test, b, g);
        for (std::int64_t s = 0; s < test.spec.key_length; ++s) {
          if (seen[static_cast<std::size_t>(s)]) continue;
          fill(slice(select(select(test.key, b), g), 0, s, s + 1), poison);
          fill(slice(select(select(test.value, b), g), 0, s, s + 1), poison);
        }
      }
  }

  void expect_poison_is_absent(const AttentionCase& original) const {
    AttentionCase test = original;
    test.key = original.key.clone();
    test.value = original.value.clone();
    poison_unseen(test, 0);
    for (const int threads : {1, 2}) {
      const Tensor clean = run_fresh(test, runtime(threads));
      ASSERT_TRUE(
          attention_matches(oracle::attention(test.inputs(), test.options()), clean, test.describe() + ", " + name(isa())));
      for (const double poison : poisons) {
        AttentionCase dirty = test;
        dirty.key = test.key.clone();
        dirty.value = test.value.clone();
        poison_unseen(dirty, poison);
        const Tensor out = run_fresh(dirty, runtime(threads));
        ASSERT_TRUE(same_bits(clean, out)) << poison << " in key and value, " << test.describe() << ", " << name(isa()) << ": "
                                           << first_difference(clean, out);
      }
    }
  }
};

TEST_P(PoisonTest, UnseenKeysAreAbsentUnderEveryMask) {
  const Mask masks[] = {
      Mask::key_lengths(),
      Mask::boolean(),
      Mask::bias(),
      Mask::causal(Causal::top_left),
      Mask::causal(Causal::offset) & Mask::offsets(),
      Mask::causal(Causal::bottom_right) & Mask::window(3, 0),
      Mask::window(2, 1),
      Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::boolean() & Mask::bias(),
  };
  std::uint64_t seed = 0;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {1, 3, 18})
      for (const std::int64_t key_length : {19, 70, 140}) {
        if (slow() && key_length == 140) continue;
        Random random(++seed);
        AttentionSpec spec = attention_spec(2, 4, 2, query_length, key_length, 16, 24, mask);
        // Changes of scores see excluded keys too, and must not let them through.
        if (key_length == 70) spec.softcap = 2.0, spec.has_alibi = spec.has_sink = true;
        AttentionCase test = make_case(spec, random);
        // Whole columns of the boolean mask and the bias are shut, so that there are unseen keys.
        for (std::int64_t s = 0; s < key_length; ++s) {
          if (!random.chance(0.4)) continue;
          if (mask.has_boolean) fill(slice(test.boolean_mask, 3, s, s + 1), 0.0);
          if (mask.has_bias) fill(slice(test.bias, 3, s, s + 1), -infinity);
        }
        if (mask.has_bias) test.bias = converted(test.bias, bias_dtypes[seed % 3]);
        ASSERT_NO_FATAL_FAILURE(expect_poison_is_absent(test));
      }
}

TEST_P(PoisonTest, PaddingBehindEachItemsLengthIsAbsent) {
  for (const std::int64_t query_length : {1, 2, 16, 40}) {
    Random random(5);
    AttentionCase test = make_case(attention_spec(7, 2, 2, query_length, 96, 8, 8, Mask::key_lengths()), random);
    test.key_lengths = integers(DType::i64, {0, 1, 31, 63, 64, 65, 96});
    ASSERT_NO_FATAL_FAILURE(expect_poison_is_absent(test));
  }
}

// A NaN in a key or value that only some rows of a tile may see: those rows are NaN, the others don't change a bit.
TEST_P(PoisonTest, PoisonThatOnlySomeRowsSeeReachesOnlyThose) {
  const Mask masks[] = {
      Mask::causal(Causal::top_left),
      Mask::causal(Causal::bottom_right),
      Mask::window(4, 2),
      Mask::causal(Causal::bottom_right) & Mask::window(3, 0, 2),
      Mask::boolean(),
      Mask::bias(),
      Mask::causal(Causal::offset) & Mask::offsets() & Mask::boolean(),
  };
  std::uint64_t seed = 100;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {2, 5, 16, 37})
      for (const std::int64_t key_length : {5, 37, 80})
        for (const double poison : poisons) {
          if (slow() && query_length * key_length > 1000 && !std::isnan(poison)) continue;
          Random random(++seed);
          AttentionCase test = make_case(attention_spec(1, 4, 2, query_length, key_length, 9, 17, mask), random);
          const Tensor clean = run_fresh(test, runtime());
          const std::int64_t s = random.integer(0, key_length - 1);
          const bool in_value = random.chance(0.5), one_element = random.chance(0.5);
          const Tensor& victim = in_value ? test.value : test.key;
          const std::int64_t width = in_value ? 17 : 9;
          const std::int64_t element = random.integer(0, width - 1);
          AttentionCase dirty = test;
          (in_value ? dirty.value : dirty.key) = victim.clone();
          const TensorView row = slice(in_value ? dirty.value : dirty.key, 2, s, s + 1);
          fill(one_element ? slice(row, 3, element, element + 1) : row, poison);
          const Tensor out = run_fresh(dirty, runtime());
          const AttentionInputs inputs = test.inputs();
          const std::string where = std::string(in_value ? "value" : "key") + " of key " + std::to_string(s) +
                                    (one_element ? " in part" : "") + " is " + std::to_string(poison) + ", " + test.describe() +
                                    ", " + name(isa());
          for (std::int64_t h = 0; h < 4; ++h)
            for (std::int64_t t = 0; t < query_length; ++t) {
              const bool sees =
                  oracle::allowed(inputs, mask, 0, h, t, s) && !(mask.has_bias && test.bias({0, h, t, s}) == -infinity);
              const TensorView before = slice(slice(clean, 1, h, h + 1), 2, t, t + 1),
                               after = slice(slice(out, 1, h, h + 1), 2, t, t + 1);
              if (!sees) {
                ASSERT_TRUE(same_bits(before, after)) << "head " << h << " row " << t << " does not see it; " << where;
              } else if (std::isnan(poison)) {
                for (std::int64_t e = 0; e < 17; ++e)
                  ASSERT_EQ(std::isnan(load(after, offset_of(after, {0, 0, 0, e}))), !in_value || !one_element || e == element)
                      << "head " << h << " row " << t << " element " << e << "; " << where;
              }
            }
        }
}

TEST_P(PoisonTest, ANanInAQueryMakesItsRowNanAndNoOther) {
  for (const std::int64_t query_length : {1, 3, 16, 33})
    for (const std::int64_t element : {0, 7, 8, 15}) {
      Random random(9);
      AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, 40, 16, 8), random);
      const std::int64_t row = query_length / 2;
      test.query.set({1, 2, row, element}, not_a_number);
      ASSERT_TRUE(run_and_compare(test, runtime()));  // NaN exactly where the oracle has it
      EXPECT_TRUE(std::isnan(run_fresh(test, runtime())({1, 2, row, 0})));
    }
}

// The position of the NaN among the scores decides which operand of a maximum it is.
TEST_P(PoisonTest, ANanInAVisibleKeyReachesEveryRowAtEveryPosition) {
  for (const std::int64_t query_length : {1, 4, 17})
    for (const std::int64_t key_length : {1, 2, 3, 8, 9, 64, 65, 130})
      for (std::int64_t s = 0; s < key_length; s += key_length > 20 ? 13 : 1) {
        Random random(13);
        AttentionCase test = make_case(attention_spec(1, 2, 2, query_length, key_length, 8, 8), random);
        test.key.set({0, 1, s, s % 8}, not_a_number);
        ASSERT_TRUE(run_and_compare(test, runtime(), "NaN in key " + std::to_string(s)));
        Random again(13);
        test = make_case(attention_spec(1, 2, 2, query_length, key_length, 8, 8), again);
        test.value.set({0, 1, s, s % 8}, not_a_number);
        ASSERT_TRUE(run_and_compare(test, runtime(), "NaN in value " + std::to_string(s)));
      }
}

TEST_P(PoisonTest, AnInfinityInAVisibleValueIsAnInfinityInTheResult) {
  for (const std::int64_t query_length : {1, 17})
    for (const double value : {infinity, -infinity}) {
      Random random(15);
      AttentionCase test = make_case(attention_spec(1, 2, 1, query_length, 50, 8, 8), random);
      test.value.set({0, 0, 20, 3}, value);
      ASSERT_TRUE(run_and_compare(test, runtime()));
      EXPECT_EQ(run_fresh(test, runtime())({0, 1, 0, 3}), value);
    }
}

TEST_P(PoisonTest, AScoreOfMinusInfinityExcludesItsKey) {
  for (const std::int64_t query_length : {1, 5, 20}) {
    Random random(16);
    AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 30, 4, 8), random);
    fill(test.query, 1.0);
    fill(slice(test.key, 2, 3, 4), -infinity);
    EXPECT_TRUE(run_and_compare(test, runtime()));
    fill(slice(test.value, 2, 3, 4), not_a_number);  // a key that is excluded takes its value with it
    EXPECT_TRUE(run_and_compare(test, runtime()));
  }
}

TEST_P(PoisonTest, ARowWhoseScoresAreAllMinusInfinityIsEmpty) {
  for (const std::int64_t query_length : {1, 5, 20}) {
    Random random(16);
    AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 30, 4, 8), random);
    fill(test.query, 1.0);
    fill(test.key, -infinity);
    EXPECT_TRUE(run_and_compare(test, runtime()));
    EXPECT_EQ(run_fresh(test, runtime())({0, 0, 0, 0}), 0);
  }
}

TEST_P(PoisonTest, ANanInAnAllowedBiasReachesItsRowAndAMaskedOneDoesNot) {
  for (const std::int64_t query_length : {1, 4, 19}) {
    Random random(17);
    AttentionCase test = make_case(attention_spec(1, 2, 2, query_length, 45, 8, 8, Mask::bias() & Mask::boolean()), random);
    fill(test.bias, 0.5);
    fill(test.boolean_mask, 1.0);
    test.bias.set({0, 0, query_length - 1, 11}, not_a_number);
    ASSERT_TRUE(run_and_compare(test, runtime()));
    EXPECT_TRUE(std::isnan(run_fresh(test, runtime())({0, 0, query_length - 1, 0})));
    test.boolean_mask.set({0, 0, query_length - 1, 11}, 0);
    ASSERT_TRUE(run_and_compare(test, runtime()));
    EXPECT_FALSE(std::isnan(run_fresh(test, runtime())({0, 0, query_length - 1, 0})));
  }
}

TEST_P(PoisonTest, ARowThatSeesNothingIsZeroEvenWhenItsQueryIsNan) {
  Random random(19);
  for (const std::int64_t query_length : {1, 6, 20}) {
    AttentionCase test = make_case(attention_spec(1, 2, 2, query_length, 12, 8, 8, Mask::boolean()), random);
    fill(test.boolean_mask, 1.0);
    fill(slice(test.boolean_mask, 2, query_length - 1, query_length), 0.0);
    fill(slice(test.query, 2, query_length - 1, query_length), not_a_number);
    ASSERT_TRUE(run_and_compare(test, runtime()));
    EXPECT_EQ(run_fresh(test, runtime())({0, 0, query_length - 1, 0}), 0);
  }
}

TEST_P(PoisonTest, EverythingNanIsNanUnlessEverythingIsMasked) {
  Random random(21);
  AttentionCase test = make_case(attention_spec(1, 2, 2, 16, 16, 8, 8, Mask::boolean()), random);
  fill(test.query, not_a_number);
  fill(test.key, not_a_number);
  fill(test.value, not_a_number);
  fill(test.boolean_mask, 1.0);
  ASSERT_TRUE(run_and_compare(test, runtime()));
  EXPECT_TRUE(std::isnan(run_fresh(test, runtime())({0, 0, 3, 3})));
  fill(test.boolean_mask, 0.0);
  ASSERT_TRUE(run_and_compare(test, runtime()));
  EXPECT_EQ(run_fresh(test, runtime())({0, 0, 3, 3}), 0);
}

// Two keys, only the first one visible: whatever the second holds, both rows are value[0].
TEST_P(PoisonTest, ASmallCacheWithOneValidKey) {
  Random random(23);
  AttentionCase test = make_case(attention_spec(1, 1, 1, 2, 2, 4, 4, Mask::boolean()), random);
  double next = 0;
  for (const Tensor* tensor : {&test.query, &test.key, &test.value}) {
    next = 0;
    fill(*tensor, [&] { return next++; });
  }
  test.boolean_mask = Tensor(DType::boolean, {1, 2});
  test.boolean_mask.set({0, 0}, 1);
  test.boolean_mask.set({0, 1}, 0);
  for (const double poison : {1e10, not_a_number, infinity}) {
    fill(slice(test.key, 2, 1, 2), poison);
    fill(slice(test.value, 2, 1, 2), poison);
    const Tensor out = run_fresh(test, runtime());
    for (std::int64_t t = 0; t < 2; ++t)
      for (std::int64_t e = 0; e < 4; ++e) EXPECT_EQ(out({0, 0, t, e}), e) << poison;
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(PoisonTest);

}  // namespace
}  // namespace polyhead::testing
