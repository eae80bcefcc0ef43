// Block masks: blocks of any size, with every other part, and what is hidden is not looked at.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class BlocksTest : public EveryIsaAndDType {
 protected:
  // The same mask, written out as a boolean one over queries and keys.
  static AttentionCase as_boolean(const AttentionCase& test) {
    const AttentionSpec& spec = test.spec;
    AttentionCase full = test;
    full.spec.mask.block_queries = full.spec.mask.block_keys = 0;
    full.spec.mask.has_boolean = true;
    full.boolean_mask = Tensor(DType::boolean, {spec.batch, spec.heads, spec.query_length, spec.key_length});
    for (std::int64_t b = 0; b < spec.batch; ++b)
      for (std::int64_t h = 0; h < spec.heads; ++h)
        for (std::int64_t t = 0; t < spec.query_length; ++t)
          for (std::int64_t s = 0; s < spec.key_length; ++s) {
            const auto& shape = test.block_mask.view().shape;
            const std::int64_t i = shape[2] == 1 ? 0 : t / spec.mask.block_queries,
                               j = shape[3] == 1 ? 0 : s / spec.mask.block_keys;
            const double visible = test.block_mask({shape[0] == 1 ? 0 : b, shape[1] == 1 ? 0 : h, i, j});
            const bool both = visible != 0 && (!spec.mask.has_boolean || test.boolean_mask({b, h, t, s}) != 0);
            full.boolean_mask.set({b, h, t, s}, both);
          }
    return full;
  }
};

TEST_P(BlocksTest, OfEverySizeWithEveryPart) {
  const Mask masks[] = {
      Mask::none(),
      Mask::causal(Causal::bottom_right),
      Mask::boolean(),
      Mask::window(40, 10) & Mask::bias(),
      Mask::causal(Causal::top_left) & Mask::query_lengths() & Mask::key_lengths(),
      Mask::causal(Causal::bottom_right) & Mask::prefix(),
      Mask::packed() & Mask::causal(Causal::bottom_right),
      Mask::segments(),
  };
  std::uint64_t seed = 0;
  for (const Mask& mask : masks)
    for (const auto& [block_queries, block_keys] :
         {std::pair{64, 64}, {16, 128}, {1, 1}, {3, 7}, {128, 16}, {1000, 1000}, {20, 300}})
      for (const auto& [query_length, key_length] : {std::pair{1, 300}, {5, 70}, {150, 330}}) {
        ++seed;
        if (slow() && query_length == 150 && seed % 4 != 0) continue;
        if (dtype() != DType::f32 && seed % 11 > 2) continue;  // the masks' own work is the same
        Random random(seed);
        AttentionSpec spec = attention_spec(2, 6, seed % 2 == 0 ? 2 : 6, query_length, key_length, seed % 2 == 0 ? 16 : 56, 24,
                                            mask & Mask::blocks(block_queries, block_keys));
        if (seed % 3 == 0) spec.softcap = 1.5, spec.has_alibi = spec.has_sink = true;
        AttentionCase test = make_case(spec, random);
        if (seed % 5 == 1) {  // one mask for all heads
          test.block_mask = test.block_mask.viewed(slice(test.block_mask, 1, 0, 1));
        }
        ASSERT_TRUE(run_and_compare(test, runtime(1)));
        ASSERT_TRUE(run_and_compare(test, runtime(2)));
      }
}

TEST_P(BlocksTest, HeadsOfAGroupWithMasksOfTheirOwn) {
  for (const std::int64_t query_length : {1, 3, 100})
    for (const std::int64_t key_length : {150, 5000}) {
      if (slow() && key_length == 5000) continue;
      Random random(31);
      AttentionCase test = make_case(attention_spec(2, 6, 2, query_length, key_length, 16, 16, Mask::blocks(32, 64)), random);
      ASSERT_TRUE(run_and_compare(test, runtime(1)));
      ASSERT_TRUE(run_and_compare(test, runtime(3)));
    }
}

TEST_P(BlocksTest, SplitKeysOfWhichSomeAreHiddenWhole) {
  for (const std::int64_t rows : {1, 20})
    for (const std::int64_t block_keys : {64, 100, 2048}) {
      Random random(33);
      AttentionCase test = make_case(attention_spec(1, 4, 2, rows, 9000, 16, 16, Mask::blocks(8, block_keys)), random);
      const std::int64_t blocks = test.block_mask.view().shape[3];
      fill(slice(test.block_mask, 3, blocks / 4, blocks / 2), 0.0);
      for (const int threads : {1, 2}) ASSERT_TRUE(run_and_compare(test, runtime(threads)));
      const Tensor one = run_fresh(test, runtime(1)), many = run_fresh(test, runtime(4));
      EXPECT_TRUE(same_bits(one, many)) << first_difference(one, many);
    }
}

// What a row sees decides its bits, not how the mask is written down: where the kernel and its groups of rows are the same.
TEST_P(BlocksTest, HaveTheBitsOfTheSameBooleanMask) {
  for (const std::int64_t query_length : {1, 130})
    for (const auto& [block_queries, block_keys] : {std::pair{64, 64}, {1, 1}, {32, 128}, {5, 70}}) {
      Random random(35);
      const AttentionCase test =
          make_case(attention_spec(2, 2, 2, query_length, 400, 64, 64, Mask::blocks(block_queries, block_keys)), random);
      const Tensor blocks = run_fresh(test, runtime(2)), boolean = run_fresh(as_boolean(test), runtime());
      EXPECT_TRUE(same_bits(blocks, boolean)) << first_difference(blocks, boolean) << ", " << test.describe();
    }
}

TEST_P(BlocksTest, AllVisibleOrAllHidden) {
  for (const std::int64_t query_length : {1, 70}) {
    Random random(37);
    AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, 200, 16, 16, Mask::blocks(32, 32)), random);
    AttentionCase plain = test;
    plain.spec.mask = Mask::none();
    fill(test.block_mask, 1.0);
    const Tensor all = run_fresh(test, runtime()), none_hidden = run_fresh(plain, runtime());
    EXPECT_TRUE(same_bits(all, none_hidden)) << first_difference(all, none_hidden);
    fill(test.block_mask, 0.0);
    fill(test.key, not_a_number);
    fill(test.value, not_a_number);
    AttentionPlan(test.spec, runtime(2)).run(test.inputs_with_lse());
    for_each_offset(test.out, [&](std::int64_t offset) { ASSERT_EQ(load(test.out, offset), 0); });
    for_each_offset(test.lse, [&](std::int64_t offset) { ASSERT_EQ(load(test.lse, offset), -infinity); });
  }
}

TEST_P(BlocksTest, PoisonInHiddenBlocksIsAbsent) {
  for (const std::int64_t query_length : {1, 4, 90})
    for (const std::int64_t head_dim : {16, 72})
      for (const double poison : {not_a_number, infinity, -3.4e38}) {
        Random random(39);
        AttentionCase test =
            make_case(attention_spec(1, 4, 2, query_length, 700, head_dim, head_dim, Mask::blocks(16, 50)), random);
        // Of 14 columns of blocks the third and the last are hidden from all; the others from some.
        for (const std::int64_t column : {2, 13}) fill(slice(test.block_mask, 3, column, column + 1), 0.0);
        const Tensor clean = run_fresh(test, runtime());
        for (const std::int64_t column : {2, 13})
          for (const Tensor* tensor : {&test.key, &test.value}) fill(slice(*tensor, 2, column * 50, column * 50 + 50), poison);
        const Tensor dirty = run_fresh(test, runtime(2));
        ASSERT_TRUE(same_bits(clean, dirty)) << first_difference(clean, dirty);
        // A NaN that some rows see reaches these and no others.
        test.value.set({0, 1, 333, 0}, not_a_number);
        const Tensor out = run_fresh(test, runtime());
        for (std::int64_t h = 2; h < 4; ++h)
          for (std::int64_t t = 0; t < query_length; ++t)
            ASSERT_EQ(std::isnan(out({0, h, t, 0})), test.block_mask({0, h, t / 16, 6}) != 0) << h << ' ' << t;
      }
}

TEST_P(BlocksTest, MasksBroadcastAndHaveAnyStrides) {
  for (int pattern = 0; pattern < 16; ++pattern) {
    Random random(static_cast<std::uint64_t>(41 + pattern));
    AttentionCase test = make_case(attention_spec(2, 4, 2, 70, 150, 8, 8, Mask::blocks(32, 40)), random);
    std::vector<std::int64_t> shape = {2, 4, 3, 4};
    for (int i = 0; i < 4; ++i)
      if ((pattern >> i & 1) != 0) shape[static_cast<std::size_t>(i)] = 1;
    test.block_mask = Tensor::ordered(DType::u8, shape, {3, 1, 0, 2}, 1, 2);
    fill(test.block_mask, [&] { return random.chance(0.6) ? static_cast<double>(random.integer(1, 255)) : 0.0; });
    ASSERT_TRUE(run_and_compare(test, runtime()));
  }
  Random random(60);
  AttentionCase lower = make_case(attention_spec(2, 4, 2, 70, 150, 8, 8, Mask::blocks(32, 40)), random);
  lower.block_mask = Tensor(DType::boolean, {3, 4});
  fill(lower.block_mask, [&] { return random.chance(0.6) ? 1.0 : 0.0; });
  EXPECT_TRUE(run_and_compare(lower, runtime()));
}

TEST(BlockErrors, NameTheArgument) {
  const Runtime& runtime = runtime_on(default_isa());
  Random random(61);
  const AttentionCase good = make_case(attention_spec(2, 4, 2, 70, 150, 8, 8, Mask::blocks(32, 40)), random);
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
  AttentionCase test = good;
  test.block_mask = Tensor(DType::boolean, {2, 4, 3, 3});
  expect_refused(test, {"block_mask", "bool[2, 4, 3, 3]", "bool[2, 4, 3, 4]"});
  test.block_mask = Tensor(DType::f32, {2, 4, 3, 4});
  expect_refused(test, {"block_mask", "f32", "bool or u8"});
  test.block_mask = Tensor();
  expect_refused(test, {"block_mask", "not given", "blocks"});
  test = good;
  test.spec.mask.block_keys = 0;
  expect_refused(test, {"block_", "0"});
  test.spec.mask.block_keys = -40;
  expect_refused(test, {"block_keys", "-40"});
  EXPECT_THROW(Mask::blocks(0, 5), Error);
  EXPECT_THROW(Mask::blocks(5, -1), Error);
  EXPECT_THROW(Mask::blocks(32, 32) & Mask::blocks(32, 64), Error);
  EXPECT_EQ((Mask::blocks(32, 64) & Mask::causal(Causal::top_left)).block_keys, 64);
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(BlocksTest);

}  // namespace
}  // namespace polyhead::testing
