// mask_marks of every instruction set: each mark by its definition, byte by byte.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "kernels/guarded.hpp"
#include "polyhead/runtime.hpp"
#include "simd/contract/attention.hpp"
#include "simd/contract/mask_marks.hpp"

namespace polyhead::test {
namespace {

constexpr std::int64_t keys_per_mark = simd::AttentionArgs::keys_per_mark;

class MaskMarksTest : public ::testing::TestWithParam<Isa> {
 protected:
  void run(const simd::MaskMarksArgs& args) const { dispatch::kernel_table(GetParam()).mask_marks->run(args); }
};

// A mask of `queries` x `heads` x `keys` bytes, each dimension broadcast or not; its last byte is the last before a guard.
struct MarkedMask {
  std::int64_t queries, heads, keys;
  bool over_queries = true, over_heads = true, over_keys = true;
  std::int64_t key_step = 1;
  std::int64_t key_begin = 0, key_end = 0;

  std::int64_t row_bytes() const { return over_keys ? (keys - 1) * key_step + 1 : 1; }
  std::size_t bytes() const {
    return static_cast<std::size_t>(row_bytes() * (over_heads ? heads : 1) * (over_queries ? queries : 1));
  }
  simd::MaskMarksArgs args(const Guarded<std::uint8_t>& mask) const {
    simd::MaskMarksArgs args;
    args.mask = mask.data();
    args.key_stride = over_keys ? key_step : 0;
    args.head_stride = over_heads ? row_bytes() : 0;
    args.stride = over_queries ? row_bytes() * (over_heads ? heads : 1) : 0;
    args.query_end = queries;
    args.heads = heads;
    args.key_begin = key_begin;
    args.key_end = key_end;
    return args;
  }
};

std::vector<std::uint8_t> expected_marks(const simd::MaskMarksArgs& args, std::vector<std::uint8_t> marks) {
  for (std::size_t mark = 0; mark < marks.size(); ++mark) {
    bool any_seen = (marks[mark] & simd::keys_seen) != 0, all_seen = (marks[mark] & simd::keys_all) != 0;
    for (std::int64_t s = args.key_begin; s < args.key_end; ++s) {
      if (s / keys_per_mark != static_cast<std::int64_t>(mark)) continue;
      for (std::int64_t t = args.query_begin; t < args.query_end; ++t)
        for (std::int64_t g = 0; g < args.heads; ++g) {
          const bool seen = args.mask[t * args.stride + g * args.head_stride + s * args.key_stride] != 0;
          any_seen = any_seen || seen;
          all_seen = all_seen && seen;
        }
    }
    marks[mark] = static_cast<std::uint8_t>((any_seen ? simd::keys_seen : 0) | (all_seen ? simd::keys_all : 0));
  }
  return marks;
}

TEST_P(MaskMarksTest, EveryMarkIsWhatItsBytesAre) {
  std::mt19937 random(1);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::int64_t seen[4] = {};
  for (int turn = 0; turn < 4000; ++turn) {
    MarkedMask marked{pick(1, 9), pick(1, 3), pick(1, 400)};
    marked.over_queries = pick(0, 3) != 0;
    marked.over_heads = pick(0, 3) != 0;
    marked.over_keys = pick(0, 5) != 0;
    if (pick(0, 5) == 0) marked.key_step = pick(2, 3);
    marked.key_begin = pick(0, 2) == 0 ? pick(0, marked.keys - 1) : 0;
    marked.key_end = pick(0, 2) == 0 ? pick(marked.key_begin, marked.keys) : marked.keys;
    Guarded<std::uint8_t> mask(marked.bytes());
    // Nearly all alike, with a byte or two that are not.
    const bool visible = pick(0, 1) != 0;
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = visible ? static_cast<std::uint8_t>(pick(1, 255)) : 0;
    for (std::int64_t i = pick(0, 3); i > 0; --i) {
      mask[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(mask.size()) - 1))] = visible ? 0 : 128;
    }
    std::vector<std::uint8_t> marks(static_cast<std::size_t>((marked.keys + keys_per_mark - 1) / keys_per_mark));
    for (std::uint8_t& mark : marks) mark = pick(0, 3) != 0 ? simd::keys_all : static_cast<std::uint8_t>(pick(0, 3));
    simd::MaskMarksArgs args = marked.args(mask);
    const std::vector<std::uint8_t> expected = expected_marks(args, marks);
    args.marks = marks.data();
    run(args);
    for (std::size_t i = 0; i < marks.size(); ++i) {
      ASSERT_EQ(int{marks[i]}, int{expected[i]})
          << "turn " << turn << ", mark " << i << " of " << marks.size() << ", " << marked.queries << " x " << marked.heads
          << " x " << marked.keys << ", keys " << marked.key_begin << " .. " << marked.key_end;
      ++seen[expected[i]];
    }
  }
  for (const std::int64_t count : seen) EXPECT_GT(count, 100);  // none, some, no key at all and all are there
}

// Rows and keys may lie backwards.
TEST_P(MaskMarksTest, StridesMayBeNegative) {
  Guarded<std::uint8_t> mask(8 * 128);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = 1;
  mask[3 * 128 + 100] = 0;
  simd::MaskMarksArgs args;
  args.mask = mask.data() + 7 * 128;
  args.stride = -128;
  args.key_stride = 1;
  args.query_end = 8;
  args.key_end = 128;
  std::vector<std::uint8_t> marks(2, simd::keys_all);
  args.marks = marks.data();
  run(args);
  EXPECT_EQ(marks, (std::vector<std::uint8_t>{simd::keys_seen | simd::keys_all, simd::keys_seen}));
  args.mask += 127;
  args.key_stride = -1;
  marks.assign(2, simd::keys_all);
  run(args);
  EXPECT_EQ(marks, (std::vector<std::uint8_t>{simd::keys_seen, simd::keys_seen | simd::keys_all}));
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, MaskMarksTest, ::testing::ValuesIn(available_isas()),
                         [](const ::testing::TestParamInfo<Isa>& isa) { return std::string(name(isa.param)); });

}  // namespace
}  // namespace polyhead::test
