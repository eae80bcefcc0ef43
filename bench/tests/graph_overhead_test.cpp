// The task graph may cost 3 % over plain parallel_for on bert-128, 96 pieces of one head each.
//
// Both are run by turns, and what counts is the median of the ratios of neighbours: what slows the machine down slows both, and
// the median drops what hits one alone. Pairs are added until a confidence interval of the median lies on one side of the
// limit, or time is up. Only an interval that lies beyond it is a failure: a busy machine leaves the question open, and says
// so.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "platform/cpu_limits.hpp"
#include "support/head_pieces.hpp"

namespace polyhead::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double allowed = 1.03;
constexpr int pairs_a_look = 20;
constexpr double seconds_at_most = 4;
// A host has moods of some tenths of a second, a core that wakes up for one: no verdict against us before they have passed.
constexpr double seconds_before_beyond = 1.5;
// Three standard deviations of the number of ratios below the median: 99.7 %, and still well above 95 % after all the looks.
constexpr double deviations = 3;
constexpr double most_unrest = 0.04;  // cores that take turns at being slow cost pieces of equal work more than a loop

double seconds_of(const std::function<void()>& run) {
  const Clock::time_point start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of the median ratio of run to plain.
struct Interval {
  double low = 0, high = 0;
  double unrest = 0;  // of plain: the median difference between one of its times and the next, as a share
  bool within() const { return high <= allowed; }
  bool beyond() const { return low > allowed && unrest < most_unrest; }
};

Interval cost_over_plain(const std::function<void()>& run, const std::function<void()>& plain) {
  run();
  plain();
  std::vector<double> ratios, unrest;
  double last_plain = 0;
  Interval interval;
  const Clock::time_point start = Clock::now();
  double seconds = 0;
  do {
    for (int pair = 0; pair < pairs_a_look; ++pair) {
      double by_run = 0, by_plain = 0;
      if (pair % 2 == 0) by_run = seconds_of(run);
      by_plain = seconds_of(plain);
      if (pair % 2 != 0) by_run = seconds_of(run);
      ratios.push_back(by_run / by_plain);
      if (last_plain > 0) unrest.push_back(std::abs(by_plain / last_plain - 1));
      last_plain = by_plain;
    }
    // As many of them lie below the median as heads come up in that many throws of a coin.
    std::sort(ratios.begin(), ratios.end());
    std::sort(unrest.begin(), unrest.end());
    const auto count = static_cast<double>(ratios.size());
    const double rank = std::max(0.0, std::floor((count - deviations * std::sqrt(count)) / 2));
    interval.low = ratios[static_cast<std::size_t>(rank)];
    interval.high = ratios[ratios.size() - 1 - static_cast<std::size_t>(rank)];
    interval.unrest = unrest[unrest.size() / 2];
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  } while (!interval.within() && !(interval.beyond() && seconds > seconds_before_beyond) && seconds < seconds_at_most);
  return interval;
}

std::string describe(const Interval& interval) {
  return std::to_string(interval.low) + " .. " + std::to_string(interval.high) + " of plain parallel_for, which differs by " +
         std::to_string(interval.unrest) + " from one time to the next";
}

class GraphOverhead : public ::testing::TestWithParam<int> {};

TEST_P(GraphOverhead, AtMostThreePercent) {
  HeadPieces heads(default_isa(), GetParam());
  ASSERT_EQ(heads.pieces(), 96);
  for (const auto run : {&HeadPieces::run_graph, &HeadPieces::run_plain}) {
    heads.attention().poison();
    (heads.*run)();
    const Check check = heads.attention().compare();
    ASSERT_TRUE(check.passed()) << check.describe();
  }
  const Interval cost = cost_over_plain([&] { heads.run_graph(); }, [&] { heads.run_plain(); });
  std::printf("%d threads: %s\n", heads.threads(), describe(cost).c_str());
  EXPECT_FALSE(cost.beyond()) << describe(cost);
}

TEST_P(GraphOverhead, SixPercentMoreIsSeen) {
  HeadPieces heads(default_isa(), GetParam());
  const auto slower_graph = [&] {
    const double seconds = seconds_of([&] { heads.run_graph(); });
    const Clock::time_point start = Clock::now();
    while (std::chrono::duration<double>(Clock::now() - start).count() < 0.06 * seconds) {
    }
  };
  // Over the graph itself: beside other programs the plain loop may well lose more than the graph does.
  const Interval cost = cost_over_plain(slower_graph, [&] { heads.run_graph(); });
  EXPECT_FALSE(cost.within()) << describe(cost);
  if (!cost.beyond()) GTEST_SKIP() << "the machine is too busy to tell: " << describe(cost);
}

std::vector<int> thread_counts() {
  std::vector<int> counts = {1};
  if (const int most = platform::default_thread_count(); most > 1) counts.push_back(most);
  return counts;
}

INSTANTIATE_TEST_SUITE_P(Threads, GraphOverhead, ::testing::ValuesIn(thread_counts()),
                         [](const auto& test) { return "threads" + std::to_string(test.param); });

}  // namespace
}  // namespace polyhead::bench
