// Timing several implementations fairly: in turn, in one process.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace polyhead::cli {

struct Timing {
  // Seconds a call. Wall time but for cpu, the processor time of all threads of the process.
  double median = 0, minimum = 0, cpu = 0;
  double spread = 0;  // half of the distance between the quartiles, relative to the median
  // To the first contender: the median over the rounds of the quotient of the two medians in that round, and its confidence
  // interval of 95 %, by ranks: whatever the noise looks like, as long as it is not the same in all rounds.
  double ratio = 1, ratio_low = 1, ratio_high = 1;
  std::int64_t calls = 0;
};

struct MeasureOptions {
  double min_time = 0.5;  // seconds of timed calls for each contender
  bool pause = false;     // rest before each block, so that the workers of the one before stop spinning
  // Asked between samples; true ends the measurement, whose result is then empty.
  std::function<bool()> stop;
  // Told between blocks, never while anything is timed: the share done, 0 to 1.
  std::function<void(double share)> progress;
};

// A round gives every contender a block of calls, after one that is not timed when there are several (it brings code, operands
// and threads back into caches). The first one to start moves on by one each round. A sample is as many calls as take 20 us, so
// that reading the clock does not count in short ones. Rounds go on until every contender has had its time, or until twice that
// is over for all together where one of them needs longer for a call; at least three rounds, five when there are several.
std::vector<Timing> measure(const std::vector<std::function<void()>>& contenders, const MeasureOptions& options);

}  // namespace polyhead::cli
