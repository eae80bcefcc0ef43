// Query lengths and packed sequences: rows that do not exist, sequences that see nothing of each other, uneven work on threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/multi_head_attention.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

bool all_equal(const TensorView& view, double value) {
  bool equal = true;
  for_each_offset(view, [&](std::int64_t offset) { equal = equal && load(view, offset) == value; });
  return equal;
}

Tensor numbers(const std::vector<double>& values) {
  const Tensor tensor(DType::f32, {static_cast<std::int64_t>(values.size())});
  std::size_t next = 0;
  fill(tensor, [&] { return values[next++]; });
  return tensor;
}

// Packed sequences of these lengths, random numbers.
AttentionCase packed_case(const std::vector<std::int64_t>& query_lengths, const std::vector<std::int64_t>& key_lengths,
                          const AttentionSpec& heads_and_mask, Random& random) {
  const auto most = [](const std::vector<std::int64_t>& lengths) { return *std::max_element(lengths.begin(), lengths.end()); };
  const auto ends_of = [](const std::vector<std::int64_t>& lengths) {
    std::vector<std::int64_t> ends = {0};
    for (const std::int64_t length : lengths) ends.push_back(ends.back() + length);
    return ends;
  };
  AttentionSpec spec = heads_and_mask;
  spec.mask = spec.mask & Mask::packed();
  spec.batch = static_cast<std::int64_t>(query_lengths.size());
  spec.query_length = most(query_lengths);
  spec.key_length = most(key_lengths);
  AttentionCase test = make_case(spec, random);
  const std::vector<std::int64_t> query_ends = ends_of(query_lengths), key_ends = ends_of(key_lengths);
  test.cumulative_query_lengths = integers(DType::i32, query_ends);
  test.cumulative_key_lengths = integers(DType::i64, key_ends);
  const std::int64_t D = spec.head_dim, E = test.spec.value_dim;
  test.query = Tensor(spec.dtype, {1, spec.heads, query_ends.back(), D});
  test.key = Tensor(spec.dtype, {1, test.spec.kv_heads, key_ends.back(), D});
  test.value = Tensor(spec.dtype, {1, test.spec.kv_heads, key_ends.back(), E});
  test.out = Tensor(spec.dtype, {1, spec.heads, query_ends.back(), E});
  test.lse = Tensor(DType::f32, {1, spec.heads, query_ends.back()});
  for (const Tensor* tensor : {&test.query, &test.key, &test.value}) fill_normal(*tensor, random);
  return test;
}

// Sequence i of a packed case as a call of its own.
AttentionCase alone(const AttentionCase& test, std::int64_t i) {
  const auto end = [](const Tensor& ends, std::int64_t at) { return static_cast<std::int64_t>(load(ends, at)); };
  const std::int64_t query_begin = end(test.cumulative_query_lengths, i), query_end = end(test.cumulative_query_lengths, i + 1);
  const std::int64_t key_begin = end(test.cumulative_key_lengths, i), key_end = end(test.cumulative_key_lengths, i + 1);
  AttentionCase one = test;
  one.spec.mask.is_packed = false;
  one.spec.batch = 1;
  one.spec.query_length = query_end - query_begin;
  one.spec.key_length = key_end - key_begin;
  one.query = test.query.viewed(slice(test.query, 2, query_begin, query_end));
  one.key = test.key.viewed(slice(test.key, 2, key_begin, key_end));
  one.value = test.value.viewed(slice(test.value, 2, key_begin, key_end));
  one.out = Tensor(one.spec.dtype, {1, one.spec.heads, one.spec.query_length, one.spec.value_dim});
  one.lse = Tensor(DType::f32, {1, one.spec.heads, one.spec.query_length});
  return one;
}

class SequencesTest : public EveryIsaAndDType {
 protected:
  // Query 0, so that every visible key weighs the same; value[s] = s.
  static void make_mean_index(AttentionCase& test) {
    fill(test.query, 0.0);
    for (std::int64_t s = 0; s < test.value.view().shape[2]; ++s) fill(slice(test.value, 2, s, s + 1), static_cast<double>(s));
  }
  std::vector<float> out_of(const AttentionCase& test) const {
    const Tensor out = run_fresh(test, runtime());
    std::vector<float> numbers;
    for_each_offset(out, [&](std::int64_t offset) { numbers.push_back(static_cast<float>(load(out, offset))); });
    return numbers;
  }
  static void expect_near(const std::vector<float>& actual, const std::vector<float>& right) {
    ASSERT_EQ(actual.size(), right.size());
    for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(actual[i], right[i], 4e-6 * (1 + right[i])) << "row " << i;
  }
};

// ---- query lengths

TEST_P(SequencesTest, RowsBehindAQueryLengthAreZeroWithLseMinusInfinity) {
  for (const std::int64_t query_length : {1, 3, 20, 130}) {
    Random random(3);
    AttentionCase test = make_case(attention_spec(5, 4, 2, query_length, 70, 16, 8, Mask::query_lengths()), random);
    const std::vector<std::int64_t> lengths = {0, 1, query_length, query_length / 2, query_length - 1};
    test.query_lengths = integers(DType::i64, lengths);
    EXPECT_TRUE(run_and_compare(test, runtime()));
    EXPECT_TRUE(run_and_compare(test, runtime(2)));
    AttentionPlan(test.spec, runtime(2)).run(test.inputs_with_lse());
    for (std::int64_t b = 0; b < 5; ++b) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      EXPECT_TRUE(all_equal(slice(select(test.out, b), 1, length, query_length), 0)) << b;
      EXPECT_TRUE(all_equal(slice(select(test.lse, b), 1, length, query_length), -infinity)) << b;
    }
  }
}

TEST_P(SequencesTest, RowsBehindAQueryLengthTakeTheSinkAsTheirLse) {
  Random random(5);
  AttentionSpec spec = attention_spec(2, 2, 1, 6, 9, 8, 8, Mask::query_lengths());
  spec.has_sink = true;
  AttentionCase test = make_case(spec, random);
  test.sink = numbers({1.5, -infinity});
  test.query_lengths = integers(DType::i32, {2, 6});
  EXPECT_TRUE(run_and_compare(test, runtime()));
  AttentionPlan(test.spec, runtime()).run(test.inputs_with_lse());
  EXPECT_TRUE(all_equal(slice(select(select(test.lse, 0), 0), 0, 2, 6), 1.5));
  EXPECT_TRUE(all_equal(slice(select(select(test.lse, 0), 1), 0, 2, 6), -infinity));
}

TEST_P(SequencesTest, BottomRightCausalAlignsTheLastRealQueryWithTheLastRealKey) {
  Random random(7);
  AttentionCase test = make_case(
      attention_spec(3, 1, 1, 3, 6, 8, 1, Mask::causal(Causal::bottom_right) & Mask::query_lengths() & Mask::key_lengths()),
      random);
  make_mean_index(test);
  test.query_lengths = integers(DType::i64, {3, 2, 1});
  test.key_lengths = integers(DType::i64, {6, 4, 0});
  expect_near(out_of(test), {1.5, 2, 2.5, 1, 1.5, 0, 0, 0, 0});
}

// Whatever a row that is not there holds: it is not looked at.
TEST_P(SequencesTest, PoisonInRowsBehindAQueryLengthIsAbsent) {
  for (const std::int64_t query_length : {2, 40}) {
    Random random(9);
    AttentionCase test = make_case(
        attention_spec(3, 4, 2, query_length, 50, 16, 16, Mask::query_lengths() & Mask::causal(Causal::bottom_right)), random);
    test.query_lengths = integers(DType::i32, {0, query_length / 2, query_length});
    const Tensor clean = run_fresh(test, runtime());
    for (std::int64_t b = 0; b < 3; ++b) {
      const auto length = static_cast<std::int64_t>(load(test.query_lengths, b));
      fill(slice(select(test.query, b), 1, length, query_length), not_a_number);
    }
    const Tensor dirty = run_fresh(test, runtime());
    EXPECT_TRUE(same_bits(clean, dirty)) << first_difference(clean, dirty);
  }
}

TEST_P(SequencesTest, AnItemHasTheBitsThatItHasAloneAtItsOwnLength) {
  for (const Mask& causal : {Mask::none(), Mask::causal(Causal::bottom_right)}) {
    Random random(11);
    const std::vector<std::int64_t> query_lengths = {1, 3, 17, 90, 64}, key_lengths = {90, 5, 64, 65, 1};
    AttentionCase padded =
        make_case(attention_spec(5, 6, 2, 90, 90, 16, 16, causal & Mask::query_lengths() & Mask::key_lengths()), random);
    padded.query_lengths = integers(DType::i64, query_lengths);
    padded.key_lengths = integers(DType::i64, key_lengths);
    const Tensor together = run_fresh(padded, runtime(2));
    for (std::size_t i = 0; i < query_lengths.size(); ++i) {
      const auto b = static_cast<std::int64_t>(i);
      AttentionCase one = padded;
      one.spec = attention_spec(1, 6, 2, query_lengths[i], key_lengths[i], 16, 16, causal);
      one.query = padded.query.viewed(slice(slice(padded.query, 0, b, b + 1), 2, 0, query_lengths[i]));
      one.key = padded.key.viewed(slice(slice(padded.key, 0, b, b + 1), 2, 0, key_lengths[i]));
      one.value = padded.value.viewed(slice(slice(padded.value, 0, b, b + 1), 2, 0, key_lengths[i]));
      one.out = Tensor(dtype(), {1, 6, query_lengths[i], 16});
      const TensorView rows = slice(slice(together, 0, b, b + 1), 2, 0, query_lengths[i]);
      const Tensor own = run_fresh(one, runtime());
      EXPECT_TRUE(same_bits(rows, own)) << i << ": " << first_difference(rows, own);
    }
  }
}

// ---- packed sequences

TEST_P(SequencesTest, PackedSequencesSeeTheirOwnKeysAlone) {
  Random random(13);
  AttentionCase test = packed_case({2, 1, 3}, {3, 2, 1}, attention_spec(1, 1, 1, 0, 0, 8, 1), random);
  make_mean_index(test);
  expect_near(out_of(test), {1, 1, 3.5, 5, 5, 5});
  test.spec.mask = test.spec.mask & Mask::causal(Causal::bottom_right);
  expect_near(out_of(test), {0.5, 1, 3.5, 0, 0, 5});
  test.spec.mask = Mask::packed() & Mask::causal(Causal::top_left);
  expect_near(out_of(test), {0, 0.5, 3, 5, 5, 5});
  test.spec.mask = Mask::packed() & Mask::window(0, 0);
  expect_near(out_of(test), {0, 1, 3, 5, 0, 0});
  test.spec.mask = Mask::packed() & Mask::causal(Causal::offset) & Mask::offsets();
  test.offsets = integers(DType::i32, {1, -1, 0});
  expect_near(out_of(test), {0.5, 1, 0, 5, 5, 5});
}

TEST_P(SequencesTest, PackedSequencesOfEveryLengthWithEveryPart) {
  const Mask masks[] = {
      Mask::none(),
      Mask::causal(Causal::top_left),
      Mask::causal(Causal::bottom_right),
      Mask::causal(Causal::bottom_right) & Mask::window(9, 0),
      Mask::window(5, 3),
      Mask::causal(Causal::offset) & Mask::offsets(),
      Mask::key_lengths() & Mask::query_lengths(),
      Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::query_lengths() & Mask::boolean() & Mask::bias(),
      Mask::boolean(),
      Mask::bias() & Mask::window(30, 30) & Mask::offsets(),
  };
  std::uint64_t seed = 40;
  for (const Mask& mask : masks)
    for (const auto& [query_length, key_length] : {std::pair{1, 300}, {3, 40}, {90, 90}, {40, 5}}) {
      if (slow() && query_length * key_length > 5000) continue;
      Random random(++seed);
      AttentionSpec spec =
          attention_spec(6, 6, 2, query_length, key_length, seed % 2 == 0 ? 16 : 72, 24, mask & Mask::packed());
      if (seed % 3 == 0) spec.softcap = 1.5, spec.has_alibi = spec.has_sink = true;
      const AttentionCase test = make_case(spec, random);
      ASSERT_TRUE(run_and_compare(test, runtime(1)));
      ASSERT_TRUE(run_and_compare(test, runtime(2)));
    }
}

TEST_P(SequencesTest, SequencesWithoutQueriesOrKeysAndRowsBehindTheLast) {
  Random random(17);
  AttentionSpec spec = attention_spec(1, 2, 1, 0, 0, 8, 8);
  spec.has_sink = true;
  AttentionCase test = packed_case({0, 2, 3, 0, 1}, {4, 0, 5, 0, 1}, spec, random);
  test.sink = numbers({0.5, -infinity});
  EXPECT_TRUE(run_and_compare(test, runtime()));
  // Seven more rows and keys than the sequences have.
  AttentionCase longer = test;
  longer.query = Tensor(dtype(), {1, 2, 13, 8});
  longer.key = Tensor(dtype(), {1, 1, 17, 8});
  longer.value = Tensor(dtype(), {1, 1, 17, 8});
  longer.out = Tensor(dtype(), {1, 2, 13, 8});
  longer.lse = Tensor(DType::f32, {1, 2, 13});
  for (const Tensor* tensor : {&longer.query, &longer.key, &longer.value}) fill(*tensor, not_a_number);
  copy(test.query, slice(longer.query, 2, 0, 6));
  copy(test.key, slice(longer.key, 2, 0, 10));
  copy(test.value, slice(longer.value, 2, 0, 10));
  EXPECT_TRUE(run_and_compare(longer, runtime()));
  EXPECT_TRUE(all_equal(slice(run_fresh(longer, runtime()), 2, 6, 13), 0));
  // No sequence at all.
  AttentionCase none = longer;
  none.spec.batch = 0;
  none.cumulative_query_lengths = none.cumulative_key_lengths = integers(DType::i64, {0});
  EXPECT_TRUE(run_and_compare(none, runtime(2)));
}

TEST_P(SequencesTest, ASequenceHasTheBitsThatItHasAlone) {
  for (const Mask& mask : {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::window(40, 0)})
    for (const bool changed : {false, true}) {
      Random random(19);
      AttentionSpec spec = attention_spec(1, 6, 3, 0, 0, 24, 40, mask);
      if (changed) spec.softcap = 2.0, spec.has_alibi = spec.has_sink = true;
      const std::vector<std::int64_t> query_lengths = {1, 90, 3, 8, 33, 1}, key_lengths = {4200, 90, 3, 70, 20, 64};
      AttentionCase test = packed_case(query_lengths, key_lengths, spec, random);
      const Tensor one_thread = run_fresh(test, runtime(1)), together = run_fresh(test, runtime(3));
      EXPECT_TRUE(same_bits(one_thread, together)) << first_difference(one_thread, together);
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < query_lengths.size(); ++i) {
        const Tensor own = run_fresh(alone(test, static_cast<std::int64_t>(i)), runtime());
        const TensorView rows = slice(together, 2, begin, begin + query_lengths[i]);
        EXPECT_TRUE(same_bits(rows, own)) << "sequence " << i << ": " << first_difference(rows, own);
        begin += query_lengths[i];
      }
    }
}

// One long sequence among short ones: its key splits are pieces of their own, for threads to share.
TEST_P(SequencesTest, ALongSequenceIsSharedOutAndKeepsItsBits) {
  const std::int64_t longest = slow() ? 9000 : 60000;
  for (const std::int64_t rows : {1, 7}) {
    Random random(23);
    AttentionCase test = packed_case({1, rows, 1, 2}, {300, longest, 10, 500}, attention_spec(1, 2, 1, 0, 0, 64, 64), random);
    const Tensor one = run_fresh(test, runtime(1));
    for (const int threads : {2, 4}) {
      const Tensor many = run_fresh(test, runtime(threads));
      EXPECT_TRUE(same_bits(one, many)) << first_difference(one, many);
    }
    EXPECT_TRUE(run_and_compare(test, runtime(2)));
  }
}

// NaN in every key of the neighbours, before and behind: nothing of it is seen.
TEST_P(SequencesTest, PoisonInOtherSequencesIsAbsent) {
  for (const auto& [rows, keys] : {std::pair{1, 70}, {2, 33}, {40, 150}}) {
    Random random(29);
    const Mask mask = Mask::causal(Causal::bottom_right);
    AttentionCase test =
        packed_case({rows, rows, rows}, {keys, keys, keys}, attention_spec(1, 4, 2, 0, 0, 16, 24, mask), random);
    const Tensor clean = run_fresh(test, runtime());
    for (const double poison : {not_a_number, infinity, -infinity}) {
      AttentionCase dirty = test;
      dirty.key = test.key.clone();
      dirty.value = test.value.clone();
      for (const Tensor* tensor : {&dirty.key, &dirty.value})
        for (const std::int64_t i : {0, 2}) fill(slice(*tensor, 2, i * keys, (i + 1) * keys), poison);
      const Tensor out = run_fresh(dirty, runtime(2));
      const TensorView before = slice(clean, 2, rows, 2 * rows), after = slice(out, 2, rows, 2 * rows);
      EXPECT_TRUE(same_bits(before, after)) << first_difference(before, after);
      EXPECT_TRUE(std::isnan(out({0, 0, 0, 0})) || !std::isnan(poison)) << "its own NaN is seen";
    }
  }
}

// Memory as a projection writes it: [total, heads, dim].
TEST_P(SequencesTest, PackedTensorsOfAnyStrides) {
  Random random(31);
  AttentionCase test = packed_case({3, 20, 1}, {9, 20, 64}, attention_spec(1, 4, 2, 0, 0, 16, 16), random);
  const Tensor contiguous = run_fresh(test, runtime());
  for (const std::int64_t step : {1, 2}) {
    AttentionCase moved = test;
    moved.query = Tensor::ordered(dtype(), {1, 4, 24, 16}, {0, 2, 1, 3}, 0, step);
    moved.key = Tensor::ordered(dtype(), {1, 2, 93, 16}, {0, 2, 1, 3}, 3, step);
    moved.value = Tensor::ordered(dtype(), {1, 2, 93, 16}, {0, 2, 1, 3}, 0, step);
    moved.out = Tensor::ordered(dtype(), {1, 4, 24, 16}, {0, 2, 1, 3}, 0, step);
    copy(test.query, moved.query);
    copy(test.key, moved.key);
    copy(test.value, moved.value);
    const Tensor out = run_fresh(moved, runtime(2));
    EXPECT_TRUE(same_bits(contiguous, out)) << first_difference(contiguous, out);
    EXPECT_TRUE(run_and_compare(moved, runtime()));
  }
}

TEST_P(SequencesTest, OnePlanServesAnySequencesUpToItsMaximum) {
  const AttentionPlan plan(attention_spec(6, 4, 2, 50, 80, 16, 16, Mask::packed() & Mask::causal(Causal::bottom_right)),
                           runtime(2));
  for (std::uint64_t seed = 1; seed < 12; ++seed) {
    Random random(seed);
    const AttentionCase test = make_case(
        attention_spec(random.integer(0, 6), 4, 2, 50, 80, 16, 16, Mask::packed() & Mask::causal(Causal::bottom_right)),
        random);
    plan.run(test.inputs_with_lse());
    const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
    EXPECT_TRUE(attention_matches(expected, test.out, test.describe()));
    EXPECT_TRUE(lse_matches(expected, test.lse, test.describe()));
  }
}

TEST_P(SequencesTest, TheOneCallFunctionTakesThem) {
  for (int round = 0; round < 2; ++round)  // the second finds all plans in the cache
    for (const Mask& mask : {Mask::none(), Mask::query_lengths(), Mask::packed(), Mask::packed() & Mask::query_lengths()}) {
      Random random(37);
      const AttentionCase test = make_case(attention_spec(3, 4, 2, 20, 60, 16, 16, mask), random);
      attention(runtime(), test.inputs(), test.options());
      EXPECT_TRUE(attention_matches(oracle::attention(test.inputs(), test.options()), test.out, test.describe()));
    }
}

TEST_P(SequencesTest, ExplainSaysThatWorkIsCutAtRunTime) {
  const std::string text = AttentionPlan(attention_spec(4, 2, 2, 100, 100, 64, 64, Mask::packed()), runtime()).explain();
  EXPECT_NE(text.find("cut at run time"), std::string::npos) << text;
  EXPECT_EQ(text.find("graph nodes"), std::string::npos) << text;
}

// ---- what is wrong with a call

class SequenceErrors : public ::testing::Test {
 protected:
  static const Runtime& any_runtime() { return runtime_on(default_isa()); }
  static void expect_refused(const AttentionCase& test, const std::vector<std::string>& words) {
    for (const bool one_call : {false, true}) {
      try {
        if (one_call) {
          attention(any_runtime(), test.inputs(), test.options());
        } else {
          AttentionPlan(test.spec, any_runtime()).run(test.inputs());
        }
        ADD_FAILURE() << "was accepted: " << words.front();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
        for (const std::string& word : words)
          EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " is not in: " << error.what();
      }
    }
  }
};

TEST_F(SequenceErrors, OfQueryLengths) {
  Random random(41);
  AttentionCase test = make_case(attention_spec(2, 2, 1, 5, 9, 8, 8, Mask::query_lengths()), random);
  test.query_lengths = integers(DType::i64, {5, 6});
  expect_refused(test, {"query_lengths[1]", "6", "0 to 5"});
  test.query_lengths = integers(DType::i64, {-1, 5});
  expect_refused(test, {"query_lengths[0]", "-1"});
  test.query_lengths = integers(DType::i64, {1});
  expect_refused(test, {"query_lengths", "i64[1]", "[2]"});
  test.query_lengths = Tensor(DType::f32, {2});
  expect_refused(test, {"query_lengths", "f32"});
  test.query_lengths = Tensor();
  expect_refused(test, {"query_lengths", "not given", "query lengths"});
}

TEST_F(SequenceErrors, OfPackedSequences) {
  Random random(43);
  const AttentionCase good = packed_case({2, 3}, {4, 5}, attention_spec(1, 2, 1, 0, 0, 8, 8), random);
  const auto with_ends = [&](const std::vector<std::int64_t>& query_ends, const std::vector<std::int64_t>& key_ends) {
    AttentionCase test = good;
    test.spec.query_length = 5, test.spec.key_length = 9;
    test.cumulative_query_lengths = integers(DType::i64, query_ends);
    test.cumulative_key_lengths = integers(DType::i64, key_ends);
    return test;
  };
  expect_refused(with_ends({1, 2, 5}, {0, 4, 9}), {"cumulative_query_lengths[0]", "1", "0"});
  expect_refused(with_ends({0, 3, 2}, {0, 4, 9}), {"cumulative_query_lengths[2]", "2", "the one before, 3"});
  expect_refused(with_ends({0, 2, 6}, {0, 4, 9}), {"cumulative_query_lengths[2]", "6", "0 to 5"});
  expect_refused(with_ends({0, 2, 5}, {0, -4, 9}), {"cumulative_key_lengths[1]", "-4"});
  expect_refused(with_ends({0, 2, 5}, {0, 9}), {"cumulative_key_lengths", "[2]", "[3]"});
  expect_refused(with_ends({}, {0, 4, 9}), {"cumulative_query_lengths", "sequences + 1"});
  AttentionCase floats = good;
  floats.cumulative_query_lengths = Tensor(DType::f32, {3});
  expect_refused(floats, {"cumulative_query_lengths", "f32", "i32 or i64"});
  AttentionCase missing = good;
  missing.cumulative_key_lengths = Tensor();
  expect_refused(missing, {"cumulative_key_lengths", "not given", "packed"});
  AttentionCase batch = good;
  batch.query = Tensor(DType::f32, {2, 2, 5, 8});
  expect_refused(batch, {"query", "f32[2, 2, 5, 8]", "f32[1, 2, any, 8]"});
  AttentionCase lengths = good;
  lengths.spec.mask = Mask::packed() & Mask::key_lengths();
  lengths.key_lengths = integers(DType::i64, {5, 5});
  expect_refused(lengths, {"key_lengths[0]", "5", "0 to 4"});
  lengths.spec.mask = Mask::packed() & Mask::query_lengths();
  lengths.query_lengths = integers(DType::i64, {2, 4});
  lengths.spec.query_length = 4;
  expect_refused(lengths, {"query_lengths[1]", "4"});
  AttentionCase mask = good;
  mask.spec.mask = Mask::packed() & Mask::boolean();
  mask.boolean_mask = Tensor(DType::boolean, {2, 2, 2, 5});
  expect_refused(mask, {"boolean_mask", "[2, 2, 2, 5]", "[2, 2, 3, 5]", "or to more"});
  // Outputs must not lie in what is read.
  AttentionCase overlap = good;
  overlap.cumulative_query_lengths = overlap.out.viewed(TensorView(overlap.out.view().data, DType::i64, {3}));
  for (int i = 0; i < 3; ++i) overlap.cumulative_query_lengths.i64()[i] = i;
  expect_refused(overlap, {"out", "overlaps", "cumulative_query_lengths"});
}

TEST_F(SequenceErrors, OfSequencesBeyondThePlansMaximum) {
  Random random(47);
  const AttentionCase test = packed_case({2, 3}, {4, 5}, attention_spec(1, 2, 1, 0, 0, 8, 8), random);
  const auto expect_too_small = [&](const std::function<void(AttentionSpec&)>& change, const std::string& word) {
    AttentionSpec spec = test.spec;
    change(spec);
    try {
      AttentionPlan(spec, any_runtime()).run(test.inputs());
      ADD_FAILURE() << "was accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  expect_too_small([](AttentionSpec& spec) { spec.batch = 1; }, "the number of sequences is 2");
  expect_too_small([](AttentionSpec& spec) { spec.query_length = 2; }, "number of queries is 3");
  expect_too_small([](AttentionSpec& spec) { spec.key_length = 4; }, "number of keys is 5");
}

TEST_F(SequenceErrors, LayersRefuseThem) {
  for (const Mask& mask : {Mask::query_lengths(), Mask::packed()}) {
    MultiHeadAttentionSpec spec;
    spec.d_model = 8;
    spec.heads = 2;
    spec.mask = mask;
    try {
      MultiHeadAttention(spec, {}, any_runtime());
      ADD_FAILURE() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("MultiHeadAttentionSpec.mask"), std::string::npos) << error.what();
    }
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(SequencesTest);

}  // namespace
}  // namespace polyhead::testing
