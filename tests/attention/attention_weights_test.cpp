// Attention weights of chosen heads and rows, and what keys receive.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class WeightsTest : public EveryIsa {
 protected:
  struct Result {
    Tensor weights, received;
  };
  // Weights of the chosen heads and rows (all where a list is empty), in memory that holds NaN before.
  Result weights_of(const AttentionCase& test, const std::vector<std::int64_t>& heads, const std::vector<std::int64_t>& rows,
                    int threads = 1) const {
    const AttentionSpec& spec = test.spec;
    const auto count = [](const std::vector<std::int64_t>& chosen, std::int64_t all) {
      return chosen.empty() ? all : static_cast<std::int64_t>(chosen.size());
    };
    // Of the tensors: packed sequences lie in a batch of 1.
    const std::int64_t batch = test.query.view().shape[0], keys = test.key.view().shape[2];
    const std::int64_t n = count(heads, spec.heads), m = count(rows, test.query.view().shape[2]);
    Result result = {Tensor(DType::f32, {batch, n, m, keys}), Tensor(DType::f32, {batch, n, keys})};
    fill(result.weights, not_a_number);
    fill(result.received, not_a_number);
    AttentionWeightsRequest request;
    const Tensor head_list = integers(DType::i32, heads), row_list = integers(DType::i64, rows);
    if (!heads.empty()) request.heads = head_list;
    if (!rows.empty()) request.rows = row_list;
    request.weights = result.weights;
    AttentionInputs inputs = test.inputs();
    inputs.value = inputs.out = TensorView();  // not looked at
    attention_weights(runtime(threads), inputs, test.options(), request);
    EXPECT_TRUE(result.weights.surroundings_intact());
    // Received alone, so that each is there without the other.
    request.weights = TensorView();
    request.received = result.received;
    attention_weights(runtime(threads), inputs, test.options(), request);
    return result;
  }

  void expect_right(const AttentionCase& test, const std::vector<std::int64_t>& heads,
                    const std::vector<std::int64_t>& rows) const {
    const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), true);
    const Result result = weights_of(test, heads, rows);
    const auto& shape = result.weights.view().shape;
    for (std::int64_t b = 0; b < shape[0]; ++b)
      for (std::int64_t i = 0; i < shape[1]; ++i) {
        std::vector<double> received(static_cast<std::size_t>(shape[3]));
        for (std::int64_t j = 0; j < shape[2]; ++j) {
          const std::int64_t h = heads.empty() ? i : heads[static_cast<std::size_t>(i)],
                             t = rows.empty() ? j : rows[static_cast<std::size_t>(j)];
          const std::int64_t row = (b * test.spec.heads + h) * test.query.view().shape[2] + t;
          const double bound = 2e-6 + 0x1p-22 * expected.score_magnitude.values[static_cast<std::size_t>(row)];
          for (std::int64_t s = 0; s < shape[3]; ++s) {
            const double right = expected.weights.row(row)[s], weight = result.weights({b, i, j, s});
            ASSERT_NEAR(weight, right, bound) << test.describe() << " b " << b << " h " << h << " t " << t << " s " << s;
            if (right == 0 && !test.spec.mask.is_packed && !oracle::allowed(test.inputs(), test.spec.mask, b, h, t, s)) {
              ASSERT_EQ(weight, 0);
            }
            received[static_cast<std::size_t>(s)] += weight;
          }
        }
        for (std::int64_t s = 0; s < shape[3]; ++s) {
          const double sum = received[static_cast<std::size_t>(s)];
          ASSERT_NEAR(result.received({b, i, s}), sum, 1e-6 * (1 + sum)) << test.describe();
        }
      }
  }
};

TEST_P(WeightsTest, OfAllHeadsAndRowsUnderEveryMask) {
  const Mask masks[] = {
      Mask::none(),
      Mask::causal(Causal::bottom_right) & Mask::window(30, 0),
      Mask::causal(Causal::offset) & Mask::offsets() & Mask::key_lengths() & Mask::query_lengths(),
      Mask::boolean() & Mask::bias(),
      Mask::causal(Causal::top_left) & Mask::prefix(),
      Mask::segments() & Mask::causal(Causal::bottom_right),
      Mask::blocks(16, 40) & Mask::boolean(),
      Mask::blocks(32, 64),
  };
  std::uint64_t seed = 0;
  for (const Mask& mask : masks)
    for (const auto& [query_length, key_length] : {std::pair{1, 40}, {7, 300}, {60, 130}}) {
      Random random(++seed);
      AttentionSpec spec = attention_spec(2, 4, 2, query_length, key_length, 16, 16, mask);
      if (seed % 2 == 0) spec.softcap = 1.5, spec.has_alibi = spec.has_sink = true;
      ASSERT_NO_FATAL_FAILURE(expect_right(make_case(spec, random), {}, {}));
    }
}

TEST_P(WeightsTest, OfPackedSequences) {
  const Mask masks[] = {
      Mask::packed(),
      Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::window(30, 0),
      Mask::packed() & Mask::key_lengths() & Mask::query_lengths() & Mask::boolean(),
      Mask::packed() & Mask::bias() & Mask::blocks(16, 40),
  };
  std::uint64_t seed = 70;
  for (const Mask& mask : masks)
    for (const auto& [query_length, key_length] : {std::pair{1, 40}, {20, 300}, {60, 130}}) {
      Random random(++seed);
      AttentionSpec spec = attention_spec(4, 4, 2, query_length, key_length, 16, 16, mask);
      if (seed % 2 == 0) spec.softcap = 1.5, spec.has_alibi = spec.has_sink = true;
      const AttentionCase test = make_case(spec, random);
      ASSERT_NO_FATAL_FAILURE(expect_right(test, {}, {}));
      const std::int64_t last = test.query.view().shape[2] - 1;
      if (last >= 0) {
        ASSERT_NO_FATAL_FAILURE(expect_right(test, {3, 0}, {last, 0, last / 2}));
      }
      // What no row of a key's own sequence sees weighs exactly nothing, in others' rows above all.
      const Result result = weights_of(test, {}, {});
      const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), true);
      std::size_t next = 0;
      for_each_offset(result.weights, [&](std::int64_t offset) {
        if (expected.weights.values[next++] == 0) {
          ASSERT_EQ(load(result.weights, offset), 0) << test.describe();
        }
      });
    }
}

TEST_P(WeightsTest, OfChosenHeadsAndRowsInAnyOrder) {
  Random random(21);
  const AttentionCase test =
      make_case(attention_spec(2, 6, 2, 70, 600, 24, 24, Mask::causal(Causal::bottom_right) & Mask::query_lengths()), random);
  ASSERT_NO_FATAL_FAILURE(expect_right(test, {5, 0, 3}, {69, 0, 1, 2, 40, 41, 7, 7}));
  ASSERT_NO_FATAL_FAILURE(expect_right(test, {2}, {}));
  ASSERT_NO_FATAL_FAILURE(expect_right(test, {}, {33}));
}

// Whatever query and keys are stored as, weights are f32's: never rounded to 16 bits on the way.
TEST_P(WeightsTest, OfEveryTypeOfQueryAndOfKeys) {
  std::uint64_t seed = 110;
  for (const DType of_query : attention_dtypes())
    for (const DType of_keys : attention_dtypes()) {
      if (of_query == DType::f32 && of_keys == DType::f32) continue;
      for (const auto& [query_length, key_length] : {std::pair{1, 40}, {7, 300}, {60, 530}}) {
        if (slow() && key_length == 530) continue;
        for (const Mask& mask : {Mask::causal(Causal::bottom_right), Mask::boolean() & Mask::bias(), Mask::packed()}) {
          Random random(++seed);
          AttentionSpec spec = attention_spec(2, 4, 2, query_length, key_length, 20, 20, mask);
          spec.dtype = of_query;
          if (seed % 2 == 0) spec.softcap = 1.5, spec.has_alibi = spec.has_sink = true;
          AttentionCase test = make_case(spec, random);
          const TensorView& given = test.key;
          const Tensor key(of_keys, {given.shape[0], given.shape[1], given.shape[2], given.shape[3]});
          copy(given, key);
          test.key = key;
          const std::string where = std::string(name(of_query)) + " queries, " + name(of_keys) + " keys";
          ASSERT_NO_FATAL_FAILURE(expect_right(test, {}, {})) << where;
          const std::int64_t last = test.query.view().shape[2] - 1;
          if (last >= 0) {
            ASSERT_NO_FATAL_FAILURE(expect_right(test, {3, 0}, {last, 0})) << where;
          }
          // Queries that are exact in both types give the bits that they give as those of the other.
          if (of_query != DType::bf16) continue;
          const TensorView& rows = test.query;
          const Tensor wide(DType::f32, {rows.shape[0], rows.shape[1], rows.shape[2], rows.shape[3]});
          copy(rows, wide);
          const Result narrow = weights_of(test, {}, {});
          test.query = wide;
          EXPECT_TRUE(same_bits(narrow.weights, weights_of(test, {}, {}).weights)) << where;
        }
      }
    }
}

TEST_P(WeightsTest, WhatIsMaskedHasNoInfluenceOn16Bits) {
  for (const DType dtype : attention_dtypes()) {
    Random random(141);
    AttentionSpec spec = attention_spec(1, 2, 1, 20, 300, 16, 16, Mask::causal(Causal::top_left));
    spec.dtype = dtype;
    const AttentionCase test = make_case(spec, random);
    const Result clean = weights_of(test, {}, {});
    for (const double junk : {not_a_number, HUGE_VAL}) {
      AttentionCase dirty = test;
      dirty.key = test.key.clone();
      dirty.key.set({0, 0, 10, 3}, junk);
      const Result result = weights_of(dirty, {}, {});
      for (std::int64_t t = 0; t < 10; ++t) {
        EXPECT_TRUE(same_bits(slice(clean.weights, 2, t, t + 1), slice(result.weights, 2, t, t + 1)))
            << name(dtype) << ' ' << t;
      }
      if (std::isnan(junk)) {
        EXPECT_TRUE(std::isnan(result.weights({0, 0, 10, 0}))) << name(dtype);
      }
    }
  }
}

TEST_P(WeightsTest, HaveTheSameBitsForAnyThreadsAndAnyChoice) {
  Random random(23);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 70, 600, 24, 24, Mask::causal(Causal::bottom_right)), random);
  const Result all = weights_of(test, {}, {}, 1), threads = weights_of(test, {}, {}, 3),
               some = weights_of(test, {1}, {20, 50}, 2);
  EXPECT_TRUE(same_bits(all.weights, threads.weights));
  EXPECT_TRUE(same_bits(all.received, threads.received));
  const TensorView head = slice(all.weights, 1, 1, 2);
  EXPECT_TRUE(same_bits(slice(head, 2, 20, 21), slice(some.weights, 2, 0, 1)));
  EXPECT_TRUE(same_bits(slice(head, 2, 50, 51), slice(some.weights, 2, 1, 2)));
}

TEST_P(WeightsTest, WhatIsMaskedHasNoInfluenceAndWhatIsSeenHas) {
  Random random(25);
  AttentionCase test = make_case(attention_spec(1, 2, 1, 20, 300, 16, 16, Mask::causal(Causal::top_left)), random);
  const Result clean = weights_of(test, {}, {});
  test.key.set({0, 0, 10, 3}, not_a_number);
  const Result dirty = weights_of(test, {}, {});
  for (std::int64_t t = 0; t < 20; ++t) {
    const TensorView before = slice(clean.weights, 2, t, t + 1), after = slice(dirty.weights, 2, t, t + 1);
    if (t < 10) {
      EXPECT_TRUE(same_bits(before, after)) << t;
    } else {
      EXPECT_TRUE(std::isnan(load(after, 0))) << t;
    }
  }
}

// Weights of rows that see nothing are 0, bit for bit, whichever part of the mask hides their keys; those of other rows are
// what they are.
TEST_P(WeightsTest, OfRowsThatSeeNothingAreZero) {
  for (const std::pair<int, int>& lengths : {std::pair{1, 40}, {6, 10}, {40, 700}}) {
    const int query_length = lengths.first, key_length = lengths.second;
    const std::int64_t last = query_length - 1;
    const auto check = [&](const Mask& mask, const auto& hide_last) {
      Random random(31);
      AttentionSpec spec = attention_spec(2, 4, 2, query_length, key_length, 16, 16, mask);
      AttentionCase test = make_case(spec, random);
      hide_last(test);
      ASSERT_NO_FATAL_FAILURE(expect_right(test, {}, {}));
      const Result result = weights_of(test, {}, {}, 2);
      const Tensor zeros(DType::f32, {2, 4, 1, key_length});
      fill(zeros, 0.0);
      EXPECT_TRUE(same_bits(zeros, slice(result.weights, 2, last, last + 1))) << test.describe();
      // A whole head without a key: its keys receive exactly nothing.
      if (!mask.has_boolean) return;
      fill(slice(test.boolean_mask, 1, 1, 2), 0.0);
      const Tensor nothing(DType::f32, {2, 1, key_length});
      fill(nothing, 0.0);
      EXPECT_TRUE(same_bits(nothing, slice(weights_of(test, {}, {}).received, 1, 1, 2))) << test.describe();
    };
    check(Mask::boolean(), [&](const AttentionCase& test) {
      fill(test.boolean_mask, 1.0);
      fill(slice(test.boolean_mask, 2, last, last + 1), 0.0);
    });
    check(Mask::bias(), [&](const AttentionCase& test) {
      fill(test.bias, 0.25);
      fill(slice(test.bias, 2, last, last + 1), -HUGE_VAL);
    });
    check(Mask::key_lengths(), [](AttentionCase& test) { test.key_lengths = integers(DType::i32, {0, 0}); });
    check(Mask::causal(Causal::offset) & Mask::offsets(),
          [&](AttentionCase& test) { test.offsets = integers(DType::i64, {-last - 1, -last - 1}); });
    check(Mask::causal(Causal::top_left) & Mask::boolean(), [&](const AttentionCase& test) {
      fill(test.boolean_mask, 1.0);
      fill(slice(slice(test.boolean_mask, 2, last, last + 1), 3, 0, std::min<std::int64_t>(last + 1, test.spec.key_length)),
           0.0);
    });
  }
}

TEST_P(WeightsTest, MasksBroadcastWithJunkStridesOnSizeOne) {
  const std::vector<std::int64_t> sizes = {2, 4, 5, 70};
  for (int pattern = 0; pattern < 16; ++pattern) {
    Random random(static_cast<std::uint64_t>(33 + pattern));
    std::vector<std::int64_t> shape = sizes, strides(4);
    std::int64_t stride = 1;
    for (std::size_t i = 4; i-- > 0;) {
      if ((pattern >> i & 1) != 0) shape[i] = 1;
      strides[i] = shape[i] == 1 ? (std::int64_t{1} << 59) + 5 : stride;
      stride *= shape[i];
    }
    AttentionCase test = make_case(attention_spec(2, 4, 2, 5, 70, 8, 8, Mask::boolean() & Mask::bias()), random);
    test.boolean_mask = Tensor(DType::u8, shape, strides);
    fill(test.boolean_mask, [&] { return random.chance(0.7) ? 1.0 : 0.0; });
    test.bias = Tensor(bias_dtypes[pattern % 3], shape, strides);
    fill_normal(test.bias, random);
    ASSERT_NO_FATAL_FAILURE(expect_right(test, {}, {})) << pattern;
    ASSERT_NO_FATAL_FAILURE(expect_right(test, {3, 1}, {4, 0})) << pattern;
  }
}

TEST_P(WeightsTest, SizesOfZeroAndStrides) {
  Random random(27);
  for (const auto& [batch, query_length, key_length] : {std::tuple{0, 3, 4}, {2, 0, 4}, {2, 3, 0}}) {
    const AttentionCase test = make_case(attention_spec(batch, 2, 1, query_length, key_length, 8, 8), random);
    const Result result = weights_of(test, {}, {}, 2);
    for_each_offset(result.received, [&](std::int64_t offset) { EXPECT_EQ(load(result.received, offset), 0); });
  }
  const AttentionCase test = make_case(attention_spec(2, 2, 1, 5, 40, 8, 8), random);
  const Result plain = weights_of(test, {}, {});
  AttentionCase moved = test;
  moved.query = Tensor::ordered(DType::f32, {2, 2, 5, 8}, {0, 1, 3, 2});
  moved.key = Tensor::ordered(DType::f32, {2, 1, 40, 8}, {0, 2, 1, 3}, 0, 2);
  copy(test.query, moved.query);
  copy(test.key, moved.key);
  const Tensor weights = Tensor::ordered(DType::f32, {2, 2, 5, 40}, {3, 0, 2, 1}, 1, 2);
  AttentionWeightsRequest request;
  request.weights = weights;
  attention_weights(runtime(2), moved.inputs(), moved.options(), request);
  EXPECT_TRUE(same_bits(plain.weights, weights)) << first_difference(plain.weights, weights);
  EXPECT_TRUE(weights.surroundings_intact());
}

TEST(WeightsErrors, NameTheArgument) {
  const Runtime& runtime = runtime_on(default_isa());
  Random random(29);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 5, 9, 8, 8), random);
  const Tensor weights(DType::f32, {2, 4, 5, 9}), received(DType::f32, {2, 4, 9});
  const auto expect_refused = [&](const AttentionWeightsRequest& request, const std::vector<std::string>& words,
                                  const AttentionOptions& options, ErrorCode code = ErrorCode::invalid_argument) {
    try {
      attention_weights(runtime, test.inputs(), options, request);
      ADD_FAILURE() << "was accepted: " << words.front();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " is not in: " << error.what();
    }
  };
  AttentionWeightsRequest request;
  expect_refused(request, {"weights", "not given"}, test.options());
  request.weights = weights;
  attention_weights(runtime, test.inputs(), test.options(), request);
  const Tensor heads = integers(DType::i64, {0, 4}), rows = integers(DType::i64, {-1});
  request.heads = heads;
  expect_refused(request, {"heads[1]", "4", "0 to 3"}, test.options());
  request.heads = TensorView();
  request.rows = rows;
  expect_refused(request, {"rows[0]", "-1", "0 to 4"}, test.options());
  request.rows = TensorView();
  request.weights = slice(weights, 1, 0, 3);
  expect_refused(request, {"weights", "[2, 3, 5, 9]", "[2, 4, 5, 9]"}, test.options());
  request.weights = TensorView(test.query.view().data, DType::f32, {2, 4, 5, 9});
  expect_refused(request, {"weights overlaps query"}, test.options());
  request.weights = weights;
  request.received = TensorView(weights.view().data, DType::f32, {2, 4, 9});
  expect_refused(request, {"received overlaps weights"}, test.options());
  request.received = TensorView();
  request.weights = weights;
  // Types that attention does not take.
  const auto expect_type_refused = [&](TensorView AttentionInputs::* field, const TensorView& view, const char* argument) {
    AttentionInputs inputs = test.inputs();
    inputs.*field = view;
    try {
      attention_weights(runtime, inputs, test.options(), request);
      ADD_FAILURE() << argument << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      const std::string told = error.what();
      EXPECT_EQ(told.find(argument), 0u) << told;
      EXPECT_NE(told.find("expected f32"), std::string::npos) << told;
    }
  };
  expect_type_refused(&AttentionInputs::query, Tensor(DType::f64, {2, 4, 5, 8}), "query is f64");
  expect_type_refused(&AttentionInputs::key, Tensor(DType::i8, {2, 2, 9, 8}), "key is i8");
  expect_type_refused(&AttentionInputs::key, TensorView(), "key is");
}

POLYHEAD_INSTANTIATE_EVERY_ISA(WeightsTest);

}  // namespace
}  // namespace polyhead::testing
