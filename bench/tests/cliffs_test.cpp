// What polyhead-sweep calls a cliff.
#include "sweep/cliffs.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace polyhead::bench {
namespace {

std::vector<SizedTime> from_size(std::int64_t first, const std::vector<double>& seconds) {
  std::vector<SizedTime> times;
  for (const double each : seconds) times.push_back({first++, each});
  return times;
}

TEST(Cliffs, NoneInTimesThatGrowSlowly) {
  EXPECT_TRUE(find_cliffs({}).empty());
  EXPECT_TRUE(find_cliffs(from_size(1, {1.0})).empty());
  EXPECT_TRUE(find_cliffs(from_size(1, {1.0, 1.0, 1.05, 1.0, 1.2})).empty());
  EXPECT_TRUE(find_cliffs(from_size(16, {1.0, 1.5, 2.25})).empty());
  EXPECT_TRUE(find_cliffs(from_size(64, {1.0, 1.25, 1.5625})).empty());
}

TEST(Cliffs, SlowerThanALargerSize) {
  const std::vector<Cliff> cliffs = find_cliffs(from_size(1, {1.0, 3.0, 2.5, 2.0, 2.2}));
  ASSERT_EQ(cliffs.size(), 2u);
  EXPECT_EQ(cliffs[0].size, 3);
  EXPECT_EQ(cliffs[0].other, 4);
  EXPECT_DOUBLE_EQ(cliffs[0].ratio, 1.25);
  EXPECT_EQ(cliffs[1].size, 2);
  EXPECT_EQ(cliffs[1].other, 4);
  EXPECT_DOUBLE_EQ(cliffs[1].ratio, 1.5);
}

TEST(Cliffs, ComparedWithTheFastestOfAllLargerSizes) {
  const std::vector<Cliff> cliffs = find_cliffs({{8, 1.2}, {100, 1.3}, {200, 1.0}});
  ASSERT_EQ(cliffs.size(), 2u);
  EXPECT_EQ(cliffs[0].size, 100);
  EXPECT_EQ(cliffs[1].size, 8);
  EXPECT_EQ(cliffs[1].other, 200);
}

TEST(Cliffs, StepsCountBetweenNeighboursFromSixteenOn) {
  EXPECT_TRUE(find_cliffs(from_size(14, {1.0, 4.0, 9.0})).empty());  // 14 to 15, 15 to 16
  const std::vector<Cliff> middle = find_cliffs(from_size(16, {1.0, 1.51}));
  ASSERT_EQ(middle.size(), 1u);
  EXPECT_EQ(middle[0].size, 17);
  EXPECT_EQ(middle[0].other, 16);
  EXPECT_DOUBLE_EQ(middle[0].limit, 1.5);
  const std::vector<Cliff> large = find_cliffs(from_size(64, {1.0, 1.26}));
  ASSERT_EQ(large.size(), 1u);
  EXPECT_DOUBLE_EQ(large[0].limit, 1.25);
  EXPECT_TRUE(find_cliffs({{64, 1.0}, {66, 1.9}}).empty());  // no neighbours
}

}  // namespace
}  // namespace polyhead::bench
