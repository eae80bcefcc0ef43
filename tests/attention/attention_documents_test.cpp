// Prefixes and segments: keys that all queries see beside causal, documents that see nothing of each other.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// [1, n] document numbers.
Tensor row_of(const std::vector<std::int64_t>& ids, DType dtype = DType::i64) {
  const Tensor tensor(dtype, {1, static_cast<std::int64_t>(ids.size())});
  for (std::size_t i = 0; i < ids.size(); ++i) tensor.set({0, static_cast<std::int64_t>(i)}, static_cast<double>(ids[i]));
  return tensor;
}

// Each document's number as often as it is long.
std::vector<std::int64_t> documents(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& ids) {
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    all.insert(all.end(), static_cast<std::size_t>(lengths[i]), ids[i % ids.size()]);
  return all;
}

class DocumentsTest : public EveryIsaAndDType {
 protected:
  static AttentionCase mean_index(std::int64_t query_length, std::int64_t key_length, const Mask& mask,
                                  std::int64_t batch = 1) {
    Random random(7);
    AttentionCase test = make_case(attention_spec(batch, 1, 1, query_length, key_length, 8, 1, mask), random);
    fill(test.query, 0.0);
    std::int64_t next = 0;
    fill(test.value, [&] { return static_cast<double>(next++ % key_length); });
    return test;
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

  // Puts poison into every key that no row of (b, kv head) sees, and compares bits.
  void expect_poison_is_absent(const AttentionCase& test) const {
    const AttentionSpec& spec = test.spec;
    const std::int64_t group = spec.heads / spec.kv_heads;
    const Tensor clean = run_fresh(test, runtime());
    for (const double poison : {not_a_number, infinity, -3.4e38}) {
      AttentionCase dirty = test;
      dirty.key = test.key.clone();
      dirty.value = test.value.clone();
      for (std::int64_t b = 0; b < spec.batch; ++b)
        for (std::int64_t g = 0; g < spec.kv_heads; ++g)
          for (std::int64_t s = 0; s < spec.key_length; ++s) {
            bool seen = false;
            for (std::int64_t h = g * group; h < (g + 1) * group && !seen; ++h)
              for (std::int64_t t = 0; t < spec.query_length && !seen; ++t)
                seen = oracle::allowed(test.inputs(), spec.mask, b, h, t, s);
            if (seen) continue;
            fill(slice(select(select(dirty.key, b), g), 0, s, s + 1), poison);
            fill(slice(select(select(dirty.value, b), g), 0, s, s + 1), poison);
          }
      for (const int threads : {1, 2}) {
        const Tensor out = run_fresh(dirty, runtime(threads));
        ASSERT_TRUE(same_bits(clean, out)) << poison << ", " << test.describe() << ": " << first_difference(clean, out);
      }
    }
  }
};

// ---- prefixes

TEST_P(DocumentsTest, APrefixIsSeenByEveryQueryBesideCausal) {
  AttentionCase test = mean_index(4, 4, Mask::causal(Causal::top_left) & Mask::prefix(), 5);
  test.prefix_lengths = integers(DType::i64, {0, 1, 2, 3, 4});
  expect_near(out_of(test), {0, 0.5, 1, 1.5, 0, 0.5, 1, 1.5, 0.5, 0.5, 1, 1.5, 1, 1, 1, 1.5, 1.5, 1.5, 1.5, 1.5});
}

TEST_P(DocumentsTest, APrefixGoesWithEveryAlignmentAndOtherPartsHideItStill) {
  AttentionCase test = mean_index(2, 6, Mask::causal(Causal::bottom_right) & Mask::prefix(), 1);
  test.prefix_lengths = integers(DType::i32, {6});
  expect_near(out_of(test), {2.5, 2.5});
  test = mean_index(2, 6, Mask::causal(Causal::offset) & Mask::offsets() & Mask::prefix(), 2);
  test.offsets = integers(DType::i32, {-10, 1});
  test.prefix_lengths = integers(DType::i32, {3, 3});
  expect_near(out_of(test), {1, 1, 1, 1});
  test = mean_index(2, 6, Mask::causal(Causal::bottom_right) & Mask::prefix() & Mask::key_lengths(), 1);
  test.prefix_lengths = integers(DType::i32, {6});
  test.key_lengths = integers(DType::i32, {3});
  expect_near(out_of(test), {1, 1});
  // Of a window the right side too: query 0 stands at key 0.
  test = mean_index(3, 6, Mask::causal(Causal::top_left) & Mask::window(1, 2) & Mask::prefix(), 1);
  test.prefix_lengths = integers(DType::i32, {4});
  expect_near(out_of(test), {1, 1.5, 2});
}

TEST_P(DocumentsTest, PrefixesOfEveryLengthWithEveryPart) {
  const Mask masks[] = {
      Mask::causal(Causal::top_left),
      Mask::causal(Causal::bottom_right),
      Mask::causal(Causal::bottom_right) & Mask::window(60, 30),
      Mask::causal(Causal::bottom_right) & Mask::window(20, 30, 7),
      Mask::causal(Causal::offset) & Mask::offsets() & Mask::boolean() & Mask::bias(),
      Mask::causal(Causal::bottom_right) & Mask::query_lengths() & Mask::key_lengths(),
      Mask::causal(Causal::bottom_right) & Mask::packed(),
  };
  std::uint64_t seed = 0;
  for (const Mask& mask : masks)
    for (const auto& [query_length, key_length] : {std::pair{1, 40}, {3, 150}, {90, 90}, {130, 200}}) {
      if (slow() && query_length == 130) continue;
      Random random(++seed);
      AttentionSpec spec = attention_spec(4, 6, 2, query_length, key_length, 16, 24, mask & Mask::prefix());
      if (seed % 3 == 0) spec.softcap = 1.5, spec.has_alibi = spec.has_sink = true;
      const AttentionCase test = make_case(spec, random);
      ASSERT_TRUE(run_and_compare(test, runtime(1)));
      ASSERT_TRUE(run_and_compare(test, runtime(2)));
      if (!mask.is_packed && !mask.has_bias) {
        ASSERT_NO_FATAL_FAILURE(expect_poison_is_absent(test));
      }
    }
}

TEST_P(DocumentsTest, APrefixOfZeroChangesNoBit) {
  Random random(9);
  AttentionCase test = make_case(attention_spec(2, 4, 2, 70, 200, 16, 16, Mask::causal(Causal::bottom_right)), random);
  const Tensor plain = run_fresh(test, runtime());
  test.spec.mask = test.spec.mask & Mask::prefix();
  test.prefix_lengths = integers(DType::i64, {0, 0});
  const Tensor with = run_fresh(test, runtime(2));
  EXPECT_TRUE(same_bits(plain, with)) << first_difference(plain, with);
}

// Split keys: the border between rows that see the prefix and rows that do not lies inside a piece.
TEST_P(DocumentsTest, PrefixesAndSplitKeys) {
  for (const std::int64_t rows : {1, 2, 24}) {
    Random random(11);
    AttentionCase test = make_case(
        attention_spec(2, 2, 1, rows, 6200, 8, 8, Mask::causal(Causal::offset) & Mask::offsets() & Mask::prefix()), random);
    test.offsets = integers(DType::i64, {2990, 100});
    test.prefix_lengths = integers(DType::i64, {3000, 5000});
    for (const int threads : {1, 2}) EXPECT_TRUE(run_and_compare(test, runtime(threads)));
  }
}

// ---- segments

TEST_P(DocumentsTest, OnlyEqualNumbersSeeEachOther) {
  AttentionCase test = mean_index(5, 6, Mask::segments());
  const auto with = [&](const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys) {
    test.query_segments = row_of(queries, DType::i32);
    test.key_segments = row_of(keys);
    return out_of(test);
  };
  expect_near(with({1, 1, 2, 2, 9}, {1, 1, 2, 2, 2, 3}), {0.5, 0.5, 3, 3, 0});    // one after another
  expect_near(with({7, 7, -1, 0, 0}, {-1, 0, 0, 7, 7, 7}), {4, 4, 0, 1.5, 1.5});  // in other orders
  expect_near(with({2, 1, 2, 1, 5}, {1, 2, 1, 2, 1, 2}), {3, 2, 3, 2, 0});        // in none
  expect_near(with({4, 4, 4, 4, 4}, {4, 4, 4, 4, 4, 4}), {2.5, 2.5, 2.5, 2.5, 2.5});
  expect_near(with({4, 4, 4, 4, 4}, {5, 5, 5, 5, 5, 5}), {0, 0, 0, 0, 0});
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  test.query_segments = row_of({1, 1, 1, 1, 1});
  test.key_segments = row_of({1, 1, 1, 1, 1, 1});
  test.key_segments.i64()[0] = most, test.key_segments.i64()[5] = -most - 1;
  test.query_segments.i64()[2] = most;
  expect_near(out_of(test), {2.5, 2.5, 0, 2.5, 2.5});
}

TEST_P(DocumentsTest, CausalCountsThroughAllDocuments) {
  AttentionCase test = mean_index(6, 6, Mask::segments() & Mask::causal(Causal::top_left));
  test.query_segments = test.key_segments = row_of({1, 1, 2, 2, 2, 3});
  expect_near(out_of(test), {0, 0.5, 2, 2.5, 3, 5});
  test.spec.mask = Mask::segments() & Mask::causal(Causal::top_left) & Mask::window(1, 0);
  expect_near(out_of(test), {0, 0.5, 2, 2.5, 3.5, 5});
  // First keys that stay in sight are the batch item's, not each document's.
  test.spec.mask = Mask::segments() & Mask::causal(Causal::top_left) & Mask::window(0, 0, 1);
  expect_near(out_of(test), {0, 0.5, 2, 3, 4, 5});
  // In no order, causal or with a window.
  test.query_segments = test.key_segments = row_of({1, 2, 1, 2, 1, 2});
  test.spec.mask = Mask::segments() & Mask::causal(Causal::top_left);
  expect_near(out_of(test), {0, 1, 1, 2, 2, 3});
  test.spec.mask = Mask::segments() & Mask::window(2, 2);
  expect_near(out_of(test), {1, 2, 2, 3, 3, 4});
  test.spec.mask = Mask::segments() & Mask::causal(Causal::top_left) & Mask::window(0, 0, 1);
  expect_near(out_of(test), {0, 1, 1, 3, 2, 5});
}

TEST_P(DocumentsTest, SegmentsOfEveryOrderWithEveryPart) {
  const Mask masks[] = {
      Mask::none(),
      Mask::causal(Causal::top_left),
      Mask::causal(Causal::bottom_right) & Mask::prefix(),
      Mask::window(20, 5),
      Mask::window(10, 5, 30),
      Mask::boolean(),
      Mask::causal(Causal::bottom_right) & Mask::query_lengths() & Mask::key_lengths() & Mask::bias(),
      Mask::boolean() & Mask::causal(Causal::offset) & Mask::offsets() & Mask::window(70, 0),
  };
  std::uint64_t seed = 100;
  for (const Mask& mask : masks)
    for (const auto& [query_length, key_length] : {std::pair{1, 40}, {4, 300}, {90, 90}, {200, 150}})
      for (int repeat = 0; repeat < 3; ++repeat) {
        if (slow() && (query_length == 200 || repeat > 0)) continue;
        Random random(++seed);
        AttentionSpec spec = attention_spec(3, 6, 2, query_length, key_length, 16, 24, mask & Mask::segments());
        if (seed % 3 == 0) spec.softcap = 1.5, spec.has_alibi = spec.has_sink = true;
        const AttentionCase test = make_case(spec, random);
        ASSERT_TRUE(run_and_compare(test, runtime(1)));
        ASSERT_TRUE(run_and_compare(test, runtime(2)));
        if (query_length <= 90 && repeat == 0 && !mask.has_bias) {
          ASSERT_NO_FATAL_FAILURE(expect_poison_is_absent(test));
        }
      }
}

// Documents one after another are what packed sequences are: the same bits, whatever their numbers and order.
TEST_P(DocumentsTest, HaveTheBitsOfPackedSequences) {
  for (const Mask& mask : {Mask::none(), Mask::causal(Causal::top_left) & Mask::window(40, 0)}) {
    const std::vector<std::int64_t> lengths = {1, 90, 3, 64, 40}, ends = {0, 1, 91, 94, 158, 198};
    Random random(13);
    AttentionCase packed = make_case(attention_spec(1, 6, 2, 198, 198, 16, 24, mask), random);
    AttentionCase segments = packed;
    segments.spec.mask = mask & Mask::segments();
    packed.spec.mask = mask & Mask::packed();
    packed.spec.batch = 5;
    packed.cumulative_query_lengths = packed.cumulative_key_lengths = integers(DType::i64, ends);
    const Tensor right = run_fresh(packed, runtime());
    for (const std::vector<std::int64_t>& ids : {std::vector<std::int64_t>{1, 2, 3, 4, 5}, {9, -4, 0, 7, 3}}) {
      segments.query_segments = segments.key_segments = row_of(documents(lengths, ids));
      const Tensor out = run_fresh(segments, runtime(2));
      EXPECT_TRUE(same_bits(right, out)) << first_difference(right, out);
    }
  }
}

// Each batch item by its own order: what others in the batch are like changes no bit.
TEST_P(DocumentsTest, AnItemsBitsDoNotDependOnTheOrderOfOthers) {
  Random random(15);
  AttentionCase test = make_case(attention_spec(3, 4, 2, 60, 60, 16, 16, Mask::segments()), random);
  test.query_segments = Tensor(DType::i64, {3, 60});
  for (std::int64_t i = 0; i < 60; ++i) {
    test.query_segments.set({0, i}, static_cast<double>(i / 20));
    test.query_segments.set({1, i}, static_cast<double>(i % 3));
    test.query_segments.set({2, i}, static_cast<double>(i < 7 ? 5 : 2));
  }
  test.key_segments = test.query_segments;
  const Tensor together = run_fresh(test, runtime(3));
  for (std::int64_t b = 0; b < 3; ++b) {
    AttentionCase one = test;
    one.spec.batch = 1;
    for (Tensor AttentionCase::* tensor : {&AttentionCase::query, &AttentionCase::key, &AttentionCase::value,
                                           &AttentionCase::query_segments, &AttentionCase::key_segments})
      one.*tensor = (test.*tensor).viewed(slice(test.*tensor, 0, b, b + 1));
    one.out = Tensor(dtype(), {1, 4, 60, 16});
    const Tensor alone = run_fresh(one, runtime());
    EXPECT_TRUE(same_bits(slice(together, 0, b, b + 1), alone)) << b;
  }
}

TEST_P(DocumentsTest, OneRowOfNumbersServesTheBatch) {
  Random random(17);
  AttentionCase test = make_case(attention_spec(3, 2, 1, 20, 30, 8, 8, Mask::segments()), random);
  test.query_segments = row_of(documents({7, 13}, {1, 2}));
  test.key_segments = row_of(documents({10, 12, 8}, {2, 1, 4}));
  EXPECT_TRUE(run_and_compare(test, runtime()));
  const Tensor strided(DType::i32, {1, 30}, {0, 3});
  copy(test.key_segments, strided);
  test.key_segments = strided;
  EXPECT_TRUE(run_and_compare(test, runtime()));
}

TEST_P(DocumentsTest, NumbersInNoOrderOverSplitKeys) {
  for (const std::int64_t rows : {1, 24}) {
    Random random(19);
    AttentionCase test = make_case(attention_spec(1, 4, 2, rows, 6200, 8, 8, Mask::segments()), random);
    test.query_segments = Tensor(DType::i32, {1, rows});
    test.key_segments = Tensor(DType::i32, {1, 6200});
    fill(test.query_segments, [&] { return static_cast<double>(random.integer(0, 2)); });
    // A whole split of one document, a block of another, the rest thrown about.
    std::int64_t s = 0;
    fill(test.key_segments, [&] {
      const std::int64_t key = s++;
      return static_cast<double>(key < 2048 ? 0 : key < 2304 ? 1 : random.integer(0, 3));
    });
    for (const int threads : {1, 2}) EXPECT_TRUE(run_and_compare(test, runtime(threads)));
  }
}

// ---- what is wrong with a call

TEST(DocumentErrors, NameTheArgument) {
  const Runtime& runtime = runtime_on(default_isa());
  const auto expect_refused = [&](const AttentionCase& test, const std::vector<std::string>& words) {
    try {
      attention(runtime, test.inputs(), test.options());
      ADD_FAILURE() << "was accepted: " << words.front();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " is not in: " << error.what();
    }
  };
  Random random(21);
  AttentionCase prefix =
      make_case(attention_spec(2, 2, 1, 5, 9, 8, 8, Mask::causal(Causal::top_left) & Mask::prefix()), random);
  prefix.prefix_lengths = integers(DType::i64, {9, 10});
  expect_refused(prefix, {"prefix_lengths[1]", "10", "0 to 9"});
  prefix.prefix_lengths = Tensor();
  expect_refused(prefix, {"prefix_lengths", "not given", "prefix"});
  prefix.spec.mask = Mask::prefix();
  expect_refused(prefix, {"has_prefix", "true", "causal"});
  AttentionCase segments = make_case(attention_spec(2, 2, 1, 5, 9, 8, 8, Mask::segments()), random);
  segments.query_segments = Tensor(DType::i64, {2, 5});
  segments.key_segments = Tensor(DType::i64, {2, 8});
  expect_refused(segments, {"key_segments", "[2, 8]", "[2 or 1, 9]"});
  segments.key_segments = Tensor(DType::f32, {2, 9});
  expect_refused(segments, {"key_segments", "f32", "i32 or i64"});
  segments.key_segments = Tensor();
  expect_refused(segments, {"key_segments", "not given", "segments"});
  segments.spec.mask = Mask::segments() & Mask::packed();
  expect_refused(segments, {"has_segments", "packed", "each document"});
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(DocumentsTest);

}  // namespace
}  // namespace polyhead::testing
