// Every remainder around the edges of tiles and blocks: lengths, head sizes, groups, batches, long keys.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

const std::vector<std::int64_t>& lengths() {
  static const std::vector<std::int64_t> list = [] {
    std::vector<std::int64_t> all;
    for (const auto& [first, last] : {std::pair{1, 20}, {47, 50}, {63, 66}, {127, 130}})
      for (int length = first; length <= last; ++length) all.push_back(length);
    return all;
  }();
  return list;
}

const std::vector<std::int64_t> dims = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 80, 96, 128, 192, 256};

// The kinds of mask take turns through a sweep, so that each meets many remainders.
Mask mask_of(std::size_t turn) {
  switch (turn % 9) {
    case 1:
      return Mask::causal(Causal::top_left);
    case 2:
      return Mask::causal(Causal::bottom_right);
    case 3:
      return Mask::key_lengths();
    case 4:
      return Mask::boolean();
    case 5:
      return Mask::bias();
    case 6:
      return Mask::window(5, 3);
    case 7:
      return Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::window(17, Mask::unbounded);
    case 8:
      return Mask::causal(Causal::offset) & Mask::offsets() & Mask::bias() & Mask::boolean();
    default:
      return Mask::none();
  }
}

class Sweep : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { set_case_dtype(GetParam()); }
  void TearDown() override {
    set_case_dtype(DType::f32);
    std::printf("    largest error: %.3f of the bound\n", take_worst_ratio());
  }
};
INSTANTIATE_TEST_SUITE_P(DType, Sweep, ::testing::ValuesIn(attention_dtypes()),
                         [](const auto& instance) { return std::string(name(instance.param)); });

TEST_P(Sweep, QueryLengthByKeyLength) {
  std::size_t turn = 0;
  for (const std::int64_t query_length : lengths())
    for (const std::int64_t key_length : lengths()) {
      Random random(turn);
      const auto spec = attention_spec(1, 1, 1, query_length, key_length, 8, 8, mask_of(turn));
      ASSERT_TRUE(run_everywhere(make_case(spec, random)));
      ++turn;
    }
}

TEST_P(Sweep, HeadDimByValueDim) {
  std::size_t turn = 0;
  for (const std::int64_t head_dim : dims)
    for (const std::int64_t value_dim : dims) {
      Random random(turn);
      const std::int64_t query_length = turn % 3 == 0 ? 1 : turn % 3 == 1 ? 5 : 19;
      const auto spec = attention_spec(1, 1, 1, query_length, 21, head_dim, value_dim, mask_of(turn / 3));
      ASSERT_TRUE(run_everywhere(make_case(spec, random)));
      ++turn;
    }
}

TEST_P(Sweep, HeadDimByQueryLength) {
  std::size_t turn = 0;
  for (const std::int64_t dim : dims)
    for (const std::int64_t query_length : {1, 2, 3, 4, 7, 8, 9, 16, 17, 24, 33, 49}) {
      Random random(turn);
      const auto spec = attention_spec(1, 1, 1, query_length, 67, dim, dim, mask_of(turn++));
      ASSERT_TRUE(run_everywhere(make_case(spec, random)));
    }
}

TEST_P(Sweep, HeadsByBatchByLength) {
  std::size_t turn = 0;
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {8, 1}, {6, 3}, {9, 3}, {32, 8}, {3, 3}, {7, 1}, {28, 4}})
    for (const std::int64_t batch : {0, 1, 2, 3})
      for (const std::int64_t query_length : {1, 2, 3, 5, 17})
        for (const std::int64_t key_length : {1, 13, 34, 65}) {
          Random random(turn);
          const auto spec = attention_spec(batch, heads, kv_heads, query_length, key_length, 8, 12, mask_of(turn));
          ASSERT_TRUE(run_everywhere(make_case(spec, random)));
          ++turn;
        }
}

// Prompt lengths and prefixes around a block, with groups that do not fill a tile.
TEST_P(Sweep, PrefixByExtensionByGroup) {
  std::size_t turn = 0;
  for (const std::int64_t prefix : {0, 1, 31, 33})
    for (const std::int64_t extension : {1, 7, 31, 33, 65})
      for (const std::int64_t group : {1, 4, 7}) {
        Random random(turn++);
        const auto spec =
            attention_spec(1, group, 1, extension, prefix + extension, 16, 16, Mask::causal(Causal::bottom_right));
        ASSERT_TRUE(run_everywhere(make_case(spec, random)));
      }
}

// Keys are split and merged here, if a kernel does that.
TEST_P(Sweep, LongKeys) {
  std::size_t turn = 0;
  for (const std::int64_t base : {256, 512, 1024, 2048, 4096, 8192})
    for (const std::int64_t key_length : {base - 1, base, base + 1})
      for (const std::int64_t query_length : {1, 4, 9})
        for (const std::int64_t group : {1, 4}) {
          if (key_length > 2049 && query_length > 4) continue;
          Random random(turn);
          const auto spec = attention_spec(1, group, 1, query_length, key_length, 8, 8, mask_of(turn));
          ASSERT_TRUE(run_everywhere(make_case(spec, random)));
          ++turn;
        }
}

TEST_P(Sweep, LongQueries) {
  std::size_t turn = 0;
  for (const std::int64_t length : {191, 192, 193, 255, 256, 257, 511, 513, 768, 1023}) {
    Random random(turn);
    ASSERT_TRUE(run_everywhere(make_case(attention_spec(1, 1, 1, length, 70, 8, 8, mask_of(turn)), random)));
    ASSERT_TRUE(run_everywhere(make_case(attention_spec(1, 2, 1, length, 35, 4, 4, mask_of(turn + 4)), random)));
    ++turn;
  }
}

// The sizes of real models, once each.
TEST_P(Sweep, ModelShapes) {
  struct Shape {
    std::int64_t batch, heads, kv_heads, query_length, key_length, head_dim, value_dim;
    Mask mask;
  };
  const Shape shapes[] = {
      {1, 12, 12, 128, 128, 64, 64, Mask::none()},
      {2, 12, 12, 65, 65, 32, 32, Mask::key_lengths()},
      {1, 32, 8, 40, 40, 128, 128, Mask::causal(Causal::bottom_right)},
      {1, 32, 8, 1, 777, 128, 128, Mask::causal(Causal::bottom_right)},
      {4, 32, 8, 1, 300, 128, 128, Mask::key_lengths()},
      {1, 8, 8, 96, 77, 40, 40, Mask::none()},
      {1, 16, 1, 3, 500, 192, 128, Mask::causal(Causal::bottom_right)},
      {1, 12, 12, 197, 197, 64, 64, Mask::none()},
      {1, 4, 4, 150, 150, 64, 64, Mask::causal(Causal::bottom_right) & Mask::window(63, 0)},
  };
  std::uint64_t seed = 0;
  for (const Shape& s : shapes) {
    Random random(++seed);
    ASSERT_TRUE(run_everywhere(make_case(
        attention_spec(s.batch, s.heads, s.kv_heads, s.query_length, s.key_length, s.head_dim, s.value_dim, s.mask), random)));
  }
}

}  // namespace
}  // namespace polyhead::testing
