// The task graph may cost 3 % over plain parallel_for on bert-128, 96 pieces of one head each.
//
// Both are run by turns, and what counts is the median of the ratios of neighbours: what slows the machine down slows both, and
// the median drops what hits one alone. Noise can still shift a whole series, so a few more are tried; that a real regression
// does not get through by trying is tested too.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "platform/cpu_limits.hpp"
#include "support/head_pieces.hpp"

namespace polyhead::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double allowed = 1.03;
constexpr int pairs = 25;
constexpr int most_series = 6;

double seconds_of(const std::function<void()>& run) {
  const Clock::time_point start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The least median of several series, or the first one that is allowed.
double cost_over_plain(const std::function<void()>& run, const std::function<void()>& plain) {
  double least = 0;
  for (int series = 0; series < most_series; ++series) {
    run();
    plain();
    std::vector<double> ratios;
    for (int pair = 0; pair < pairs; ++pair) {
      double by_run = 0, by_plain = 0;
      if (pair % 2 == 0) by_run = seconds_of(run);
      by_plain = seconds_of(plain);
      if (pair % 2 != 0) by_run = seconds_of(run);
      ratios.push_back(by_run / by_plain);
    }
    const double ratio = median(ratios);
    least = series == 0 ? ratio : std::min(least, ratio);
    if (least <= allowed) break;
  }
  return least;
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
  const double cost = cost_over_plain([&] { heads.run_graph(); }, [&] { heads.run_plain(); });
  RecordProperty("cost_over_plain", std::to_string(cost));
  EXPECT_LE(cost, allowed) << heads.threads() << " threads";
}

TEST_P(GraphOverhead, AnOverheadOfSixPercentIsSeen) {
  HeadPieces heads(default_isa(), GetParam());
  heads.run_plain();
  const auto slower_graph = [&] {
    const double seconds = seconds_of([&] { heads.run_graph(); });
    const Clock::time_point start = Clock::now();
    while (std::chrono::duration<double>(Clock::now() - start).count() < 0.06 * seconds) {
    }
  };
  EXPECT_GT(cost_over_plain(slower_graph, [&] { heads.run_plain(); }), allowed);
}

std::vector<int> thread_counts() {
  std::vector<int> counts = {1};
  if (const int most = platform::default_thread_count(); most > 1) counts.push_back(most);
  return counts;
}

INSTANTIATE_TEST_SUITE_P(Threads, GraphOverhead, ::testing::ValuesIn(thread_counts()),
                         [](const auto& info) { return "threads" + std::to_string(info.param); });

}  // namespace
}  // namespace polyhead::bench
